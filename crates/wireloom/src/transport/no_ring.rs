//! As `ring`, where there is no io_uring.

use std::io;
use std::marker::PhantomData;

use tokio::net::TcpStream;

/// Writes of one submission.
pub(crate) const WRITES_MAX: usize = 32;

/// A TCP socket.
#[derive(Clone, Copy)]
pub(crate) struct Socket<'a>(PhantomData<&'a TcpStream>);

impl<'a> Socket<'a> {
    pub(crate) fn of(_: &'a TcpStream) -> Self {
        Self(PhantomData)
    }
}

/// Bytes to write to a socket.
pub(crate) struct Write<'a> {
    pub(crate) socket: Socket<'a>,
    pub(crate) bytes: &'a [u8],
}

/// The result of a [`Write`]; `None` if it was not attempted.
pub(crate) type Outcome = Option<io::Result<usize>>;

/// # Errors
/// Always.
pub(crate) fn check() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn is_usable() -> bool {
    false
}

/// Attempts none.
pub(crate) fn write(_: &[Write<'_>]) -> Vec<Outcome> {
    Vec::new()
}
