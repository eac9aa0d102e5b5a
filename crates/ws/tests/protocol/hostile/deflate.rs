//! RFC 7692: RSV1, compressed data that is invalid, and data that inflates beyond the limits.

use super::bits::Bits;
use super::table::Expected::{Closes, Fails, Open};
use super::table::Table;
use wireloom_testing::Frame;

/// `Hello`, as RFC 7692 §7.2.3.1 publishes it.
const HELLO: &[u8] = &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];

const RSV1: u8 = 4;

pub(crate) fn add_cases(table: &mut Table) {
    bits(table);
    published(table);
    corrupt(table);
    text(table);
    bombs(table);
}

fn compressed(payload: impl AsRef<[u8]>) -> Frame {
    Frame::binary(payload).rsv(RSV1)
}

fn bits(table: &mut Table) {
    let mut section = table.section("RFC 7692 §6").deflate();
    for bits in [1, 2, 3, 5, 6, 7] {
        for opcode in [Frame::TEXT, Frame::BINARY, Frame::PING, Frame::PONG, Frame::CLOSE] {
            section.both(format!("reserved bits {bits:03b} on opcode {opcode:X}"), Fails(1002), |wire| {
                wire.send(Frame::new(opcode, "").rsv(bits))
            });
        }
    }
    let mut section = table.section("RFC 7692 §6.1").deflate();
    for opcode in [Frame::PING, Frame::PONG, Frame::CLOSE] {
        section.both(format!("RSV1 on opcode {opcode:X}"), Fails(1002), |wire| {
            wire.send(Frame::new(opcode, HELLO).rsv(RSV1))
        });
        section.both(format!("RSV1 on opcode {opcode:X} within a compressed message"), Fails(1002), |wire| {
            wire.send(compressed(&HELLO[..3]).fin(false)).send(Frame::new(opcode, "").rsv(RSV1))
        });
    }
    for begin in [0, RSV1] {
        for fin in [false, true] {
            section.both(format!("RSV1 on a continuation, first {begin}, FIN {fin}"), Fails(1002), |wire| {
                wire.send(Frame::binary(&HELLO[..3]).rsv(begin).fin(false))
                    .send(Frame::continuation(&HELLO[3..]).rsv(RSV1).fin(fin))
            });
        }
    }
    section.both("RSV1 on a continuation without a message", Fails(1002), |wire| {
        wire.send(Frame::continuation(HELLO).rsv(RSV1))
    });
    section.both("messages with and without compression", Open, |wire| {
        wire.send(Frame::text("Hello")).send(compressed(HELLO)).send(Frame::text("Hello"))
    });

    let mut section = table.section("RFC 7692 §6");
    section.both("RSV1 without the extension", Fails(1002), |wire| wire.send(compressed(HELLO)));
    section.both("RSV1 without the extension, on text", Fails(1002), |wire| {
        wire.send(Frame::text(HELLO).rsv(RSV1))
    });
    section
        .both("compressed bytes without RSV1 are only bytes", Open, |wire| wire.send(Frame::binary(HELLO)));
}

fn published(table: &mut Table) {
    let mut section = table.section("RFC 7692 §7.2.3").deflate();
    let examples: [(&str, &[u8]); 4] = [
        ("one block", HELLO),
        ("a stored block", &[0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00]),
        ("a block with BFINAL", &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00]),
        ("two blocks", &[0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00]),
    ];
    for (name, bytes) in examples {
        section.both(name, Open, |wire| wire.send(Frame::text(bytes).rsv(RSV1)));
        section.both(format!("{name}, one byte a fragment"), Open, |wire| {
            wire.send(Frame::text("").rsv(RSV1).fin(false))
                .times(bytes.len(), |wire, i| {
                    wire.send(Frame::ping("")).send(Frame::continuation([bytes[i]]).fin(false))
                })
                .send(Frame::continuation(""))
        });
    }
    section.both("the same message again, out of the window", Open, |wire| {
        wire.send(Frame::text(HELLO).rsv(RSV1)).send(Frame::text([0xf2, 0x00, 0x11, 0x00, 0x00]).rsv(RSV1))
    });
    section.both("the empty message: an empty stored block", Open, |wire| wire.send(compressed([0x00])));
    section.both("the empty message: an empty fixed block", Open, |wire| wire.send(compressed([0x02, 0x00])));
    section.both("BFINAL, and the next message goes on", Open, |wire| {
        wire.send(compressed([0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00])).send(compressed(HELLO))
    });
    section.both("a thousand empty blocks", Open, |wire| {
        wire.send(compressed([[0x00, 0x00, 0x00, 0xff, 0xff].repeat(1_000), vec![0x00]].concat()))
    });
    section.both("a close between compressed fragments", Closes(Some(1000)), |wire| {
        wire.send(compressed(&HELLO[..3]).fin(false)).send(Frame::close(1000, ""))
    });
}

