//! Several nodes over a real NATS server with JetStream. Skipped, with a line that says so, where `nats-server` is not on the PATH.

#![cfg(feature = "nats")]
#![allow(clippy::unwrap_used)]

mod events;
mod node;
mod roaming;
#[allow(dead_code)]
mod server;
mod storm;

use std::time::Duration;

use jsonwebtoken::{EncodingKey, Header};
use node::Node;
use serde_json::{Value, json};
use server::{Link, LinkState, Nats};
use wireloom::Connector;
use wireloom::client::Request;
use wireloom_hub::HubConfig;

const CONFIG: &str = r#"
client.anonymous = true
channel = { subscribe = "anyone", publish = "anyone" }

[[namespace]]
name = "chat"
subscribe = "anyone"
publish = "anyone"
presence = true
presence_access = "anyone"
history_access = "anyone"
history_size = 100
history_ttl = "10m"
force_recovery = true

[[namespace]]
name = "log"
subscribe = "anyone"
publish = "anyone"
history_size = 100
history_ttl = "10m"
"#;

/// The settings for [`Node::api`] and for users with a [`token`].
const WITH_API: &str = "token.hmac_secret = \"secret\"\napi.key = \"key\"\n";

/// A token of this user, for a node configured [`WITH_API`].
fn token(user: &str) -> String {
    let key = EncodingKey::from_secret(b"secret");
    jsonwebtoken::encode(&Header::default(), &json!({ "sub": user }), &key).unwrap()
}

async fn node(nats: &Nats) -> Node {
    Node::connect_to(nats.port, CONFIG).await
}

/// The command of a client that was at this position.
fn recover(at: &Value) -> Value {
    let offset = at["offset"].as_u64().unwrap_or(0);
    json!({ "channel": "chat:x", "recover": true, "epoch": at["epoch"], "offset": offset })
}

