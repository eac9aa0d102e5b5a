//! Protection against hostile peers that violate no rule (RFC 9113 §10.5): each limit is tested one below, at it and one above, and
//! with legitimate bursts.

use crate::wire::Step::{Send, Wait};
use crate::wire::{Case, End, MAX_CONCURRENT_STREAMS, Step, client_sends, server_sends};
use wireloom_http2::error::{Error, Misuse};
use wireloom_http2::field::{Field, Token};
use wireloom_http2::limits::Rate;
use wireloom_http2::{Config, Connection, Event, Limits, Role};
use wireloom_testing::http2::{Frame, GET, POST, PREFACE, block, code, flag, join, kind, literal};

use std::time::Duration;

const LIMITS: Limits = Limits::DEFAULT;

/// Repeats frames up to the limit, which has no effect, and once more, which ends the connection.
fn flood(what: &'static str, bound: u32, once: impl Fn(u32) -> Vec<Frame>) -> Vec<Case> {
    let case = |count: u32| Case::frames(what, &(0..count).flat_map(&once).collect::<Vec<_>>());
    let calm = |case: Case| case.connection_error(code::ENHANCE_YOUR_CALM);
    vec![case(bound - 1).whole(), case(bound).whole(), calm(case(bound + 1).whole())]
}

#[test]
fn pings() {
    // The PING that checks afterwards whether the connection is alive counts as well.
    let burst = LIMITS.pings.burst() as usize;
    let case = |count| Case::frames("CVE-2019-9512", &vec![Frame::ping("01234567"); count]).whole();
    let cases = || {
        vec![
            case(burst - 1),
            case(burst).unfinished(),
            case(burst + 1).connection_error(code::ENHANCE_YOUR_CALM),
        ]
    };
    client_sends(cases());
    server_sends(cases());
}

#[test]
fn empty_frames_on_a_stream_that_was_reset_here() {
    // Frames in flight are ignored (RFC 9113 §5.4.2), but a flood of empty ones is limited.
    let case = |frame: &Frame, count: u32| {
        let mut steps = vec![Send(Frame::post(3)), Step::Reset(3)];
        steps.extend((0..count).map(|_| Send(frame.clone())));
        Case::new("CVE-2019-9518", steps).whole().stream_error(3, code::CANCEL)
    };
    let bound = LIMITS.empty_frames.burst();
    let empty = Frame::data(3, "");
    client_sends(vec![
        case(&empty, bound),
        case(&empty, bound + 1).connection_error(code::ENHANCE_YOUR_CALM),
        case(&Frame::data(3, "d"), bound + 1),
        case(&empty.clone().end_stream(), bound + 1),
    ]);
}

#[test]
fn settings() {
    // The SETTINGS of the preface count.
    client_sends(flood("CVE-2019-9515", LIMITS.settings.burst() - 1, |_| vec![Frame::settings(&[])]));
    let entries = |count: usize| vec![Frame::settings(&vec![(7, 7); count])];
    let bound = LIMITS.settings_entries_max;
    client_sends(vec![
        Case::frames("CVE-2020-11080: one below the bound", &entries(bound - 1)),
        Case::frames("CVE-2020-11080: at the bound", &entries(bound)),
        Case::frames("CVE-2020-11080: one above the bound", &entries(bound + 1))
            .connection_error(code::ENHANCE_YOUR_CALM),
    ]);
}

#[test]
fn rapid_reset() {
    let once = |n| vec![Frame::get(2 * n + 3), Frame::rst_stream(2 * n + 3, code::CANCEL)];
    client_sends(flood("CVE-2023-44487", LIMITS.peer_resets.burst(), once));
}

#[test]
fn made_you_reset() {
    // CVE-2025-8671: the peer violates a rule, and this side resets the stream.
    let bound = LIMITS.stream_errors.burst();
    let case = |count| {
        let once = |n| [Frame::get(2 * n + 3), Frame::window_update(2 * n + 3, 0)];
        let mut case = Case::frames("CVE-2025-8671", &(0..count).flat_map(once).collect::<Vec<_>>()).whole();
        for n in 0..count.min(bound) {
            case = case.stream_error(2 * n + 3, code::PROTOCOL_ERROR);
        }
        case
    };
    client_sends(vec![
        case(bound - 1),
        case(bound),
        case(bound + 1).connection_error(code::ENHANCE_YOUR_CALM),
    ]);
}

#[test]
fn empty_frames() {
    let data = |_| vec![Frame::data(1, "")];
    client_sends(flood("CVE-2019-9518: DATA", LIMITS.empty_frames.burst(), data));
    let padding = |_| vec![Frame::data(1, "").padded(0, 0)];
    client_sends(flood("CVE-2019-9518: DATA that are padding", LIMITS.empty_frames.burst(), padding));
}

