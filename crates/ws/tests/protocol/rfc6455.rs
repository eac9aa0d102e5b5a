//! RFC 6455, §5 to §8: a test for each MUST on an open connection, citing its section. `hostile/` has a table of invalid inputs and their
//! close codes; the opening handshake (§4) has its own tests.

use std::collections::HashSet;
use std::time::Duration;
use wireloom_testing::frame::{Length, concat, masked};
use wireloom_testing::{End, Frame, Received};
use wireloom_ws::limits::PONGS_QUEUED_LEN_MAX;
use wireloom_ws::{
    Cause, CloseCode, Config, Connection, Error, Initiator, Misuse, PeerMisbehaved, Role, Transport,
};

const KEY: [u8; 4] = [0x37, 0xFA, 0x21, 0x3D];

/// Frames with the masks of a client.
fn from_client(frames: &[Frame]) -> Vec<u8> {
    concat(&frames.iter().map(|frame| frame.clone().mask(KEY)).collect::<Vec<_>>())
}

/// One of everything that an end can send.
fn send_everything(end: &mut End) -> Vec<Frame> {
    let now = end.clock.now();
    let connection = &mut end.connection;
    connection.send_text("text").unwrap();
    connection.send_binary(&[0xFF; 300]).unwrap();
    connection.send_bytes(vec![1; 70_000].into()).unwrap();
    connection.send_text_chunk("pie", false).unwrap();
    connection.send_ping(now, b"ping").unwrap();
    connection.send_pong(b"pong").unwrap();
    connection.send_text_chunk("ce", true).unwrap();
    connection.send_text("").unwrap();
    connection.close(now, CloseCode::NORMAL, "bye").unwrap();
    end.sent_frames()
}

// §5.1: "a client MUST mask all frames that it sends to the server".
#[test]
fn a_client_masks_every_frame() {
    let sent = send_everything(&mut End::client());
    assert_eq!(sent.len(), 9);
    assert!(sent.iter().all(|frame| frame.key().is_some()));
}

// §5.1: "A server MUST NOT mask any frames that it sends to the client".
#[test]
fn a_server_masks_no_frame() {
    let sent = send_everything(&mut End::server());
    assert_eq!(sent.len(), 9);
    assert!(sent.iter().all(|frame| frame.key().is_none()));
}

// §5.1: "The server MUST close the connection upon receiving a frame that is not masked", with 1002 if it sends a code.
#[test]
fn a_server_closes_on_an_unmasked_frame() {
    let mut server = End::server();
    assert_eq!(
        server.receive(Frame::text("x").bytes()),
        [Received::Failed(PeerMisbehaved::UnmaskedFrame.into())]
    );
    assert_eq!(server.sent_frames()[0].close_code(), Some(1002));
    assert_eq!(server.connection.transport(), Transport::ShutdownWrite);
}

// §5.1: "A client MUST close a connection if it detects a masked frame".
#[test]
fn a_client_closes_on_a_masked_frame() {
    let mut client = End::client();
    let received = client.receive(Frame::text("x").mask(KEY).bytes());
    assert_eq!(received, [Received::Failed(PeerMisbehaved::MaskedFrame.into())]);
    assert_eq!(client.sent_frames()[0].close_code(), Some(1002));
}

// §5.2: the reserved bits "MUST be 0 unless an extension is negotiated".
#[test]
fn sends_no_reserved_bit_without_an_extension() {
    for role in [Role::Client, Role::Server] {
        assert!(send_everything(&mut End::new(role)).iter().all(|frame| frame.reserved() == 0));
    }
}

// §5.2: "the minimal number of bytes MUST be used to encode the length".
#[test]
fn encodes_lengths_in_the_fewest_bytes() {
    for role in [Role::Client, Role::Server] {
        for len in [0, 1, 125, 126, 127, 65_535, 65_536] {
            let mut end = End::new(role);
            end.connection.send_binary(&vec![7; len]).unwrap();
            end.connection.send_bytes(vec![8; len].into()).unwrap();
            for frame in end.sent_frames() {
                assert_eq!((frame.payload().len(), frame.length_field()), (len, Length::Minimal));
            }
        }
    }
}

