//! ClientHello and ServerHello (RFC 8446 §4.1): the fields that select the keys, and those that are shown.

use crate::entry::{Context, Protocol};

/// The random of a HelloRetryRequest (RFC 8446 §4.1.3).
const RETRY: [u8; 32] = [
    0xCF, 0x21, 0xAD, 0x74, 0xE5, 0x9A, 0x61, 0x11, 0xBE, 0x1D, 0x8C, 0x02, 0x1E, 0x65, 0xB8, 0x91, 0xC2,
    0xA2, 0x11, 0x16, 0x7A, 0xBB, 0x8C, 0x5E, 0x07, 0x9E, 0x09, 0xE2, 0xC8, 0xA8, 0x33, 0x9C,
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClientHello {
    pub(super) random: [u8; 32],
    server_name: Option<String>,
    alpn: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerHello {
    pub(super) random: [u8; 32],
    pub(super) suite: u16,
    /// 0x0303 is TLS 1.2, 0x0304 TLS 1.3.
    pub(super) version: u16,
    pub(super) is_retry: bool,
    alpn: Vec<String>,
}

/// A handshake message of interest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hello {
    Client(ClientHello),
    Server(ServerHello),
    /// Another message, or a malformed one.
    Other,
}

/// Reads fields from the front of a message; `None` at its end.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, len: usize) -> Option<usize> {
        Some(self.take(len)?.iter().fold(0, |number, &byte| number << 8 | usize::from(byte)))
    }

    /// A vector with a length of `len` bytes before it.
    fn vector(&mut self, len: usize) -> Option<Reader<'a>> {
        let len = self.number(len)?;
        self.take(len).map(Reader)
    }
}

impl Hello {
    /// The first message of `bytes`, which then begin behind it; `None` if it is incomplete.
    pub(super) fn next(bytes: &mut &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let kind = reader.number(1)?;
        let mut body = reader.vector(3)?;
        *bytes = reader.0;
        Some(match kind {
            1 => ClientHello::parse(&mut body).map_or(Self::Other, Self::Client),
            2 => ServerHello::parse(&mut body).map_or(Self::Other, Self::Server),
            _ => Self::Other,
        })
    }

    pub(super) fn report(&self, context: &mut Context<'_>) {
        let (name, mut text, alpn) = match self {
            Self::Client(hello) => {
                ("ClientHello", hello.server_name.clone().unwrap_or_default(), &hello.alpn)
            }
            Self::Server(hello) if hello.is_retry => ("HelloRetry", String::new(), &hello.alpn),
            Self::Server(hello) => {
                let suite = rustls::CipherSuite::from(hello.suite);
                let version = if hello.version == 0x0304 { "TLS 1.3" } else { "TLS 1.2" };
                let suite = suite.as_str().map_or_else(|| format!("{:#06x}", hello.suite), str::to_owned);
                ("ServerHello", format!("{version}, {suite}"), &hello.alpn)
            }
            Self::Other => return,
        };
        let mut entry = context.entry(Protocol::Tls, name);
        match self {
            Self::Client(hello) => {
                if let Some(server_name) = &hello.server_name {
                    entry.detail("server_name", server_name.clone(), "RFC 6066 §3");
                }
            }
            _ => {
                entry.detail("version and cipher suite", text.clone(), "RFC 8446 §4.1.3");
            }
        }
        if !alpn.is_empty() {
            entry.detail("ALPN", alpn.join(", "), "RFC 7301 §3.1");
            text = format!("{text}, ALPN {}", alpn.join(", "));
        }
        entry.payload = crate::entry::Payload::Text(text);
        context.report(entry);
    }
}

impl ClientHello {
    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        reader.number(2)?;
        let random = reader.take(32)?.try_into().ok()?;
        reader.vector(1)?;
        reader.vector(2)?;
        reader.vector(1)?;
        let (mut server_name, mut alpn) = (None, Vec::new());
        for (kind, body) in extensions(reader) {
            match kind {
                0 => server_name = server_name_of(body),
                16 => alpn = protocols(body),
                _ => {}
            }
        }
        Some(Self { random, server_name, alpn })
    }
}

impl ServerHello {
    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        let mut version = reader.number(2)? as u16;
        let random = reader.take(32)?.try_into().ok()?;
        reader.vector(1)?;
        let suite = reader.number(2)? as u16;
        reader.number(1)?;
        let mut alpn = Vec::new();
        for (kind, body) in extensions(reader) {
            match (kind, body) {
                // RFC 8446 §4.2.1: the version is in an extension.
                (43, [high, low]) => version = u16::from_be_bytes([*high, *low]),
                (16, body) => alpn = protocols(body),
                _ => {}
            }
        }
        Some(Self { random, suite, version, is_retry: random == RETRY, alpn })
    }
}

/// The extensions at the end of a hello; truncated ones are left out.
fn extensions<'a>(reader: &mut Reader<'a>) -> Vec<(usize, &'a [u8])> {
    let Some(mut list) = reader.vector(2) else { return Vec::new() };
    std::iter::from_fn(|| Some((list.number(2)?, list.vector(2)?.0))).collect()
}

fn server_name_of(body: &[u8]) -> Option<String> {
    let mut list = Reader(body).vector(2)?;
    let kind = list.number(1)?;
    let name = list.vector(2)?;
    (kind == 0).then(|| String::from_utf8_lossy(name.0).into_owned())
}

fn protocols(body: &[u8]) -> Vec<String> {
    let Some(mut list) = Reader(body).vector(2) else { return Vec::new() };
    std::iter::from_fn(|| list.vector(1).map(|name| String::from_utf8_lossy(name.0).into_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_messages_of_a_record_are_read_in_place() {
        let record = [[14, 0, 0, 0].repeat(4096), vec![1, 0, 0, 9, 3]].concat();
        let mut rest = &record[..];
        let messages = std::iter::from_fn(|| Hello::next(&mut rest));
        assert_eq!(messages.filter(|message| *message == Hello::Other).count(), 4096);
        // The incomplete message remains.
        assert_eq!(rest, [1, 0, 0, 9, 3]);
    }
}
