//! Masks secrets in the heads of one connection, while its bytes pass. Where bytes are no HTTP, nothing is masked.

use super::mask_http2::MaskHttp2;
use crate::entry::Direction;
use crate::http1::MaskHttp1;
use crate::http2::PREFACE;
use crate::session::looks_like_request;

/// Both directions of a connection.
#[derive(Debug)]
pub(super) enum Masker {
    /// No bytes of the client have arrived that decide.
    Detect(Vec<u8>),
    Http1(Box<MaskHttp1>),
    Http2(Box<MaskHttp2>),
    /// Nothing to mask.
    Pass,
}

impl Default for Masker {
    fn default() -> Self {
        Self::Detect(Vec::new())
    }
}

impl Masker {
    /// The bytes to record now: those of heads only when they are complete.
    pub(super) fn handle(&mut self, direction: Direction, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Detect(held) if direction == Direction::ToServer => {
                held.extend_from_slice(bytes);
                let len = held.len().min(PREFACE.len());
                let is_http2 = held[..len] == PREFACE[..len];
                if (is_http2 && len < PREFACE.len()) || (looks_like_request(held) && held.len() < 8) {
                    return Vec::new();
                }
                let held = std::mem::take(held);
                *self = if is_http2 {
                    Self::Http2(Box::default())
                } else if looks_like_request(&held) {
                    Self::Http1(Box::default())
                } else {
                    Self::Pass
                };
                self.handle(direction, &held)
            }
            // A server of HTTP/2 may send SETTINGS first, which hold no secrets.
            Self::Detect(_) | Self::Pass => bytes.to_vec(),
            Self::Http1(http1) => http1.handle(direction, bytes),
            Self::Http2(http2) => http2.handle(direction, bytes),
        }
    }

    /// The bytes that were held when the direction ended.
    pub(super) fn finish(&mut self, direction: Direction) -> Vec<u8> {
        match self {
            Self::Detect(held) if direction == Direction::ToServer => std::mem::take(held),
            Self::Http1(http1) => http1.finish(direction),
            Self::Http2(http2) => http2.finish(direction),
            _ => Vec::new(),
        }
    }
}
