//! Payloads as Ruby Strings: masking, and text.

use magnus::encoding::EncodingCapable;
use magnus::prelude::*;
use magnus::{Error, RString, Ruby, Value};
use wireloom_ws::mask::{self as kernel, MaskKey};
use wireloom_ws::utf8;

use crate::panic::guard;
use crate::strings;

/// `mask(data, mask)`: `data` in a new String of its encoding, each byte XORed with that of `mask`, whose bytes
/// are four (RFC 6455 §5.3) or, as far as this goes, any others.
pub(super) fn mask(ruby: &Ruby, data: RString, mask: RString) -> Result<RString, Error> {
    guard(ruby, || {
        // SAFETY: nothing runs in Ruby between this and the last use of the bytes but the making of a String from them.
        let masked = strings::binary(unsafe { data.as_slice() });
        std::hint::black_box(data);
        // SAFETY: the String was made here, and nobody else has seen it; nothing runs in Ruby while the key is looked at.
        let (bytes, key) = unsafe { (bytes_mut(masked), mask.as_slice()) };
        match *key {
            [a, b, c, d] => drop(kernel::apply(bytes, MaskKey::new([a, b, c, d]))),
            [] => return Err(Error::new(ruby.exception_arg_error(), "Zero-length mask given!")),
            // No frame has such a key; whoever writes one is told there.
            _ => bytes.iter_mut().zip(key.iter().cycle()).for_each(|(byte, key)| *byte ^= key),
        }
        std::hint::black_box(mask);
        if data.enc_get() != masked.enc_get() {
            masked.enc_set(data.enc_get())?;
        }
        Ok(masked)
    })
}

/// `text(buffer)`: `buffer` as UTF-8, or `nil` when it is not. The same String, unless that is frozen.
pub(super) fn text(ruby: &Ruby, buffer: RString) -> Result<Option<RString>, Error> {
    guard(ruby, || {
        let buffer =
            if buffer.is_frozen() { RString::from_value(buffer.funcall("dup", ())?) } else { Some(buffer) };
        let Some(buffer) = buffer else { return Ok(None) };
        // SAFETY: no Ruby runs while the bytes are looked at.
        let valid = utf8::text(unsafe { buffer.as_slice() }).map(str::is_ascii);
        buffer.funcall::<_, _, Value>("force_encoding", (ruby.utf8_encoding(),))?;
        let Ok(ascii) = valid else { return Ok(None) };
        // SAFETY: it is a String, not frozen, now UTF-8, and its bytes were found to be so.
        unsafe { strings::mark_valid(buffer, ascii) };
        Ok(Some(buffer))
    })
}

/// The message of a frame that holds all of it; `None` for text that is not UTF-8. `payload` is reused when it is `fresh`:
/// made here, and seen by nobody.
#[inline]
pub(super) fn message(payload: RString, fresh: bool, key: Option<[u8; 4]>, is_text: bool) -> Option<RString> {
    let buffer = if fresh {
        payload
    } else {
        // SAFETY: nothing runs in Ruby but the making of a String from the bytes.
        let copy = strings::binary(unsafe { payload.as_slice() });
        std::hint::black_box(payload);
        copy
    };
    // SAFETY: made here or declared fresh.
    let bytes = unsafe { bytes_mut(buffer) };
    let key = key.map(MaskKey::new);
    if !is_text {
        if let Some(key) = key {
            kernel::apply(bytes, key);
        }
        return Some(buffer);
    }
    let text = match key {
        Some(key) => utf8::unmask_text(bytes, key).map(|text| text.is_ascii()),
        None => utf8::text(bytes).map(str::is_ascii),
    };
    let ascii = text.ok()?;
    strings::declare_utf8(buffer, ascii);
    Some(buffer)
}

/// The key in `mask`.
pub(super) fn key(ruby: &Ruby, mask: RString) -> Result<MaskKey, Error> {
    // SAFETY: copied at once.
    match *unsafe { mask.as_slice() } {
        [a, b, c, d] => Ok(MaskKey::new([a, b, c, d])),
        _ => Err(Error::new(ruby.exception_arg_error(), "a mask has 4 bytes")),
    }
}

/// The bytes of a String, to be written.
///
/// # Safety
/// The String is not frozen nor shared, and nothing else looks at it while these live.
#[inline]
#[allow(clippy::mut_from_ref)]
unsafe fn bytes_mut<'a>(string: RString) -> &'a mut [u8] {
    use magnus::rb_sys::AsRawValue;
    let raw = string.as_raw();
    // SAFETY: the caller vouches for it; a String has that many bytes there.
    unsafe {
        let len = rb_sys::RSTRING_LEN(raw) as usize;
        if len == 0 {
            return &mut [];
        }
        std::slice::from_raw_parts_mut(rb_sys::RSTRING_PTR(raw) as *mut u8, len)
    }
}
