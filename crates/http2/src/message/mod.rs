//! Validation of messages (RFC 9113 §8.1 to §8.5, RFC 8441 §4): the fields of requests, responses and trailers, and
//! `content-length`.
//!
//! All violations are stream errors (RFC 9113 §8.1.1). [`crate::hpack`] checks the characters of names and values (RFC 9113 §8.2.1)
//! when it decodes them.

mod authority;
mod bytes;
mod content_length;
mod cookie;

pub use content_length::ContentLeft;
pub use cookie::cookie;

use bytes::{is_path, is_scheme, is_token};

use crate::error::Violation;
use crate::field::{Field, FieldList, Malformed, Token};

impl From<Malformed> for Violation {
    fn from(malformed: Malformed) -> Self {
        match malformed {
            Malformed::NameEmpty => Self::FieldNameEmpty,
            Malformed::NameCharacter => Self::FieldNameCharacter,
            Malformed::ValueCharacter => Self::FieldValueCharacter,
            Malformed::ValueWhitespace => Self::FieldValueWhitespace,
        }
    }
}

/// The kind of a request, which determines the rules for its response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// Any other method.
    #[default]
    Plain,
    /// HEAD, whose response has no content.
    Head,
    /// CONNECT: a tunnel after a successful response (RFC 9113 §8.5).
    Connect,
    /// CONNECT with `:protocol` (RFC 8441 §4): a tunnel after a successful response.
    ExtendedConnect,
}

impl RequestKind {
    /// Whether a successful response opens a tunnel.
    #[inline]
    pub const fn is_connect(self) -> bool {
        matches!(self, Self::Connect | Self::ExtendedConnect)
    }
}

/// A valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// The kind of the request.
    pub kind: RequestKind,
    /// The announced length of the content.
    pub content: ContentLeft,
}

/// A valid response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// The status code, 100 to 999.
    pub status: u16,
    /// The announced length of the content.
    pub content: ContentLeft,
    /// Whether the stream is a tunnel after this response.
    pub tunnel: bool,
}

impl ResponseHead {
    /// Whether another response follows (RFC 9110 §15.2).
    #[inline]
    pub const fn is_interim(&self) -> bool {
        self.status < 200
    }
}

/// Checks the fields of a request. `connect_protocol` is whether the server has enabled extended CONNECT (RFC 8441).
///
/// ```
/// use wireloom_http2::field::{Field, FieldList, Token};
/// use wireloom_http2::message::{RequestKind, check_request};
///
/// let request: FieldList = [
///     Field::known(Token::Method, b"HEAD"),
///     Field::known(Token::Scheme, b"https"),
///     Field::known(Token::Authority, b"example.org"),
///     Field::known(Token::Path, b"/"),
/// ].into_iter().collect();
/// assert_eq!(check_request(&request, false)?.kind, RequestKind::Head);
/// # Ok::<(), wireloom_http2::error::Violation>(())
/// ```
///
/// # Errors
/// The first rule that the request violates.
pub fn check_request(fields: &FieldList, connect_protocol: bool) -> Result<RequestHead, Violation> {
    request_head(&Parts::of_list(fields, Section::Request)?, connect_protocol)
}

#[inline]
fn request_head(request: &Parts<'_>, connect_protocol: bool) -> Result<RequestHead, Violation> {
    // RFC 9113 §8.3.1: exactly one value for :method, :scheme and :path, unless it is CONNECT.
    let method = request.method.ok_or(Violation::MethodMissing)?;
    if !matches!(method, b"GET" | b"POST") && !is_token(method) {
        return Err(Violation::MethodInvalid);
    }
    if let Some(protocol) = request.protocol {
        // RFC 8441 §4: on CONNECT alone; §3: not before the server has enabled it.
        if method != b"CONNECT" || !connect_protocol {
            return Err(Violation::ProtocolUnexpected);
        }
        if !is_token(protocol) {
            return Err(Violation::ProtocolInvalid);
        }
    } else if method == b"CONNECT" {
        return check_connect(request);
    }
    let scheme = request.scheme.ok_or(Violation::SchemeMissing)?;
    let path = request.path.ok_or(Violation::PathMissing)?;
    let port_default = authority::port_default(scheme);
    if port_default.is_none() && !is_scheme(scheme) {
        return Err(Violation::SchemeInvalid);
    }
    check_path(path, method)?;
    authority::check(request.authority, request.host, port_default)?;
    Ok(match method {
        // RFC 8441 §4: what follows the response is a tunnel, whose DATA no content-length counts.
        b"CONNECT" => RequestHead { kind: RequestKind::ExtendedConnect, content: ContentLeft::UNKNOWN },
        b"HEAD" => RequestHead { kind: RequestKind::Head, content: request.content },
        _ => RequestHead { kind: RequestKind::Plain, content: request.content },
    })
}

