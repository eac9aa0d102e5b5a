//! Connections for HTTP/1.1 that are kept between requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use wireloom::client::{Pool, Request};
use wireloom::{Body, Connector, Error, HttpError, Response, Server};

const MINUTE: Duration = Duration::from_secs(60);

/// A server that counts its connections. `then` handles each one, with its number.
async fn serve<F, T>(then: F) -> (String, Arc<AtomicUsize>)
where
    F: Fn(TcpStream, usize) -> T + Send + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let count = Arc::<AtomicUsize>::default();
    let counted = count.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(then(stream, counted.fetch_add(1, Ordering::SeqCst)));
        }
    });
    (url, count)
}

/// Reads a request with `Content-Length: 1`, or without content; `None` at the end of the connection.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    if head.to_ascii_lowercase().contains("content-length: 1\r\n") {
        stream.read_u8().await.ok()?;
    }
    Some(head)
}

/// Answers every request with these bytes.
async fn answer(mut stream: TcpStream, answer: &'static [u8]) {
    while read_request(&mut stream).await.is_some() {
        if stream.write_all(answer).await.is_err() {
            return;
        }
    }
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

async fn get(pool: &Pool, url: &str) -> Result<bytes::Bytes, wireloom::Error> {
    Ok(pool.request(Request::get(url)).await?.body.bytes().await?)
}

#[tokio::test]
async fn requests_share_a_connection() {
    let (url, count) = serve(|stream, _| answer(stream, OK)).await;
    let pool = Pool::with_limits(Connector::new(), 4, MINUTE);
    for _ in 0..5 {
        assert_eq!(get(&pool, &url).await.unwrap(), "ok");
        let mut post = pool.request(Request::post(&*url, "x")).await.unwrap();
        assert_eq!(post.body.bytes().await.unwrap(), "ok");
    }
    assert_eq!(count.load(Ordering::SeqCst), 1);
    // Another server has connections of its own.
    let (other, of_other) = serve(|stream, _| answer(stream, OK)).await;
    assert_eq!(get(&pool, &other).await.unwrap(), "ok");
    assert_eq!((count.load(Ordering::SeqCst), of_other.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test]
async fn a_connection_is_kept_after_all_of_a_streamed_body() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", server.local_addr().unwrap());
    tokio::spawn(server.serve(|request: wireloom::Request| async move {
        let (mut sender, body) = Body::channel();
        let peer = request.peer().to_string();
        tokio::spawn(async move {
            for _ in 0..100 {
                sender.send(vec![b'x'; 10_000]).await.unwrap_or_default();
            }
        });
        Response::new(200).with_header("X-Peer", &peer).unwrap().with_body("text/plain", body)
    }));
    let pool = Pool::with_limits(Connector::new(), 4, MINUTE);
    let request = async |is_read: bool| {
        let mut response = pool.request(Request::get(&*url)).await.unwrap();
        let peer = response.headers.get("x-peer").unwrap().to_vec();
        if is_read {
            assert_eq!(response.body.bytes().await.unwrap().len(), 1_000_000);
        }
        peer
    };
    let first = request(true).await;
    assert_eq!(request(true).await, first);
    // A body that is dropped leaves the rest of it on the connection.
    assert_eq!(request(false).await, first);
    assert_ne!(request(true).await, first);
}

#[tokio::test]
async fn connections_that_the_server_does_not_keep_are_closed() {
    for reply in [
        &b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"[..],
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nKeep-Alive: timeout=1\r\n\r\nok",
        // More than the response.
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n",
    ] {
        let (url, count) = serve(move |stream, _| answer(stream, reply)).await;
        let pool = Pool::with_limits(Connector::new(), 4, MINUTE);
        for _ in 0..3 {
            assert_eq!(get(&pool, &url).await.unwrap(), "ok");
        }
        assert_eq!(count.load(Ordering::SeqCst), 3, "{}", String::from_utf8_lossy(reply));
    }
}

#[tokio::test]
async fn idle_connections_are_bounded_in_number_and_time() {
    let (url, count) = serve(|stream, _| answer(stream, OK)).await;
    let pool = Pool::with_limits(Connector::new(), 2, MINUTE);
    let together = async |requests: usize| {
        let all: Vec<_> = (0..requests)
            .map(|_| {
                let (pool, url) = (pool.clone(), url.clone());
                tokio::spawn(async move { pool.request(Request::get(url)).await })
            })
            .collect();
        for one in all {
            one.await.unwrap().unwrap();
        }
    };
    together(1).await;
    together(8).await;
    assert!(format!("{pool:?}").contains("idle: 2"), "{pool:?}");
    let opened = count.load(Ordering::SeqCst);
    // They are closed when their time is over, though nothing is requested.
    let (url, _) = serve(move |mut stream, number| async move {
        while read_request(&mut stream).await.is_some() {
            stream.write_all(OK).await.unwrap();
        }
        assert_eq!(number, 0);
    })
    .await;
    let pool = Pool::with_limits(Connector::new(), 2, Duration::from_millis(50));
    get(&pool, &url).await.unwrap();
    while format!("{pool:?}").contains("idle: 1") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!((2..=9).contains(&opened), "{opened}");
}

// The task that closes them has ended with the runtime of the first request.
#[test]
fn idle_connections_are_closed_after_an_earlier_runtime_has_ended() {
    let serving = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (end, ended) = std::sync::mpsc::channel();
    let (url, _) = serving.block_on(serve(move |stream, _| {
        let end = end.clone();
        async move {
            answer(stream, OK).await;
            end.send(()).unwrap();
        }
    }));
    let pool = Pool::with_limits(Connector::new(), 4, Duration::from_millis(100));
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(runtime().block_on(get(&pool, &url)).unwrap(), "ok");
    let second = runtime();
    assert_eq!(second.block_on(get(&pool, &url)).unwrap(), "ok");
    let both_end = async {
        for _ in 0..2 {
            while ended.try_recv().is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    };
    let closed = second.block_on(async { tokio::time::timeout(MINUTE, both_end).await });
    closed.expect("both connections are closed");
}

#[tokio::test]
async fn a_connection_that_the_server_closed_is_not_used() {
    // Each connection serves one request, and is closed without a word about that.
    let (url, count) = serve(|mut stream, _| async move {
        read_request(&mut stream).await;
        stream.write_all(OK).await.unwrap();
    })
    .await;
    let pool = Pool::with_limits(Connector::new(), 4, MINUTE);
    for sent in 1..=3 {
        let mut posted = pool.request(Request::post(&*url, "x")).await.unwrap();
        assert_eq!(posted.body.bytes().await.unwrap(), "ok");
        assert_eq!(count.load(Ordering::SeqCst), sent);
        // The end of the connection arrives.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A server whose first connection ends with the second request, without an answer.
async fn serve_with_a_loss() -> (String, Arc<AtomicUsize>) {
    serve(|mut stream, number| async move {
        read_request(&mut stream).await;
        stream.write_all(OK).await.unwrap();
        read_request(&mut stream).await;
        if number > 0 {
            stream.write_all(OK).await.unwrap();
        }
    })
    .await
}

// RFC 9112 §9.3.1: a request that is not idempotent is not repeated.
#[tokio::test]
async fn only_idempotent_requests_are_sent_again() {
    for (request, is_repeated) in [
        (Request::get as fn(String) -> Request, true),
        (|url| Request::new("DELETE", url), true),
        (|url| Request::post(url, "x"), false),
        (|url| Request::post(url, "x").idempotent(), true),
        (|url| Request::new("PUT", url).with_body(Body::channel().1), false),
    ] {
        let (url, count) = serve_with_a_loss().await;
        let pool = Pool::with_limits(Connector::new(), 4, MINUTE);
        assert_eq!(get(&pool, &url).await.unwrap(), "ok");
        let second = pool.request(request(url)).await;
        assert_eq!(second.is_ok(), is_repeated, "{second:?}");
        assert_eq!(count.load(Ordering::SeqCst), 1 + usize::from(is_repeated));
    }
}

// RFC 9110 §9.2.2: a repetition that failed is not repeated.
#[tokio::test]
async fn a_request_is_sent_again_once() {
    let (url, count) = serve(|mut stream, number| async move {
        read_request(&mut stream).await;
        if number == 0 {
            stream.write_all(OK).await.unwrap();
            read_request(&mut stream).await;
        }
    })
    .await;
    let pool = Pool::with_limits(Connector::new(), 4, MINUTE);
    assert_eq!(get(&pool, &url).await.unwrap(), "ok");
    let lost = pool.request(Request::get(&*url)).await.unwrap_err();
    assert_eq!(lost, Error::Http(HttpError::ConnectionLost));
    assert_eq!(count.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_response_that_has_begun_is_not_asked_for_again() {
    let (url, count) = serve(|mut stream, _| async move {
        read_request(&mut stream).await;
        stream.write_all(OK).await.unwrap();
        read_request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 2").await.unwrap();
    })
    .await;
    let pool = Pool::with_limits(Connector::new(), 4, MINUTE);
    assert_eq!(get(&pool, &url).await.unwrap(), "ok");
    assert!(get(&pool, &url).await.is_err());
    assert_eq!(count.load(Ordering::SeqCst), 1);
}
