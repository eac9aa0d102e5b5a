//! TLS below the session (RFC 8446, RFC 5246), decrypted where the secrets are known. Keys are derived by rustls and
//! records opened by ring. Records are framed here, because no library does it for both directions of a captured
//! connection. The few fields of the hellos are parsed here, because the maintained parsers depend on many macro
//! crates.

mod hello;
mod key_log;
mod keys;
mod side;

use crate::entry::{Context, Direction, Protocol};
use crate::limits::HANDSHAKE_LEN_MAX;
use crate::session::{Assume, Session, looks_like_request};
use hello::{ClientHello, Hello, ServerHello};
pub(crate) use key_log::KeyLog;
use side::{Record, Side};

/// A connection above TCP.
#[derive(Debug)]
pub(crate) enum Transport {
    /// Not enough bytes have arrived to detect TLS. The bytes, by direction.
    Detect(Assume, [Vec<u8>; 2]),
    Plain(Box<Session>),
    Tls(Box<Tls>),
}

impl Transport {
    pub(crate) fn new(assume: Assume) -> Self {
        Self::Detect(assume, Default::default())
    }

    /// Whether `bytes` were sent by a client; `None` if they do not show it.
    pub(crate) fn sent_by_client(bytes: &[u8]) -> Option<bool> {
        match bytes {
            [0x16, 3, _, _, _, 1, ..] => Some(true),
            [0x16, 3, _, _, _, 2, ..] => Some(false),
            _ if bytes.starts_with(b"HTTP/1.") => Some(false),
            _ if bytes.len() > 3 && looks_like_request(bytes) => Some(true),
            _ => None,
        }
    }

    pub(crate) fn handle(&mut self, context: &mut Context<'_>, keys: &KeyLog, bytes: &[u8]) {
        if let Self::Detect(assume, buffers) = self {
            let buffer = &mut buffers[context.direction.index()];
            buffer.extend_from_slice(bytes);
            let is_tls = match buffer[..] {
                // RFC 8446 §5.1: a handshake record; or another one, in the middle of a connection.
                [0x14..=0x17, 3, 0..=4, ..] => true,
                [0x14..=0x17] | [0x14..=0x17, 3] => return,
                _ => false,
            };
            let (assume, buffers) = (*assume, std::mem::take(buffers));
            *self = if is_tls {
                Self::Tls(Box::new(Tls::new(assume)))
            } else {
                Self::Plain(Box::new(Session::new(assume)))
            };
            for direction in [context.direction, context.direction.reverse()] {
                if !buffers[direction.index()].is_empty() {
                    let mut context = Context { direction, ..context.on_same() };
                    self.handle(&mut context, keys, &buffers[direction.index()]);
                }
            }
            return;
        }
        match self {
            Self::Detect(..) => {}
            Self::Plain(session) => session.handle(context, bytes),
            Self::Tls(tls) => tls.handle(context, keys, bytes),
        }
    }

    /// Handles a gap: `len` bytes that were not captured.
    pub(crate) fn gap(&mut self, context: &mut Context<'_>, len: u64) {
        match self {
            Self::Detect(..) => {}
            Self::Plain(session) => session.gap(context, Some(len)),
            Self::Tls(tls) => tls.gap(context, len),
        }
    }

    /// Handles the end of this direction.
    pub(crate) fn finish(&mut self, context: &mut Context<'_>) {
        match self {
            Self::Detect(..) => {}
            Self::Plain(session) => session.finish(context),
            Self::Tls(tls) => tls.finish(context),
        }
    }
}

/// Both directions of a TLS connection.
#[derive(Debug)]
pub(crate) struct Tls {
    client: Option<ClientHello>,
    server: Option<ServerHello>,
    sides: [Side; 2],
    session: Session,
}

impl Tls {
    fn new(assume: Assume) -> Self {
        let sides = [Side::default(), Side::default()];
        Self { client: None, server: None, sides, session: Session::new(assume) }
    }

    fn handle(&mut self, context: &mut Context<'_>, keys: &KeyLog, bytes: &[u8]) {
        let direction = context.direction;
        let mut buffer = self.sides[direction.index()].fill(bytes);
        let mut at = 0;
        while let Some(record) = Record::split(&buffer[at..]) {
            let record = match record {
                Ok(record) => record,
                Err(lost) => {
                    self.report_lost(context, lost);
                    at = buffer.len();
                    break;
                }
            };
            let range = at..at + record.len();
            at = range.end;
            self.record(context, keys, record, &mut buffer[range]);
        }
        buffer.drain(..at);
        self.sides[direction.index()].keep(buffer);
    }

