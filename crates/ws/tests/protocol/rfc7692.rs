//! RFC 7692 on an open connection: a test for each MUST on frames, citing its section. `deflate/negotiation` tests the rules of the
//! negotiation (§5, §7.1), `deflate/` those of the data (§7.2), and the table of `hostile/` has invalid inputs.

use wireloom_testing::frame::concat;
use wireloom_testing::{End, Frame, Received, Rng};
use wireloom_ws::deflate::{DeflateConfig, DeflateParams};
use wireloom_ws::{CloseCode, Config, PeerMisbehaved, Role};

const RSV1: u8 = 4;
const HELLO: [u8; 7] = [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];

/// An end that compresses every message.
fn eager(role: Role, params: DeflateParams) -> End {
    let deflate = DeflateConfig { min_len: 0, ..DeflateConfig::default() };
    End::with(role, Config::default(), Some((params, &deflate)))
}

fn server() -> End {
    eager(Role::Server, DeflateParams::default())
}

fn client() -> End {
    eager(Role::Client, DeflateParams::default())
}

// §6: RSV1 is the "Per-Message Compressed" bit; §6.1: it is set "on the first frame of the message" alone.
#[test]
fn marks_the_first_frame_of_a_compressed_message() {
    let mut server = server();
    server.connection.send_text("one frame").unwrap();
    let noise = Rng::with_seed(1).bytes(60_000);
    server.connection.send_binary_chunk(&noise[..20_000], false).unwrap();
    server.connection.send_binary_chunk(&noise[20_000..40_000], false).unwrap();
    server.connection.send_binary_chunk(&noise[40_000..], true).unwrap();
    let sent = server.sent_frames();
    let bits: Vec<_> =
        sent.iter().map(|frame| (frame.reserved(), frame.opcode(), frame.is_final())).collect();
    assert_eq!(bits, [(RSV1, 1, true), (RSV1, 2, false), (0, 0, false), (0, 0, true)]);
    let received = client().receive(concat(&sent));
    assert_eq!(received, [Received::text("one frame"), Received::binary(&noise)]);
}

// §6.1: a fragment may be empty, but each one counts towards the receiver's limit. 4 MiB in chunks of 64 bytes is honest traffic.
#[test]
fn sends_no_fragment_before_there_is_compressed_data() {
    let chunk = format!("{:064}", 7);
    for (mut from, mut to) in [(client(), server()), (server(), client())] {
        for _ in 0..(4 << 20) / 64 {
            from.connection.send_text_chunk(&chunk, false).unwrap();
        }
        from.connection.send_text_chunk("", true).unwrap();
        let sent = from.sent_frames();
        let received = to.receive(concat(&sent));
        assert!(received == [Received::text(&chunk.repeat((4 << 20) / 64))], "{:?}", received.last());
        assert!(sent.iter().all(|frame| !frame.payload().is_empty()));
    }
}

// §6: "An endpoint MAY send ... both compressed and uncompressed messages"; those have RSV1 unset.
#[test]
fn sends_short_and_uncompressed_messages_uncompressed() {
    let mut server = End::deflated(Role::Server, Config::default());
    let long = "long ".repeat(100);
    server.connection.send_text("short").unwrap();
    server.connection.send_text(&long).unwrap();
    server.connection.send_text_uncompressed(&long).unwrap();
    server.connection.send_binary_uncompressed(long.as_bytes()).unwrap();
    let sent = server.sent_frames();
    assert_eq!(sent.iter().map(Frame::reserved).collect::<Vec<_>>(), [0, RSV1, 0, 0]);
    assert_eq!(sent[2], Frame::text(&long));
    assert!(sent[1].payload().len() < 100);
    let text = Received::text(&long);
    let expected = [Received::text("short"), text.clone(), text, Received::binary(long.as_bytes())];
    assert_eq!(client().receive(concat(&sent)), expected);
}

// §6.1: "An endpoint MUST NOT set the "Per-Message Compressed" bit of control frames"; they are sent as they are.
#[test]
fn compresses_no_control_frame() {
    let mut server = server();
    let now = server.clock.now();
    server.connection.send_binary_chunk(&Rng::with_seed(1).bytes(20_000), false).unwrap();
    server.connection.send_ping(now, &[b'p'; 125]).unwrap();
    server.connection.send_pong(&[b'q'; 125]).unwrap();
    server.connection.close(now, CloseCode::NORMAL, &"r".repeat(123)).unwrap();
    let sent = server.sent_frames();
    let controls = [Frame::ping([b'p'; 125]), Frame::pong([b'q'; 125]), Frame::close(1000, [b'r'; 123])];
    assert_eq!(sent[1..], controls);
}

// §6.2: a message whose first frame has RSV1 is decompressed; control frames between its fragments are not part of it.
#[test]
fn control_frames_between_compressed_fragments_are_not_compressed() {
    let mut client = client();
    let received = client.receive(concat(&[
        Frame::text(&HELLO[..3]).rsv(RSV1).fin(false),
        Frame::ping(HELLO),
        Frame::continuation(&HELLO[3..]),
    ]));
    assert_eq!(received, [Received::Ping(HELLO.into()), Received::text("Hello")]);
    assert_eq!(client.sent_frames().iter().map(Frame::payload).collect::<Vec<_>>(), [HELLO]);
}