/// Checks the fields of a promised request (RFC 9113 §8.4).
///
/// # Errors
/// The first rule that the request violates.
pub fn check_promise(fields: &FieldList) -> Result<RequestHead, Violation> {
    let head = check_request(fields, false)?;
    // RFC 9113 §8.4.1: a promised request is safe and cacheable (RFC 9110 §9.2.3) and has no content.
    let method = fields.find(Token::Method).map_or(&b""[..], |field| field.value());
    if !matches!(method, b"GET" | b"HEAD") || head.content.end().is_err() {
        return Err(Violation::PushUnsafe);
    }
    Ok(head)
}

/// Checks the fields of a response, interim or final, to a request of this kind.
///
/// # Errors
/// The first rule that the response violates.
pub fn check_response(fields: &FieldList, request: RequestKind) -> Result<ResponseHead, Violation> {
    let response = Parts::of_list(fields, Section::Response)?;
    // RFC 9113 §8.3.2: :status MUST be present.
    let status = match response.status.ok_or(Violation::StatusMissing)? {
        &[a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] => {
            u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0')
        }
        _ => return Err(Violation::StatusInvalid),
    };
    // RFC 9113 §8.6: there is no 101 in HTTP/2.
    if status == 101 {
        return Err(Violation::StatusSwitching);
    }
    let tunnel = request.is_connect() && status / 100 == 2;
    Ok(ResponseHead { status, content: response_content(status, request, response.content), tunnel })
}

/// The length of the content of a response whose `content-length` is `announced`.
#[inline]
pub(crate) fn response_content(status: u16, request: RequestKind, announced: ContentLeft) -> ContentLeft {
    if request.is_connect() && status / 100 == 2 {
        // RFC 9110 §9.3.6: content-length in a successful response to CONNECT MUST be ignored.
        ContentLeft::UNKNOWN
    } else if status < 200 || matches!(status, 204 | 304) || request == RequestKind::Head {
        // RFC 9113 §8.1.1, RFC 9110 §6.4.1: these have no content, even if they have a content-length.
        ContentLeft::NOTHING
    } else {
        announced
    }
}

/// Whether a response has no `content-length` (RFC 9110 §8.6, and §9.3.6 for a successful response to CONNECT).
#[inline]
pub(crate) fn forbids_content_length(status: u16, request: RequestKind) -> bool {
    status < 200 || status == 204 || request.is_connect() && status / 100 == 2
}

/// Checks trailers, of a request or a response.
///
/// # Errors
/// The first rule that they violate.
pub fn check_trailers(fields: &FieldList) -> Result<(), Violation> {
    Parts::of_list(fields, Section::Trailers).map(drop)
}

/// Checks fields that are sent, by the rules for fields that are received.
pub(crate) fn check_outgoing<'f>(
    fields: impl Iterator<Item = Field<'f>> + Clone,
    section: Section,
) -> Result<(), Violation> {
    fields.clone().try_for_each(|field| field.check())?;
    let parts = Parts::of(fields, section)?;
    // Whether the peer has enabled extended CONNECT is checked separately.
    if section == Section::Request { request_head(&parts, true).map(drop) } else { Ok(()) }
}

/// RFC 9113 §8.5: CONNECT has :method and :authority, and neither :scheme nor :path.
fn check_connect(request: &Parts<'_>) -> Result<RequestHead, Violation> {
    if request.scheme.is_some() || request.path.is_some() {
        return Err(Violation::ConnectPseudo);
    }
    let target = request.authority.ok_or(Violation::AuthorityMissing)?;
    authority::check_connect(target, request.host)?;
    Ok(RequestHead { kind: RequestKind::Connect, content: ContentLeft::UNKNOWN })
}

