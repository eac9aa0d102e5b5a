//! §5.1–§5.3: masks, reserved bits and opcodes, lengths.

use super::table::Expected::{Closes, Fails, Open};
use super::table::{Table, Wire};
use wireloom_testing::Frame;
use wireloom_testing::frame::Length;
use wireloom_ws::Role;

const OPCODES: [(u8, &str); 5] = [
    (Frame::TEXT, "text"),
    (Frame::BINARY, "binary"),
    (Frame::CLOSE, "close"),
    (Frame::PING, "ping"),
    (Frame::PONG, "pong"),
];

pub(crate) fn add_cases(table: &mut Table) {
    masks(table);
    reserved_bits(table);
    reserved_opcodes(table);
    lengths(table);
}

fn begun(wire: Wire) -> Wire {
    wire.send(Frame::text("a").fin(false))
}

fn masks(table: &mut Table) {
    let mut section = table.section("§5.1");
    for (opcode, name) in OPCODES {
        let payload: &[u8] = if opcode == Frame::CLOSE { b"\x03\xe8" } else { b"Hello" };
        section.both(format!("{name} frame with the wrong masking"), Fails(1002), |wire| {
            wire.send_wrongly_masked(Frame::new(opcode, payload))
        });
        section.both(format!("empty {name} frame with the wrong masking"), Fails(1002), |wire| {
            wire.send_wrongly_masked(Frame::new(opcode, ""))
        });
    }
    section.both("only the second frame has the wrong masking", Fails(1002), |wire| {
        wire.send(Frame::text("Hello")).send_wrongly_masked(Frame::text("Hello"))
    });
    section.both("only a continuation has the wrong masking", Fails(1002), |wire| {
        begun(wire).send_wrongly_masked(Frame::continuation("b"))
    });
    section.both("a ping within a message has the wrong masking", Fails(1002), |wire| {
        begun(wire).send_wrongly_masked(Frame::ping("b"))
    });
    section.both(
        "a long frame has the wrong masking, and only its first two bytes arrive",
        Fails(1002),
        |wire| {
            let sender = wire.sender;
            wire.raw(&[0x82, if sender == Role::Client { 0x7E } else { 0xFE }])
        },
    );

    let mut section = table.section("§5.3");
    section.to(Role::Server, "a key of zeros is a key", Open, |wire| {
        wire.raw(&Frame::text("Hello").mask([0; 4]).bytes())
    });
    section.to(Role::Server, "the same key twice", Open, |wire| {
        wire.raw(&Frame::text("Hello").mask([7; 4]).bytes()).raw(&Frame::binary("Hello").mask([7; 4]).bytes())
    });
    section.to(Role::Server, "valid text only before unmasking", Fails(1007), |wire| {
        // `Hello` goes over the wire; unmasked it is C8 E5 EC EC EF.
        wire.raw(&[0x81, 0x85, 0x80, 0x80, 0x80, 0x80]).raw(b"Hello")
    });
}

fn reserved_bits(table: &mut Table) {
    let mut section = table.section("§5.2");
    for bits in 1..8 {
        for (opcode, name) in OPCODES {
            section.both(format!("reserved bits {bits:03b} on {name}"), Fails(1002), |wire| {
                wire.send(Frame::new(opcode, "").rsv(bits))
            });
        }
        section.both(format!("reserved bits {bits:03b} on a continuation"), Fails(1002), |wire| {
            begun(wire).send(Frame::continuation("b").rsv(bits))
        });
        section.both(format!("reserved bits {bits:03b} on a first fragment"), Fails(1002), |wire| {
            wire.send(Frame::binary("b").fin(false).rsv(bits))
        });
        section.both(format!("reserved bits {bits:03b} after a valid message"), Fails(1002), |wire| {
            wire.send(Frame::text("Hello")).send(Frame::text("Hello").rsv(bits))
        });
    }
    section.both("a reserved bit is detected by the first byte", Fails(1002), |wire| wire.raw(&[0xA1]));
}

fn reserved_opcodes(table: &mut Table) {
    let mut section = table.section("§5.2");
    for opcode in [0x3, 0x4, 0x5, 0x6, 0x7, 0xB, 0xC, 0xD, 0xE, 0xF] {
        section.both(format!("opcode {opcode:X}"), Fails(1002), |wire| wire.send(Frame::new(opcode, "")));
        section.both(format!("opcode {opcode:X} with a payload"), Fails(1002), |wire| {
            wire.send(Frame::new(opcode, "Hello"))
        });
        section.both(format!("opcode {opcode:X} without FIN"), Fails(1002), |wire| {
            wire.send(Frame::new(opcode, "Hello").fin(false))
        });
        section.both(format!("opcode {opcode:X} within a message"), Fails(1002), |wire| {
            begun(wire).send(Frame::new(opcode, ""))
        });
    }
    section.both("a reserved opcode is detected by the first byte", Fails(1002), |wire| wire.raw(&[0x83]));
}

