//! The MUSTs of RFC 9113 §5 and §8.4 on the wire: the frames that are allowed in each state of a stream.

use crate::wire::Step::{Request, Reset, Respond, Send};
use crate::wire::{Case, client_sends, server_sends};
use wireloom_testing::http2::{Frame, GET, code, flag};

const RESPONSE: &[(&str, &str)] = &[(":status", "200")];

#[test]
fn on_an_idle_stream() {
    let case = |what, frame: Frame| Case::frames(what, &[frame]).connection_error(code::PROTOCOL_ERROR);
    client_sends(vec![
        // §5.1: anything but HEADERS and PRIORITY on an idle stream is a connection error, PROTOCOL_ERROR.
        case("§5.1: DATA", Frame::data(3, "x")),
        case("§5.1, §6.4: RST_STREAM", Frame::rst_stream(3, code::CANCEL)),
        case("§5.1, §6.9: WINDOW_UPDATE", Frame::window_update(3, 1)),
        // An increment of 0 is an error of the stream, which must not be reset while it is idle (§6.4).
        case("§5.1, §6.9: WINDOW_UPDATE of 0", Frame::window_update(3, 0)),
        case("§5.1.1: WINDOW_UPDATE of 0 on a stream of the server", Frame::window_update(2, 0)),
        case("§5.1, §6.10: CONTINUATION", Frame::continuation(3, "").flag(flag::END_HEADERS)),
        case("§5.1.1: DATA on a stream of the server", Frame::data(2, "x")),
        case("§5.1.1: RST_STREAM on a stream of the server", Frame::rst_stream(2, code::CANCEL)),
        case("§5.1.1: WINDOW_UPDATE on a stream of the server", Frame::window_update(2, 1)),
        Case::frames("§5.1: PRIORITY", &[Frame::priority(3, 1, 1), Frame::priority(2, 1, 1)]),
    ]);
    server_sends(vec![
        case("§5.1: DATA", Frame::data(5, "x")),
        case("§5.1: HEADERS on a stream that the client has not opened", Frame::headers(5, RESPONSE)),
        case("§5.1.1: HEADERS on a stream that was not promised", Frame::headers(2, RESPONSE)),
        case("§5.1: DATA on a stream that was not promised", Frame::data(2, "x")),
        case("§5.1: RST_STREAM", Frame::rst_stream(5, code::CANCEL)),
        case("§5.1: WINDOW_UPDATE", Frame::window_update(5, 1)),
        case("§5.1: WINDOW_UPDATE of 0", Frame::window_update(5, 0)),
    ]);
}

#[test]
fn after_the_peer_ended_the_stream() {
    // §5.1 (half-closed (remote)): a stream error, STREAM_CLOSED, for all but WINDOW_UPDATE, PRIORITY and RST_STREAM.
    let case = |what, frame| Case::frames(what, &[Frame::get(3), frame]);
    client_sends(vec![
        case("§5.1: DATA", Frame::data(3, "x")).stream_error(3, code::STREAM_CLOSED),
        case("§5.1: empty DATA", Frame::data(3, "").end_stream()).stream_error(3, code::STREAM_CLOSED),
        case("§5.1: HEADERS", Frame::get(3)).stream_error(3, code::STREAM_CLOSED),
        case("§5.1: WINDOW_UPDATE", Frame::window_update(3, 1)).request(3),
        case("§5.1: PRIORITY", Frame::priority(3, 1, 1)).request(3),
        case("§5.1: RST_STREAM", Frame::rst_stream(3, code::CANCEL)).request(3),
    ]);
}

#[test]
fn after_both_ended_the_stream() {
    // §5.1 (closed): STREAM_CLOSED; WINDOW_UPDATE, PRIORITY and RST_STREAM may have been in flight.
    let case = |what, frame| Case::new(what, vec![Send(Frame::get(3)), Respond(3), Send(frame)]);
    client_sends(vec![
        case("§5.1: DATA", Frame::data(3, "x")).connection_error(code::STREAM_CLOSED),
        case("§5.1: HEADERS", Frame::get(3)).connection_error(code::STREAM_CLOSED),
        case("§5.1: WINDOW_UPDATE", Frame::window_update(3, 1)),
        case("§5.1: PRIORITY", Frame::priority(3, 1, 1)),
        case("§5.1: RST_STREAM", Frame::rst_stream(3, code::CANCEL)),
    ]);
}

