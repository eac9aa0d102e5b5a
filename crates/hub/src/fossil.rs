//! Deltas in the format of the Fossil version control system, which clients of the Centrifugal protocol understand.
//!
//! ```text
//! LEN '\n'  ( LEN '@' FROM ','  |  LEN ':' bytes )*  CHECKSUM ';'
//!   |           copied from the base     literal         |
//!   of the target                                    of the target
//! ```
//!
//! Numbers have digits of base 64. See <https://fossil-scm.org/home/doc/trunk/www/delta_format.wiki>.

const DIGITS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz~";

/// The base is indexed in blocks of this length.
const BLOCK_LEN: usize = 16;

/// The number of slots of the table that are tried for a block.
const PLACES: usize = 4;

/// The delta from `base` to `target`; `None` when it is not shorter than `target`. If both are texts, the delta is a
/// text.
///
/// Takes time and memory proportional to the lengths, whatever the bytes are.
pub(crate) fn delta(base: &[u8], target: &[u8]) -> Option<Vec<u8>> {
    let blocks = Blocks::new(base)?;
    let is_text = std::str::from_utf8(target).is_ok();
    let mut delta = Vec::new();
    push_number(&mut delta, target.len());
    delta.push(b'\n');
    let (mut at, mut written) = (0, 0);
    while let Some(block) = target.get(at..).and_then(|rest| rest.first_chunk()) {
        let copy =
            blocks.find(block).map(|from| Copy { from, at, len: BLOCK_LEN }.grow(base, target, written));
        let copy = copy.map(|copy| if is_text { copy.trim_to_chars(target) } else { copy });
        match copy {
            // A shorter copy would save nothing.
            Some(copy) if copy.len >= BLOCK_LEN => {
                push_literal(&mut delta, &target[written..copy.at]);
                push_number(&mut delta, copy.len);
                delta.push(b'@');
                push_number(&mut delta, copy.from);
                delta.push(b',');
                at = copy.at + copy.len;
                written = at;
            }
            _ => at += 1,
        }
        if delta.len() >= target.len() {
            return None;
        }
    }
    push_literal(&mut delta, &target[written..]);
    push_number(&mut delta, checksum(target) as usize);
    delta.push(b';');
    (delta.len() < target.len()).then_some(delta)
}

/// The blocks of a base, by their bytes.
struct Blocks<'a> {
    base: &'a [u8],
    /// Numbers of blocks, from 1, in a slot for their hash; 0 is an empty slot. Blocks without a free slot are not
    /// used.
    table: Vec<u32>,
}

impl<'a> Blocks<'a> {
    /// `None` for a base that is too short to be worth a delta, or longer than 4 GiB.
    fn new(base: &'a [u8]) -> Option<Self> {
        let count = u32::try_from(base.len() / BLOCK_LEN).ok().filter(|count| *count > 0)?;
        let mut blocks = Self { base, table: vec![0; (count as usize * 2).next_power_of_two() + PLACES] };
        for (block, number) in base.as_chunks().0.iter().zip(1..=count) {
            let place = blocks.place(block);
            let entry = blocks.table[place..place + PLACES].iter_mut().find(|entry| **entry == 0);
            entry.into_iter().for_each(|entry| *entry = number);
        }
        Some(blocks)
    }

    /// The position of this block in the base.
    fn find(&self, block: &[u8; BLOCK_LEN]) -> Option<usize> {
        let place = self.place(block);
        let numbers = self.table[place..place + PLACES].iter().take_while(|number| **number > 0);
        let mut found = numbers.map(|number| (*number as usize - 1) * BLOCK_LEN);
        found.find(|from| self.base[*from..].first_chunk() == Some(block))
    }

    /// The first slot of a block.
    fn place(&self, block: &[u8; BLOCK_LEN]) -> usize {
        let bits = (self.table.len() - PLACES).trailing_zeros();
        let bytes = u128::from_le_bytes(*block);
        let folded = bytes as u64 ^ ((bytes >> 64) as u64).rotate_left(29);
        // The multiplier is 2^64 divided by the golden ratio: the product spreads every bit over the highest ones.
        (folded.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - bits)) as usize
    }
}