#[test]
fn tiny_data() {
    // CVE-2019-9511: frames with more header than content. The default limit is a million, so a lower one is tested. The first such
    // frame of a stream, frames of 64 bytes and the content of tunnels are not counted.
    let run = |len: usize, count: usize, tunnel: bool| {
        let mut config = Config::new(Role::Server);
        config.settings.enable_connect_protocol = true;
        config.limits.tiny_data = Rate::new(100, 1);
        let mut end = End::with(Role::Server, config);
        let connect = &[(":method", "CONNECT"), (":authority", "example.org:443")];
        let request = if tunnel { Frame::headers(1, connect) } else { Frame::post(1) };
        let mut frames = vec![Frame::settings(&[]), Frame::settings_ack(), request];
        frames.extend(vec![Frame::data(1, vec![b'd'; len]); count]);
        end.receive(&[PREFACE, &join(&frames)].concat());
        end.has_failed()
    };
    for (len, count, tunnel, fails) in [
        (1, 100, false, false),
        (1, 101, false, false),
        (1, 102, false, true),
        (63, 102, false, true),
        (64, 102, false, false),
        (1, 1_000, true, false),
    ] {
        assert_eq!(run(len, count, tunnel), fails, "{count} of {len} bytes, tunnel: {tunnel}");
    }
}

#[test]
fn priorities() {
    client_sends(flood("CVE-2019-9513: PRIORITY", LIMITS.priorities.burst(), |_| {
        vec![Frame::priority(1, 0, 1)]
    }));
    client_sends(flood("CVE-2019-9513: PRIORITY_UPDATE", LIMITS.priorities.burst(), |_| {
        vec![Frame::priority_update(1, "u=1")]
    }));
}

#[test]
fn window_updates() {
    client_sends(flood("RFC 9113 §10.5", LIMITS.window_updates.burst(), |_| {
        vec![Frame::window_update(0, 1)]
    }));
    client_sends(flood("RFC 9113 §10.5", LIMITS.window_updates.burst(), |_| {
        vec![Frame::window_update(1, 1)]
    }));
}

#[test]
fn unknown_frames() {
    client_sends(flood("RFC 9113 §10.5", LIMITS.unknown_frames.burst(), |_| vec![Frame::new(0x42, 0, "x")]));
    server_sends(flood("RFC 9113 §10.5", LIMITS.unknown_frames.burst(), |_| vec![Frame::new(0x42, 1, "x")]));
}

#[test]
fn continuations() {
    // VU#421644
    let bound = LIMITS.continuations_max;
    let case = |count: usize, fragment: &[u8]| {
        let mut frames = vec![Frame::new(kind::HEADERS, 3, block(GET)).end_stream()];
        frames.extend((0..count).map(|_| Frame::continuation(3, fragment)));
        if let Some(last) = frames.last_mut() {
            last.flags |= flag::END_HEADERS;
        }
        Case::frames("VU#421644", &frames)
    };
    for fragment in [&b""[..], &literal(b"a", b"b")] {
        client_sends(vec![
            case(bound - 1, fragment).request(3),
            case(bound, fragment).request(3),
            case(bound + 1, fragment).connection_error(code::ENHANCE_YOUR_CALM),
        ]);
    }
}

#[test]
fn field_blocks() {
    // A block of one field of a given length, in frames of 16,384 bytes. Above the announced list size it is a stream error, and above
    // the limit of the block a connection error.
    let case = |len: usize| {
        let mut fields = block(GET);
        let value_len = len - fields.len() - literal(b"a", &[b'v'; 100_000]).len() + 100_000;
        fields.extend(literal(b"a", &vec![b'v'; value_len]));
        assert_eq!(fields.len(), len);
        let mut frames: Vec<Frame> =
            fields.chunks(16_384).map(|chunk| Frame::continuation(3, chunk)).collect();
        frames[0].kind = kind::HEADERS;
        frames[0].flags |= flag::END_STREAM;
        if let Some(last) = frames.last_mut() {
            last.flags |= flag::END_HEADERS;
        }
        Case::frames("RFC 9113 §10.5.1", &frames)
    };
    let bound = LIMITS.field_block_len_max;
    client_sends(vec![
        case(bound - 1).answer(3, 431),
        case(bound).answer(3, 431),
        case(bound + 1).connection_error(code::ENHANCE_YOUR_CALM),
    ]);
}

#[test]
fn bombs() {
    // CVE-2016-6581: an entry of 3 KiB in the table, and one byte for each reference to it.
    let case = |references: usize| {
        let entry = [b"\x40", &literal(b"a", &[b'v'; 3_000])[1..]].concat();
        let fields = [block(GET), entry, vec![0xbe; references]].concat();
        Case::frames(
            "CVE-2016-6581",
            &[Frame::new(kind::HEADERS, 3, fields).flag(flag::END_HEADERS).end_stream()],
        )
    };
    client_sends(vec![
        case(10).request(3),
        case(25).answer(3, 431),
        case(10_000).connection_error(code::ENHANCE_YOUR_CALM),
    ]);
}

