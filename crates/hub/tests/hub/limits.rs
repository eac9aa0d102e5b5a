//! Limits on what one client takes from the others: channels, publications, the server API.

use std::time::Duration;

use serde_json::{Value, json};
use wireloom::client::Request;
use wireloom::{Connector, WebSocket};
use wireloom_hub::protocol::ErrorCode;

use super::{Client, Served};

const CONFIG: &str = r#"
[client]
anonymous = true
commands_per_s_max = 100000
channels_max = 10

[token]
hmac_secret = "secret"

[api]
key = "key"

[history]
channels_max = 20

[[namespace]]
name = "log"
subscribe = "anyone"
publish = "anyone"
history_size = 10
history_ttl = "1h"
force_recovery = true

[[namespace]]
name = "few"
subscribe = "anyone"
publish = "anyone"
history_size = 10
history_ttl = "1h"
force_recovery = true
channels_max = 4
"#;

async fn api(served: &Served, method: &str, request: Value) -> Value {
    let url =
        served.url.replace("ws://", "http://").replace("/connection/websocket", &format!("/api/{method}"));
    let request = Request::post(&url, request.to_string()).header("x-api-key", "key");
    let mut response = Connector::new().request(request).await.unwrap();
    serde_json::from_slice(&response.body.bytes().await.unwrap()).unwrap()
}

async fn codes(
    client: &mut Client,
    method: &str,
    channels: impl Iterator<Item = String>,
) -> Vec<Option<u64>> {
    let mut codes = Vec::new();
    for channel in channels {
        let reply = client.reply(method, json!({ "channel": channel, "data": 1 })).await;
        codes.push(reply["error"]["code"].as_u64());
    }
    codes
}

/// A client of this user.
async fn connect_as(served: &Served, user: &str) -> Client {
    use jsonwebtoken::{EncodingKey, Header, encode};
    let claims = json!({ "sub": user });
    let token = encode(&Header::default(), &claims, &EncodingKey::from_secret(b"secret")).unwrap();
    let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
    client.call("connect", json!({ "token": token })).await;
    client
}

fn named(prefix: &str, numbers: std::ops::Range<u32>) -> impl Iterator<Item = String> {
    numbers.map(move |number| format!("{prefix}{number}"))
}

#[tokio::test]
async fn subscriptions_leave_channels_to_other_namespaces_and_to_the_server_api() {
    let served = Served::start(CONFIG, |hub| hub).await;
    let (mut one, mut two, mut three) =
        (served.connect().await, served.connect().await, served.connect().await);
    assert_eq!(codes(&mut one, "subscribe", named("few:", 0..5)).await, [None, None, None, None, Some(106)]);
    // A channel that others have opened takes no room.
    assert_eq!(codes(&mut two, "subscribe", named("few:", 0..1)).await, [None]);
    // 18 of 20 channels are for clients.
    assert_eq!(codes(&mut two, "subscribe", named("log:", 0..9)).await, [None; 9]);
    let log = codes(&mut three, "subscribe", named("log:", 9..15)).await;
    assert_eq!(log, [None, None, None, None, None, Some(106)]);
    assert_eq!(codes(&mut three, "publish", named("log:new", 0..1)).await, [Some(106)]);
    for n in 0..2 {
        let answer = api(&served, "publish", json!({ "channel": format!("log:api{n}"), "data": 1 })).await;
        assert_eq!(answer["result"]["offset"], 1, "{answer}");
    }
    // A client that leaves makes room.
    one.call("unsubscribe", json!({ "channel": "few:3" })).await;
    let made_room = async {
        // The engine drops the history of the channel when it needs its place.
        while codes(&mut three, "subscribe", named("few:", 9..10)).await != [None] {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), made_room).await.unwrap();
}

#[tokio::test]
async fn publications_open_no_more_channels_than_the_namespace_has() {
    let served = Served::start(CONFIG, |hub| hub).await;
    let mut clients = Vec::new();
    for n in 0..6 {
        let mut client = connect_as(&served, &n.to_string()).await;
        let published = codes(&mut client, "publish", named("few:", n..n + 1)).await;
        assert_eq!(published, [(n >= 4).then_some(106)], "{n}");
        clients.push(client);
    }
    for client in &mut clients {
        assert_eq!(codes(client, "publish", named("few:", 0..1)).await, [None]);
    }
    assert_eq!(codes(&mut clients[5], "publish", named("log:", 0..1)).await, [None]);
}

