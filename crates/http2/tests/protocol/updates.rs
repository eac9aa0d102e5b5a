//! Sending of WINDOW_UPDATE, exact to the byte, and the effects of those of the peer (RFC 9113 §6.9).

use std::time::Duration;

use crate::wire::End;
use wireloom_http2::error::Misuse;
use wireloom_http2::field::{Field, Token};
use wireloom_http2::{Config, Connection, Event, Role};
use wireloom_testing::http2::{Frame, PREFACE, join, kind};

const GET: [Field<'static>; 4] = [
    Field::known(Token::Method, b"GET"),
    Field::known(Token::Scheme, b"https"),
    Field::known(Token::Authority, b"example.org"),
    Field::known(Token::Path, b"/"),
];

/// A server that releases window automatically, with stream 1 open.
fn server(stream_window: u32, connection_window: u32) -> End {
    let mut config = Config::new(Role::Server);
    config.settings.initial_window_size = stream_window;
    config.stream_window_max = stream_window;
    config.connection_window = connection_window;
    let mut end = End::with(Role::Server, config);
    let frames = [Frame::settings(&[]), Frame::settings_ack(), Frame::post(1)];
    end.receive(&[PREFACE, &join(&frames)].concat());
    end
}

fn data(len: usize) -> Vec<u8> {
    Frame::data(1, vec![b'd'; len]).to_bytes()
}

/// The increments of a stream, or of the connection (0), that were sent.
fn increments(end: &End, stream: u32) -> Vec<u32> {
    let is_update = |frame: &&Frame| frame.kind == kind::WINDOW_UPDATE && frame.stream == stream;
    end.sent().iter().filter(is_update).map(|frame| frame.word(0)).collect()
}

#[test]
fn the_window_of_a_stream_is_updated_at_half() {
    for (received, expected) in [(499, vec![]), (500, vec![500]), (501, vec![501])] {
        let mut end = server(1_000, 1 << 20);
        end.receive(&data(received));
        assert_eq!(increments(&end, 1), expected, "{received}");
    }
}

#[test]
fn the_window_of_the_connection_is_updated_at_half() {
    // The initial window of a connection is 65,535 (§6.9.2), one byte less than the target of this server.
    for (last, expected) in [(12_766, vec![]), (12_767, vec![32_768])] {
        let mut end = server(60_000, 65_536);
        end.receive(&data(10_000));
        end.receive(&data(10_000));
        end.receive(&data(last));
        assert_eq!(increments(&end, 0), expected, "{last}");
    }
}

#[test]
fn a_window_that_settings_made_negative_is_updated() {
    // §6.9.2: otherwise the peer could never send again.
    let mut end = server(1_000, 1 << 20);
    end.receive(&data(450));
    let mut settings = *end.connection.acknowledged_settings();
    settings.initial_window_size = 100;
    end.connection.update_settings(settings).unwrap();
    end.drain();
    assert_eq!(increments(&end, 1), [0; 0]);
    end.receive(&Frame::settings_ack().to_bytes());
    // 100 - 450, and 100 again.
    assert_eq!(increments(&end, 1), [450]);
}

#[test]
fn manual_release_can_be_set_for_one_stream() {
    let mut end = server(1_000, 1 << 20);
    end.receive(&Frame::post(3).to_bytes());
    end.connection.set_auto_release(end.key(1), false).unwrap();
    end.receive(&data(600));
    end.receive(&Frame::data(3, vec![b'd'; 600]).to_bytes());
    assert_eq!((increments(&end, 1), increments(&end, 3)), (vec![], vec![600]));
    end.connection.release_capacity(end.key(1), 600).unwrap();
    end.drain();
    assert_eq!(increments(&end, 1), [600]);
    end.connection.set_auto_release(end.key(1), true).unwrap();
    end.receive(&data(600));
    assert_eq!(increments(&end, 1), [600, 600]);
}

#[test]
fn updates_that_are_not_read_stop_the_reader() {
    // CVE-2019-9517: each is a buffered answer.
    let mut config = Config::new(Role::Client);
    config.limits.answers_len_max = 100;
    config.settings.initial_window_size = 1_000;
    config.stream_window_max = 1_000;
    let mut end = End::with(Role::Client, config);
    let stream = end.request();
    let opening =
        [Frame::settings(&[]), Frame::settings_ack(), Frame::headers(stream, &[(":status", "200")])];
    end.receive(&join(&opening));
    let client = &mut end.connection;
    let mut updates = 0;
    while client.wants_read() {
        let input = Frame::data(stream, vec![b'd'; 1_000]).to_bytes();
        let (taken, event) = client.handle_input(Duration::ZERO, &input).unwrap();
        assert!(taken == input.len() && matches!(event, Some(Event::Data { .. })));
        updates += 1;
    }
    // 13 bytes each.
    assert_eq!(updates, 8);
    end.drain();
    assert!(end.connection.wants_read());
}

