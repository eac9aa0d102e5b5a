//! Handlers that panic, over HTTP/1.1: their clients get an error, and other clients notice nothing.

use wireloom::{Body, CloseCode, HttpError, Request, Response, ServerConfig, ServerHandle};

use crate::exchange;
use crate::running::Running;

/// It panics before there is a future.
fn handle(request: Request) -> impl Future<Output = Response> + Send {
    assert!(request.path() != "/at-once", "on purpose");
    async move {
        let pieces = (0..2).map(|at| {
            assert!(at == 0, "on purpose");
            Ok::<_, HttpError>("half".into())
        });
        let body = Body::from_stream(futures_util::stream::iter(pieces));
        match request.path() {
            "/later" => {
                tokio::task::yield_now().await;
                panic!("on purpose")
            }
            "/body" => Response::new(200).with_body("text/plain", body),
            "/open" => match request.websocket() {
                Ok(upgrade) => upgrade.on_open(|mut socket| async move {
                    let _ = socket.recv().await;
                    panic!("on purpose")
                }),
                Err(refusal) => refusal,
            },
            _ => Response::text(200, "fine\n"),
        }
    }
}

async fn serve() -> (std::net::SocketAddr, ServerHandle) {
    let server = Running::start(ServerConfig::default(), handle).await;
    (server.address, server.handle)
}

#[tokio::test]
async fn a_request_is_answered_500_and_is_the_last() {
    let (address, server) = serve().await;
    for (count, path) in ["/at-once", "/later"].iter().enumerate() {
        let two = format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhiGET / HTTP/1.1\r\nHost: a\r\n\r\n"
        );
        let (answer, ended) = exchange(address, &two).await;
        assert!(answer.starts_with("HTTP/1.1 500 Internal Server Error\r\n"), "{answer}");
        assert!(answer.contains("\r\nConnection: close\r\n") && ended, "{answer}");
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
        assert_eq!(server.stats().handlers_panicked, count as u64 + 1);
    }
    assert!(exchange(address, "GET / HTTP/1.0\r\n\r\n").await.0.ends_with("\r\n\r\nfine\n"));
}

// RFC 9112 §8: a client sees that it is not whole.
#[tokio::test]
async fn a_body_breaks_off() {
    let (address, server) = serve().await;
    let (answer, _) = exchange(address, "GET /body HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(answer.ends_with("\r\n4\r\nhalf\r\n"), "{answer}");
    // Without chunks, a reset reports the failure.
    let (_, ended) = exchange(address, "GET /body HTTP/1.0\r\n\r\n").await;
    assert!(!ended);
    assert_eq!(server.stats().handlers_panicked, 2);
}

// RFC 6455 §7.4.1: 1011.
#[tokio::test]
async fn a_websocket_is_closed() {
    let (address, server) = serve().await;
    let mut socket = wireloom::connect(&format!("ws://{address}/open")).await.unwrap();
    socket.send("now").await.unwrap();
    assert!(socket.recv().await.unwrap().is_none());
    assert_eq!(socket.end().unwrap().code(), CloseCode::INTERNAL_ERROR);
    drop(socket);
    while server.stats().connections_open > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!((server.stats().handlers_panicked, server.stats().websockets_open), (1, 0));
}
