//! The opening of streams: requests that wait for room, and promises.

use super::*;

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
fn the_last_identifier_is_used_and_no_other_one_after_it() {
    // RFC 9113 §5.1.1: then a client establishes a new connection.
    let (mut client, mut server) = settled();
    client.streams.set_next_local(StreamId::MAX);
    assert!(client.has_stream_ids());
    let (here, there) = ask(&mut client, &mut server);
    assert_eq!(here.stream_id(), StreamId::MAX);
    assert!(!client.has_stream_ids() && !client.is_going_away());
    assert_eq!(client.send_request(GET, true), Err(Misuse::StreamIdsExhausted.into()));
    server.send_response(there, OK, true).unwrap();
    assert_eq!(settle(&mut client, &mut server).0, ["response 2147483647 200 true"]);
    // A frame on a lower stream, which is closed, is no error of the connection.
    let reset = Frame::rst_stream(1, 8).to_bytes();
    assert!(feed(&mut client, &reset).is_empty());
}