#[test]
fn data_on_a_promised_stream_ends_the_connection() {
    // §5.1 (reserved (remote)): nothing but HEADERS, RST_STREAM and PRIORITY.
    let mut config = Config::new(Role::Client);
    config.settings.enable_push = true;
    let mut end = End::with(Role::Client, config);
    assert_eq!(end.connection.send_request(GET, true).unwrap().id(), 1);
    end.drain();
    let promise = Frame::push_promise(1, 2, wireloom_testing::http2::GET);
    end.receive(&join(&[Frame::settings(&[]), promise]));
    assert!(!end.has_failed());
    end.receive(&Frame::data(2, "early").to_bytes());
    assert!(end.has_failed());
}

/// A server whose streams queue 1,000 bytes, with a response on stream 1 and windows of 0.
fn queueing() -> End {
    let mut config = Config::new(Role::Server);
    config.stream_queue = 1_000;
    let mut end = End::with(Role::Server, config);
    let frames = [Frame::settings(&[(4, 0)]), Frame::settings_ack(), Frame::get(1)];
    end.receive(&[PREFACE, &join(&frames)].concat());
    end.connection.send_response(end.key(1), [Field::known(Token::Status, b"200")], false).unwrap();
    end
}

/// Opens the window of stream 1. Returns whether the caller may send again.
fn is_writable(end: &mut End, increment: u32) -> bool {
    end.receive(&Frame::window_update(1, increment).to_bytes());
    let event = end.connection.poll_event().map(|event| matches!(event, Event::Writable { .. }));
    assert_ne!(event, Some(false));
    event.is_some()
}

#[test]
fn a_full_queue_is_writable_again_at_half() {
    let mut end = queueing();
    end.connection.send_data(end.key(1), vec![b'd'; 1_001], false).unwrap();
    assert_eq!(end.connection.send_capacity(end.key(1)), 0);
    assert!(!is_writable(&mut end, 500));
    assert!(is_writable(&mut end, 1));
    assert!(!is_writable(&mut end, 500), "once");
}

#[test]
fn a_queue_that_is_not_full_reports_nothing() {
    let mut end = queueing();
    end.connection.send_data(end.key(1), vec![b'd'; 1_000], false).unwrap();
    assert!(!is_writable(&mut end, 1_000));
    // `send_capacity` returned 0.
    let mut end = queueing();
    end.connection.send_data(end.key(1), vec![b'd'; 1_000], false).unwrap();
    assert_eq!(end.connection.send_capacity(end.key(1)), 0);
    assert!(is_writable(&mut end, 1_000));
    // More than was allowed, without a question.
    let mut end = queueing();
    end.connection.send_data(end.key(1), vec![b'd'; 1_001], false).unwrap();
    assert!(is_writable(&mut end, 1_001));
}

#[test]
fn content_follows_the_header_section() {
    let mut end = End::new(Role::Server);
    end.receive(&[PREFACE, &join(&[Frame::settings(&[]), Frame::get(1)])].concat());
    let key = end.key(1);
    assert_eq!(end.connection.send_data(key, "early", false), Err(Misuse::SendBeforeHeaders.into()));
    assert_eq!(end.connection.send_trailers(key, []), Err(Misuse::SendBeforeHeaders.into()));
    end.connection.send_response(key, [Field::known(Token::Status, b"200")], true).unwrap();
    assert_eq!(end.connection.send_data(key, "late", false), Err(Misuse::StreamGone.into()));
}

#[test]
fn a_window_of_more_than_two_gigabytes_is_refused() {
    // RFC 9113 §6.9.1: every peer would end the connection.
    for (window, is_valid) in [(i32::MAX as u32 - 1, true), (i32::MAX as u32, true), (1 << 31, false)] {
        let mut config = Config::new(Role::Server);
        config.connection_window = window;
        assert_eq!(Connection::new(Role::Server, config).is_ok(), is_valid, "{window}");
        let mut config = Config::new(Role::Server);
        config.stream_window_max = window;
        assert_eq!(Connection::new(Role::Server, config).is_ok(), is_valid, "{window}");
    }
}
