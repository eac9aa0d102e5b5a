//! A server: HTTP and an echo over WebSocket, on one port.
//!
//! ```sh
//! cargo run -p wireloom --example server
//! cargo run -p wireloom-cli -- connect ws://127.0.0.1:3000/echo
//! ```

use wireloom::{Request, Response, Server, WebSocket};

async fn handle(request: Request) -> Response {
    match request.path() {
        "/" => Response::text(200, "connect to /echo\n"),
        "/echo" => match request.websocket() {
            Ok(upgrade) => upgrade.on_open(echo),
            Err(refusal) => refusal,
        },
        _ => Response::not_found(),
    }
}

async fn echo(socket: WebSocket) {
    let (mut sender, mut receiver) = socket.split();
    while let Ok(Some(message)) = receiver.recv().await {
        if sender.send(message).await.is_err() {
            break;
        }
    }
}

pub(crate) async fn serve(server: Server) -> std::io::Result<()> {
    server.serve(handle).await
}

#[tokio::main]
#[allow(dead_code, reason = "the tests call what it calls")]
async fn main() -> std::io::Result<()> {
    let server = Server::bind("127.0.0.1:3000").await?;
    println!("listening on {}", server.local_addr()?);
    serve(server).await
}
