//! Minimized regressions that fuzzing found.

use crate::wire::{Case, End, client_sends};
use wireloom_http2::field::{Field, Token};
use wireloom_http2::{Config, Role};
use wireloom_testing::http2::{Frame, PREFACE, code, flag, join, kind};

const REQUEST: [Field<'static>; 4] = [
    Field::known(Token::Method, b"POST"),
    Field::known(Token::Scheme, b"https"),
    Field::known(Token::Authority, b"example.org"),
    Field::known(Token::Path, b"/"),
];

#[test]
fn a_stream_without_queued_bytes_is_not_scheduled() {
    // RFC 9113 §5.1: after END_STREAM no DATA may follow. The queue ran dry together with its end, and the stream, which
    // still waited for its response, got another turn and sent END_STREAM again.
    let mut end = End::new(Role::Client);
    let key = end.connection.send_request(REQUEST, false).unwrap();
    // More than a window, so that it is queued.
    end.connection.send_data(key, vec![7; 70_000], true).unwrap();
    end.drain();
    end.receive(&join(&[
        Frame::settings(&[]),
        Frame::settings_ack(),
        Frame::window_update(0, 100_000),
        Frame::window_update(1, 100_000),
    ]));
    end.drain();
    let data: Vec<Frame> = end.sent().into_iter().filter(|frame| frame.kind == kind::DATA).collect();
    assert_eq!(data.iter().map(|frame| frame.payload.len()).sum::<usize>(), 70_000);
    let ends = data.iter().filter(|frame| frame.has(flag::END_STREAM)).count();
    assert_eq!((ends, data.last().unwrap().has(flag::END_STREAM)), (1, true));
}

#[test]
fn an_empty_frame_may_end_a_stream_whose_window_is_negative() {
    // RFC 9113 §6.9.1, §6.9.2: SETTINGS made the window negative after DATA had come; an empty frame needs none.
    let mut config = Config::new(Role::Server);
    config.settings.initial_window_size = 0;
    config.auto_release = false;
    let mut end = End::with(Role::Server, config);
    // The client sends DATA before it has seen the SETTINGS, then acknowledges them.
    let opening = join(&[
        Frame::settings(&[]),
        Frame::post(1),
        Frame::data(1, "before"),
        Frame::settings_ack(),
        Frame::data(1, "").end_stream(),
    ]);
    end.receive(&[PREFACE, &opening].concat());
    assert!(!end.has_failed());
    assert_eq!(end.ended(), [1]);
    assert!(end.sent().iter().all(|frame| frame.kind != kind::RST_STREAM), "{:?}", end.sent());
}

#[test]
fn the_length_of_empty_padding_is_not_held_by_the_caller() {
    // RFC 9113 §6.1: the pad length counts against the window and is no content: the caller does not hold it,
    // and can release exactly the bytes that it holds.
    for padding in [0, 1, 9] {
        let mut config = Config::new(Role::Server);
        config.auto_release = false;
        let mut end = End::with(Role::Server, config);
        let frames = [
            Frame::settings(&[]),
            Frame::settings_ack(),
            Frame::post(1),
            Frame::data(1, "hello").padded(padding, usize::from(padding)),
        ];
        end.receive(&[PREFACE, &join(&frames)].concat());
        let key = end.key(1);
        assert!(end.connection.release_capacity(key, 6).is_err(), "padding {padding}");
        assert_eq!(end.connection.release_capacity(key, 5), Ok(()), "padding {padding}");
    }
}

#[test]
fn a_frame_with_two_errors_has_the_same_answer_at_any_split() {
    // RFC 9113 §6.1: DATA on stream 0 is PROTOCOL_ERROR, even if it is also too short.
    let frame = Frame::data(0, "").flag(flag::PADDED);
    client_sends(vec![
        Case::frames("§6.1: stream 0, no length", &[frame]).connection_error(code::PROTOCOL_ERROR),
    ]);
}

#[test]
fn padded_data_on_stream_0_is_refused_at_any_split() {
    // RFC 9113 §6.1: the header alone is wrong. When it arrived in parts, the connection waited for the length of the padding.
    let header = [0, 0, 1, kind::DATA, flag::PADDED, 0, 0, 0, 0];
    let bytes = [PREFACE, &join(&[Frame::settings(&[])]), &header].concat();
    for cut in [bytes.len(), bytes.len() - 1, bytes.len() - 9] {
        let mut end = End::new(Role::Server);
        end.receive(&bytes[..cut]);
        end.receive(&bytes[cut..]);
        assert!(end.has_failed(), "cut at {cut}");
    }
}
