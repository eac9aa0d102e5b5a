//! A server that sends events to one client, over HTTP/1.1 or HTTP/2, and waits for the answer to a ping that follows
//! them: then all have been read.

use super::tunnel::Tunnel;
use bytes::Bytes;
use rustix::event::{self, PollFd, PollFlags};
use rustix::time::Timespec;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use wireloom_testing::frame::Frame;
use wireloom_ws::handshake::accept_key;

/// A client that is silent for this long has failed.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The events, which are sent repeatedly.
#[derive(Clone)]
pub(crate) struct Events {
    /// One frame an event, back to back.
    frames: Bytes,
    count: u64,
}

impl Events {
    pub(crate) fn new<'a>(events: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let (mut frames, mut count) = (Vec::new(), 0);
        for event in events {
            Frame::binary(event).write(&mut frames);
            count += 1;
        }
        Self { frames: frames.into(), count }
    }
}

/// The version of HTTP that carries the WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Http1,
    Http2,
}

/// A listener for one client.
pub(crate) struct Listener {
    listener: TcpListener,
}

impl Listener {
    /// # Errors
    /// The operating system refuses.
    pub(crate) fn new() -> Result<Self, String> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(message)?;
        Ok(Self { listener })
    }

    /// # Errors
    /// The operating system does not report it.
    pub(crate) fn address(&self) -> Result<SocketAddr, String> {
        self.listener.local_addr().map_err(message)
    }

    /// Accepts the client and its handshake. `is_running` returns whether its process still runs.
    ///
    /// # Errors
    /// No client connects, or its request is not the expected one.
    pub(crate) fn accept(
        &self,
        carrier: Carrier,
        mut is_running: impl FnMut() -> bool,
    ) -> Result<Firehose, String> {
        let start = Instant::now();
        let tick = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        while event::poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&tick)) == Ok(0) {
            if start.elapsed() > TIMEOUT || !is_running() {
                return Err("did not connect".into());
            }
        }
        let (stream, _) = self.listener.accept().map_err(message)?;
        stream.set_nodelay(true).map_err(message)?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(message)?;
        let link = match carrier {
            Carrier::Http1 => Link::Http1(upgrade(stream)?),
            Carrier::Http2 => Link::Http2(Tunnel::accept(stream).map_err(message)?),
        };
        Ok(Firehose { link, sent: 0 })
    }
}

/// The opening handshake over HTTP/1.1.
fn upgrade(stream: TcpStream) -> Result<BufReader<TcpStream>, String> {
    let mut reader = BufReader::new(stream);
    let mut key = None;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).map_err(message)? == 0 {
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
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Accept: {}\r\n\r\n",
        String::from_utf8_lossy(&key)
    );
    reader.get_mut().write_all(answer.as_bytes()).map_err(message)?;
    Ok(reader)
}

/// The bytes of the WebSocket.
enum Link {
    Http1(BufReader<TcpStream>),
    Http2(Tunnel),
}

/// A connection to one client.
pub(crate) struct Firehose {
    link: Link,
    /// How many times all events were sent.
    sent: u64,
}

impl Firehose {
    /// Sends all events repeatedly for `time`, at least once, and waits until they have been read. Returns their
    /// number.
    ///
    /// # Errors
    /// The client has disconnected, or does not answer the ping.
    pub(crate) fn send(&mut self, events: &Events, time: Duration) -> Result<u64, String> {
        let (start, mut times) = (Instant::now(), 0);
        while times == 0 || start.elapsed() < time {
            self.write(&events.frames)?;
            times += 1;
        }
        self.sent += times;
        let mut ping = Vec::new();
        let mark = self.sent.to_be_bytes();
        Frame::ping(mark).write(&mut ping);
        self.write(&ping)?;
        while self.control()? != (10, mark.to_vec()) {}
        Ok(times * events.count)
    }

    /// Closes, waits for the client's answer, and returns how many times all events were sent.
    ///
    /// # Errors
    /// The Close cannot be sent.
    pub(crate) fn close(mut self) -> Result<u64, String> {
        let mut close = Vec::new();
        Frame::close(1000, "").write(&mut close);
        self.write(&close)?;
        // Some clients end the connection instead. The sums that they print show whether they have read everything.
        while self.control().is_ok_and(|(opcode, _)| opcode != 8) {}
        Ok(self.sent)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        match &mut self.link {
            Link::Http1(reader) => reader.get_mut().write_all(bytes).map_err(message),
            Link::Http2(tunnel) => tunnel.write_all(bytes).map_err(message),
        }
    }

    fn read_exact(&mut self, into: &mut [u8]) -> Result<(), String> {
        match &mut self.link {
            Link::Http1(reader) => reader.read_exact(into).map_err(message),
            Link::Http2(tunnel) => tunnel.read_exact(into).map_err(message),
        }
    }

    /// The next frame of the client: its opcode and its payload, unmasked. Consumers send nothing but control frames.
    fn control(&mut self) -> Result<(u8, Vec<u8>), String> {
        // RFC 6455 §5.2: at most 125 bytes, and from a client masked: two bytes, the key, the payload.
        let mut head = [0; 6];
        self.read_exact(&mut head)?;
        if head[1] & 0x80 == 0 || head[1] & 0x7F > 125 {
            return Err("a frame that no consumer sends".into());
        }
        let mut payload = vec![0; usize::from(head[1] & 0x7F)];
        self.read_exact(&mut payload)?;
        for (index, byte) in payload.iter_mut().enumerate() {
            *byte ^= head[2 + index % 4];
        }
        Ok((head[0] & 0x0F, payload))
    }
}

fn message(error: std::io::Error) -> String {
    error.to_string()
}
