use super::*;
use crate::assembly::GROWTH_LEN_MIN;
use crate::config::Config;
use crate::connection::Connection;
use crate::deflate::{DeflateConfig, DeflateParams};
use crate::error::{LimitExceeded, PeerMisbehaved};
use crate::limits::Limits;
use crate::opcode::Opcode;
use alloc::string::String;
use alloc::vec;
use core::time::Duration;
use wireloom_testing::frame::Frame;

const NOW: Duration = Duration::ZERO;

fn reader(config: Config) -> Reader {
    let (inbound, _) = Connection::server(config, None, NOW).split();
    let mut reader = Reader::new(inbound);
    reader.set_buffer(vec![0; 1 << 16].into());
    reader
}

fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let frame = Frame::new(first, payload).fin(first & 0x80 != 0).rsv(first >> 4);
    frame.mask([0x11, 0x22, 0x83, 0x44]).bytes()
}

/// Reads `wire` into the space of the reader. Returns whether that completed a message.
fn read(reader: &mut Reader, wire: &[u8]) -> Result<bool, Error> {
    let mut space = reader.space();
    space.bytes()[..wire.len()].copy_from_slice(wire);
    space.filled(wire.len())
}

#[test]
fn a_message_can_be_borrowed_until_the_next_is_decoded() {
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

#[test]
fn knows_whether_the_next_message_is_whole() {
    let compressed = |mut frame: Vec<u8>| {
        frame[0] |= 0x40;
        frame
    };
    let (whole, close) = (frame(0x81, &[b'a'; 300]), frame(0x88, &[]));
    let cases = [
        (whole.clone(), true),
        (frame(0x82, &[]), true),
        (compressed(frame(0x82, &[0x4b, 0x04, 0x00])), true),
        (whole[..whole.len() - 1].to_vec(), false),
        (whole[..3].to_vec(), false),
        (vec![], false),
        (frame(0x01, b"a"), false),
        (frame(0x89, b"a"), false),
        (close.clone(), false),
        (vec![0x83, 0x80, 0, 0, 0, 0], false),
    ];
    for (wire, expected) in cases {
        let (mut reader, _) = compressing_with(Config::default());
        let after = if expected { &close[..] } else { &[] };
        read(&mut reader, &[&wire[..], after].concat()).unwrap();
        assert_eq!(reader.has_next_message(), expected, "{wire:x?}");
        if expected {
            assert!(matches!(reader.decode(), Ok(Step::Message)), "{wire:x?}");
            assert!(!reader.has_next_message());
        }
    }
    // Within a message.
    let mut reader = reader(Config::default());
    read(&mut reader, &[frame(0x01, b"a"), frame(0x80, b"b")].concat()).unwrap();
    assert!(!reader.has_next_message());
}

/// Texts and binary messages of many lengths, the texts with a code point of several bytes at the given distance from the end.
fn messages() -> impl Iterator<Item = (u8, Vec<u8>)> {
    let lens = if cfg!(miri) {
        vec![0, 1, 3, 4, 7, 8, 13, 16, 31, 200, 256, 300]
    } else {
        (0..=700).chain([16_384]).collect()
    };
    lens.into_iter().flat_map(|len: usize| {
        let ascii: Vec<u8> = (0..len).map(|i| b'a' + (i % 26) as u8).collect();
        let wide = [&ascii[len.div_ceil(2)..], "€".as_bytes(), &ascii[..len / 2]].concat();
        let binary = ascii.iter().map(|byte| byte ^ 0xA5).collect();
        [(0x81, ascii), (0x81, wide), (0x82, binary)]
    })
}

#[test]
fn takes_a_message_as_it_would_be_borrowed() {
    for masked in [true, false] {
        for (first, payload) in messages() {
            let mut wire = frame(first, &payload);
            let mut reader = reader(Config::default());
            if !masked {
                let at = wire.len() - payload.len();
                wire = [&wire[..at - 4], &payload[..]].concat();
                wire[1] ^= 0x80;
                reader = Reader::new(Connection::client(Config::default(), None, [7; 32], NOW).split().0);
                reader.set_buffer(vec![0; 1 << 16].into());
            }
            // Behind it: a byte of the next frame.
            wire.push(0x81);
            read(&mut reader, &wire).unwrap();
            let message = reader.next_owned().unwrap();
            let text = (first == 0x81).then(|| core::str::from_utf8(&payload).unwrap());
            assert_eq!((message.as_text(), message.as_bytes()), (text, &payload[..]), "{masked}");
            assert_eq!(reader.take_input(), [0x81]);
            assert_eq!(reader.message().payload(), b"");
            assert!(Vec::from(message.into_bytes()).capacity() <= payload.len());
        }
    }
}

#[test]
fn takes_no_message_that_is_invalid_or_not_whole() {
    for (wire, expected) in [
        (frame(0x81, b"\xff"), Err(PeerMisbehaved::InvalidUtf8.into())),
        (frame(0x81, &[&[b'x'; 199][..], b"\xe2\x82"].concat()), Err(PeerMisbehaved::InvalidUtf8.into())),
        (frame(0x81, &[&[b'x'; 300][..], b"\xc3"].concat()), Err(PeerMisbehaved::InvalidUtf8.into())),
        (frame(0x01, b"begun"), Ok("NeedsInput")),
        (frame(0x89, b"ping"), Ok("Control")),
        (frame(0x81, b"cut")[..8].to_vec(), Ok("NeedsInput")),
    ] {
        let mut reader = reader(Config::default());
        read(&mut reader, &wire).unwrap();
        assert_eq!(reader.next_owned(), None);
        let step = reader.decode().map(|step| match step {
            Step::NeedsInput => "NeedsInput",
            Step::Control(_) => "Control",
            Step::Message => "Message",
            Step::Inflating => "Inflating",
        });
        assert_eq!(step, expected, "{wire:x?}");
    }
}

// Bytes are read directly behind a message only while it is being assembled.
#[test]
fn offers_a_slot_only_while_a_message_is_assembled() {
    let (mut reader, wire) = (reader(Config::default()), frame(0x81, &[b'x'; 60_000]));
    assert!(!reader.has_slot(), "no message");
    read(&mut reader, &wire[..2_000]).unwrap();
    assert!(!reader.has_slot(), "input that has not been decoded");
    assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
    assert!(!reader.has_slot(), "too little has arrived");
    read(&mut reader, &wire[2_000..20_000]).unwrap();
    assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
    assert!(reader.has_slot() && reader.space().is_direct);
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
fn panics_on_more_bytes_than_the_space_holds() {
    let mut reader = reader(Config::default());
    read(&mut reader, &frame(0x81, &[b'x'; 60_000])[..20_000]).unwrap();
    assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
    let mut space = reader.space();
    let len = space.bytes().len();
    let _ = space.filled(len + 1);
}

#[test]
fn should_read_on_while_a_message_can_be_completed_in_place() {
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
    read(&mut reader, &wire[IN_PLACE_LEN_MIN..]).unwrap();
    assert!(!reader.should_read_on(1_000), "nothing is missing");
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
    // A frame within a fragmented message.
    let mut reader = self::reader(config());
    read(&mut reader, &frame(0x01, b"within a message")).unwrap();
    assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
    read(&mut reader, &wire[..20_000]).unwrap();
    assert!(!reader.should_read_on(max), "within another message");
}

#[test]
fn a_read_ends_where_a_message_of_the_expected_length_does() {
    let mut reader = reader(Config::default());
    let space = reader.buffer_space().bytes().len();
    let part_len = |reader: &mut Reader, len| reader.buffer_space().bytes_for(len, 50_000).len();
    assert_eq!(part_len(&mut reader, IN_PLACE_LEN_MIN - 1), space, "short messages are copied");
    assert_eq!(part_len(&mut reader, IN_PLACE_LEN_MIN), 3 * (8 + IN_PLACE_LEN_MIN) + ALIGN);
    assert_eq!(part_len(&mut reader, 40_000), 40_008 + ALIGN);
    assert_eq!(part_len(&mut reader, 50_001), HEADER_READ_LEN);
    assert_eq!(part_len(&mut reader, usize::MAX), HEADER_READ_LEN);

    let wire = frame(0x82, &[7; 20_000]);
    read(&mut reader, &wire[..18_000]).unwrap();
    assert_eq!(part_len(&mut reader, 20_000), space - 18_000, "as much as there is");
    assert_eq!(part_len(&mut reader, 44_000), 2_008 + 44_008 + ALIGN);
    // The beginning is copied out of the buffer.
    assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
    assert_eq!(part_len(&mut reader, 20_000), 2_008 + 3 * 20_008 + ALIGN);
    assert_eq!(part_len(&mut reader, 50_001), 2_008 + HEADER_READ_LEN);

    let mut reader = self::reader(Config::default());
    read(&mut reader, &frame(0x82, &[7; 90_000])[..20_000]).unwrap();
    assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
    assert_eq!(part_len(&mut reader, 50_001), HEADER_READ_LEN, "much is read directly to its place");

    // Within a fragment, behind it, and behind the last one.
    let mut reader = self::reader(Config::default());
    let (first, last) = (frame(0x02, &[7; 2_000]), frame(0x80, &[7; 2_000]));
    for (wire, is_fragmented) in [(&first[..900], true), (&first[900..], true), (&last[..], false)] {
        read(&mut reader, wire).unwrap();
        let _ = reader.decode();
        let space = reader.buffer_space().bytes().len();
        let expected = if is_fragmented { space } else { HEADER_READ_LEN };
        assert_eq!(part_len(&mut reader, 50_001), expected);
    }
}

#[test]
fn messages_of_one_length_are_not_copied() {
    if cfg!(miri) {
        return;
    }
    let memory = |reader: &mut Reader| reader.buffer_space().bytes().as_ptr().addr();
    for (len, read_max) in [
        (20_000, usize::MAX),
        (30_000, 65_536),
        (65_536, 65_536),
        (65_500, usize::MAX),
        (100_000, 50_000),
        (120_000, usize::MAX),
    ] {
        let mut reader = reader(Config::default());
        reader.take_buffer();
        reader.set_buffer(vec![0; 256 << 10].into());
        let base = memory(&mut reader);
        let wire = frame(0x82, &vec![7; len]).repeat(50);
        let (mut rest, mut reads) = (&wire[..], 0);
        for _ in 0..50 {
            while !reader.next_message() {
                if !reader.should_read_on(64 << 10) {
                    assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
                }
                let mut space = reader.buffer_space();
                let part = space.bytes_for(len, 200_000);
                assert!(part.as_ptr().addr() + part.len() <= base + len.max(65_536) + 4 * ALIGN, "{len}");
                let read_len = part.len().min(read_max).min(rest.len());
                part[..read_len].copy_from_slice(&rest[..read_len]);
                rest = &rest[read_len..];
                assert_eq!(space.filled(read_len), Ok(false));
                reads += 1;
            }
            assert!(*reader.message().payload() == *vec![7; len]);
        }
        assert!(!reader.has_memory(), "{len} bytes were assembled");
        assert!(reads <= 50 * len.div_ceil(read_max) + 12, "{reads} reads of {len} bytes");
    }
}

#[test]
fn a_few_bytes_behind_a_message_are_moved_to_the_front() {
    let wire = [frame(0x82, &[1; 20_000]), frame(0x81, b"one"), frame(0x82, &[2; 20_000])].concat();
    for tail in 0..200 {
        let mut reader = reader(Config::default());
        let first = reader.buffer_space().bytes_for(20_000, 50_000).as_ptr().addr();
        let len = 20_008 + tail;
        read(&mut reader, &wire[..len]).unwrap();
        assert!(reader.next_message());
        // "one" is complete, or its first bytes wait.
        let reads_on = (1..9).contains(&tail) || (10..=9 + ALIGN).contains(&tail);
        assert!(tail < 9 || reader.next_message());
        assert_eq!(reader.should_read_on(0), reads_on, "{tail}");
        if !reads_on {
            continue;
        }
        let mut space = reader.buffer_space();
        assert_eq!(space.bytes().as_ptr().addr(), first + ALIGN);
        space.bytes()[..wire.len() - len].copy_from_slice(&wire[len..]);
        space.filled(wire.len() - len).unwrap();
        assert!(tail >= 9 || reader.next_message() && reader.message().text() == Some("one"));
        assert!(reader.next_message() && *reader.message().payload() == [2; 20_000]);
    }
}

#[test]
fn a_slot_follows_the_header_of_an_expected_large_message() {
    let mut reader = reader(Config::default());
    for wire in [frame(0x82, &[7; 60_000]), frame(0x82, &[7; 1 << 17])] {
        let mut space = reader.buffer_space();
        let part = space.bytes_for(wire.len(), 50_000);
        let len = part.len();
        part.copy_from_slice(&wire[..len]);
        space.filled(len).unwrap();
        assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
        assert!(reader.has_slot());
        let mut rest = &wire[len..];
        while !rest.is_empty() {
            let len = reader.space().bytes_for(60_000, 50_000).len().min(rest.len());
            read(&mut reader, &rest[..len]).unwrap();
            rest = &rest[len..];
        }
        assert_eq!(reader.message().payload().len(), wire.len() - if wire.len() > 65_543 { 14 } else { 8 });
    }
}

// The end of the message is read into directly; the first impossible byte is found there.
#[test]
fn detects_invalid_text_in_the_slot() {
    let mut reader = reader(Config::default());
    let wire = frame(0x81, &[&[b'x'; 30_000][..], b"\xff", &[b'x'; 30_000]].concat());
    read(&mut reader, &wire[..20_000]).unwrap();
    assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
    assert!(reader.space().is_direct);
    assert!(read(&mut reader, &wire[20_000..35_000]).is_err());
    assert_eq!(reader.message().payload(), b"");
    assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
}

#[test]
fn returns_an_error_once() {
    let mut reader = reader(Config::default());
    read(&mut reader, &[frame(0x81, b"ok"), vec![0x83], frame(0x81, b"dropped")].concat()).unwrap();
    assert!(matches!(reader.decode(), Ok(Step::Message)));
    assert!(reader.decode().is_err());
    assert!(!reader.has_input() && !reader.has_more_as(Delivery::Messages));
    read(&mut reader, &frame(0x81, b"dropped")).unwrap();
    assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
}

#[test]
fn mixes_messages_and_chunks() {
    let config = Config { delivery: Delivery::Chunks, ..Config::default() };
    let mut reader = reader(config);
    let mut next = |wire: &[u8], whole: bool| {
        read(&mut reader, wire).unwrap();
        let step = if whole { reader.decode_as(Delivery::Messages) } else { reader.decode() };
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
            Step::Control(_) | Step::NeedsInput | Step::Inflating => None,
        }
    };
    let some = |bytes: &[u8], whole, last, text| Some((bytes.to_vec(), whole, last, text));
    // Collected, then delivered in chunks.
    assert_eq!(next(&frame(0x01, b"a\xc3"), true), None);
    assert_eq!(next(&frame(0x00, b"\xa4b"), false), some(b"a\xc3", false, false, false));
    assert_eq!(next(b"", false), some(b"\xa4b", false, false, false));
    // In chunks, then the remainder.
    assert_eq!(next(&frame(0x00, b"c"), true), None);
    assert_eq!(next(&frame(0x80, b"d"), true), some(b"cd", false, true, true));
    // And a complete message again.
    assert_eq!(next(&frame(0x01, b"e\xc3"), true), None);
    assert_eq!(next(&frame(0x80, b"\xa4"), true), some(b"e\xc3\xa4", true, true, true));
}

// RFC 7692 §7.2.3.1, with the pending compressed bytes taken over by either way to receive.
#[test]
fn mixes_messages_and_chunks_of_compressed_messages() {
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
            let step =
                if calls >= whole_from { reader.decode_as(Delivery::Messages) } else { reader.decode() };
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

fn compressing() -> (Reader, Connection) {
    compressing_with(Config { delivery: Delivery::Chunks, ..Config::default() })
}

/// A server's reader with permessage-deflate, and its client.
fn compressing_with(config: Config) -> (Reader, Connection) {
    let deflate = DeflateConfig { min_len: 0, ..DeflateConfig::default() };
    let params = Some((DeflateParams::default(), &deflate));
    let (inbound, _) = Connection::server(config, params, NOW).split();
    let mut reader = Reader::new(inbound);
    reader.set_buffer(vec![0; 1 << 16].into());
    (reader, Connection::client(Config::default(), params, [7; 32], NOW))
}

/// Whether a message or a chunk was decoded.
fn decoded(step: Result<Step<'_>, Error>) -> bool {
    match step.unwrap() {
        Step::Message => true,
        Step::NeedsInput | Step::Inflating => false,
        Step::Control(event) => panic!("{event:?}"),
    }
}

#[test]
fn reads_to_the_front_of_the_buffer_when_all_is_decoded() {
    let mut reader = reader(Config::default());
    assert_eq!(reader.space().bytes().as_ptr().addr() % ALIGN, 0);
    let (front, len) = (reader.space().bytes().as_ptr(), reader.space().bytes().len());
    for _ in 0..100 {
        read(&mut reader, &frame(0x82, &[7; 1000])).unwrap();
        assert!(reader.has_input());
        assert!(reader.space().bytes().len() < len, "behind the input");
        assert!(reader.next_message());
        assert!(!reader.has_input());
        let mut space = reader.space();
        assert_eq!((space.bytes().as_ptr(), space.bytes().len(), space.is_direct), (front, len, false));
    }
}

// Its first byte is on a cache line, where the buffer reaches one.
#[test]
fn a_buffer_of_any_length_has_space() {
    let mut readers = Vec::new();
    for len in [1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 100] {
        for _ in 0..8 {
            let (inbound, _) = Connection::server(Config::default(), None, NOW).split();
            let mut reader = Reader::new(inbound);
            let buffer: Box<[u8]> = vec![0; len].into();
            let to_line = buffer.as_ptr().addr().wrapping_neg() % ALIGN;
            let at = if to_line < len { to_line } else { 0 };
            let expected = (buffer.as_ptr().addr() + at, len - at);
            reader.set_buffer(buffer);
            let mut space = reader.space();
            assert_eq!((space.bytes().as_ptr().addr(), space.bytes().len()), expected);
            readers.push(reader);
        }
    }
}

#[test]
fn keeps_a_buffer_with_input() {
    let mut reader = reader(Config::default());
    reader.set_buffer(vec![0; 10].into());
    read(&mut reader, &frame(0x81, b"Hello")).unwrap();
    assert!(reader.take_buffer().is_none());
    assert!(reader.next_message());
    assert_eq!(reader.take_buffer().map(|buffer| buffer.len()), Some(1 << 16), "the first one");
    assert!(reader.take_buffer().is_none());
}

#[test]
fn input_can_be_taken_or_dropped() {
    let mut reader = reader(Config::default());
    let wire = frame(0x81, b"Hello");
    read(&mut reader, &[&wire[..], b"rest"].concat()).unwrap();
    assert!(reader.next_message());
    assert_eq!((reader.take_input(), reader.has_input()), (b"rest".to_vec(), false));
    assert_eq!(reader.take_input(), b"");
    read(&mut reader, &wire).unwrap();
    reader.discard_input();
    assert!(!reader.has_input() && !reader.next_message());
}

#[test]
fn payload_remaining_counts_data_frames_only() {
    let mut reader = reader(Config::default());
    let wire = [frame(0x02, &[7; 100]), frame(0x89, b"ping"), frame(0x80, b"")].concat();
    assert_eq!(reader.payload_remaining(), 0);
    read(&mut reader, &wire[..56]).unwrap();
    assert!(!decoded(reader.decode()));
    assert_eq!(reader.payload_remaining(), 50);
    // None within a control frame.
    read(&mut reader, &wire[56..106 + 8]).unwrap();
    assert!(!decoded(reader.decode()));
    assert_eq!(reader.payload_remaining(), 0);
    read(&mut reader, &wire[106 + 8..]).unwrap();
    assert!(matches!(reader.decode(), Ok(Step::Control(Event::Ping(b"ping")))));
    assert!(decoded(reader.decode()));
    assert_eq!(reader.take_message(), vec![7; 100].into());
}

#[test]
fn should_read_on_up_to_its_bounds() {
    let limits = Limits { message_len_max: 40_000, ..Limits::default() };
    let config = Config { limits, ..Config::default() };
    let wire = frame(0x82, &[7; 40_000]);
    let mut reader = reader(config.clone());
    read(&mut reader, &wire[..20_000]).unwrap();
    let missing = wire.len() - 20_000;
    for (max, reads_on) in [(missing - 1, false), (missing, true), (usize::MAX, true)] {
        assert_eq!(reader.should_read_on(max), reads_on, "{max}");
    }
    for too_short in [0, 1] {
        let mut reader = self::reader(config.clone());
        let space = reader.space().bytes().len();
        let before = frame(0x82, &vec![7; space - wire.len() + too_short - 8]);
        read(&mut reader, &[&before, &wire[..20_000]].concat()).unwrap();
        assert!(reader.next_message());
        assert_eq!(reader.should_read_on(usize::MAX), too_short == 0);
    }
    let mut reader = self::reader(config);
    read(&mut reader, &frame(0x82, &[7; 40_001])[..20_000]).unwrap();
    assert!(!reader.should_read_on(missing + 1), "too long");
}

#[test]
fn takes_messages_out_of_the_buffer() {
    let mut reader = reader(Config::default());
    let wire = [frame(0x81, b"one"), frame(0x82, b"two")].concat();
    read(&mut reader, &wire).unwrap();
    for expected in [OwnedMessage::from("one"), b"two".to_vec().into()] {
        assert!(reader.next_message());
        assert_eq!(reader.message().to_owned(), expected);
        assert_eq!(reader.take_message(), expected);
    }
}

#[test]
fn recycles_the_buffer_of_a_message_when_its_last_reference_is_dropped() {
    use alloc::sync::Arc;
    use core::sync::atomic::{AtomicUsize, Ordering};

    let (recycled, mut reader) = (Arc::new(AtomicUsize::new(0)), reader(Config::default()));
    let text = "x".repeat(10_000);
    let wire = [frame(0x01, text.as_bytes()), frame(0x80, "ß".as_bytes())].concat();
    let mut take = |memory_len: usize| {
        reader.set_memory(vec![0; memory_len]);
        read(&mut reader, &wire).unwrap();
        assert!(decoded(reader.decode()));
        let count = Arc::clone(&recycled);
        let message =
            reader.take_message_with(move |buffer| count.store(buffer.capacity(), Ordering::Relaxed));
        drop(reader.take_memory());
        message
    };
    let message = take(15_000);
    assert_eq!(message.as_text(), Some(&*(text.clone() + "ß")));
    let end = message.into_bytes().slice(10_000..);
    assert_eq!((&end[..], recycled.load(Ordering::Relaxed)), ("ß".as_bytes(), 0));
    drop(end);
    assert_eq!(recycled.swap(0, Ordering::Relaxed), 15_000);
    // A copy leaves the buffer to the reader.
    assert_eq!(take(50_000).as_text(), Some(&*(text + "ß")));
    assert_eq!(recycled.load(Ordering::Relaxed), 0);
}

#[test]
fn frees_a_message_of_which_a_part_has_arrived() {
    let deflate = DeflateConfig::default();
    for params in [None, Some((DeflateParams::default(), &deflate))] {
        let mut client = Connection::client(Config::default(), params, [7; 32], NOW);
        let text: String = (0..5_000).map(|i| alloc::format!("{i} ")).collect();
        client.send_text_chunk(&text, false).unwrap();
        let (inbound, _) = Connection::server(Config::default(), params, NOW).split();
        let mut reader = Reader::new(inbound);
        reader.set_buffer(vec![0; 1 << 16].into());
        read(&mut reader, &client.take_transmit()).unwrap();
        assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
        assert!(reader.inbound().memory_len() > 1_000);
        reader.free();
        assert_eq!((reader.inbound().memory_len(), reader.message().payload()), (0, &b""[..]));
        read(&mut reader, &frame(0x82, b"later")).unwrap();
        assert!(!reader.next_message() && reader.next_owned().is_none());
        assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
    }
}

#[test]
fn restores_an_idle_reader() {
    let mut reader = reader(Config { delivery: Delivery::Chunks, ..Config::default() });
    assert!(reader.idle().is_none(), "there is a buffer");
    reader.take_buffer().unwrap();
    let idle = reader.idle().unwrap();
    assert_eq!(Inbound::from(idle).delivery(), Delivery::Chunks);
    reader.set_buffer(vec![0; 100].into());
    read(&mut reader, &frame(0x01, b"")).unwrap();
    assert!(!decoded(reader.decode()));
    reader.take_buffer().unwrap();
    assert!(reader.idle().is_none(), "within a message");
    // Nor after the end, while headers are logged, or with compression.
    let (mut closed, _) = Connection::server(Config::default(), None, NOW).split();
    assert!(closed.handle_input(&mut frame(0x88, b"")).unwrap().1.is_some());
    assert_eq!(closed.idle(), None);
    let (mut logging, _) = Connection::server(Config::default(), None, NOW).split();
    logging.log_headers();
    assert_eq!(logging.idle(), None);
    let (mut compressing, _) = compressing();
    assert!(compressing.take_buffer().is_some() && compressing.idle().is_none());
    assert!(compressing.inbound().is_compressed() && !reader.inbound().is_compressed());
}

#[test]
fn logs_the_headers_of_frames_that_arrive() {
    let (mut inbound, _) = Connection::server(Config::default(), None, NOW).split();
    let mut wire = frame(0x81, b"before");
    assert!(inbound.handle_input(&mut wire).unwrap().1.is_some());
    inbound.log_headers();
    let mut wire = [frame(0x81, b"1"), frame(0x01, b"12"), frame(0x89, b"123"), frame(0x80, b"")].concat();
    let mut at = 0;
    while let (used, Some(_)) = inbound.handle_input(&mut wire[at..]).unwrap() {
        at += used;
    }
    let headers = |logged: Vec<Header>| logged.iter().map(|h| (h.opcode, h.payload_len)).collect::<Vec<_>>();
    let expected = [(Opcode::Text, 1), (Opcode::Text, 2), (Opcode::Ping, 3), (Opcode::Continuation, 0)];
    assert_eq!(headers(inbound.take_headers()), expected);
    assert_eq!(inbound.take_headers(), []);

    let mut reader = Reader::new(inbound);
    reader.set_buffer(vec![0; 100].into());
    read(&mut reader, &frame(0x82, b"1234")).unwrap();
    assert!(decoded(reader.decode()));
    assert_eq!(headers(reader.take_headers()), [(Opcode::Binary, 4)]);
}

// RFC 6455 §1.4: what follows a Close frame is dropped, and complete messages take the fast path.
#[test]
fn a_complete_message_behind_a_close_frame_is_dropped() {
    let (mut inbound, _) = Connection::server(Config::default(), None, NOW).split();
    let mut wire = [frame(0x88, b"\x03\xe8"), frame(0x81, b"dropped")].concat();
    let (used, event) = inbound.handle_input(&mut wire).unwrap();
    assert!(matches!(event, Some(Event::Close(_))));
    let len = wire.len() - used;
    assert!(matches!(inbound.handle_input(&mut wire[used..]), Ok((used, None)) if used == len));
}

// The first frames take the general path, and the message begins behind them.
#[test]
fn finds_messages_behind_empty_fragments() {
    let mut reader = reader(Config::default());
    let wire = [frame(0x01, b""), frame(0x00, b""), frame(0x80, b"Hello"), frame(0x82, b"next")].concat();
    read(&mut reader, &wire).unwrap();
    assert!(decoded(reader.decode()));
    assert_eq!(reader.take_message(), "Hello".into());
    assert!(decoded(reader.decode()));
    assert_eq!(reader.take_message(), b"next".to_vec().into());
}

#[test]
fn offers_no_slot_for_chunks_and_compressed_messages() {
    let mut reader = reader(Config::default());
    let wire = frame(0x82, &[7; 60_000]);
    read(&mut reader, &wire[..20_000]).unwrap();
    assert!(!decoded(reader.decode_as(Delivery::Messages)));
    assert!(reader.has_slot());
    assert!(!reader.buffer_space().is_direct);
    // The next call delivers the collected bytes as a chunk.
    reader.inbound.advance(&mut [], Delivery::Chunks, usize::MAX).unwrap();
    assert!(!reader.has_slot());

    let (mut reader, mut client) = compressing_with(Config::default());
    client.send_binary(&generated(50_000)).unwrap();
    let wire = client.take_transmit();
    assert!(wire.len() > 45_000);
    read(&mut reader, &wire[..20_000]).unwrap();
    assert!(!decoded(reader.decode()));
    assert!(reader.payload_remaining() > 20_000 && reader.inbound.memory_len() > 20_000);
    assert!(!reader.has_slot());
}

/// Bytes that hardly compress.
fn generated(len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(1);
    (0..len).map(|_| rng.u8(..)).collect()
}

#[test]
fn offers_a_slot_from_the_bounds_on() {
    // 4 KiB have arrived, and 4 KiB are missing.
    for (len, arrived, has_slot) in [
        (60_000, 4095, false),
        (60_000, 4096, true),
        (60_000, 60_000 - 4096, true),
        (60_000, 60_000 - 4095, false),
    ] {
        let mut reader = reader(Config::default());
        read(&mut reader, &frame(0x82, &vec![7; len])[..8 + arrived]).unwrap();
        assert!(!decoded(reader.decode()));
        assert_eq!(reader.has_slot(), has_slot, "{arrived} of {len}");
    }
}

#[test]
fn a_compressed_message_comes_in_chunks_of_bounded_length() {
    let (mut reader, mut client) = compressing();
    client.send_binary(&[7; 100_000]).unwrap();
    client.send_text("short").unwrap();
    read(&mut reader, &client.take_transmit()).unwrap();
    for (len, last) in [(32 << 10, false), (32 << 10, false), (32 << 10, false), (100_000 % (32 << 10), true)]
    {
        assert!(reader.has_more_as(Delivery::Chunks) && decoded(reader.decode()));
        let message = reader.message();
        assert_eq!((message.payload().len(), message.is_whole(), message.is_last()), (len, false, last));
    }
    assert!(decoded(reader.decode()));
    assert_eq!((reader.message().text(), reader.message().is_whole()), (Some("short"), true));
    assert!(!reader.has_more_as(Delivery::Chunks) && !reader.has_more_as(Delivery::Messages));

    // Or the remainder at once.
    client.send_binary(&[7; 100_000]).unwrap();
    read(&mut reader, &client.take_transmit()).unwrap();
    assert!(decoded(reader.decode()));
    assert!(
        !reader.has_input() && reader.has_more_as(Delivery::Chunks) && reader.has_more_as(Delivery::Messages)
    );
    assert!(reader.inbound.has_more_as(Delivery::Chunks));
    assert!(decoded(reader.decode_as(Delivery::Messages)));
    assert_eq!((reader.message().payload().len(), reader.message().is_last()), (100_000 - (32 << 10), true));
    assert!(!reader.inbound.has_more_as(Delivery::Chunks));
}

#[test]
fn has_more_if_collected_bytes_are_to_be_delivered_in_chunks() {
    let mut reader = reader(Config { delivery: Delivery::Chunks, ..Config::default() });
    assert!(!reader.has_more_as(Delivery::Chunks) && !reader.has_more_as(Delivery::Messages));
    read(&mut reader, &frame(0x02, b"collected")).unwrap();
    assert!(reader.has_more_as(Delivery::Chunks) && reader.has_more_as(Delivery::Messages), "there is input");
    assert!(!decoded(reader.decode_as(Delivery::Messages)));
    assert!(reader.has_more_as(Delivery::Chunks) && !reader.has_more_as(Delivery::Messages));
    assert!(decoded(reader.decode()));
    assert!(!reader.has_more_as(Delivery::Chunks));
    // Nothing was collected yet of a compressed message that has begun.
    let (mut reader, mut client) = compressing();
    client.send_text("Hello").unwrap();
    let wire = client.take_transmit();
    read(&mut reader, &wire[..7]).unwrap();
    assert!(!decoded(reader.decode_as(Delivery::Messages)));
    assert!(!reader.has_more_as(Delivery::Chunks));
    assert!(!decoded(reader.decode()), "no chunk without a byte");
    read(&mut reader, &wire[7..]).unwrap();
    assert!(decoded(reader.decode()));
    assert_eq!((reader.message().text(), reader.message().is_last()), (Some("Hello"), true));
}

#[test]
fn has_no_more_after_an_error() {
    let limits = Limits { message_len_max: 99_999, ..Limits::default() };
    let config = Config { limits, delivery: Delivery::Chunks, ..Config::default() };
    let (mut reader, mut client) = compressing_with(config);
    client.send_binary(&[7; 100_000]).unwrap();
    read(&mut reader, &client.take_transmit()).unwrap();
    assert!(decoded(reader.decode()));
    assert!(reader.has_more_as(Delivery::Chunks));
    let refused = reader.decode_as(Delivery::Messages).unwrap_err();
    assert_eq!(refused, LimitExceeded::InflatedTooLarge { max: 99_999 }.into());
    assert!(!reader.has_more_as(Delivery::Chunks) && !reader.has_more_as(Delivery::Messages));
}

// A message in one frame, and one in two, of which the first needs many steps; then a short one that is in the buffer already.
#[test]
fn a_long_message_is_inflated_in_steps() {
    const STEPS: usize = if cfg!(miri) { 2 } else { 12 };
    let message = b"steps of a message ".repeat(STEPS * STEP_LEN / 19);
    for fragments in [1, 2] {
        let (mut reader, mut client) = compressing_with(Config::default());
        if fragments == 1 {
            client.send_text(core::str::from_utf8(&message).unwrap()).unwrap();
        } else {
            let text = core::str::from_utf8(&message[..message.len() - 19]).unwrap();
            client.send_text_chunk(text, false).unwrap();
            client.send_text_chunk("steps of a message ", true).unwrap();
        }
        client.send_ping(Duration::ZERO, b"behind").unwrap();
        client.send_text("short").unwrap();
        read(&mut reader, &client.take_transmit()).unwrap();
        let (mut steps, mut before) = (0, 0);
        loop {
            let (bound, is_long) =
                (reader.grown_memory_len(), reader.inbound.assembly.len() >= GROWTH_LEN_MIN);
            match reader.decode().unwrap() {
                Step::Message => break,
                Step::Inflating => {}
                step => panic!("{step:?}"),
            }
            assert!(
                reader.has_more_as(Delivery::Chunks)
                    && reader.has_more_as(Delivery::Messages)
                    && !reader.next_message()
            );
            let inflated = reader.inbound.inflated_len();
            assert!(
                (STEP_LEN as u64..=(STEP_LEN + STEP_EXTRA_LEN_MAX) as u64).contains(&(inflated - before))
            );
            (steps, before) = (steps + 1, inflated);
            assert!(!is_long || reader.inbound.memory_len() <= bound);
        }
        assert!((STEPS / 2..=STEPS).contains(&steps), "{steps}");
        assert_eq!(reader.message().payload(), message);
        assert_eq!(reader.inbound.inflated_len(), message.len() as u64);
        assert!(matches!(reader.decode(), Ok(Step::Control(Event::Ping(b"behind")))));
        assert!(decoded(reader.decode()));
        assert_eq!(reader.message().text(), Some("short"));
        assert!(matches!(reader.decode(), Ok(Step::NeedsInput)));
    }
}

// Each inflates to less than a step.
#[test]
fn many_fragments_are_inflated_in_steps() {
    const COUNT: usize = if cfg!(miri) { 4 } else { 40 };
    let (mut reader, mut client) = compressing_with(Config::default());
    let fragment = vec![7; STEP_LEN / 2 - 1];
    (0..COUNT).for_each(|at| client.send_binary_chunk(&fragment, at + 1 == COUNT).unwrap());
    read(&mut reader, &client.take_transmit()).unwrap();
    let (mut steps, mut before) = (0, 0);
    while !decoded(reader.decode()) {
        let inflated = reader.inbound.inflated_len();
        assert!((inflated - before) as usize <= STEP_LEN + STEP_EXTRA_LEN_MAX);
        assert!(reader.has_more_as(Delivery::Messages));
        (steps, before) = (steps + 1, inflated);
    }
    assert!(steps >= COUNT / 3 - 1, "{steps}");
    assert_eq!(reader.message().payload().len(), COUNT * fragment.len());
}

// Invalid text and corrupt data are found in the step that inflates them.
#[test]
fn an_error_ends_the_steps_of_a_message() {
    let mut text = vec![b'x'; 3 * STEP_LEN];
    text[2 * STEP_LEN + STEP_EXTRA_LEN_MAX + 1] = 0xFF;
    let (mut reader, mut client) = compressing_with(Config::default());
    client.send_binary(&text).unwrap();
    let mut wire = client.take_transmit();
    wire[0] ^= 0x03;
    read(&mut reader, &wire).unwrap();
    assert!(matches!(reader.decode(), Ok(Step::Inflating)));
    let failed = loop {
        match reader.decode() {
            Ok(Step::Inflating) => {}
            step => break step.unwrap_err(),
        }
    };
    assert_eq!(failed, PeerMisbehaved::InvalidUtf8.into());
    assert!(!reader.has_more_as(Delivery::Messages));
}

// RFC 6455 §5.4. The chunks of a message whose collection has begun, and the other way round.
#[test]
fn steps_and_chunks_of_one_message_follow_each_other() {
    let message: Vec<u8> = (0..4 * STEP_LEN).map(|at| (at / 1000) as u8).collect();
    let (mut reader, mut client) = compressing_with(Config::default());
    client.send_binary(&message).unwrap();
    read(&mut reader, &client.take_transmit()).unwrap();
    assert!(matches!(reader.decode(), Ok(Step::Inflating)));
    let mut received = Vec::new();
    for _ in 0..3 {
        assert!(decoded(reader.decode_as(Delivery::Chunks)));
        received.extend_from_slice(reader.message().payload());
    }
    while !decoded(reader.decode_as(Delivery::Messages)) {}
    assert!(reader.message().is_last() && !reader.message().is_whole());
    received.extend_from_slice(reader.message().payload());
    assert_eq!(received, message);
}

#[test]
fn takes_and_returns_buffers_and_codecs() {
    let mut reader = reader(Config::default());
    let wire = [frame(0x02, b"one "), frame(0x80, b"two")].concat();
    assert!(!reader.has_memory() && reader.take_memory().is_none());
    reader.set_memory(Vec::with_capacity(1000));
    assert!(reader.has_memory());
    assert_eq!(reader.inbound.memory_len(), 1000);
    read(&mut reader, &wire).unwrap();
    assert!(decoded(reader.decode()));
    assert_eq!(reader.take_memory().map(|memory| memory.capacity()), Some(1000));
    assert_eq!(reader.message().payload(), b"", "it left with the memory");
    read(&mut reader, &wire).unwrap();
    assert!(decoded(reader.decode()) && reader.has_memory());
    reader.release_buffers();
    assert_eq!((reader.has_memory(), reader.message().payload()), (false, &b""[..]));

    let (mut pool, (mut reader, mut client)) = (DeflatePool::new(1, 1), compressing());
    for inflaters in [0, 1] {
        reader.take_codec(&mut pool);
        client.send_text("Hello").unwrap();
        read(&mut reader, &client.take_transmit()).unwrap();
        assert!(decoded(reader.decode()));
        assert_eq!((reader.message().text(), pool.inflaters()), (Some("Hello"), 0), "{inflaters}");
        reader.return_codec(&mut pool);
        assert_eq!(pool.inflaters(), 1);
    }
}
