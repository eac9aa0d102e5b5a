//! The end of a connection.

use super::*;

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
fn a_ping_of_the_caller_is_not_taken_for_one_of_the_connection() {
    // The caller may choose any payload.
    let (mut client, mut server) = settled();
    ask(&mut client, &mut server);
    server.send_ping(Duration::ZERO, control::DRAIN).unwrap();
    server.shutdown();
    drain(&mut server);
    let pong = Frame::ping(control::DRAIN).flag(1);
    assert_eq!(events_of(&mut server, &pong), ["pong"]);
    assert!(drain(&mut server).is_empty(), "the client has not read GOAWAY");
    assert!(events_of(&mut server, &pong).is_empty());
    assert_eq!(drain(&mut server), Frame::goaway(1, 0, "").to_bytes());

    let (mut client, mut server) = settled();
    server.config.limits.pings_unacknowledged_max = 1;
    let upload = client.send_request(GET, false).unwrap();
    client.send_data(upload, vec![7; 200_000], false).unwrap();
    let bytes = drain(&mut client);
    feed(&mut server, &bytes);
    let mut sent = drain(&mut server);
    server.send_ping(Duration::ZERO, control::PROBE).unwrap();
    sent.extend(drain(&mut server));
    let probe = Frame::ping(control::PROBE).to_bytes();
    assert_eq!(sent.windows(probe.len()).filter(|bytes| *bytes == probe).count(), 2);
    let pong = Frame::ping(control::PROBE).flag(1);
    assert!(events_of(&mut server, &pong).is_empty(), "the connection sent the first PING");
    assert_eq!(events_of(&mut server, &pong), ["pong"]);
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

// RFC 9113 §8.7: the peer has not seen them, so they are safe to send again.
#[test]
fn requests_that_were_not_sent_are_refused_however_the_connection_ends() {
    type Ending = fn(&mut Connection);
    // The frames that follow the one that was sent in part; none at all if the transport has failed.
    let endings: [(Ending, Option<&[u8]>); 4] = [
        (Connection::handle_disconnect, None),
        (Connection::handle_eof, Some(&[])),
        (|client| client.abort(ErrorCode::CANCEL, b""), Some(&[kind::GOAWAY])),
        (
            |client| {
                let invalid = Frame::new(kind::PING, 0, vec![7]).to_bytes();
                client.handle_input(Duration::ZERO, &invalid).unwrap_err();
            },
            Some(&[kind::GOAWAY]),
        ),
    ];
    for (end, expected) in endings {
        for written in [0, 1] {
            let (mut client, _) = settled();
            client.send_request(GET, true).unwrap();
            let in_part = {
                let mut slices = [&[][..]; 1];
                client.poll_transmit(Duration::ZERO, &mut slices);
                slices[0].len()
            };
            client.transmitted(Duration::ZERO, written);
            // Large content is not copied, small content is.
            for len in [40_000, 10] {
                let post = client.send_request(GET, false).unwrap();
                client.send_data(post, vec![7; len], false).unwrap();
            }
            let cancelled = client.send_request(GET, true).unwrap();
            client.reset(cancelled, ErrorCode::CANCEL).unwrap();
            // More than the window allows.
            let upload = client.send_request(GET, false).unwrap();
            client.send_data(upload, vec![7; 100_000], false).unwrap();
            assert!(client.memory().queued > 0);
            end(&mut client);
            assert_eq!(client.memory().queued, 0);
            let mut events = vec![];
            while let Some(event) = client.poll_event() {
                events.push(describe(&event, &client));
            }
            let refused = ["refused 1", "refused 3", "refused 5", "refused 9"];
            assert_eq!(events, refused[written..], "{written}");
            let (output, left) = (drain(&mut client), if written == 0 { 0 } else { in_part - 1 });
            match expected {
                None => assert_eq!(output, b"", "{written}"),
                Some(expected) => {
                    let sent = split(&output[left..]);
                    assert!(sent.iter().map(|frame| frame.kind).eq(expected.iter().copied()), "{written}");
                }
            }
            assert_eq!(client.memory().output, 0);
        }
    }
}

// It was sent, and its answer may be under way.
#[test]
fn a_request_that_was_sent_is_not_refused_when_the_connection_ends() {
    let (mut client, mut server) = settled();
    ask(&mut client, &mut server);
    client.handle_disconnect();
    assert!(client.poll_event().is_none());
}

#[test]
fn content_of_a_request_that_was_sent_leaves_before_goaway() {
    let (mut client, _) = settled();
    let sent = client.send_request(GET, false).unwrap();
    drain(&mut client);
    // By reference: the output of the next request begins where this chunk ends.
    client.send_data(sent, vec![7; 1_000], false).unwrap();
    let output = client.memory().output;
    let unsent = client.send_request(GET, false).unwrap();
    client.send_data(unsent, vec![8; 1_000], true).unwrap();
    client.abort(ErrorCode::CANCEL, b"");
    let goaway_len = 17;
    assert_eq!(client.memory().output, output + goaway_len);
    let frames = split(&drain(&mut client));
    assert!(frames.iter().map(|frame| frame.kind).eq([kind::DATA, kind::GOAWAY]));
    assert_eq!(frames[0].payload, [7; 1_000]);
}

// It may read slowly what precedes the first GOAWAY.
#[test]
fn the_time_for_the_first_goaway_begins_once_it_has_left() {
    let timeout = Limits::DEFAULT.settings_timeout;
    let (mut client, mut server) = settled();
    let (_, there) = ask(&mut client, &mut server);
    server.send_response(there, OK, false).unwrap();
    server.send_data(there, vec![7; 10_000], false).unwrap();
    server.shutdown();
    server.poll_transmit(Duration::ZERO, &mut [&[]]);
    let len = server.memory().output as usize;
    server.transmitted(Duration::ZERO, len - 1);
    server.handle_timeout(2 * timeout).unwrap();
    assert_eq!(server.memory().output, 1, "the last byte of PING, which follows GOAWAY");
    let start = 3 * timeout;
    server.transmitted(start, 1);
    assert_eq!(server.poll_timeout(), Some(start + timeout));
    server.handle_timeout(start + timeout).unwrap();
    assert_eq!(drain(&mut server), Frame::goaway(1, 0, "").to_bytes());
    assert_eq!(server.poll_timeout(), None);
}
