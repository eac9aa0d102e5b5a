//! The field blocks for HPACK: stories generated from a fixed seed, and recorded ones if `HPACK_STORIES` names a folder
//! of the hpack-test-case repository of the HTTP/2 Japan community.

use crate::rivals::nghttp2::{OwnedFields, hpack::Deflater};
use fastrand::Rng;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The blocks of one connection, as nghttp2 encoded them, and the fields of each.
pub(crate) type Story = Vec<(Vec<u8>, Fields)>;
type Fields = Vec<(String, String)>;

/// The number of generated stories (connections), and of messages on each.
const CONNECTIONS: u64 = 24;
const MESSAGES: usize = 120;

/// At most `most` generated stories: a browser's requests to a site, or the site's responses.
pub(crate) fn made_up(most: usize) -> Vec<Story> {
    (0..CONNECTIONS.min(most as u64)).map(story).collect()
}

/// The folder of recorded stories, if the environment names one.
pub(crate) fn recorded_folder() -> Option<PathBuf> {
    Some(std::env::var_os("HPACK_STORIES")?.into())
}

/// At most `most` stories from this folder.
///
/// # Errors
/// The folder contains no stories.
pub(crate) fn recorded(folder: &Path, most: usize) -> Result<Vec<Story>, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let texts = paths.iter().take(most).flat_map(std::fs::read_to_string);
    let stories: Vec<Story> =
        texts.flat_map(|text| serde_json::from_str(&text)).map(|json| from_json(&json)).collect();
    if stories.iter().flatten().next().is_none() {
        return Err(format!("{}: no stories", folder.display()));
    }
    Ok(stories)
}

fn from_json(json: &Value) -> Story {
    let cases = json["cases"].as_array().into_iter().flatten();
    let fields = |case: &Value| {
        let fields = case["headers"].as_array().into_iter().flatten();
        let pairs = fields.filter_map(Value::as_object).flatten();
        pairs.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
    };
    cases.map(|case| (octets(case["wire"].as_str().unwrap_or_default()), fields(case))).collect()
}

fn octets(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks_exact(2);
    pairs.flat_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap_or("?"), 16)).collect()
}

/// Even seeds are requests, odd ones are responses.
fn story(seed: u64) -> Story {
    let mut rng = Rng::with_seed(0x7541 + seed);
    let mut encoder = Deflater::new();
    let host = format!("{}.{}.example", pick(&mut rng, HOSTS), pick(&mut rng, WORDS));
    let session = token(&mut rng, 48);
    (0..MESSAGES)
        .map(|_| {
            let fields = match seed.is_multiple_of(2) {
                true => request(&mut rng, &host, &session),
                false => response(&mut rng),
            };
            let mut block = Vec::new();
            encoder.encode(OwnedFields::new(&fields).as_slice(), &mut block);
            (block, fields)
        })
        .collect()
}

const HOSTS: &[&str] = &["www", "static", "api", "cdn-3", "img"];
const WORDS: &[&str] = &["news", "maps", "assets", "photos", "search", "video", "panel", "profile", "theme"];
const TYPES: &[&str] = &[
    "text/html; charset=utf-8",
    "text/css",
    "image/png",
    "image/webp",
    "application/json",
    "application/javascript; charset=utf-8",
];
const AGENT: &str =
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Safari/537.36";

fn pick<'a>(rng: &mut Rng, of: &[&'a str]) -> &'a str {
    of[rng.usize(..of.len())]
}

fn token(rng: &mut Rng, len: usize) -> String {
    std::iter::repeat_with(|| rng.alphanumeric()).take(len).collect()
}

fn request(rng: &mut Rng, host: &str, session: &str) -> Fields {
    let path = format!("/{}/{}-{}.js?v={}", pick(rng, WORDS), pick(rng, WORDS), rng.u16(..), token(rng, 8));
    let referer = format!("https://{host}/{}", pick(rng, WORDS));
    let mut fields = vec![
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", host),
        (":path", &path),
        ("user-agent", AGENT),
        ("accept", pick(rng, &["*/*", "image/avif,image/webp,*/*;q=0.8", "text/css,*/*;q=0.1"])),
        ("accept-encoding", "gzip, deflate, br, zstd"),
        ("accept-language", "en-GB,en;q=0.7,de;q=0.3"),
        ("referer", &referer),
    ];
    let cookie = format!("session={session}; theme={}", pick(rng, &["light", "dark"]));
    if rng.u8(..4) > 0 {
        fields.push(("cookie", &cookie));
    }
    let etag = format!("\"{:x}\"", rng.u64(..));
    if rng.u8(..4) == 0 {
        fields.push(("if-none-match", &etag));
    }
    owned(&fields)
}

fn response(rng: &mut Rng) -> Fields {
    let date = format!("Fri, 20 Nov 2026 21:{:02}:{:02} GMT", rng.u8(..60), rng.u8(..60));
    let modified = format!("Mon, {:02} Nov 2026 08:{:02}:12 GMT", rng.u8(1..29), rng.u8(..60));
    let (len, etag) = (rng.u32(..400_000).to_string(), format!("\"{:x}\"", rng.u64(..)));
    let mut fields = vec![
        (":status", pick(rng, &["200", "200", "200", "304", "302", "404"])),
        ("date", &date),
        ("server", "nginx"),
        ("content-type", pick(rng, TYPES)),
        ("content-length", &len),
        ("cache-control", pick(rng, &["no-cache", "public, max-age=31536000, immutable", "max-age=600"])),
        ("etag", &etag),
        ("last-modified", &modified),
        ("vary", "accept-encoding"),
        ("strict-transport-security", "max-age=63072000; includeSubDomains"),
    ];
    let id = token(rng, 20);
    if rng.bool() {
        fields.push(("x-request-id", &id));
    }
    owned(&fields)
}

fn owned(fields: &[(&str, &str)]) -> Fields {
    fields.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_stories_are_the_same_every_time() {
        let (first, second) = (made_up(usize::MAX), made_up(3));
        assert_eq!(first.len(), CONNECTIONS as usize);
        assert_eq!(first[..3], second);
        assert!(first.iter().all(|story| story.len() == MESSAGES));
    }

    #[test]
    fn a_recorded_story_is_read() {
        let json = serde_json::json!({ "cases": [{ "wire": "828684", "headers": [{ ":method": "GET" }] }] });
        let expected = vec![(vec![0x82, 0x86, 0x84], vec![(":method".to_owned(), "GET".to_owned())])];
        assert_eq!(from_json(&json), expected);
    }

    #[test]
    fn a_folder_without_stories_is_an_error() {
        assert!(recorded(Path::new("/no/such/folder"), 1).is_err());
    }
}
