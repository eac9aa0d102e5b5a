//! The load generator for echoes over HTTP/2: many WebSockets on one connection, by extended CONNECT (RFC 8441). It
//! writes its frames by hand and shares no code with any contestant; every answer is compared with its message.

use super::echo::{Load, Ring, Until, matches};
use super::opening;
use crate::corpus::{Content, Corpus, End};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

/// RFC 9113 §6: the frame types that are handled.
mod frame {
    pub(super) const DATA: u8 = 0;
    pub(super) const HEADERS: u8 = 1;
    pub(super) const RST_STREAM: u8 = 3;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const PING: u8 = 6;
    pub(super) const GOAWAY: u8 = 7;
    pub(super) const WINDOW_UPDATE: u8 = 8;
}

const HEAD_LEN: usize = 9;
/// RFC 9113 §6.5.2: the length that every peer must accept.
const FRAME_LEN_MAX: u64 = 16_384;
/// RFC 9113 §6.9.1: the largest window.
const WINDOW_MAX: u32 = (1 << 31) - 1;
/// Copies of a frame that a hostile connection sends on each stream: more than any server reads.
const COPIES: u64 = 1 << 30;
/// The number of received bytes after which WINDOW_UPDATE is sent.
const WINDOW_USED_MAX: u32 = 1 << 29;

/// One WebSocket: positions in its two byte streams, and its flow-control window.
#[derive(Clone, Copy, Default)]
struct Tunnel {
    sent: u64,
    allowed: u64,
    received: u64,
    window: i64,
    open: bool,
}

/// WebSockets over one connection to one server.
pub(crate) struct Tunnels {
    stream: TcpStream,
    /// The tunnel with index `n` is stream `2 n + 1`.
    tunnels: Vec<Tunnel>,
    load: Load,
    frames: Ring,
    answers: Ring,
    frame_len: u64,
    answer_len: u64,
    /// The connection's window for sending, and the initial window of streams.
    window: i64,
    window_initial: i64,
    window_used: u32,
    takes_connect: bool,
    inbox: Vec<u8>,
    filled: usize,
    out: Vec<u8>,
    /// Messages that came back since they were last asked for.
    back: Vec<u64>,
    /// Whether answers are not looked at.
    is_hostile: bool,
}

impl Tunnels {
    /// Opens one connection, and `load.connections` WebSockets over it.
    ///
    /// # Errors
    /// The server refuses them.
    pub(crate) fn open(address: SocketAddr, load: Load) -> Result<Self, String> {
        let count = load.depth.max(16);
        let corpus = |end| Corpus::new(Content::Binary, load.payload_len, count, end).frames.to_vec();
        Self::open_with(address, load, corpus(End::Server), corpus(End::Client), count)
    }

    /// Opens one connection, and `streams` WebSockets over it, for [`flood`](Self::flood) with copies of a compressed frame.
    ///
    /// # Errors
    /// The server refuses them.
    pub(crate) fn open_hostile(address: SocketAddr, streams: usize, frame: Vec<u8>) -> Result<Self, String> {
        let load = Load { payload_len: 0, connections: streams, depth: 1, tls: false };
        let mut tunnels = Self::open_with(address, load, frame, Vec::new(), 1)?;
        tunnels.stream.set_nonblocking(true).map_err(|error| error.to_string())?;
        for tunnel in &mut tunnels.tunnels {
            tunnel.allowed = COPIES * tunnels.frame_len;
        }
        Ok(tunnels)
    }

    fn open_with(
        address: SocketAddr,
        load: Load,
        frames: Vec<u8>,
        answers: Vec<u8>,
        count: usize,
    ) -> Result<Self, String> {
        let is_hostile = answers.is_empty();
        let mut tunnels = Self {
            stream: opening::connect(address)?,
            tunnels: vec![Tunnel::default(); load.connections],
            load,
            frame_len: (frames.len() / count) as u64,
            answer_len: (answers.len() / count) as u64,
            frames: Ring::new(frames),
            answers: Ring::new(answers),
            window: 65_535,
            window_initial: 65_535,
            window_used: 0,
            takes_connect: false,
            inbox: vec![0; 256 << 10],
            filled: 0,
            out: Vec::new(),
            back: vec![0; load.connections],
            is_hostile,
        };
        tunnels.out.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        // ENABLE_PUSH 0, INITIAL_WINDOW_SIZE the largest.
        let settings = [&[0, 2, 0, 0, 0, 0, 0, 4][..], &WINDOW_MAX.to_be_bytes()].concat();
        tunnels.put(frame::SETTINGS, 0, 0, &settings);
        tunnels.put(frame::WINDOW_UPDATE, 0, 0, &(WINDOW_MAX - 65_535).to_be_bytes());
        while !tunnels.takes_connect {
            tunnels.turn()?;
        }
        let fields = fields(address, is_hostile);
        for index in 0..tunnels.tunnels.len() {
            tunnels.tunnels[index].window = tunnels.window_initial;
            // END_HEADERS.
            tunnels.put(frame::HEADERS, 4, index, &fields);
        }
        while !tunnels.tunnels.iter().all(|tunnel| tunnel.open) {
            tunnels.turn()?;
        }
        Ok(tunnels)
    }

