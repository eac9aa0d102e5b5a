//! The load generator for members: many clients that join one channel at once, leave it, and return to it.

use super::opening::Opening;
use super::protocol::{Joining, Position, Protocol, Step};
use super::reading::Messages;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use wireloom_testing::frame::Frame;

/// The number of concurrent handshakes: more would overflow the backlog of a listener.
const AT_ONCE: usize = 256;
/// How long a server may take for any answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Clients of one channel of a server.
pub(crate) struct Members {
    runtime: Runtime,
    node: SocketAddr,
    protocol: Protocol,
    channel: &'static str,
    members: Vec<Member>,
}

/// A client that has joined.
struct Member {
    stream: TcpStream,
    messages: Messages,
    joining: Joining,
}

impl Members {
    /// No members yet.
    ///
    /// # Errors
    /// The runtime cannot be created.
    pub(crate) fn new(node: SocketAddr, protocol: Protocol, channel: &'static str) -> Result<Self, String> {
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
        Ok(Self { runtime, node, protocol, channel, members: Vec::new() })
    }

    /// Adds `count` members as fast as the server accepts them; returns the time that it took.
    ///
    /// # Errors
    /// One could not join.
    pub(crate) fn join(&mut self, count: usize) -> Result<Duration, String> {
        self.open(std::iter::repeat_n(None, count).collect())
    }

    /// Disconnects all members without a closing handshake; returns the position of each.
    pub(crate) fn disconnect(&mut self) -> Vec<Position> {
        let position = |member: Member| {
            // A reset, because a port in TIME_WAIT could not be used again.
            _ = rustix::net::sockopt::set_socket_linger(&member.stream, Some(Duration::ZERO));
            member.joining.position()
        };
        self.members.drain(..).map(position).collect()
    }

    /// Reconnects from these positions, each of which has missed `missed` publications; returns the time that it took.
    ///
    /// # Errors
    /// One could not reconnect, or did not recover everything.
    pub(crate) fn recover(&mut self, positions: Vec<Position>, missed: usize) -> Result<Duration, String> {
        self.open(positions.into_iter().map(|position| Some((position, missed))).collect())
    }

    fn open(&mut self, all: Vec<Option<(Position, usize)>>) -> Result<Duration, String> {
        let (node, protocol, channel) = (self.node, self.protocol, self.channel);
        let begun = Instant::now();
        let opened = self.runtime.block_on(async {
            let permits = Arc::new(Semaphore::new(AT_ONCE));
            let tasks: Vec<_> = all
                .into_iter()
                .map(|since| {
                    let permits = permits.clone();
                    tokio::spawn(async move {
                        let _permit = permits.acquire().await.map_err(|error| error.to_string())?;
                        Member::open(node, protocol, vec![channel.into()], since).await
                    })
                })
                .collect();
            let mut opened = Vec::with_capacity(tasks.len());
            for task in tasks {
                opened.push(task.await.map_err(|error| error.to_string())??);
            }
            Ok::<_, String>(opened)
        })?;
        let time = begun.elapsed();
        self.members.extend(opened);
        Ok(time)
    }

    /// Publishes `count` messages, and waits until every member has received all of them.
    ///
    /// # Errors
    /// A member did not receive it.
    pub(crate) fn publish(&mut self, count: usize) -> Result<(), String> {
        let (node, protocol, channel) = (self.node, self.protocol, self.channel);
        let members = &mut self.members;
        self.runtime.block_on(async {
            let mut publisher = Member::open(node, protocol, Vec::new(), None).await?;
            for n in 0..count {
                let data = format!("\"{:0>126}\"", n);
                let message = protocol.publication(channel, data.as_bytes(), n as u32 + 10);
                publisher.send(&message).await?;
            }
            for member in members {
                member.receive(count).await?;
            }
            // Without members nothing confirms the publications: wait.
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok(())
        })
    }
}

impl Member {
    async fn open(
        node: SocketAddr,
        protocol: Protocol,
        channels: Vec<String>,
        since: Option<(Position, usize)>,
    ) -> Result<Self, String> {
        let opened = tokio::time::timeout(TIMEOUT, Self::handshake(node, protocol, channels, since));
        opened.await.map_err(|_| "did not join within 60 s".to_owned())?
    }

    async fn handshake(
        node: SocketAddr,
        protocol: Protocol,
        channels: Vec<String>,
        since: Option<(Position, usize)>,
    ) -> Result<Self, String> {
        let mut stream = TcpStream::connect(node).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let opening = Opening { path: protocol.path(), subprotocol: protocol.subprotocol(), deflate: false };
        stream.write_all(&opening.request(node)).await.map_err(|error| error.to_string())?;
        let mut answer = Vec::new();
        let end = loop {
            if stream.read_buf(&mut answer).await.map_err(|error| error.to_string())? == 0 {
                return Err("closed during the handshake".into());
            }
            if let Some(at) = answer.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
        };
        opening.is_answer(&answer[..end])?;
        let mut joining = Joining::new(protocol, channels, since);
        let mut steps = vec![joining.start()];
        let mut messages = Messages::default();
        messages.read(&answer[end..], |message| {
            steps.push(joining.handle(message)?);
            Ok(())
        })?;
        let mut member = Self { stream, messages, joining };
        loop {
            for step in std::mem::take(&mut steps) {
                match step {
                    Step::Joined => return Ok(member),
                    Step::Send(message) => member.send_as(protocol, &message).await?,
                    Step::SendLast(message) => {
                        member.send_as(protocol, &message).await?;
                        return Ok(member);
                    }
                    Step::Wait => {}
                }
            }
            member.read(|step| steps.push(step)).await?;
        }
    }

    async fn send(&mut self, message: &[u8]) -> Result<(), String> {
        self.send_as(self.joining.protocol(), message).await
    }

    async fn send_as(&mut self, protocol: Protocol, message: &[u8]) -> Result<(), String> {
        let frame = if protocol.is_binary() { Frame::binary(message) } else { Frame::text(message) };
        let frame = frame.mask([7, 77, 17, 71]).bytes();
        self.stream.write_all(&frame).await.map_err(|error| error.to_string())
    }

    /// Handles the messages that have arrived, and returns the number of publications in them.
    async fn read(&mut self, mut each: impl FnMut(Step)) -> Result<usize, String> {
        let mut buffer = Vec::with_capacity(16 << 10);
        if self.stream.read_buf(&mut buffer).await.map_err(|error| error.to_string())? == 0 {
            return Err("the server closed a connection".into());
        }
        let mut publications = 0;
        self.messages.read(&buffer, |message| {
            publications += self.joining.protocol().publications(message);
            each(self.joining.handle(message)?);
            Ok(())
        })?;
        Ok(publications)
    }

    /// Reads until this many publications have arrived.
    async fn receive(&mut self, count: usize) -> Result<(), String> {
        let mut received = 0;
        while received < count {
            let read = tokio::time::timeout(TIMEOUT, self.read(drop)).await;
            received += read.map_err(|_| "nothing was delivered within 60 s")??;
        }
        Ok(())
    }
}
