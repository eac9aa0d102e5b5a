use super::*;
use crate::config::Keepalive;
use crate::connection::Connection;
use crate::error::PeerMisbehaved;
use crate::event::Pong;
use crate::limits::Limits;
use alloc::vec;

const NOW: Duration = Duration::from_secs(1000);

fn with(config: Config) -> Outbound {
    Connection::server(config, None, NOW).split().1
}

fn server() -> Outbound {
    with(Config::default())
}

fn client(seed: [u8; 32]) -> Outbound {
    Connection::client(Config::default(), None, seed, NOW).split().1
}

fn deflated(config: &DeflateConfig) -> Outbound {
    Connection::server(Config::default(), Some((DeflateParams::default(), config)), NOW).split().1
}

/// A server in each phase.
fn in_phase(phase: Option<Phase>) -> Outbound {
    let mut server = server();
    let close = CloseFrame { code: None, reason: "" };
    match phase {
        None => {}
        Some(Phase::CloseSent) => server.close(NOW, None, "").unwrap(),
        Some(Phase::Exchanged) => server.handle_event(NOW, &mut Event::Close(close)),
        Some(Phase::Discarding { left }) => {
            server.handle_event(NOW, &mut Event::Close(close));
            server.handle_trailing(TRAILING_LEN_MAX - left);
        }
        Some(Phase::Failed) => server.handle_error(NOW, PeerMisbehaved::InvalidUtf8.into()),
        Some(Phase::WriteFailed) => server.handle_write_failed(NOW, drop),
        Some(Phase::Draining { clean }) => {
            server.close(NOW, None, "").unwrap();
            if clean {
                server.handle_event(NOW, &mut Event::Close(close));
            }
            server.handle_eof();
        }
        Some(Phase::Closed { clean }) => {
            server.close(NOW, None, "").unwrap();
            if clean {
                server.handle_event(NOW, &mut Event::Close(close));
            }
            server.handle_timeout(NOW + Duration::from_secs(10));
        }
    }
    assert_eq!(server.phase(), phase);
    server
}

// RFC 6455 §7.1: whether each phase accepts input, and how it treats the transport, before and after the queue is written.
#[test]
fn phases_of_the_closing_handshake() {
    use Transport::{Close, Open, ShutdownWrite};
    let table = [
        // phase, accepts input, reading side has ended, clean, transport before, and after the queue is written
        (None, true, false, false, Open, Open),
        (Some(Phase::CloseSent), true, false, false, Open, Open),
        (Some(Phase::Exchanged), false, false, true, Open, Close),
        (Some(Phase::Discarding { left: 7 }), false, false, true, Open, ShutdownWrite),
        (Some(Phase::Failed), false, false, false, Open, ShutdownWrite),
        (Some(Phase::WriteFailed), true, false, false, Open, Open),
        (Some(Phase::Draining { clean: false }), false, true, false, Open, Close),
        (Some(Phase::Draining { clean: true }), false, true, true, Open, Close),
        (Some(Phase::Closed { clean: false }), false, true, false, Close, Close),
        (Some(Phase::Closed { clean: true }), false, true, true, Close, Close),
    ];
    for (phase, input, read_end, clean, before, after) in table {
        let mut server = in_phase(phase);
        assert_eq!(server.is_open(), phase.is_none());
        assert_eq!(server.accepts_input(), input, "{phase:?}");
        assert_eq!(server.has_read_end(), read_end, "{phase:?}");
        assert_eq!(server.end().is_none(), phase.is_none());
        assert_eq!(server.transport(), before, "{phase:?}");
        assert!(!(server.wants_write() && server.was_clean()), "{phase:?}: our Close frame is queued");
        server.take_transmit();
        assert_eq!((server.transport(), server.was_clean()), (after, clean), "{phase:?}");
    }
}

