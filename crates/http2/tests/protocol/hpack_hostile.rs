//! Invalid and hostile HPACK blocks: each is a connection error or a stream error.

use wireloom_http2::field::{Field, FieldLimits, FieldList, Malformed, Token};
use wireloom_http2::hpack::{DecodeError, Decoder, Encoder, HuffmanPolicy, IndexPolicy};
use wireloom_testing::rounds;

fn decode(block: &[u8]) -> Result<FieldList, DecodeError> {
    let mut list = FieldList::new();
    Decoder::new(4096).decode(block, &FieldLimits::default(), &mut list).map(|()| list)
}

#[test]
fn refuses_invalid_blocks() {
    let cases: &[(&[u8], DecodeError, &str)] = &[
        (b"\x80", DecodeError::IndexZero, "RFC 7541 §6.1: index 0 MUST be refused"),
        (b"\xbe", DecodeError::IndexTooLarge, "RFC 7541 §2.3.3: beyond both tables MUST be refused"),
        (b"\xff\xff\xff\xff\x0f", DecodeError::IndexTooLarge, "the largest index"),
        (b"\x7f\x00\x01a", DecodeError::IndexTooLarge, "a name beyond both tables"),
        (b"\x0f\xff\xff\xff\xff\x0f\x01a", DecodeError::IntegerOverflow, "RFC 7541 §5.1: value too large"),
        (b"\xff\x80\x80\x80\x80\x80\x00", DecodeError::IntegerOverflow, "RFC 7541 §5.1: too many octets"),
        (b"\xff", DecodeError::Truncated, "an index cut off"),
        (b"\xff\x80", DecodeError::Truncated, "an index cut off later"),
        (b"\x40", DecodeError::Truncated, "no name"),
        (b"\x40\x01", DecodeError::Truncated, "a name cut off"),
        (b"\x40\x01a", DecodeError::Truncated, "no value"),
        (b"\x41\x02a", DecodeError::Truncated, "a value cut off"),
        (b"\x41\x7f", DecodeError::Truncated, "a length cut off"),
        (b"\x41\x7f\xff\xff\xff\xff\x07", DecodeError::Truncated, "a length beyond the block, not reserved"),
        (b"\x00\x01a\xff\xff\xff\xff\xff\x07", DecodeError::Truncated, "the same, Huffman"),
        (b"\x41\x84\xff\xff\xff\xff", DecodeError::HuffmanEos, "RFC 7541 §5.2: EOS MUST be refused"),
        (b"\x41\x81\xff", DecodeError::HuffmanPadding, "RFC 7541 §5.2: padding over 7 bits MUST be refused"),
        (b"\x41\x81\x18", DecodeError::HuffmanPadding, "RFC 7541 §5.2: padding MUST be the start of EOS"),
        (b"\x40\x81\x18\x01a", DecodeError::HuffmanPadding, "the same in a name"),
        (b"\x3f\xe2\x1f", DecodeError::SizeUpdateTooLarge, "RFC 7541 §6.3: 4097 MUST be refused"),
        (b"\x3f\xff\xff\xff\xff\x0f", DecodeError::IntegerOverflow, "an update that overflows"),
        (b"\x82\x20", DecodeError::SizeUpdateMisplaced, "RFC 7541 §4.2: an update MUST come first"),
        (b"\x20\x82\x3f\xe1\x1f", DecodeError::SizeUpdateMisplaced, "the same after a valid one"),
    ];
    for (block, error, why) in cases {
        assert_eq!(decode(block).map(|_| ()), Err(*error), "{why}");
        assert!(!error.is_limit(), "{why}");
    }
    // At the bound: 4096 is allowed, and two updates are.
    assert_eq!(decode(b"\x20\x3f\xe1\x1f\x82").map(|list| list.len()), Ok(1));
}

#[test]
fn every_prefix_of_a_block_is_decoded_or_refused() {
    let mut block = Vec::new();
    Encoder::new().encode(
        [
            Field::new(b":path", b"/a/long/path?with=query"),
            Field::new(b"x-custom-name", &[b'v'; 300]),
            Field::new(b"authorization", b"Basic Og=="),
            Field::new(b"x-bytes", &[0xe2, 0x82, 0xac]),
        ],
        &mut block,
    );
    let whole = (0..block.len()).filter(|&len| decode(&block[..len]).is_ok()).count();
    // The empty block and the ends of the first three fields.
    assert_eq!(whole, 4);
}

