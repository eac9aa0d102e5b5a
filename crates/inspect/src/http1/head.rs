//! Heads of requests and responses, and the rules of the WebSocket handshake for them (RFC 6455 §4).

use wireloom_ws::deflate::{DeflateConfig, DeflateParams};
use wireloom_ws::handshake::{self, Version, accept_key, extensions};

use super::Next;
use super::body::Framing;
use crate::entry::{Context, Entry, Payload, Protocol};
use crate::limits::{Budget, HEADERS_MAX, Reservation};

/// The result of reading a head.
#[derive(Debug)]
pub(super) enum Parsed<T> {
    /// The head, and its length in bytes.
    Complete(T, usize),
    Partial,
    Invalid(httparse::Error),
}

impl<T> Parsed<T> {
    pub(super) fn map<U>(self, handle: impl FnOnce(T) -> U) -> Parsed<U> {
        match self {
            Self::Complete(head, len) => Parsed::Complete(handle(head), len),
            Self::Partial => Parsed::Partial,
            Self::Invalid(error) => Parsed::Invalid(error),
        }
    }

    /// The reason why there is no head.
    pub(super) fn error(&self) -> String {
        match self {
            Self::Invalid(error) => format!("the head is malformed: {error}"),
            _ => "the head is too long".into(),
        }
    }
}

/// Names and values.
type Fields = Vec<(Vec<u8>, Vec<u8>)>;

#[derive(Debug)]
pub(super) struct Request {
    method: String,
    target: String,
    version: u8,
    fields: Fields,
}

/// A request whose response has not arrived.
#[derive(Debug)]
pub(super) struct Pending {
    is_connect: bool,
    is_head: bool,
    upgrade: Option<Box<Upgrade>>,
}

/// The offer of a request for a WebSocket.
#[derive(Debug)]
struct Upgrade {
    /// The Sec-WebSocket-Accept that answers its key.
    accept: Option<[u8; 28]>,
    subprotocols: String,
    offers_deflate: bool,
    _reservation: Reservation,
}

#[derive(Debug)]
pub(super) struct Response {
    version: u8,
    status: u16,
    reason: String,
    fields: Fields,
}

fn collect(headers: &[httparse::Header<'_>]) -> Fields {
    headers.iter().map(|header| (header.name.as_bytes().to_vec(), header.value.to_vec())).collect()
}

fn values<'a>(fields: &'a Fields, name: &'a str) -> impl Iterator<Item = &'a str> {
    fields
        .iter()
        .filter(move |(field, _)| field.eq_ignore_ascii_case(name.as_bytes()))
        .filter_map(|(_, value)| std::str::from_utf8(value).ok())
}

/// Whether a field with a list of tokens contains `token`.
fn lists(fields: &Fields, name: &str, token: &str) -> bool {
    values(fields, name)
        .flat_map(|value| value.split(','))
        .any(|item| item.trim().eq_ignore_ascii_case(token))
}

/// The framing of a body (RFC 9112 §6.3, items 4 to 8).
fn framing(fields: &Fields, without: Framing) -> Framing {
    if values(fields, "transfer-encoding").next().is_some() {
        return if lists(fields, "transfer-encoding", "chunked") {
            Framing::Chunked
        } else {
            Framing::UntilClose
        };
    }
    match values(fields, "content-length").next().map(|value| value.trim().parse()) {
        Some(Ok(0)) => Framing::None,
        Some(Ok(len)) => Framing::Length(len),
        Some(Err(_)) => Framing::UntilClose,
        None => without,
    }
}

impl Request {
    pub(super) fn parse(bytes: &[u8]) -> Parsed<Self> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(bytes) {
            Ok(httparse::Status::Partial) => Parsed::Partial,
            Err(error) => Parsed::Invalid(error),
            Ok(httparse::Status::Complete(len)) => Parsed::Complete(
                Self {
                    method: request.method.unwrap_or_default().into(),
                    target: request.path.unwrap_or_default().into(),
                    version: request.version.unwrap_or_default(),
                    fields: collect(request.headers),
                },
                len,
            ),
        }
    }

    pub(super) fn is_connect(&self) -> bool {
        self.method == "CONNECT"
    }

    /// The state that its response is read and checked with. Without room in the budget, the upgrade is not checked.
    pub(super) fn pending(&self, budget: &Budget) -> Pending {
        let upgrade = self.is_websocket().then(|| {
            let subprotocols: Vec<&str> = values(&self.fields, "sec-websocket-protocol").collect();
            let subprotocols = subprotocols.join(",");
            let reservation = budget.reserve(size_of::<Upgrade>() + subprotocols.len())?;
            let key = values(&self.fields, "sec-websocket-key").next();
            Some(Box::new(Upgrade {
                accept: key.map(|key| accept_key(key.trim().as_bytes())),
                subprotocols,
                offers_deflate: values(&self.fields, "sec-websocket-extensions")
                    .any(|list| list.contains("permessage-deflate")),
                _reservation: reservation,
            }))
        });
        Pending { upgrade: upgrade.flatten(), ..self.pending_without_checks() }
    }

    /// The state that its response is read with.
    pub(super) fn pending_without_checks(&self) -> Pending {
        Pending { is_connect: self.is_connect(), is_head: self.method == "HEAD", upgrade: None }
    }

    /// Whether another protocol may follow the response.
    pub(super) fn upgrades(&self) -> bool {
        lists(&self.fields, "connection", "upgrade") && values(&self.fields, "upgrade").next().is_some()
    }

    fn is_websocket(&self) -> bool {
        lists(&self.fields, "upgrade", "websocket")
    }

    pub(super) fn framing(&self) -> Framing {
        framing(&self.fields, Framing::None)
    }

    pub(super) fn entry(&self, context: &Context<'_>, len: usize) -> Entry {
        let mut entry = context.entry(Protocol::Http1, "request");
        entry.len = len as u64;
        let start = format!("{} {} HTTP/1.{}", self.method, self.target, self.version);
        entry.detail("method", &*self.method, "RFC 9110 §9");
        entry.detail("target", &*self.target, "RFC 9112 §3.2");
        describe(&mut entry, &self.fields);
        if self.is_websocket() {
            entry.flags.push("UPGRADE");
            let fields = self.fields.iter().map(|(name, value)| (name, &value[..]));
            let version = if self.version == 1 { Version::Http11 } else { Version::Http10 };
            if let Err(error) = handshake::Request::from_parts(&self.method, &self.target, version, fields) {
                entry.violation("RFC 6455 §4.2.1", error.to_string());
            }
        }
        entry.payload = Payload::Fields { start, fields: self.fields.clone() };
        entry
    }
}