// RFC 6455 §7.1.1: bytes behind the peer's Close frame are discarded, up to a limit.
#[test]
fn discards_bytes_behind_a_close_frame() {
    for (len, transport) in [
        (0, Transport::Close),
        (1, Transport::ShutdownWrite),
        (TRAILING_LEN_MAX, Transport::ShutdownWrite),
        (TRAILING_LEN_MAX + 1, Transport::Close),
    ] {
        let mut server = in_phase(Some(Phase::Exchanged));
        server.take_transmit();
        server.handle_trailing(len / 2);
        server.handle_trailing(len - len / 2);
        assert_eq!((server.transport(), server.was_clean()), (transport, true), "{len}");
    }
    // Until the peer has closed too, or the close timeout.
    let mut server = in_phase(Some(Phase::Discarding { left: 0 }));
    server.take_transmit();
    server.handle_eof();
    assert_eq!((server.transport(), server.was_clean()), (Transport::Close, true));
    let mut server = in_phase(Some(Phase::Discarding { left: 0 }));
    server.take_transmit();
    let deadline = server.poll_timeout().unwrap();
    assert_eq!(deadline, NOW + Duration::from_secs(10));
    server.handle_timeout(deadline);
    server.handle_timeout(server.poll_timeout().unwrap_or(deadline));
    assert_eq!((server.transport(), server.was_clean()), (Transport::Close, true));
    // Nothing else is affected, nor a client, which reads until the server has closed.
    for phase in [None, Some(Phase::CloseSent), Some(Phase::Failed), Some(Phase::WriteFailed)] {
        let mut server = in_phase(phase);
        server.handle_trailing(1);
        assert_eq!(server.phase(), phase);
    }
    let mut client = client([7; 32]);
    client.handle_event(NOW, &mut Event::Close(CloseFrame { code: None, reason: "" }));
    client.take_transmit();
    client.handle_trailing(1);
    assert_eq!(client.transport(), Transport::Open);
}

// RFC 6455 §7.1.7: no Close frame was sent, and none is queued.
#[test]
fn closes_at_once_at_eof_without_a_close_frame() {
    let mut server = server();
    server.send_text("queued").unwrap();
    server.handle_eof();
    assert_eq!(
        (server.phase(), server.transport()),
        (Some(Phase::Closed { clean: false }), Transport::Close)
    );
    assert_eq!(server.poll_timeout(), None);
    // A Close frame that is queued is written first.
    let mut server = in_phase(Some(Phase::CloseSent));
    server.handle_eof();
    assert_eq!(
        (server.phase(), server.transport()),
        (Some(Phase::Draining { clean: false }), Transport::Open)
    );
}

#[test]
fn counts_pings_and_the_newest_that_was_answered() {
    let mut server = server();
    for payload in [b"one", b"two", b"tri", b"for"] {
        server.send_ping(NOW, payload).unwrap();
    }
    assert_eq!((server.pings_sent(), server.pings_answered()), (4, 0));
    let later = NOW + Duration::from_millis(5);
    let mut event = Event::Pong(Pong { payload: b"tri", round_trip: None });
    server.handle_event(later, &mut event);
    assert_eq!((server.pings_sent(), server.pings_answered()), (4, 3));
    assert!(matches!(event, Event::Pong(Pong { round_trip: Some(time), .. }) if time == later - NOW));

    let mut connection = Connection::server(Config::default(), None, NOW);
    assert_eq!((connection.pings_sent(), connection.pings_answered()), (0, 0));
    for payload in [b"one", b"two", b"tri"] {
        connection.send_ping(NOW, payload).unwrap();
    }
    let mut pong = [0x8A, 0x83, 0, 0, 0, 0, b't', b'w', b'o'];
    assert!(connection.handle_input(NOW, &mut pong).unwrap().1.is_some());
    assert_eq!((connection.pings_sent(), connection.pings_answered()), (3, 2));
}

