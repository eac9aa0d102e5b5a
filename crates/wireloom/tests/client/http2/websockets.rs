//! WebSockets over streams.

use tokio::sync::mpsc;
use wireloom::client::Request;
use wireloom::wireloom_http2::error::ErrorCode;
use wireloom::wireloom_http2::frame::StreamId;
use wireloom::wireloom_http2::{Config, Connection, Role};
use wireloom::{CloseCode, Connector, DeflateConfig, Error, Server, Version, WebSocket, WebSocketError};

use super::super::received_request;
use super::super::scripted::{self, ScriptEvent};
use super::{answer, connect, serve, status};

#[tokio::test]
async fn opens_many_websockets_over_one_connection() {
    let address = serve().await;
    let connector = Connector::new().deflate(DeflateConfig::default()).header("X-Key", "y");
    let http2 = connector.connect_http2(&format!("ws://{address}")).await.unwrap();
    assert!(http2.takes_websockets());
    let mut sockets = Vec::new();
    for count in 0..50 {
        let mut socket = http2.websocket(&format!("/{count}")).await.unwrap();
        assert!(received_request(&mut socket).await.starts_with(&format!("/{count} ")));
        sockets.push(socket);
    }
    drop(http2);
    for (count, socket) in sockets.iter_mut().enumerate() {
        let message = format!("{count} ").repeat(10_000);
        socket.send(&message).await.unwrap();
        assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some(&*message));
    }
    for mut socket in sockets {
        socket.close(wireloom::CloseCode::NORMAL, "").await.unwrap();
        assert_eq!(socket.end().unwrap().code(), wireloom::CloseCode::NORMAL);
    }
}

// RFC 9113 §5.2: an unread tunnel stalls its own sender only.
#[tokio::test]
async fn an_unread_websocket_does_not_stall_others() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(|request: wireloom::Request| async move {
        let floods = request.path() == "/flood";
        match request.websocket() {
            Ok(upgrade) => upgrade.on_open(move |mut socket| async move {
                while floods && socket.send(vec![1; 10_000]).await.is_ok() {}
                while let Ok(Some(message)) = socket.recv_owned().await {
                    let _ = socket.send(message).await;
                }
            }),
            Err(refusal) => refusal,
        }
    }));
    let http2 = connect(address).await;
    let mut floods = Vec::new();
    for _ in 0..5 {
        floods.push(http2.websocket("/flood").await.unwrap());
    }
    let mut socket = http2.websocket("/echo").await.unwrap();
    for len in [1, 1000, 1_000_000] {
        let message = vec![2; len];
        socket.send(&message).await.unwrap();
        assert!(socket.recv().await.unwrap().unwrap().as_bytes() == message);
    }
    for flood in &mut floods {
        for _ in 0..100 {
            assert_eq!(flood.recv().await.unwrap().unwrap().as_bytes().len(), 10_000);
        }
    }
}

// A reset of the stream would drop both frames before they are written.
#[tokio::test]
async fn a_dropped_websocket_sends_its_messages_and_its_close_code() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let (report, mut reports) = mpsc::unbounded_channel();
    tokio::spawn(server.serve(move |request: wireloom::Request| {
        let report = report.clone();
        async move {
            match request.websocket() {
                Ok(upgrade) => upgrade.on_open(move |mut socket| async move {
                    let len = socket.recv().await.map(|message| message.unwrap().as_bytes().len());
                    let next = socket.recv_owned().await;
                    report.send((len, next, socket.end().unwrap().code())).unwrap();
                }),
                Err(refusal) => refusal,
            }
        }
    }));
    let http2 = connect(address).await;
    for driven in [false, true] {
        let mut socket = http2.websocket("/").await.unwrap();
        socket.close_on_drop(CloseCode::new(4000));
        let send = async |mut socket: WebSocket| socket.send("x".repeat(50_000)).await;
        let sent = if driven { socket.drive(send).await } else { send(socket).await };
        sent.unwrap();
        assert_eq!(reports.recv().await, Some((Ok(50_000), Ok(None), CloseCode::new(4000))));
    }
}

