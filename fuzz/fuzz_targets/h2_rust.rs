//! The same frames into the servers of Wireloom and of the `h2` crate: the same messages and content, and the same first
//! error by code and scope, but for the differences that `differential::differences` explains.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wireloom_fuzz::differential::{compare, frames::client_frames, rust_h2};

fuzz_target!(|bytes: &[u8]| {
    compare(rust_h2::Server::new(), &client_frames(bytes));
});
