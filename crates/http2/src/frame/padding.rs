//! Padding of DATA, HEADERS and PUSH_PROMISE (RFC 9113 §6.1).
//!
//! ```text
//! |Pad Length? (8)|  content of the frame  |Padding (Pad Length * 8)|
//! ```

use alloc::vec::Vec;

use super::{Flags, FrameHeader};
use crate::error::Violation;

/// Removes the padding. Returns its length, if the frame is padded, and the content. `too_short` is the violation if the payload
/// has no byte for the length.
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
    // are not checked, which §6.1 leaves to the receiver.
    match rest.len().checked_sub(usize::from(padding)) {
        Some(len) => Ok((Some(padding), &rest[..len])),
        None => Err(Violation::PaddingTooLong),
    }
}

/// The number of bytes that padding adds, including the byte of its length.
pub(super) const fn len(padding: Option<u8>) -> usize {
    match padding {
        Some(len) => 1 + len as usize,
        None => 0,
    }
}

/// Appends the length of the padding.
pub(super) fn encode_len(padding: Option<u8>, out: &mut Vec<u8>) {
    out.extend(padding);
}

/// Appends the padding, which is zeros (RFC 9113 §6.1).
pub(super) fn encode(padding: Option<u8>, out: &mut Vec<u8>) {
    if let Some(len) = padding {
        out.resize(out.len() + usize::from(len), 0);
    }
}
