//! A tunnel by SOCKS5 (RFC 1928), with optional user and password (RFC 1929).
//!
//! ```text
//! client  05 n methods                  proxy  05 method
//!         01 len user len password             01 status       (method 02)
//!         05 01 00 type address port           05 reply 00 type address port
//! ```

use std::net::IpAddr;

use super::{ProxyError, read_exact, write_all};
use crate::client::credentials::Credentials;
use crate::error::Error;
use crate::transport::Io;

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const USER_AND_PASSWORD: u8 = 2;
const CONNECT: u8 = 1;

/// RFC 1928 §5.
pub(super) enum Destination<'a> {
    Address(IpAddr),
    Name(&'a str),
}

impl<'a> Destination<'a> {
    pub(super) fn of(address: IpAddr) -> Self {
        Self::Address(address)
    }

    /// A host name, or an address if it parses as one.
    pub(super) fn named(host: &'a str) -> Self {
        host.parse().map_or(Self::Name(host), Self::Address)
    }

    fn write_to(&self, out: &mut Vec<u8>) -> Result<(), Error> {
        match self {
            Self::Address(IpAddr::V4(address)) => {
                out.push(1);
                out.extend(address.octets());
            }
            Self::Address(IpAddr::V6(address)) => {
                out.push(4);
                out.extend(address.octets());
            }
            Self::Name(name) => {
                out.push(3);
                out.push(u8::try_from(name.len()).map_err(|_| ProxyError::HostTooLong)?);
                out.extend(name.as_bytes());
            }
        }
        Ok(())
    }
}

pub(super) async fn open(
    io: &mut Io,
    destination: Destination<'_>,
    port: u16,
    credentials: Option<&Credentials>,
) -> Result<(), Error> {
    let mut request = vec![VERSION, CONNECT, 0];
    destination.write_to(&mut request)?;
    request.extend(port.to_be_bytes());
    let login = credentials.map(login).transpose()?;

    // RFC 1928 §3.
    let offer: &[u8] = match login {
        None => &[VERSION, 1, NO_AUTHENTICATION],
        Some(_) => &[VERSION, 2, NO_AUTHENTICATION, USER_AND_PASSWORD],
    };
    write_all(io, offer).await?;
    let mut answer = [0; 2];
    read_exact(io, &mut answer).await?;
    match (answer, login) {
        ([VERSION, NO_AUTHENTICATION], _) => {}
        ([VERSION, USER_AND_PASSWORD], Some(login)) => {
            write_all(io, &login).await?;
            read_exact(io, &mut answer).await?;
            // RFC 1929 §2.
            match answer {
                [1, 0] => {}
                [1, _] => return Err(ProxyError::Credentials.into()),
                _ => return Err(ProxyError::Malformed.into()),
            }
        }
        ([VERSION, _], _) => return Err(ProxyError::Method.into()),
        _ => return Err(ProxyError::Malformed.into()),
    }

    write_all(io, &request).await?;
    // RFC 1928 §6; the address that the proxy has bound is ignored.
    let mut head = [0; 4];
    read_exact(io, &mut head).await?;
    let [version, reply, _, kind] = head;
    if version != VERSION {
        return Err(ProxyError::Malformed.into());
    }
    if reply != 0 {
        return Err(ProxyError::Socks(reply).into());
    }
    let address_len = match kind {
        1 => 4,
        4 => 16,
        3 => {
            let mut len = [0];
            read_exact(io, &mut len).await?;
            usize::from(len[0])
        }
        _ => return Err(ProxyError::Malformed.into()),
    };
    read_exact(io, &mut [0; 255 + 2][..address_len + 2]).await
}

/// RFC 1929 §2: 1 to 255 bytes each.
fn login(credentials: &Credentials) -> Result<Vec<u8>, Error> {
    let mut out = vec![1];
    for part in [&credentials.user, &credentials.password] {
        let len = u8::try_from(part.len()).ok().filter(|&len| len > 0).ok_or(ProxyError::Unsendable)?;
        out.push(len);
        out.extend(part);
    }
    Ok(out)
}
