//! HPACK blocks into the decoders of Wireloom and nghttp2: the same fields, and the same blocks refused. No difference is
//! allowed.

use wireloom_http2::field::{FieldLimits, FieldList};
use wireloom_http2::hpack::Decoder;

use crate::differential::Fields;
use crate::nghttp2::Inflater;

/// Decodes blocks one after another. Each comes with the limit of the table that this side announced before it.
///
/// # Panics
/// The decoders differ.
pub fn compare_blocks<'a>(blocks: impl IntoIterator<Item = (Option<u16>, &'a [u8])>) {
    let (mut ours, mut theirs) = (Decoder::new(4096), Inflater::new());
    let limits = FieldLimits::new(u32::MAX, usize::MAX);
    let mut list = FieldList::new();
    for (table_size_max, block) in blocks {
        if let Some(size) = table_size_max {
            ours.set_table_size_max(u32::from(size));
            theirs.set_table_size_max(u32::from(size));
        }
        let accepted = ours.decode(block, &limits, &mut list);
        let expected = theirs.decode(block);
        assert_eq!(accepted.is_ok(), expected.is_some(), "{accepted:?}, {expected:?}: {block:02x?}");
        let Some(expected) = expected else { return };
        let fields: Fields =
            list.iter().map(|field| (field.name().to_vec(), field.value().to_vec())).collect();
        assert_eq!(fields, expected, "{block:02x?}");
    }
}
