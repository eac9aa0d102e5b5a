//! The load generator for fan-out: one connection publishes bursts, the others receive each message of their channels.
//! One thread, one epoll, prebuilt frames. Messages are counted on every connection, and compared with what was
//! published on one.

use super::echo::{SILENCE_MAX, poll};
use super::opening::Opening;
use super::protocol::{Joining, Protocol, Step};
use super::reading::Messages;
use super::tls::{self, Stream};
use crate::corpus::{Content, Corpus, End};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustls::ClientConfig;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wireloom_testing::frame::Frame;

/// The length of the read buffer: more than a socket buffers by default.
const READ_LEN_MAX: usize = 256 << 10;
/// The number of different payloads.
const PAYLOADS: usize = 16;
/// The index of the publisher among the events.
const PUBLISHER: u64 = u64::MAX;

/// The load on a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) protocol: Protocol,
    pub(crate) payload_len: usize,
    pub(crate) subscribers: usize,
    /// Channels, in which messages are published in turns: 1, or a multiple of [`PAYLOADS`].
    pub(crate) channels: usize,
    /// Subscribers of each channel.
    pub(crate) members: usize,
    /// Messages that the publisher sends at once. It waits until every subscriber has them.
    pub(crate) burst: usize,
    /// Connections offer permessage-deflate.
    pub(crate) deflate: bool,
    pub(crate) tls: bool,
}

impl Load {
    /// One channel with all subscribers.
    pub(crate) fn of_one_channel(protocol: Protocol, payload_len: usize, subscribers: usize) -> Self {
        Self {
            protocol,
            payload_len,
            subscribers,
            channels: 1,
            members: subscribers,
            burst: 1,
            deflate: false,
            tls: false,
        }
    }

    /// The subscribers of a channel.
    fn members_of(self, channel: usize) -> impl Iterator<Item = usize> {
        (0..self.members).map(move |member| (channel * self.members + member) % self.subscribers)
    }

    fn channel(self, index: usize) -> String {
        // Each protocol of a server has channels of its own.
        match self.protocol {
            Protocol::Protobuf => format!("w7-protobuf-{index}"),
            _ => format!("w7-{index}"),
        }
    }
}

/// A connection that receives.
struct Subscriber {
    stream: Stream,
    messages: Messages,
    received: u64,
    /// Messages that have been published in its channels.
    due: u64,
}

/// A publisher and the subscribers of its channels.
pub(crate) struct Fanout {
    epoll: OwnedFd,
    publisher: Stream,
    subscribers: Vec<Subscriber>,
    load: Load,
    payloads: Vec<Vec<u8>>,
    /// Frame `n % len` is message `n`.
    frames: Vec<Vec<u8>>,
    published: usize,
    /// The indices of the payloads that the first subscriber has not received yet.
    expected: VecDeque<usize>,
    buffer: Vec<u8>,
    /// The time from the write of a burst until a subscriber has received all of it, in nanoseconds.
    latencies: Vec<u64>,
}

/// The latencies of deliveries, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latency {
    pub(crate) median: u64,
    pub(crate) p99: u64,
}

impl Fanout {
    /// Opens the connections to these nodes in turn. The publisher connects to the first node.
    ///
    /// # Errors
    /// One could not be opened, or could not join its channels.
    pub(crate) fn open(nodes: &[SocketAddr], load: Load) -> Result<Self, String> {
        let protocol = load.protocol;
        let mut channels = vec![Vec::new(); load.subscribers];
        for index in 0..load.channels {
            load.members_of(index).for_each(|member| channels[member].push(load.channel(index)));
        }
        let failed = |error: rustix::io::Errno| error.to_string();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let tls = if load.tls { Some(tls::client()?) } else { None };
        let mut subscribers = Vec::with_capacity(load.subscribers);
        for (index, channels) in channels.into_iter().enumerate() {
            let messages = if load.deflate { Messages::inflating() } else { Messages::default() };
            let (stream, messages) =
                join(nodes[index % nodes.len()], load, tls.as_ref(), channels, messages)?;
            epoll::add(&epoll, &stream, EventData::new_u64(index as u64), EventFlags::IN).map_err(failed)?;
            subscribers.push(Subscriber { stream, messages, received: 0, due: 0 });
        }
        let (publisher, _) = join(nodes[0], load, tls.as_ref(), Vec::new(), Messages::default())?;
        epoll::add(&epoll, &publisher, EventData::new_u64(PUBLISHER), EventFlags::IN).map_err(failed)?;
        // A JSON string, which every protocol carries unchanged.
        let texts = Corpus::new(Content::Ascii, load.payload_len.saturating_sub(2), PAYLOADS, End::Client);
        let payloads: Vec<_> = texts.messages.iter().map(|text| [b"\"", &text[..], b"\""].concat()).collect();
        let frames = (0..load.channels.max(PAYLOADS)).map(|n| {
            let message =
                protocol.publication(&load.channel(n % load.channels), &payloads[n % PAYLOADS], n as u32 + 1);
            let frame = if protocol.is_binary() { Frame::binary(message) } else { Frame::text(message) };
            frame.mask([7, 77, 17, 71]).bytes()
        });
        let frames = frames.collect();
        // Rooms send no reply to a join, so the last connections may still be joining.
        std::thread::sleep(Duration::from_millis(200));
        Ok(Self {
            epoll,
            publisher,
            subscribers,
            load,
            payloads,
            frames,
            published: 0,
            expected: VecDeque::new(),
            buffer: vec![0; READ_LEN_MAX],
            latencies: Vec::new(),
        })
    }