#[test]
fn many_fields() {
    // CVE-2019-9516: many small fields.
    let case = |count: usize| {
        let fields = [block(GET), literal(b"a", b"").repeat(count - GET.len())].concat();
        Case::frames(
            "CVE-2019-9516",
            &[Frame::new(kind::HEADERS, 3, fields).flag(flag::END_HEADERS).end_stream()],
        )
    };
    let bound = LIMITS.fields_max;
    client_sends(vec![case(bound - 1).request(3), case(bound).request(3), case(bound + 1).answer(3, 431)]);
}

// RFC 9113 §10.5.1: a stream error. The table has all fields of the list.
#[test]
fn a_list_that_is_too_large_is_answered_with_431() {
    let large = vec![b'v'; Config::new(Role::Server).settings.max_header_list_size as usize];
    // A field that enters the table after one that is too large, and a request that refers to it.
    let first = [block(GET), literal(b"a", &large), [b"\x40", &literal(b"b", b"c")[1..]].concat()].concat();
    let chunks = |end: bool| {
        let mut frames: Vec<Frame> =
            first.chunks(16_384).map(|chunk| Frame::continuation(3, chunk)).collect();
        frames[0].kind = kind::HEADERS;
        frames[0].flags |= if end { flag::END_STREAM } else { 0 };
        if let Some(last) = frames.last_mut() {
            last.flags |= flag::END_HEADERS;
        }
        frames
    };
    let second = Frame::new(kind::HEADERS, 5, [block(GET), vec![0xbe]].concat());
    let second = second.flag(flag::END_HEADERS).end_stream();
    let what = "RFC 9113 §10.5.1";
    let late = [Frame::data(3, "under way").end_stream(), Frame::window_update(3, 1)];
    client_sends(vec![
        Case::frames(what, &[chunks(true), vec![second.clone()]].concat()).answer(3, 431).request(5),
        // The rest of the request is ignored.
        Case::frames(what, &[chunks(false), late.to_vec(), vec![second.clone()]].concat())
            .answer(3, 431)
            .stream_error(3, code::NO_ERROR)
            .request(5),
        // RST_STREAM is sent if the peer does not accept the response.
        Case::frames(what, &[vec![Frame::settings(&[(6, 41)])], chunks(true), vec![second]].concat())
            .stream_error(3, code::ENHANCE_YOUR_CALM)
            .request(5),
    ]);
}

// CVE-2025-8671: frames that cause an answer are counted.
#[test]
fn lists_that_are_too_large() {
    let list = [block(GET), literal(b"a", b"").repeat(LIMITS.fields_max)].concat();
    let once = |n: u32| {
        let frame = Frame::new(kind::HEADERS, 2 * n + 3, list.clone());
        vec![frame.flag(flag::END_HEADERS).end_stream()]
    };
    let bound = LIMITS.stream_errors.burst();
    let case =
        |count: u32| Case::new("CVE-2025-8671", (0..count).flat_map(&once).map(Send).collect()).whole();
    let answered = (0..bound).fold(case(bound), |case, n| case.answer(2 * n + 3, 431));
    let failed = (0..bound).fold(case(bound + 1), |case, n| case.answer(2 * n + 3, 431));
    client_sends(vec![answered, failed.connection_error(code::ENHANCE_YOUR_CALM)]);
}

#[test]
fn interim_responses() {
    let once = |_| vec![Frame::headers(1, &[(":status", "103")])];
    server_sends(flood("RFC 9110 §15.2", LIMITS.interim_responses.burst(), once));
}

#[test]
fn repeated_bursts_within_the_limits_are_accepted() {
    // A burst up to the limit, a pause, and another burst: there are no totals over the lifetime of a connection.
    let bursts = |once: &dyn Fn(u32) -> Vec<Frame>, burst: u32| -> Vec<Step> {
        let mut steps = Vec::new();
        for round in 0..3 {
            steps.extend((0..burst).flat_map(|n| once(round * burst + n)).map(Send));
            steps.push(Wait(Duration::from_secs(60)));
        }
        steps
    };
    client_sends(vec![
        Case::new("PING", bursts(&|_| vec![Frame::ping("01234567")], 1_000)).whole(),
        Case::new("SETTINGS", bursts(&|_| vec![Frame::settings(&[])], 90)).whole(),
        Case::new(
            "requests that are cancelled",
            bursts(&|n| vec![Frame::get(2 * n + 3), Frame::rst_stream(2 * n + 3, code::CANCEL)], 1_000),
        )
        .whole(),
        Case::new("WINDOW_UPDATE", bursts(&|_| vec![Frame::window_update(0, 1)], 9_000)).whole(),
    ]);
}

/// The preface and the first frames of a client.
fn hello() -> Vec<u8> {
    [PREFACE, &join(&[Frame::settings(&[]), Frame::settings_ack()])].concat()
}

