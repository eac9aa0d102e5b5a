//! Random HTTP/1.1 requests, lawful and not, in memory to this server and to hyper's: what both serve is the same request with the same
//! body, and what only one of them serves is a known difference. A failure prints its seed (`WIRELOOM_SEED`).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use wireloom::{Request, Response, server};
use wireloom_testing::{Rng, generators};

/// A request whose body has arrived: method, path, fields but `Host`, and body.
type Served = (String, String, Vec<(String, Vec<u8>)>, Vec<u8>);
type Log = Arc<Mutex<VecDeque<Served>>>;

/// Without `Host`, which the authority of an absolute target replaces (RFC 9112 section 3.2.2), and which hyper leaves to its caller. Of
/// equal lengths (section 6.3) hyper keeps one.
fn sorted(fields: impl Iterator<Item = (String, Vec<u8>)>) -> Vec<(String, Vec<u8>)> {
    let mut fields: Vec<_> = fields.filter(|(name, _)| name != "host").collect();
    fields.sort();
    fields.dedup_by(|one, other| one == other && one.0 == "content-length");
    fields
}

async fn wireloom_server(io: DuplexStream, log: Log) {
    let handler = move |mut request: Request| {
        let log = log.clone();
        async move {
            let Ok(body) = request.bytes().await else { return Response::new(400) };
            let fields = request.headers().map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec()));
            let served =
                (request.method().to_string(), request.path().to_string(), sorted(fields), body.to_vec());
            log.lock().unwrap().push_back(served);
            Response::new(200)
        }
    };
    server::serve_connection(io, handler).await;
}

async fn hyper_server(io: DuplexStream, log: Log) {
    let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
        let log = log.clone();
        async move {
            let (head, body) = request.into_parts();
            let response = http::Response::builder();
            let Ok(body) = body.collect().await else {
                return Ok::<_, Infallible>(response.status(400).body(Empty::<Bytes>::new()).unwrap());
            };
            let fields =
                head.headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
            let served = (
                head.method.to_string(),
                head.uri.path().to_string(),
                sorted(fields),
                body.to_bytes().to_vec(),
            );
            log.lock().unwrap().push_back(served);
            Ok(response.body(Empty::new()).unwrap())
        }
    });
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(io), service).await;
}

/// The requests that a server serves of these bytes, cut in this many places.
async fn served<F: Future<Output = ()> + Send + 'static>(
    server: fn(DuplexStream, Log) -> F,
    bytes: &[u8],
    rng: &mut Rng,
) -> VecDeque<Served> {
    let log = Log::default();
    let (peer, io) = tokio::io::duplex(1 << 20);
    let serving = tokio::spawn(server(io, log.clone()));
    let (mut reader, mut writer) = tokio::io::split(peer);
    let mut left = bytes;
    while !left.is_empty() {
        let (piece, rest) = left.split_at(1 + rng.len(left.len() - 1));
        if writer.write_all(piece).await.is_err() {
            break;
        }
        tokio::task::yield_now().await;
        left = rest;
    }
    let _ = writer.shutdown().await;
    let mut answers = Vec::new();
    // Paused time advances at once when all tasks are idle.
    let ended = tokio::time::timeout(Duration::from_secs(600), reader.read_to_end(&mut answers)).await;
    assert!(ended.is_ok(), "the server neither answers nor closes");
    serving.abort();
    std::mem::take(&mut log.lock().unwrap())
}

const ODD_METHODS: &[&str] = &["get", "PROPFIND", "M-SEARCH", "G ET", "", "G\tET"];
const ODD_TARGETS: &[&str] =
    &["/a?b=c", "/%41", "/a//b", "/x#y", "http://a/b", "a", "*", "/ä", "/\"", "", "/a b"];
