//! `Utf8`: validates text that arrives in fragments.

use magnus::prelude::*;
use magnus::typed_data::Obj;
use magnus::{Error, RModule, RString, Ruby, Value};
use wireloom_ws::utf8::Validator;

use super::payload;
use crate::exclusive::Exclusive;
use crate::guard::method;
use crate::held::{managed, plain};
use crate::strings;

/// How many masked bytes are unmasked at once.
const STEP: usize = 4096;

#[derive(Default)]
struct Utf8 {
    validator: Exclusive<Validator>,
}

plain!(Validator);

managed!(Utf8 as "Wireloom::ProtocolWebSocket::Utf8" { validator }, size = |_| 0);

pub(super) fn init(ruby: &Ruby, module: RModule) -> Result<(), Error> {
    let class = module.define_class("Utf8", ruby.class_object())?;
    Utf8::load(ruby, class);
    class.define_alloc_func::<Utf8>();
    class.define_method("push", method!(Utf8::push, 2))
}

impl Utf8 {
    /// `push(fragment, mask)`: whether the text can still become valid. A `mask` of `nil` or `false` means none.
    fn push(ruby: &Ruby, this: Obj<Self>, fragment: RString, mask: Value) -> Result<bool, Error> {
        let key = if mask.to_bool() {
            let mask = RString::from_value(mask)
                .ok_or_else(|| Error::new(ruby.exception_type_error(), "a mask is a String"))?;
            Some(payload::key(ruby, mask)?)
        } else {
            None
        };
        // SAFETY: no Ruby code runs while the slice is in use.
        let bytes = unsafe { fragment.as_slice() };
        let valid = this.validator.with(|validator| {
            let Some(mut key) = key else { return validator.push(bytes).is_ok() };
            for step in bytes.chunks(STEP) {
                let mut unmasked = [0; STEP];
                let unmasked = &mut unmasked[..step.len()];
                unmasked.copy_from_slice(step);
                match validator.push_masked(unmasked, key) {
                    Ok(next) => key = next,
                    Err(_) => return false,
                }
            }
            true
        });
        strings::keep(fragment);
        Ok(valid)
    }
}
