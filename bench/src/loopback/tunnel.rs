//! The server's end of a WebSocket over HTTP/2: extended CONNECT (RFC 8441), DATA within the client's windows. The
//! frames are written by hand and share no code with any contestant.

use std::collections::VecDeque;
use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;

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

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// RFC 9113 §6.5.2: the length that every peer must accept.
const FRAME_LEN_MAX: usize = 16_384;
/// Frames are written together up to this length.
const BATCH_LEN: usize = 256 << 10;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// The server's end of the one stream of a connection.
pub(super) struct Tunnel {
    reader: BufReader<TcpStream>,
    stream_id: u32,
    /// The client's flow-control windows in bytes: of the connection, of the stream, and the initial one of a stream.
    connection_window: i64,
    stream_window: i64,
    initial_window: i64,
    inbox: VecDeque<u8>,
    out: Vec<u8>,
}

impl Tunnel {
    /// Waits for the client's preface and its request, and answers with 200.
    pub(super) fn accept(stream: TcpStream) -> io::Result<Self> {
        let mut tunnel = Self {
            reader: BufReader::new(stream),
            stream_id: 0,
            connection_window: 65_535,
            stream_window: 65_535,
            initial_window: 65_535,
            inbox: VecDeque::new(),
            out: Vec::with_capacity(BATCH_LEN + FRAME_LEN_MAX),
        };
        let mut preface = [0; PREFACE.len()];
        tunnel.reader.read_exact(&mut preface)?;
        if preface != PREFACE {
            return Err(io::Error::other("not HTTP/2"));
        }
        // RFC 8441 §3: ENABLE_CONNECT_PROTOCOL.
        tunnel.put(frame::SETTINGS, 0, 0, &[0, 8, 0, 0, 0, 1]);
        tunnel.flush()?;
        while tunnel.stream_id == 0 {
            tunnel.read_frame()?;
        }
        // RFC 7541 §6.1: 0x88 is `:status: 200`.
        tunnel.put(frame::HEADERS, END_HEADERS, tunnel.stream_id, &[0x88]);
        tunnel.flush()?;
        Ok(tunnel)
    }

    /// Sends `bytes` as the windows allow.
    pub(super) fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let window = self.connection_window.min(self.stream_window).max(0) as usize;
            let len = bytes.len().min(window).min(FRAME_LEN_MAX);
            if len == 0 {
                self.flush()?;
                self.read_frame()?;
                continue;
            }
            let (data, rest) = bytes.split_at(len);
            self.put(frame::DATA, 0, self.stream_id, data);
            self.connection_window -= len as i64;
            self.stream_window -= len as i64;
            bytes = rest;
            if self.out.len() >= BATCH_LEN {
                self.flush()?;
            }
        }
        self.flush()
    }

    /// Reads the next bytes that the client sent on the stream.
    pub(super) fn read_exact(&mut self, into: &mut [u8]) -> io::Result<()> {
        while self.inbox.len() < into.len() {
            self.read_frame()?;
        }
        let len = into.len();
        let read = self.inbox.drain(..len);
        into.iter_mut().zip(read).for_each(|(byte, read)| *byte = read);
        Ok(())
    }

    fn put(&mut self, kind: u8, flags: u8, stream_id: u32, payload: &[u8]) {
        self.out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
        self.out.extend_from_slice(&[kind, flags]);
        self.out.extend_from_slice(&stream_id.to_be_bytes());
        self.out.extend_from_slice(payload);
    }

    fn flush(&mut self) -> io::Result<()> {
        self.reader.get_mut().write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Reads one frame; answers are flushed at once.
    fn read_frame(&mut self) -> io::Result<()> {
        let mut head = [0; 9];
        self.reader.read_exact(&mut head)?;
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream_id = u32::from_be_bytes([head[5] & 0x7F, head[6], head[7], head[8]]);
        let mut payload = vec![0; len];
        self.reader.read_exact(&mut payload)?;
        let number = |bytes: &[u8]| bytes.iter().fold(0_i64, |number, byte| number << 8 | i64::from(*byte));
        match head[3] {
            frame::DATA => self.inbox.extend(payload),
            frame::HEADERS => self.stream_id = stream_id,
            frame::SETTINGS if head[4] & ACK == 0 => {
                for setting in payload.chunks_exact(6) {
                    // RFC 9113 §6.9.2: INITIAL_WINDOW_SIZE also changes the windows of open streams.
                    if setting[1] == 4 {
                        let initial = number(&setting[2..]);
                        self.stream_window += initial - self.initial_window;
                        self.initial_window = initial;
                    }
                }
                self.put(frame::SETTINGS, ACK, 0, &[]);
            }
            frame::PING if head[4] & ACK == 0 => self.put(frame::PING, ACK, 0, &payload),
            frame::WINDOW_UPDATE if stream_id == 0 => self.connection_window += number(&payload),
            frame::WINDOW_UPDATE => self.stream_window += number(&payload),
            frame::RST_STREAM | frame::GOAWAY => {
                return Err(io::Error::other(format!("frame {} of the client", head[3])));
            }
            _ => {}
        }
        if matches!(head[3], frame::SETTINGS | frame::PING) { self.flush() } else { Ok(()) }
    }
}