/// Invalid DEFLATE data, each flushed unless it ends too early.
fn corrupt(table: &mut Table) {
    let mut section = table.section("RFC 7692 §7.2.2").deflate();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("the reserved block type", Bits::new().bits(0b110, 3).flush()),
        ("the reserved block type, with BFINAL", Bits::new().bits(0b111, 3).flush()),
        ("bytes of ones", vec![0xFF; 20]),
        (
            "a stored length that its complement denies",
            vec![0x00, 0x05, 0x00, 0x05, 0x00, 1, 2, 3, 4, 5, 0x00],
        ),
        (
            "a stored length whose complement is off by one",
            vec![0x00, 0x05, 0x00, 0xfb, 0xff, 1, 2, 3, 4, 5, 0x00],
        ),
        ("a match before any data", Bits::new().fixed().matched(3, 1).end().flush()),
        ("a match one byte before the data", Bits::new().fixed().literal(b'a').matched(3, 2).end().flush()),
        ("a match far before the data", Bits::new().fixed().literal(b'a').matched(258, 32_768).end().flush()),
        ("length symbol 286", Bits::new().fixed().literal(b'a').symbol(286).code(0, 5).end().flush()),
        ("length symbol 287", Bits::new().fixed().literal(b'a').symbol(287).code(0, 5).end().flush()),
        ("distance symbol 30", Bits::new().fixed().literal(b'a').symbol(257).code(30, 5).end().flush()),
        ("distance symbol 31", Bits::new().fixed().literal(b'a').symbol(257).code(31, 5).end().flush()),
        // HLIT 30 means 287 literal and length codes.
        ("too many length codes", Bits::new().dynamic(30, 0, 0).bits(0, 60).flush()),
        ("too many distance codes", Bits::new().dynamic(0, 30, 0).bits(0, 60).flush()),
        ("no code length code at all", Bits::new().dynamic(0, 0, 0).bits(0, 12).bits(0, 40).flush()),
        // All four code length codes are one bit long.
        (
            "too many code length codes of one bit",
            Bits::new().dynamic(0, 0, 0).bits(0b001_001_001_001, 12).flush(),
        ),
        // Codes 16 and 17 of one bit each; the first is "repeat the last length", and there is none.
        (
            "a repeat with nothing before it",
            Bits::new().dynamic(0, 0, 0).bits(0b001_001, 12).bits(0, 40).flush(),
        ),
        // Codes 17 and 18 of one bit each: 138 zeros, three times, is more than 258.
        ("an end within a block", HELLO[..3].to_vec()),
        ("an end before the flush", HELLO[..6].to_vec()),
        ("an end within a stored block", vec![0x00, 0x05, 0x00, 0xfa, 0xff, b'H', b'e']),
        ("an end within a stored length", vec![0x00, 0x05]),
        (
            "more code lengths than there are codes",
            Bits::new()
                .dynamic(0, 0, 0)
                .bits(0b001_001_000, 12)
                .bits(0xFF, 8)
                .bits(0xFF, 8)
                .bits(0xFF, 8)
                .flush(),
        ),
    ];
    for (name, bytes) in &cases {
        section.both(*name, Fails(1007), |wire| wire.send(compressed(bytes)));
        section.both(format!("{name}, one byte a fragment"), Fails(1007), |wire| {
            wire.send(compressed("").fin(false))
                .times(bytes.len(), |wire, i| wire.send(Frame::continuation([bytes[i]]).fin(false)))
                .send(Frame::continuation(""))
        });
        section.both(format!("{name}, after a valid message"), Fails(1007), |wire| {
            // The matches reach before the window that the first message leaves.
            wire.send(compressed([0x02, 0x00])).send(compressed(bytes))
        });
    }
}

