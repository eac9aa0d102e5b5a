//! Errors of fields, before they become exceptions of a class that depends on the caller.

use std::borrow::Cow;
use std::collections::TryReserveError;

use wireloom_http2::hpack::DecodeError;

/// Why fields cannot be decoded or encoded.
#[derive(Debug)]
pub(crate) enum HeaderError {
    /// The block breaks RFC 7541; without a message where the original of the drop-in has none.
    Compression(Option<Cow<'static, str>>),
    /// A field that RFC 9113 refuses.
    Field(Cow<'static, str>),
    /// A value that is no number: `ArgumentError`.
    Argument(String),
    /// An object that is no header: `TypeError`.
    Type(&'static str),
    /// `NoMemoryError`.
    NoMemory,
}

impl HeaderError {
    pub(crate) const fn compression(message: &'static str) -> Self {
        Self::Compression(Some(Cow::Borrowed(message)))
    }
}

impl From<TryReserveError> for HeaderError {
    fn from(_: TryReserveError) -> Self {
        Self::NoMemory
    }
}

impl From<DecodeError> for HeaderError {
    fn from(error: DecodeError) -> Self {
        Self::compression(match error {
            DecodeError::HuffmanEos => "Huffman decode error (EOS found)",
            DecodeError::HuffmanPadding => "Huffman decode error (EOS invalid)",
            _ => "invalid header block fragment",
        })
    }
}
