//! Decoding of field blocks (RFC 7541 §3.2 and §6).
//!
//! [`Decoder`] owns the dynamic table of the receiving side. It also makes the checks of RFC 9113 §8.2.1, once for each string.
//! A field that fails them is stored, and its list is marked as malformed. A list that exceeds its limits is not stored any
//! further. In both cases the rest of the block is decoded, so that the table stays equal to the peer's and only the stream fails.

use super::dynamic_table::{DynamicTable, SIZE_LIMIT};
use super::static_table::{LEN as STATIC_LEN, STATIC_TABLE};
use super::{DecodeError, huffman, integer};
use crate::field::{FieldLimits, FieldList, Malformed, Token, check_name, check_value, check_value_edges};

/// Decodes field blocks; owns the dynamic table of a receiver.
///
/// After an error the table may differ from the peer's. The connection must end, and no further block can be decoded.
pub struct Decoder {
    table: DynamicTable<()>,
    /// The size that this side's SETTINGS allow: `table.size_max() <= size_limit`, unless a size update is due.
    size_limit: u32,
    /// The smallest limit since the last block, if it is below the peer's size: the next block has to begin with a size update.
    update_due: Option<u32>,
}

impl Decoder {
    /// A decoder whose table has this maximum size at first: [`super::TABLE_SIZE_DEFAULT`] in HTTP/2.
    pub const fn new(table_size_max: u32) -> Self {
        Self { table: DynamicTable::new(table_size_max), size_limit: table_size_max, update_due: None }
    }

    /// Changes SETTINGS_HEADER_TABLE_SIZE. Call it when the peer has acknowledged the setting (RFC 9113 §4.3.1). If the table
    /// has to shrink, the next block must begin with a size update.
    pub fn set_table_size_max(&mut self, table_size_max: u32) {
        self.size_limit = table_size_max;
        if (table_size_max as usize) < self.table.size_max() {
            self.update_due = Some(self.update_due.map_or(table_size_max, |due| due.min(table_size_max)));
        }
    }

    /// The maximum size that the peer's encoder has chosen, in bytes as RFC 7541 §4.1 counts them.
    pub fn table_size_max(&self) -> usize {
        self.table.size_max()
    }

    /// Clears `out` and decodes a complete block into it.
    ///
    /// Check [`FieldList::malformed`] and [`FieldList::too_large`] afterwards.
    ///
    /// # Errors
    /// The block violates RFC 7541 or is a decompression bomb. Both are connection errors.
    pub fn decode(
        &mut self,
        block: &[u8],
        limits: &FieldLimits,
        out: &mut FieldList,
    ) -> Result<(), DecodeError> {
        out.clear();
        let mut rest = block;
        self.size_updates(&mut rest)?;
        while let Some((&first, after)) = rest.split_first() {
            rest = after;
            if first & 0x80 != 0 {
                // RFC 7541 §6.1: indexed field.
                let index = integer::decode(first, 0x7f, &mut rest)?;
                self.indexed(index, limits, out)?;
            } else if first & 0x40 != 0 {
                // RFC 7541 §6.2.1: literal with incremental indexing.
                let index = integer::decode(first, 0x3f, &mut rest)?;
                self.literal(index, true, false, &mut rest, limits, out)?;
            } else if first & 0x20 != 0 {
                // RFC 7541 §4.2: an update MUST occur at the beginning of the block.
                return Err(DecodeError::SizeUpdateMisplaced);
            } else {
                // RFC 7541 §6.2.2 and §6.2.3: literal without indexing, or never indexed.
                let index = integer::decode(first, 0x0f, &mut rest)?;
                self.literal(index, false, first & 0x10 != 0, &mut rest, limits, out)?;
            }
            if out.is_bomb(limits) {
                return Err(DecodeError::ListTooLarge);
            }
        }
        Ok(())
    }

    /// Decodes the size updates at the beginning of a block (RFC 7541 §6.3).
    fn size_updates(&mut self, rest: &mut &[u8]) -> Result<(), DecodeError> {
        while let Some((&first, after)) = rest.split_first()
            && first & 0xe0 == 0x20
        {
            *rest = after;
            let size_max = integer::decode(first, 0x1f, rest)?;
            // RFC 7541 §6.3: the new size MUST be lower than or equal to the limit.
            if size_max > self.size_limit.min(SIZE_LIMIT) {
                return Err(DecodeError::SizeUpdateTooLarge);
            }
            // RFC 7541 §4.2: of several changes the smallest MUST be signalled, and first.
            if self.update_due.take().is_some_and(|due| size_max > due) {
                return Err(DecodeError::SizeUpdateMissing);
            }
            self.table.set_size_max(size_max);
        }
        // RFC 9113 §4.3.1: a block without a required update is a COMPRESSION_ERROR.
        if self.update_due.is_some() { Err(DecodeError::SizeUpdateMissing) } else { Ok(()) }
    }

