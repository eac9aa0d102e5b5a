//! §8.1: text that is not UTF-8, wherever it is cut (RFC 3629 §3, §4).

use super::table::Expected::{Closes, Fails, Open};
use super::table::Table;
use wireloom_testing::Frame;

/// Invalid with any continuation.
const IMPOSSIBLE: &[(&str, &[u8])] = &[
    ("a lone 80", &[0x80]),
    ("a lone BF", &[0xBF]),
    ("two lone continuations", &[0x80, 0xBF]),
    ("C0", &[0xC0]),
    ("C1", &[0xC1]),
    ("F5", &[0xF5]),
    ("F8", &[0xF8]),
    ("FC", &[0xFC]),
    ("FE", &[0xFE]),
    ("FF", &[0xFF]),
    ("the byte order of UTF-16", &[0xFE, 0xFF, 0x00, 0x41]),
    ("overlong / in two", &[0xC0, 0xAF]),
    ("overlong / in three", &[0xE0, 0x80, 0xAF]),
    ("overlong / in four", &[0xF0, 0x80, 0x80, 0xAF]),
    ("overlong / in five", &[0xF8, 0x80, 0x80, 0x80, 0xAF]),
    ("overlong / in six", &[0xFC, 0x80, 0x80, 0x80, 0x80, 0xAF]),
    ("overlong NUL in two", &[0xC0, 0x80]),
    ("overlong NUL in three", &[0xE0, 0x80, 0x80]),
    ("overlong NUL in four", &[0xF0, 0x80, 0x80, 0x80]),
    ("the highest overlong of two", &[0xC1, 0xBF]),
    ("the highest overlong of three", &[0xE0, 0x9F, 0xBF]),
    ("the highest overlong of four", &[0xF0, 0x8F, 0xBF, 0xBF]),
    ("the first surrogate", &[0xED, 0xA0, 0x80]),
    ("the last high surrogate", &[0xED, 0xAF, 0xBF]),
    ("the first low surrogate", &[0xED, 0xB0, 0x80]),
    ("the last surrogate", &[0xED, 0xBF, 0xBF]),
    ("a pair of surrogates", &[0xED, 0xA0, 0xBD, 0xED, 0xB8, 0x80]),
    ("U+110000", &[0xF4, 0x90, 0x80, 0x80]),
    ("U+13FFFF", &[0xF4, 0xBF, 0xBF, 0xBF]),
    ("U+1FFFFF", &[0xF7, 0xBF, 0xBF, 0xBF]),
    ("E2 without continuation", &[0xE2, b'a', b'b']),
    ("E2 82 without its third", &[0xE2, 0x82, b'a']),
    ("F0 9F 98 without its fourth", &[0xF0, 0x9F, 0x98, b'a']),
    ("C3 and another lead", &[0xC3, 0xC3, 0xA9]),
    ("E2 82 and another lead", &[0xE2, 0x82, 0xE2, 0x82, 0xAC]),
    ("one continuation too many", &[0xC3, 0xA9, 0xA9]),
    ("F0 9F and a lead of two", &[0xF0, 0x9F, 0xC3, 0xA9]),
];

/// An incomplete code point.
const UNFINISHED: &[(&str, &[u8])] = &[
    ("C3", &[0xC3]),
    ("DF", &[0xDF]),
    ("E0 A0", &[0xE0, 0xA0]),
    ("E2", &[0xE2]),
    ("E2 82", &[0xE2, 0x82]),
    ("ED 9F", &[0xED, 0x9F]),
    ("F0", &[0xF0]),
    ("F0 90", &[0xF0, 0x90]),
    ("F0 9F 98", &[0xF0, 0x9F, 0x98]),
    ("F4 8F BF", &[0xF4, 0x8F, 0xBF]),
];

/// Unusual, but valid.
const VALID: &[(&str, &str)] = &[
    ("NUL", "\0"),
    ("DEL", "\u{7F}"),
    ("the first and last of two", "\u{80}\u{7FF}"),
    ("the first and last of three", "\u{800}\u{FFFF}"),
    ("the first and last of four", "\u{10000}\u{10FFFF}"),
    ("around the surrogates", "\u{D7FF}\u{E000}"),
    ("a byte order mark", "\u{FEFF}x"),
    ("noncharacters", "\u{FFFE}\u{FDD0}\u{1FFFE}"),
    ("the replacement character", "\u{FFFD}"),
    ("kosme", "κόσμε"),
];

pub(crate) fn add_cases(table: &mut Table) {
    let mut section = table.section("§8.1");
    for &(name, bytes) in IMPOSSIBLE {
        section.both(format!("text: {name}"), Fails(1007), |wire| wire.send(Frame::text(bytes)));
        section.both(format!("text: {name}, behind and before letters"), Fails(1007), |wire| {
            wire.send(Frame::text([&[b'a'; 70], bytes, &[b'z'; 70]].concat()))
        });
        section.both(format!("text: {name}, one byte a fragment"), Fails(1007), |wire| {
            wire.send(Frame::text("ok").fin(false))
                .times(bytes.len(), |wire, i| wire.send(Frame::continuation([bytes[i]]).fin(false)))
                .send(Frame::continuation("ok"))
        });
        section.both(format!("text: {name}, in a frame whose rest never comes"), Fails(1007), |wire| {
            let head = if wire.sender == wireloom_ws::Role::Client { 8 } else { 4 };
            wire.send_head(head + bytes.len(), Frame::text([bytes, &[b'z'; 1_000]].concat()))
        });
    }
    for &(name, bytes) in UNFINISHED {
        section.both(format!("text ends within {name}"), Fails(1007), |wire| wire.send(Frame::text(bytes)));
        section.both(format!("long text ends within {name}"), Fails(1007), |wire| {
            wire.send(Frame::text([&[b'a'; 4_000], bytes].concat()))
        });
        section.both(format!("fragments end within {name}"), Fails(1007), |wire| {
            wire.send(Frame::text("").fin(false))
                .times(bytes.len(), |wire, i| wire.send(Frame::continuation([bytes[i]]).fin(false)))
                .send(Frame::continuation(""))
        });
        section.both(format!("a fragment within {name} is not an error yet"), Open, |wire| {
            wire.send(Frame::text(bytes).fin(false))
        });
    }
    for &(name, text) in VALID {
        section.both(format!("text: {name}"), Open, |wire| wire.send(Frame::text(text)));
        section.both(format!("text: {name}, one byte a fragment"), Open, |wire| {
            let bytes = text.as_bytes();
            wire.send(Frame::text("").fin(false))
                .times(bytes.len(), |wire, i| wire.send(Frame::continuation([bytes[i]]).fin(false)))
                .send(Frame::continuation(""))
        });
    }

    let mut section = table.section("§5.5.1");
    for &(name, bytes) in IMPOSSIBLE.iter().chain(UNFINISHED) {
        section
            .both(format!("close reason: {name}"), Fails(1007), |wire| wire.send(Frame::close(1000, bytes)));
    }
    for &(name, text) in VALID {
        section.both(format!("close reason: {name}"), Closes(Some(3000)), |wire| {
            wire.send(Frame::close(3000, text))
        });
    }
}
