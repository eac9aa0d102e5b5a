//! A client: sends a line, prints the answer, closes.
//!
//! ```sh
//! cargo run -p wireloom --example client -- ws://127.0.0.1:3000/echo
//! ```

use std::time::Duration;

use wireloom::{CloseCode, Connector, Error};

pub(crate) async fn ask(url: &str, question: &str) -> Result<Option<String>, Error> {
    let connector = Connector::new().connect_timeout(Duration::from_secs(5));
    let mut socket = connector.connect(url).await?;
    socket.send(question).await?;
    let answer = socket.recv().await?.and_then(|message| message.as_text().map(str::to_owned));
    socket.close(CloseCode::NORMAL, "").await?;
    Ok(answer)
}

#[tokio::main]
#[allow(dead_code, reason = "the tests call what it calls")]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "ws://127.0.0.1:3000/echo".to_owned());
    match ask(&url, "hello").await? {
        Some(answer) => println!("{answer}"),
        None => println!("the server closed, or answered with something else than text"),
    }
    Ok(())
}
