//! A tunnel by CONNECT (RFC 9110 §9.3.6, RFC 9112 §3.2.3).

use super::{ProxyError, read_exact, write_all};
use crate::client::credentials::Credentials;
use crate::error::Error;
use crate::transport::Io;

/// Bytes of the answer's head, those of informational answers included; header lines in it.
/// As for [`wireloom_ws::handshake::HandshakeLimits`].
const HEAD_LEN_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 100;

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
    let mut room = HEAD_LEN_MAX;
    loop {
        match read_head(io, &mut room).await? {
            // RFC 9110 §15.2.
            100..200 => {}
            200..300 => return Ok(()),
            status => return Err(ProxyError::Refused(status).into()),
        }
    }
}

/// The status of a response. The head is read byte by byte, because what lies behind it is the tunnel's; it is short, and
/// there is one for each connection.
async fn read_head(io: &mut Io, room: &mut usize) -> Result<u16, Error> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && !head.ends_with(b"\n\n") {
        *room = room.checked_sub(1).ok_or(ProxyError::HeadLen)?;
        let mut byte = [0];
        read_exact(io, &mut byte).await?;
        head.extend(byte);
        // Something else than HTTP need not be read for long.
        let len = head.len().min(5);
        if head[..len] != b"HTTP/"[..len] {
            return Err(ProxyError::Malformed.into());
        }
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    match (response.parse(&head), response.code) {
        (Ok(httparse::Status::Complete(_)), Some(status)) => Ok(status),
        _ => Err(ProxyError::Malformed.into()),
    }
}
