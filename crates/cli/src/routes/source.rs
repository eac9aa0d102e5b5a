//! `/source`: messages as they are asked for, over a WebSocket or as the body of a response.

use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use wireloom::{Body, BodySender, CloseCode, Error, Request, Response, Sender, WebSocket};

/// The longest message, in bytes.
const SIZE_MAX: usize = 16 << 20;

/// As many messages as this many bytes hold are sent in one go.
const BATCH_LEN: usize = 64 << 10;

/// What is asked for.
#[derive(Clone, Copy)]
pub(super) struct Source {
    size: usize,
    /// Messages a second; 0 for as fast as they are taken.
    rate: u32,
    /// Messages; 0 for endless.
    count: u64,
}

impl Source {
    /// `?size=&rate=&count=`; `None` when one of them is no number, or too large.
    pub(super) fn from_query(request: &Request) -> Option<Self> {
        fn number<T: std::str::FromStr>(request: &Request, name: &str, default: T) -> Option<T> {
            request.query_param(name).map_or(Some(default), |value| value.parse().ok())
        }
        let size = number(request, "size", 1024)?;
        let source = Self { size, rate: number(request, "rate", 0)?, count: number(request, "count", 0)? };
        (size <= SIZE_MAX).then_some(source)
    }

    /// Long ones are all cut from one: each client must not cost one of its own.
    fn message(self) -> Bytes {
        static LONGEST: OnceLock<Bytes> = OnceLock::new();
        let make = |size| (0..size).map(|at| at as u8).collect();
        if self.size <= BATCH_LEN {
            return make(self.size);
        }
        LONGEST.get_or_init(|| make(SIZE_MAX)).slice(..self.size)
    }

    /// Sends over a WebSocket.
    pub(super) async fn run(self, socket: &mut WebSocket) {
        let (sender, receiver) = socket.halves();
        // What arrives is dropped; pings are answered and a Close frame is heard.
        let hear = async { while let Ok(Some(_)) = receiver.recv().await {} };
        let send = async {
            self.send(sender).await?;
            sender.close(CloseCode::NORMAL, "").await
        };
        // An error here is a client that went before it had all.
        let (_, _gone) = tokio::join!(hear, send);
    }

    async fn send(self, sender: &mut Sender) -> Result<(), Error> {
        let message = self.message();
        let mut pace = Pace::new(self);
        while let Some(due) = pace.due().await {
            for _ in 0..due {
                sender.feed(message.clone()).await?;
            }
            sender.flush().await?;
        }
        Ok(())
    }

    /// The messages one behind the other, as a body.
    pub(super) fn response(self) -> Response {
        let (sender, body) = Body::channel();
        tokio::spawn(async move {
            // An error here is a client that went before it had all.
            let _gone = self.fill(sender).await;
        });
        Response::new(200).with_body("application/octet-stream", body)
    }

    async fn fill(self, mut sender: BodySender) -> Result<(), Error> {
        let mut pace = Pace::new(self);
        let message = self.message();
        let batch = if pace.batch == 1 { message } else { message.repeat(pace.batch as usize).into() };
        while let Some(due) = pace.due().await {
            sender.send(batch.slice(..due as usize * self.size)).await?;
        }
        Ok(())
    }
}

/// When how many messages are to be sent.
struct Pace {
    source: Source,
    begin: Instant,
    sent: u64,
    /// How many at once at most.
    batch: u64,
}

impl Pace {
    fn new(source: Source) -> Self {
        let batch = (BATCH_LEN / source.size.max(1)).max(1) as u64;
        Self { source, begin: Instant::now(), sent: 0, batch }
    }

    /// Waits until some are due, and says how many; `None` when all have been.
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
