//! Blocks of any bytes into the HPACK decoder, one after another on one table: bounds are kept, and what was accepted
//! comes back the same through the encoder.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wireloom_http2::field::{FieldLimits, FieldList};
use wireloom_http2::hpack::{Decoder, Encoder};

fuzz_target!(|input: (u16, u16, u8, Vec<&[u8]>)| {
    let (table_size, list_size_max, fields_max, blocks) = input;
    let limits = FieldLimits::new(u32::from(list_size_max), usize::from(fields_max));
    let mut decoder = Decoder::new(u32::from(table_size));
    let mut list = FieldList::new();
    let (mut encoder, mut second) = (Encoder::new(), Decoder::new(4096));
    let (mut block_again, mut again) = (Vec::new(), FieldList::new());
    for (n, block) in blocks.iter().enumerate() {
        if n % 3 == 2 {
            // The limit moves up and down; a block that does not follow is refused.
            decoder.set_table_size_max(u32::from(table_size) >> (n % 5));
        }
        if decoder.decode(block, &limits, &mut list).is_err() {
            return;
        }
        assert!(list.len() <= limits.fields_max);
        assert!(decoder.table_size_max() <= usize::from(table_size));
        let stored: usize = list.iter().map(|field| field.list_size()).sum();
        assert!(stored <= limits.list_size_max as usize);
        assert_eq!(list.too_large(), stored < list.list_size());
        if list.malformed().is_none() {
            assert!(list.iter().all(|field| field.check().is_ok()), "{list:?}");
        }

        block_again.clear();
        encoder.encode(&list, &mut block_again);
        second.decode(&block_again, &FieldLimits::new(u32::MAX, usize::MAX), &mut again).expect("own block");
        assert!(
            list.iter()
                .map(|field| (field.name(), field.value()))
                .eq(again.iter().map(|field| (field.name(), field.value())))
        );
    }
});
