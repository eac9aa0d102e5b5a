//! Two ends of a connection, and its halves: messages at every step, closing, answers to pings, limits, timeouts.

use std::time::Duration;

use bytes::Bytes;
use wireloom_ws::deflate::DeflateConfig;
use wireloom_ws::handshake::extensions;
use wireloom_ws::limits::PONGS_QUEUED_LEN_MAX;
use wireloom_ws::{
    Cause, CloseCode, Config, Connection, Delivery, End, Event, Inbound, Initiator, Keepalive, Kind, Misuse,
    PeerMisbehaved, Pong, Role, Transport,
};

const NOW: Duration = Duration::from_secs(1000);

fn client() -> Connection {
    Connection::client(Config::default(), None, [9; 32], NOW)
}

fn server() -> Connection {
    Connection::server(Config::default(), None, NOW)
}

fn deflated(delivery: Delivery) -> (Connection, Connection) {
    let mut response = String::new();
    let deflate = DeflateConfig::default();
    let mut offer = String::new();
    deflate.offer(&mut offer);
    let offers = extensions::parse(&offer).unwrap();
    let params = deflate.accept_offers(offers.iter(), &mut response).unwrap();
    let config = Config { delivery, ..Config::default() };
    let client = Connection::client(config.clone(), Some((params, &deflate)), [9; 32], NOW);
    (client, Connection::server(config, Some((params, &deflate)), NOW))
}

/// The events of a connection, as text; with `slot`, large messages are read into the slot.
fn receive(connection: &mut Connection, wire: &[u8], step: usize, slot: bool) -> Vec<String> {
    let mut received = Vec::new();
    let mut message = Vec::new();
    let mut note = |event: &Event<'_>| match event {
        Event::Text(text) => received.push(format!("text {}", text.len())),
        Event::Binary(data) => received.push(format!("binary {}", data.len())),
        Event::Chunk(chunk) => {
            assert_eq!(chunk.first, message.is_empty());
            message.extend_from_slice(chunk.data);
            if chunk.fin {
                received.push(format!("chunks {}", message.len()));
                message.clear();
            }
        }
        Event::Ping(payload) => received.push(format!("ping {}", payload.len())),
        Event::Pong(pong) => received.push(format!("pong {:?}", pong.round_trip)),
        Event::Close(close) => received.push(format!("close {:?} {}", close.code, close.reason)),
        other => panic!("{other:?}"),
    };
    let mut rest = wire;
    while !rest.is_empty() {
        if slot && let Some(mut slot) = connection.recv_slot() {
            let len = slot.len().min(step).min(rest.len());
            slot[..len].copy_from_slice(&rest[..len]);
            rest = &rest[len..];
            if let Some(event) = slot.filled(NOW, len).unwrap() {
                note(&event);
            }
            continue;
        }
        let mut piece = rest[..step.min(rest.len())].to_vec();
        rest = &rest[piece.len()..];
        let mut at = 0;
        while let (used, Some(event)) = connection.handle_input(NOW, &mut piece[at..]).unwrap() {
            note(&event);
            at += used;
        }
    }
    received
}

fn send_all(connection: &mut Connection) -> Vec<u8> {
    connection.send_text("Hello").unwrap();
    connection.send_binary(&[1; 300]).unwrap();
    connection.send_text_chunk("one ", false).unwrap();
    connection.send_ping(NOW, b"ping").unwrap();
    connection.send_text_chunk("two", true).unwrap();
    connection.send_bytes(Bytes::from(vec![b'{'; 200_000])).unwrap();
    connection.send_text(&"häßlich ".repeat(10_000)).unwrap();
    connection.send_text("").unwrap();
    connection.close(NOW, CloseCode::NORMAL, "bye").unwrap();
    connection.take_transmit()
}

const SENT: [&str; 8] = [
    "text 5",
    "binary 300",
    "ping 4",
    "text 7",
    "binary 200000",
    "text 100000",
    "text 0",
    "close Some(CloseCode(1000)) bye",
];

#[test]
fn carries_messages_both_ways_at_every_step() {
    for step in [1, 7, 100, 4096, 65_536, 1 << 20] {
        for slot in [false, true] {
            for (mut from, mut to) in [(client(), server()), (server(), client())] {
                let wire = send_all(&mut from);
                assert_eq!(receive(&mut to, &wire, step, slot), SENT, "step {step}");
            }
            let (mut from, mut to) = deflated(Delivery::Messages);
            let wire = send_all(&mut from);
            assert!(wire.len() < 10_000);
            assert_eq!(receive(&mut to, &wire, step, slot), SENT, "step {step}, compressed");
        }
    }
}

