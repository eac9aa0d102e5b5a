//! Masks secrets in the heads of one connection, as its bytes are recorded.

use super::mask_http2::MaskHttp2;
use crate::entry::Direction;
use crate::http1::MaskHttp1;
use crate::http2::PREFACE;

/// Both directions of a connection.
#[derive(Debug)]
pub(super) enum Masker {
    /// The client has not sent enough bytes to detect the protocol.
    Detect(Vec<u8>),
    Http1(Box<MaskHttp1>),
    Http2(Box<MaskHttp2>),
}

impl Default for Masker {
    fn default() -> Self {
        Self::Detect(Vec::new())
    }
}

impl Masker {
    /// Handles bytes; returns those to record now. Bytes of a head are returned when the head is complete.
    pub(super) fn handle(&mut self, direction: Direction, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Detect(held) if direction == Direction::ToServer => {
                held.extend_from_slice(bytes);
                let len = held.len().min(PREFACE.len());
                let is_http2 = held[..len] == PREFACE[..len];
                if is_http2 && len < PREFACE.len() {
                    return Vec::new();
                }
                let held = std::mem::take(held);
                // Everything else is HTTP/1.1, as far as it is HTTP.
                *self = if is_http2 { Self::Http2(Box::default()) } else { Self::Http1(Box::default()) };
                self.handle(direction, &held)
            }
            // A server of HTTP/2 may send SETTINGS first, which hold no secrets.
            Self::Detect(_) => bytes.to_vec(),
            Self::Http1(http1) => {
                let mut out = http1.handle(direction, bytes);
                if let Some(buffers) = http1.take_http2() {
                    let mut http2 = Box::new(MaskHttp2::holding(buffers));
                    out.extend(http2.handle(direction, &[]));
                    *self = Self::Http2(http2);
                }
                out
            }
            Self::Http2(http2) => http2.handle(direction, bytes),
        }
    }

    /// Handles the end of a direction; returns the bytes that were still buffered.
    pub(super) fn finish(&mut self, direction: Direction) -> Vec<u8> {
        match self {
            Self::Detect(held) if direction == Direction::ToServer => std::mem::take(held),
            Self::Http1(http1) => http1.finish(direction),
            Self::Http2(http2) => http2.finish(direction),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Entry, Payload};
    use crate::inspector::{Config, Inspector};

    const REQUEST: &[u8] =
        b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: \r\n\r\n";
    const RESPONSE: &[u8] = b"HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";

    /// A HEADERS frame with a literal field that is not indexed.
    fn headers(stream: u8, start: &[u8], name: &[u8], value: &[u8]) -> Vec<u8> {
        let mut block = start.to_vec();
        block.push(0);
        for text in [name, value] {
            block.push(text.len() as u8);
            block.extend_from_slice(text);
        }
        [&[0, 0, block.len() as u8, 1, 5, 0, 0, 0, stream], &block[..]].concat()
    }

    // RFC 7540 §3.2: the client may send its preface before the response, or after it.
    #[test]
    fn masks_http2_after_an_upgrade() {
        let client =
            [PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0], &headers(3, &[0x82, 0x86, 0x84], b"cookie", b"secret=1")]
                .concat();
        let server =
            [&[0, 0, 0, 4, 0, 0, 0, 0, 0][..], &headers(1, &[0x88], b"set-cookie", b"secret=2")].concat();
        for early in [0, 5, PREFACE.len(), client.len()] {
            let mut masker = Masker::default();
            let mut inspector = Inspector::new(Config::default());
            let mut entries: Vec<Entry> = Vec::new();
            let mut all = Vec::new();
            let mut record = |direction, bytes: Vec<u8>| {
                all.extend_from_slice(&bytes);
                inspector.handle_bytes(1, None, direction, &bytes, &mut entries);
            };
            let bytes = masker.handle(Direction::ToServer, &[REQUEST, &client[..early]].concat());
            record(Direction::ToServer, bytes);
            let bytes = masker.handle(Direction::ToClient, &[RESPONSE, &server].concat());
            record(Direction::ToClient, bytes);
            if early < client.len() {
                let bytes = masker.handle(Direction::ToServer, &client[early..]);
                record(Direction::ToServer, bytes);
            }
            let bytes = masker.finish(Direction::ToServer);
            record(Direction::ToServer, bytes);
            assert!(!all.windows(6).any(|part| part == b"secret"), "{early}");
            let fields = entries.iter().filter_map(|entry| match &entry.payload {
                Payload::Fields { fields, .. } => Some(fields),
                _ => None,
            });
            let masked = (b"cookie".to_vec(), b"********".to_vec());
            assert!(fields.flatten().any(|field| *field == masked), "{early}: {entries:?}");
        }
    }

    // A download may be followed while it is recorded, and a frame is up to 16 MiB long.
    #[test]
    fn frames_without_fields_are_recorded_as_they_arrive() {
        let mut masker = Masker::default();
        let mut handle = |bytes: &[u8]| masker.handle(Direction::ToServer, bytes);
        assert_eq!(handle(PREFACE), PREFACE);
        let data = [0, 0, 4, 0, 0, 0, 0, 0, 1, b'd', b'a', b't', b'a'];
        let fields = headers(3, &[0x82, 0x86, 0x84], b"cookie", b"secret");
        assert_eq!(handle(&data[..8]), b"");
        assert_eq!(handle(&data[8..11]), data[..11]);
        let next = [&data[11..], &data, &fields[..20]].concat();
        assert_eq!(handle(&next), next[..2 + data.len()]);
        let masked = handle(&[&fields[20..], &data].concat());
        assert!(masked.ends_with(&data) && masked.windows(6).any(|part| part == b"******"));
        // A block that is too long to be decoded is not kept, nor are those that follow.
        let too_long = [&[0x10, 0, 1, 1, 4, 0, 0, 0, 5][..], &[7; 1 << 20]].concat();
        assert_eq!(handle(&too_long), b"");
        assert_eq!(handle(&[&[7], &data[..], &fields, &data].concat()), data.repeat(2));
    }

    // RFC 9110 §9.1: a method is any token, and case-sensitive.
    #[test]
    fn masks_requests_with_any_method() {
        for method in ["GET", "get", "X", "M-SEARCH", "VERSION_CONTROL", "\r\nGET"] {
            let mut masker = Masker::default();
            let request = format!("{method} / HTTP/1.1\r\nCookie: a\r\n\r\n");
            let masked = masker.handle(Direction::ToServer, request.as_bytes());
            assert_eq!(masked, request.replace("Cookie: a", "Cookie: *").as_bytes());
        }
    }

    #[test]
    fn an_upgrade_to_http2_waits_for_the_content() {
        let post = [
            &b"POST / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"[..],
            b"HTTP2-Settings: \r\nContent-Length: 4\r\n\r\n",
        ]
        .concat();
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let mut masker = Masker::default();
        assert_eq!(masker.handle(Direction::ToServer, &[&post[..], b"ab"].concat()).len(), post.len() + 2);
        assert_eq!(masker.handle(Direction::ToClient, &[RESPONSE, &settings].concat()), RESPONSE);
        let client = [&b"cd"[..], PREFACE, &settings].concat();
        assert_eq!(masker.handle(Direction::ToServer, &client), client);
        assert_eq!(masker.handle(Direction::ToClient, &settings), settings.repeat(2));
    }
}
