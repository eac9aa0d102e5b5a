//! nghttp2 through its C interface, as much of it as the workloads need; built only where it is installed.

#![allow(unsafe_code)] // A foreign interface; each call says why it is sound.

pub(crate) mod hpack;
pub(crate) mod session;

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Nv {
    name: *const u8,
    value: *const u8,
    name_len: usize,
    value_len: usize,
    flags: u8,
}

impl Nv {
    const EMPTY: Self = Self { name: ptr::null(), value: ptr::null(), name_len: 0, value_len: 0, flags: 0 };

    /// A field whose bytes the caller keeps until the call that takes it returns.
    pub(crate) fn new(name: &[u8], value: &[u8]) -> Self {
        Self {
            name: name.as_ptr(),
            value: value.as_ptr(),
            name_len: name.len(),
            value_len: value.len(),
            flags: 0,
        }
    }
}

#[repr(C)]
struct Info {
    age: c_int,
    version_num: c_int,
    version_str: *const c_char,
    proto_str: *const c_char,
}

#[link(name = "nghttp2")]
unsafe extern "C" {
    fn nghttp2_version(least: c_int) -> *const Info;
}

/// Its name and the version that is linked.
pub(crate) fn with_version() -> String {
    // SAFETY: 0 accepts every version, so a static structure with C strings is returned.
    let version = unsafe { CStr::from_ptr((*nghttp2_version(0)).version_str) };
    format!("nghttp2 {}", version.to_string_lossy())
}
