//! Allocations of a connection: none per message in steady state, and no more memory than the bytes that have arrived, whatever length is
//! announced.

use std::time::Duration;

use wireloom_testing::Frame;
use wireloom_testing::frame::Length;
use wireloom_ws::{Config, Connection, Event, Limits};

use crate::counting::{HELD, allocations};

const NOW: Duration = Duration::from_secs(1);
const KEY: [u8; 4] = [0x37, 0xFA, 0x21, 0x3D];

/// Feeds a stream to the server like a driver: reads of the length of `buffer` into it or into the slot. Returns the number of messages.
fn serve(server: &mut Connection, wire: &[u8], buffer: &mut [u8]) -> usize {
    let (mut rest, mut messages) = (wire, 0);
    let mut note = |event: &Event<'_>| {
        messages += usize::from(match event {
            Event::Text(text) => !text.is_empty(),
            Event::Binary(data) => !data.is_empty(),
            _ => false,
        });
    };
    while !rest.is_empty() {
        if let Some(mut slot) = server.recv_slot() {
            let len = slot.len().min(rest.len()).min(buffer.len());
            slot[..len].copy_from_slice(&rest[..len]);
            rest = &rest[len..];
            if let Some(event) = slot.filled(NOW, len).expect("valid") {
                note(&event);
            }
            continue;
        }
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        rest = &rest[len..];
        let mut used = 0;
        while let (taken, Some(event)) = server.handle_input(NOW, &mut buffer[used..len]).expect("valid") {
            used += taken;
            note(&event);
        }
    }
    messages
}

#[test]
fn a_message_that_is_read_allocates_nothing() {
    for len in [13, 200, 1 << 10, 1 << 20] {
        for frame in [Frame::text("x".repeat(len)), Frame::binary(vec![0xFE; len])] {
            let wire = frame.mask(KEY).bytes().repeat(10);
            let mut buffer = vec![0; 64 << 10];
            let mut server = Connection::server(Config::default(), None, NOW);
            assert_eq!(serve(&mut server, &wire, &mut buffer), 10);
            let count = allocations(|| assert_eq!(serve(&mut server, &wire, &mut buffer), 10));
            assert_eq!(count, 0, "10 messages of {len} bytes");
        }
    }
}

#[test]
fn a_fragmented_message_allocates_nothing() {
    let mut wire = Frame::text("x".repeat(1_000)).fin(false).mask(KEY).bytes();
    for _ in 0..100 {
        wire.extend(Frame::continuation("y".repeat(1_000)).fin(false).mask(KEY).bytes());
        wire.extend(Frame::pong("between").mask(KEY).bytes());
    }
    wire.extend(Frame::continuation("").mask(KEY).bytes());
    let mut buffer = vec![0; 16 << 10];
    let mut server = Connection::server(Config::default(), None, NOW);
    assert_eq!(serve(&mut server, &wire, &mut buffer), 1);
    assert_eq!(allocations(|| assert_eq!(serve(&mut server, &wire, &mut buffer), 1)), 0);
}

#[test]
fn a_message_that_is_written_allocates_nothing() {
    let text = "x".repeat(1 << 20);
    for mut connection in [
        Connection::client(Config::default(), None, [7; 32], NOW),
        Connection::server(Config::default(), None, NOW),
    ] {
        for len in [13, 200, 1 << 10, 1 << 20] {
            let mut send = || {
                for _ in 0..10 {
                    connection.send_text(&text[..len]).expect("room");
                    connection.send_binary(&text.as_bytes()[..len]).expect("room");
                    while connection.wants_write() {
                        let mut slices: [&[u8]; 8] = [&[]; 8];
                        let count = connection.poll_transmit(&mut slices);
                        let sent = slices[..count].iter().map(|slice| slice.len()).sum();
                        connection.transmitted(sent);
                    }
                }
            };
            send();
            assert_eq!(allocations(send), 0, "20 messages of {len} bytes");
        }
    }
}

#[test]
fn a_ping_that_is_answered_allocates_nothing() {
    let wire = Frame::ping([7; 125]).mask(KEY).bytes();
    let mut server = Connection::server(Config::default(), None, NOW);
    let mut buffer = [0; 256];
    let mut answer = || {
        serve(&mut server, &wire, &mut buffer);
        let mut slices: [&[u8]; 4] = [&[]; 4];
        assert_eq!(server.poll_transmit(&mut slices), 1);
        server.transmitted(127);
    };
    answer();
    answer();
    assert_eq!(allocations(|| (0..100).for_each(|_| answer())), 0);
}

// The header of a frame of 63 bits costs its sender 14 bytes.
#[test]
fn an_announcement_reserves_little() {
    let mut limits = Limits::default();
    limits.frame_len_max = u64::MAX;
    limits.message_len_max = u64::MAX;
    let mut config = Config::default();
    config.limits = limits;
    for len in [(1 << 63) - 1, 1 << 40, 1 << 33] {
        let wire = Frame::binary([0; 100]).length(Length::Bits64(len)).mask(KEY).bytes();
        let mut server = Connection::server(config.clone(), None, NOW);
        let before = HELD.get();
        let mut buffer = wire.clone();
        serve(&mut server, &wire, &mut buffer);
        let held = HELD.get() - before;
        assert!(held < 2 << 20, "{held} bytes held for {len} announced");
    }
}

#[test]
fn an_idle_connection_holds_little() {
    let before = HELD.get();
    let server = Connection::server(Config::default(), None, NOW);
    assert_eq!(HELD.get() - before, 0, "a server that has not done anything");
    drop(server);

    let mut server = Connection::server(Config::default(), None, NOW);
    let wire = Frame::text("x".repeat(1 << 20)).mask(KEY).bytes();
    let mut buffer = vec![0; 64 << 10];
    let before = HELD.get();
    serve(&mut server, &wire, &mut buffer);
    server.send_text(&"x".repeat(1 << 20)).expect("room");
    drop(server.take_transmit());
    assert!(HELD.get() - before > 1 << 20);
    server.release_buffers();
    assert!(HELD.get() - before <= 256, "{} bytes after release", HELD.get() - before);
}