#[test]
fn data_on_a_stream_that_was_reset_is_ignored_however_late_it_is_read() {
    // The stream's window, not the time, bounds the frames that the peer may have sent before it read RST_STREAM.
    const WINDOW: usize = 65_535;
    let late = |frame_len: usize, frames: usize, wait: Duration| {
        let mut config = Config::new(Role::Server);
        config.settings.initial_window_size = WINDOW as u32;
        config.limits.unknown_frames = Rate::new(10, 1);
        let mut end = End::with(Role::Server, config);
        end.receive(&[hello(), Frame::post(1).to_bytes()].concat());
        end.reset(1);
        end.wait(wait);
        end.receive(&join(&vec![Frame::data(1, vec![b'd'; frame_len]); frames]));
        end.has_failed()
    };
    for wait in [Duration::ZERO, Duration::from_millis(1_500), Duration::from_secs(10)] {
        for frame_len in [64, 150, 4_096, 16_384] {
            let frames = WINDOW / frame_len;
            assert!(!late(frame_len, frames, wait), "{frames} frames of {frame_len} after {wait:?}");
            // Beyond the window each frame counts.
            assert!(!late(frame_len, frames + 10, wait), "{frame_len} after {wait:?}");
            assert!(late(frame_len, frames + 11, wait), "{frame_len} after {wait:?}");
        }
    }
}

#[test]
fn a_tunnel_that_was_reset_does_not_end_the_others() {
    // Tunnels have small messages, which are not limited while they are open.
    let mut config = Config::new(Role::Server);
    config.settings.enable_connect_protocol = true;
    config.limits.unknown_frames = Rate::new(10, 1);
    config.limits.tiny_data = Rate::new(10, 1);
    let mut end = End::with(Role::Server, config);
    let connect = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":authority", "example.org"),
        (":path", "/"),
    ];
    let tunnel = |stream| Frame::headers(stream, &connect);
    end.receive(&[hello(), join(&[tunnel(1), tunnel(3)])].concat());
    end.reset(1);
    end.wait(Duration::from_secs(10));
    end.receive(&join(&vec![Frame::data(1, "a message"); 10_000]));
    assert!(!end.has_failed());
    end.receive(&Frame::data(3, "the end").end_stream().to_bytes());
    assert!(end.ended().contains(&3));
}

#[test]
fn late_resets() {
    let fails = |streams: u32, resets_each: usize| {
        let mut config = Config::new(Role::Server);
        config.limits.late_resets = Rate::new(10, 1);
        let mut end = End::with(Role::Server, config);
        end.receive(&hello());
        for stream in (0..streams).map(|n| 2 * n + 1) {
            end.receive(&Frame::post(stream).to_bytes());
            end.reset(stream);
            end.receive(&join(&vec![Frame::rst_stream(stream, code::CANCEL); resets_each]));
        }
        end.has_failed()
    };
    // Both ends reset a stream at the same time: the peer's RST_STREAM is not counted, once for each stream.
    assert!(!fails(100, 1));
    assert!(!fails(1, 1 + 10));
    assert!(fails(1, 1 + 11));
}

#[test]
fn remembered_resets() {
    // The oldest is forgotten above the limit: how much may still arrive on it is not known, so that it is counted by its size.
    let fails = |resets: u32| {
        let mut config = Config::new(Role::Server);
        config.limits.resets_remembered_max = 4;
        config.limits.tiny_data = Rate::new(2, 1);
        let mut end = End::with(Role::Server, config);
        end.receive(&hello());
        for stream in (0..resets).map(|n| 2 * n + 1) {
            end.receive(&Frame::post(stream).to_bytes());
            end.reset(stream);
        }
        end.receive(&join(&vec![Frame::data(1, vec![b'd'; Limits::TINY_DATA_LEN]); 3]));
        end.has_failed()
    };
    assert_eq!([3, 4, 5].map(fails), [false, false, true]);
}

#[test]
fn resets_are_remembered_while_the_connection_is_idle() {
    // A driver calls `shrink` after a few quiet seconds. A slow client may send the end of a request later.
    let late = [Frame::data(1, "late"), Frame::headers(1, &[("a", "b")]).end_stream()];
    for frame in late {
        let mut end = End::with(Role::Server, Config::new(Role::Server));
        end.receive(&[hello(), Frame::post(1).to_bytes()].concat());
        end.reset(1);
        end.wait(Duration::from_secs(60));
        end.connection.shrink();
        let before = end.sent().len();
        end.receive(&frame.to_bytes());
        assert!(!end.has_failed(), "{frame:?}");
        assert_eq!(end.sent().len(), before, "{frame:?}");
        end.receive(&Frame::get(3).to_bytes());
        assert_eq!(end.requests(), [1, 3]);
    }
}

#[test]
fn frames_after_a_reset_of_the_peer_are_answered_once() {
    // RFC 9113 §5.1 (closed), §5.4.2: with a stream error, and RST_STREAM is sent once for each stream.
    let mut config = Config::new(Role::Server);
    config.limits.stream_errors = Rate::new(1, 1);
    let mut end = End::with(Role::Server, config);
    end.receive(&[hello(), join(&[Frame::post(1), Frame::rst_stream(1, code::CANCEL)])].concat());
    end.receive(&join(&vec![Frame::data(1, "late"); 100]));
    assert!(!end.has_failed());
    let resets = |frame: &&Frame| frame.kind == kind::RST_STREAM && frame.stream == 1;
    let codes = end.sent().iter().filter(resets).map(|frame| frame.word(0)).collect::<Vec<_>>();
    assert_eq!(codes, [code::STREAM_CLOSED]);
}