impl Response {
    pub(super) fn parse(bytes: &[u8]) -> Parsed<Self> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        // RFC 9112 §5.2: a client accepts values that continue on the next line.
        let mut config = httparse::ParserConfig::default();
        config.allow_obsolete_multiline_headers_in_responses(true);
        match config.parse_response(&mut response, bytes) {
            Ok(httparse::Status::Partial) => Parsed::Partial,
            Err(error) => Parsed::Invalid(error),
            Ok(httparse::Status::Complete(len)) => Parsed::Complete(
                Self {
                    version: response.version.unwrap_or_default(),
                    status: response.code.unwrap_or_default(),
                    reason: response.reason.unwrap_or_default().into(),
                    fields: collect(response.headers),
                },
                len,
            ),
        }
    }

    /// Whether another response follows (RFC 9110 §15.2).
    pub(super) fn is_interim(&self) -> bool {
        matches!(self.status, 100 | 102..200)
    }

    /// Whether another protocol follows.
    pub(super) fn switches(&self, request: Option<&Pending>) -> bool {
        self.status == 101 || (self.status / 100 == 2 && request.is_some_and(|request| request.is_connect))
    }

    /// Whether HTTP/2 follows (RFC 7540 §3.2).
    pub(super) fn switches_to_http2(&self) -> bool {
        self.status == 101 && lists(&self.fields, "upgrade", "h2c")
    }

    pub(super) fn framing(&self, request: Option<&Pending>) -> Framing {
        if request.is_some_and(|request| request.is_head) || matches!(self.status, 100..200 | 204 | 304) {
            return Framing::None;
        }
        framing(&self.fields, Framing::UntilClose)
    }

    /// The entry, and the protocol that follows.
    pub(super) fn entry(
        &self,
        context: &Context<'_>,
        request: Option<&Pending>,
        len: usize,
    ) -> (Entry, Option<Next>) {
        let mut entry = context.entry(Protocol::Http1, "response");
        entry.len = len as u64;
        let start = format!("HTTP/1.{} {} {}", self.version, self.status, self.reason);
        entry.detail("status", self.status.to_string(), "RFC 9110 §15");
        describe(&mut entry, &self.fields);
        let next = if self.status == 101 && lists(&self.fields, "upgrade", "websocket") {
            entry.flags.push("UPGRADE");
            let upgrade = request.and_then(|request| request.upgrade.as_deref());
            Some(Next::WebSocket(self.check_upgrade(&mut entry, upgrade)))
        } else if self.switches_to_http2() {
            Some(Next::Http2 { is_head: request.is_some_and(|request| request.is_head) })
        } else if self.switches(request) {
            Some(Next::Other)
        } else {
            None
        };
        entry.payload = Payload::Fields { start: start.trim_end().into(), fields: self.fields.clone() };
        (entry, next)
    }

    /// RFC 6455 §4.1: what a client must check in the response. Returns the compression that was agreed on.
    fn check_upgrade(&self, entry: &mut Entry, request: Option<&Upgrade>) -> Option<DeflateParams> {
        let accept = values(&self.fields, "sec-websocket-accept").next().map(str::trim);
        match (accept, request.and_then(|request| request.accept)) {
            (None, _) => {
                entry.violation("RFC 6455 §4.2.2", "Sec-WebSocket-Accept is missing");
            }
            (Some(accept), Some(expected)) if accept.as_bytes() != expected => {
                entry.violation("RFC 6455 §4.2.2", "Sec-WebSocket-Accept does not answer Sec-WebSocket-Key");
            }
            _ => {}
        }
        if !lists(&self.fields, "connection", "upgrade") {
            entry.violation("RFC 6455 §4.2.2", "Connection does not name Upgrade");
        }
        if let (Some(subprotocol), Some(request)) =
            (values(&self.fields, "sec-websocket-protocol").next(), request)
            && !request.subprotocols.split(',').any(|name| name.trim() == subprotocol.trim())
        {
            entry.violation("RFC 6455 §4.2.2", "the subprotocol was not offered");
        }
        let extensions: Vec<&str> = values(&self.fields, "sec-websocket-extensions").collect();
        deflate(entry, &extensions, request.map(|request| request.offers_deflate))
    }
}

