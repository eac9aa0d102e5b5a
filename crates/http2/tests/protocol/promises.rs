//! PUSH_PROMISE on the wire: the streams on which it is allowed, and the ones that it can promise (RFC 9113 §6.6, §8.4).

use crate::wire::End;
use wireloom_http2::error::{Error, ErrorCode, Violation};
use wireloom_http2::{Config, Role, Settings};
use wireloom_testing::http2::{Frame, GET, block, code, flag, join, kind};

/// A client that accepts pushes, with a request on stream 1, of a server that allows `streams_max` requests.
fn client(streams_max: u32) -> End {
    let mut config = Config::new(Role::Client);
    config.settings.enable_push = true;
    let mut end = End::with(Role::Client, config);
    end.receive(&join(&[Frame::settings(&[(3, streams_max)]), Frame::settings_ack()]));
    assert_eq!(end.request(), 1);
    end
}

fn promise(end: &mut End, stream: u32, promised: u32) {
    end.receive(&Frame::push_promise(stream, promised, GET).to_bytes());
}

/// The streams that were reset, and their codes.
fn resets(end: &End) -> Vec<(u32, u32)> {
    let frames = end.sent().into_iter().filter(|frame| frame.kind == kind::RST_STREAM);
    frames.map(|frame| (frame.stream, frame.word(0))).collect()
}

fn violation(end: &End) -> Option<Violation> {
    match end.error() {
        Some(Error::Peer { violation, .. }) => Some(violation),
        _ => None,
    }
}

#[test]
fn a_promised_stream_is_a_new_stream_of_the_server() {
    // RFC 9113 §5.1.1, §6.6: even identifiers, in increasing order.
    for (promised, expected) in
        [(4, None), (2, Some(Violation::PromisedIdInvalid)), (7, Some(Violation::PromisedIdInvalid))]
    {
        let mut end = client(10);
        promise(&mut end, 1, 2);
        assert_eq!(end.connection.streams(), 2);
        promise(&mut end, 1, promised);
        assert_eq!(violation(&end), expected, "{promised}");
    }
}

#[test]
fn a_promise_needs_a_stream_that_the_server_has_not_ended() {
    // RFC 9113 §6.6: "open" or "half-closed (local)"; otherwise a connection error, PROTOCOL_ERROR.
    let mut end = client(10);
    let fields =
        GET.iter().map(|&(name, value)| wireloom_http2::field::Field::new(name.as_bytes(), value.as_bytes()));
    let upload = end.connection.send_request(fields, false).unwrap();
    end.drain();
    promise(&mut end, upload.id(), 2);
    end.receive(&Frame::headers(upload.id(), &[(":status", "200")]).end_stream().to_bytes());
    assert_eq!((end.connection.streams(), violation(&end)), (3, None));
    promise(&mut end, upload.id(), 4);
    assert_eq!(violation(&end), Some(Violation::PushOnClosedStream));

    // "reserved (remote)".
    let mut end = client(10);
    promise(&mut end, 1, 2);
    promise(&mut end, 2, 4);
    assert_eq!(violation(&end), Some(Violation::PushOnClosedStream));

    // RFC 9113 §6.6: a pushed stream, which the server opened.
    let mut end = client(10);
    promise(&mut end, 1, 2);
    end.receive(&Frame::headers(2, &[(":status", "200")]).to_bytes());
    assert_eq!((end.connection.streams(), violation(&end)), (2, None));
    promise(&mut end, 2, 4);
    assert_eq!(violation(&end), Some(Violation::PushOnClosedStream));

    // Both ends have ended it, or the server has reset it.
    for last in [Frame::headers(1, &[(":status", "204")]).end_stream(), Frame::rst_stream(1, code::CANCEL)] {
        let mut end = client(10);
        end.receive(&last.to_bytes());
        promise(&mut end, 1, 2);
        assert_eq!(violation(&end), Some(Violation::PushOnClosedStream));
    }

    // A stream that was not opened, and a request that waits, which is idle for the server.
    let mut end = client(10);
    promise(&mut end, 9, 2);
    assert_eq!(violation(&end), Some(Violation::FrameOnIdleStream));
    let mut end = client(1);
    assert_eq!(end.request(), 3);
    promise(&mut end, 3, 2);
    assert_eq!(violation(&end), Some(Violation::FrameOnIdleStream));
}

#[test]
fn a_promise_on_a_stream_that_was_reset_is_refused() {
    // RFC 9113 §6.6: it may have been in flight, and reserves a stream nevertheless.
    let mut end = client(10);
    end.reset(1);
    promise(&mut end, 1, 2);
    assert_eq!(resets(&end), [(1, code::CANCEL), (2, code::REFUSED_STREAM)]);
    assert_eq!((end.connection.streams(), violation(&end)), (0, None));
}

#[test]
fn a_promise_before_the_server_knows_that_push_is_disabled_is_refused() {
    // RFC 9113 §6.5.2: until SETTINGS are acknowledged.
    let mut end = client(10);
    let settings = Settings { enable_push: false, ..*end.connection.acknowledged_settings() };
    end.connection.update_settings(settings).unwrap();
    end.drain();
    promise(&mut end, 1, 2);
    assert_eq!(resets(&end), [(2, code::REFUSED_STREAM)]);
    end.receive(&Frame::settings_ack().to_bytes());
    promise(&mut end, 1, 4);
    assert_eq!(violation(&end), Some(Violation::PushDisabled));
}

#[test]
fn the_field_block_of_a_promise_is_not_interrupted() {
    // RFC 9113 §6.6: a connection error, PROTOCOL_ERROR.
    let begin = Frame::push_promise(1, 2, &GET[..2]).no_flag(flag::END_HEADERS);
    let rest = |stream| Frame::continuation(stream, block(&GET[2..])).flag(flag::END_HEADERS);
    for (next, fails) in [(rest(1), false), (rest(2), true), (Frame::ping("01234567"), true)] {
        let mut end = client(10);
        end.receive(&join(&[begin.clone(), next.clone()]));
        let error = end.error().and_then(|error| error.code());
        assert_eq!(error, fails.then_some(ErrorCode::PROTOCOL_ERROR), "{next:?}");
        assert!(fails || end.connection.streams() == 2);
    }
}
