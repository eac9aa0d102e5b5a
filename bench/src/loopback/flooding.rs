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

/// What a message inflates to, in bytes; its frame has about a thousandth of it.
const INFLATED_LEN: usize = 1 << 20;

/// Streams of each connection over HTTP/2.
const STREAMS: usize = 10;

/// Hostile connections, until it is dropped.
pub(crate) struct Flood {
    stops: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Flood {
    /// Over HTTP/1.1, by one thread.
    ///
    /// # Errors
    /// A connection could not be opened, or was opened without permessage-deflate.
    pub(crate) fn over_http1(address: SocketAddr, connections: usize) -> Result<Self, String> {
        let opening = Opening { path: "/echo", subprotocol: None, deflate: true };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| error.to_string())?;
        let mut streams = Vec::with_capacity(connections);
        for index in 0..connections {
            let stream = opening::open_with(address, opening)?;
            stream.set_nonblocking(true).map_err(|error| error.to_string())?;
            let events = EventFlags::IN | EventFlags::OUT;
            epoll::add(&epoll, &stream, EventData::new_u64(index as u64), events)
                .map_err(|error| error.to_string())?;
            streams.push(stream);
        }
        let stops = Arc::new(AtomicBool::new(false));
        let stopping = stops.clone();
        let thread = std::thread::spawn(move || {
            yield_to_others();
            flood(&epoll, &streams, &stopping);
        });
        Ok(Self { stops, threads: vec![thread] })
    }

    /// Over HTTP/2, each connection with several streams, by a thread for each connection.
    ///
    /// # Errors
    /// As for [`over_http1`](Self::over_http1).
    pub(crate) fn over_http2(address: SocketAddr, connections: usize) -> Result<Self, String> {
        let stops = Arc::new(AtomicBool::new(false));
        let mut flood = Self { stops, threads: Vec::with_capacity(connections) };
        for _ in 0..connections {
            let mut tunnels = Tunnels::open_hostile(address, STREAMS, frame())?;
            let stopping = flood.stops.clone();
            flood.threads.push(std::thread::spawn(move || {
                yield_to_others();
                // A server that closes has defended itself.
                _ = tunnels.flood(&stopping);
            }));
        }
        Ok(flood)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| _ = thread.join());
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

fn flood(epoll: &OwnedFd, streams: &[TcpStream], stops: &AtomicBool) {
    let frames = frame().repeat(16);
    let mut sent = vec![0; streams.len()];
    let mut answers = vec![0; 64 << 10];
    let mut events = Vec::with_capacity(streams.len());
    while !stops.load(Ordering::Relaxed) {
        events.clear();
        let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        if epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)).is_err() {
            continue;
        }
        for event in &events {
            // The struct is packed: its fields are copied, not referenced.
            let (index, flags) = (event.data.u64() as usize, event.flags);
            let mut stream = &streams[index];
            let is_closed = |read: std::io::Result<usize>| match read {
                Ok(len) => len == 0,
                Err(error) => error.kind() != ErrorKind::WouldBlock,
            };
            if flags.contains(EventFlags::IN) && is_closed(stream.read(&mut answers)) {
                // The server has defended itself.
                _ = epoll::delete(epoll, stream);
                continue;
            }
            if flags.contains(EventFlags::OUT)
                && let Ok(len) = stream.write(&frames[sent[index]..])
            {
                sent[index] = (sent[index] + len) % frames.len();
            }
        }
    }
}
