//! Wireloom: the loop that a user writes first, and a handler of requests, behind its own server; and that loop without
//! halves, which keeps each message that it sends back.

use super::{LARGE, SMALL, SMALL_BODY, large};
use bytes::Bytes;
use std::io;
use std::sync::LazyLock;
use tokio::net::TcpListener;
use wireloom::{Request, Response, Server, ServerTls};

static LARGE_BODY: LazyLock<Bytes> = LazyLock::new(|| large().into());

async fn handle(mut request: Request) -> Response {
    match request.path() {
        SMALL => {
            while let Ok(Some(_)) = request.body_mut().chunk().await {}
            Response::text(200, SMALL_BODY)
        }
        LARGE => Response::new(200).with_body("application/octet-stream", LARGE_BODY.clone()),
        _ => echo(&request),
    }
}

fn echo(request: &Request) -> Response {
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

async fn handle_kept(request: Request) -> Response {
    match request.websocket() {
        Ok(upgrade) => upgrade.on_open(|mut socket| async move {
            while let Ok(Some(message)) = socket.recv_owned().await {
                if socket.send(message).await.is_err() {
                    break;
                }
            }
        }),
        Err(refusal) => refusal,
    }
}

pub(super) async fn serve_kept(listener: TcpListener) -> io::Result<()> {
    Server::new(listener).serve(handle_kept).await
}

pub(super) async fn serve(listener: TcpListener) -> io::Result<()> {
    Server::new(listener).serve(handle).await
}

/// Over TLS, with a certificate made up for the run.
pub(super) async fn serve_tls(listener: TcpListener) -> io::Result<()> {
    let (tls, _) = ServerTls::self_signed(&["localhost"]).map_err(io::Error::other)?;
    Server::new(listener).tls(tls).serve(handle).await
}
