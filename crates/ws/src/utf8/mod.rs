//! UTF-8 validation (RFC 3629), incremental at any split and fused with unmasking.
//!
//! Validation of a whole text returns a `Valid`, the only way to a `str` of bytes from a peer.
//!
//! # Speed
//! Text is read from memory once. A masked piece is loaded, unmasked, validated and stored in the same pass; a register of ASCII costs
//! one OR more than unmasking alone, and only other registers use the lookup tables (see `x86`). ASCII below 256 bytes is handled by code
//! inlined into the caller, without run-time detection of the processor.
//!
//! # State between pieces
//! The state of a [`Validator`] is one word, an incomplete code point of at most three bytes. It is completed byte by byte, so that the
//! kernels always start at a code point boundary. An error is reported for the piece with the first impossible byte: `C0` at once,
//! `ED A0` at its second byte.

use crate::mask::{self, MaskKey, SHORT};
use alloc::vec::Vec;

mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

/// A byte that cannot occur at its place in UTF-8 (RFC 6455 §8.1: close with 1007).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidUtf8;

impl core::fmt::Display for InvalidUtf8 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("a byte that cannot occur at its place in UTF-8")
    }
}

impl core::error::Error for InvalidUtf8 {}

/// Proof that a whole text was validated. Only the validators of this module create one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Valid(());

impl Valid {
    /// A `str` is valid.
    #[inline]
    pub(crate) fn of(_text: &str) -> Self {
        Self(())
    }

    /// The text. `bytes` are those that were validated when this proof was made.
    ///
    /// Every `str` of a peer's bytes without another check is created here.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn text(self, bytes: &[u8]) -> &str {
        debug_assert!(core::str::from_utf8(bytes).is_ok());
        // SAFETY: a `Valid` is created when the validation of a whole text has ended without an error, and is stored only with that
        // text: by `Text`, `Utf8Bytes` and the place of a message in `receive`, none of which allows mutable access.
        unsafe { core::str::from_utf8_unchecked(bytes) }
    }
}

/// Validates text that arrives in pieces; fails in the piece with the first impossible byte.
///
/// After an error, every further piece fails until [`finish`](Self::finish).
///
/// ```
/// use wireloom_ws::utf8::{InvalidUtf8, Validator};
///
/// let mut validator = Validator::new();
/// validator.push(b"gr\xc3")?;
/// assert!(!validator.is_boundary());
/// validator.push(b"\xbc\xc3\x9fe")?;
/// validator.finish()?;
///
/// assert_eq!(validator.push(b"\xed\xa0"), Err(InvalidUtf8), "the first half of a surrogate");
/// # Ok::<(), InvalidUtf8>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Validator {
    /// The bytes of a code point that is not complete yet, the first one least significant; 0 between code points,
    /// `scalar::FAILED` after an impossible byte.
    partial: u32,
}

impl Validator {
    /// A validator at the beginning of a text.
    #[inline]
    pub const fn new() -> Self {
        Self { partial: 0 }
    }

    /// Whether all code points so far are complete: the text could end here.
    #[inline]
    pub const fn is_boundary(&self) -> bool {
        self.partial == 0
    }

    /// Validates the next piece of the text.
    ///
    /// # Errors
    /// [`InvalidUtf8`] when no continuation could make the text valid.
    #[inline]
    pub fn push(&mut self, piece: &[u8]) -> Result<(), InvalidUtf8> {
        if self.partial == 0 && piece.len() < SHORT && mask::is_ascii_short(piece) {
            return Ok(());
        }
        self.set_state(push(self.partial, piece))
    }

    /// Unmasks the next piece in place and validates it in the same pass; returns the key for the byte after it.
    ///
    /// # Errors
    /// [`InvalidUtf8`] when no continuation could make the text valid; the piece is then partly unmasked.
    #[inline]
    pub fn push_masked(&mut self, piece: &mut [u8], key: MaskKey) -> Result<MaskKey, InvalidUtf8> {
        if piece.len() >= SHORT {
            self.set_state(push_masked(self.partial, piece, key.word()))?;
        } else if !mask::apply_short(piece, key.word()) || self.partial != 0 {
            self.set_state(push(self.partial, piece))?;
        }
        Ok(key.advanced(piece.len()))
    }

    /// The text ends here: resets the validator for the next one.
    ///
    /// # Errors
    /// [`InvalidUtf8`] when the text ends within a code point.
    #[inline]
    pub fn finish(&mut self) -> Result<(), InvalidUtf8> {
        self.finish_text().map(drop)
    }

    /// [`finish`](Self::finish) with the proof.
    #[inline]
    pub(crate) fn finish_text(&mut self) -> Result<Valid, InvalidUtf8> {
        check_complete(core::mem::take(&mut self.partial))
    }

    #[inline]
    fn set_state(&mut self, state: Result<u32, InvalidUtf8>) -> Result<(), InvalidUtf8> {
        self.partial = state.unwrap_or(scalar::FAILED);
        state.map(drop)
    }
}

