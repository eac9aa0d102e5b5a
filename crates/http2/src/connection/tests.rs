//! Whole connections, joined in memory.

use super::*;
use crate::error::ErrorCode;
use crate::field::{Field, Token};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use wireloom_testing::http2::{Frame, join, kind};

pub(super) const GET: [Field<'static>; 4] = [
    Field::known(Token::Method, b"GET"),
    Field::known(Token::Scheme, b"https"),
    Field::known(Token::Authority, b"example.org"),
    Field::known(Token::Path, b"/"),
];
pub(super) const OK: [Field<'static>; 1] = [Field::known(Token::Status, b"200")];

fn ends() -> (Connection, Connection) {
    ends_with(Config::new(Role::Client), Config::new(Role::Server))
}

fn ends_with(client: Config, server: Config) -> (Connection, Connection) {
    (Connection::new(Role::Client, client).unwrap(), Connection::new(Role::Server, server).unwrap())
}

fn drain(from: &mut Connection) -> Vec<u8> {
    let mut bytes = vec![];
    loop {
        let mut slices = [&[][..]; 4];
        let filled = from.poll_transmit(&mut slices);
        let taken = slices[..filled].concat();
        if taken.is_empty() {
            return bytes;
        }
        from.transmitted(taken.len());
        bytes.extend_from_slice(&taken);
    }
}

/// A short description of an event.
fn describe(event: &Event<'_>) -> String {
    use alloc::format;
    match event {
        Event::Request { stream, fields, end_stream, .. } => {
            format!("request {} {} {end_stream}", stream.id(), fields.len())
        }
        Event::Response { stream, status, end_stream, .. } => {
            format!("response {} {status} {end_stream}", stream.id())
        }
        Event::Informational { stream, status, .. } => format!("informational {} {status}", stream.id()),
        Event::Trailers { stream, fields } => format!("trailers {} {}", stream.id(), fields.len()),
        Event::Promise { promised, .. } => format!("promise {}", promised.id()),
        Event::Data { stream, data, end_stream } => {
            format!("data {} {} {end_stream}", stream.id(), data.len())
        }
        Event::Reset { stream, code, error } => format!("reset {} {code} {}", stream.id(), error.is_some()),
        Event::Refused { stream } => format!("refused {}", stream.id()),
        Event::Writable { stream } => format!("writable {}", stream.id()),
        Event::Settings => "settings".into(),
        Event::SettingsAcknowledged => "acknowledged".into(),
        Event::Pong { .. } => "pong".into(),
        Event::GoAway { last_stream_id, code, .. } => format!("goaway {last_stream_id} {code}"),
        Event::Priority { stream, priority } => {
            format!("priority {} {}", stream.id(), priority.urgency)
        }
        Event::AltSvc { .. } => "altsvc".into(),
        Event::Origin(origin) => format!("origin {}", origin.iter().count()),
    }
}

fn feed(to: &mut Connection, bytes: &[u8]) -> Vec<String> {
    let (mut at, mut events) = (0, vec![]);
    loop {
        let (taken, event) = to.handle_input(Duration::ZERO, &bytes[at..]).unwrap();
        at += taken;
        match event {
            Some(event) => events.push(describe(&event)),
            None => {
                assert_eq!(at, bytes.len());
                return events;
            }
        }
    }
}

/// Moves bytes both ways until there are none. Returns the events of the client and of the server.
fn settle(client: &mut Connection, server: &mut Connection) -> (Vec<String>, Vec<String>) {
    let (mut at_client, mut at_server) = (vec![], vec![]);
    loop {
        let (up, down) = (drain(client), drain(server));
        if up.is_empty() && down.is_empty() {
            break;
        }
        at_server.extend(feed(server, &up));
        at_client.extend(feed(client, &down));
    }
    while let Some(event) = client.poll_event() {
        at_client.push(describe(&event));
    }
    while let Some(event) = server.poll_event() {
        at_server.push(describe(&event));
    }
    (at_client, at_server)
}

fn settled() -> (Connection, Connection) {
    let (mut client, mut server) = ends();
    let events = settle(&mut client, &mut server);
    assert_eq!(events.0, ["settings", "acknowledged"]);
    assert_eq!(events.1, ["settings", "acknowledged"]);
    (client, server)
}

fn ask(client: &mut Connection, server: &mut Connection) -> (StreamKey, StreamKey) {
    let here = client.send_request(GET, true).unwrap();
    settle(client, server);
    (here, server.find(StreamId::new(here.id()).unwrap()).unwrap())
}

#[test]
fn a_request_is_answered_and_leaves_nothing_behind() {
    let (mut client, mut server) = settled();
    let (_, there) = ask(&mut client, &mut server);
    server.send_response(there, OK, false).unwrap();
    server.send_data(there, "hello", false).unwrap();
    server.send_data(there, "", true).unwrap();
    let (events, _) = settle(&mut client, &mut server);
    assert_eq!(events, ["response 1 200 false", "data 1 5 false", "data 1 0 true"]);
    assert_eq!((client.streams(), server.streams()), (0, 0));
    assert_eq!((client.streams.open_local(), server.streams.open_peer()), (0, 0));
    assert_eq!(server.send_data(there, "x", true), Err(Error::Misuse(Misuse::StreamGone)));
}

#[test]
fn large_content_passes_the_windows_and_grows_them() {
    let (mut client, mut server) = settled();
    let (_, there) = ask(&mut client, &mut server);
    server.send_response(there, OK, false).unwrap();
    server.send_data(there, vec![7; 10 << 20], true).unwrap();
    let (events, _) = settle(&mut client, &mut server);
    let total: usize = events
        .iter()
        .filter_map(|event| event.strip_prefix("data 1 ")?.split(' ').next()?.parse::<usize>().ok())
        .sum();
    assert_eq!(total, 10 << 20);
    assert_eq!((client.streams(), server.streams()), (0, 0));
    assert!(client.streams.recv_target() > 256 * 1024);
}

#[test]
fn trailers_wait_for_the_content_before_them() {
    let (mut client, mut server) = settled();
    let (_, there) = ask(&mut client, &mut server);
    server.send_informational(there, [Field::known(Token::Status, b"103")]).unwrap();
    server.send_response(there, OK, false).unwrap();
    server.send_data(there, vec![7; 300_000], false).unwrap();
    server.send_trailers(there, [Field::new(b"x-sum", b"1")]).unwrap();
    let (events, _) = settle(&mut client, &mut server);
    assert_eq!(events.first().unwrap(), "informational 1 103");
    assert_eq!(events.last().unwrap(), "trailers 1 1");
    assert_eq!((client.streams(), server.streams()), (0, 0));
}

#[test]
fn requests_wait_for_room_and_open_in_order() {
    let mut config = Config::new(Role::Server);
    config.settings.max_concurrent_streams = 2;
    let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
    settle(&mut client, &mut server);
    let keys: Vec<_> = (0..5).map(|_| client.send_request(GET, true).unwrap()).collect();
    let (_, events) = settle(&mut client, &mut server);
    assert_eq!(events, ["request 1 4 true", "request 3 4 true"]);
    client.reset(keys[3], ErrorCode::CANCEL).unwrap();
    for (at, expected) in [(0, "request 5 4 true"), (1, "request 9 4 true")] {
        let id = StreamId::new(keys[at].id()).unwrap();
        server.send_response(server.find(id).unwrap(), OK, true).unwrap();
        let (_, events) = settle(&mut client, &mut server);
        assert_eq!(events, [expected]);
    }
}

#[test]
fn a_graceful_shutdown_lets_streams_finish_and_refuses_new_ones() {
    let (mut client, mut server) = settled();
    let (_, there) = ask(&mut client, &mut server);
    server.shutdown();
    let late = client.send_request(GET, true).unwrap();
    let (events, at_server) = settle(&mut client, &mut server);
    // RFC 9113 §6.8: what was under way between the two GOAWAY frames still counts.
    assert_eq!(events, ["goaway 2147483647 NO_ERROR", "goaway 3 NO_ERROR"]);
    assert_eq!(at_server, ["request 3 4 true"]);
    assert_eq!(client.send_request(GET, true), Err(Error::Misuse(Misuse::GoingAway)));
    server.send_response(there, OK, true).unwrap();
    let late = server.find(StreamId::new(late.id()).unwrap()).unwrap();
    server.send_response(late, OK, true).unwrap();
    settle(&mut client, &mut server);
    assert_eq!(server.ended(), Some(Ended::Drained));
    assert_eq!(client.ended(), Some(Ended::Drained));
}

#[test]
fn refused_requests_are_safe_to_retry() {
    let (mut client, mut server) = settled();
    client.send_request(GET, true).unwrap();
    client.send_request(GET, true).unwrap();
    server.abort(ErrorCode::NO_ERROR, b"restart");
    let down = drain(&mut server);
    assert_eq!(feed(&mut client, &down), ["goaway 0 NO_ERROR", "refused 1", "refused 3"]);
}

#[test]
fn a_slow_reader_of_one_stream_stalls_no_other() {
    let mut config = Config::new(Role::Client);
    config.auto_release = false;
    let (mut client, mut server) = ends_with(config, Config::new(Role::Server));
    settle(&mut client, &mut server);
    let keys: Vec<_> = (0..8).map(|_| ask(&mut client, &mut server)).collect();
    for &(_, there) in &keys {
        server.send_response(there, OK, false).unwrap();
        server.send_data(there, vec![1; 256 * 1024], true).unwrap();
    }
    settle(&mut client, &mut server);
    // Twice the window of the connection is held, and nothing was released.
    assert_eq!(client.streams(), 0);
    assert_eq!(client.streams.held(), 0);
    let (here, there) = ask(&mut client, &mut server);
    server.send_response(there, OK, false).unwrap();
    server.send_data(there, vec![1; 400_000], true).unwrap();
    settle(&mut client, &mut server);
    assert_eq!(client.streams.held(), 256 * 1024);
    client.release_capacity(here, 200_000).unwrap();
    assert_eq!(client.release_capacity(here, 200_000), Err(Error::Misuse(Misuse::ReleaseTooMuch)));
    let (events, _) = settle(&mut client, &mut server);
    assert!(events.last().unwrap().ends_with("true"), "{events:?}");
}

#[test]
fn promises_are_refused_by_default_and_accepted_when_enabled() {
    let (mut client, mut server) = settled();
    let (_, there) = ask(&mut client, &mut server);
    assert_eq!(server.push_promise(there, GET), Err(Error::Misuse(Misuse::PushRefused)));

    let mut config = Config::new(Role::Client);
    config.settings.enable_push = true;
    let (mut client, mut server) = ends_with(config, Config::new(Role::Server));
    settle(&mut client, &mut server);
    let (_, there) = ask(&mut client, &mut server);
    let promised = server.push_promise(there, GET).unwrap();
    server.send_response(promised, OK, false).unwrap();
    server.send_data(promised, "pushed", true).unwrap();
    server.send_response(there, OK, true).unwrap();
    let (events, _) = settle(&mut client, &mut server);
    assert_eq!(events, ["promise 2", "response 2 200 false", "data 2 6 true", "response 1 200 true"]);
    assert_eq!((client.streams(), server.streams()), (0, 0));
    assert_eq!((client.streams.reserved(), client.streams.open_peer()), (0, 0));
    assert_eq!((server.streams.reserved(), server.streams.open_local()), (0, 0));
}

#[test]
fn a_stalled_stream_is_reset_and_the_connection_continues() {
    let mut config = Config::new(Role::Client);
    config.settings.initial_window_size = 10;
    config.auto_release = false;
    config.stream_window_max = 10;
    let (mut client, mut server) = ends_with(config, Config::new(Role::Server));
    settle(&mut client, &mut server);
    let (_, there) = ask(&mut client, &mut server);
    server.send_response(there, OK, false).unwrap();
    server.send_data(there, vec![1; 100], true).unwrap();
    settle(&mut client, &mut server);
    let deadline = server.poll_timeout().unwrap();
    assert_eq!(deadline, Limits::DEFAULT.stall_timeout);
    server.handle_timeout(deadline - Duration::from_millis(1)).unwrap();
    assert!(server.contains(there));
    server.handle_timeout(deadline).unwrap();
    assert!(!server.contains(there));
    let Some(Event::Reset { code, error, .. }) = server.poll_event() else { panic!() };
    assert_eq!(code, ErrorCode::ENHANCE_YOUR_CALM);
    assert!(matches!(error, Some(Error::Limit { exceeded: crate::error::Exceeded::Stalled, .. })));
}

#[test]
fn settings_that_are_not_acknowledged_end_the_connection() {
    // RFC 9113 §6.5.3: a connection error, SETTINGS_TIMEOUT.
    let mut server = Connection::new(Role::Server, Config::new(Role::Server)).unwrap();
    assert_eq!(server.poll_timeout(), Some(Duration::ZERO));
    let start = Duration::from_secs(1_000_003);
    server.handle_timeout(start).unwrap();
    let deadline = server.poll_timeout().unwrap();
    assert_eq!(deadline, start + Limits::DEFAULT.settings_timeout);
    server.handle_timeout(deadline - Duration::from_millis(1)).unwrap();
    let error = server.handle_timeout(deadline).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::SETTINGS_TIMEOUT));
    assert_eq!(server.ended(), Some(Ended::Failed(error)));
}

