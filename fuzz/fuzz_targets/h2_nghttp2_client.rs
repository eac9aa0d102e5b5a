//! The same frames into the clients of Wireloom and nghttp2: the same messages and content, and the same first error by code
//! and scope, but for the differences that `differential::differences` explains.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wireloom_fuzz::differential::{compare, frames::server_frames};
use wireloom_fuzz::nghttp2;

fuzz_target!(|bytes: &[u8]| {
    compare(nghttp2::Client::new(), &server_frames(bytes));
});