#[tokio::test]
async fn a_publisher_leaves_channels_to_other_users() {
    // A quarter of 18 channels, rounded up.
    let served = Served::start(CONFIG, |hub| hub).await;
    let mut one = connect_as(&served, "1").await;
    let published = codes(&mut one, "publish", named("log:", 0..7)).await;
    assert_eq!(published, [None, None, None, None, None, Some(106), Some(106)]);
    // A quarter of 4, by publishing or by leaving.
    let mut two = connect_as(&served, "2").await;
    two.call("subscribe", json!({ "channel": "few:x" })).await;
    two.call("publish", json!({ "channel": "few:x", "data": 1 })).await;
    two.call("unsubscribe", json!({ "channel": "few:x" })).await;
    assert_eq!(codes(&mut two, "publish", named("few:", 0..1)).await, [Some(106)]);
    assert_eq!(codes(&mut two, "subscribe", named("few:", 0..1)).await, [None], "that takes no share");
    two.call("unsubscribe", json!({ "channel": "few:0" })).await;
    // Not of what others have opened. Another connection of the same user changes nothing.
    let mut again = connect_as(&served, "1").await;
    assert_eq!(codes(&mut again, "publish", named("log:", 4..6)).await, [None, Some(106)]);
    assert_eq!(codes(&mut two, "publish", named("log:", 4..6)).await, [None, None]);
    // Anonymous clients of an address are as one user.
    let (mut three, mut four) = (served.connect().await, served.connect().await);
    assert_eq!(codes(&mut three, "publish", named("few:", 1..2)).await, [None]);
    assert_eq!(codes(&mut four, "publish", named("few:", 2..3)).await, [Some(106)]);
}

/// An anonymous client of a proxy that names this address.
async fn connect_for(served: &Served, address: &str) -> Client {
    let connector = Connector::new().header("X-Forwarded-For", address);
    let mut client = Client::new(connector.connect(&served.url).await.unwrap());
    client.call("connect", json!({})).await;
    client
}

#[tokio::test]
async fn a_trusted_proxy_names_anonymous_clients() {
    for (proxies, is_trusted) in [("127.0.0.0/8", true), ("127.0.0.1", true), ("127.0.0.2", false)] {
        let config = CONFIG.replace("[client]", &format!("[client]\ntrusted_proxies = [\"{proxies}\"]"));
        let served = Served::start(&config, |hub| hub).await;
        // Addresses that the client has sent itself are further left.
        for (number, address) in (0..).zip(["198.51.100.1", "198.51.100.2", "198.51.100.3, 198.51.100.1"]) {
            let mut client = connect_for(&served, address).await;
            let published = codes(&mut client, "publish", named("few:", number..number + 1)).await;
            let is_refused = number == 2 || number == 1 && !is_trusted;
            assert_eq!(published, [is_refused.then_some(106)], "{proxies} {address}");
        }
    }
}

#[tokio::test]
async fn a_publisher_takes_no_more_channels_by_leaving() {
    let served = Served::start(CONFIG, |hub| hub).await;
    let mut one = connect_as(&served, "1").await;
    assert_eq!(codes(&mut one, "subscribe", named("log:", 0..8)).await, [None; 8]);
    let expected = [None, None, None, None, None, Some(106), Some(106), Some(106)];
    assert_eq!(codes(&mut one, "publish", named("log:", 0..8)).await, expected);
    assert_eq!(codes(&mut one, "publish", named("log:", 0..8)).await, expected);
    // Others can, and then it can as well.
    let mut two = connect_as(&served, "2").await;
    assert_eq!(codes(&mut two, "publish", named("log:", 5..8)).await, [None; 3]);
    assert_eq!(codes(&mut one, "publish", named("log:", 0..8)).await, [None; 8]);
    // Those that are left count as before.
    assert_eq!(codes(&mut one, "unsubscribe", named("log:", 0..8)).await, [None; 8]);
    for (client, expected) in [(&mut one, [Some(106); 2]), (&mut two, [None, Some(106)])] {
        assert_eq!(codes(client, "publish", named("log:", 8..10)).await, expected);
    }
}

