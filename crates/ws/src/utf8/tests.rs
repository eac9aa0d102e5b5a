//! Every kernel against `core::str::from_utf8`, which is the reference throughout.

use super::*;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use wireloom_testing::{generator, rounds};

/// The bounds of every range in the table of RFC 3629 §4.
const KINDS: [u8; 21] = [
    0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xec, 0xed, 0xee,
    0xf0, 0xf1, 0xf4, 0xf5,
];

type Outcome = Result<u32, InvalidUtf8>;
/// A name, and what validates a text: `(text, key, whether it is masked)`.
type Kernel = (String, Box<dyn Fn(&mut [u8], u32, bool) -> Outcome>);

const KEY: MaskKey = MaskKey::new([0x11, 0x92, 0x53, 0xe4]);

/// Code points at the ends of each row of the table in RFC 3629 §4.
const EDGES: [&str; 11] = [
    "\0",
    "\u{7f}",
    "\u{80}",
    "\u{7ff}",
    "\u{800}",
    "\u{fff}",
    "\u{d7ff}",
    "\u{e000}",
    "\u{ffff}",
    "\u{10000}",
    "\u{10ffff}",
];

/// Sequences that RFC 3629 §3 and §4 forbid. Only the last byte is impossible.
const IMPOSSIBLE: [&[u8]; 31] = [
    // A continuation where nothing has begun.
    b"\x80",
    b"\xbf",
    // Lead bytes of overlong pairs, and those above F4.
    b"\xc0",
    b"\xc1",
    b"\xf5",
    b"\xf8",
    b"\xff",
    // A lead byte without its continuation: ASCII, another lead byte.
    b"\xc2\x41",
    b"\xdf\xc2",
    b"\xe1\x7f",
    b"\xe1\x80\x41",
    b"\xe1\x80\xe1",
    b"\xf1\x00",
    b"\xf1\x80\x41",
    b"\xf1\x80\xc2",
    b"\xf1\x80\x80\x41",
    b"\xf1\x80\x80\xf1",
    // One continuation too many.
    b"\xc2\x80\x80",
    b"\xe1\x80\x80\x80",
    b"\xf1\x80\x80\x80\x80",
    b"\xed\x9f\xbf\xbf",
    // Overlong.
    b"\xe0\x80",
    b"\xe0\x9f",
    b"\xf0\x80",
    b"\xf0\x8f",
    // Surrogates.
    b"\xed\xa0",
    b"\xed\xb0",
    b"\xed\xbf",
    // Above U+10FFFF.
    b"\xf4\x90",
    b"\xf4\xa0",
    b"\xf4\xbf",
];

/// The result of `std` for a text that starts at a boundary: an error, or the bytes that it leaves incomplete.
fn expect(text: &[u8]) -> Outcome {
    match core::str::from_utf8(text) {
        Ok(_) => Ok(0),
        Err(e) if e.error_len().is_some() => Err(InvalidUtf8),
        Err(e) => {
            let mut partial = [0; 4];
            let rest = &text[e.valid_up_to()..];
            partial[..rest.len()].copy_from_slice(rest);
            Ok(u32::from_le_bytes(partial))
        }
    }
}

/// Every implementation on this machine, each called directly.
fn kernels() -> Vec<Kernel> {
    let mut kernels: Vec<Kernel> = Vec::new();
    kernels.push((
        "scalar".into(),
        Box::new(|text, key, is_masked| {
            if is_masked {
                scalar::unmask_validate(text, key, scalar::validate)
            } else {
                scalar::validate(text)
            }
        }),
    ));
    #[cfg(target_arch = "x86_64")]
    for level in mask::cpu::Level::offered() {
        kernels.push((
            alloc::format!("{level:?}"),
            Box::new(move |text, key, is_masked| {
                if is_masked { x86::unmask_validate(level, text, key) } else { x86::validate(level, text) }
            }),
        ));
    }
    kernels
}

/// Runs every kernel over `text`, plain and masked, and the public functions, and compares them with `std`.
#[track_caller]
fn all_agree(kernels: &[Kernel], text: &[u8], note: &dyn core::fmt::Debug) {
    let expected = expect(text);
    for (name, kernel) in kernels.iter() {
        if text.is_empty() {
            continue;
        }
        let mut copy = text.to_vec();
        assert_eq!(kernel(&mut copy, 0, false), expected, "{name} reading {note:?}: {text:02x?}");
        assert_eq!(copy, text);
        mask::apply(&mut copy, KEY);
        assert_eq!(kernel(&mut copy, KEY.word(), true), expected, "{name} unmasking {note:?}: {text:02x?}");
        if expected.is_ok() {
            assert_eq!(copy, text, "{name} unmasking {note:?}");
        }
    }
    let whole = core::str::from_utf8(text).map_err(|_| InvalidUtf8);
    assert_eq!(super::text(text), whole, "{note:?}: {text:02x?}");
    let mut copy = text.to_vec();
    mask::apply(&mut copy, KEY);
    assert_eq!(unmask_text(&mut copy, KEY), whole, "{note:?}: {text:02x?}");
}

