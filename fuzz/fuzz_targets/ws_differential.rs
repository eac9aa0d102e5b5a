//! The same frames into Wireloom and into tungstenite: the same messages and errors. Where they may differ:
//!
//! - Wireloom fails as soon as a byte that has arrived is wrong, tungstenite when the frame is whole: Wireloom may fail
//!   where tungstenite still waits for the rest of the last frame.
//! - tungstenite accepts lengths that are not in their shortest form (RFC 6455 §5.2 forbids them), those of control frames
//!   included, which Wireloom calls too long by their second byte.
//! - tungstenite reads a close code that may not be sent as 1002 and goes on; Wireloom fails the connection (§7.4).
//! - tungstenite has no bound on fragments; here Wireloom has none either.

#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use std::io::{self, Read, Write};
use tungstenite::protocol::{Role as TheirRole, WebSocketConfig};
use tungstenite::{Message, WebSocket};
use wireloom_testing::frame::Length;
use wireloom_testing::split::Split;
use wireloom_testing::{End, Frame, Received, Rng};
use wireloom_ws::{Config, Error, PeerMisbehaved, Role};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    seed: u64,
    client: bool,
    frames: Vec<Written<'a>>,
    /// Bytes of the stream that never arrive.
    lost: u8,
}

#[derive(Arbitrary, Debug)]
struct Written<'a> {
    /// FIN, RSV, opcode as on the wire.
    first: u8,
    payload: &'a [u8],
    key: [u8; 4],
    wrong: Wrong,
}

#[derive(Arbitrary, Debug)]
enum Wrong {
    Nothing,
    Mask,
    Length(u8),
    Repeat(u8),
    Likely(u8),
}

fn write(input: &Input<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in &input.frames {
        let mut masked = !input.client;
        let mut first = frame.first;
        let mut payload = frame.payload.to_vec();
        let mut length = Length::Minimal;
        match frame.wrong {
            Wrong::Nothing => {}
            Wrong::Mask => masked = !masked,
            Wrong::Length(0) => length = Length::Bits16(payload.len() as u16),
            Wrong::Length(1) => length = Length::Bits64(payload.len() as u64),
            Wrong::Length(bits) => length = Length::Bits64(1 << (bits % 64)),
            Wrong::Repeat(times) => payload = payload.repeat(usize::from(times)),
            // Lawful opcodes without reserved bits.
            Wrong::Likely(pick) => {
                first = [0x81, 0x82, 0x01, 0x02, 0x00, 0x80, 0x88, 0x89, 0x8A][usize::from(pick) % 9];
            }
        }
        let written = Frame::new(first, payload).fin(first & 0x80 != 0).rsv(first >> 4);
        written.mask(masked.then_some(frame.key)).length(length).write(&mut bytes);
    }
    bytes.truncate(bytes.len().saturating_sub(usize::from(input.lost / 16)));
    bytes
}

/// The input in parts; output is dropped.
struct Wire<'a> {
    bytes: &'a [u8],
    split: Split,
    rng: Rng,
}

impl Read for Wire<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let len = self.split.next(&mut self.rng, self.bytes.len()).min(out.len());
        out[..len].copy_from_slice(&self.bytes[..len]);
        self.bytes = &self.bytes[len..];
        Ok(len)
    }
}

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The messages that tungstenite receives, and whether it fails.
fn theirs(client: bool, wire: Wire<'_>, max: usize) -> (Vec<Received>, bool) {
    let role = if client { TheirRole::Client } else { TheirRole::Server };
    let config = WebSocketConfig::default().max_message_size(Some(max)).max_frame_size(Some(max));
    let mut socket = WebSocket::from_raw_socket(wire, role, Some(config));
    let mut received = Vec::new();
    loop {
        match socket.read() {
            Ok(Message::Text(text)) => received.push(Received::text(text.as_str())),
            Ok(Message::Binary(data)) => received.push(Received::binary(&data)),
            Ok(Message::Ping(payload)) => received.push(Received::Ping(payload.to_vec())),
            Ok(Message::Pong(payload)) => received.push(Received::Pong(payload.to_vec(), None)),
            Ok(Message::Close(close)) => {
                let (code, reason) = match close {
                    Some(close) => (Some(u16::from(close.code)), close.reason.as_str().to_owned()),
                    None => (None, String::new()),
                };
                received.push(Received::Close(code, reason));
                return (received, false);
            }
            Ok(Message::Frame(_)) => unreachable!("read() makes messages"),
            Err(tungstenite::Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                return (received, false);
            }
            Err(_) => return (received, true),
        }
    }
}

fuzz_target!(|input: Input<'_>| {
    let bytes = write(&input);
    let mut rng = Rng::with_seed(input.seed);
    let max = 1 << 12;
    let mut config = Config::default();
    config.limits.message_len_max = max as u64;
    config.limits.frame_len_max = max as u64;
    config.limits.fragments_spare = u64::MAX;
    let mut end = End::with(if input.client { Role::Client } else { Role::Server }, config, None);
    let split = Split::random(&mut rng);
    let mut ours = end.receive_split(&bytes, split, &mut rng);

    let split = Split::random(&mut rng);
    let (received, failed) = theirs(input.client, Wire { bytes: &bytes, split, rng }, max);
    let error = match ours.last() {
        Some(Received::Failed(error)) => Some(*error),
        _ => None,
    };
    match error {
        None => {
            assert!(!failed, "tungstenite refuses a frame that Wireloom accepts");
            assert_eq!(ours, received);
        }
        Some(error) => {
            ours.pop();
            let stricter = matches!(
                error,
                Error::Peer(
                    PeerMisbehaved::NonMinimalLength
                        | PeerMisbehaved::ControlTooLong
                        | PeerMisbehaved::InvalidCloseCode(_)
                )
            );
            if stricter {
                assert!(received.starts_with(&ours), "{error}");
            } else {
                assert_eq!(ours, received, "{error}");
                assert!(failed || !whole_frames(&bytes), "tungstenite accepts: {error}");
            }
        }
    }
});

/// Whether the bytes end where a frame ends: then tungstenite has nothing to wait for.
fn whole_frames(mut bytes: &[u8]) -> bool {
    while let Some((_, len)) = Frame::read(bytes) {
        bytes = &bytes[len..];
    }
    bytes.is_empty()
}
