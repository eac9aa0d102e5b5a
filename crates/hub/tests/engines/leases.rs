//! A node's lease and open records when the queue of events loses its data or is unreachable.

use std::time::Duration;

use tokio_stream::StreamExt as _;
use wireloom_hub::engine::{Engine, EngineError, Lease, RedisEngine};
use wireloom_hub::{Hub, HubConfig};

use crate::attacks::{nats_engine, until};
use crate::nats_server::{Link, LinkState, Nats};
use crate::node::{Client, Node};
use crate::redis_server::Redis;

const CONFIG: &str = "client.anonymous = true\n[events]\nurl = \"http://127.0.0.1:9/events\"\n";
const OPEN: &str = "wl:{events}:open:";

/// A node with clients, and its lease.
async fn node(redis: &Redis, port: u16, clients: usize) -> (Node, Vec<Client>, String) {
    let leases = || {
        let keys = redis.command(&format!("KEYS {OPEN}*"));
        keys.lines().filter_map(|line| line.strip_prefix(OPEN).map(str::to_owned)).collect::<Vec<_>>()
    };
    let others = leases();
    let engine = RedisEngine::connect(&format!("redis://127.0.0.1:{port}")).await.unwrap();
    let config = HubConfig::from_toml(CONFIG).unwrap();
    let node = Node::start(Hub::builder().config(config).engine(engine).build().unwrap()).await;
    let mut connected = Vec::new();
    for _ in 0..clients {
        connected.push(node.connect().await);
    }
    let lease = leases().into_iter().find(|lease| !others.contains(lease)).unwrap();
    (node, connected, lease)
}

fn number(answer: &str) -> u64 {
    let number = answer.lines().find_map(|line| line.trim_start_matches(':').trim().parse().ok());
    number.unwrap_or_else(|| panic!("{answer}"))
}

fn open_count(redis: &Redis, lease: &str) -> u64 {
    number(&redis.command(&format!("HLEN {OPEN}{lease}")))
}

/// Until a node has renewed its lease twice, since it began or since Redis has lost it.
async fn until_renewed(redis: &Redis, lease: &str) {
    let count = || {
        redis.command(&format!("EVAL \"return tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0')\" 1 wl:{{events}}:nodes {lease}"))
    };
    until(async || number(&count()) >= 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_open_is_stored_again_until_it_is() {
    const CLIENTS: usize = 5;
    let Some(redis) = Redis::start() else { return };
    let (_node, _clients, lease) = node(&redis, redis.port, CLIENTS).await;
    until_renewed(&redis, &lease).await;
    // The lease can be renewed, and nothing stored.
    let fail =
        format!("EVAL \"redis.call('FLUSHALL') redis.call('SET', KEYS[1], '') return 1\" 1 {OPEN}{lease}");
    assert_eq!(number(&redis.command(&fail)), 1);
    until_renewed(&redis, &lease).await;
    assert_eq!(number(&redis.command(&format!("DEL {OPEN}{lease}"))), 1);
    until(async || open_count(&redis, &lease) == CLIENTS as u64).await;
}

/// Redis has lost its last second, in which no lease was renewed.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_lost_with_the_end_of_redis_is_stored_again() {
    const CLIENTS: usize = 5;
    let Some(mut redis) = Redis::start() else { return };
    let (_node, _clients, lease) = node(&redis, redis.port, CLIENTS).await;
    until_renewed(&redis, &lease).await;
    assert_eq!(number(&redis.command(&format!("DEL {OPEN}{lease}"))), 1);
    redis.kill();
    redis.restart();
    until(async || open_count(&redis, &lease) == CLIENTS as u64).await;
}

/// Over a slow link a node needs longer for what was open than others wait for its lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stores_again_is_not_lost() {
    const CLIENTS: usize = 100;
    let Some(redis) = Redis::start() else { return };
    let link = Link::to(redis.port).await;
    let (_slow, _clients, lease) = node(&redis, link.port, CLIENTS).await;
    let (_other, _client, other) = node(&redis, redis.port, 1).await;
    until_renewed(&redis, &lease).await;
    until_renewed(&redis, &other).await;
    link.set(LinkState::Slow(Duration::from_millis(100)));
    assert!(redis.command("FLUSHALL").contains("OK"));
    until(async || open_count(&redis, &lease) == CLIENTS as u64).await;
    assert_eq!(number(&redis.command(&format!("EXISTS wl:{{events}}:lost:{lease}"))), 0);
}

/// The number of a node's lease, and those of the others, as it sees them.
async fn renew(engine: &dyn Engine, node: &str) -> (u64, Option<Vec<(String, u64)>>) {
    match engine.events().unwrap().renew(node).await.unwrap() {
        Lease::Renewed { number, others } => (number, others),
        Lease::Lost => panic!("{node} is not lost"),
    }
}

/// The server may not have received the subscription.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_that_nats_does_not_confirm_is_refused() {
    let Some(nats) = Nats::start() else { return };
    let link = Link::to(nats.port).await;
    let engine = nats_engine(link.port).await;
    engine.subscribe("a").await.unwrap();
    link.set(LinkState::Stalled);
    let refused = engine.subscribe("b").await;
    assert!(matches!(refused, Err(EngineError::Unavailable(_))), "{refused:?}");
    link.set(LinkState::Clear);
    engine.subscribe("b").await.unwrap();
}

