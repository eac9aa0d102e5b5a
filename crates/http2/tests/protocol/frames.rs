//! The MUSTs of RFC 9113 §3, §4 and §6 on the wire: the answers to the frames of a raw peer.

use crate::wire::Step::{Raw, Respond, Send};
use crate::wire::{Case, client_sends, server_sends};
use wireloom_testing::http2::{Frame, PREFACE, code, flag, join, kind, literal};

const END_HEADERS: u8 = flag::END_HEADERS;

#[test]
fn a_connection_begins_with_its_preface() {
    let settings = Frame::settings(&[]).to_bytes();
    let case = |what, bytes: &[u8]| Case::bare(what, bytes).connection_error(code::PROTOCOL_ERROR);
    client_sends(vec![
        case("§3.4: another protocol", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        case("§3.4: the last byte of the preface differs", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r"),
        case("§3.4: SETTINGS without the preface", &settings),
        case("§3.4: PING before SETTINGS", &[PREFACE, &Frame::ping("01234567").to_bytes()].concat()),
        case("§3.4: HEADERS before SETTINGS", &[PREFACE, &Frame::get(1).to_bytes()].concat()),
        case(
            "§3.4: an acknowledgement is no preface",
            &[PREFACE, &Frame::settings_ack().to_bytes()].concat(),
        ),
        Case::bare(
            "§3.4: requests may follow at once",
            &[PREFACE, &settings, &Frame::get(1).to_bytes()].concat(),
        ),
    ]);
    server_sends(vec![
        case("§3.4: PING before SETTINGS", &Frame::ping("01234567").to_bytes()),
        case("§3.4: another protocol", b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        Case::bare("§3.4: SETTINGS first", &settings),
    ]);
}

#[test]
fn unknown_frames_flags_and_settings_are_ignored() {
    let case = |what, frames: &[Frame]| Case::frames(what, frames);
    client_sends(vec![
        case("§4.1, §5.5: a frame of unknown type", &[Frame::new(0x16, 0, "any")]),
        case("§4.1, §5.5: the same on a stream that is idle", &[Frame::new(0x16, 101, "any")]),
        case("§5.5: the same with every flag", &[Frame::new(0xff, 0, "").flag(0xff)]),
        case("§4.1: flags that the type does not have", &[Frame::ping("01234567").flag(!flag::ACK)]),
        case("§4.1: the reserved bit", &[Frame::new(kind::PING, 0x8000_0000, "01234567")]),
        case("§4.1: the reserved bit of a stream", &[Frame { stream: 0x8000_0003, ..Frame::get(3) }]),
        case("§6.5.2: settings that are unknown", &[Frame::settings(&[(0x7f7f, u32::MAX), (0, 0), (7, 9)])]),
        case("§6.3: PRIORITY on a stream that is idle", &[Frame::priority(7, 3, 15)]),
        case("§6.3: PRIORITY on a stream that depends on a later one", &[Frame::priority(3, 9, 255)]),
        case("§6.8: reserved bit and unknown code of GOAWAY", &[Frame::goaway(0x8000_0000, 0xdead, "bye")]),
        case("§6.9: the reserved bit of the increment", &[Frame::window_update(0, 0x8000_0001)]),
        case("§6.4, §7: RST_STREAM with an unknown code", &[Frame::post(3), Frame::rst_stream(3, 0xdead)]),
        case("RFC 7838 §4: ALTSVC from a client", &[Frame::new(kind::ALTSVC, 0, "\0\x01oh2")]),
        case("RFC 8336 §2: ORIGIN from a client", &[Frame::new(kind::ORIGIN, 0, "\0\x01a")]),
    ]);
    server_sends(vec![
        case("§4.1, §5.5: a frame of unknown type", &[Frame::new(0x16, 0, "any")]),
        case("RFC 7838 §4: ALTSVC without an origin on stream 0", &[Frame::new(kind::ALTSVC, 0, "\0\0h2")]),
        case("RFC 8336 §2.1: ORIGIN on a stream", &[Frame::new(kind::ORIGIN, 3, "\0\x01a")]),
        case("§6.3: PRIORITY", &[Frame::priority(3, 1, 15)]),
    ]);
}

#[test]
fn frame_sizes_are_enforced() {
    let case = |what, frame: Frame| Case::frames(what, &[frame]).connection_error(code::FRAME_SIZE_ERROR);
    let long = |kind, stream| Frame::new(kind, stream, "").header_len(16_385);
    client_sends(vec![
        // §4.2: an error as soon as the header has arrived.
        case("§4.2: DATA above SETTINGS_MAX_FRAME_SIZE", long(kind::DATA, 1)),
        case("§4.2: HEADERS above it", long(kind::HEADERS, 3)),
        case("§4.2: SETTINGS above it", long(kind::SETTINGS, 0)),
        case("§4.2: CONTINUATION above it", long(kind::CONTINUATION, 3)),
        case("§4.2: an unknown type above it", long(0x16, 0)),
        case("§4.2: the longest there can be", Frame::data(1, "").header_len(0x00ff_ffff)),
        case("§4.2: padded DATA without the length of the padding", Frame::data(1, "").flag(flag::PADDED)),
        case("§4.2: HEADERS without the priority that they announce", {
            Frame::new(kind::HEADERS, 3, "\0\0\0\0").flag(flag::PRIORITY | END_HEADERS)
        }),
        case("§6.4: RST_STREAM of 3 bytes", Frame::new(kind::RST_STREAM, 1, "\0\0\0")),
        case("§6.4: RST_STREAM of 5 bytes", Frame::new(kind::RST_STREAM, 1, "\0\0\0\0\0")),
        case("§6.5: SETTINGS of 5 bytes", Frame::new(kind::SETTINGS, 0, "\0\x03\0\0\0")),
        case("§6.5: SETTINGS of 7 bytes", Frame::new(kind::SETTINGS, 0, "\0\x03\0\0\0\0\0")),
        case("§6.5: an acknowledgement with a payload", Frame::settings(&[(3, 1)]).flag(flag::ACK)),
        case("§6.7: PING of 7 bytes", Frame::ping("0123456")),
        case("§6.7: PING of 9 bytes", Frame::ping("012345678")),
        case("§6.7: an answer to PING of 9 bytes", Frame::ping("012345678").flag(flag::ACK)),
        case("§4.2: GOAWAY of 7 bytes", Frame::new(kind::GOAWAY, 0, "\0\0\0\0\0\0\0")),
        case("§6.9: WINDOW_UPDATE of 3 bytes", Frame::new(kind::WINDOW_UPDATE, 0, "\0\0\x01")),
        case(
            "§6.9: WINDOW_UPDATE of 5 bytes on a stream",
            Frame::new(kind::WINDOW_UPDATE, 1, "\0\0\0\x01\0"),
        ),
        case("RFC 9218 §7.1: PRIORITY_UPDATE of 3 bytes", Frame::new(kind::PRIORITY_UPDATE, 0, "\0\0\0")),
        // §6.3: a stream error.
        Case::frames(
            "§6.3: PRIORITY of 4 bytes",
            &[Frame::post(3), Frame::new(kind::PRIORITY, 3, "\0\0\0\x01")],
        )
        .stream_error(3, code::FRAME_SIZE_ERROR),
        Case::frames(
            "§6.3: PRIORITY of 6 bytes",
            &[Frame::post(3), Frame::new(kind::PRIORITY, 3, "\0\0\0\x01\0\0")],
        )
        .stream_error(3, code::FRAME_SIZE_ERROR),
        // §4.2: every endpoint accepts frames of 2^14 bytes.
        Case::frames("§4.2: DATA of 16,384 bytes", &[Frame::post(3), Frame::data(3, vec![b'd'; 16_384])]),
        Case::frames("§4.2: an unknown type of 16,384 bytes", &[Frame::new(0x16, 0, vec![0; 16_384])]),
    ]);
    server_sends(vec![
        case("§4.2: PUSH_PROMISE of 3 bytes", Frame::new(kind::PUSH_PROMISE, 1, "\0\0\0").flag(END_HEADERS)),
        case("§4.2: DATA above SETTINGS_MAX_FRAME_SIZE", long(kind::DATA, 1)),
    ]);
}

#[test]
fn padding_stays_within_its_frame() {
    let case = |what, frames: &[Frame]| Case::frames(what, frames).connection_error(code::PROTOCOL_ERROR);
    let no_room = Frame::get(3).depends_on(5);
    client_sends(vec![
        case("§6.1: padding as long as the payload", &[Frame::data(1, "").padded(1, 0)]),
        case("§6.1: padding longer than the payload", &[Frame::data(1, "hello").padded(6, 0)]),
        case("§6.2: padding longer than HEADERS", &[Frame::get(3).padded(255, 0)]),
        case(
            "§6.2: padding that reaches into the priority",
            &[{
                let len = no_room.payload.len() as u8;
                no_room.padded(len - 4, 0)
            }],
        ),
        Case::frames(
            "§6.1: padding up to the last byte",
            &[Frame::post(3), Frame::data(3, "").padded(255, 255)],
        ),
        Case::frames(
            "§6.1: a length of padding and nothing more",
            &[Frame::post(3), Frame::data(3, "").padded(0, 0)],
        ),
        Case::frames("§6.2: padded HEADERS", &[Frame::get(3).padded(9, 9)]),
        Case::frames("§6.2: padded HEADERS with priority", &[Frame::get(3).depends_on(1).padded(1, 1)]),
    ]);
}

#[test]
fn frames_belong_to_a_stream_or_to_the_connection() {
    let case = |what, frame: Frame| Case::frames(what, &[frame]).connection_error(code::PROTOCOL_ERROR);
    client_sends(vec![
        case("§6.1: DATA on stream 0", Frame::data(0, "x")),
        case("§6.2: HEADERS on stream 0", Frame::get(0)),
        case("§6.3: PRIORITY on stream 0", Frame::priority(0, 1, 1)),
        case("§6.4: RST_STREAM on stream 0", Frame::rst_stream(0, 8)),
        case("§6.5: SETTINGS on a stream", Frame { stream: 1, ..Frame::settings(&[]) }),
        case("§6.5: an acknowledgement on a stream", Frame { stream: 1, ..Frame::settings_ack() }),
        case("§6.7: PING on a stream", Frame { stream: 1, ..Frame::ping("01234567") }),
        case("§6.8: GOAWAY on a stream", Frame { stream: 1, ..Frame::goaway(0, 0, "") }),
        case("§6.10: CONTINUATION on stream 0", Frame::continuation(0, "").flag(END_HEADERS)),
        case(
            "RFC 9218 §7.1: PRIORITY_UPDATE on a stream",
            Frame { stream: 1, ..Frame::priority_update(3, "u=1") },
        ),
        case("RFC 9218 §7.1: PRIORITY_UPDATE of stream 0", Frame::priority_update(0, "u=1")),
        case("RFC 9218 §7.1: PRIORITY_UPDATE of an idle push stream", Frame::priority_update(2, "u=1")),
    ]);
    server_sends(vec![
        case("§6.6: PUSH_PROMISE on stream 0", Frame::push_promise(0, 2, &[])),
        case("RFC 9218 §7.1: PRIORITY_UPDATE from a server", Frame::priority_update(1, "u=1")),
        case("§6.8: GOAWAY on a stream", Frame { stream: 1, ..Frame::goaway(0, 0, "") }),
    ]);
}

#[test]
fn settings_are_validated_by_value() {
    let case = |what, entry, code| Case::frames(what, &[Frame::settings(&[entry])]).connection_error(code);
    let fine = |what, entry| Case::frames(what, &[Frame::settings(&[entry])]);
    client_sends(vec![
        case("§6.5.2: ENABLE_PUSH of 2", (2, 2), code::PROTOCOL_ERROR),
        case("§6.5.2: INITIAL_WINDOW_SIZE above 2^31-1", (4, 1 << 31), code::FLOW_CONTROL_ERROR),
        case("§6.5.2: MAX_FRAME_SIZE below 2^14", (5, 16_383), code::PROTOCOL_ERROR),
        case("§6.5.2: MAX_FRAME_SIZE above 2^24-1", (5, 1 << 24), code::PROTOCOL_ERROR),
        case("RFC 8441 §3: ENABLE_CONNECT_PROTOCOL of 2", (8, 2), code::PROTOCOL_ERROR),
        case("RFC 9218 §2.1: NO_RFC7540_PRIORITIES of 2", (9, 2), code::PROTOCOL_ERROR),
        case("RFC 9218 §2.1: NO_RFC7540_PRIORITIES changes", (9, 1), code::PROTOCOL_ERROR),
        fine("§6.5.2: INITIAL_WINDOW_SIZE of 2^31-1", (4, (1 << 31) - 1)),
        fine("§6.5.2: MAX_FRAME_SIZE of 2^24-1", (5, (1 << 24) - 1)),
        fine("§6.5.2: MAX_CONCURRENT_STREAMS of 0", (3, 0)),
        fine("§6.5.2: HEADER_TABLE_SIZE of 0", (1, 0)),
        fine("§6.5.2: HEADER_TABLE_SIZE of 2^32-1", (1, u32::MAX)),
    ]);
    server_sends(vec![
        case("§6.5.2: ENABLE_PUSH of 1 from a server", (2, 1), code::PROTOCOL_ERROR),
        fine("§6.5.2: ENABLE_PUSH of 0 from a server", (2, 0)),
        Case::frames(
            "RFC 8441 §3: ENABLE_CONNECT_PROTOCOL changes to 0",
            &[Frame::settings(&[(8, 1)]), Frame::settings(&[(8, 0)])],
        )
        .connection_error(code::PROTOCOL_ERROR),
    ]);
}

#[test]
fn window_updates_are_validated() {
    client_sends(vec![
        Case::frames("§6.9: an increment of 0 on a stream", &[Frame::post(3), Frame::window_update(3, 0)])
            .stream_error(3, code::PROTOCOL_ERROR),
        Case::frames("§6.9: an increment of 0 on the connection", &[Frame::window_update(0, 0)])
            .connection_error(code::PROTOCOL_ERROR),
        Case::frames(
            "§6.9.1: a stream's window above 2^31-1",
            &[Frame::post(3), Frame::window_update(3, 0x7fff_ffff)],
        )
        .stream_error(3, code::FLOW_CONTROL_ERROR),
        Case::frames("§6.9.1: the connection's window above 2^31-1", &[Frame::window_update(0, 0x7fff_ffff)])
            .connection_error(code::FLOW_CONTROL_ERROR),
        Case::frames(
            "§6.9.1: windows of 2^31-1",
            &[Frame::post(3), Frame::window_update(3, 0x7fff_0000), Frame::window_update(0, 0x7fff_0000)],
        ),
        Case::frames(
            "§6.9.2: SETTINGS take a stream's window above 2^31-1",
            &[Frame::post(3), Frame::window_update(3, 0x7fff_0000), Frame::settings(&[(4, 65_536)])],
        )
        .connection_error(code::FLOW_CONTROL_ERROR),
    ]);
}

#[test]
fn a_field_block_is_not_interrupted() {
    let begin = |fields| Frame::headers(3, fields).no_flag(END_HEADERS).end_stream();
    let fields = wireloom_testing::http2::GET;
    let (head, tail) = fields.split_at(2);
    let tail = || wireloom_testing::http2::block(tail);
    let case =
        |what, frame: Frame| Case::frames(what, &[begin(head), frame]).connection_error(code::PROTOCOL_ERROR);
    client_sends(vec![
        case("§6.2: DATA of the same stream", Frame::data(3, "x")),
        case("§6.2: HEADERS of another stream", Frame::get(5)),
        case("§6.2: HEADERS of the same stream", Frame::get(3)),
        case("§4.3: PING", Frame::ping("01234567")),
        case("§4.3: SETTINGS", Frame::settings(&[])),
        case("§4.3: WINDOW_UPDATE", Frame::window_update(0, 1)),
        case("§4.3: PRIORITY", Frame::priority(3, 0, 1)),
        case("§4.3: RST_STREAM", Frame::rst_stream(3, 8)),
        case("§5.5: a frame of unknown type", Frame::new(0x16, 0, "x")),
        case("§6.10: CONTINUATION of another stream", Frame::continuation(1, tail()).flag(END_HEADERS)),
        Case::frames("§6.10: CONTINUATION without HEADERS", &[Frame::continuation(3, "").flag(END_HEADERS)])
            .connection_error(code::PROTOCOL_ERROR),
        Case::frames(
            "§6.10: CONTINUATION after END_HEADERS",
            &[Frame::get(3), Frame::continuation(3, "").flag(END_HEADERS)],
        )
        .connection_error(code::PROTOCOL_ERROR),
        Case::frames(
            "§6.10: CONTINUATION after DATA",
            &[Frame::post(3), Frame::data(3, "x"), Frame::continuation(3, "").flag(END_HEADERS)],
        )
        .connection_error(code::PROTOCOL_ERROR),
        Case::frames(
            "§6.10: a block in three frames",
            &[
                begin(head),
                Frame::continuation(3, &tail()[..5]),
                Frame::continuation(3, &tail()[5..]).flag(END_HEADERS),
            ],
        )
        .request(3),
        Case::frames(
            "§6.10: a block of which HEADERS hold nothing",
            &[begin(&[]), Frame::continuation(3, wireloom_testing::http2::block(fields)).flag(END_HEADERS)],
        )
        .request(3),
    ]);
}

#[test]
fn a_field_block_that_cannot_be_decoded_ends_the_connection() {
    let case = |what, block: &[u8]| {
        Case::frames(what, &[Frame::new(kind::HEADERS, 3, block).flag(END_HEADERS)])
            .connection_error(code::COMPRESSION_ERROR)
    };
    client_sends(vec![
        case("§4.3, RFC 7541 §2.3.3: an index beyond the tables", b"\xff\xff\x0f"),
        case("§4.3, RFC 7541 §6.1: index 0", b"\x80"),
        case("§4.3, RFC 7541 §5.2: a literal that is cut off", b"\x00\x05ab"),
        case("§4.3, RFC 7541 §5.2: EOS in a Huffman string", b"\x00\x84\xff\xff\xff\xff\x01a"),
        case("§4.3, RFC 7541 §4.2: a size update behind a field", b"\x82\x20"),
        case("§4.3, RFC 7541 §6.3: a size update above the limit", b"\x3f\xe2\x1f"),
        case("§4.3, RFC 7541 §5.1: an integer that is too large", b"\xff\xff\xff\xff\xff\xff\xff\x0f"),
    ]);
}

#[test]
fn tables_stay_equal_when_a_stream_is_refused() {
    // RFC 9113 §4.3: the block of a stream that is refused or reset changes the table all the same. A malformed request
    // (§8.2.1) adds an entry to the table; the request after it refers to the entry.
    let get = wireloom_testing::http2::block(wireloom_testing::http2::GET);
    let indexed = [b"\x40", &literal(b"x-kept", b"yes")[1..]].concat();
    let malformed = [&get[..], &indexed, &literal(b"Upper", b"case")].concat();
    let refers = [&get[..], b"\xbe"].concat();
    let headers =
        |stream, block| Frame::new(kind::HEADERS, stream, block).flag(END_HEADERS | flag::END_STREAM);
    client_sends(vec![
        Case::frames(
            "§4.3: after a malformed request",
            &[headers(3, malformed.clone()), headers(5, refers.clone())],
        )
        .stream_error(3, code::PROTOCOL_ERROR)
        .request(5),
        Case::frames(
            "§4.3: after HEADERS on a stream that is half-closed",
            &[Frame::get(3), headers(3, indexed.clone()), headers(5, refers.clone())],
        )
        .stream_error(3, code::STREAM_CLOSED)
        .request(5),
        Case::frames(
            "§4.3: after HEADERS that depend on themselves",
            &[headers(3, [&get[..], &indexed].concat()).depends_on(3), headers(5, refers)],
        )
        .stream_error(3, code::PROTOCOL_ERROR)
        .request(5),
    ]);
}

#[test]
fn priority_frames_are_validated_and_ignored() {
    client_sends(vec![
        Case::frames("RFC 7540 §5.3.1: HEADERS that depend on themselves", &[Frame::get(3).depends_on(3)])
            .stream_error(3, code::PROTOCOL_ERROR),
        Case::frames(
            "RFC 7540 §5.3.1: PRIORITY that depends on itself",
            &[Frame::post(3), Frame::priority(3, 3, 1)],
        )
        .stream_error(3, code::PROTOCOL_ERROR),
        Case::frames("RFC 9113 §6.2: HEADERS with a priority", &[Frame::get(3).depends_on(0x8000_0001)])
            .request(3),
        Case::frames(
            "RFC 9218 §7.1: PRIORITY_UPDATE ahead of its stream",
            &[Frame::priority_update(3, "u=0, i"), Frame::get(3)],
        )
        .request(3),
        Case::frames(
            "RFC 9218 §7.1: PRIORITY_UPDATE that is no dictionary",
            &[Frame::priority_update(1, "\u{1}=")],
        ),
        Case::new(
            "RFC 9218 §7.1: PRIORITY_UPDATE of a stream that has ended",
            vec![Send(Frame::get(3)), Respond(3), Send(Frame::priority_update(3, "u=1"))],
        ),
    ]);
}

#[test]
fn incomplete_frames_are_not_handled() {
    // RFC 9113 §4.1: a payload is not checked before it has arrived.
    let frames = join(&[Frame::post(3), Frame::data(3, vec![b'x'; 100])]);
    client_sends(vec![
        Case::new("§4.1: DATA cut off", vec![Raw(frames[..frames.len() - 1].to_vec())]).unfinished(),
    ]);
}
