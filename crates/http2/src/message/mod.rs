//! What a message must contain, and what it must not (RFC 9113 §8.1 to §8.5, RFC 8441 §4).
//!
//! Owns the rules about the fields of a request, a response and trailers, and `content-length` against DATA. Refuses
//! to own the characters of names and values (RFC 9113 §8.2.1), which [`crate::hpack`] checks while it decodes, and the
//! order of frames on a stream.
//!
//! Each rule is a row of [`Violation`]; all of them are stream errors (RFC 9113 §8.1.1). The same functions check what
//! this side is about to send.

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

/// What the rest of an exchange must know of its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// Any method but those below.
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

/// A request that was found valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Kind of the request, for the rest of the exchange.
    pub kind: RequestKind,
    /// How much content the DATA must add up to.
    pub content: ContentLeft,
}

/// A response that was found valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// The status code, 100 to 999.
    pub status: u16,
    /// How much content the DATA must add up to.
    pub content: ContentLeft,
    /// Whether the stream is a tunnel from here on.
    pub tunnel: bool,
}

impl ResponseHead {
    /// Whether another response follows (RFC 9110 §15.2).
    #[inline]
    pub const fn is_interim(&self) -> bool {
        self.status < 200
    }
}

/// Checks the fields of a request. `connect_protocol` is whether the server has enabled extended CONNECT.
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
/// The first rule that the request breaks.
pub fn check_request(fields: &FieldList, connect_protocol: bool) -> Result<RequestHead, Violation> {
    let request = Parts::of(fields, Section::Request)?;
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
        return check_connect(&request);
    }
    let scheme = request.scheme.ok_or(Violation::SchemeMissing)?;
    let path = request.path.ok_or(Violation::PathMissing)?;
    let port_default = authority::port_default(scheme);
    if port_default.is_none() && !is_scheme(scheme) {
        return Err(Violation::SchemeInvalid);
    }
    check_path(path, method, port_default.is_some())?;
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
/// The first rule that the request breaks.
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
/// The first rule that the response breaks.
pub fn check_response(fields: &FieldList, request: RequestKind) -> Result<ResponseHead, Violation> {
    let response = Parts::of(fields, Section::Response)?;
    // RFC 9113 §8.3.2: :status MUST be there.
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

/// How much content a response has whose `content-length` is `announced`.
#[inline]
pub(crate) fn response_content(status: u16, request: RequestKind, announced: ContentLeft) -> ContentLeft {
    if request.is_connect() && status / 100 == 2 {
        // RFC 9110 §9.3.6: content-length in a successful response to CONNECT MUST be ignored.
        ContentLeft::UNKNOWN
    } else if status < 200 || matches!(status, 204 | 304) || request == RequestKind::Head {
        // RFC 9113 §8.1.1, RFC 9110 §6.4.1: these have no content, whatever their content-length.
        ContentLeft::NOTHING
    } else {
        announced
    }
}

/// Checks trailers, of a request or a response.
///
/// # Errors
/// The first rule that they break.
pub fn check_trailers(fields: &FieldList) -> Result<(), Violation> {
    Parts::of(fields, Section::Trailers).map(drop)
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

fn check_path(path: &[u8], method: &[u8], is_http: bool) -> Result<(), Violation> {
    let begins_well = match path {
        [b'/', ..] => true,
        // RFC 9113 §8.3.1: OPTIONS for the server as a whole has the path "*".
        b"*" => method == b"OPTIONS" || !is_http,
        // RFC 9113 §8.3.1: :path MUST NOT be empty for "http" and "https", and begins with a slash. Other schemes have
        // paths of their own kind.
        _ => !is_http,
    };
    if begins_well && is_path(path) { Ok(()) } else { Err(Violation::PathInvalid) }
}

/// Which kind of field section is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Request,
    Response,
    Trailers,
}

/// The fields that rules speak of, found in one pass.
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
    fn of(fields: &'a FieldList, section: Section) -> Result<Self, Violation> {
        if let Some(malformed) = fields.malformed() {
            return Err(malformed.into());
        }
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
                parts.take_pseudo(field, section)?;
            } else {
                regular = true;
                parts.take_regular(field.token(), field, section)?;
            }
        }
        Ok(parts)
    }

    #[inline]
    fn take_pseudo(&mut self, field: Field<'a>, section: Section) -> Result<(), Violation> {
        let (slot, belongs_to) = match field.token() {
            Token::Method => (&mut self.method, Section::Request),
            Token::Scheme => (&mut self.scheme, Section::Request),
            Token::Path => (&mut self.path, Section::Request),
            Token::Authority => (&mut self.authority, Section::Request),
            Token::Protocol => (&mut self.protocol, Section::Request),
            Token::Status => (&mut self.status, Section::Response),
            // RFC 9113 §8.3: what is not defined MUST NOT be generated, and makes a message malformed.
            _ => return Err(Violation::PseudoUnknown),
        };
        if section == Section::Trailers {
            // RFC 9113 §8.1: trailers have no pseudo-fields.
            return Err(Violation::PseudoInTrailers);
        }
        if section != belongs_to {
            // RFC 9113 §8.3: those of requests not in responses, and the other way round.
            return Err(Violation::PseudoMisplaced);
        }
        // RFC 9113 §8.3: the same pseudo-field MUST NOT come more than once.
        if slot.replace(field.value()).is_some() { Err(Violation::PseudoRepeated) } else { Ok(()) }
    }

    #[inline]
    fn take_regular(&mut self, token: Token, field: Field<'a>, section: Section) -> Result<(), Violation> {
        match token {
            // RFC 9113 §8.2.2: fields that belong to a connection of HTTP/1.1.
            Token::Connection
            | Token::KeepAlive
            | Token::ProxyConnection
            | Token::TransferEncoding
            | Token::Upgrade => Err(Violation::ConnectionField),
            // RFC 9113 §8.2.2: TE is let through in a request alone, with no other value than "trailers".
            Token::Te if section != Section::Request => Err(Violation::ConnectionField),
            Token::Te if !field.value().eq_ignore_ascii_case(b"trailers") => Err(Violation::TeValue),
            // RFC 9110 §6.5.1: in trailers it does not describe the content.
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
