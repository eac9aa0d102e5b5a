//! The messages of the workloads, generated from a fixed seed, and the bytes that a peer would send for them. The
//! frames are written by the builder of `wireloom-testing`, which shares no code with any contestant.

use crate::decode_check::Takeover;
use bytes::Bytes;
use fastrand::Rng;
use flate2::{Compress, Compression, FlushCompress};
use std::sync::Arc;
use wireloom_testing::frame::Frame;

/// The end of the connection that reads or writes: a client masks, a server does not (RFC 6455 §5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Server,
}

/// The content of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// ASCII text.
    Ascii,
    /// Text in several scripts, one to four bytes a code point.
    MultiByte,
    /// Any bytes, in binary messages.
    Binary,
    /// Events as JSON, ASCII.
    Json,
}

/// Messages and their frames.
#[derive(Clone)]
pub(crate) struct Corpus {
    pub(crate) messages: Arc<[Box<[u8]>]>,
    /// One final frame a message, back to back.
    pub(crate) frames: Bytes,
}

impl Corpus {
    /// `count` messages of `len` bytes, framed for `reader`: masked with a fresh key each if that is a server.
    pub(crate) fn new(content: Content, len: usize, count: usize, reader: End) -> Self {
        let mut rng = Rng::with_seed(0x57_49_52_45 ^ len as u64);
        let messages: Arc<[_]> =
            (0..count).map(|_| content.message(len, &mut rng).into_boxed_slice()).collect();
        let mut frames = Vec::with_capacity(count * (len + 14));
        for message in messages.iter() {
            let frame = match content {
                Content::Binary => Frame::binary(message),
                Content::Ascii | Content::MultiByte | Content::Json => Frame::text(message),
            };
            let key = (reader == End::Server).then(|| rng.u32(..).to_le_bytes());
            frame.mask(key).write(&mut frames);
        }
        Self { messages, frames: half_a_page_in(&frames) }
    }

    /// The same messages, each in a compressed frame from a server (RFC 7692), by the reference at `level`.
    pub(crate) fn compressed(&self, takeover: Takeover, level: u32) -> Self {
        let mut deflate = Compress::new(Compression::new(level), false);
        let mut frames = Vec::with_capacity(self.frames.len());
        let mut compressed = Vec::with_capacity(4 << 10);
        for message in self.messages.iter() {
            if takeover == Takeover::No {
                deflate.reset();
            }
            compressed.clear();
            compressed.reserve(message.len() + 64);
            deflate.compress_vec(message, &mut compressed, FlushCompress::Sync).expect("room enough");
            let body = compressed.strip_suffix(&[0, 0, 0xFF, 0xFF]).expect("room enough for the flush");
            Frame::text(body).rsv(4).write(&mut frames);
        }
        Self { messages: Arc::clone(&self.messages), frames: half_a_page_in(&frames) }
    }
}

/// A copy that begins in the middle of a page.
///
/// AMD's Zen 4 copies much slower when the destination lies a few bytes behind the source modulo 4,096 bytes, a page.
/// Allocators place long buffers at the beginning of a page, so a source at the beginning of a page would slow down
/// some contestants and not others, by chance.
fn half_a_page_in(frames: &[u8]) -> Bytes {
    const PAGE: usize = 4096;
    let mut bytes = vec![0; PAGE + frames.len()];
    let start = bytes.as_ptr().addr().wrapping_neg().wrapping_add(PAGE / 2) % PAGE;
    bytes[start..start + frames.len()].copy_from_slice(frames);
    Bytes::from(bytes).slice(start..start + frames.len())
}

impl Content {
    fn message(self, len: usize, rng: &mut Rng) -> Vec<u8> {
        match self {
            Content::Binary => std::iter::repeat_with(|| rng.u8(..)).take(len).collect(),
            Content::Ascii => text(ASCII, len, rng),
            Content::MultiByte => text(MULTI_BYTE, len, rng),
            Content::Json => json(len, rng),
        }
    }
}

const ASCII: &[&str] =
    &["the", "message", "of", "a", "room", "that", "nobody", "left", "at", "noon", "and", "again"];
const MULTI_BYTE: &[&str] = &[
    "сообщение",
    "комната",
    "δωμάτιο",
    "μήνυμα",
    "部屋の",
    "消息房间",
    "방의메시지",
    "ok",
    "🦀🚀",
    "žluťoučký",
    "naïve",
];

/// Words with single spaces, exactly `len` bytes.
fn text(words: &[&str], len: usize, rng: &mut Rng) -> Vec<u8> {
    let mut text = String::with_capacity(len + 32);
    while text.len() < len {
        text.push_str(words[rng.usize(..words.len())]);
        text.push(' ');
    }
    let mut end = len;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text.extend(std::iter::repeat_n('.', len - end));
    text.into_bytes()
}

/// An event as a chat or a market would send it, about `len` bytes: keys repeat, values mostly do not.
fn json(len: usize, rng: &mut Rng) -> Vec<u8> {
    use std::fmt::Write;
    let mut out = String::with_capacity(len + 128);
    let id = rng.u64(..);
    let seconds = rng.u32(..86_400);
    _ = write!(
        out,
        r#"{{"type":"event","id":"{id:016x}","seq":{},"time":"2026-11-20T{:02}:{:02}:{:02}Z","items":["#,
        rng.u32(..1_000_000),
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    );
    while out.len() + 120 < len {
        let (price, name) = (rng.u32(100..1_000_000), ASCII[rng.usize(..ASCII.len())]);
        _ = write!(
            out,
            r#"{{"user":"{name}{}","price":{}.{:02},"count":{},"tags":["{}","{}"],"ok":{}}},"#,
            rng.u16(..2_000),
            price / 100,
            price % 100,
            rng.u8(..),
            ASCII[rng.usize(..ASCII.len())],
            ASCII[rng.usize(..ASCII.len())],
            rng.bool()
        );
    }
    out.push_str(r#"{"note":""#);
    while out.len() + 4 < len {
        out.push(char::from(rng.alphanumeric() as u8));
    }
    out.push_str("\"}]}");
    out.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::Checksum;
    use crate::decode_check::{self, Expected};

    #[test]
    fn messages_have_the_requested_length_and_content() {
        let mut rng = Rng::with_seed(1);
        for len in [0, 1, 13, 200, 70_000] {
            let ascii = Content::Ascii.message(len, &mut rng);
            assert!(ascii.len() == len && ascii.is_ascii());
            let multi = Content::MultiByte.message(len, &mut rng);
            assert!(multi.len() == len && std::str::from_utf8(&multi).is_ok());
        }
        let json = Content::Json.message(1024, &mut rng);
        assert_eq!(json.len(), 1024);
        serde_json::from_slice::<serde_json::Value>(&json).expect("JSON");
    }

    #[test]
    fn compressed_frames_read_back() {
        let corpus = Corpus::new(Content::Json, 1024, 5, End::Client);
        for takeover in [Takeover::Yes, Takeover::No] {
            let expected = Expected { masked: false, compressed: Some(takeover) };
            let frames = corpus.compressed(takeover, 6).frames;
            let messages = Checksum::of(corpus.messages.iter().map(|message| &**message));
            assert_eq!(decode_check::checksum(&frames, expected), Ok(messages));
        }
    }

    #[test]
    fn only_servers_read_masked_frames() {
        assert_eq!(Corpus::new(Content::Ascii, 13, 3, End::Client).frames.len(), 3 * 15);
        assert_eq!(Corpus::new(Content::Ascii, 13, 3, End::Server).frames.len(), 3 * 19);
    }
}
