//! `Utf8`: text that comes in pieces, judged piece by piece.

use std::cell::RefCell;

use magnus::prelude::*;
use magnus::{Error, RModule, RString, Ruby, Value, function, method};
use wireloom_ws::utf8::Validator;

use super::payload;
use crate::panic::guard;

/// How many masked bytes are unmasked at once.
const STEP: usize = 4096;

#[magnus::wrap(class = "Wireloom::ProtocolWebSocket::Utf8", free_immediately, size)]
struct Utf8(RefCell<Validator>);

pub(super) fn init(ruby: &Ruby, module: RModule) -> Result<(), Error> {
    let class = module.define_class("Utf8", ruby.class_object())?;
    class.define_singleton_method("new", function!(Utf8::new, 0))?;
    class.define_method("push", method!(Utf8::push, 2))
}

impl Utf8 {
    fn new() -> Self {
        Self(RefCell::new(Validator::new()))
    }

    /// `push(piece, mask)`: whether the text can still become valid. A `mask` of `nil` or `false` means none.
    fn push(ruby: &Ruby, this: &Self, piece: RString, mask: Value) -> Result<bool, Error> {
        guard(ruby, || {
            let mut validator = this.0.borrow_mut();
            if !mask.to_bool() {
                // SAFETY: no Ruby runs while the bytes are looked at.
                return Ok(validator.push(unsafe { piece.as_slice() }).is_ok());
            }
            let mask = RString::from_value(mask)
                .ok_or_else(|| Error::new(ruby.exception_type_error(), "a mask is a String"))?;
            let mut key = payload::key(ruby, mask)?;
            // SAFETY: likewise.
            for step in unsafe { piece.as_slice() }.chunks(STEP) {
                let mut unmasked = [0; STEP];
                let unmasked = &mut unmasked[..step.len()];
                unmasked.copy_from_slice(step);
                match validator.push_masked(unmasked, key) {
                    Ok(next) => key = next,
                    Err(_) => return Ok(false),
                }
            }
            Ok(true)
        })
    }
}