#[test]
fn an_upgraded_request_is_stream_1() {
    let mut config = Config::new(Role::Client);
    config.settings.initial_window_size = 100_000;
    let value = upgrade::encode_http2_settings(&config.settings);
    let (mut client, here) = Connection::from_upgrade_client(config, RequestKind::Plain).unwrap();
    let (mut server, there) =
        Connection::from_upgrade_server(Config::new(Role::Server), value.as_bytes(), RequestKind::Plain)
            .unwrap();
    assert_eq!((here.id(), there.id()), (1, 1));
    assert_eq!(server.peer_settings().initial_window_size, 100_000);
    server.send_response(there, OK, true).unwrap();
    let (events, _) = settle(&mut client, &mut server);
    assert!(events.contains(&"response 1 200 true".into()), "{events:?}");
    assert_eq!(client.send_request(GET, true).unwrap().id(), 3);
}

#[test]
fn the_settings_of_an_upgrade_apply_without_an_acknowledgement() {
    // RFC 7540 §3.2.1: the server may use the table and the windows before it saw a SETTINGS frame.
    let mut config = Config::new(Role::Client);
    config.settings.initial_window_size = 100_000;
    config.settings.header_table_size = 8_192;
    let value = upgrade::encode_http2_settings(&config.settings);
    let (mut client, _) = Connection::from_upgrade_client(config, RequestKind::Plain).unwrap();
    let (mut server, there) =
        Connection::from_upgrade_server(Config::new(Role::Server), value.as_bytes(), RequestKind::Plain)
            .unwrap();
    assert_eq!(client.acknowledged_settings().header_table_size, 8_192);
    server.send_response(there, OK, false).unwrap();
    server.send_data(there, vec![7; 60_000], true).unwrap();
    let down = drain(&mut server);
    let events = feed(&mut client, &down);
    assert!(events.last().unwrap().ends_with("true"), "{events:?}");
    settle(&mut client, &mut server);
    assert_eq!((client.ended(), server.ended()), (None, None));
}