// §5.3: "The masking key needs to be unpredictable"; "a client MUST pick a fresh masking key" for each frame.
#[test]
fn masks_each_frame_with_a_fresh_key() {
    let keys = |seed| {
        let mut client = Connection::client(Config::default(), None, seed, Duration::ZERO);
        for _ in 0..1_000 {
            client.send_text("the same").unwrap();
        }
        Frame::read_all(&client.take_transmit()).iter().filter_map(Frame::key).collect::<Vec<_>>()
    };
    let one = keys([1; 32]);
    assert_eq!(one.len(), 1_000);
    assert_eq!(one.iter().collect::<HashSet<_>>().len(), 1_000);
    assert_eq!(keys([1; 32]), one);
    assert!(keys([2; 32]).iter().zip(&one).all(|(two, one)| two != one));
}

// §5.3, §6.2: masking does not change the length, and the server removes it.
#[test]
fn a_server_reads_what_a_client_masked() {
    let mut server = End::server();
    let frame = Frame::text("Hello").mask(KEY);
    assert_eq!(frame.bytes().len(), Frame::text("Hello").bytes().len() + 4);
    assert_eq!(server.receive(frame.bytes()), [Received::text("Hello")]);
}

// §5.4: an unfragmented message is one frame with FIN and an opcode; a fragmented one begins without FIN and with the
// opcode, continues with opcode 0, and ends with FIN.
#[test]
fn sends_fragments_with_the_opcode_first_and_fin_last() {
    let mut end = End::server();
    end.connection.send_binary_chunk(b"one", false).unwrap();
    end.connection.send_binary_chunk(b"two", false).unwrap();
    end.connection.send_binary_chunk(b"", true).unwrap();
    end.connection.send_binary_chunk(b"alone", true).unwrap();
    let sent: Vec<_> = end.sent_frames().iter().map(|frame| (frame.is_final(), frame.opcode())).collect();
    assert_eq!(sent, [(false, 2), (false, 0), (true, 0), (true, 2)]);
}

// §5.4: "Message fragments MUST be delivered to the recipient in the order sent".
#[test]
fn delivers_fragments_in_order() {
    let mut frames = vec![Frame::binary([0]).fin(false)];
    frames.extend((1..=254).map(|i| Frame::continuation([i]).fin(false)));
    frames.push(Frame::continuation([255]));
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(End::server().receive(from_client(&frames)), [Received::Binary(all)]);
}

// §5.4: "The fragments of one message MUST NOT be interleaved between the fragments of another message".
#[test]
fn refuses_to_send_a_message_within_a_message() {
    let mut end = End::server();
    end.connection.send_text_chunk("one", false).unwrap();
    let refused = Err(Error::Misuse(Misuse::MessageUnderWay));
    assert_eq!(end.connection.send_text("two"), refused);
    assert_eq!(end.connection.send_binary(b"two"), refused);
    assert_eq!(end.connection.send_bytes(vec![0; 10_000].into()), refused);
    assert_eq!(end.connection.send_binary_chunk(b"two", true), refused);
    end.connection.send_text_chunk("", true).unwrap();
    end.connection.send_text("two").unwrap();
    assert_eq!(end.sent_frames().len(), 3);
}

// §5.4: "An endpoint MUST be capable of handling control frames in the middle of a fragmented message"; "Control frames
// MAY be injected"; "Control frames themselves MUST NOT be fragmented".
#[test]
fn handles_control_frames_within_a_message() {
    let mut server = End::server();
    let wire = from_client(&[
        Frame::text("Hel").fin(false),
        Frame::ping("?"),
        Frame::continuation("").fin(false),
        Frame::pong("!"),
        Frame::continuation("lo"),
    ]);
    let received = server.receive(wire);
    assert_eq!(
        received,
        [Received::Ping(b"?".into()), Received::Pong(b"!".into(), None), Received::text("Hello")]
    );
    assert_eq!(server.sent_frames(), [Frame::pong("?")]);

    let mut server = End::server();
    server.connection.send_text_chunk("Hel", false).unwrap();
    server.receive(from_client(&[Frame::ping("?")]));
    assert_eq!(server.sent_frames(), [Frame::text("Hel").fin(false), Frame::pong("?")]);
}

