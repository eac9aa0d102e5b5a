//! §10.4: valid input beyond the limits of the receiver. Each limit minus one, at it, and plus one.

use super::table::Expected::{Fails, Open};
use super::table::Table;
use wireloom_testing::Frame;
use wireloom_testing::frame::Length;

pub(crate) fn add_cases(table: &mut Table) {
    let mut section = table.section("§10.4").limits(|limits| {
        limits.frame_len_max = 1_000;
        limits.message_len_max = 1_500;
    });
    for opcode in [Frame::TEXT, Frame::BINARY] {
        for len in [999, 1_000] {
            section.both(format!("opcode {opcode}: a frame of {len} of 1,000"), Open, |wire| {
                wire.send(Frame::new(opcode, vec![b'x'; len])).send(Frame::text("Hello"))
            });
        }
        for len in [1_001, 2_000, 70_000] {
            section.both(format!("opcode {opcode}: a frame of {len} of 1,000"), Fails(1009), |wire| {
                wire.send(Frame::new(opcode, vec![b'x'; len]))
            });
        }
        for len in [1 << 31, 1 << 32, 1 << 40, 1 << 62, (1 << 63) - 1] {
            section.both(
                format!("opcode {opcode}: {len:#x} bytes announced, none sent"),
                Fails(1009),
                |wire| wire.send(Frame::new(opcode, "").length(Length::Bits64(len))),
            );
        }
        for len in [499, 500] {
            section.both(format!("opcode {opcode}: a message of 1,000 and {len} of 1,500"), Open, |wire| {
                wire.send(Frame::new(opcode, vec![b'x'; 1_000]).fin(false))
                    .send(Frame::continuation(vec![b'y'; len]))
                    .send(Frame::text("Hello"))
            });
        }
        section.both(format!("opcode {opcode}: a message of 1,000 and 501 of 1,500"), Fails(1009), |wire| {
            wire.send(Frame::new(opcode, vec![b'x'; 1_000]).fin(false))
                .send(Frame::continuation(vec![b'y'; 501]))
        });
        section.both(format!("opcode {opcode}: a message of 1,501 without FIN"), Fails(1009), |wire| {
            wire.send(Frame::new(opcode, vec![b'x'; 750]).fin(false))
                .send(Frame::continuation(vec![b'y'; 750]).fin(false))
                .send(Frame::continuation("z").fin(false))
        });
        section.both(
            format!("opcode {opcode}: fragments that add up to more than 64 bits"),
            Fails(1009),
            |wire| {
                wire.send(Frame::new(opcode, "x").fin(false))
                    .send(Frame::continuation("").fin(false).length(Length::Bits64((1 << 63) - 1)))
            },
        );
    }
    section.both("messages do not add up", Open, |wire| {
        wire.times(50, |wire, _| wire.send(Frame::binary(vec![0; 1_000])))
    });
    section.both("control frames do not count", Open, |wire| {
        wire.send(Frame::binary(vec![0; 1_000]).fin(false))
            .times(50, |wire, _| wire.send(Frame::ping([0; 125])))
            .send(Frame::continuation(vec![0; 500]))
    });

    let mut section = table.section("§10.4").limits(|limits| limits.frame_len_max = u64::MAX);
    for len in [64 << 20 | 1, 1 << 40, (1 << 63) - 1] {
        section.both(format!("no bound on frames: {len:#x} announced"), Fails(1009), |wire| {
            wire.send(Frame::binary("").length(Length::Bits64(len)))
        });
    }
    let mut section = table.section("§10.4").limits(|limits| {
        limits.frame_len_max = u64::MAX;
        limits.message_len_max = u64::MAX;
    });
    section.both("no bound at all: 2^63 - 1 announced, nothing is reserved for it", Open, |wire| {
        wire.send(Frame::binary("Hello").length(Length::Bits64((1 << 63) - 1)))
    });
    section.both("no bound at all: the second 2^63 - 1 of a message", Open, |wire| {
        wire.send(Frame::binary("Hello").fin(false))
            .send(Frame::continuation("again").length(Length::Bits64((1 << 63) - 1)))
    });
    let mut section = table.section("§10.4").limits(|limits| {
        limits.frame_len_max = 0;
        limits.message_len_max = 0;
    });
    section.both("a bound of nothing: an empty message", Open, |wire| wire.send(Frame::text("")));
    section.both("a bound of nothing: a byte", Fails(1009), |wire| wire.send(Frame::text("x")));

    let mut section = table.section("§10.4").limits(|limits| limits.fragments_spare = 100);
    for (count, expected) in [(99, Open), (100, Open), (101, Fails(1008))] {
        section.both(format!("{count} empty fragments of 100 without an end"), expected, |wire| {
            wire.send(Frame::text("").fin(false))
                .times(count - 1, |wire, _| wire.send(Frame::continuation("").fin(false)))
        });
        section.both(format!("{count} empty fragments of 100, the last final"), expected, |wire| {
            wire.send(Frame::text("").fin(false))
                .times(count - 2, |wire, _| wire.send(Frame::continuation("").fin(false)))
                .send(Frame::continuation(""))
        });
        section.both(format!("{count} empty fragments of 100, pings between"), expected, |wire| {
            wire.send(Frame::text("").fin(false)).times(count - 1, |wire, _| {
                wire.send(Frame::ping("")).send(Frame::continuation("").fin(false))
            })
        });
    }
    section.both("5,000 fragments that carry something", Open, |wire| {
        wire.send(Frame::text([b'x'; 64]).fin(false))
            .times(5_000, |wire, _| wire.send(Frame::continuation([b'x'; 64]).fin(false)))
            .send(Frame::continuation(""))
    });
    section.both("messages do not add up their fragments", Open, |wire| {
        wire.times(20, |wire, _| {
            wire.send(Frame::text("").fin(false))
                .times(90, |wire, _| wire.send(Frame::continuation("").fin(false)))
                .send(Frame::continuation(""))
        })
    });
    let mut section = table.section("§10.4").limits(|_| {});
    section.both("an endless stream of empty fragments", Fails(1008), |wire| {
        wire.send(Frame::binary("").fin(false))
            .times(20_000, |wire, _| wire.send(Frame::continuation("").fin(false)))
    });
}
