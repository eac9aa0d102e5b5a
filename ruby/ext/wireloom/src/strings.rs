//! Ruby Strings made in one copy, with encoding and coderange set, so that Ruby never scans what was validated already.
//!
//! Functions that allocate take `&Ruby`: they cannot be called from [`Exclusive::with`](crate::exclusive::Exclusive::with), and
//! nothing is borrowed when they raise NoMemoryError.

use std::collections::TryReserveError;

use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::{Error, RString, Ruby, Value};
use rb_sys::ruby_coderange_type::{
    RUBY_ENC_CODERANGE_7BIT, RUBY_ENC_CODERANGE_BROKEN, RUBY_ENC_CODERANGE_VALID,
};
use rb_sys::{
    RBasic, VALUE, rb_str_buf_new, rb_str_capacity, rb_str_modify_expand, rb_str_new, rb_str_set_len,
    rb_utf8_encindex,
};

use crate::guard::protect;
use crate::memory::no_memory;

/// A String in `ASCII-8BIT`.
#[inline]
pub(crate) fn binary(_: &Ruby, bytes: &[u8]) -> RString {
    // SAFETY: pointer and length are a slice's; Ruby copies from it.
    unsafe { rstring(rb_str_new(start(bytes), bytes.len() as _)) }
}

/// A String in UTF-8 of bytes that are known to be valid; `ascii` when they are known to be ASCII too.
#[inline]
pub(crate) fn utf8(ruby: &Ruby, text: &str, ascii: bool) -> RString {
    let string = utf8_unchecked(ruby, text.as_bytes());
    declare_valid(string, ascii);
    string
}

/// A String in UTF-8 of text.
#[inline]
pub(crate) fn text(ruby: &Ruby, text: &str) -> RString {
    utf8(ruby, text, text.is_ascii())
}

/// A String in UTF-8 of bytes that were not validated: Ruby determines the coderange when it needs it.
#[inline]
pub(crate) fn utf8_unchecked(ruby: &Ruby, bytes: &[u8]) -> RString {
    let string = binary(ruby, bytes);
    // SAFETY: the String was made just now.
    unsafe { set_utf8(string.as_raw()) };
    string
}

/// A String in UTF-8, its coderange set when it is ASCII.
#[inline]
pub(crate) fn utf8_or_ascii(ruby: &Ruby, bytes: &[u8]) -> RString {
    let string = utf8_unchecked(ruby, bytes);
    if bytes.is_ascii() {
        declare_valid(string, true);
    }
    string
}

/// The same, frozen.
#[inline]
pub(crate) fn utf8_or_ascii_frozen(ruby: &Ruby, bytes: &[u8]) -> RString {
    let string = utf8_or_ascii(ruby, bytes);
    // SAFETY: a live String.
    unsafe { rb_sys::rb_obj_freeze(string.as_raw()) };
    string
}

/// The bytes of a String.
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

/// Keeps `string` alive up to here. A caller that holds only its bytes, which may lie within the object, calls this after their
/// last use.
#[inline]
pub(crate) fn keep(string: impl Into<Option<RString>>) {
    std::hint::black_box(string.into());
}

/// The same bytes as a frozen String: `string` itself when it is frozen.
#[inline]
pub(crate) fn frozen(_: &Ruby, string: RString) -> RString {
    // SAFETY: a String goes in and comes out.
    unsafe { rstring(rb_sys::rb_str_new_frozen(string.as_raw())) }
}

/// The address of `bytes`. That of an empty slice may be dangling, and Ruby 3.1 passes it to `memcpy` and to hashes.
#[inline]
pub(crate) fn start(bytes: &[u8]) -> *const std::ffi::c_char {
    if bytes.is_empty() { c"".as_ptr() } else { bytes.as_ptr().cast() }
}

/// Makes the encoding UTF-8; the coderange stays unknown.
///
/// # Safety
/// `string` is a live String that no code of Ruby has seen.
#[inline]
unsafe fn set_utf8(string: VALUE) {
    // SAFETY: the caller vouches for it; a new String is not frozen.
    unsafe { rb_sys::rb_enc_associate_index(string, rb_utf8_encindex()) };
}