/// Text of at most `len` bytes. Bits 1 to 4 of `lengths` select the lengths of its code points.
fn random_text(rng: &mut fastrand::Rng, len: usize, lengths: u8) -> Vec<u8> {
    let mut text = alloc::string::String::new();
    while text.len() + 4 <= len {
        let max = ['\u{7f}', '\u{7ff}', '\u{ffff}', '\u{10ffff}'];
        let max = max[rng.usize(..4)];
        let c = rng.char('\0'..=max);
        if lengths & 1 << c.len_utf8() != 0 {
            text.push(c);
        }
    }
    text.into_bytes()
}

#[test]
fn every_kernel_agrees_with_std_at_every_length_and_alignment() {
    let kernels = kernels();
    let mut rng = generator();
    let alignments: &[usize] = if cfg!(miri) { &[1] } else { &[0, 1, 2, 3, 4, 15, 31, 32, 61, 62, 63] };
    let lengths = if cfg!(miri) {
        [0, 1, 17, 70].to_vec()
    } else {
        (0..300).chain([511, 512, 700, 4097, 4099]).collect()
    };
    for len in lengths {
        for kinds in [0b00010, 0b00100, 0b01000, 0b10000, 0b11110] {
            // Longer than required, so that truncating it often splits a code point at either end.
            let text = random_text(&mut rng, len + 80, kinds);
            for &align in alignments {
                let Some(cut) = text.get(align..text.len().min(align + len)) else { continue };
                all_agree(&kernels, cut, &(len, align));
            }
        }
    }
}

#[test]
fn the_alignment_does_not_matter() {
    let kernels = kernels();
    let mut rng = generator();
    let lengths =
        if cfg!(miri) { [3, 70].as_slice() } else { &[3, 31, 33, 63, 64, 65, 100, 127, 129, 256, 300, 600] };
    for &len in lengths {
        let text = random_text(&mut rng, len + 3, 0b11110);
        for at in 0..if cfg!(miri) { 2 } else { 64 } {
            for wrong in [None, Some(0), Some(text.len() / 2), Some(text.len() - 1)] {
                let mut text = text.clone();
                if let Some(i) = wrong {
                    text[i] = 0xff;
                }
                let mut buffer = [0xff].repeat(at + text.len() + 70);
                for (name, kernel) in kernels.iter() {
                    let place = &mut buffer[at..at + text.len()];
                    place.copy_from_slice(&text);
                    assert_eq!(kernel(place, 0, false), expect(&text), "{name}, {len} at {at}");
                    mask::apply(place, KEY);
                    assert_eq!(kernel(place, KEY.word(), true), expect(&text), "{name}, {len} at {at}");
                    assert!(wrong.is_some() || *place == *text);
                    assert!(buffer[..at].iter().chain(&buffer[at + text.len()..]).all(|&byte| byte == 0xff));
                }
            }
        }
    }
}

#[test]
fn detects_every_impossible_byte_at_every_offset_in_a_register() {
    // RFC 3629 §3: implementations MUST protect against decoding invalid sequences.
    let kernels = kernels();
    let len = if cfg!(miri) { 70 } else { 330 };
    for fill in ["a", "\u{e9}", "\u{20ac}", "\u{1f600}"] {
        for wrong in IMPOSSIBLE {
            let (begun, last) = wrong.split_at(wrong.len() - 1);
            for at in (0..len).step_by(fill.len()).step_by(if cfg!(miri) { 29 } else { 1 }) {
                let mut text: Vec<u8> = fill.bytes().cycle().take(at).collect();
                text.extend_from_slice(begun);
                assert!(expect(&text).is_ok());
                all_agree(&kernels, &text, &("just before", wrong, at));
                text.extend_from_slice(last);
                assert_eq!(expect(&text), Err(InvalidUtf8));
                all_agree(&kernels, &text, &("at the end", wrong, at));
                text.extend(fill.bytes().cycle().take(len / fill.len() * fill.len()));
                all_agree(&kernels, &text, &("within", wrong, at));
            }
        }
    }
}

