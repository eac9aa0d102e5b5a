//! WebSocket over HTTP/2: the field rules of extended CONNECT (RFC 8441 §4, §5). Fields are names and values, pseudo-headers first;
//! an HTTP/2 library transfers them.
//!
//! ```text
//! HTTP/1.1                          HTTP/2
//! GET resource                      :method CONNECT, :protocol websocket, :scheme, :path, :authority
//! Upgrade, Connection               forbidden
//! Sec-WebSocket-Key, -Accept        without meaning
//! Sec-WebSocket-Version, -Protocol, -Extensions, Origin      the same
//! 101                               200
//! ```

use alloc::string::String;
use alloc::vec::Vec;

use super::Request;
use super::client::{ClientOptions, Outcome, field};
use super::error::{HandshakeError, Malformed, Misuse, RequestError, ResponseError};
use super::head::{Head, Occurs};
use super::request::{check_shared_fields, check_version};
use super::response::Response;
use super::token::{CONNECTION_SPECIFIC, is_connection_specific_request_field};
use super::uri::{is_authority, is_resource};

/// Checks an extended CONNECT request; [`Request::accept`] makes the response to it.
///
/// ```
/// use wireloom_ws::handshake::{Acceptance, http2};
///
/// // RFC 8441 §5.1.
/// let request = http2::check_request([
///     (&b":method"[..], &b"CONNECT"[..]),
///     (b":protocol", b"websocket"),
///     (b":scheme", b"https"),
///     (b":path", b"/chat"),
///     (b":authority", b"server.example.com"),
///     (b"sec-websocket-protocol", b"chat, superchat"),
///     (b"sec-websocket-extensions", b"permessage-deflate"),
///     (b"sec-websocket-version", b"13"),
///     (b"origin", b"http://www.example.com"),
/// ])?;
/// let (response, _) = request.accept(&Acceptance { subprotocol: Some("chat"), ..Acceptance::default() })?;
/// assert_eq!(response.status(), 200);
/// assert!(response.headers().eq([("sec-websocket-protocol", &b"chat"[..])]));
/// # Ok::<(), wireloom_ws::handshake::HandshakeError>(())
/// ```
///
/// # Errors
/// The request is not a valid opening handshake; [`refusal`] is the answer to send.
pub fn check_request<'a>(
    fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
) -> Result<Request, HandshakeError> {
    let mut pseudo = Pseudo::default();
    let mut headers = Vec::new();
    for (name, value) in fields {
        if name.first() != Some(&b':') {
            // RFC 9113 §8.2.1: a name in upper case is malformed.
            if name.iter().any(u8::is_ascii_uppercase) {
                return Err(RequestError::Malformed(Malformed::HeaderName).into());
            }
            headers.push((name, value));
            continue;
        }
        let place = match name {
            b":method" => &mut pseudo.method,
            b":protocol" => &mut pseudo.protocol,
            b":scheme" => &mut pseudo.scheme,
            b":path" => &mut pseudo.path,
            b":authority" => &mut pseudo.authority,
            _ => return Err(RequestError::PseudoHeader.into()),
        };
        // RFC 9113 §8.3: pseudo-headers come first, and none of them twice.
        if !headers.is_empty() || place.replace(value).is_some() {
            return Err(RequestError::PseudoHeader.into());
        }
    }
    let mut head = Head::from_fields(headers).map_err(RequestError::Malformed)?;
    let resource = head.push_text(pseudo.resource()?);
    let host = check_authority(pseudo.authority, &head)?;
    let host = head.push_text(&host);
    let is_forbidden = |name: &str| {
        head.values(name).any(|value| is_connection_specific_request_field(name.as_bytes(), value))
    };
    if CONNECTION_SPECIFIC.into_iter().any(is_forbidden) {
        return Err(RequestError::ConnectionSpecific.into());
    }
    // RFC 9113 §8.1.1: a length would count the frames, whose number is unknown.
    if head.has("content-length") {
        return Err(RequestError::Body.into());
    }
    check_version(&head)?;
    check_shared_fields(&head)?;
    Ok(Request { head, resource, host, accept: None })
}

/// The refusal with which a server answers this error over HTTP/2.
pub fn refusal(error: HandshakeError) -> Response {
    let refusal = error.refusal().into_http2();
    match error {
        // RFC 9110 §15.5.22: a 426 needs Upgrade, which HTTP/2 forbids; RFC 6455 §4.2.2 leaves the code open.
        HandshakeError::Request(RequestError::VersionUnsupported(_)) => refusal.with_status(400),
        // The request is not a CONNECT; `Allow: GET` applies to HTTP/1.1.
        HandshakeError::Request(RequestError::Method) => refusal.with_status(400).without("allow"),
        _ => refusal,
    }
}

