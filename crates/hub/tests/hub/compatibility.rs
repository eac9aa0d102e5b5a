//! Features that `docs/src/hub-compatibility.md` lists and no other test covers, and the page itself.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jsonwebtoken::{EncodingKey, Header, encode};
use prost::Message as _;
use serde_json::{Value, json};
use wireloom::client::Request;
use wireloom::{Connector, WebSocket};
use wireloom_hub::PublishOptions;
use wireloom_hub::protocol::{Command, ConnectRequest, PingRequest, PublishRequest, Reply, SubscribeRequest};

use super::{CONFIG, Client, Served};

const MORE: &str = r#"
[api]
key = "key"

[[namespace]]
name = "rooms"
subscribe = "anyone"
publish = "anyone"

[[namespace]]
name = "log"
subscribe = "anyone"
publish = "anyone"
history_size = 2000
history_ttl = "1h"
history_access = "anyone"

[[namespace]]
name = "loud"
subscribe = "anyone"
presence = true
presence_access = "anyone"
join_leave = true
force_push_join_leave = true
"#;

async fn serve() -> Served {
    Served::start(&format!("{CONFIG}{MORE}"), |hub| hub).await
}

fn token(claims: &Value) -> String {
    encode(&Header::default(), claims, &EncodingKey::from_secret(b"secret")).unwrap()
}

async fn as_user(served: &Served, claims: &Value) -> (Client, Value) {
    let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
    let connected = client.call("connect", json!({ "token": token(claims) })).await;
    (client, connected)
}

fn http(served: &Served, path: &str) -> String {
    served.url.replace("ws://", "http://").replace("/connection/websocket", path)
}

/// The answer of the server API.
async fn api(served: &Served, method: &str, request: Value) -> Value {
    let request = Request::post(http(served, &format!("/api/{method}")), request.to_string());
    let mut response = Connector::new().request(request.header("x-api-key", "key")).await.unwrap();
    assert_eq!(response.status, 200, "{method}");
    serde_json::from_slice(&response.body.bytes().await.unwrap()).unwrap()
}

/// A connection that speaks Protobuf.
async fn protobuf(served: &Served) -> WebSocket {
    Connector::new().subprotocol("centrifuge-protobuf").connect(&served.url).await.unwrap()
}

async fn reply(socket: &mut WebSocket) -> Reply {
    let received = tokio::time::timeout(std::time::Duration::from_secs(20), socket.recv_owned()).await;
    let message = received.expect("a message within 20 s").unwrap().unwrap();
    Reply::decode_length_delimited(message.as_bytes()).unwrap()
}

/// The next push with this field.
async fn push(client: &mut Client, field: &str) -> Value {
    loop {
        let reply = client.receive().await;
        if !reply["push"][field].is_null() {
            return reply["push"].clone();
        }
    }
}

/// The files below a folder, one text.
fn text_of(folder: &Path) -> String {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let texts = files.map(|path| match path.extension().and_then(|name| name.to_str()) {
        _ if path.is_dir() => text_of(&path),
        Some("rs" | "mjs" | "py" | "go") => std::fs::read_to_string(&path).unwrap(),
        _ => String::new(),
    });
    texts.collect()
}

#[test]
fn each_row_of_the_page_names_a_test_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/src/hub-compatibility.md")).unwrap();
    let tests =
        ["crates/hub/src", "crates/hub/tests", "conformance/hub"].map(|folder| text_of(&root.join(folder)));
    let mut rows = 0;
    for row in page.lines().filter(|line| line.contains("| ✓ |")) {
        rows += 1;
        let (_, named) = row.trim_end_matches([' ', '|']).rsplit_once(" | ").unwrap();
        assert!(named.starts_with('`'), "no test: {row}");
        for name in named.split(", `").map(|name| name.trim_matches('`')) {
            let forms = ["fn NAME(", "def NAME(", "func NAME(", "NAME'", "NAME`"]
                .map(|form| form.replace("NAME", name));
            assert!(forms.iter().any(|form| tests.iter().any(|text| text.contains(form))), "{name}: {row}");
        }
    }
    assert!(rows > 15, "{rows} rows");
}

