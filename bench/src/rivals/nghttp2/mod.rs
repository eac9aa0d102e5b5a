//! nghttp2, built from the source that `libnghttp2-sys` carries, through its C interface.

#![allow(unsafe_code)] // A C interface; each call states why it is sound.

pub(crate) mod hpack;
pub(crate) mod memory;
pub(crate) mod session;

use libnghttp2_sys::{NGHTTP2_NV_FLAG_NO_COPY_NAME, NGHTTP2_NV_FLAG_NO_COPY_VALUE, nghttp2_nv};
use std::ffi::{CStr, c_int};

unsafe extern "C" {
    fn nghttp2_version(least: c_int) -> *const libnghttp2_sys::nghttp2_info;
}

/// A field by reference (`NGHTTP2_NV_FLAG_NO_COPY_*`): the caller keeps its bytes until it has been sent.
pub(crate) fn borrowed(name: &[u8], value: &[u8]) -> nghttp2_nv {
    nghttp2_nv {
        name: name.as_ptr().cast_mut(),
        value: value.as_ptr().cast_mut(),
        namelen: name.len(),
        valuelen: value.len(),
        flags: (NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE) as u8,
    }
}

/// nghttp2's name and linked version.
pub(crate) fn with_version() -> String {
    // SAFETY: 0 accepts every version, so a static structure with C strings is returned.
    let version = unsafe { CStr::from_ptr((*nghttp2_version(0)).version_str) };
    format!("nghttp2 {}", version.to_string_lossy())
}

/// Fields as nghttp2 takes them, with the strings that they point into.
pub(crate) struct OwnedFields {
    fields: Vec<nghttp2_nv>,
    _strings: Vec<(String, String)>,
}

impl OwnedFields {
    pub(crate) fn new(fields: &[(String, String)]) -> Self {
        let strings = fields.to_vec();
        // A String's bytes stay where they are when the Vec of Strings moves.
        let fields =
            strings.iter().map(|(name, value)| borrowed(name.as_bytes(), value.as_bytes())).collect();
        Self { fields, _strings: strings }
    }

    pub(crate) fn as_slice(&self) -> &[nghttp2_nv] {
        &self.fields
    }
}
