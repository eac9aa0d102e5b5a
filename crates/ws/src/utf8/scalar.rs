//! UTF-8 byte by byte: the state between two pieces, the ends of a text, and every processor without a kernel.
//!
//! ```text
//! RFC 3629 §4             first   second          then
//!   UTF8-1                00-7F
//!   UTF8-2                C2-DF   80-BF
//!   UTF8-3                E0      A0-BF           80-BF        80-9F would be overlong
//!                         E1-EC   80-BF           80-BF
//!                         ED      80-9F           80-BF        A0-BF would be a surrogate
//!                         EE-EF   80-BF           80-BF
//!   UTF8-4                F0      90-BF           80-BF 80-BF  80-8F would be overlong
//!                         F1-F3   80-BF           80-BF 80-BF
//!                         F4      80-8F           80-BF 80-BF  90-BF would be above U+10FFFF
//! ```
//!
//! A code point that has begun is a word with its bytes in order, the first one least significant. None of them is
//! zero, so zero means that none has begun.

use super::InvalidUtf8;
use crate::mask;

/// The state after an impossible byte. `FF` begins no code point, so that nothing can follow.
pub(super) const FAILED: u32 = u32::MAX;

/// How many bytes are unmasked before they are validated: both passes run in the first-level cache.
const BLOCK: usize = 4096;

/// The state after the first byte of a code point that has more.
#[cfg(target_arch = "x86_64")]
fn begin(lead: u8) -> Result<u32, InvalidUtf8> {
    if matches!(lead, 0xc2..=0xf4) { Ok(lead.into()) } else { Err(InvalidUtf8) }
}

/// Adds a byte to an incomplete code point.
fn step(partial: u32, byte: u8) -> Result<u32, InvalidUtf8> {
    let [lead, second, third, _] = partial.to_le_bytes();
    let (low, high) = match (lead, second) {
        // RFC 3629 §4: five lead bytes narrow the byte after them.
        (0xe0, 0) => (0xa0, 0xbf),
        (0xed, 0) => (0x80, 0x9f),
        (0xf0, 0) => (0x90, 0xbf),
        (0xf4, 0) => (0x80, 0x8f),
        (0xc2..=0xf4, _) => (0x80, 0xbf),
        _ => return Err(InvalidUtf8),
    };
    if !(low..=high).contains(&byte) {
        return Err(InvalidUtf8);
    }
    let (len, whole) = (
        if second == 0 {
            2
        } else if third == 0 {
            3
        } else {
            4
        },
        length(lead),
    );
    Ok(if len == whole { 0 } else { partial | u32::from(byte) << (8 * (len - 1)) })
}

/// The length of the code point that this byte begins.
fn length(lead: u8) -> u32 {
    match lead {
        0x00..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0.. => 4,
    }
}

/// Completes a code point that has begun, as far as `piece` goes; returns its state and how many bytes it took.
#[inline]
pub(super) fn settle(mut partial: u32, piece: &[u8]) -> Result<(u32, usize), InvalidUtf8> {
    let mut taken = 0;
    while partial != 0 && taken < piece.len() {
        partial = step(partial, piece[taken])?;
        taken += 1;
    }
    Ok((partial, taken))
}

/// The code point that has begun at the end of `text`, in which nothing else is wrong than perhaps its last byte.
///
/// The kernels check a byte against those before it: they find that `C0` was wrong only when another byte follows.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn ending(text: &[u8]) -> Result<u32, InvalidUtf8> {
    let mut from_end = text.iter().rev().copied();
    let mut next = || from_end.next().unwrap_or(0);
    let last = next();
    if last < 0x80 {
        return Ok(0);
    }
    if last >= 0xc0 {
        return begin(last);
    }
    let second = next();
    if second >= 0xe0 {
        return Ok(u32::from_le_bytes([second, last, 0, 0]));
    }
    let third = next();
    if second < 0xc0 && third >= 0xf0 {
        return Ok(u32::from_le_bytes([third, second, last, 0]));
    }
    Ok(0)
}

/// Validates `text`, which starts at a boundary; returns what it leaves incomplete.
pub(super) fn validate(text: &[u8]) -> Result<u32, InvalidUtf8> {
    match core::str::from_utf8(text) {
        Ok(_) => Ok(0),
        Err(error) if error.error_len().is_some() => Err(InvalidUtf8),
        Err(error) => Ok(settle_all(&text[error.valid_up_to()..])),
    }
}

/// The bytes of a code point that has begun, at most three, as a state.
fn settle_all(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |partial, byte| partial << 8 | u32::from(*byte))
}

/// Unmasks `text`, which starts at a boundary, block by block, and validates each block while it is in cache.
pub(super) fn unmask_validate(
    text: &mut [u8],
    mut key: u32,
    validate: impl Fn(&[u8]) -> Result<u32, InvalidUtf8>,
) -> Result<u32, InvalidUtf8> {
    let mut partial = 0;
    for block in text.chunks_mut(BLOCK) {
        if block.len() < mask::SHORT {
            mask::apply_short(block, key);
        } else {
            mask::apply_long(block, key);
        }
        key = mask::turned(key, block.len());
        let (state, settled) = settle(partial, block)?;
        partial = if settled < block.len() { validate(&block[settled..])? } else { state };
    }
    Ok(partial)
}
