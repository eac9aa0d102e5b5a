//! Any text as Sec-WebSocket-Extensions, and as offer and answer of permessage-deflate: what is parsed is written and
//! parsed again the same, and what a server accepts from an offer, a client that made it accepts in turn.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wireloom_testing::Rng;
use wireloom_ws::deflate::{DeflateConfig, DeflateParams};
use wireloom_ws::handshake::extensions;

fn config(rng: &mut Rng) -> DeflateConfig {
    DeflateConfig {
        server_no_context_takeover: rng.bool(),
        client_no_context_takeover: rng.bool(),
        server_max_window_bits: rng.u8(..17),
        client_max_window_bits: rng.u8(..17),
        ..DeflateConfig::default()
    }
}

fuzz_target!(|input: (u64, &str)| {
    let (seed, text) = input;
    let mut rng = Rng::with_seed(seed);
    let server = config(&mut rng);
    if let Ok(list) = extensions::parse(text) {
        assert!(!list.is_empty());
        let written: Vec<String> = list.iter().map(ToString::to_string).collect();
        let again = written.join(", ");
        assert_eq!(extensions::parse(&again).expect("what was parsed is written lawfully"), list);
        let mut response = String::new();
        if server.accept_offers(list.iter(), &mut response).is_some() {
            let answer = extensions::parse(&response).expect("the answer is lawful");
            assert_eq!(answer.len(), 1);
            // RFC 7692 §7.1: nothing is answered that was not offered; client_max_window_bits above all (§7.1.2.2).
            if answer[0].params().any(|(name, _)| name == "client_max_window_bits") {
                assert!(
                    list.iter().any(|offer| offer.params().any(|(name, _)| name == "client_max_window_bits"))
                );
            }
        }
        for answer in &list {
            // It may refuse, but must not panic.
            let _ = server.accept_response(answer);
        }
    }

    let client = config(&mut rng);
    let (mut offer, mut response) = (String::new(), String::new());
    client.offer(&mut offer);
    let offers = extensions::parse(&offer).expect("an offer is lawful");
    let agreed = server.accept_offers(offers.iter(), &mut response).expect("our own offer is acceptable");
    let answer = extensions::parse(&response).expect("an answer is lawful");
    let theirs = client.accept_response(&answer[0]).expect("an answer to our own offer is acceptable");
    // A server may keep to a smaller window than it was asked to without saying so (RFC 7692 §7.1.2.1): all else agrees.
    assert!(agreed.server_max_window_bits <= theirs.server_max_window_bits, "{offer} / {response}");
    let told = DeflateParams { server_max_window_bits: theirs.server_max_window_bits, ..agreed };
    assert_eq!(told, theirs, "{offer} / {response}");
});
