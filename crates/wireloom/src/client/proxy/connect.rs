//! A tunnel by CONNECT (RFC 9110 §9.3.6, RFC 9112 §3.2.3).

use super::{ProxyError, read_exact, write_all};
use crate::client::credentials::Credentials;
use crate::error::Error;
use crate::http1::head;
use crate::transport::Io;
use wireloom_ws::handshake::HandshakeLimits;

/// Limits of all heads of the response together, interim ones included.
const LIMITS: HandshakeLimits = HandshakeLimits::DEFAULT;

pub(super) async fn open(
    io: &mut Io,
    host: &str,
    port: u16,
    credentials: Option<&Credentials>,
) -> Result<(), Error> {
    let authority = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let mut request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n");
    if let Some(credentials) = credentials {
        let basic = credentials.basic().ok_or(ProxyError::Unsendable)?;
        request.push_str("Proxy-Authorization: ");
        request.push_str(&basic);
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    write_all(io, request.as_bytes()).await?;
    let mut room = LIMITS.head_len_max;
    loop {
        match read_head(io, &mut room).await? {
            // RFC 9110 §15.2.
            100..200 => {}
            200..300 => return Ok(()),
            status => return Err(ProxyError::Refused(status).into()),
        }
    }
}

/// Reads the head of a response and returns its status. The head is read byte by byte, because the bytes after it belong to the
/// tunnel; it is short, and read once per connection.
async fn read_head(io: &mut Io, room: &mut usize) -> Result<u16, Error> {
    let (mut head, mut scanned) = (Vec::new(), 0);
    while head::end(&head, &mut scanned).is_none() {
        *room = room.checked_sub(1).ok_or(ProxyError::HeadTooLong)?;
        let mut byte = [0];
        read_exact(io, &mut byte).await?;
        head.extend(byte);
        // Stops early when the peer does not speak HTTP.
        let len = head.len().min(5);
        if head[..len] != b"HTTP/"[..len] {
            return Err(ProxyError::Malformed.into());
        }
    }
    let (status, ..) = head::parse_response(head, LIMITS.headers_max).map_err(|_| ProxyError::Malformed)?;
    Ok(status)
}
