//! The PROXY protocol, versions 1 and 2: the header in which a proxy in front of the server says for whom it has connected (HAProxy's
//! `proxy-protocol.txt`). The header is parsed by `ppp`.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ppp::{HeaderResult, v1, v2};

use super::connection::Connection;
use crate::deadline::PeerDeadline;
use crate::http::Origin;
use crate::transport::Io;

/// §2.2: the signature of version 2.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// §2.1: the first word of version 1.
const PROXY: &[u8] = b"PROXY ";

/// §2.1: the longest header of version 1.
const V1_LEN_MAX: usize = 107;

/// The length of the fixed part of version 2.
const V2_FIXED_LEN: usize = 16;

/// The longest header of version 2 that is accepted: room for all extensions of §2.2.
const V2_LEN_MAX: usize = 4 << 10;

impl Connection {
    /// Reads the header of a trusted proxy, whose source becomes the peer. A trusted proxy must send one: whether it does is not
    /// guessed (§2). `None` when the header is malformed or late, or the source has too many connections.
    pub(super) async fn read_proxy_header(&mut self) -> Option<()> {
        if !self.config.trusts_proxy(self.origin.peer.ip()) {
            return Some(());
        }
        let Self { io, timeouts, config, .. } = self;
        let mut deadline = PeerDeadline::after(config.handshake_timeout);
        let mut bytes = Vec::new();
        let reading = timeouts.until_drained(&mut deadline, |cx| poll_header(cx, io, &mut bytes));
        reading.await.ok()?.ok()?;
        if let Some(peer) = source(&bytes).ok()? {
            if let Some(max) = self.config.connections_per_address_max
                && !self.registration.count_for(peer.ip(), max)
            {
                return None;
            }
            let Origin { tls, config, account, .. } = &*self.origin;
            let (tls, config, account) = (tls.clone(), config.clone(), account.clone());
            self.origin = Arc::new(Origin { peer, tls, config, account });
        }
        Some(())
    }
}

/// Reads a header and not a byte more: the next one may be of TLS.
fn poll_header(cx: &mut Context<'_>, io: &mut Io, bytes: &mut Vec<u8>) -> Poll<io::Result<()>> {
    loop {
        let missing = missing(bytes).ok_or(io::ErrorKind::InvalidData)?;
        if missing == 0 {
            return Poll::Ready(Ok(()));
        }
        let mut part = [0; 256];
        let len_max = missing.min(part.len());
        match ready!(io.poll_read(cx, &mut part[..len_max]))? {
            0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            len => bytes.extend_from_slice(&part[..len]),
        }
    }
}

/// The number of bytes that are missing at least; `None` if this is no header, or is too long.
fn missing(bytes: &[u8]) -> Option<usize> {
    // No header of either version is shorter than the signature.
    if bytes.len() < SIGNATURE.len() {
        return Some(SIGNATURE.len() - bytes.len());
    }
    if bytes.starts_with(SIGNATURE) {
        let Some(len) = bytes.get(14..V2_FIXED_LEN) else { return Some(V2_FIXED_LEN - bytes.len()) };
        let len = V2_FIXED_LEN + usize::from(u16::from_be_bytes([len[0], len[1]]));
        return (len <= V2_LEN_MAX).then(|| len - bytes.len());
    }
    if !bytes.starts_with(PROXY) || bytes.len() > V1_LEN_MAX {
        return None;
    }
    if bytes.ends_with(b"\r\n") {
        return Some(0);
    }
    (bytes.len() < V1_LEN_MAX).then_some(1)
}

/// The client that the proxy has connected for; `None` when it speaks for itself, or does not know.
fn source(header: &[u8]) -> Result<Option<SocketAddr>, ()> {
    Ok(match HeaderResult::parse(header) {
        HeaderResult::V1(header) => match header.map_err(drop)?.addresses {
            v1::Addresses::Tcp4(tcp) => Some((tcp.source_address, tcp.source_port).into()),
            v1::Addresses::Tcp6(tcp) => Some((tcp.source_address, tcp.source_port).into()),
            v1::Addresses::Unknown => None,
        },
        HeaderResult::V2(header) => {
            let header = header.map_err(drop)?;
            match (header.command, header.addresses) {
                // §2.2: a health check of the proxy itself.
                (v2::Command::Local, _) => None,
                (_, v2::Addresses::IPv4(ip)) => Some((ip.source_address, ip.source_port).into()),
                (_, v2::Addresses::IPv6(ip)) => Some((ip.source_address, ip.source_port).into()),
                (_, v2::Addresses::Unspecified | v2::Addresses::Unix(_)) => None,
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a header at once and byte by byte; returns its length, or none.
    fn len_of(bytes: &[u8]) -> Option<usize> {
        let mut read = 0;
        loop {
            match missing(&bytes[..read])? {
                0 => return Some(read),
                more => {
                    read += more;
                    if read > bytes.len() {
                        return None;
                    }
                }
            }
        }
    }

    #[test]
    fn a_header_is_read_to_its_end_and_no_further() {
        let v1: &[u8] = b"PROXY TCP4 192.0.2.1 192.0.2.2 1111 80\r\n";
        assert_eq!(len_of(&[v1, b"GET / HTTP/1.1\r\n"].concat()), Some(v1.len()));
        assert_eq!(source(v1), Ok(Some("192.0.2.1:1111".parse().unwrap())));
        let unknown: &[u8] = b"PROXY UNKNOWN\r\n";
        assert_eq!((len_of(unknown), source(unknown)), (Some(unknown.len()), Ok(None)));
        let v2 = [SIGNATURE, &[0x21, 0x11, 0, 12, 192, 0, 2, 1, 192, 0, 2, 2, 4, 87, 0, 80]].concat();
        assert_eq!(len_of(&[&v2[..], b"\x16\x03"].concat()), Some(v2.len()));
        assert_eq!(source(&v2), Ok(Some("192.0.2.1:1111".parse().unwrap())));
        let local = [SIGNATURE, &[0x20, 0, 0, 0]].concat();
        assert_eq!((len_of(&local), source(&local)), (Some(local.len()), Ok(None)));
    }

    #[test]
    fn what_is_no_header_or_too_long_is_refused() {
        assert_eq!(len_of(b"GET / HTTP/1.1\r\n\r\n"), None);
        assert_eq!(len_of(b"PROXY TCP4 1"), None);
        for (len, is_read) in [(V1_LEN_MAX, true), (V1_LEN_MAX + 1, false)] {
            let mut header = b"PROXY UNKNOWN ".to_vec();
            header.resize(len - 2, b'x');
            header.extend_from_slice(b"\r\n");
            assert_eq!(len_of(&header).is_some(), is_read, "{len}");
        }
        for (len, is_read) in [(V2_LEN_MAX, true), (V2_LEN_MAX + 1, false)] {
            let rest = len - V2_FIXED_LEN;
            let mut header = [SIGNATURE, &[0x20, 0], &(rest as u16).to_be_bytes()[..]].concat();
            header.resize(len, 0);
            assert_eq!(len_of(&header).is_some(), is_read, "{len}");
        }
        assert_eq!(source(b"PROXY TCP4 300.0.0.1 192.0.2.2 1 80\r\n"), Err(()));
    }
}