#[test]
fn tiny_frames_on_a_stream_that_was_reset() {
    // They may have been in flight, but not without an end: each costs as much as on an open stream (CVE-2019-9511).
    let floods = [
        Frame::data(1, "x"),
        Frame::data(1, "x").end_stream(),
        Frame::data(1, "").end_stream(),
        Frame::window_update(1, 1),
    ];
    for frame in floods {
        for (count, fails) in [(9, false), (10, false), (11, true)] {
            let mut config = Config::new(Role::Server);
            config.limits.tiny_data = Rate::new(10, 1);
            let mut end = End::with(Role::Server, config);
            let opening = [Frame::settings(&[]), Frame::settings_ack(), Frame::post(1)];
            end.receive(&[PREFACE, &join(&opening)].concat());
            end.reset(1);
            end.receive(&join(&vec![frame.clone(); count]));
            assert_eq!(end.has_failed(), fails, "{count} of {frame:?}");
        }
    }
    // Frames with content are not limited: the window of the connection is.
    let mut config = Config::new(Role::Server);
    config.limits.tiny_data = Rate::new(10, 1);
    let mut end = End::with(Role::Server, config);
    end.receive(&[PREFACE, &join(&[Frame::settings(&[]), Frame::settings_ack(), Frame::post(1)])].concat());
    end.reset(1);
    end.receive(&join(&vec![Frame::data(1, vec![b'd'; 64]); 100]));
    assert!(!end.has_failed());
}

/// HEADERS whose few bytes refer 16 times to a field of 4 KB, once `indexed` was sent.
fn bomb(stream: u32) -> Frame {
    Frame::new(kind::HEADERS, stream, vec![0xbe; 16]).flag(flag::END_HEADERS)
}

#[test]
fn headers_on_a_stream_that_was_reset() {
    // CVE-2025-8671: an interim response, a response and trailers may have been in flight. They cost as much as their fields.
    let survives = |frame: &Frame| {
        let mut config = Config::new(Role::Server);
        config.limits.tiny_data = Rate::new(10_000, 1);
        let mut end = End::with(Role::Server, config);
        let large = [b"\x40", &literal(b"x", &[b'v'; 4_000])[1..]].concat();
        let request = Frame::new(kind::HEADERS, 1, [block(POST), large].concat()).flag(flag::END_HEADERS);
        end.receive(&[hello(), request.to_bytes()].concat());
        end.reset(1);
        (0..20_000)
            .take_while(|_| {
                end.receive(&frame.to_bytes());
                !end.has_failed()
            })
            .count()
    };
    let bombs = 10_000 / (16 * (1 + 4_000 + 32_usize)).div_ceil(Limits::TINY_DATA_LEN);
    let frames = [bomb(1), bomb(1).end_stream(), Frame::headers(1, &[(":status", "200")])];
    assert_eq!(frames.map(|frame| survives(&frame)), [bombs, bombs, 10_000]);
}

#[test]
fn responses_to_many_cancelled_requests() {
    // They were in flight: a client may cancel all of its requests at once, more than it remembers.
    let mut config = Config::new(Role::Client);
    config.limits.stream_errors = Rate::new(1, 1);
    let mut end = End::with(Role::Client, config);
    end.receive(&join(&[Frame::settings(&[]), Frame::settings_ack()]));
    let streams: Vec<_> = (0..3_000).map(|_| end.request()).collect();
    assert!(streams.len() > 2 * LIMITS.resets_remembered_max);
    streams.iter().for_each(|&stream| end.reset(stream));
    let before = end.sent().len();
    for stream in streams {
        end.receive(&join(&[
            Frame::headers(stream, &[(":status", "103")]),
            Frame::headers(stream, &[(":status", "200")]),
            Frame::data(stream, "late"),
            Frame::headers(stream, &[("a", "b")]).end_stream(),
        ]));
    }
    assert!(!end.has_failed());
    assert!(end.sent()[before..].iter().all(|frame| frame.kind == kind::WINDOW_UPDATE && frame.stream == 0));
}

#[test]
fn content_of_many_requests_that_were_reset() {
    // As above: a server may reset all streams that a client holds open.
    let mut config = Config::new(Role::Server);
    config.settings.max_concurrent_streams = 3_000;
    config.limits.stream_errors = Rate::new(1, 1);
    let mut end = End::with(Role::Server, config);
    end.receive(&hello());
    let streams: Vec<_> = (0..3_000).map(|n| 2 * n + 1).collect();
    assert!(streams.len() > 2 * LIMITS.resets_remembered_max);
    streams.iter().for_each(|&stream| end.receive(&Frame::post(stream).to_bytes()));
    streams.iter().for_each(|&stream| end.reset(stream));
    let before = end.sent().len();
    for stream in streams {
        let trailers = Frame::headers(stream, &[("a", "b")]).end_stream();
        end.receive(&join(&[Frame::data(stream, "late"), trailers]));
    }
    assert!(!end.has_failed());
    assert!(end.sent()[before..].iter().all(|frame| frame.kind == kind::WINDOW_UPDATE && frame.stream == 0));
    // RFC 9113 §5.1.1: a stream that was passed over is still an error.
    end.receive(&join(&[Frame::get(8_001), Frame::get(7_001)]));
    assert!(end.has_failed());
}

