//! Messages of any bytes into the decompressor: whole, and cut at random, with the same result and the same output; what
//! it accepts, miniz_oxide reads the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::decompress;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use wireloom_testing::Rng;
use wireloom_testing::split::Split;
use wireloom_ws::deflate::{Decompressor, DeflateParams, InflateError, InflateLimit};
use wireloom_ws::role::Role;

// The ratio is checked after each call, so that its result may depend on how the input is cut; here it has no limit.
const LIMIT: InflateLimit = InflateLimit::new(1 << 16);

fn inflate(
    decompressor: &mut Decompressor,
    message: &[u8],
    pieces: &[usize],
) -> Result<Vec<u8>, InflateError> {
    let (mut out, mut at) = (Vec::new(), 0);
    for &len in pieces {
        decompressor.decompress(&message[at..at + len], false, &mut out, &LIMIT)?;
        assert!(out.len() <= LIMIT.max_len);
        at += len;
    }
    decompressor.decompress(&message[at..], true, &mut out, &LIMIT)?;
    assert!(out.len() <= LIMIT.max_len);
    Ok(out)
}

fn inflate_by_steps(
    decompressor: &mut Decompressor,
    mut message: &[u8],
    room: usize,
) -> Result<Vec<u8>, InflateError> {
    let (mut out, mut buffer) = (Vec::new(), vec![0; room]);
    loop {
        let step = decompressor.step(message, true, &mut buffer, &LIMIT)?;
        out.extend(&buffer[..step.produced]);
        message = &message[step.consumed..];
        if !step.more {
            return Ok(out);
        }
    }
}

fuzz_target!(|input: (u64, bool, Vec<&[u8]>)| {
    let (seed, takeover, messages) = input;
    let mut rng = Rng::with_seed(seed);
    let params = DeflateParams { client_no_context_takeover: !takeover, ..DeflateParams::default() };
    let mut ends = [(); 3].map(|()| Decompressor::new(Role::Server, &params));
    let room = 1 + rng.len(2_000);
    for (i, message) in messages.iter().enumerate() {
        let [whole, cut, steps] = &mut ends;
        let expected = inflate(whole, message, &[]);
        let pieces = Split::random(&mut rng).parts(&mut rng, message.len());
        assert_eq!(inflate(cut, message, &pieces), expected, "cut {pieces:?}");
        assert_eq!(inflate_by_steps(steps, message, room), expected, "room {room}");
        if rng.u8(0..4) == 0 {
            ends.iter_mut().for_each(Decompressor::shrink);
        }
        let Ok(out) = expected else { return };
        // The first message refers to nothing before it, so that another inflater can follow it.
        if i == 0 && !message.is_empty() {
            let flushed = [message, &[0x00, 0x00, 0xFF, 0xFF][..]].concat();
            let mut theirs = vec![0; LIMIT.max_len];
            let (status, _, len) = decompress(
                &mut Box::default(),
                &flushed,
                &mut theirs,
                0,
                TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF,
            );
            match status {
                TINFLStatus::FailedCannotMakeProgress | TINFLStatus::NeedsMoreInput => {
                    assert!(theirs[..len] == out)
                }
                // BFINAL: there the other inflater stops, while the message may go on (RFC 7692 §7.2.3.4).
                TINFLStatus::Done => assert!(out.starts_with(&theirs[..len])),
                refused => panic!("accepted what miniz_oxide refuses: {refused:?}"),
            }
        }
    }
});
