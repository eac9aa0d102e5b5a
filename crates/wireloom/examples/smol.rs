//! An echo server on smol, without tokio: a driver of its own over the protocol core. The core decides what is sent and when; this file
//! has the socket, the clock and the buffer.

use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use smol::Timer;
use smol::future::{or, poll_once};
use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};
use smol::net::{TcpListener, TcpStream};
use wireloom::wireloom_ws::handshake::server::{Progress, ServerHandshake};
use wireloom::wireloom_ws::handshake::{Acceptance, HandshakeLimits};
use wireloom::wireloom_ws::{Config, Connection, Event, Keepalive, Transport};

/// How long the opening handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The length of the read buffer of a connection.
const BUFFER_LEN: usize = 16 << 10;

/// Slices of one write.
const SLICES: usize = 16;

/// Accepts connections, and echoes the messages of each.
pub(crate) async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let (stream, peer) = listener.accept().await?;
        let serving = async move {
            if let Err(error) = serve_connection(stream).await {
                eprintln!("{peer}: {error}");
            }
        };
        smol::spawn(serving).detach();
    }
}

async fn serve_connection(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut driver = Driver::new(stream);
    let timeout = async {
        Timer::after(HANDSHAKE_TIMEOUT).await;
        Err(io::ErrorKind::TimedOut.into())
    };
    match or(driver.accept(), timeout).await? {
        true => driver.run().await,
        // The request was refused.
        false => Ok(()),
    }
}

/// The result of a read.
enum Read {
    Bytes(usize),
    End,
    /// A deadline of the core has passed.
    Timeout,
}

/// A connection: the core, and what it has none of.
struct Driver {
    core: Connection,
    stream: TcpStream,
    epoch: Instant,
    /// `buffer[at..filled]` has arrived and is not decoded; `0 <= at <= filled <= BUFFER_LEN`.
    buffer: Box<[u8]>,
    at: usize,
    filled: usize,
}

impl Driver {
    fn new(stream: TcpStream) -> Self {
        let mut config = Config::default();
        config.keepalive =
            Some(Keepalive { ping_after: Duration::from_secs(20), dead_after: Duration::from_secs(60) });
        let core = Connection::server(config, None, Duration::ZERO);
        let buffer = vec![0; BUFFER_LEN].into();
        Self { core, stream, epoch: Instant::now(), buffer, at: 0, filled: 0 }
    }

    /// The opening handshake. Bytes behind the request stay in the buffer. False if the request was refused.
    async fn accept(&mut self) -> io::Result<bool> {
        let mut handshake = ServerHandshake::new(HandshakeLimits::default());
        let mut answer = Vec::new();
        let is_accepted = loop {
            let len = self.stream.read(&mut self.buffer).await?;
            if len == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match handshake.handle_input(&self.buffer[..len]) {
                Ok(Progress::Incomplete) => {}
                Ok(Progress::Complete { consumed }) => {
                    (self.at, self.filled) = (consumed, len);
                    let accepted = handshake.accept(&Acceptance::default(), &mut answer);
                    accepted.map_err(|error| io::Error::other(error.to_string()))?;
                    break true;
                }
                Err(error) => {
                    error.refusal().write_to(&mut answer);
                    break false;
                }
            }
        };
        self.stream.write_all(&answer).await?;
        if !is_accepted {
            // Until the client has closed: a socket that is closed with unread bytes is reset, and the client loses the answer.
            self.stream.shutdown(std::net::Shutdown::Write)?;
            while self.stream.read(&mut self.buffer).await? > 0 {}
        }
        Ok(is_accepted)
    }

    /// Runs the connection to its end.
    async fn run(&mut self) -> io::Result<()> {
        let mut is_shut_down = false;
        loop {
            self.echo_buffered();
            self.write_all().await?;
            if self.core.transport() == Transport::Close {
                self.read_trailing().await;
            }
            match self.core.transport() {
                Transport::Open => {}
                Transport::ShutdownWrite => {
                    if !std::mem::replace(&mut is_shut_down, true) {
                        self.stream.shutdown(std::net::Shutdown::Write)?;
                    }
                }
                Transport::Close => return Ok(()),
            }
            match self.read().await? {
                Read::Bytes(len) => (self.at, self.filled) = (0, len),
                Read::End => self.core.handle_eof(),
                Read::Timeout => self.core.handle_timeout(self.epoch.elapsed()),
            }
        }
    }

    /// Bytes behind the peer's Close frame are discarded: a socket that is closed with unread bytes, or receives some after that, is reset,
    /// and the peer loses what it has not received. One that may send some later counts as one that has sent a byte.
    async fn read_trailing(&mut self) {
        let len = match poll_once(self.stream.read(&mut self.buffer)).await {
            Some(read) => read.unwrap_or(0),
            None => 1,
        };
        // No event follows a Close frame.
        let _ = self.core.handle_input(self.epoch.elapsed(), &mut self.buffer[..len]);
    }

    /// Decodes everything that has arrived, and queues the answers: they leave in one write.
    fn echo_buffered(&mut self) {
        let now = self.epoch.elapsed();
        loop {
            let input = &mut self.buffer[self.at..self.filled];
            // After an error the core has queued the Close frame, and `transport` ends the loop of `run`.
            let Ok((used, event)) = self.core.handle_input(now, input) else { break };
            self.at += used;
            // An event borrows the core's input. What is echoed is copied into the queue.
            let message = match event {
                Some(Event::Text(text)) => Ok(String::from(&*text)),
                Some(Event::Binary(data)) => Err(data.to_vec()),
                Some(_) => continue,
                None => break,
            };
            // Fails when the closing handshake has begun: then nothing more is sent.
            let _ = match message {
                Ok(text) => self.core.send_text(&text),
                Err(data) => self.core.send_binary(&data),
            };
        }
    }

    /// Writes all output of the core.
    async fn write_all(&mut self) -> io::Result<()> {
        loop {
            let mut slices: [&[u8]; SLICES] = [&[]; SLICES];
            let count = self.core.poll_transmit(&mut slices);
            if count == 0 {
                return Ok(());
            }
            let written = self.stream.write_vectored(&slices.map(IoSlice::new)[..count]).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.core.transmitted(written);
        }
    }

    /// Waits for bytes, or for the next deadline of the core.
    async fn read(&mut self) -> io::Result<Read> {
        let deadline = self.core.poll_timeout();
        let reading = async {
            Ok(match self.stream.read(&mut self.buffer).await? {
                0 => Read::End,
                len => Read::Bytes(len),
            })
        };
        let expiring = async {
            match deadline {
                Some(deadline) => drop(Timer::at(self.epoch + deadline).await),
                None => smol::future::pending().await,
            }
            Ok(Read::Timeout)
        };
        // Bytes that have arrived by the deadline are read before it expires.
        or(reading, expiring).await
    }
}

#[allow(dead_code, reason = "not called by the test that includes this file")]
fn main() -> io::Result<()> {
    smol::block_on(async {
        let listener = TcpListener::bind("127.0.0.1:8080").await?;
        println!("ws://{}/", listener.local_addr()?);
        serve(listener).await
    })
}
