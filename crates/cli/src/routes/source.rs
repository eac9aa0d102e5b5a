//! `/source`: generated messages, over a WebSocket or as the body of a response.

use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use wireloom::{
    Body, BodySender, CloseCode, HttpError, Request, Response, Sender, WebSocket, WebSocketError,
};

use super::figures::FigureBatch;

/// The longest message, in bytes.
const SIZE_MAX: usize = 16 << 20;

/// Bytes of messages that are sent in one write.
const BATCH_LEN: usize = 64 << 10;

/// The messages that a client asks for.
#[derive(Clone, Copy)]
pub(super) struct Source {
    size: usize,
    /// Messages per second; 0 means as fast as the client reads.
    rate: u32,
    /// The number of messages; 0 means without end.
    count: u64,
}

impl Source {
    /// `?size=&rate=&count=`; `None` when one of them is not a number, or too large.
    pub(super) fn from_query(request: &Request) -> Option<Self> {
        fn number<T: std::str::FromStr>(request: &Request, name: &str, default: T) -> Option<T> {
            request.query_param(name).map_or(Some(default), |value| value.parse().ok())
        }
        let size = number(request, "size", 1024)?;
        let source = Self { size, rate: number(request, "rate", 0)?, count: number(request, "count", 0)? };
        (size <= SIZE_MAX).then_some(source)
    }

    /// Whether a response can have the messages as its body, which has no bounds between them.
    pub(super) fn has_content(self) -> bool {
        self.size > 0
    }

    /// A message. Long messages are slices of one shared buffer.
    fn message(self) -> Bytes {
        static LONGEST: OnceLock<Bytes> = OnceLock::new();
        let make = |size| (0..size).map(|at| at as u8).collect();
        if self.size <= BATCH_LEN {
            return make(self.size);
        }
        LONGEST.get_or_init(|| make(SIZE_MAX)).slice(..self.size)
    }

    /// Sends over a WebSocket.
    ///
    /// # Errors
    /// The error that ended the WebSocket.
    pub(super) async fn run(
        self,
        socket: &mut WebSocket,
        mut batch: FigureBatch<'_>,
    ) -> Result<(), WebSocketError> {
        let (sender, receiver) = socket.halves();
        // Messages are dropped; receiving answers pings and handles the Close frame.
        let receive = async {
            while receiver.recv().await?.is_some() {}
            Ok(())
        };
        let send = async {
            self.send(sender, &mut batch).await?;
            sender.close(CloseCode::NORMAL, "").await
        };
        let (received, sent) = tokio::join!(receive, send);
        match sent {
            Err(WebSocketError::Closed) | Ok(()) => received,
            sent => sent,
        }
    }

    async fn send(self, sender: &mut Sender, batch: &mut FigureBatch<'_>) -> Result<(), WebSocketError> {
        let message = self.message();
        let mut pace = Pace::new(self);
        while let Some(due) = pace.due().await {
            for _ in 0..due {
                sender.feed(message.clone()).await?;
            }
            sender.flush().await?;
            batch.sent(due, self.size * due as usize);
            batch.flush();
        }
        Ok(())
    }

    /// A response with the messages, back to back, as its body.
    pub(super) fn response(self) -> Response {
        let (sender, body) = Body::channel();
        tokio::spawn(async move {
            // The client may disconnect before it has read everything.
            let _gone = self.fill(sender).await;
        });
        Response::new(200).with_body("application/octet-stream", body)
    }

    async fn fill(self, mut sender: BodySender) -> Result<(), HttpError> {
        let mut pace = Pace::new(self);
        let message = self.message();
        let batch = if pace.batch == 1 { message } else { message.repeat(pace.batch as usize).into() };
        while let Some(due) = pace.due().await {
            sender.send(batch.slice(..due as usize * self.size)).await?;
        }
        Ok(())
    }
}

/// When messages are due.
struct Pace {
    source: Source,
    begin: Instant,
    sent: u64,
    /// The maximum number of messages that are due at once.
    batch: u64,
}

impl Pace {
    fn new(source: Source) -> Self {
        let batch = (BATCH_LEN / source.size.max(1)).max(1) as u64;
        Self { source, begin: Instant::now(), sent: 0, batch }
    }

    /// Waits until messages are due, and returns how many; `None` after the last one.
    async fn due(&mut self) -> Option<u64> {
        let Source { rate, count, .. } = self.source;
        let left = if count == 0 { u64::MAX } else { count - self.sent };
        if left == 0 {
            return None;
        }
        let mut due = self.batch;
        if rate > 0 {
            let next = Duration::from_secs_f64(self.sent as f64 / f64::from(rate));
            tokio::time::sleep_until(self.begin + next).await;
            let by_now = (self.begin.elapsed().as_secs_f64() * f64::from(rate)) as u64 + 1;
            due = by_now.saturating_sub(self.sent).clamp(1, self.batch);
        }
        let due = due.min(left);
        self.sent += due;
        Some(due)
    }
}