fn check_path(path: &[u8], method: &[u8]) -> Result<(), Violation> {
    // RFC 9113 §8.3.1, RFC 9112 §3.2: a path begins with a slash. OPTIONS for the server as a whole has the path "*". Paths of other
    // schemes that do not begin with a slash are refused as well: servers that route by the path rely on it.
    let has_valid_start = matches!(path, [b'/', ..]) || (path == b"*" && method == b"OPTIONS");
    if has_valid_start && is_path(path) { Ok(()) } else { Err(Violation::PathInvalid) }
}

/// The kind of a field section.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Section {
    Request,
    Response,
    Trailers,
}

/// The fields for which there are rules.
struct Parts<'a> {
    method: Option<&'a [u8]>,
    scheme: Option<&'a [u8]>,
    path: Option<&'a [u8]>,
    authority: Option<&'a [u8]>,
    protocol: Option<&'a [u8]>,
    status: Option<&'a [u8]>,
    host: Option<&'a [u8]>,
    content: ContentLeft,
}

impl<'a> Parts<'a> {
    fn of_list(fields: &'a FieldList, section: Section) -> Result<Self, Violation> {
        if let Some(malformed) = fields.malformed() {
            return Err(malformed.into());
        }
        Self::of(fields.iter(), section)
    }

    /// The parts of fields whose characters are valid.
    #[inline]
    fn of(fields: impl Iterator<Item = Field<'a>>, section: Section) -> Result<Self, Violation> {
        let mut parts = Self {
            method: None,
            scheme: None,
            path: None,
            authority: None,
            protocol: None,
            status: None,
            host: None,
            content: ContentLeft::UNKNOWN,
        };
        let mut regular = false;
        for field in fields {
            if field.is_pseudo() {
                // RFC 9113 §8.3: all pseudo-fields come before the regular ones.
                if regular {
                    return Err(Violation::PseudoAfterField);
                }
                parts.add_pseudo(field, section)?;
            } else {
                regular = true;
                parts.add_regular(field.token(), field, section)?;
            }
        }
        Ok(parts)
    }

    #[inline]
    fn add_pseudo(&mut self, field: Field<'a>, section: Section) -> Result<(), Violation> {
        let (slot, belongs_to) = match field.token() {
            Token::Method => (&mut self.method, Section::Request),
            Token::Scheme => (&mut self.scheme, Section::Request),
            Token::Path => (&mut self.path, Section::Request),
            Token::Authority => (&mut self.authority, Section::Request),
            Token::Protocol => (&mut self.protocol, Section::Request),
            Token::Status => (&mut self.status, Section::Response),
            // RFC 9113 §8.3: an undefined pseudo-field makes a message malformed.
            _ => return Err(Violation::PseudoUnknown),
        };
        if section == Section::Trailers {
            // RFC 9113 §8.1: trailers have no pseudo-fields.
            return Err(Violation::PseudoInTrailers);
        }
        if section != belongs_to {
            // RFC 9113 §8.3: pseudo-fields of requests are not allowed in responses, and vice versa.
            return Err(Violation::PseudoMisplaced);
        }
        // RFC 9113 §8.3: a pseudo-field MUST NOT be repeated.
        if slot.replace(field.value()).is_some() { Err(Violation::PseudoRepeated) } else { Ok(()) }
    }

    #[inline]
    fn add_regular(&mut self, token: Token, field: Field<'a>, section: Section) -> Result<(), Violation> {
        match token {
            // RFC 9113 §8.2.2: TE is allowed only in requests, and only with the value "trailers".
            Token::Te if section == Section::Request => {
                if field.value().eq_ignore_ascii_case(b"trailers") {
                    Ok(())
                } else {
                    Err(Violation::TeValue)
                }
            }
            // RFC 9113 §8.2.2: connection-specific fields of HTTP/1.1.
            token if token.is_connection_specific() => Err(Violation::ConnectionField),
            // RFC 9110 §6.5.1: in trailers, content-length does not describe the content.
            Token::ContentLength if section != Section::Trailers => self.content.announce(field.value()),
            Token::Host if section == Section::Request => match self.host.replace(field.value()) {
                // RFC 9110 §7.2: a request with more than one Host is invalid.
                Some(_) => Err(Violation::HostMismatch),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
