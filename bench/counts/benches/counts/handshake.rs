//! The opening handshake of the core over HTTP/1.1, as a browser makes it: both ends, with permessage-deflate.

use crate::capped;
use gungraun::{library_benchmark, library_benchmark_group};
use wireloom_ws::deflate::DeflateConfig;
use wireloom_ws::handshake::client::{ClientHandshake, ClientOptions, Progress};
use wireloom_ws::handshake::server::ServerHandshake;
use wireloom_ws::handshake::{Acceptance, HandshakeLimits};

fn options() -> ClientOptions {
    ClientOptions::new("www.example.com", "/chat?room=7")
        .origin("https://www.example.com")
        .subprotocol("chat")
        .header("User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0")
        .header("Accept-Language", "en-GB,en;q=0.7,de;q=0.3")
        .header("Cookie", "session=6f1e2d3c4b5a69788796a5b4c3d2e1f0")
        .deflate(DeflateConfig::default())
}

fn open(options: ClientOptions) -> ClientHandshake {
    ClientHandshake::new(options, [7; 16], HandshakeLimits::default()).expect("valid options")
}

fn request() -> Vec<u8> {
    capped(|| open(options()).into_request())
}

fn accept_request(request: &[u8]) -> Vec<u8> {
    let deflate = DeflateConfig::default();
    let mut handshake = ServerHandshake::new(HandshakeLimits::default());
    handshake.handle_input(request).expect("a valid request");
    let acceptance =
        Acceptance { subprotocol: Some("chat"), deflate: Some(&deflate), ..Acceptance::default() };
    let mut response = Vec::with_capacity(512);
    handshake.accept(&acceptance, &mut response).expect("a request that can be accepted");
    response
}

#[library_benchmark]
#[bench::browser(request())]
fn accept(request: Vec<u8>) -> Vec<u8> {
    accept_request(&request)
}

fn response() -> (ClientOptions, Vec<u8>) {
    capped(|| (options(), accept_request(&request())))
}

#[library_benchmark]
#[bench::browser(response())]
fn connect((options, response): (ClientOptions, Vec<u8>)) -> Progress {
    let mut handshake = open(options);
    let progress = handshake.handle_input(&response).expect("a valid response");
    assert!(!matches!(progress, Progress::Incomplete));
    progress
}

library_benchmark_group!(name = handshake_group, benchmarks = [accept, connect]);
