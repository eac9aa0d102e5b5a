//! Receiving: when input is handled, its events, and its violations.

use std::time::Duration;

use crate::wire::End;
use wireloom_http2::error::{Error, ErrorCode, Violation};
use wireloom_http2::field::{Field, Token};
use wireloom_http2::{Config, Event, Role};
use wireloom_testing::http2::{Frame, PREFACE, code, flag, join, kind};

/// A server with stream 1 open.
fn server(config: Config) -> End {
    let mut end = End::with(Role::Server, config);
    let opening = [Frame::settings(&[]), Frame::settings_ack(), Frame::post(1)];
    end.receive(&[PREFACE, &join(&opening)].concat());
    end
}

fn violation(end: &End) -> Option<Violation> {
    match end.error() {
        Some(Error::Peer { violation, .. }) => Some(violation),
        _ => None,
    }
}

#[test]
fn data_without_content_is_not_an_event() {
    let mut end = server(Config::new(Role::Server));
    let empty = Frame::data(1, "");
    let header = &Frame::data(1, "content").to_bytes()[..9];
    let inputs = [
        empty.to_bytes(),
        join(&[Frame::ping("01234567"), empty.clone()]),
        join(&[Frame::ping("01234567"), empty.clone().padded(3, 3)]),
        // The header of a frame whose content arrives later.
        [&Frame::ping("01234567").to_bytes(), header].concat(),
    ];
    for input in inputs {
        let (taken, event) = end.connection.handle_input(Duration::ZERO, &input).unwrap();
        assert_eq!((taken, event.is_none()), (input.len(), true), "{input:?}");
    }
    let (taken, event) = end.connection.handle_input(Duration::ZERO, b"content").unwrap();
    assert!(matches!(event, Some(Event::Data { data: b"content", end_stream: false, .. })), "{event:?}");
    assert_eq!(taken, 7);
}

#[test]
fn data_is_not_read_while_too_many_answers_are_buffered() {
    let mut config = Config::new(Role::Server);
    config.limits.answers_len_max = 16;
    let mut end = server(config);
    end.connection.handle_input(Duration::ZERO, &Frame::ping("01234567").to_bytes()).unwrap();
    let data = Frame::data(1, "content").to_bytes();
    let (taken, event) = end.connection.handle_input(Duration::ZERO, &data).unwrap();
    assert_eq!((taken, event.is_none()), (0, true));
    end.drain();
    let (taken, event) = end.connection.handle_input(Duration::ZERO, &data).unwrap();
    assert_eq!((taken, event.is_some()), (data.len(), true));
}

#[test]
fn an_answer_counts_with_its_own_length() {
    // Beside a long response, a request that is refused adds a few bytes to the answers.
    let mut config = Config::new(Role::Server);
    config.limits.answers_len_max = 100;
    config.settings.max_header_list_size = 1_000;
    let mut end = server(config);
    let long = [b'v'; 500];
    let response = [Field::known(Token::Status, b"200"), Field::new(b"x-long", &long)];
    end.connection.send_response(end.key(1), response, true).unwrap();
    assert!(end.connection.memory().output > 200);
    let large = Frame::headers(3, &[("x-large", &"x".repeat(1_000))]).end_stream();
    end.connection.handle_input(Duration::ZERO, &large.to_bytes()).unwrap();
    assert!(end.connection.wants_read());
    end.drain();
    assert!(end.sent().iter().any(|frame| frame.kind == kind::HEADERS && frame.stream == 3));
}

#[test]
fn the_limit_of_a_fragmented_field_block_is_exact_to_the_byte() {
    // RFC 9113 §10.5.1: it is stored until it is complete.
    let first = Frame::get(3).no_flag(flag::END_HEADERS);
    let len = first.payload.len();
    for (second, third, fails) in
        [(50, 49, false), (50, 50, false), (50, 51, true), (101, 0, true), (200, 0, true)]
    {
        let mut config = Config::new(Role::Server);
        config.limits.field_block_len_max = len + 100;
        let mut end = server(config);
        // Fields of the static table.
        let parts = [vec![0x90; second], vec![0x90; third]].map(|part| Frame::continuation(3, part));
        end.receive(&join(&[first.clone(), parts[0].clone(), parts[1].clone().flag(flag::END_HEADERS)]));
        assert_eq!(end.error().and_then(|error| error.code()), fails.then_some(ErrorCode::ENHANCE_YOUR_CALM));
        assert_eq!(end.requests().contains(&3), !fails, "{second} and {third}");
    }
    // The first frame alone, of a block that is incomplete and of one that is complete.
    let mut complete = Frame::get(3);
    complete.payload.extend([0x90; 50]);
    let (len, incomplete) = (complete.payload.len(), complete.clone().no_flag(flag::END_HEADERS));
    for (len_max, frame, fails) in [
        (len - 1, &incomplete, true),
        (len - 1, &complete, true),
        (len, &incomplete, false),
        (len, &complete, false),
    ] {
        let mut config = Config::new(Role::Server);
        config.limits.field_block_len_max = len_max;
        let mut end = server(config);
        end.receive(&frame.to_bytes());
        assert_eq!(end.has_failed(), fails, "{len_max}: {frame:?}");
    }
}