#[test]
fn an_invalid_field_does_not_affect_the_table() {
    // RFC 9113 §8.2.1: MUST be treated as malformed, which §8.1.1 makes a stream error.
    let cases: &[(&[u8], &[u8], Malformed)] = &[
        (b"", b"v", Malformed::NameEmpty),
        (b"Name", b"v", Malformed::NameCharacter),
        (b"na me", b"v", Malformed::NameCharacter),
        (b"na:me", b"v", Malformed::NameCharacter),
        (b"n\xc3\xa4me", b"v", Malformed::NameCharacter),
        (b"name", b"v\r\nx: y", Malformed::ValueCharacter),
        (b"name", b"v\0", Malformed::ValueCharacter),
        (b"name", b" v", Malformed::ValueWhitespace),
        (b"name", b"v\t", Malformed::ValueWhitespace),
        (b"referer", b"\n", Malformed::ValueCharacter),
    ];
    for &(name, value, malformed) in cases {
        for policy in [HuffmanPolicy::Never, HuffmanPolicy::Always] {
            let mut encoder = Encoder::new();
            encoder.set_huffman_policy(policy);
            let mut decoder = Decoder::new(4096);
            let mut list = FieldList::new();
            let bad = Field::new(name, value);
            assert_eq!(bad.check(), Err(malformed));
            // Literal, then from the table, then its name alone from the table, beside good fields.
            for block in [[bad, Field::new(b"x-good", b"1")], [bad, Field::new(b"x-good", b"2")]] {
                let mut wire = Vec::new();
                encoder.encode(block, &mut wire);
                decoder.decode(&wire, &FieldLimits::default(), &mut list).unwrap();
                assert_eq!(list.malformed(), Some(malformed), "{bad:?}");
                assert_eq!(list.iter().collect::<Vec<_>>(), block);
            }
            let mut wire = Vec::new();
            encoder.encode([Field::new(b"x-good", b"2")], &mut wire);
            decoder.decode(&wire, &FieldLimits::default(), &mut list).unwrap();
            assert_eq!((list.malformed(), list.len()), (None, 1));

            let mut wire = Vec::new();
            encoder.encode([Field::new(name, b"good").with_sensitive(true)], &mut wire);
            decoder.decode(&wire, &FieldLimits::default(), &mut list).unwrap();
            let name_is_bad = matches!(malformed, Malformed::NameEmpty | Malformed::NameCharacter);
            assert_eq!(list.malformed(), name_is_bad.then_some(malformed));
        }
    }
}

#[test]
fn a_required_size_update_must_not_be_missing() {
    let mut list = FieldList::new();
    let limits = FieldLimits::default();
    // RFC 9113 §4.3.1: after the reduction was acknowledged, a block without an update is a COMPRESSION_ERROR.
    for block in [&b"\x82"[..], b"", b"\x3f\xe1\x07\x82"] {
        let mut decoder = Decoder::new(4096);
        decoder.set_table_size_max(1000);
        // 1024 is above the limit; the others do not begin with an update.
        let error = if block.first() == Some(&0x3f) {
            DecodeError::SizeUpdateTooLarge
        } else {
            DecodeError::SizeUpdateMissing
        };
        assert_eq!(decoder.decode(block, &limits, &mut list), Err(error));
    }
    // RFC 7541 §4.2: shrunk and grown again, the smallest size MUST be signalled.
    let mut decoder = Decoder::new(4096);
    decoder.set_table_size_max(100);
    decoder.set_table_size_max(4096);
    assert_eq!(decoder.decode(b"\x3f\xe1\x1f\x82", &limits, &mut list), Err(DecodeError::SizeUpdateMissing));
    let mut decoder = Decoder::new(4096);
    decoder.set_table_size_max(100);
    decoder.set_table_size_max(4096);
    assert_eq!(decoder.decode(b"\x3f\x45\x3f\xe1\x1f\x82", &limits, &mut list), Ok(()));
    assert_eq!(decoder.table_size_max(), 4096);
    // No update is required again, nor for a larger limit.
    assert_eq!(decoder.decode(b"\x82", &limits, &mut list), Ok(()));
    decoder.set_table_size_max(65_536);
    assert_eq!(decoder.decode(b"\x82", &limits, &mut list), Ok(()));
    assert_eq!(decoder.table_size_max(), 4096);
    assert_eq!(decoder.decode(b"\x3f\xe1\xff\x03\x82", &limits, &mut list), Ok(()));
    assert_eq!(decoder.table_size_max(), 65_536);
}

