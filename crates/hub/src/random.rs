//! Identifiers that cannot be guessed, from the operating system's source of randomness.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The id of a connection: a UUID, version 4 (RFC 9562 §5.4).
pub(crate) fn uuid() -> String {
    let mut bytes: [u8; 16] = random();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let [a, b, c, d, e] = [&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]].map(hex);
    format!("{a}-{b}-{c}-{d}-{e}")
}

/// The length of a [`token`].
#[cfg(feature = "nats")]
pub(crate) const TOKEN_LEN: usize = 8;

/// A short name, for epochs and nodes.
pub(crate) fn token() -> String {
    URL_SAFE_NO_PAD.encode(random::<6>())
}

/// A secret that stands for a password: 256 bits.
pub(crate) fn secret() -> String {
    URL_SAFE_NO_PAD.encode(random::<32>())
}

/// A number from 0 to 1.
#[cfg(feature = "client")]
pub(crate) fn fraction() -> f64 {
    f64::from(u32::from_le_bytes(random())) / f64::from(u32::MAX)
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // Without a source of randomness no id is safe: panic.
    getrandom::getrandom(&mut bytes).expect("the operating system's source of randomness");
    bytes
}
