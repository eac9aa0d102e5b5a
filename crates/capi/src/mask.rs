//! Masking (RFC 6455 §5.3).

use crate::call::call;
use crate::memory::{self, Extent, disjoint};
use crate::status::wl_status;
use wireloom_ws::mask::{self, MaskKey};

/// Masks or unmasks bytes in place. The key is rotated, so that the next bytes of the same payload can follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_mask(data: *mut u8, len: usize, key: *mut [u8; 4]) -> wl_status {
    call(|| {
        disjoint([Extent::of(data, len), Extent::of(key, 1)])?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (data, current) = unsafe { (memory::array_mut(data, len)?, memory::read(key)?) };
        let next = mask::apply(data, MaskKey::new(current));
        // SAFETY: as above.
        unsafe { memory::out(key)? }.write(next.bytes());
        Ok(())
    })
}

/// Copies bytes and masks the copy, in one pass. The two must not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_mask_copy(
    to: *mut u8,
    from: *const u8,
    len: usize,
    key: *mut [u8; 4],
) -> wl_status {
    call(|| {
        disjoint([Extent::of(to, len), Extent::of(from, len), Extent::of(key, 1)])?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint. `from` is initialised, `to` may not be.
        let (from, current) = unsafe { (memory::array(from, len)?, memory::read(key)?) };
        // SAFETY: as above.
        let to = unsafe { memory::out_array(to, len)? };
        // SAFETY: every element is written before it is read as `u8`.
        let to = unsafe {
            to.as_mut_ptr().write_bytes(0, to.len());
            memory::array_mut(to.as_mut_ptr().cast::<u8>(), len)?
        };
        let next = mask::copy(to, from, MaskKey::new(current));
        // SAFETY: as above.
        unsafe { memory::out(key)? }.write(next.bytes());
        Ok(())
    })
}