#[test]
fn getters_return_what_was_configured_and_negotiated() {
    let config = DeflateConfig { level: 7, mem_level: 3, min_len: 17, ..DeflateConfig::default() };
    let compressed = deflated(&config);
    assert!(compressed.is_compressed() && !server().is_compressed());
    assert_eq!(compressed.prepared_config(), config);
    assert_eq!(server().prepared_config(), DeflateConfig::default());
    assert_eq!(compressed.prepared_window_bits(16), None);
    assert_eq!(compressed.prepared_window_bits(17), Some(15));

    let keepalive = Keepalive { ping_after: Duration::from_secs(1), dead_after: Duration::from_secs(2) };
    let with_keepalive = with(Config { keepalive: Some(keepalive), ..Config::default() });
    assert!(with_keepalive.keeps_alive() && !server().keeps_alive());

    let deflate = Some((DeflateParams::default(), &config));
    assert!(Connection::server(Config::default(), deflate, NOW).is_compressed());
    assert!(!Connection::server(Config::default(), None, NOW).is_compressed());
}

#[test]
fn a_fragmented_message_is_under_way_until_fin() {
    let mut server = server();
    assert!(!server.sender.is_under_way());
    server.send_text_chunk("one", false).unwrap();
    assert!(server.sender.is_under_way());
    server.send_text_chunk("two", true).unwrap();
    assert!(!server.sender.is_under_way());
    assert_eq!(server.take_transmit(), b"\x01\x03one\x80\x03two");
}

#[test]
fn logs_the_headers_of_frames_that_are_queued() {
    let mut server = server();
    server.send_text("before").unwrap();
    assert_eq!(server.take_headers(), []);
    server.log_headers();
    server.give_buffer(|| vec![0; 1 << 16].into());
    assert!(!server.append_message(Kind::Text, b"unlogged", 1 << 16), "the fast path logs nothing");
    server.send_text("1").unwrap();
    server.send_bytes(Bytes::from(vec![0; 5_000])).unwrap();
    server.send_prepared(&PreparedFrame::binary(&[0; 300])).unwrap();
    server.send_borrowed(Kind::Text, b"1234", |_| None, |_| true, drop).unwrap();
    server.send_ping(NOW, b"12345").unwrap();
    server.log_headers();
    server.close(NOW, None, "").unwrap();
    let logged: Vec<_> = server.take_headers().iter().map(|h| (h.fin, h.opcode, h.payload_len)).collect();
    assert_eq!(
        logged,
        [
            (true, Opcode::Text, 1),
            (true, Opcode::Binary, 5_000),
            (true, Opcode::Binary, 300),
            (true, Opcode::Text, 4),
            (true, Opcode::Ping, 5),
            (true, Opcode::Close, 0)
        ]
    );
    assert_eq!(server.take_headers(), []);
}

#[test]
fn the_rest_of_a_borrowed_message_is_queued_if_it_may_be_kept() {
    for keeps in [true, false] {
        let mut server = server();
        let (mut accepted, mut kept_len) = (Some(3), 0);
        let keep = |len| {
            kept_len = len;
            keeps
        };
        server.send_borrowed(Kind::Binary, b"12345", |_| accepted.take(), keep, drop).unwrap();
        assert_eq!(kept_len, 4);
        assert_eq!(server.take_transmit(), if keeps { &b"2345"[..] } else { b"" });
    }
}

#[test]
fn a_borrowed_message_is_copied_only_if_the_copy_may_be_kept() {
    for keeps in [true, false] {
        let mut asked = Vec::new();
        let mut keep = |len| {
            asked.push(len);
            keeps
        };
        let mut wire = Vec::new();
        let mut write = |slices: &[&[u8]]| {
            wire.extend(slices.concat());
            Some(slices.iter().map(|slice| slice.len()).sum())
        };
        let mut server = deflated(&DeflateConfig { min_len: 0, ..DeflateConfig::default() });
        server.send_ping(NOW, b"").unwrap();
        server.send_borrowed(Kind::Binary, &[7; 300], &mut write, &mut keep, drop).unwrap();
        let mut client = client([7; 32]);
        let sent = client.send_borrowed(Kind::Binary, &[7; 50], |_| None, &mut keep, drop);
        // RFC 7692 §6: a message may be sent without compression.
        if keeps {
            assert!(wire.len() < 100 && wire[2] == 0xc2 && sent.is_ok());
        } else {
            assert_eq!(wire, [&b"\x89\0\x82\x7e\x01\x2c"[..], &[7; 300]].concat());
            let max = Limits::default().queued_len_max;
            assert_eq!(sent, Err(Misuse::QueueFull { queued: 0, max }.into()));
        }
        // The compressed form exists twice while it is made. What the client has queued is longer than what it was given.
        assert_eq!(asked, if keeps { vec![602, 50, 56] } else { vec![602, 50] });
        assert_eq!(client.queued_len(), if keeps { 56 } else { 0 });
    }
}

