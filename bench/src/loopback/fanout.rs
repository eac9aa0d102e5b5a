//! The generator of fan-out: one of the connections sends bursts, and all of them, the sender too, receive each message. One thread,
//! one epoll, frames that were built before, and every delivery compared with its message.

use super::echo::{Ring, matches};
use super::opening;
use crate::corpus::{Content, Corpus, End};
use rustix::event::epoll::{self, EventData, EventFlags};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The read buffer: more than a socket holds by default.
const READ_LEN_MAX: usize = 256 << 10;

/// The load on a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) payload_len: usize,
    pub(crate) subscribers: usize,
    /// Messages that the publisher sends at once. It waits until every subscriber has them.
    pub(crate) burst: usize,
}

/// Connections that have joined one room.
pub(crate) struct Fanout {
    epoll: OwnedFd,
    streams: Vec<TcpStream>,
    /// Bytes that each connection has received.
    received: Vec<u64>,
    load: Load,
    frames: Ring,
    deliveries: Ring,
    frame_len: u64,
    delivery_len: u64,
    /// Messages so far.
    published: u64,
    buffer: Vec<u8>,
    /// From the write of a burst until a subscriber had all of it, in nanoseconds.
    latencies: Vec<u64>,
}

impl Fanout {
    /// Opens the connections. Each path is the room's.
    ///
    /// # Errors
    /// One could not be opened.
    pub(crate) fn open(address: SocketAddr, load: Load) -> Result<Self, String> {
        let corpus = |end| Corpus::new(Content::Binary, load.payload_len, 16, end).frames.to_vec();
        let (frames, deliveries) = (corpus(End::Server), corpus(End::Client));
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| error.to_string())?;
        let mut streams = Vec::with_capacity(load.subscribers);
        for index in 0..load.subscribers {
            let stream = opening::open_at(address, "/rooms/w7")?;
            stream.set_nonblocking(true).map_err(|error| error.to_string())?;
            let data = EventData::new_u64(index as u64);
            epoll::add(&epoll, &stream, data, EventFlags::IN).map_err(|error| error.to_string())?;
            streams.push(stream);
        }
        let (frame_len, delivery_len) = ((frames.len() / 16) as u64, (deliveries.len() / 16) as u64);
        // The last connections may still be joining.
        std::thread::sleep(Duration::from_millis(200));
        Ok(Self {
            epoll,
            received: vec![0; streams.len()],
            streams,
            load,
            frames: Ring::new(frames),
            deliveries: Ring::new(deliveries),
            frame_len,
            delivery_len,
            published: 0,
            buffer: vec![0; READ_LEN_MAX],
            latencies: Vec::new(),
        })
    }

    /// Publishes bursts for this long, at least one, and returns how many messages were delivered.
    ///
    /// # Errors
    /// A connection ended, a delivery was not what was published, or nothing came for 20 s.
    pub(crate) fn run(&mut self, time: Duration) -> Result<u64, String> {
        let start = Instant::now();
        let mut delivered = 0;
        loop {
            self.burst()?;
            delivered += (self.load.burst * self.streams.len()) as u64;
            if start.elapsed() >= time {
                return Ok(delivered);
            }
        }
    }

    fn burst(&mut self) -> Result<(), String> {
        let before = self.published;
        self.published += self.load.burst as u64;
        let (mut sent, until) = (before * self.frame_len, self.published * self.frame_len);
        let due = self.published * self.delivery_len;
        let begun = Instant::now();
        let mut missing = self.streams.len();
        let mut events = Vec::with_capacity(1024);
        while missing > 0 {
            while sent < until {
                match self.streams[0].write(self.frames.at(sent, until)) {
                    Ok(len) => sent += len as u64,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.to_string()),
                }
            }
            events.clear();
            let timeout = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
                Ok(0) => return Err(format!("silent for 20 s, {missing} subscribers wait")),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.to_string()),
            }
            for event in &events {
                let index = event.data.u64() as usize;
                if self.receive(index, due)? {
                    missing -= 1;
                    self.latencies.push(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
                }
            }
        }
        Ok(())
    }

    /// Reads once. True when that completed the burst.
    fn receive(&mut self, index: usize, due: u64) -> Result<bool, String> {
        let len = match self.streams[index].read(&mut self.buffer) {
            Ok(0) => return Err("the server closed a connection".into()),
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.to_string()),
        };
        let before = self.received[index];
        self.received[index] += len as u64;
        if self.received[index] > due {
            return Err(format!("{} bytes more than were published", self.received[index] - due));
        }
        if !matches(&self.deliveries, before, &self.buffer[..len]) {
            return Err(format!("a wrong delivery within the {len} bytes from byte {before}"));
        }
        Ok(self.received[index] == due)
    }

    /// The latency that 99 % of the deliveries did not exceed since the last call, in nanoseconds.
    pub(crate) fn take_p99(&mut self) -> Option<u64> {
        self.latencies.sort_unstable();
        let p99 = self
            .latencies
            .get((self.latencies.len() * 99 / 100).min(self.latencies.len().checked_sub(1)?))
            .copied();
        self.latencies.clear();
        p99
    }
}
