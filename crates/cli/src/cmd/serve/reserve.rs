//! A file descriptor in reserve, with which the listener of `--admin` accepts when the process has no other: the operator looks at its
//! metrics then.

use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use wireloom::server::Listener;

use crate::cmd::bind::PollAccept;

/// Shared by all listeners of the process, of which one accepts at a time. A descriptor that becomes free is the reserve's before it is a
/// connection's, so that the reserve comes back whatever has used its descriptor.
#[derive(Clone, Default)]
pub(super) struct Reserve(Arc<Mutex<Kept>>);

/// An open file, unless its descriptor is in use.
#[derive(Default)]
struct Kept(Option<File>);

impl Kept {
    fn fill(&mut self) -> io::Result<()> {
        if self.0.is_none() {
            self.0 = Some(File::open(if cfg!(windows) { "NUL" } else { "/dev/null" })?);
        }
        Ok(())
    }
}

impl Reserve {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts while the reserve is kept.
    pub(super) fn spare<L>(&self, listener: L) -> SharingListener<L> {
        SharingListener { listener, reserve: self.clone(), may_use: false }
    }

    /// Accepts with the reserve when there is no other descriptor.
    pub(super) fn spend<L>(&self, listener: L) -> SharingListener<L> {
        SharingListener { listener, reserve: self.clone(), may_use: true }
    }
}

/// A listener that shares the reserve with others.
pub(super) struct SharingListener<L> {
    listener: L,
    reserve: Reserve,
    may_use: bool,
}

impl<L: PollAccept> SharingListener<L> {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(L::Transport, SocketAddr)>> {
        let mut kept = self.reserve.lock();
        let filled = kept.fill();
        if !self.may_use {
            return match filled {
                Err(error) if is_out_of_descriptors(&error) => Poll::Ready(Err(error)),
                // A container may have no such file.
                _ => self.listener.poll_accept(cx),
            };
        }
        let accepted = self.listener.poll_accept(cx);
        if !matches!(accepted, Poll::Ready(Err(_))) || kept.0.take().is_none() {
            return accepted;
        }
        let accepted = self.listener.poll_accept(cx);
        // Linux looks for a free descriptor before it looks for a connection.
        let _ = kept.fill();
        accepted
    }
}

impl<L: PollAccept> Listener for SharingListener<L> {
    type Transport = L::Transport;

    async fn accept(&mut self) -> io::Result<(L::Transport, SocketAddr)> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    #[cfg(unix)]
    fn socket(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.listener.socket()
    }
}

#[cfg(unix)]
fn is_out_of_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

#[cfg(not(unix))]
fn is_out_of_descriptors(_: &io::Error) -> bool {
    false
}
