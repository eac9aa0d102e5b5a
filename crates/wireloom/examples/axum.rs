//! An axum application whose WebSockets are Wireloom's, on axum's own server or on Wireloom's:
//!
//! ```sh
//! cargo run -p wireloom --features axum --example axum                # axum::serve, by hyper
//! cargo run -p wireloom --features axum --example axum -- wireloom    # Wireloom's server: HTTP/2 and RFC 8441 too
//! cargo run -p wireloom-cli -- connect ws://127.0.0.1:3000/echo
//! ```

use axum::response::Response;
use axum::routing::{any, get};
use axum::{Extension, Router};
use tokio::net::TcpListener;
use wireloom::WebSocket;
use wireloom::axum::WebSocketUpgrade;
use wireloom::tower::WebSocketTracker;

fn application() -> Router {
    Router::new().route("/", get(|| async { "connect to /echo\n" })).route("/echo", any(open))
}

async fn open(upgrade: WebSocketUpgrade) -> Response {
    upgrade.subprotocols(&["chat"]).on_open(echo)
}

async fn echo(socket: WebSocket) {
    let (mut sender, mut receiver) = socket.split();
    while let Ok(Some(message)) = receiver.recv().await {
        if sender.send(message).await.is_err() {
            break;
        }
    }
}

/// On axum's server. Its graceful shutdown does not know of WebSockets: the tracker closes them with 1001.
pub(crate) async fn serve(
    listener: TcpListener,
    end: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let sockets = WebSocketTracker::new();
    let router = application().layer(Extension(sockets.clone()));
    let signal = {
        let sockets = sockets.clone();
        async move {
            end.await;
            sockets.shut_down();
        }
    };
    axum::serve(listener, router).with_graceful_shutdown(signal).await?;
    sockets.closed().await;
    Ok(())
}

/// On Wireloom's server, which tracks them itself.
pub(crate) async fn serve_by_wireloom(listener: TcpListener) -> std::io::Result<()> {
    wireloom::Server::new(listener).serve(wireloom::tower::handler(application())).await
}

#[tokio::main]
#[allow(dead_code, reason = "the tests call what it calls")]
async fn main() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on {}", listener.local_addr()?);
    if std::env::args().nth(1).as_deref() == Some("wireloom") {
        return serve_by_wireloom(listener).await;
    }
    serve(listener, async {
        let _ = tokio::signal::ctrl_c().await;
    })
    .await
}