    /// Sends and receives until all answers have arrived; returns their number.
    ///
    /// # Errors
    /// The connection or a stream ended, an answer differs from its message, or nothing arrived for 20 s.
    pub(crate) fn run(&mut self, until: Until) -> Result<u64, String> {
        let start = Instant::now();
        let mut left = match until {
            Until::Messages(each) => each * self.tunnels.len() as u64,
            Until::Time(_) => u64::MAX,
        };
        let (mut messages, mut under_way) = (0, 0);
        for index in 0..self.tunnels.len() {
            let begun = left.min(self.load.depth as u64);
            left -= begun;
            under_way += begun;
            self.send(index, begun);
        }
        while under_way > 0 {
            // Checked before the read, which may bring the window that they wait for.
            let stalled = self.tunnels.iter().any(|tunnel| tunnel.sent < tunnel.allowed);
            self.turn()?;
            if let Until::Time(time) = until
                && start.elapsed() >= time
            {
                left = 0;
            }
            for index in 0..self.tunnels.len() {
                let back = std::mem::take(&mut self.back[index]);
                let again = left.min(back);
                messages += back;
                left -= again;
                under_way -= back - again;
                if again > 0 || stalled {
                    self.send(index, again);
                }
            }
        }
        self.flush()?;
        Ok(messages)
    }

    /// Sends as much as the windows and the socket allow, and reads what has arrived. The socket must not block.
    ///
    /// # Errors
    /// The server closed the connection.
    pub(super) fn flood(&mut self) -> Result<(), String> {
        let mut has_read = true;
        while has_read {
            if self.out.is_empty() {
                (0..self.tunnels.len()).for_each(|index| self.send(index, 0));
            }
            has_read = self.turn()?;
        }
        Ok(())
    }

    /// Sends `count` messages over the first WebSocket.
    ///
    /// # Errors
    /// The connection ended.
    pub(super) fn send_now(&mut self, count: u64) -> Result<(), String> {
        self.send(0, count);
        self.flush()
    }

