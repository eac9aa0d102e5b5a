//! A backend that decides by HTTP, with the requests and responses of Centrifugo's proxies.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use wireloom::client::Request;
use wireloom::{Connector, Response, Server};
use wireloom_hub::PublishOptions;

use super::streams::Stream;
use super::{Client, Served};

/// A call that the backend has received: the path, the body, and some header fields.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) path: String,
    /// The address of the connection.
    peer: std::net::SocketAddr,
    pub(crate) body: Value,
    pub(crate) secret: Vec<String>,
    pub(crate) cookie: Option<String>,
    other: Option<String>,
}

impl Call {
    fn new(request: &wireloom::Request, body: Value) -> Self {
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let secrets = request.headers().filter(|(name, _)| name.eq_ignore_ascii_case("x-secret"));
        Self {
            path: request.path().to_owned(),
            peer: request.peer(),
            body,
            secret: secrets.map(|(_, value)| text(value)).collect(),
            cookie: request.header("cookie").map(text),
            other: request.header("x-other").map(text),
        }
    }
}

/// The answers of a backend.
pub(crate) type Answers = fn(&Call) -> Value;

pub(crate) struct Backend {
    pub(crate) url: String,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Backend {
    pub(crate) async fn start(answers: Answers) -> Self {
        let server = Server::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", server.local_addr().unwrap());
        let calls = Arc::<Mutex<Vec<Call>>>::default();
        let (received, elsewhere) = (calls.clone(), format!("{url}/open"));
        tokio::spawn(server.serve(move |mut request: wireloom::Request| {
            let (received, elsewhere) = (received.clone(), elsewhere.clone());
            async move {
                let body = serde_json::from_slice(&request.bytes().await.unwrap()).unwrap();
                let call = Call::new(&request, body);
                received.lock().unwrap().push(call.clone());
                if call.path == "/slow" {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                }
                match &*call.path {
                    "/late" => std::future::pending().await,
                    "/huge" => {
                        let answer = json!({ "result": { "user": "7", "data": "x".repeat(2 << 20) } });
                        Response::new(200).with_body("application/json", answer.to_string())
                    }
                    "/redirect" => Response::text(307, "").with_header("Location", &elsewhere).unwrap(),
                    "/status" => Response::text(500, r#"{"result":{"user":"7"}}"#),
                    "/nothing" => Response::new(200).with_body("application/json", "{}"),
                    "/array" => Response::new(200).with_body("application/json", "[]"),
                    "/open" => Response::new(200).with_body("application/json", r#"{"result":{"user":"7"}}"#),
                    _ => Response::new(200).with_body("application/json", answers(&call).to_string()),
                }
            }
        }));
        Self { url, calls }
    }

    pub(crate) fn calls(&self, path: &str) -> Vec<Call> {
        self.calls.lock().unwrap().iter().filter(|call| call.path == path).cloned().collect()
    }

    /// The configuration of endpoints, each at the path of its name.
    fn config(&self, names: &[&str]) -> String {
        let section = |name: &&str| {
            let url = &self.url;
            format!(
                "[proxy.{name}]\nurl = \"{url}/{name}\"\nforward_headers = [\"Cookie\", \"X-Secret\"]\n\
                timeout = \"60s\"\nheaders = {{ X-Secret = \"own\" }}\n"
            )
        };
        names.iter().map(section).collect()
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[tokio::test]
async fn a_backend_decides_who_connects() {
    let backend = Backend::start(|call| match call.body["data"].as_str() {
        Some("in") => json!({ "result": {
            "user": "7", "info": { "name": "x" }, "data": [1], "channels": ["a"],
            "subs": { "b": { "data": 2, "override": { "presence": { "value": true } } } },
        } }),
        Some("error") => json!({ "error": { "code": 1001, "message": "later", "temporary": true } }),
        Some("go") => json!({ "disconnect": { "code": 4501, "reason": "go" } }),
        _ => json!({ "disconnect": { "code": 1000, "reason": "no code of the protocol" } }),
    })
    .await;
    let config = format!("{}\n[token]\nhmac_secret = \"secret\"\n", backend.config(&["connect"]));
    let served = Served::start(&config, |hub| hub).await;
    let connector = Connector::new()
        .header("Cookie", "session=1")
        .header("X-Secret", "forged")
        .header("X-Other", "not listed");
    let mut client = Client::new(connector.connect(&served.url).await.unwrap());
    let emulated = json!({ "X-Secret": "forged", "Cookie": "forged", "X-Other": "forged" });
    let request = json!({ "data": "in", "name": "js", "version": "1", "headers": emulated });
    let connected = client.call("connect", request).await;
    assert_eq!(connected["data"], json!([1]), "{connected}");
    assert!(connected["subs"]["a"].is_object(), "{connected}");
    assert_eq!(connected["subs"]["b"]["data"], 2, "{connected}");
    let call = backend.calls("/connect")[0].clone();
    let expected = json!({
        "client": connected["client"], "transport": "websocket", "protocol": "json", "encoding": "json",
        "name": "js", "version": "1", "data": "in",
    });
    assert_eq!(call.body, expected);
    // Only listed fields are forwarded, none replaces one of the configuration, and emulated ones replace none.
    let own = vec!["own".to_owned()];
    assert_eq!((call.cookie.as_deref(), call.other, call.secret), (Some("session=1"), None, own));

    let outcome = async |data: &str| {
        let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
        client.socket.send(&json!({ "id": 1, "connect": { "data": data } }).to_string()).await.unwrap();
        match client.socket.recv_owned().await {
            Ok(Some(message)) => {
                serde_json::from_slice::<Value>(message.as_bytes()).unwrap()["error"].clone()
            }
            _ => json!(client.socket.end().unwrap().code().value()),
        }
    };
    assert_eq!(outcome("error").await, json!({ "code": 1001, "message": "later", "temporary": true }));
    assert_eq!(outcome("go").await, 4501);
    assert_eq!(outcome("other").await["code"], 100);

    // A token needs no backend.
    use jsonwebtoken::{EncodingKey, Header, encode};
    let claims = json!({ "sub": "8" });
    let token = encode(&Header::default(), &claims, &EncodingKey::from_secret(b"secret")).unwrap();
    let before = backend.calls("/connect").len();
    let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
    client.call("connect", json!({ "token": token })).await;
    assert_eq!(backend.calls("/connect").len(), before);
}

/// A proxy in front of the hub may set and remove fields of requests, such as the user that it knows, but it does not see those.
#[tokio::test]
async fn fields_that_a_client_gives_are_taken_for_none_of_its_request() {
    let backend = Backend::start(|_| json!({ "result": { "user": "7", "data": 1 } })).await;
    let url = &backend.url;
    let config = format!(
        "[proxy.connect]\nurl = \"{url}/connect\"\nforward_headers = [\"X-Other\"]\nemulated_headers = [\"Cookie\"]\n\
        [rpc]\nurl = \"{url}/rpc\"\nforward_headers = [\"Cookie\", \"X-Other\"]\nemulated_headers = [\"X-Other\"]\n"
    );
    let served = Served::start(&config, |hub| hub).await;
    let given = json!({ "headers": { "x-other": "given", "COOKIE": "given" } });
    for (connector, of_connect, of_rpc) in [
        (Connector::new(), (Some("given"), None), (None, Some("given"))),
        (Connector::new().header("X-Other", "set"), (Some("given"), Some("set")), (None, Some("set"))),
    ] {
        let mut client = Client::new(connector.connect(&served.url).await.unwrap());
        client.call("connect", given.clone()).await;
        client.call("rpc", json!({ "method": "x" })).await;
        for (path, (cookie, other)) in [("/connect", of_connect), ("/rpc", of_rpc)] {
            let call = backend.calls(path).pop().unwrap();
            assert_eq!((call.cookie.as_deref(), call.other.as_deref()), (cookie, other), "{path}");
        }
    }
}

#[tokio::test]
async fn a_bad_backend_lets_nobody_in() {
    let backend = Backend::start(|_| json!({})).await;
    for path in ["late", "huge", "redirect", "status", "nothing", "array", "down"] {
        let url =
            if path == "down" { "http://127.0.0.1:1/".to_owned() } else { format!("{}/{path}", backend.url) };
        // Only one of them is to run into the timeout.
        let timeout = if path == "late" { "300ms" } else { "60s" };
        let config =
            format!("client.anonymous = true\n[proxy.connect]\nurl = \"{url}\"\ntimeout = \"{timeout}\"\n");
        let served = Served::start(&config, |hub| hub).await;
        let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
        let reply = client.reply("connect", json!({})).await;
        assert_eq!(reply["error"]["code"], 100, "{path}: {reply}");
        // The connection is not established, and may try again.
        assert_eq!(client.reply("connect", json!({})).await["error"]["code"], 100, "{path}");
    }
    assert!(backend.calls("/open").is_empty(), "a redirect was followed");
}

#[tokio::test]
async fn clients_without_replies_learn_whether_to_try_again() {
    use jsonwebtoken::{EncodingKey, Header, encode};
    let backend = Backend::start(|call| match &*call.path {
        "/temporary" => json!({ "error": { "code": 1001, "message": "later", "temporary": true } }),
        _ => json!({ "error": { "code": 1002, "message": "no" } }),
    })
    .await;
    let proxy = |url: &str| format!("[proxy.connect]\nurl = \"{url}\"\n");
    let secret = |secret: &str| format!("[token]\nhmac_secret = \"{secret}\"\n");
    let down = "http://127.0.0.1:1/";
    let later = now() + 600;
    // The expiry of a token, and the codes with which clients end.
    for (config, exp, code, close) in [
        (proxy(down), None, 3004, 1011),
        (proxy(&format!("{}/temporary", backend.url)), None, 3004, 1011),
        (proxy(&format!("{}/final", backend.url)), None, 3507, 1008),
        (format!("[token]\njwks_url = \"{down}\"\n"), Some(later), 3004, 1011),
        (secret("secret"), Some(1), 3005, 1013),
        (secret("other"), Some(later), 3500, 1008),
    ] {
        let rooms = "[[namespace]]\nname = \"rooms\"\nsubscribe = \"anyone\"\n";
        let served = Served::start(&(config.clone() + rooms), |hub| hub).await;
        let token = exp.map_or_else(String::new, |exp| {
            let header = Header { kid: Some("unknown".into()), ..Header::default() };
            encode(&header, &json!({ "sub": "7", "exp": exp }), &EncodingKey::from_secret(b"secret")).unwrap()
        });
        let url = served.url.replace("/connection/websocket", &format!("/rooms/x?token={token}"));
        let room = Client::new(wireloom::connect(&url).await.unwrap());
        assert_eq!(room.ended().await, close, "{config}");
        let url = served.url.replace("/connection/websocket", "/connection/uni_websocket");
        let mut client = Client::new(wireloom::connect(&url).await.unwrap());
        let first = json!({ "token": token }).to_string();
        client.socket.send(&first).await.unwrap();
        assert_eq!(client.ended().await, code, "{config}");
        let push = Stream::open(&served, "/connection/uni_sse", &first).await.next().await;
        let end = &push["disconnect"];
        assert_eq!(end["code"], code, "{config}: {push}");
        assert_eq!(end["reconnect"].as_bool().unwrap_or_default(), code < 3500, "{config}: {push}");
    }
}

#[tokio::test]
async fn a_backend_decides_who_subscribes_and_publishes() {
    let backend = Backend::start(|call| match (&*call.path, call.body["channel"].as_str()) {
        ("/subscribe", Some("asked:mine")) => json!({ "result": {
            "info": { "seat": 1 }, "data": { "topic": "x" }, "override": { "presence": { "value": true } },
        } }),
        ("/publish", Some("asked:mine")) if call.body["data"] == 1 => {
            json!({ "result": { "data": { "was": 1 }, "tags": { "k": "v" } } })
        }
        ("/publish", Some("asked:mine")) if call.body["data"] == 2 => {
            json!({ "result": { "skip_history": true } })
        }
        _ => json!({ "error": { "code": 403, "message": "no" } }),
    })
    .await;
    let namespaces = "[[namespace]]\nname = \"asked\"\nsubscribe = \"anyone\"\npublish = \"anyone\"\n\
        subscribe_proxy = true\npublish_proxy = true\nhistory_size = 9\nhistory_ttl = \"1h\"\n\
        presence = true\npresence_access = \"subscriber\"\nhistory_access = \"subscriber\"\n\
        [[namespace]]\nname = \"other\"\nsubscribe = \"anyone\"\n[client]\nanonymous = true\n";
    let served =
        Served::start(&format!("{}{namespaces}", backend.config(&["subscribe", "publish"])), |hub| hub).await;
    let mut client = served.connect().await;
    let reply = client.reply("subscribe", json!({ "channel": "asked:other" })).await;
    assert_eq!(reply["error"], json!({ "code": 403, "message": "no" }));
    let subscribed = client.call("subscribe", json!({ "channel": "asked:mine", "data": 5 })).await;
    assert_eq!(subscribed["data"], json!({ "topic": "x" }));
    let call = &backend.calls("/subscribe")[1];
    assert_eq!((&call.body["channel"], &call.body["data"]), (&json!("asked:mine"), &json!(5)), "{call:?}");
    // Private channels need a token, and other namespaces no backend.
    assert_eq!(client.reply("subscribe", json!({ "channel": "$asked:mine" })).await["error"]["code"], 103);
    client.call("subscribe", json!({ "channel": "other:x" })).await;
    assert_eq!(backend.calls("/subscribe").len(), 2);

    for data in [1, 2] {
        client.call("publish", json!({ "channel": "asked:mine", "data": data })).await;
    }
    let reply = client.reply("publish", json!({ "channel": "asked:mine", "data": 3 })).await;
    assert_eq!(reply["error"]["code"], 403, "{reply}");
    assert_eq!(client.publications, [json!({ "was": 1 }), json!(2)]);
    let history = client.call("history", json!({ "channel": "asked:mine", "limit": -1 })).await;
    assert_eq!(history["publications"].as_array().unwrap().len(), 1, "{history}");
    let kept = &history["publications"][0];
    assert_eq!((&kept["info"]["chan_info"], &kept["tags"]), (&json!({ "seat": 1 }), &json!({ "k": "v" })));
}

/// A client that did not receive the answer publishes again.
#[tokio::test]
async fn a_backend_recognises_a_repeated_publication() {
    let backend =
        Backend::start(|call| json!({ "result": { "idempotency_key": call.body["data"]["key"] } })).await;
    let namespace = "client.anonymous = true\n[channel]\nsubscribe = \"anyone\"\npublish_proxy = true\nhistory_size = 9\n\
        history_ttl = \"1h\"\n";
    let config = format!("{namespace}{}", backend.config(&["publish"]));
    let served = Served::start(&config, |hub| hub).await;
    let mut client = served.connect().await;
    client.call("subscribe", json!({ "channel": "a" })).await;
    let publication = |number: u32, key: Value| json!({ "number": number, "key": key });
    for (number, key) in
        [(1, json!("a")), (2, json!("a")), (3, json!("b")), (4, Value::Null), (5, Value::Null)]
    {
        client.call("publish", json!({ "channel": "a", "data": publication(number, key) })).await;
    }
    let numbers: Vec<_> = client.publications.iter().map(|one| one["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [1, 3, 4, 5]);
    let long = publication(6, json!("x".repeat(129)));
    assert_eq!(client.reply("publish", json!({ "channel": "a", "data": long })).await["error"]["code"], 100);
}

/// As a backend in Go writes empty lists and pointers that point to nothing.
#[tokio::test]
async fn members_of_an_answer_may_be_null() {
    let backend = Backend::start(|call| match &*call.path {
        "/connect" => json!({ "error": null, "disconnect": null, "result": {
            "user": "7", "expire_at": null, "info": null, "b64info": null, "data": null, "b64data": null, "channels": null,
            "subs": { "asked:y": { "info": null, "data": null, "expire_at": null, "override": null }, "asked:z": null },
            "meta": null, "caps": null,
        } }),
        "/subscribe" => json!({ "result": {
            "info": null, "data": null, "expire_at": null, "server_tags_filter": null, "allow": null,
            "override": { "presence": null, "join_leave": { "value": null } },
        } }),
        _ => json!({ "result": { "data": null, "skip_history": null, "tags": { "a": null } } }),
    })
    .await;
    let namespace = "[[namespace]]\nname = \"asked\"\nsubscribe_proxy = true\npublish_proxy = true\n";
    let config = format!("{}{namespace}", backend.config(&["connect", "subscribe", "publish"]));
    let served = Served::start(&config, |hub| hub).await;
    let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
    let connected = client.call("connect", json!({})).await;
    assert!(connected["subs"]["asked:y"].is_object() && connected["expires"].is_null(), "{connected}");
    assert!(connected["subs"]["asked:z"].is_object(), "{connected}");
    client.call("subscribe", json!({ "channel": "asked:x" })).await;
    client.call("publish", json!({ "channel": "asked:x", "data": 1 })).await;
    assert_eq!(client.publications, [json!(1)]);
}

/// The client did not ask for the filter, and one of its own does not widen that.
#[tokio::test]
async fn a_backend_keeps_publications_with_other_tags_from_a_subscriber() {
    let backend = Backend::start(|call| {
        let filter = |region: &str| json!({ "key": "region", "cmp": "eq", "val": region });
        match (&*call.path, call.body["channel"].as_str(), call.body["data"].as_str()) {
            ("/connect", _, Some("subs")) => {
                json!({ "result": { "user": "7", "subs": { "asked:x": { "server_tags_filter": filter("eu") } } } })
            }
            ("/connect", ..) => json!({ "result": { "user": "7" } }),
            (_, Some("asked:x"), _) => json!({ "result": { "server_tags_filter": filter("eu") } }),
            (_, Some("asked:null"), _) => {
                json!({ "result": { "server_tags_filter": { "op": "and", "nodes": [null] } } })
            }
            _ => json!({ "result": { "server_tags_filter": { "op": "or" } } }),
        }
    })
    .await;
    let namespace = "[[namespace]]\nname = \"asked\"\nsubscribe_proxy = true\nhistory_size = 9\nhistory_ttl = \"1h\"\n\
        force_recovery = true\nallow_tags_filter = true\nallowed_delta_types = [\"fossil\"]\n";
    let served =
        Served::start(&format!("{}{namespace}", backend.config(&["connect", "subscribe"])), |hub| hub).await;
    let subscribe = |more: Value| {
        let mut subscribe = json!({ "channel": "asked:x", "recover": true });
        subscribe.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        subscribe
    };
    let publish = async |data: u32, region: &str| {
        let mut options = PublishOptions::default();
        options.tags.insert("region".into(), region.into());
        served.hub.publish_with("asked:x", data.to_string(), options).await.unwrap();
    };
    publish(1, "eu").await;
    publish(2, "us").await;
    let asks = [
        json!({}),
        json!({ "delta": "fossil" }),
        json!({ "tf": { "op": "or", "nodes": [
            { "key": "region", "cmp": "eq", "val": "us" }, { "key": "region", "cmp": "eq", "val": "eu" },
        ] } }),
    ];
    let mut clients = Vec::new();
    for ask in asks {
        let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
        client.call("connect", json!({})).await;
        let subscribed = client.call("subscribe", subscribe(ask)).await;
        let recovered: Vec<_> =
            subscribed["publications"].as_array().unwrap().iter().map(|one| &one["data"]).collect();
        assert_eq!(recovered, [&json!(1)], "{subscribed}");
        clients.push(client);
    }
    let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
    let connected = client.call("connect", json!({ "data": "subs" })).await;
    assert!(connected["subs"]["asked:x"].is_object(), "{connected}");
    clients.push(client);
    publish(3, "us").await;
    publish(4, "eu").await;
    for client in &mut clients {
        client.call("ping", json!({})).await;
        assert_eq!(client.publications, [json!(4)]);
    }
    // An invalid answer admits no client.
    for channel in ["asked:empty", "asked:null"] {
        let refused = clients[0].reply("subscribe", json!({ "channel": channel })).await;
        assert_eq!(refused["error"]["code"], 100, "{refused}");
    }
}

#[tokio::test]
async fn a_backend_renews_connections_and_subscriptions() {
    let backend = Backend::start(|call| match &*call.path {
        "/connect" => json!({ "result": { "user": call.body["data"], "expire_at": now() + 1 } }),
        "/subscribe" => json!({ "result": { "expire_at": now() + 1 } }),
        "/refresh" if call.body["user"] == "stays" => json!({ "result": { "expire_at": now() + 600 } }),
        "/sub_refresh" if call.body["channel"] == "kept" => json!({ "result": { "expire_at": now() + 600 } }),
        _ => json!({ "result": { "expired": true } }),
    })
    .await;
    let options =
        "[channel]\nsubscribe_proxy = true\nsub_refresh_proxy = true\n[client]\nexpired_grace = \"30s\"\n";
    let config = backend.config(&["connect", "refresh", "subscribe", "sub_refresh"]) + options;
    let served = Served::start(&config, |hub| hub).await;
    let mut stays = Client::new(wireloom::connect(&served.url).await.unwrap());
    let connected = stays.call("connect", json!({ "data": "stays" })).await;
    // The client need not renew.
    assert!(connected["expires"].is_null(), "{connected}");
    for channel in ["kept", "ended"] {
        let subscribed = stays.call("subscribe", json!({ "channel": channel })).await;
        assert!(subscribed["expires"].is_null(), "{subscribed}");
    }
    let mut leaves = Client::new(wireloom::connect(&served.url).await.unwrap());
    leaves.call("connect", json!({ "data": "leaves" })).await;
    let ended = loop {
        let push = stays.receive().await["push"].clone();
        if !push["unsubscribe"].is_null() {
            break push;
        }
    };
    assert_eq!((&ended["channel"], &ended["unsubscribe"]["code"]), (&json!("ended"), &json!(2501)));
    assert_eq!(leaves.ended().await, 3005);
    let renewed = async {
        while backend.calls("/refresh").len() < 2 || backend.calls("/sub_refresh").len() < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), renewed).await.unwrap();
    stays.call("ping", json!({})).await;
}

/// A client that always has another publication to send, by the client protocol and in a room: each is paced for longer than an expired
/// token is accepted.
#[tokio::test]
async fn a_client_that_is_never_idle_is_renewed() {
    let backend = Backend::start(|call| match &*call.path {
        "/connect" => json!({ "result": { "user": "7", "expire_at": now() + 1 } }),
        _ => json!({ "result": { "expire_at": now() + 600 } }),
    })
    .await;
    let options = "[client]\nexpired_grace = \"3s\"\nqueue_len_max = 1600\n[[namespace]]\nname = \"rooms\"\n\
        subscribe = \"client\"\npublish = \"client\"\npublication_bytes_per_s_max = 800\n";
    let config = backend.config(&["connect", "refresh"]) + options;
    let served = Served::start(&config, |hub| hub).await;
    let data = "x".repeat(4_000);
    let mut socket = wireloom::connect(&served.url).await.unwrap();
    socket.send(r#"{"id":1,"connect":{}}"#).await.unwrap();
    for id in 2..5 {
        let publish = json!({ "id": id, "publish": { "channel": "rooms:x", "data": data } });
        socket.send(&publish.to_string()).await.unwrap();
    }
    let mut room = wireloom::connect(&served.url.replace("/connection/websocket", "/rooms/y")).await.unwrap();
    for _ in 0..3 {
        room.send(&data).await.unwrap();
    }
    for (socket, count) in [(&mut socket, 4), (&mut room, 3)] {
        for _ in 0..count {
            let received = tokio::time::timeout(Duration::from_secs(30), socket.recv_owned()).await.unwrap();
            assert!(received.unwrap().is_some(), "{:?}", socket.end());
        }
    }
    assert_eq!(backend.calls("/refresh").len(), 2);
}

#[tokio::test]
async fn rooms_and_event_streams_ask_the_same_backend() {
    let backend = Backend::start(|call| match call.cookie.as_deref() {
        Some("let me in") => json!({ "result": { "user": "7" } }),
        _ => json!({ "disconnect": { "code": 4001, "reason": "no" } }),
    })
    .await;
    let rooms = "[[namespace]]\nname = \"rooms\"\nsubscribe = \"client\"\npublish = \"client\"\n";
    let served = Served::start(&(backend.config(&["connect"]) + rooms), |hub| hub).await;
    let room = served.url.replace("/connection/websocket", "/rooms/x");
    let stream =
        served.url.replace("ws://", "http://").replace("/connection/websocket", "/connection/uni_sse");
    for (cookie, is_in) in [("let me in", true), ("other", false)] {
        let connector = Connector::new().header("Cookie", cookie);
        let mut socket = connector.connect(&room).await.unwrap();
        let _ = socket.send("1").await;
        let received = tokio::time::timeout(Duration::from_secs(20), socket.recv_owned()).await.unwrap();
        assert_eq!(received.is_ok_and(|message| message.is_some()), is_in, "{cookie}");
        let request = Request::post(&stream, r#"{"subs":{"rooms:x":{}}}"#);
        let mut body = connector.request(request).await.unwrap().body;
        let mut text = String::new();
        while !text.contains("\"subscribe\":") && !text.contains("\"disconnect\":") {
            text.push_str(std::str::from_utf8(&body.chunk().await.unwrap().unwrap()).unwrap());
        }
        assert_eq!(text.contains("4001"), !is_in, "{cookie}: {text}");
    }
    let transports: Vec<_> =
        backend.calls("/connect").iter().map(|call| call.body["transport"].clone()).collect();
    assert_eq!(transports, ["room", "uni_sse", "room", "uni_sse"]);
}

#[tokio::test]
async fn endpoints_that_cannot_work_are_refused() {
    use wireloom_hub::{Hub, HubConfig};
    for (text, reason) in [
        ("[proxy.connect]\nurl = \"ftp://a/\"", "proxy.connect.url"),
        ("[rpc]\nurl = \"http://\"", "rpc.url"),
        ("[proxy.refresh]\nurl = \"http://a\"\ntimeout = \"0s\"", "proxy.refresh.timeout"),
        ("[proxy.connect]\nurl = \"http://a\"\nforward_headers = [\"Host\"]", "\"Host\" cannot be sent"),
        ("[proxy.connect]\nurl = \"http://a\"\nemulated_headers = [\"Te\"]", "\"Te\" cannot be sent"),
        ("[proxy.connect]\nurl = \"http://a\"\nheaders = { \"a b\" = \"\" }", "\"a b\" cannot be sent"),
        ("[proxy.connect]\nurl = \"http://a\"\nheaders = { a = \"b\\r\\nc: d\" }", "the value of the header"),
        ("[channel]\nsubscribe_proxy = true", "needs proxy.subscribe.url"),
    ] {
        let built = HubConfig::from_toml(text).and_then(|config| Hub::builder().config(config).build());
        let error = built.unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[tokio::test]
async fn calls_over_http1_share_a_connection() {
    let backend = Backend::start(|_| json!({ "result": { "data": 1 } })).await;
    let url = &backend.url;
    let config = format!(
        "client.anonymous = true\n[rpc]\nurl = \"{url}/rpc\"\n[proxy.publish]\nurl = \"{url}/publish\"\n[channel]\npublish_proxy = true\n"
    );
    let served = Served::start(&config, |hub| hub).await;
    let mut client = served.connect().await;
    for _ in 0..20 {
        client.call("rpc", json!({ "method": "m" })).await;
        client.call("publish", json!({ "channel": "a", "data": 2 })).await;
    }
    for path in ["/rpc", "/publish"] {
        let calls = backend.calls(path);
        assert_eq!(calls.len(), 20);
        assert!(calls.iter().all(|call| call.peer == calls[0].peer), "{path}: {calls:?}");
    }
}
