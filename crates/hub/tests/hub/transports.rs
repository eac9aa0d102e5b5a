//! The ways in for clients without WebSocket, and for those that only receive.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::sync::Notify;
use wireloom::client::Request;
use wireloom::{Connector, WebSocket};
use wireloom_hub::protocol::{
    Command, ConnectRequest, EmulationRequest, PublishRequest, Reply, SubscribeRequest,
};
use wireloom_hub::{ConnectGrant, HubConfig};

use super::streams::{Stream, http};
use super::{CONFIG, Served};

const WITH_API: &str = "[api]\nkey = \"key\"\n";

async fn serve() -> Served {
    Served::start(&format!("{CONFIG}{WITH_API}"), |hub| {
        hub.on_rpc(|event| async move { Ok(event.data) })
            .on_connect(|_| async { Ok(ConnectGrant { user: "7".into(), ..ConnectGrant::default() }) })
    })
    .await
}

async fn api(served: &Served, method: &str, body: Value) {
    let request = Request::post(http(served, &format!("/api/{method}")), body.to_string());
    let response = Connector::new().request(request.header("x-api-key", "key")).await.unwrap();
    assert_eq!(response.status, 200);
}

#[tokio::test]
async fn clients_without_websocket_send_commands_beside_their_stream() {
    let served = serve().await;
    for path in ["/connection/http_stream", "/connection/sse"] {
        let (mut stream, connected) = Stream::connect(&served, path, json!({})).await;
        assert_eq!(connected["id"], 1, "{connected}");
        assert_eq!(connected["connect"]["pong"], true, "{connected}");
        let mut other = served.connect().await;
        other.call("subscribe", json!({ "channel": "chat:x" })).await;
        assert!(stream.reply("subscribe", json!({ "channel": "chat:x" })).await["subscribe"].is_object());
        other.call("publish", json!({ "channel": "chat:x", "data": { "a": "\n\"\\ü" } })).await;
        assert_eq!(stream.next().await["push"]["pub"]["data"], json!({ "a": "\n\"\\ü" }));
        let long = "x".repeat(9_000);
        stream.reply("publish", json!({ "channel": "chat:x", "data": long })).await;
        while other.publications.last() != Some(&json!(long)) {
            other.receive().await;
        }
        assert_eq!(stream.reply("rpc", json!({ "data": [1] })).await["rpc"]["data"], json!([1]));
        // A batch, and a pong that was not asked for.
        let batch = "{\"id\":90,\"ping\":{}}\n{}\n{\"id\":91,\"ping\":{}}";
        assert_eq!(stream.send(batch).await, 204);
        assert_eq!([stream.next().await["id"].clone(), stream.next().await["id"].clone()], [90, 91]);
        api(&served, "disconnect", json!({ "user": "7", "client": connected["connect"]["client"] })).await;
        let push = stream.next().await;
        assert_eq!(
            push["push"]["disconnect"],
            json!({ "code": 3503, "reason": "force disconnect" }),
            "{push}"
        );
        assert_eq!(stream.next_or_end().await, None);
        assert_eq!(stream.send("{}").await, 404);
    }
}

#[tokio::test]
async fn a_transport_that_is_off_is_not_found() {
    const NAMES: [&str; 5] = ["sse", "http_stream", "uni_websocket", "uni_sse", "uni_http_stream"];
    let paths = || NAMES.map(|name| format!("/connection/{name}"));
    // Each alone, all, and none.
    let cases = NAMES.map(|name| vec![name]).into_iter().chain([NAMES.to_vec(), vec![]]);
    for off in cases {
        let settings: String = off.iter().map(|name| format!("{name} = false\n")).collect();
        let served = Served::start(&format!("{CONFIG}[transports]\n{settings}"), |hub| hub).await;
        for path in paths() {
            let is_off = off.iter().any(|name| path == format!("/connection/{name}"));
            // None is a request that its path accepts, and each says why but one that is off.
            let request = Request::new("PUT", http(&served, &path));
            let status = Connector::new().request(request).await.unwrap().status;
            assert_eq!(status == 404, is_off, "{path} {off:?} {status}");
            assert!(is_off || (400..500).contains(&status), "{path} {status}");
        }
        served.connect().await;
    }
}

