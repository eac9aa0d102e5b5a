//! UTF-8 validation.

use crate::call::call;
use crate::handle::Table;
use crate::memory::{self, Extent, disjoint};
use crate::status::wl_status;
use wireloom_ws::mask::MaskKey;
use wireloom_ws::utf8::{self, Validator};

/// Validates a complete text: `WL_STATUS_OK` or `WL_STATUS_INVALID_UTF8`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_utf8_validate(text: *const u8, len: usize) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let text = unsafe { memory::array(text, len)? };
        utf8::validate(text).map_err(|_| wl_status::InvalidUtf8)
    })
}

/// Unmasks a complete text in place and validates it, in one pass.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_utf8_unmask(text: *mut u8, len: usize, key: *const [u8; 4]) -> wl_status {
    call(|| {
        disjoint([Extent::of(text, len), Extent::of(key, 1)])?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (text, key) = unsafe { (memory::array_mut(text, len)?, memory::read(key)?) };
        utf8::unmask_validate(text, MaskKey::new(key)).map_err(|_| wl_status::InvalidUtf8)
    })
}

/// Validates a text that arrives in chunks.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_utf8 {
    /// The number of the validator; 0 is none.
    pub id: u64,
}

static VALIDATORS: Table<Validator> = Table::new(1);

/// A validator at the start of a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_utf8_new(validator: *mut wl_utf8) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let slot = unsafe { memory::out(validator)? };
        slot.write(wl_utf8 { id: VALIDATORS.insert(Validator::new())? });
        Ok(())
    })
}

/// Validates the next chunk. After `WL_STATUS_INVALID_UTF8` the validator is at the start of a text again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_utf8_push(validator: wl_utf8, chunk: *const u8, len: usize) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let chunk = unsafe { memory::array(chunk, len)? };
        VALIDATORS.with(validator.id, |validator| {
            validator.push(chunk).map_err(|_| {
                *validator = Validator::new();
                wl_status::InvalidUtf8
            })
        })
    })
}

/// Ends the text: `WL_STATUS_INVALID_UTF8` if it ends inside a code point. The validator is at the start of a text again.
#[unsafe(no_mangle)]
pub extern "C" fn wl_utf8_finish(validator: wl_utf8) -> wl_status {
    call(|| {
        VALIDATORS.with(validator.id, |validator| {
            let result = validator.finish().map_err(|_| wl_status::InvalidUtf8);
            *validator = Validator::new();
            result
        })
    })
}

/// Frees a validator. 0 is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn wl_utf8_free(validator: wl_utf8) -> wl_status {
    call(|| VALIDATORS.remove(validator.id))
}
