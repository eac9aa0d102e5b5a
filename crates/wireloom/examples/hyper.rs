//! A handler of hyper that opens WebSockets, on hyper's server.
//!
//! ```sh
//! cargo run -p wireloom --features hyper --example hyper
//! cargo run -p wireloom-cli -- connect ws://127.0.0.1:3000/
//! ```

use std::convert::Infallible;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use wireloom::{Body, WebSocket};

async fn handle(mut request: http::Request<Incoming>) -> Result<http::Response<Body>, Infallible> {
    let response = match wireloom::tower::upgrade(&mut request) {
        Ok(upgrade) => upgrade.on_open(echo),
        Err(refusal) => refusal,
    };
    Ok(response.into())
}

async fn echo(mut socket: WebSocket) {
    while let Ok(Some(message)) = socket.recv_owned().await {
        if socket.send(message).await.is_err() {
            break;
        }
    }
}

pub(crate) async fn serve(listener: TcpListener) -> std::io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        // Upgrades have to be allowed.
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(handle));
        tokio::spawn(connection.with_upgrades());
    }
}

#[tokio::main]
#[allow(dead_code, reason = "the tests call what it calls")]
async fn main() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on {}", listener.local_addr()?);
    serve(listener).await
}
