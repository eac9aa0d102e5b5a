//! UTF-8 validation (RFC 3629), incremental at any split and fused with unmasking.
//!
//! Owns the verdict on text and what must be remembered of it between two pieces: a code point that is not complete
//! yet. Refuses to own the text, and to know what a frame or a message is.
//!
//! # How it is fast
//! Text is read from memory once. A masked piece is loaded, unmasked, judged and stored in the same pass; a register of
//! ASCII costs one OR more than unmasking alone, and only what is not ASCII meets the lookup tables (see `x86`).
//! Pieces below 256 bytes of ASCII are done by code inlined into the caller, which asks nobody what the processor can do.
//!
//! # What is remembered
//! Nothing of a code point that is complete or impossible, so at most three bytes: the [`Validator`] is one word. It is
//! settled byte by byte before the tables see the next piece, which thus always starts at a boundary, and the verdict
//! falls in the piece that holds the first impossible byte: `C0` is refused on sight, `ED A0` at its second byte.

use crate::mask::{self, MaskKey, SHORT};

mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

/// A byte that cannot occur at its place in UTF-8 has arrived (RFC 6455 §8.1: close with 1007).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidUtf8;

impl core::fmt::Display for InvalidUtf8 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("a byte that cannot occur at its place in UTF-8")
    }
}

impl core::error::Error for InvalidUtf8 {}

/// Validates text that arrives in pieces, and fails in the piece that holds the first impossible byte.
///
/// Once it has failed it refuses every further piece, until [`finish`](Self::finish).
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
    /// A validator that has seen nothing.
    #[inline]
    pub const fn new() -> Self {
        Self { partial: 0 }
    }

    /// Whether all code points so far are complete, so that the text could end here.
    #[inline]
    pub const fn is_boundary(&self) -> bool {
        self.partial == 0
    }

    /// Takes the next piece of the text.
    ///
    /// # Errors
    /// [`InvalidUtf8`] when no continuation could make the text valid.
    #[inline]
    pub fn push(&mut self, piece: &[u8]) -> Result<(), InvalidUtf8> {
        if self.partial == 0 && piece.len() < SHORT && mask::is_ascii_short(piece) {
            return Ok(());
        }
        self.keep(push(self.partial, piece))
    }

    /// Unmasks the next piece in place and validates it in the same pass; returns the key for the byte after it.
    ///
    /// # Errors
    /// [`InvalidUtf8`] when no continuation could make the text valid; the piece is then partly unmasked.
    #[inline]
    pub fn push_masked(&mut self, piece: &mut [u8], key: MaskKey) -> Result<MaskKey, InvalidUtf8> {
        if piece.len() >= SHORT {
            self.keep(push_masked(self.partial, piece, key.word()))?;
        } else if !mask::apply_short(piece, key.word()) || self.partial != 0 {
            self.keep(push(self.partial, piece))?;
        }
        Ok(key.advanced(piece.len()))
    }

    /// The text ends here: resets the validator for the next one.
    ///
    /// # Errors
    /// [`InvalidUtf8`] when the text ends within a code point.
    #[inline]
    pub fn finish(&mut self) -> Result<(), InvalidUtf8> {
        whole(core::mem::take(&mut self.partial))
    }

    #[inline]
    fn keep(&mut self, verdict: Result<u32, InvalidUtf8>) -> Result<(), InvalidUtf8> {
        self.partial = verdict.unwrap_or(scalar::FAILED);
        verdict.map(drop)
    }
}

/// Validates one whole text.
///
/// # Errors
/// [`InvalidUtf8`] when it is not UTF-8, or ends within a code point.
#[inline]
pub fn validate(text: &[u8]) -> Result<(), InvalidUtf8> {
    if text.len() < SHORT && mask::is_ascii_short(text) {
        return Ok(());
    }
    whole(push(0, text)?)
}

/// Unmasks one whole text in place and validates it in the same pass.
///
/// # Errors
/// [`InvalidUtf8`] when it is not UTF-8, or ends within a code point; it is then partly unmasked.
#[inline]
pub fn unmask_validate(text: &mut [u8], key: MaskKey) -> Result<(), InvalidUtf8> {
    if text.len() >= SHORT {
        whole(push_masked(0, text, key.word())?)
    } else if mask::apply_short(text, key.word()) {
        Ok(())
    } else {
        whole(push(0, text)?)
    }
}

/// Validates one whole text and lends it as such.
///
/// # Errors
/// As [`validate`].
#[inline]
#[allow(unsafe_code)]
pub fn text(bytes: &[u8]) -> Result<&str, InvalidUtf8> {
    validate(bytes)?;
    // SAFETY: `validate` has just found these bytes, which are borrowed since, to be UTF-8.
    Ok(unsafe { core::str::from_utf8_unchecked(bytes) })
}

/// Unmasks one whole text in place, validates it in the same pass and lends it as such.
///
/// # Errors
/// As [`unmask_validate`].
#[inline]
#[allow(unsafe_code)]
pub fn unmask_text(bytes: &mut [u8], key: MaskKey) -> Result<&mut str, InvalidUtf8> {
    unmask_validate(bytes, key)?;
    // SAFETY: `unmask_validate` has just found these bytes, which are borrowed since, to be UTF-8.
    Ok(unsafe { core::str::from_utf8_unchecked_mut(bytes) })
}

#[inline]
fn whole(partial: u32) -> Result<(), InvalidUtf8> {
    if partial == 0 { Ok(()) } else { Err(InvalidUtf8) }
}

/// Judges a piece after `partial`; returns what it leaves incomplete.
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

/// Judges a piece that may begin within a code point.
#[cold]
fn push_after(partial: u32, piece: &[u8]) -> Result<u32, InvalidUtf8> {
    let (partial, settled) = scalar::settle(partial, piece)?;
    if settled == piece.len() { Ok(partial) } else { push(partial, &piece[settled..]) }
}

/// Unmasks and judges a piece after `partial`; returns what it leaves incomplete.
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

/// Unmasks and judges a piece that may begin within a code point.
#[cold]
fn push_masked_after(partial: u32, piece: &mut [u8], key: u32) -> Result<u32, InvalidUtf8> {
    let head = piece.len().min(4);
    mask::apply_short(&mut piece[..head], key);
    let (partial, settled) = scalar::settle(partial, &piece[..head])?;
    let key_after = mask::turned(key, settled);
    // What follows the settled bytes is masked again, to be unmasked with its neighbours.
    mask::apply_short(&mut piece[settled..head], key_after);
    if settled == piece.len() { Ok(partial) } else { push_masked(partial, &mut piece[settled..], key_after) }
}

#[cfg(test)]
mod tests;
