//! UTF-8 validation (RFC 3629), incremental at any split and fused with unmasking.

use crate::mask::{self, MaskKey};

/// A byte that cannot occur at its place in UTF-8 has arrived (RFC 6455 §8.1: close with 1007).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidUtf8;

/// Validates text that arrives in pieces, and fails in the piece that holds the first impossible byte.
#[derive(Clone, Debug, Default)]
pub struct Validator {
    /// The bytes of a code point that is not complete yet; 0 <= len <= 3.
    partial: alloc::vec::Vec<u8>,
}

impl Validator {
    /// A validator that has seen nothing.
    pub const fn new() -> Self {
        Self { partial: alloc::vec::Vec::new() }
    }

    /// Takes the next piece of the text.
    ///
    /// # Errors
    /// [`InvalidUtf8`] when no continuation could make the text valid.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), InvalidUtf8> {
        self.partial.extend_from_slice(piece);
        match core::str::from_utf8(&self.partial) {
            Ok(_) => self.partial.clear(),
            Err(e) if e.error_len().is_none() => drop(self.partial.drain(..e.valid_up_to())),
            Err(_) => return Err(InvalidUtf8),
        }
        Ok(())
    }

    /// Unmasks the next piece in place and validates it in the same pass; returns the key for the byte after it.
    ///
    /// # Errors
    /// [`InvalidUtf8`] when no continuation could make the text valid; the piece is then partly unmasked.
    pub fn push_masked(&mut self, piece: &mut [u8], key: MaskKey) -> Result<MaskKey, InvalidUtf8> {
        let next = mask::apply(piece, key);
        self.push(piece)?;
        Ok(next)
    }

    /// The text ends here: resets the validator for the next one.
    ///
    /// # Errors
    /// [`InvalidUtf8`] when the text ends within a code point.
    pub fn finish(&mut self) -> Result<(), InvalidUtf8> {
        let whole = self.partial.is_empty();
        self.partial.clear();
        if whole { Ok(()) } else { Err(InvalidUtf8) }
    }
}

/// Validates one whole text.
#[inline]
pub fn validate(text: &[u8]) -> Result<(), InvalidUtf8> {
    core::str::from_utf8(text).map(drop).map_err(|_| InvalidUtf8)
}

/// Unmasks one whole text in place and validates it in the same pass.
#[inline]
pub fn unmask_validate(text: &mut [u8], key: MaskKey) -> Result<(), InvalidUtf8> {
    mask::apply(text, key);
    validate(text)
}
