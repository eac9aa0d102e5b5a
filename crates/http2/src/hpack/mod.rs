//! HPACK, the compression of fields (RFC 7541).
//!
//! [`Decoder`] and [`Encoder`] each own a dynamic table. They process complete field blocks: the connection joins and splits
//! CONTINUATION frames. The decoder also checks the characters of names and values, so that each table entry is checked once.
//!
//! [`huffman`], [`integer`] and the static table are public for encoders and decoders with a dynamic table of their own, for
//! example one that contains the objects of another language.
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
pub use static_table::{
    LEN as STATIC_LEN, find as static_find, get as static_get, name_index as static_name_index,
};

/// The initial size of the dynamic table (RFC 9113 §6.5.2), in bytes as RFC 7541 §4.1 counts them.
pub const TABLE_SIZE_DEFAULT: u32 = 4096;
