//! Keys of records. rustls derives them from secrets. ring decrypts with them, because rustls has no public constructor
//! for its own decrypters.

use ring::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::SupportedCipherSuite;
use rustls::crypto::tls13::OkmBlock;

/// The key of one direction, for one epoch.
pub(super) struct RecordKey {
    key: LessSafeKey,
    iv: [u8; 12],
    /// How the nonce of a record is made.
    nonces: Nonces,
    pub(super) sequence: u64,
    /// The secret of TLS 1.3 that a KeyUpdate continues from.
    secret: Option<Vec<u8>>,
    suite: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nonces {
    Tls13,
    /// RFC 5288 §3: eight bytes of each record.
    Explicit,
    /// RFC 7905 §2: as TLS 1.3, with the associated data of TLS 1.2.
    Implicit,
}

impl std::fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordKey").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

fn suite(id: u16) -> Option<SupportedCipherSuite> {
    let all = rustls::crypto::ring::ALL_CIPHER_SUITES;
    all.iter().find(|suite| u16::from(suite.suite()) == id).copied()
}

fn algorithm(suite: u16) -> Option<&'static aead::Algorithm> {
    Some(match suite {
        0x1301 | 0xC02B | 0xC02F => &aead::AES_128_GCM,
        0x1302 | 0xC02C | 0xC030 => &aead::AES_256_GCM,
        0x1303 | 0xCCA8 | 0xCCA9 => &aead::CHACHA20_POLY1305,
        _ => return None,
    })
}

/// RFC 8446 §7.1: HKDF-Expand-Label without a context.
fn expand_label(suite: u16, secret: &[u8], label: &str, out: &mut [u8]) -> Option<()> {
    let SupportedCipherSuite::Tls13(suite) = self::suite(suite)? else { return None };
    if secret.len() > OkmBlock::MAX_LEN {
        return None;
    }
    let expander = suite.hkdf_provider.expander_for_okm(&OkmBlock::new(secret));
    let len = (out.len() as u16).to_be_bytes();
    let label_len = [6 + label.len() as u8];
    expander.expand_slice(&[&len, &label_len, b"tls13 ", label.as_bytes(), &[0]], out).ok()
}

impl RecordKey {
    /// The key of a traffic secret of TLS 1.3 (RFC 8446 §7.3); `None` for a suite that is not supported.
    pub(super) fn of_traffic_secret(suite: u16, secret: &[u8]) -> Option<Self> {
        let algorithm = algorithm(suite)?;
        let (mut key, mut iv) = (vec![0; algorithm.key_len()], [0; 12]);
        expand_label(suite, secret, "key", &mut key)?;
        expand_label(suite, secret, "iv", &mut iv)?;
        let key = LessSafeKey::new(UnboundKey::new(algorithm, &key).ok()?);
        Some(Self { key, iv, nonces: Nonces::Tls13, sequence: 0, secret: Some(secret.to_vec()), suite })
    }

    /// The key after a KeyUpdate (RFC 8446 §7.2).
    pub(super) fn updated(&self) -> Option<Self> {
        let secret = self.secret.as_ref()?;
        let mut next = vec![0; secret.len()];
        expand_label(self.suite, secret, "traffic upd", &mut next)?;
        Self::of_traffic_secret(self.suite, &next)
    }

    /// The keys of both directions of TLS 1.2 (RFC 5246 §6.3), client first.
    pub(super) fn of_master_secret(
        id: u16,
        master: &[u8],
        client_random: &[u8; 32],
        server_random: &[u8; 32],
    ) -> Option<[Self; 2]> {
        let SupportedCipherSuite::Tls12(suite) = suite(id)? else { return None };
        let algorithm = algorithm(id)?;
        let shape = suite.aead_alg.key_block_shape();
        let (key_len, iv_len) = (shape.enc_key_len, shape.fixed_iv_len);
        if master.is_empty() || key_len != algorithm.key_len() || iv_len > 12 {
            return None;
        }
        let mut block = vec![0; 2 * (key_len + iv_len)];
        let seed = [&server_random[..], &client_random[..]].concat();
        suite.prf_provider.for_secret(&mut block, master, b"key expansion", &seed);
        let (keys, ivs) = block.split_at(2 * key_len);
        let nonces = if iv_len == 12 { Nonces::Implicit } else { Nonces::Explicit };
        let direction = |at: usize| {
            let mut iv = [0; 12];
            iv[..iv_len].copy_from_slice(&ivs[at * iv_len..][..iv_len]);
            let key = UnboundKey::new(algorithm, &keys[at * key_len..][..key_len]).ok()?;
            Some(Self { key: LessSafeKey::new(key), iv, nonces, sequence: 0, secret: None, suite: id })
        };
        Some([direction(0)?, direction(1)?])
    }

    /// Decrypts the record with the number `sequence` in place; returns the range of the plaintext in `payload`.
    pub(super) fn open(
        &self,
        sequence: u64,
        header: [u8; 5],
        payload: &mut [u8],
    ) -> Option<std::ops::Range<usize>> {
        let tag_len = self.key.algorithm().tag_len();
        let mut nonce = self.iv;
        let explicit_len = if self.nonces == Nonces::Explicit { 8 } else { 0 };
        if explicit_len == 0 {
            for (byte, number) in nonce[4..].iter_mut().zip(sequence.to_be_bytes()) {
                *byte ^= number;
            }
        } else {
            nonce[4..].copy_from_slice(payload.get(..8)?);
        }
        let len = payload.len().checked_sub(explicit_len + tag_len)?;
        let nonce = Nonce::assume_unique_for_key(nonce);
        let sealed = &mut payload[explicit_len..];
        let opened = if self.nonces == Nonces::Tls13 {
            self.key.open_in_place(nonce, Aad::from(header), sealed)
        } else {
            // RFC 5246 §6.2.3.3: sequence number, type, version, length of the plaintext.
            let mut aad = [0; 13];
            aad[..8].copy_from_slice(&sequence.to_be_bytes());
            aad[8..11].copy_from_slice(&header[..3]);
            aad[11..].copy_from_slice(&(len as u16).to_be_bytes());
            self.key.open_in_place(nonce, Aad::from(aad), sealed)
        };
        let len = opened.ok()?.len();
        Some(explicit_len..explicit_len + len)
    }
}
