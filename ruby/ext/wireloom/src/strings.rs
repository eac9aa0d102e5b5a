//! Making Ruby Strings: one copy, straight into the String, with the encoding and the coderange set, so that Ruby never scans
//! what was validated already.

use magnus::rb_sys::FromRawValue;
use magnus::{RString, Value};
use rb_sys::ruby_coderange_type::{
    RUBY_ENC_CODERANGE_7BIT, RUBY_ENC_CODERANGE_BROKEN, RUBY_ENC_CODERANGE_VALID,
};
use rb_sys::{RBasic, VALUE, rb_enc_str_new, rb_str_new, rb_utf8_encoding};

/// A String in `ASCII-8BIT`.
#[inline]
pub(crate) fn binary(bytes: &[u8]) -> RString {
    // SAFETY: pointer and length are a slice's; Ruby copies from it. Only NoMemoryError is raised, which nothing outlives.
    unsafe { rstring(rb_str_new(start(bytes), bytes.len() as _)) }
}

/// A String in UTF-8 of bytes that are known to be valid; `ascii` when they are known to be ASCII too.
#[inline]
pub(crate) fn utf8(text: &str, ascii: bool) -> RString {
    // SAFETY: as for `binary`; the coderange says what `str` guarantees, and `ascii` what the caller does.
    unsafe {
        let string = rb_enc_str_new(start(text.as_bytes()), text.len() as _, rb_utf8_encoding());
        set_coderange(string, ascii);
        rstring(string)
    }
}

/// A String in UTF-8 of bytes that nobody has judged.
#[inline]
pub(crate) fn utf8_unchecked(bytes: &[u8]) -> RString {
    // SAFETY: as for `binary`; Ruby finds the coderange out when it is asked.
    unsafe { rstring(rb_enc_str_new(start(bytes), bytes.len() as _, rb_utf8_encoding())) }
}

/// Where `bytes` begin. An empty slice's pointer may be dangling, which Ruby 3.1 hands on to `memcpy` and hashes.
#[inline]
pub(crate) fn start(bytes: &[u8]) -> *const std::ffi::c_char {
    if bytes.is_empty() { c"".as_ptr() } else { bytes.as_ptr().cast() }
}

/// Tells Ruby that `string`, whose encoding is UTF-8, is valid, and whether it is ASCII.
///
/// # Safety
/// `string` is a live String that is not frozen, and both are true of its bytes.
#[inline]
unsafe fn set_coderange(string: VALUE, ascii: bool) {
    let range = if ascii { RUBY_ENC_CODERANGE_7BIT } else { RUBY_ENC_CODERANGE_VALID };
    let basic = string as *mut RBasic;
    // SAFETY: every String begins with an RBasic, whose flags keep the coderange in two bits: both set mean broken.
    unsafe {
        (*basic).flags = ((*basic).flags & !(RUBY_ENC_CODERANGE_BROKEN as VALUE)) | range as VALUE;
    }
}

/// The same, typed.
///
/// # Safety
/// `value` is a String.
#[inline]
unsafe fn rstring(value: VALUE) -> RString {
    // SAFETY: the caller vouches for it.
    unsafe { RString::from_value(Value::from_raw(value)).unwrap_unchecked() }
}
