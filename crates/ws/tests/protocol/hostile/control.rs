//! §5.5: control frames, and §7: closing.

use super::table::Expected::{Closes, Fails, Open};
use super::table::Table;
use wireloom_testing::Frame;
use wireloom_testing::frame::Length;

const CONTROLS: [(u8, &str); 3] = [(Frame::CLOSE, "close"), (Frame::PING, "ping"), (Frame::PONG, "pong")];

pub(crate) fn add_cases(table: &mut Table) {
    all_control_frames(table);
    pings_and_pongs(table);
    close_codes(table);
    close_payloads(table);
    after_close(table);
}

fn all_control_frames(table: &mut Table) {
    let mut section = table.section("§5.5");
    for (opcode, name) in CONTROLS {
        for len in [126, 127, 200, 65_535, 65_536] {
            section.both(format!("{name} of {len} bytes"), Fails(1002), |wire| {
                wire.send(Frame::new(opcode, vec![3; len]))
            });
        }
        section.both(format!("{name} of 126 bytes, detected by its second byte"), Fails(1002), |wire| {
            wire.send_head(2, Frame::new(opcode, vec![3; 126]))
        });
        section.both(format!("{name} of 5 bytes with a length of 16 bits"), Fails(1002), |wire| {
            wire.send(Frame::new(opcode, b"\x03\xe8abc").length(Length::Bits16(5)))
        });
        section.both(format!("{name} of 5 bytes with a length of 64 bits"), Fails(1002), |wire| {
            wire.send(Frame::new(opcode, b"\x03\xe8abc").length(Length::Bits64(5)))
        });
        section.both(format!("{name} of 2^63 bytes"), Fails(1002), |wire| {
            wire.send(Frame::new(opcode, "").length(Length::Bits64(1 << 63)))
        });
        for payload in [&b""[..], b"\x03\xe8"] {
            section.both(format!("{name} without FIN, {} bytes", payload.len()), Fails(1002), |wire| {
                wire.send(Frame::new(opcode, payload).fin(false))
            });
            section.both(
                format!("{name} without FIN within a message, {} bytes", payload.len()),
                Fails(1002),
                |w| w.send(Frame::text("a").fin(false)).send(Frame::new(opcode, payload).fin(false)),
            );
        }
        section.both(format!("{name} without FIN, detected by its first byte"), Fails(1002), |wire| {
            wire.raw(&[opcode])
        });
    }
}

fn pings_and_pongs(table: &mut Table) {
    for (opcode, name, section) in [(Frame::PING, "ping", "§5.5.2"), (Frame::PONG, "pong", "§5.5.3")] {
        let mut section = table.section(section);
        for len in [0, 1, 124, 125] {
            section.both(format!("{name} of {len} bytes"), Open, |wire| {
                wire.send(Frame::new(opcode, vec![0xFF; len])).send(Frame::text("Hello"))
            });
        }
        section.both(format!("10,000 of {name}"), Open, |wire| {
            wire.times(10_000, |wire, i| wire.send(Frame::new(opcode, i.to_be_bytes())))
        });
        section.both(format!("{name} that is not UTF-8, within text"), Open, |wire| {
            wire.send(Frame::text([0xE2]).fin(false))
                .send(Frame::new(opcode, [0xC0, 0xFF]))
                .send(Frame::continuation([0x82, 0xAC]))
        });
    }
}