#[tokio::test]
async fn the_commands_of_a_batch_are_answered_in_order() {
    let served = serve().await;
    let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
    let batch = [
        json!({ "id": 1, "connect": {} }),
        json!({ "id": 2, "subscribe": { "channel": "chat:x" } }),
        json!({ "id": 3, "publish": { "channel": "chat:x", "data": 5 } }),
        json!({ "id": 4, "ping": {} }),
    ];
    client.socket.send(&batch.map(|command| command.to_string()).join("\n")).await.unwrap();
    let mut ids = Vec::new();
    while ids.len() < 4 {
        ids.extend(client.receive().await["id"].as_u64());
    }
    assert_eq!(ids, [1, 2, 3, 4]);
    assert_eq!(client.publications, [5]);

    let mut socket = protobuf(&served).await;
    let subscribe = SubscribeRequest { channel: "chat:x".into(), ..SubscribeRequest::default() };
    let publish = PublishRequest { channel: "chat:x".into(), data: Bytes::from_static(b"6") };
    let batch = [
        Command { id: 1, connect: Some(ConnectRequest::default()), ..Command::default() },
        Command { id: 2, subscribe: Some(subscribe), ..Command::default() },
        Command { id: 3, publish: Some(publish), ..Command::default() },
    ];
    let bytes: Vec<u8> = batch.iter().flat_map(Command::encode_length_delimited_to_vec).collect();
    socket.send(&bytes).await.unwrap();
    let (mut ids, mut publications) = (Vec::new(), Vec::new());
    while ids.len() < 3 || publications.is_empty() {
        let reply = reply(&mut socket).await;
        match reply.push {
            Some(push) => publications.extend(push.publication.map(|publication| publication.data)),
            None => ids.push(reply.id),
        }
    }
    assert_eq!((ids, publications), (vec![1, 2, 3], vec![Bytes::from_static(b"6")]));
}

#[tokio::test]
async fn a_history_command_returns_at_most_a_thousand_publications() {
    let served = serve().await;
    for n in 1..=1_005 {
        served.hub.publish("log:x", n.to_string()).await.unwrap();
    }
    let mut client = served.connect().await;
    let all = client.call("history", json!({ "channel": "log:x", "limit": -1 })).await;
    let offsets = |history: &Value| -> Vec<u64> {
        let publications = history["publications"].as_array();
        publications.into_iter().flatten().map(|one| one["offset"].as_u64().unwrap()).collect()
    };
    assert_eq!(offsets(&all), (1..=1_000).collect::<Vec<_>>());
    assert_eq!(all["offset"], 1_005);
    let since = json!({ "offset": 1_000, "epoch": all["epoch"] });
    let rest = client.call("history", json!({ "channel": "log:x", "limit": -1, "since": since })).await;
    assert_eq!(offsets(&rest), [1_001, 1_002, 1_003, 1_004, 1_005]);
    let newest = client.call("history", json!({ "channel": "log:x", "limit": 2, "reverse": true })).await;
    assert_eq!(offsets(&newest), [1_005, 1_004]);
    assert!(offsets(&client.call("history", json!({ "channel": "log:x" })).await).is_empty());
    let elsewhere = json!({ "channel": "log:x", "limit": 1, "since": { "offset": 1, "epoch": "other" } });
    assert_eq!(client.reply("history", elsewhere).await["error"]["code"], 112);
}

#[tokio::test]
async fn joins_and_leaves_are_pushed_to_all_where_the_namespace_forces_it() {
    let served = serve().await;
    let mut client = served.connect().await;
    client.call("subscribe", json!({ "channel": "loud:x" })).await;
    let mut other = served.connect().await;
    other.call("subscribe", json!({ "channel": "loud:x" })).await;
    let joined = push(&mut client, "join").await;
    let listed = client.call("presence", json!({ "channel": "loud:x" })).await;
    let id = joined["join"]["info"]["client"].as_str().unwrap();
    assert!(listed["presence"][id].is_object(), "{listed}");
    drop(other);
    assert_eq!(push(&mut client, "leave").await["leave"]["info"]["client"], id);

    // Where it does not, only clients that ask for it receive them.
    client.call("subscribe", json!({ "channel": "chat:x" })).await;
    let mut other = served.connect().await;
    other.call("subscribe", json!({ "channel": "chat:x", "join_leave": true })).await;
    other.call("publish", json!({ "channel": "chat:x", "data": 1 })).await;
    let push = loop {
        let reply = client.receive().await;
        if !reply["push"].is_null() {
            break reply["push"].clone();
        }
    };
    assert!(push["join"].is_null() && push["pub"].is_object(), "{push}");
}

#[tokio::test]
async fn a_token_subscribes_its_connection() {
    let served = serve().await;
    let claims = json!({ "sub": "7", "channels": ["log:a"], "subs": { "private:b": { "data": 3 } } });
    let (mut client, connected) = as_user(&served, &claims).await;
    assert!(connected["subs"]["log:a"].is_object(), "{connected}");
    assert_eq!(connected["subs"]["private:b"]["data"], 3, "{connected}");
    served.hub.publish("private:b", "1").await.unwrap();
    assert_eq!(push(&mut client, "pub").await["channel"], "private:b");
    // The server made it: the client cannot end it.
    assert_eq!(client.reply("unsubscribe", json!({ "channel": "log:a" })).await["error"]["code"], 103);
}

