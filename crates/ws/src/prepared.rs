//! A message that is encoded once and sent over any number of connections: an unmasked frame, plain or compressed.

use alloc::vec::Vec;

use bytes::Bytes;

use crate::deflate::{Compressor, DeflateConfig, DeflateParams};
use crate::frame::{HEADER_LEN_MAX, Header};
use crate::opcode::Kind;
use crate::role::Role;
use crate::send::COMPRESSED;

/// A whole message in one unmasked frame, ready for [`Outbound::send_prepared`](crate::Outbound::send_prepared).
///
/// Cloning is cheap: the bytes are shared.
///
/// ```
/// use std::time::Duration;
/// use wireloom_ws::{Config, Connection, PreparedFrame};
///
/// let frame = PreparedFrame::text("to everyone");
/// for _ in 0..3 {
///     let mut server = Connection::server(Config::default(), None, Duration::ZERO);
///     server.send_prepared(&frame)?;
///     assert_eq!(server.take_transmit(), b"\x81\x0bto everyone");
/// }
/// # Ok::<(), wireloom_ws::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedFrame {
    kind: Kind,
    /// Header and payload.
    bytes: Bytes,
    header: Header,
    /// Set for a compressed message: no distance in it exceeds 2^this.
    window_bits: Option<u8>,
}

impl PreparedFrame {
    /// An uncompressed text message.
    pub fn text(text: &str) -> Self {
        Self::encode(Kind::Text, text.as_bytes(), None)
    }

    /// An uncompressed binary message.
    pub fn binary(data: &[u8]) -> Self {
        Self::encode(Kind::Binary, data, None)
    }

    /// The same message, compressed. A compressed frame is returned unchanged.
    #[must_use]
    pub fn compressed(&self, compressor: &mut FrameCompressor) -> Self {
        match self.window_bits {
            Some(_) => self.clone(),
            None => compressor.frame(self.kind, self.payload()),
        }
    }

    /// Text or binary.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The window that a receiver of this frame needs, as an exponent of two; `None` when it is not compressed.
    pub fn window_bits(&self) -> Option<u8> {
        self.window_bits
    }

    /// The encoded frame: header and payload.
    pub fn as_bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The payload; DEFLATE blocks if the frame is compressed.
    pub fn payload(&self) -> &[u8] {
        self.bytes.get(self.header.encoded_len()..).unwrap_or_default()
    }

    pub(crate) fn header(&self) -> Header {
        self.header
    }

    fn encode(kind: Kind, payload: &[u8], window_bits: Option<u8>) -> Self {
        let header = Header {
            fin: true,
            rsv: if window_bits.is_some() { COMPRESSED } else { 0 },
            opcode: kind.opcode(),
            mask: None,
            payload_len: payload.len() as u64,
        };
        let mut head = [0; HEADER_LEN_MAX];
        let len = header.encode(&mut head);
        let mut bytes = Vec::with_capacity(len + payload.len());
        bytes.extend_from_slice(&head[..len]);
        bytes.extend_from_slice(payload);
        Self { kind, bytes: bytes.into(), header, window_bits }
    }
}

/// Compresses messages for [`PreparedFrame`], each without reference to earlier ones, so that every connection with a window of this size
/// can receive them. Keep one for many messages: it uses up to 280 KB.
#[derive(Debug)]
pub struct FrameCompressor {
    compressor: Compressor,
    window_bits: u8,
    payload: Vec<u8>,
}

impl FrameCompressor {
    /// Compresses for connections of which [`prepared_window_bits`](crate::Outbound::prepared_window_bits) is at least
    /// `window_bits`. Level and memory are those of `config`.
    pub fn new(window_bits: u8, config: &DeflateConfig) -> Self {
        let params = DeflateParams {
            server_no_context_takeover: true,
            server_max_window_bits: window_bits,
            ..DeflateParams::default()
        };
        Self { compressor: Compressor::new(Role::Server, &params, config), window_bits, payload: Vec::new() }
    }