#[tokio::test]
async fn publications_into_channels_of_others_take_no_share() {
    let served = Served::start(CONFIG, |hub| hub).await;
    let mut subscribers = Vec::new();
    for user in 0..3 {
        let mut client = connect_as(&served, &user.to_string()).await;
        let channels = named("log:", 3 * user..3 * user + 3);
        assert_eq!(codes(&mut client, "subscribe", channels).await, [None; 3]);
        subscribers.push(client);
    }
    let mut bot = connect_as(&served, "bot").await;
    assert_eq!(codes(&mut bot, "publish", named("log:", 0..9)).await, [None; 9]);
    assert_eq!(codes(&mut bot, "publish", named("log:", 15..16)).await, [None]);
    // They count to their subscribers, also when these have left.
    for (user, client) in (0..).zip(&mut subscribers) {
        let channels = named("log:", 3 * user..3 * user + 3);
        assert_eq!(codes(client, "unsubscribe", channels).await, [None; 3]);
        assert_eq!(codes(client, "publish", named("few:", 0..1)).await, [Some(106)]);
    }
    assert_eq!(codes(&mut bot, "publish", named("log:", 0..9)).await, [None; 9]);
    assert_eq!(codes(&mut bot, "publish", named("few:", 0..1)).await, [None]);
}

#[tokio::test]
async fn a_channel_does_not_count_to_a_subscriber_that_has_left() {
    let served = Served::start(CONFIG, |hub| hub).await;
    let mut first = connect_as(&served, "1").await;
    assert_eq!(codes(&mut first, "subscribe", named("log:", 0..5)).await, [None; 5]);
    let mut second = connect_as(&served, "2").await;
    assert_eq!(codes(&mut second, "subscribe", named("log:", 0..5)).await, [None; 5]);
    assert_eq!(codes(&mut second, "publish", named("log:", 0..5)).await, [None; 5]);
    assert_eq!(codes(&mut first, "publish", named("few:", 0..1)).await, [Some(106)]);
    assert_eq!(codes(&mut first, "unsubscribe", named("log:", 0..5)).await, [None; 5]);
    assert_eq!(codes(&mut first, "publish", named("few:", 0..1)).await, [Some(106)]);
    // The next publications count to the one that has stayed.
    assert_eq!(codes(&mut second, "publish", named("log:", 0..5)).await, [None; 5]);
    assert_eq!(codes(&mut second, "publish", named("few:", 0..1)).await, [Some(106)]);
    assert_eq!(codes(&mut first, "publish", named("few:", 0..1)).await, [None]);
}

#[tokio::test]
async fn a_channel_counts_to_nobody_when_nothing_is_kept_of_it() {
    let config = CONFIG.replace("history_ttl = \"1h\"", "history_ttl = \"1s\"");
    let served = Served::start(&config, |hub| hub).await;
    let mut client = connect_as(&served, "1").await;
    assert_eq!(codes(&mut client, "subscribe", named("log:", 0..5)).await, [None; 5]);
    assert_eq!(codes(&mut client, "publish", named("log:", 0..5)).await, [None; 5]);
    let admitted = async {
        while codes(&mut client, "publish", named("log:", 5..6)).await != [None] {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), admitted).await.expect("the subscriptions have no history");
}

#[tokio::test]
async fn a_channel_counts_to_a_subscriber_that_has_room() {
    let served = Served::start(CONFIG, |hub| hub).await;
    let [mut full, mut other, mut bot] =
        [connect_as(&served, "1").await, connect_as(&served, "2").await, connect_as(&served, "3").await];
    assert_eq!(codes(&mut full, "publish", named("log:", 0..5)).await, [None; 5]);
    for client in [&mut full, &mut other] {
        assert_eq!(codes(client, "subscribe", named("log:", 5..6)).await, [None]);
    }
    // One counts to the other subscriber, and to the bot a quarter of the 12 that they leave.
    assert_eq!(codes(&mut bot, "publish", named("log:", 5..9)).await, [None; 4]);
    assert_eq!(codes(&mut bot, "publish", named("log:", 9..10)).await, [Some(106)]);
}

