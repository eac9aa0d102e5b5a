//! One direction of TLS: its records, and the keys that decrypt them. The key is found by trial: a record that the
//! current key does not decrypt begins the next epoch (early data, handshake, application, KeyUpdate).

use super::hello::{ClientHello, ServerHello};
use super::key_log::Secrets;
use super::keys::RecordKey;
use crate::entry::Direction;

/// The longest fragment of a record (RFC 5246 §6.2.3).
const FRAGMENT_LEN_MAX: usize = (1 << 14) + 2048;

/// The maximum number of records that may be missing before the next one: as many sequence numbers are tried.
const MISSING_RECORDS_MAX: u64 = 64;

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) kind: u8,
    header: [u8; 5],
    pub(super) payload_len: usize,
}

impl Record {
    pub(super) const HEADER_LEN: usize = 5;
    pub(super) const CHANGE_CIPHER_SPEC: u8 = 20;
    pub(super) const ALERT: u8 = 21;
    pub(super) const HANDSHAKE: u8 = 22;
    pub(super) const APPLICATION_DATA: u8 = 23;

    /// The record at the front of `bytes`, once it is complete.
    pub(super) fn split(bytes: &[u8]) -> Option<Result<Self, &'static str>> {
        let header = *bytes.first_chunk()?;
        let [kind, major, _, high, low] = header;
        let payload_len = usize::from(u16::from_be_bytes([high, low]));
        if !(20..=24).contains(&kind) || major != 3 {
            return Some(Err("this is not a TLS record"));
        }
        if payload_len > FRAGMENT_LEN_MAX {
            return Some(Err("the record is longer than TLS allows"));
        }
        (bytes.len() >= Self::HEADER_LEN + payload_len).then_some(Ok(Self { kind, header, payload_len }))
    }

    pub(super) fn len(&self) -> usize {
        Self::HEADER_LEN + self.payload_len
    }
}

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Side {
    buffer: Vec<u8>,
    /// Incomplete plaintext handshake messages.
    pub(super) handshake: Vec<u8>,
    /// TLS 1.2: records after ChangeCipherSpec are encrypted.
    pub(super) changed_cipher: bool,
    key: Option<RecordKey>,
    /// The index of the next TLS 1.3 secret to try.
    phase: usize,
    /// Whether records are missing before the next one.
    has_gap: bool,
    /// Bytes of the current record that were not captured, and those that follow it.
    skip: usize,
    is_lost: bool,
    undecrypted: (u64, u64),
}