fn text(table: &mut Table) {
    let mut section = table.section("RFC 7692 §6.2").deflate();
    let stored = |text: &[u8]| Bits::stored(text);
    let broken: [(&str, &[u8]); 6] = [
        ("FF", &[0xFF]),
        ("overlong NUL", &[0xC0, 0x80]),
        ("a surrogate", &[0xED, 0xA0, 0x80]),
        ("U+110000", &[0xF4, 0x90, 0x80, 0x80]),
        ("an unfinished code point", &[b'a', 0xE2, 0x82]),
        ("a lone continuation behind letters", b"abcdefgh\x80"),
    ];
    for (name, bytes) in broken {
        section.both(format!("text inflates to {name}"), Fails(1007), |wire| {
            wire.send(Frame::text(stored(bytes)).rsv(RSV1))
        });
        section.both(format!("text inflates to {name}, one byte a fragment"), Fails(1007), |wire| {
            let bytes = stored(bytes);
            wire.send(Frame::text("").rsv(RSV1).fin(false))
                .times(bytes.len(), |wire, i| wire.send(Frame::continuation([bytes[i]]).fin(false)))
                .send(Frame::continuation(""))
        });
        section.both(format!("binary inflates to {name}"), Open, |wire| wire.send(compressed(stored(bytes))));
    }
    section.both("text that is not UTF-8, then not DEFLATE", Fails(1007), |wire| {
        let bytes = Bits::new().fixed().literal(0xFF).literal(b'a').symbol(286).code(0, 5).end().flush();
        wire.send(Frame::text(bytes).rsv(RSV1))
    });
    section.both("text whose compressed bytes are not UTF-8", Open, |wire| {
        wire.send(Frame::text(stored("Grüße".as_bytes())).rsv(RSV1))
    });
    section.both("text of compressed bytes without RSV1", Fails(1007), |wire| wire.send(Frame::text(HELLO)));
}

fn bombs(table: &mut Table) {
    let mut section = table.section("RFC 7692 §8").deflate().limits(|limits| limits.message_len_max = 10_000);
    for (len, expected) in [(9_999, Open), (10_000, Open), (10_001, Fails(1009))] {
        section
            .both(format!("{len} bytes of 10,000"), expected, |wire| wire.send(compressed(Bits::run(len))));
        section.both(format!("{len} bytes of 10,000, in fragments of two"), expected, |wire| {
            let bytes = Bits::run(len);
            let chunks: Vec<&[u8]> = bytes.chunks(2).collect();
            wire.send(compressed("").fin(false))
                .times(chunks.len(), |wire, i| wire.send(Frame::continuation(chunks[i]).fin(false)))
                .send(Frame::continuation(""))
        });
    }
    section
        .both("a megabyte out of a kilobyte", Fails(1009), |wire| wire.send(compressed(Bits::run(1 << 20))));
    section
        .both("a megabyte as text", Fails(1009), |wire| wire.send(Frame::text(Bits::run(1 << 20)).rsv(RSV1)));
    let long = |first: u8, last: u8| {
        let bits = Bits::new().fixed().literal(first).literal(b'a');
        (0..100).fold(bits, |bits, _| bits.matched(258, 1)).literal(last).end().flush()
    };
    section.both("text that is not UTF-8 before it is too long", Fails(1007), |wire| {
        wire.send(Frame::text(long(0xFF, b'z')).rsv(RSV1))
    });
    section.both("text that is not UTF-8 after it is too long", Fails(1009), |wire| {
        wire.send(Frame::text(long(b'z', 0xFF)).rsv(RSV1))
    });
    section.both("a megabyte that begins in an endless message", Fails(1009), |wire| {
        wire.send(compressed(Bits::run(1 << 20)).fin(false))
    });
    section.both("compressed messages do not add up", Open, |wire| {
        wire.times(20, |wire, _| wire.send(compressed(Bits::run(9_000))))
    });

    let mut section = table.section("RFC 7692 §8").deflate().limits(|limits| limits.inflate_ratio_max = 100);
    section.both("a ratio of 1,000 below the length that is checked", Open, |wire| {
        wire.send(compressed(Bits::run(900_000)))
    });
    section.both("a ratio of 1,000 above the length that is checked", Fails(1009), |wire| {
        wire.send(compressed(Bits::run(4 << 20)))
    });
    let mut section =
        table.section("RFC 7692 §8").deflate().limits(|limits| limits.message_len_max = 2 << 20);
    section.both("the highest ratio of DEFLATE: 16 MiB out of 16 KiB", Fails(1009), |wire| {
        wire.send(compressed(Bits::run(16 << 20)))
    });
    let mut section = table.section("RFC 7692 §8").deflate();
    section.both("empty compressed fragments without end", Fails(1008), |wire| {
        wire.send(compressed("").fin(false))
            .times(20_000, |wire, _| wire.send(Frame::continuation("").fin(false)))
    });
}
