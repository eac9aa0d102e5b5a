//! A server that ends gracefully on Ctrl-C: it stops accepting, closes WebSockets with 1001, answers requests in progress, and
//! aborts the remaining connections after `shutdown_grace`.
//!
//! ```sh
//! cargo run -p wireloom --example graceful_shutdown
//! ```

use std::time::Duration;

use wireloom::{Request, Response, Server, ServerConfig};

async fn handle(request: Request) -> Response {
    match request.websocket() {
        Ok(upgrade) => upgrade.on_open(async |mut socket| {
            // Ends with `None` when the server shuts down: the peer gets 1001.
            while let Ok(Some(message)) = socket.recv_owned().await {
                if socket.send(message).await.is_err() {
                    break;
                }
            }
        }),
        Err(refusal) => refusal,
    }
}

pub(crate) async fn serve(
    server: Server,
    end: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let mut config = ServerConfig::default();
    config.shutdown_grace = Duration::from_secs(5);
    let server = server.config(config);
    let handle_ = server.handle();
    tokio::spawn(async move {
        end.await;
        handle_.shut_down();
    });
    server.serve(handle).await
}

#[tokio::main]
#[allow(dead_code, reason = "the tests call what it calls")]
async fn main() -> std::io::Result<()> {
    let server = Server::bind("127.0.0.1:3000").await?;
    println!("listening on {}", server.local_addr()?);
    serve(server, async {
        let _ = tokio::signal::ctrl_c().await;
    })
    .await
}
