//! Any bytes as a client's request, whole and cut at random: one result, one refusal; what is accepted opens a client
//! that is given the answer, and what the application adds cannot break the head.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wireloom_testing::Rng;
use wireloom_testing::split::Split;
use wireloom_ws::deflate::DeflateConfig;
use wireloom_ws::handshake::server::Progress;
use wireloom_ws::handshake::{Acceptance, HandshakeError, HandshakeLimits, ServerHandshake};

type Verdict = Result<Option<(usize, Vec<u8>)>, HandshakeError>;

fn serve(bytes: &[u8], pieces: &[usize], acceptance: &Acceptance<'_>) -> Verdict {
    let limits = HandshakeLimits { head_len_max: 2_048, headers_max: 20 };
    let mut handshake = ServerHandshake::new(limits);
    let mut at = 0;
    for &len in pieces {
        match handshake.handle_input(&bytes[at..at + len]) {
            Ok(Progress::Incomplete) => at += len,
            Ok(Progress::Complete { consumed }) => {
                assert!(consumed <= len);
                let request = handshake.request().expect("a complete request");
                assert!(request.resource().starts_with('/'));
                assert!(!request.host().is_empty());
                let mut out = Vec::new();
                match handshake.accept(acceptance, &mut out) {
                    Ok(_) => assert!(out.starts_with(b"HTTP/1.1 101 ")),
                    // The subprotocol or header that the fuzzer chose; nothing was written.
                    Err(_) => assert!(out.is_empty()),
                }
                return Ok(Some((at + consumed, out)));
            }
            Err(error) => {
                let mut refusal = Vec::new();
                error.refusal().write_to(&mut refusal);
                assert!(refusal.starts_with(format!("HTTP/1.1 {} ", error.status()).as_bytes()));
                assert_eq!(handshake.handle_input(b"x"), Err(error));
                return Err(error);
            }
        }
    }
    assert!(bytes.len() <= 2_048, "an incomplete head beyond its bound");
    Ok(None)
}

fuzz_target!(|input: (u64, &str, &str, &[u8])| {
    let (seed, name, value, bytes) = input;
    let mut rng = Rng::with_seed(seed);
    let config = DeflateConfig::default();
    let headers = [(name, value)];
    let acceptance = match rng.u8(0..3) {
        0 => Acceptance { deflate: Some(&config), ..Acceptance::default() },
        1 => Acceptance { subprotocol: Some(value), ..Acceptance::default() },
        _ => Acceptance { headers: &headers, ..Acceptance::default() },
    };
    let whole = serve(bytes, &[bytes.len()], &acceptance);
    let pieces = Split::random(&mut rng).parts(&mut rng, bytes.len());
    assert_eq!(serve(bytes, &pieces, &acceptance), whole, "cut {pieces:?}");
    if let Ok(Some((_, out))) = whole
        && !out.is_empty()
    {
        // One head, with as many lines as it should have: nothing was injected.
        let text = String::from_utf8_lossy(&out);
        assert_eq!(text.matches("\r\n\r\n").count(), 1, "{text}");
        assert!(text.ends_with("\r\n\r\n"));
        assert_eq!(text.matches('\n').count(), text.matches("\r\n").count());
        let most = 4 + usize::from(acceptance.deflate.is_some());
        assert!(text.matches("\r\n").count() <= most + 2, "{text}");
    }
});