#[test]
fn no_frame_follows_the_goaway_that_ends_a_connection() {
    // RFC 9113 §5.4.1: the reason in GOAWAY is the reason for every stream.
    let (mut client, mut server) = settled();
    let (_, there) = ask(&mut client, &mut server);
    server.abort(ErrorCode::ENHANCE_YOUR_CALM, b"enough");
    server.reset(there, ErrorCode::INTERNAL_ERROR).unwrap();
    assert!(!server.contains(there));
    let down = drain(&mut server);
    assert_eq!(feed(&mut client, &down), ["goaway 1 ENHANCE_YOUR_CALM"]);
}

#[test]
fn a_cancelled_stream_is_reset_before_the_next_request_opens() {
    // The peer would refuse the request: it counts the cancelled stream until RST_STREAM arrives (RFC 9113 §5.1.2).
    let mut config = Config::new(Role::Server);
    config.settings.max_concurrent_streams = 2;
    let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
    settle(&mut client, &mut server);
    let keys: Vec<_> = (0..4).map(|_| client.send_request(GET, false).unwrap()).collect();
    settle(&mut client, &mut server);
    client.reset(keys[0], ErrorCode::CANCEL).unwrap();
    client.reset(keys[1], ErrorCode::CANCEL).unwrap();
    let (at_client, at_server) = settle(&mut client, &mut server);
    let expected = ["reset 1 CANCEL false", "reset 3 CANCEL false", "request 5 4 false", "request 7 4 false"];
    assert_eq!(at_server, expected);
    assert!(at_client.is_empty(), "{at_client:?}");
}

#[test]
fn a_request_that_waits_is_idle_for_the_peer() {
    // RFC 9113 §5.1 (idle): any frame but HEADERS and PRIORITY is a connection error, PROTOCOL_ERROR.
    let frames: [&[u8]; 5] = [
        &[0, 0, 4, 8, 0, 0, 0, 0, 3, 0, 0, 0, 1],
        // RFC 9113 §6.9: an increment of 0 is an error of the stream, which an idle stream cannot have.
        &[0, 0, 4, 8, 0, 0, 0, 0, 3, 0, 0, 0, 0],
        &[0, 0, 4, 3, 0, 0, 0, 0, 3, 0, 0, 0, 8],
        &[0, 0, 1, 0, 0, 0, 0, 0, 3, 7],
        &[0, 0, 1, 1, 4, 0, 0, 0, 3, 0x88],
    ];
    for frame in frames {
        let mut config = Config::new(Role::Server);
        config.settings.max_concurrent_streams = 1;
        let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
        settle(&mut client, &mut server);
        client.send_request(GET, true).unwrap();
        let waiting = client.send_request(GET, true).unwrap();
        assert_eq!(waiting.id(), 3);
        drain(&mut client);
        let error = client.handle_input(Duration::ZERO, frame).unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::PROTOCOL_ERROR), "{frame:?}");
        assert_eq!(client.ended(), Some(Ended::Failed(error)), "{frame:?}");
    }
}