#[tokio::test]
async fn a_reload_turns_transports_off_and_open_connections_stay() {
    let served = serve().await;
    let (mut stream, _) = Stream::connect(&served, "/connection/http_stream", json!({})).await;
    let off =
        HubConfig::from_toml(&format!("{CONFIG}{WITH_API}[transports]\nhttp_stream = false\n")).unwrap();
    served.hub.reload(off).unwrap();
    assert!(stream.reply("subscribe", json!({ "channel": "chat:x" })).await["subscribe"].is_object());
    let request = Request::post(http(&served, "/connection/http_stream"), r#"{"id":1,"connect":{}}"#);
    assert_eq!(Connector::new().request(request).await.unwrap().status, 404);
}

#[tokio::test]
async fn server_sent_events_begin_with_a_parameter_too() {
    let served = serve().await;
    let connect = json!({ "id": 1, "connect": { "name": "a b" } }).to_string();
    let connect = percent_encoding::utf8_percent_encode(&connect, percent_encoding::NON_ALPHANUMERIC);
    let url = http(&served, &format!("/connection/sse?cf_connect={connect}"));
    let mut response = Connector::new().request(Request::get(url)).await.unwrap();
    assert_eq!(response.headers.get("content-type"), Some(&b"text/event-stream"[..]));
    let chunk = response.body.chunk().await.unwrap().unwrap();
    assert!(chunk.starts_with(b"data: {\"id\":1,\"connect\":{"), "{}", chunk.escape_ascii());
}

#[tokio::test]
async fn commands_in_a_url_change_nothing() {
    let served = serve().await;
    let connect = json!({ "id": 1, "connect": {} });
    let subscribe = json!({ "id": 2, "subscribe": { "channel": "chat:x" } });
    let publish = json!({ "channel": "chat:x", "data": 1 });
    for (command, status) in [
        (json!({}), 200),
        (subscribe.clone(), 200),
        (json!({ "id": 2, "publish": publish }), 400),
        (json!({ "id": 2, "rpc": {} }), 400),
        (json!({ "send": {} }), 400),
        (json!({ "id": 2, "unsubscribe": { "channel": "chat:x" } }), 400),
        // Two methods in one command.
        (json!({ "id": 2, "subscribe": { "channel": "chat:x" }, "send": {} }), 400),
    ] {
        for commands in [format!("{connect}\n{command}"), format!("{command}\n{connect}")] {
            let encoded =
                percent_encoding::utf8_percent_encode(&commands, percent_encoding::NON_ALPHANUMERIC);
            let url = http(&served, &format!("/connection/sse?cf_connect={encoded}"));
            let response = Connector::new().request(Request::get(url)).await.unwrap();
            assert_eq!(response.status, status, "{commands}");
        }
        // A body may have them: a page of another origin cannot send one without its `Origin`.
        let request = Request::post(http(&served, "/connection/sse"), format!("{connect}\n{command}"));
        assert_eq!(Connector::new().request(request).await.unwrap().status, 200, "{command}");
    }
    while served.hub.stats().publications == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(served.hub.stats().publications, 1);
}

#[tokio::test]
async fn a_navigation_from_another_site_opens_no_stream() {
    let origins = "[client]\nallowed_origins = [\"https://good.example\"]";
    let served = Served::start(&CONFIG.replace("[client]", origins), |hub| hub).await;
    for path in ["/connection/sse?cf_connect=%7B%7D", "/connection/uni_sse", "/connection/uni_http_stream"] {
        for (origin, site, status) in [
            (None, None, 200),
            (None, Some("same-origin"), 200),
            (None, Some("none"), 200),
            (None, Some("same-site"), 403),
            (None, Some("cross-site"), 403),
            (None, Some("of the future"), 403),
            (Some("https://good.example"), Some("cross-site"), 200),
            (Some("https://evil.example"), Some("same-origin"), 403),
        ] {
            let fields = [("Origin", origin), ("Sec-Fetch-Site", site)];
            let connector =
                fields.into_iter().fold(Connector::new(), |connector, (name, value)| match value {
                    Some(value) => connector.header(name, value),
                    None => connector,
                });
            let response = connector.request(Request::get(http(&served, path))).await.unwrap();
            assert_eq!(response.status, status, "{path} {origin:?} {site:?}");
        }
    }
}

#[tokio::test]
async fn http_streaming_speaks_protobuf() {
    let served = serve().await;
    let subscribe = SubscribeRequest { channel: "chat:x".into(), ..SubscribeRequest::default() };
    let first = [
        Command { id: 1, connect: Some(ConnectRequest::default()), ..Command::default() },
        Command { id: 2, subscribe: Some(subscribe), ..Command::default() },
    ];
    let first: Vec<u8> = first.iter().flat_map(Command::encode_length_delimited_to_vec).collect();
    let binary = |path: &str, body: Vec<u8>| {
        Request::post(http(&served, path), body).header("content-type", "application/octet-stream")
    };
    let mut response = Connector::new().request(binary("/connection/http_stream", first)).await.unwrap();
    let mut received = Vec::new();
    let mut replies: Vec<Reply> = Vec::new();
    let mut is_sent = false;
    while !replies.iter().any(|reply| reply.push.is_some()) {
        received.extend(response.body.chunk().await.unwrap().unwrap());
        let mut rest = Bytes::from(std::mem::take(&mut received));
        loop {
            let before = rest.clone();
            match Reply::decode_length_delimited(&mut rest) {
                Ok(reply) if !before.is_empty() => replies.push(reply),
                _ => break received = before.to_vec(),
            }
        }
        if let (false, Some(connected)) = (is_sent, replies.iter().find_map(|reply| reply.connect.as_ref())) {
            let publish = PublishRequest { channel: "chat:x".into(), data: Bytes::from_static(b"\xff\0") };
            let command = Command { id: 3, publish: Some(publish), ..Command::default() };
            let request = EmulationRequest {
                node: connected.node.clone(),
                session: connected.session.clone(),
                data: command.encode_length_delimited_to_vec().into(),
            };
            let sent = Connector::new().request(binary("/emulation", request.encode_to_vec())).await.unwrap();
            assert_eq!(sent.status, 204);
            is_sent = true;
        }
    }
    let push = replies.into_iter().find_map(|reply| reply.push).unwrap();
    assert_eq!(push.publication.unwrap().data, &b"\xff\0"[..]);
}

#[tokio::test]
async fn commands_beside_a_stream_are_bounded() {
    let begun = Arc::new(Notify::new());
    let goes_on = Arc::new(Notify::new());
    let of_hook = (begun.clone(), goes_on.clone());
    let config = CONFIG.replace("[client]", "[client]\nqueue_len_max = 30000\nstale_after = \"10m\"");
    let served = Served::start(&config, |hub| {
        hub.on_rpc(move |event| {
            let (begun, goes_on) = of_hook.clone();
            async move {
                begun.notify_one();
                goes_on.notified().await;
                Ok(event.data)
            }
        })
    })
    .await;
    let (mut stream, _) = Stream::connect(&served, "/connection/http_stream", json!({})).await;
    let command = |id: u32, len: usize| json!({ "id": id, "rpc": { "data": "x".repeat(len) } }).to_string();
    let empty = command(10, 0).len();
    // The bound of a message, in the request that opens a stream and in others. Half of its characters may be escaped.
    assert_eq!(stream.send(&command(10, 10_001 - empty)).await, 413);
    assert_eq!(stream.send(&"\"".repeat(10_001)).await, 413);
    assert_eq!(stream.send(&command(10, 10_000 - empty)).await, 204);
    begun.notified().await;
    for first in [json!({ "id": 1, "connect": { "data": "x".repeat(11_000) } }), json!({})] {
        let request = Request::post(http(&served, "/connection/http_stream"), first.to_string());
        let status = Connector::new().request(request).await.unwrap().status;
        assert_eq!(status, if first["id"] == 1 { 413 } else { 200 });
    }
    // While one is executed, others wait, up to the bound of the queue.
    assert_eq!(stream.send(&command(11, 9_000)).await, 204);
    assert_eq!(stream.send(&command(12, 9_000)).await, 204);
    assert_eq!(stream.send(&command(13, 9_000)).await, 429);
    for id in [10, 11, 12] {
        goes_on.notify_one();
        assert_eq!(stream.next().await["id"], id);
    }
    goes_on.notify_one();
    assert_eq!(stream.reply("rpc", json!({})).await["id"], 2);
}

#[tokio::test]
async fn requests_that_cannot_be_emulated_are_refused() {
    let served = serve().await;
    let (stream, connected) = Stream::connect(&served, "/connection/sse", json!({})).await;
    let (node, session) = (&connected["connect"]["node"], &connected["connect"]["session"]);
    let ask = async |body: String| {
        Connector::new().request(Request::post(http(&served, "/emulation"), body)).await.unwrap().status
    };
    for (body, status) in [
        ("".to_owned(), 400),
        ("[]".into(), 400),
        (json!({ "node": node, "session": session, "data": {} }).to_string(), 400),
        (json!({ "node": node, "session": "other", "data": "{}" }).to_string(), 404),
        (json!({ "node": node, "data": "{}" }).to_string(), 404),
        (json!({ "node": node, "session": session, "data": "{}" }).to_string(), 204),
        (json!({ "session": session, "data": "{}" }).to_string(), 204),
        (json!({ "node": "wl.control", "session": session, "data": "{}" }).to_string(), 404),
        (json!({ "node": "*", "session": session, "data": "{}" }).to_string(), 404),
    ] {
        assert_eq!(ask(body.clone()).await, status, "{body}");
    }
    for (path, allowed) in
        [("/emulation", "POST"), ("/connection/http_stream", "POST"), ("/connection/sse", "GET, POST")]
    {
        let request = Request::new("PUT", http(&served, path));
        let response = Connector::new().request(request).await.unwrap();
        let allow = response.headers.get("allow").map(|value| String::from_utf8_lossy(value).into_owned());
        assert_eq!((response.status, allow.as_deref()), (405, Some(allowed)), "{path}");
    }
    drop(stream);
}

#[tokio::test]
async fn pages_of_other_origins_need_permission_for_streams() {
    let origins = "[client]\nallowed_origins = [\"https://good.example\"]";
    let served = Served::start(&CONFIG.replace("[client]", origins), |hub| hub).await;
    for path in ["/connection/http_stream", "/connection/sse", "/connection/uni_sse", "/emulation"] {
        for (origin, host, is_allowed) in [
            (Some("https://good.example"), None, true),
            (Some("https://evil.example"), None, false),
            (Some("null"), None, false),
            // A name that a page lets resolve to this server.
            (None, Some("evil.example"), false),
        ] {
            let mut connector = Connector::new();
            if let Some(origin) = origin {
                connector = connector.header("Origin", origin);
            }
            if let Some(host) = host {
                connector = connector.host(host);
            }
            let asked = connector.request(Request::new("OPTIONS", http(&served, path))).await.unwrap();
            let header =
                |name| asked.headers.get(name).map(|value| String::from_utf8_lossy(value).into_owned());
            assert_eq!(asked.status, if is_allowed { 204 } else { 403 }, "{path} {origin:?} {host:?}");
            let allowed = origin.filter(|_| is_allowed).map(str::to_owned);
            assert_eq!(header("access-control-allow-origin"), allowed, "{path} {origin:?}");
            if is_allowed {
                assert_eq!(header("access-control-allow-headers").as_deref(), Some("content-type"));
                assert_eq!(header("vary").as_deref(), Some("Origin"));
            }
            // Not only pages that ask first.
            let request = Request::post(http(&served, path), "{}");
            let status = connector.request(request).await.unwrap().status;
            assert_eq!(status == 403, !is_allowed, "{path} {origin:?} {host:?}: {status}");
        }
    }
}

async fn receive(socket: &mut WebSocket) -> Value {
    let message = tokio::time::timeout(std::time::Duration::from_secs(20), socket.recv_owned()).await;
    serde_json::from_slice(message.unwrap().unwrap().unwrap().as_bytes()).unwrap()
}

#[tokio::test]
async fn pushes_arrive_over_a_websocket_alone() {
    let served = serve().await;
    let url = served.url.replace("/connection/websocket", "/connection/uni_websocket");
    let mut socket = wireloom::connect(&url).await.unwrap();
    socket.send(r#"{"subs":{"chat:x":{}}}"#).await.unwrap();
    let connect = receive(&mut socket).await;
    assert!(connect["connect"]["client"].is_string() && connect["connect"]["pong"].is_null(), "{connect}");
    assert!(receive(&mut socket).await["subscribe"].is_object());
    // Commands are ignored.
    socket.send(r#"{"id":1,"publish":{"channel":"chat:x","data":1}}"#).await.unwrap();
    served.hub.publish("chat:x", "2").await.unwrap();
    let push = receive(&mut socket).await;
    assert_eq!((&push["channel"], &push["pub"]["data"]), (&json!("chat:x"), &json!(2)), "{push}");
    api(&served, "disconnect", json!({ "user": "7" })).await;
    while let Ok(Some(_)) = socket.recv_owned().await {}
    assert_eq!(socket.end().unwrap().code().value(), 3503);
}

#[tokio::test]
async fn a_websocket_that_does_not_begin_with_a_connect_request_ends() {
    let served = serve().await;
    let url = served.url.replace("/connection/websocket", "/connection/uni_websocket");
    for (first, code) in [("[]", 3501), ("x", 3501), (r#"{"subs":{"nowhere:x":{}}}"#, 3507)] {
        let mut socket = wireloom::connect(&url).await.unwrap();
        socket.send(first).await.unwrap();
        while let Ok(Some(_)) = socket.recv_owned().await {}
        assert_eq!(socket.end().unwrap().code().value(), code, "{first}");
    }
}