// RFC 6455 §10.3: masking keys come from the seed alone.
#[test]
fn masks_with_keys_of_the_new_seed() {
    let sent = |client: &mut Outbound| {
        client.send_text("same").unwrap();
        client.take_transmit()
    };
    let (mut first, mut same, mut fresh) = (client([1; 32]), client([1; 32]), client([2; 32]));
    assert_eq!(sent(&mut first), sent(&mut same));
    first.reseed([2; 32]);
    let reseeded = sent(&mut first);
    assert_ne!(reseeded, sent(&mut same));
    assert_eq!(reseeded, sent(&mut fresh));

    let mut connection = Connection::client(Config::default(), None, [1; 32], NOW);
    connection.reseed([2; 32]);
    connection.send_text("same").unwrap();
    assert_eq!(connection.take_transmit(), reseeded);
}

#[test]
fn append_message_refuses_masking_compression_and_fragments() {
    let buffer = || vec![0; 1 << 16].into();
    let mut server = server();
    assert!(!server.append_message(Kind::Text, b"no memory", 1 << 16));
    server.give_buffer(buffer);
    assert!(server.append_message(Kind::Text, b"text", 1 << 16));
    assert!(server.append_message(Kind::Binary, &[7; 200], 1 << 16));
    assert!(!server.append_message(Kind::Text, b"full", server.queued_len()));
    server.send_text_chunk("begun", false).unwrap();
    assert!(!server.append_message(Kind::Text, b"within a message", 1 << 16));
    server.send_text_chunk("", true).unwrap();
    assert!(server.append_message(Kind::Text, b"", 1 << 16));
    let expected =
        [b"\x81\x04text", &[0x82, 126, 0, 200][..], &[7; 200], b"\x01\x05begun\x80\0", b"\x81\0"].concat();
    assert_eq!(server.take_transmit(), expected);
    server.close(NOW, None, "").unwrap();
    assert!(!server.append_message(Kind::Text, b"closed", 1 << 16));

    // A client masks its messages, and the other end compresses them.
    for mut outbound in [client([1; 32]), deflated(&DeflateConfig::default())] {
        outbound.give_buffer(buffer);
        assert!(!outbound.append_message(Kind::Text, b"text", 1 << 16));
        assert_eq!(outbound.queued_len(), 0);
    }
    // A congested queue has no room.
    let limits = Limits { queued_len_high: 10, ..Limits::default() };
    let mut server = with(Config { limits, ..Config::default() });
    server.give_buffer(buffer);
    assert!(server.append_message(Kind::Text, b"12345678", 1 << 16));
    assert!(!server.append_message(Kind::Text, b"", 1 << 16));
}

#[test]
fn append_message_keeps_to_the_limit_of_the_queue() {
    const FRAME_LEN: usize = 4 + 1000;
    for queued_len_max in [0, 500, FRAME_LEN, 10 * FRAME_LEN - 1, 100_000, 200_000] {
        let limits = Limits { queued_len_max, ..Limits::default() };
        let mut server = with(Config { limits, ..Config::default() });
        server.give_buffer(|| vec![0; 300_000].into());
        while server.append_message(Kind::Binary, &[7; 1000], 1 << 20) {}
        assert!(server.queued_len() <= queued_len_max, "{} of {queued_len_max}", server.queued_len());
    }
}

#[test]
fn gives_and_takes_the_buffer_of_the_queue() {
    let mut server = server();
    server.give_buffer(|| vec![0; 1 << 16].into());
    server.give_buffer(|| panic!("the queue has a buffer"));
    server.send_text("queued").unwrap();
    assert_eq!(server.take_buffer().capacity(), 1 << 16);
    assert_eq!(server.take_transmit(), b"\x81\x06queued");
}

