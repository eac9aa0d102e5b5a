//! Wireloom: its own server, with an echo over split halves and a handler of requests; and an echo with `recv_owned`.

use super::super::tls;
use super::{LARGE, SMALL, SMALL_BODY, end_with_input, large};
use bytes::Bytes;
use std::io;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::LazyLock;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Builder;
use wireloom::{DeflateConfig, Request, Response, Server, ServerConfig, ServerTls};

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

/// With permessage-deflate.
pub(super) async fn serve_deflate(listener: TcpListener) -> io::Result<()> {
    let mut config = ServerConfig::default();
    config.deflate = Some(DeflateConfig::default());
    Server::new(listener).config(config).serve(handle).await
}

/// Over TLS.
pub(super) async fn serve_tls(listener: TcpListener) -> io::Result<()> {
    Server::new(listener).tls(ServerTls::from_rustls(tls::server()?)).serve(handle).await
}

/// On one runtime with `threads` threads.
pub(super) fn serve_by_threads(listener: std::net::TcpListener, threads: usize) -> io::Result<()> {
    let runtime = Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    runtime.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        // In a task, because `block_on` polls its future on the main thread, beside the workers.
        tokio::spawn(serve(listener)).await?
    })
}

/// On `count` runtimes with a thread and a listener each, on one port by SO_REUSEPORT: the kernel chooses by a hash of the
/// addresses.
pub(super) fn serve_by_listeners(count: usize) -> ExitCode {
    let outcome = (|| {
        let mut port = 0;
        let mut threads = Vec::with_capacity(count);
        for _ in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let listener = runtime.block_on(async {
                let socket = TcpSocket::new_v4()?;
                socket.set_reuseport(true)?;
                socket.bind((Ipv4Addr::LOCALHOST, port).into())?;
                socket.listen(1024)
            })?;
            port = listener.local_addr()?.port();
            threads.push(std::thread::spawn(move || runtime.block_on(serve(listener))));
        }
        println!("listening on {}:{port}", Ipv4Addr::LOCALHOST);
        end_with_input();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
        })
    })();
    eprintln!("{outcome:?}");
    ExitCode::FAILURE
}
