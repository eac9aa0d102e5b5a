use super::*;
use crate::config::Config;
use crate::connection::Connection;
use crate::deflate::{DeflateConfig, DeflateParams};
use crate::frame::{FIN, HEADER_LEN_MAX, Header};
use crate::limits::Limits;
use crate::mask::{self, MaskKey};
use crate::opcode::Opcode;
use alloc::vec;
use core::time::Duration;

const NOW: Duration = Duration::ZERO;

fn reader(config: Config) -> Reader {
    let (inbound, _) = Connection::server(config, None, NOW).split();
    let mut reader = Reader::new(inbound);
    reader.set_buffer(vec![0; 1 << 16].into());
    reader
}

fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let key = MaskKey::new([0x11, 0x22, 0x83, 0x44]);
    let mut bytes = [0; HEADER_LEN_MAX];
    let header = Header {
        fin: first & FIN != 0,
        rsv: 0,
        opcode: Opcode::from_bits(first & 0xF).unwrap(),
        mask: Some(key),
        payload_len: payload.len() as u64,
    };
    let len = header.encode(&mut bytes);
    let mut frame = bytes[..len].to_vec();
    mask::extend(&mut frame, payload, key);
    frame
}

/// Reads `wire` into the room that the reader offers; whether a message was completed by that.
fn read(reader: &mut Reader, wire: &[u8]) -> Result<bool, Error> {
    let mut space = reader.space();
    space.bytes()[..wire.len()].copy_from_slice(wire);
    space.filled(wire.len())
}

#[test]
fn a_message_stays_until_something_else_is_decoded() {
    let mut reader = reader(Config::default());
    let wire = [frame(0x81, "grüße".as_bytes()), frame(0x01, b"one "), frame(0x80, b"two")].concat();
    assert_eq!(read(&mut reader, &wire), Ok(false));
    assert!(reader.next_message());
    assert_eq!((reader.message().text(), reader.message().text()), (Some("grüße"), Some("grüße")));
    assert!(!reader.next_message());
    assert!(matches!(reader.decode(), Ok(Step::Message)));
    assert_eq!(reader.message().text(), Some("one two"));
    assert_eq!(reader.take_message(), "one two".into());
    assert_eq!(reader.message().payload(), b"");
    assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
    assert!(reader.take_buffer().is_some() && !reader.has_buffer());
    assert_eq!(reader.message().payload(), b"");
}

// Bytes that were read without room for them at the end of a message are never part of one.
#[test]
fn offers_the_end_of_a_message_only_where_it_is_collected() {
    let (mut reader, wire) = (reader(Config::default()), frame(0x81, &[b'x'; 60_000]));
    assert!(!reader.has_slot(), "no message");
    read(&mut reader, &wire[..2_000]).unwrap();
    assert!(!reader.has_slot(), "input that has not been decoded");
    assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
    assert!(!reader.has_slot(), "too little has arrived");
    read(&mut reader, &wire[2_000..20_000]).unwrap();
    assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
    assert!(reader.has_slot() && reader.space().is_direct());
    let mut at = 20_000;
    while at < wire.len() {
        let len = reader.space().bytes().len().min(10_002).min(wire.len() - at);
        let completed = read(&mut reader, &wire[at..at + len]).unwrap();
        at += len;
        assert_eq!(completed, at == wire.len());
    }
    assert_eq!(reader.message().text().map(str::len), Some(60_000));
    assert!(!reader.has_slot(), "the message is complete");
}

#[test]
#[should_panic(expected = "more bytes than")]
fn refuses_more_bytes_than_the_room_holds() {
    let mut reader = reader(Config::default());
    read(&mut reader, &frame(0x81, &[b'x'; 60_000])[..20_000]).unwrap();
    assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
    let mut space = reader.space();
    let len = space.bytes().len();
    let _ = space.filled(len + 1);
}

#[test]
fn reads_on_where_a_message_can_be_completed_in_place() {
    let config =
        || Config { limits: Limits { message_len_max: 50_000, ..Limits::default() }, ..Config::default() };
    let wire = frame(0x81, &[b'x'; 40_000]);
    let (mut reader, max) = (reader(config()), 30_000);
    read(&mut reader, &wire[..IN_PLACE_LEN_MIN - 1]).unwrap();
    assert!(!reader.should_read_on(max), "little of it");
    read(&mut reader, &wire[IN_PLACE_LEN_MIN - 1..IN_PLACE_LEN_MIN]).unwrap();
    assert!(
        reader.should_read_on(max) && !reader.should_read_on(10_000),
        "{} missing",
        40_008 - IN_PLACE_LEN_MIN
    );
    assert!(!reader.should_read_on(1 << 16), "no room for so much");
    read(&mut reader, &wire[IN_PLACE_LEN_MIN..]).unwrap();
    assert!(reader.next_message() && matches!(reader.place, Place::Input { len: 40_000, .. }));
    assert_eq!(reader.message().text().map(str::len), Some(40_000));

    // A message that is too long, a fragment, and a reserved bit: decoded at once.
    for wire in [frame(0x81, &[b'x'; 50_001]), frame(0x01, &[b'x'; 40_000]), frame(0x82, &[0; 40_000])] {
        let mut reader = self::reader(config());
        let mut begin = wire[..20_000].to_vec();
        begin[0] |= if begin[0] == 0x82 { 0x40 } else { 0 };
        read(&mut reader, &begin).unwrap();
        assert!(!reader.should_read_on(max));
    }
    // A compressed message whose rest is taken first.
    let mut reader = self::reader(config());
    read(&mut reader, &frame(0x01, b"within a message")).unwrap();
    assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
    read(&mut reader, &wire[..20_000]).unwrap();
    assert!(!reader.should_read_on(max), "within another message");
}