#[test]
fn requests_above_goaway_are_not_forgotten() {
    let mut config = Config::new(Role::Server);
    config.limits.resets_remembered_max = 2;
    let mut end = End::with(Role::Server, config);
    end.receive(&[hello(), Frame::post(1).to_bytes()].concat());
    shut_down(&mut end);
    let late = (1..10).map(|n| 2 * n + 1);
    late.clone().for_each(|stream| end.receive(&Frame::post(stream).to_bytes()));
    let before = end.sent().len();
    for stream in late {
        let trailers = Frame::headers(stream, &[("a", "b")]).end_stream();
        end.receive(&join(&[Frame::data(stream, "late"), trailers]));
    }
    assert!(!end.has_failed());
    assert_eq!(end.sent().len(), before);
}

/// Begins a shutdown. The peer acknowledges its PING.
fn shut_down(end: &mut End) {
    end.connection.shutdown();
    end.drain();
    let ping = end.sent().into_iter().rfind(|frame| frame.kind == kind::PING).unwrap();
    end.receive(&ping.flag(flag::ACK).to_bytes());
}

#[test]
fn streams_above_the_last_one_of_goaway() {
    // Ignored frames are counted: each block is decoded, and an empty frame costs more than it carries (CVE-2019-9518).
    const BURST: u32 = 10;
    let survives = |role: Role, frame: &dyn Fn(u32) -> Frame| {
        let mut config = Config::new(role);
        config.settings.enable_push = true;
        config.limits.stream_errors = Rate::new(BURST, 1);
        config.limits.tiny_data = Rate::new(BURST, 1);
        let mut end = End::with(role, config);
        match role {
            Role::Server => end.receive(&[hello(), Frame::post(1).to_bytes()].concat()),
            Role::Client => {
                end.receive(&join(&[Frame::settings(&[]), Frame::settings_ack()]));
                assert_eq!(end.request(), 1);
            }
        }
        shut_down(&mut end);
        (0..1_000)
            .take_while(|&n| {
                end.receive(&frame(n).to_bytes());
                !end.has_failed()
            })
            .count()
    };
    let burst = BURST as usize;
    assert_eq!(survives(Role::Server, &|n| Frame::get(2 * n + 3)), burst);
    assert_eq!(survives(Role::Client, &|n| Frame::push_promise(1, 2 * n + 2, GET)), burst);
    let request_and = |frame: Frame| move |n| if n == 0 { Frame::post(3) } else { frame.clone() };
    // The request, and as much as its content and its trailers have.
    assert_eq!(survives(Role::Server, &request_and(Frame::headers(3, &[("a", "b")]))), 1 + burst);
    assert_eq!(survives(Role::Server, &request_and(Frame::data(3, ""))), 1 + burst);
    let long = "d".repeat(5 * Limits::TINY_DATA_LEN);
    assert_eq!(survives(Role::Server, &request_and(Frame::data(3, long))), 1 + burst / 5);
}

#[test]
fn unacknowledged_pings_of_the_caller() {
    let mut config = Config::new(Role::Server);
    config.limits.pings_unacknowledged_max = 3;
    let mut end = End::with(Role::Server, config);
    end.receive(&[PREFACE, &join(&[Frame::settings(&[]), Frame::settings_ack()])].concat());
    let ping = |end: &mut End, number| end.connection.send_ping(Duration::ZERO, [number; 8]);
    for number in 0..3 {
        ping(&mut end, number).unwrap();
    }
    let refused = Err(Error::Misuse(Misuse::PingsUnacknowledged));
    assert_eq!(ping(&mut end, 3), refused);
    end.drain();
    assert_eq!(end.sent().iter().filter(|frame| frame.kind == kind::PING).count(), 3);
    // Each acknowledgement makes room, in any order, and none counts as a flood.
    let charged = config.limits.unknown_frames.burst() as usize;
    for number in [1, 0, 2].into_iter().cycle().take(2 * charged) {
        let answer = Frame::ping([number; 8]).flag(flag::ACK).to_bytes();
        let (_, event) = end.connection.handle_input(Duration::ZERO, &answer).unwrap();
        assert!(matches!(event, Some(Event::Pong { .. })), "{event:?}");
        ping(&mut end, number).unwrap();
        assert_eq!(ping(&mut end, 3), refused);
        end.drain();
    }
}

