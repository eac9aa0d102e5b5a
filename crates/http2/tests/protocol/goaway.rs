//! GOAWAY of both ends: its last stream ID, the frames that are ignored after it, and the end of a connection (RFC 9113 §6.8).

use std::time::Duration;

use crate::wire::End;
use wireloom_http2::error::ErrorCode;
use wireloom_http2::{Config, Ended, Event, Limits, Role};
use wireloom_testing::http2::{Frame, GET, POST, PREFACE, block, code, flag, join, kind, literal};

const LAST: u32 = 0x7fff_ffff;

/// An end after the handshake, with stream 1 open. A client accepts pushes.
fn opened(role: Role) -> End {
    let mut config = Config::new(role);
    config.settings.enable_push = true;
    let mut end = End::with(role, config);
    let opening = join(&[Frame::settings(&[]), Frame::settings_ack()]);
    match role {
        Role::Server => end.receive(&[PREFACE, &opening, &Frame::get(1).to_bytes()].concat()),
        Role::Client => {
            end.receive(&opening);
            assert_eq!(end.request(), 1);
        }
    }
    end
}

/// Begins a shutdown. The peer acknowledges its PING.
fn shut_down(end: &mut End) {
    end.connection.shutdown();
    end.drain();
    let ping = end.sent().into_iter().rfind(|frame| frame.kind == kind::PING).unwrap();
    end.receive(&ping.flag(flag::ACK).to_bytes());
}

/// The last stream IDs of the sent GOAWAY frames.
fn sent(end: &End) -> Vec<u32> {
    let frames = end.sent().into_iter().filter(|frame| frame.kind == kind::GOAWAY);
    frames.map(|frame| frame.word(0)).collect()
}

fn response(stream: u32) -> Vec<u8> {
    Frame::headers(stream, &[(":status", "204")]).end_stream().to_bytes()
}

#[test]
fn a_server_ignores_streams_above_the_last_one() {
    let mut end = opened(Role::Server);
    shut_down(&mut end);
    assert_eq!(sent(&end), [LAST, 1]);
    let before = end.sent().len();
    // The first one opens no stream, and later frames on it are not errors.
    let late = [Frame::post(3), Frame::data(3, "late"), Frame::headers(3, &[("a", "b")]).end_stream()];
    end.receive(&join(&late));
    end.receive(&Frame::priority_update(5, "u=1").to_bytes());
    assert_eq!((end.requests(), end.connection.streams()), (&[1][..], 1));
    assert_eq!(end.sent().len(), before);
    end.respond(1);
    assert_eq!(end.connection.ended(), Some(Ended::Drained));
}

#[test]
fn frames_above_the_last_stream_change_the_table_and_the_window() {
    // RFC 9113 §6.8: or the two ends would not agree on them any more.
    let mut end = End::new(Role::Server);
    let opening = [Frame::settings(&[]), Frame::settings_ack(), Frame::post(1)];
    end.receive(&[PREFACE, &join(&opening)].concat());
    shut_down(&mut end);
    let indexed = [b"\x40", &literal(b"x-kept", b"yes")[1..]].concat();
    let late = Frame::new(kind::HEADERS, 3, [block(POST), indexed].concat()).flag(flag::END_HEADERS);
    end.receive(&late.to_bytes());
    for _ in 0..100 {
        end.receive(&Frame::data(3, vec![b'd'; 16_000]).to_bytes());
    }
    let updates =
        end.sent().into_iter().filter(|frame| frame.kind == kind::WINDOW_UPDATE && frame.stream == 0);
    let granted: u32 = updates.map(|frame| frame.word(0)).sum();
    assert!(granted >= 100 * 16_000 - 65_535, "{granted}");
    // Trailers that refer to the new entry.
    end.receive(&Frame::new(kind::HEADERS, 1, vec![0xbe]).flag(flag::END_HEADERS).end_stream().to_bytes());
    assert_eq!((end.ended(), end.has_failed()), (&[1][..], false));
}

#[test]
fn the_first_of_two_steps_excludes_no_stream() {
    let mut end = opened(Role::Server);
    end.connection.shutdown();
    end.drain();
    end.receive(&Frame::get(LAST).to_bytes());
    assert_eq!(end.requests(), [1, LAST]);
}

#[test]
fn a_peer_that_does_not_acknowledge_the_ping_is_drained_after_a_while() {
    let timeout = Limits::DEFAULT.settings_timeout;
    for acknowledges_later in [false, true] {
        let mut end = opened(Role::Server);
        // The clock was last read long ago.
        end.connection.shutdown();
        end.wait(timeout * 2);
        let ping = end.sent().into_iter().rfind(|frame| frame.kind == kind::PING).unwrap();
        end.wait(timeout - Duration::from_millis(1));
        end.receive(&Frame::get(3).to_bytes());
        assert_eq!((sent(&end), end.requests()), (vec![LAST], &[1, 3][..]));
        end.wait(Duration::from_millis(1));
        end.receive(&Frame::get(5).to_bytes());
        assert_eq!((sent(&end), end.requests()), (vec![LAST, 3], &[1, 3][..]));
        if acknowledges_later {
            end.receive(&ping.flag(flag::ACK).to_bytes());
            assert_eq!(sent(&end), [LAST, 3]);
        }
        end.respond(1);
        end.respond(3);
        assert_eq!(end.connection.ended(), Some(Ended::Drained));
    }
}

#[test]
fn a_peer_that_is_not_read_has_its_time_for_the_ping() {
    let timeout = Limits::DEFAULT.settings_timeout;
    let mut end = opened(Role::Server);
    end.connection.shutdown();
    end.drain();
    end.set_reading(false);
    end.wait(timeout * 2);
    end.set_reading(true);
    end.wait(timeout - Duration::from_millis(1));
    assert_eq!(sent(&end), [LAST]);
    end.wait(Duration::from_millis(1));
    assert_eq!(sent(&end), [LAST, 1]);
}