#[test]
fn the_encoder_sends_size_updates() {
    let mut encoder = Encoder::new();
    let mut decoder = Decoder::new(4096);
    let mut list = FieldList::new();
    let field = Field::new(b"x-name", b"some value");
    let mut exchange = |sizes: &[u32], first: &[u8]| {
        let mut wire = Vec::new();
        for &size in sizes {
            encoder.set_table_size_max(size);
            decoder.set_table_size_max(size);
        }
        encoder.encode([field], &mut wire);
        assert!(wire.starts_with(first), "{wire:02x?}");
        decoder.decode(&wire, &FieldLimits::default(), &mut list).unwrap();
        assert_eq!(list.get(0), Some(field));
        assert_eq!(encoder.table_size_max(), decoder.table_size_max());
    };
    exchange(&[], b"\x40");
    exchange(&[], b"\xbe");
    // RFC 7541 §4.2: the smallest, then the final size; the table was emptied on the way.
    exchange(&[0, 4096], b"\x20\x3f\xe1\x1f\x40");
    exchange(&[100], b"\x3f\x45\xbe");
    exchange(&[0], b"\x20\x00");
    exchange(&[], b"\x00");
    // The local limit applies even if the peer allows more.
    exchange(&[65_536], b"\x3f\xe1\x1f\x40");
    exchange(&[4096, 100_000], b"\xbe");
}

#[test]
fn sensitive_fields_are_never_indexed_nor_when_forwarded() {
    // RFC 7541 §6.2.3 and §7.1.3.
    let cases = [
        (Field::new(b"authorization", b"Bearer 0123456789abcdef0123456789abcdef"), true),
        (Field::new(b"proxy-authorization", b"Basic dXNlcjpwYXNz"), true),
        (Field::new(b"cookie", b"id=0123456789abcdef"), true),
        (Field::new(b"cookie", b"id=0123456789abcdef0"), false),
        (Field::new(b"x-token", b"hunter2").with_sensitive(true), true),
        (Field::new(b":method", b"GET").with_sensitive(true), true),
        (Field::new(b"x-token", b"hunter2"), false),
    ];
    for (field, secret) in cases {
        let (mut near, mut far) = (Encoder::new(), Encoder::new());
        near.set_index_policy(IndexPolicy::All);
        let mut decoder = Decoder::new(4096);
        let mut list = FieldList::new();
        for _ in 0..2 {
            let mut wire = Vec::new();
            near.encode([field], &mut wire);
            assert_eq!(wire[0] & 0xf0 == 0x10, secret, "{field:?}");
            decoder.decode(&wire, &FieldLimits::default(), &mut list).unwrap();
            let received = list.get(0).unwrap();
            assert_eq!((received.value(), received.is_sensitive()), (field.value(), secret));
            let mut forwarded = Vec::new();
            far.encode(&list, &mut forwarded);
            assert_eq!(forwarded[0] & 0xf0 == 0x10, secret, "forwarded {field:?}");
        }
    }
}

#[test]
fn a_list_that_is_too_large_is_decoded_but_not_stored() {
    let limits = FieldLimits::new(1000, 10);
    let mut decoder = Decoder::new(4096);
    let mut encoder = Encoder::new();
    let mut list = FieldList::new();
    let mut decode = |fields: &[Field<'_>], list: &mut FieldList| {
        let mut wire = Vec::new();
        encoder.encode(fields.iter().copied(), &mut wire);
        decoder.decode(&wire, &limits, list)
    };
    // RFC 9113 §10.5.1 and §6.5.2: at the bound, and one byte above.
    let at_bound = [Field::new(b"x-large", &[b'v'; 1000 - 39])];
    assert_eq!(decode(&at_bound, &mut list), Ok(()));
    assert_eq!((list.list_size(), list.len(), list.too_large()), (1000, 1, false));
    let above = [Field::new(b"x-large", &[b'w'; 1001 - 39]), Field::new(b"x-after", b"kept in the table")];
    assert_eq!(decode(&above, &mut list), Ok(()));
    assert_eq!((list.len(), list.too_large()), (0, true));
    assert_eq!(decode(&above[1..], &mut list), Ok(()));
    assert_eq!((list.get(0), list.too_large()), (Some(above[1]), false));

    let many = [Field::known(Token::Via, b""); 11];
    assert_eq!(decode(&many[..10], &mut list), Ok(()));
    assert_eq!((list.len(), list.too_large()), (10, false));
    assert_eq!(decode(&many, &mut list), Ok(()));
    assert_eq!((list.len(), list.too_large()), (10, true));
}

