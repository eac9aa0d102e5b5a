//! Where other implementations may differ from Wireloom, and why.
//!
//! | of | difference | reason |
//! |---|---|---|
//! | h2 | `length` | h2 reports PROTOCOL_ERROR for a frame of a wrong length, where RFC 9113 §4.2 has FRAME_SIZE_ERROR; for PRIORITY it ends the connection. |
//! | h2 | `window` | h2 reports PROTOCOL_ERROR for SETTINGS_INITIAL_WINDOW_SIZE above 2^31-1, where RFC 9113 §6.5.2 has FLOW_CONTROL_ERROR. |
//! | h2 | `zero` | h2 ends the connection for an increment of 0 on a stream. RFC 9113 §5.4.1 allows the larger scope. |
//! | h2 | `compression` | h2 reports PROTOCOL_ERROR for a block that cannot be decoded, where RFC 9113 §4.3 has COMPRESSION_ERROR. |
//! | h2 | `field` | h2 validates names and values while it decodes, and ends the connection for an invalid one. RFC 9113 §5.4.1 allows the larger scope. |
//! | h2 | `closed` | h2 ends the connection with PROTOCOL_ERROR for a frame behind END_STREAM or RST_STREAM, where RFC 9113 §5.1 has STREAM_CLOSED; once both sides have ended the stream it resets the stream alone. |
//! | h2 | `idle` | h2 resets the idle stream of a PRIORITY that depends on itself, which RFC 9113 §5.1 forbids. |
//! | h2 client | `before` | h2 ends the connection for DATA before the response (RFC 9113 §8.1: malformed). |
//! | h2 client | `ended` | h2 has forgotten a stream that both sides ended when it finds that the response is malformed, and reports it to the application alone. |
//! | h2 client | `content` | h2 passes on the content of a 204 or 304 (RFC 9110 §6.4.1: there is none). |
//! | h2 client | `refused` | h2 handles frames on streams that the server's GOAWAY refused. |
//! | h2 client | `push` | h2 accepts SETTINGS_ENABLE_PUSH of 1 from a server, which RFC 9113 §6.5.2 forbids. |
//! | h2 client | `update` | h2 ignores WINDOW_UPDATE on a stream that it has ended, and so its window cannot pass 2^31-1. |
//! | h2 | `order` | Two rules are broken, and h2 checks the fields before the stream's identifier and state, and a dependency before the padding. |
//! | h2 | `early` | h2 decodes a field block as it arrives, Wireloom once it is complete (RFC 9113 §4.3). |
//! | h2 | `promise` | h2 waits for the rest of a block before it refuses PUSH_PROMISE (RFC 9113 §8.4), or finds a malformed field in it first. |
//! | h2 | `goaway` | h2 closes after GOAWAY of a client that has no streams, and reads no more. RFC 9113 §6.8 lets clients send on. |
//! | h2 | `ack` | h2 ends the connection for an acknowledgement of no SETTINGS. RFC 9113 §6.5.3 has no rule for it. |
//! | h2 | `extension` | h2 does not know SETTINGS_NO_RFC7540_PRIORITIES (RFC 9218 §2.1), nor that SETTINGS_ENABLE_CONNECT_PROTOCOL must not go back to 0 (RFC 8441 §3). |
//! | h2 | `lenient` | h2 leaves to the application that a request has an authority, and only one, a valid path and a valid `content-length` (RFC 9113 §8.3.1, RFC 9110 §8.6). |
//! | h2 client | `pseudo` | h2 drops pseudo-fields of requests in responses, which RFC 9113 §8.3 calls malformed. |
//! | h2 client | `te` | h2 accepts `te` in responses. RFC 9113 §8.2.2 allows it in requests alone. |
//! | h2 client | `interim` | h2 accepts 101 (RFC 9113 §8.6) and interim responses with END_STREAM (RFC 9113 §8.1). |
//! | h2 | `whitespace` | h2 accepts values with whitespace at an end, which RFC 9113 §8.2.1 calls malformed. |
//! | h2 | `repeated` | h2 accepts a pseudo-field that is repeated in CONTINUATION, which RFC 9113 §8.3 calls malformed. |
//! | h2 | `trailers` | h2 drops pseudo-fields of trailers, which RFC 9113 §8.1 calls malformed. |
//! | h2 | `tunnel` | h2 applies `content-length` to CONNECT and its response. RFC 9110 §9.3.6: neither has content. |
//! | nghttp2 | `scope` | nghttp2 ends the connection for an error of a stream, with the same code. RFC 9113 §5.4.1 allows that. |
//! | nghttp2 | `order` | Two rules are broken, one of them about the length, the compression or a closed stream, and each checks another one first; both end the connection. |
//! | nghttp2 client | `before` | nghttp2 ignores empty DATA between an interim and the final response (RFC 9113 §8.1: malformed). |
//! | nghttp2 | `te` | nghttp2 accepts `te` in responses and trailers. RFC 9113 §8.2.2 allows it in the header section of requests alone. |
//! | nghttp2 client | `connect` | nghttp2 drops `content-length` of a response to CONNECT, which RFC 9110 §9.3.6 tells clients to ignore. |
//! | nghttp2 client | `content` | nghttp2 expects no content behind a 204 to CONNECT, where RFC 9110 §9.3.6 has a tunnel behind any 2xx. |
//! | nghttp2 client | `length` | nghttp2 refuses `content-length` in 204 and interim responses, or drops it if it is 0, which RFC 9110 §8.6 forbids servers to send. |
//! | nghttp2 client | `refused` | nghttp2 ends the connection for an error on a stream that GOAWAY refused, which Wireloom has closed. |
//! | nghttp2 | `early` | nghttp2 checks a header and decodes a field block as they arrive, Wireloom once the block is complete (RFC 9113 §4.3). |
//! | nghttp2 | `flood` | nghttp2 reports PROTOCOL_ERROR for a block in too many CONTINUATION frames, Wireloom ENHANCE_YOUR_CALM. |
//! | nghttp2 | `goaway` | nghttp2 ignores new streams, and most frames, after GOAWAY of the client. RFC 9113 §6.8 lets clients send on. |
//! | nghttp2 | `last` | nghttp2 checks that the last stream of GOAWAY is one that it may open. RFC 9113 §6.8 has no rule for it. |
//! | nghttp2 | `ack` | nghttp2 ends the connection for an acknowledgement of no SETTINGS. RFC 9113 §6.5.3 has no rule for it. |
//! | nghttp2 | `priority` | nghttp2 ignores PRIORITY on stream 0 (RFC 9113 §6.3) and, in PRIORITY and HEADERS, a stream that depends on itself (RFC 7540 §5.3.1) once RFC 7540 priorities are off. |
//! | nghttp2 | `closed` | nghttp2 ignores frames on closed streams and on those that were passed over, which RFC 9113 §5.1 and §5.1.1 call errors. |
//! | nghttp2 | `field` | nghttp2 drops fields whose name or value is invalid, where RFC 9113 §8.2.1 calls the message malformed. |
//! | nghttp2 | `authority` | nghttp2 checks the characters of an authority, not that it has a host, and a port in digits (RFC 9110 §4.2.1, RFC 3986 §3.2). |
//! | nghttp2 | `host` | nghttp2 does not compare `host` with `:authority` of CONNECT (RFC 9113 §8.3.1: a server SHOULD). |
//! | nghttp2 | `trailers` | nghttp2 refuses trailers with several `host` fields or `content-length`. RFC 9110 §6.5.1: fields that do not belong into trailers are ignored. |
//! | nghttp2 | `twice` | Wireloom accepts `content-length` that is repeated with the same value (RFC 9110 §8.6 allows both). |
//! | nghttp2 | `tunnel` | nghttp2 applies `content-length` to CONNECT. RFC 9110 §9.3.6: a CONNECT request has no content. |

