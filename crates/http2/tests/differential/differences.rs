//! Where other implementations may differ from Wireloom, and why.
//!
//! | of | difference | reason |
//! |---|---|---|
//! | h2 | `coarse` | h2 ends the connection with PROTOCOL_ERROR for nearly every malformed frame, where the RFCs name other codes (RFC 9113 §4.2, §4.3, §6.5.2) or the stream alone. RFC 9113 §5.4.1 allows the larger scope. |
//! | h2 | `order` | Two rules are broken, and h2 checks the fields before the stream's identifier. |
//! | h2 | `early` | h2 decodes a field block as it arrives, Wireloom once it is complete (RFC 9113 §4.3). |
//! | h2 | `promise` | h2 waits for the rest of a block before it refuses PUSH_PROMISE of a client (RFC 9113 §8.4). |
//! | h2 | `goaway` | h2 closes after GOAWAY of a client that has no streams, and reads no more. RFC 9113 §6.8 lets clients send on. |
//! | h2 | `ack` | h2 ends the connection for an acknowledgement of no SETTINGS. RFC 9113 §6.5.3 has no rule for it. |
//! | h2 | `extension` | h2 does not know SETTINGS_NO_RFC7540_PRIORITIES (RFC 9218 §2.1), nor that SETTINGS_ENABLE_CONNECT_PROTOCOL must not go back to 0 (RFC 8441 §3). |
//! | h2 | `lenient` | h2 leaves to the application that a request has an authority, and only one, a valid path and a valid `content-length` (RFC 9113 §8.3.1, RFC 9110 §8.6). |
//! | h2 | `whitespace` | h2 accepts values with whitespace at an end, which RFC 9113 §8.2.1 calls malformed. |
//! | h2 | `repeated` | h2 accepts a pseudo-field that is repeated in CONTINUATION, which RFC 9113 §8.3 calls malformed. |
//! | h2 | `trailers` | h2 drops pseudo-fields of trailers, which RFC 9113 §8.1 calls malformed. |
//! | h2 | `tunnel` | h2 applies `content-length` to CONNECT. RFC 9110 §9.3.6: a CONNECT request has no content. |
//! | nghttp2 | `scope` | nghttp2 ends the connection for an error of a stream, with the same code. RFC 9113 §5.4.1 allows that. |
//! | nghttp2 | `order` | Two rules are broken, and each checks another one first; both end the connection. |
//! | nghttp2 | `early` | nghttp2 checks a header and decodes a field block as they arrive, Wireloom once the block is complete (RFC 9113 §4.3). |
//! | nghttp2 | `goaway` | nghttp2 ignores new streams, and most frames, after GOAWAY of the client. RFC 9113 §6.8 lets clients send on. |
//! | nghttp2 | `last` | nghttp2 checks that the last stream of GOAWAY is one that it may open. RFC 9113 §6.8 has no rule for it. |
//! | nghttp2 | `ack` | nghttp2 ends the connection for an acknowledgement of no SETTINGS. RFC 9113 §6.5.3 has no rule for it. |
//! | nghttp2 | `priority` | nghttp2 ignores PRIORITY on stream 0 (RFC 9113 §6.3) and a stream that depends on itself (RFC 7540 §5.3.1) once RFC 7540 priorities are off. |
//! | nghttp2 | `closed` | nghttp2 ignores frames on closed streams and on those that were passed over, which RFC 9113 §5.1 and §5.1.1 call errors. |
//! | nghttp2 | `field` | nghttp2 drops fields whose name or value is invalid, where RFC 9113 §8.2.1 calls the message malformed. |
//! | nghttp2 | `host` | nghttp2 does not compare `host` with `:authority` of CONNECT (RFC 9113 §8.3.1: a server SHOULD). |
//! | nghttp2 | `trailers` | nghttp2 refuses trailers with several `host` fields. RFC 9110 §6.5.1: fields that do not belong into trailers are ignored. |
//! | nghttp2 | `twice` | Wireloom accepts `content-length` that is repeated with the same value (RFC 9110 §8.6 allows both). |
//! | nghttp2 | `tunnel` | nghttp2 applies `content-length` to CONNECT. RFC 9110 §9.3.6: a CONNECT request has no content. |

use wireloom_http2::error::Violation;
use wireloom_http2::field::{Field, FieldList, Token};
use wireloom_http2::message::{check_request, check_trailers};
use wireloom_testing::http2::{Frame, code, flag, kind};

use super::{Fault, Fields, Outcome};

/// The last frame, those before, and the two outcomes.
struct Seen<'a> {
    before: &'a [Frame],
    last: &'a Frame,
    ours: &'a Outcome,
    theirs: &'a Outcome,
}

/// The name of the difference that explains these outcomes.
pub fn find(of: &str, frames: &[Frame], ours: &Outcome, theirs: &Outcome) -> Option<&'static str> {
    let (last, before) = frames.split_last()?;
    let seen = Seen { before, last, ours, theirs };
    DIFFERENCES
        .iter()
        .find(|(whose, _, applies)| *whose == of && applies(&seen))
        .map(|(_, difference, _)| *difference)
}