#[test]
fn delivers_messages_in_chunks() {
    for step in [1, 7, 100, 4096, 65_536, 1 << 20] {
        let (mut from, mut to) = deflated(Delivery::Chunks);
        let wire = send_all(&mut from);
        let received = receive(&mut to, &wire, step, true);
        let sent = SENT.map(|sent| sent.replace("text", "chunks").replace("binary", "chunks"));
        let received: Vec<String> =
            received.iter().map(|sent| sent.replace("text", "chunks").replace("binary", "chunks")).collect();
        assert_eq!(received, sent, "step {step}");
    }
}

// RFC 6455 §7.1.1, §5.5.1: both exchange Close frames, and the server closes TCP first.
#[test]
fn closes_cleanly_from_either_end() {
    for (mut one, mut two) in [(client(), server()), (server(), client())] {
        one.close(NOW, CloseCode::GOING_AWAY, "later").unwrap();
        assert_eq!(one.send_text("no"), Err(Misuse::NotOpen.into()));
        let wire = one.take_transmit();
        receive(&mut two, &wire, 3, false);
        assert_eq!(two.end().unwrap().by, Initiator::Peer);
        assert_eq!(two.end().unwrap().code(), CloseCode::GOING_AWAY);
        let wire = two.take_transmit();
        receive(&mut one, &wire, 3, false);
        assert_eq!(one.end().unwrap().by, Initiator::Local);
        for end in [&mut one, &mut two] {
            assert!(end.was_clean());
            let expected = if end.role() == Role::Server { Transport::Close } else { Transport::Open };
            assert_eq!(end.transport(), expected);
            end.handle_eof();
            assert_eq!(end.transport(), Transport::Close);
        }
    }
}

// RFC 6455 §7.1.7.
#[test]
fn sends_the_reason_of_a_failure_and_drops_input() {
    let mut server = server();
    let error = server.handle_input(NOW, &mut [0x81, 0x01, b'x']).map(drop).unwrap_err();
    assert_eq!(error, PeerMisbehaved::UnmaskedFrame.into());
    assert_eq!(server.end().unwrap().cause, Cause::Error(error));
    let wire = server.take_transmit();
    assert_eq!(&wire[..4], [0x88, wire.len() as u8 - 2, 0x03, 0xEA]);
    assert_eq!(&wire[4..], b"unmasked frame from a client");
    assert_eq!(server.transport(), Transport::ShutdownWrite);
    assert!(matches!(server.handle_input(NOW, &mut [0x81, 0x01, b'x']), Ok((3, None))));
    assert_eq!(server.poll_timeout(), Some(NOW + Duration::from_secs(10)));
    server.handle_timeout(NOW + Duration::from_secs(10));
    assert_eq!(server.transport(), Transport::Close);
    assert_eq!(server.end().unwrap().cause, Cause::Error(error));
}

// RFC 6455 §5.5.3.
#[test]
fn answers_pings_and_measures_the_round_trip() {
    let (mut client, mut server) = (client(), server());
    client.send_ping(NOW, b"one").unwrap();
    client.send_ping(NOW, b"two").unwrap();
    let wire = client.take_transmit();
    assert_eq!(receive(&mut server, &wire, 100, false), ["ping 3", "ping 3"]);
    let mut wire = server.take_transmit();
    assert_eq!(wire, b"\x8a\x03one\x8a\x03two");
    wire.drain(..5);
    let later = NOW + Duration::from_millis(30);
    let (_, event) = client.handle_input(later, &mut wire).unwrap();
    let Some(Event::Pong(pong)) = event else { panic!("no pong") };
    assert_eq!(pong, Pong { payload: b"two", round_trip: Some(Duration::from_millis(30)) });
}

#[test]
fn bounds_the_answers_to_a_peer_that_does_not_read() {
    let mut server = server();
    for i in 0..100_000u32 {
        let [a, b, c, d] = i.to_be_bytes();
        server.handle_input(NOW, &mut [0x89, 0x84, 0, 0, 0, 0, a, b, c, d]).unwrap();
    }
    let most = PONGS_QUEUED_LEN_MAX.next_multiple_of(6);
    assert_eq!(server.queued_len(), most);
    // The pong that is sent when there is room again answers the newest ping.
    let wire = server.take_transmit();
    assert_eq!(wire[..6], [0x8A, 4, 0, 0, 0, 0]);
    assert_eq!(wire.len(), most + 6);
    assert_eq!(wire[most..], [&[0x8A, 4][..], &99_999u32.to_be_bytes()].concat());
}