fn lengths(table: &mut Table) {
    let mut section = table.section("§5.2");
    for opcode in [Frame::TEXT, Frame::BINARY] {
        for len in [0, 1, 2, 124, 125] {
            section.both(format!("opcode {opcode}: 16 bits for a length of {len}"), Fails(1002), |wire| {
                wire.send(Frame::new(opcode, vec![b'x'; len]).length(Length::Bits16(len as u16)))
            });
        }
        for len in [0, 1, 125, 126, 127, 255, 256, 65_535] {
            section.both(format!("opcode {opcode}: 64 bits for a length of {len}"), Fails(1002), |wire| {
                wire.send(Frame::new(opcode, vec![b'x'; len]).length(Length::Bits64(len as u64)))
            });
        }
        for len in [1 << 63, 1 << 63 | 5, u64::MAX, u64::MAX - 1, 0xFFFF_FFFF_0000_0005] {
            section.both(format!("opcode {opcode}: a length of {len:#x}"), Fails(1002), |wire| {
                wire.send(Frame::new(opcode, "Hello").length(Length::Bits64(len)))
            });
        }
        for len in [0, 1, 125, 126, 127, 65_535, 65_536] {
            section.both(format!("opcode {opcode}: {len} bytes in the shortest form"), Open, |wire| {
                wire.send(Frame::new(opcode, vec![b'x'; len])).send(Frame::text("Hello"))
            });
        }
    }
    section.both("16 bits for a continuation's 5", Fails(1002), |wire| {
        begun(wire).send(Frame::continuation("Hello").length(Length::Bits16(5)))
    });
    section.both("64 bits for a continuation's 300", Fails(1002), |wire| {
        begun(wire).send(Frame::continuation([b'x'; 300]).length(Length::Bits64(300)))
    });
    section.both("the highest bit of a continuation's length", Fails(1002), |wire| {
        begun(wire).send(Frame::continuation("").length(Length::Bits64(1 << 63)))
    });
    section.both("a length that is not minimal, and nothing after it", Fails(1002), |wire| {
        let masked = if wire.sender == Role::Client { 0x80 } else { 0 };
        wire.raw(&[0x82, masked | 126, 0, 125])
    });
    for (what, len) in [("16-bit", 3), ("64-bit", 9)] {
        section.both(format!("half of a {what} length is not an error yet"), Open, |wire| {
            let bytes = if len == 3 { 300 } else { 70_000 };
            wire.send_head(len, Frame::binary(vec![0; bytes]))
        });
    }
    section.both("a frame short of its last byte is not an error yet", Open, |wire| {
        let head = if wire.sender == Role::Client { 10 } else { 6 };
        wire.send_head(head, Frame::text("Hello"))
    });

    let mut section = table.section("§5.7");
    section.to(Role::Client, "every published unmasked frame", Open, |wire| {
        wire.raw(&[0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f])
            .raw(&[0x01, 0x03, 0x48, 0x65, 0x6c, 0x80, 0x02, 0x6c, 0x6f])
            .raw(&[0x89, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f])
            .raw(&[0x82, 0x7E, 0x01, 0x00])
            .raw(&[0xAA; 256])
            .raw(&[0x82, 0x7F, 0, 0, 0, 0, 0, 1, 0, 0])
            .raw(&vec![0x55; 65_536])
    });
    section.to(Role::Server, "every published masked frame", Open, |wire| {
        wire.raw(&[0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58])
            .raw(&[0x8a, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58])
    });

    let mut section = table.section("§5.8");
    section.both("a frame of another protocol: an HTTP request", Fails(1002), |wire| {
        wire.raw(b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n")
    });
    section.both("a frame of another protocol: a TLS record", Fails(1002), |wire| {
        wire.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    });
    section.both("a frame of another protocol: the HTTP/2 preface", Fails(1002), |wire| {
        wire.raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    });
    section.both("the closing of the old drafts: FF 00", Fails(1002), |wire| wire.raw(&[0xFF, 0x00]));
    section.both("the text of the old drafts: 00 … FF", Fails(1002), |wire| wire.raw(b"\x00Hello\xff"));
    section.both("bytes of ones", Fails(1002), |wire| wire.raw(&[0xFF; 64]));
    section.both("bytes of zeros", Fails(1002), |wire| wire.raw(&[0; 64]));
    section.both("nothing at all", Open, |wire| wire);
    section.both("a valid message, then noise", Fails(1002), |wire| {
        wire.send(Frame::text("Hello")).raw(&[0xF3; 32])
    });
    section.both("noise after a close is not read", Closes(Some(1000)), |wire| {
        wire.send(Frame::close(1000, "")).raw(&[0xF3; 32])
    });
}
