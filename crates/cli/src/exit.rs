//! Exit codes. Scripts rely on these numbers.

use std::io::ErrorKind;

use wireloom::wireloom_ws::handshake::HandshakeError;
use wireloom::wireloom_ws::handshake::error::ResponseError;
use wireloom::{Error, HttpError, WebSocketError};

/// How the command ends, as [`exit_codes`] describes it. 2 is also what clap uses for invalid arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Success = 0,
    NoConnection = 1,
    Usage = 2,
    Refused = 3,
    /// `--expect`, `--count` or `--fail-if-slower`, or a file to merge is of an interrupted load.
    Unmet = 4,
    Broken = 5,
    TimedOut = 6,
    Tls = 7,
    /// 128 and the number of the signal, as shells report a program that it ended.
    Interrupted = 130,
    Terminated = 143,
}

/// The table in the help and the manual pages of every command, and in the book.
macro_rules! exit_codes {
    () => {
        "\
Exit codes:
  0  success; for connect: closed with 1000, 1001 or no code, or a response with a status below 400
  1  no connection: the name is unknown, the address refuses or is in use; or the file to inspect,
     to merge or to configure from cannot be read
  2  invalid arguments, the file of an option cannot be used, or input that cannot be sent
  3  refused: the handshake was not accepted, the peer closed with another code, or the response has
     a status of 400 or more
  4  --expect, --count or --fail-if-slower was not met, or a load to merge was interrupted
  5  the connection broke, the peer violated the protocol or a limit, the input is malformed, not
     all of --data was sent, the output or a recording cannot be written, or the program of --exec
     failed
  6  timed out: connecting, the handshake, the response, or sending --data
  7  TLS failed: the certificate is not trusted, or there is no protocol in common
  130, 143  SIGINT or SIGTERM ended a load, whose result up to then is printed; serve before it
     listened; connect before its connection was open or the response complete; or, the second time,
     connect, inspect --follow and load whose output is not read
"
    };
}
pub(crate) use exit_codes;

impl Exit {
    /// When a connection could not be opened, or a request was not answered.
    pub(crate) fn of_opening(error: &Error) -> Self {
        match error {
            Error::Io(error)
            | Error::Http(HttpError::Io(error))
            | Error::WebSocket(WebSocketError::Io(error))
                if error.kind() == ErrorKind::TimedOut =>
            {
                Self::TimedOut
            }
            Error::WebSocket(WebSocketError::Io(error)) if error.kind() == ErrorKind::PermissionDenied => {
                Self::Refused
            }
            Error::InvalidUrl(_)
            | Error::Http(HttpError::InvalidHeader)
            | Error::LengthRequired
            | Error::Handshake(HandshakeError::Misuse(_)) => Self::Usage,
            Error::ConnectTimeout
            | Error::HandshakeTimeout
            | Error::Http(HttpError::KeepaliveTimeout | HttpError::BodyTimeout)
            | Error::WebSocket(WebSocketError::KeepaliveTimeout) => Self::TimedOut,
            Error::Tls(_) | Error::TlsRequired | Error::NoTls => Self::Tls,
            // An answer that is not one of HTTP, or over a limit.
            Error::Handshake(
                HandshakeError::Response(ResponseError::Malformed(_)) | HandshakeError::Limit(_),
            )
            | Error::InvalidResponse(..)
            | Error::WebSocket(_)
            | Error::Http(_) => Self::Broken,
            Error::Io(error) if is_loss(error.kind()) => Self::Broken,
            Error::Refused(_)
            | Error::TunnelRefused(_)
            | Error::Handshake(_)
            | Error::Redirect
            | Error::NoHttp2(_)
            | Error::NoExtendedConnect => Self::Refused,
            _ => Self::NoConnection,
        }
    }
}

/// Whether an error of this kind ends a connection that was open.
fn is_loss(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
            | ErrorKind::UnexpectedEof
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use wireloom::wireloom_ws::handshake::error::LimitReached;

    #[test]
    fn errors_have_the_codes_of_the_table() {
        let io = |kind: ErrorKind| std::io::Error::from(kind).into();
        for (error, exit) in [
            (Error::HostNotFound(None), Exit::NoConnection),
            (Error::Io(io(ErrorKind::ConnectionRefused)), Exit::NoConnection),
            (Error::Io(io(ErrorKind::HostUnreachable)), Exit::NoConnection),
            (Error::Http(HttpError::InvalidHeader), Exit::Usage),
            (Error::LengthRequired, Exit::Usage),
            (Error::Redirect, Exit::Refused),
            (Error::TunnelRefused(403), Exit::Refused),
            (Error::Handshake(HandshakeError::Response(ResponseError::AcceptMissing)), Exit::Refused),
            (Error::Io(io(ErrorKind::ConnectionReset)), Exit::Broken),
            (Error::Handshake(HandshakeError::Limit(LimitReached::HeadLen)), Exit::Broken),
            (Error::InvalidResponse(1, "it is no status line"), Exit::Broken),
            (Error::Http(HttpError::ConnectionLost), Exit::Broken),
            (Error::Http(HttpError::Malformed("a chunk")), Exit::Broken),
            (Error::Http(HttpError::TooLarge), Exit::Broken),
            (Error::Http(HttpError::NotProcessed), Exit::Broken),
            (Error::Http(HttpError::BodyTimeout), Exit::TimedOut),
            (Error::HandshakeTimeout, Exit::TimedOut),
            (Error::Io(io(ErrorKind::TimedOut)), Exit::TimedOut),
            (Error::WebSocket(WebSocketError::Io(io(ErrorKind::TimedOut))), Exit::TimedOut),
            (Error::WebSocket(WebSocketError::Closed), Exit::Broken),
            (Error::TlsRequired, Exit::Tls),
        ] {
            assert_eq!(Exit::of_opening(&error), exit, "{error:?}");
        }
    }

    #[test]
    fn the_book_has_the_table() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/start/command.md");
        assert!(std::fs::read_to_string(page).unwrap().contains(exit_codes!()), "{page}");
    }
}
