//! Any fields through the HPACK encoder, under every policy and with tables that change their size: the decoder gives
//! back the same, and what was marked as a secret stays marked.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wireloom_http2::field::{Field, FieldLimits, FieldList};
use wireloom_http2::hpack::{Decoder, Encoder, HuffmanPolicy, IndexPolicy};

/// The action before a block, and the block: names, values, whether they are secrets.
type Step<'a> = (u8, u16, Vec<(&'a [u8], &'a [u8], bool)>);

fuzz_target!(|steps: Vec<Step<'_>>| {
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new(4096));
    encoder.set_table_size_local(u32::from(u16::MAX));
    let limits = FieldLimits::new(u32::MAX, usize::MAX);
    let (mut block, mut list) = (Vec::new(), FieldList::new());
    let mut before: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for (action, size, fields) in steps {
        match action % 8 {
            0 => {
                // SETTINGS of the receiving side, acknowledged: both ends follow.
                decoder.set_table_size_max(u32::from(size));
                encoder.set_table_size_max(u32::from(size));
            }
            1 => encoder.set_table_size_local(u32::from(size)),
            2 => encoder.set_index_policy(IndexPolicy::All),
            3 => encoder.set_index_policy(IndexPolicy::Static),
            4 => encoder.set_index_policy(IndexPolicy::Repeating),
            5 => encoder.set_huffman_policy(HuffmanPolicy::Always),
            6 => encoder.set_huffman_policy(HuffmanPolicy::Never),
            _ => encoder.set_huffman_policy(HuffmanPolicy::Shorter),
        }
        // Repeated fields are what the table is for: the block of before comes once more, in front.
        let sent: Vec<Field<'_>> = before
            .iter()
            .map(|(name, value)| Field::new(name, value))
            .chain(fields.iter().map(|&(name, value, secret)| Field::new(name, value).with_sensitive(secret)))
            .collect();
        block.clear();
        encoder.encode(sent.iter().copied(), &mut block);
        decoder.decode(&block, &limits, &mut list).expect("own block");
        assert_eq!(list.len(), sent.len());
        for (got, sent) in list.iter().zip(&sent) {
            assert_eq!((got.name(), got.value(), got.token()), (sent.name(), sent.value(), sent.token()));
            assert!(got.is_sensitive() || !sent.is_sensitive());
        }
        before = fields.iter().map(|&(name, value, _)| (name.to_vec(), value.to_vec())).collect();
    }
});
