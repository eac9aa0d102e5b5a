//! Making Ruby Strings: one copy, straight into the String, with the encoding and the coderange set, so that Ruby never scans
//! what was validated already.

use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::{RArray, RString, Value};
use rb_sys::ruby_coderange_type::{
    RUBY_ENC_CODERANGE_7BIT, RUBY_ENC_CODERANGE_BROKEN, RUBY_ENC_CODERANGE_VALID,
};
use rb_sys::{
    RBasic, VALUE, rb_ary_new_from_values, rb_str_buf_new, rb_str_capacity, rb_str_modify_expand, rb_str_new,
    rb_str_set_len, rb_utf8_encindex,
    ruby_encoding_consts::{RUBY_ENCODING_MASK, RUBY_ENCODING_SHIFT},
    ruby_fl_type::RUBY_FL_FREEZE,
};

/// A String in `ASCII-8BIT`.
#[inline]
pub(crate) fn binary(bytes: &[u8]) -> RString {
    // SAFETY: pointer and length are a slice's; Ruby copies from it. Only NoMemoryError is raised, which nothing outlives.
    unsafe { rstring(rb_str_new(start(bytes), bytes.len() as _)) }
}

/// A String in UTF-8 of bytes that are known to be valid; `ascii` when they are known to be ASCII too.
#[inline]
pub(crate) fn utf8(text: &str, ascii: bool) -> RString {
    let string = utf8_unchecked(text.as_bytes());
    declare_valid(string, ascii);
    string
}

/// A String in UTF-8 of bytes that nobody has judged: Ruby finds the coderange out when it is asked.
#[inline]
pub(crate) fn utf8_unchecked(bytes: &[u8]) -> RString {
    let string = binary(bytes);
    // SAFETY: the String was made just now.
    unsafe { set_utf8(string.as_raw()) };
    string
}

/// A String in UTF-8, its coderange set when it is ASCII.
#[inline]
pub(crate) fn utf8_or_ascii(bytes: &[u8]) -> RString {
    let string = utf8_unchecked(bytes);
    if bytes.is_ascii() {
        declare_valid(string, true);
    }
    string
}

/// The same, frozen.
#[inline]
pub(crate) fn utf8_or_ascii_frozen(bytes: &[u8]) -> RString {
    let string = utf8_or_ascii(bytes);
    // SAFETY: a String begins with an RBasic; one that nobody has seen yet needs no more than the flag.
    unsafe { (*(string.as_raw() as *mut RBasic)).flags |= RUBY_FL_FREEZE as VALUE };
    string
}

/// What a String holds at this moment.
///
/// # Safety
/// `string` is a String that outlives `'a` (see [`keep`]), and nothing changes it meanwhile: no Ruby code runs, or it is
/// frozen.
#[inline]
pub(crate) unsafe fn bytes<'a>(string: VALUE) -> &'a [u8] {
    // SAFETY: the caller vouches for the String; pointer and length are its own.
    unsafe {
        std::slice::from_raw_parts(rb_sys::RSTRING_PTR(string).cast(), rb_sys::RSTRING_LEN(string) as usize)
    }
}

/// Keeps `string` alive up to here: who holds only its bytes, which may lie within the object, calls this when done with them.
#[inline]
pub(crate) fn keep(string: impl Into<Option<RString>>) {
    std::hint::black_box(string.into());
}

/// The same bytes as a frozen String: `string` itself when it is frozen.
#[inline]
pub(crate) fn frozen(string: RString) -> RString {
    // SAFETY: a String goes in and comes out; only NoMemoryError is raised.
    unsafe { rstring(rb_sys::rb_str_new_frozen(string.as_raw())) }
}

/// Where `bytes` begin. An empty slice's pointer may be dangling, which Ruby 3.1 hands on to `memcpy` and hashes.
#[inline]
pub(crate) fn start(bytes: &[u8]) -> *const std::ffi::c_char {
    if bytes.is_empty() { c"".as_ptr() } else { bytes.as_ptr().cast() }
}

/// Tells Ruby what was found out about a String in UTF-8.
///
/// # Safety
/// It is UTF-8 by its encoding and not frozen; it is valid, and ASCII as `ascii` says.
#[inline]
pub(crate) unsafe fn mark_valid(string: RString, ascii: bool) {
    // SAFETY: the caller vouches for it.
    unsafe { set_coderange(string.as_raw(), ascii) }
}