#[test]
fn after_the_peer_reset_the_stream() {
    let case = |what, frame| Case::frames(what, &[Frame::post(3), Frame::rst_stream(3, code::CANCEL), frame]);
    client_sends(vec![
        // §5.1 (closed), §5.4.2: STREAM_CLOSED, a stream error.
        case("§5.1: DATA", Frame::data(3, "x")).stream_error(3, code::STREAM_CLOSED),
        case("§5.1: HEADERS", Frame::post(3)).stream_error(3, code::STREAM_CLOSED),
        // §5.4.2: RST_STREAM is not answered with RST_STREAM.
        case("§5.4.2: RST_STREAM", Frame::rst_stream(3, code::CANCEL)),
        case("§5.1: PRIORITY", Frame::priority(3, 1, 1)),
        case("§5.1: WINDOW_UPDATE", Frame::window_update(3, 1)),
    ]);
}

#[test]
fn after_this_side_reset_the_stream() {
    // §5.1, §5.4.2: frames in flight MUST be ignored.
    let case = |what, frame: Frame| {
        Case::new(what, vec![Send(Frame::post(3)), Reset(3), Send(frame)]).stream_error(3, code::CANCEL)
    };
    client_sends(vec![
        case("§5.1: DATA", Frame::data(3, "x")),
        case("§5.1: DATA that end the stream", Frame::data(3, "x").end_stream()),
        case("§5.1: trailers", Frame::headers(3, &[("a", "b")]).end_stream()),
        case("§5.1: RST_STREAM", Frame::rst_stream(3, code::CANCEL)),
        case("§5.1: WINDOW_UPDATE", Frame::window_update(3, 1)),
    ]);
    server_sends(vec![
        Case::new(
            "§5.1: a response",
            vec![
                Request(3),
                Reset(3),
                Send(Frame::headers(3, RESPONSE)),
                Send(Frame::data(3, "x").end_stream()),
            ],
        )
        .stream_error(3, code::CANCEL),
    ]);
}

#[test]
fn identifiers_belong_to_one_side_and_increase() {
    let case = |what, frames: &[Frame]| Case::frames(what, frames).connection_error(code::PROTOCOL_ERROR);
    client_sends(vec![
        case("§5.1.1: HEADERS on an even stream", &[Frame::get(2)]),
        case("§5.1.1: a stream below one that was opened", &[Frame::get(7), Frame::get(5)]),
        case("§8.4: PUSH_PROMISE from a client", &[Frame::push_promise(1, 2, GET)]),
        Case::frames("§5.1.1: identifiers may be left out", &[Frame::get(9), Frame::get(101)])
            .request(9)
            .request(101),
        Case::frames("§5.1.1: the last identifier there is", &[Frame::get(0x7fff_ffff)]).request(0x7fff_ffff),
    ]);
}

#[test]
fn concurrent_streams_are_limited() {
    // §5.1.2: streams above SETTINGS_MAX_CONCURRENT_STREAMS are refused, and one that has ended makes room. The stream that each case
    // opens beforehand counts as well.
    let limit = crate::wire::MAX_CONCURRENT_STREAMS;
    let open = |n: u32| (1..n).map(|n| Frame::post(2 * n + 1)).collect::<Vec<_>>();
    let id = |n: u32| 2 * n - 1;
    let mut at_the_bound = Case::frames("§5.1.2: as many as allowed", &open(limit));
    for n in 2..=limit {
        at_the_bound = at_the_bound.request(id(n));
    }
    let above =
        Case::frames("§5.1.2: one more", &open(limit + 1)).stream_error(id(limit + 1), code::REFUSED_STREAM);
    let mut frames = open(limit);
    frames.push(Frame::rst_stream(3, code::CANCEL));
    frames.push(Frame::get(id(limit + 1)));
    let after = Case::frames("§5.1.2: one more after one has ended", &frames).request(id(limit + 1));
    client_sends(vec![at_the_bound, above, after]);
}

#[test]
fn push_is_refused_unless_it_was_allowed() {
    server_sends(vec![
        Case::frames("§6.6, §8.4: PUSH_PROMISE although it is disabled", &[Frame::push_promise(1, 2, GET)])
            .connection_error(code::PROTOCOL_ERROR),
        Case::frames("§5.1.1: PUSH_PROMISE of an odd stream", &[Frame::push_promise(1, 7, GET)])
            .connection_error(code::PROTOCOL_ERROR),
        Case::frames("§5.1.1: PUSH_PROMISE of stream 0", &[Frame::push_promise(1, 0, GET)])
            .connection_error(code::PROTOCOL_ERROR),
    ]);
}

#[test]
fn the_last_stream_id_of_goaway_never_increases() {
    server_sends(vec![
        Case::frames("§6.8: the last stream increases", &[Frame::goaway(1, 0, ""), Frame::goaway(3, 0, "")])
            .connection_error(code::PROTOCOL_ERROR),
        Case::frames(
            "§6.8: GOAWAY in two steps",
            &[Frame::goaway(0x7fff_ffff, 0, ""), Frame::goaway(1, 0, "")],
        )
        .unfinished(),
    ]);
}
