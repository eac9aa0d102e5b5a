//! The baseline of fan-out: the frames of one read are written to every other connection, each with one call of `write`.

use super::raw::wait;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use wireloom_testing::frame::Frame;

const BUFFER_LEN: usize = 256 << 10;
/// The index of the listener among the events.
const LISTENER: u64 = u64::MAX;

/// All connections on one epoll.
pub(super) fn on_epoll(listener: &TcpListener) -> io::Result<()> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut buffer = vec![0; BUFFER_LEN];
    let mut events = Vec::with_capacity(256);
    loop {
        wait(&epoll, &mut events)?;
        for event in &events {
            let index = event.data.u64();
            if index == LISTENER {
                let (stream, _) = listener.accept()?;
                let connection = Connection::open(stream)?;
                let data = EventData::new_u64(connections.len() as u64);
                let flags = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
                epoll::add(&epoll, &connection.stream, data, flags)?;
                connections.push(Some(connection));
                continue;
            }
            let index = index as usize;
            let Some(connection) = &mut connections[index] else { continue };
            let frames = match connection.flush().and_then(|()| connection.read(&mut buffer)) {
                Ok(frames) if frames.is_empty() => continue,
                Ok(frames) => frames,
                Err(_) => {
                    connections[index] = None;
                    continue;
                }
            };
            for (other, connection) in connections.iter_mut().enumerate() {
                if other != index && connection.as_mut().is_some_and(|other| other.write(&frames).is_err()) {
                    *connection = None;
                }
            }
        }
    }
}

struct Connection {
    stream: TcpStream,
    /// The beginning of an incomplete frame.
    partial: Vec<u8>,
    /// Bytes that the socket has not accepted yet.
    unwritten: Vec<u8>,
}

impl Connection {
    /// Answers the opening handshake.
    fn open(stream: TcpStream) -> io::Result<Self> {
        tungstenite::accept(stream.try_clone()?).map_err(io::Error::other)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, partial: Vec::new(), unwritten: Vec::new() })
    }

    /// Reads the frames that have arrived, and returns them without their masks.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Vec<u8>> {
        loop {
            match self.stream.read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                read => self.partial.extend_from_slice(&buffer[..read?]),
            }
        }
        let (mut frames, mut taken) = (Vec::new(), 0);
        while let Some((frame, len)) = Frame::read(&self.partial[taken..]) {
            frame.mask(None).write(&mut frames);
            taken += len;
        }
        self.partial.drain(..taken);
        Ok(frames)
    }

    fn write(&mut self, frames: &[u8]) -> io::Result<()> {
        if !self.unwritten.is_empty() {
            self.unwritten.extend_from_slice(frames);
            return self.flush();
        }
        let len = self.write_some(frames)?;
        self.unwritten.extend_from_slice(&frames[len..]);
        Ok(())
    }

    /// Writes the bytes that the socket did not accept before.
    fn flush(&mut self) -> io::Result<()> {
        if !self.unwritten.is_empty() {
            let bytes = std::mem::take(&mut self.unwritten);
            let len = self.write_some(&bytes)?;
            self.unwritten = bytes[len..].to_vec();
        }
        Ok(())
    }

    fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.stream.write(bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            written => written,
        }
    }
}