#[tokio::test]
async fn what_is_read_takes_no_channels() {
    let config = CONFIG.replace("name = \"few\"", "name = \"few\"\nhistory_access = \"anyone\"");
    let served = Served::start(&config, |hub| hub).await;
    let mut client = served.connect().await;
    assert_eq!(codes(&mut client, "history", named("few:", 0..30)).await, [None; 30]);
    let mut codes_of_all = Vec::new();
    for user in 0..18 {
        let mut client = connect_as(&served, &user.to_string()).await;
        codes_of_all.extend(codes(&mut client, "publish", named("log:", user..user + 1)).await);
    }
    assert_eq!(codes_of_all, [None; 18]);
    // Nor do names that are subscribed to one after the other.
    let served = Served::start(&config, |hub| hub).await;
    let mut client = served.connect().await;
    for channel in named("log:", 0..100) {
        client.call("subscribe", json!({ "channel": channel })).await;
        client.call("unsubscribe", json!({ "channel": channel })).await;
    }
    assert_eq!(
        api(&served, "publish", json!({ "channel": "log:new", "data": 1 })).await["result"]["offset"],
        1
    );
}

#[tokio::test]
async fn refused_publications_take_no_channels() {
    let config =
        CONFIG.replace("name = \"few\"\nsubscribe = \"anyone\"\npublish = \"anyone\"", "name = \"few\"");
    // By the namespace's setting, and by the application.
    for by_application in [false, true] {
        let served = Served::start(&config, |hub| match by_application {
            false => hub,
            true => hub.on_publish(|event| async move {
                let is_allowed = event.channel.starts_with("log:");
                is_allowed.then_some(event.data).ok_or(ErrorCode::PermissionDenied.into())
            }),
        })
        .await;
        let mut client = served.connect().await;
        assert_eq!(codes(&mut client, "publish", named("few:", 0..30)).await, [Some(103); 30]);
        // All those that are for clients are left.
        let mut log = Vec::new();
        for user in 0..19 {
            let mut client = connect_as(&served, &user.to_string()).await;
            log.extend(codes(&mut client, "publish", named("log:", user..user + 1)).await);
        }
        assert_eq!((&log[..18], log[18]), (&[None; 18][..], Some(106)), "{by_application}");
    }
}

#[tokio::test]
async fn a_user_has_no_more_subscriptions_than_allowed() {
    use jsonwebtoken::{EncodingKey, Header, encode};
    let config = CONFIG.replace("[client]", "[client]\nchannels_per_user_max = 3");
    let served = Served::start(&config, |hub| hub).await;
    let token =
        encode(&Header::default(), &json!({ "sub": "7" }), &EncodingKey::from_secret(b"secret")).unwrap();
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
        client.call("connect", json!({ "token": token })).await;
        clients.push(client);
    }
    let first = codes(&mut clients[0], "subscribe", named("log:", 0..2)).await;
    let second = codes(&mut clients[1], "subscribe", named("log:", 0..2)).await;
    assert_eq!((first, second), (vec![None, None], vec![None, Some(106)]));
}

#[tokio::test]
async fn the_limits_of_a_connection_and_a_user_hold_for_what_the_server_grants() {
    use jsonwebtoken::{EncodingKey, Header, encode};
    let token = |channels: u32| {
        let channels: Vec<_> = named("log:", 0..channels).collect();
        // One is named twice.
        let claims = json!({ "sub": "7", "channels": channels, "subs": { "log:0": {} } });
        encode(&Header::default(), &claims, &EncodingKey::from_secret(b"secret")).unwrap()
    };
    let connect = async |served: &Served, channels| {
        let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
        let connect = json!({ "id": 1, "connect": { "token": token(channels) } });
        client.socket.send(&connect.to_string()).await.unwrap();
        client.id = 1;
        client
    };
    for (setting, max) in [("channels_max = 4", 4), ("channels_max = 10\nchannels_per_user_max = 4", 4)] {
        let config = CONFIG.replace("channels_max = 10\n", &format!("{setting}\n"));
        let served = Served::start(&config, |hub| hub).await;
        assert_eq!(connect(&served, max + 1).await.ended().await, 3505, "{setting}");
        let mut client = connect(&served, max - 1).await;
        let connected = client.receive().await;
        assert_eq!(connected["connect"]["subs"].as_object().unwrap().len(), max as usize - 1, "{connected}");
        let subscribe = |channel: &str| json!({ "user": "7", "channel": channel });
        for (channel, code) in [("log:a", None), ("log:a", None), ("log:b", Some(106))] {
            let answer = api(&served, "subscribe", subscribe(channel)).await;
            assert_eq!(answer["error"]["code"].as_u64(), code, "{setting}: {answer}");
            // The call is answered before the client is subscribed.
            while served.hub.stats().channels < max as usize {
                client.call("ping", json!({})).await;
            }
        }
        if setting.contains("user") {
            // Another connection has no room left, neither by its token nor by the server API.
            assert_eq!(connect(&served, 1).await.ended().await, 3505);
        }
    }
}

