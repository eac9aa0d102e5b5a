//! Scalar validation: the state between two pieces, the ends of a text, and processors without a kernel.
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
//! An incomplete code point is a word with its bytes in order, the first one least significant. None of them is zero, so zero means that
//! there is no incomplete code point.

use super::InvalidUtf8;
use crate::mask;

/// The state after an impossible byte. `FF` begins no code point, so that nothing can follow.
pub(super) const FAILED: u32 = u32::MAX;

/// Bytes that are unmasked before they are validated, so that both passes run in the first-level cache.
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

/// Completes a code point with bytes of `piece`; returns the new state and the number of bytes consumed.
#[inline]
pub(super) fn complete(mut partial: u32, piece: &[u8]) -> Result<(u32, usize), InvalidUtf8> {
    let mut consumed = 0;
    while partial != 0 && consumed < piece.len() {
        partial = step(partial, piece[consumed])?;
        consumed += 1;
    }
    Ok((partial, consumed))
}

/// The incomplete code point at the end of `text`, which is valid except perhaps for its last byte.
///
/// The kernels check a byte against those before it, so they do not detect `C0` as the last byte.
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

/// Validates `text`, which starts at a boundary; returns its incomplete code point.
pub(super) fn validate(text: &[u8]) -> Result<u32, InvalidUtf8> {
    match core::str::from_utf8(text) {
        Ok(_) => Ok(0),
        Err(error) if error.error_len().is_some() => Err(InvalidUtf8),
        Err(error) => Ok(partial_of(&text[error.valid_up_to()..])),
    }
}

/// The state for the bytes of an incomplete code point, at most three.
fn partial_of(bytes: &[u8]) -> u32 {
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
        key = mask::rotated(key, block.len());
        let (state, consumed) = complete(partial, block)?;
        partial = if consumed < block.len() { validate(&block[consumed..])? } else { state };
    }
    Ok(partial)
}