/// A part of the target that also occurs in the base.
struct Copy {
    /// Where it begins in the base, and in the target.
    from: usize,
    at: usize,
    len: usize,
}

impl Copy {
    /// Extends it in both directions, but not over bytes that are already written.
    fn grow(self, base: &[u8], target: &[u8], written: usize) -> Self {
        let before = base[..self.from].iter().rev().zip(target[written..self.at].iter().rev());
        let before = before.take_while(|(base, target)| base == target).count();
        let after = base[self.from + self.len..].iter().zip(&target[self.at + self.len..]);
        let after = after.take_while(|(base, target)| base == target).count();
        Self { from: self.from - before, at: self.at - before, len: before + self.len + after }
    }

    /// Shrinks it to whole characters, so that no literal contains a part of one.
    fn trim_to_chars(mut self, target: &[u8]) -> Self {
        let is_inside_char = |at: usize| target.get(at).is_some_and(|byte| byte & 0xC0 == 0x80);
        while self.len > 0 && is_inside_char(self.at) {
            self.from += 1;
            self.at += 1;
            self.len -= 1;
        }
        while self.len > 0 && is_inside_char(self.at + self.len) {
            self.len -= 1;
        }
        self
    }
}

fn push_literal(delta: &mut Vec<u8>, bytes: &[u8]) {
    if !bytes.is_empty() {
        push_number(delta, bytes.len());
        delta.push(b':');
        delta.extend_from_slice(bytes);
    }
}

fn push_number(delta: &mut Vec<u8>, number: usize) {
    let digits = (usize::BITS - number.leading_zeros()).div_ceil(6).max(1);
    delta.extend((0..digits).rev().map(|digit| DIGITS[number >> (6 * digit) & 63]));
}

/// The sum of the big-endian words of four bytes; the last is filled up with zeros.
fn checksum(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    words.iter().chain([&last]).fold(0, |sum, word| sum.wrapping_add(u32::from_be_bytes(*word)))
}

/// The longest target that [`apply`] makes: a short delta can copy its base many times.
#[cfg(any(feature = "client", test))]
const TARGET_LEN_MAX: usize = 64 << 20;