// §5.4: "clients and servers MUST support receiving both fragmented and unfragmented messages".
#[test]
fn receives_messages_whole_and_in_fragments() {
    let message = "both ways ".repeat(1_000);
    let half = message.len() / 2;
    let frames = [
        Frame::text(&message),
        Frame::text(&message[..half]).fin(false),
        Frame::continuation(&message[half..]),
    ];
    let expected = [Received::text(&message), Received::text(&message)];
    assert_eq!(End::server().receive(from_client(&frames)), expected);
    assert_eq!(End::client().receive(concat(&frames)), expected);
}

// §5.5: "All control frames MUST have a payload length of 125 bytes or less and MUST NOT be fragmented".
#[test]
fn sends_no_control_frame_over_125_bytes() {
    for role in [Role::Client, Role::Server] {
        let mut end = End::new(role);
        let now = end.clock.now();
        end.connection.send_ping(now, &[0; 125]).unwrap();
        end.connection.send_pong(&[0; 125]).unwrap();
        assert_eq!(end.connection.send_ping(now, &[0; 126]), Err(Misuse::ControlTooLong(126).into()));
        assert_eq!(end.connection.send_pong(&[0; 126]), Err(Misuse::ControlTooLong(126).into()));
        let reason = "r".repeat(124);
        let refused = end.connection.close(now, CloseCode::NORMAL, &reason);
        assert_eq!(refused, Err(Misuse::CloseReasonTooLong(124).into()));
        assert!(end.connection.is_open());
        end.connection.close(now, CloseCode::NORMAL, &reason[1..]).unwrap();
        let sent = end.sent_frames();
        assert_eq!(sent.len(), 3);
        assert!(sent.iter().all(|frame| frame.is_final() && frame.payload().len() == 125));
    }
}

// §5.5.1: "the first two bytes of the body MUST be a 2-byte unsigned integer (in network byte order)".
#[test]
fn begins_the_close_body_with_the_code() {
    let mut server = End::server();
    server.connection.close(server.clock.now(), CloseCode::GOING_AWAY, "later").unwrap();
    assert_eq!(server.connection.take_transmit(), b"\x88\x07\x03\xe9later");
    let mut server = End::server();
    server.connection.close(server.clock.now(), None, "").unwrap();
    assert_eq!(server.connection.take_transmit(), b"\x88\x00");
}

// §5.5.1: "The application MUST NOT send any more data frames after sending a Close frame".
#[test]
fn sends_nothing_after_its_close() {
    let mut server = End::server();
    let now = server.clock.now();
    server.connection.send_text_chunk("begun", false).unwrap();
    server.connection.close(now, CloseCode::NORMAL, "").unwrap();
    let refused = Err(Error::Misuse(Misuse::NotOpen));
    assert_eq!(server.connection.send_text("x"), refused);
    assert_eq!(server.connection.send_binary(b"x"), refused);
    assert_eq!(server.connection.send_bytes(vec![0].into()), refused);
    assert_eq!(server.connection.send_text_chunk("x", true), refused);
    assert_eq!(server.connection.send_text_uncompressed("x"), refused);
    assert_eq!(server.connection.send_ping(now, b""), refused);
    assert_eq!(server.connection.send_pong(b""), refused);
    assert_eq!(server.connection.close(now, CloseCode::GOING_AWAY, ""), Ok(()));
    // A ping that arrives now is not answered behind the Close frame.
    assert_eq!(server.receive(from_client(&[Frame::ping("?")])), [Received::Ping(b"?".into())]);
    let sent = server.sent_frames();
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[1], Frame::close(1000, ""));
}

// §5.5.1: "If an endpoint receives a Close frame and did not previously send a Close frame, the endpoint MUST send a Close
// frame in response"; it "typically echos the status code it received". Browsers expect the reason too.
#[test]
fn answers_a_close_with_its_code_and_reason() {
    for (frame, answer) in [
        (Frame::close(4000, "because"), Frame::close(4000, "because")),
        (Frame::new(Frame::CLOSE, ""), Frame::new(Frame::CLOSE, "")),
    ] {
        let mut client = End::client();
        client.receive(frame.bytes());
        let sent = client.sent_frames();
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0].payload(), answer.payload());
    }
}