/// The streams of the DATA frames of a server, in order, for responses of these lengths to requests without content.
fn order_of_data(requests: &[&[Field<'static>]], lens: &[usize]) -> Vec<u32> {
    let (mut client, mut server) = settled();
    for request in requests {
        client.send_request(request.iter().copied(), true).unwrap();
    }
    settle(&mut client, &mut server);
    for (n, &len) in lens.iter().enumerate() {
        let there = server.find(StreamId::new(1 + 2 * n as u32).unwrap()).unwrap();
        server.send_response(there, OK, false).unwrap();
        server.send_data(there, vec![0; len], true).unwrap();
    }
    let (events, _) = settle(&mut client, &mut server);
    let data = events.iter().filter_map(|event| event.strip_prefix("data ")?.split(' ').next()?.parse().ok());
    let mut order: Vec<u32> = data.collect();
    order.dedup();
    order
}

#[test]
fn streams_of_a_client_without_priorities_take_turns() {
    let order = order_of_data(&[&GET, &GET], &[200_000, 20_000]);
    assert!(order.len() > 3, "{order:?}");
    assert_eq!(*order.last().unwrap(), 1, "the short response ended first: {order:?}");
}

#[test]
fn a_client_that_sends_priorities_has_the_order_of_rfc_9218() {
    let mut urgent = GET.to_vec();
    urgent.push(Field::new(b"priority", b"u=1"));
    // The request without a field has the default, urgency 3 and not incremental, like its successor.
    let order = order_of_data(&[&urgent, &GET, &GET], &[100_000, 100_000, 100_000]);
    assert_eq!(order, [1, 3, 5]);
    let mut incremental = GET.to_vec();
    incremental.push(Field::new(b"priority", b"i"));
    let order = order_of_data(&[&incremental, &incremental], &[100_000, 100_000]);
    assert!(order.len() > 4, "{order:?}");
}

#[test]
fn small_window_updates_on_two_streams_do_not_evade_the_stall_timeout() {
    let mut config = Config::new(Role::Client);
    config.settings.initial_window_size = 10;
    config.stream_window_max = 10;
    config.auto_release = false;
    let (mut client, mut server) = ends_with(config, Config::new(Role::Server));
    settle(&mut client, &mut server);
    let streams = [ask(&mut client, &mut server), ask(&mut client, &mut server)];
    for (_, there) in streams {
        server.send_response(there, OK, false).unwrap();
        server.send_data(there, vec![1; 60_000], true).unwrap();
    }
    settle(&mut client, &mut server);
    let timeout = Limits::DEFAULT.stall_timeout;
    let mut now = Duration::ZERO;
    // One byte of window for one stream and then the other, all the time.
    for turn in 0.. {
        now += Duration::from_secs(7);
        server.handle_timeout(now).unwrap();
        while server.poll_event().is_some() {}
        if !streams.iter().any(|&(_, there)| server.contains(there)) {
            break;
        }
        assert!(now < timeout + timeout / 16 + Duration::from_secs(14), "not reset at {now:?}");
        let id = streams[turn % 2].0.id() as u8;
        let update = [0, 0, 4, 8, 0, 0, 0, 0, id, 0, 0, 0, 1];
        let (taken, event) = server.handle_input(now, &update).unwrap();
        assert!(taken == update.len() && event.is_none());
        drain(&mut server);
    }
    assert!(now >= timeout);
}

#[test]
fn a_frame_or_field_block_that_never_ends_has_a_deadline() {
    let preface = [&PREFACE[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    // HEADERS without END_HEADERS, the beginning of HEADERS, and the beginning of a header.
    let beginnings: [&[u8]; 3] =
        [&[0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82], &[0, 0, 9, 1, 4, 0, 0, 0, 1, 0x82], &[0, 0]];
    let timeout = Limits::DEFAULT.field_block_timeout;
    for beginning in beginnings {
        for trickles in [false, true] {
            let mut server = Connection::new(Role::Server, Config::new(Role::Server)).unwrap();
            let start = Duration::from_secs(100);
            server.handle_input(start, &preface).unwrap();
            assert!(server.handle_input(start, &[0, 0, 0, 4, 1, 0, 0, 0, 0]).unwrap().1.is_some());
            drain(&mut server);
            server.handle_timeout(start).unwrap();
            assert_eq!(server.poll_timeout(), None);
            let (taken, event) = server.handle_input(start, beginning).unwrap();
            assert!(taken == beginning.len() && event.is_none());
            if trickles && beginning.len() != 2 {
                // CONTINUATION without END_HEADERS, or one byte more.
                let more: &[u8] =
                    if beginning[2] == 1 { &[0, 0, 1, 9, 0, 0, 0, 0, 1, 0x84] } else { &[0x84] };
                server.handle_input(start + timeout / 2, more).unwrap();
            }
            assert_eq!(server.poll_timeout(), Some(start + timeout));
            // Output does not extend the deadline.
            server.send_ping(start + timeout / 2, *b"01234567").unwrap();
            drain(&mut server);
            server.handle_timeout(start + timeout / 2).unwrap();
            assert_eq!(server.poll_timeout(), Some(start + timeout));
            let error = server.handle_timeout(start + timeout).unwrap_err();
            assert_eq!(error.code(), Some(ErrorCode::ENHANCE_YOUR_CALM));
        }
    }
}

#[test]
fn a_field_block_that_ends_has_no_deadline() {
    let (_, mut server) = settled();
    let now = Duration::from_secs(9);
    for (bytes, deadline) in [
        (&[0, 0, 3, 1, 0, 0, 0, 0, 1, 0x82, 0x86, 0x84][..], true),
        (&[0, 0, 1, 9, 4, 0, 0, 0, 1, 0x41], false),
    ] {
        // The last field is cut: a connection error ends the test's second step, after the block is complete.
        let result = server.handle_input(now, bytes).map(|_| ());
        assert_eq!(result.is_ok(), deadline);
        assert_eq!(server.poll_timeout().is_some_and(|at| at > now), deadline);
    }
}

#[test]
fn resets_after_complete_responses_are_not_limited() {
    // Go, Envoy and browsers cancel a stream whose response they have read to the end.
    for ended in [true, false] {
        let (mut client, mut server) = settled();
        let rare = crate::rate_limit::Rate::new(20, 1);
        (server.config.limits.late_resets, server.config.limits.peer_resets) = (rare, rare);
        for _ in 0..500 {
            let here = client.send_request(GET, ended).unwrap();
            settle(&mut client, &mut server);
            let there = server.find(StreamId::new(here.id()).unwrap()).unwrap();
            server.send_response(there, OK, true).unwrap();
            settle(&mut client, &mut server);
            let id = here.id().to_be_bytes();
            let reset = [0, 0, 4, 3, 0, id[0], id[1], id[2], id[3], 0, 0, 0, 8];
            server.handle_input(Duration::ZERO, &reset).unwrap();
            let _ = client.reset(here, ErrorCode::CANCEL);
            drain(&mut client);
        }
        assert_eq!(server.ended(), None);
    }
}

#[test]
fn window_is_granted_once_with_and_without_an_acknowledgement() {
    // RFC 9113 §6.9.2: the peer adds the difference of the settings to every window.
    for initial in [1 << 20, i32::MAX as u32] {
        let mut config = Config::new(Role::Server);
        config.settings.initial_window_size = initial;
        config.connection_window = i32::MAX as u32;
        config.memory_max = 8 << 30;
        let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
        // The client sends before it has read the server's SETTINGS.
        let here = client.send_request(GET, false).unwrap();
        client.send_data(here, vec![1; 60_000], false).unwrap();
        let up = drain(&mut client);
        feed(&mut server, &up);
        settle(&mut client, &mut server);
        assert_eq!((client.ended(), server.ended()), (None, None));
        let slot = client.streams.slot(here).unwrap();
        let (window, _) = client.streams.windows(slot);
        assert!(window <= i64::from(initial), "{window} of {initial}");
        let more = client.send_data(here, vec![1; 100_000], true);
        assert_eq!(more, Ok(()));
        settle(&mut client, &mut server);
        assert_eq!((client.ended(), server.ended()), (None, None));
    }
}

#[test]
fn a_lowered_initial_window_is_not_grown_again() {
    let (mut client, mut server) = settled();
    let upload = |client: &mut Connection, server: &mut Connection| {
        let here = client.send_request(GET, false).unwrap();
        client.send_data(here, vec![7; 4 << 20], true).unwrap();
        settle(client, server);
        let there = server.find(StreamId::new(here.id()).unwrap()).unwrap();
        server.send_response(there, OK, true).unwrap();
        settle(client, server);
    };
    upload(&mut client, &mut server);
    assert!(server.streams.recv_target() > 256 * 1024);
    let settings = Settings { initial_window_size: 20_000, ..server.config.settings };
    server.update_settings(settings).unwrap();
    settle(&mut client, &mut server);
    upload(&mut client, &mut server);
    assert_eq!(server.streams.recv_target(), 20_000);
    server.update_settings(Settings { initial_window_size: 60_000, ..settings }).unwrap();
    settle(&mut client, &mut server);
    assert_eq!(server.streams.recv_target(), 60_000);
    // The pause between two probes has passed.
    server.handle_timeout(Duration::from_secs(1)).unwrap();
    upload(&mut client, &mut server);
    assert!(server.streams.recv_target() > 60_000);
}

#[test]
fn a_client_reads_regardless_of_its_own_output() {
    let (mut client, mut server) = settled();
    let value = vec![b'v'; 16_000];
    let fields = || GET.into_iter().chain([Field::new(b"x-long", &value)]);
    for _ in 0..250 {
        client.send_request(fields(), true).unwrap();
    }
    assert!(client.memory().output > 3 << 20);
    assert!(client.wants_read(), "a server that waits for the client to read would wait for ever");
    let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let (taken, _) = client.handle_input(Duration::ZERO, &ping).unwrap();
    assert_eq!(taken, ping.len());
    // The server answers what it reads, and stops reading while its own output is long.
    for _ in 0..10 {
        let up = drain(&mut client);
        let mut at = 0;
        while let Ok((taken, Some(event))) = server.handle_input(Duration::ZERO, &up[at..]) {
            at += taken;
            if let Event::Request { stream, .. } = event {
                let status = Field::known(Token::Status, b"200");
                server.send_response(stream, [status, Field::new(b"x-long", &value)], true).unwrap();
            }
        }
    }
    assert!(!server.wants_read());
    assert!(server.memory().output <= (server.config.output_max + 32_000) as u64);
}

#[test]
fn the_memory_of_one_connection_is_bounded() {
    let mut config = Config::new(Role::Server);
    config.auto_release = false;
    let (memory_max, output_max) = (config.memory_max, config.output_max as u64);
    let mut client_config = Config::new(Role::Client);
    client_config.memory_max = 1 << 40;
    let (mut client, mut server) = ends_with(client_config, config);
    settle(&mut client, &mut server);
    // 256 uploads that no one reads, and 256 downloads whose client grants no window.
    let keys: Vec<_> = (0..256).map(|_| client.send_request(GET, false).unwrap()).collect();
    for &key in &keys {
        client.send_data(key, vec![1; 1 << 20], false).unwrap();
    }
    settle(&mut client, &mut server);
    let there: Vec<_> =
        keys.iter().map(|key| server.find(StreamId::new(key.id()).unwrap()).unwrap()).collect();
    for &key in &there {
        server.send_response(key, OK, false).unwrap();
        for _ in 0..1_000 {
            let len = server.send_capacity(key).min(1 << 16);
            if len == 0 {
                break;
            }
            server.send_data(key, vec![1; len], false).unwrap();
        }
    }
    let memory = server.memory();
    assert!(memory.held > memory_max / 2, "{memory:?}");
    assert!(memory.held <= memory_max - memory_max / 4 - output_max, "{memory:?}");
    assert!(memory.queued <= memory_max / 4 + 256 * 1024, "{memory:?}");
    assert!(memory.total() <= memory_max, "{memory:?}");
    // Memory that the caller reports counts towards the same limit, and new requests are refused above it.
    server.set_caller_memory(memory_max + 1);
    let (events, _) = {
        client.reset(keys[0], ErrorCode::CANCEL).unwrap();
        client.send_request(GET, true).unwrap();
        settle(&mut client, &mut server)
    };
    assert!(events.contains(&"refused 513".into()), "{:?}", events.last());
    server.set_caller_memory(0);
    client.reset(keys[1], ErrorCode::CANCEL).unwrap();
    client.send_request(GET, true).unwrap();
    let (_, at_server) = settle(&mut client, &mut server);
    assert!(at_server.contains(&"request 515 4 true".into()), "{:?}", at_server.last());
}

#[test]
fn input_is_not_read_while_too_many_answers_are_buffered() {
    let (mut client, mut server) = settled();
    let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let mut config = Config::new(Role::Server);
    config.limits.answers_len_max = 16 * 17;
    server.config = config;
    let bytes = ping.repeat(40);
    let (taken, event) = server.handle_input(Duration::ZERO, &bytes).unwrap();
    assert!(event.is_none());
    assert_eq!(taken, 17 * 17);
    assert!(!server.wants_read());
    let down = drain(&mut server);
    assert_eq!(down.len(), 17 * 17);
    assert!(server.wants_read());
    let (taken, _) = server.handle_input(Duration::ZERO, &bytes[taken..]).unwrap();
    assert_eq!(taken, 17 * 17);
    assert!(client.handle_input(Duration::ZERO, &down).unwrap().1.is_none());
}

#[test]
fn the_window_of_the_connection_is_exact_to_the_byte() {
    // RFC 9113 §6.9.1: a connection error, FLOW_CONTROL_ERROR, for whole frames and for frames that arrive in parts.
    for (last, fits) in [(16_382, true), (16_383, true), (16_384, false)] {
        for cut in [usize::MAX, 5_000] {
            let mut config = Config::new(Role::Server);
            config.auto_release = false;
            // Nothing is granted beyond the first window of the connection, and streams have more.
            config.memory_max = 0;
            let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
            settle(&mut client, &mut server);
            client.send_request(GET, false).unwrap();
            settle(&mut client, &mut server);
            let lens = [16_384, 16_384, 16_384, last];
            let mut failed = None;
            for len in lens {
                let mut frame = vec![0, (len >> 8) as u8, len as u8, 0, 0, 0, 0, 0, 1];
                frame.resize(9 + len, 7);
                for part in frame.chunks(cut) {
                    let mut at = 0;
                    while failed.is_none() && at < part.len() {
                        match server.handle_input(Duration::ZERO, &part[at..]) {
                            Ok((taken, _)) => at += taken,
                            Err(error) => failed = Some(error.code()),
                        }
                    }
                }
            }
            let expected = (!fits).then_some(Some(ErrorCode::FLOW_CONTROL_ERROR));
            assert_eq!(failed, expected, "{last} cut at {cut}");
            assert_eq!(server.ended().is_some(), !fits);
        }
    }
}

#[test]
fn settings_may_raise_a_window_to_its_maximum_and_no_further() {
    // RFC 9113 §6.9.2: a connection error, FLOW_CONTROL_ERROR, above 2^31-1.
    for (initial, fits) in [(99_999_u32, true), (100_000, true), (100_001, false)] {
        let (mut client, mut server) = settled();
        let (gone, _) = ask(&mut client, &mut server);
        ask(&mut client, &mut server);
        let initial_before = client.peer_settings().initial_window_size;
        // The windows move below their maximum first, so that the increments fit.
        let lower = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0];
        client.handle_input(Duration::ZERO, &lower).unwrap();
        // A stream with a larger window that is closed does not count.
        for (stream, below) in [(1, 50_000), (3, 100_000)] {
            let [a, b, c, d] = (i32::MAX as u32 - below).to_be_bytes();
            client.handle_input(Duration::ZERO, &[0, 0, 4, 8, 0, 0, 0, 0, stream, a, b, c, d]).unwrap();
        }
        client.reset(gone, ErrorCode::CANCEL).unwrap();
        let [a, b, c, d] = initial.to_be_bytes();
        let raise = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, a, b, c, d];
        let result = client.handle_input(Duration::ZERO, &raise).map(|_| ());
        assert_eq!(result.is_ok(), fits, "{initial} after {initial_before}");
        if let Err(error) = result {
            assert_eq!(error.code(), Some(ErrorCode::FLOW_CONTROL_ERROR));
        }
    }
}

#[test]
fn a_tunnel_has_no_trailers_and_a_refused_one_has() {
    // RFC 9113 §8.5: nothing but DATA.
    let connect =
        [Field::known(Token::Method, b"CONNECT"), Field::known(Token::Authority, b"example.org:443")];
    let trailer = [Field::new(b"x-sum", b"1")];
    for (status, is_tunnel) in [(&b"200"[..], true), (b"403", false)] {
        let (mut client, mut server) = settled();
        let here = client.send_request(connect, false).unwrap();
        assert_eq!(client.send_trailers(here, trailer), Err(Misuse::MessageInvalid.into()));
        settle(&mut client, &mut server);
        let there = server.find(here.stream_id()).unwrap();
        server.send_response(there, [Field::known(Token::Status, status)], false).unwrap();
        assert_eq!(server.send_trailers(there, trailer).is_err(), is_tunnel);
    }
}

#[test]
fn only_headers_and_rst_stream_are_allowed_on_a_promised_stream() {
    // RFC 9113 §5.1 (reserved (remote)): a connection error, PROTOCOL_ERROR.
    let mut config = Config::new(Role::Client);
    config.settings.enable_push = true;
    let (mut client, mut server) = ends_with(config, Config::new(Role::Server));
    settle(&mut client, &mut server);
    let (_, there) = ask(&mut client, &mut server);
    server.push_promise(there, GET).unwrap();
    settle(&mut client, &mut server);
    let error = client.handle_input(Duration::ZERO, &[0, 0, 4, 8, 0, 0, 0, 0, 2, 0, 0, 0, 9]).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::PROTOCOL_ERROR));
    assert_eq!(client.ended(), Some(Ended::Failed(error)));
}

