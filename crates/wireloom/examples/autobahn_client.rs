//! The client that Autobahn's fuzzing server tests: it runs every case, echoes each message, and asks for the report at the end.
//! `conformance/autobahn/run` starts it.
//!
//! ```sh
//! cargo run -p wireloom --example autobahn_client -- ws://127.0.0.1:9001 AGENT [--http2]
//! ```

use std::time::Duration;

use wireloom::{ClientTls, Connector, DeflateConfig, Error, WebSocket};

/// Echoes until the end of a case. How a case ends is for the fuzzing server to decide.
async fn echo(socket: WebSocket) {
    let (mut sender, mut receiver) = socket.split();
    while let Ok(Some(message)) = receiver.recv().await {
        if sender.send(message).await.is_err() {
            break;
        }
    }
}

async fn run_all(base: &str, agent: &str, is_http2: bool) -> Result<(), Error> {
    // The suite makes its certificate itself.
    let tls = ClientTls::default().insecure();
    // The suite may write a whole case before its response leaves, on a machine that is busy.
    let connector = Connector::new().tls(tls).http2(is_http2).handshake_timeout(Duration::from_secs(60));
    let mut counted = connector.connect(&format!("{base}/getCaseCount")).await?;
    let count = match counted.recv().await? {
        Some(message) => message.as_text().and_then(|text| text.parse::<u32>().ok()).unwrap_or(0),
        None => 0,
    };
    let compressing = connector.clone().deflate(DeflateConfig::default());
    for case in 1..=count {
        eprint!("\rcase {case} of {count}");
        echo(compressing.connect(&format!("{base}/runCase?case={case}&agent={agent}")).await?).await;
    }
    eprintln!();
    let mut reports = connector.connect(&format!("{base}/updateReports?agent={agent}")).await?;
    while reports.recv().await?.is_some() {}
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_http2 = arguments.get(2).is_some_and(|option| option == "--http2");
    let [base, agent, ..] = &arguments[..] else {
        return Err("usage: autobahn_client URL AGENT [--http2]".into());
    };
    Ok(run_all(base, agent, is_http2).await?)
}
