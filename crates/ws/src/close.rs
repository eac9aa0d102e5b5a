//! Close codes and the body of a Close frame (RFC 6455 §5.5.1, §7.4). `outbound` has the closing handshake.

use crate::error::{Misuse, PeerMisbehaved};
use core::fmt;

/// The longest reason: a control frame holds 125 bytes, two of them the code (RFC 6455 §5.5).
pub const REASON_LEN_MAX: usize = 123;

/// A close code (RFC 6455 §7.4, with the later entries of IANA's registry).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CloseCode(u16);

impl CloseCode {
    /// 1000: the purpose has been fulfilled.
    pub const NORMAL: Self = Self(1000);
    /// 1001: the server shuts down, or the browser leaves the page.
    pub const GOING_AWAY: Self = Self(1001);
    /// 1002: the peer broke the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1002);
    /// 1003: this kind of message is not accepted here.
    pub const UNSUPPORTED_DATA: Self = Self(1003);
    /// 1005: the peer's Close frame held no code. Never sent.
    pub const NO_STATUS: Self = Self(1005);
    /// 1006: the connection ended without a Close frame. Never sent.
    pub const ABNORMAL: Self = Self(1006);
    /// 1007: the message's data does not fit its type, such as text that is not UTF-8.
    pub const INVALID_PAYLOAD: Self = Self(1007);
    /// 1008: a policy was violated and no other code fits.
    pub const POLICY_VIOLATION: Self = Self(1008);
    /// 1009: the message is too big.
    pub const TOO_BIG: Self = Self(1009);
    /// 1010: the client needs an extension that the server did not negotiate.
    pub const MANDATORY_EXTENSION: Self = Self(1010);
    /// 1011: an unexpected error of the server.
    pub const INTERNAL_ERROR: Self = Self(1011);
    /// 1012: the service restarts.
    pub const SERVICE_RESTART: Self = Self(1012);
    /// 1013: try again later.
    pub const TRY_AGAIN_LATER: Self = Self(1013);
    /// 1014: a gateway received an invalid response from the upstream server.
    pub const BAD_GATEWAY: Self = Self(1014);
    /// 1015: TLS failed. Never sent.
    pub const TLS_HANDSHAKE: Self = Self(1015);

    /// The code with this number, whether or not it may be sent.
    #[inline]
    pub const fn new(code: u16) -> Self {
        Self(code)
    }

    /// The number.
    #[inline]
    pub const fn value(self) -> u16 {
        self.0
    }

    /// Whether the code is allowed in a Close frame (RFC 6455 §7.4.1, §7.4.2): the defined ones except those that are never sent,
    /// 3000–3999 for libraries and frameworks, 4000–4999 for applications.
    #[inline]
    pub const fn is_sendable(self) -> bool {
        matches!(self.0, 1000..=1003 | 1007..=1014 | 3000..=4999)
    }
}

impl From<CloseCode> for u16 {
    fn from(code: CloseCode) -> u16 {
        code.0
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The body of a Close frame:
///
/// ```text
/// (nothing)                          no code, no reason
/// code: u16 big-endian | reason      reason: UTF-8, at most 123 bytes
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseFrame<'a> {
    /// The code; `None` when the body was empty.
    pub code: Option<CloseCode>,
    /// The reason; empty without a code.
    pub reason: &'a str,
}

impl<'a> CloseFrame<'a> {
    /// Decodes a received body.
    ///
    /// # Errors
    /// A body of one byte, a code that may not be sent, a reason that is not UTF-8.
    pub fn decode(body: &'a [u8]) -> Result<Self, PeerMisbehaved> {
        match *body {
            [] => Ok(Self { code: None, reason: "" }),
            // RFC 6455 §5.5.1: if there is a body, its first two bytes MUST be the code.
            [_] => Err(PeerMisbehaved::TruncatedCloseCode),
            [high, low, ref reason @ ..] => {
                let code = CloseCode(u16::from_be_bytes([high, low]));
                if !code.is_sendable() {
                    return Err(PeerMisbehaved::InvalidCloseCode(code.0));
                }
                // RFC 6455 §5.5.1: the reason is UTF-8.
                let reason = core::str::from_utf8(reason).map_err(|_| PeerMisbehaved::InvalidCloseReason)?;
                Ok(Self { code: Some(code), reason })
            }
        }
    }

    /// Checks that this body may be sent.
    ///
    /// # Errors
    /// A code that may not be sent, a reason over [`REASON_LEN_MAX`] bytes or without a code.
    pub fn check(&self) -> Result<(), Misuse> {
        match self.code {
            Some(code) if !code.is_sendable() => Err(Misuse::UnsendableCloseCode(code)),
            None if !self.reason.is_empty() => Err(Misuse::CloseReasonWithoutCode),
            _ if self.reason.len() > REASON_LEN_MAX => Err(Misuse::CloseReasonTooLong(self.reason.len())),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 6455 §7.4.1, §7.4.2.
    #[test]
    fn validates_every_close_code() {
        for value in (0..=u16::MAX).step_by(if cfg!(miri) { 97 } else { 1 }) {
            let sendable = match value {
                1004..=1006 | 1015..=2999 => false,
                1000..=4999 => true,
                _ => false,
            };
            assert_eq!(CloseCode::new(value).is_sendable(), sendable, "{value}");
            assert_eq!(u16::from(CloseCode::new(value)), value);
            let body = value.to_be_bytes();
            assert_eq!(CloseFrame::decode(&body).is_ok(), sendable, "{value}");
        }
    }

    // RFC 6455 §5.5.1.
    #[test]
    fn reads_bodies() {
        assert_eq!(CloseFrame::decode(b""), Ok(CloseFrame { code: None, reason: "" }));
        assert_eq!(CloseFrame::decode(b"\x03"), Err(PeerMisbehaved::TruncatedCloseCode));
        let normal = CloseFrame { code: Some(CloseCode::NORMAL), reason: "bye" };
        assert_eq!(CloseFrame::decode(b"\x03\xe8bye"), Ok(normal));
        assert_eq!(CloseFrame::decode(b"\x03\xe8\xff"), Err(PeerMisbehaved::InvalidCloseReason));
    }

    // RFC 6455 §5.5: control frames hold at most 125 bytes.
    #[test]
    fn bounds_the_reason() {
        let reason = "x".repeat(REASON_LEN_MAX + 1);
        let code = Some(CloseCode::NORMAL);
        assert_eq!(CloseFrame { code, reason: &reason[1..] }.check(), Ok(()));
        assert_eq!(CloseFrame { code, reason: &reason }.check(), Err(Misuse::CloseReasonTooLong(124)));
        assert_eq!(CloseFrame { code: None, reason: "x" }.check(), Err(Misuse::CloseReasonWithoutCode));
        let unsendable = CloseFrame { code: Some(CloseCode::ABNORMAL), reason: "" };
        assert_eq!(unsendable.check(), Err(Misuse::UnsendableCloseCode(CloseCode::ABNORMAL)));
    }
}