// §5.5.1: the queue may be sent before the Close frame.
#[test]
fn an_answer_is_sent_behind_the_queue() {
    let mut server = End::server();
    server.connection.send_text("first").unwrap();
    server.receive(from_client(&[Frame::ping("?"), Frame::close(1000, "")]));
    assert_eq!(server.sent_frames(), [Frame::text("first"), Frame::pong("?"), Frame::close(1000, "")]);
}

// §5.5.1: "If a client and server both send a Close message at the same time, both endpoints will have sent and received
// a Close message and should consider the WebSocket connection closed".
#[test]
fn closes_that_cross_answer_each_other() {
    let (mut client, mut server) = (End::client(), End::server());
    client.connection.close(client.clock.now(), CloseCode::NORMAL, "client").unwrap();
    server.connection.close(server.clock.now(), CloseCode::GOING_AWAY, "server").unwrap();
    let (from_client, from_server) = (client.connection.take_transmit(), server.connection.take_transmit());
    assert_eq!(client.receive(from_server), [Received::Close(Some(1001), "server".into())]);
    assert_eq!(server.receive(from_client), [Received::Close(Some(1000), "client".into())]);
    for end in [&client, &server] {
        assert!(end.connection.was_clean() && !end.connection.wants_write());
    }
}

// §5.5.2: "Upon receipt of a Ping frame, an endpoint MUST send a Pong frame in response, unless it already received a
// Close frame"; §5.5.3: it "must have identical Application data".
#[test]
fn answers_a_ping_with_its_payload() {
    for payload in [&b""[..], b"Hello", &[0xFF; 125]] {
        let mut server = End::server();
        server.receive(from_client(&[Frame::ping(payload)]));
        assert_eq!(server.sent_frames(), [Frame::pong(payload)]);
    }
}

// §5.5.2: "It SHOULD respond with Pong frame as soon as is practical": before what answers later messages.
#[test]
fn answers_every_ping_in_order() {
    let mut server = End::server();
    let pings: Vec<Frame> = (0..10u32).map(|i| Frame::ping(i.to_be_bytes())).collect();
    assert_eq!(server.receive(from_client(&pings)).len(), 10);
    server.connection.send_text("after").unwrap();
    let mut answers: Vec<Frame> = (0..10u32).map(|i| Frame::pong(i.to_be_bytes())).collect();
    answers.push(Frame::text("after"));
    assert_eq!(server.sent_frames(), answers);
}

// §5.5.3: "If an endpoint receives a Ping frame and has not yet sent Pong frame(s) in response to previous Ping frame(s),
// the endpoint MAY elect to send a Pong frame for only the most recently processed Ping frame".
#[test]
fn answers_the_newest_of_too_many_pings() {
    let mut server = End::server();
    server.connection.send_binary(&vec![0; PONGS_QUEUED_LEN_MAX]).unwrap();
    let pings: Vec<Frame> = (0..1_000u32).map(|i| Frame::ping(i.to_be_bytes())).collect();
    assert_eq!(server.receive(from_client(&pings)).len(), 1_000);
    assert_eq!(server.sent_frames()[1..], [Frame::pong(999u32.to_be_bytes())]);
}

// §5.5.3: "A response to an unsolicited Pong frame is not expected".
#[test]
fn answers_no_pong() {
    let mut server = End::server();
    assert_eq!(
        server.receive(from_client(&[Frame::pong("unasked")])),
        [Received::Pong(b"unasked".into(), None)]
    );
    assert!(server.sent_frames().is_empty());
}

// §5.6: text is UTF-8 as a whole message, while "a particular text frame might include a partial UTF-8 sequence".
#[test]
fn a_frame_of_text_may_end_within_a_code_point() {
    let euro = "€".as_bytes();
    let frames = [
        Frame::text(&euro[..1]).fin(false),
        Frame::continuation(&euro[1..2]).fin(false),
        Frame::continuation(&euro[2..]),
    ];
    assert_eq!(End::server().receive(from_client(&frames)), [Received::text("€")]);
}