    /// Reads once; returns the number of answers that the first WebSocket has received.
    ///
    /// # Errors
    /// The connection or the stream ended, or an answer differs from its message.
    pub(super) fn receive(&mut self) -> Result<u64, String> {
        self.turn()?;
        // Messages that had no window.
        self.send(0, 0);
        self.flush()?;
        Ok(std::mem::take(&mut self.back[0]))
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Queues the rest of earlier messages and `more` new ones, within the windows.
    fn send(&mut self, index: usize, more: u64) {
        self.tunnels[index].allowed += more * self.frame_len;
        loop {
            let Tunnel { sent, allowed, window, .. } = self.tunnels[index];
            let window = window.min(self.window).max(0) as u64;
            let end = allowed.min(sent + window.min(FRAME_LEN_MAX));
            let data = self.frames.at(sent, end);
            if data.is_empty() {
                return;
            }
            let len = data.len();
            head(&mut self.out, len, frame::DATA, 0, index);
            self.out.extend_from_slice(data);
            self.tunnels[index].sent += len as u64;
            self.tunnels[index].window -= len as i64;
            self.window -= len as i64;
        }
    }

    fn put(&mut self, kind: u8, flags: u8, index: usize, payload: &[u8]) {
        // Frames of other types belong to the connection.
        let of_stream = matches!(kind, frame::HEADERS | frame::DATA);
        head(&mut self.out, payload.len(), kind, flags, if of_stream { index } else { usize::MAX });
        self.out.extend_from_slice(payload);
    }

    fn flush(&mut self) -> Result<(), String> {
        let mut written = 0;
        while written < self.out.len() {
            match self.stream.write(&self.out[written..]) {
                Ok(len) => written += len,
                Err(error) if self.is_hostile && error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        self.out.drain(..written);
        Ok(())
    }

    /// Writes what is queued, reads once, and handles every complete frame. False if nothing has arrived at a socket that does not block.
    fn turn(&mut self) -> Result<bool, String> {
        self.flush()?;
        let len = match self.stream.read(&mut self.inbox[self.filled..]) {
            Err(error) if self.is_hostile && error.kind() == ErrorKind::WouldBlock => return Ok(false),
            read => read.map_err(|error| error.to_string())?,
        };
        if len == 0 {
            return Err("the server closed the connection".into());
        }
        self.filled += len;
        let inbox = std::mem::take(&mut self.inbox);
        let mut rest = &inbox[..self.filled];
        let mut outcome = Ok(());
        while let Some((head, behind)) = rest.split_at_checked(HEAD_LEN) {
            let len = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            let Some((payload, behind)) = behind.split_at_checked(len) else { break };
            let id = u32::from_be_bytes([head[5] & 0x7F, head[6], head[7], head[8]]);
            outcome = outcome.and_then(|()| self.take(head[3], head[4], id, payload));
            rest = behind;
        }
        let (from, kept) = (self.filled - rest.len(), rest.len());
        self.inbox = inbox;
        self.inbox.copy_within(from..self.filled, 0);
        self.filled = kept;
        outcome.map(|()| true)
    }

    fn take(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8]) -> Result<(), String> {
        let index = (id as usize).wrapping_sub(1) / 2;
        let number = |bytes: &[u8]| bytes.iter().fold(0_i64, |number, byte| number << 8 | i64::from(*byte));
        match kind {
            frame::DATA if self.is_hostile => {}
            frame::DATA => {
                let tunnel = self.tunnels.get_mut(index).ok_or("DATA on a stream that is not")?;
                let before = tunnel.received;
                tunnel.received += payload.len() as u64;
                let owed = tunnel.allowed / self.frame_len * self.answer_len;
                if flags != 0 || tunnel.received > owed {
                    return Err(format!("DATA with flags {flags:#x}, {} bytes of {owed}", tunnel.received));
                }
                if !matches(&self.answers, before, payload) {
                    return Err(format!("a wrong answer within {} bytes", payload.len()));
                }
                self.back[index] += tunnel.received / self.answer_len - before / self.answer_len;
                self.window_used += payload.len() as u32;
                if self.window_used > WINDOW_USED_MAX {
                    let used = std::mem::take(&mut self.window_used).to_be_bytes();
                    self.put(frame::WINDOW_UPDATE, 0, 0, &used);
                }
            }
            frame::HEADERS => {
                // RFC 7541 §6.3: changes of the table's size may come first; §6.1: 0x88 is `:status: 200`.
                let status = payload.iter().find(|byte| **byte & 0xE0 != 0x20);
                if status != Some(&0x88) || flags & 1 != 0 {
                    return Err(format!("stream {id} was refused: {payload:x?}"));
                }
                self.tunnels.get_mut(index).ok_or("HEADERS on a stream that is not")?.open = true;
            }
            frame::SETTINGS if flags & 1 == 0 => {
                for setting in payload.chunks_exact(6) {
                    let value = number(&setting[2..]);
                    match setting[1] {
                        4 => {
                            for tunnel in &mut self.tunnels {
                                tunnel.window += value - self.window_initial;
                            }
                            self.window_initial = value;
                        }
                        8 => self.takes_connect = value == 1,
                        _ => {}
                    }
                }
                self.put(frame::SETTINGS, 1, 0, &[]);
            }
            frame::PING if flags & 1 == 0 => self.put(frame::PING, 1, 0, payload),
            frame::WINDOW_UPDATE if id == 0 => self.window += number(payload),
            frame::WINDOW_UPDATE => {
                self.tunnels.get_mut(index).ok_or("a window of a stream that is not")?.window +=
                    number(payload);
            }
            frame::RST_STREAM | frame::GOAWAY => {
                return Err(format!("frame {kind} on stream {id}: {}", String::from_utf8_lossy(payload)));
            }
            _ => {}
        }
        Ok(())
    }
}

/// A frame header (RFC 9113 §4.1). The index `usize::MAX` is the connection.
fn head(out: &mut Vec<u8>, len: usize, kind: u8, flags: u8, index: usize) {
    let id = if index == usize::MAX { 0 } else { 2 * index as u32 + 1 };
    out.extend_from_slice(&(len as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&id.to_be_bytes());
}

/// RFC 8441 §4: the request, as literals without indexing.
fn fields(address: SocketAddr, with_deflate: bool) -> Vec<u8> {
    let mut block = Vec::new();
    let authority = address.to_string();
    let deflate = with_deflate.then_some(("sec-websocket-extensions", "permessage-deflate"));
    let fields = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":path", "/echo"),
        (":authority", &authority),
        ("sec-websocket-version", "13"),
    ];
    for (name, value) in fields.into_iter().chain(deflate) {
        block.push(0);
        for text in [name, value] {
            // RFC 7541 §5.2: all of them are shorter than 127 bytes.
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}
