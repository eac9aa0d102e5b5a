//! Rights: callbacks, origins, configurations that are loaded again.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::{Value, json};
use wireloom::client::Request;
use wireloom::{Connector, Error};
use wireloom_hub::protocol::Disconnect;
use wireloom_hub::{ConnectGrant, HubConfig, Refusal, SubscribeGrant};

use super::streams::http;
use super::{CONFIG, Client, Served};

#[tokio::test]
async fn callbacks_decide_what_a_client_may_do() {
    let ended = Arc::new(Mutex::new(Vec::new()));
    let ends = ended.clone();
    let served = Served::start(CONFIG, |hub| {
        hub.on_connect(|event| async move {
            match &event.data[..] {
                br#""let me in""# => Ok(ConnectGrant {
                    user: "7".into(),
                    info: r#"{"name":"x"}"#.into(),
                    data: "1".into(),
                    channels: vec!["chat:own".into()],
                    expires_at: None,
                }),
                _ => Err(Disconnect::PermissionDenied),
            }
        })
        .on_subscribe(|event| async move {
            match &*event.channel {
                "chat:a" => {
                    Ok(SubscribeGrant { info: r#"{"seat":1}"#.into(), data: "2".into(), expires_at: None })
                }
                _ => Err(Refusal { code: 1001, message: format!("not for {}", event.user), temporary: true }),
            }
        })
        .on_publish(|event| async move {
            match &event.data[..] {
                b"13" => Err(Refusal { code: 1013, message: "no".into(), temporary: false }),
                data => Ok(Bytes::from([b"[", data, b"]"].concat())),
            }
        })
        .on_disconnect(move |event| {
            ends.lock().unwrap().push((event.user, event.reason));
            async {}
        })
    })
    .await;
    let connect = || async { Client::new(wireloom::connect(&served.url).await.unwrap()) };

    let mut refused = connect().await;
    refused.socket.send(r#"{"id":1,"connect":{}}"#).await.unwrap();
    assert_eq!(refused.ended().await, 3507);

    let mut client = connect().await;
    let connected = client.call("connect", json!({ "data": "let me in" })).await;
    assert_eq!(connected["data"], 1, "{connected}");
    assert!(connected["subs"]["chat:own"].is_object(), "{connected}");
    let subscribed = client.call("subscribe", json!({ "channel": "chat:a" })).await;
    assert_eq!(subscribed["data"], 2, "{subscribed}");
    let reply = client.reply("subscribe", json!({ "channel": "chat:b" })).await;
    assert_eq!(reply["error"], json!({ "code": 1001, "message": "not for 7", "temporary": true }));

    let reply = client.reply("publish", json!({ "channel": "chat:a", "data": 13 })).await;
    assert_eq!(reply["error"]["code"], 1013, "{reply}");
    client.socket.send(r#"{"id":90,"publish":{"channel":"chat:a","data":5}}"#).await.unwrap();
    let publication = loop {
        let reply = client.receive().await;
        if !reply["push"]["pub"].is_null() {
            break reply["push"]["pub"].clone();
        }
    };
    assert_eq!(publication["data"], json!([5]));
    let info = &publication["info"];
    assert_eq!((&info["user"], &info["conn_info"]), (&json!("7"), &json!({ "name": "x" })));
    assert_eq!(info["chan_info"], json!({ "seat": 1 }));

    drop(client);
    served.has_ended(3000, 1).await;
    // A client that was refused has never been connected.
    assert_eq!(*ended.lock().unwrap(), [("7".to_owned(), Disconnect::ConnectionClosed)]);
}

#[tokio::test]
async fn a_subscription_that_the_server_ends_while_it_is_made_is_refused() {
    let asked = Arc::new(tokio::sync::Notify::new());
    let answered = Arc::new(tokio::sync::Notify::new());
    let of_hook = (asked.clone(), answered.clone());
    let served = Served::start(&format!("{CONFIG}[api]\nkey = \"key\"\n"), |hub| {
        hub.on_connect(|_| async { Ok(ConnectGrant { user: "7".into(), ..ConnectGrant::default() }) })
            .on_subscribe(move |_| {
                let (asked, answered) = of_hook.clone();
                async move {
                    asked.notify_one();
                    answered.notified().await;
                    Ok(SubscribeGrant::default())
                }
            })
    })
    .await;
    let mut client = served.connect().await;
    client.socket.send(r#"{"id":9,"subscribe":{"channel":"chat:x"}}"#).await.unwrap();
    asked.notified().await;
    let url = served.url.replace("ws://", "http://").replace("/connection/websocket", "/api/unsubscribe");
    let unsubscribe = wireloom::client::Request::post(url, r#"{"user":"7","channel":"chat:x"}"#);
    Connector::new().request(unsubscribe.header("x-api-key", "key")).await.unwrap();
    assert_eq!(client.receive().await["push"]["unsubscribe"]["code"], 2000);
    answered.notify_one();
    let reply = client.receive().await;
    assert_eq!((&reply["id"], &reply["error"]["code"]), (&json!(9), &json!(103)), "{reply}");
    assert_eq!(served.hub.stats().channels, 0);
}

/// The backend lets a user in, changes its mind, and disconnects the user, while its first answer is on the way.
#[tokio::test]
async fn a_user_who_is_disconnected_while_connecting_does_not_stay() {
    let asked = Arc::new(tokio::sync::Notify::new());
    let answered = Arc::new(tokio::sync::Notify::new());
    let of_hook = (asked.clone(), answered.clone());
    let served = Served::start(&format!("{CONFIG}[api]\nkey = \"key\"\n"), |hub| {
        hub.on_connect(move |event| {
            let (asked, answered) = of_hook.clone();
            async move {
                asked.notify_one();
                answered.notified().await;
                let user = String::from_utf8(event.data.to_vec()).unwrap();
                Ok(ConnectGrant { user, ..ConnectGrant::default() })
            }
        })
    })
    .await;
    let url = served.url.replace("ws://", "http://").replace("/connection/websocket", "/api/disconnect");
    let disconnect = async |request: &'static str| {
        let request = wireloom::client::Request::post(&url, request).header("x-api-key", "key");
        assert_eq!(Connector::new().request(request).await.unwrap().status, 200);
    };
    let begin = async || {
        let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
        client.socket.send(r#"{"id":1,"connect":{"data":7}}"#).await.unwrap();
        asked.notified().await;
        client
    };
    let client = begin().await;
    disconnect(r#"{"user":"7"}"#).await;
    answered.notify_one();
    assert_eq!(client.ended().await, 3503);
    // Neither a command for others nor an earlier one concerns a connection.
    let mut client = begin().await;
    disconnect(r#"{"user":"8"}"#).await;
    disconnect(r#"{"user":"7","client":"other"}"#).await;
    answered.notify_one();
    assert!(client.receive().await["connect"].is_object());
    client.call("ping", json!({})).await;
}

#[tokio::test]
async fn pages_of_other_origins_are_refused() {
    let config = CONFIG.replace(
        "[client]",
        "[client]\nallowed_origins = [\"https://good.example\", \"https://near.example\"]",
    );
    let config = format!(
        "{config}\n[[namespace]]\nname = \"strict\"\nallowed_origins = [\"https://good.example\"]\nsubscribe = \"anyone\"\n\
         publish = \"anyone\"\npresence = true\npresence_access = \"anyone\"\n\
         history_size = 1\nhistory_ttl = \"1m\"\nhistory_access = \"anyone\"\n"
    );
    let served = Served::start(&config, |hub| hub).await;
    let own = served.url.replace("ws://", "http://").replace("/connection/websocket", "");
    for (origin, connects, is_allowed) in [
        ("https://good.example", true, true),
        ("https://near.example", true, false),
        ("https://evil.example", false, false),
        ("null", false, false),
        (&*own, true, false),
    ] {
        let opened = Connector::new().origin(origin).connect(&served.url).await;
        if !connects {
            assert!(matches!(&opened, Err(Error::Refused(_))), "{origin}: {opened:?}");
            continue;
        }
        let mut client = Client::new(opened.unwrap());
        client.call("connect", json!({})).await;
        let expected = if is_allowed { None } else { Some(103) };
        for command in ["presence", "presence_stats", "history", "publish", "subscribe"] {
            let reply = client.reply(command, json!({ "channel": "strict:x", "data": 1 })).await;
            assert_eq!(reply["error"]["code"].as_u64(), expected, "{origin}: {command}: {reply}");
        }

        // The page of a user whose token names the channel is a page, too.
        for claims in [
            json!({ "sub": "7", "channels": ["strict:x"] }),
            json!({ "sub": "7", "subs": { "strict:x": {} } }),
        ] {
            let token = encode(&Header::default(), &claims, &EncodingKey::from_secret(b"secret")).unwrap();
            let mut client = Client::new(Connector::new().origin(origin).connect(&served.url).await.unwrap());
            let connect = json!({ "id": 1, "connect": { "token": token } });
            client.socket.send(&connect.to_string()).await.unwrap();
            let url = http(&served, "/connection/uni_http_stream");
            let request = Request::post(url, json!({ "token": token }).to_string()).header("origin", origin);
            let mut body = Connector::new().request(request).await.unwrap().body;
            let pushed = body.chunk().await.unwrap().unwrap();
            let pushed: Value = serde_json::from_slice(&pushed).unwrap();
            if is_allowed {
                assert!(client.receive().await["connect"]["subs"]["strict:x"].is_object(), "{origin}");
                assert!(pushed["connect"]["subs"]["strict:x"].is_object(), "{origin}: {pushed}");
            } else {
                assert_eq!(client.ended().await, 3507, "{origin}");
                assert_eq!(pushed["disconnect"]["code"], 3507, "{origin}: {pushed}");
            }
        }
    }
}

/// Browsers send no `Origin` with a GET to the page's own origin.
#[tokio::test]
async fn a_namespace_refuses_own_pages_that_are_not_listed() {
    let config = format!(
        "{CONFIG}\n[[namespace]]\nname = \"strict\"\nallowed_origins = [\"https://good.example\"]\n\
         [[namespace]]\nname = \"own\"\nallowed_origins = [\"https://localhost:8000\"]\n"
    );
    let served = Served::start(&config, |hub| hub).await;
    for (channel, site, is_allowed) in [
        ("strict:x", None, true),
        ("strict:x", Some("none"), true),
        ("strict:x", Some("same-origin"), false),
        ("own:x", Some("same-origin"), true),
        ("chat:x", Some("same-origin"), true),
    ] {
        let claims = json!({ "sub": "7", "channels": [channel] });
        let token = encode(&Header::default(), &claims, &EncodingKey::from_secret(b"secret")).unwrap();
        let connect = json!({ "token": token }).to_string();
        let connect = percent_encoding::utf8_percent_encode(&connect, percent_encoding::NON_ALPHANUMERIC);
        let url = http(&served, &format!("/connection/uni_http_stream?cf_connect={connect}"));
        let connector = Connector::new().host("localhost:8000");
        let connector = match site {
            Some(site) => connector.header("Sec-Fetch-Site", site),
            None => connector,
        };
        let mut body = connector.request(Request::get(url)).await.unwrap().body;
        let pushed = body.chunk().await.unwrap().unwrap();
        let pushed: Value = serde_json::from_slice(&pushed).unwrap();
        assert_eq!(
            pushed["connect"]["subs"][channel].is_object(),
            is_allowed,
            "{channel} {site:?}: {pushed}"
        );
    }
}

/// DNS rebinding: a page lets its own name resolve to this server, so that its `Origin`, if it is sent, and `Host` agree.
#[tokio::test]
async fn names_that_a_page_can_rebind_are_refused() {
    let origins = "[client]\nallowed_origins = [\"https://own.example\", \"http://*.own.example\"]";
    let served = Served::start(&CONFIG.replace("[client]", origins), |hub| hub).await;
    let stream =
        served.url.replace("ws://", "http://").replace("/connection/websocket", "/connection/uni_sse");
    for (host, origin, status) in [
        ("evil.example", None, 403),
        ("evil.example", Some("http://evil.example"), 403),
        ("own.example", None, 200),
        ("own.example", Some("https://own.example"), 200),
        ("a.own.example", Some("http://a.own.example"), 200),
        ("127.0.0.1", Some("http://evil.example"), 403),
        ("127.0.0.1", None, 200),
        ("localhost:8000", None, 200),
    ] {
        let connector = Connector::new().host(host);
        let connector = match origin {
            Some(origin) => connector.header("Origin", origin),
            None => connector,
        };
        let response = connector.request(wireloom::client::Request::get(&stream)).await.unwrap();
        assert_eq!(response.status, status, "{host} {origin:?}");
        let Some(origin) = origin else { continue };
        let opened = Connector::new().host(host).origin(origin).connect(&served.url).await;
        assert_eq!(opened.is_ok(), status == 200, "{host} {origin}: {opened:?}");
    }
}

#[tokio::test]
async fn a_new_configuration_applies_to_open_connections() {
    let served = Served::start(CONFIG, |hub| hub).await;
    let mut client = served.connect().await;
    let publish = || json!({ "channel": "later:x", "data": 1 });
    assert_eq!(client.reply("publish", publish()).await["error"]["code"], 102);
    let with = |more: &str| HubConfig::from_toml(&format!("{CONFIG}\n{more}")).unwrap();
    served.hub.reload(with("[[namespace]]\nname = \"later\"\npublish = \"anyone\"\n")).unwrap();
    client.call("publish", publish()).await;

    let mut broken = with("");
    broken.token.rsa_public_key = Some("no key".into());
    assert!(served.hub.reload(broken).is_err());
    client.call("publish", publish()).await;
}

#[tokio::test]
async fn a_callback_grants_no_longer_than_the_token_and_decides_about_its_channels() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let hour = Duration::from_secs(3_600);
    for (granted, ttl_max) in [(None, 3_600), (Some(now + 9 * hour), 3_600), (Some(now + hour / 2), 1_800)] {
        let served = Served::start(CONFIG, |hub| {
            hub.on_connect(move |event| async move {
                let mut channels = event.channels;
                channels.sort();
                assert_eq!(channels, ["chat:a", "chat:b", "chat:c"]);
                assert_eq!(event.expires_at.map(|at| at.as_secs()), Some((now + hour).as_secs()));
                let (user, channels) = (event.user, vec!["chat:c".into()]);
                Ok(ConnectGrant { user, channels, expires_at: granted, ..ConnectGrant::default() })
            })
        })
        .await;
        let claims = json!({
            "sub": "7", "exp": (now + hour).as_secs(), "channels": ["chat:a"],
            "subs": { "chat:b": {}, "chat:c": { "data": 3 } },
        });
        let token = encode(&Header::default(), &claims, &EncodingKey::from_secret(b"secret")).unwrap();
        let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
        let connected = client.call("connect", json!({ "token": token })).await;
        assert!((1..=ttl_max).contains(&connected["ttl"].as_u64().unwrap_or_default()), "{connected}");
        let subs = connected["subs"].as_object().unwrap();
        assert_eq!((subs.len(), &subs["chat:c"]["data"]), (1, &json!(3)), "{connected}");
    }
}

#[tokio::test]
async fn a_connection_ends_when_the_server_lets_it_expire() {
    let config = format!(
        "{}\n[api]\nkey = \"key\"\n",
        CONFIG.replace("[client]", "[client]\nexpired_grace = \"100ms\"")
    );
    let served = Served::start(&config, |hub| {
        hub.on_connect(|_| async { Ok(ConnectGrant { user: "7".into(), ..ConnectGrant::default() }) })
    })
    .await;
    let mut client = served.connect().await;
    let url = served.url.replace("ws://", "http://").replace("/connection/websocket", "/api/refresh");
    let refresh = |body: serde_json::Value| {
        let request = wireloom::client::Request::post(&url, body.to_string()).header("x-api-key", "key");
        async { Connector::new().request(request).await.unwrap() }
    };
    // As in tokens and in answers of the backend, 0 is never.
    for body in [json!({ "user": "7" }), json!({ "user": "7", "expire_at": 0 })] {
        refresh(body).await;
        let push = client.receive().await;
        assert_eq!(push["push"]["refresh"], json!({}), "{push}");
    }
    refresh(json!({ "user": "7", "expired": true })).await;
    let ended = tokio::time::timeout(Duration::from_secs(20), client.ended()).await;
    assert_eq!(ended.unwrap(), 3005);
}

#[tokio::test]
async fn the_commands_of_a_batch_end_when_the_connection_expires() {
    let config =
        format!("{}\n[api]\nkey = \"key\"\n", CONFIG.replace("[client]", "[client]\nexpired_grace = \"0s\""));
    let (calls, url) = (Arc::new(Mutex::new(0)), Arc::new(OnceLock::<String>::new()));
    let (called, api) = (calls.clone(), url.clone());
    let served = Served::start(&config, |hub| {
        hub.on_connect(|_| async { Ok(ConnectGrant { user: "7".into(), ..ConnectGrant::default() }) }).on_rpc(
            move |call| {
                *called.lock().unwrap() += 1;
                let expire =
                    wireloom::client::Request::post(api.get().unwrap(), r#"{"user":"7","expired":true}"#);
                async move {
                    Connector::new().request(expire.header("x-api-key", "key")).await.unwrap();
                    Ok(call.data)
                }
            },
        )
    })
    .await;
    url.set(served.url.replace("ws://", "http://").replace("/connection/websocket", "/api/refresh")).unwrap();
    let mut client = served.connect().await;
    let batch: Vec<_> = (2..102).map(|id| json!({ "id": id, "rpc": { "data": id } }).to_string()).collect();
    client.socket.send(&batch.join("\n")).await.unwrap();
    assert_eq!(client.ended().await, 3005);
    assert_eq!(*calls.lock().unwrap(), 1);
}

/// A personal channel is its owner's alone, whatever its namespace allows.
#[tokio::test]
async fn personal_channels_are_closed_to_others() {
    for user_limited in [false, true] {
        let config = format!(
            "[client]\nanonymous = true\npersonal_channel = true\npersonal_channel_namespace = \"rooms\"\n\
            [token]\nhmac_secret = \"secret\"\n[api]\nkey = \"key\"\n[[namespace]]\nname = \"rooms\"\n\
            subscribe = \"anyone\"\npublish = \"anyone\"\npresence = true\npresence_access = \"anyone\"\n\
            history_access = \"anyone\"\nhistory_size = 5\nhistory_ttl = \"1h\"\n\
            allow_user_limited_channels = {user_limited}\n"
        );
        let served = Served::start(&config, |hub| hub).await;
        let connect = async |user: &str| {
            let key = jsonwebtoken::EncodingKey::from_secret(b"secret");
            let token = jsonwebtoken::encode(&jsonwebtoken::Header::default(), &json!({ "sub": user }), &key);
            let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
            (client.call("connect", json!({ "token": token.unwrap() })).await, client)
        };
        let (connected, mut owner) = connect("7").await;
        assert!(connected["subs"]["rooms:#7"].is_object(), "{connected}");
        let (_, user) = connect("8").await;
        // Its personal channel would name two others.
        let (connected, several) = connect("7,8").await;
        assert_eq!(connected["subs"]["rooms:#7,8"].is_object(), !user_limited, "{connected}");
        for mut other in [user, several, served.connect().await] {
            for method in ["subscribe", "publish", "presence", "presence_stats", "history"] {
                let request = json!({ "channel": "rooms:#7", "data": 1 });
                let refused = other.reply(method, request).await;
                assert_eq!(refused["error"]["code"], 103, "{method}: {refused}");
            }
        }
        for method in ["publish", "presence", "history"] {
            owner.call(method, json!({ "channel": "rooms:#7", "data": 1 })).await;
        }
        // Without the client protocol.
        let room = served.url.replace("/connection/websocket", "/rooms/%237");
        let mut socket = wireloom::connect(&room).await.unwrap();
        while let Ok(Some(_)) = socket.recv_owned().await {}
        // RFC 6455 §7.4.1: the code for a violation of a policy.
        assert_eq!(socket.end().unwrap().code().value(), 1008);
        let url =
            served.url.replace("ws://", "http://").replace("/connection/websocket", "/connection/uni_sse");
        let request = wireloom::client::Request::post(url, r##"{"subs":{"rooms:#7":{}}}"##);
        let body = Connector::new().request(request).await.unwrap().body.bytes().await.unwrap();
        let text = String::from_utf8_lossy(&body).into_owned();
        assert!(text.contains("3507") && !text.contains("\"pub\""), "{text}");
    }
}

#[tokio::test]
async fn names_of_channels_match_the_expression_of_their_namespace() {
    let config = format!(
        "{CONFIG}\n[api]\nkey = \"key\"\n[[namespace]]\nname = \"team\"\nsubscribe = \"anyone\"\npublish = \"anyone\"\n\
        channel_regex = '^[0-9]+$'\n"
    );
    let served = Served::start(&config, |hub| hub).await;
    let mut client = served.connect().await;
    for (channel, code) in
        [("team:1", None), ("team:x", Some(107)), ("team:1:2", Some(107)), ("chat:x", None)]
    {
        for method in ["publish", "subscribe"] {
            let reply = client.reply(method, json!({ "channel": channel, "data": 1 })).await;
            assert_eq!(reply["error"]["code"].as_u64(), code, "{method} {channel}: {reply}");
        }
    }
    let error = HubConfig::from_toml("channel.channel_regex = '('").unwrap();
    let error = served.hub.reload(error).unwrap_err().to_string();
    assert!(error.contains("channel_regex"), "{error}");
}
