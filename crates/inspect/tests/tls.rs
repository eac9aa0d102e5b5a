//! TLS decrypted with logged secrets: every cipher suite that rustls has, in memory.

#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::crypto::ring;
use rustls::{
    ClientConfig, ClientConnection, KeyLog, RootCertStore, ServerConfig, ServerConnection,
    SupportedCipherSuite,
};
use wireloom_inspect::{Config, Direction, Entry, Inspector, Payload, Protocol};

/// Lines in the format of SSLKEYLOGFILE.
#[derive(Debug, Default)]
struct Log(Mutex<String>);

impl KeyLog for Log {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let line = format!("{label} {} {}\n", hex(client_random), hex(secret));
        self.0.lock().unwrap().push_str(&line);
    }
}

struct Pair {
    client: ClientConnection,
    server: ServerConnection,
    log: Arc<Log>,
    /// The bytes in the order in which they were sent.
    wire: Vec<(Direction, Vec<u8>)>,
}

impl Pair {
    fn new(suite: SupportedCipherSuite) -> Self {
        let mut provider = ring::default_provider();
        provider.cipher_suites = vec![suite];
        let provider = Arc::new(provider);
        let certified = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let certificate = certified.cert.der().clone();
        let key = rustls::pki_types::PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let log = Arc::new(Log::default());
        client.key_log = log.clone();
        let client = ClientConnection::new(Arc::new(client), "localhost".try_into().unwrap()).unwrap();
        Self { client, server: ServerConnection::new(Arc::new(server)).unwrap(), log, wire: Vec::new() }
    }

