//! §5.4, §5.6: how the frames of messages follow each other.

use super::table::Expected::{Closes, Fails, Open};
use super::table::Table;
use wireloom_testing::Frame;

pub(crate) fn add_cases(table: &mut Table) {
    let mut section = table.section("§5.4");
    for fin in [false, true] {
        section.both(format!("a continuation first, FIN {fin}"), Fails(1002), |wire| {
            wire.send(Frame::continuation("Hello").fin(fin))
        });
        section.both(format!("an empty continuation first, FIN {fin}"), Fails(1002), |wire| {
            wire.send(Frame::continuation("").fin(fin))
        });
        for opcode in [Frame::TEXT, Frame::BINARY] {
            section.both(
                format!("a continuation after opcode {opcode} with FIN, FIN {fin}"),
                Fails(1002),
                |wire| wire.send(Frame::new(opcode, "Hello")).send(Frame::continuation("again").fin(fin)),
            );
            section.both(
                format!("a continuation after the last fragment of {opcode}, FIN {fin}"),
                Fails(1002),
                |w| {
                    w.send(Frame::new(opcode, "Hel").fin(false))
                        .send(Frame::continuation("lo"))
                        .send(Frame::continuation("again").fin(fin))
                },
            );
            for inner in [Frame::TEXT, Frame::BINARY] {
                section.both(
                    format!("opcode {inner} within a message of {opcode}, FIN {fin}"),
                    Fails(1002),
                    |wire| {
                        wire.send(Frame::new(opcode, "Hel").fin(false)).send(Frame::new(inner, "lo").fin(fin))
                    },
                );
                section.both(
                    format!("{inner} after two fragments of {opcode}, FIN {fin}"),
                    Fails(1002),
                    |wire| {
                        wire.send(Frame::new(opcode, "H").fin(false))
                            .send(Frame::continuation("el").fin(false))
                            .send(Frame::new(inner, "lo").fin(fin))
                    },
                );
                section.both(
                    format!("{inner} within {opcode} behind a ping, FIN {fin}"),
                    Fails(1002),
                    |wire| {
                        wire.send(Frame::new(opcode, "Hel").fin(false))
                            .send(Frame::ping("?"))
                            .send(Frame::new(inner, "lo").fin(fin))
                    },
                );
            }
        }
    }
    for control in [Frame::PING, Frame::PONG] {
        section.both(format!("a continuation after opcode {control:X} alone"), Fails(1002), |wire| {
            wire.send(Frame::new(control, "")).send(Frame::continuation("Hello"))
        });
        section.both(
            format!("opcode {control:X} without FIN does not begin a message"),
            Fails(1002),
            |wire| wire.send(Frame::new(control, "Hel").fin(false)).send(Frame::continuation("lo")),
        );
        section.both(format!("opcode {control:X} between fragments"), Open, |wire| {
            wire.send(Frame::text("Hel").fin(false))
                .send(Frame::new(control, "?"))
                .send(Frame::continuation("lo"))
                .send(Frame::text("again"))
        });
        section.both(format!("opcode {control:X} around every fragment, empty ones too"), Open, |wire| {
            wire.send(Frame::binary("").fin(false))
                .times(20, |wire, i| {
                    wire.send(Frame::new(control, [i as u8])).send(Frame::continuation("").fin(false))
                })
                .send(Frame::new(control, [0; 125]))
                .send(Frame::continuation("x"))
        });
    }
    section.both("a close between fragments", Closes(Some(1000)), |wire| {
        wire.send(Frame::text("Hel").fin(false)).send(Frame::close(1000, "")).send(Frame::continuation("lo"))
    });
    section.both("a message of empty fragments", Open, |wire| {
        wire.send(Frame::text("").fin(false))
            .times(50, |wire, _| wire.send(Frame::continuation("").fin(false)))
            .send(Frame::continuation(""))
    });
    section.both("a message in 1,000 fragments of a byte", Open, |wire| {
        wire.send(Frame::text("x").fin(false))
            .times(1_000, |wire, _| wire.send(Frame::continuation("x").fin(false)))
            .send(Frame::continuation("x"))
    });
    section.both("a message that never ends is not an error yet", Open, |wire| {
        wire.send(Frame::binary("x").fin(false)).send(Frame::continuation("y").fin(false))
    });
    section.both("fragments of all three length forms", Open, |wire| {
        wire.send(Frame::binary([1; 125]).fin(false))
            .send(Frame::continuation([2; 126]).fin(false))
            .send(Frame::continuation(vec![3; 65_536]).fin(false))
            .send(Frame::continuation(""))
    });

    let mut section = table.section("§5.6");
    section.both("binary that is not UTF-8", Open, |wire| {
        wire.send(Frame::binary([0xFF, 0xC0, 0xED, 0xA0, 0x80]))
    });
    section.both("binary that is not UTF-8, in fragments", Open, |wire| {
        wire.send(Frame::binary([0xFF]).fin(false)).send(Frame::continuation([0xC0]))
    });
    section.both("text after binary that is not UTF-8", Open, |wire| {
        wire.send(Frame::binary([0xE2, 0x82])).send(Frame::text("Hello")).send(Frame::text("€"))
    });
    section.both("binary does not complete a text's code point", Fails(1007), |wire| {
        wire.send(Frame::text([0xE2, 0x82])).send(Frame::binary([0xAC]))
    });
}