#[test]
fn detects_texts_that_end_within_a_code_point_at_every_offset() {
    let kernels = kernels();
    for edge in EDGES {
        for cut in 1..edge.len() {
            for at in 0..if cfg!(miri) { 3 } else { 200 } {
                let mut text = [b'a'].repeat(at);
                text.extend_from_slice(&edge.as_bytes()[..cut]);
                all_agree(&kernels, &text, &(edge, cut, at));
                assert_eq!(validate(&text), Err(InvalidUtf8));
                // Then ASCII, in the next register or in this one.
                text.extend_from_slice(&[b'a'; 300][..if cfg!(miri) { 20 } else { 300 }]);
                all_agree(&kernels, &text, &("then ASCII", edge, cut, at));
            }
        }
    }
}

/// Every pair of bytes and what may follow it, and every four bytes of one kind each; in the middle of a register, at its
/// end and at its start.
#[test]
fn agrees_with_std_on_all_short_sequences() {
    let kernels = kernels();
    let compare = |sequence: [u8; 4]| {
        let mut text = [b'.'; 34];
        text[14..18].copy_from_slice(&sequence);
        for range in [0..34, 0..18, 14..34] {
            let expected = expect(&text[range.clone()]);
            for (name, kernel) in kernels.iter() {
                let outcome = kernel(&mut text[range.clone()], 0, false);
                assert_eq!(outcome, expected, "{name}: {sequence:02x?} in {range:?}");
            }
        }
    };
    let sparse = if cfg!(miri) { 9_001 } else { 1 };
    for pair in (0..=u16::MAX).step_by(sparse) {
        let [first, second] = pair.to_be_bytes();
        for (third, fourth) in [(b'.', b'.'), (0x80, b'.'), (0x80, 0x80)] {
            compare([first, second, third, fourth]);
        }
    }
    for n in (0..KINDS.len().pow(4)).step_by(sparse) {
        compare([n / 9261, n / 441, n / 21, n].map(|i| KINDS[i % 21]));
    }
}

/// Every sequence of two bytes, and every kind of third, through the scalar automaton and the public door.
#[test]
fn the_validator_fails_in_the_piece_that_holds_the_first_impossible_byte() {
    // RFC 6455 §8.1 fails the connection on invalid text; RFC 3629 §4 defines the first impossible byte.
    let firsts = if cfg!(miri) { 0xed..=0xed } else { 0..=255 };
    let seconds = if cfg!(miri) { 0x9e..=0xa1 } else { 0..=255 };
    for first in firsts {
        for second in seconds.clone() {
            for third in KINDS {
                let text = [first, second, third];
                let mut validator = Validator::new();
                for end in 1..=text.len() {
                    let (expected, got) = (expect(&text[..end]), validator.push(&text[end - 1..end]));
                    assert_eq!(got, expected.map(drop), "{:02x?}", &text[..end]);
                    assert_eq!(validator.is_boundary(), expected == Ok(0), "{:02x?}", &text[..end]);
                }
                assert_eq!(validator.finish(), validate(&text), "{text:02x?}");
                assert_eq!(validator.finish(), Ok(()), "reset");
            }
        }
    }
}

#[test]
fn every_code_point_passes_and_each_of_its_prefixes_is_incomplete() {
    let step = if cfg!(miri) { 40_009 } else { 1 };
    for c in ('\0'..=char::MAX).step_by(step) {
        let mut bytes = [0; 4];
        let bytes = c.encode_utf8(&mut bytes).as_bytes();
        let mut validator = Validator::new();
        for (i, byte) in bytes.iter().enumerate() {
            assert_eq!(validator.push(&[*byte]), Ok(()), "{c:?}");
            assert_eq!(validator.is_boundary(), i + 1 == bytes.len(), "{c:?}");
        }
        assert_eq!(validator.finish(), Ok(()), "{c:?}");
    }
}

#[test]
fn fails_after_an_error_until_finish() {
    let mut validator = Validator::new();
    assert_eq!(validator.push(b"\xc0"), Err(InvalidUtf8));
    assert_eq!(validator.push(b"fine"), Err(InvalidUtf8));
    assert_eq!(validator.push(b"\x80"), Err(InvalidUtf8));
    assert_eq!(validator.push_masked(&mut [b'a'; 300], KEY), Err(InvalidUtf8));
    assert_eq!(validator.push(b""), Ok(()), "no byte, no error");
    assert!(!validator.is_boundary());
    assert_eq!(validator.finish(), Err(InvalidUtf8));
    assert_eq!(validator.push(b"fine"), Ok(()));
    assert_eq!(validator.finish(), Ok(()));
}