    /// Transfers bytes between the two until both have nothing to send.
    fn transfer(&mut self) {
        loop {
            let mut bytes = Vec::new();
            let mut carried = false;
            while self.client.wants_write() {
                self.client.write_tls(&mut bytes).unwrap();
            }
            if !bytes.is_empty() {
                carried = true;
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    self.server.read_tls(&mut rest).unwrap();
                    self.server.process_new_packets().unwrap();
                }
                self.wire.push((Direction::ToServer, bytes));
            }
            let mut bytes = Vec::new();
            while self.server.wants_write() {
                self.server.write_tls(&mut bytes).unwrap();
            }
            if !bytes.is_empty() {
                carried = true;
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    self.client.read_tls(&mut rest).unwrap();
                    self.client.process_new_packets().unwrap();
                }
                self.wire.push((Direction::ToClient, bytes));
            }
            if !carried {
                break;
            }
        }
        let mut plain = [0; 4096];
        let _ = self.server.reader().read(&mut plain);
        let _ = self.client.reader().read(&mut plain);
    }

    fn send_to_server(&mut self, bytes: &[u8]) {
        self.client.writer().write_all(bytes).unwrap();
        self.transfer();
    }

    fn send_to_client(&mut self, bytes: &[u8]) {
        self.server.writer().write_all(bytes).unwrap();
        self.transfer();
    }

    /// The entries of the transferred bytes, split into chunks of `cut` bytes.
    fn inspect(&self, cut: usize) -> Vec<Entry> {
        let mut inspector = Inspector::new(Config::default());
        inspector.add_secrets(self.log.0.lock().unwrap().as_bytes());
        let mut entries = Vec::new();
        for (direction, bytes) in &self.wire {
            for bytes in bytes.chunks(cut) {
                inspector.handle_bytes(1, Some(Duration::ZERO), *direction, bytes, &mut entries);
            }
        }
        inspector.finish(&mut entries);
        entries
    }
}

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
const RESPONSE: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// The texts of WebSocket messages.
fn texts(entries: &[Entry]) -> Vec<String> {
    entries
        .iter()
        .filter(|entry| entry.protocol == Protocol::WebSocket)
        .map(|entry| match &entry.payload {
            Payload::Text(text) => text.clone(),
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn every_cipher_suite_is_decrypted() {
    let mut tested = 0;
    for &suite in ring::ALL_CIPHER_SUITES {
        // The certificate is for ECDSA.
        if format!("{:?}", suite.suite()).contains("_RSA_") {
            continue;
        }
        tested += 1;
        let mut pair = Pair::new(suite);
        pair.transfer();
        pair.send_to_server(REQUEST);
        pair.send_to_client(RESPONSE);
        pair.send_to_client(b"\x81\x05first");
        if matches!(suite, SupportedCipherSuite::Tls13(_)) {
            // RFC 8446 §4.6.3: keys change.
            pair.client.refresh_traffic_keys().unwrap();
            pair.transfer();
            pair.server.refresh_traffic_keys().unwrap();
            pair.transfer();
        }
        pair.send_to_client(b"\x81\x06second");
        pair.send_to_server(b"\x81\x85\0\0\0\0third");
        for cut in [1, 7, 4096] {
            let entries = pair.inspect(cut);
            assert_eq!(texts(&entries), ["first", "second", "third"], "{suite:?}, cut {cut}");
            assert!(entries.iter().all(|entry| entry.problems.is_empty()), "{suite:?}: {entries:#?}");
        }
    }
    assert_eq!(tested, 6);
}

#[test]
fn records_without_secrets_are_counted() {
    let mut pair = Pair::new(ring::ALL_CIPHER_SUITES[0]);
    pair.transfer();
    pair.send_to_client(b"\x81\x05first");
    pair.log.0.lock().unwrap().clear();
    let entries = pair.inspect(4096);
    let encrypted: Vec<&str> = entries
        .iter()
        .filter(|entry| entry.kind == "encrypted")
        .flat_map(|entry| &entry.problems)
        .map(|problem| problem.text.as_str())
        .collect();
    assert!(encrypted.contains(&"there are no secrets for this session"), "{encrypted:?}");
    assert!(entries.iter().all(|entry| entry.protocol == Protocol::Tls), "{entries:#?}");
}

#[test]
fn decryption_continues_behind_missing_records() {
    let mut pair = Pair::new(ring::ALL_CIPHER_SUITES[0]);
    pair.transfer();
    pair.send_to_server(REQUEST);
    pair.send_to_client(RESPONSE);
    pair.send_to_client(b"\x81\x05first");
    let lost = pair.wire.len();
    pair.send_to_client(b"\x81\x04lost");
    pair.send_to_client(b"\x81\x05third");
    let (_, bytes) = pair.wire.remove(lost);
    let mut inspector = Inspector::new(Config::default());
    inspector.add_secrets(pair.log.0.lock().unwrap().as_bytes());
    let mut entries = Vec::new();
    let mut sequence = [1u32, 1];
    for (at, (direction, run)) in pair.wire.iter().enumerate() {
        if at == lost {
            sequence[1] += bytes.len() as u32;
        }
        let side = *direction as usize;
        let packet = packet(side == 0, sequence[side], run);
        inspector.handle_packet(Duration::ZERO, wireloom_inspect::LinkType(101), &packet, &mut entries);
        sequence[side] += run.len() as u32;
    }
    inspector.finish(&mut entries);
    assert_eq!(texts(&entries), ["first", "third"], "{entries:#?}");
    assert!(entries.iter().any(|entry| entry.kind == "gap" && entry.len == bytes.len() as u64));
}

/// A TCP segment over IPv4.
fn packet(from_client: bool, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let (source, destination) = if from_client { (40000, 443) } else { (443, 40000) };
    let (client, server) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let (from, to) = if from_client { (client, server) } else { (server, client) };
    let mut out = vec![0x45, 0];
    out.extend(((40 + payload.len()) as u16).to_be_bytes());
    out.extend([0, 0, 0, 0, 64, 6, 0, 0]);
    out.extend(from);
    out.extend(to);
    out.extend(u16::to_be_bytes(source));
    out.extend(u16::to_be_bytes(destination));
    out.extend(sequence.to_be_bytes());
    out.extend(1u32.to_be_bytes());
    out.extend([0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    out.extend(payload);
    out
}

// Records are longer than their plaintext.
#[test]
fn the_length_of_plaintext_that_is_missing_is_not_invented() {
    let mut pair = Pair::new(ring::ALL_CIPHER_SUITES[0]);
    pair.transfer();
    pair.send_to_server(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    pair.send_to_client(b"HTTP/1.1 200 OK\r\n\r\nfirst");
    let mut lost = Vec::new();
    for part in ["second", "third", "fourth", "fifth", "sixth"] {
        if ["second", "fourth"].contains(&part) {
            lost.push(pair.wire.len());
        }
        pair.send_to_client(part.as_bytes());
    }
    let mut inspector = Inspector::new(Config::default());
    inspector.add_secrets(pair.log.0.lock().unwrap().as_bytes());
    let mut entries = Vec::new();
    let mut sequence = [1u32, 1];
    for (at, (direction, run)) in pair.wire.iter().enumerate() {
        let side = *direction as usize;
        if !lost.contains(&at) {
            let packet = packet(side == 0, sequence[side], run);
            inspector.handle_packet(Duration::ZERO, wireloom_inspect::LinkType(101), &packet, &mut entries);
        }
        sequence[side] += run.len() as u32;
    }
    inspector.finish(&mut entries);
    let body = entries.iter().find(|entry| entry.kind == "body").unwrap();
    assert_eq!(body.len, "firstthirdfifthsixth".len() as u64, "{entries:#?}");
    assert_eq!(body.payload, Payload::Text("first".into()));
    assert_eq!(body.payload_len, Some(body.len));
    assert_eq!(body.problems[0].text, "bytes of the body were not captured");
}
