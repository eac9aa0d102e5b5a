//! nghttp2's HPACK encoder and decoder, which can be used without a session.

use super::memory;
use libnghttp2_sys::*;
use std::ffi::c_int;
use std::ptr;

/// Its HPACK encoder.
pub(crate) struct Deflater(*mut nghttp2_hd_deflater);

impl Deflater {
    pub(crate) fn new() -> Self {
        let mut deflater = ptr::null_mut();
        // SAFETY: the pointer is written when 0 is returned, which is checked; the functions are static.
        let made = unsafe { nghttp2_hd_deflate_new2(&mut deflater, 4096, memory::functions()) };
        assert_eq!(made, 0);
        Self(deflater)
    }

    /// Appends the block of these fields.
    pub(crate) fn encode(&mut self, fields: &[nghttp2_nv], out: &mut Vec<u8>) {
        // SAFETY: the deflater lives as long as `self`; the fields point to bytes that outlive the call, as `borrowed`
        // requires; the room behind `out` is reserved before it is written, and its length set to what was written.
        unsafe {
            let bound = nghttp2_hd_deflate_bound(self.0, fields.as_ptr(), fields.len());
            out.reserve(bound);
            let end = out.as_mut_ptr().add(out.len());
            let written = nghttp2_hd_deflate_hd2(self.0, end, bound, fields.as_ptr(), fields.len());
            assert!(written >= 0);
            out.set_len(out.len() + written as usize);
        }
    }
}

impl Drop for Deflater {
    fn drop(&mut self) {
        // SAFETY: made by `nghttp2_hd_deflate_new2`, freed once.
        unsafe { nghttp2_hd_deflate_del(self.0) }
    }
}

/// Its HPACK decoder.
pub(crate) struct Inflater(*mut nghttp2_hd_inflater);

const EMIT: c_int = NGHTTP2_HD_INFLATE_EMIT as c_int;
const FINAL: c_int = NGHTTP2_HD_INFLATE_FINAL as c_int;

impl Inflater {
    pub(crate) fn new() -> Self {
        let mut inflater = ptr::null_mut();
        // SAFETY: the pointer is written when 0 is returned, which is checked; the functions are static.
        let made = unsafe { nghttp2_hd_inflate_new2(&mut inflater, memory::functions()) };
        assert_eq!(made, 0);
        Self(inflater)
    }

    /// Decodes a block and calls `field` with each field. With `check`, names and values are checked by nghttp2's
    /// rules.
    pub(crate) fn decode(&mut self, block: &[u8], check: bool, mut field: impl FnMut(&[u8], &[u8])) {
        let mut rest = block;
        loop {
            // SAFETY: a structure of pointers and integers may be zero.
            let mut nv: nghttp2_nv = unsafe { std::mem::zeroed() };
            let mut flags = 0;
            // SAFETY: the inflater lives as long as `self`, `rest` is part of `block`.
            let read =
                unsafe { nghttp2_hd_inflate_hd3(self.0, &mut nv, &mut flags, rest.as_ptr(), rest.len(), 1) };
            assert!(read >= 0);
            rest = &rest[read as usize..];
            if flags & EMIT != 0 {
                // SAFETY: an emitted field points to bytes that stay until the next call.
                let (name, value) = unsafe {
                    (
                        std::slice::from_raw_parts(nv.name, nv.namelen),
                        std::slice::from_raw_parts(nv.value, nv.valuelen),
                    )
                };
                if check {
                    // SAFETY: as above.
                    let valid = unsafe {
                        nghttp2_check_header_name(nv.name, nv.namelen) != 0
                            && nghttp2_check_header_value(nv.value, nv.valuelen) != 0
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
        // SAFETY: made by `nghttp2_hd_inflate_new2`, freed once.
        unsafe { nghttp2_hd_inflate_del(self.0) }
    }
}
