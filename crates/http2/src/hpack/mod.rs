//! HPACK, the compression of fields (RFC 7541).
//!
//! Owns [`Decoder`] and [`Encoder`], each with its dynamic table, and the Huffman code. Refuses to own frames (a block
//! comes and goes whole, CONTINUATION joined) and what fields mean; characters are checked here once, because an
//! entry of the table that was found valid need not be looked at again.
//!
//! [`huffman`], [`integer`] and the static table are open to those whose dynamic table holds something else than bytes: the
//! objects of another language.
//!
//! ```
//! use wireloom_http2::field::{Field, FieldLimits, FieldList, Token};
//! use wireloom_http2::hpack::{Decoder, Encoder};
//!
//! let mut block = Vec::new();
//! Encoder::new().encode([Field::known(Token::Method, b"GET"), Field::new(b"x-trace", b"1f2e")], &mut block);
//!
//! let mut fields = FieldList::new();
//! Decoder::new(4096).decode(&block, &FieldLimits::default(), &mut fields)?;
//! assert_eq!(fields.get(1), Some(Field::new(b"x-trace", b"1f2e")));
//! # Ok::<(), wireloom_http2::hpack::DecodeError>(())
//! ```

mod decoder;
mod dynamic_table;
mod encoder;
mod error;
pub mod huffman;
mod huffman_table;
pub mod integer;
mod static_table;

pub use decoder::Decoder;
pub use encoder::{Encoder, HuffmanPolicy, IndexPolicy};
pub use error::DecodeError;
pub(crate) use static_table::STATIC_TABLE;
pub use static_table::{
    LEN as STATIC_LEN, find as static_find, get as static_get, name_index as static_name_index,
};

/// The size of the dynamic table before any SETTINGS (RFC 9113 §6.5.2), in bytes as RFC 7541 §4.1 counts them.
pub const TABLE_SIZE_DEFAULT: u32 = 4096;
