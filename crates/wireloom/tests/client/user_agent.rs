//! `User-Agent`, over HTTP/1.1, HTTP/2 and in handshakes of WebSockets.

use wireloom::client::Request;
use wireloom::{Connector, Response, Server};

/// Answers with the `User-Agent` of the request, as the body or as the first message.
async fn serve() -> String {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(|request: wireloom::Request| async move {
        let sent = request.header("user-agent").map(|value| String::from_utf8_lossy(value).into_owned());
        let sent = sent.unwrap_or_else(|| "none".into());
        match request.websocket() {
            Ok(upgrade) => upgrade.on_open(|mut socket| async move {
                let _ = socket.send(&sent).await;
            }),
            Err(_) => Response::text(200, sent),
        }
    }));
    format!("{address}/")
}

/// The `User-Agent` that a server receives: over HTTP/1.1 and HTTP/2, of requests and of handshakes.
async fn seen(connector: &Connector, authority: &str, request: impl Fn(String) -> Request) -> [String; 4] {
    let [http, ws] = [format!("http://{authority}"), format!("ws://{authority}")];
    let text = async |mut response: wireloom::client::Response| {
        String::from_utf8(response.body.bytes().await.unwrap().to_vec()).unwrap()
    };
    let first = connector.clone().http1_only(true).request(request(http.clone())).await.unwrap();
    let second = connector.connect_http2(&http).await.unwrap().request(request(http)).await.unwrap();
    let message = async |mut socket: wireloom::WebSocket| {
        socket.recv().await.unwrap().unwrap().as_text().unwrap().to_owned()
    };
    let third = connector.connect(&ws).await.unwrap();
    let fourth = connector.clone().http2(true).connect(&ws).await.unwrap();
    [text(first).await, text(second).await, message(third).await, message(fourth).await]
}

#[tokio::test]
async fn the_client_says_what_it_is() {
    let authority = serve().await;
    let connector = Connector::new();
    let expected = concat!("wireloom/", env!("CARGO_PKG_VERSION"));
    assert_eq!(seen(&connector, &authority, Request::get).await, [expected; 4]);
    let named = connector.clone().user_agent(Some("tester/1"));
    assert_eq!(seen(&named, &authority, Request::get).await, ["tester/1"; 4]);
    assert_eq!(seen(&connector.clone().user_agent(None), &authority, Request::get).await, ["none"; 4]);
    let header = connector.clone().header("user-agent", "header/1");
    assert_eq!(seen(&header, &authority, Request::get).await, ["header/1"; 4]);
    let of_request = |url| Request::get(url).header("User-Agent", "request/1");
    let [first, second, ..] = seen(&connector, &authority, of_request).await;
    assert_eq!([first, second], ["request/1"; 2]);
}
