//! The server's side of an opening handshake over HTTP/1.1 bytes (RFC 6455 §4.2).
//!
//! ```text
//! reading ──head complete──▶ deciding ──accept, reject──▶ answered
//!    └────────────error────────▶ failed (the same error from then on)
//! ```

use alloc::vec::Vec;

use super::error::{HandshakeError, Misuse};
use super::head::HeadReader;
use super::{Acceptance, HandshakeLimits, Negotiated, Request, Response};
use crate::role::Role;

/// Reads a request, and writes the answer that the application chooses.
///
/// ```
/// use wireloom_ws::handshake::server::{Progress, ServerHandshake};
/// use wireloom_ws::handshake::{Acceptance, HandshakeLimits};
///
/// let mut handshake = ServerHandshake::new(HandshakeLimits::default());
/// let arrived = b"GET /chat HTTP/1.1\r\n\
///                 Host: server.example.com\r\n\
///                 Upgrade: websocket\r\n\
///                 Connection: Upgrade\r\n\
///                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
///                 Origin: http://example.com\r\n\
///                 Sec-WebSocket-Protocol: chat, superchat\r\n\
///                 Sec-WebSocket-Version: 13\r\n\r\n\x81";
/// let mut out = Vec::new();
/// match handshake.handle_input(arrived) {
///     Ok(Progress::Incomplete) => unreachable!("in this example everything arrived at once"),
///     Ok(Progress::Complete { consumed }) => {
///         assert_eq!(&arrived[consumed..], b"\x81"); // for the connection
///         let request = handshake.request().expect("complete");
///         assert_eq!((request.path(), request.origin()), ("/chat", Some("http://example.com")));
///         let subprotocol = request.select_subprotocol(&["superchat", "chat"]);
///         let negotiated = handshake.accept(&Acceptance { subprotocol, ..Acceptance::default() }, &mut out)?;
///         assert_eq!(negotiated.subprotocol.as_deref(), Some("superchat"));
///     }
///     Err(error) => error.refusal().write_to(&mut out),
/// }
/// assert!(out.starts_with(b"HTTP/1.1 101 Switching Protocols\r\n"));
/// # Ok::<(), wireloom_ws::handshake::HandshakeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ServerHandshake {
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Reading(HeadReader),
    Deciding(Request),
    Answered,
    Failed(HandshakeError),
}

/// The progress of reading the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All input was consumed, and more is needed.
    Incomplete,
    /// The request is complete and valid, and waits for an answer.
    Complete {
        /// The bytes of this input that belong to the request; those after them belong to the connection.
        consumed: usize,
    },
}

impl ServerHandshake {
    /// A handshake that waits for its first byte.
    pub fn new(limits: HandshakeLimits) -> Self {
        Self { state: State::Reading(HeadReader::new(Role::Server, limits)) }
    }

    /// The request, while it waits for an answer.
    pub fn request(&self) -> Option<&Request> {
        match &self.state {
            State::Deciding(request) => Some(request),
            _ => None,
        }
    }

    /// Handles bytes from the client, in chunks of any size.
    ///
    /// # Errors
    /// The bytes are not a valid opening handshake; later calls return the same error. Send [`HandshakeError::refusal`] and close the
    /// connection. [`Misuse::Finished`]: the request was already complete.
    pub fn handle_input(&mut self, bytes: &[u8]) -> Result<Progress, HandshakeError> {
        let reader = match &mut self.state {
            State::Reading(reader) => reader,
            State::Deciding(_) | State::Answered => return Err(Misuse::Finished.into()),
            State::Failed(error) => return Err(*error),
        };
        let complete = match reader.push(bytes) {
            Ok(None) => return Ok(Progress::Incomplete),
            Ok(Some(consumed)) => reader
                .take_request()
                .and_then(Request::from_head)
                .map(|request| (consumed, request))
                .map_err(HandshakeError::from),
            Err(error) => Err(error),
        };
        match complete {
            Ok((consumed, request)) => {
                self.state = State::Deciding(request);
                Ok(Progress::Complete { consumed })
            }
            Err(error) => {
                self.state = State::Failed(error);
                Err(error)
            }
        }
    }

    /// Appends the response that opens the connection, and returns the negotiated parameters.
    ///
    /// # Errors
    /// [`Misuse`]: no request waits for an answer, or the response cannot be sent. Then nothing was appended, and the request still
    /// waits.
    pub fn accept(&mut self, acceptance: &Acceptance<'_>, out: &mut Vec<u8>) -> Result<Negotiated, Misuse> {
        let request = self.request().ok_or(Misuse::NoRequest)?;
        let (response, negotiated) = request.accept(acceptance)?;
        response.write_to(out);
        self.state = State::Answered;
        Ok(negotiated)
    }

    /// Appends a refusal; close the connection after it.
    ///
    /// # Errors
    /// [`Misuse::NoRequest`]: no request waits for an answer.
    pub fn reject(&mut self, refusal: &Response, out: &mut Vec<u8>) -> Result<(), Misuse> {
        self.request().ok_or(Misuse::NoRequest)?;
        refusal.write_to(out);
        self.state = State::Answered;
        Ok(())
    }
}
