//! [`DecodeError`]: the errors of field blocks.

/// A block cannot be decoded. The tables of the two ends may differ from then on, so it is a connection error: COMPRESSION_ERROR
/// (RFC 9113 §4.3), or ENHANCE_YOUR_CALM for [`DecodeError::ListTooLarge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecodeError {
    /// The block ends inside a field (RFC 7541 §5).
    Truncated,
    /// An integer does not fit in 32 bits, or has too many octets (RFC 7541 §5.1).
    IntegerOverflow,
    /// Index 0, which is not used (RFC 7541 §6.1).
    IndexZero,
    /// An index beyond both tables (RFC 7541 §2.3.3).
    IndexTooLarge,
    /// A Huffman string contains the symbol EOS (RFC 7541 §5.2).
    HuffmanEos,
    /// A Huffman string ends in more than 7 bits of padding, or in padding that is not the start of EOS (RFC 7541
    /// §5.2).
    HuffmanPadding,
    /// A table size update above SETTINGS_HEADER_TABLE_SIZE (RFC 7541 §6.3).
    SizeUpdateTooLarge,
    /// A table size update after a field (RFC 7541 §4.2).
    SizeUpdateMisplaced,
    /// A block does not begin with a size update although SETTINGS reduced the table (RFC 7541 §4.2).
    SizeUpdateMissing,
    /// A limit of this side: the list is several times larger than SETTINGS_MAX_HEADER_LIST_SIZE.
    ListTooLarge,
}

impl DecodeError {
    /// Whether a limit of this side was exceeded; otherwise the peer violated RFC 7541.
    pub const fn is_limit(self) -> bool {
        matches!(self, Self::ListTooLarge)
    }
}

impl core::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Truncated => "field block ends inside a field",
            Self::IntegerOverflow => "HPACK integer is too large",
            Self::IndexZero => "HPACK index is zero",
            Self::IndexTooLarge => "HPACK index is beyond the tables",
            Self::HuffmanEos => "Huffman string contains EOS",
            Self::HuffmanPadding => "Huffman string has invalid padding",
            Self::SizeUpdateTooLarge => "table size update is above the limit",
            Self::SizeUpdateMisplaced => "table size update follows a field",
            Self::SizeUpdateMissing => "table size update is missing after SETTINGS",
            Self::ListTooLarge => "field list is far beyond the limit",
        })
    }
}

impl core::error::Error for DecodeError {}