#[test]
fn a_bomb_is_an_error_at_four_times_the_limit() {
    let limits = FieldLimits::new(64 * 1024, 512);
    let mut decoder = Decoder::new(4096);
    let mut list = FieldList::new();
    // One entry that fills the table, then references to it at one byte each.
    let mut block = vec![0x40, 0x01, b'n', 0x7f];
    let value_len = 4096 - 33;
    block.extend([(value_len - 127) as u8 & 0x7f | 0x80, ((value_len - 127) >> 7) as u8]);
    block.extend(vec![b'v'; value_len]);
    let head = block.len();
    block.resize(head + 63, 0xbe);
    assert_eq!(decoder.decode(&block, &limits, &mut list), Ok(()));
    assert_eq!((list.list_size(), list.too_large()), (64 * 4096, true));
    block.push(0xbe);
    assert_eq!(decoder.decode(&block, &limits, &mut list), Err(DecodeError::ListTooLarge));
    assert!(DecodeError::ListTooLarge.is_limit());
    // The stored fields are within the limit for a block of any length.
    block.resize(head + 1_000_000, 0xbe);
    assert_eq!(decoder.decode(&block, &limits, &mut list), Err(DecodeError::ListTooLarge));
    assert!(list.iter().map(|field| field.list_size()).sum::<usize>() <= 64 * 1024);
}

#[test]
fn colliding_names_take_no_more_time() {
    // The same name with many values makes one long chain, but look-ups are bounded.
    let mut encoder = Encoder::new();
    encoder.set_table_size_local(1 << 22);
    encoder.set_table_size_max(1 << 22);
    encoder.set_index_policy(IndexPolicy::All);
    let mut decoder = Decoder::new(1 << 22);
    let mut list = FieldList::new();
    for round in 0..20_000_u32 {
        let mut wire = Vec::new();
        let value = round.to_string();
        encoder.encode([Field::new(b"x-same", value.as_bytes())], &mut wire);
        decoder.decode(&wire, &FieldLimits::default(), &mut list).unwrap();
        assert_eq!(list.get(0), Some(Field::new(b"x-same", value.as_bytes())));
        assert!(wire.len() < 16, "the name is not sent again");
    }
}

#[test]
fn random_fields_are_decoded_as_they_were_encoded() {
    rounds(300, |random| {
        let mut encoder = Encoder::new();
        let mut decoder = Decoder::new(4096);
        let mut list = FieldList::new();
        encoder.set_table_size_local(1 << 16);
        for _ in 0..random.usize(1..30) {
            match random.u8(..12) {
                0 => {
                    let size = *random.pick(&[0, 40, 200, 4096, 30_000]);
                    encoder.set_table_size_max(size);
                    decoder.set_table_size_max(size);
                }
                1 => encoder.set_index_policy(*random.pick(&[
                    IndexPolicy::All,
                    IndexPolicy::Repeating,
                    IndexPolicy::Static,
                ])),
                2 => encoder.set_huffman_policy(*random.pick(&[
                    HuffmanPolicy::Always,
                    HuffmanPolicy::Shorter,
                    HuffmanPolicy::Never,
                ])),
                _ => {}
            }
            let sent: FieldList = (0..random.usize(..12))
                .map(|_| {
                    let names: [&[u8]; 8] = [
                        b":path",
                        b"cookie",
                        b"date",
                        b"x-a",
                        b"x-b",
                        b"te",
                        b":status",
                        b"x-long-name-here",
                    ];
                    let values: [&[u8]; 8] = [
                        b"",
                        b"/",
                        b"200",
                        b"trailers",
                        b"a rather long value, \xff\x80",
                        &[b'z'; 700],
                        b"GET",
                        b"1",
                    ];
                    let field = Field::new(names[random.usize(..8)], values[random.usize(..8)]);
                    field.with_sensitive(random.u8(..) < 20)
                })
                .collect();
            let mut wire = Vec::new();
            encoder.encode(&sent, &mut wire);
            decoder.decode(&wire, &FieldLimits::default(), &mut list).unwrap();
            assert_eq!(list.list_size(), sent.list_size());
            assert_eq!(list.len(), sent.len());
            for (received, sent) in list.iter().zip(&sent) {
                assert_eq!((received.name(), received.value()), (sent.name(), sent.value()));
                assert_eq!(received.token(), sent.token());
                assert!(received.is_sensitive() || !sent.is_sensitive());
            }
        }
    });
}

#[test]
fn random_bytes_never_panic_nor_exceed_the_limits() {
    rounds(3_000, |random| {
        let mut decoder = Decoder::new(4096);
        let limits = FieldLimits::new(2000, 20);
        let mut list = FieldList::new();
        for _ in 0..8 {
            let len = random.usize(..120);
            let mut block = random.bytes(len);
            if random.bool() {
                // Mostly valid bytes, so that the decoder makes progress.
                block
                    .iter_mut()
                    .for_each(|byte| *byte = if *byte < 200 { 0x80 | (*byte % 75 + 1) } else { *byte });
            }
            let result = decoder.decode(&block, &limits, &mut list);
            assert!(list.len() <= 20);
            assert!(list.iter().map(|field| field.list_size()).sum::<usize>() <= 2000);
            assert!(decoder.table_size_max() <= 4096);
            if result.is_err() {
                break;
            }
        }
    });
}
