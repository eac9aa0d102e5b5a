//! Payloads on their way into Strings: unmasked and validated. Nothing here touches Ruby, so that it can run without the GVL.

use wireloom_ws::mask::{self, MaskKey};
use wireloom_ws::utf8;

/// The text of a message as far as it was validated.
#[derive(Default)]
pub(super) struct Text {
    validator: utf8::Validator,
    /// Some of it is not ASCII: from there on the validator has seen it.
    not_ascii: bool,
}

impl Text {
    pub(super) const fn is_ascii(&self) -> bool {
        !self.not_ascii
    }

    /// Whether `bytes`, which are all of the text, are valid.
    #[inline]
    pub(super) fn validate(&mut self, bytes: &[u8]) -> bool {
        self.not_ascii = !bytes.is_ascii();
        !self.not_ascii || utf8::validate(bytes).is_ok()
    }

    /// Whether the text can be valid that goes on with `bytes`; `last` when it ends with them. RFC 6455 §8.1: it is refused at
    /// the first impossible byte, not at the end of the message.
    #[inline]
    pub(super) fn push(&mut self, bytes: &[u8], last: bool) -> bool {
        self.not_ascii = self.not_ascii || !bytes.is_ascii();
        !self.not_ascii || (self.validator.push(bytes).is_ok() && (!last || self.validator.finish().is_ok()))
    }
}

/// Copies `payload` into `room`, which is as long, unmasked.
#[inline]
pub(super) fn copy(room: &mut [u8], payload: &[u8], key: Option<MaskKey>) {
    match key {
        Some(key) => {
            mask::copy(room, payload, key);
        }
        None => room.copy_from_slice(payload),
    }
}