// RFC 6455 §5.5.1: no frame after a Close frame.
#[test]
fn sends_no_pong_behind_a_close() {
    let mut config = Config::default();
    config.limits.queued_len_high = 10;
    let mut server = Connection::server(config, None, NOW);
    server.send_binary(&[0; 20]).unwrap();
    server.handle_input(NOW, &mut [0x89, 0x80, 0, 0, 0, 0]).unwrap();
    server.close(NOW, None, "").unwrap();
    assert!(server.take_transmit().ends_with(&[0x88, 0]));
    assert!(!server.wants_write());
}

#[test]
fn pings_a_silent_peer_and_ends_the_connection() {
    let keepalive = Keepalive { ping_after: Duration::from_secs(5), dead_after: Duration::from_secs(12) };
    let config = Config { keepalive: Some(keepalive), ..Config::default() };
    let mut server = Connection::server(config, None, NOW);
    let due = server.poll_timeout().unwrap();
    server.handle_timeout(due);
    assert_eq!(server.take_transmit(), b"\x89\x08\0\0\0\0\0\0\0\x01");
    server.handle_timeout(NOW + Duration::from_secs(12));
    assert_eq!(server.end().unwrap(), &End { by: Initiator::Local, cause: Cause::Silence });
    assert_eq!(server.transport(), Transport::Close);
}

#[test]
fn rejects_messages_beyond_the_queue_limit() {
    let mut config = Config::default();
    config.limits.queued_len_max = 100;
    let mut server = Connection::server(config, None, NOW);
    server.send_binary(&[0; 200]).unwrap();
    assert_eq!(server.send_binary(&[0]), Err(Misuse::QueueFull { queued: 204, max: 100 }.into()));
    server.take_transmit();
    server.send_binary(&[0; 98]).unwrap();
}

#[test]
fn halves_behave_like_a_connection() {
    let (mut inbound, mut outbound) = server().split();
    let mut client = client();
    client.send_ping(NOW, b"ping").unwrap();
    client.send_text("Hello").unwrap();
    client.close(NOW, CloseCode::NORMAL, "bye").unwrap();
    let mut wire = client.take_transmit();
    wire.extend_from_slice(b"dropped");
    let (mut at, mut received) = (0, Vec::new());
    while let (used, Some(mut event)) = inbound.handle_input(&mut wire[at..]).unwrap() {
        outbound.handle_event(NOW, &mut event);
        received.push(format!("{event:?}"));
        at += used;
    }
    assert_eq!(received.len(), 3, "{received:?}");
    assert_eq!(outbound.take_transmit(), b"\x8a\x04ping\x88\x05\x03\xe8bye");
    assert_eq!(outbound.end().unwrap().by, Initiator::Peer);
    assert!(outbound.was_clean());
    assert!(matches!(inbound.handle_input(&mut [0x81, 0x80]), Ok((2, None))));
}

#[test]
fn passes_an_error_from_inbound_to_outbound() {
    let (mut inbound, mut outbound) = server().split();
    let error = inbound.handle_input(&mut [0x81, 0x01, b'x']).map(drop).unwrap_err();
    outbound.handle_error(NOW, error);
    assert!(outbound.take_transmit().starts_with(b"\x88"));
    assert!(matches!(inbound.handle_input(&mut [0x82, 0x80, 0, 0, 0, 0]), Ok((6, None))));
}

// The peer's Close frame may have arrived before a write fails.
#[test]
fn receives_a_close_after_a_write_has_failed() {
    let mut server = server();
    server.send_text("lost").unwrap();
    server.handle_write_failed(NOW, drop);
    assert_eq!(server.send_text("no"), Err(Misuse::NotOpen.into()));
    assert!(!server.wants_write());
    assert_eq!(server.end().unwrap().cause, Cause::TransportClosed);
    let deadline = server.poll_timeout();
    assert_eq!(deadline, Some(NOW + Duration::from_secs(10)));
    let mut client = client();
    client.send_text("last words").unwrap();
    client.close(NOW, CloseCode::NORMAL, "").unwrap();
    let wire = client.take_transmit();
    assert_eq!(receive(&mut server, &wire, 5, false), ["text 10", "close Some(CloseCode(1000)) "]);
    assert_eq!(
        (server.end().unwrap().by, server.end().unwrap().code()),
        (Initiator::Peer, CloseCode::NORMAL)
    );
    assert!(!server.wants_write());
    assert_eq!(server.transport(), Transport::Close);
}