#[tokio::test]
async fn a_token_sets_options_of_its_subscription() {
    let seen = "[[namespace]]\nname = \"seen\"\npresence = true\n";
    let served = Served::start(&format!("{CONFIG}{MORE}{seen}"), |hub| hub).await;
    let hidden = json!({ "presence": { "value": false } });
    let subs = json!({ "seen:x": { "override": hidden }, "seen:w": { "override": null } });
    let (mut client, _) = as_user(&served, &json!({ "sub": "7", "channels": null, "subs": subs })).await;
    let by_token = token(&json!({ "sub": "7", "channel": "seen:y", "override": hidden }));
    client.call("subscribe", json!({ "channel": "seen:y", "token": by_token })).await;
    for (channel, clients) in [("seen:w", 1), ("seen:x", 0), ("seen:y", 0)] {
        let counted = api(&served, "presence_stats", json!({ "channel": channel })).await;
        assert_eq!(counted["result"]["num_clients"], clients, "{channel}: {counted}");
    }
}

#[tokio::test]
async fn expiries_may_be_as_late_as_numbers_are() {
    let served = serve().await;
    let (mut client, connected) = as_user(&served, &json!({ "sub": "7", "exp": u64::MAX })).await;
    assert_eq!((&connected["expires"], &connected["ttl"]), (&json!(true), &json!(u32::MAX)));
    let token = token(&json!({ "sub": "7", "channel": "private:x", "exp": u64::MAX }));
    let subscribed = client.call("subscribe", json!({ "channel": "private:x", "token": token })).await;
    assert_eq!((&subscribed["expires"], &subscribed["ttl"]), (&json!(true), &json!(u32::MAX)));
    api(&served, "refresh", json!({ "user": "7", "expire_at": u64::MAX })).await;
    assert_eq!(push(&mut client, "refresh").await["refresh"], json!({ "expires": true, "ttl": u32::MAX }));
    client.call("ping", json!({})).await;
}

#[tokio::test]
async fn channels_that_name_users_are_for_them() {
    let limited = CONFIG.replace("name = \"chat\"", "name = \"chat\"\nallow_user_limited_channels = true");
    let served = Served::start(&limited, |hub| hub).await;
    for (user, channel, code) in [
        ("7", "chat:x#7", None),
        ("7", "chat:x#6,7", None),
        ("7", "chat:x#77", Some(103)),
        ("7", "chat:x#6,8", Some(103)),
        ("", "chat:x#", Some(103)),
        ("7", "$chat:x", Some(103)),
    ] {
        let (mut client, _) = as_user(&served, &json!({ "sub": user })).await;
        let reply = client.reply("subscribe", json!({ "channel": channel })).await;
        assert_eq!(reply["error"]["code"].as_u64(), code, "{user} {channel}: {reply}");
    }
    let (mut client, _) = as_user(&served, &json!({ "sub": "7" })).await;
    let token = token(&json!({ "sub": "7", "channel": "$chat:x" }));
    client.call("subscribe", json!({ "channel": "$chat:x", "token": token })).await;
}

#[tokio::test]
async fn a_client_does_not_renew_what_the_server_has_made() {
    let served = serve().await;
    let (mut client, _) = as_user(&served, &json!({ "sub": "7", "channels": ["chat:x"] })).await;
    let of_channel = |channel: &str| token(&json!({ "sub": "7", "channel": channel }));
    client.call("subscribe", json!({ "channel": "chat:y", "token": of_channel("chat:y") })).await;
    client.call("sub_refresh", json!({ "channel": "chat:y", "token": of_channel("chat:y") })).await;
    let reply =
        client.reply("sub_refresh", json!({ "channel": "chat:x", "token": of_channel("chat:x") })).await;
    assert_eq!(reply["error"]["code"], 103, "{reply}");
}

#[tokio::test]
async fn errors_have_the_codes_of_the_protocol() {
    let served = serve().await;
    let mut client = served.connect().await;
    client.call("subscribe", json!({ "channel": "chat:x" })).await;
    let expired = token(&json!({ "sub": "", "exp": 1 }));
    let own = token(&json!({ "sub": "", "channel": "chat:x", "exp": 1 }));
    for (method, request, code) in [
        ("subscribe", json!({ "channel": "chat:x" }), 105),
        ("subscribe", json!({ "channel": "" }), 107),
        ("unsubscribe", json!({}), 107),
        ("publish", json!({ "channel": "chat:x" }), 107),
        ("presence", json!({ "channel": "chat:x" }), 108),
        ("history", json!({ "channel": "nowhere:x" }), 102),
        ("refresh", json!({}), 107),
        ("refresh", json!({ "token": expired }), 109),
        ("sub_refresh", json!({ "channel": "chat:x", "token": own }), 109),
        ("sub_refresh", json!({ "channel": "chat:y", "token": own }), 103),
    ] {
        let reply = client.reply(method, request.clone()).await;
        assert_eq!(reply["error"]["code"], code, "{method} {request}: {reply}");
    }
    let mut late = Client::new(wireloom::connect(&served.url).await.unwrap());
    assert_eq!(late.reply("connect", json!({ "token": expired })).await["error"]["code"], 109);
}

