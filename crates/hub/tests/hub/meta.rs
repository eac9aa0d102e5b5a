//! The JSON values that the backend attaches to a connection: the meta for itself, the information for other clients.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::proxies::Backend;
use super::{Client, Served};

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn token(claims: &Value) -> String {
    encode(&Header::default(), claims, &EncodingKey::from_secret(b"secret")).unwrap()
}

const NAMESPACES: &str = "[channel]\nsubscribe_proxy = true\npublish_proxy = true\nsub_refresh_proxy = true\n\
    presence = true\npresence_access = \"subscriber\"\njoin_leave = true\nforce_push_join_leave = true\n\
    history_size = 9\nhistory_ttl = \"1h\"\nhistory_access = \"subscriber\"\n\
    [[namespace]]\nname = \"other\"\nsubscribe_proxy = \"other\"\n[rpc_namespaces]\nx = \"other\"\n";

/// All endpoints receive the meta but the one with the name `other`.
fn config(backend: &Backend) -> String {
    let url = &backend.url;
    let operations = ["refresh", "subscribe", "publish", "sub_refresh"]
        .map(|name| format!("[proxy.{name}]\nurl = \"{url}/{name}\"\ninclude_connection_meta = true\n"));
    format!(
        "[proxy.connect]\nurl = \"{url}/connect\"\ninclude_connection_meta = true\n{}\
        [rpc]\nurl = \"{url}/rpc\"\ninclude_connection_meta = true\n[[endpoint]]\nname = \"other\"\nurl = \"{url}/other\"\n\
        {NAMESPACES}",
        operations.concat()
    )
}