// §6: without the extension, RSV1 fails the connection; with it, RSV2 and RSV3 still do.
#[test]
fn accepts_rsv1_only_if_negotiated() {
    let hello = Frame::text(HELLO).rsv(RSV1);
    let refused = |bits| [Received::Failed(PeerMisbehaved::ReservedBits(bits).into())];
    assert_eq!(End::client().receive(hello.bytes()), refused(RSV1));
    assert_eq!(client().receive(hello.bytes()), [Received::text("Hello")]);
    assert_eq!(client().receive(Frame::text(HELLO).rsv(RSV1 | 2).bytes()), refused(2));
    assert_eq!(client().receive(Frame::text(HELLO).rsv(RSV1 | 1).bytes()), refused(1));
}

// §7.2.3.1: the published frames, unfragmented and fragmented, both ways.
#[test]
fn reads_and_writes_the_published_frames() {
    let whole = [&[0xc1, 0x07][..], &HELLO].concat();
    assert_eq!(client().receive(&whole), [Received::text("Hello")]);
    let fragments = [0x41, 0x03, 0xf2, 0x48, 0xcd, 0x80, 0x04, 0xc9, 0xc9, 0x07, 0x00];
    assert_eq!(client().receive(fragments), [Received::text("Hello")]);
    let mut server = server();
    server.connection.send_text("Hello").unwrap();
    assert_eq!(server.connection.take_transmit(), whole);
}

// §7.2.3.2: the second `Hello` refers to the first; §7.1.1: without context takeover it is as long as the first.
#[test]
fn shares_the_window_unless_context_takeover_is_off() {
    let twice = |params: DeflateParams, role| {
        let mut end = eager(role, params);
        end.connection.send_text("Hello").unwrap();
        end.connection.send_text("Hello").unwrap();
        end.sent_frames().iter().map(|frame| frame.payload().to_vec()).collect::<Vec<_>>()
    };
    let shared = [HELLO.to_vec(), vec![0xf2, 0x00, 0x11, 0x00, 0x00]];
    let alone = [HELLO.to_vec(), HELLO.to_vec()];
    let server = DeflateParams { server_no_context_takeover: true, ..DeflateParams::default() };
    let client = DeflateParams { client_no_context_takeover: true, ..DeflateParams::default() };
    assert_eq!(twice(DeflateParams::default(), Role::Server), shared);
    assert_eq!(twice(DeflateParams::default(), Role::Client), shared);
    assert_eq!(twice(server, Role::Server), alone);
    assert_eq!(twice(server, Role::Client), shared);
    assert_eq!(twice(client, Role::Server), shared);
    assert_eq!(twice(client, Role::Client), alone);
}

// §7.1.1: without context takeover the window is not kept, and a reference to it fails.
#[test]
fn rejects_a_reference_without_context_takeover() {
    let params = DeflateParams { server_no_context_takeover: true, ..DeflateParams::default() };
    let mut client = eager(Role::Client, params);
    let reference = Frame::text([0xf2, 0x00, 0x11, 0x00, 0x00]).rsv(RSV1);
    let received = client.receive(concat(&[Frame::text(HELLO).rsv(RSV1), reference]));
    assert_eq!(received, [Received::text("Hello"), Received::Failed(PeerMisbehaved::InvalidDeflate.into())]);
}

// §7.2.3.3–5: stored blocks, BFINAL and several blocks are read.
#[test]
fn reads_every_published_form_of_hello() {
    let forms: [&[u8]; 4] = [
        &[0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00],
        &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00],
        &[0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00],
        &HELLO,
    ];
    for form in forms {
        assert_eq!(client().receive(Frame::text(form).rsv(RSV1).bytes()), [Received::text("Hello")]);
    }
}

// §7.2.3.6: an empty message, compressed, is the single octet 0x00.
#[test]
fn the_empty_message_is_one_octet() {
    let mut server = server();
    server.connection.send_text("").unwrap();
    let sent = server.sent_frames();
    assert_eq!(sent, [Frame::text([0x00]).rsv(RSV1)]);
    assert_eq!(client().receive(sent[0].bytes()), [Received::text("")]);
}

// §6.1: a compressed message may be fragmented anywhere.
#[test]
fn a_message_sent_in_fragments_arrives_whole() {
    wireloom_testing::rounds(30, |rng: &mut Rng| {
        let chars = rng.len(5_000);
        let text = rng.text(chars);
        for (mut from, mut to) in [(client(), server()), (server(), client())] {
            let mut rest = &*text;
            while !rest.is_empty() {
                let mut cut = 1 + rng.len(rest.len());
                while !rest.is_char_boundary(cut) {
                    cut += 1;
                }
                from.connection.send_text_chunk(&rest[..cut], false).unwrap();
                rest = &rest[cut..];
            }
            from.connection.send_text_chunk("", true).unwrap();
            assert_eq!(to.receive(from.connection.take_transmit()), [Received::text(&text)]);
        }
    });
}
