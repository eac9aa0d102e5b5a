//! Joins a WebSocket to a stream of bytes in both directions, until one of them ends. `wireloom help listen` has the table of what
//! each end leads to.
//!
//! Layers: `framing` → `stream`.

mod framing;
mod stream;

use std::io;
use std::pin::pin;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use wireloom::wireloom_ws::{Config, Delivery, Initiator};
use wireloom::{CloseCode, Receiver, Sender, WebSocket, WebSocketError};

use crate::args::Framing;
use crate::exit::Exit;
use framing::{Decoder, Outgoing};
use stream::{Program, Reader, TERMINATION_TIMEOUT, Writer};

pub(super) use stream::Stream;

/// RFC 6455 §5.5.1: in bytes.
const REASON_LEN_MAX: usize = 123;

/// How often a peer is pinged while the stream does not accept what it has sent: then its Close frame, and the end of its connection,
/// may be behind what is not read.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// How to join.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joining {
    pub(super) framing: Framing,
    /// The longest line or prefixed message that is read, in bytes.
    pub(super) len_max: usize,
    /// How long the stream may take to end once the WebSocket is closed, and the peer to answer Close.
    pub(super) grace: Duration,
}

/// The side that ended first, and how.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The stream, regularly.
    Stream,
    /// The stream, or the program: why.
    Failed(String),
    /// The peer has closed with this code.
    Closed(CloseCode),
    /// The WebSocket broke: why.
    Broken(String),
    /// A signal.
    Interrupted,
}

impl Ended {
    /// The exit code where there is one WebSocket.
    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::Stream | Self::Interrupted => Exit::Success,
            Self::Closed(CloseCode::NORMAL | CloseCode::GOING_AWAY | CloseCode::NO_STATUS) => Exit::Success,
            Self::Closed(_) => Exit::Refused,
            Self::Failed(_) | Self::Broken(_) => Exit::Broken,
        }
    }
}

impl Joining {
    /// Configures the core of a WebSocket that is to be joined.
    pub(super) fn configure(&self, core: &mut Config) {
        core.limits.message_len_max = self.len_max as u64;
        core.limits.frame_len_max = self.len_max as u64;
        core.close_timeout = self.grace;
        if self.framing != Framing::Prefixed {
            core.delivery = Delivery::Chunks;
        }
    }

    /// How long [`run`](Self::run) takes at most once it is interrupted.
    pub(super) fn end_timeout(&self) -> Duration {
        // The peer answers Close; the program ends, or is terminated and killed.
        2 * self.grace + TERMINATION_TIMEOUT + Duration::from_secs(1)
    }

    /// Joins until both have ended. When `interrupted` is ready, the WebSocket is closed with 1001.
    pub(super) async fn run(
        &self,
        socket: WebSocket,
        stream: Stream,
        interrupted: impl Future<Output = ()>,
    ) -> Ended {
        let (sender, receiver) = socket.split();
        let Stream { reader, mut writer, mut program } = stream;
        let mut decoder = Decoder::new(reader, self.framing, self.len_max);
        // Why this end has closed.
        let cause = OnceLock::new();
        let (unwritable, is_unwritable) = oneshot::channel();
        let ended = {
            let mut inbound = pin!(self.inbound(receiver, sender.clone(), &mut writer, unwritable));
            let outbound =
                self.outbound(&mut decoder, sender, program.as_mut(), is_unwritable, interrupted, &cause);
            tokio::select! {
                ended = &mut inbound => ended,
                // Close was sent. The peer's own follows within the core's timeout; a stream that takes nothing does not delay it.
                deadline = outbound => timeout_at(deadline, &mut inbound).await.ok().flatten(),
            }
        };
        // A server that shuts down closes its WebSockets itself.
        let ended = cause.into_inner().or(ended).unwrap_or(Ended::Interrupted);
        if let Ended::Broken(_) | Ended::Failed(_) = ended {
            writer.reset();
        } else {
            let _ = timeout(self.grace, writer.end()).await;
        }
        match program {
            Some(program) => self.finish(program, writer, decoder, ended).await,
            None => {
                if matches!(ended, Ended::Closed(_)) && writer.is_socket() {
                    // Closing a socket with unread bytes would reset it, and lose what its peer has not read.
                    let _ = timeout(self.grace, decoder.discard()).await;
                }
                ended
            }
        }
    }

