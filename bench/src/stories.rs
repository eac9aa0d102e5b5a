//! The HPACK stories of the HTTP/2 Japan community where they are at hand, and lists made up from a fixed seed where not.

use fastrand::Rng;
use serde_json::Value;
use std::path::PathBuf;

/// The blocks of one connection, as nghttp2 encoded them, and the fields of each.
pub(crate) type Story = Vec<(Vec<u8>, Vec<(String, String)>)>;

/// `WIRELOOM_SHARED`, else the folder `shared` beside the checkout.
pub(crate) fn shared() -> PathBuf {
    match std::env::var_os("WIRELOOM_SHARED") {
        Some(path) => path.into(),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared"),
    }
}

/// At most so many stories; made up if there are none.
pub(crate) fn stories(most: usize) -> Vec<Story> {
    let folder = shared().join("vectors/hpack/nghttp2");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        eprintln!("no HPACK stories at {}: made-up ones instead", folder.display());
        return (0..most as u64).map(made_up).collect();
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let texts = paths.iter().take(most).flat_map(std::fs::read_to_string);
    texts.flat_map(|text| serde_json::from_str(&text)).map(|json| story(&json)).collect()
}

fn story(json: &Value) -> Story {
    let cases = json["cases"].as_array().into_iter().flatten();
    let fields = |case: &Value| {
        let fields = case["headers"].as_array().into_iter().flatten();
        let pairs = fields.filter_map(Value::as_object).flatten();
        pairs.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
    };
    cases.map(|case| (octets(case["wire"].as_str().unwrap_or_default()), fields(case))).collect()
}

fn octets(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).flat_map(|at| u8::from_str_radix(&hex[at..at + 2], 16)).collect()
}

/// Some responses of one site.
fn made_up(seed: u64) -> Story {
    let mut rng = Rng::with_seed(seed);
    let mut encoder = wireloom_http2::hpack::Encoder::new();
    let case = |_| {
        let fields = vec![
            (":status".into(), "200".into()),
            ("server".into(), "made-up/1.0".into()),
            ("content-type".into(), ["text/html", "text/css", "image/png"][rng.usize(..3)].into()),
            ("content-length".into(), rng.u32(..100_000).to_string()),
            ("etag".into(), format!("\"{:x}\"", rng.u64(..))),
            ("x-request-id".into(), format!("{:016x}", rng.u64(..))),
        ];
        let mut block = Vec::new();
        let list = fields.iter().map(|(name, value): &(String, String)| {
            wireloom_http2::field::Field::new(name.as_bytes(), value.as_bytes())
        });
        encoder.encode(list, &mut block);
        (block, fields)
    };
    (0..200).map(case).collect()
}
