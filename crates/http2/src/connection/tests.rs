//! Whole connections, joined in memory.

use super::*;
use crate::error::ErrorCode;
use crate::field::{Field, Token};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

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

/// What an event says, in words, with the streams in order of appearance.
fn tell(event: &Event<'_>) -> String {
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
    let (mut at, mut heard) = (0, vec![]);
    loop {
        let (taken, event) = to.handle_input(Duration::ZERO, &bytes[at..]).unwrap();
        at += taken;
        match event {
            Some(event) => heard.push(tell(&event)),
            None => {
                assert_eq!(at, bytes.len());
                return heard;
            }
        }
    }
}

/// Moves bytes both ways until there are none: what the client heard, and the server.
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
        at_client.push(tell(&event));
    }
    while let Some(event) = server.poll_event() {
        at_server.push(tell(&event));
    }
    (at_client, at_server)
}

fn settled() -> (Connection, Connection) {
    let (mut client, mut server) = ends();
    let heard = settle(&mut client, &mut server);
    assert_eq!(heard.0, ["settings", "acknowledged"]);
    assert_eq!(heard.1, ["settings", "acknowledged"]);
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
    let (heard, _) = settle(&mut client, &mut server);
    assert_eq!(heard, ["response 1 200 false", "data 1 5 false", "data 1 0 true"]);
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
    let (heard, _) = settle(&mut client, &mut server);
    let total: usize = heard
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
    let (heard, _) = settle(&mut client, &mut server);
    assert_eq!(heard.first().unwrap(), "informational 1 103");
    assert_eq!(heard.last().unwrap(), "trailers 1 1");
    assert_eq!((client.streams(), server.streams()), (0, 0));
}

#[test]
fn requests_wait_for_room_and_open_in_order() {
    let mut config = Config::new(Role::Server);
    config.settings.max_concurrent_streams = 2;
    let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
    settle(&mut client, &mut server);
    let keys: Vec<_> = (0..5).map(|_| client.send_request(GET, true).unwrap()).collect();
    let (_, heard) = settle(&mut client, &mut server);
    assert_eq!(heard, ["request 1 4 true", "request 3 4 true"]);
    client.reset(keys[3], ErrorCode::CANCEL).unwrap();
    for (at, expected) in [(0, "request 5 4 true"), (1, "request 9 4 true")] {
        let id = StreamId::new(keys[at].id()).unwrap();
        server.send_response(server.find(id).unwrap(), OK, true).unwrap();
        let (_, heard) = settle(&mut client, &mut server);
        assert_eq!(heard, [expected]);
    }
}

#[test]
fn a_graceful_end_lets_streams_finish_and_refuses_new_ones() {
    let (mut client, mut server) = settled();
    let (_, there) = ask(&mut client, &mut server);
    server.shutdown();
    let late = client.send_request(GET, true).unwrap();
    let (heard, at_server) = settle(&mut client, &mut server);
    // RFC 9113 §6.8: what was under way between the two GOAWAY frames still counts.
    assert_eq!(heard, ["goaway 2147483647 NO_ERROR", "goaway 3 NO_ERROR"]);
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
    let (heard, _) = settle(&mut client, &mut server);
    assert!(heard.last().unwrap().ends_with("true"), "{heard:?}");
}

#[test]
fn promises_are_refused_by_default_and_taken_when_enabled() {
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
    let (heard, _) = settle(&mut client, &mut server);
    assert_eq!(heard, ["promise 2", "response 2 200 false", "data 2 6 true", "response 1 200 true"]);
    assert_eq!((client.streams(), server.streams()), (0, 0));
    assert_eq!((client.streams.reserved(), client.streams.open_peer()), (0, 0));
    assert_eq!((server.streams.reserved(), server.streams.open_local()), (0, 0));
}

#[test]
fn a_stream_that_is_stalled_for_long_is_reset_and_the_connection_lives() {
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
    let (heard, _) = settle(&mut client, &mut server);
    assert!(heard.contains(&"response 1 200 true".into()), "{heard:?}");
    assert_eq!(client.send_request(GET, true).unwrap().id(), 3);
}

#[test]
fn input_waits_while_too_many_answers_do() {
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