fn close_codes(table: &mut Table) {
    let mut section = table.section("§7.4.1");
    for code in [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014] {
        section
            .both(format!("close code {code}"), Closes(Some(code)), |wire| wire.send(Frame::close(code, "")));
        section.both(format!("close code {code} with a reason"), Closes(Some(code)), |wire| {
            wire.send(Frame::close(code, "that is why: ¡olé!"))
        });
    }
    for code in [1004, 1005, 1006, 1015] {
        section.both(format!("close code {code}, which is never sent"), Fails(1002), |wire| {
            wire.send(Frame::close(code, ""))
        });
        section.both(format!("close code {code}, which is never sent, with a reason"), Fails(1002), |wire| {
            wire.send(Frame::close(code, "why"))
        });
    }
    let mut section = table.section("§7.4.2");
    for code in [0, 1, 100, 500, 998, 999] {
        section.both(format!("close code {code}, below the range"), Fails(1002), |wire| {
            wire.send(Frame::close(code, ""))
        });
    }
    for code in [1016, 1017, 1100, 1999, 2000, 2500, 2999] {
        section.both(format!("close code {code}, reserved for the protocol"), Fails(1002), |wire| {
            wire.send(Frame::close(code, "why"))
        });
    }
    for code in [3000, 3001, 3999, 4000, 4001, 4999] {
        section.both(format!("close code {code}"), Closes(Some(code)), |wire| {
            wire.send(Frame::close(code, "why"))
        });
    }
    for code in [5000, 5001, 10_000, 0x7FFF, 0x8000, 65_534, 65_535] {
        section.both(format!("close code {code}, above the range"), Fails(1002), |wire| {
            wire.send(Frame::close(code, ""))
        });
    }
}

fn close_payloads(table: &mut Table) {
    let mut section = table.section("§5.5.1");
    section.both("an empty close", Closes(None), |wire| wire.send(Frame::new(Frame::CLOSE, "")));
    for byte in [0x00, 0x03, 0xFF] {
        section.both(format!("a close of the byte {byte:02x}"), Fails(1002), |wire| {
            wire.send(Frame::new(Frame::CLOSE, [byte]))
        });
    }
    section.both("the longest reason", Closes(Some(1000)), |wire| wire.send(Frame::close(1000, [b'x'; 123])));
    section.both("the longest reason in characters of four bytes", Closes(Some(1000)), |wire| {
        wire.send(Frame::close(1000, ["𝄞".repeat(30), "abc".into()].concat()))
    });
    section.both("a reason of 124 bytes", Fails(1002), |wire| wire.send(Frame::close(1000, [b'x'; 124])));
    section.both("a reason with NUL", Closes(Some(1000)), |wire| wire.send(Frame::close(1000, "a\0b")));
    section.both("a bad code with a bad reason: the code is checked first", Fails(1002), |wire| {
        wire.send(Frame::close(1005, [0xFF]))
    });
    section.both("a close within a text's code point", Closes(Some(1001)), |wire| {
        wire.send(Frame::text([0xE2]).fin(false)).send(Frame::close(1001, ""))
    });
    section.both("a bad reason within a message", Fails(1007), |wire| {
        wire.send(Frame::text("a").fin(false)).send(Frame::close(1000, [0xED, 0xA0, 0x80]))
    });
    section.both("a close after messages and pings", Closes(Some(4321)), |wire| {
        wire.send(Frame::text("Hello"))
            .send(Frame::ping("?"))
            .send(Frame::binary(""))
            .send(Frame::close(4321, "bye"))
    });
    section
        .both("half a close is not an error yet", Open, |wire| wire.send_head(3, Frame::close(1000, "bye")));
}

fn after_close(table: &mut Table) {
    let mut section = table.section("§5.5.1");
    let tails: [(&str, Frame); 8] = [
        ("text", Frame::text("Hello")),
        ("invalid text", Frame::text([0xFF])),
        ("a ping", Frame::ping("?")),
        ("a second close", Frame::close(1001, "")),
        ("an invalid close", Frame::close(1005, "")),
        ("a reserved opcode", Frame::new(0xF, "")),
        ("a continuation", Frame::continuation("")),
        (
            "a frame with the highest bit of its length set",
            Frame::binary("x").length(Length::Bits64(u64::MAX)),
        ),
    ];
    for (name, tail) in tails {
        section.both(format!("{name} after the close is not read"), Closes(Some(1000)), |wire| {
            wire.send(Frame::close(1000, "bye")).send(tail.clone())
        });
    }
    let mut section = table.section("§7.1.7");
    section.both("the first of two errors counts", Fails(1002), |wire| {
        wire.send(Frame::new(0x3, "")).send(Frame::text([0xFF]))
    });
    section.both("the first of two errors counts, the other way", Fails(1007), |wire| {
        wire.send(Frame::text([0xFF])).send(Frame::new(0x3, ""))
    });
    section.both("a close after an error does not undo it", Fails(1007), |wire| {
        wire.send(Frame::text([0xC0, 0x80])).send(Frame::close(1000, ""))
    });
}
