//! The client's connection preface (RFC 9113 §3.4), and the `HTTP2-Settings` field of an upgrade from HTTP/1.1 (RFC 7540 §3.2.1).
//!
//! RFC 9113 §3.1 obsoletes the upgrade to h2c, but some clients behind proxies still use it. The caller handles its HTTP/1.1 request.

use alloc::string::String;
use alloc::vec::Vec;

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::error::Violation;
use crate::frame::{FrameHeader, SettingsFrame, Values};
use crate::settings::{Changes, Settings};
use crate::{Limits, Role};

/// The first bytes of a client (RFC 9113 §3.4). SETTINGS follow.
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// RFC 7540 §3.2.1: base64url without padding. Padding is accepted as well.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Compares the first bytes of a client with the preface. Returns `true` if they begin with it, and `false` if more bytes are
/// needed.
///
/// ```
/// use wireloom_http2::upgrade::{PREFACE, check_preface};
///
/// assert_eq!(check_preface(&PREFACE[..3]), Ok(false));
/// assert_eq!(check_preface(PREFACE), Ok(true));
/// assert!(check_preface(b"GET / HTTP/1.1").is_err());
/// ```
///
/// # Errors
/// [`Violation::PrefaceInvalid`] if a byte differs.
pub fn check_preface(received: &[u8]) -> Result<bool, Violation> {
    let len = received.len().min(PREFACE.len());
    // RFC 9113 §3.4: an invalid preface is a connection error, PROTOCOL_ERROR.
    if received[..len] == PREFACE[..len] { Ok(len == PREFACE.len()) } else { Err(Violation::PrefaceInvalid) }
}

/// The value of `HTTP2-Settings` for these settings: the payload of a SETTINGS frame with the ones that differ from the initial
/// values.
pub fn encode_http2_settings(settings: &Settings) -> String {
    let mut frame = Vec::new();
    SettingsFrame::encode(settings.entries_since(&Settings::INITIAL), &mut frame);
    BASE64.encode(&frame[FrameHeader::LEN..])
}

/// Applies the value of a client's `HTTP2-Settings` like a SETTINGS frame. It is not acknowledged (RFC 7540 §3.2.1), and the client's
/// first SETTINGS frame still follows.
///
/// ```
/// use wireloom_http2::{Limits, Settings, upgrade};
///
/// let ours = Settings { initial_window_size: 1 << 20, ..Settings::INITIAL };
/// let value = upgrade::encode_http2_settings(&ours);
/// let mut seen = Settings::INITIAL;
/// upgrade::apply_http2_settings(value.as_bytes(), &Limits::default(), &mut seen)?;
/// assert_eq!(seen, ours);
/// # Ok::<(), wireloom_http2::error::Violation>(())
/// ```
///
/// # Errors
/// [`Violation::UpgradeSettingsInvalid`] if the value is not base64url or has more than [`Limits::settings_entries_max`] entries,
/// and the errors of [`Settings::apply`]. Do not upgrade then.
pub fn apply_http2_settings(
    value: &[u8],
    limits: &Limits,
    settings: &mut Settings,
) -> Result<Changes, Violation> {
    // An entry of six bytes has eight characters.
    if value.len() > limits.settings_entries_max.saturating_mul(8) {
        return Err(Violation::UpgradeSettingsInvalid);
    }
    let bytes = BASE64.decode(value).map_err(|_| Violation::UpgradeSettingsInvalid)?;
    let values = Values::from_bytes(&bytes).map_err(|_| Violation::UpgradeSettingsInvalid)?;
    settings.apply(values, Role::Client, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Setting;
    use alloc::vec;

    #[test]
    fn the_preface_is_refused_at_the_first_byte_that_differs() {
        // RFC 9113 §3.4
        for len in 0..PREFACE.len() {
            assert_eq!(check_preface(&PREFACE[..len]), Ok(false));
            let mut wrong = PREFACE[..=len].to_vec();
            wrong[len] ^= 1;
            assert_eq!(check_preface(&wrong), Err(Violation::PrefaceInvalid), "{len}");
        }
        let mut more = PREFACE.to_vec();
        more.extend_from_slice(b"anything");
        assert_eq!(check_preface(&more), Ok(true));
    }

    #[test]
    fn settings_are_encoded_as_base64url() {
        // RFC 7540 §3.2.1: SETTINGS_MAX_CONCURRENT_STREAMS 100 and SETTINGS_INITIAL_WINDOW_SIZE 65,535.
        let mut settings = Settings::INITIAL;
        let limits = Limits::default();
        apply_http2_settings(b"AAMAAABkAAQAAP__", &limits, &mut settings).unwrap();
        assert_eq!((settings.max_concurrent_streams, settings.initial_window_size), (100, 65_535));
        assert_eq!(encode_http2_settings(&settings), "AAMAAABk");
        assert_eq!(apply_http2_settings(b"", &limits, &mut settings), Ok(Changes::default()));
    }

    #[test]
    fn refuses_invalid_settings() {
        let limits = Limits::default();
        for bad in [&b"AAMAAAB"[..], b"AAMAAABkAA", b"AAMAAAB+", b"AAMAAA/k", b"AAM AABk", b"\xff"] {
            let result = apply_http2_settings(bad, &limits, &mut Settings::INITIAL.clone());
            assert_eq!(result, Err(Violation::UpgradeSettingsInvalid), "{}", bad.escape_ascii());
        }
        // RFC 9113 §6.5.2: values are checked as in a frame.
        let mut frame = Vec::new();
        SettingsFrame::encode([Setting { id: 5, value: 1 }], &mut frame);
        let value = BASE64.encode(&frame[FrameHeader::LEN..]);
        let result = apply_http2_settings(value.as_bytes(), &limits, &mut Settings::INITIAL.clone());
        assert_eq!(result, Err(Violation::MaxFrameSizeValue));
    }

    #[test]
    fn the_number_of_entries_is_limited() {
        let limits = Limits::default();
        for (entries, taken) in [(31, true), (32, true), (33, false)] {
            let value = BASE64.encode(vec![0xee; entries * 6]);
            let result = apply_http2_settings(value.as_bytes(), &limits, &mut Settings::INITIAL.clone());
            assert_eq!(result.is_ok(), taken, "{entries}");
        }
    }
}