#[test]
fn takes_codecs_from_the_pool_and_returns_them() {
    let config = DeflateConfig { min_len: 0, ..DeflateConfig::default() };
    let (mut pool, mut first, mut second) = (DeflatePool::new(2, 2), deflated(&config), deflated(&config));
    first.send_text("Hello").unwrap();
    assert_eq!(first.take_transmit(), b"\xc1\x07\xf2\x48\xcd\xc9\xc9\x07\x00");
    first.return_codec(&mut pool);
    assert_eq!(pool.deflaters(), 1);
    second.take_codec(&mut pool);
    assert_eq!(pool.deflaters(), 0);
    second.send_text("Hello").unwrap();
    assert_eq!(second.take_transmit(), b"\xc1\x07\xf2\x48\xcd\xc9\xc9\x07\x00");
    second.return_codec(&mut pool);
    assert_eq!(pool.deflaters(), 1);
}

// RFC 6455 §5.5.3.
#[test]
fn delays_pongs_from_the_bound_of_the_queue_on() {
    for (queued, answered) in [(9, true), (10, false), (11, false)] {
        let limits = Limits { queued_len_high: 10, ..Limits::default() };
        let mut server = with(Config { limits, ..Config::default() });
        server.send_binary(&vec![0; queued - 2]).unwrap();
        server.handle_event(NOW, &mut Event::Ping(b"p"));
        assert_eq!(server.queued_len(), queued + if answered { 3 } else { 0 });
        assert!(server.wants_write());
        server.transmitted(queued);
        assert_eq!(server.take_transmit(), b"\x8a\x01p", "{queued}");
    }
}

#[test]
fn writes_a_borrowed_payload_from_where_it_is() {
    let (mut server, payload) = (server(), [7; 300]);
    let is_borrowed =
        |slice: &[u8]| payload.as_ptr_range().contains(&slice.as_ptr()) && slice.len() <= payload.len();
    let mut written = Vec::new();
    let write = |slices: &[&[u8]]| {
        written.push(slices.iter().map(|slice| (slice.len(), is_borrowed(slice))).collect::<Vec<_>>());
        Some(if written.len() == 1 { 104 } else { 200 })
    };
    server.send_borrowed(Kind::Binary, &payload, write, |_| true, drop).unwrap();
    assert_eq!(written, [vec![(4, false), (300, true)], vec![(200, true)]]);
    assert_eq!(server.queued_len(), 0);
}

// A header without its payload would make the next frame the payload.
#[cfg(feature = "std")]
#[test]
fn a_panic_while_a_borrowed_payload_is_written_leaves_whole_frames() {
    let mut server = server();
    let writing = std::panic::AssertUnwindSafe(|| {
        let mut writes = 0;
        let write = |_: &[&[u8]]| {
            writes += 1;
            assert!(writes < 2, "the transport has failed");
            Some(104)
        };
        server.send_borrowed(Kind::Binary, &[7; 300], write, |_| true, drop)
    });
    assert!(std::panic::catch_unwind(writing).is_err());
    server.send_binary(b"next").unwrap();
    assert_eq!(server.take_transmit(), [&[7; 200][..], b"\x82\x04next"].concat());
}

#[test]
fn hands_back_payloads_that_were_queued_by_reference() {
    let payloads = || [1, 2, 3].map(|byte| Bytes::from(vec![byte; 5_000]));
    let mut released = Vec::new();
    let mut server = server();
    payloads().into_iter().for_each(|payload| server.send_bytes(payload).unwrap());
    server.transmitted_with(5_004 + 5_003, |payload| released.push(payload));
    assert_eq!(released.len(), 1);
    let mut sent = 0;
    let write = |slices: &[&[u8]]| {
        // All but the payload that is borrowed.
        let len = slices.iter().map(|slice| slice.len()).sum();
        sent += len;
        (len > 0).then_some(len)
    };
    server.send_borrowed(Kind::Binary, &[7; 300], write, |_| true, |payload| released.push(payload)).unwrap();
    assert_eq!((sent, released.len()), (1 + 5_004 + 304, 3));
    payloads().into_iter().for_each(|payload| server.send_bytes(payload).unwrap());
    server.handle_write_failed(NOW, |payload| released.push(payload));
    assert_eq!((released.len(), server.queued_len()), (6, 0));
    // Only what has been written of a payload is missing in it.
    assert_eq!(released.iter().map(Bytes::len).collect::<Vec<_>>(), [0, 0, 0, 5_000, 5_000, 5_000]);
}