fn payloads(publications: &[Value]) -> Vec<u64> {
    let payload =
        |publication: &Value| publication["data"].as_u64().unwrap_or_else(|| panic!("{publication}"));
    publications.iter().map(payload).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_api_sees_the_clients_of_all_nodes() {
    let Some(nats) = Nats::start() else { return };
    let config = format!("{WITH_API}{CONFIG}");
    let (one, two) = (Node::connect_to(nats.port, &config).await, Node::connect_to(nats.port, &config).await);
    let mut clients = [one.connect().await, two.connect().await, two.connect().await];
    for (client, channel) in clients.iter_mut().zip(["chat:a", "chat:a", "chat:b"]) {
        client.call("subscribe", json!({ "channel": channel })).await;
    }
    for node in [&one, &two] {
        // Until the nodes know of each other.
        let info = loop {
            let info = node.api("info", json!({})).await;
            if info["nodes"].as_array().unwrap().len() == 2 {
                break info;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let mut figures: Vec<_> = info["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["num_clients"].as_u64().unwrap())
            .collect();
        figures.sort_unstable();
        assert_eq!(figures, [1, 2], "{info}");
        let channels = node.api("channels", json!({ "pattern": "chat:*" })).await;
        let expected = json!({ "chat:a": { "num_clients": 2 }, "chat:b": { "num_clients": 1 } });
        assert_eq!(channels["channels"], expected);
        let channels = node.api("channels", json!({ "pattern": "*b" })).await;
        assert_eq!(channels["channels"], json!({ "chat:b": { "num_clients": 1 } }));
    }
}

/// A client without WebSocket: each of its requests may reach another node than its stream.
#[tokio::test(flavor = "multi_thread")]
async fn commands_reach_their_session_from_any_node() {
    let Some(nats) = Nats::start() else { return };
    let (one, two) = (node(&nats).await, node(&nats).await);
    let http =
        |node: &Node, path| node.url.replace("ws://", "http://").replace("/connection/websocket", path);
    let connect = Request::post(http(&one, "/connection/http_stream"), r#"{"id":1,"connect":{}}"#);
    let mut stream = Connector::new().request(connect).await.unwrap().body;
    let mut text = String::new();
    let mut next = async || loop {
        if let Some((line, rest)) = text.split_once('\n') {
            let reply: Value = serde_json::from_str(line).unwrap();
            text = rest.to_owned();
            break reply;
        }
        let chunk = tokio::time::timeout(Duration::from_secs(20), stream.chunk()).await.unwrap().unwrap();
        text.push_str(std::str::from_utf8(&chunk.unwrap()).unwrap());
    };
    let connected = next().await["connect"].clone();
    let send = async |to: &Node, session: &Value, node: &Value, commands: &str| {
        let body = json!({ "session": session, "node": node, "data": commands }).to_string();
        Connector::new().request(Request::post(http(to, "/emulation"), body)).await.unwrap().status
    };
    let (session, name) = (&connected["session"], &connected["node"]);
    for (id, to) in [(2, &two), (3, &one), (4, &two)] {
        let command = json!({ "id": id, "history": { "channel": "chat:x" } }).to_string();
        assert_eq!(send(to, session, name, &command).await, 204);
        assert_eq!(next().await["id"], id);
    }
    // No such session there; a node that is gone or was never there.
    assert_eq!(send(&two, &json!("other"), name, "{}").await, 404);
    let gone = send(&two, session, &json!("gone"), "{}").await;
    // It may still be starting, in the view of a node that has just started itself.
    assert!([404, 503].contains(&gone), "{gone}");
    assert_eq!(send(&two, session, &json!("wl.control"), "{}").await, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_reaches_the_clients_of_every_node() {
    let Some(nats) = Nats::start() else { return };
    let (one, two) = (node(&nats).await, node(&nats).await);
    for channel in ["plain", "chat:x"] {
        let (mut a, mut b) = (one.connect().await, two.connect().await);
        a.call("subscribe", json!({ "channel": channel })).await;
        b.call("subscribe", json!({ "channel": channel })).await;
        for n in 0..50 {
            let node = if n % 2 == 0 { &one } else { &two };
            node.hub.publish(channel, n.to_string()).await.unwrap();
            // Without a history the order of publications from two nodes is not defined.
            a.payloads(n + 1).await;
        }
        for client in [&mut a, &mut b] {
            let mut received = client.payloads(50).await;
            if channel == "plain" {
                received.sort_unstable();
            }
            assert_eq!(received, (0..50).collect::<Vec<_>>(), "{channel}");
        }
    }
}

/// Over a slow link a subscription reaches NATS late. The reply to the client has to wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_receives_what_is_published_after_its_reply() {
    let Some(nats) = Nats::start() else { return };
    let link = Link::to(nats.port).await;
    let (one, two) = (node(&nats).await, Node::connect_to(link.port, CONFIG).await);
    let mut client = two.connect().await;
    link.set(LinkState::Slow(Duration::from_millis(200)));
    for (number, channel) in ["plain", "log:x", "chat:x"].into_iter().enumerate() {
        client.call("subscribe", json!({ "channel": channel })).await;
        one.hub.publish(channel, number.to_string()).await.unwrap();
        client.payloads(number + 1).await;
    }
    assert_eq!(payloads(&client.publications), [0, 1, 2]);
}

/// A node that has just started carries out commands that other nodes receive.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_node_carries_out_commands_from_its_first_client_on() {
    let Some(nats) = Nats::start() else { return };
    let config = format!("{WITH_API}{CONFIG}");
    let link = Link::to(nats.port).await;
    let one = Node::connect_to(nats.port, &config).await;
    link.set(LinkState::Slow(Duration::from_millis(200)));
    let two = Node::connect_to(link.port, &config).await;
    let mut client = two.connect_with(json!({ "token": token("7") })).await;
    one.api("disconnect", json!({ "user": "7" })).await;
    while let Ok(Some(_)) = client.socket.recv_owned().await {}
    assert_eq!(client.socket.end().unwrap().code().value(), 3503);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_recovers_on_another_node() {
    let Some(nats) = Nats::start() else { return };
    let (one, two) = (node(&nats).await, node(&nats).await);
    let mut a = one.connect().await;
    let at = a.call("subscribe", json!({ "channel": "chat:x" })).await;
    drop(a);
    for n in 0..100 {
        one.hub.publish("chat:x", n.to_string()).await.unwrap();
    }
    let recover = recover(&at);
    let mut b = two.connect().await;
    let result = b.call("subscribe", recover.clone()).await;
    assert_eq!(result["recovered"], true, "{result}");
    assert_eq!(payloads(result["publications"].as_array().unwrap()), (0..100).collect::<Vec<_>>());
    two.hub.publish("chat:x", "100").await.unwrap();
    assert_eq!(b.payloads(1).await, [100]);

    // One more than the history keeps.
    let mut c = one.connect().await;
    let result = c.call("subscribe", recover).await;
    assert_ne!(result["recovered"], true, "{result}");
    assert_eq!(result["was_recovering"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_history_cannot_be_recovered() {
    let Some(nats) = Nats::start() else { return };
    let one = node(&nats).await;
    let mut a = one.connect().await;
    let at = a.call("subscribe", json!({ "channel": "chat:x" })).await;
    one.hub.publish("chat:x", "1").await.unwrap();
    a.payloads(1).await;
    one.hub.remove_history("chat:x").await.unwrap();
    while !a.ended {
        a.receive().await;
    }
    one.hub.publish("chat:x", "2").await.unwrap();
    let recover = recover(&at);
    let result = a.call("subscribe", recover).await;
    assert_ne!(result["recovered"], true, "{result}");
    let history = a.call("history", json!({ "channel": "chat:x", "limit": -1 })).await;
    assert_eq!(payloads(history["publications"].as_array().unwrap()), [2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn presence_covers_all_nodes() {
    let Some(nats) = Nats::start() else { return };
    let (one, two) = (node(&nats).await, node(&nats).await);
    let (mut a, mut b) = (one.connect().await, two.connect().await);
    a.call("subscribe", json!({ "channel": "chat:x" })).await;
    b.call("subscribe", json!({ "channel": "chat:x" })).await;
    let presence = a.call("presence", json!({ "channel": "chat:x" })).await;
    assert_eq!(presence["presence"].as_object().unwrap().len(), 2, "{presence}");
    b.call("unsubscribe", json!({ "channel": "chat:x" })).await;
    let stats = a.call("presence_stats", json!({ "channel": "chat:x" })).await;
    assert_eq!(stats["num_clients"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_api_reaches_the_connections_of_other_nodes() {
    let Some(nats) = Nats::start() else { return };
    let config = format!("{WITH_API}{CONFIG}");
    let (one, two) = (Node::connect_to(nats.port, &config).await, Node::connect_to(nats.port, &config).await);
    let mut client = two.connect_with(json!({ "token": token("7") })).await;
    one.api("subscribe", json!({ "user": "7", "channel": "chat:x" })).await;
    while client.receive().await["push"]["subscribe"].is_null() {}
    one.api("publish", json!({ "channel": "chat:x", "data": 1 })).await;
    assert_eq!(client.payloads(1).await, [1]);
    assert_eq!(one.api("presence_stats", json!({ "channel": "chat:x" })).await["num_clients"], 1);
    one.api("unsubscribe", json!({ "user": "7", "channel": "chat:x" })).await;
    while !client.ended {
        client.receive().await;
    }
    one.api("refresh", json!({ "user": "7" })).await;
    while client.receive().await["push"]["refresh"].is_null() {}
    one.api("disconnect", json!({ "user": "7" })).await;
    while let Ok(Some(_)) = client.socket.recv_owned().await {}
    assert_eq!(client.socket.end().unwrap().code().value(), 3503);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_lose_nothing_when_nats_is_restarted() {
    let Some(mut nats) = Nats::start() else { return };
    let (one, two) = (node(&nats).await, node(&nats).await);
    let (mut a, mut b) = (one.connect().await, two.connect().await);
    a.call("subscribe", json!({ "channel": "chat:x" })).await;
    b.call("subscribe", json!({ "channel": "chat:x" })).await;
    one.hub.publish("chat:x", "0").await.unwrap();
    assert_eq!(a.payloads(1).await, [0]);
    assert_eq!(b.payloads(1).await, [0]);
    nats.kill();
    // Nothing is acknowledged that is not in the history. No client receives a publication that is not in the history.
    for _ in 0..5 {
        let refused = one.hub.publish("chat:x", "1").await;
        assert!(refused.is_err(), "{refused:?} without NATS");
    }
    one.hub.publish("plain", "1").await.unwrap();
    assert!(one.hub.health().failure.is_some());
    nats.restart();
    let published = async {
        while one.hub.publish("chat:x", "2").await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), published).await.unwrap();
    // A refused publication may have reached NATS nevertheless, and then is received before.
    for client in [&mut a, &mut b] {
        while client.publications.last().is_none_or(|last| last["data"] != 2) {
            client.receive().await;
        }
        let received = payloads(&client.publications);
        assert_eq!(received.iter().filter(|payload| **payload == 0).count(), 1, "{received:?}");
    }
    assert_eq!(one.hub.health().failure, None);
    assert!(!a.ended);
    assert!(!b.ended);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_shuts_down_sends_its_clients_away() {
    let Some(nats) = Nats::start() else { return };
    let (one, two) = (node(&nats).await, node(&nats).await);
    let mut a = one.connect().await;
    let at = a.call("subscribe", json!({ "channel": "chat:x" })).await;
    let hub = one.hub.clone();
    let shutting_down = tokio::spawn(async move { hub.shut_down(Duration::from_secs(10)).await });
    while a.socket.recv_owned().await.unwrap().is_some() {}
    assert_eq!(a.socket.end().unwrap().code().value(), 3001);
    shutting_down.await.unwrap();
    one.serving.abort();
    two.hub.publish("chat:x", "1").await.unwrap();
    let mut b = two.connect().await;
    let recover = recover(&at);
    let result = b.call("subscribe", recover).await;
    assert_eq!(result["recovered"], true);
    assert_eq!(payloads(result["publications"].as_array().unwrap()), [1]);
}

/// Receives until the client has `payload`, or is informed that it cannot recover. Returns whether it was informed.
async fn received_or_informed(client: &mut node::Client, payload: u64) -> bool {
    while !client.ended && payloads(&client.publications).last() != Some(&payload) {
        client.receive().await;
    }
    client.ended
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_missed_more_than_the_history_keeps_informs_its_clients() {
    let Some(nats) = Nats::start() else { return };
    let link = Link::to(nats.port).await;
    let (one, two) = (node(&nats).await, Node::connect_to(link.port, CONFIG).await);
    for missed in [50, 100, 150] {
        let mut client = two.connect().await;
        client.call("subscribe", json!({ "channel": "chat:x" })).await;
        one.hub.publish("chat:x", "0").await.unwrap();
        client.payloads(1).await;
        link.set(LinkState::Cut);
        for n in 1..=missed {
            one.hub.publish("chat:x", n.to_string()).await.unwrap();
        }
        link.set(LinkState::Clear);
        let informed = received_or_informed(&mut client, missed).await;
        let received = payloads(&client.publications);
        if missed <= 100 {
            assert!(!informed, "{missed} are kept");
        }
        assert!(informed || received == (0..=missed).collect::<Vec<_>>(), "{received:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_informed_when_nats_has_lost_its_streams() {
    let Some(mut nats) = Nats::start() else { return };
    let (one, two) = (node(&nats).await, node(&nats).await);
    let mut client = two.connect().await;
    let at = client.call("subscribe", json!({ "channel": "chat:x" })).await;
    for n in 0..10 {
        one.hub.publish("chat:x", n.to_string()).await.unwrap();
    }
    client.payloads(10).await;
    nats.kill();
    nats.wipe();
    nats.restart();
    let published = async {
        loop {
            match one.hub.publish("chat:x", "10").await {
                Ok(position) if position.offset > 0 => return position,
                _ => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let position = tokio::time::timeout(Duration::from_secs(20), published).await.unwrap();
    assert_ne!(position.epoch, at["epoch"]);
    while !client.ended {
        client.receive().await;
    }
    let result = client.call("subscribe", recover(&at)).await;
    assert_ne!(result["recovered"], true, "{result}");
    client.publications.clear();
    one.hub.publish("chat:x", "11").await.unwrap();
    assert_eq!(client.payloads(1).await, [11]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_survives_a_change_of_its_size() {
    let Some(nats) = Nats::start() else { return };
    let one = node(&nats).await;
    let mut client = one.connect().await;
    client.call("subscribe", json!({ "channel": "chat:x" })).await;
    for n in 0..10 {
        one.hub.publish("chat:x", n.to_string()).await.unwrap();
    }
    client.payloads(10).await;
    let larger = CONFIG.replace("history_size = 100", "history_size = 200");
    one.hub.reload(HubConfig::from_toml(&larger).unwrap()).unwrap();
    for n in 10..20 {
        one.hub.publish("chat:x", n.to_string()).await.unwrap();
    }
    assert_eq!(client.payloads(20).await, (0..20).collect::<Vec<_>>());
    assert!(!client.ended);
}

/// Two nodes with different settings share one history, and each reads as much as it promises.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_with_different_sizes_share_a_history() {
    let Some(nats) = Nats::start() else { return };
    let small = CONFIG.replace("history_size = 100", "history_size = 10");
    let (one, two) = (Node::connect_to(nats.port, &small).await, node(&nats).await);
    let mut a = one.connect().await;
    let at = a.call("subscribe", json!({ "channel": "chat:x" })).await;
    for n in 0..20 {
        one.hub.publish("chat:x", n.to_string()).await.unwrap();
    }
    // The first node's stream has dropped some, although the second one would keep them.
    let mut b = two.connect().await;
    let result = b.call("subscribe", recover(&at)).await;
    assert_ne!(result["recovered"], true, "{result}");
    for n in 20..50 {
        let hub = if n % 2 == 0 { &one.hub } else { &two.hub };
        hub.publish("chat:x", n.to_string()).await.unwrap();
    }
    assert_eq!(a.payloads(50).await, (0..50).collect::<Vec<_>>());
    assert_eq!(b.payloads(30).await, (20..50).collect::<Vec<_>>());
    assert!(!a.ended && !b.ended);
    let epoch = &result["epoch"];
    let twentieth = b.publications[0]["offset"].as_u64().unwrap() - 1;
    let since = json!({ "channel": "chat:x", "recover": true, "epoch": epoch, "offset": twentieth });
    for (node, recovers) in [(&one, false), (&two, true)] {
        let mut client = node.connect().await;
        let result = client.call("subscribe", since.clone()).await;
        assert_eq!(result["recovered"] == true, recovers, "{result}");
        let history = client.call("history", json!({ "channel": "chat:x", "limit": -1 })).await;
        let kept = payloads(history["publications"].as_array().unwrap());
        // The second node asked for more when 11 were kept.
        let first = if recovers { kept[0] } else { 40 };
        assert!(first <= 20 || !recovers, "{kept:?}");
        assert_eq!(kept, (first..50).collect::<Vec<_>>());
    }
}

/// Parts of a history are those of the whole, whatever is asked for.
#[tokio::test(flavor = "multi_thread")]
async fn parts_of_a_history_are_read() {
    let Some(nats) = Nats::start() else { return };
    let one = Node::connect_to(nats.port, &CONFIG.replace("history_size = 100", "history_size = 12")).await;
    // The stream keeps more than this node promises.
    let two = node(&nats).await;
    let mut client = one.connect().await;
    two.hub.publish("chat:x", "0").await.unwrap();
    for n in 1..30 {
        one.hub.publish("chat:x", n.to_string()).await.unwrap();
        two.hub.publish("chat:other", n.to_string()).await.unwrap();
    }
    let whole = client.call("history", json!({ "channel": "chat:x", "limit": -1 })).await;
    let all = whole["publications"].as_array().unwrap().clone();
    assert_eq!(payloads(&all), (18..30).collect::<Vec<_>>());
    assert_eq!(whole["offset"], all[11]["offset"]);
    for limit in [0, 1, 5, 12, 20] {
        let part = client.call("history", json!({ "channel": "chat:x", "limit": limit })).await;
        let publications = part["publications"].as_array().cloned().unwrap_or_default();
        assert_eq!(publications, all[..limit.min(12)], "{limit}");
        assert_eq!((&part["offset"], &part["epoch"]), (&whole["offset"], &whole["epoch"]));
        let request = json!({ "channel": "chat:x", "limit": limit, "reverse": true });
        let part = client.call("history", request).await;
        let publications = part["publications"].as_array().cloned().unwrap_or_default();
        let reversed: Vec<_> = all.iter().rev().take(limit).cloned().collect();
        assert_eq!(publications, reversed, "{limit}");
        let since = json!({ "offset": all[3]["offset"], "epoch": whole["epoch"] });
        let request = json!({ "channel": "chat:x", "limit": limit, "since": since });
        let part = client.call("history", request).await;
        let publications = part["publications"].as_array().cloned().unwrap_or_default();
        assert_eq!(publications, all[4..][..limit.min(8)], "{limit}");
    }
}

/// A quiet channel has no gaps, even if its namespace publishes much and has dropped publications.
#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_channel_recovers_beside_a_busy_one() {
    let Some(nats) = Nats::start() else { return };
    let config = CONFIG.replace("history_ttl = \"10m\"", "history_ttl = \"1s\"");
    let one = Node::connect_to(nats.port, &config).await;
    let publish = async |channel: &str, n: u64| one.hub.publish(channel, n.to_string()).await.unwrap();
    let before = publish("chat:quiet", 0).await;
    let at = publish("chat:quiet", 1).await;
    for n in 0..200 {
        publish("chat:busy", n).await;
    }
    let request = |at: &wireloom_hub::Position| json!({ "channel": "chat:quiet", "recover": true, "epoch": at.epoch, "offset": at.offset });
    let mut client = one.connect().await;
    // Until everything has expired.
    loop {
        let history = client.call("history", json!({ "channel": "chat:quiet", "limit": -1 })).await;
        if history["publications"].as_array().is_none_or(Vec::is_empty) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    publish("chat:busy", 200).await;
    let result = client.call("subscribe", request(&at)).await;
    assert_eq!(result["recovered"], true, "{result}");
    assert!(result["publications"].is_null(), "{result}");
    let mut late = one.connect().await;
    let result = late.call("subscribe", request(&before)).await;
    assert_ne!(result["recovered"], true, "the second one has expired: {result}");
}

/// A publication whose answer was lost is repeated with its key, at any node.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_published_once_by_all_nodes() {
    let Some(nats) = Nats::start() else { return };
    let link = Link::to(nats.port).await;
    let (one, two) = (node(&nats).await, Node::connect_to(link.port, CONFIG).await);
    let publish = async |node: &Node, key: &str, data: &'static str| {
        let mut options = wireloom_hub::PublishOptions::default();
        options.idempotency_key = key.into();
        node.hub.publish_with("chat:x", data, options).await
    };
    let first = publish(&one, "a", "1").await.unwrap();
    assert_eq!(publish(&two, "a", "2").await, Ok(first.clone()));
    let second = publish(&two, "b", "3").await.unwrap();
    assert_eq!(second.offset, first.offset + 1);
    // The node's requests arrive late, and the answers never.
    link.set(LinkState::Slow(Duration::from_millis(50)));
    let hub = two.hub.clone();
    let abandoned = tokio::spawn(async move {
        let mut options = wireloom_hub::PublishOptions::default();
        options.idempotency_key = "c".into();
        hub.publish_with("chat:x", "4", options).await
    });
    let mut reader = one.connect().await;
    loop {
        let history = reader.call("history", json!({ "channel": "chat:x", "limit": -1 })).await;
        if payloads(history["publications"].as_array().unwrap()).contains(&4) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    link.set(LinkState::Stalled);
    abandoned.abort();
    let third = publish(&one, "c", "5").await.unwrap();
    assert_eq!(third.offset, second.offset + 1);
    link.set(LinkState::Clear);
    assert_eq!(publish(&two, "c", "6").await, Ok(third));
    let history = reader.call("history", json!({ "channel": "chat:x", "limit": -1 })).await;
    assert_eq!(payloads(history["publications"].as_array().unwrap()), [1, 3, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_follows_the_channels_of_its_clients_alone() {
    let Some(nats) = Nats::start() else { return };
    let one = node(&nats).await;
    let mut client = one.connect().await;
    // The node itself follows the commands of the server API.
    let own = nats.subscriptions("wl.live.").await;
    for channel in ["chat:x", "plain"] {
        assert_eq!(nats.subscriptions("wl.live.").await, own);
        client.call("subscribe", json!({ "channel": channel })).await;
        client.call("presence_stats", json!({ "channel": "chat:x" })).await;
        assert_eq!(nats.subscriptions("wl.live.").await, own + 1, "{channel}");
        client.call("unsubscribe", json!({ "channel": channel })).await;
        for _ in 0..100 {
            if nats.subscriptions("wl.live.").await == own {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!(nats.subscriptions("wl.live.").await, own);
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_without_a_position_lose_nothing_when_others_subscribe() {
    let Some(nats) = Nats::start() else { return };
    let one = node(&nats).await;
    let publishing = one.hub.clone();
    let publisher = async move {
        for n in 0..2_000 {
            publishing.publish("log:x", n.to_string()).await.unwrap();
        }
    };
    let mut plain = one.connect().await;
    plain.call("subscribe", json!({ "channel": "log:x" })).await;
    let mut positioned = one.connect().await;
    let others = async {
        let command = json!({ "channel": "log:x", "positioned": true, "recoverable": true });
        positioned.call("subscribe", command).await;
    };
    let ((), (), received) = tokio::join!(publisher, others, plain.payloads(2_000));
    assert_eq!(received, (0..2_000).collect::<Vec<_>>());
}