    fn indexed(&mut self, index: u32, limits: &FieldLimits, out: &mut FieldList) -> Result<(), DecodeError> {
        if index == 0 {
            return Err(DecodeError::IndexZero);
        }
        if let Some(entry) = STATIC_TABLE.get(index as usize - 1) {
            if out.admit(entry.token.name().len() + entry.value.len() + 32, limits) {
                out.push_static(entry.token, entry.value);
            }
            return Ok(());
        }
        let entry = self.table.get(index - STATIC_LEN as u32 - 1).ok_or(DecodeError::IndexTooLarge)?;
        if entry.flags != 0 {
            out.set_malformed(Malformed::from_flags(entry.flags));
        }
        if out.admit(entry.name_len() + entry.value.len() + 32, limits) {
            let (name_len, value_len) = (entry.name.len(), entry.value.len());
            let room = &mut out.scratch(name_len + value_len)[..name_len + value_len];
            let (name_room, value_room) = room.split_at_mut(name_len);
            name_room.copy_from_slice(entry.name);
            value_room.copy_from_slice(entry.value);
            out.push_scratch(entry.token, name_len, value_len, false);
        }
        Ok(())
    }

    fn literal(
        &mut self,
        name_index: u32,
        is_indexed: bool,
        sensitive: bool,
        rest: &mut &[u8],
        limits: &FieldLimits,
        out: &mut FieldList,
    ) -> Result<(), DecodeError> {
        // Name and value are written to the scratch memory of the list. The name is copied from the table before its entry may
        // be evicted for the new one (RFC 7541 §4.4).
        let mut name_error = None;
        let (token, name_len) = if name_index == 0 {
            let (len, valid) = string(rest, out, 0)?;
            let name = &out.scratch(len)[..len];
            match Token::of(name) {
                Token::Unknown => {
                    if !valid.as_name || len == 0 {
                        name_error = check_name(name).err();
                    }
                    (Token::Unknown, len)
                }
                token => (token, 0),
            }
        } else if let Some(entry) = STATIC_TABLE.get(name_index as usize - 1) {
            (entry.token, 0)
        } else {
            let entry =
                self.table.get(name_index - STATIC_LEN as u32 - 1).ok_or(DecodeError::IndexTooLarge)?;
            if entry.flags & NAME_FLAGS != 0 {
                name_error = Some(Malformed::from_flags(entry.flags & NAME_FLAGS));
            }
            out.scratch(entry.name.len())[..entry.name.len()].copy_from_slice(entry.name);
            (entry.token, entry.name.len())
        };
        let (value_len, valid) = string(rest, out, name_len)?;
        let both = &out.scratch(name_len + value_len)[..name_len + value_len];
        let (name, value) = both.split_at(name_len);
        let value_error = match valid.as_value {
            true => check_value_edges(value).err(),
            false => check_value(value).err(),
        };
        if is_indexed {
            let flags = name_error.map_or(0, Malformed::flag) | value_error.map_or(0, Malformed::flag);
            self.table.insert(token, name, value, flags, ());
        }
        if let Some(malformed) = name_error.or(value_error) {
            out.set_malformed(malformed);
        }
        if out.admit(token.name().len() + name_len + value_len + 32, limits) {
            out.push_scratch(token, name_len, value_len, sensitive);
        }
        Ok(())
    }
}

/// The results of the character checks that Huffman decoding makes; `false` if the string has to be checked.
struct Valid {
    as_name: bool,
    as_value: bool,
}

const NAME_FLAGS: u8 = Malformed::NameEmpty.flag() | Malformed::NameCharacter.flag();

/// Decodes a string literal (RFC 7541 §5.2) into the scratch memory of the list, from `at` on.
fn string(rest: &mut &[u8], out: &mut FieldList, at: usize) -> Result<(usize, Valid), DecodeError> {
    let (&first, after) = rest.split_first().ok_or(DecodeError::Truncated)?;
    *rest = after;
    let len = integer::decode(first, 0x7f, rest)? as usize;
    let (bytes, after) = rest.split_at_checked(len).ok_or(DecodeError::Truncated)?;
    *rest = after;
    if first & 0x80 == 0 {
        out.scratch(at + len)[at..at + len].copy_from_slice(bytes);
        return Ok((len, Valid { as_name: false, as_value: false }));
    }
    let room = &mut out.scratch(at + huffman::decoded_len_max(len))[at..];
    let decoded = huffman::decode(bytes, room)?;
    Ok((decoded.len, Valid { as_name: decoded.is_name(), as_value: decoded.is_value() }))
}
