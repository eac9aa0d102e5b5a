//! What is open on a node, and its lease, when Redis loses its data.

use std::time::Duration;

use wireloom_hub::engine::RedisEngine;
use wireloom_hub::{Hub, HubConfig};

use crate::attacks::until;
use crate::nats_server::{Link, LinkState};
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
