//! Writes to many sockets in one system call, by io_uring (Linux 6.1 and later).
//!
//! Each thread has a ring of its own. A call submits its writes, and returns when the kernel has completed all of them, so that the ring is
//! empty between calls, and no buffer is in use. The writes do not wait for room in a socket (`MSG_DONTWAIT`).
#![allow(unsafe_code)] // The kernel reads the bytes of a write by their address.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};

use io_uring::{IoUring, Probe, opcode, types};

/// Writes of one submission.
pub(crate) const WRITES_MAX: usize = 32;

/// A TCP socket.
#[derive(Clone, Copy)]
pub(crate) struct Socket<'a>(BorrowedFd<'a>);

impl<'a> Socket<'a> {
    pub(crate) fn of(socket: &'a impl AsFd) -> Self {
        Self(socket.as_fd())
    }
}

/// Bytes to write to a socket.
pub(crate) struct Write<'a> {
    pub(crate) socket: Socket<'a>,
    pub(crate) bytes: &'a [u8],
}

/// The result of a [`Write`]; `None` if it was not attempted. The error is that of `send(2)`.
pub(crate) type Outcome = Option<io::Result<usize>>;

thread_local! {
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
}

/// The error number with which a thread was refused a ring, or 0: seccomp forbids it, or the kernel is too old.
static REFUSED: AtomicI32 = AtomicI32::new(0);

/// Whether [`REFUSED`] was logged.
static IS_LOGGED: AtomicBool = AtomicBool::new(false);

/// Whether this process may use io_uring, and the kernel has what this module needs.
///
/// # Errors
/// Why not.
pub(crate) fn check() -> io::Result<()> {
    Ring::new().map(drop)
}

/// Whether [`write`] can write. The first call of a thread makes its ring. Not to be called under a lock, because it logs.
pub(crate) fn is_usable() -> bool {
    let is_usable = |ring: &RefCell<Option<Ring>>| {
        let mut ring = ring.borrow_mut();
        // A process that was forked shares the ring of its parent.
        if ring.as_ref().is_some_and(|ring| ring.process != std::process::id()) {
            *ring = None;
        }
        if ring.is_none() && REFUSED.load(Relaxed) == 0 {
            *ring = Ring::new().map_err(|error| refuse(&error)).ok();
        }
        ring.is_some()
    };
    // There is none while the thread ends.
    let is_usable = RING.try_with(is_usable).unwrap_or(false);
    let refused = REFUSED.load(Relaxed);
    if refused != 0 && !IS_LOGGED.swap(true, Relaxed) {
        #[cfg(feature = "tracing")]
        tracing::debug!(error = %io::Error::from_raw_os_error(refused), "io_uring is not used");
    }
    is_usable
}

/// Writes once to each of at most [`WRITES_MAX`] sockets. Returns an outcome for each write, in order; none has been attempted if the thread
/// has no [usable](is_usable) ring.
pub(crate) fn write(writes: &[Write<'_>]) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> = writes.iter().map(|_| None).collect();
    let _ = RING.try_with(|ring| {
        let mut ring = ring.borrow_mut();
        if let Some(used) = ring.as_mut()
            && let Err(error) = used.write(writes, &mut outcomes)
        {
            refuse(&error);
            // It holds the writes that were not submitted.
            *ring = None;
        }
    });
    outcomes
}

/// Remembers an error that does not pass. After another one, such as a lack of descriptors, the next call tries again.
#[cold]
fn refuse(error: &io::Error) {
    let number = error.raw_os_error().unwrap_or(libc::ENOSYS);
    if let libc::ENOSYS | libc::EPERM | libc::EACCES | libc::EINVAL | libc::EOPNOTSUPP = number {
        REFUSED.store(number, Relaxed);
    }
}

/// A ring with nothing in flight.
struct Ring {
    ring: IoUring,
    /// The process that made it.
    process: u32,
}

impl Ring {
    fn new() -> io::Result<Self> {
        // Fails before Linux 6.1. Older kernels also differ in how they treat a socket that is full.
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(WRITES_MAX as u32)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Send::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self { ring, process: std::process::id() })
    }

    /// # Errors
    /// The kernel refuses the submission. Outcomes of writes that were not attempted are `None`.
    fn write(&mut self, writes: &[Write<'_>], outcomes: &mut [Outcome]) -> io::Result<()> {
        let mut waiting = self.push(writes);
        while waiting > 0 {
            let submitted = self.ring.submit_and_wait(waiting);
            for completion in self.ring.completion() {
                waiting -= 1;
                let result = completion.result();
                outcomes[completion.user_data() as usize] = Some(match usize::try_from(result) {
                    Ok(len) => Ok(len),
                    Err(_) => Err(io::Error::from_raw_os_error(-result)),
                });
            }
            let in_flight = waiting - self.ring.submission().len();
            match submitted {
                Err(error) if error.kind() != io::ErrorKind::Interrupted && in_flight == 0 => {
                    return Err(error);
                }
                // Writes in flight complete, because they do not wait.
                _ => {}
            }
        }
        Ok(())
    }

    /// Queues the writes for submission, and returns their number.
    fn push(&mut self, writes: &[Write<'_>]) -> usize {
        let mut queue = self.ring.submission();
        let mut count = 0;
        for (index, write) in writes.iter().enumerate() {
            // The rest of a longer write is a short write.
            let len = u32::try_from(write.bytes.len()).unwrap_or(u32::MAX);
            let send = opcode::Send::new(types::Fd(write.socket.0.as_raw_fd()), write.bytes.as_ptr(), len)
                .flags(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
            // SAFETY: `writes` borrows the bytes and the sockets for the call of `Ring::write`, which returns only with nothing in
            // flight; what it has not submitted is dropped with the ring (`write`).
            if unsafe { queue.push(&send.build().user_data(index as u64)) }.is_err() {
                break;
            }
            count += 1;
        }
        count
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, client)
    }

    // The outcomes are those of `send(2)`, also where it is not whole.
    #[test]
    fn outcomes_are_those_of_plain_writes() {
        if check().is_err() {
            return;
        }
        assert!(is_usable());
        let (open, mut peer) = pair();
        let (full, full_peer) = pair();
        let (closed, closed_peer) = pair();
        drop(closed_peer);
        let large = vec![7; 64 << 20];
        fn to<'a>(socket: &'a TcpStream, bytes: &'a [u8]) -> Write<'a> {
            Write { socket: Socket::of(socket), bytes }
        }
        // The first write to a closed peer succeeds, and brings its reset.
        while let [Some(Ok(_))] = &write(&[to(&closed, b"lost")])[..] {}
        let outcomes =
            write(&[to(&open, b"one"), to(&full, &large), to(&closed, b"two"), to(&full, b"three")]);
        let [Some(Ok(3)), Some(Ok(short)), Some(Err(broken)), Some(Err(refused))] = &outcomes[..] else {
            panic!("{outcomes:?}");
        };
        assert!((1..large.len()).contains(short), "{short}");
        assert_eq!(broken.kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        let mut read = [0; 3];
        peer.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"one");
        drop(full_peer);
        assert_eq!(write(&[]).len(), 0);
        let many: Vec<_> = (0..WRITES_MAX).map(|_| to(&open, b"x")).collect();
        assert!(write(&many).iter().all(|outcome| matches!(outcome, Some(Ok(1)))));
    }
}