    fn frame(&mut self, kind: Kind, payload: &[u8]) -> PreparedFrame {
        self.payload.clear();
        self.compressor.compress(payload, &mut self.payload);
        PreparedFrame::encode(kind, &self.payload, Some(self.window_bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Connection, Error, Event, Misuse};
    use alloc::format;
    use alloc::string::String;
    use alloc::vec;
    use core::time::Duration;

    const NOW: Duration = Duration::ZERO;

    fn pair(config: &DeflateConfig, params: DeflateParams) -> (Connection, Connection) {
        let deflate = Some((params, config));
        (
            Connection::server(Config::default(), deflate, NOW),
            Connection::client(Config::default(), deflate, [1; 32], NOW),
        )
    }

    fn received(to: &mut Connection, from: &mut Connection) -> Vec<String> {
        let mut wire = from.take_transmit();
        let mut texts = Vec::new();
        let mut at = 0;
        while let (used, Some(event)) = to.handle_input(NOW, &mut wire[at..]).unwrap() {
            let Event::Text(text) = event else { panic!("{event:?}") };
            texts.push(String::from(text.as_str()));
            at += used;
        }
        texts
    }

    #[test]
    fn shared_frames_and_own_messages_inflate_in_any_order() {
        let config = DeflateConfig { min_len: 0, ..DeflateConfig::default() };
        for bits in [9, 12, 15] {
            for no_takeover in [false, true] {
                let params = DeflateParams {
                    server_max_window_bits: bits,
                    server_no_context_takeover: no_takeover,
                    ..DeflateParams::default()
                };
                let (mut server, mut client) = pair(&config, params);
                let bits = server.prepared_window_bits(0).unwrap();
                let mut compressor = FrameCompressor::new(bits, &config);
                let own = "the connection's own words, the connection's own words";
                for round in 0..5 {
                    let all = format!("{round} said to everyone, said to everyone").repeat(50);
                    let shared = PreparedFrame::text(&all).compressed(&mut compressor);
                    assert!(shared.as_bytes().len() < all.len() / 4);
                    server.send_text(own).unwrap();
                    server.send_prepared(&shared).unwrap();
                    server.send_prepared(&PreparedFrame::text("plain")).unwrap();
                    server.send_text(own).unwrap();
                    server.send_text(own).unwrap();
                    let texts = received(&mut client, &mut server);
                    assert_eq!(texts, [own, &all, "plain", own, own], "{bits} bits");
                }
            }
        }
    }

    #[test]
    fn sends_large_frames_by_reference_and_clients_mask_them() {
        let frame = PreparedFrame::binary(&[7; 5000]);
        let mut server = Connection::server(Config::default(), None, NOW);
        server.send_prepared(&frame).unwrap();
        let mut slices: [&[u8]; 4] = [&[]; 4];
        assert_eq!(server.poll_transmit(&mut slices), 1);
        assert_eq!(slices[0].as_ptr(), frame.as_bytes().as_ptr());
        let mut client = Connection::client(Config::default(), None, [1; 32], NOW);
        client.send_prepared(&frame).unwrap();
        let mut wire = client.take_transmit();
        let mut server = Connection::server(Config::default(), None, NOW);
        let (_, event) = server.handle_input(NOW, &mut wire).unwrap();
        assert!(matches!(event, Some(Event::Binary(data)) if data[..] == [7; 5000]));
    }

    #[test]
    fn refuses_a_window_that_was_not_negotiated() {
        let config = DeflateConfig::default();
        let frame = PreparedFrame::text("text").compressed(&mut FrameCompressor::new(15, &config));
        let refused = Err(Error::Misuse(Misuse::PreparedForOthers));
        let params = DeflateParams { server_max_window_bits: 14, ..DeflateParams::default() };
        let (mut server, _) = pair(&config, params);
        assert_eq!(server.send_prepared(&frame), refused);
        assert_eq!(Connection::server(Config::default(), None, NOW).send_prepared(&frame), refused);
        assert_eq!((server.prepared_window_bits(63), server.prepared_window_bits(64)), (None, Some(14)));
    }

    #[test]
    fn uses_no_more_memory_than_the_frame() {
        let frame = PreparedFrame::text(&"x".repeat(300));
        assert_eq!((frame.kind(), frame.window_bits(), frame.payload().len()), (Kind::Text, None, 300));
        let bytes = frame.as_bytes().clone();
        drop(frame);
        assert_eq!(Vec::from(bytes).capacity(), 304);
    }

    // A driver writes a frame to many transports, each of which accepts a part of it.
    #[test]
    fn the_rest_of_a_frame_follows_what_was_written() {
        for payload_len in [0, 10, 5_000] {
            let frame = PreparedFrame::binary(&vec![7; payload_len]);
            let next = PreparedFrame::text("next");
            let len = frame.as_bytes().len();
            for written in [0, 1, len - 1, len] {
                let mut server = Connection::server(Config::default(), None, NOW);
                assert!(server.can_write_prepared());
                server.send_rest_of_prepared(&frame, written).unwrap();
                assert_eq!(server.queued_len(), len - written);
                assert_eq!(server.can_write_prepared(), written == len);
                server.send_rest_of_prepared(&next, 0).unwrap();
                assert_eq!(server.take_transmit(), [&frame.as_bytes()[written..], next.as_bytes()].concat());
            }
        }
        let mut server = Connection::server(Config::default(), None, NOW);
        server.send_text_chunk("a message under way", false).unwrap();
        server.take_transmit();
        assert!(!server.can_write_prepared());
        server.send_text_chunk(".", true).unwrap();
        assert!(!server.can_write_prepared(), "bytes are queued");
        server.take_transmit();
        assert!(server.can_write_prepared());
        server.close(NOW, crate::CloseCode::NORMAL, "").unwrap();
        server.take_transmit();
        assert!(!server.can_write_prepared(), "closed");
        assert!(!Connection::client(Config::default(), None, [0; 32], NOW).can_write_prepared(), "masked");
    }
}