impl Side {
    /// The buffered bytes, followed by `bytes`.
    pub(super) fn fill(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        bytes = &bytes[skipped..];
        if self.is_lost {
            // A segment often begins with a record.
            match Record::split(bytes) {
                Some(Ok(_)) => self.is_lost = false,
                _ => return Vec::new(),
            }
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.extend_from_slice(bytes);
        buffer
    }

    pub(super) fn keep(&mut self, buffer: Vec<u8>) {
        self.buffer = buffer;
    }

    /// The length of an incomplete record's bytes, if there is one.
    pub(super) fn incomplete(&self) -> Option<usize> {
        (!self.buffer.is_empty()).then_some(self.buffer.len())
    }

    /// Gives up: the next record cannot be found.
    pub(super) fn lose(&mut self) {
        self.is_lost = true;
        self.has_gap = true;
        self.buffer = Vec::new();
        self.handshake = Vec::new();
    }

    /// Skips bytes that were not captured.
    pub(super) fn gap(&mut self, len: u64) {
        let announced = self.buffer.first_chunk().map(|&[_, _, _, high, low]: &[u8; 5]| {
            Record::HEADER_LEN + usize::from(u16::from_be_bytes([high, low]))
        });
        let left = announced.map_or(self.skip, |whole| whole - self.buffer.len().min(whole));
        if len <= left as u64 && (announced.is_some() || self.skip > 0) {
            // Skip the rest of the damaged record.
            self.skip = left - len as usize;
            self.buffer = Vec::new();
            self.has_gap = true;
            return;
        }
        self.skip = 0;
        self.lose();
    }

    /// Counts a record that was not decrypted; returns whether it is the first.
    pub(super) fn count_undecrypted(&mut self, record: Record) -> bool {
        self.undecrypted.0 += record.payload_len as u64;
        self.undecrypted.1 += 1;
        self.undecrypted.1 == 1
    }

    /// The numbers of bytes and of records that were not decrypted.
    pub(super) fn undecrypted(&self) -> (u64, u64) {
        self.undecrypted
    }

    /// Whether the record is encrypted.
    pub(super) fn is_encrypted(&self, server: Option<&ServerHello>, record: Record) -> bool {
        match server {
            // RFC 8446 §5.2: encrypted records look like application data.
            Some(server) if server.version == 0x0304 => record.kind == Record::APPLICATION_DATA,
            _ => {
                record.kind == Record::APPLICATION_DATA
                    || (self.changed_cipher && record.kind != Record::CHANGE_CIPHER_SPEC)
            }
        }
    }

    /// Decrypts a record in place; returns its type and its plaintext.
    pub(super) fn decrypt<'a>(
        &mut self,
        direction: Direction,
        client: Option<&ClientHello>,
        server: Option<&ServerHello>,
        secrets: Option<&Secrets>,
        record: Record,
        bytes: &'a mut [u8],
    ) -> Result<(u8, &'a [u8]), &'static str> {
        let (Some(client), Some(server)) = (client, server) else {
            return Err("the handshake was not captured");
        };
        let Some(secrets) = secrets else { return Err("there are no secrets for this session") };
        let payload = &mut bytes[Record::HEADER_LEN..];
        let is_tls13 = server.version == 0x0304;
        if !is_tls13 && self.key.is_none() {
            let master = secrets.master.as_deref().ok_or("there is no master secret")?;
            let keys = RecordKey::of_master_secret(server.suite, master, &client.random, &server.random);
            let [to_server, to_client] = keys.ok_or("the cipher suite is not supported")?;
            self.key = Some(match direction {
                Direction::ToServer => to_server,
                Direction::ToClient => to_client,
            });
        }
        let range = self.open(direction, server, secrets, is_tls13, record, payload);
        let range = range.ok_or("no secret fits")?;
        let mut plain = &bytes[Record::HEADER_LEN..][range];
        if !is_tls13 {
            return Ok((record.kind, plain));
        }
        // RFC 8446 §5.2: the type, then zeros.
        while let Some((&last, rest)) = plain.split_last() {
            plain = rest;
            if last != 0 {
                return Ok((last, plain));
            }
        }
        Err("the record has no type")
    }

    fn open(
        &mut self,
        direction: Direction,
        server: &ServerHello,
        secrets: &Secrets,
        is_tls13: bool,
        record: Record,
        payload: &mut [u8],
    ) -> Option<std::ops::Range<usize>> {
        let sealed = payload.to_vec();
        let mut attempt = |key: &mut RecordKey, missing_max: u64| {
            (0..=missing_max).find_map(|missing| {
                let sequence = key.sequence.checked_add(missing)?;
                // A failed attempt may have changed the buffer: restore it.
                payload.copy_from_slice(&sealed);
                let range = key.open(sequence, record.header, payload)?;
                key.sequence = sequence.wrapping_add(1);
                Some(range)
            })
        };
        let missing_max = if self.has_gap { MISSING_RECORDS_MAX } else { 0 };
        if let Some(key) = &mut self.key {
            if let Some(range) = attempt(key, missing_max) {
                self.has_gap = false;
                return Some(range);
            }
            if let Some(mut next) = is_tls13.then(|| key.updated()).flatten()
                && let Some(range) = attempt(&mut next, missing_max)
            {
                (self.key, self.has_gap) = (Some(next), false);
                return Some(range);
            }
        }
        if !is_tls13 {
            return None;
        }
        for phase in self.phase..3 {
            let Some(secret) = &secrets.traffic[direction.index()][phase] else { continue };
            let Some(mut key) = RecordKey::of_traffic_secret(server.suite, secret) else { continue };
            if let Some(range) = attempt(&mut key, missing_max) {
                (self.key, self.phase, self.has_gap) = (Some(key), phase + 1, false);
                return Some(range);
            }
        }
        None
    }
}
