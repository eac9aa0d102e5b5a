//! The client's side of an opening handshake over HTTP/1.1 bytes (RFC 6455 §4.1).
//!
//! It writes the request and checks the response. Redirects and challenges are returned to the caller, since both need a new
//! connection.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::error::{HandshakeError, Misuse, ResponseError};
use super::extensions::parse_lines;
use super::head::{Head, HeadReader, Occurs, ResponseHead, Version};
use super::key::{accept_key, key};
use super::request::extension_lines;
use super::response::{Response, check_header};
use super::token::{is_token, list_contains};
use super::uri::{is_authority, is_resource};
use super::{HandshakeLimits, Negotiated};
use crate::deflate::{DeflateConfig, NAME};
use crate::role::Role;

/// The request of a client.
///
/// Values that cannot be sent are refused when the handshake is made.
#[derive(Clone)]
pub struct ClientOptions {
    pub(super) host: String,
    pub(super) resource: String,
    pub(super) origin: Option<String>,
    pub(super) subprotocols: Vec<String>,
    pub(super) headers: Vec<(String, String)>,
    pub(super) deflate: Option<DeflateConfig>,
}

impl ClientOptions {
    /// A request for a resource name (path and query) at a host, which may have a port. [`Uri`](super::uri::Uri) has both.
    pub fn new(host: impl Into<String>, resource: impl Into<String>) -> Self {
        Self {
            host: host.into(),
            resource: resource.into(),
            origin: None,
            subprotocols: Vec::new(),
            headers: Vec::new(),
            deflate: None,
        }
    }

    /// Sends the origin of a web page, as browsers do (RFC 6455 §4.1, item 8).
    #[must_use]
    pub fn origin(mut self, origin: impl Into<String>) -> Self {
        self.origin = Some(origin.into());
        self
    }

    /// Offers a subprotocol, the preferred one first.
    #[must_use]
    pub fn subprotocol(mut self, name: impl Into<String>) -> Self {
        self.subprotocols.push(name.into());
        self
    }

    /// Adds a header, such as `Authorization` or `Cookie`.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Offers permessage-deflate.
    #[must_use]
    pub fn deflate(mut self, config: DeflateConfig) -> Self {
        self.deflate = Some(config);
        self
    }

    /// Whether all options can be sent.
    pub(super) fn check(&self) -> Result<(), Misuse> {
        if !is_authority(self.host.as_bytes()) {
            return Err(Misuse::Host);
        }
        // RFC 6455 §3, §4.1: a resource name without fragment; a space in it would end the target.
        if !is_resource(self.resource.as_bytes()) {
            return Err(Misuse::Resource);
        }
        let origin = self.origin.as_deref().unwrap_or("null");
        if origin.is_empty() || !origin.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Misuse::Origin);
        }
        // RFC 6455 §4.1, item 10: non-empty tokens, all unique.
        if !self.subprotocols.iter().all(|name| is_token(name.as_bytes())) {
            return Err(Misuse::Subprotocol);
        }
        let mut names: Vec<&String> = self.subprotocols.iter().collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Misuse::SubprotocolDuplicate);
        }
        for (name, value) in &self.headers {
            check_header(name, value)?;
            if name.eq_ignore_ascii_case("host") || name.eq_ignore_ascii_case("origin") {
                return Err(Misuse::HeaderReserved);
            }
        }
        Ok(())
    }

    /// The fields that HTTP/1.1 and HTTP/2 have in common, then the caller's.
    pub(super) fn shared_fields(&self) -> Vec<(String, String)> {
        let mut fields = Vec::from([field("Sec-WebSocket-Version", "13")]);
        if let Some(origin) = &self.origin {
            fields.push(field("Origin", origin));
        }
        if !self.subprotocols.is_empty() {
            fields.push(field("Sec-WebSocket-Protocol", &self.subprotocols.join(", ")));
        }
        if let Some(deflate) = &self.deflate {
            let mut offer = String::new();
            deflate.offer(&mut offer);
            fields.push(field("Sec-WebSocket-Extensions", &offer));
        }
        fields.extend(self.headers.iter().cloned());
        fields
    }

    /// Checks the fields of a response that HTTP/1.1 and HTTP/2 have in common. Returns the negotiated parameters.
    pub(super) fn check_negotiation(&self, head: &Head) -> Result<Negotiated, ResponseError> {
        let mut negotiated = Negotiated::default();
        // RFC 6455 §4.1, item 5 of the response; RFC 7692 §5.
        let lines = extension_lines(head).ok_or(ResponseError::ExtensionsInvalid)?;
        for extension in parse_lines(lines).map_err(ResponseError::Extensions)? {
            // "an extension that was not present in the client's handshake": the client MUST fail.
            let offered = self.deflate.as_ref().filter(|_| extension.name == NAME);
            let offered = offered.ok_or(ResponseError::ExtensionNotOffered)?;
            let params = offered.accept_response(&extension).map_err(ResponseError::Deflate)?;
            if negotiated.deflate.replace(params).is_some() {
                return Err(ResponseError::ExtensionDuplicate);
            }
        }
        // RFC 6455 §4.1, item 6 of the response; §11.3.4: at most once.
        negotiated.subprotocol = match head.one("sec-websocket-protocol") {
            Occurs::Never => None,
            Occurs::Often => return Err(ResponseError::SubprotocolDuplicate),
            Occurs::Once(value) => {
                let chosen = self.subprotocols.iter().find(|name| name.as_bytes() == value);
                Some(chosen.ok_or(ResponseError::SubprotocolNotOffered)?.clone())
            }
        };
        Ok(negotiated)
    }
}

