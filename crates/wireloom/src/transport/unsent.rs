//! Bytes that the kernel has accepted for a TCP connection and has not sent: the peer's receive window is closed.
#![allow(unsafe_code)] // ioctl(2) stores the number.

use std::ffi::c_int;
use std::os::fd::AsRawFd as _;

use tokio::net::TcpStream;

/// Their number (`SIOCOUTQNSD`), with the end of the stream, which counts as one. 0 if the kernel does not tell.
pub(super) fn len(tcp: &TcpStream) -> usize {
    let mut len: c_int = 0;
    // SAFETY: tcp(7): the request stores an `int`, and `len` is one. The descriptor is open while `tcp` is borrowed.
    let _ = unsafe { libc::ioctl(tcp.as_raw_fd(), libc::SIOCOUTQNSD as libc::Ioctl, &raw mut len) };
    usize::try_from(len).unwrap_or(0)
}
