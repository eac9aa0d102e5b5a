//! Padding, which DATA, HEADERS and PUSH_PROMISE have in common (RFC 9113 §6.1).
//!
//! ```text
//! |Pad Length? (8)|  what the frame is for  |Padding (Pad Length * 8)|
//! ```

use alloc::vec::Vec;

use super::{Flags, FrameHeader};
use crate::error::Violation;

/// Splits off the padding: its length, if the frame has any, and what is left. `too_short` is the violation when
/// there is no room for the length.
#[inline]
pub(super) fn strip<'a>(
    header: &FrameHeader,
    payload: &'a [u8],
    too_short: Violation,
) -> Result<(Option<u8>, &'a [u8]), Violation> {
    if !header.flags.contains(Flags::PADDED) {
        return Ok((None, payload));
    }
    let Some((&padding, rest)) = payload.split_first() else {
        return Err(too_short);
    };
    // RFC 9113 §6.1: padding as long as the payload or longer is a connection error, PROTOCOL_ERROR. The bytes of the padding
    // holds is not looked at: §6.1 does not oblige to.
    match rest.len().checked_sub(usize::from(padding)) {
        Some(len) => Ok((Some(padding), &rest[..len])),
        None => Err(Violation::PaddingTooLong),
    }
}

/// How many bytes the padding takes, the byte of its length included.
#[inline]
pub(super) const fn len(padding: Option<u8>) -> usize {
    match padding {
        Some(len) => 1 + len as usize,
        None => 0,
    }
}

/// Writes the length of the padding.
#[inline]
pub(super) fn encode_len(padding: Option<u8>, out: &mut Vec<u8>) {
    out.extend(padding);
}

/// Writes the padding: zeros (RFC 9113 §6.1).
#[inline]
pub(super) fn encode(padding: Option<u8>, out: &mut Vec<u8>) {
    if let Some(len) = padding {
        out.resize(out.len() + usize::from(len), 0);
    }
}