async fn join(served: &Served) -> WebSocket {
    wireloom::connect(&served.url.replace("/connection/websocket", "/rooms/x")).await.unwrap()
}

#[tokio::test]
async fn a_client_without_replies_is_told_of_a_limit() {
    use jsonwebtoken::{EncodingKey, Header, encode};
    let config = "[client]\nchannels_per_user_max = 1\n[token]\nhmac_secret = \"secret\"\n\
        [[namespace]]\nname = \"rooms\"\nsubscribe = \"client\"\n";
    let served = Served::start(config, |hub| hub).await;
    let claims = json!({ "sub": "7" });
    let token = encode(&Header::default(), &claims, &EncodingKey::from_secret(b"secret")).unwrap();
    let mut first = Client::new(wireloom::connect(&served.url).await.unwrap());
    first.call("connect", json!({ "token": token })).await;
    first.call("subscribe", json!({ "channel": "rooms:x" })).await;

    let url = served.url.replace("/connection/websocket", &format!("/rooms/y?token={token}"));
    let mut room = wireloom::connect(&url).await.unwrap();
    let _ = tokio::time::timeout(Duration::from_secs(20), room.recv_owned()).await.unwrap();
    let end = room.end().unwrap();
    assert_eq!((end.code().value(), end.reason()), (1013, "channel limit"));

    let url = served.url.replace("/connection/websocket", "/connection/uni_websocket");
    let mut client = Client::new(wireloom::connect(&url).await.unwrap());
    client.socket.send(&json!({ "token": token, "subs": { "rooms:y": {} } }).to_string()).await.unwrap();
    assert!(client.receive().await["connect"].is_object());
    assert_eq!(client.ended().await, 3505);
}

#[tokio::test]
async fn a_room_ends_with_its_subscription() {
    let config = "[client]\nanonymous = true\n[token]\nhmac_secret = \"secret\"\n[api]\nkey = \"key\"\n\
        [[namespace]]\nname = \"rooms\"\nsubscribe = \"anyone\"\npublish = \"subscriber\"\n";
    use jsonwebtoken::{EncodingKey, Header, encode};
    let served = Served::start(config, |hub| hub).await;
    let claims = json!({ "sub": "7" });
    let token = encode(&Header::default(), &claims, &EncodingKey::from_secret(b"secret")).unwrap();
    let url = served.url.replace("/connection/websocket", &format!("/rooms/x?token={token}"));
    let mut room = wireloom::connect(&url).await.unwrap();
    room.send("1").await.unwrap();
    assert_eq!(room.recv_owned().await.unwrap().unwrap().as_text(), Some("1"));
    // Another channel is not its own.
    for channel in ["rooms:y", "rooms:x"] {
        api(&served, "unsubscribe", json!({ "user": "7", "channel": channel })).await;
        if channel == "rooms:y" {
            room.send("2").await.unwrap();
            assert_eq!(room.recv_owned().await.unwrap().unwrap().as_text(), Some("2"));
        }
    }
    let received = tokio::time::timeout(Duration::from_secs(20), room.recv_owned()).await.unwrap();
    assert!(received.is_ok_and(|message| message.is_none()));
    let end = room.end().unwrap();
    assert_eq!((end.code().value(), end.reason()), (1008, "server unsubscribe"));
    let closed = async {
        while served.hub.stats().clients > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), closed).await.expect("the client is gone");
    assert_eq!(served.hub.stats().channels, 0);
}

