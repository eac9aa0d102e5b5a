//! yawc, upgraded by hyper: with its defaults, and with the buffers and the batching of its own benchmark.

use super::Transport;
use super::messages::{self, Answer};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::ops::ControlFlow::Continue;
use yawc::{Frame, HttpResponse, OpCode, Options, UpgradeFut, WebSocket};

/// Its stream ends instead of returning an error.
fn answer(frame: Frame) -> Answer<Frame> {
    Continue(matches!(frame.opcode(), OpCode::Text | OpCode::Binary).then_some(frame))
}

fn options() -> Options {
    Options::default().without_compression().with_utf8().with_limits(64 << 20, 64 << 20)
}

pub(super) async fn echo(stream: impl Transport) {
    serve(stream, options(), run).await;
}

fn with_deflate() -> Options {
    Options::default().with_low_latency_compression().with_utf8().with_limits(64 << 20, 64 << 20)
}

async fn run(upgrade: UpgradeFut) {
    if let Ok(socket) = upgrade.await {
        messages::echo(socket, answer).await;
    }
}

pub(super) async fn echo_deflate(stream: impl Transport) {
    serve(stream, with_deflate(), run).await;
}

/// With the buffers of its own benchmark.
fn tuned() -> Options {
    options().with_read_buffer_capacity(128 << 10).with_backpressure_boundary(64 << 10)
}

async fn run_batched(upgrade: UpgradeFut) {
    if let Ok(socket) = upgrade.await {
        messages::echo_batched(socket, answer).await;
    }
}

pub(super) async fn echo_batched(stream: impl Transport) {
    serve(stream, tuned(), run_batched).await;
}

/// Over HTTP/2, also tuned.
pub(super) async fn echo_http2(stream: impl Transport) {
    serve_http2(stream, tuned(), run_batched).await;
}

pub(super) async fn echo_http2_deflate(stream: impl Transport) {
    serve_http2(stream, with_deflate(), run).await;
}

async fn serve_http2<F>(stream: impl Transport, options: Options, run: fn(UpgradeFut) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let service = service_fn(|request| accept(request, options.clone(), run));
    let connection = http2::Builder::new(TokioExecutor::new())
        .enable_connect_protocol()
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(16 << 20)
        .serve_connection(TokioIo::new(stream), service);
    // The client may end the connection in any way.
    _ = connection.await;
}

async fn serve<F>(stream: impl Transport, options: Options, run: fn(UpgradeFut) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let service = service_fn(|request| accept(request, options.clone(), run));
    _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades().await;
}

async fn accept<F>(
    mut request: Request<Incoming>,
    options: Options,
    run: fn(UpgradeFut) -> F,
) -> Result<HttpResponse, yawc::WebSocketError>
where
    F: Future<Output = ()> + Send + 'static,
{
    let (response, upgrade) = WebSocket::upgrade_with_options(&mut request, options)?;
    tokio::spawn(run(upgrade));
    Ok(response)
}