#[test]
fn unacknowledged_settings() {
    let mut config = Config::new(Role::Server);
    config.limits.settings_unacknowledged_max = 3;
    let mut end = End::with(Role::Server, config);
    end.receive(&[PREFACE, &Frame::settings(&[]).to_bytes()].concat());
    let mut settings = config.settings;
    let mut change = |end: &mut End| {
        settings.max_concurrent_streams += 1;
        end.connection.update_settings(settings)
    };
    // The first ones are those of the preface.
    assert_eq!([change(&mut end), change(&mut end)], [Ok(()), Ok(())]);
    let refused = Err(Error::Misuse(Misuse::SettingsUnacknowledged));
    assert_eq!(change(&mut end), refused);
    end.drain();
    let sent = |end: &End| end.sent().iter().filter(|frame| frame.kind == kind::SETTINGS).count();
    // With the acknowledgement of those of the client.
    assert_eq!(sent(&end), 3 + 1);
    end.receive(&Frame::settings_ack().to_bytes());
    assert_eq!([change(&mut end), change(&mut end)], [Ok(()), refused]);
}

#[test]
fn waiting_requests() {
    let mut config = Config::new(Role::Client);
    config.limits.queued_opens_max = 3;
    let mut end = End::with(Role::Client, config);
    end.receive(&join(&[Frame::settings(&[(3, 1)]), Frame::settings_ack()]));
    // One opens at once, three wait, and the next one is refused.
    let streams: Vec<u32> = (0..4).map(|_| end.request()).collect();
    let fields = [
        Field::known(Token::Method, b"GET"),
        Field::known(Token::Scheme, b"https"),
        Field::known(Token::Authority, b"example.org"),
        Field::known(Token::Path, b"/"),
    ];
    let one_more = end.connection.send_request(fields, true);
    assert_eq!(one_more, Err(Error::Misuse(Misuse::OpenQueueFull)));
    assert_eq!((end.connection.streams(), streams), (4, vec![1, 3, 5, 7]));
    // There is room again when one is cancelled, or opens.
    end.reset(5);
    assert_eq!(end.request(), 9);
    end.receive(&Frame::headers(1, &[(":status", "204")]).end_stream().to_bytes());
    assert_eq!(end.request(), 11);
    assert!(end.connection.send_request(fields, true).is_err());
    let opened = end.sent().iter().filter(|frame| frame.kind == kind::HEADERS).count();
    assert_eq!(opened, 2);
}

#[test]
fn promises() {
    let client = |promises_max: usize, streams_max: u32| {
        let mut config = Config::new(Role::Client);
        config.settings.enable_push = true;
        config.settings.max_concurrent_streams = streams_max;
        config.limits.promises_max = promises_max;
        let mut end = End::with(Role::Client, config);
        end.receive(&join(&[Frame::settings(&[]), Frame::settings_ack()]));
        end.request();
        end
    };
    let refused = |end: &End| {
        assert!(!end.has_failed());
        let resets = end.sent().into_iter().filter(|frame| frame.kind == kind::RST_STREAM);
        resets.map(|frame| (frame.stream, frame.word(0))).collect::<Vec<_>>()
    };
    let mut end = client(3, 100);
    for (promised, expected) in [(2, &[][..]), (4, &[]), (6, &[]), (8, &[(8, code::REFUSED_STREAM)])] {
        end.receive(&Frame::push_promise(1, promised, GET).to_bytes());
        assert_eq!(refused(&end), expected, "promise of {promised}");
    }
    // RFC 9113 §5.1.2: they count as streams when their responses begin.
    let mut end = client(100, 2);
    let response = |stream| Frame::headers(stream, &[(":status", "200")]).to_bytes();
    for (promised, expected) in [(2, &[][..]), (4, &[]), (6, &[(6, code::REFUSED_STREAM)])] {
        end.receive(&Frame::push_promise(1, promised, GET).to_bytes());
        end.receive(&response(promised));
        assert_eq!(refused(&end), expected, "response on {promised}");
    }
}

#[test]
fn buffered_answers() {
    let mut config = Config::new(Role::Server);
    config.limits.answers_len_max = 3 * 17;
    let mut server = Connection::new(Role::Server, config).unwrap();
    let read = |server: &mut Connection, bytes: &[u8]| {
        let mut at = 0;
        loop {
            let (taken, event) = server.handle_input(Duration::ZERO, &bytes[at..]).unwrap();
            at += taken;
            if event.is_none() {
                return at;
            }
        }
    };
    let write = |server: &mut Connection, most: usize| {
        let mut slices = [&[][..]; 4];
        let filled = server.poll_transmit(Duration::ZERO, &mut slices);
        let len = slices[..filled].iter().map(|slice| slice.len()).sum::<usize>().min(most);
        server.transmitted(Duration::ZERO, len);
        len
    };
    read(&mut server, &hello());
    write(&mut server, usize::MAX);
    let ping = Frame::ping("question").to_bytes();
    for (answers, wants_read) in [(2, true), (3, true), (4, false)] {
        assert_eq!(read(&mut server, &ping.repeat(answers)), answers * 17);
        assert_eq!(server.wants_read(), wants_read, "{answers}");
        assert_eq!(read(&mut server, &ping), if wants_read { 17 } else { 0 });
        // When one answer is written, there is room for another one, although the output is never empty.
        if !wants_read {
            assert_eq!(write(&mut server, 16), 16);
            assert!(!server.wants_read());
            assert_eq!(write(&mut server, 1), 1);
            assert!(server.wants_read());
            assert_eq!(read(&mut server, &ping.repeat(2)), 17);
        }
        write(&mut server, usize::MAX);
        assert!(server.wants_read());
    }
}