fn events_of(connection: &mut Connection, frame: &Frame) -> Vec<String> {
    let mut events = feed(connection, &frame.to_bytes());
    while let Some(event) = connection.poll_event() {
        events.push(describe(&event));
    }
    events
}

#[test]
fn goaway_refuses_the_streams_above_it_and_the_requests_that_wait() {
    let mut config = Config::new(Role::Server);
    config.settings.max_concurrent_streams = 2;
    let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
    settle(&mut client, &mut server);
    for _ in 0..3 {
        client.send_request(GET, true).unwrap();
    }
    assert_eq!((client.streams(), client.open_capacity()), (3, 0));
    drain(&mut client);
    let events = events_of(&mut client, &Frame::goaway(1, 0, ""));
    assert_eq!(events, ["goaway 1 NO_ERROR", "refused 5", "refused 3"]);
    assert_eq!((client.streams(), client.open_capacity()), (1, 1));
    // RFC 9113 §6.8: a repeated one may name the same stream.
    assert_eq!(events_of(&mut client, &Frame::goaway(1, 0, "")), ["goaway 1 NO_ERROR"]);
    assert_eq!(client.send_request(GET, true), Err(Misuse::GoingAway.into()));
}

#[test]
fn a_shutdown_is_announced_once() {
    let (mut client, mut server) = settled();
    ask(&mut client, &mut server);
    server.shutdown();
    assert!(!drain(&mut server).is_empty());
    server.shutdown();
    assert!(drain(&mut server).is_empty());
    // The second GOAWAY follows the first answer to the PING, and no other one.
    let pong = Frame::ping(control::DRAIN).flag(1);
    feed(&mut server, &pong.to_bytes());
    let goaway = Frame::goaway(1, 0, "").to_bytes();
    assert_eq!(drain(&mut server), goaway);
    feed(&mut server, &pong.to_bytes());
    assert!(drain(&mut server).is_empty());
    server.abort(ErrorCode::NO_ERROR, b"");
    drain(&mut server);
    server.shutdown();
    assert!(drain(&mut server).is_empty());
    assert_eq!(server.send_ping(Duration::ZERO, [0; 8]), Err(Misuse::ConnectionClosed.into()));
}

