//! The baseline: bytes are written back as they were read. Both servers share one buffer of 256 KiB among all connections.

use super::Transport;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::ReadBuf;

const BUFFER_LEN: usize = 256 << 10;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER_LEN]);
}

/// One connection on tokio.
pub(super) async fn echo(mut stream: impl Transport) {
    let mut rest = Rest::default();
    _ = poll_fn(|context| rest.poll(&mut stream, context)).await;
}

/// Bytes that the socket has not accepted yet.
#[derive(Default)]
struct Rest {
    bytes: Vec<u8>,
    written: usize,
}

impl Rest {
    /// Echoes until the connection ends.
    fn poll(&mut self, stream: &mut impl Transport, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            while self.written < self.bytes.len() {
                let bytes = &self.bytes[self.written..];
                self.written += ready!(Pin::new(&mut *stream).poll_write(context, bytes))?;
            }
            *self = Self::default();
            // TLS buffers records that the socket has not accepted.
            ready!(Pin::new(&mut *stream).poll_flush(context))?;
            let read = BUFFER.with_borrow_mut(|buffer| {
                let mut filled = ReadBuf::new(buffer);
                ready!(Pin::new(&mut *stream).poll_read(context, &mut filled))?;
                let read = filled.filled();
                let mut written = 0;
                while written < read.len() {
                    match Pin::new(&mut *stream).poll_write(context, &read[written..])? {
                        Poll::Ready(len) => written += len,
                        Poll::Pending => break,
                    }
                }
                self.bytes.extend_from_slice(&read[written..]);
                Poll::Ready(io::Result::Ok(read.len()))
            });
            if ready!(read)? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

struct Connection {
    stream: std::net::TcpStream,
    rest: Rest,
}

/// All connections on one epoll.
pub(super) fn on_epoll(listener: &TcpListener) -> io::Result<()> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    listener.set_nonblocking(true)?;
    epoll::add(&epoll, listener, EventData::new_u64(u64::MAX), EventFlags::IN)?;
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut free = Vec::new();
    let mut buffer = vec![0; BUFFER_LEN];
    let mut events = Vec::with_capacity(256);
    loop {
        wait(&epoll, &mut events)?;
        for event in &events {
            // The struct is packed: its fields are copied, not referenced.
            let (index, was) = (event.data.u64(), event.flags);
            if index == u64::MAX {
                let Ok((stream, _)) = listener.accept() else { continue };
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                let index = free.pop().unwrap_or_else(|| {
                    connections.push(None);
                    connections.len() - 1
                });
                epoll::add(&epoll, &stream, EventData::new_u64(index as u64), EventFlags::IN)?;
                connections[index] = Some(Connection { stream, rest: Rest::default() });
                continue;
            }
            let index = index as usize;
            let Some(connection) = &mut connections[index] else { continue };
            match connection.turn(&mut buffer) {
                // Do not read from a peer that does not read.
                Ok(true) => {
                    let flags =
                        if connection.rest.bytes.is_empty() { EventFlags::IN } else { EventFlags::OUT };
                    if flags == EventFlags::OUT || was.contains(EventFlags::OUT) {
                        epoll::modify(&epoll, &connection.stream, event.data, flags)?;
                    }
                }
                _ => {
                    connections[index] = None;
                    free.push(index);
                }
            }
        }
    }
}

/// Waits for events, and replaces the previous ones.
pub(super) fn wait(epoll: &OwnedFd, events: &mut Vec<epoll::Event>) -> io::Result<()> {
    events.clear();
    loop {
        match epoll::wait(epoll, rustix::buffer::spare_capacity(events), None) {
            Err(rustix::io::Errno::INTR) => {}
            outcome => return outcome.map(drop).map_err(io::Error::from),
        }
    }
}

impl Connection {
    /// Writes the rest, or reads once and writes that. Returns `false` at the end of the connection.
    fn turn(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        if !self.rest.bytes.is_empty() {
            self.rest.written += taken(self.stream.write(&self.rest.bytes[self.rest.written..]))?;
            if self.rest.written == self.rest.bytes.len() {
                self.rest = Rest::default();
            }
            return Ok(true);
        }
        let read = match self.stream.read(buffer) {
            Ok(0) => return Ok(false),
            read => taken(read)?,
        };
        let written = if read > 0 { taken(self.stream.write(&buffer[..read]))? } else { 0 };
        self.rest.bytes.extend_from_slice(&buffer[written..read]);
        Ok(true)
    }
}

/// The length; 0 if the call would block.
fn taken(outcome: io::Result<usize>) -> io::Result<usize> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        outcome => outcome,
    }
}
