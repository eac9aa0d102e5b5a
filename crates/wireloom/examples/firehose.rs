//! A consumer of a firehose of binary events: it borrows each event from the read buffer, without a copy or an
//! allocation, and reconnects when the connection is lost.
//!
//! ```sh
//! cargo run -p wireloom --example firehose -- wss://example.com/events
//! ```

use std::time::Duration;

use wireloom::{Connector, Error};

/// Counts of the events so far.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) events: u64,
    pub(crate) bytes: u64,
}

impl Totals {
    /// A decoder of the events goes here.
    fn take(&mut self, event: &[u8]) {
        self.events += 1;
        self.bytes += event.len() as u64;
    }
}

/// Reads until the server closes.
pub(crate) async fn consume(url: &str, totals: &mut Totals) -> Result<(), Error> {
    let socket = Connector::new().connect(url).await?;
    let (_sender, mut receiver) = socket.split();
    while let Some(event) = receiver.recv().await? {
        totals.take(event.as_bytes());
    }
    Ok(())
}

#[tokio::main]
#[allow(dead_code, reason = "the tests call what it calls")]
async fn main() {
    let url = std::env::args().nth(1).unwrap_or_else(|| "ws://127.0.0.1:3000/events".to_owned());
    let mut totals = Totals::default();
    loop {
        let ended = consume(&url, &mut totals).await;
        println!("{totals:?}: {ended:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