#[test]
fn only_a_client_receives_altsvc_and_origin() {
    let (mut client, mut server) = settled();
    server.send_altsvc(None, b"https://example.org", b"h2=\":443\"").unwrap();
    server.send_origin([&b"https://example.org"[..], b"https://example.com"]).unwrap();
    assert_eq!(settle(&mut client, &mut server).0, ["altsvc", "origin 2"]);
    // RFC 7838 §4: on stream 0 it names an origin. RFC 8336 §2.1: it comes on stream 0.
    server.send_altsvc(None, b"", b"h2=\":443\"").unwrap();
    assert!(settle(&mut client, &mut server).0.is_empty());
    assert!(events_of(&mut client, &Frame::new(kind::ORIGIN, 1, "\0\x01a")).is_empty());
    for frame in [Frame::new(kind::ALTSVC, 0, "\0\x01ah2"), Frame::new(kind::ORIGIN, 0, "\0\x01a")] {
        assert!(events_of(&mut server, &frame).is_empty());
    }
    let not_server = Err(Error::Misuse(Misuse::NotServer));
    assert_eq!(client.send_altsvc(None, b"https://example.org", b"h2"), not_server);
    assert_eq!(client.send_origin([&b"https://example.org"[..]]), not_server);
}

#[test]
fn settings_that_must_not_change_cannot_be_changed() {
    let mut config = Config::new(Role::Server);
    config.settings.enable_connect_protocol = true;
    let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
    settle(&mut client, &mut server);
    let settings = config.settings;
    let changed = [
        Settings { enable_connect_protocol: false, ..settings },
        Settings { no_rfc7540_priorities: !settings.no_rfc7540_priorities, ..settings },
        Settings { enable_push: !settings.enable_push, ..settings },
    ];
    for settings in changed {
        assert_eq!(server.update_settings(settings), Err(Misuse::SettingInvalid.into()));
    }
    server.update_settings(Settings { max_concurrent_streams: 7, ..settings }).unwrap();
    let (at_client, at_server) = settle(&mut client, &mut server);
    assert_eq!((at_client, at_server), (vec!["settings".into()], vec!["acknowledged".into()]));
    // A client may enable push and disable it.
    let settings = Config::new(Role::Client).settings;
    client.update_settings(Settings { enable_push: true, ..settings }).unwrap();
    client.update_settings(settings).unwrap();
}

