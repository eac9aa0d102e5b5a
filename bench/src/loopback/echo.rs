//! The load generator for echoes: one thread, one epoll, prebuilt frames. Every answer is compared with its message.

use super::opening::Opening;
use super::servers::Dialect;
use super::tls::{self, Stream};
use crate::corpus::{Content, Corpus, End};
use rustix::event::epoll::{self, EventData, EventFlags};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The length of the read buffer: more than a socket buffers by default.
const READ_LEN_MAX: usize = 256 << 10;
/// From this length on, timed runs compare only the ends of each read, so that the generator stays the faster one.
const LARGE: usize = 8 << 10;

/// A server that is silent for this time has failed.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(20);

/// The load on a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) payload_len: usize,
    pub(crate) connections: usize,
    /// Messages in flight on each connection.
    pub(crate) depth: usize,
    pub(crate) tls: bool,
}

/// When a run ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// After this many messages on each connection.
    Messages(u64),
    Time(Duration),
}

/// Frames back to back, stored twice, so that every range of the stream is contiguous.
pub(super) struct Ring {
    bytes: Vec<u8>,
    len: u64,
}

impl Ring {
    pub(super) fn new(mut bytes: Vec<u8>) -> Self {
        let len = bytes.len() as u64;
        bytes.extend_from_within(..);
        Self { bytes, len }
    }

    /// The bytes of the endless stream from position `place` to `end` at most.
    pub(super) fn at(&self, place: u64, end: u64) -> &[u8] {
        let from = (place % self.len) as usize;
        let len = usize::try_from(end - place).unwrap_or(usize::MAX).min(self.bytes.len() - from);
        &self.bytes[from..from + len]
    }
}

struct Connection {
    stream: Stream,
    /// Positions in the two streams: what was sent and received, and up to where it may be sent.
    sent: u64,
    allowed: u64,
    received: u64,
    /// The socket's buffer is full; epoll reports when it is writable.
    blocked: bool,
}

/// Connections to one server.
pub(crate) struct Echo {
    epoll: OwnedFd,
    connections: Vec<Connection>,
    load: Load,
    frames: Ring,
    answers: Ring,
    /// The length in bytes of a frame that is sent, and of its answer.
    frame_len: u64,
    answer_len: u64,
    buffer: Vec<u8>,
}

impl Echo {
    /// Opens the connections.
    ///
    /// # Errors
    /// One could not be opened.
    pub(crate) fn open(address: SocketAddr, dialect: Dialect, load: Load) -> Result<Self, String> {
        let count = if load.payload_len < LARGE { load.depth.max(16) } else { 1 };
        let corpus = |end| Corpus::new(Content::Binary, load.payload_len, count, end).frames.to_vec();
        // The same messages, masked for the server and unmasked for the client.
        let frames = corpus(End::Server);
        let answers = match dialect {
            Dialect::WebSocket => corpus(End::Client),
            Dialect::Bytes => frames.clone(),
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| error.to_string())?;
        let tls = if load.tls { Some(tls::client()?) } else { None };
        let mut connections = Vec::with_capacity(load.connections);
        for index in 0..load.connections {
            let stream = match dialect {
                Dialect::WebSocket => Stream::open(address, tls.as_ref(), Opening::at("/echo"))?,
                Dialect::Bytes => Stream::connect(address, tls.as_ref())?,
            };
            stream.set_nonblocking()?;
            let data = EventData::new_u64(index as u64);
            epoll::add(&epoll, &stream, data, EventFlags::IN).map_err(|error| error.to_string())?;
            connections.push(Connection { stream, sent: 0, allowed: 0, received: 0, blocked: false });
        }
        let (frame_len, answer_len) = ((frames.len() / count) as u64, (answers.len() / count) as u64);
        let (frames, answers) = (Ring::new(frames), Ring::new(answers));
        let buffer = vec![0; READ_LEN_MAX];
        Ok(Self { epoll, connections, load, frames, answers, frame_len, answer_len, buffer })
    }