const ODD_VERSIONS: &[&str] = &["HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "http/1.1", "HTTP/1.1 ", "HTTP/11", ""];
const ODD_ENDS: &[&str] = &["\n", "\r", "\r\r\n", "\n\r"];
const ODD_HOSTS: &[&str] = &["host:a", "Host: a:80", "Host: a b", "Host: a\r\nHost: b", "Host :a", "X: no"];
#[rustfmt::skip]
const ODD_FIELDS: &[&str] = &[
    "x:  y  ", "X:", "X : y", " X: y", ": y", "X", "X: y\r\n z", "X: \u{7f}", "X: ü", "X\t: y", "X: a\0b", "X-(: y",
    "Connection: close", "Connection: keep-alive", "Expect: 100-continue", "Content-Length: 0", "Transfer-Encoding: chunked",
];
const ODD_LENGTHS: &[&str] =
    &["+3", "3, 3", "3, 4", "0x3", "-1", "", " 3 ", "3 3", "03", "99999999999999999999"];
#[rustfmt::skip]
const ODD_CODINGS: &[&str] = &[
    "Chunked", ", chunked", "gzip, chunked", "chunked, gzip", "xchunked", "identity", "", "chunked, chunked", "chunked;a", "\u{b}chunked",
];
const ODD_SIZES: &[&str] =
    &["+3", "0x3", "-1", "", " 3", "3 ", "g", "003", "3;a=\"b\"", "3 ;a", "3;a\rb", "fffffffffffffffff"];
const ODD_TRAILERS: &[&str] = &["X: y\r\n", "X : y\r\n", "Content-Length: 9\r\n", "\n", "X\r\n", "X: y\n"];

/// A request that is lawful but for few places.
fn request(rng: &mut Rng) -> Vec<u8> {
    let mut place = |lawful: &'static str, odd: &[&'static str]| {
        if rng.usize(0..16) == 0 { *rng.pick(odd) } else { lawful }
    };
    let end = place("\r\n", ODD_ENDS);
    let method = place("POST", ODD_METHODS);
    let target = place("/", ODD_TARGETS);
    let version = place("HTTP/1.1", ODD_VERSIONS);
    let mut head = format!("{method} {target} {version}{end}{}{end}", place("Host: a", ODD_HOSTS));
    for _ in 0..3 {
        let field = place("", ODD_FIELDS);
        if !field.is_empty() {
            head += &format!("{field}{end}");
        }
    }
    let (length, coding) = (place("3", ODD_LENGTHS), place("chunked", ODD_CODINGS));
    let (size, trailer, chunk_end) =
        (place("3", ODD_SIZES), place("", ODD_TRAILERS), place("\r\n", ODD_ENDS));
    let chunked = format!("{size}{chunk_end}abc\r\n0{chunk_end}{trailer}\r\n");
    let body = match rng.usize(0..20) {
        0..7 => String::new(),
        7..13 => {
            head += &format!("Content-Length: {length}{end}");
            "abc".into()
        }
        13..19 => {
            head += &format!("Transfer-Encoding: {coding}{end}");
            chunked
        }
        _ => {
            head += &format!("Content-Length: {length}{end}Transfer-Encoding: {coding}{end}");
            chunked
        }
    };
    let mut bytes = format!("{head}{end}{body}").into_bytes();
    if rng.usize(0..8) == 0 {
        let at = rng.usize(0..bytes.len());
        bytes[at] = *rng.pick(b"\0\t\n\r :,;/a0\x80");
    }
    bytes
}

/// Requests that only this server serves, as the specifications require.
fn is_served_by_wireloom_alone(text: &str) -> bool {
    let is_coding = |line: &str| line.to_ascii_lowercase().starts_with("transfer-encoding:");
    let has_empty_element = |line: &str| line.split([':', ',']).any(|element| element.trim().is_empty());
    // RFC 9110 section 6.2: a later minor version. Section 8.6: equal lengths in one line.
    text.contains(" HTTP/1.2") || text.contains("Content-Length: 3, 3")
        // RFC 9110 section 5.6.1.2: empty elements of a list.
        || text.lines().any(|line| is_coding(line) && has_empty_element(line))
}

#[tokio::test(start_paused = true)]
async fn serves_the_requests_that_hyper_serves() {
    for mut rng in generators(2_000) {
        let rng = &mut rng;
        let bytes: Vec<u8> = (0..rng.usize(1..4)).flat_map(|_| request(rng)).collect();
        let ours = served(wireloom_server, &bytes, rng).await;
        let theirs = served(hyper_server, &bytes, rng).await;
        let text = String::from_utf8_lossy(&bytes);
        let equal = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
        let context = || format!("{text:?}\nours: {ours:?}\nhyper: {theirs:?}");
        assert!(equal == ours.len().min(theirs.len()), "not the same request {equal}: {}", context());
        let is_known = ours.len() <= theirs.len() || is_served_by_wireloom_alone(&text);
        assert!(is_known, "only here: {}", context());
    }
}