/// Its node may crash before it renews its lease for the first time.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_open_has_a_lease() {
    let (Some(nats), Some(redis)) = (Nats::start(), Redis::start()) else { return };
    let over_redis =
        async || RedisEngine::connect(&format!("redis://127.0.0.1:{}", redis.port)).await.unwrap();
    let (one, two) = (nats_engine(nats.port).await, nats_engine(nats.port).await);
    let (three, four) = (over_redis().await, over_redis().await);
    for (opens, looks) in [(&one as &dyn Engine, &two as &dyn Engine), (&three, &four)] {
        for node in ["first", "next"] {
            opens.events().unwrap().open(node, "key", b"{}").await.unwrap();
            let (_, others) = renew(looks, "other").await;
            let others: Vec<_> = others.unwrap().into_iter().map(|(name, _)| name).collect();
            assert!(others.iter().any(|name| name == node), "{}: {others:?}", opens.name());
        }
    }
    // It is renewed as any other.
    let before = renew(&one, "next").await.0;
    assert!(renew(&one, "next").await.0 > before);
}

/// A node that can write but not read is not lost, and takes no other node for lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_without_reading() {
    const READS: &str = "$JS.API.DIRECT.GET.KV_wl_events_nodes";
    let Some(nats) = Nats::start() else { return };
    let link = Link::to(nats.port).await;
    let (one, two) = (nats_engine(link.port).await, nats_engine(nats.port).await);
    let (two_number, _) = renew(&two, "two").await;
    let others = Some(vec![("two".to_owned(), two_number)]);
    assert_eq!(renew(&one, "one").await.1, others);
    let (mut own, _) = renew(&one, "one").await;
    link.set(LinkState::Deaf(READS));
    for _ in 0..3 {
        let (number, unread) = renew(&one, "one").await;
        assert_eq!(unread, None);
        assert!(number > own, "{number} after {own}");
        own = number;
        assert!(one.health().failure.is_some());
        assert_eq!(renew(&two, "two").await.1, Some(vec![("one".to_owned(), number)]));
    }
    link.set(LinkState::Clear);
    assert!(renew(&one, "one").await.1.is_some());
    assert_eq!(one.health().failure, None);
}

/// The numbers of the other nodes in a bucket that was made again do not hide that.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_made_again_has_no_number() {
    let Some(nats) = Nats::start() else { return };
    let (one, two) = (nats_engine(nats.port).await, nats_engine(nats.port).await);
    renew(&one, "one").await;
    renew(&one, "one").await;
    let client = async_nats::connect(format!("127.0.0.1:{}", nats.port)).await.unwrap();
    async_nats::jetstream::new(client).delete_key_value("wl_events_nodes").await.unwrap();
    // The bucket is made again by another node, whose renewals are counted in it.
    until(async || two.events().unwrap().renew("two").await.is_ok()).await;
    for _ in 0..10 {
        renew(&two, "two").await;
    }
    assert_eq!(renew(&one, "one").await.0, 0);
    assert!(renew(&one, "one").await.0 > 10);
}

/// A node that was suspended for long does not know yet that others have taken its lease, and do not look for it any more.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_opened_under_a_lease_that_was_taken() {
    let (Some(nats), Some(redis)) = (Nats::start(), Redis::start()) else { return };
    let (one, two) = (nats_engine(nats.port).await, nats_engine(nats.port).await);
    let three = RedisEngine::connect(&redis.url()).await.unwrap();
    let four = RedisEngine::connect(&redis.url()).await.unwrap();
    for (own, other) in [(&one as &dyn Engine, &two as &dyn Engine), (&three, &four)] {
        renew(own, "one").await;
        let (own_queue, other_queue) = (own.events().unwrap(), other.events().unwrap());
        own_queue.open("one", "a", b"{}").await.unwrap();
        other_queue.lose("one").await.unwrap();
        for (key, event) in other_queue.open_on("one", 10).await.unwrap() {
            other_queue.end("one", &key, &event).await.unwrap();
        }
        other_queue.forget("one").await.unwrap();
        let opened = own_queue.open("one", "b", b"{}").await;
        let (_, others) = renew(other, "two").await;
        let is_known = others.unwrap().iter().any(|(name, _)| name == "one");
        assert!(opened.is_err() || is_known, "{}", own.name());
        assert_eq!(opened.is_ok(), !other_queue.open_on("one", 10).await.unwrap().is_empty());
    }
}

/// A node that was taken for lost goes on under another name.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_begun_once_under_each_name() {
    const LEASE: &str = "$KV.wl_events_nodes.next";
    let Some(nats) = Nats::start() else { return };
    let engine = nats_engine(nats.port).await;
    let queue = engine.events().unwrap();
    renew(&engine, "first").await;
    queue.lose("first").await.unwrap();
    assert_eq!(queue.renew("first").await, Ok(Lease::Lost));
    let raw = async_nats::connect(format!("127.0.0.1:{}", nats.port)).await.unwrap();
    let mut written = raw.subscribe(LEASE).await.unwrap();
    // The server has seen the subscription once it answers: a flush says only that the bytes are on their way.
    raw.request("$JS.API.INFO", "".into()).await.unwrap();
    for key in ["a", "b", "c"] {
        queue.open("next", key, b"{}").await.unwrap();
    }
    raw.publish(LEASE, "end".into()).await.unwrap();
    let mut count = 0;
    while written.next().await.unwrap().payload != "end" {
        count += 1;
    }
    assert_eq!(count, 1);
}
