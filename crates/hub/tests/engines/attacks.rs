//! Attacks on what nodes share: subscriptions that are given up, servers that change their roles, messages that no node sends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use jsonwebtoken::{EncodingKey, Header};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use wireloom_hub::engine::{Engine, EngineError, NatsEngine, RedisEngine};
use wireloom_hub::protocol::{ClientInfo, Publication};
use wireloom_hub::{HistoryQuery, Hub, HubConfig, Position, RecoveryMode, Retention};

use crate::nats_server::{Link, LinkState, Nats};
use crate::node::{Client, Node};
use crate::redis_server::Redis;
use crate::{Event, KEEP, history, missed, publication, publish, started, text};

/// Limit for what takes no time; the expected time is far below.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) async fn until(what: impl AsyncFn() -> bool) {
    let begin = Instant::now();
    while !what().await {
        assert!(begin.elapsed() < DEADLINE);
        sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) async fn nats_engine(port: u16) -> NatsEngine {
    loop {
        match NatsEngine::connect(&format!("nats://127.0.0.1:{port}")).await {
            Ok(engine) => return engine,
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// A replica takes over, and the master comes back, without a restart: it has lost what the replica had not received.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_master_again_begins_new_histories() {
    let Some(first) = Redis::start() else { return };
    let second = Redis::start().unwrap();
    let follow = |redis: &Redis, master: &Redis| {
        assert!(redis.command(&format!("REPLICAOF 127.0.0.1 {}", master.port)).contains("OK"));
    };
    let is_synced = async |redis: &Redis| redis.command("INFO replication").contains("master_link_status:up");
    follow(&second, &first);
    until(async || is_synced(&second).await).await;
    let engine = RedisEngine::connect(&first.url()).await.unwrap();
    let stored = publish(&engine, "a", "stored").await;
    until(async || second.command("EXISTS wl:{=a}:s").contains(":1")).await;
    // The replica takes over while a node still reaches the master.
    assert!(second.command("REPLICAOF NO ONE").contains("OK"));
    let lost = publish(&engine, "a", "lost").await;
    assert_eq!((&lost.epoch, lost.offset), (&stored.epoch, stored.offset + 1));
    follow(&first, &second);
    until(async || is_synced(&first).await).await;
    assert!(first.command("REPLICAOF NO ONE").contains("OK"));
    follow(&second, &first);
    let next = async || engine.publish("a", publication("next"), Some(KEEP), "k").await;
    until(async || next().await.is_ok()).await;
    // A client at `lost` has not received `next`.
    assert_eq!(missed(&engine, "a", &lost).await, None);
    assert_eq!(history(&engine, "a", HistoryQuery::default()).await, ["next"]);
}

/// Redis gets another replication ID when its first replica comes, and some time after the last has left. It has lost nothing.
#[tokio::test(flavor = "multi_thread")]
async fn redis_keeps_histories_when_replicas_come_and_go() {
    let Some(redis) = Redis::start() else { return };
    assert!(redis.command("CONFIG SET repl-backlog-ttl 1").contains("OK"));
    let replid = || {
        let info = redis.command("INFO replication");
        info.lines().find(|line| line.starts_with("master_replid:")).unwrap().to_owned()
    };
    let engine = RedisEngine::connect(&redis.url()).await.unwrap();
    let first = publish(&engine, "a", "0").await;
    let before = replid();
    let mut replica = TcpStream::connect(("127.0.0.1", redis.port)).await.unwrap();
    replica.write_all(b"SYNC\r\n").await.unwrap();
    until(async || replid() != before).await;
    let second = publish(&engine, "a", "1").await;
    assert_eq!(second, Position { offset: first.offset + 1, ..first.clone() });
    let before = replid();
    drop(replica);
    until(async || replid() != before).await;
    assert_eq!(missed(&engine, "a", &first).await, Some(vec!["1".to_owned()]));
    assert_eq!(history(&engine, "a", HistoryQuery::default()).await, ["0", "1"]);
}

/// A stream that was deleted and created again is another one at once, for publishers and subscribers of all nodes.
#[tokio::test(flavor = "multi_thread")]
async fn nats_acknowledges_in_the_epoch_of_the_stream() {
    let Some(nats) = Nats::start() else { return };
    let (one, two) = (nats_engine(nats.port).await, nats_engine(nats.port).await);
    let (recorder, _other) = (started(&one), started(&two));
    one.subscribe("a").await.unwrap();
    let begin = one.recover("a", None, RecoveryMode::Stream, KEEP, usize::MAX).await.unwrap().position;
    for number in 0..3 {
        let engine = if number == 1 { &two } else { &one };
        assert_eq!(publish(engine, "a", &number.to_string()).await.epoch, begin.epoch);
    }
    let client = async_nats::connect(format!("127.0.0.1:{}", nats.port)).await.unwrap();
    async_nats::jetstream::new(client).delete_stream("wl_n").await.unwrap();
    let next = publish(&two, "a", "next").await;
    let last = publish(&one, "a", "last").await;
    assert_ne!(next.epoch, begin.epoch);
    assert_eq!(last, Position { offset: next.offset + 1, ..next.clone() });
    for engine in [&one, &two] {
        assert_eq!(missed(engine, "a", &Position { offset: next.offset, ..begin.clone() }).await, None);
        assert_eq!(missed(engine, "a", &next).await, Some(vec!["last".to_owned()]));
        assert_eq!(history(engine, "a", HistoryQuery::default()).await, ["next", "last"]);
    }
    let published = |at: &Position, data: &str| Event::Published("a".into(), at.clone(), data.into());
    let events = recorder.until(|events| events.contains(&published(&last, "last"))).await;
    let expected = [Event::Lost("a".into()), published(&next, "next"), published(&last, "last")];
    assert_eq!(events[3..], expected);
}

/// Lines of the NATS protocol are limited, and a longer one costs a node its connection.
#[tokio::test(flavor = "multi_thread")]
async fn nats_has_room_for_the_longest_names() {
    let Some(nats) = Nats::start() else { return };
    let engine = nats_engine(nats.port).await;
    let _recorder = started(&engine);
    let channel = "x".repeat(1_024);
    engine.subscribe(&channel).await.unwrap();
    let key = "k".repeat(128);
    let at = engine.publish(&channel, publication("0"), Some(KEEP), &key).await.unwrap();
    assert_eq!(history(&engine, &channel, HistoryQuery::default()).await, ["0"]);
    assert_eq!(missed(&engine, &channel, &at).await, Some(Vec::new()));
    let info = ClientInfo { client: "c".repeat(36), ..ClientInfo::default() };
    engine.add_presence(&channel, &info).await.unwrap();
    assert_eq!(engine.presence(&channel, usize::MAX).await.unwrap().unwrap(), [info.into()]);
    assert_eq!(engine.health().failure, None);
}

/// A key outlives a restart, and the publication that it belongs to.
#[tokio::test(flavor = "multi_thread")]
async fn nats_remembers_keys_after_a_restart() {
    let Some(mut nats) = Nats::start() else { return };
    let engine = nats_engine(nats.port).await;
    let keyed = async || engine.publish("a", publication("0"), Some(KEEP), "k").await;
    let at = keyed().await.unwrap();
    nats.kill();
    nats.restart();
    until(async || keyed().await.is_ok()).await;
    for number in 0..KEEP.size + 1 {
        publish(&engine, "a", &number.to_string()).await;
    }
    assert_eq!(keyed().await.unwrap(), at);
}

/// A client must not fail the connection of its node.
#[tokio::test(flavor = "multi_thread")]
async fn redis_stays_connected_whatever_positions_clients_have() {
    let Some(redis) = Redis::start() else { return };
    let engine = RedisEngine::connect(&redis.url()).await.unwrap();
    let at = publish(&engine, "a", "0").await;
    let before = redis.connections();
    for offset in [0, 1, u64::MAX - 1, u64::MAX] {
        let since = Position { offset, ..at.clone() };
        for mode in [RecoveryMode::Stream, RecoveryMode::Cache] {
            engine.recover("a", Some(&since), mode, KEEP, usize::MAX).await.unwrap();
        }
        for reverse in [false, true] {
            let query = HistoryQuery { since: Some(since.clone()), limit: Some(5), reverse, len_max: None };
            engine.history("a", &query, KEEP).await.unwrap();
        }
    }
    assert_eq!(redis.connections(), before + 1, "that of the question itself");
    assert_eq!(engine.health().failures, 0);
}

/// As over NATS: the larger history is kept, and each node reads as much as its own settings say.
#[tokio::test(flavor = "multi_thread")]
async fn redis_nodes_with_different_sizes_share_a_history() {
    let Some(redis) = Redis::start() else { return };
    let engine = RedisEngine::connect(&redis.url()).await.unwrap();
    let small = Retention { size: 3, ttl: Duration::from_millis(1), ..KEEP };
    let mut positions = Vec::new();
    for (number, retention) in [KEEP, KEEP, KEEP, KEEP, small, small].into_iter().enumerate() {
        let published = engine.publish("a", publication(number.to_string()), Some(retention), "").await;
        positions.push(published.unwrap());
    }
    sleep(Duration::from_millis(10)).await;
    assert_eq!(
        missed(&engine, "a", &positions[0]).await,
        Some(["1", "2", "3", "4", "5"].map(str::to_owned).into())
    );
    let limit = Retention { size: 3, ..KEEP };
    let read = engine.history("a", &HistoryQuery::default(), limit).await.unwrap();
    assert_eq!(read.publications.len(), 3);
    let query = HistoryQuery { limit: Some(1), ..HistoryQuery::default() };
    let read = engine.history("a", &query, limit).await.unwrap();
    assert_eq!(read.publications.iter().map(|one| text(one)).collect::<Vec<_>>(), ["3"]);
}

/// An idempotency key cannot collide with the key of another channel's position, which would read as a publication that was never made.
#[tokio::test(flavor = "multi_thread")]
async fn redis_keys_name_no_other_channels() {
    let Some(redis) = Redis::start() else { return };
    let engine = RedisEngine::connect(&redis.url()).await.unwrap();
    publish(&engine, "a}:k:x", "other").await;
    engine.publish("a", publication("0"), Some(KEEP), "x}:m").await.unwrap();
    assert_eq!(history(&engine, "a", HistoryQuery::default()).await, ["0"]);
}

/// A key belongs to the history that its publication is in.
#[tokio::test(flavor = "multi_thread")]
async fn redis_forgets_the_keys_of_lost_histories() {
    let Some(redis) = Redis::start() else { return };
    let engine = RedisEngine::connect(&redis.url()).await.unwrap();
    let keyed = async || engine.publish("a", publication("0"), Some(KEEP), "k").await.unwrap();
    let lost = keyed().await;
    assert_eq!(keyed().await, lost);
    assert!(redis.command("HSET wl:{=a}:m run other").contains(":0"));
    let next = keyed().await;
    assert_ne!(next.epoch, lost.epoch);
    assert_eq!(history(&engine, "a", HistoryQuery::default()).await, ["0"]);
    assert_eq!(keyed().await, next);
}

/// For how many milliseconds the position of a channel is kept.
fn position_left(redis: &Redis, channel: &str) -> u64 {
    let answer = redis.command(&format!("PTTL wl:{{={channel}}}:m"));
    answer.split(':').nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

/// Histories that are followed are compared every ten seconds, and must be there then.
#[tokio::test(flavor = "multi_thread")]
async fn redis_keeps_positions_between_comparisons() {
    let Some(redis) = Redis::start() else { return };
    let engine = RedisEngine::connect(&redis.url()).await.unwrap();
    let brief = Retention { ttl: Duration::from_secs(1), position_ttl: Duration::from_secs(1), ..KEEP };
    engine.publish("a", publication("0"), Some(brief), "").await.unwrap();
    let left = position_left(&redis, "a");
    assert!((10_000..=60_000).contains(&left), "{left}");
}

/// A client that may read can name any channel.
#[tokio::test(flavor = "multi_thread")]
async fn redis_soon_forgets_channels_that_were_only_read() {
    let Some(redis) = Redis::start() else { return };
    let engine = RedisEngine::connect(&redis.url()).await.unwrap();
    let left = |channel| position_left(&redis, channel);
    engine.history("a", &HistoryQuery::default(), KEEP).await.unwrap();
    let begun = engine.recover("a", None, RecoveryMode::Stream, KEEP, usize::MAX).await.unwrap().position;
    assert!((10_000..=60_000).contains(&left("a")), "{}", left("a"));
    // A channel with a publication is remembered.
    assert_eq!(publish(&engine, "a", "0").await, Position { offset: 1, ..begun });
    engine.history("a", &HistoryQuery::default(), KEEP).await.unwrap();
    assert!(left("a") > 60_000, "{}", left("a"));
}

/// Redis cannot be reached for some minutes.
#[tokio::test(flavor = "multi_thread")]
async fn redis_keeps_the_positions_of_followed_channels_for_longer() {
    let Some(redis) = Redis::start() else { return };
    let engine = RedisEngine::connect(&redis.url()).await.unwrap();
    let _recorder = started(&engine);
    engine.subscribe("a").await.unwrap();
    engine.recover("a", None, RecoveryMode::Stream, KEEP, usize::MAX).await.unwrap();
    engine.maintain().await;
    // Compared ten seconds later at the latest.
    let compared = async {
        while !(600_000..=3_600_000).contains(&position_left(&redis, "a")) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), compared).await.unwrap();
}

const CONFIG: &str = r#"
client.anonymous = true
token.hmac_secret = "secret"
api.key = "key"
channel = { subscribe = "anyone", publish = "anyone", history_size = 10, history_ttl = "10m", force_recovery = true }
"#;

pub(crate) async fn node(engine: impl Engine) -> Node {
    let config = HubConfig::from_toml(CONFIG).unwrap();
    Node::start(Hub::builder().config(config).engine(engine).build().unwrap()).await
}

pub(crate) fn token(user: &str) -> String {
    let key = EncodingKey::from_secret(b"secret");
    jsonwebtoken::encode(&Header::default(), &json!({ "sub": user }), &key).unwrap()
}

/// Malformed messages between nodes.
fn messages() -> Vec<Vec<u8>> {
    let mut messages: Vec<Vec<u8>> = [
        "",
        "{",
        "null",
        "[]",
        r#"{"Call":{"id":1,"from":"a b\r\nPUB wl.control 0\r\n","call":"Info"}}"#,
        r#"{"Call":{"id":1,"from":">","call":"Info"}}"#,
        r#"{"Call":{"id":1,"from":"","call":{"Channels":{"pattern":"["}}}}"#,
        r#"{"Call":{"id":1,"from":"x","call":{"Emulate":{"session":"x","commands":"!"}}}}"#,
        r#"{"Call":{"id":1,"from":"x","call":{"Unknown":{}}}}"#,
        r#"{"Answer":{"id":0,"answer":{"Emulated":"Queued"}}}"#,
        r#"{"Answer":{"id":18446744073709551615,"answer":{"Failed":""}}}"#,
        r#"{"user":"7","client":"","action":{"Refresh":{"expire_at":18446744073709551615}}}"#,
        r#"{"user":"7","client":"","action":{"Subscribe":{"channel":""}}}"#,
        r#"{"user":"","client":"","action":{"Unsubscribe":{"channel":"a"}}}"#,
        r#"{"user":"8","client":"","action":{"Disconnect":{"code":65535,"reason":"x","except":[]}}}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec();
    messages.push("[".repeat(100_000).into_bytes());
    messages.push(vec![0xff; 1_000]);
    messages
}

/// The node still serves its clients: each receives a publication, or is unsubscribed because of a possible gap
/// and subscribes again.
async fn check(node: &Node, client: &mut Client) {
    let mut other = node.connect().await;
    other.call("subscribe", json!({ "channel": "a" })).await;
    node.api("publish", json!({ "channel": "a", "data": 1 })).await;
    for client in [client, &mut other] {
        while client.publications.is_empty() {
            if std::mem::take(&mut client.ended) {
                client.call("subscribe", json!({ "channel": "a" })).await;
                node.api("publish", json!({ "channel": "a", "data": 1 })).await;
            }
            client.receive().await;
        }
    }
    node.api("info", json!({})).await;
    assert_eq!(node.hub.health().failure, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_survives_what_others_publish_in_redis() {
    let Some(redis) = Redis::start() else { return };
    let engine = RedisEngine::connect(&redis.url()).await.unwrap();
    let inbox = format!("wl:to:{}", engine.node_name().unwrap());
    let node = node(engine).await;
    let mut client = node.connect_with(json!({ "token": token("7") })).await;
    client.call("subscribe", json!({ "channel": "a" })).await;
    let raw = redis::Client::open(redis.url()).unwrap();
    let mut raw = raw.get_multiplexed_async_connection().await.unwrap();
    let mut send = async |channel: &str, message: &[u8]| {
        let mut command = redis::cmd("PUBLISH");
        command.arg(channel).arg(message);
        command.query_async::<()>(&mut raw).await.unwrap();
    };
    for message in messages() {
        for channel in [&*inbox, "wl:control", "wl:node", "wl:c:{=a}", "wl:c:", "wl:c:{=", "wl:to:"] {
            send(channel, &message).await;
        }
    }
    for announcement in [
        &b"p"[..],
        b"p ",
        b"pe 0 ",
        b"pe 0 x",
        b"pe -1 x",
        b"pe 18446744073709551615 ",
        b"pe 99999999999999999999 ",
        b"p\xff 1 ",
        b"x",
        b"e",
        b"e\xff\xff",
        b"m",
        b"m\xff",
        b"?",
    ] {
        send("wl:c:{=a}", announcement).await;
    }
    check(&node, &mut client).await;
    // Of another kind than the node expects.
    assert!(redis.command("SET wl:{=wrong}:m x").contains("OK"));
    let mut other = node.connect().await;
    other.socket.send(r#"{"id":7,"subscribe":{"channel":"wrong"}}"#).await.unwrap();
    assert_eq!(other.receive().await["error"]["code"], 100);
    check(&node, &mut client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_survives_what_others_publish_in_nats() {
    let Some(nats) = Nats::start() else { return };
    let engine = nats_engine(nats.port).await;
    let inbox = format!("wl.to.{}", engine.node_name().unwrap());
    let node = node(engine).await;
    let mut client = node.connect_with(json!({ "token": token("7") })).await;
    client.call("subscribe", json!({ "channel": "a" })).await;
    let raw = async_nats::connect(format!("127.0.0.1:{}", nats.port)).await.unwrap();
    // `a` in base64.
    let subjects = ["wl.live.p.YQ", "wl.live.m.YQ", "wl.live.n.YQ", "wl.live.x.YQ", "wl.live.nxx.YQ"];
    for message in messages() {
        for subject in
            [&*inbox, "wl.control", "wl.node.x", "wl.unused", "wl.log.n.YQ"].iter().chain(&subjects)
        {
            raw.publish((*subject).to_owned(), Bytes::from(message.clone())).await.unwrap();
        }
    }
    let numbers = ["0", "1", "18446744073709551615", "18446744073709551614", "-1", "x"];
    for (sequence, last) in numbers.iter().flat_map(|one| numbers.map(|other| (*one, other))) {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Nats-Sequence", sequence);
        headers.insert("Nats-Last-Sequence", last);
        for payload in [&b""[..], b"\0", b"\xff"] {
            let payload = Bytes::from_static(payload);
            raw.publish_with_headers("wl.live.n.YQ", headers.clone(), payload).await.unwrap();
        }
    }
    raw.flush().await.unwrap();
    check(&node, &mut client).await;
}

/// Subscribes while the link is slow, and gives up at once; then subscribes and unsubscribes in order.
async fn give_up(engine: &dyn Engine, link: &Link) {
    let _recorder = started(engine);
    link.set(LinkState::Slow(Duration::from_millis(100)));
    for number in 0..10 {
        let given_up = timeout(Duration::from_millis(50), engine.subscribe(&format!("c{number}"))).await;
        assert!(given_up.is_err(), "the link is slow");
    }
    link.set(LinkState::Clear);
    for number in 0..10 {
        let channel = format!("c{number}");
        engine.subscribe(&channel).await.unwrap();
        engine.unsubscribe(&channel);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_does_not_follow_what_was_given_up() {
    let Some(nats) = Nats::start() else { return };
    let link = Link::to(nats.port).await;
    let engine = nats_engine(link.port).await;
    // The node itself follows the commands of the server API.
    let before = nats.subscriptions("wl.live.").await;
    give_up(&engine, &link).await;
    until(async || nats.subscriptions("wl.live.").await == before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_does_not_follow_what_was_given_up() {
    let Some(redis) = Redis::start() else { return };
    let link = Link::to(redis.port).await;
    let engine = RedisEngine::connect(&format!("redis://127.0.0.1:{}", link.port)).await.unwrap();
    let before = redis.command("PUBSUB CHANNELS wl:c:*");
    give_up(&engine, &link).await;
    until(async || redis.command("PUBSUB CHANNELS wl:c:*") == before).await;
}

/// Subscribes to channels at the same time; returns those that were refused.
async fn subscribe_to_all(engine: &Arc<RedisEngine>, channels: impl Iterator<Item = String>) -> Vec<String> {
    let subscribing = channels.map(|channel| {
        let engine = engine.clone();
        tokio::spawn(async move { engine.subscribe(&channel).await.is_err().then_some(channel) })
    });
    let mut refused = Vec::new();
    for subscribed in subscribing.collect::<Vec<_>>() {
        refused.extend(subscribed.await.unwrap());
    }
    refused
}

/// Clients that connect again after a restart wait for a few round trips, and not for one for each of their channels.
#[tokio::test(flavor = "multi_thread")]
async fn subscriptions_share_the_round_trips_to_redis() {
    const CHANNELS: usize = 1_000;
    let Some(redis) = Redis::start() else { return };
    let link = Link::to(redis.port).await;
    let engine = RedisEngine::connect(&format!("redis://127.0.0.1:{}", link.port)).await.unwrap();
    let engine = Arc::new(engine);
    let calls = |command: &str| {
        let stats = redis.command("INFO commandstats");
        let calls = stats.lines().find_map(|line| {
            line.strip_prefix(&format!("cmdstat_{command}:calls="))?.split(',').next()?.parse::<usize>().ok()
        });
        calls.unwrap_or(0)
    };
    let followed =
        || redis.command("PUBSUB CHANNELS wl:c:{=n*").lines().filter(|line| line.contains("=n")).count();
    link.set(LinkState::Slow(Duration::from_millis(50)));
    let before = calls("subscribe");
    assert!(subscribe_to_all(&engine, (0..CHANNELS).map(|n| format!("n{n}"))).await.is_empty());
    assert!(calls("subscribe") - before < CHANNELS / 10, "{}", calls("subscribe") - before);
    assert_eq!(followed(), CHANNELS);
    (0..CHANNELS).for_each(|n| engine.unsubscribe(&format!("n{n}")));
    until(async || followed() == 0).await;
    assert!(calls("unsubscribe") < CHANNELS / 10, "{}", calls("unsubscribe"));
    // One that is refused takes no other with it.
    redis.command("ACL SETUSER default resetchannels &wl:node &wl:to:* &wl:c:*commands* &wl:c:{=n*");
    let channels =
        (0..20).map(|n| format!("n{n}")).chain(["other".to_owned()]).chain((20..40).map(|n| format!("n{n}")));
    assert_eq!(subscribe_to_all(&engine, channels).await, ["other"]);
    assert_eq!(followed(), 40);
}

/// A link to a Redis that can be lost at the moment when the server is asked for announcements: then the connection stays, and nothing
/// passes any more.
#[derive(Default)]
struct SilentLink {
    is_silent: AtomicBool,
    /// Whether the next question for announcements is lost alone.
    loses_one: AtomicBool,
    /// The number of connections that were lost.
    lost: AtomicUsize,
}

impl SilentLink {
    async fn to(port: u16) -> (u16, Arc<Self>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own_port = listener.local_addr().unwrap().port();
        let link = Arc::<Self>::default();
        let passing = link.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                tokio::spawn(passing.clone().pass(near, far));
            }
        });
        (own_port, link)
    }

    async fn pass(self: Arc<Self>, near: TcpStream, far: TcpStream) {
        let ((mut near_read, mut near_write), (mut far_read, mut far_write)) =
            (near.into_split(), far.into_split());
        let up = async {
            let mut buffer = vec![0; 16 << 10];
            while let Ok(len) = near_read.read(&mut buffer).await
                && len > 0
            {
                let asks = buffer[..len].windows(9).any(|part| part.eq_ignore_ascii_case(b"subscribe"));
                if asks && self.loses_one.swap(false, Ordering::SeqCst) {
                    continue;
                }
                if asks && self.is_silent.load(Ordering::SeqCst) {
                    self.lost.fetch_add(1, Ordering::SeqCst);
                    std::future::pending::<()>().await;
                }
                if far_write.write_all(&buffer[..len]).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = up => {}
            _ = tokio::io::copy(&mut far_read, &mut near_write) => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_falls_silent_while_it_is_subscribed_to_holds_up_nobody() {
    let Some(redis) = Redis::start() else { return };
    let (port, link) = SilentLink::to(redis.port).await;
    let engine = RedisEngine::connect(&format!("redis://127.0.0.1:{port}")).await.unwrap();
    let recorder = started(&engine);
    engine.subscribe("a").await.unwrap();
    link.is_silent.store(true, Ordering::SeqCst);
    redis.command("CLIENT KILL TYPE pubsub");
    until(async || link.lost.load(Ordering::SeqCst) > 0).await;
    let refused = timeout(DEADLINE, engine.subscribe("b")).await;
    assert!(matches!(refused, Ok(Err(_))), "{refused:?}");
    // The connection that was lost stays silent.
    link.is_silent.store(false, Ordering::SeqCst);
    until(async || engine.subscribe("b").await.is_ok()).await;
    for channel in ["a", "b"] {
        let at = publish(&engine, channel, "1").await;
        let published = Event::Published(channel.into(), at, "1".into());
        recorder.until(|events| events.contains(&published)).await;
    }
}

/// One answer that is missing, on a connection that lives on.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_that_redis_does_not_confirm_disables_no_others() {
    let Some(redis) = Redis::start() else { return };
    let (port, link) = SilentLink::to(redis.port).await;
    let engine = RedisEngine::connect(&format!("redis://127.0.0.1:{port}")).await.unwrap();
    let recorder = started(&engine);
    engine.subscribe("a").await.unwrap();
    link.loses_one.store(true, Ordering::SeqCst);
    assert!(engine.subscribe("b").await.is_err());
    until(async || engine.subscribe("c").await.is_ok()).await;
    for channel in ["a", "c"] {
        let at = publish(&engine, channel, "1").await;
        let published = Event::Published(channel.into(), at, "1".into());
        recorder.until(|events| events.contains(&published)).await;
    }
}

/// NATS keeps the bucket of presence in memory, and forgets it with its entries.
#[tokio::test(flavor = "multi_thread")]
async fn presence_is_back_after_a_restart_of_nats() {
    let Some(mut nats) = Nats::start() else { return };
    let engine = nats_engine(nats.port).await;
    let _recorder = started(&engine);
    let client = ClientInfo { client: "1".into(), ..ClientInfo::default() };
    engine.add_presence("a", &client).await.unwrap();
    assert_eq!(engine.presence("a", usize::MAX).await.unwrap().unwrap().len(), 1);
    nats.kill();
    nats.restart();
    // As each refresh does.
    until(async || {
        let is_added = engine.add_presence("a", &client).await.is_ok();
        is_added && engine.health().failure.is_none()
    })
    .await;
    assert_eq!(engine.presence("a", usize::MAX).await.unwrap().unwrap().len(), 1);
    engine.remove_presence("a", "1").await.unwrap();
    assert_eq!(engine.presence("a", usize::MAX).await.unwrap().unwrap(), []);
}

/// JetStream refuses while the connection is open.
#[tokio::test(flavor = "multi_thread")]
async fn what_nats_does_not_store_is_a_failure() {
    let Some(nats) = Nats::start() else { return };
    let engine = nats_engine(nats.port).await;
    let _recorder = started(&engine);
    let raw = async_nats::connect(format!("127.0.0.1:{}", nats.port)).await.unwrap();
    let raw = async_nats::jetstream::new(raw);
    let limit = async |stream: &str, max| {
        let mut config = raw.get_stream(stream).await.unwrap().cached_info().config.clone();
        config.max_message_size = max;
        raw.update_stream(&config).await.unwrap();
    };
    let client = ClientInfo { client: "1".into(), ..ClientInfo::default() };
    let store = async |stream| match stream {
        "wl_n" => engine.publish("a", publication("0"), Some(KEEP), "").await.map(drop),
        _ => engine.add_presence("a", &client).await,
    };
    for stream in ["wl_n", "KV_wl_presence"] {
        store(stream).await.unwrap();
        assert_eq!(engine.health().failure, None);
        let before = engine.health().failures;
        limit(stream, 1).await;
        assert!(store(stream).await.is_err());
        assert!(engine.health().failure.is_some(), "{stream}");
        assert_eq!(engine.health().failures, before + 1);
        limit(stream, -1).await;
        until(async || store(stream).await.is_ok()).await;
        assert_eq!(engine.health().failure, None);
    }
}

/// A client could make every node look unhealthy.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_long_for_nats_is_no_failure_of_it() {
    let Some(nats) = Nats::start() else { return };
    let engine = nats_engine(nats.port).await;
    let _recorder = started(&engine);
    for retention in [Some(KEEP), None] {
        let long = publication("x".repeat(1 << 20));
        assert_eq!(engine.publish("a", long, retention, "").await, Err(EngineError::TooLong));
        assert_eq!((engine.health().failure, engine.health().failures), (None, 0));
    }
}

/// Redis refuses one command, and executes others.
#[tokio::test(flavor = "multi_thread")]
async fn what_redis_refuses_to_clients_is_counted() {
    let Some(redis) = Redis::start() else { return };
    let config = "client.anonymous = true\n[channel]\nsubscribe = \"anyone\"\npublish = \"anyone\"\npresence = true\n\
        presence_access = \"anyone\"\nhistory_access = \"anyone\"\nhistory_size = 1\nhistory_ttl = \"1h\"\n\
        [[namespace]]\nname = \"bare\"\n";
    let engine = RedisEngine::connect(&redis.url()).await.unwrap();
    let hub = Hub::builder().config(HubConfig::from_toml(config).unwrap()).engine(engine);
    let node = Node::start(hub.build().unwrap()).await;
    let mut client = node.connect().await;
    for key in ["m", "s", "ph", "pz"] {
        assert!(redis.command(&format!("SET wl:{{=a}}:{key} x")).contains("OK"));
    }
    for (number, command) in ["presence", "presence_stats", "history", "publish"].into_iter().enumerate() {
        let request = json!({ "id": 100 + number, command: { "channel": "a", "data": 1 } });
        client.socket.send(&request.to_string()).await.unwrap();
        let reply = loop {
            let reply = client.receive().await;
            if reply["id"] == 100 + number {
                break reply;
            }
        };
        assert_eq!(
            (&reply["error"]["code"], node.hub.stats().engine_failures),
            (&json!(100), number as u64 + 1)
        );
    }
    // The keys alone are to blame.
    assert_eq!(node.hub.health().failure, None);
    assert!(redis.command("CONFIG SET min-replicas-to-write 1").contains("OK"));
    let refused = node.hub.publish("b", "1").await;
    assert!(refused.is_err());
    // Others of its commands succeed meanwhile.
    for _ in 0..30 {
        node.hub.publish("bare:a", "1").await.unwrap();
        sleep(Duration::from_millis(100)).await;
    }
    assert!(node.hub.health().failure.is_some());
}

/// Redis keeps positions for longer than publications, and drops none for others.
#[tokio::test(flavor = "multi_thread")]
async fn channels_of_redis_count_as_long_as_their_positions() {
    let Some(redis) = Redis::start() else { return };
    let config = "token.hmac_secret = \"secret\"\nhistory.channels_max = 10\n[channel]\nsubscribe = \"anyone\"\npublish = \"anyone\"\n\
        history_size = 1\nhistory_ttl = \"10ms\"\nhistory_meta_ttl = \"1h\"\n";
    let hub = || Hub::builder().config(HubConfig::from_toml(config).unwrap());
    let over_redis = hub().engine(RedisEngine::connect(&redis.url()).await.unwrap());
    let followed = hub().engine(RedisEngine::connect(&redis.url()).await.unwrap());
    for (hub, admitted, is_followed) in [(hub(), 12, false), (over_redis, 9, false), (followed, 9, true)] {
        let node = Node::start(hub.build().unwrap()).await;
        for number in 0..12 {
            // Each user has room for one.
            let mut client = node.connect_with(json!({ "token": token(&number.to_string()) })).await;
            // Until the limit looks again at what no longer counts.
            sleep(Duration::from_millis(if number < 9 { 1 } else { 1_100 })).await;
            let channel = number.to_string();
            let publish = json!({ "id": 100 + number, "publish": { "channel": channel, "data": 1 } });
            if is_followed && number < admitted {
                client.call("subscribe", json!({ "channel": channel })).await;
            }
            client.socket.send(&publish.to_string()).await.unwrap();
            let code = loop {
                let reply = client.receive().await;
                if reply["id"] == 100 + number {
                    break reply["error"]["code"].as_u64();
                }
            };
            assert_eq!(code, (number >= admitted).then_some(106), "{number} of {admitted}");
            if is_followed && number < admitted {
                client.call("unsubscribe", json!({ "channel": channel })).await;
            }
        }
    }
}

/// Presence is never read, and some clients are lost without leaving.
#[tokio::test(flavor = "multi_thread")]
async fn redis_forgets_clients_that_were_lost() {
    let Some(redis) = Redis::start() else { return };
    let engine = RedisEngine::connect(&redis.url()).await.unwrap();
    for number in 0..25 {
        assert!(redis.command(&format!("HSET wl:{{=a}}:ph lost{number} x")).contains(":1"));
        assert!(redis.command(&format!("ZADD wl:{{=a}}:pz {number} lost{number}")).contains(":1"));
    }
    let client = ClientInfo { client: "1".into(), ..ClientInfo::default() };
    for _refresh in 0..3 {
        engine.add_presence("a", &client).await.unwrap();
    }
    assert!(redis.command("HLEN wl:{=a}:ph").contains(":1\r"));
    assert!(redis.command("ZCARD wl:{=a}:pz").contains(":1\r"));
    assert_eq!(engine.presence("a", usize::MAX).await.unwrap().unwrap(), [client.into()]);
}

/// Commands are answered, and announcements are not.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_cannot_be_listened_to_is_a_failure() {
    let Some(redis) = Redis::start() else { return };
    let engine = RedisEngine::connect(&redis.url()).await.unwrap();
    let _recorder = started(&engine);
    let read = async || drop(engine.history("a", &HistoryQuery::default(), KEEP).await.unwrap());
    read().await;
    assert!(redis.command("ACL SETUSER default resetchannels").contains("OK"));
    until(async || engine.health().failure.is_some()).await;
    let failures = engine.health().failures;
    until(async || engine.health().failures > failures + 1).await;
    read().await;
    assert!(engine.health().failure.is_some_and(|failure| failure.contains("announcements")));
    assert!(redis.command("ACL SETUSER default allchannels").contains("OK"));
    until(async || engine.health().failure.is_none()).await;
}

/// Two nodes whose settings were changed ask for more, one of them a moment after the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_never_shrinks() {
    let Some(nats) = Nats::start() else { return };
    let (one, two) = (nats_engine(nats.port).await, nats_engine(nats.port).await);
    let days = |days: u64| Duration::from_secs(24 * 3600 * days);
    let keep = |size, ttl| Retention { size, ttl, position_ttl: ttl };
    for (engine, retention) in
        [(&one, keep(10, days(1))), (&two, keep(100, days(1))), (&one, keep(10, days(2)))]
    {
        engine.publish("a", Publication::default(), Some(retention), "").await.unwrap();
    }
    let raw = async_nats::connect(format!("127.0.0.1:{}", nats.port)).await.unwrap();
    let stream = async_nats::jetstream::new(raw).get_stream("wl_n").await.unwrap();
    let config = &stream.cached_info().config;
    // One more than is promised.
    assert_eq!((config.max_messages_per_subject, config.max_age), (101, days(2)));
}
