//! `wireloom-inspect` on any bytes as a capture file: it ends, and the entries are bounded by the input.

#![no_main]

use std::ops::ControlFlow;

use libfuzzer_sys::fuzz_target;
use wireloom_inspect::{Config, Format, Inspector, read};

fuzz_target!(|data: &[u8]| {
    let mut inspector = Inspector::new(Config::default());
    let mut entries = 0;
    let _ = read(data, Some(Format::Pcap), &mut inspector, &mut |mut entry| {
        entries += 1;
        entry.mask_secrets();
        ControlFlow::Continue(())
    });
    assert!(entries <= 64 + data.len(), "{entries} entries of {} bytes", data.len());
});