// §5.7: the published frames, written.
#[test]
fn writes_the_published_frames() {
    let mut server = End::server();
    let now = server.clock.now();
    server.connection.send_text("Hello").unwrap();
    server.connection.send_text_chunk("Hel", false).unwrap();
    server.connection.send_text_chunk("lo", true).unwrap();
    server.connection.send_ping(now, b"Hello").unwrap();
    server.connection.send_binary(&[0xAA; 256]).unwrap();
    server.connection.send_binary(&[0x55; 65_536]).unwrap();
    let wire = server.connection.take_transmit();
    let expected = [
        &[0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f][..],
        &[0x01, 0x03, 0x48, 0x65, 0x6c, 0x80, 0x02, 0x6c, 0x6f],
        &[0x89, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f],
        &[0x82, 0x7E, 0x01, 0x00],
        &[0xAA; 256],
        &[0x82, 0x7F, 0, 0, 0, 0, 0, 1, 0, 0],
        &[0x55; 65_536],
    ]
    .concat();
    assert!(wire == expected);
}

// §5.7: the published frames, read.
#[test]
fn reads_the_published_frames() {
    let masked = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    assert_eq!(End::server().receive(masked), [Received::text("Hello")]);
    let mut client = End::client();
    assert_eq!(client.receive([0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f]), [Received::text("Hello")]);
    let fragments = [0x01, 0x03, 0x48, 0x65, 0x6c, 0x80, 0x02, 0x6c, 0x6f];
    assert_eq!(client.receive(fragments), [Received::text("Hello")]);
    assert_eq!(client.receive([0x89, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f]), [Received::Ping(b"Hello".into())]);
    let sent = client.sent_frames();
    assert_eq!((sent[0].opcode(), sent[0].payload()), (Frame::PONG, &b"Hello"[..]));
    let pong = [0x8a, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    assert_eq!(End::server().receive(pong), [Received::Pong(b"Hello".into(), None)]);
}

// §7.1.1: the server closes TCP first; the client waits for it. §7.1.4: both were exchanged, so it was closed cleanly.
#[test]
fn the_server_closes_tcp_and_the_client_waits() {
    for closer in [Role::Client, Role::Server] {
        let (mut client, mut server) = (End::client(), End::server());
        let end = if closer == Role::Client { &mut client } else { &mut server };
        end.connection.close(end.clock.now(), CloseCode::NORMAL, "").unwrap();
        for _ in 0..2 {
            let wire = client.connection.take_transmit();
            server.receive(wire);
            let wire = server.connection.take_transmit();
            client.receive(wire);
        }
        assert_eq!(server.connection.transport(), Transport::Close, "{closer:?} closes");
        assert_eq!(client.connection.transport(), Transport::Open, "{closer:?} closes");
        client.connection.handle_eof();
        assert_eq!(client.connection.transport(), Transport::Close);
        for (end, by_it) in [(&client, closer == Role::Client), (&server, closer == Role::Server)] {
            assert!(end.connection.was_clean());
            let ended = end.connection.end().unwrap();
            assert_eq!(ended.by, if by_it { Initiator::Local } else { Initiator::Peer });
            assert_eq!(ended.code(), CloseCode::NORMAL);
        }
    }
}

// §7.1.1: trailing bytes are discarded, and the server shuts down writing until the client has closed, so that it receives everything.
#[test]
fn a_server_discards_what_follows_a_close_frame() {
    for behind in [false, true] {
        let mut server = End::server();
        let mut wire = Frame::close(1000, "").mask([1, 2, 3, 4]).bytes();
        if behind {
            wire.extend(masked(0x81, "late"));
        }
        assert_eq!(server.receive(wire).len(), 1);
        server.sent_frames();
        let expected = if behind { Transport::ShutdownWrite } else { Transport::Close };
        assert_eq!(server.connection.transport(), expected);
        // Bytes that the driver finds when it is about to close.
        assert_eq!(server.receive(masked(0x81, "later")), []);
        assert_eq!(server.connection.transport(), Transport::ShutdownWrite);
        server.connection.handle_eof();
        assert_eq!(server.connection.transport(), Transport::Close);
        assert!(server.connection.was_clean());
    }
}

// §7.1.1: a client waits for the server to close until a deadline, and then "MAY close".
#[test]
fn the_closing_handshake_has_a_deadline() {
    let mut client = End::client();
    client.receive(Frame::close(1000, "").bytes());
    client.sent_frames();
    assert_eq!(client.connection.transport(), Transport::Open);
    let deadline = client.connection.poll_timeout().expect("a deadline");
    client.connection.handle_timeout(deadline - Duration::from_nanos(1));
    assert_eq!(client.connection.transport(), Transport::Open);
    client.connection.handle_timeout(deadline);
    assert_eq!(client.connection.transport(), Transport::Close);
    assert!(client.connection.was_clean());
}

// §7.1.3: the closing handshake is started once a Close frame is sent or received; messages may still arrive until then.
#[test]
fn receives_messages_until_the_close_is_answered() {
    let mut server = End::server();
    server.connection.close(server.clock.now(), CloseCode::NORMAL, "").unwrap();
    server.sent_frames();
    let received =
        server.receive(from_client(&[Frame::text("late"), Frame::close(1000, ""), Frame::text("too late")]));
    assert_eq!(received, [Received::text("late"), Received::Close(Some(1000), String::new())]);
    assert!(server.connection.was_clean());
}

// §7.1.5: the code is the one received; 1005 when the frame had none, 1006 when there was no frame.
#[test]
fn the_connection_close_code_is_the_one_received() {
    let ended = |wire: &[u8]| {
        let mut client = End::client();
        client.receive(wire);
        client.sent_frames();
        client.connection.handle_eof();
        client.connection.end().unwrap().code().value()
    };
    assert_eq!(ended(&Frame::close(3210, "why").bytes()), 3210);
    assert_eq!(ended(&Frame::new(Frame::CLOSE, "").bytes()), 1005);
    assert_eq!(ended(b""), 1006);
}

// §7.1.5: "If no such Close control frame was received by the endpoint", the code is 1006, whatever this end sent.
#[test]
fn a_close_without_an_answer_is_abnormal() {
    let mut client = End::client();
    client.connection.close(client.clock.now(), CloseCode::NORMAL, "").unwrap();
    client.sent_frames();
    client.connection.handle_eof();
    let ended = client.connection.end().unwrap();
    assert_eq!((ended.by, ended.code()), (Initiator::Local, CloseCode::ABNORMAL));
    assert!(!client.connection.was_clean());

    let mut client = End::client();
    client.connection.close(client.clock.now(), CloseCode::NORMAL, "").unwrap();
    client.sent_frames();
    let deadline = client.connection.poll_timeout().unwrap();
    client.connection.handle_timeout(deadline);
    assert_eq!(client.connection.end().unwrap().code(), CloseCode::ABNORMAL);
    assert_eq!(client.connection.end().unwrap().cause, Cause::CloseTimeout);
}

// §5.5.1, §7.1.2: the Close frame is sent behind the queue, which may take long on a slow connection. The peer must accept 64 KiB of the
// queue per deadline, or all of it; then it has one more to answer.
#[test]
fn a_close_is_sent_behind_queued_messages() {
    const LEN: usize = 64 << 10;
    let deadlines = |taken: &[usize]| {
        let mut server = End::server();
        server.connection.send_binary(&[7; 3 * LEN]).unwrap();
        server.connection.close(server.clock.now(), CloseCode::NORMAL, "").unwrap();
        let mut count = 0;
        let mut taken = taken.iter();
        while let Some(deadline) = server.connection.poll_timeout() {
            count += 1;
            let mut left = taken.next().copied().unwrap_or(0).min(server.connection.queued_len());
            while left > 0 {
                let mut slices: [&[u8]; 4] = [&[]; 4];
                server.connection.poll_transmit(&mut slices);
                let len = left.min(slices[0].len());
                server.connection.transmitted(len);
                left -= len;
            }
            server.connection.handle_timeout(deadline);
        }
        assert_eq!(server.connection.end().unwrap().cause, Cause::CloseTimeout);
        count
    };
    assert_eq!(deadlines(&[]), 1);
    assert_eq!(deadlines(&[LEN - 1, LEN]), 1);
    assert_eq!(deadlines(&[LEN + 1000, LEN - 1, LEN]), 2);
    assert_eq!(deadlines(&[LEN + 1000, LEN, LEN]), 4);
    assert_eq!(deadlines(&[4 * LEN]), 2);
}

// §7.1.6: the reason is the text behind the code.
#[test]
fn the_reason_is_kept() {
    let mut client = End::client();
    client.receive(Frame::close(1001, "zum Schluß").bytes());
    let cause = Cause::Close { code: Some(CloseCode::GOING_AWAY), reason: "zum Schluß".into() };
    assert_eq!(client.connection.end().unwrap().cause, cause);
}

// §7.1.7: an endpoint that fails the connection "MUST NOT continue to attempt to process data (including a responding
// Close frame) from the remote endpoint".
#[test]
fn a_failed_connection_drops_input() {
    let mut server = End::server();
    let error = PeerMisbehaved::InvalidUtf8.into();
    let wire =
        from_client(&[Frame::text([0xFF]), Frame::text("x"), Frame::ping("?"), Frame::close(1000, "")]);
    assert_eq!(server.receive(wire), [Received::Failed(error)]);
    assert_eq!(server.receive(from_client(&[Frame::text("more"), Frame::close(1000, "")])), []);
    assert_eq!(server.sent_frames().len(), 1);
    assert!(!server.connection.was_clean());
    assert_eq!(server.connection.end().unwrap().cause, Cause::Error(error));
    assert!(server.connection.recv_slot().is_none());
}

// §7.1.7: the Close frame of a failure is sent behind the queue, and at most once.
#[test]
fn a_failure_after_close_sends_no_second_close() {
    let mut server = End::server();
    server.connection.close(server.clock.now(), CloseCode::NORMAL, "").unwrap();
    assert_eq!(server.sent_frames().len(), 1);
    assert_eq!(server.receive([0x83]), [Received::Failed(PeerMisbehaved::ReservedOpcode(3).into())]);
    assert!(server.sent_frames().is_empty());
    assert_eq!(server.connection.transport(), Transport::ShutdownWrite);
}

// §7.2.1: a client whose transport is lost reports 1006, and cannot send.
#[test]
fn a_lost_transport_is_abnormal() {
    for role in [Role::Client, Role::Server] {
        let mut end = End::new(role);
        end.connection.handle_eof();
        let ended = end.connection.end().unwrap();
        assert_eq!((ended.by, &ended.cause), (Initiator::Transport, &Cause::TransportClosed));
        assert_eq!(end.connection.transport(), Transport::Close);
        assert_eq!(end.connection.send_text("x"), Err(Misuse::NotOpen.into()));
        assert_eq!(end.connection.poll_timeout(), None);
    }
}

// §7.4.1: 1005, 1006 and 1015 "MUST NOT be set as a status code in a Close control frame by an endpoint"; §7.4.2: 0–999
// are not used, 1000–2999 are the protocol's.
#[test]
fn refuses_to_send_reserved_close_codes() {
    for code in 0..=u16::MAX {
        let mut server = End::server();
        let sent = server.connection.close(server.clock.now(), CloseCode::new(code), "");
        let may = matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999);
        assert_eq!(sent.is_ok(), may, "{code}");
        assert_eq!(server.connection.wants_write(), may, "{code}");
    }
    let mut server = End::server();
    let without = server.connection.close(server.clock.now(), None, "a reason");
    assert_eq!(without, Err(Misuse::CloseReasonWithoutCode.into()));
}

// §8.1: "it MUST _Fail the WebSocket Connection_" on text that is not UTF-8, and it does so as soon as that is certain.
#[test]
fn fails_at_the_first_impossible_byte() {
    let text = b"abc\xED\xA0";
    let wire = Frame::text([&text[..], &[b'z'; 1_000]].concat()).mask(KEY).bytes();
    let head = wire.len() - 1_000;
    let mut server = End::server();
    assert_eq!(server.receive(&wire[..head - 1]), []);
    assert_eq!(server.receive(&wire[head - 1..head]), [Received::Failed(PeerMisbehaved::InvalidUtf8.into())]);
    assert_eq!(server.sent_frames()[0].close_code(), Some(1007));
}