    /// Sends what the stream holds; sets the cause and sends Close. Returns when the peer must have answered it. Never ready when the
    /// WebSocket has ended before: `inbound` says how.
    async fn outbound(
        &self,
        decoder: &mut Decoder<Reader>,
        mut sender: Sender,
        program: Option<&mut Program>,
        is_unwritable: oneshot::Receiver<Ended>,
        interrupted: impl Future<Output = ()>,
        cause: &OnceLock<Ended>,
    ) -> Instant {
        let ended = tokio::select! {
            sent = send_all(decoder, &mut sender) => match sent {
                Ok(()) => Ended::Stream,
                Err(Failure::Stream(error)) => Ended::Failed(error.to_string()),
                Err(Failure::WebSocket) => return std::future::pending().await,
            },
            Ok(why) = is_unwritable => why,
            // A flood of messages, which uses up the budget of the task, does not delay it.
            () = tokio::task::unconstrained(interrupted) => Ended::Interrupted,
        };
        let ended = match (ended, program) {
            (Ended::Stream, Some(program)) => match program.wait(Instant::now() + self.grace).await {
                Ok(()) => Ended::Stream,
                Err(failure) => Ended::Failed(failure.0),
            },
            (ended, _) => ended,
        };
        let (code, reason) = match &ended {
            Ended::Failed(why) => (CloseCode::INTERNAL_ERROR, why.clone()),
            Ended::Interrupted => (CloseCode::GOING_AWAY, String::new()),
            _ => (CloseCode::NORMAL, String::new()),
        };
        let _ = cause.set(ended);
        let deadline = Instant::now() + self.grace;
        let close = sender.close(code, &reason[..reason.floor_char_boundary(REASON_LEN_MAX)]);
        // A peer that reads nothing does not delay the end.
        let _ = timeout_at(deadline, close).await;
        deadline
    }

    /// Writes what arrives, until the WebSocket has ended; `prober` finds out while nothing can be written. `None` if this end has closed
    /// it.
    async fn inbound(
        &self,
        mut receiver: Receiver,
        mut prober: Sender,
        writer: &mut Writer,
        unwritable: oneshot::Sender<Ended>,
    ) -> Option<Ended> {
        // A program need not read its input, but may go on.
        let mut unwritable = Some(unwritable).filter(|_| !matches!(writer, Writer::Program(_)));
        let mut is_writable = true;
        loop {
            match receiver.recv().await {
                Ok(Some(message)) => {
                    // Messages that cannot be written are discarded.
                    if !is_writable {
                        continue;
                    }
                    let mut writing = pin!(writer.write(self.framing, &message));
                    let written = tokio::select! {
                        biased;
                        written = &mut writing => written,
                        error = ping_until_lost(&mut prober) => match timeout(self.grace, writing).await {
                            Ok(written) => written,
                            Err(_) => return Some(Ended::Broken(error.to_string())),
                        },
                    };
                    let Err(error) = written else { continue };
                    is_writable = false;
                    if let Some(unwritable) = unwritable.take() {
                        let _ = unwritable.send(match error.kind() {
                            // `| head` has read enough.
                            io::ErrorKind::BrokenPipe => Ended::Stream,
                            _ => Ended::Failed(error.to_string()),
                        });
                    }
                }
                Ok(None) => break,
                Err(error) => return Some(Ended::Broken(error.to_string())),
            }
        }
        match receiver.end() {
            Some(end) if end.by == Initiator::Peer => Some(Ended::Closed(end.code())),
            Some(_) => None,
            None => Some(Ended::Broken(WebSocketError::Closed.to_string())),
        }
    }

    /// Waits for the end of a program whose WebSocket is closed, and discards what it prints.
    async fn finish(
        &self,
        mut program: Program,
        mut writer: Writer,
        mut decoder: Decoder<Reader>,
        ended: Ended,
    ) -> Ended {
        writer.end().await;
        let mut ending = pin!(program.end(Instant::now() + self.grace));
        let waited = tokio::select! {
            waited = &mut ending => waited,
            _ = decoder.discard() => ending.await,
        };
        match (waited, ended) {
            // The program was asked to end, and may report that as a failure.
            (_, ended @ (Ended::Interrupted | Ended::Failed(_) | Ended::Broken(_))) => ended,
            (Err(failure), Ended::Stream) => Ended::Failed(failure.0),
            (_, ended) => ended,
        }
    }
}

/// Returns when the WebSocket has ended, although nothing is received: then a ping cannot be sent.
async fn ping_until_lost(sender: &mut Sender) -> WebSocketError {
    loop {
        sleep(PING_INTERVAL).await;
        if let Err(error) = sender.ping(&[]).await {
            return error;
        }
    }
}

/// Why not everything was sent.
enum Failure {
    Stream(io::Error),
    WebSocket,
}

async fn send_all(decoder: &mut Decoder<Reader>, sender: &mut Sender) -> Result<(), Failure> {
    while let Some(message) = decoder.next().await.map_err(Failure::Stream)? {
        let sent = match message {
            Outgoing::Text(text) => sender.send(&*text).await,
            Outgoing::Binary(bytes) => sender.send(bytes).await,
        };
        sent.map_err(|_| Failure::WebSocket)?;
    }
    Ok(())
}