// The end of the message is read into directly; the first impossible byte is found there.
#[test]
fn finds_invalid_text_that_was_read_directly() {
    let mut reader = reader(Config::default());
    let wire = frame(0x81, &[&[b'x'; 30_000][..], b"\xff", &[b'x'; 30_000]].concat());
    read(&mut reader, &wire[..20_000]).unwrap();
    assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
    assert!(reader.space().is_direct());
    assert!(read(&mut reader, &wire[20_000..35_000]).is_err());
    assert_eq!(reader.message().payload(), b"");
    assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
}

#[test]
fn an_invalid_frame_is_an_error_once() {
    let mut reader = reader(Config::default());
    read(&mut reader, &[frame(0x81, b"ok"), vec![0x83], frame(0x81, b"dropped")].concat()).unwrap();
    assert!(matches!(reader.decode(), Ok(Step::Message)));
    assert!(reader.decode().is_err());
    assert!(!reader.has_input() && !reader.has_more());
    read(&mut reader, &frame(0x81, b"dropped")).unwrap();
    assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
}

#[test]
fn delivers_messages_and_chunks_as_each_call_asks() {
    let config = Config { delivery: Delivery::Chunks, ..Config::default() };
    let mut reader = reader(config);
    let mut next = |wire: &[u8], whole: bool| {
        read(&mut reader, wire).unwrap();
        let step = if whole { reader.decode_whole() } else { reader.decode() };
        match step.unwrap() {
            Step::Message => {
                let message = reader.message();
                Some((
                    message.payload().to_vec(),
                    message.is_whole(),
                    message.is_last(),
                    message.text().is_some(),
                ))
            }
            Step::Control(_) | Step::NeedsInput => None,
        }
    };
    let some = |bytes: &[u8], whole, last, text| Some((bytes.to_vec(), whole, last, text));
    // Collected, then asked for in chunks.
    assert_eq!(next(&frame(0x01, b"a\xc3"), true), None);
    assert_eq!(next(&frame(0x00, b"\xa4b"), false), some(b"a\xc3", false, false, false));
    assert_eq!(next(b"", false), some(b"\xa4b", false, false, false));
    // In chunks, then the rest.
    assert_eq!(next(&frame(0x00, b"c"), true), None);
    assert_eq!(next(&frame(0x80, b"d"), true), some(b"cd", false, true, true));
    // And a complete message again.
    assert_eq!(next(&frame(0x01, b"e\xc3"), true), None);
    assert_eq!(next(&frame(0x80, b"\xa4"), true), some(b"e\xc3\xa4", true, true, true));
}

// RFC 7692 §7.2.3.1, with the pending compressed bytes taken over by either way to receive.
#[test]
fn delivers_compressed_messages_as_each_call_asks() {
    let deflate = DeflateConfig::default();
    let config = Config {
        delivery: Delivery::Chunks,
        limits: Limits { message_len_max: 1 << 20, ..Limits::default() },
        ..Config::default()
    };
    let params = DeflateParams::default();
    let mut client = Connection::client(Config::default(), Some((params, &deflate)), [7; 32], NOW);
    // More than two chunks.
    let expected = "größe ".repeat(if cfg!(miri) { 10_000 } else { 20_000 });
    client.send_text(&expected).unwrap();
    client.send_text("end").unwrap();
    let wire = client.take_transmit();
    for whole_from in 0..if cfg!(miri) { 2 } else { 8 } {
        let (inbound, _) = Connection::server(config.clone(), Some((params, &deflate)), NOW).split();
        let mut reader = Reader::new(inbound);
        reader.set_buffer(vec![0; wire.len() + 64].into());
        read(&mut reader, &wire).unwrap();
        let (mut received, mut calls) = (Vec::new(), 0);
        loop {
            let step = if calls >= whole_from { reader.decode_whole() } else { reader.decode() };
            calls += 1;
            assert!(matches!(step.unwrap(), Step::Message));
            received.extend_from_slice(reader.message().payload());
            if reader.message().is_last() {
                break;
            }
        }
        assert!(received == expected.as_bytes(), "whole from call {whole_from}");
        assert!(matches!(reader.decode(), Ok(Step::Message)));
        assert_eq!(reader.message().text(), Some("end"));
    }
}