#[tokio::test]
async fn the_backend_receives_what_it_has_attached_and_no_client_does() {
    let backend = Backend::start(|call| match &*call.path {
        "/connect" => {
            let user = call.body["data"].as_str();
            let expire_at = if user == Some("7") { now() + 1 } else { 0 };
            json!({ "result": { "user": user, "info": { "name": "x" }, "expire_at": expire_at, "meta": { "secret": 1 } } })
        }
        "/refresh" => json!({ "result": { "expire_at": now() + 600, "meta": { "secret": 2 } } }),
        "/subscribe" => json!({ "result": { "expire_at": now() + 1 } }),
        "/sub_refresh" => json!({ "result": { "expire_at": now() + 600 } }),
        _ => json!({ "result": {} }),
    })
    .await;
    let served = Served::start(&config(&backend), |hub| hub).await;
    let mut seen = Vec::new();
    let mut clients = Vec::new();
    for user in ["7", "8"] {
        let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
        seen.push(client.reply("connect", json!({ "data": user })).await);
        seen.push(client.reply("subscribe", json!({ "channel": "a" })).await);
        clients.push(client);
    }
    let client = &mut clients[0];
    client.call("subscribe", json!({ "channel": "other:a" })).await;
    client.call("rpc", json!({ "method": "x:y" })).await;
    let meta = |path: &str, user: &str| {
        let of_user = backend.calls(path).into_iter().filter(|call| call.body["user"] == user);
        of_user.map(|call| call.body["meta"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(meta("/subscribe", "7"), [json!({ "secret": 1 })]);
    assert_eq!(backend.calls("/connect")[0].body["meta"], Value::Null);
    assert_eq!(meta("/other", "7"), [Value::Null, Value::Null]);
    let renewed = async {
        while backend.calls("/refresh").is_empty() || backend.calls("/sub_refresh").len() < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), renewed).await.unwrap();
    assert_eq!(meta("/refresh", "7"), [json!({ "secret": 1 })]);
    // A renewal without one leaves it as it is.
    assert_eq!(meta("/sub_refresh", "8"), [json!({ "secret": 1 })]);
    for (client, user, number) in [(0, "7", 2), (1, "8", 1)] {
        let client = &mut clients[client];
        seen.push(client.reply("rpc", json!({ "method": "m" })).await);
        seen.push(client.reply("publish", json!({ "channel": "a", "data": 1 })).await);
        for path in ["/rpc", "/publish"] {
            assert_eq!(meta(path, user), [json!({ "secret": number })], "{path}");
        }
        seen.push(client.reply("presence", json!({ "channel": "a" })).await);
        seen.push(client.reply("history", json!({ "channel": "a", "limit": -1 })).await);
    }
    assert!(seen.iter().all(|reply| reply["error"].is_null()), "{seen:?}");
    let seen = json!(seen).to_string();
    assert!(seen.contains("\"conn_info\":{\"name\":\"x\"}") && !seen.contains("secret"), "{seen}");
}

#[tokio::test]
async fn a_token_attaches_meta() {
    let backend = Backend::start(|_| json!({ "result": {} })).await;
    let url = &backend.url;
    let config = format!(
        "token.hmac_secret = \"secret\"\n[rpc]\nurl = \"{url}/rpc\"\ninclude_connection_meta = true\n[rpc_namespaces]\n\
        x = \"other\"\n[[endpoint]]\nname = \"other\"\nurl = \"{url}/other\"\n"
    );
    let served = Served::start(&config, |hub| hub).await;
    let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
    let first = json!({ "sub": "7", "exp": now() + 600, "meta": [1] });
    let connected = client.call("connect", json!({ "token": token(&first) })).await;
    assert!(!connected.to_string().contains("meta"), "{connected}");
    let mut expected = Vec::new();
    for (claims, meta) in [
        (first, json!([1])),
        (json!({ "sub": "7", "exp": now() + 601, "meta": { "b": 2 } }), json!({ "b": 2 })),
        (json!({ "sub": "7", "exp": now() + 602 }), json!({ "b": 2 })),
        (json!({ "sub": "7", "exp": now() + 603, "meta": null }), json!({ "b": 2 })),
    ] {
        client.call("refresh", json!({ "token": token(&claims) })).await;
        client.call("rpc", json!({ "method": "m" })).await;
        expected.push(meta);
    }
    let long = json!({ "sub": "7", "meta": "x".repeat(16 << 10) });
    let refused = client.reply("refresh", json!({ "token": token(&long) })).await;
    assert_eq!(refused["error"]["code"], 103, "{refused}");
    client.call("rpc", json!({ "method": "m" })).await;
    expected.push(json!({ "b": 2 }));
    let received: Vec<_> = backend.calls("/rpc").into_iter().map(|call| call.body["meta"].clone()).collect();
    assert_eq!(received, expected);
    let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
    let connect = json!({ "id": 1, "connect": { "token": token(&long) } });
    client.socket.send(&connect.to_string()).await.unwrap();
    assert_eq!(client.ended().await, 3500);
}

#[tokio::test]
async fn meta_of_an_endpoint_is_bounded() {
    let backend = Backend::start(|call| match (&*call.path, call.body["data"].as_str()) {
        ("/connect", Some("long")) => json!({ "result": { "user": "7", "meta": "x".repeat(16 << 10) } }),
        ("/connect", _) => json!({ "result": { "user": "7", "expire_at": now() + 1, "meta": 1 } }),
        _ => json!({ "result": { "expire_at": now() + 600, "meta": "x".repeat(16 << 10) } }),
    })
    .await;
    let url = &backend.url;
    let config = format!(
        "client.expired_grace = \"1s\"\n[proxy.connect]\nurl = \"{url}/connect\"\n[proxy.refresh]\nurl = \"{url}/refresh\"\n"
    );
    let served = Served::start(&config, |hub| hub).await;
    let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
    assert_eq!(client.reply("connect", json!({ "data": "long" })).await["error"]["code"], 100);
    client.call("connect", json!({})).await;
    // A renewal that cannot be used is none.
    assert_eq!(client.ended().await, 3005);
    assert!(!backend.calls("/refresh").is_empty());
}

/// The entries of presence: what others see of the connection, and of its subscription.
async fn infos(client: &mut Client) -> Vec<(Value, Value)> {
    let presence = client.call("presence", json!({ "channel": "a" })).await;
    let all = presence["presence"].as_object().unwrap().values();
    all.map(|info| (info["conn_info"].clone(), info["chan_info"].clone())).collect()
}

const PRESENCE: &str = "[channel]\nsubscribe = \"client\"\npublish = \"client\"\npresence = true\npresence_access = \"client\"\n";

#[tokio::test]
async fn a_renewal_by_the_backend_changes_what_others_see() {
    let backend = Backend::start(|call| match &*call.path {
        "/connect" => json!({ "result": { "user": "7", "expire_at": now() + 1, "info": 1 } }),
        "/subscribe" => json!({ "result": { "expire_at": now() + 1, "info": 2 } }),
        "/refresh" => json!({ "result": { "expire_at": now() + 600, "info": [1] } }),
        // `[2]`
        _ => json!({ "result": { "expire_at": now() + 600, "b64info": "WzJd" } }),
    })
    .await;
    let url = &backend.url;
    let endpoints = ["connect", "refresh", "subscribe", "sub_refresh"]
        .map(|name| format!("[proxy.{name}]\nurl = \"{url}/{name}\"\n"));
    let config =
        format!("{}{PRESENCE}subscribe_proxy = true\nsub_refresh_proxy = true\n", endpoints.concat());
    let served = Served::start(&config, |hub| hub).await;
    let mut client = served.connect().await;
    client.call("subscribe", json!({ "channel": "a" })).await;
    let seen = infos(&mut client).await;
    assert!(seen == [(json!(1), json!(2))] || seen == [(json!([1]), json!(2))], "{seen:?}");
    let renewed = async {
        while infos(&mut client).await != [(json!([1]), json!([2]))] {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), renewed).await.unwrap();
    client.socket.send(r#"{"id":99,"publish":{"channel":"a","data":1}}"#).await.unwrap();
    let info = client.receive().await["push"]["pub"]["info"].clone();
    assert_eq!((&info["conn_info"], &info["chan_info"]), (&json!([1]), &json!([2])), "{info}");
}

#[tokio::test]
async fn a_token_that_renews_changes_what_others_see() {
    let config = format!("token.hmac_secret = \"secret\"\n{PRESENCE}");
    for has_callback in [false, true] {
        let served = Served::start(&config, |hub| match has_callback {
            true => hub.on_connect(|event| async move {
                let (user, info) = (event.user, "\"callback\"".into());
                Ok(wireloom_hub::ConnectGrant { user, info, ..wireloom_hub::ConnectGrant::default() })
            }),
            false => hub,
        })
        .await;
        let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
        let own = |info: Value| token(&json!({ "sub": "7", "exp": now() + 600, "info": info }));
        let of_channel =
            |info: Value| token(&json!({ "sub": "7", "channel": "a", "exp": now() + 600, "info": info }));
        client.call("connect", json!({ "token": own(json!(1)) })).await;
        client.call("subscribe", json!({ "channel": "a", "token": of_channel(json!(2)) })).await;
        for (info, of_client) in [(json!(3), json!(3)), (Value::Null, json!(3))] {
            client.call("refresh", json!({ "token": own(info.clone()) })).await;
            let renewal = json!({ "channel": "a", "token": of_channel(info) });
            client.call("sub_refresh", renewal).await;
            // The information of a callback stays.
            let of_connection = if has_callback { json!("callback") } else { of_client };
            let renewed = async {
                while infos(&mut client).await != [(of_connection.clone(), json!(3))] {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), renewed).await.unwrap();
        }
    }
}
