//! Hostile clients: they send compressed messages as fast as the server accepts them, and do not look at the answers.

use super::opening::{self, Opening};
use super::tunnels::Tunnels;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The inflated length of a message, in bytes. Its frame has about a thousandth of it.
const INFLATED_LEN: usize = 1 << 20;

/// Streams of each connection over HTTP/2.
const STREAMS: usize = 10;

/// Hostile connections, until it is dropped. One thread has all of them: the honest client has to wait for the scheduler of its core
/// while many threads wait for it, whatever their priority.
pub(crate) struct Flood {
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A hostile connection, whose socket does not block.
enum Hostile {
    Http1 { stream: TcpStream, frames: Arc<[u8]>, sent: usize },
    Http2(Box<Tunnels>),
}

impl Flood {
    /// Opens the connections, those of HTTP/2 with several streams.
    ///
    /// # Errors
    /// A connection could not be opened, or was opened without permessage-deflate.
    pub(crate) fn begin(address: SocketAddr, connections: usize, over_http2: bool) -> Result<Self, String> {
        let opening = Opening { path: "/echo", subprotocol: None, deflate: true };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| error.to_string())?;
        let frames: Arc<[u8]> = frame().repeat(16).into();
        let mut hostile = Vec::with_capacity(connections);
        for index in 0..connections {
            hostile.push(if over_http2 {
                Hostile::Http2(Box::new(Tunnels::open_hostile(address, STREAMS, frame())?))
            } else {
                let stream = opening::open_with(address, opening)?;
                stream.set_nonblocking(true).map_err(|error| error.to_string())?;
                Hostile::Http1 { stream, frames: frames.clone(), sent: 0 }
            });
            let events = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
            epoll::add(&epoll, hostile[index].stream(), EventData::new_u64(index as u64), events)
                .map_err(|error| error.to_string())?;
        }
        let stops = Arc::new(AtomicBool::new(false));
        let stopping = stops.clone();
        let thread = std::thread::spawn(move || {
            yield_to_others();
            flood(&epoll, &mut hostile, &stopping);
        });
        Ok(Self { stops, thread: Some(thread) })
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

impl Hostile {
    fn stream(&self) -> &TcpStream {
        match self {
            Self::Http1 { stream, .. } => stream,
            Self::Http2(tunnels) => tunnels.stream(),
        }
    }

    /// Reads and writes until the socket would block.
    fn flood(&mut self, answers: &mut [u8]) -> Result<(), String> {
        let (stream, frames, sent) = match self {
            Self::Http1 { stream, frames, sent } => (stream, frames, sent),
            Self::Http2(tunnels) => return tunnels.flood(),
        };
        while let Some(len) = unless_blocked(stream.read(answers))? {
            if len == 0 {
                return Err("the server closed the connection".into());
            }
        }
        while let Some(len) = unless_blocked(stream.write(&frames[*sent..]))? {
            *sent = (*sent + len) % frames.len();
        }
        Ok(())
    }
}

fn unless_blocked(done: std::io::Result<usize>) -> Result<Option<usize>, String> {
    match done {
        Ok(len) => Ok(Some(len)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// A compressed message (RFC 7692 §7.2.1), masked with zeros.
fn frame() -> Vec<u8> {
    let mut compressed = Vec::with_capacity(4 << 10);
    let mut compress = flate2::Compress::new(flate2::Compression::best(), false);
    // The buffer has room for all of it.
    _ = compress.compress_vec(&vec![0; INFLATED_LEN], &mut compressed, flate2::FlushCompress::Sync);
    compressed.truncate(compressed.len() - 4);
    // FIN, RSV1, binary.
    let mut frame = vec![0xC2, 0xFE];
    frame.extend_from_slice(&(compressed.len() as u16).to_be_bytes());
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(&compressed);
    frame
}

/// Lowers the priority of this thread: the honest client, which needs little time of the same core, must not wait for it.
fn yield_to_others() {
    // On Linux the process is the thread.
    _ = rustix::process::setpriority_process(None, 19);
}

fn flood(epoll: &OwnedFd, hostile: &mut [Hostile], stops: &AtomicBool) {
    let mut answers = vec![0; 64 << 10];
    let mut events = Vec::with_capacity(hostile.len());
    while !stops.load(Ordering::Relaxed) {
        events.clear();
        let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        if epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)).is_err() {
            continue;
        }
        for event in &events {
            let hostile = &mut hostile[event.data.u64() as usize];
            if hostile.flood(&mut answers).is_err() {
                // The server has defended itself.
                _ = epoll::delete(epoll, hostile.stream());
            }
        }
    }
}
