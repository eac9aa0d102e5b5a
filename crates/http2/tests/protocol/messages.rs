//! The MUSTs of RFC 9113 §8 on the wire: a malformed message is a stream error, PROTOCOL_ERROR (§8.1.1). The unit tests of `message`
//! test each rule; these tests check that and when the rules are applied.

use crate::wire::Step::{Request, Send};
use crate::wire::{Case, client_sends, server_sends};
use wireloom_testing::http2::{Frame, GET, POST, block, code, flag, kind, literal};

fn with<'a>(fields: &[(&'a str, &'a str)], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [fields, more].concat()
}

#[test]
fn malformed_requests_are_stream_errors() {
    let case = |what, fields: &[(&str, &str)]| {
        Case::frames(what, &[Frame::headers(3, fields).end_stream()]).stream_error(3, code::PROTOCOL_ERROR)
    };
    let without = |name: &str| GET.iter().copied().filter(|field| field.0 != name).collect::<Vec<_>>();
    client_sends(vec![
        case("§8.2.1: an upper-case name", &with(GET, &[("X-Test", "ok")])),
        case("§8.2.1: an empty name", &with(GET, &[("", "ok")])),
        case("§8.2.1: a space in a name", &with(GET, &[("a b", "ok")])),
        case("§8.2.1: CR and LF in a value", &with(GET, &[("a", "b\r\nc: d")])),
        case("§8.2.1: NUL in a value", &with(GET, &[("a", "b\0c")])),
        case("§8.2.1: a value that begins with a space", &with(GET, &[("a", " b")])),
        case("§8.2.2: connection", &with(GET, &[("connection", "keep-alive")])),
        case("§8.2.2: transfer-encoding", &with(POST, &[("transfer-encoding", "chunked")])),
        case("§8.2.2: te other than trailers", &with(GET, &[("te", "trailers, deflate")])),
        case("§8.3: an unknown pseudo-field", &with(GET, &[(":test", "ok")])),
        case("§8.3: a pseudo-field of responses", &with(GET, &[(":status", "200")])),
        case("§8.3: a pseudo-field behind a regular one", &with(&[("x-test", "ok")], GET)),
        case("§8.3: a pseudo-field twice", &with(GET, &[(":path", "/")])),
        case("§8.3.1: no :method", &without(":method")),
        case("§8.3.1: no :scheme", &without(":scheme")),
        case("§8.3.1: no :path", &without(":path")),
        case("§8.3.1: no :authority and no host", &without(":authority")),
        case("§8.3.1: an empty :path", &with(&without(":path"), &[(":path", "")])),
        case(
            "§8.3.1: user information in :authority",
            &with(&without(":authority"), &[(":authority", "u@a")]),
        ),
        case("§8.3.1: another host than :authority", &with(GET, &[("host", "example.net")])),
        case("§8.5: CONNECT with :path", &[(":method", "CONNECT"), (":authority", "a:1"), (":path", "/")]),
        case("RFC 8441 §4: :protocol with GET", &with(GET, &[(":protocol", "websocket")])),
        case("§8.1.1: content-length that is no number", &with(GET, &[("content-length", "+1")])),
        case("§8.1.1: END_STREAM although content-length is 1", &with(GET, &[("content-length", "1")])),
        Case::frames(
            "§8.1.1: content-length of 0",
            &[Frame::headers(3, &with(GET, &[("content-length", "0")])).end_stream()],
        )
        .request(3),
    ]);
}

#[test]
fn content_has_the_announced_length() {
    let post = |len| Frame::headers(3, &with(POST, &[("content-length", len)]));
    let case = |what, frames: &[Frame]| Case::frames(what, frames);
    client_sends(vec![
        case("§8.1.1: less DATA", &[post("5"), Frame::data(3, "1234").end_stream()])
            .stream_error(3, code::PROTOCOL_ERROR),
        case("§8.1.1: more DATA", &[post("5"), Frame::data(3, "123456")])
            .stream_error(3, code::PROTOCOL_ERROR),
        case(
            "§8.1.1: more DATA in several frames",
            &[post("5"), Frame::data(3, "123"), Frame::data(3, "456").end_stream()],
        )
        .stream_error(3, code::PROTOCOL_ERROR),
        case(
            "§8.1.1: less DATA, and trailers",
            &[post("5"), Frame::data(3, "1234"), Frame::headers(3, &[("a", "b")]).end_stream()],
        )
        .stream_error(3, code::PROTOCOL_ERROR),
        case(
            "§8.1.1: DATA that add up, padding not counted",
            &[
                post("5"),
                Frame::data(3, "123").padded(7, 7),
                Frame::data(3, "45"),
                Frame::data(3, "").end_stream(),
            ],
        )
        .request(3),
        case(
            "§8.1.1: DATA that add up, and trailers",
            &[post("5"), Frame::data(3, "12345"), Frame::headers(3, &[("a", "b")]).end_stream()],
        )
        .request(3),
    ]);
}

