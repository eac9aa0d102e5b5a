//! The choices of the HPACK encoder (RFC 7541 §2.3.2, §6): all are valid, but only some compress well.

use wireloom_http2::field::{Field, FieldLimits, FieldList};
use wireloom_http2::hpack::{Decoder, Encoder, HuffmanPolicy, IndexPolicy, static_get};

/// An encoder with a table that evicts nothing in these tests.
fn encoder() -> Encoder {
    let mut encoder = Encoder::new();
    encoder.set_table_size_local(1 << 20);
    encoder.set_table_size_max(1 << 20);
    encoder.set_index_policy(IndexPolicy::All);
    encoder
}

fn encode(encoder: &mut Encoder, name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut block = Vec::new();
    encoder.encode([Field::new(name, value)], &mut block);
    block
}

/// Strings that differ in one byte.
fn similar(len: usize, at: usize) -> impl Iterator<Item = Vec<u8>> {
    (0..128).map(move |n| {
        let mut string = vec![b'v'; len];
        string[at] = n * 2;
        string
    })
}

/// Around the sizes of words that the hash reads.
const LENS: [usize; 9] = [1, 3, 4, 7, 8, 15, 16, 17, 33];

#[test]
fn finds_repeated_values_among_similar_ones() {
    for len in LENS {
        for at in 0..len {
            let mut encoder = encoder();
            for value in similar(len, at) {
                encode(&mut encoder, b"x-name", &value);
            }
            for value in similar(len, at) {
                // RFC 7541 §6.1: an indexed field.
                let block = encode(&mut encoder, b"x-name", &value);
                assert_eq!(block[0] & 0x80, 0x80, "byte {at} of {len}: {}", value.escape_ascii());
            }
        }
    }
}

#[test]
fn finds_repeated_names_among_similar_ones() {
    for len in LENS {
        for at in 0..len {
            let mut encoder = encoder();
            for name in similar(len, at) {
                encode(&mut encoder, &name, b"value");
            }
            for name in similar(len, at) {
                let block = encode(&mut encoder, &name, b"value");
                assert_eq!(block[0] & 0x80, 0x80, "byte {at} of {len}: {}", name.escape_ascii());
                // RFC 7541 §6.2.1: a literal with an indexed name; 0x40 would be followed by a name.
                let block = encode(&mut encoder, &name, b"other");
                assert!(block[0] & 0xc0 == 0x40 && block[0] != 0x40, "{}", name.escape_ascii());
            }
        }
    }
}

#[test]
fn a_field_larger_than_three_quarters_of_the_table_is_not_indexed() {
    let name_and_overhead = b"x-name".len() + 32;
    for (list_size, first) in [(3071, 0x40), (3072, 0x40), (3073, 0), (4096, 0)] {
        let value = vec![b'v'; list_size - name_and_overhead];
        // RFC 7541 §6.2.1 and §6.2.2: a literal that the decoder indexes, and one that it does not.
        assert_eq!(encode(&mut Encoder::default(), b"x-name", &value)[0], first, "{list_size}");
    }
}

#[test]
fn blocks_of_every_length_are_complete() {
    for policy in [HuffmanPolicy::Never, HuffmanPolicy::Always] {
        for len in 0..600 {
            // A long string, and then many short ones, so that memory runs out at each of them.
            let value = vec![b'v'; len];
            let mut fields = vec![Field::new(b"accept", b"").with_sensitive(true); 100];
            fields[0] = Field::new(b"x-name", &value).with_sensitive(true);
            let (mut encoder, mut block, mut list) = (Encoder::new(), Vec::new(), FieldList::new());
            encoder.set_huffman_policy(policy);
            encoder.encode(fields.iter().copied(), &mut block);
            Decoder::new(4096).decode(&block, &FieldLimits::default(), &mut list).unwrap();
            assert!(list.iter().eq(fields), "{len}");
        }
    }
}

#[test]
fn strings_that_huffman_coding_does_not_shorten_are_sent_as_they_are() {
    // RFC 7541 §5.2, Appendix B: '&' has eight bits, 'a' five, '<' fifteen.
    for (value, is_huffman) in [("&", false), ("&&&", false), ("aa", false), ("aaa", true), ("<", false)] {
        let block = encode(&mut Encoder::default(), b"accept", value.as_bytes());
        assert_eq!(block[1] & 0x80 == 0x80, is_huffman, "{value}");
    }
}

#[test]
fn the_static_table_is_that_of_the_rfc() {
    // RFC 7541 Appendix A, §2.3.3: indices begin with 1.
    assert_eq!(static_get(0), None);
    assert_eq!(static_get(2), Some(Field::new(b":method", b"GET")));
    assert_eq!(static_get(61), Some(Field::new(b"www-authenticate", b"")));
    assert_eq!(static_get(62), None);
}

#[test]
fn the_table_is_as_large_as_both_sides_allow() {
    // RFC 7541 §4.2: the encoder chooses a size up to the decoder's limit.
    for (local, peer, size) in [(10_000, 5_000, 5_000), (5_000, 10_000, 5_000), (4_096, 0, 0), (0, 4_096, 0)]
    {
        let mut encoder = Encoder::default();
        encoder.set_table_size_local(local);
        encoder.set_table_size_max(peer);
        assert_eq!(encoder.table_size_max(), size);
    }
}
