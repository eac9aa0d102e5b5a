//! An axum application that takes the WebSocket part from Wireloom, first on axum's own server, then on Wireloom's:
//!
//! ```sh
//! cargo run -p wireloom --features hyper --example axum                # axum::serve, by hyper
//! cargo run -p wireloom --features hyper --example axum -- wireloom    # Wireloom's server: HTTP/2 and RFC 8441 too
//! cargo run -p wireloom-cli -- connect ws://127.0.0.1:3000/echo
//! ```

use axum::Router;
use axum::extract::Request;
use axum::routing::{any, get};
use wireloom::Body;

fn application() -> Router {
    Router::new().route("/", get(|| async { "connect to /echo\n" })).route("/echo", any(echo))
}

async fn echo(mut request: Request) -> http::Response<Body> {
    let answer = match wireloom::tower::upgrade(&mut request) {
        Ok(upgrade) => upgrade.on_open(|mut socket| async move {
            while let Ok(Some(message)) = socket.recv_owned().await {
                if socket.send(message).await.is_err() {
                    break;
                }
            }
        }),
        Err(refusal) => refusal,
    };
    answer.into()
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on {}", listener.local_addr()?);
    if std::env::args().nth(1).as_deref() == Some("wireloom") {
        return wireloom::Server::new(listener).serve(wireloom::tower::handler(application())).await;
    }
    axum::serve(listener, application()).await
}