/// The compression that a server's `Sec-WebSocket-Extensions` agree on. `offered` is `None` when the request is unknown.
pub(crate) fn deflate(entry: &mut Entry, lines: &[&str], offered: Option<bool>) -> Option<DeflateParams> {
    let list = match extensions::parse_lines(lines.iter().copied()) {
        Ok(list) => list,
        Err(error) => {
            entry.violation("RFC 6455 §9.1", error.to_string());
            return None;
        }
    };
    let extension = list.iter().find(|extension| extension.name == wireloom_ws::deflate::NAME)?;
    if offered == Some(false) {
        entry.violation("RFC 6455 §9.1", "the extension was not offered");
    }
    // The default configuration requires no parameter, so that every valid response is accepted.
    match DeflateConfig::default().accept_response(extension) {
        Ok(params) => {
            entry.detail("permessage-deflate", describe_deflate(&params), "RFC 7692 §7.1");
            Some(params)
        }
        Err(error) => {
            entry.violation("RFC 7692 §7.1", error.to_string());
            Some(DeflateParams::default())
        }
    }
}

fn describe_deflate(params: &DeflateParams) -> String {
    let takeover = |no: bool| if no { ", no context takeover" } else { "" };
    format!(
        "client window 2^{}{}; server window 2^{}{}",
        params.client_max_window_bits,
        takeover(params.client_no_context_takeover),
        params.server_max_window_bits,
        takeover(params.server_no_context_takeover),
    )
}

/// Adds the fields as details, each with the section that defines it.
pub(crate) fn describe(entry: &mut Entry, fields: &[(Vec<u8>, Vec<u8>)]) {
    for (name, value) in fields {
        let name = String::from_utf8_lossy(name).into_owned();
        let reference = reference(&name.to_ascii_lowercase());
        entry.detail(name, String::from_utf8_lossy(value), reference);
    }
}

fn reference(name: &str) -> &'static str {
    match name {
        "upgrade" => "RFC 9110 §7.8",
        "connection" => "RFC 9110 §7.6.1",
        "host" => "RFC 9110 §7.2",
        "sec-websocket-key" => "RFC 6455 §11.3.1",
        "sec-websocket-extensions" => "RFC 6455 §11.3.2",
        "sec-websocket-accept" => "RFC 6455 §11.3.3",
        "sec-websocket-protocol" => "RFC 6455 §11.3.4",
        "sec-websocket-version" => "RFC 6455 §11.3.5",
        "origin" => "RFC 6454 §7",
        "content-length" => "RFC 9110 §8.6",
        "content-type" => "RFC 9110 §8.3",
        "transfer-encoding" => "RFC 9112 §6.1",
        "authorization" => "RFC 9110 §11.6.2",
        "cookie" => "RFC 6265 §4.2",
        "set-cookie" => "RFC 6265 §4.1",
        "user-agent" => "RFC 9110 §10.1.5",
        "server" => "RFC 9110 §10.2.4",
        "date" => "RFC 9110 §6.6.1",
        "priority" => "RFC 9218 §5",
        ":method" | ":scheme" | ":authority" | ":path" => "RFC 9113 §8.3.1",
        ":status" => "RFC 9113 §8.3.2",
        ":protocol" => "RFC 8441 §4",
        _ => "",
    }
}
