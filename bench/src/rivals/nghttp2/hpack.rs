//! Its HPACK, which it offers by itself.

use super::Nv;
use std::ffi::{c_int, c_void};
use std::ptr;

#[link(name = "nghttp2")]
unsafe extern "C" {
    fn nghttp2_hd_deflate_new(deflater: *mut *mut c_void, table_size_max: usize) -> c_int;
    fn nghttp2_hd_deflate_del(deflater: *mut c_void);
    fn nghttp2_hd_deflate_hd(
        deflater: *mut c_void,
        buf: *mut u8,
        buf_len: usize,
        fields: *const Nv,
        fields_len: usize,
    ) -> isize;
    fn nghttp2_hd_deflate_bound(deflater: *mut c_void, fields: *const Nv, fields_len: usize) -> usize;
    fn nghttp2_hd_inflate_new(inflater: *mut *mut c_void) -> c_int;
    fn nghttp2_hd_inflate_del(inflater: *mut c_void);
    fn nghttp2_hd_inflate_hd2(
        inflater: *mut c_void,
        field: *mut Nv,
        flags: *mut c_int,
        block: *const u8,
        block_len: usize,
        last: c_int,
    ) -> isize;
    fn nghttp2_hd_inflate_end_headers(inflater: *mut c_void) -> c_int;
    fn nghttp2_check_header_name(name: *const u8, len: usize) -> c_int;
    fn nghttp2_check_header_value(value: *const u8, len: usize) -> c_int;
}

/// Its HPACK encoder.
pub(crate) struct Deflater(*mut c_void);

impl Deflater {
    pub(crate) fn new() -> Self {
        let mut deflater = ptr::null_mut();
        // SAFETY: the pointer is written when 0 is returned, which is checked.
        assert_eq!(unsafe { nghttp2_hd_deflate_new(&mut deflater, 4096) }, 0);
        Self(deflater)
    }

    /// Appends the block of these fields.
    pub(crate) fn encode(&mut self, fields: &[Nv], out: &mut Vec<u8>) {
        // SAFETY: the deflater lives as long as `self`; the fields point to bytes that outlive the call, as `Nv::new`
        // asks; the room behind `out` is reserved before it is written, and its length set to what was written.
        unsafe {
            let bound = nghttp2_hd_deflate_bound(self.0, fields.as_ptr(), fields.len());
            out.reserve(bound);
            let end = out.as_mut_ptr().add(out.len());
            let written = nghttp2_hd_deflate_hd(self.0, end, bound, fields.as_ptr(), fields.len());
            assert!(written >= 0);
            out.set_len(out.len() + written as usize);
        }
    }
}

impl Drop for Deflater {
    fn drop(&mut self) {
        // SAFETY: made by `nghttp2_hd_deflate_new`, freed once.
        unsafe { nghttp2_hd_deflate_del(self.0) }
    }
}

/// Its HPACK decoder.
pub(crate) struct Inflater(*mut c_void);

const EMIT: c_int = 2;
const FINAL: c_int = 1;

impl Inflater {
    pub(crate) fn new() -> Self {
        let mut inflater = ptr::null_mut();
        // SAFETY: the pointer is written when 0 is returned, which is checked.
        assert_eq!(unsafe { nghttp2_hd_inflate_new(&mut inflater) }, 0);
        Self(inflater)
    }

    /// Decodes a block and hands out each field, checked by nghttp2's rules for names and values if asked to.
    pub(crate) fn decode(&mut self, block: &[u8], check: bool, mut field: impl FnMut(&[u8], &[u8])) {
        let mut rest = block;
        loop {
            let mut nv = Nv::EMPTY;
            let mut flags = 0;
            // SAFETY: the inflater lives as long as `self`, `rest` is part of `block`.
            let read =
                unsafe { nghttp2_hd_inflate_hd2(self.0, &mut nv, &mut flags, rest.as_ptr(), rest.len(), 1) };
            assert!(read >= 0);
            rest = &rest[read as usize..];
            if flags & EMIT != 0 {
                // SAFETY: an emitted field points to bytes that stay until the next call.
                let (name, value) = unsafe {
                    (
                        std::slice::from_raw_parts(nv.name, nv.name_len),
                        std::slice::from_raw_parts(nv.value, nv.value_len),
                    )
                };
                if check {
                    // SAFETY: as above.
                    let valid = unsafe {
                        nghttp2_check_header_name(nv.name, nv.name_len) != 0
                            && nghttp2_check_header_value(nv.value, nv.value_len) != 0
                    };
                    std::hint::black_box(valid);
                }
                field(name, value);
            }
            if flags & FINAL != 0 {
                break;
            }
        }
        // SAFETY: as above.
        unsafe { nghttp2_hd_inflate_end_headers(self.0) };
    }
}

impl Drop for Inflater {
    fn drop(&mut self) {
        // SAFETY: made by `nghttp2_hd_inflate_new`, freed once.
        unsafe { nghttp2_hd_inflate_del(self.0) }
    }
}