#[test]
fn unread_answers_of_every_kind_stop_reading() {
    // CVE-2019-9512, 9514, 9515: SETTINGS, PING, errors of streams that are open and that are not, requests that are too large.
    let malformed = |stream| Frame::headers(stream, &[(":method", "GET")]);
    let open = [Frame::get(1), Frame::get(3), Frame::get(5)];
    let floods = [
        vec![Frame::settings(&[]); 3],
        vec![Frame::ping([0; 8]); 3],
        [&open[..], &[1, 3, 5].map(|stream| Frame::window_update(stream, 0))].concat(),
        [1, 3, 5].map(malformed).to_vec(),
        [1, 3, 5].map(|stream| Frame::headers(stream, &[("x-long", &"x".repeat(2_000))])).to_vec(),
    ];
    for flood in floods {
        let mut config = Config::new(Role::Server);
        config.limits.answers_len_max = 16;
        config.settings.max_header_list_size = 1_000;
        let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
        settle(&mut client, &mut server);
        let mut bytes = &join(&flood)[..];
        while let (taken @ 1.., _) = server.handle_input(Duration::ZERO, bytes).unwrap() {
            bytes = &bytes[taken..];
        }
        assert!(!server.wants_read(), "{flood:?}");
        assert!(!drain(&mut server).is_empty());
        assert!(server.wants_read());
    }
}

