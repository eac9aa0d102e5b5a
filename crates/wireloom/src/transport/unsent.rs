//! Bytes that the kernel has accepted for a TCP connection and keeps.
#![allow(unsafe_code)] // ioctl(2) stores the number.

use std::ffi::c_int;
use std::os::fd::AsRawFd as _;

use tokio::net::TcpStream;

/// Which bytes of a connection.
#[derive(Clone, Copy)]
pub(super) enum Kept {
    /// Those that were not sent: the peer's receive window is closed.
    Unsent,
    /// Those that the peer has not acknowledged, sent or not: `SIOCOUTQ`.
    #[cfg(feature = "client")]
    Unacknowledged,
}

/// Their number, with the end of the stream, which counts as one. 0 if the kernel does not report it.
pub(super) fn len(tcp: &TcpStream, kept: Kept) -> usize {
    let request = match kept {
        Kept::Unsent => libc::SIOCOUTQNSD as libc::Ioctl,
        #[cfg(feature = "client")]
        Kept::Unacknowledged => libc::TIOCOUTQ as libc::Ioctl,
    };
    let mut len: c_int = 0;
    // SAFETY: tcp(7): each of these requests stores an `int`, and `len` is one. The descriptor is open while `tcp` is borrowed.
    let _ = unsafe { libc::ioctl(tcp.as_raw_fd(), request, &raw mut len) };
    usize::try_from(len).unwrap_or(0)
}