/// Whose, its name, and whether it applies.
type Difference = (&'static str, &'static str, fn(&Seen<'_>) -> bool);

const PROTOCOL_ERROR: Fault = Fault { stream: 0, code: code::PROTOCOL_ERROR };

const DIFFERENCES: &[Difference] = &[
    ("h2", "coarse", |seen| seen.ours.fault.is_some() && seen.theirs.fault == Some(PROTOCOL_ERROR)),
    ("h2", "order", |seen| {
        let is_stream = |fault: &Fault| fault.stream != 0 && fault.code == code::PROTOCOL_ERROR;
        seen.ours.fault.is_some() && seen.theirs.fault.as_ref().is_some_and(is_stream)
    }),
    ("h2", "early", |seen| !seen.ends_block() && seen.ours.fault.is_none() && seen.theirs.fault.is_some()),
    ("h2", "promise", |seen| {
        let is_promise = seen.last.kind == kind::PUSH_PROMISE && !seen.last.has(flag::END_HEADERS);
        is_promise && seen.ours.fault.is_some() && seen.theirs.fault.is_none()
    }),
    ("h2", "goaway", |seen| seen.follows(kind::GOAWAY) && seen.theirs.fault.is_none()),
    ("h2", "ack", |seen| {
        let is_ack = seen.last.kind == kind::SETTINGS && seen.last.has(flag::ACK);
        is_ack && seen.ours.fault.is_none() && seen.theirs.fault == Some(PROTOCOL_ERROR)
    }),
    ("h2", "extension", |seen| {
        let entries = seen.last.payload.chunks_exact(6);
        let has_extension = |mut entries: std::slice::ChunksExact<'_, u8>| {
            entries.any(|entry| [[0, 8], [0, 9]].contains(&[entry[0], entry[1]]))
        };
        seen.last.kind == kind::SETTINGS && has_extension(entries) && seen.theirs.fault.is_none()
    }),
    ("h2", "lenient", |seen| {
        let allowed = [
            Violation::AuthorityInvalid,
            Violation::AuthorityMissing,
            Violation::ConnectPseudo,
            Violation::ContentLengthInvalid,
            Violation::HostMismatch,
            Violation::PathInvalid,
        ];
        seen.is_accepted_by_them() && seen.violation().is_some_and(|violation| allowed.contains(&violation))
    }),
    ("h2", "whitespace", |seen| {
        let is_whitespace = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
        let has_whitespace =
            |(_, value): &(_, Vec<u8>)| is_whitespace(value.first()) || is_whitespace(value.last());
        seen.is_accepted_by_them()
            && seen.their_message().is_some_and(|fields| fields.iter().any(has_whitespace))
    }),
    ("h2", "repeated", |seen| {
        let is_accepted = seen.is_accepted_by_them() && seen.their_message().is_some();
        seen.last.kind == kind::CONTINUATION && is_accepted && seen.violation().is_none()
    }),
    ("h2", "trailers", |seen| {
        let is_stream = |frame: &Frame| frame.kind == kind::HEADERS && frame.stream == seen.last.stream;
        let has_pseudo = |fields: &Fields| fields.iter().any(|(name, _)| name.starts_with(b":"));
        let is_dropped = seen.their_message().is_some_and(|fields| !has_pseudo(fields));
        seen.is_accepted_by_them() && is_dropped && seen.before.iter().any(is_stream)
    }),
    ("h2", "tunnel", is_tunnel_with_length),
    ("nghttp2", "scope", |seen| {
        let (Some(ours), Some(theirs)) = (seen.ours.fault, seen.theirs.fault) else { return false };
        ours.stream != 0 && theirs.stream == 0 && ours.code == theirs.code
    }),
    ("nghttp2", "order", |seen| {
        let (Some(ours), Some(theirs)) = (seen.ours.fault, seen.theirs.fault) else { return false };
        ours.stream == 0 && theirs.stream == 0 && ours.code != theirs.code
    }),
    ("nghttp2", "early", |seen| {
        let is_block = [kind::HEADERS, kind::CONTINUATION, kind::PUSH_PROMISE].contains(&seen.last.kind);
        is_block && !seen.ends_block() && seen.ours.fault.is_none() && seen.theirs.fault.is_some()
    }),
    ("nghttp2", "goaway", |seen| seen.follows(kind::GOAWAY) && seen.theirs.fault.is_none()),
    ("nghttp2", "last", |seen| {
        let is_even = seen.last.kind == kind::GOAWAY && seen.last.word(0) & 1 == 0;
        let is_refused = seen.ours.fault.is_none() && seen.theirs.fault == Some(PROTOCOL_ERROR);
        seen.last.kind == kind::GOAWAY && !is_even && is_refused
    }),
    ("nghttp2", "ack", |seen| {
        let is_ack = seen.last.kind == kind::SETTINGS && seen.last.has(flag::ACK);
        is_ack && seen.ours.fault.is_none() && seen.theirs.fault == Some(PROTOCOL_ERROR)
    }),
    ("nghttp2", "priority", |seen| {
        seen.last.kind == kind::PRIORITY && seen.ours.fault.is_some() && seen.theirs.fault.is_none()
    }),
    ("nghttp2", "closed", |seen| {
        let is_open = |frame: &Frame| frame.stream == seen.last.stream && frame.kind == kind::HEADERS;
        let was_reset = |frame: &Frame| frame.stream == seen.last.stream && frame.kind == kind::RST_STREAM;
        // A block in CONTINUATION began with the frame before.
        let begun = usize::from(seen.last.kind == kind::CONTINUATION);
        let before = &seen.before[..seen.before.len() - begun];
        let is_closed = !before.iter().any(is_open) || before.iter().any(was_reset);
        let is_message = seen.their_message().is_some();
        is_closed && !is_message && seen.ours.fault.is_some() && seen.theirs.fault.is_none()
    }),
    ("nghttp2", "field", |seen| {
        let is_stream = seen.ours.fault.is_some_and(|fault| fault.stream == seen.last.stream);
        let is_valid = seen.their_message().is_some() && seen.violation().is_none();
        is_stream && seen.is_accepted_by_them() && is_valid
    }),
    ("nghttp2", "host", |seen| {
        seen.is_accepted_by_them() && seen.violation() == Some(Violation::HostMismatch)
    }),
    ("nghttp2", "trailers", |seen| {
        let is_host = |field: &&(Vec<u8>, Vec<u8>)| field.0 == b"host";
        let is_trailers = |fields: &Fields| {
            fields.iter().filter(is_host).count() > 1
                && !fields.iter().any(|(name, _)| name.starts_with(b":"))
        };
        let message = new_message(seen.ours, seen.theirs);
        seen.ours.fault.is_none() && seen.theirs.fault.is_some() && message.is_some_and(is_trailers)
    }),
    ("nghttp2", "twice", |seen| {
        let is_length = |field: &&(Vec<u8>, Vec<u8>)| field.0 == b"content-length";
        let is_twice = |fields: &Fields| fields.iter().filter(is_length).count() > 1;
        let message = new_message(seen.ours, seen.theirs);
        seen.ours.fault.is_none() && seen.theirs.fault.is_some() && message.is_some_and(is_twice)
    }),
    ("nghttp2", "tunnel", is_tunnel_with_length),
];

impl Seen<'_> {
    fn ends_block(&self) -> bool {
        self.last.has(flag::END_HEADERS)
    }

    fn follows(&self, kind: u8) -> bool {
        self.before.iter().any(|frame| frame.kind == kind)
    }

    /// Wireloom refused a message, or the connection, and they did not.
    fn is_accepted_by_them(&self) -> bool {
        self.ours.fault.is_some() && self.theirs.fault.is_none()
    }

    /// The message that they accepted and Wireloom did not.
    fn their_message(&self) -> Option<&Fields> {
        new_message(self.theirs, self.ours)
    }

    /// The rule of requests or of trailers that it breaks.
    fn violation(&self) -> Option<Violation> {
        let fields = self.their_message()?;
        let has = |name: &[u8], value: Option<&[u8]>| {
            fields.iter().any(|field| field.0 == name && value.is_none_or(|value| field.1 == value))
        };
        // The view of h2 has no scheme.
        let is_request = has(b":method", None);
        let needs_scheme = is_request
            && !has(b":scheme", None)
            && (!has(b":method", Some(b"CONNECT")) || has(b":protocol", None));
        let scheme = needs_scheme.then_some(Field::known(Token::Scheme, b"https"));
        let fields = fields.iter().map(|(name, value)| Field::new(name, value));
        let list: FieldList = scheme.into_iter().chain(fields).collect();
        if is_request { check_request(&list, true).err() } else { check_trailers(&list).err() }
    }
}

/// They apply `content-length` to CONNECT.
fn is_tunnel_with_length(seen: &Seen<'_>) -> bool {
    let has = |fields: &Fields, name: &[u8], value: Option<&[u8]>| {
        fields.iter().any(|field| field.0 == name && value.is_none_or(|value| field.1 == value))
    };
    let is_tunnel = |(stream, fields): &(u32, Fields)| {
        *stream == seen.last.stream
            && has(fields, b":method", Some(b"CONNECT"))
            && has(fields, b"content-length", None)
    };
    seen.ours.fault.is_none() && seen.theirs.fault.is_some() && seen.ours.messages.iter().any(is_tunnel)
}

/// The message that one received and the other did not.
fn new_message<'a>(one: &'a Outcome, other: &Outcome) -> Option<&'a Fields> {
    one.messages.iter().find(|message| !other.messages.contains(message)).map(|(_, fields)| fields)
}
