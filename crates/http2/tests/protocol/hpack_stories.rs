//! Decodes the stories of the HTTP/2 Japan community, real requests and responses that nghttp2 encoded; encodes them and decodes
//! the result.

use std::io::Write as _;
use std::path::PathBuf;

use serde_json::Value;
use wireloom_http2::field::{Field, FieldLimits, FieldList};
use wireloom_http2::hpack::{Decoder, Encoder, IndexPolicy};

struct Case {
    table_size: Option<u32>,
    wire: Vec<u8>,
    fields: Vec<(String, String)>,
}

/// The stories of a set. `HPACK_STORIES` names the folder of the set `nghttp2`, which has the others beside it.
fn stories(set: &str) -> Vec<Vec<Case>> {
    let Some(folder) = std::env::var_os("HPACK_STORIES") else {
        // Not captured, as what is printed would be.
        let _ = writeln!(std::io::stderr(), "limited: HPACK_STORIES names no HPACK stories: not decoded");
        return Vec::new();
    };
    let folder = PathBuf::from(folder).with_file_name(set);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let stories: Vec<_> = paths.iter().map(|path| story(&std::fs::read_to_string(path).unwrap())).collect();
    assert!(!stories.is_empty(), "{} holds stories", folder.display());
    stories
}

fn story(json: &str) -> Vec<Case> {
    let story: Value = serde_json::from_str(json).unwrap();
    let cases = story["cases"].as_array().unwrap();
    cases
        .iter()
        .map(|case| Case {
            table_size: case["header_table_size"].as_u64().map(|size| u32::try_from(size).unwrap()),
            wire: octets(case["wire"].as_str().unwrap_or_default()),
            fields: case["headers"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|field| field.as_object().unwrap())
                .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()))
                .collect(),
        })
        .collect()
}

fn octets(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn assert_same(list: &FieldList, case: &Case) {
    let received: Vec<_> = list.iter().map(|field| (field.name(), field.value())).collect();
    let expected: Vec<_> =
        case.fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
    assert_eq!(received, expected);
    assert!(!list.too_large());
}

fn decode_all(stories: &[Vec<Case>]) -> usize {
    let mut decoded = 0;
    for story in stories {
        let mut decoder = Decoder::new(4096);
        let mut list = FieldList::new();
        for case in story {
            if let Some(size) = case.table_size {
                decoder.set_table_size_max(size);
            }
            decoder.decode(&case.wire, &FieldLimits::default(), &mut list).unwrap();
            assert_same(&list, case);
            decoded += list.len();
        }
    }
    decoded
}

/// Bytes of all blocks.
fn encode_and_decode_back(stories: &[Vec<Case>], policy: IndexPolicy) -> usize {
    let mut bytes = 0;
    for story in stories {
        let mut encoder = Encoder::new();
        encoder.set_index_policy(policy);
        let mut decoder = Decoder::new(4096);
        let mut list = FieldList::new();
        for case in story {
            if let Some(size) = case.table_size {
                encoder.set_table_size_max(size);
                decoder.set_table_size_max(size);
            }
            let mut wire = Vec::new();
            encoder.encode(
                case.fields.iter().map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes())),
                &mut wire,
            );
            decoder.decode(&wire, &FieldLimits::default(), &mut list).unwrap();
            assert_same(&list, case);
            bytes += wire.len();
        }
    }
    bytes
}

#[test]
fn decodes_what_nghttp2_encoded() {
    let stories = stories("nghttp2");
    if !stories.is_empty() {
        assert_eq!(decode_all(&stories), 39_359);
    }
}

#[test]
fn decodes_stories_with_changing_table_sizes() {
    let stories = stories("nghttp2-change-table-size");
    if !stories.is_empty() {
        assert_eq!(decode_all(&stories), 38_037);
    }
}

#[test]
fn compresses_as_well_as_nghttp2() {
    for set in ["nghttp2", "nghttp2-change-table-size"] {
        let stories = stories(set);
        let theirs: usize = stories.iter().flatten().map(|case| case.wire.len()).sum();
        let all = encode_and_decode_back(&stories, IndexPolicy::All);
        let ours = encode_and_decode_back(&stories, IndexPolicy::Repeating);
        let without = encode_and_decode_back(&stories, IndexPolicy::Static);
        println!("{set}: {ours} bytes, nghttp2 {theirs}, all indexed {all}, none {without}");
        assert!(ours <= theirs + theirs / 50 && ours <= without);
    }
}

#[test]
fn a_synthetic_story_is_decoded_as_it_was_encoded() {
    let json = r#"{"cases": [
        {"wire": "828684410f7777772e6578616d706c652e636f6d",
         "headers": [{":method": "GET"}, {":scheme": "http"}, {":path": "/"}, {":authority": "www.example.com"}]},
        {"wire": "3fe10f828684be", "header_table_size": 2048,
         "headers": [{":method": "GET"}, {":scheme": "http"}, {":path": "/"}, {":authority": "www.example.com"}]}
    ]}"#;
    let stories = [story(json)];
    assert_eq!(decode_all(&stories), 8);
    assert!(encode_and_decode_back(&stories, IndexPolicy::Repeating) < 27);
}