// RFC 6455 §7.1.4: a close is clean if both Close frames were exchanged. Ours was dropped with the queue, or never queued.
#[test]
fn a_close_after_a_write_has_failed_is_not_clean() {
    for (mut end, mut peer, closes) in
        [(client(), server(), false), (server(), client(), false), (server(), client(), true)]
    {
        if closes {
            end.close(NOW, CloseCode::GOING_AWAY, "").unwrap();
        }
        end.handle_write_failed(NOW, drop);
        peer.close(NOW, CloseCode::NORMAL, "").unwrap();
        let wire = peer.take_transmit();
        assert_eq!(receive(&mut end, &wire, 5, false), ["close Some(CloseCode(1000)) "]);
        assert!(!end.was_clean());
        assert_eq!((end.transport(), end.poll_timeout()), (Transport::Close, None));
        end.handle_eof();
        assert!(!end.was_clean());
        assert_eq!(end.end().unwrap().code(), CloseCode::NORMAL);
    }
}

#[test]
fn writes_a_borrowed_payload_behind_the_queue_and_copies_the_remainder() {
    for step in [0, 1, 4, 200, 312, usize::MAX] {
        let mut server = server();
        server.send_ping(NOW, b"first").unwrap();
        let mut wire = Vec::new();
        let mut writes = 0;
        let write = |slices: &[&[u8]]| {
            writes += 1;
            if writes > 2 {
                return None;
            }
            let queued = slices.concat();
            let written = step.min(queued.len());
            wire.extend_from_slice(&queued[..written]);
            Some(written)
        };
        server.send_borrowed(Kind::Binary, &[7; 300], write, |_| true, drop).unwrap();
        assert_eq!(server.queued_len(), 311 - wire.len());
        wire.extend(server.take_transmit());
        assert_eq!(wire, [b"\x89\x05first", &[0x82, 126, 1, 44][..], &[7; 300]].concat());
    }
    // A client masks a copy.
    let mut client = client();
    let write = |slices: &[&[u8]]| {
        assert_eq!(slices.len(), 1);
        None
    };
    client.send_borrowed(Kind::Text, b"masked", write, |_| true, drop).unwrap();
    assert_eq!(receive(&mut server(), &client.take_transmit(), 100, false), ["text 6"]);
}

// No ping is sent while the queue is congested. That the peer reads shows that it is alive.
#[test]
fn a_peer_that_reads_a_congested_queue_is_not_silent() {
    let (ping_after, dead_after) = (Duration::from_secs(10), Duration::from_secs(25));
    let config = Config { keepalive: Some(Keepalive { ping_after, dead_after }), ..Config::default() };
    for reads in [true, false] {
        let mut server = Connection::server(config.clone(), None, NOW);
        server.send_binary(&vec![0; 2 << 20]).unwrap();
        for second in 1..60 {
            let now = NOW + Duration::from_secs(second);
            server.handle_timeout(now);
            if reads && second % 5 == 0 {
                server.transmitted(1000);
                server.handle_activity(now);
            }
        }
        assert_eq!(server.is_open(), reads);
    }
}

#[test]
fn a_keepalive_ping_neither_follows_a_close_frame_nor_joins_a_congested_queue() {
    let (ping_after, dead_after) = (Duration::from_secs(1), Duration::from_secs(25));
    let config = Config { keepalive: Some(Keepalive { ping_after, dead_after }), ..Config::default() };
    let due = NOW + Duration::from_secs(2);
    let mut server = Connection::server(config.clone(), None, NOW);
    server.close(NOW, CloseCode::NORMAL, "").unwrap();
    assert_eq!(server.take_transmit(), b"\x88\x02\x03\xe8");
    server.handle_timeout(due);
    assert!(server.take_transmit().is_empty());
    let mut server = Connection::server(config, None, NOW);
    server.send_binary(&vec![0; 2 << 20]).unwrap();
    let queued = server.queued_len();
    server.handle_timeout(due);
    assert_eq!(server.queued_len(), queued);
}