#[tokio::test]
async fn a_room_refuses_no_channel_for_the_other_connections_of_its_user() {
    let config = "[client]\nallowed_origins = [\"*\"]\nchannels_per_user_max = 2\n[token]\nhmac_secret = \"secret\"\n\
        [api]\nkey = \"key\"\n[[namespace]]\nname = \"rooms\"\nsubscribe = \"client\"\n\
        [[namespace]]\nname = \"a\"\nallowed_origins = [\"https://a.example\"]\n";
    use jsonwebtoken::{EncodingKey, Header, encode};
    let served = Served::start(config, |hub| hub).await;
    let claims = json!({ "sub": "7" });
    let token = encode(&Header::default(), &claims, &EncodingKey::from_secret(b"secret")).unwrap();
    let open = async |origin: &str, path: &str| {
        let url = served.url.replace("/connection/websocket", path);
        Connector::new().origin(origin).connect(&url).await.unwrap()
    };
    let mut client = Client::new(open("https://a.example", "/connection/websocket").await);
    client.call("connect", json!({ "token": token })).await;
    let _room = open("https://b.example", &format!("/rooms/x?token={token}")).await;
    while served.hub.stats().channels < 1 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let answer = api(&served, "subscribe", json!({ "user": "7", "channel": "a:x" })).await;
    assert_eq!(answer["error"], Value::Null, "{answer}");
    while client.receive().await["push"]["channel"] != "a:x" {}
}

#[tokio::test]
async fn a_flood_in_a_room_slows_its_publisher_and_no_reader() {
    let config = "[client]\nanonymous = true\nqueue_len_max = \"64K\"\n\
        [[namespace]]\nname = \"rooms\"\nsubscribe = \"anyone\"\npublish = \"anyone\"\n\
        publications_per_s_max = 20\npublication_bytes_per_s_max = \"200K\"\n";
    let served = Served::start(config, |hub| hub).await;
    let mut readers = Vec::new();
    for _ in 0..10 {
        readers.push(join(&served).await);
    }
    // Every member is subscribed before the flood begins.
    for reader in &mut readers {
        loop {
            served.hub.publish("rooms:x", "0").await.unwrap();
            let received = tokio::time::timeout(Duration::from_millis(200), reader.recv_owned()).await;
            if received.is_ok_and(|received| received.unwrap().is_some()) {
                break;
            }
        }
    }
    let before = served.hub.stats().publications;
    let (mut sender, mut receiver) = join(&served).await.split();
    let flood = tokio::spawn(async move {
        // As many as the sockets take: the hub stops reading.
        let message = "x".repeat(10_000);
        while sender.send(&*message).await.is_ok() {}
    });
    let echo = tokio::spawn(async move { while let Ok(Some(_)) = receiver.recv_owned().await {} });
    for reader in &mut readers {
        for _ in 0..30 {
            let received = tokio::time::timeout(Duration::from_secs(20), reader.recv_owned()).await;
            assert!(received.unwrap().unwrap().is_some());
        }
    }
    flood.abort();
    echo.abort();
    assert_eq!(served.hub.stats().evicted_slow, 0);
    let published = served.hub.stats().publications - before;
    assert!(published < 1_000, "{published}: sockets take thousands in that time");
}

#[tokio::test]
async fn a_message_of_a_room_is_no_longer_than_a_command() {
    let config = "[client]\nanonymous = true\nmessage_len_max = 100\n\
        [[namespace]]\nname = \"rooms\"\nsubscribe = \"anyone\"\npublish = \"anyone\"\n";
    let served = Served::start(config, |hub| hub).await;
    for (len, code) in [(100, None), (101, Some(1009))] {
        let mut room = join(&served).await;
        room.send(&*"x".repeat(len)).await.unwrap();
        let received = tokio::time::timeout(Duration::from_secs(20), room.recv_owned()).await.unwrap();
        assert_eq!(received.is_ok_and(|message| message.is_some()), code.is_none());
        assert_eq!(room.end().map(|end| end.code().value()), code);
    }
}
