//! A server that runs beside a test, and handlers that the tests of several binaries serve.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use tokio::task::JoinHandle;
use wireloom::{Body, Error, Handler, Request, Response, Server, ServerConfig, ServerHandle};

type Answer = Pin<Box<dyn Future<Output = Response> + Send>>;

pub(crate) struct Running {
    pub(crate) handle: ServerHandle,
    pub(crate) address: SocketAddr,
    pub(crate) task: JoinHandle<std::io::Result<()>>,
}

impl Running {
    pub(crate) async fn start(config: ServerConfig, handler: impl Handler) -> Self {
        let handler = Arc::new(handler);
        let boxed = move |request| -> Answer {
            let handler = handler.clone();
            Box::pin(async move { handler.handle(request).await })
        };
        Self::serve(config, Box::new(boxed)).await
    }

    /// Of one type: for each type of handler a server of its own would be compiled.
    async fn serve(config: ServerConfig, handler: Box<dyn Fn(Request) -> Answer + Send + Sync>) -> Self {
        let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
        let (handle, address) = (server.handle(), server.local_addr().unwrap());
        Self { handle, address, task: tokio::spawn(server.serve(handler)) }
    }
}

/// Answers with the trailers of the request and `X-Length`, the length of its body, as trailers.
pub(crate) async fn answer_with_trailers(mut request: Request) -> Result<Response, Error> {
    let mut len = 0;
    while let Some(chunk) = request.body_mut().chunk().await? {
        len += chunk.len();
    }
    let mut trailers = request.body_mut().trailers().unwrap_or_default();
    trailers.push("X-Length", len.to_string())?;
    let (mut sender, body) = Body::channel();
    tokio::spawn(async move {
        if sender.send("done").await.is_ok() {
            let _ = sender.finish(trailers).await;
        }
    });
    Ok(Response::new(200).with_body("application/octet-stream", body))
}