#[test]
fn the_size_of_the_table_applies_from_the_acknowledgement_on() {
    // RFC 7541 §4.2: the encoder acknowledges a smaller table at the beginning of its next block, and may use a larger one.
    for (size, update, acknowledged, expected) in [
        (100, &[][..], true, Some(Violation::HpackSizeUpdateMissing)),
        (100, &[0x3f, 69], true, None),
        (100, &[], false, None),
        (8_192, &[0x3f, 0xe1, 0x3f], true, None),
        (8_192, &[0x3f, 0xe1, 0x3f], false, Some(Violation::HpackSizeUpdate)),
    ] {
        let mut end = server(Config::new(Role::Server));
        let mut settings = *end.connection.acknowledged_settings();
        settings.header_table_size = size;
        end.connection.update_settings(settings).unwrap();
        if acknowledged {
            end.receive(&Frame::settings_ack().to_bytes());
        }
        let request = Frame::get(3);
        end.receive(&request.clone().payload([update, &request.payload[..]].concat()).to_bytes());
        assert_eq!(violation(&end), expected, "{size} {update:?} {acknowledged}");
    }
}

#[test]
fn frames_on_streams_that_are_not_open_are_errors_by_their_type() {
    // RFC 9113 §5.1.1: HEADERS open no stream of a server. §5.1: other frames are not allowed on an idle stream.
    let idle = Violation::FrameOnIdleStream;
    let response = |stream| Frame::headers(stream, &[(":status", "200")]);
    for (frame, expected) in [
        (response(2), Violation::StreamIdParity),
        (Frame::data(2, "x"), idle),
        (response(9), idle),
        (Frame::data(9, "x"), idle),
        // A request that waits to open.
        (response(3), idle),
        (Frame::data(3, "x"), idle),
    ] {
        let mut end = End::new(Role::Client);
        end.receive(&join(&[Frame::settings(&[(3, 1)]), Frame::settings_ack()]));
        assert_eq!((end.request(), end.request()), (1, 3));
        end.receive(&frame.to_bytes());
        assert_eq!(violation(&end), Some(expected), "{frame:?}");
    }
}

#[test]
fn the_window_of_a_reset_stream_is_released_at_once() {
    let mut config = Config::new(Role::Server);
    config.auto_release = false;
    // Room for the first window of the connection, and no more.
    config.memory_max = 0;
    let mut end = server(config);
    for _ in 0..4 {
        end.receive(&Frame::data(1, vec![b'd'; 10_000]).to_bytes());
    }
    let updates = |end: &End| {
        let frames = end.sent().into_iter().filter(|frame| frame.kind == kind::WINDOW_UPDATE);
        frames.map(|frame| (frame.stream, frame.word(0))).collect::<Vec<_>>()
    };
    assert_eq!(updates(&end), []);
    end.receive(&Frame::rst_stream(1, code::CANCEL).to_bytes());
    assert_eq!(updates(&end), [(0, 40_000)]);
}

#[test]
fn a_request_with_too_many_fields_is_answered_once_if_the_client_accepts_the_answer() {
    // RFC 6585 §5; RFC 9113 §6.5.2: ":status: 431" has the size 7 + 3 + 32.
    let large = Frame::headers(3, &[("x-large", &"x".repeat(1_000))]);
    for (max, ended, answers, reset) in [
        (41, true, 0, Some(code::ENHANCE_YOUR_CALM)),
        (42, true, 1, None),
        (43, true, 1, None),
        (42, false, 1, Some(code::NO_ERROR)),
    ] {
        let mut config = Config::new(Role::Server);
        config.settings.max_header_list_size = 1_000;
        let mut end = server(config);
        let large = if ended { large.clone().end_stream() } else { large.clone() };
        end.receive(&join(&[Frame::settings(&[(6, max)]), large]));
        let sent = |kind| end.sent().into_iter().filter(move |frame| frame.kind == kind && frame.stream == 3);
        assert_eq!(sent(kind::HEADERS).count(), answers, "{max}");
        let resets: Vec<u32> = sent(kind::RST_STREAM).map(|frame| frame.word(0)).collect();
        assert_eq!(resets, Vec::from_iter(reset), "{max} {ended}");
    }
}

#[test]
fn priorities_are_stored_only_for_streams_that_can_still_open() {
    // RFC 9218 §7.1: they and the open streams are not more than may be open. Closed streams and those above the last stream of GOAWAY
    // have no priority.
    let mut config = Config::new(Role::Server);
    config.settings.max_concurrent_streams = 2;
    let update = |stream| Frame::priority_update(stream, "u=1").to_bytes();
    let mut end = server(config);
    for stream in [3, 5, 7] {
        end.receive(&Frame::get(stream).to_bytes());
        end.respond(stream);
        end.receive(&update(stream));
    }
    end.receive(&update(9));
    assert!(!end.has_failed());
    end.receive(&update(11));
    assert_eq!(violation(&end), Some(Violation::PriorityUpdatesExceeded));

    let mut end = server(config);
    end.connection.shutdown();
    end.drain();
    let ping = end.sent().into_iter().rfind(|frame| frame.kind == kind::PING).unwrap();
    end.receive(&ping.flag(flag::ACK).to_bytes());
    for stream in [101, 103, 105] {
        end.receive(&update(stream));
    }
    assert!(!end.has_failed());
}
