//! Encoding of HTTP/1.1 messages: the head of a response, the chunks of a body of unknown length, the trailers
//! after it (RFC 9112 §4 to §7).

use std::io::Write as _;

use wireloom_ws::handshake::reason_phrase;

use super::date;
use crate::headers::Headers;

/// How the head of a message indicates the length of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// No body and no length: 101, 204, 304.
    None,
    Length(u64),
    Chunked,
    /// By the end of the connection: HTTP/1.0.
    Close,
}

/// A head. `keep_alive` is `None` for a response that switches protocols, whose own headers say so.
pub(crate) fn head(
    out: &mut Vec<u8>,
    status: u16,
    headers: &Headers,
    ending: Ending,
    keep_alive: Option<bool>,
) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(&digits(status));
    out.extend_from_slice(b" ");
    out.extend_from_slice(reason_phrase(status).as_bytes());
    out.extend_from_slice(b"\r\n");
    fields(out, headers);
    // RFC 9110 §6.6.1: one Date; the application's own takes precedence.
    if headers.get("date").is_none() {
        out.extend_from_slice(b"Date: ");
        out.extend_from_slice(&date::now());
        out.extend_from_slice(b"\r\n");
    }
    if let Some(keep_alive) = keep_alive {
        let upgrades = headers.get("upgrade").is_some();
        match (keep_alive, upgrades) {
            (true, false) => {}
            // RFC 9110 §7.8: a sender of Upgrade names it in Connection.
            (true, true) => out.extend_from_slice(b"Connection: Upgrade\r\n"),
            (false, true) => out.extend_from_slice(b"Connection: Upgrade, close\r\n"),
            (false, false) => out.extend_from_slice(b"Connection: close\r\n"),
        }
    }
    match ending {
        Ending::None | Ending::Close => {}
        Ending::Length(len) => {
            // Writing to memory does not fail.
            let _ = write!(out, "Content-Length: {len}\r\n");
        }
        Ending::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
    }
    out.extend_from_slice(b"\r\n");
}

/// A status is 100 to 599.
pub(crate) fn digits(status: u16) -> [u8; 3] {
    [status / 100, status / 10 % 10, status % 10].map(|digit| b'0' + digit as u8)
}

/// The line before a chunk.
pub(crate) fn chunk_size(out: &mut Vec<u8>, len: usize) {
    let _ = write!(out, "{len:x}\r\n");
}

/// The end of a chunked body.
pub(crate) fn last_chunk(out: &mut Vec<u8>, trailers: Option<Headers>) {
    out.extend_from_slice(b"0\r\n");
    if let Some(mut trailers) = trailers {
        trailers.remove_forbidden_trailers();
        fields(out, &trailers);
    }
    out.extend_from_slice(b"\r\n");
}

pub(crate) fn fields(out: &mut Vec<u8>, headers: &Headers) {
    for (name, value) in headers.fields() {
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
}