#[tokio::test]
async fn negotiates_as_over_http1() {
    let mut config = wireloom::ServerConfig::default();
    config.deflate = Some(DeflateConfig::default());
    let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(|request: wireloom::Request| async move {
        match request.websocket() {
            Ok(upgrade) => upgrade.subprotocols(&["chat"]).on_open(|mut socket| async move {
                while let Ok(Some(message)) = socket.recv_owned().await {
                    let _ = socket.send(message).await;
                }
            }),
            Err(refusal) => refusal,
        }
    }));
    let connector =
        Connector::new().subprotocol("other").subprotocol("chat").deflate(DeflateConfig::default());
    let http2 = connector.connect_http2(&format!("ws://{address}")).await.unwrap();
    let mut socket = http2.websocket("/").await.unwrap();
    assert_eq!((socket.subprotocol(), socket.is_compressed()), (Some("chat"), true));
    let text = "the same again, ".repeat(10_000);
    for _ in 0..3 {
        socket.send(&text).await.unwrap();
        assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some(&*text));
    }
    // Another connector negotiates for itself.
    let plain = http2.with_connector(&Connector::new()).unwrap().websocket("/").await.unwrap();
    assert_eq!((plain.subprotocol(), plain.is_compressed()), (None, false));
}

#[tokio::test]
async fn open_follows_redirects_over_http2() {
    let address = serve().await;
    let connector = Connector::new().http2(true).redirects_max(1).header("Authorization", "x");
    let opened = connector.open(&format!("ws://{address}/?to=/z")).await.unwrap();
    assert_eq!((opened.version, opened.status), (Version::Http2, 200));
    let mut socket = opened.socket;
    assert!(received_request(&mut socket).await.starts_with("/z authorization: x"));
    socket.send("hello").await.unwrap();
    assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some("hello"));
    let refused = connector.clone().redirects_max(0).connect(&format!("ws://{address}/?to=/z")).await;
    assert!(matches!(refused, Err(Error::Refused(response)) if response.status() == 307));
}

#[tokio::test]
async fn a_refusal_has_the_content_that_arrives_after_its_head() {
    let mut config = Config::new(Role::Server);
    config.settings.enable_connect_protocol = true;
    let script = |core: &mut Connection, event: ScriptEvent<'_>| {
        let ScriptEvent::Request(request) = event else { return };
        match &*request.path {
            "/chat" => return core.send_response(request.stream, status(b"403"), false).unwrap(),
            "/rest" => {
                // It is gone if the client has reset it.
                if let Some(refused) = core.find(StreamId::FIRST_CLIENT) {
                    core.send_data(refused, b"not today".to_vec(), true).unwrap();
                }
            }
            _ => {}
        }
        answer(core, request.stream);
    };
    let http2 = connect(scripted::serve(config, script).await).await;
    let (refused, ()) = tokio::join!(http2.websocket("/chat"), async {
        // The head of the refusal is before this response.
        http2.request(Request::get("/")).await.unwrap();
        http2.request(Request::get("/rest")).await.unwrap();
    });
    let Err(Error::Refused(response)) = refused else { panic!("{refused:?}") };
    assert_eq!((response.status(), response.body()), (403, &b"not today"[..]));
}

#[tokio::test]
async fn an_open_websocket_fails_with_the_code_of_goaway() {
    let mut config = Config::new(Role::Server);
    config.settings.enable_connect_protocol = true;
    let script = |core: &mut Connection, event: ScriptEvent<'_>| match event {
        ScriptEvent::Request(request) => core.send_response(request.stream, status(b"200"), false).unwrap(),
        ScriptEvent::Data(..) => core.abort(ErrorCode::ENHANCE_YOUR_CALM, b""),
        ScriptEvent::Reset(_) => {}
    };
    let http2 = connect(scripted::serve(config, script).await).await;
    let mut socket = http2.websocket("/").await.unwrap();
    socket.send("hello").await.unwrap();
    assert_eq!(socket.recv().await.unwrap_err(), WebSocketError::GoAway(ErrorCode::ENHANCE_YOUR_CALM));
}

// RFC 8441 §3.
#[tokio::test]
async fn reports_a_server_without_extended_connect() {
    let address = scripted::serve(Config::new(Role::Server), |_, _| ()).await;
    let http2 = connect(address).await;
    assert_eq!(http2.websocket("/").await.unwrap_err(), Error::NoExtendedConnect);
    let easy = Connector::new().http2(true).connect(&format!("ws://{address}/")).await;
    assert_eq!(easy.unwrap_err(), Error::NoExtendedConnect);
}