#[test]
fn reset_promises_make_room_for_others() {
    let mut config = Config::new(Role::Client);
    config.settings.enable_push = true;
    config.limits.promises_max = 1;
    let (mut client, mut server) = ends_with(config, Config::new(Role::Server));
    settle(&mut client, &mut server);
    let (_, there) = ask(&mut client, &mut server);
    for promised in [2, 4] {
        server.push_promise(there, GET).unwrap();
        assert_eq!(settle(&mut client, &mut server).0, [alloc::format!("promise {promised}")]);
        let key = client.find(StreamId::new(promised).unwrap()).unwrap();
        client.reset(key, ErrorCode::CANCEL).unwrap();
        settle(&mut client, &mut server);
    }
}

#[test]
fn a_slow_field_block_has_the_deadline_of_its_first_frame() {
    let (_, mut server) = settled();
    let begin = Frame::get(1).no_flag(4).to_bytes();
    server.handle_input(Duration::ZERO, &begin).unwrap();
    let block_len = server.memory().input;
    assert_eq!(block_len, begin.len() as u64 - 9);
    // A part of a frame counts as well.
    server.handle_input(Duration::ZERO, &[0, 0, 1, 9]).unwrap();
    assert_eq!(server.memory().input, block_len + 4);
    server.handle_input(Duration::ZERO, &[0, 0, 0, 0, 1, b'x']).unwrap();
    let deadline = server.poll_timeout().unwrap();
    let mut now = Duration::from_secs(1);
    while now < deadline {
        // Each frame arrives in two parts.
        let frame = Frame::continuation(1, "x").no_flag(4).to_bytes();
        for piece in frame.chunks(5) {
            server.handle_input(now, piece).unwrap();
        }
        now += deadline / 4;
    }
    server.handle_timeout(now).unwrap_err();
    assert!(server.ended().is_some());
}

#[test]
fn memory_that_the_caller_reports_counts_up_to_its_bound() {
    for (bytes, is_taken) in [(0, true), (999_999, true), (1_000_000, true), (1_000_001, false)] {
        let mut config = Config::new(Role::Server);
        config.memory_max = 1_000_000;
        let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
        server.set_caller_memory(bytes);
        assert_eq!(server.memory().caller, bytes);
        client.send_request(GET, true).unwrap();
        let (at_client, at_server) = settle(&mut client, &mut server);
        assert_eq!(at_server.contains(&"request 1 4 true".into()), is_taken, "{bytes}");
        assert_eq!(at_client.contains(&"refused 1".into()), !is_taken, "{bytes}");
    }
    // DATA that the caller holds and the memory that it reports share the window of the connection.
    let mut config = Config::new(Role::Server);
    (config.memory_max, config.output_max, config.auto_release) = (1 << 20, 1024, false);
    config.connection_window = 512 << 10;
    let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
    server.set_caller_memory(256 << 10);
    let upload = client.send_request(GET, false).unwrap();
    client.send_data(upload, vec![7; 1 << 20], false).unwrap();
    settle(&mut client, &mut server);
    let granted = server.memory().held + server.streams.recv_window() as u64;
    assert_eq!(granted, 512 << 10, "the first window, and no more");
}

#[test]
fn a_connection_wants_to_write_a_request_once_it_may_open() {
    let mut config = Config::new(Role::Server);
    config.settings.max_concurrent_streams = 1;
    let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
    settle(&mut client, &mut server);
    let (_, there) = ask(&mut client, &mut server);
    client.send_request(GET, true).unwrap();
    settle(&mut client, &mut server);
    assert!(!client.wants_write());
    server.send_response(there, OK, true).unwrap();
    feed(&mut client, &drain(&mut server));
    assert!(client.out.is_empty() && client.wants_write());
    // Nothing is opened after the end.
    client.handle_eof();
    assert!(!client.wants_write());
}

#[test]
fn a_service_is_announced_for_an_origin_or_for_a_stream() {
    // RFC 7838 §4: stream 0 with the origin, or the stream of a request without one.
    let (mut client, mut server) = settled();
    let (_, there) = ask(&mut client, &mut server);
    server.send_altsvc(None, b"https://example.org", b"h2=\":443\"").unwrap();
    server.send_altsvc(Some(there), b"", b"clear").unwrap();
    let bytes = drain(&mut server);
    let frames = wireloom_testing::http2::split(&bytes);
    let announced: Vec<(u8, u32)> = frames.iter().map(|frame| (frame.kind, frame.stream)).collect();
    assert_eq!(announced, [(10, 0), (10, 1)]);
    assert_eq!(feed(&mut client, &bytes), ["altsvc", "altsvc"]);
    server.send_response(there, OK, true).unwrap();
    assert_eq!(server.send_altsvc(Some(there), b"", b"clear"), Err(Misuse::StreamGone.into()));
}

#[test]
fn an_idle_connection_frees_its_memory_and_continues() {
    let mut config = Config::new(Role::Server);
    config.settings.max_concurrent_streams = 1;
    let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
    settle(&mut client, &mut server);
    // Requests that wait, queued content, output, an incomplete frame and a reset leave memory behind.
    let first = client.send_request(GET, false).unwrap();
    let second = client.send_request(GET, true).unwrap();
    assert_eq!((first.slot(), second.slot()), (0, 1));
    client.send_data(first, vec![7; 1 << 20], false).unwrap();
    let bytes = drain(&mut client);
    bytes.chunks(7).for_each(|bytes| drop(feed(&mut server, bytes)));
    assert!(server.reader.capacity() > 0);
    client.shrink();
    assert_eq!(client.streams(), 2, "what is in use stays");
    client.reset(first, ErrorCode::CANCEL).unwrap();
    client.reset(second, ErrorCode::CANCEL).unwrap();
    settle(&mut client, &mut server);
    for end in [&mut client, &mut server] {
        end.shrink();
        assert_eq!((end.out.bytes.capacity(), end.reader.capacity(), end.streams.capacity()), (0, 0, 0));
        assert_eq!((end.fields.len(), end.scratch.capacity(), end.pending.capacity()), (0, 0, 0));
    }
    let (_, there) = ask(&mut client, &mut server);
    server.send_response(there, OK, true).unwrap();
    assert_eq!(settle(&mut client, &mut server).0, ["response 5 200 true"]);
}