    /// Handles a record: its header and its fragment.
    fn record(&mut self, context: &mut Context<'_>, keys: &KeyLog, record: Record, bytes: &mut [u8]) {
        let Self { client, server, sides, session } = self;
        let direction = context.direction;
        let side = &mut sides[direction.index()];
        if side.is_encrypted(server.as_ref(), record) {
            let secrets = client.as_ref().and_then(|client| keys.get(&client.random));
            match side.decrypt(direction, client.as_ref(), server.as_ref(), secrets, record, bytes) {
                Ok((Record::APPLICATION_DATA, plain)) => session.handle(context, plain),
                Ok((Record::ALERT, plain)) => report_alert(context, plain),
                Ok(_) => {}
                Err(reason) => {
                    if side.count_undecrypted(record) {
                        let mut entry = context.entry(Protocol::Tls, "encrypted");
                        entry.len = record.payload_len as u64;
                        entry.undecoded(reason);
                        context.report(entry);
                    }
                    session.gap(context, None);
                }
            }
            return;
        }
        let payload = &bytes[Record::HEADER_LEN..];
        match record.kind {
            Record::HANDSHAKE => {
                if side.handshake.len() + payload.len() <= HANDSHAKE_LEN_MAX {
                    side.handshake.extend_from_slice(payload);
                }
                let mut rest = &side.handshake[..];
                while let Some(hello) = Hello::next(&mut rest) {
                    hello.report(context);
                    match (hello, direction) {
                        (Hello::Client(hello), Direction::ToServer) => *client = Some(hello),
                        // A HelloRetryRequest does not affect the keys.
                        (Hello::Server(hello), Direction::ToClient) if !hello.is_retry => {
                            *server = Some(hello);
                        }
                        _ => {}
                    }
                }
                let read = side.handshake.len() - rest.len();
                side.handshake.drain(..read);
            }
            Record::CHANGE_CIPHER_SPEC => side.changed_cipher = true,
            Record::ALERT => report_alert(context, payload),
            _ => {}
        }
    }

    fn report_lost(&mut self, context: &mut Context<'_>, reason: &'static str) {
        let mut entry = context.entry(Protocol::Tls, "malformed");
        entry.violation("RFC 8446 §5.1", reason);
        context.report(entry);
        self.sides[context.direction.index()].lose();
        self.session.gap(context, None);
    }

    fn gap(&mut self, context: &mut Context<'_>, len: u64) {
        self.sides[context.direction.index()].gap(len);
        // Records are longer than their plaintext, by a length that is not known.
        self.session.gap(context, None);
    }

    fn finish(&mut self, context: &mut Context<'_>) {
        let side = &mut self.sides[context.direction.index()];
        let (undecrypted, records) = side.undecrypted();
        if records > 1 {
            let mut entry = context.entry(Protocol::Tls, "encrypted");
            entry.len = undecrypted;
            entry.undecoded(format!("{records} records were not decrypted"));
            context.report(entry);
        }
        if let Some(len) = side.incomplete() {
            let mut entry = context.entry(Protocol::Tls, "incomplete");
            entry.len = len as u64;
            entry.missing("the bytes end within a record");
            context.report(entry);
        }
        self.session.finish(context);
    }
}

fn report_alert(context: &mut Context<'_>, payload: &[u8]) {
    let &[level, description] = payload else { return };
    let name = match description {
        0 => "close_notify",
        10 => "unexpected_message",
        20 => "bad_record_mac",
        40 => "handshake_failure",
        42 => "bad_certificate",
        45 => "certificate_expired",
        46 => "certificate_unknown",
        47 => "illegal_parameter",
        48 => "unknown_ca",
        50 => "decode_error",
        51 => "decrypt_error",
        70 => "protocol_version",
        80 => "internal_error",
        90 => "user_canceled",
        112 => "unrecognized_name",
        120 => "no_application_protocol",
        _ => "another",
    };
    let mut entry = context.entry(Protocol::Tls, "alert");
    entry.len = payload.len() as u64;
    entry.payload = crate::entry::Payload::Text(name.into());
    entry.detail("level", if level == 2 { "2: fatal" } else { "1: warning" }, "RFC 8446 §6");
    entry.detail("description", format!("{description}: {name}"), "RFC 8446 §6");
    context.report(entry);
}
