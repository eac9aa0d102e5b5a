//! Both ends of a connection joined in memory, with windows of any size and a wire that splits bytes anywhere: messages
//! arrive completely, timeouts expire, and memory stays bounded when a peer does not read.

use std::time::Duration;

use wireloom_http2::error::{Error, ErrorCode, Exceeded, Misuse, Violation};
use wireloom_http2::field::{Field, Token};
use wireloom_http2::priority::Priority;
use wireloom_http2::{Config, Ended, Role, StreamKey};
use wireloom_testing::http2::{Pair, Received};
use wireloom_testing::{Rng, rounds};

const POST: [Field<'static>; 4] = [
    Field::known(Token::Method, b"POST"),
    Field::known(Token::Scheme, b"https"),
    Field::known(Token::Authority, b"example.org"),
    Field::known(Token::Path, b"/"),
];
const OK: [Field<'static>; 1] = [Field::known(Token::Status, b"200")];

fn config(role: Role, rng: &mut Rng) -> Config {
    let mut config = Config::new(role);
    config.settings.initial_window_size = *rng.pick(&[1, 100, 5_000, 65_535, 300_000]);
    config.settings.max_concurrent_streams = rng.u32(1..6);
    config.settings.header_table_size = rng.u32(0..5_000);
    config.connection_window = rng.u32(65_535..300_000);
    config.stream_window_max = rng.u32(1..400_000);
    config.output_ahead = rng.usize(1..40_000);
    config.hash_key = rng.u64(..);
    config
}

fn server_key(pair: &Pair, stream: StreamKey) -> StreamKey {
    *pair.server.requests().iter().find(|key| key.id() == stream.id()).unwrap()
}

#[test]
fn messages_arrive_whole_in_both_directions() {
    rounds(25, |rng| {
        let mut pair = Pair::with(config(Role::Client, rng), config(Role::Server, rng));
        // A request before the server's SETTINGS may be refused.
        pair.run(rng);
        let mut exchanges = Vec::new();
        // Requests with content, some with trailers; some wait until the server allows one more stream.
        for _ in 0..rng.usize(1..9) {
            let (len, trailers) = (rng.len(20_000), rng.bool());
            let (request, response) = (rng.bytes(len), rng.bytes(len / 2));
            let announced = request.len().to_string();
            let fields = POST.into_iter().chain([Field::known(Token::ContentLength, announced.as_bytes())]);
            let key = pair.client.connection.send_request(fields, false).unwrap();
            pair.client.connection.send_data(key, request.clone(), !trailers).unwrap();
            if trailers {
                pair.client.connection.send_trailers(key, [Field::new(b"x-end", b"1")]).unwrap();
            }
            exchanges.push((key, request, response, trailers));
            for _ in 0..rng.len(30) {
                pair.step(rng);
            }
        }
        // Each response makes room for the next request.
        let mut answered = 0;
        while answered < exchanges.len() {
            pair.run(rng);
            let (key, request, response, trailers) = &exchanges[answered];
            let there = server_key(&pair, *key);
            assert_eq!(pair.server.content(there), request, "{there:?}");
            assert!(pair.server.received.contains(&Received::End(there)), "{there:?}");
            let trailers_received = Received::Trailers(there, vec![(b"x-end".to_vec(), b"1".to_vec())]);
            assert_eq!(pair.server.received.contains(&trailers_received), *trailers, "{there:?}");
            pair.server.connection.send_response(there, OK, false).unwrap();
            pair.server.connection.send_data(there, response.clone(), true).unwrap();
            answered += 1;
        }
        pair.run(rng);
        for (key, _, response, _) in &exchanges {
            assert_eq!(pair.client.content(*key), response);
            assert!(pair.client.received.contains(&Received::End(*key)));
        }
        let ends = [&pair.client, &pair.server];
        assert!(ends.iter().all(|end| end.connection.streams() == 0 && end.failure().is_none()));
    });
}

#[test]
fn trailers_go_with_a_request_that_waits() {
    // Without content, with content, and with closed windows, which trailers do not need.
    for (len, window) in [(0, 65_535), (1, 65_535), (30_000, 65_535), (0, 0)] {
        let mut rng = Rng::with_seed(len as u64);
        let mut server = Config::new(Role::Server);
        server.settings.max_concurrent_streams = 1;
        server.settings.initial_window_size = window;
        let mut pair = Pair::with(Config::new(Role::Client), server);
        pair.run(&mut rng);
        let first = pair.client.connection.send_request(POST, true).unwrap();
        let waiting = pair.client.connection.send_request(POST, false).unwrap();
        let dropped = pair.client.connection.send_request(POST, false).unwrap();
        for key in [waiting, dropped] {
            pair.client.connection.send_data(key, vec![b'd'; len], false).unwrap();
            pair.client.connection.send_trailers(key, [Field::new(b"x-end", b"1")]).unwrap();
            let again = pair.client.connection.send_trailers(key, [Field::new(b"x-end", b"2")]);
            assert_eq!(again, Err(Error::Misuse(Misuse::SendAfterEnd)));
        }
        pair.client.connection.reset(dropped, ErrorCode::CANCEL).unwrap();
        pair.run(&mut rng);
        assert_eq!(pair.server.requests().len(), 1);
        let there = server_key(&pair, first);
        pair.server.connection.send_response(there, OK, true).unwrap();
        pair.run(&mut rng);
        let there = server_key(&pair, waiting);
        let trailers = Received::Trailers(there, vec![(b"x-end".to_vec(), b"1".to_vec())]);
        assert_eq!(pair.server.received[pair.server.received.len() - 2..], [trailers, Received::End(there)]);
        assert_eq!(pair.server.content(there).len(), len);
        assert_eq!(pair.server.requests().len(), 2);
    }
}

#[test]
fn content_that_contradicts_content_length_is_not_sent() {
    // RFC 9113 §8.1.1: the peer would have to reset the stream.
    let mismatch = Err(Error::Misuse(Misuse::ContentLengthMismatch));
    let mut rng = Rng::with_seed(0);
    for waits in [false, true] {
        let mut server = Config::new(Role::Server);
        server.settings.max_concurrent_streams = if waits { 0 } else { 1 };
        let mut pair = Pair::with(Config::new(Role::Client), server);
        pair.run(&mut rng);
        let announced = |len| POST.into_iter().chain([Field::known(Token::ContentLength, len)]);
        let client = &mut pair.client.connection;
        assert_eq!(
            client.send_request(announced(b"5"), true),
            Err(Error::Misuse(Misuse::ContentLengthMismatch))
        );
        let invalid = client.send_request(announced(b"+5"), false);
        assert_eq!(invalid, Err(Error::Misuse(Misuse::MessageInvalid)));
        let key = client.send_request(announced(b"5"), false).unwrap();
        assert_eq!(client.send_data(key, "123456", false), mismatch);
        assert_eq!(client.send_data(key, "1234", true), mismatch);
        client.send_data(key, "1234", false).unwrap();
        assert_eq!(client.send_data(key, "56", true), mismatch);
        assert_eq!(client.send_data(key, "", true), mismatch);
        assert_eq!(client.send_trailers(key, [Field::new(b"a", b"b")]), mismatch);
        client.send_data(key, "5", true).unwrap();
        if waits {
            let mut settings = Config::new(Role::Server).settings;
            settings.max_concurrent_streams = 1;
            pair.server.connection.update_settings(settings).unwrap();
        }
        pair.run(&mut rng);
        let there = server_key(&pair, key);
        assert_eq!(pair.server.content(there), b"12345");
        let answer =
            |status, len| [Field::known(Token::Status, status), Field::known(Token::ContentLength, len)];
        let server = &mut pair.server.connection;
        assert_eq!(server.send_response(there, answer(b"200", b"3"), true), mismatch);
        server.send_response(there, answer(b"200", b"3"), false).unwrap();
        assert_eq!(server.send_data(there, "abcd", true), mismatch);
        server.send_data(there, "abc", true).unwrap();
        pair.run(&mut rng);
        assert_eq!(pair.client.content(key), b"abc");
        assert_eq!((pair.client.failure(), pair.server.failure()), (None, None));
    }
}

#[test]
fn a_response_without_content_has_none() {
    // RFC 9110 §6.4.1: responses to HEAD, with 204 and with 304, even if they have a content-length, which 204 must not have.
    let mut rng = Rng::with_seed(0);
    let mut pair = Pair::new();
    for (method, status) in [(&b"HEAD"[..], &b"200"[..]), (b"GET", b"204"), (b"GET", b"304")] {
        let fields = POST.map(|field| match field.token() {
            Token::Method => Field::known(Token::Method, method),
            _ => field,
        });
        let key = pair.client.connection.send_request(fields, true).unwrap();
        pair.run(&mut rng);
        let there = server_key(&pair, key);
        let mut fields = vec![Field::known(Token::Status, status)];
        fields.extend((status != b"204").then(|| Field::known(Token::ContentLength, b"7")));
        pair.server.connection.send_response(there, fields, false).unwrap();
        let sent = pair.server.connection.send_data(there, "content", true);
        assert_eq!(sent, Err(Error::Misuse(Misuse::ContentLengthMismatch)));
        pair.server.connection.send_data(there, "", true).unwrap();
        pair.run(&mut rng);
        assert!(pair.client.received.contains(&Received::End(key)), "{:?}", pair.client.received);
    }
}

#[test]
fn priorities_reach_requests_that_wait_and_no_more_than_may_be_open() {
    // RFC 9218 §7.1
    let mut rng = Rng::with_seed(0);
    let mut server = Config::new(Role::Server);
    server.settings.max_concurrent_streams = 1;
    let mut pair = Pair::with(Config::new(Role::Client), server);
    pair.run(&mut rng);
    let keys: Vec<_> = (0..3).map(|_| pair.client.connection.send_request(POST, true).unwrap()).collect();
    let urgent = Priority { urgency: 1, incremental: true };
    for &key in &keys {
        pair.client.connection.send_priority_update(key, Priority::DEFAULT).unwrap();
        pair.client.connection.send_priority_update(key, urgent).unwrap();
    }
    for &key in &keys {
        pair.run(&mut rng);
        let there = server_key(&pair, key);
        let update = format!("Priority {{ stream: {there:?}, priority: {urgent:?} }}");
        assert!(pair.server.received.contains(&Received::Other(update)), "{:?}", pair.server.received);
        pair.server.connection.send_response(there, OK, true).unwrap();
    }
    assert_eq!(pair.server.failure(), None);
}

#[test]
fn settings_are_acknowledged_in_time_or_the_connection_ends() {
    // RFC 9113 §6.5.3: SETTINGS_TIMEOUT. The epoch is long past when the connection begins.
    let mut rng = Rng::with_seed(0);
    let timeout = Config::new(Role::Server).limits.settings_timeout;
    let mut pair = Pair::new();
    pair.advance(timeout - Duration::from_nanos(1));
    assert_eq!(pair.server.failure(), None);
    pair.run(&mut rng);
    pair.advance(timeout * 10);
    assert_eq!((pair.client.failure(), pair.server.failure()), (None, None));

    let mut slow = Config::new(Role::Client);
    slow.limits.settings_timeout = timeout * 2;
    let mut pair = Pair::with(slow, Config::new(Role::Server));
    pair.client.writes = false;
    // The timeout begins when SETTINGS have left.
    pair.advance(timeout);
    assert_eq!(pair.server.failure(), None);
    pair.run(&mut rng);
    pair.advance(timeout);
    let violation = Violation::SettingsTimeout;
    assert!(
        matches!(pair.server.failure(), Some(Error::Peer { violation: found, .. }) if found == violation)
    );
    pair.client.writes = true;
    pair.run(&mut rng);
    assert_eq!(pair.server.connection.poll_timeout(), None);
    let was_notified = pair.client.received.iter().any(
        |received| matches!(received, Received::GoAway(0, ErrorCode::SETTINGS_TIMEOUT, reason) if !reason.is_empty()),
    );
    assert!(was_notified, "{:?}", pair.client.received);
}

/// A client that releases no window, and a server that responds with more than the window.
fn stalled_response(client: Config, len: usize) -> (Pair, StreamKey, StreamKey) {
    let mut rng = Rng::with_seed(1);
    let mut pair = Pair::with(client, Config::new(Role::Server));
    let key = pair.client.connection.send_request(POST, true).unwrap();
    pair.run(&mut rng);
    let there = server_key(&pair, key);
    pair.server.connection.send_response(there, OK, false).unwrap();
    pair.server.connection.send_data(there, vec![b'd'; len], false).unwrap();
    pair.run(&mut rng);
    (pair, key, there)
}

#[test]
fn a_stalled_stream_is_reset_after_the_timeout_and_no_other() {
    // CVE-2019-9517
    let mut rng = Rng::with_seed(2);
    let mut client = Config::new(Role::Client);
    client.settings.initial_window_size = 10;
    client.stream_window_max = 10;
    client.auto_release = false;
    let timeout = client.limits.stall_timeout;
    let (mut pair, key, there) = stalled_response(client, 100);
    assert_eq!((pair.client.content(key).len(), pair.server.connection.queued(there)), (10, 90));
    pair.advance(timeout - Duration::from_millis(1));
    // Small increments of the window do not restart the clock: ten bytes postpone the reset by a hundredth of the timeout.
    pair.client.connection.release_capacity(key, 10).unwrap();
    pair.run(&mut rng);
    assert_eq!(pair.server.connection.queued(there), 80);
    pair.advance(timeout / 64);
    let reset = |received: &Received| {
        let stalled = Exceeded::Stalled;
        matches!(received, Received::Reset(_, ErrorCode::ENHANCE_YOUR_CALM, Some(Error::Limit { exceeded, .. })) if *exceeded == stalled)
    };
    assert_eq!(pair.server.received.iter().filter(|received| reset(received)).count(), 1);
    pair.run(&mut rng);
    assert!(pair.client.received.contains(&Received::Reset(key, ErrorCode::ENHANCE_YOUR_CALM, None)));
    let next = pair.client.connection.send_request(POST, true).unwrap();
    pair.run(&mut rng);
    let there = server_key(&pair, next);
    pair.server.connection.send_response(there, OK, true).unwrap();
    pair.run(&mut rng);
    assert!(pair.client.received.contains(&Received::Response(next, 200)));
}

#[test]
fn a_connection_whose_window_stays_closed_ends_after_the_timeout() {
    let mut client = Config::new(Role::Client);
    client.auto_release = false;
    // A bound of 300,000 bytes on what is held and granted.
    client.memory_max = 400_000;
    client.output_max = 0;
    client.settings.initial_window_size = 300_000;
    client.stream_window_max = 300_000;
    client.connection_window = 65_535;
    let timeout = client.limits.stall_timeout;
    let mut rng = Rng::with_seed(4);
    let (mut pair, first, _) = stalled_response(client, 200_000);
    let second = pair.client.connection.send_request(POST, true).unwrap();
    pair.run(&mut rng);
    let there = server_key(&pair, second);
    pair.server.connection.send_response(there, OK, false).unwrap();
    pair.server.connection.send_data(there, vec![b'd'; 200_000], false).unwrap();
    pair.run(&mut rng);
    let received = pair.client.content(first).len() + pair.client.content(second).len();
    assert!((200_000..400_000).contains(&received), "{received}");
    pair.advance(timeout - Duration::from_millis(1));
    assert_eq!(pair.server.failure(), None);
    pair.advance(Duration::from_millis(1));
    let stalled = Exceeded::Stalled;
    assert!(matches!(pair.server.failure(), Some(Error::Limit { exceeded, .. }) if exceeded == stalled));
    assert!(matches!(pair.server.connection.ended(), Some(Ended::Failed(_))));
}

#[test]
fn a_peer_that_does_not_read_stops_being_read() {
    // CVE-2019-9512, 9517: the peer sends requests and pings, and reads no output.
    let mut rng = Rng::with_seed(3);
    let mut client = Config::new(Role::Client);
    client.limits.answers_len_max = usize::MAX;
    client.limits.pings_unacknowledged_max = usize::MAX;
    client.output_max = usize::MAX;
    let mut pair = Pair::with(client, Config::new(Role::Server));
    pair.run(&mut rng);
    pair.server.writes = false;
    let limits = Config::new(Role::Server).limits;
    let mut sent = 0;
    while pair.server.connection.wants_read() {
        for _ in 0..limits.pings.burst() / 2 {
            pair.client.connection.send_ping(pair.client.clock.now(), *b"question").unwrap();
            sent += 1;
        }
        pair.run(&mut rng);
        pair.advance(Duration::from_secs(10));
        assert_eq!(pair.server.failure(), None);
        assert!(sent < 10_000, "it never stops");
    }
    // An answer has 17 bytes. The one that exceeds the limit is the last.
    assert!(sent > limits.answers_len_max / 17);
    pair.server.writes = true;
    pair.run(&mut rng);
    assert!(pair.server.connection.wants_read());
    let pongs = pair
        .client
        .received
        .iter()
        .filter(|received| matches!(received, Received::Other(event) if event.starts_with("Pong")));
    assert_eq!(pongs.count(), sent);
}

#[test]
fn a_caller_waits_for_room_in_the_queue_and_is_notified() {
    rounds(10, |rng| {
        let mut client = Config::new(Role::Client);
        client.auto_release = false;
        client.settings.initial_window_size = 5_000;
        client.stream_window_max = 5_000;
        let mut server = Config::new(Role::Server);
        server.stream_queue = 20_000;
        let mut pair = Pair::with(client, server);
        let key = pair.client.connection.send_request(POST, true).unwrap();
        pair.run(rng);
        let there = server_key(&pair, key);
        pair.server.connection.send_response(there, OK, false).unwrap();
        let content = rng.bytes(200_000);
        let (mut at, mut released, mut most) = (0, 0, 0);
        while at < content.len() {
            let room =
                pair.server.connection.send_capacity(there).min(content.len() - at).min(1 + rng.len(8_000));
            if room > 0 {
                pair.server.connection.send_data(there, content[at..at + room].to_vec(), false).unwrap();
                at += room;
                most = most.max(pair.server.connection.queued(there));
                continue;
            }
            // The queue is full: no content is lost, and `Writable` follows when there is room.
            pair.server.received.clear();
            while !pair.server.received.contains(&Received::Writable(there)) {
                pair.run(rng);
                let received = pair.client.content(key).len();
                assert!(received > released, "stuck at {received}");
                pair.client.connection.release_capacity(key, received - released).unwrap();
                released = received;
            }
        }
        pair.server.connection.send_data(there, "", true).unwrap();
        assert!(most <= 20_000, "{most}");
        loop {
            pair.run(rng);
            let received = pair.client.content(key).len();
            if received == released {
                break;
            }
            let _ = pair.client.connection.release_capacity(key, received - released);
            released = received;
        }
        assert_eq!(pair.client.content(key), content);
        assert!(pair.client.received.contains(&Received::End(key)));
    });
}

#[test]
fn a_timeout_that_starts_after_an_idle_hour_has_its_full_length() {
    // No time was passed to the connection while it was idle.
    let mut rng = Rng::with_seed(5);
    let hour = Duration::from_secs(3_600);
    let limits = Config::new(Role::Server).limits;
    let idle = |client: Config, rng: &mut Rng| {
        let mut pair = Pair::with(client, Config::new(Role::Server));
        let key = pair.client.connection.send_request(POST, true).unwrap();
        pair.run(rng);
        pair.advance(hour);
        let there = server_key(&pair, key);
        (pair, there)
    };

    // SETTINGS.
    let (mut pair, _) = idle(Config::new(Role::Client), &mut rng);
    let mut settings = Config::new(Role::Server).settings;
    settings.max_concurrent_streams += 1;
    pair.server.connection.update_settings(settings).unwrap();
    pair.client.writes = false;
    pair.run(&mut rng);
    pair.advance(limits.settings_timeout - Duration::from_millis(1));
    assert_eq!(pair.server.failure(), None);
    pair.advance(Duration::from_millis(1));
    assert!(pair.server.failure().is_some());

    // Output that is not written.
    let (mut pair, there) = idle(Config::new(Role::Client), &mut rng);
    pair.server.connection.send_response(there, OK, false).unwrap();
    pair.server.connection.send_data(there, vec![b'd'; 100_000], true).unwrap();
    let mut slices = [&[][..]; 2];
    let now = pair.server.clock.now();
    assert_eq!(pair.server.connection.poll_transmit(now, &mut slices), 2);
    pair.server.connection.transmitted(now, 10);
    pair.advance(limits.stall_timeout - Duration::from_millis(1));
    assert_eq!(pair.server.failure(), None);
    pair.advance(Duration::from_millis(1));
    assert!(pair.server.failure().is_some());

    // A stream without window. Another one that is blocked later does not affect its clock.
    let mut client = Config::new(Role::Client);
    client.settings.initial_window_size = 0;
    client.stream_window_max = 0;
    let (mut pair, there) = idle(client, &mut rng);
    let later = pair.client.connection.send_request(POST, true).unwrap();
    pair.run(&mut rng);
    let later = server_key(&pair, later);
    for stream in [there, later] {
        pair.server.connection.send_response(stream, OK, false).unwrap();
        pair.server.connection.send_data(stream, "waits", true).unwrap();
        pair.run(&mut rng);
        pair.advance(limits.stall_timeout / 2 - Duration::from_millis(1));
    }
    assert!(pair.server.connection.contains(there));
    pair.advance(Duration::from_millis(2));
    assert!(!pair.server.connection.contains(there) && pair.server.connection.contains(later));
    pair.advance(limits.stall_timeout / 2);
    assert!(!pair.server.connection.contains(later));
    assert_eq!(pair.server.failure(), None);
}
