//! Binds the addresses of arguments.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use tokio::net::TcpListener;
use wireloom::server::{self, Listener};

/// A listener that is polled: what it has to do besides happens in the same moment.
pub(super) trait PollAccept: Listener {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(Self::Transport, SocketAddr)>>;
}

impl PollAccept for TcpListener {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(Self::Transport, SocketAddr)>> {
        Self::poll_accept(self, cx)
    }
}

/// Binds an address. `:PORT` is all interfaces: of IPv6 and IPv4, or of IPv4 alone where there is no IPv6.
///
/// # Errors
/// The address cannot be bound; the text names it.
pub(super) async fn bind(address: &str) -> Result<TcpListener, String> {
    let bound = match address.strip_prefix(':') {
        None => server::bind(address).await,
        Some(port) => match server::bind(&*format!("[::]:{port}")).await {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                server::bind(&*format!("0.0.0.0:{port}")).await
            }
            bound => bound,
        },
    };
    bound.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("cannot listen on {address}: the address is in use; choose another port")
        }
        _ => format!("cannot listen on {address}: {error}"),
    })
}

/// A listener on a Unix socket. The file of the socket is removed with it, unless it is that of another server by then.
#[cfg(unix)]
pub(super) struct UnixSocket {
    // Dropped first: a socket that is listened on is not replaced, so that the file with this identity is still this one's.
    _file: SocketFile,
    pub(super) listener: tokio::net::UnixListener,
}

#[cfg(unix)]
impl UnixSocket {
    /// # Errors
    /// The path cannot be used, or another process listens there; the text names it.
    pub(super) fn bind(name: &str, path: &str) -> Result<Self, String> {
        let bound = server::bind_unix(path).and_then(|listener| Ok((SocketFile::new(path)?, listener)));
        let (file, listener) = bound.map_err(|error| format!("cannot listen on {name}: {error}"))?;
        Ok(Self { _file: file, listener })
    }
}

#[cfg(unix)]
impl Listener for UnixSocket {
    type Transport = tokio::net::UnixStream;

    async fn accept(&mut self) -> io::Result<(Self::Transport, SocketAddr)> {
        Listener::accept(&mut self.listener).await
    }

    fn socket(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        Listener::socket(&self.listener)
    }
}

#[cfg(unix)]
impl PollAccept for UnixSocket {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(Self::Transport, SocketAddr)>> {
        // The peer has no address.
        let no_address = (std::net::Ipv4Addr::UNSPECIFIED, 0).into();
        self.listener.poll_accept(cx).map_ok(|(stream, _)| (stream, no_address))
    }
}

/// The file of a Unix socket, which outlives its listener.
#[cfg(unix)]
struct SocketFile {
    path: std::path::PathBuf,
    identity: FileIdentity,
}

/// The device and the inode of a file.
#[cfg(unix)]
type FileIdentity = (u64, u64);

#[cfg(unix)]
impl SocketFile {
    fn new(path: &str) -> io::Result<Self> {
        // The working directory may change.
        let path = std::path::absolute(path)?;
        Ok(Self { identity: Self::identity(&path)?, path })
    }

    fn identity(path: &std::path::Path) -> io::Result<FileIdentity> {
        use std::os::unix::fs::MetadataExt as _;
        let metadata = std::fs::symlink_metadata(path)?;
        Ok((metadata.dev(), metadata.ino()))
    }
}

#[cfg(unix)]
impl Drop for SocketFile {
    fn drop(&mut self) {
        if Self::identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