#[test]
fn restores_an_idle_inbound() {
    let mut config = Config::default();
    config.limits.message_len_max = 7;
    let (mut inbound, _) = Connection::server(config, None, NOW).split();
    let idle = inbound.idle().unwrap();
    // Within a header, a frame, a message it is not.
    for piece in [&[0x02][..], &[0x82, 0, 0, 0, 0, 1], &[2]] {
        assert!(inbound.handle_input(&mut piece.to_vec()).unwrap().1.is_none());
        assert_eq!(inbound.idle(), None);
    }
    assert!(inbound.handle_input(&mut [0x80, 0x80, 0, 0, 0, 0]).unwrap().1.is_some());
    assert_eq!(inbound.idle(), Some(idle));
    let mut again = Inbound::from(idle);
    assert!(again.handle_input(&mut [0x82, 0x81, 0, 0, 0, 0, 1]).unwrap().1.is_some());
    assert!(again.handle_input(&mut [0x82, 0x88, 0, 0, 0, 0]).is_err());
    assert_eq!(again.idle(), None);
}

#[test]
fn takes_whole_messages_only() {
    let mut client = client();
    client.send_text("hello").unwrap();
    client.send_binary(&[7; 300]).unwrap();
    client.send_ping(NOW, b"?").unwrap();
    client.send_text("again").unwrap();
    let mut wire = client.take_transmit();
    let mut server = server();
    let mut rest = &mut wire[..];
    assert!(server.handle_whole(NOW, &mut rest[..10].to_vec()).is_none()); // a byte is missing
    for expected in ["text 5", "binary 300"] {
        let (used, event) = server.handle_whole(NOW, rest).unwrap();
        let found = match event {
            Event::Text(text) => format!("text {}", text.len()),
            Event::Binary(data) => format!("binary {}", data.len()),
            event => panic!("{event:?}"),
        };
        assert_eq!(found, expected);
        rest = &mut rest[used..];
    }
    // Nothing happens to a Ping, nor to its masked payload.
    assert!(server.handle_whole(NOW, rest).is_none());
    let (used, event) = server.handle_input(NOW, rest).unwrap();
    assert!(matches!(event, Some(Event::Ping(b"?"))));
    rest = &mut rest[used..];
    // The rest of a message that was begun is not one.
    assert!(server.handle_input(NOW, &mut rest[..1]).unwrap().1.is_none());
    assert!(server.handle_whole(NOW, &mut rest[1..]).is_none());
    assert!(
        matches!(server.handle_input(NOW, &mut rest[1..]).unwrap().1, Some(Event::Text(text)) if &*text == "again")
    );
    client.send_text("late").unwrap();
    let mut late = client.take_transmit();
    server.handle_eof();
    assert!(server.handle_whole(NOW, &mut late).is_none());
}

#[test]
fn offers_a_slot_until_eof() {
    let mut client = client();
    client.send_binary(&[7; 20_000]).unwrap();
    let wire = client.take_transmit();
    let begin = |server: &mut Connection| {
        assert!(server.recv_slot().is_none());
        assert!(server.handle_input(NOW, &mut wire[..10_000].to_vec()).unwrap().1.is_none());
        assert!(server.recv_slot().is_some_and(|slot| !slot.is_empty()));
    };
    let mut server = server();
    begin(&mut server);
    let mut slot = server.recv_slot().unwrap();
    let len = slot.len().min(wire.len() - 10_000);
    slot[..len].copy_from_slice(&wire[10_000..10_000 + len]);
    let filled = slot.filled(NOW, len).unwrap();
    assert_eq!(
        matches!(filled, Some(Event::Binary(data)) if data[..] == [7; 20_000]),
        10_000 + len == wire.len()
    );
    // The transport has ended.
    let mut server = self::server();
    begin(&mut server);
    server.handle_eof();
    assert!(server.recv_slot().is_none());
}

// Keepalive: a byte of a frame is activity, an empty read is not.
#[test]
fn input_is_activity() {
    let (ping_after, dead_after) = (Duration::from_secs(10), Duration::from_secs(25));
    let config = Config { keepalive: Some(Keepalive { ping_after, dead_after }), ..Config::default() };
    let later = NOW + Duration::from_secs(5);
    for (input, deadline) in [(&mut [][..], NOW + ping_after), (&mut [0x81], later + ping_after)] {
        let mut server = Connection::server(config.clone(), None, NOW);
        assert!(server.handle_input(later, input).unwrap().1.is_none());
        assert_eq!(server.poll_timeout(), Some(deadline));
    }
}
