//! Bytes and fields in records.

use crate::memory::{self, Extent, apart};
use crate::status::wl_status;

/// Bytes: an address and a length. It has the layout of `struct iovec`. `data` may be null when `len` is 0.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_slice {
    /// The first byte.
    pub data: *const u8,
    /// The number of bytes.
    pub len: usize,
}

impl wl_slice {
    pub(crate) const ABSENT: Self = Self { data: core::ptr::null(), len: 0 };

    #[inline]
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self { data: bytes.as_ptr(), len: bytes.len() }
    }

    #[inline]
    pub(crate) fn extent(self) -> Extent {
        Extent::of(self.data, self.len)
    }

    /// The bytes; `None` for a null pointer.
    pub(crate) unsafe fn bytes<'a>(self) -> Result<Option<&'a [u8]>, wl_status> {
        if self.data.is_null() && self.len == 0 {
            return Ok(None);
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { memory::array(self.data, self.len) }.map(Some)
    }

    /// The text; `None` for a null pointer.
    pub(crate) unsafe fn text<'a>(self) -> Result<Option<&'a str>, wl_status> {
        // SAFETY: the caller's promise is passed on.
        let bytes = unsafe { self.bytes()? };
        bytes.map(|bytes| wireloom_ws::utf8::text(bytes).map_err(|_| wl_status::InvalidUtf8)).transpose()
    }
}

/// A header field.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_field {
    /// The name; in HTTP/2 in lower case, and pseudo-fields begin with ":".
    pub name: wl_slice,
    /// The value.
    pub value: wl_slice,
    /// 1: the field is never indexed (RFC 7541 section 7.1.3); otherwise 0.
    pub sensitive: u8,
}

/// The fields of the caller. Neither they nor their names and values overlap `outputs`.
pub(crate) unsafe fn fields<'a>(
    fields: *const wl_field,
    count: usize,
    outputs: &[Extent],
) -> Result<&'a [wl_field], wl_status> {
    apart(outputs, Extent::of(fields, count))?;
    // SAFETY: the caller's promise is passed on.
    let fields = unsafe { memory::array(fields, count)? };
    for field in fields {
        apart(outputs, field.name.extent())?;
        apart(outputs, field.value.extent())?;
    }
    Ok(fields)
}