/// Validates one whole text.
///
/// # Errors
/// [`InvalidUtf8`] when it is not UTF-8, or ends within a code point.
#[inline]
pub fn validate(text: &[u8]) -> Result<(), InvalidUtf8> {
    validate_text(text).map(drop)
}

/// Unmasks one whole text in place and validates it in the same pass.
///
/// # Errors
/// [`InvalidUtf8`] when it is not UTF-8, or ends within a code point; it is then partly unmasked.
#[inline]
pub fn unmask_validate(text: &mut [u8], key: MaskKey) -> Result<(), InvalidUtf8> {
    unmask_validate_text(text, key).map(drop)
}

/// Validates one whole text and returns it.
///
/// # Errors
/// As [`validate`].
#[inline]
pub fn text(bytes: &[u8]) -> Result<&str, InvalidUtf8> {
    Ok(validate_text(bytes)?.text(bytes))
}

/// Unmasks one whole text in place, validates it in the same pass, and returns it.
///
/// # Errors
/// As [`unmask_validate`].
#[inline]
pub fn unmask_text(bytes: &mut [u8], key: MaskKey) -> Result<&str, InvalidUtf8> {
    Ok(unmask_validate_text(bytes, key)?.text(bytes))
}

/// [`validate`] with the proof.
#[inline(always)]
pub(crate) fn validate_text(text: &[u8]) -> Result<Valid, InvalidUtf8> {
    if text.len() < SHORT && mask::is_ascii_short(text) {
        return Ok(Valid(()));
    }
    check_complete(push(0, text)?)
}

/// Unmasks one whole text into a new vector, and validates it. The default key is for text that is not masked.
#[inline(always)]
pub(crate) fn unmasked_copy(text: &[u8], key: MaskKey) -> Result<(Vec<u8>, Valid), InvalidUtf8> {
    let mut copy = Vec::with_capacity(text.len());
    let valid =
        if mask::extend_ascii(&mut copy, text, key) { Valid(()) } else { check_complete(push(0, &copy)?)? };
    Ok((copy, valid))
}

/// [`unmask_validate`] with the proof.
#[inline(always)]
pub(crate) fn unmask_validate_text(text: &mut [u8], key: MaskKey) -> Result<Valid, InvalidUtf8> {
    if text.len() >= SHORT {
        check_complete(push_masked(0, text, key.word())?)
    } else if mask::apply_short(text, key.word()) {
        Ok(Valid(()))
    } else {
        check_complete(push(0, text)?)
    }
}

#[inline]
fn check_complete(partial: u32) -> Result<Valid, InvalidUtf8> {
    if partial == 0 { Ok(Valid(())) } else { Err(InvalidUtf8) }
}

/// Validates a piece after `partial`; returns the state after it.
#[inline(never)]
fn push(partial: u32, piece: &[u8]) -> Result<u32, InvalidUtf8> {
    if partial != 0 || piece.is_empty() {
        return push_after(partial, piece);
    }
    #[cfg(target_arch = "x86_64")]
    return x86::validate(mask::cpu::Level::best(), piece);
    #[cfg(not(target_arch = "x86_64"))]
    return scalar::validate(piece);
}

/// Validates a piece that may begin within a code point.
#[cold]
fn push_after(partial: u32, piece: &[u8]) -> Result<u32, InvalidUtf8> {
    let (partial, consumed) = scalar::complete(partial, piece)?;
    if consumed == piece.len() { Ok(partial) } else { push(partial, &piece[consumed..]) }
}

/// Unmasks and validates a piece after `partial`; returns the state after it.
#[inline(never)]
fn push_masked(partial: u32, piece: &mut [u8], key: u32) -> Result<u32, InvalidUtf8> {
    if partial != 0 || piece.is_empty() {
        return push_masked_after(partial, piece, key);
    }
    #[cfg(target_arch = "x86_64")]
    return x86::unmask_validate(mask::cpu::Level::best(), piece, key);
    #[cfg(not(target_arch = "x86_64"))]
    return scalar::unmask_validate(piece, key, scalar::validate);
}

/// Unmasks and validates a piece that may begin within a code point.
#[cold]
fn push_masked_after(partial: u32, piece: &mut [u8], key: u32) -> Result<u32, InvalidUtf8> {
    let head = piece.len().min(4);
    mask::apply_short(&mut piece[..head], key);
    let (partial, consumed) = scalar::complete(partial, &piece[..head])?;
    let key_after = mask::rotated(key, consumed);
    // The other bytes are masked again, because the kernel unmasks them with those behind them.
    mask::apply_short(&mut piece[consumed..head], key_after);
    if consumed == piece.len() {
        Ok(partial)
    } else {
        push_masked(partial, &mut piece[consumed..], key_after)
    }
}

#[cfg(test)]
mod tests;