#[test]
fn priorities_of_idle_streams() {
    // RFC 9218 §7.1: open streams and idle ones with a priority together are not more than may be open.
    let updates = |count: u32| {
        let frames: Vec<Frame> = (0..count).map(|n| Frame::priority_update(2 * n + 3, "u=1")).collect();
        Case::frames("RFC 9218 §7.1", &[frames.clone(), frames].concat()).whole()
    };
    client_sends(vec![
        updates(MAX_CONCURRENT_STREAMS - 2),
        updates(MAX_CONCURRENT_STREAMS - 1),
        updates(MAX_CONCURRENT_STREAMS).connection_error(code::PROTOCOL_ERROR),
    ]);
    // The lower limit of this side: further ones are ignored. The last priority counts, skipped streams are closed, and PRIORITY_UPDATE
    // overrides the field.
    let mut config = Config::new(Role::Server);
    config.limits.idle_priorities_max = 2;
    let mut server = Connection::new(Role::Server, config).unwrap();
    let mut input = hello();
    for (stream, priority) in [(1, "u=1"), (5, "u=7"), (7, "u=2"), (5, "u=0, i")] {
        Frame::priority_update(stream, priority).write(&mut input);
    }
    let fields = [GET, &[("priority", "u=4")]].concat();
    for stream in [5, 7] {
        Frame::headers(stream, &fields).end_stream().write(&mut input);
    }
    Frame::priority_update(7, "u=6").write(&mut input);
    let (mut at, mut events) = (0, Vec::new());
    loop {
        let (taken, event) = server.handle_input(Duration::ZERO, &input[at..]).unwrap();
        at += taken;
        match event {
            Some(Event::Request { stream, .. }) => events.push((stream.id(), None)),
            Some(Event::Priority { stream, priority }) => events.push((stream.id(), Some(priority.as_str()))),
            Some(_) => {}
            None => break,
        }
    }
    assert_eq!(events, [(5, None), (5, Some("u=0, i")), (7, None), (7, Some("u=6"))]);
}

#[test]
fn a_frame_has_its_time_only_while_input_is_taken() {
    // The peer cannot complete a frame that this side does not read.
    let mut config = Config::new(Role::Server);
    config.output_max = 1_000;
    let mut server = Connection::new(Role::Server, config).unwrap();
    let read = |server: &mut Connection, bytes: &[u8]| {
        let (mut at, mut streams) = (0, vec![]);
        loop {
            let (taken, event) = server.handle_input(Duration::ZERO, &bytes[at..]).unwrap();
            at += taken;
            match event {
                Some(Event::Request { stream, .. }) => streams.push(stream),
                Some(_) => {}
                None => return streams,
            }
        }
    };
    let streams = read(&mut server, &[hello(), Frame::get(1).to_bytes()].concat());
    let next = Frame::get(3).to_bytes();
    read(&mut server, &next[..12]);
    server.send_response(streams[0], [Field::known(Token::Status, b"200")], false).unwrap();
    server.send_data(streams[0], vec![b'd'; 5_000], true).unwrap();
    assert!(server.poll_transmit(Duration::ZERO, &mut [&[][..]; 8]) > 0 && !server.wants_read());
    let paused = LIMITS.field_block_timeout * 2;
    server.handle_timeout(Duration::from_secs(1)).unwrap();
    server.handle_timeout(paused).unwrap();
    let mut slices = [&[][..]; 8];
    let filled = server.poll_transmit(Duration::ZERO, &mut slices);
    let len = slices[..filled].iter().map(|slice| slice.len()).sum();
    server.transmitted(Duration::ZERO, len);
    assert!(server.wants_read());
    server.handle_timeout(paused + Duration::from_secs(1)).unwrap();
    // From here on the time counts.
    assert!(server.handle_timeout(paused + Duration::from_secs(2) + LIMITS.field_block_timeout).is_err());
}

#[test]
fn cancelled_requests_count_until_their_response_is_complete() {
    // CVE-2023-44487: also after the head of the response.
    let fails = |has_ended: bool, count: usize| {
        let mut config = Config::new(Role::Server);
        config.limits.peer_resets = Rate::new(10, 1);
        let mut end = End::with(Role::Server, config);
        end.receive(&hello());
        for stream in (0..count as u32).map(|n| 2 * n + 1) {
            end.receive(&Frame::post(stream).to_bytes());
            let key = end.key(stream);
            end.connection.send_response(key, [Field::known(Token::Status, b"200")], has_ended).unwrap();
            end.receive(&Frame::rst_stream(stream, code::CANCEL).to_bytes());
        }
        end.has_failed()
    };
    assert!(!fails(false, 10));
    assert!(fails(false, 11));
    assert!(!fails(true, 100));
}