#[test]
fn a_client_ignores_promises_above_the_last_one() {
    let mut end = opened(Role::Client);
    end.receive(&Frame::push_promise(1, 2, GET).to_bytes());
    shut_down(&mut end);
    assert_eq!(sent(&end), [LAST, 2]);
    let before = end.sent().len();
    end.receive(&Frame::push_promise(1, 4, GET).to_bytes());
    end.receive(&response(4));
    assert_eq!((end.connection.streams(), end.sent().len()), (2, before));
}

#[test]
fn a_client_without_streams_ends_after_the_final_goaway() {
    let cases = [(LAST, code::NO_ERROR, false), (LAST, 2, true), (0, code::NO_ERROR, true), (0, 2, true)];
    for (last, code, ends) in cases {
        let mut end = opened(Role::Client);
        end.receive(&response(1));
        end.receive(&Frame::goaway(last, code, "").to_bytes());
        let ended = end.connection.ended();
        assert_eq!(ended, ends.then_some(Ended::Drained), "GOAWAY({last}, {code})");
    }
}

#[test]
fn a_drained_end_sends_its_last_stream_id_once() {
    // No GOAWAY of its own, the first one, and both.
    for (steps, expected) in [(0, vec![0]), (1, vec![LAST, 0]), (2, vec![LAST, 0])] {
        let mut end = opened(Role::Client);
        match steps {
            0 => {}
            1 => {
                end.connection.shutdown();
                end.drain();
            }
            _ => shut_down(&mut end),
        }
        end.receive(&Frame::goaway(1, code::NO_ERROR, "").to_bytes());
        assert_eq!(end.connection.ended(), None);
        end.receive(&response(1));
        assert_eq!(end.connection.ended(), Some(Ended::Drained));
        assert_eq!(sent(&end), expected, "{steps} steps");
    }
}

#[test]
fn nothing_is_written_or_stored_after_the_end_of_the_transport() {
    let mut end = opened(Role::Client);
    end.receive(&Frame::goaway(1, code::NO_ERROR, "").to_bytes());
    // The beginning of a frame.
    end.receive(&response(1)[..5]);
    assert_eq!(end.connection.memory().input, 5);
    end.connection.handle_eof();
    assert_eq!(end.connection.memory().input, 0);
    let before = end.sent().len();
    let key = end.key(1);
    end.connection.reset(key, ErrorCode::CANCEL).unwrap();
    end.drain();
    assert_eq!((end.connection.ended(), end.sent().len()), (Some(Ended::Eof), before));
}

#[test]
fn pending_events_precede_data() {
    // The application learns that a request was refused before it gets content of another.
    let mut end = opened(Role::Client);
    assert_eq!(end.request(), 3);
    end.receive(&Frame::headers(1, &[(":status", "200")]).to_bytes());
    let input = join(&[Frame::goaway(1, code::NO_ERROR, ""), Frame::data(1, "content")]);
    let (mut at, mut order) = (0, Vec::new());
    while let (taken, Some(event)) = end.connection.handle_input(Default::default(), &input[at..]).unwrap() {
        at += taken;
        order.push(match event {
            Event::GoAway { .. } => "goaway",
            Event::Refused { .. } => "refused",
            Event::Data { .. } => "data",
            _ => "another",
        });
    }
    assert_eq!(order, ["goaway", "refused", "data"]);
}

#[test]
fn requests_that_were_never_sent_are_refused_when_the_connection_ends() {
    // RFC 9113 §8.7: they may be sent again; of the one in flight that is not known.
    type Ending = fn(&mut End);
    let endings: [(&str, Ending); 3] = [
        ("the transport ends", |end| end.connection.handle_eof()),
        ("the peer breaks a rule", |end| {
            end.connection.handle_input(Default::default(), &Frame::ping("short").to_bytes()).unwrap_err();
        }),
        ("the caller aborts", |end| end.connection.abort(ErrorCode::CANCEL, b"")),
    ];
    for (what, finish) in endings {
        let mut end = opened(Role::Client);
        end.receive(&Frame::settings(&[(3, 1)]).to_bytes());
        assert_eq!((end.request(), end.request()), (3, 5));
        finish(&mut end);
        let mut refused = Vec::new();
        while let Some(event) = end.connection.poll_event() {
            match event {
                Event::Refused { stream } => refused.push(stream.id()),
                other => panic!("{what}: {other:?}"),
            }
        }
        assert_eq!(refused, [3, 5], "{what}");
    }
}

#[test]
fn the_last_stream_of_goaway_is_not_ignored() {
    // It has ended, and so have more others than the server remembers.
    let mut end = End::new(Role::Server);
    end.receive(&[PREFACE, &join(&[Frame::settings(&[]), Frame::settings_ack(), Frame::post(1)])].concat());
    let last = 79;
    (3..=last).step_by(2).for_each(|stream| end.receive(&Frame::get(stream).to_bytes()));
    shut_down(&mut end);
    assert_eq!(sent(&end), [LAST, last]);
    (3..=last).rev().step_by(2).for_each(|stream| end.respond(stream));
    let before = end.sent().len();
    end.receive(&join(&[Frame::post(last + 2), Frame::data(last + 2, "ignored")]));
    assert_eq!(end.sent().len(), before);
    end.receive(&Frame::data(last, "late").to_bytes());
    let reset = end.sent().into_iter().rfind(|frame| frame.kind == kind::RST_STREAM).unwrap();
    assert_eq!((reset.stream, reset.word(0)), (last, code::STREAM_CLOSED));
}
