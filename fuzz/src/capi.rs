//! Shared by the targets of libwireloom.

use wireloom_capi::wl_status;

/// Whether a call succeeded. No call may find a bug in the library, or a handle in use.
pub fn is_ok(status: wl_status) -> bool {
    assert_ne!(status, wl_status::Panicked);
    assert_ne!(status, wl_status::Busy);
    status as i32 >= 0
}

/// Reads all bytes that a call has returned, so that a sanitizer notices those that were freed.
#[allow(clippy::not_unsafe_ptr_arg_deref)]
pub fn read(data: *const u8, len: usize) -> u64 {
    assert!(!data.is_null() || len == 0);
    (0..len).map(|at| u64::from(unsafe { data.add(at).read() })).fold(0, u64::wrapping_add)
}