/// Sets the coderange of `string`, whose encoding is UTF-8, to valid, or to ASCII.
///
/// This writes what the inline function `RB_ENC_CODERANGE_SET` of Ruby's headers writes, which cannot be called from Rust; the functions
/// that can be (`rb_enc_str_coderange`) read the whole String again: 0.7 ms for 16 MiB of ASCII, 80 ms of "é". [`check_coderange`] compares it with what Ruby
/// writes itself, while the library loads.
///
/// # Safety
/// `string` is a live String that is not frozen, and both are true of its bytes.
#[inline]
unsafe fn set_coderange(string: VALUE, ascii: bool) {
    let range = if ascii { RUBY_ENC_CODERANGE_7BIT } else { RUBY_ENC_CODERANGE_VALID };
    let basic = string as *mut RBasic;
    // SAFETY: every String begins with an RBasic, whose flags keep the coderange in two bits: both set mean broken
    // (`RUBY_ENC_CODERANGE_MASK`).
    unsafe {
        (*basic).flags = ((*basic).flags & !(RUBY_ENC_CODERANGE_BROKEN as VALUE)) | range as VALUE;
    }
}

/// The same, typed.
///
/// # Safety
/// `value` is a String.
#[inline]
pub(crate) unsafe fn rstring(value: VALUE) -> RString {
    // SAFETY: the caller vouches for it.
    unsafe { RString::from_value(Value::from_raw(value)).unwrap_unchecked() }
}

/// A String in `ASCII-8BIT` of `len` bytes whose content is undefined until [`contents`] was written.
#[inline]
pub(crate) fn uninitialized(_: &Ruby, len: usize) -> RString {
    // SAFETY: without a source Ruby makes room and leaves it as it is.
    unsafe { rstring(rb_str_new(std::ptr::null(), len as _)) }
}

/// The bytes of a String that this extension made, to be written.
///
/// # Safety
/// No code of Ruby has seen the String, so it is neither frozen nor shared, and none runs while the slice is in use. What the
/// slice holds may be undefined, and is overwritten before it is read.
#[inline]
#[allow(clippy::mut_from_ref)]
pub(crate) unsafe fn contents<'a>(string: RString) -> &'a mut [u8] {
    // SAFETY: the caller vouches for it.
    unsafe { room(string.as_raw(), 0, string.len()) }
}

/// `len` bytes of a String's memory from `at`.
///
/// # Safety
/// As for [`contents`], and the String has capacity for them.
#[inline]
unsafe fn room<'a>(string: VALUE, at: usize, len: usize) -> &'a mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: the caller vouches for it.
    unsafe {
        std::slice::from_raw_parts_mut(rb_sys::RSTRING_PTR(string).cast_mut().cast::<u8>().add(at), len)
    }
}

/// Sets the coderange of a String in UTF-8 that this extension made to valid; `ascii` when it is ASCII.
#[inline]
pub(crate) fn declare_valid(string: RString, ascii: bool) {
    // SAFETY: the caller vouches for it; the String is not frozen.
    unsafe { set_coderange(string.as_raw(), ascii) };
}

/// An empty String in `ASCII-8BIT` with room for `len` bytes.
#[inline]
pub(crate) fn with_capacity(_: &Ruby, len: usize) -> RString {
    // SAFETY: any length will do.
    unsafe { rstring(rb_str_buf_new(len as _)) }
}

/// Runs `make`, which only allocates; NoMemoryError comes back as an error.
#[inline]
pub(crate) fn protected(ruby: &Ruby, make: impl FnOnce(&Ruby) -> RString) -> Result<RString, Error> {
    let made = protect(|| make(ruby).as_raw())?;
    // SAFETY: a String, made by `make`.
    Ok(unsafe { rstring(made) })
}

/// The String of the output that was `taken` into `bytes`.
///
/// # Errors
/// There is no memory for it, or there was none for `bytes`.
#[inline]
pub(crate) fn of_output(
    ruby: &Ruby,
    taken: Result<(), TryReserveError>,
    bytes: &[u8],
) -> Result<RString, Error> {
    taken.map_err(|_| no_memory(ruby))?;
    protected(ruby, |ruby| binary(ruby, bytes))
}

