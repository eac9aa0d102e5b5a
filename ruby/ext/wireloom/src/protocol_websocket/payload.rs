//! Payloads as Ruby Strings: masking, and text.

use magnus::encoding::EncodingCapable;
use magnus::prelude::*;
use magnus::{Error, RString, Ruby};
use wireloom_ws::mask::{self as kernel, MaskKey};
use wireloom_ws::utf8;

use crate::exclusive::{DETACHED_UNMASK_LEN, without_gvl};
use crate::strings;

/// `mask(data, mask)`: `data` in a new String of its encoding, each byte XORed with that of `mask`, whose bytes
/// are four (RFC 6455 §5.3) or, as in the original, any other number.
pub(super) fn mask(ruby: &Ruby, data: RString, mask: RString) -> Result<RString, Error> {
    let masked = strings::uninitialized(ruby, data.len());
    // SAFETY: the String was made just now; no Ruby code runs while the slices are in use.
    let (bytes, data_bytes, key) = unsafe { (strings::contents(masked), data.as_slice(), mask.as_slice()) };
    match *key {
        [a, b, c, d] => drop(kernel::copy(bytes, data_bytes, MaskKey::new([a, b, c, d]))),
        [] => return Err(Error::new(ruby.exception_arg_error(), "Zero-length mask given!")),
        _ => {
            for ((byte, data), key) in bytes.iter_mut().zip(data_bytes).zip(key.iter().cycle()) {
                *byte = data ^ key;
            }
        }
    }
    strings::keep(data);
    strings::keep(mask);
    if data.enc_get() != masked.enc_get() {
        masked.enc_set(data.enc_get())?;
    }
    Ok(masked)
}

/// `text(buffer)`: `buffer` as UTF-8, or `nil` when it is not. The same String, unless that is frozen.
pub(super) fn text(ruby: &Ruby, buffer: RString) -> Result<Option<RString>, Error> {
    let buffer = if buffer.is_frozen() {
        // SAFETY: no Ruby code runs while the bytes are copied.
        let copy = strings::binary(ruby, unsafe { buffer.as_slice() });
        strings::keep(buffer);
        copy
    } else {
        buffer
    };
    // SAFETY: no Ruby code runs while the slice is in use, nor until the encoding is set, and the String is not frozen.
    unsafe {
        let valid = utf8::text(buffer.as_slice()).map(str::is_ascii).ok();
        strings::associate_utf8(buffer, valid);
        Ok(valid.map(|_| buffer))
    }
}

/// The message of a frame that holds all of it; `None` for text that is not UTF-8. `payload` is reused when it is `fresh`:
/// made here, so that no code of Ruby has seen it. A long one is unmasked without the GVL if it `may_detach`.
#[inline]
pub(super) fn message(
    ruby: &Ruby,
    payload: RString,
    fresh: bool,
    key: Option<[u8; 4]>,
    is_text: bool,
    may_detach: bool,
) -> Option<RString> {
    let buffer = if fresh {
        payload
    } else {
        // SAFETY: nothing runs in Ruby but the making of a String from the bytes.
        let copy = strings::binary(ruby, unsafe { payload.as_slice() });
        strings::keep(payload);
        copy
    };
    // SAFETY: made here or declared fresh.
    let bytes = unsafe { strings::contents(buffer) };
    let key = key.map(MaskKey::new);
    let content = if may_detach && bytes.len() >= DETACHED_UNMASK_LEN {
        without_gvl(|_| unmask(bytes, key, is_text))
    } else {
        unmask(bytes, key, is_text)
    };
    match content {
        Content::Binary => {}
        Content::Text { is_ascii } => strings::declare_utf8(buffer, is_ascii),
        Content::NotUtf8 => return None,
    }
    Some(buffer)
}

enum Content {
    Binary,
    Text { is_ascii: bool },
    NotUtf8,
}

/// Unmasks a payload in its place, and validates it if it is text. Nothing here touches Ruby.
#[inline]
fn unmask(bytes: &mut [u8], key: Option<MaskKey>, is_text: bool) -> Content {
    if !is_text {
        if let Some(key) = key {
            kernel::apply(bytes, key);
        }
        return Content::Binary;
    }
    let text = match key {
        Some(key) => utf8::unmask_text(bytes, key).map(|text| text.is_ascii()),
        None => utf8::text(bytes).map(str::is_ascii),
    };
    text.map_or(Content::NotUtf8, |is_ascii| Content::Text { is_ascii })
}

/// The key in `mask`.
pub(super) fn key(ruby: &Ruby, mask: RString) -> Result<MaskKey, Error> {
    // SAFETY: copied at once.
    match *unsafe { mask.as_slice() } {
        [a, b, c, d] => Ok(MaskKey::new([a, b, c, d])),
        _ => Err(Error::new(ruby.exception_arg_error(), "a mask has 4 bytes")),
    }
}