// RFC 6455 §7.1.4: closed cleanly means that both Close frames were sent and received.
#[test]
fn a_close_frame_that_was_never_written_is_not_clean() {
    for end in [Outbound::handle_eof, |server: &mut Outbound| server.handle_write_failed(NOW, drop)] {
        let mut server = in_phase(Some(Phase::Exchanged));
        assert!(!server.was_clean());
        end(&mut server);
        server.handle_timeout(NOW + Duration::from_secs(10));
        assert!(!server.was_clean());
        server.handle_write_failed(NOW, drop);
        assert_eq!((server.was_clean(), server.transport()), (false, Transport::Close));
        assert_eq!(server.end().unwrap().by, Initiator::Peer);
    }
    let mut server = in_phase(Some(Phase::Exchanged));
    server.take_transmit();
    server.handle_write_failed(NOW, drop);
    assert!(server.was_clean());
}

// RFC 6455 §5.5: the reason of a Close frame has 123 bytes at most.
#[test]
fn truncates_a_close_reason_at_a_code_point_boundary() {
    let written = |text: &str| {
        let mut reason = Reason { bytes: [0; REASON_LEN_MAX], len: 0 };
        (reason.write_str(text).is_ok(), String::from(reason.as_str()))
    };
    for len in [0, 1, 122, 123] {
        let text = "x".repeat(len);
        assert_eq!(written(&text), (true, text.clone()));
        let long = text.clone() + "ß";
        assert_eq!(written(&long), if len < 122 { (true, long) } else { (false, text) });
    }
    assert_eq!(written(&"x".repeat(124)), (false, "x".repeat(123)));
}

// While closing, a peer that accepts 64 KiB of the queue within the timeout, or all of a shorter one, is given more time. The Close
// frame of two bytes, which is the last of the queue, counts once it is written.
#[test]
fn extends_the_close_timeout_while_the_peer_reads_the_queue() {
    let timeout = Config::default().close_timeout;
    for (queued, written, open) in [
        (200_000, (64 << 10) + 1, false),
        (200_000, (64 << 10) + 2, true),
        (1_000, 1_001, false),
        (1_000, 1_002, true),
        (0, 2, false),
    ] {
        let mut server = server();
        if queued > 0 {
            server.send_binary(&vec![0; queued - if queued > 1 << 16 { 10 } else { 4 }]).unwrap();
        }
        assert_eq!(server.queued_len(), queued);
        server.close(NOW, None, "").unwrap();
        server.transmitted(written);
        server.handle_timeout(NOW + timeout);
        assert_eq!(server.phase() == Some(Phase::CloseSent), open, "{written} of {queued}");
        if queued == 200_000 && open {
            // From now on, the next 64 KiB count.
            server.transmitted((64 << 10) - 1);
            assert_eq!(server.poll_timeout(), Some(NOW + 2 * timeout));
            server.handle_timeout(NOW + 2 * timeout);
            assert_eq!(server.phase(), Some(Phase::Closed { clean: false }));
        }
    }
    // When all is written, the peer has one timeout to answer.
    let mut server = server();
    server.send_binary(&[0; 1000]).unwrap();
    server.close(NOW, None, "").unwrap();
    server.take_transmit();
    server.handle_timeout(NOW + timeout);
    assert_eq!(server.phase(), Some(Phase::CloseSent));
    server.handle_timeout(NOW + 2 * timeout);
    assert_eq!(
        (server.phase(), server.end().unwrap().code()),
        (Some(Phase::Closed { clean: false }), CloseCode::ABNORMAL)
    );
}
