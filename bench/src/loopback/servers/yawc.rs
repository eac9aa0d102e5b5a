//! yawc: as it comes, and with the buffers and the batching of its own benchmark. It is upgraded by hyper.

use super::messages::{self, Answer};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::ops::ControlFlow::Continue;
use tokio::net::TcpStream;
use yawc::{Frame, OpCode, Options, UpgradeFut, WebSocket};

/// Its stream ends where others have an error.
fn answer(frame: Frame) -> Answer<Frame> {
    Continue(matches!(frame.opcode(), OpCode::Text | OpCode::Binary).then_some(frame))
}

fn options() -> Options {
    Options::default().without_compression().with_utf8().with_limits(64 << 20, 64 << 20)
}

pub(super) async fn echo(stream: TcpStream) {
    serve(stream, options(), |upgrade| async move {
        if let Ok(socket) = upgrade.await {
            messages::echo(socket, answer).await;
        }
    })
    .await;
}

pub(super) async fn echo_batched(stream: TcpStream) {
    let options = options().with_read_buffer_capacity(128 << 10).with_backpressure_boundary(64 << 10);
    serve(stream, options, |upgrade| async move {
        if let Ok(socket) = upgrade.await {
            messages::echo_batched(socket, answer).await;
        }
    })
    .await;
}

async fn serve<F>(stream: TcpStream, options: Options, run: fn(UpgradeFut) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let service = service_fn(|mut request: Request<Incoming>| {
        let upgraded = WebSocket::upgrade_with_options(&mut request, options.clone());
        async move {
            let (response, upgrade): (Response<_>, _) = upgraded?;
            tokio::spawn(run(upgrade));
            Ok::<_, yawc::WebSocketError>(response)
        }
    });
    // How the connection ends is the client's choice.
    _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades().await;
}