/// The fields of a client's extended CONNECT request, pseudo-headers first; `secure` for a connection over TLS.
/// Send it only on a connection whose server announced `SETTINGS_ENABLE_CONNECT_PROTOCOL` (RFC 8441 §3).
///
/// # Errors
/// [`Misuse`]: one of the options cannot be sent.
pub fn request_fields(options: &ClientOptions, secure: bool) -> Result<Vec<(String, String)>, Misuse> {
    options.check()?;
    let forbidden =
        |name: &str, value: &str| is_connection_specific_request_field(name.as_bytes(), value.as_bytes());
    if options.headers.iter().any(|(name, value)| forbidden(name, value)) {
        return Err(Misuse::HeaderReserved);
    }
    // RFC 8441 §5: https for wss, http for ws.
    let mut fields = Vec::from([
        field(":method", "CONNECT"),
        field(":protocol", "websocket"),
        field(":scheme", if secure { "https" } else { "http" }),
        field(":path", &options.resource),
        field(":authority", &options.host),
    ]);
    // RFC 9113 §8.2: names are in lower case.
    fields
        .extend(options.shared_fields().into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)));
    Ok(fields)
}

/// Checks the response to an extended CONNECT request with these options.
///
/// # Errors
/// It does not answer the handshake: reset the stream.
pub fn check_response<'a>(
    options: &ClientOptions,
    fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
) -> Result<Outcome, HandshakeError> {
    let mut fields = fields.into_iter();
    // RFC 9113 §8.3.2: `:status`, once and first, is the only pseudo-header of a response.
    let status = match fields.next() {
        Some((b":status", value)) => parse_status(value).ok_or(ResponseError::PseudoHeader)?,
        _ => return Err(ResponseError::PseudoHeader.into()),
    };
    let headers: Vec<(&[u8], &[u8])> = fields.collect();
    if headers.iter().any(|(name, _)| name.first() == Some(&b':')) {
        return Err(ResponseError::PseudoHeader.into());
    }
    let head = Head::from_fields(headers).map_err(ResponseError::Malformed)?;
    if CONNECTION_SPECIFIC.iter().any(|name| head.has(name)) {
        return Err(ResponseError::ConnectionSpecific.into());
    }
    match status {
        // RFC 9113 §8.6: HTTP/2 has no 101.
        101 => Err(ResponseError::PseudoHeader.into()),
        100..200 => Ok(Outcome::Informational),
        // RFC 9113 §8.5: any 2xx opens the tunnel.
        200..300 => Ok(Outcome::Accepted(options.check_negotiation(&head)?)),
        _ => Ok(Outcome::Refused(Response::from_fields(status, &head))),
    }
}

#[derive(Default)]
struct Pseudo<'a> {
    method: Option<&'a [u8]>,
    protocol: Option<&'a [u8]>,
    scheme: Option<&'a [u8]>,
    path: Option<&'a [u8]>,
    authority: Option<&'a [u8]>,
}

impl<'a> Pseudo<'a> {
    /// The resource name, if all pseudo-headers are valid.
    fn resource(&self) -> Result<&'a str, RequestError> {
        // RFC 8441 §4: :protocol on CONNECT, along with :scheme and :path.
        let (Some(method), Some(protocol), Some(scheme), Some(path)) =
            (self.method, self.protocol, self.scheme, self.path)
        else {
            return Err(RequestError::PseudoHeader);
        };
        if method != b"CONNECT" {
            return Err(RequestError::Method);
        }
        // RFC 9110 §7.8: names of protocols are compared in any case.
        if !protocol.eq_ignore_ascii_case(b"websocket") {
            return Err(RequestError::Protocol);
        }
        // RFC 8441 §5: https for wss, http for ws.
        if !scheme.eq_ignore_ascii_case(b"https") && !scheme.eq_ignore_ascii_case(b"http") {
            return Err(RequestError::Scheme);
        }
        let path = core::str::from_utf8(path).map_err(|_| RequestError::Target)?;
        if is_resource(path.as_bytes()) { Ok(path) } else { Err(RequestError::Target) }
    }
}

/// RFC 9113 §8.3.1: `:authority`, or else `host`. If both are present they must agree.
fn check_authority(authority: Option<&[u8]>, head: &Head) -> Result<String, RequestError> {
    let host = match (authority, head.one("host")) {
        (None, Occurs::Never) => return Err(RequestError::HostMissing),
        (None, Occurs::Once(host)) => host,
        (Some(authority), Occurs::Never) => authority,
        (Some(authority), Occurs::Once(host)) if host.eq_ignore_ascii_case(authority) => authority,
        _ => return Err(RequestError::HostDuplicate),
    };
    match core::str::from_utf8(host) {
        Ok(text) if is_authority(host) => Ok(String::from(text)),
        _ => Err(RequestError::HostInvalid),
    }
}

/// A number of three digits, at least 100.
fn parse_status(value: &[u8]) -> Option<u16> {
    match value {
        [b'1'..=b'9', b'0'..=b'9', b'0'..=b'9'] => {
            Some(value.iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0')))
        }
        _ => None,
    }
}