#[test]
fn trailers_end_the_message() {
    let trailers =
        |fields: &[(&str, &str)]| vec![Frame::post(3), Frame::data(3, "x"), Frame::headers(3, fields)];
    let ended = |fields: &[(&str, &str)]| {
        let mut frames = trailers(fields);
        frames[2].flags |= flag::END_STREAM;
        frames
    };
    client_sends(vec![
        Case::frames("§8.1: trailers without END_STREAM", &trailers(&[("a", "b")]))
            .stream_error(3, code::PROTOCOL_ERROR),
        Case::frames("§8.1: a pseudo-field in trailers", &ended(&[(":path", "/")]))
            .stream_error(3, code::PROTOCOL_ERROR),
        Case::frames("§8.2.1: an upper-case name in trailers", &ended(&[("A", "b")]))
            .stream_error(3, code::PROTOCOL_ERROR),
        Case::frames("§8.2.2: connection in trailers", &ended(&[("connection", "close")]))
            .stream_error(3, code::PROTOCOL_ERROR),
        Case::frames("§8.1: trailers", &ended(&[("grpc-status", "0")])).request(3),
        Case::frames("§8.1: trailers without fields", &ended(&[])).request(3),
    ]);
}

#[test]
fn malformed_responses_are_stream_errors() {
    let steps = |frames: &[Frame]| {
        std::iter::once(Request(3)).chain(frames.iter().cloned().map(Send)).collect::<Vec<_>>()
    };
    let bad = |what, frames: &[Frame]| Case::new(what, steps(frames)).stream_error(3, code::PROTOCOL_ERROR);
    let head = |fields: &[(&str, &str)]| Frame::headers(3, fields);
    let end = |fields: &[(&str, &str)]| Frame::headers(3, fields).end_stream();
    server_sends(vec![
        bad("§8.3.2: no :status", &[end(&[("a", "b")])]),
        bad("§8.3.2: :status of four digits", &[end(&[(":status", "2000")])]),
        bad("§8.6: 101", &[head(&[(":status", "101")])]),
        bad("§8.3: a pseudo-field of requests", &[end(&[(":status", "200"), (":path", "/")])]),
        bad("§8.2.2: connection", &[end(&[(":status", "200"), ("connection", "close")])]),
        bad("§8.1: an interim response that ends the stream", &[end(&[(":status", "103")])]),
        bad("§8.1: DATA before HEADERS", &[Frame::data(3, "x")]),
        bad("§8.1: DATA after an interim response", &[head(&[(":status", "100")]), Frame::data(3, "x")]),
        bad("§8.1: trailers without END_STREAM", &[head(&[(":status", "200")]), head(&[("a", "b")])]),
        bad(
            "§8.1: an interim response after the final one",
            &[head(&[(":status", "200")]), end(&[(":status", "103")])],
        ),
        bad(
            "§8.1.1: less DATA than content-length",
            &[head(&[(":status", "200"), ("content-length", "2")]), Frame::data(3, "x").end_stream()],
        ),
        bad("§8.1.1: content of 204", &[head(&[(":status", "204")]), Frame::data(3, "x").end_stream()]),
        bad(
            "§8.2.1: a name of upper case",
            &[{
                let fields = [&block(&[(":status", "200")])[..], &literal(b"A", b"b")].concat();
                Frame::new(kind::HEADERS, 3, fields).flag(flag::END_HEADERS | flag::END_STREAM)
            }],
        ),
        Case::new(
            "§8.1: interim responses, content and trailers",
            steps(&[
                head(&[(":status", "100")]),
                head(&[(":status", "103"), ("link", "</a>")]),
                head(&[(":status", "200"), ("content-length", "1")]),
                Frame::data(3, "x"),
                end(&[("a", "b")]),
            ]),
        ),
        Case::new(
            "§8.1.1: 304 with content-length and no content",
            steps(&[end(&[(":status", "304"), ("content-length", "5")])]),
        ),
    ]);
}

#[test]
fn a_response_that_ends_without_its_announced_content_is_malformed() {
    // RFC 9113 §8.1.1: malformed, a stream error, PROTOCOL_ERROR.
    let case = |what, len: &str| {
        Case::new(
            what,
            vec![
                Request(3),
                Send(Frame::headers(3, &[(":status", "200"), ("content-length", len)]).end_stream()),
            ],
        )
    };
    server_sends(vec![
        case("§8.1.1: none was announced", "0"),
        case("§8.1.1: one byte was announced", "1").stream_error(3, code::PROTOCOL_ERROR),
    ]);
}