    /// Publishes bursts for `time`, at least one; returns the number of deliveries.
    ///
    /// # Errors
    /// A connection ended, a delivery differs from what was published, or nothing arrived for 20 s.
    pub(crate) fn run(&mut self, time: Duration) -> Result<u64, String> {
        let start = Instant::now();
        let mut delivered = 0;
        loop {
            self.burst()?;
            delivered += (self.load.burst * self.load.members) as u64;
            if start.elapsed() >= time {
                return Ok(delivered);
            }
        }
    }

    fn burst(&mut self) -> Result<(), String> {
        let mut bytes = VecDeque::<u8>::new();
        let mut missing = 0;
        for _ in 0..self.load.burst {
            missing += self.publish(&mut bytes);
        }
        let begun = Instant::now();
        let mut events = Vec::with_capacity(1024);
        while missing > 0 {
            self.write(&mut bytes)?;
            events.clear();
            let timeout = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
                Ok(0) => return Err(format!("silent for 20 s, {missing} subscribers wait")),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.to_string()),
            }
            for event in &events {
                let index = event.data.u64();
                if index == PUBLISHER {
                    self.read_publisher()?;
                } else if self.receive(index as usize)? {
                    missing -= 1;
                    self.latencies.push(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
                }
            }
        }
        Ok(())
    }

    /// Publishes `count` messages in the only channel, one each `interval`, whether or not earlier ones were delivered. Returns the time of
    /// each delivery in nanoseconds, from when its message was due, not from when it was sent.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub(crate) fn pace(&mut self, count: usize, interval: Duration) -> Result<Vec<u64>, String> {
        let mut bytes = VecDeque::<u8>::new();
        let before = self.published as u64;
        let deliveries = count * self.load.members;
        let (mut sent, mut latencies) = (0, Vec::with_capacity(deliveries));
        let mut events = Vec::with_capacity(1024);
        let start = Instant::now();
        let mut active = start;
        let due = |number: u64| start + interval * number as u32;
        while latencies.len() < deliveries {
            let now = Instant::now();
            while sent < count && due(sent as u64) <= now {
                self.publish(&mut bytes);
                sent += 1;
            }
            self.write(&mut bytes)?;
            poll(&self.epoll, &mut events)?;
            if !events.is_empty() {
                active = now;
            } else if now > active + SILENCE_MAX + interval {
                return Err(format!("silent after {} of {deliveries} deliveries", latencies.len()));
            }
            for event in &events {
                let index = event.data.u64();
                if index == PUBLISHER {
                    self.read_publisher()?;
                    continue;
                }
                let received = self.subscribers[index as usize].received;
                self.receive(index as usize)?;
                let now = Instant::now();
                for number in received..self.subscribers[index as usize].received {
                    latencies.push((now - due(number - before)).as_nanos() as u64);
                }
            }
        }
        Ok(latencies)
    }

    /// Appends the next message to what is to be sent; returns how many subscribers had all messages before.
    fn publish(&mut self, bytes: &mut VecDeque<u8>) -> usize {
        let message = self.published;
        self.published += 1;
        bytes.extend(&self.frames[message % self.frames.len()]);
        let mut complete = 0;
        for member in self.load.members_of(message % self.load.channels) {
            let subscriber = &mut self.subscribers[member];
            complete += usize::from(subscriber.due == subscriber.received);
            subscriber.due += 1;
            if member == 0 {
                self.expected.push_back(message % PAYLOADS);
            }
        }
        complete
    }

    /// Sends what the socket accepts.
    fn write(&mut self, bytes: &mut VecDeque<u8>) -> Result<(), String> {
        while !bytes.is_empty() {
            match self.publisher.write(bytes.make_contiguous()) {
                Ok(len) => drop(bytes.drain(..len)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.to_string()),
            }
        }
        match self.publisher.flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    /// Reads once; returns whether that completed the burst.
    fn receive(&mut self, index: usize) -> Result<bool, String> {
        let Subscriber { stream, messages, received, due } = &mut self.subscribers[index];
        let len = read(stream, &mut self.buffer)?;
        let (protocol, payloads, expected) = (self.load.protocol, &self.payloads, &mut self.expected);
        let was_missing = *received < *due;
        messages.read(&self.buffer[..len], |message| {
            let count = protocol.publications(message);
            *received += count as u64;
            if *received > *due {
                return Err(format!("more than was published: {:?}", String::from_utf8_lossy(message)));
            }
            let checked = if index == 0 { count } else { 0 };
            for _ in 0..checked {
                let payload = expected.pop_front().map_or(&[][..], |at| &payloads[at]);
                if !message.windows(payload.len().max(1)).any(|window| window == payload) {
                    return Err(format!("a wrong delivery: {:?}", String::from_utf8_lossy(message)));
                }
            }
            Ok(())
        })?;
        Ok(was_missing && *received == *due)
    }

    /// Reads and discards the replies to the publisher.
    fn read_publisher(&mut self) -> Result<(), String> {
        let len = read(&mut self.publisher, &mut self.buffer)?;
        match self.buffer[..len].windows(7).any(|window| window == b"\"error\"") {
            true => Err(format!("not published: {:?}", String::from_utf8_lossy(&self.buffer[..len]))),
            false => Ok(()),
        }
    }

    /// The latencies of the deliveries since the last call.
    pub(crate) fn take_latency(&mut self) -> Option<Latency> {
        let mut all = std::mem::take(&mut self.latencies);
        all.sort_unstable();
        let at = |part: usize| all.get((all.len() * part / 100).min(all.len().checked_sub(1)?)).copied();
        Some(Latency { median: at(50)?, p99: at(99)? })
    }
}

