//! A client that sends short messages at a rate, whether or not the answers have arrived, and measures how late they are.

use super::echo::{Load, Ring, matches};
use super::opening;
use super::tunnels::Tunnels;
use crate::corpus::{Content, Corpus, End};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const PAYLOAD_LEN: usize = 32;

/// The time for answers after the last message.
const REST: Duration = Duration::from_secs(2);

/// Messages that are sent one after another before the first that counts, so that as many packets may be in flight later. While a server
/// is busy, its kernel acknowledges short packets after 40 ms: the few that BBR allows, or that TCP begins with, would leave the rest of
/// the messages waiting at the client for that time, as if the server had not answered them.
const IN_FLIGHT: u64 = 512;

/// The delays of all messages in milliseconds, sorted; infinite for those that were not answered.
pub(crate) struct Delays(pub(crate) Vec<f64>);

impl Delays {
    /// The share of the messages that were answered within this time.
    pub(crate) fn within(&self, time: Duration) -> f64 {
        let most = time.as_secs_f64() * 1e3;
        self.0.partition_point(|delay| *delay <= most) as f64 / self.0.len() as f64
    }
}

/// One WebSocket, over HTTP/1.1 or HTTP/2.
pub(crate) enum Paced {
    Http1(Box<Socket>),
    Http2(Box<Tunnels>),
}

/// A WebSocket over HTTP/1.1.
pub(crate) struct Socket {
    stream: TcpStream,
    frames: Ring,
    answers: Ring,
    frame_len: u64,
    answer_len: u64,
    sent: u64,
    received: u64,
}

impl Paced {
    /// # Errors
    /// The server cannot be reached, or refuses the WebSocket.
    pub(crate) fn open(address: SocketAddr, over_http2: bool) -> Result<Self, String> {
        let paced = Self::connect(address, over_http2)?;
        // Without it the default of the machine applies. It is the same for all servers.
        _ = rustix::net::sockopt::set_tcp_congestion(paced.stream(), "cubic");
        Ok(paced)
    }

    fn connect(address: SocketAddr, over_http2: bool) -> Result<Self, String> {
        if over_http2 {
            let load = Load { payload_len: PAYLOAD_LEN, connections: 1, depth: 1, tls: false };
            return Ok(Self::Http2(Box::new(Tunnels::open(address, load)?)));
        }
        const COUNT: usize = 16;
        let corpus = |end| Corpus::new(Content::Binary, PAYLOAD_LEN, COUNT, end).frames.to_vec();
        let (frames, answers) = (corpus(End::Server), corpus(End::Client));
        Ok(Self::Http1(Box::new(Socket {
            stream: opening::open(address)?,
            frame_len: (frames.len() / COUNT) as u64,
            answer_len: (answers.len() / COUNT) as u64,
            frames: Ring::new(frames),
            answers: Ring::new(answers),
            sent: 0,
            received: 0,
        })))
    }

    /// Sends `count` messages, one each `interval`.
    ///
    /// # Errors
    /// The server ended the connection, or an answer is wrong.
    pub(crate) fn run(&mut self, count: usize, interval: Duration) -> Result<Delays, String> {
        for _ in 0..IN_FLIGHT {
            self.send(1)?;
        }
        let (opening, mut missing) = (Instant::now(), IN_FLIGHT);
        while missing > 0 && opening.elapsed() < REST {
            missing -= self.receive(REST)?;
        }
        let start = Instant::now();
        let due = |number: usize| start + interval * number as u32;
        let end = due(count) + REST;
        let (mut sent, mut delays) = (0, Vec::with_capacity(count));
        while delays.len() < count {
            let now = Instant::now();
            if now >= end {
                break;
            }
            let mut more = 0;
            while sent + more < count && due(sent + more) <= now {
                more += 1;
            }
            if more > 0 {
                self.send(more as u64)?;
                sent += more;
            }
            let next = if sent < count { due(sent) } else { end };
            let answered = self.receive(next.saturating_duration_since(now))?;
            let now = Instant::now();
            let first = answered.min(missing);
            missing -= first;
            for _ in first..answered {
                delays.push((now - due(delays.len())).as_secs_f64() * 1e3);
            }
        }
        delays.resize(count, f64::INFINITY);
        delays.sort_unstable_by(f64::total_cmp);
        Ok(Delays(delays))
    }

    fn stream(&self) -> &TcpStream {
        match self {
            Self::Http1(socket) => &socket.stream,
            Self::Http2(tunnels) => tunnels.stream(),
        }
    }

    fn send(&mut self, count: u64) -> Result<(), String> {
        match self {
            Self::Http1(socket) => socket.send(count),
            Self::Http2(tunnels) => tunnels.send_now(count),
        }
    }

    /// The number of answers that have arrived, after up to `timeout`.
    fn receive(&mut self, timeout: Duration) -> Result<u64, String> {
        let timeout =
            rustix::time::Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };
        let mut fds = [PollFd::new(self.stream(), PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(0),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
        match self {
            Self::Http1(socket) => socket.receive(),
            Self::Http2(tunnels) => tunnels.receive(),
        }
    }
}

impl Socket {
    fn send(&mut self, count: u64) -> Result<(), String> {
        let end = self.sent + count * self.frame_len;
        while self.sent < end {
            let bytes = self.frames.at(self.sent, end);
            self.stream.write_all(bytes).map_err(|error| error.to_string())?;
            self.sent += bytes.len() as u64;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<u64, String> {
        let mut bytes = [0; 16 << 10];
        let len = self.stream.read(&mut bytes).map_err(|error| error.to_string())?;
        if len == 0 {
            return Err("the server closed the connection".into());
        }
        if !matches(&self.answers, self.received, &bytes[..len]) {
            return Err("a wrong answer".into());
        }
        let before = self.received / self.answer_len;
        self.received += len as u64;
        Ok(self.received / self.answer_len - before)
    }
}
