//! Frames that are sent (RFC 6455 §5.2), each written into the String that the socket gets.

use magnus::{RString, Ruby};
use wireloom_ws::frame::HEADER_LEN_MAX;
use wireloom_ws::mask::MaskKey;

use super::frames::{FIN, MASK};
use super::payload;
use crate::strings;

/// A frame whose payload is `code` and `data`; FIN is added to its first byte.
pub(super) fn frame(ruby: &Ruby, first: u8, code: &[u8], data: &[u8], key: Option<MaskKey>) -> RString {
    let len = code.len() + data.len();
    let (head, head_len) = header(first, len, key);
    let out = strings::uninitialized(ruby, head_len + len);
    // SAFETY: `out` was made just now; nothing of Ruby runs while the slice is borrowed.
    let room = unsafe { strings::contents(out) };
    let (room_head, room) = room.split_at_mut(head_len);
    let (room_code, room_data) = room.split_at_mut(code.len());
    room_head.copy_from_slice(&head[..head_len]);
    payload::copy(room_code, code, key);
    payload::copy(room_data, data, key.map(|key| key.advanced(code.len())));
    out
}

/// A frame header and its length.
fn header(first: u8, len: usize, key: Option<MaskKey>) -> ([u8; HEADER_LEN_MAX], usize) {
    let mut head = [0; HEADER_LEN_MAX];
    let masked = if key.is_some() { MASK } else { 0 };
    head[0] = first | FIN;
    let mut end = 2;
    if len < 126 {
        head[1] = masked | len as u8;
    } else if let Ok(len) = u16::try_from(len) {
        head[1] = masked | 126;
        head[2..4].copy_from_slice(&len.to_be_bytes());
        end = 4;
    } else {
        head[1] = masked | 127;
        head[2..10].copy_from_slice(&(len as u64).to_be_bytes());
        end = 10;
    }
    if let Some(key) = key {
        head[end..end + 4].copy_from_slice(&key.bytes());
        end += 4;
    }
    (head, end)
}
