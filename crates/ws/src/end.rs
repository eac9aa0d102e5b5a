//! Why a connection ended, and who ended it.

use crate::close::CloseCode;
use crate::error::Error;
use alloc::string::String;

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The side that began.
    pub by: Initiator,
    /// The cause.
    pub cause: Cause,
}

/// The side that began the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initiator {
    /// This end: by [`crate::Outbound::close`], or because the peer broke a rule, reached a limit or was silent.
    Local,
    /// The other end, by a Close frame.
    Peer,
    /// The transport ended.
    Transport,
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// A Close frame, with its code and reason.
    Close {
        /// `None` when it had no code.
        code: Option<CloseCode>,
        /// Empty when it had none.
        reason: String,
    },
    /// The peer broke a rule or reached a limit.
    Error(Error),
    /// The peer was silent for [`crate::Keepalive::dead_after`].
    Silence,
    /// The peer did not finish the closing handshake within [`crate::Config::close_timeout`].
    CloseTimeout,
    /// The transport ended without a closing handshake.
    TransportClosed,
}

impl End {
    /// The reason of the Close frame; empty without one.
    pub fn reason(&self) -> &str {
        match &self.cause {
            Cause::Close { reason, .. } => reason,
            _ => "",
        }
    }

    /// The code as RFC 6455 §7.1.5 counts it: the Close frame's, 1005 if it had none, the code this end failed the
    /// connection with, or 1006 when no Close frame was exchanged.
    pub fn code(&self) -> CloseCode {
        match &self.cause {
            Cause::Close { code, .. } => code.unwrap_or(CloseCode::NO_STATUS),
            Cause::Error(error) => error.close_code().unwrap_or(CloseCode::ABNORMAL),
            _ => CloseCode::ABNORMAL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Misuse, PeerMisbehaved};

    // RFC 6455 §7.1.5, §7.1.6.
    #[test]
    fn has_the_code_and_reason_of_the_close_frame() {
        let close = |code, reason| Cause::Close { code, reason: String::from(reason) };
        for (cause, code, reason) in [
            (close(Some(CloseCode::GOING_AWAY), "later"), CloseCode::GOING_AWAY, "later"),
            (close(None, ""), CloseCode::NO_STATUS, ""),
            (Cause::Error(PeerMisbehaved::InvalidUtf8.into()), CloseCode::INVALID_PAYLOAD, ""),
            (Cause::Error(Misuse::NotOpen.into()), CloseCode::ABNORMAL, ""),
            (Cause::Silence, CloseCode::ABNORMAL, ""),
            (Cause::CloseTimeout, CloseCode::ABNORMAL, ""),
            (Cause::TransportClosed, CloseCode::ABNORMAL, ""),
        ] {
            let end = End { by: Initiator::Local, cause };
            assert_eq!((end.code(), end.reason()), (code, reason), "{end:?}");
        }
    }
}
