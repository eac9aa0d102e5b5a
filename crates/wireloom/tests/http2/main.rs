//! The server over HTTP/2, on real sockets: requests, streamed bodies, WebSockets in tunnels, hostile clients, the end.

#![allow(clippy::unwrap_used)]

mod content;
mod fairness;
mod frames;
mod latency;
mod memory;
mod peer;
mod reentry;
mod requests;
#[path = "../running/mod.rs"]
mod running;
mod runtime;
mod signals;
mod stress;
mod tunnels;

use running::{Running, answer_with_trailers};
use wireloom::{Body, Error, HttpError, Request, Response, ServerConfig};

async fn handle(mut request: Request) -> Result<Response, Error> {
    let kind = "application/octet-stream";
    Ok(match request.path() {
        "/hello" => Response::text(200, "hello\n").with_header("X-Mixed-Case", "1").unwrap(),
        "/large" => Response::new(200).with_body(kind, vec![7; 30 << 20]),
        "/small" => Response::new(200).with_body(kind, vec![7; 20_000]),
        "/version" => Response::text(200, format!("{:?}", request.version())),
        "/host" => Response::text(200, String::from_utf8_lossy(request.header("Host").unwrap_or_default())),
        "/cookie" => {
            Response::text(200, String::from_utf8_lossy(request.header("cookie").unwrap_or_default()))
        }
        "/whole" => Response::new(200).with_body(kind, request.bytes().await?),
        "/echo" if !request.is_websocket() => Response::new(200).with_body(kind, request.into_body()),
        "/trailers" => answer_with_trailers(request).await?,
        "/endless" => {
            let (mut sender, body) = Body::channel();
            tokio::spawn(async move { while sender.send(vec![7; 10_000]).await.is_ok() {} });
            Response::new(200).with_body(kind, body)
        }
        "/broken" => {
            let (sender, body) = Body::channel();
            sender.abort();
            Response::new(200).with_body(kind, body)
        }
        "/aborted" => {
            let (mut sender, body) = Body::channel();
            tokio::spawn(async move {
                let wait = std::time::Duration::from_millis(100);
                // Until the client accepts no more.
                while let Ok(Ok(())) = tokio::time::timeout(wait, sender.send(vec![7; 10_000])).await {}
                sender.abort();
            });
            Response::new(200).with_body(kind, body)
        }
        "/reset" => Response::new(205).with_body(kind, "content"),
        "/last" => Response::text(200, "last\n").close_connection(),
        "/reset-stream" => Response::reset(wireloom::wireloom_http2::error::ErrorCode::HTTP_1_1_REQUIRED),
        "/never" => std::future::pending().await,
        "/panic" => panic!("on purpose"),
        "/panic-later" => {
            tokio::task::yield_now().await;
            panic!("on purpose")
        }
        "/panic-in-body" => {
            let chunks = (0..2).map(|at| {
                assert!(at == 0, "on purpose");
                Ok::<_, HttpError>("one".into())
            });
            Response::new(200).with_body(kind, Body::from_stream(futures_util::stream::iter(chunks)))
        }
        "/panic-open" => match request.websocket() {
            Ok(upgrade) => upgrade.on_open(|socket| async move { panic!("on purpose, by {socket:?}") }),
            Err(refusal) => refusal,
        },
        "/slow" => {
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            Response::text(200, "at last\n")
        }
        "/echo" => match request.websocket() {
            Ok(upgrade) => upgrade.subprotocols(&["chat"]).on_open(|mut socket| async move {
                while let Ok(Some(message)) = socket.recv_owned().await {
                    if socket.send(message).await.is_err() {
                        break;
                    }
                }
            }),
            Err(refusal) => refusal,
        },
        "/flood" => match request.websocket() {
            Ok(upgrade) => upgrade
                .on_open(|mut socket| async move { while socket.send(vec![1; 10_000]).await.is_ok() {} }),
            Err(refusal) => refusal,
        },
        _ => Response::not_found(),
    })
}

async fn serve(config: ServerConfig) -> Running {
    Running::start(config, handle).await
}

fn value<'a>(headers: &'a [(String, Vec<u8>)], name: &str) -> Option<&'a [u8]> {
    headers.iter().find(|(candidate, _)| candidate == name).map(|(_, value)| &**value)
}