#[tokio::test]
async fn a_client_whose_history_is_removed_starts_again() {
    let served = serve().await;
    let mut client = served.connect().await;
    let subscribe = json!({ "channel": "log:x", "recoverable": true });
    client.call("subscribe", subscribe).await;
    assert_eq!(api(&served, "history_remove", json!({ "channel": "log:x" })).await, json!({ "result": {} }));
    let push = push(&mut client, "unsubscribe").await;
    assert_eq!(push["unsubscribe"], json!({ "code": 2500, "reason": "insufficient state" }));
}

/// SDKs subscribe again after 2500 only to what they have asked for, and other clients have no command for it.
#[tokio::test]
async fn connections_that_cannot_subscribe_again_end_when_the_history_is_removed() {
    let forced = "name = \"kept\"\nsubscribe = \"anyone\"\nhistory_size = 9\nhistory_ttl = \"1h\"\nforce_recovery = true";
    let rooms = forced.replace("kept", "rooms");
    let config = format!("{CONFIG}[api]\nkey = \"key\"\n[[namespace]]\n{forced}\n[[namespace]]\n{rooms}\n");
    let served = Served::start(&config, |hub| hub).await;
    let (server_side, connected) = as_user(&served, &json!({ "sub": "7", "channels": ["kept:x"] })).await;
    assert_eq!(connected["subs"]["kept:x"]["recoverable"], true, "{connected}");
    let request = Request::post(http(&served, "/connection/uni_sse"), r#"{"subs":{"kept:x":{}}}"#);
    let mut events = Connector::new().request(request).await.unwrap().body;
    let room = wireloom::connect(&served.url.replace("/connection/websocket", "/rooms/x")).await.unwrap();
    while served.hub.stats().channels < 2
        || api(&served, "info", json!({})).await["result"]["nodes"][0]["num_subs"] != 3
    {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    for channel in ["kept:x", "rooms:x"] {
        api(&served, "history_remove", json!({ "channel": channel })).await;
    }
    assert_eq!(server_side.ended().await, 3010);
    assert_eq!(Client::new(room).ended().await, 1013);
    let all = tokio::time::timeout(std::time::Duration::from_secs(20), events.bytes()).await;
    let all = all.expect("the end of the events within 20 s").unwrap();
    let all = std::str::from_utf8(&all).unwrap();
    assert!(all.contains(r#"{"code":3010,"reason":"insufficient state","reconnect":true}"#), "{all}");
    served.has_ended(3010, 3).await;
}

#[tokio::test]
async fn rights_of_a_namespace_apply_to_each_kind_of_client() {
    for (access, anonymous, user, subscriber) in [
        ("anyone", true, true, true),
        ("client", false, true, true),
        ("subscriber", false, false, true),
        ("subscribed-client", false, false, true),
        ("token", false, false, false),
    ] {
        let namespace = format!(
            "[[namespace]]\nname = \"own\"\nsubscribe = \"client\"\npublish = \"{access}\"\npresence = true\n\
            presence_access = \"{access}\"\nhistory_size = 1\nhistory_ttl = \"1m\"\nhistory_access = \"{access}\"\n"
        );
        let served = Served::start(&format!("{CONFIG}{namespace}"), |hub| hub).await;
        let mut clients = [
            (served.connect().await, anonymous),
            (as_user(&served, &json!({ "sub": "1" })).await.0, user),
            (as_user(&served, &json!({ "sub": "2" })).await.0, subscriber),
        ];
        assert_eq!(
            clients[0].0.reply("subscribe", json!({ "channel": "own:x" })).await["error"]["code"],
            103
        );
        clients[2].0.call("subscribe", json!({ "channel": "own:x" })).await;
        for (client, may) in &mut clients {
            for method in ["publish", "presence", "presence_stats", "history"] {
                let reply = client.reply(method, json!({ "channel": "own:x", "data": 1 })).await;
                let code = if *may { None } else { Some(103) };
                assert_eq!(reply["error"]["code"].as_u64(), code, "{access} {method}: {reply}");
            }
        }
    }
}

#[tokio::test]
async fn publications_have_tags_and_bytes() {
    let served = serve().await;
    let mut client = served.connect().await;
    client.call("subscribe", json!({ "channel": "log:x" })).await;
    let publish = json!({ "channel": "log:x", "b64data": STANDARD.encode(b"\xff\0"), "tags": { "k": "v" } });
    assert_eq!(api(&served, "publish", publish).await["result"]["offset"], 1);
    let publication = push(&mut client, "pub").await["pub"].clone();
    assert_eq!((&publication["data"], &publication["tags"]), (&json!("/wA="), &json!({ "k": "v" })));

    let skipped = json!({ "channel": "log:x", "data": 2, "skip_history": true });
    assert_eq!(api(&served, "publish", skipped).await["result"], json!({}));
    let publication = push(&mut client, "pub").await["pub"].clone();
    assert_eq!((&publication["data"], &publication["offset"]), (&json!(2), &Value::Null));

    let mut options = PublishOptions::default();
    options.tags.insert("from".into(), "library".into());
    served.hub.publish_with("log:x", "3", options).await.unwrap();
    assert_eq!(push(&mut client, "pub").await["pub"]["tags"], json!({ "from": "library" }));
    let history = api(&served, "history", json!({ "channel": "log:x", "limit": -1 })).await;
    let kept: Vec<_> = history["result"]["publications"].as_array().unwrap().iter().collect();
    assert_eq!(kept.iter().map(|one| &one["data"]).collect::<Vec<_>>(), [&json!("/wA="), &json!(3)]);
}

#[tokio::test]
async fn the_server_api_reaches_one_connection_of_a_user() {
    let served = serve().await;
    let (mut one, first) = as_user(&served, &json!({ "sub": "7" })).await;
    let (mut two, second) = as_user(&served, &json!({ "sub": "7" })).await;
    let subscribe = |client: &Value| json!({ "user": "7", "channel": "log:x", "client": client["client"] });
    api(&served, "subscribe", subscribe(&first)).await;
    assert_eq!(push(&mut one, "subscribe").await["channel"], "log:x");
    let present = api(&served, "channels", json!({ "pattern": "log:*" })).await;
    assert_eq!(present["result"]["channels"], json!({ "log:x": { "num_clients": 1 } }));
    api(&served, "unsubscribe", subscribe(&second)).await;
    api(&served, "unsubscribe", subscribe(&first)).await;
    let ended = push(&mut one, "unsubscribe").await;
    assert_eq!(ended["unsubscribe"], json!({ "code": 2000, "reason": "server unsubscribe" }));
    // Only the others are disconnected.
    api(&served, "disconnect", json!({ "user": "7", "whitelist": [first["client"]] })).await;
    assert_eq!(two.ended().await, 3503);
    one.call("ping", json!({})).await;
    let (mut three, third) = as_user(&served, &json!({ "sub": "7" })).await;
    two = as_user(&served, &json!({ "sub": "7" })).await.0;
    let whitelist = json!([first["client"], third["client"]]);
    api(&served, "disconnect", json!({ "user": "7", "whitelist": whitelist })).await;
    assert_eq!(two.ended().await, 3503);
    one.call("ping", json!({})).await;
    three.call("ping", json!({})).await;
    two = as_user(&served, &json!({ "sub": "7" })).await.0;
    api(&served, "disconnect", json!({ "user": "7", "client": first["client"] })).await;
    assert_eq!(one.ended().await, 3503);
    two.call("ping", json!({})).await;
    // An anonymous client has no user, but an id.
    let mut anonymous = Client::new(wireloom::connect(&served.url).await.unwrap());
    let id = anonymous.call("connect", json!({})).await["client"].clone();
    let mut other = served.connect().await;
    let refused = api(&served, "disconnect", json!({ "user": "", "client": "" })).await;
    assert_eq!(refused["error"]["code"], 107, "{refused}");
    api(&served, "disconnect", json!({ "client": id })).await;
    assert_eq!(anonymous.ended().await, 3503);
    other.call("ping", json!({})).await;
}

#[tokio::test]
async fn the_server_api_refuses_what_it_does_not_know() {
    let served = serve().await;
    for (method, request, code) in [
        ("publish", json!({ "channel": "nowhere:x", "data": 1 }), 102),
        ("publish", json!({ "channel": "log:x" }), 107),
        ("publish", json!({ "channel": "log:x", "b64data": "?" }), 107),
        ("broadcast", json!({ "data": 1 }), 107),
        ("subscribe", json!({ "user": "7", "channel": "nowhere:x" }), 102),
        ("subscribe", json!({ "channel": "log:x" }), 107),
        ("unsubscribe", json!({ "user": "7" }), 107),
        ("unsubscribe", json!({ "user": "7", "channel": "log:x", "session": "x" }), 107),
        ("disconnect", json!({ "user": "7", "session": "x" }), 107),
        ("disconnect", json!({ "user": "7", "disconnect": { "code": 1000 } }), 107),
        ("refresh", json!({}), 107),
        ("presence", json!({ "channel": "nowhere:x" }), 102),
        ("presence", json!({ "channel": "log:x" }), 108),
        ("history", json!({ "channel": "chat:x" }), 108),
        ("history_remove", json!({ "channel": "nowhere:x" }), 102),
    ] {
        let answer = api(&served, method, request.clone()).await;
        assert_eq!(answer["error"]["code"], code, "{method} {request}: {answer}");
    }
    for (method, request, field) in [
        ("publish", json!({ "data": 1 }), "channel is missing"),
        ("publish", json!({ "channel": "log:x" }), "data is missing"),
        ("publish", json!({ "channel": "log:x", "b64data": "?" }), "b64data"),
        ("broadcast", json!({ "data": 1 }), "channels"),
        ("unsubscribe", json!({ "user": "7" }), "channel is missing"),
        ("disconnect", json!({}), "user and client"),
        ("disconnect", json!({ "user": "7", "session": "x" }), "session"),
        ("disconnect", json!({ "user": "7", "disconnect": { "code": 1000 } }), "code"),
        ("subscribe", json!({ "user": "7", "channel": "log:x", "expire_at": 1 }), "expire_at"),
        ("publish", json!({ "channel": "log:x", "data": 1, "version": 1 }), "version"),
    ] {
        let answer = api(&served, method, request.clone()).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("bad request: ") && message.contains(field), "{request}: {answer}");
        // The same in a batch.
        let batch = api(&served, "batch", json!({ "commands": [{ method: request }] })).await;
        assert_eq!(batch["result"]["replies"][0]["error"], answer["error"], "{batch}");
    }
    for (method, status, reason) in
        [("nothing", 404, "history_remove, channels"), ("publish", 400, "expected value at line 1")]
    {
        let request = Request::post(http(&served, &format!("/api/{method}")), "x");
        let mut response = Connector::new().request(request.header("x-api-key", "key")).await.unwrap();
        let text = response.body.bytes().await.unwrap();
        assert_eq!(response.status, status, "{method}");
        assert!(String::from_utf8_lossy(&text).contains(reason), "{text:?}");
    }
}

#[tokio::test]
async fn a_command_of_a_batch_has_one_method() {
    let served = serve().await;
    let publish = json!({ "channel": "log:x", "data": 1 });
    for command in [json!({}), json!({ "publish": publish, "history": { "channel": "log:x" } })] {
        let body = json!({ "commands": [{ "publish": publish }, command] }).to_string();
        let request = Request::post(http(&served, "/api/batch"), body).header("x-api-key", "key");
        assert_eq!(Connector::new().request(request).await.unwrap().status, 400, "{command}");
    }
    assert_eq!(served.hub.stats().publications, 0, "nothing of a malformed batch is carried out");
}

#[tokio::test]
async fn the_server_api_takes_both_forms_of_its_key_and_no_other_path() {
    let served = serve().await;
    for (path, name, value, status) in [
        ("/api/info", "authorization", "apikey key", 200),
        ("/api/info", "authorization", "Bearer key", 401),
        ("/api/info", "x-api-key", "key", 200),
        ("/api", "x-api-key", "key", 404),
        ("/api/api/info", "x-api-key", "key", 404),
        ("/api//info", "x-api-key", "key", 404),
        ("/api/nothing", "x-api-key", "key", 404),
    ] {
        let request = Request::post(http(&served, path), "{}").header(name, value);
        let response = Connector::new().request(request).await.unwrap();
        assert_eq!(response.status, status, "{path} {name}: {value}");
    }
    let batch = json!({ "parallel": true, "commands": [
        { "publish": { "channel": "log:x", "data": 1 } },
        { "publish": { "channel": "log:x", "data": 2 } },
        { "history": { "channel": "log:x", "limit": 1, "reverse": true } },
    ] });
    let replies = api(&served, "batch", batch).await["result"]["replies"].clone();
    assert_eq!(replies[1]["publish"]["offset"], 2, "{replies}");
    assert_eq!(replies[2]["history"]["publications"][0]["data"], 2, "{replies}");
}

#[tokio::test]
async fn bare_messages_reach_the_clients_of_each_encoding() {
    let served = serve().await;
    let mut json_client = served.connect().await;
    json_client.call("subscribe", json!({ "channel": "rooms:x" })).await;
    let mut binary_client = protobuf(&served).await;
    let subscribe = SubscribeRequest { channel: "rooms:x".into(), ..SubscribeRequest::default() };
    for command in [
        Command { id: 1, connect: Some(ConnectRequest::default()), ..Command::default() },
        Command { id: 2, subscribe: Some(subscribe), ..Command::default() },
    ] {
        binary_client.send(&command.encode_length_delimited_to_vec()).await.unwrap();
        assert_eq!(reply(&mut binary_client).await.id, command.id);
    }
    let room = served.url.replace("/connection/websocket", "/rooms/x");
    let mut plain = wireloom::connect(&room).await.unwrap();
    plain.send("hello").await.unwrap();
    plain.send(&b"\xff\0"[..]).await.unwrap();
    plain.send(r#"{"a":1}"#).await.unwrap();
    for (of_json, of_protobuf, tag) in [
        (json!("hello"), &b"\"hello\""[..], Some("text")),
        (json!("/wA="), b"\xff\0", Some("binary")),
        (json!({ "a": 1 }), br#"{"a":1}"#, None),
    ] {
        let publication = push(&mut json_client, "pub").await["pub"].clone();
        assert_eq!((&publication["data"], publication["tags"]["bare"].as_str()), (&of_json, tag));
        let publication = reply(&mut binary_client).await.push.unwrap().publication.unwrap();
        assert_eq!(publication.data, of_protobuf);
        assert_eq!(publication.tags.get("bare").map(String::as_str), tag);
    }
}

#[tokio::test]
async fn a_user_has_no_more_connections_than_allowed() {
    let config = CONFIG.replace("[client]", "[client]\nconnections_per_user_max = 1\nconnections_max = 2");
    let served = Served::start(&config, |hub| hub).await;
    let (mut first, _) = as_user(&served, &json!({ "sub": "7" })).await;
    let mut second = Client::new(wireloom::connect(&served.url).await.unwrap());
    let connect = json!({ "id": 1, "connect": { "token": token(&json!({ "sub": "7" })) } });
    second.socket.send(&connect.to_string()).await.unwrap();
    assert_eq!(second.ended().await, 3504);
    let _other = as_user(&served, &json!({ "sub": "8" })).await;
    // The node is full.
    assert_eq!(Client::new(wireloom::connect(&served.url).await.unwrap()).ended().await, 3504);
    first.call("ping", json!({})).await;
}

#[tokio::test]
async fn an_event_stream_ends_with_the_reason() {
    let served = serve().await;
    for (connect, code) in [
        (json!({ "subs": { "private:x": {} } }), 3507),
        (json!({ "token": "forged" }), 3500),
        (json!({ "token": token(&json!({ "sub": "7", "exp": 1 })) }), 3005),
    ] {
        let request = Request::post(http(&served, "/connection/uni_sse"), connect.to_string());
        let mut response = Connector::new().request(request).await.unwrap();
        let content_type = response.headers.get("content-type").map(<[u8]>::to_vec);
        assert_eq!(content_type.as_deref(), Some(&b"text/event-stream"[..]));
        let body = response.body.bytes().await.unwrap();
        let last = std::str::from_utf8(&body).unwrap().trim_end().rsplit("data: ").next().unwrap();
        let event: Value = serde_json::from_str(last).unwrap();
        assert_eq!(event["disconnect"]["code"], code, "{connect}: {event}");
    }
}

#[tokio::test]
async fn a_stream_of_lines_has_the_pushes_of_an_event_stream() {
    let served = serve().await;
    let connect = r#"{"subs":{"log:x":{}}}"#;
    let request = Request::post(http(&served, "/connection/uni_http_stream"), connect);
    let response = Connector::new().request(request).await.unwrap();
    assert_eq!(response.headers.get("content-type"), Some(&b"application/json"[..]));
    let mut body = response.body;
    let mut text = String::new();
    while !text.contains("\"subscribe\"") {
        text.push_str(std::str::from_utf8(&body.chunk().await.unwrap().unwrap()).unwrap());
    }
    served.hub.publish("log:x", "{\n\"n\":\n1}").await.unwrap();
    while !text.contains("\"pub\"") || !text.ends_with('\n') {
        text.push_str(std::str::from_utf8(&body.chunk().await.unwrap().unwrap()).unwrap());
    }
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines[0]["connect"]["client"].is_string(), "{text}");
    assert_eq!(lines.last().unwrap()["pub"]["data"], json!({ "n": 1 }), "{text}");
}

#[tokio::test]
async fn a_user_has_a_personal_channel() {
    let config = CONFIG
        .replace("[client]", "[client]\npersonal_channel = true\npersonal_channel_namespace = \"private\"");
    let served = Served::start(&config, |hub| hub).await;
    let (mut client, connected) = as_user(&served, &json!({ "sub": "7" })).await;
    assert!(connected["subs"]["private:#7"].is_object(), "{connected}");
    served.hub.publish("private:#7", "1").await.unwrap();
    assert_eq!(push(&mut client, "pub").await["channel"], "private:#7");
    let (mut other, _) = as_user(&served, &json!({ "sub": "8" })).await;
    for channel in ["private:#7", "private:#8,7"] {
        assert_eq!(other.reply("subscribe", json!({ "channel": channel })).await["error"]["code"], 103);
    }
    let anonymous =
        Client::new(wireloom::connect(&served.url).await.unwrap()).call("connect", json!({})).await;
    assert!(anonymous["subs"].is_null(), "{anonymous}");
}

#[tokio::test]
async fn presence_stats_have_both_numbers() {
    let served = serve().await;
    let mut client = served.connect().await;
    let stats = client.call("presence_stats", json!({ "channel": "loud:x" })).await;
    assert_eq!(stats, json!({ "num_clients": 0, "num_users": 0 }));
}

#[tokio::test]
async fn payloads_of_several_lines_do_not_break_messages() {
    let served = serve().await;
    let mut client = served.connect().await;
    client.call("subscribe", json!({ "channel": "log:x" })).await;
    let request = Request::post(http(&served, "/connection/uni_sse"), r#"{"subs":{"log:x":{}}}"#);
    let mut events = Connector::new().request(request).await.unwrap().body;
    let mut event = async || events.chunk().await.unwrap().unwrap();
    while !event().await.windows(11).any(|part| part == b"\"subscribe\"") {}
    served.hub.publish("log:x", "{\n  \"text\": \"a\\nb\",\r\n\t\"list\": [1,\r2]\n}\n").await.unwrap();
    let expected = json!({ "text": "a\nb", "list": [1, 2] });
    // The SDKs split messages, and browsers events, at line breaks.
    let message = client.socket.recv_owned().await.unwrap().unwrap();
    let reply: Value = serde_json::from_str(message.as_text().unwrap().lines().next().unwrap()).unwrap();
    assert_eq!(reply["push"]["pub"]["data"], expected);
    let event = event().await;
    let line = std::str::from_utf8(&event).unwrap().lines().next().unwrap();
    let push: Value = serde_json::from_str(line.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(push["pub"]["data"], expected);
}

#[tokio::test]
async fn a_publication_does_not_keep_its_message_in_memory() {
    let is_unique = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let published = is_unique.clone();
    let served = Served::start(CONFIG, |hub| {
        hub.on_publish(move |event| {
            published.lock().unwrap().push(event.data.is_unique());
            async move { Ok(event.data) }
        })
    })
    .await;
    let mut socket = protobuf(&served).await;
    let publish = PublishRequest { channel: "chat:x".into(), data: Bytes::from_static(b"1") };
    let batch = [
        Command { id: 1, connect: Some(ConnectRequest::default()), ..Command::default() },
        Command { id: 2, publish: Some(publish), ..Command::default() },
        Command { id: 3, ping: Some(PingRequest {}), ..Command::default() },
    ];
    let bytes: Vec<u8> = batch.iter().flat_map(Command::encode_length_delimited_to_vec).collect();
    socket.send(&bytes).await.unwrap();
    while reply(&mut socket).await.id != 3 {}
    assert_eq!(*is_unique.lock().unwrap(), [true]);
}

/// An application hands out positions, and may know only the offset.
#[tokio::test]
async fn an_empty_epoch_stands_for_any() {
    let served = serve().await;
    for n in 1..=3 {
        served.hub.publish("log:x", n.to_string()).await.unwrap();
    }
    let mut client = served.connect().await;
    let request = json!({ "channel": "log:x", "recover": true, "offset": 1 });
    let subscribed = client.call("subscribe", request).await;
    assert_eq!((&subscribed["recovered"], &subscribed["publications"][1]["data"]), (&json!(true), &json!(3)));
    let since = json!({ "offset": 2 });
    let history = client.call("history", json!({ "channel": "log:x", "limit": -1, "since": since })).await;
    assert_eq!(history["publications"].as_array().unwrap().len(), 1, "{history}");
}

#[tokio::test]
async fn a_position_that_cannot_be_recovered_is_an_error_on_request() {
    let served = serve().await;
    served.hub.publish("log:x", "1").await.unwrap();
    let mut client = served.connect().await;
    let request =
        |flag: u8| json!({ "channel": "log:x", "recover": true, "offset": 1, "epoch": "_", "flag": flag });
    let refused = client.reply("subscribe", request(3)).await;
    assert_eq!(refused["error"]["code"], 112, "{refused}");
    // The command was undone.
    let subscribed = client.call("subscribe", request(1)).await;
    assert_eq!(subscribed["recovered"], Value::Null, "{subscribed}");
}

#[tokio::test]
async fn a_filter_leaves_out_publications_by_their_tags() {
    let config = format!(
        "{CONFIG}\n[[namespace]]\nname = \"tags\"\nsubscribe = \"anyone\"\nhistory_size = 10\nhistory_ttl = \"1h\"\n\
        allow_tags_filter = true\nallowed_delta_types = [\"fossil\"]\n"
    );
    let served = Served::start(&config, |hub| hub).await;
    let publish = async |n: u32, tag: &str| {
        let mut options = PublishOptions::default();
        options.tags.insert("t".into(), tag.into());
        served.hub.publish_with("tags:x", n.to_string(), options).await.unwrap();
    };
    publish(1, "a").await;
    publish(2, "b").await;
    let filter = json!({ "key": "t", "cmp": "eq", "val": "a" });
    let mut client = served.connect().await;
    let request = json!({ "channel": "tags:x", "recover": true, "tf": filter });
    let subscribed = client.call("subscribe", request).await;
    let recovered: Vec<_> =
        subscribed["publications"].as_array().unwrap().iter().map(|one| &one["data"]).collect();
    assert_eq!((&subscribed["recovered"], recovered), (&json!(true), vec![&json!(1)]));
    for (n, tag) in [(3, "b"), (4, "a"), (5, "b"), (6, "a")] {
        publish(n, tag).await;
    }
    while client.publications.len() < 2 {
        client.receive().await;
    }
    assert_eq!(client.publications, [json!(4), json!(6)]);
    let mut other = served.connect().await;
    for (channel, filter, delta) in [
        ("tags:x", json!({ "key": "t" }), ""),
        ("tags:x", filter.clone(), "fossil"),
        ("chat:x", filter.clone(), ""),
    ] {
        let request = json!({ "channel": channel, "tf": filter, "delta": delta });
        assert_eq!(other.reply("subscribe", request).await["error"]["code"], 107, "{channel} {filter}");
    }
}
