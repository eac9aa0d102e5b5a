//! Wireloom: the loop that a user writes first, behind its own server.

use std::io;
use tokio::net::TcpListener;
use wireloom::{Request, Response, Server};

async fn handle(request: Request) -> Response {
    match request.websocket() {
        Ok(upgrade) => upgrade.on_open(|socket| async move {
            let (mut sender, mut receiver) = socket.split();
            while let Ok(Some(message)) = receiver.recv().await {
                if sender.send(message).await.is_err() {
                    break;
                }
            }
        }),
        Err(refusal) => refusal,
    }
}

pub(super) async fn serve(listener: TcpListener) -> io::Result<()> {
    Server::new(listener).serve(handle).await
}