    /// Sends and receives until all answers have arrived; returns their number.
    ///
    /// # Errors
    /// A connection ended, an answer differs from its message, or nothing arrived for 20 s. With `thorough`,
    /// every byte is compared.
    pub(crate) fn run(&mut self, until: Until, thorough: bool) -> Result<u64, String> {
        let thorough = thorough || self.load.payload_len < LARGE;
        let start = Instant::now();
        let mut left = match until {
            Until::Messages(each) => each * self.connections.len() as u64,
            Until::Time(_) => u64::MAX,
        };
        let (mut messages, mut under_way) = (0, 0);
        for index in 0..self.connections.len() {
            let begun = left.min(self.load.depth as u64);
            left -= begun;
            under_way += begun;
            self.send(index, begun)?;
        }
        let mut events = Vec::with_capacity(self.connections.len());
        while under_way > 0 {
            events.clear();
            let timeout = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
                Ok(0) => return Err(format!("silent for 20 s with {under_way} messages under way")),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.to_string()),
            }
            if let Until::Time(time) = until
                && left > 0
                && start.elapsed() >= time
            {
                left = 0;
            }
            for event in &events {
                // The struct is packed: its fields are copied, not referenced.
                let (index, flags) = (event.data.u64() as usize, event.flags);
                let mut again = 0;
                if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                    let back = self.receive(index, thorough)?;
                    messages += back;
                    again = left.min(back);
                    left -= again;
                    under_way -= back - again;
                }
                if again > 0 || flags.contains(EventFlags::OUT) {
                    self.send(index, again)?;
                }
            }
        }
        Ok(messages)
    }

    /// Sends `count` messages, one each `interval`, over the connections in turn, whether or not earlier ones were answered. Returns the
    /// time of each in nanoseconds, from when it was due, not from when it was sent.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub(crate) fn pace(&mut self, count: usize, interval: Duration) -> Result<Vec<u64>, String> {
        let connections = self.connections.len();
        // Message `n` is the message `n / connections` of connection `n % connections`.
        let (mut more, mut answered) = (vec![0; connections], vec![0; connections]);
        let (mut sent, mut latencies) = (0, Vec::with_capacity(count));
        let mut events = Vec::with_capacity(connections);
        let start = Instant::now();
        let mut active = start;
        let due = |number: usize| start + interval * number as u32;
        while latencies.len() < count {
            let now = Instant::now();
            while sent < count && due(sent) <= now {
                more[sent % connections] += 1;
                sent += 1;
            }
            for (index, more) in more.iter_mut().enumerate() {
                if *more > 0 {
                    self.send(index, std::mem::take(more))?;
                }
            }
            poll(&self.epoll, &mut events)?;
            if !events.is_empty() {
                active = now;
            } else if now > active + SILENCE_MAX + interval {
                return Err(format!("silent, {} of {sent} messages were answered", latencies.len()));
            }
            for event in &events {
                let (index, flags) = (event.data.u64() as usize, event.flags);
                let back = self.receive(index, true)?;
                let now = Instant::now();
                for number in answered[index]..answered[index] + back as usize {
                    latencies.push((now - due(number * connections + index)).as_nanos() as u64);
                }
                answered[index] += back as usize;
                if flags.contains(EventFlags::OUT) {
                    self.send(index, 0)?;
                }
            }
        }
        Ok(latencies)
    }

    /// Reads once, and returns how many messages that completed.
    fn receive(&mut self, index: usize, thorough: bool) -> Result<u64, String> {
        let connection = &mut self.connections[index];
        let len = match connection.stream.read(&mut self.buffer) {
            Ok(0) => return Err("the server closed a connection".into()),
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error.to_string()),
        };
        let before = connection.received;
        connection.received += len as u64;
        let owed = connection.allowed / self.frame_len * self.answer_len;
        if connection.received > owed {
            return Err(format!("{} bytes more than were sent", connection.received - owed));
        }
        let data = &self.buffer[..len];
        let right = if thorough || len <= 128 {
            matches(&self.answers, before, data)
        } else {
            matches(&self.answers, before, &data[..64])
                && matches(&self.answers, connection.received - 64, &data[len - 64..])
        };
        if !right {
            return Err(format!("a wrong answer within the {len} bytes from byte {before}"));
        }
        Ok(connection.received / self.answer_len - before / self.answer_len)
    }

    /// Sends the rest of earlier messages and `more` new ones, until the socket is full.
    fn send(&mut self, index: usize, more: u64) -> Result<(), String> {
        let connection = &mut self.connections[index];
        connection.allowed += more * self.frame_len;
        let mut full = false;
        while connection.sent < connection.allowed && !full {
            match connection.stream.write(self.frames.at(connection.sent, connection.allowed)) {
                Ok(len) => connection.sent += len as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => full = true,
                Err(error) => return Err(error.to_string()),
            }
        }
        match connection.stream.flush() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => full = true,
            flushed => flushed.map_err(|error| error.to_string())?,
        }
        if full != connection.blocked {
            connection.blocked = full;
            let flags = if full { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            let data = EventData::new_u64(index as u64);
            epoll::modify(&self.epoll, &connection.stream, data, flags).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Replaces the events by those of now. It does not wait: a thread that sleeps is late for the next message. Without events, other
/// threads of the core may run.
pub(super) fn poll(epoll: &OwnedFd, events: &mut Vec<epoll::Event>) -> Result<(), String> {
    events.clear();
    let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    match epoll::wait(epoll, rustix::buffer::spare_capacity(events), Some(&timeout)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => std::thread::yield_now(),
        Ok(_) => {}
        Err(error) => return Err(error.to_string()),
    }
    Ok(())
}

/// Whether `data` equals the stream at position `place`.
pub(super) fn matches(ring: &Ring, mut place: u64, mut data: &[u8]) -> bool {
    while !data.is_empty() {
        let expected = ring.at(place, place + data.len() as u64);
        let (head, rest) = data.split_at(expected.len());
        if head != expected {
            return false;
        }
        place += head.len() as u64;
        data = rest;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    /// A paused server delays all messages that are due meanwhile, also those that a client in a closed loop would not have sent.
    #[test]
    fn messages_that_are_due_during_a_pause_are_late() {
        const PAUSE: Duration = Duration::from_millis(200);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut buffer = vec![0; 64 << 10];
            let mut pause = Some(PAUSE);
            while let Ok(len @ 1..) = stream.read(&mut buffer) {
                std::thread::sleep(pause.take().unwrap_or_default());
                stream.write_all(&buffer[..len]).expect("written");
            }
        });
        let load = Load { payload_len: 32, connections: 1, depth: 1, tls: false };
        let mut echo = Echo::open(address, Dialect::Bytes, load).expect("a connection");
        let latencies = echo.pace(300, Duration::from_millis(1)).expect("answers");
        let late = latencies.iter().filter(|latency| u128::from(**latency) >= PAUSE.as_nanos() / 2).count();
        assert!(latencies.len() == 300 && late >= 100, "{late} of {} are late", latencies.len());
        drop(echo);
        server.join().expect("the end");
    }
}