/// Makes the encoding UTF-8, as `RB_ENCODING_SET_INLINED` does, which costs no call; the coderange stays.
///
/// # Safety
/// `string` is a live String that nobody else has seen.
#[inline]
unsafe fn set_utf8(string: VALUE) {
    let basic = string as *mut RBasic;
    // SAFETY: every String begins with an RBasic, whose flags keep the number of the encoding; that of UTF-8 fits.
    unsafe {
        let number = (rb_utf8_encindex() as VALUE) << RUBY_ENCODING_SHIFT as u32;
        (*basic).flags = (*basic).flags & !(RUBY_ENCODING_MASK as VALUE) | number;
    }
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

/// A String in `ASCII-8BIT` of `len` bytes, which `write` writes in full.
#[inline]
pub(crate) fn binary_with<T>(len: usize, write: impl FnOnce(&mut [u8]) -> T) -> RString {
    // SAFETY: without a source Ruby makes room and leaves it as it is; only NoMemoryError is raised.
    let string = unsafe { rstring(rb_str_new(std::ptr::null(), len as _)) };
    write_all(string, write);
    string
}

/// A String in UTF-8 of `len` bytes, which `write` writes in full and nobody has judged.
#[inline]
pub(crate) fn utf8_with<T>(len: usize, write: impl FnOnce(&mut [u8]) -> T) -> RString {
    let string = binary_with(len, write);
    // SAFETY: the String was made just now.
    unsafe { set_utf8(string.as_raw()) };
    string
}

#[inline]
fn write_all<T>(string: RString, write: impl FnOnce(&mut [u8]) -> T) {
    // SAFETY: nobody else has the String yet; what `write` is lent may be garbage but is the String's memory.
    unsafe {
        let bytes = string.as_slice();
        write(std::slice::from_raw_parts_mut(bytes.as_ptr().cast_mut(), bytes.len()));
    }
}

/// Tells Ruby that a String in UTF-8 that is this extension's own is valid; `ascii` when it is ASCII.
#[inline]
pub(crate) fn declare_valid(string: RString, ascii: bool) {
    // SAFETY: the caller vouches for it; the String is not frozen.
    unsafe { set_coderange(string.as_raw(), ascii) };
}

/// An empty String in `ASCII-8BIT` with room for `len` bytes.
#[inline]
pub(crate) fn with_capacity(len: usize) -> RString {
    // SAFETY: only NoMemoryError is raised.
    unsafe { rstring(rb_str_buf_new(len as _)) }
}

/// Appends `bytes` to a String that is this extension's own. When it is full it grows by `reserve` of its length, in bytes.
#[inline]
pub(crate) fn append(string: RString, bytes: &[u8], reserve: impl FnOnce(usize) -> usize) {
    make_room(string, bytes.len(), reserve);
    append_with(string, bytes.len(), |room| room.copy_from_slice(bytes));
}

/// Appends `len` bytes, which `write` writes in full, to a String that is this extension's own and has room for them.
///
/// # Panics
/// When it has not.
#[inline]
pub(crate) fn append_with(string: RString, len: usize, write: impl FnOnce(&mut [u8])) {
    let have = string.len();
    // SAFETY: nobody else has the String yet, so it is neither frozen nor shared; that it has room is checked, and what
    // `write` is lent may be garbage but is memory of the String's, which it overwrites.
    unsafe {
        let value = string.as_raw();
        assert!(rb_str_capacity(value) as usize >= have + len, "no room for {len} bytes");
        let end = string.as_slice().as_ptr().cast_mut().add(have);
        write(std::slice::from_raw_parts_mut(end, len));
        rb_str_set_len(value, (have + len) as _);
    }
}

/// Makes room for `len` more bytes in a String that is this extension's own; when it is full it grows by `reserve` of its
/// length, in bytes.
#[inline]
pub(crate) fn make_room(string: RString, len: usize, reserve: impl FnOnce(usize) -> usize) {
    let have = string.len();
    // SAFETY: the String is this extension's own, so neither frozen nor shared.
    unsafe {
        if (rb_str_capacity(string.as_raw()) as usize) < have + len {
            rb_str_modify_expand(string.as_raw(), reserve(have).max(len) as _);
        }
    }
}

/// An Array of `values`.
pub(crate) fn array(values: &[VALUE]) -> RArray {
    // SAFETY: pointer and length are a slice's; Ruby copies from it.
    unsafe {
        RArray::from_value(Value::from_raw(rb_ary_new_from_values(values.len() as _, values.as_ptr())))
            .unwrap_unchecked()
    }
}

/// Makes UTF-8 of a String that is this extension's own and whose bytes `wireloom_ws` has found valid; `ascii` when they are
/// ASCII.
pub(crate) fn declare_utf8(string: RString, ascii: bool) {
    // SAFETY: the caller vouches for it; the String is not frozen.
    unsafe {
        set_utf8(string.as_raw());
        set_coderange(string.as_raw(), ascii);
    }
}
