//! A server that pours events into one client and learns, by a ping behind them, when it has read them all.

use bytes::Bytes;
use rustix::event::{self, PollFd, PollFlags};
use rustix::time::Timespec;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use wireloom_testing::frame::Frame;
use wireloom_ws::handshake::accept_key;

/// What has not come by then will not.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is poured.
#[derive(Clone)]
pub(crate) struct Events {
    /// One frame an event, back to back.
    frames: Bytes,
    pub(crate) count: u64,
    /// Bytes of the events alone.
    pub(crate) bytes: u64,
}

impl Events {
    pub(crate) fn new<'a>(events: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let (mut frames, mut count, mut bytes) = (Vec::new(), 0, 0);
        for event in events {
            Frame::binary(event).write(&mut frames);
            count += 1;
            bytes += event.len() as u64;
        }
        Self { frames: frames.into(), count, bytes }
    }
}

/// Where a client is awaited.
pub(crate) struct Spring {
    listener: TcpListener,
}

impl Spring {
    /// # Errors
    /// There is no listening here.
    pub(crate) fn new() -> Result<Self, String> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(said)?;
        Ok(Self { listener })
    }

    /// # Errors
    /// The operating system does not say.
    pub(crate) fn address(&self) -> Result<SocketAddr, String> {
        self.listener.local_addr().map_err(said)
    }

    /// The client that comes, behind its handshake; `is_coming` says whether one still may.
    ///
    /// # Errors
    /// None comes, or it asks for something else.
    pub(crate) fn accept(&self, mut is_coming: impl FnMut() -> bool) -> Result<Firehose, String> {
        let start = Instant::now();
        let tick = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        while event::poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&tick)) == Ok(0) {
            if start.elapsed() > PATIENCE || !is_coming() {
                return Err("did not connect".into());
            }
        }
        let (stream, _) = self.listener.accept().map_err(said)?;
        stream.set_nodelay(true).map_err(said)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(said)?;
        let mut reader = BufReader::new(stream);
        let mut key = None;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).map_err(said)? == 0 {
                return Err("closed during the handshake".into());
            }
            let Some((name, value)) = line.split_once(':') else {
                match line.trim() {
                    "" => break,
                    _ => continue,
                }
            };
            if name.eq_ignore_ascii_case("sec-websocket-key") {
                key = Some(accept_key(value.trim().as_bytes()));
            }
        }
        let key = key.ok_or("no key in the handshake")?;
        let mut firehose = Firehose { reader, poured: 0 };
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Accept: {}\r\n\r\n",
            String::from_utf8_lossy(&key)
        );
        firehose.write(answer.as_bytes())?;
        Ok(firehose)
    }
}

/// A connection to one client.
pub(crate) struct Firehose {
    reader: BufReader<TcpStream>,
    /// How often the events went out.
    pub(crate) poured: u64,
}

impl Firehose {
    /// Pours all events again and again for so long, once at least, and waits until they have been read. Returns their number.
    ///
    /// # Errors
    /// The client is gone, or does not answer the ping.
    pub(crate) fn pour(&mut self, events: &Events, time: Duration) -> Result<u64, String> {
        let (start, mut times) = (Instant::now(), 0);
        while times == 0 || start.elapsed() < time {
            self.write(&events.frames)?;
            times += 1;
        }
        self.poured += times;
        let mut ping = Vec::new();
        let mark = self.poured.to_be_bytes();
        Frame::ping(mark).write(&mut ping);
        self.write(&ping)?;
        while self.control()? != (10, mark.to_vec()) {}
        Ok(times * events.count)
    }

    /// Closes, and waits for the client's answer.
    ///
    /// # Errors
    /// It gives none.
    pub(crate) fn close(mut self) -> Result<u64, String> {
        let mut close = Vec::new();
        Frame::close(1000, "").write(&mut close);
        self.write(&close)?;
        while self.control()?.0 != 8 {}
        Ok(self.poured)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.reader.get_mut().write_all(bytes).map_err(said)
    }

    /// The next frame of the client: its opcode and its payload, unmasked. Consumers send nothing but control frames.
    fn control(&mut self) -> Result<(u8, Vec<u8>), String> {
        // RFC 6455 §5.2: at most 125 bytes, and from a client masked: two bytes, the key, the payload.
        let mut head = [0; 6];
        self.reader.read_exact(&mut head).map_err(said)?;
        if head[1] & 0x80 == 0 || head[1] & 0x7F > 125 {
            return Err("a frame that no consumer sends".into());
        }
        let mut payload = vec![0; usize::from(head[1] & 0x7F)];
        self.reader.read_exact(&mut payload).map_err(said)?;
        for (index, byte) in payload.iter_mut().enumerate() {
            *byte ^= head[2 + index % 4];
        }
        Ok((head[0] & 0x0F, payload))
    }
}

fn said(error: std::io::Error) -> String {
    error.to_string()
}