/// Reads what has arrived.
fn read(stream: &mut Stream, buffer: &mut [u8]) -> Result<usize, String> {
    match stream.read(buffer) {
        Ok(0) => Err("the server closed a connection".into()),
        Ok(len) => Ok(len),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        Err(error) => Err(error.to_string()),
    }
}

/// A nonblocking connection that has joined these channels.
fn join(
    node: SocketAddr,
    load: Load,
    tls: Option<&Arc<ClientConfig>>,
    channels: Vec<String>,
    mut messages: Messages,
) -> Result<(Stream, Messages), String> {
    let protocol = load.protocol;
    let path = match protocol {
        // Compressed clients have a room of their own.
        Protocol::Bare if load.deflate => "/rooms/w7-deflate",
        _ => protocol.path(),
    };
    let opening = Opening { path, subprotocol: protocol.subprotocol(), deflate: load.deflate };
    let mut stream = Stream::open(node, tls, opening)?;
    let mut joining = Joining::new(protocol, channels, None);
    let mut step = joining.start();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let (message, is_last) = match std::mem::replace(&mut step, Step::Wait) {
            Step::Joined => break,
            Step::Wait => (Vec::new(), false),
            Step::Send(message) => (message, false),
            Step::SendLast(message) => (message, true),
        };
        if !message.is_empty() {
            let frame = if protocol.is_binary() { Frame::binary(message) } else { Frame::text(message) };
            let frame = frame.mask([7, 77, 17, 71]).bytes();
            stream.write_all(&frame).map_err(|error| error.to_string())?;
        }
        if is_last {
            break;
        }
        let len = match stream.read(&mut buffer) {
            Ok(0) => return Err("the server closed a connection that joins".into()),
            Ok(len) => len,
            Err(error) => return Err(format!("no answer to a connection that joins: {error}")),
        };
        messages.read(&buffer[..len], |message| {
            step = joining.handle(message)?;
            Ok(())
        })?;
    }
    stream.set_nonblocking()?;
    Ok((stream, messages))
}