/// The memory behind the end of a String, `len` bytes of it; once they were written, [`extend`] makes them part of the String.
///
/// # Safety
/// As for [`contents`].
///
/// # Panics
/// When the String has no room for them.
#[inline]
#[allow(clippy::mut_from_ref)]
pub(crate) unsafe fn spare<'a>(string: RString, len: usize) -> &'a mut [u8] {
    let (value, have) = (string.as_raw(), string.len());
    // SAFETY: that it has room is checked; the rest is the caller's.
    unsafe {
        assert!(rb_str_capacity(value) as usize >= have + len, "no room for {len} bytes");
        room(value, have, len)
    }
}

/// Makes the `len` bytes that were written to [`spare`] part of the String.
///
/// # Safety
/// They were written.
#[inline]
pub(crate) unsafe fn extend(string: RString, len: usize) {
    // SAFETY: `spare` checked the capacity.
    unsafe { rb_str_set_len(string.as_raw(), (string.len() + len) as _) };
}

/// Makes room for `len` more bytes in a String that this extension made; when it is full it grows by `reserve` of its length, in
/// bytes.
#[inline]
pub(crate) fn make_room(_: &Ruby, string: RString, len: usize, reserve: impl FnOnce(usize) -> usize) {
    let have = string.len();
    // SAFETY: no code of Ruby has seen the String, so it is neither frozen nor shared.
    unsafe {
        if (rb_str_capacity(string.as_raw()) as usize) < have + len {
            rb_str_modify_expand(string.as_raw(), reserve(have).max(len) as _);
        }
    }
}

/// Makes UTF-8 of a String that this extension made and whose bytes were found to be valid; `ascii` when they are ASCII.
#[inline]
pub(crate) fn declare_utf8(string: RString, ascii: bool) {
    // SAFETY: the caller vouches for it; the String is not frozen.
    unsafe {
        set_utf8(string.as_raw());
        set_coderange(string.as_raw(), ascii);
    }
}

/// Makes a String UTF-8, without a call of `force_encoding`, which a program may have overridden; its bytes were found to be
/// valid, and ASCII when `ascii`.
///
/// # Safety
/// `string` is not frozen, and no Ruby code ran since its bytes were checked.
pub(crate) unsafe fn associate_utf8(string: RString, valid: Option<bool>) {
    // SAFETY: a String that is not frozen.
    unsafe {
        rb_sys::rb_enc_associate_index(string.as_raw(), rb_utf8_encindex());
        if let Some(ascii) = valid {
            set_coderange(string.as_raw(), ascii);
        }
    }
}

/// Compares what [`set_coderange`] writes with what Ruby writes itself. Each look at the flags is at one String, between two
/// allocations: the garbage collector keeps the age of an object in them.
///
/// # Errors
/// This Ruby keeps the coderange elsewhere.
pub(crate) fn check_coderange(ruby: &Ruby) -> Result<(), Error> {
    for (bytes, ascii, expected) in [
        (&b"ascii"[..], true, RUBY_ENC_CODERANGE_7BIT),
        ("\u{e9}".as_bytes(), false, RUBY_ENC_CODERANGE_VALID),
    ] {
        let string = utf8_unchecked(ruby, bytes);
        // SAFETY: a live String, which begins with an RBasic.
        let same = unsafe {
            let flags = &raw const (*(string.as_raw() as *const RBasic)).flags;
            let before = flags.read();
            let read = rb_sys::rb_enc_str_coderange(string.as_raw());
            let after = flags.read();
            declare_valid(string, ascii);
            read == expected as std::ffi::c_int
                && before ^ after == expected as VALUE
                && flags.read() == after
        };
        if !same {
            return Err(Error::new(
                ruby.exception_load_error(),
                "wireloom: this Ruby keeps what it knows of Strings in another place; a newer wireloom is needed",
            ));
        }
    }
    Ok(())
}
