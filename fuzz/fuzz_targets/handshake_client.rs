//! Any bytes as a server's response, whole and cut at random: one result; and any values as what a client asks for: the
//! request is refused by the client itself, or a server reads exactly those values from it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wireloom_testing::Rng;
use wireloom_testing::split::Split;
use wireloom_ws::deflate::DeflateConfig;
use wireloom_ws::handshake::client::Progress;
use wireloom_ws::handshake::{
    ClientHandshake, ClientOptions, HandshakeError, HandshakeLimits, ServerHandshake,
};

fn dial(
    options: &ClientOptions,
    bytes: &[u8],
    pieces: &[usize],
) -> Result<Option<(usize, Progress)>, HandshakeError> {
    let limits = HandshakeLimits { head_len_max: 2_048, headers_max: 20 };
    let mut handshake = ClientHandshake::new(options.clone(), *b"the sample nonce", limits)?;
    let mut at = 0;
    for &len in pieces {
        match handshake.handle_input(&bytes[at..at + len]) {
            Ok(Progress::Incomplete) => at += len,
            Ok(Progress::Done { consumed, negotiated }) => {
                assert!(consumed <= len);
                return Ok(Some((at + consumed, Progress::Done { consumed: 0, negotiated })));
            }
            Ok(Progress::Refused { consumed, response }) => {
                assert!(consumed <= len);
                return Ok(Some((at + consumed, Progress::Refused { consumed: 0, response })));
            }
            Err(error) => {
                assert_eq!(handshake.handle_input(b"x"), Err(error));
                return Err(error);
            }
        }
    }
    assert!(bytes.len() <= 2_048, "an incomplete head beyond its bound");
    Ok(None)
}

fuzz_target!(|input: (u64, [&str; 5], &[u8])| {
    let (seed, [host, resource, subprotocol, name, value], bytes) = input;
    let mut rng = Rng::with_seed(seed);

    // The accept of `the sample nonce` is what RFC 6455 §1.3 publishes, so that the fuzzer can come by it.
    let options = ClientOptions::new("example.com", "/")
        .subprotocol("chat")
        .subprotocol("superchat")
        .deflate(DeflateConfig { client_max_window_bits: rng.u8(8..16), ..DeflateConfig::default() });
    let whole = dial(&options, bytes, &[bytes.len()]);
    let pieces = Split::random(&mut rng).parts(&mut rng, bytes.len());
    assert_eq!(dial(&options, bytes, &pieces), whole, "cut {pieces:?}");

    let options = ClientOptions::new(host, resource).subprotocol(subprotocol).header(name, value);
    let Ok(client) = ClientHandshake::new(options, rng.u128(..).to_be_bytes(), HandshakeLimits::default())
    else {
        return;
    };
    let mut server = ServerHandshake::new(HandshakeLimits::default());
    match server.handle_input(client.request()) {
        Ok(wireloom_ws::handshake::server::Progress::Complete { consumed }) => {
            assert_eq!(consumed, client.request().len(), "nothing was injected");
            let request = server.request().expect("a complete request");
            assert_eq!(request.resource(), resource);
            assert_eq!(request.host(), host);
            assert_eq!(request.subprotocols().collect::<Vec<_>>(), [subprotocol]);
            let blanks = [' ', '\t'];
            assert_eq!(request.header(name), Some(value.trim_matches(blanks).as_bytes()));
        }
        // The headers that the fuzzer adds may spoil the request by themselves, as Content-Length does; a lone head
        // over the bound is lawful, too.
        Ok(_) => panic!("the client's request has no end"),
        Err(HandshakeError::Request(_) | HandshakeError::Limit(_)) => {}
        Err(error) => panic!("{error:?}"),
    }
});