use wireloom_http2::error::Violation;
use wireloom_http2::field::{Field, FieldLimits, FieldList, Token};
use wireloom_http2::frame::{Frame as ParsedFrame, FrameHeader};
use wireloom_http2::hpack::{DecodeError, Decoder};
use wireloom_http2::message::{RequestKind, check_request, check_response, check_trailers};
use wireloom_testing::http2::{Frame, code, flag, kind};

use super::{Fault, Fields, Outcome, REQUESTS};

/// The other implementation, the last frame, those before, and the two outcomes.
struct Seen<'a> {
    of: &'a str,
    before: &'a [Frame],
    last: &'a Frame,
    ours: &'a Outcome,
    theirs: &'a Outcome,
}

/// The name of the difference that explains these outcomes.
pub fn find(of: &str, frames: &[Frame], ours: &Outcome, theirs: &Outcome) -> Option<&'static str> {
    let (last, before) = frames.split_last()?;
    let seen = Seen { of, before, last, ours, theirs };
    DIFFERENCES
        .iter()
        .find(|(whose, _, applies)| of.starts_with(whose) && applies(&seen))
        .map(|(_, difference, _)| *difference)
}

/// Of which implementation, in which role if it is of one alone; its name; and whether it applies.
type Difference = (&'static str, &'static str, fn(&Seen<'_>) -> bool);

const PROTOCOL_ERROR: Fault = Fault { stream: 0, code: code::PROTOCOL_ERROR };

const DIFFERENCES: &[Difference] = &[
    ("h2", "length", |seen| {
        seen.theirs.fault == Some(PROTOCOL_ERROR)
            && seen.ours.fault.is_some_and(|fault| fault.code == code::FRAME_SIZE_ERROR)
            && has_wrong_length(seen.last)
    }),
    ("h2", "window", |seen| {
        let is_above = |entry: &[u8]| entry[..2] == [0, 4] && entry[2] & 0x80 != 0;
        seen.theirs.fault == Some(PROTOCOL_ERROR)
            && seen.ours.fault == Some(Fault { stream: 0, code: code::FLOW_CONTROL_ERROR })
            && seen.last.kind == kind::SETTINGS
            && seen.last.payload.chunks_exact(6).any(is_above)
    }),
    ("h2", "zero", |seen| {
        let stream = seen.last.stream & 0x7fff_ffff;
        seen.theirs.fault == Some(PROTOCOL_ERROR)
            && seen.ours.fault == Some(Fault { stream, code: code::PROTOCOL_ERROR })
            && seen.last.kind == kind::WINDOW_UPDATE
            && seen.last.word(0) & 0x7fff_ffff == 0
    }),
    ("h2", "compression", |seen| {
        seen.theirs.fault == Some(PROTOCOL_ERROR)
            && seen.ours.fault == Some(Fault { stream: 0, code: code::COMPRESSION_ERROR })
            && matches!(seen.section(), Some(Err(_)))
    }),
    ("h2", "field", |seen| {
        let is_refused = |fields: Fields| fields.iter().any(|(name, value)| !is_accepted_by_h2(name, value));
        seen.theirs.fault == Some(PROTOCOL_ERROR)
            && seen.ours.fault.is_some_and(|fault| fault.stream != 0)
            && seen.section().and_then(Result::ok).is_some_and(is_refused)
    }),
    ("h2", "closed", |seen| {
        seen.theirs.fault == Some(PROTOCOL_ERROR)
            && seen.ours.fault.is_some_and(|fault| fault.code == code::STREAM_CLOSED)
            && (seen.ours.ended.contains(&(seen.last.stream & 0x7fff_ffff)) || seen.was_reset())
    }),
    ("h2", "closed", |seen| {
        let stream = seen.last.stream & 0x7fff_ffff;
        seen.theirs.fault == Some(Fault { stream, code: code::STREAM_CLOSED })
            && seen.ours.fault == Some(Fault { stream: 0, code: code::STREAM_CLOSED })
            && seen.ours.ended.contains(&stream)
    }),
    ("h2", "idle", |seen| {
        seen.theirs.fault == Some(Fault { stream: seen.last.stream, code: code::PROTOCOL_ERROR })
            && seen.ours.fault == Some(PROTOCOL_ERROR)
            && seen.last.kind == kind::PRIORITY
            && seen.last.word(0) & 0x7fff_ffff == seen.last.stream
    }),
    ("h2 client", "before", |seen| {
        let stream = seen.last.stream;
        seen.theirs.fault == Some(PROTOCOL_ERROR)
            && seen.ours.fault == Some(Fault { stream, code: code::PROTOCOL_ERROR })
            && seen.last.kind == kind::DATA
            && !seen.ours.messages.iter().any(|message| message.0 == stream && is_final(&message.1))
    }),
    ("h2 client", "ended", |seen| {
        let stream = seen.last.stream;
        let has_ended = request_of(stream).is_some_and(|(_, has_ended)| has_ended);
        let ends = seen.before.iter().chain([seen.last]).any(|frame| {
            frame.stream == stream && frame.kind == kind::HEADERS && frame.has(flag::END_STREAM)
        });
        has_ended
            && ends
            && seen.ours.fault == Some(Fault { stream, code: code::PROTOCOL_ERROR })
            && seen.theirs.fault.is_none()
            && seen.their_message().is_none()
    }),
    ("h2 client", "content", |seen| {
        let stream = seen.last.stream;
        let is_empty = |(of, fields): &(u32, Fields)| {
            let status = [&b"204"[..], b"304"];
            *of == stream
                && fields.iter().any(|field| field.0 == b":status" && status.contains(&&field.1[..]))
        };
        seen.ours.fault == Some(Fault { stream, code: code::PROTOCOL_ERROR })
            && seen.theirs.fault.is_none()
            && seen.last.kind == kind::DATA
            && seen.ours.messages.iter().any(is_empty)
    }),
    ("h2 client", "refused", |seen| {
        seen.ours.fault.is_none()
            && seen.theirs.fault.is_some()
            && seen.ours.refused.contains(&seen.last.stream)
    }),
    ("h2 client", "push", |seen| {
        seen.ours.fault == Some(PROTOCOL_ERROR)
            && seen.theirs.fault.is_none()
            && seen.last.kind == kind::SETTINGS
            && seen.last.payload.chunks_exact(6).any(|entry| entry == [0, 2, 0, 0, 0, 1])
    }),
    ("h2 client", "update", |seen| {
        let is_update = |frame: &Frame| {
            let has_ended = request_of(frame.stream).is_some_and(|(_, has_ended)| has_ended);
            frame.kind == kind::WINDOW_UPDATE && has_ended
        };
        let is_update = match seen.last.kind {
            kind::SETTINGS => seen.before.iter().any(is_update),
            _ => is_update(seen.last),
        };
        is_update
            && seen.ours.fault.is_some_and(|fault| fault.code == code::FLOW_CONTROL_ERROR)
            && seen.theirs.fault.is_none()
    }),
    ("h2", "order", |seen| {
        let stream = seen.last.stream & 0x7fff_ffff;
        seen.theirs.fault == Some(Fault { stream, code: code::PROTOCOL_ERROR })
            && seen.ours.fault.is_some()
            && (seen.section().is_some() || seen.depends_on_itself())
    }),
    ("h2", "early", |seen| {
        seen.is_block() && !seen.ends_block() && seen.ours.fault.is_none() && seen.theirs.fault.is_some()
    }),
    ("h2", "promise", |seen| {
        let is_found = !seen.last.has(flag::END_HEADERS) || seen.theirs.fault.is_some();
        seen.last.kind == kind::PUSH_PROMISE
            && is_found
            && seen.ours.fault.is_some_and(|fault| fault.stream == 0)
            && seen.theirs.fault.is_none_or(|fault| fault.stream == seen.last.stream)
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
    ("h2 client", "pseudo", |seen| {
        let is_of_request = |(name, _): &(Vec<u8>, _)| name.starts_with(b":") && name != b":status";
        seen.is_accepted_by_them()
            && seen.section().and_then(Result::ok).is_some_and(|fields| fields.iter().any(is_of_request))
    }),
    ("h2 client", "te", has_te),
    ("nghttp2", "te", has_te),
    ("nghttp2 client", "before", |seen| {
        let stream = seen.last.stream;
        seen.theirs.fault.is_none()
            && seen.ours.fault == Some(Fault { stream, code: code::PROTOCOL_ERROR })
            && seen.last.kind == kind::DATA
            && (seen.last.payload.is_empty() || seen.last.has(flag::PADDED))
            && !seen.ours.messages.iter().any(|message| message.0 == stream && is_final(&message.1))
    }),
    ("h2 client", "interim", |seen| {
        let is_interim =
            |fields: &Fields| !is_final(fields) && fields.iter().any(|field| field.0 == b":status");
        let ends = seen.last.has(flag::END_STREAM) || seen.last.kind == kind::CONTINUATION;
        seen.is_accepted_by_them()
            && seen.their_message().is_some_and(is_interim)
            && (ends || seen.violation() == Some(Violation::StatusSwitching))
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
        let is_length = [ours.code, theirs.code].contains(&code::FRAME_SIZE_ERROR);
        let is_compression = ours.code == code::COMPRESSION_ERROR && matches!(seen.section(), Some(Err(_)));
        let is_closed = theirs.code == code::STREAM_CLOSED && seen.ours.ended.contains(&seen.last.stream);
        ours.stream == 0
            && theirs.stream == 0
            && ours.code != theirs.code
            && ((is_length && has_wrong_length(seen.last)) || is_compression || is_closed)
    }),
    ("nghttp2", "early", |seen| {
        seen.is_block() && !seen.ends_block() && seen.ours.fault.is_none() && seen.theirs.fault.is_some()
    }),
    ("nghttp2", "flood", |seen| {
        seen.last.kind == kind::CONTINUATION
            && seen.ours.fault == Some(Fault { stream: 0, code: code::ENHANCE_YOUR_CALM })
            && seen.theirs.fault == Some(PROTOCOL_ERROR)
    }),
    ("nghttp2", "goaway", |seen| seen.follows(kind::GOAWAY) && seen.theirs.fault.is_none()),
    ("nghttp2", "last", |seen| {
        let is_refused = seen.ours.fault.is_none() && seen.theirs.fault == Some(PROTOCOL_ERROR);
        let opener = if seen.of.ends_with("client") { 1 } else { 0 };
        seen.last.kind == kind::GOAWAY && seen.last.word(0) & 1 != opener && is_refused
    }),
    ("nghttp2", "ack", |seen| {
        let is_ack = seen.last.kind == kind::SETTINGS && seen.last.has(flag::ACK);
        is_ack && seen.ours.fault.is_none() && seen.theirs.fault == Some(PROTOCOL_ERROR)
    }),
    ("nghttp2", "priority", |seen| {
        let is_priority = seen.last.kind == kind::PRIORITY || seen.depends_on_itself();
        is_priority && seen.ours.fault.is_some() && seen.theirs.fault.is_none()
    }),
    ("nghttp2", "closed", |seen| {
        let is_open = |frame: &Frame| frame.stream == seen.last.stream && frame.kind == kind::HEADERS;
        // A block in CONTINUATION began with the frame before.
        let begun = usize::from(seen.last.kind == kind::CONTINUATION);
        let before = &seen.before[..seen.before.len() - begun];
        let has_ended = seen.ours.ended.contains(&seen.last.stream);
        let is_closed = !before.iter().any(is_open) || seen.was_reset() || has_ended;
        let is_message = seen.their_message().is_some();
        is_closed && !is_message && seen.ours.fault.is_some() && seen.theirs.fault.is_none()
    }),
    ("nghttp2", "field", |seen| {
        let is_stream = seen.ours.fault.is_some_and(|fault| fault.stream == seen.last.stream);
        let is_valid = seen.their_message().is_some() && seen.violation().is_none();
        is_stream && seen.is_accepted_by_them() && is_valid
    }),
    ("nghttp2", "authority", |seen| {
        seen.is_accepted_by_them() && seen.violation() == Some(Violation::AuthorityInvalid)
    }),
    ("nghttp2", "host", |seen| {
        seen.is_accepted_by_them() && seen.violation() == Some(Violation::HostMismatch)
    }),
    ("nghttp2", "trailers", |seen| {
        let is_host = |field: &&(Vec<u8>, Vec<u8>)| field.0 == b"host";
        let is_trailers = |fields: &Fields| {
            let has_length = fields.iter().any(|(name, _)| name == b"content-length");
            (has_length || fields.iter().filter(is_host).count() > 1)
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
    ("nghttp2 client", "connect", |seen| {
        let is_length = |field: &(Vec<u8>, Vec<u8>)| field.0 == b"content-length";
        request_of(seen.last.stream).is_some_and(|(method, _)| method == "CONNECT")
            && seen.ours.fault == seen.theirs.fault
            && new_message(seen.ours, seen.theirs).is_some_and(|fields| fields.iter().any(is_length))
            && seen.their_message().is_some_and(|fields| !fields.iter().any(is_length))
    }),
    ("nghttp2 client", "content", |seen| {
        let stream = seen.last.stream;
        let is_204 = |(of, fields): &(u32, Fields)| {
            *of == stream && fields.iter().any(|(name, value)| name == b":status" && value == b"204")
        };
        request_of(stream).is_some_and(|(method, _)| method == "CONNECT")
            && seen.last.kind == kind::DATA
            && seen.ours.fault.is_none()
            && seen.theirs.fault == Some(PROTOCOL_ERROR)
            && seen.ours.messages.iter().any(is_204)
    }),
    ("nghttp2 client", "length", |seen| {
        let is_length = |field: &(Vec<u8>, Vec<u8>)| field.0 == b"content-length";
        let is_bodyless = |fields: &Fields| {
            !is_final(fields) || fields.iter().any(|(name, value)| name == b":status" && value == b"204")
        };
        let message = new_message(seen.ours, seen.theirs);
        let is_dropped = seen.their_message().is_some_and(|fields| !fields.iter().any(is_length));
        seen.ours.fault.is_none()
            && (seen.theirs.fault.is_some() || is_dropped)
            && message.is_some_and(|fields| fields.iter().any(is_length) && is_bodyless(fields))
    }),
    ("nghttp2 client", "refused", |seen| {
        seen.ours.fault.is_none()
            && seen.theirs.fault.is_some_and(|fault| fault.stream == 0)
            && seen.ours.refused.contains(&seen.last.stream)
    }),
];

impl Seen<'_> {
    /// The last frame has a part of a field block.
    fn is_block(&self) -> bool {
        [kind::HEADERS, kind::CONTINUATION, kind::PUSH_PROMISE].contains(&self.last.kind)
    }

    fn ends_block(&self) -> bool {
        self.last.has(flag::END_HEADERS)
    }

    /// The last frame is HEADERS whose priority names its own stream (RFC 7540 §5.3.1).
    fn depends_on_itself(&self) -> bool {
        let priority = usize::from(self.last.has(flag::PADDED));
        self.last.kind == kind::HEADERS
            && self.last.has(flag::PRIORITY)
            && self.last.payload.len() >= priority + 4
            && self.last.word(priority) & 0x7fff_ffff == self.last.stream & 0x7fff_ffff
    }

    /// The stream of the last frame was reset by its peer.
    fn was_reset(&self) -> bool {
        self.before.iter().any(|frame| frame.stream == self.last.stream && frame.kind == kind::RST_STREAM)
    }

    fn follows(&self, kind: u8) -> bool {
        self.before.iter().any(|frame| frame.kind == kind)
    }

    /// The fields of the block that ends with the last frame.
    fn section(&self) -> Option<Result<Fields, DecodeError>> {
        let (mut decoder, mut block, mut section) = (Decoder::new(4096), Vec::new(), None);
        for frame in self.before.iter().chain([self.last]) {
            section = None;
            let bytes = frame.to_bytes();
            let Some((header, payload)) = bytes.split_first_chunk() else { continue };
            match ParsedFrame::parse(&FrameHeader::decode(header), payload) {
                Ok(ParsedFrame::Headers(headers)) => block = headers.fragment.to_vec(),
                Ok(ParsedFrame::PushPromise(promise)) => block = promise.fragment.to_vec(),
                Ok(ParsedFrame::Continuation(continuation)) => block.extend(continuation.fragment),
                _ => continue,
            }
            if frame.has(flag::END_HEADERS) {
                let mut fields = FieldList::new();
                let decoded = decoder.decode(&block, &FieldLimits::default(), &mut fields);
                let to_owned = |field: Field<'_>| (field.name().to_vec(), field.value().to_vec());
                section = Some(decoded.map(|()| fields.iter().map(to_owned).collect()));
            }
        }
        section
    }

    /// Wireloom refused a message, or the connection, and they did not.
    fn is_accepted_by_them(&self) -> bool {
        self.ours.fault.is_some() && self.theirs.fault.is_none()
    }

    /// The message that they accepted and Wireloom did not.
    fn their_message(&self) -> Option<&Fields> {
        new_message(self.theirs, self.ours)
    }

    /// The rule of requests, responses or trailers that it breaks.
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
        if is_request {
            check_request(&list, true).err()
        } else if has(b":status", None) {
            let kind = match request_of(self.last.stream) {
                Some(("HEAD", _)) => RequestKind::Head,
                Some(("CONNECT", _)) => RequestKind::Connect,
                _ => RequestKind::Plain,
            };
            check_response(&list, kind).err()
        } else {
            check_trailers(&list).err()
        }
    }
}

/// The request that a client sent on a stream: its method, and whether it has ended.
fn request_of(stream: u32) -> Option<(&'static str, bool)> {
    (stream % 2 == 1).then(|| REQUESTS.get(stream as usize / 2).copied()).flatten()
}

/// Whether a response is not an interim one.
fn is_final(fields: &Fields) -> bool {
    fields.iter().any(|(name, value)| name == b":status" && !value.starts_with(b"1"))
}

/// Whether the length of a frame contradicts its type (RFC 9113 §6).
fn has_wrong_length(frame: &Frame) -> bool {
    let len = frame.payload.len();
    match frame.kind {
        kind::PRIORITY => len != 5,
        kind::RST_STREAM | kind::WINDOW_UPDATE => len != 4,
        kind::SETTINGS => !len.is_multiple_of(6) || frame.has(flag::ACK),
        kind::PING => len != 8,
        kind::GOAWAY => len < 8,
        _ => len < 6,
    }
}

/// Whether h2 can represent a field: its types are those of the `http` crate.
fn is_accepted_by_h2(name: &[u8], value: &[u8]) -> bool {
    match name {
        b":method" => http::Method::from_bytes(value).is_ok(),
        b":status" => http::StatusCode::from_bytes(value).is_ok(),
        b":authority" | b":scheme" | b":path" | b":protocol" => std::str::from_utf8(value).is_ok(),
        _ => http::HeaderName::from_lowercase(name).is_ok() && http::HeaderValue::from_bytes(value).is_ok(),
    }
}

/// They accept `te` in a response, or in trailers.
fn has_te(seen: &Seen<'_>) -> bool {
    let has_te = |fields: &Fields| fields.iter().any(|(name, _)| name == b"te");
    seen.is_accepted_by_them() && seen.their_message().is_some_and(has_te)
}

/// They apply `content-length` to CONNECT, or to its response.
fn is_tunnel_with_length(seen: &Seen<'_>) -> bool {
    let has = |fields: &Fields, name: &[u8], value: Option<&[u8]>| {
        fields.iter().any(|field| field.0 == name && value.is_none_or(|value| field.1 == value))
    };
    let is_tunnel = seen.of.ends_with("client")
        && request_of(seen.last.stream).is_some_and(|(method, _)| method == "CONNECT");
    let is_announced = |(stream, fields): &(u32, Fields)| {
        *stream == seen.last.stream
            && (has(fields, b":method", Some(b"CONNECT")) || is_tunnel)
            && has(fields, b"content-length", None)
    };
    seen.ours.fault.is_none() && seen.theirs.fault.is_some() && seen.ours.messages.iter().any(is_announced)
}

/// The message that one received and the other did not, or less often.
fn new_message<'a>(one: &'a Outcome, other: &Outcome) -> Option<&'a Fields> {
    let count = |of: &Outcome, message| of.messages.iter().filter(|other| *other == message).count();
    one.messages
        .iter()
        .find(|message| count(one, *message) > count(other, *message))
        .map(|(_, fields)| fields)
}
