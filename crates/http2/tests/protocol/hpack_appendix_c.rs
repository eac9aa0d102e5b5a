//! RFC 7541 Appendix C, byte for byte: C.2 to C.6 decoded, and encoded where an encoder makes the same choices. (C.1 is
//! tested beside the integers.)

use wireloom_http2::field::{Field, FieldLimits, FieldList};
use wireloom_http2::hpack::{Decoder, Encoder, HuffmanPolicy, IndexPolicy};

type Fields = &'static [(&'static str, &'static str)];

/// Octets as the RFC prints them, in hexadecimal; spaces are skipped.
fn octets(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

fn decode(decoder: &mut Decoder, hex: &str) -> Vec<(String, String, bool)> {
    let mut list = FieldList::new();
    decoder.decode(&octets(hex), &FieldLimits::default(), &mut list).unwrap();
    assert!(!list.too_large());
    assert_eq!(list.malformed(), None);
    list.iter()
        .map(|field| {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            (text(field.name()), text(field.value()), field.is_sensitive())
        })
        .collect()
}

fn expected(fields: Fields) -> Vec<(String, String, bool)> {
    fields.iter().map(|&(name, value)| (name.into(), value.into(), false)).collect()
}

/// Decodes the blocks on one connection with a table of `size` bytes, then encodes them again.
fn exchange(size: u32, huffman: HuffmanPolicy, blocks: &[(&str, Fields)]) {
    let mut decoder = Decoder::new(4096);
    let mut encoder = Encoder::new();
    encoder.set_index_policy(IndexPolicy::All);
    encoder.set_huffman_policy(huffman);
    if size != 4096 {
        decoder.set_table_size_max(size);
        encoder.set_table_size_max(size);
        // The appendix takes the size as agreed; here it is set on both sides.
        let mut update = Vec::new();
        encoder.encode([], &mut update);
        decoder.decode(&update, &FieldLimits::default(), &mut FieldList::new()).unwrap();
    }
    for (at, &(hex, fields)) in blocks.iter().enumerate() {
        assert_eq!(decode(&mut decoder, hex), expected(fields), "block {at}");
        let mut wire = Vec::new();
        encoder.encode(
            fields.iter().map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes())),
            &mut wire,
        );
        assert_eq!(wire, octets(hex), "block {at}");
    }
}

#[test]
fn c_2_1_literal_with_indexing() {
    let mut decoder = Decoder::new(4096);
    let hex = "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572";
    assert_eq!(decode(&mut decoder, hex), expected(&[("custom-key", "custom-header")]));
    assert_eq!(decode(&mut decoder, "be"), expected(&[("custom-key", "custom-header")]));
    exchange(4096, HuffmanPolicy::Never, &[(hex, &[("custom-key", "custom-header")])]);
}

#[test]
fn c_2_2_literal_without_indexing() {
    let hex = "040c 2f73 616d 706c 652f 7061 7468";
    assert_eq!(decode(&mut Decoder::new(4096), hex), expected(&[(":path", "/sample/path")]));
    let mut encoder = Encoder::new();
    encoder.set_huffman_policy(HuffmanPolicy::Never);
    let mut wire = Vec::new();
    encoder.encode([Field::new(b":path", b"/sample/path")], &mut wire);
    assert_eq!(wire, octets(hex));
}

#[test]
fn c_2_3_literal_never_indexed() {
    let hex = "1008 7061 7373 776f 7264 0673 6563 7265 74";
    assert_eq!(decode(&mut Decoder::new(4096), hex), [("password".to_owned(), "secret".to_owned(), true)]);
    let mut encoder = Encoder::new();
    encoder.set_huffman_policy(HuffmanPolicy::Never);
    let mut wire = Vec::new();
    encoder.encode([Field::new(b"password", b"secret").with_sensitive(true)], &mut wire);
    assert_eq!(wire, octets(hex));
}

#[test]
fn c_2_4_indexed() {
    exchange(4096, HuffmanPolicy::Shorter, &[("82", &[(":method", "GET")])]);
}

const REQUESTS: [Fields; 3] = [
    &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")],
    &[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
        ("cache-control", "no-cache"),
    ],
    &[
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ],
];

#[test]
fn c_3_requests_without_huffman() {
    exchange(
        4096,
        HuffmanPolicy::Never,
        &[
            ("8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", REQUESTS[0]),
            ("8286 84be 5808 6e6f 2d63 6163 6865", REQUESTS[1]),
            ("8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65", REQUESTS[2]),
        ],
    );
}

#[test]
fn c_4_requests_with_huffman() {
    exchange(
        4096,
        HuffmanPolicy::Always,
        &[
            ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", REQUESTS[0]),
            ("8286 84be 5886 a8eb 1064 9cbf", REQUESTS[1]),
            ("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf", REQUESTS[2]),
        ],
    );
}

const RESPONSES: [Fields; 3] = [
    &[
        (":status", "302"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("location", "https://www.example.com"),
    ],
    &[
        (":status", "307"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("location", "https://www.example.com"),
    ],
    &[
        (":status", "200"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
        ("location", "https://www.example.com"),
        ("content-encoding", "gzip"),
        ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
    ],
];

#[test]
fn c_5_responses_without_huffman() {
    // A table of 256 bytes, so that entries are evicted.
    exchange(
        256,
        HuffmanPolicy::Never,
        &[
            (
                "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133
                 2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70
                 6c65 2e63 6f6d",
                RESPONSES[0],
            ),
            ("4803 3330 37c1 c0bf", RESPONSES[1]),
            (
                "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d
                 54c0 5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049
                 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e
                 3d31",
                RESPONSES[2],
            ),
        ],
    );
}

#[test]
fn c_6_responses_with_huffman() {
    exchange(
        256,
        HuffmanPolicy::Always,
        &[
            (
                "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6
                 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
                RESPONSES[0],
            ),
            ("4883 640e ffc1 c0bf", RESPONSES[1]),
            (
                "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab
                 77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f
                 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
                RESPONSES[2],
            ),
        ],
    );
}