/// Applies a delta; `None` if it is malformed, or not one from this base.
#[cfg(any(feature = "client", test))]
pub(crate) fn apply(base: &[u8], mut delta: &[u8]) -> Option<Vec<u8>> {
    fn number(delta: &mut &[u8]) -> Option<usize> {
        let digit = |byte: &u8| DIGITS.iter().position(|digit| digit == byte);
        let digits: Vec<_> = delta.iter().map_while(digit).collect();
        *delta = &delta[digits.len()..];
        digits.into_iter().try_fold(0_usize, |number, digit| number.checked_mul(64)?.checked_add(digit))
    }
    fn take<'a>(delta: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = delta.split_at_checked(len)?;
        *delta = rest;
        Some(taken)
    }
    let len = number(&mut delta).filter(|len| *len <= TARGET_LEN_MAX)?;
    if take(&mut delta, 1)? != b"\n" {
        return None;
    }
    let mut target = Vec::new();
    loop {
        let before = number(&mut delta)?;
        let part = match take(&mut delta, 1)? {
            b":" => take(&mut delta, before)?,
            b"@" => {
                let from = number(&mut delta)?;
                let end = from.checked_add(before)?;
                if take(&mut delta, 1)? != b"," {
                    return None;
                }
                base.get(from..end)?
            }
            b";" => {
                let is_whole =
                    target.len() == len && delta.is_empty() && before == checksum(&target) as usize;
                return is_whole.then_some(target);
            }
            _ => return None,
        };
        if target.len() + part.len() > len {
            return None;
        }
        target.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wireloom_testing::rng::{Rng, rounds};

    #[test]
    fn describes_the_change_of_a_text() {
        let base = b"{\"price\": 100, \"name\": \"a name that stays as it is\"}";
        let target = b"{\"price\": 2345, \"name\": \"a name that stays as it is\"}";
        let delta = delta(base, target).unwrap();
        // 53 bytes: 14 of them new, 39 from the base at 13.
        assert_eq!(delta[..22], *b"q\nE:{\"price\": 2345c@D,");
        assert_eq!(apply(base, &delta).unwrap(), target);
    }

    #[test]
    fn refuses_malformed_deltas() {
        let base = b"0123456789abcdef";
        let good = delta(base, b"0123456789abcdef!").unwrap();
        assert!(apply(base, &good).is_some() && apply(b"another base, as long", &good).is_none());
        for len in 0..good.len() {
            assert_eq!(apply(base, &good[..len]), None, "{len}");
        }
        // Out of the base, longer than announced, longer than allowed, too large for a number.
        for bad in [
            "4\n4@F,0;",
            "4\n5:01234;",
            "~~~~~\n",
            "~~~~~~~~~~~~\n",
            "4\n~~~~~~~~~~~@0,0;",
            "4\n4:\u{fc}\u{fc};",
            "1\n1?0",
        ] {
            assert_eq!(apply(base, bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn has_the_checksum_of_the_format() {
        assert_eq!(checksum(b""), 0);
        assert_eq!(checksum(b"\x01"), 0x0100_0000);
        assert_eq!(checksum(b"\x00\x00\x00\x01\x00\x00\x00\x02\xff\xff\xff"), 0xffff_ff03);
        assert_eq!(checksum(&[0xff; 8]), 0xffff_fffe);
    }

    #[test]
    fn writes_numbers_of_every_length() {
        for (number, digits) in
            [(0, "0"), (9, "9"), (63, "~"), (64, "10"), (4095, "~~"), (0xffff_ffff, "3~~~~~")]
        {
            let mut written = Vec::new();
            push_number(&mut written, number);
            assert_eq!(written, digits.as_bytes(), "{number}");
        }
    }

    #[test]
    fn is_not_longer_than_the_target() {
        assert_eq!(delta(b"", b"target"), None);
        assert_eq!(delta(&[1; 100], b""), None);
        assert_eq!(delta(&[1; 100], &[2; 100]), None);
        assert_eq!(delta(&[1; 15], &[1; 15]), None);
        assert!(delta(&[1; 16], &[1; 16]).is_some_and(|delta| delta.len() < 16));
    }

    #[test]
    fn ends_soon_where_every_block_is_the_same() {
        let (base, target) = (vec![b'a'; 1 << 20], [&[b'a'; 1 << 19][..], b"b", &[b'a'; 1 << 19]].concat());
        let delta = delta(&base, &target).unwrap();
        assert!(delta.len() < 40, "{}", delta.len());
        assert_eq!(apply(&base, &delta).unwrap(), target);
    }

    #[test]
    fn leads_from_any_base_to_any_target() {
        rounds(300, |rng| {
            let is_text = rng.bool();
            let part = |rng: &mut Rng| -> Vec<u8> {
                let len = rng.usize(..60);
                if is_text {
                    (0..len).map(|_| ['a', 'ß', '中', '😀'][rng.usize(..4)]).collect::<String>().into()
                } else {
                    (0..len).map(|_| rng.u8(..3)).collect()
                }
            };
            let parts: Vec<_> = (0..rng.usize(1..8)).map(|_| part(rng)).collect();
            let base: Vec<u8> = parts.concat();
            let mut changed = parts;
            for _ in 0..rng.usize(..4) {
                let at = rng.usize(..changed.len());
                match rng.u8(..3) {
                    0 => changed[at] = part(rng),
                    1 => changed.insert(at, part(rng)),
                    _ => changed.rotate_left(at),
                }
            }
            let target: Vec<u8> = changed.concat();
            if let Some(delta) = delta(&base, &target) {
                assert!(delta.len() < target.len());
                assert_eq!(apply(&base, &delta).unwrap(), target);
                assert!(!is_text || std::str::from_utf8(&delta).is_ok(), "{}", delta.escape_ascii());
            }
        });
    }
}