#[test]
fn random_splits_do_not_change_the_result() {
    rounds(if cfg!(miri) { 5 } else { 6_000 }, |rng| {
        let len = rng.usize(..if cfg!(miri) { 300 } else { 1800 });
        let kinds = rng.u8(..) & 0b11110 | 0b00010;
        let mut text = random_text(rng, len, kinds);
        if !text.is_empty() && rng.bool() {
            let at = rng.usize(..text.len());
            text[at] = rng.u8(..);
        }
        let first_wrong = core::str::from_utf8(&text)
            .err()
            .and_then(|e| e.error_len().map(|_| (0..=text.len()).find(|&end| expect(&text[..end]).is_err())))
            .flatten();
        let longest = [3, 20, 400, 2000][rng.usize(..4)];
        let mut masked = text.clone();
        mask::apply(&mut masked, KEY);
        let (mut plain, mut fused, mut key, mut at) = (Validator::new(), Validator::new(), KEY, 0);
        while at < text.len() {
            let end = (at + rng.usize(..=longest)).min(text.len());
            let expected =
                if first_wrong.is_some_and(|wrong| wrong <= end) { Err(InvalidUtf8) } else { Ok(()) };
            assert_eq!(plain.push(&text[at..end]), expected, "{at}..{end}");
            let next = fused.push_masked(&mut masked[at..end], key);
            assert_eq!(next.map(drop), expected, "{at}..{end}");
            if expected.is_err() {
                break;
            }
            assert_eq!(masked[at..end], text[at..end], "{at}..{end}");
            assert_eq!((plain.is_boundary(), fused.is_boundary()), {
                let boundary = expect(&text[..end]) == Ok(0);
                (boundary, boundary)
            });
            key = key.advanced(end - at);
            at = end;
        }
        let expected = core::str::from_utf8(&text).map(drop).map_err(|_| InvalidUtf8);
        assert_eq!((plain.finish(), fused.finish()), (expected, expected));
    });
}

// The same sequences as above byte by byte and at the end of a text, in little time.
#[test]
fn rejects_each_impossible_byte_where_it_arrives() {
    for sequence in IMPOSSIBLE {
        let (mut plain, mut masked, mut key) = (Validator::new(), Validator::new(), KEY);
        for (i, &byte) in sequence.iter().enumerate() {
            let expected = if i + 1 == sequence.len() { Err(InvalidUtf8) } else { Ok(()) };
            assert_eq!(plain.push(&[byte]), expected, "{sequence:02x?}");
            let next = masked.push_masked(&mut [byte ^ key.bytes()[0]], key);
            assert_eq!(next.map(drop), expected, "{sequence:02x?}");
            key = key.advanced(1);
        }
    }
    let kernels = kernels();
    for len in if cfg!(miri) { 70..71 } else { 60..70 } {
        for sequence in IMPOSSIBLE {
            let text = [&vec![b'a'; len][..], "ß".as_bytes(), sequence].concat();
            all_agree(&kernels, &text, &len);
        }
    }
    let mut text = *b"valid";
    mask::apply(&mut text, KEY);
    assert_eq!((unmask_validate(&mut text, KEY), &text), (Ok(()), b"valid"));
    let mut text = *b"\xffalid";
    mask::apply(&mut text, KEY);
    assert_eq!(unmask_validate(&mut text, KEY), Err(InvalidUtf8));
}

// In ASCII and not, at some alignments: the bytes behind the text are not valid.
#[test]
fn reads_and_writes_nothing_behind_the_text() {
    let kernels = kernels();
    let lens = if cfg!(miri) { 70..71 } else { 64..400 };
    for len in lens.step_by(3) {
        for (text, at) in [("a".repeat(len), 0), ("a".repeat(len), 5), ("ß".repeat(len / 2), 33)] {
            let mut buffer = vec![0xFF; at + text.len() + 512];
            let range = at..at + text.len();
            for (name, kernel) in kernels.iter() {
                for is_masked in [false, true] {
                    buffer[range.clone()].copy_from_slice(text.as_bytes());
                    if is_masked {
                        mask::apply(&mut buffer[range.clone()], KEY);
                    }
                    let result = kernel(&mut buffer[range.clone()], KEY.word(), is_masked);
                    assert_eq!(result, Ok(0), "{name}, {len} bytes at {at}");
                    assert_eq!(&buffer[range.clone()], text.as_bytes());
                    assert!(
                        buffer[range.end..].iter().all(|&byte| byte == 0xFF),
                        "{name}, {len} bytes at {at}"
                    );
                }
            }
        }
    }
}

// The scalar kernel unmasks 4,096 bytes at a time; the last block may be the middle of a code point.
#[test]
fn keeps_an_incomplete_code_point_across_blocks() {
    let kernels = kernels();
    for ascii in 4090..4098 {
        for len in 1..=4 {
            let text = [&vec![b'a'; ascii][..], &"\u{1f600}".as_bytes()[..len]].concat();
            all_agree(&kernels, &text, &(ascii, len));
        }
    }
}
