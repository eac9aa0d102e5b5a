//! `wireloom-inspect` on any bytes as a HAR, a hexdump, a recording, or whatever they look like.

#![no_main]

use std::ops::ControlFlow;

use libfuzzer_sys::fuzz_target;
use wireloom_inspect::{Config, Format, Inspector, read};

fuzz_target!(|data: &[u8]| {
    let Some((&choice, data)) = data.split_first() else { return };
    let format = match choice % 4 {
        0 => Some(Format::Har),
        1 => Some(Format::Hexdump),
        2 => Some(Format::Recording),
        _ => None,
    };
    let mut inspector = Inspector::new(Config::default());
    let _ = read(data, format, &mut inspector, &mut |mut entry| {
        entry.mask_secrets();
        ControlFlow::Continue(())
    });
});
