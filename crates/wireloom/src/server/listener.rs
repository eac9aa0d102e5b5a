//! Sources of connections: TCP, Unix sockets, or anything else that accepts transports.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
#[cfg(unix)]
use std::os::fd::{AsFd as _, BorrowedFd};

use tokio::net::{TcpListener, TcpStream};

use crate::transport::Transport;

/// The length of the queue of connections that wait to be accepted. The kernel limits it (`net.core.somaxconn`). A burst of clients that
/// connect again at once, such as after a restart, overflows the 128 of the standard library.
const BACKLOG: u32 = 4_096;

/// A source of connections for a [`Server`](super::Server): TCP, Unix sockets, TLS of one's own, pipes in memory.
///
/// ```
/// use std::io;
/// use std::net::{Ipv4Addr, SocketAddr};
///
/// use tokio::io::DuplexStream;
/// use tokio::sync::mpsc;
/// use wireloom::server::Listener;
///
/// /// Accepts pipes in memory, for tests.
/// struct Pipes(mpsc::Receiver<DuplexStream>);
///
/// impl Listener for Pipes {
///     type Transport = DuplexStream;
///
///     async fn accept(&mut self) -> io::Result<(DuplexStream, SocketAddr)> {
///         match self.0.recv().await {
///             Some(pipe) => Ok((pipe, (Ipv4Addr::LOCALHOST, 0).into())),
///             None => std::future::pending().await,
///         }
///     }
/// }
/// ```
pub trait Listener: Send + 'static {
    /// The transport of a connection.
    type Transport: Transport;

    /// The next connection, and the address of its peer: 0.0.0.0:0 if it has none.
    ///
    /// # Cancel safety
    /// Dropping the future must lose no connection.
    ///
    /// # Errors
    /// The peer has left before it was accepted ([`ConnectionAborted`](io::ErrorKind::ConnectionAborted),
    /// [`ConnectionReset`](io::ErrorKind::ConnectionReset)), or resources are used up: the server tries again, then after a while. It stops
    /// after [`InvalidInput`](io::ErrorKind::InvalidInput) and [`NotConnected`](io::ErrorKind::NotConnected).
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Transport, SocketAddr)>> + Send;

    /// The socket that it accepts from, if that is one of the operating system. The server sets options there that connections inherit, and
    /// asks it whether a connection waits when no file descriptor is free.
    #[cfg(unix)]
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Listener for TcpListener {
    type Transport = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        Self::accept(self).await
    }

    #[cfg(unix)]
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

#[cfg(unix)]
impl Listener for tokio::net::UnixListener {
    type Transport = tokio::net::UnixStream;

    async fn accept(&mut self) -> io::Result<(Self::Transport, SocketAddr)> {
        let (stream, _) = Self::accept(self).await?;
        Ok((stream, NO_ADDRESS))
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

/// Whether accepting has failed for want of a file descriptor though no connection waits: Linux looks for a descriptor first.
#[cfg(unix)]
pub(super) fn has_no_connection(listener: &impl Listener, error: &io::Error) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;
    let Some(socket) = listener.socket() else { return false };
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
        && poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)], Some(&Timespec::default())) == Ok(0)
}

#[cfg(not(unix))]
pub(super) fn has_no_connection(_: &impl Listener, _: &io::Error) -> bool {
    false
}

/// The address of a peer that has none.
pub(super) const NO_ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A listener on a Unix socket. A stale socket, whose server no longer listens, is replaced; the permissions of the new one are those of
/// the process (umask).
///
/// # Errors
/// The path cannot be used, or another process listens there.
#[cfg(unix)]
pub fn bind_unix(path: impl AsRef<std::path::Path>) -> io::Result<tokio::net::UnixListener> {
    use std::os::unix::fs::FileTypeExt as _;

    let path = path.as_ref();
    // While another server replaces the socket, or has bound it and does not listen yet.
    let _locked = lock_folder(path);
    match tokio::net::UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let is_socket = std::fs::symlink_metadata(path)?.file_type().is_socket();
            if !is_socket || !is_refused(path) {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            tokio::net::UnixListener::bind(path)
        }
        bound => bound,
    }
}

/// Locks the folder of a socket. Programs may hold that lock for as long as they run, and not every file system has locks: then there is
/// none.
#[cfg(unix)]
fn lock_folder(path: &std::path::Path) -> Option<std::fs::File> {
    use std::fs::TryLockError;

    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = std::fs::File::open(folder.unwrap_or(std::path::Path::new("."))).ok()?;
    // For about a second. Attempts are counted, so that a pause of the process is one.
    for _ in 0..1_000 {
        match folder.try_lock() {
            Ok(()) => return Some(folder),
            Err(TryLockError::WouldBlock) => std::thread::sleep(std::time::Duration::from_millis(1)),
            Err(TryLockError::Error(_)) => break,
        }
    }
    None
}

/// Whether this socket has no listener. Does not wait: the queue of a listener may be full.
#[cfg(unix)]
fn is_refused(path: &std::path::Path) -> bool {
    use std::task::{Context, Poll, Waker};

    let connecting = std::pin::pin!(tokio::net::UnixStream::connect(path));
    match connecting.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Err(error)) => error.kind() == io::ErrorKind::ConnectionRefused,
        Poll::Ready(Ok(_)) | Poll::Pending => false,
    }
}

/// A listener on the first of these addresses that can be bound, with a longer queue than the standard library's, for a listener of one's own.
///
/// # Errors
/// No address can be bound: it is in use or does not belong to this machine.
pub async fn bind(address: impl tokio::net::ToSocketAddrs) -> io::Result<TcpListener> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "no address to listen on");
    for address in tokio::net::lookup_host(address).await? {
        match bind_one(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn bind_one(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4()?,
        SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6()?,
    };
    // As the standard library does: on Windows the option has another meaning.
    #[cfg(not(windows))]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