/// Shows neither the query nor the values of headers: they may be secrets.
impl fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientOptions")
            .field("host", &self.host)
            .field("path", &self.resource.split('?').next())
            .field("origin", &self.origin)
            .field("subprotocols", &self.subprotocols.len())
            .field("headers", &self.headers.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("deflate", &self.deflate)
            .finish()
    }
}

pub(super) fn field(name: &str, value: &str) -> (String, String) {
    (String::from(name), String::from(value))
}

/// Writes a request and checks the response.
///
/// ```
/// use wireloom_ws::handshake::client::{ClientHandshake, ClientOptions, Progress};
/// use wireloom_ws::handshake::HandshakeLimits;
///
/// let options = ClientOptions::new("server.example.com", "/chat").subprotocol("chat");
/// // The nonce has to be drawn at random for each handshake.
/// let nonce = *b"the sample nonce";
/// let mut handshake = ClientHandshake::new(options, nonce, HandshakeLimits::default())?;
/// assert!(handshake.request().starts_with(b"GET /chat HTTP/1.1\r\nHost: server.example.com\r\n"));
///
/// let arrived = b"HTTP/1.1 101 Switching Protocols\r\n\
///                 Upgrade: websocket\r\n\
///                 Connection: Upgrade\r\n\
///                 Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\
///                 Sec-WebSocket-Protocol: chat\r\n\r\n\x81";
/// match handshake.handle_input(arrived)? {
///     Progress::Incomplete => unreachable!("in this example everything arrived at once"),
///     Progress::Done { negotiated, consumed } => {
///         assert_eq!(negotiated.subprotocol.as_deref(), Some("chat"));
///         assert_eq!(&arrived[consumed..], b"\x81"); // for the connection
///     }
///     Progress::Refused { response, .. } => println!("{} {:?}", response.status(), response.header("location")),
/// }
/// # Ok::<(), wireloom_ws::handshake::HandshakeError>(())
/// ```
#[derive(Clone)]
pub struct ClientHandshake {
    options: ClientOptions,
    key: [u8; 24],
    accept: [u8; 28],
    request: Vec<u8>,
    state: State,
    /// The response that opened the connection.
    answer: Option<ResponseHead>,
}

/// Does not show the bytes of the request: they contain secrets.
impl fmt::Debug for ClientHandshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientHandshake")
            .field("options", &self.options)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
enum State {
    Reading(HeadReader),
    Finished,
    Failed(HandshakeError),
}

/// The progress of reading the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All input was consumed, and more is needed.
    Incomplete,
    /// The connection is open.
    Done {
        /// The negotiated parameters.
        negotiated: Negotiated,
        /// The bytes of this input that belong to the response; those after them belong to the connection.
        consumed: usize,
    },
    /// The server refused: it redirects, requires credentials, or has no WebSocket there.
    Refused {
        /// The response without its body.
        response: Response,
        /// The bytes of this input that belong to the head; those after them belong to the body.
        consumed: usize,
    },
}

/// The meaning of a response head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// An informational response: the final one follows.
    Informational,
    /// The connection is open.
    Accepted(Negotiated),
    /// The server refused.
    Refused(Response),
}

impl ClientHandshake {
    /// A handshake with this request. The nonce must be drawn at random for each one (RFC 6455 §4.1, item 7).
    ///
    /// # Errors
    /// [`Misuse`]: one of the options cannot be sent.
    pub fn new(options: ClientOptions, nonce: [u8; 16], limits: HandshakeLimits) -> Result<Self, Misuse> {
        options.check()?;
        let key = key(nonce);
        let mut handshake = Self {
            accept: accept_key(&key),
            options,
            key,
            request: Vec::new(),
            state: State::Reading(HeadReader::new(Role::Client, limits)),
            answer: None,
        };
        handshake.request = handshake.write_request();
        Ok(handshake)
    }

    /// The bytes to send.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// The bytes to send, owned. They contain secrets.
    pub fn into_request(self) -> Vec<u8> {
        self.request
    }

