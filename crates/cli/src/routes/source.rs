//! `/source`: messages as they are asked for.

use std::time::Duration;

use tokio::time::Instant;
use wireloom::{CloseCode, Error, Request, Sender, WebSocket};

/// The longest message, in bytes.
const SIZE_MAX: usize = 16 << 20;

/// As many messages as this many bytes hold are sent in one go.
const BATCH_LEN: usize = 64 << 10;

/// What is asked for.
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

    async fn send(&self, sender: &mut Sender) -> Result<(), Error> {
        let payload: Vec<u8> = (0..self.size).map(|at| at as u8).collect();
        let begin = Instant::now();
        let batch = (BATCH_LEN / self.size.max(1)).max(1) as u64;
        let mut sent = 0u64;
        while self.count == 0 || sent < self.count {
            let left = if self.count == 0 { u64::MAX } else { self.count - sent };
            let due = if self.rate == 0 {
                batch
            } else {
                let due = (begin.elapsed().as_secs_f64() * f64::from(self.rate)) as u64 + 1;
                due.saturating_sub(sent).min(batch)
            };
            if due == 0 {
                let next = Duration::from_secs_f64(sent as f64 / f64::from(self.rate));
                tokio::time::sleep_until(begin + next).await;
                continue;
            }
            for _ in 0..due.min(left) {
                sender.feed(&payload).await?;
                sent += 1;
            }
            sender.flush().await?;
        }
        Ok(())
    }
}