    /// The header fields of the request, for a client that uses an HTTP library: send `GET resource HTTP/1.1` with these, and check the
    /// response with [`check_response`](Self::check_response).
    pub fn fields(&self) -> Vec<(String, String)> {
        // RFC 6455 §4.1, items 4 to 12.
        let mut fields = Vec::from([
            field("Host", &self.options.host),
            field("Upgrade", "websocket"),
            field("Connection", "Upgrade"),
            field("Sec-WebSocket-Key", core::str::from_utf8(&self.key).unwrap_or_default()),
        ]);
        fields.extend(self.options.shared_fields());
        fields
    }

    fn write_request(&self) -> Vec<u8> {
        let mut request = Vec::with_capacity(512);
        // RFC 6455 §4.1, items 2 and 3: a GET of the resource name, HTTP/1.1.
        for part in ["GET ", &self.options.resource, " HTTP/1.1\r\n"] {
            request.extend_from_slice(part.as_bytes());
        }
        for (name, value) in self.fields() {
            for part in [&name, ": ", &value, "\r\n"] {
                request.extend_from_slice(part.as_bytes());
            }
        }
        request.extend_from_slice(b"\r\n");
        request
    }

    /// Handles bytes from the server, in chunks of any size.
    ///
    /// # Errors
    /// The response does not answer the handshake; later calls return the same error. Close the connection.
    /// [`Misuse::Finished`]: the response was already complete.
    pub fn handle_input(&mut self, bytes: &[u8]) -> Result<Progress, HandshakeError> {
        match &self.state {
            State::Reading(_) => {}
            State::Finished => return Err(Misuse::Finished.into()),
            State::Failed(error) => return Err(*error),
        }
        let progress = self.read(bytes);
        match &progress {
            Ok(Progress::Incomplete) => {}
            Ok(_) => self.state = State::Finished,
            Err(error) => self.state = State::Failed(*error),
        }
        progress
    }

    fn read(&mut self, bytes: &[u8]) -> Result<Progress, HandshakeError> {
        let mut consumed = 0;
        loop {
            let State::Reading(reader) = &mut self.state else { return Err(Misuse::Finished.into()) };
            let Some(taken) = reader.push(&bytes[consumed..])? else { return Ok(Progress::Incomplete) };
            consumed += taken;
            let response = reader.take_response()?;
            match response.status {
                // RFC 9110 §15.2: informational responses may come first, and may be ignored. Their bytes count.
                100 | 102..200 => {}
                101 => {
                    let negotiated = self.check_switch(response.version, &response.head)?;
                    self.answer = Some(response);
                    return Ok(Progress::Done { negotiated, consumed });
                }
                _ => return Ok(Progress::Refused { response: Response::from_head(&response), consumed }),
            }
        }
    }

    /// The response that opened the connection, with its headers; `None` before.
    pub fn response(&self) -> Option<Response> {
        self.answer.as_ref().map(Response::from_head)
    }

    /// Checks a response that an HTTP library has parsed.
    ///
    /// # Errors
    /// It does not answer the handshake: close the connection.
    pub fn check_response<'a>(
        &self,
        status: u16,
        version: Version,
        headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<Outcome, HandshakeError> {
        let fields = headers.into_iter().map(|(name, value)| (name.as_bytes(), value));
        let head = Head::from_fields(fields).map_err(ResponseError::Malformed)?;
        match status {
            100 | 102..200 => Ok(Outcome::Informational),
            101 => Ok(Outcome::Accepted(self.check_switch(version, &head)?)),
            _ => Ok(Outcome::Refused(Response::from_fields(status, &head))),
        }
    }

    /// RFC 6455 §4.1: what a client MUST validate in a 101.
    fn check_switch(&self, version: Version, head: &Head) -> Result<Negotiated, ResponseError> {
        if version != Version::Http11 {
            return Err(ResponseError::HttpVersion);
        }
        // Item 2: Upgrade is "websocket", in any case.
        match head.one("upgrade") {
            Occurs::Never => return Err(ResponseError::UpgradeMissing),
            Occurs::Once(value) if value.eq_ignore_ascii_case(b"websocket") => {}
            _ => return Err(ResponseError::UpgradeInvalid),
        }
        // Item 3: Connection holds the token "Upgrade", in any case.
        if !head.has("connection") {
            return Err(ResponseError::ConnectionMissing);
        }
        if !head.values("connection").any(|value| list_contains(value, "upgrade")) {
            return Err(ResponseError::ConnectionInvalid);
        }
        // Item 4; §11.3.3: at most once.
        match head.one("sec-websocket-accept") {
            Occurs::Never => return Err(ResponseError::AcceptMissing),
            Occurs::Often => return Err(ResponseError::AcceptDuplicate),
            Occurs::Once(value) if value == self.accept => {}
            Occurs::Once(_) => return Err(ResponseError::AcceptInvalid),
        }
        // Items 5 and 6.
        self.options.check_negotiation(head)
    }
}
