//! The contract of the engines, on each of them. NATS and Redis are real servers; where one is not installed, a line says so.

#![cfg(all(feature = "nats", feature = "redis"))]
#![allow(clippy::unwrap_used)]

mod attacks;
mod cluster;
mod commands;
mod failing;
mod gaps;
mod held;
mod leases;
#[path = "../nats/server.rs"]
#[allow(dead_code)]
mod nats_server;
#[path = "../nats/node.rs"]
#[allow(dead_code)]
mod node;
mod redis_server;

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use wireloom_hub::RecoveryMode;
use wireloom_hub::engine::{
    Control, Delivery, DiskEngine, Engine, EventQueue, Lease, Membership, MemoryEngine, NatsEngine,
    PendingDelivery, QueuedEvent, RedisEngine,
};
use wireloom_hub::protocol::{ClientInfo, Publication};
use wireloom_hub::{HistoryQuery, Position, Retention};

use nats_server::Nats;
use redis_server::Redis;

const DAY: Duration = Duration::from_secs(24 * 3600);
pub(crate) const KEEP: Retention = Retention { size: 10, ttl: Duration::from_secs(600), position_ttl: DAY };
const SHORT: Retention = Retention { size: 10, ttl: Duration::from_secs(1), position_ttl: DAY };
/// The position expires with the publications.
const BRIEF: Retention =
    Retention { size: 10, ttl: Duration::from_secs(1), position_ttl: Duration::from_secs(1) };

/// Everything that an engine has delivered.
#[derive(Debug, Default)]
pub(crate) struct Recorder(Mutex<Vec<Event>>);

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    Published(String, Position, String),
    Joined(String),
    Lost(String),
    FromNode(Vec<u8>),
}

impl Delivery for Recorder {
    fn deliver_publication(
        &self,
        channel: &str,
        epoch: &str,
        _: u64,
        publication: &Arc<Publication>,
    ) -> PendingDelivery {
        let position = Position { offset: publication.offset, epoch: epoch.into() };
        self.0.lock().unwrap().push(Event::Published(channel.into(), position, text(publication)));
        PendingDelivery::default()
    }

    fn deliver_membership(&self, _: &str, membership: &Membership) {
        if let Membership::Join(info) = membership {
            self.0.lock().unwrap().push(Event::Joined(info.client.clone()));
        }
    }

    fn deliver_history_lost(&self, channel: &str) {
        self.0.lock().unwrap().push(Event::Lost(channel.into()));
    }

    fn deliver_from_node(&self, message: &[u8]) {
        self.0.lock().unwrap().push(Event::FromNode(message.to_vec()));
    }

    fn deliver_control(&self, _: &Control) {}

    fn retention(&self, channel: &str) -> Option<Retention> {
        match channel.split_once(':') {
            Some(("short", _)) => Some(SHORT),
            Some(("brief", _)) => Some(BRIEF),
            // Of a node whose configuration keeps nothing, while that of others does.
            Some(("none", _)) => None,
            _ => Some(KEEP),
        }
    }

    fn has_unpositioned(&self, channel: &str) -> bool {
        !channel.starts_with("positioned:")
    }
}

impl Recorder {
    pub(crate) async fn until(&self, what: impl Fn(&[Event]) -> bool) -> Vec<Event> {
        for _ in 0..2_000 {
            let events = self.0.lock().unwrap().clone();
            if what(&events) {
                return events;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{:?}", self.0.lock().unwrap());
    }
}

/// For `node`.
fn payloads(publications: &[serde_json::Value]) -> Vec<u64> {
    publications.iter().map(|one| one["data"].as_u64().unwrap()).collect()
}

pub(crate) fn text(publication: &Publication) -> String {
    String::from_utf8(publication.data.to_vec()).unwrap()
}

pub(crate) fn publication(data: impl Into<String>) -> Publication {
    Publication { data: data.into().into(), ..Publication::default() }
}

pub(crate) fn started(engine: &dyn Engine) -> Arc<Recorder> {
    let recorder = Arc::<Recorder>::default();
    let delivery: Arc<dyn Delivery> = recorder.clone();
    engine.start(Arc::downgrade(&delivery) as Weak<dyn Delivery>);
    recorder
}

pub(crate) async fn publish(engine: &dyn Engine, channel: &str, data: &str) -> Position {
    engine.publish(channel, publication(data), Some(KEEP), "").await.unwrap()
}

/// The publications that a client at a position missed, if it can recover.
pub(crate) async fn missed(engine: &dyn Engine, channel: &str, since: &Position) -> Option<Vec<String>> {
    let recovery =
        engine.recover(channel, Some(since), RecoveryMode::Stream, KEEP, usize::MAX).await.unwrap();
    recovery.recovered.then(|| recovery.publications.iter().map(|one| text(one)).collect())
}

pub(crate) async fn history(engine: &dyn Engine, channel: &str, query: HistoryQuery) -> Vec<String> {
    let history = engine.history(channel, &query, KEEP).await.unwrap();
    history.publications.iter().map(|one| text(one)).collect()
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

/// The position of a channel is kept for its time, and for no longer where each channel has an epoch of its own.
async fn position_expires(one: &dyn Engine, two: &dyn Engine) {
    let last = one.publish("brief:a", publication("0"), Some(BRIEF), "").await.unwrap();
    let kept = one.publish("short:b", publication("0"), Some(SHORT), "").await.unwrap();
    let position = async |channel, retention| {
        two.recover(channel, None, RecoveryMode::Stream, retention, usize::MAX).await.unwrap().position
    };
    // A node whose configuration keeps less does not shorten it.
    assert_eq!(position("short:b", BRIEF).await, kept);
    if one.name() == "nats" || one.name() == "redis" {
        // The stream of a namespace has the epoch, and lives as long as it has channels. Redis keeps positions for a minute at least.
        assert_eq!(position("brief:a", BRIEF).await, last);
        return;
    }
    for _ in 0..10 {
        tokio::time::sleep(2 * BRIEF.position_ttl).await;
        one.maintain().await;
        let now = position("brief:a", BRIEF).await;
        if now.epoch != last.epoch {
            assert_eq!(now.offset, 0);
            assert_eq!(position("short:b", SHORT).await, kept);
            return;
        }
    }
    panic!("the position of brief:a has not expired");
}

/// A history has publications that have expired and others that have not.
async fn limits_count_what_is_kept(one: &dyn Engine, two: &dyn Engine) {
    let read = async |limit, reverse| {
        let query = HistoryQuery { limit, reverse, ..HistoryQuery::default() };
        let history = two.history("short:limits", &query, SHORT).await.unwrap();
        history.publications.iter().map(|one| text(one).parse::<u32>().unwrap()).collect::<Vec<_>>()
    };
    for number in 0.. {
        one.publish("short:limits", publication(number.to_string()), Some(SHORT), "").await.unwrap();
        let (before, limited) = (read(None, false).await, read(Some(1), false).await);
        let (reversed, after) = (read(Some(1), true).await, read(None, false).await);
        // Unless the test was held up.
        if before.first().is_some_and(|first| *first > 2) && !after.is_empty() {
            assert_eq!((limited.len(), reversed), (1, vec![number]));
            assert!((before[0]..=after[0]).contains(&limited[0]), "{limited:?}");
            return;
        }
        tokio::time::sleep(SHORT.ttl / 4).await;
    }
}

/// During a change of the configuration.
async fn a_node_without_history_delivers_what_others_keep(
    one: &dyn Engine,
    two: &dyn Engine,
    second: &Recorder,
) {
    two.subscribe("none:a").await.unwrap();
    for number in numbers(0..3) {
        let at = publish(one, "none:a", &number).await;
        let event = Event::Published("none:a".into(), at, number);
        second.until(|events| events.contains(&event)).await;
    }
    two.unsubscribe("none:a");
}

/// Publications beyond a limit in bytes are not read, and a client that missed them has not recovered. A single publication is read
/// whatever its length.
async fn limits_in_bytes(one: &dyn Engine, two: &dyn Engine) {
    const COUNT: usize = 150;
    let long = Retention { size: 1_000, ..KEEP };
    let begin = two.recover("lens", None, RecoveryMode::Stream, long, 0).await.unwrap().position;
    let mut positions = vec![begin];
    for number in 0..COUNT {
        let publication = publication(format!("{number:0200}"));
        positions.push(one.publish("lens", publication, Some(long), "").await.unwrap());
    }
    let all = two.history("lens", &HistoryQuery::default(), long).await.unwrap().publications;
    assert_eq!(all.len(), COUNT);
    let len_of = |publications: &[Arc<Publication>]| {
        publications.iter().map(|one| prost::Message::encoded_len(&**one)).sum::<usize>()
    };
    // A stream of NATS that has grown does not know how much it has dropped before the first publication of a channel.
    for missed in [0, 1, 2, 70, COUNT - 1] {
        let since = &positions[COUNT - missed];
        let len = len_of(&all[COUNT - missed..]);
        for (len_max, fits) in
            [(len, true), (len.saturating_sub(1), missed < 2), (1, missed < 2), (0, missed < 2)]
        {
            let recovered =
                two.recover("lens", Some(since), RecoveryMode::Stream, long, len_max).await.unwrap();
            let count = if fits { missed } else { 0 };
            assert_eq!(
                (recovered.recovered, recovered.publications.len()),
                (fits, count),
                "{missed} {len_max}"
            );
            assert_eq!(recovered.position, positions[COUNT]);
        }
    }
    let newest = two.recover("lens", Some(&positions[0]), RecoveryMode::Cache, long, 1).await.unwrap();
    assert_eq!((newest.recovered, newest.publications.len()), (true, 1));
    let reversed: Vec<_> = all.iter().rev().cloned().collect();
    for (reverse, all, since) in
        [(false, &all, None), (true, &reversed, None), (false, &all, Some(10)), (true, &reversed, Some(140))]
    {
        let skipped = since.map_or(0, |since| if reverse { COUNT + 1 - since } else { since });
        let since = since.map(|since| positions[since].clone());
        for count in [1, 2, 65, 101, COUNT] {
            let count = count.min(COUNT - skipped);
            let expected = &all[skipped..][..count];
            for (len_max, limit, count) in [
                (len_of(expected), None, count),
                (len_of(expected), Some(COUNT), count),
                (len_of(expected) - 1, None, (count - 1).max(1)),
                (0, None, 1),
                (len_of(expected), Some(1), 1),
            ] {
                let query = HistoryQuery { since: since.clone(), limit, reverse, len_max: Some(len_max) };
                let read = two.history("lens", &query, long).await.unwrap();
                assert_eq!(read.publications, expected[..count], "{query:?}");
                assert_eq!(read.position, positions[COUNT]);
            }
        }
    }
}

/// More than are read at once.
async fn presence_is_complete_after_many_have_left(one: &dyn Engine, two: &dyn Engine) {
    let info = |number: usize| ClientInfo { client: number.to_string(), ..ClientInfo::default() };
    for number in 0..1_001 {
        one.add_presence("crowd", &info(number)).await.unwrap();
    }
    for number in 0..1_001 {
        one.remove_presence("crowd", &number.to_string()).await.unwrap();
    }
    one.add_presence("crowd", &info(1_001)).await.unwrap();
    assert_eq!(two.presence("crowd", usize::MAX).await.unwrap().unwrap(), [info(1_001).into()]);
    one.remove_presence("crowd", "1001").await.unwrap();
}

/// More clients than are read at once, and long ones.
async fn presence_is_read_up_to_a_length(one: &dyn Engine, two: &dyn Engine) {
    let mut len = 0;
    for number in 0..150 {
        let conn_info = format!("\"{}\"", "x".repeat(if number < 5 { 10_000 } else { 0 })).into();
        let info = ClientInfo { client: number.to_string(), conn_info, ..ClientInfo::default() };
        len += info.client.len() + prost::Message::encoded_len(&info);
        one.add_presence("long", &info).await.unwrap();
    }
    for (len_max, expected) in [(len - 1, None), (len, Some(150)), (usize::MAX, Some(150)), (0, None)] {
        assert_eq!(two.presence("long", len_max).await.unwrap().map(|all| all.len()), expected, "{len_max}");
    }
    assert_eq!(two.presence("empty", 0).await.unwrap().map(|all| all.len()), Some(0));
}

/// `one` and `two` are two nodes of a cluster, or the same node.
async fn contract(one: &dyn Engine, two: &dyn Engine) {
    let first = started(one);
    let second = if std::ptr::addr_eq(one, two) { first.clone() } else { started(two) };
    // Several runs may share a server.
    let begin = one.recover("a", None, RecoveryMode::Stream, KEEP, usize::MAX).await.unwrap().position;
    one.subscribe("a").await.unwrap();
    two.subscribe("a").await.unwrap();
    let mut positions = vec![begin.clone()];
    for number in 0..10 {
        let engine = if number % 2 == 0 { one } else { two };
        positions.push(publish(engine, "a", &number.to_string()).await);
        publish(engine, "other", "x").await;
    }
    assert!(positions.is_sorted_by(|one, next| one.offset < next.offset && one.epoch == next.epoch));
    for (index, position) in positions.iter().enumerate() {
        assert_eq!(missed(two, "a", position).await, Some(numbers(index as u32..10)), "{position:?}");
    }
    let delivered = |events: &[Event]| {
        let of = |event: &Event| match event {
            Event::Published(channel, position, text) if channel == "a" => {
                Some((position.clone(), text.clone()))
            }
            _ => None,
        };
        events.iter().filter_map(of).collect::<Vec<_>>()
    };
    let expected: Vec<_> = positions[1..].iter().cloned().zip(numbers(0..10)).collect();
    for recorder in [&first, &second] {
        let events = recorder.until(|events| delivered(events).len() >= 10).await;
        assert_eq!(delivered(&events)[..10], expected);
    }

    // The oldest are dropped, and a client that misses one of them does not recover.
    publish(one, "a", "10").await;
    assert_eq!(missed(one, "a", &positions[0]).await, None);
    assert_eq!(missed(one, "a", &positions[1]).await, Some(numbers(1..11)));
    let other = Position { epoch: "other".into(), ..positions[1].clone() };
    assert_eq!(missed(one, "a", &other).await, None);
    let later = Position { offset: u64::MAX / 4, ..positions[1].clone() };
    assert_eq!(missed(one, "a", &later).await, None);
    let newest = one.recover("a", Some(&other), RecoveryMode::Cache, KEEP, usize::MAX).await.unwrap();
    assert_eq!((newest.publications.len(), newest.recovered), (1, true));

    for limit in [0, 1, 4, 10, 50] {
        let query = HistoryQuery { limit: Some(limit), ..HistoryQuery::default() };
        assert_eq!(history(one, "a", query.clone()).await, numbers(1..11)[..limit.min(10)]);
        let reversed: Vec<_> = numbers(1..11).into_iter().rev().take(limit).collect();
        assert_eq!(history(two, "a", HistoryQuery { reverse: true, ..query.clone() }).await, reversed);
        let since = Some(positions[4].clone());
        let query = HistoryQuery { since: since.clone(), ..query };
        assert_eq!(history(two, "a", query.clone()).await, numbers(4..11)[..limit.min(7)]);
        let before: Vec<_> = numbers(1..3).into_iter().rev().take(limit).collect();
        assert_eq!(history(one, "a", HistoryQuery { reverse: true, ..query }).await, before);
    }
    // Positions that no client was given.
    for (offset, follow, precede) in
        [(0, 10, 0), (u64::MAX / 2, 0, 10), (u64::MAX - 1, 0, 10), (u64::MAX, 0, 10)]
    {
        let since = Position { offset, ..positions[1].clone() };
        assert_eq!(missed(one, "a", &since).await, None, "{offset}");
        one.recover("a", Some(&since), RecoveryMode::Cache, KEEP, usize::MAX).await.unwrap();
        for (reverse, expected) in [(false, follow), (true, precede)] {
            let query = HistoryQuery { since: Some(since.clone()), limit: None, reverse, len_max: None };
            assert_eq!(history(two, "a", query).await.len(), expected, "{offset} {reverse}");
        }
    }
    // A long one, beside another channel.
    let long = Retention { size: 1_000, ..KEEP };
    let mut middle = Position::default();
    for number in 0..600 {
        for channel in ["long:a", "long:b"] {
            let text = number.to_string();
            let position = one.publish(channel, publication(text), Some(long), "").await.unwrap();
            if (channel, number) == ("long:a", 300) {
                middle = position;
            }
        }
    }
    for (since, newest) in [(None, 600), (Some(middle), 300)] {
        for limit in [1, 10, 250, 599, 1_000] {
            let query =
                HistoryQuery { since: since.clone(), limit: Some(limit), reverse: true, len_max: None };
            let read = two.history("long:a", &query, long).await.unwrap();
            let read: Vec<_> = read.publications.iter().map(|one| text(one)).collect();
            let expected: Vec<_> = numbers(0..newest).into_iter().rev().take(limit).collect();
            assert_eq!(read, expected, "{limit} before {since:?}");
        }
    }

    // Keys, by channel.
    let keyed = async |engine: &dyn Engine, channel, data: &str, key| {
        engine.publish(channel, publication(data), Some(KEEP), key).await.unwrap()
    };
    if one.name() != "memory" {
        let position = keyed(one, "keys", "0", "k").await;
        assert_eq!(keyed(two, "keys", "1", "k").await, position);
        keyed(two, "keys", "2", "l").await;
        keyed(two, "keys2", "0", "k").await;
        assert_eq!(history(one, "keys", HistoryQuery::default()).await, ["0", "2"]);
    }

    // Without a history.
    let position = one.publish("a", publication("ephemeral"), None, "").await.unwrap();
    assert_eq!(position.offset, 0);
    let is_ephemeral = |event: &Event| matches!(event, Event::Published(_, position, text) if position.offset == 0 && text == "ephemeral");
    second.until(|events| events.iter().any(is_ephemeral)).await;
    let info = ClientInfo { client: "client".into(), ..ClientInfo::default() };
    one.publish_membership("a", Membership::Join(info.clone())).await.unwrap();
    second.until(|events| events.contains(&Event::Joined("client".into()))).await;

    one.add_presence("a", &info).await.unwrap();
    two.add_presence("a", &ClientInfo { client: "second".into(), ..info.clone() }).await.unwrap();
    assert_eq!(two.presence("a", usize::MAX).await.unwrap().unwrap().len(), 2);
    two.remove_presence("a", "second").await.unwrap();
    presence_is_read_up_to_a_length(one, two).await;
    assert_eq!(one.presence("a", usize::MAX).await.unwrap().unwrap(), [info.into()]);
    assert!(one.presence("b", usize::MAX).await.unwrap().unwrap().is_empty());

    // To one node, and to no other.
    if let (Some(from), Some(to)) = (one.node_name(), two.node_name()) {
        assert_ne!(from, to);
        one.send_to_node("nowhere", b"lost".to_vec()).await.unwrap();
        one.send_to_node(to, b"\0 there".to_vec()).await.unwrap();
        let received =
            |text: &'static [u8]| move |events: &[Event]| events.contains(&Event::FromNode(text.to_vec()));
        second.until(received(b"\0 there")).await;
        two.send_to_node(from, b"and back".to_vec()).await.unwrap();
        let events = first.until(received(b"and back")).await;
        assert!(!received(b"\0 there")(&events) && !received(b"lost")(&events));
    } else {
        assert!(one.send_to_node("nowhere", Vec::new()).await.is_err());
    }

    // A removed history is gone, and what follows is another one.
    one.remove_history("a").await.unwrap();
    for recorder in [&first, &second] {
        recorder.until(|events| events.contains(&Event::Lost("a".into()))).await;
    }
    assert_eq!(history(two, "a", HistoryQuery::default()).await, [""; 0]);
    publish(two, "a", "new").await;
    assert_eq!(missed(one, "a", &positions[10]).await, None);
    assert_eq!(history(one, "a", HistoryQuery::default()).await, ["new"]);

    // A position that was read before the first publication is where the next history begins, but not the one after that.
    let before = two.history("begun", &HistoryQuery::default(), KEEP).await.unwrap().position;
    publish(one, "begun", "0").await;
    assert_eq!(missed(two, "begun", &before).await, Some(numbers(0..1)));
    two.remove_history("begun").await.unwrap();
    publish(one, "begun", "1").await;
    assert_eq!(missed(two, "begun", &before).await, None);

    // Expired publications are not read. A client that missed nothing recovers.
    let at = one.publish("short:a", publication("0"), Some(SHORT), "").await.unwrap();
    let last = one.publish("short:a", publication("1"), Some(SHORT), "").await.unwrap();
    loop {
        if one.history("short:a", &HistoryQuery::default(), SHORT).await.unwrap().publications.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for (since, expected) in [(&at, false), (&last, true)] {
        let recovery =
            two.recover("short:a", Some(since), RecoveryMode::Stream, SHORT, usize::MAX).await.unwrap();
        assert_eq!((recovery.recovered, recovery.publications.len()), (expected, 0), "{since:?}");
        assert_eq!(recovery.position, last);
    }
    limits_count_what_is_kept(one, two).await;
    limits_in_bytes(one, two).await;
    position_expires(one, two).await;
    a_node_without_history_delivers_what_others_keep(one, two, &second).await;
    presence_is_complete_after_many_have_left(one, two).await;
    one.unsubscribe("a");
    two.unsubscribe("a");
    assert_eq!(one.health().failure, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory() {
    let engine = MemoryEngine::new(100);
    contract(&engine, &engine).await;
    events(&engine, &engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disk() {
    let directory = tempfile::tempdir().unwrap();
    let engine = DiskEngine::open(directory.path(), MemoryEngine::new(100)).unwrap();
    contract(&engine, &engine).await;
    events(&engine, &engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nats() {
    let Some(nats) = Nats::start() else { return };
    let url = format!("nats://127.0.0.1:{}", nats.port);
    let connect = async || loop {
        match NatsEngine::connect(&url).await {
            Ok(engine) => return engine,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let (one, two) = (connect().await, connect().await);
    contract(&one, &two).await;
    events(&one, &two).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis() {
    let Some(redis) = Redis::start() else { return };
    let (one, two) = (RedisEngine::connect(&redis.url()).await, RedisEngine::connect(&redis.url()).await);
    let (one, two) = (one.unwrap(), two.unwrap());
    contract(&one, &two).await;
    events(&one, &two).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_cluster() {
    let Some(mut cluster) = Redis::start_cluster(3) else { return };
    let hosts: Vec<_> = cluster.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
    let url = format!("redis+cluster://{}", hosts.join(","));
    let (one, two) = (RedisEngine::connect(&url).await.unwrap(), RedisEngine::connect(&url).await.unwrap());
    contract(&one, &two).await;
    events(&one, &two).await;
    let connect = async |prefix| RedisEngine::connect_with_prefix(&url, prefix).await.unwrap();
    apart(&connect("one").await, &connect("one-n").await).await;
    let (one, two) = (RedisEngine::connect(&url).await.unwrap(), RedisEngine::connect(&url).await.unwrap());
    let recorder = started(&one);
    // Channels are on all servers. One that restarts begins new histories; those of the others stay.
    let channels: Vec<_> = (0..12).map(|n| format!("c{n}")).collect();
    let mut positions = Vec::new();
    for channel in &channels {
        one.subscribe(channel).await.unwrap();
        positions.push(publish(&two, channel, "0").await);
    }
    cluster[0].kill();
    cluster[0].restart();
    let (mut kept, mut begun) = (0, 0);
    for (channel, at) in channels.iter().zip(&positions) {
        let begin = std::time::Instant::now();
        let next = loop {
            match two.publish(channel, publication("1"), Some(KEEP), "k").await {
                Ok(position) => break position,
                Err(error) => assert!(begin.elapsed() < Duration::from_secs(60), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        // The first command after the loss may fail.
        while one.recover(channel, None, RecoveryMode::Stream, KEEP, usize::MAX).await.is_err() {
            assert!(begin.elapsed() < Duration::from_secs(60));
        }
        match missed(&one, channel, at).await {
            Some(missed) => {
                kept += 1;
                assert_eq!((missed, &next.epoch), (vec!["1".to_owned()], &at.epoch));
            }
            None => {
                begun += 1;
                assert_ne!(next.epoch, at.epoch);
            }
        }
    }
    assert!(kept > 0 && begun > 0, "{kept} {begun}");
    // Those of the server that is listened to, which may be another one now, are delivered too.
    for channel in &channels {
        let at = publish(&two, channel, "2").await;
        let event = Event::Published(channel.clone(), at, "2".into());
        recorder.until(|events| events.contains(&event)).await;
    }
}

/// Two hubs with prefixes of their own share a server: neither hears, reads or knows of the other. One prefix begins like the other.
async fn apart(one: &dyn Engine, other: &dyn Engine) {
    let (first, second) = (started(one), started(other));
    let mut positions = Vec::new();
    for engine in [one, other] {
        engine.subscribe("a").await.unwrap();
        positions.push(publish(engine, "a", engine.node_name().unwrap()).await);
    }
    for (engine, recorder, position) in [(one, &first, &positions[0]), (other, &second, &positions[1])] {
        let own = engine.node_name().unwrap().to_owned();
        let info = ClientInfo { client: own.clone(), ..ClientInfo::default() };
        engine.publish("a", publication(&*own), None, "").await.unwrap();
        engine.publish_membership("a", Membership::Join(info.clone())).await.unwrap();
        engine.add_presence("a", &info).await.unwrap();
        let queue = engine.events().unwrap();
        queue.open("node", &own, own.as_bytes()).await.unwrap();
        queue.end("node", &own, own.as_bytes()).await.unwrap();
        recorder.until(|events| events.contains(&Event::Joined(own.clone()))).await;
        let published = Event::Published("a".into(), position.clone(), own.clone());
        recorder.until(|events| events.contains(&published)).await;
    }
    for (engine, recorder, theirs) in [(one, &first, other), (other, &second, one)] {
        let (own, theirs) = (engine.node_name().unwrap().to_owned(), theirs.node_name().unwrap());
        // It arrives after everything that the other hub has sent.
        let last = Event::Published("a".into(), publish(engine, "a", "last").await, "last".into());
        let events = recorder.until(|events| events.contains(&last)).await;
        assert!(!format!("{events:?}").contains(theirs), "{events:?}");
        assert_eq!(history(engine, "a", HistoryQuery::default()).await, [&*own, "last"]);
        assert_eq!(engine.presence("a", usize::MAX).await.unwrap().unwrap().len(), 1);
        assert!(!engine.peers().iter().any(|peer| peer == theirs));
        let taken: Vec<_> = engine.events().unwrap().take(10).await.unwrap();
        assert_eq!(taken.iter().map(|event| &event.event[..]).collect::<Vec<_>>(), [own.as_bytes()]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hubs_with_prefixes_share_nats() {
    let Some(nats) = Nats::start() else { return };
    let url = format!("nats://127.0.0.1:{}", nats.port);
    let connect = async |prefix| loop {
        match NatsEngine::connect_with_prefix(&url, prefix).await {
            Ok(engine) => return engine,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let (one, other, same) = (connect("one").await, connect("one-n").await, connect("one").await);
    apart(&one, &other).await;
    let _recorder = started(&same);
    assert_eq!(history(&same, "a", HistoryQuery::default()).await, [one.node_name().unwrap(), "last"]);
    for prefix in ["", "a.b", "a*", ">", "a b", "a_b", "{a}"] {
        let refused = NatsEngine::connect_with_prefix(&url, prefix).await.unwrap_err().to_string();
        assert!(refused.contains(&format!("engine.prefix {prefix:?} must have")), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hubs_with_prefixes_share_redis() {
    let Some(redis) = Redis::start() else { return };
    let connect = async |prefix| RedisEngine::connect_with_prefix(&redis.url(), prefix).await;
    let (one, other) = (connect("one").await.unwrap(), connect("one-n").await.unwrap());
    apart(&one, &other).await;
    assert!(!redis.command("KEYS *").contains("wl:"));
    let refused = connect("a:b").await.unwrap_err().to_string();
    assert!(refused.contains("engine.prefix \"a:b\" must have"), "{refused}");
}

/// Servers pass messages on to each other: those that went through several would not keep their order.
#[tokio::test(flavor = "multi_thread")]
async fn messages_to_a_node_go_through_one_server_of_a_redis_cluster() {
    const MESSAGES: usize = 64;
    let Some(cluster) = Redis::start_cluster(3) else { return };
    let hosts: Vec<_> = cluster.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
    let url = format!("redis+cluster://{}", hosts.join(","));
    let engine = RedisEngine::connect(&url).await.unwrap();
    let published = || {
        let calls = cluster.iter().map(|node| {
            let stats = node.command("INFO commandstats");
            let calls = stats.split("cmdstat_publish:calls=").nth(1).and_then(|rest| rest.split(',').next());
            calls.map_or(0, |calls| calls.parse::<usize>().unwrap())
        });
        calls.collect::<Vec<_>>()
    };
    let before = published();
    for number in 0..MESSAGES {
        engine.send_to_node("node", number.to_string().into_bytes()).await.unwrap();
    }
    let more: Vec<_> = published().iter().zip(&before).map(|(after, before)| after - before).collect();
    assert!(more.iter().any(|more| *more >= MESSAGES), "{more:?}");
}

/// Announcements of a channel reach the server of its slot alone, and are followed to another server.
#[tokio::test(flavor = "multi_thread")]
async fn announcements_are_sharded_in_a_redis_cluster() {
    let Some(cluster) = Redis::start_cluster(3) else { return };
    let hosts: Vec<_> = cluster.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
    let url = format!("redis+cluster://{}", hosts.join(","));
    let (one, two) = (RedisEngine::connect(&url).await.unwrap(), RedisEngine::connect(&url).await.unwrap());
    let recorder = started(&one);
    // One that begins with a brace is in one slot, too.
    let channels: Vec<_> = (0..12).map(|n| format!("c{n}")).chain(["}{a".to_owned()]).collect();
    for channel in &channels {
        one.subscribe(channel).await.unwrap();
        let at = publish(&two, channel, "0").await;
        let event = Event::Published(channel.clone(), at, "0".into());
        recorder.until(|events| events.contains(&event)).await;
    }
    let subject = |channel: &str| format!("wl:c:{{={channel}}}\r");
    let has = |answer: &str| channels.iter().filter(|one| answer.contains(&subject(one))).count();
    let sharded: Vec<_> = cluster.iter().map(|node| has(&node.command("PUBSUB SHARDCHANNELS"))).collect();
    assert_eq!(sharded.iter().sum::<usize>(), channels.len(), "{sharded:?}");
    assert!(sharded.iter().all(|count| *count > 0), "{sharded:?}");
    assert!(cluster.iter().all(|node| has(&node.command("PUBSUB CHANNELS")) == 0));

    // Its slot moves to another server.
    one.subscribe("moved").await.unwrap();
    let is_subscribed = |node: &Redis| node.command("PUBSUB SHARDCHANNELS").contains(&subject("moved"));
    let from = cluster.iter().position(is_subscribed).unwrap();
    let to = (from + 1) % cluster.len();
    let slot = cluster[from].command("CLUSTER KEYSLOT wl:c:{=moved}");
    let slot = slot.lines().next().and_then(|line| line.strip_prefix(':')).unwrap().to_owned();
    let id = cluster[to].command("CLUSTER MYID").lines().nth(1).unwrap().to_owned();
    for node in [to, from, (from + 2) % cluster.len()] {
        let answer = cluster[node].command(&format!("CLUSTER SETSLOT {slot} NODE {id}"));
        assert!(answer.starts_with("+OK"), "{answer}");
    }
    let is_delivered = |event: &Event| matches!(event, Event::Published(channel, _, _) if channel == "moved");
    // Without a history there is nothing to catch up: what is published before it is followed again is lost.
    for _ in 0..400 {
        let _ = two.publish("moved", publication("1"), None, "").await;
        if recorder.0.lock().unwrap().iter().any(is_delivered) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    recorder.until(|events| events.iter().any(is_delivered)).await;
    assert!(is_subscribed(&cluster[to]) && !is_subscribed(&cluster[from]));
    for channel in channels.iter().map(String::as_str).chain(["moved"]) {
        one.unsubscribe(channel);
    }
    for node in &cluster {
        let begin = std::time::Instant::now();
        while is_subscribed(node) || has(&node.command("PUBSUB SHARDCHANNELS")) > 0 {
            assert!(begin.elapsed() < Duration::from_secs(60), "{}", node.command("PUBSUB SHARDCHANNELS"));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_over_tls() {
    let Some((redis, certificate)) = Redis::start_tls() else { return };
    let url = format!("rediss://127.0.0.1:{}", redis.port);
    let error = RedisEngine::connect(&url).await.unwrap_err().to_string();
    assert!(error.contains("certificate") || error.contains("InvalidCertificate"), "{error}");
    let plain = RedisEngine::connect(&redis.url()).await;
    assert!(plain.is_err(), "the server speaks TLS alone");
    let url = format!("{url}?ca={}", certificate.display());
    let (one, two) = (RedisEngine::connect(&url).await.unwrap(), RedisEngine::connect(&url).await.unwrap());
    contract(&one, &two).await;
    for url in [
        "redis://127.0.0.1:1?ca=x",
        "rediss://127.0.0.1:1?x",
        "rediss://127.0.0.1:1?ca=/none",
        "http://x",
        "x",
    ] {
        assert!(RedisEngine::connect(url).await.is_err(), "{url}");
    }
}

/// A server that was stopped reads what was sent to it when it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn redis_does_nothing_after_its_failure_was_reported() {
    let Some(redis) = Redis::start() else { return };
    let engine = RedisEngine::connect(&redis.url()).await.unwrap();
    for channel in ["published", "removed"] {
        publish(&engine, channel, "1").await;
    }
    redis.signal("-STOP");
    let publishing = engine.publish("published", publication("2"), Some(KEEP), "");
    let (published, removed) = tokio::join!(publishing, engine.remove_history("removed"));
    assert!(published.is_err() && removed.is_err());
    redis.signal("-CONT");
    let begin = Instant::now();
    for channel in ["published", "removed"] {
        while engine.publish(channel, publication("3"), Some(KEEP), "").await.is_err() {
            assert!(begin.elapsed() < Duration::from_secs(60), "Redis does not go on");
        }
        assert_eq!(history(&engine, channel, HistoryQuery::default()).await, ["1", "3"], "{channel}");
    }
}

/// A node that was paused has not been listening, so silence says nothing about Redis.
#[tokio::test]
async fn redis_is_not_lost_by_a_node_that_was_paused() {
    let Some(redis) = Redis::start() else { return };
    let engine = RedisEngine::connect(&redis.url()).await.unwrap();
    let recorder = started(&engine);
    engine.subscribe("a").await.unwrap();
    let first = publish(&engine, "a", "0").await;
    recorder.until(|events| events.contains(&Event::Published("a".into(), first.clone(), "0".into()))).await;
    let before = redis.connections();
    // Nothing runs on this runtime meanwhile.
    std::thread::sleep(Duration::from_secs(7));
    for number in 1..4 {
        let at = publish(&engine, "a", &number.to_string()).await;
        let event = Event::Published("a".into(), at, number.to_string());
        recorder.until(|events| events.contains(&event)).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(redis.connections(), before + 1, "that of the question itself");
}

#[tokio::test]
async fn nats_takes_the_credentials_of_a_url() {
    for (args, user) in
        [(&["--user", "hub", "--pass", "of@it"][..], "hub:of%40it@"), (&["--auth", "a-token"], "a-token@")]
    {
        let Some(nats) = Nats::start_with(args) else { return };
        let connect = async |user: &str| {
            NatsEngine::connect(&format!("nats://127.0.0.1:1,nats://{user}127.0.0.1:{}", nats.port)).await
        };
        let begin = std::time::Instant::now();
        // JetStream may not answer yet.
        let engine = loop {
            match connect(user).await {
                Ok(engine) => break engine,
                Err(error) => assert!(begin.elapsed() < Duration::from_secs(60), "{user}: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let recorder = started(&engine);
        engine.subscribe("a").await.unwrap();
        let at = publish(&engine, "a", "0").await;
        recorder.until(|events| events.contains(&Event::Published("a".into(), at.clone(), "0".into()))).await;
        for wrong in ["", "hub:other@", "other@"] {
            assert!(connect(wrong).await.is_err(), "{user} {wrong}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_behind_sentinels_has_its_own_password() {
    let Some(master) = Redis::start_with(&["--requirepass", "of-the-master", "--save", ""]) else { return };
    let known = "sentinel auth-pass m of-the-master\n";
    let connect = async |sentinel: &Redis, user: &str, query: &str| {
        let url = format!("redis+sentinel://{user}127.0.0.1:{}/m{query}", sentinel.port);
        RedisEngine::connect(&url).await
    };
    for (more, query) in [("", ""), ("requirepass of%40it\n", "?sentinel=:of%2540it")] {
        let sentinel = Redis::start_sentinel(master.port, &format!("{known}{more}"));
        let begin = std::time::Instant::now();
        // A sentinel names no master that has not answered for half a second, as a busy machine may make it.
        let engine = loop {
            match connect(&sentinel, ":of-the-master@", query).await {
                Ok(engine) => break engine,
                Err(error) => assert!(begin.elapsed() < Duration::from_secs(120), "{query}: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let recorder = started(&engine);
        engine.subscribe("a").await.unwrap();
        let at = publish(&engine, "a", "0").await;
        recorder.until(|events| events.contains(&Event::Published("a".into(), at.clone(), "0".into()))).await;
        for (user, query) in [("", query), (":other@", query), (":of-the-master@", "?sentinel=:other")] {
            assert!(connect(&sentinel, user, query).await.is_err(), "{user} {query}");
        }
    }
    let sentinel = Redis::start_sentinel(master.port, known);
    let error = connect(&sentinel, "", "?password=secret").await.unwrap_err().to_string();
    assert!(error.contains("parameter: password") && !error.contains("secret"), "{error}");
}

/// A replica takes over: publications that it did not receive are lost, and clients learn that.
#[tokio::test(flavor = "multi_thread")]
async fn redis_fails_over_to_a_replica() {
    let Some(mut master) = Redis::start() else { return };
    let replica =
        Redis::start_with(&["--replicaof", &format!("127.0.0.1 {}", master.port), "--save", ""]).unwrap();
    let sentinel = Redis::start_sentinel(master.port, "");
    let url = format!("redis+sentinel://127.0.0.1:{}/m", sentinel.port);
    let begin = std::time::Instant::now();
    // A sentinel names no master that has not answered for half a second, as a busy machine may make it.
    let engine = loop {
        match RedisEngine::connect(&url).await {
            Ok(engine) => break engine,
            Err(error) => assert!(begin.elapsed() < Duration::from_secs(120), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let recorder = started(&engine);
    engine.subscribe("a").await.unwrap();
    let at = publish(&engine, "a", "0").await;
    // The replica has to know it, and the sentinel the replica.
    assert!(RedisEngine::connect(&replica.url()).await.is_err(), "a replica only reads");
    master.kill();
    let begin = std::time::Instant::now();
    let next = loop {
        match engine.publish("a", publication("1"), Some(KEEP), "k").await {
            Ok(position) => break position,
            Err(error) => assert!(begin.elapsed() < Duration::from_secs(120), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_ne!(next.epoch, at.epoch);
    assert_eq!(missed(&engine, "a", &at).await, None);
    assert_eq!(history(&engine, "a", HistoryQuery::default()).await, ["1"]);
    recorder.until(|events| events.contains(&Event::Lost("a".into()))).await;
    let after = publish(&engine, "a", "2").await;
    recorder.until(|events| events.contains(&Event::Published("a".into(), after.clone(), "2".into()))).await;
}

/// The queue of events: `one` and `two` are two nodes, or the same one.
async fn events(one: &dyn Engine, two: &dyn Engine) {
    let (one, two) = (one.events().unwrap(), two.events().unwrap());
    let take = async |queue: &dyn EventQueue| loop {
        let taken = queue.take(10).await.unwrap();
        if !taken.is_empty() {
            return taken;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let texts = |taken: &[QueuedEvent]| {
        taken.iter().map(|one| String::from_utf8(one.event.to_vec()).unwrap()).collect::<Vec<_>>()
    };
    let is_one = std::ptr::addr_eq(one, two);
    for key in ["a", "b", "c/ä.*>"] {
        one.open("n", key, b"\"lost\"").await.unwrap();
    }
    let renewed = one.renew("n").await.unwrap();
    assert!(matches!(renewed, Lease::Renewed { others: Some(others), .. } if others.is_empty()));
    assert_eq!(two.take(10).await.unwrap(), []);
    one.end("n", "a", b"\"ended\"").await.unwrap();
    let taken = take(two).await;
    assert_eq!(texts(&taken), ["\"ended\""]);
    two.release(&[taken[0].id.clone()]).await.unwrap();
    let released = tokio::time::timeout(Duration::from_secs(20), take(one)).await;
    let taken = released.expect("others take what is released");
    assert_eq!(texts(&taken), ["\"ended\""]);
    one.acknowledge(&[taken[0].id.clone()]).await.unwrap();
    let mut open = two.open_on("n", 10).await.unwrap();
    open.sort();
    assert_eq!(open.iter().map(|(key, _)| &**key).collect::<Vec<_>>(), ["b", "c/ä.*>"]);
    if is_one {
        one.end("n", "b", b"\"b\"").await.unwrap();
        assert_eq!(texts(&take(one).await), ["\"b\""]);
        return;
    }
    // A lease that is renewed changes.
    let number = async |of: &str| match two.renew("m").await.unwrap() {
        Lease::Renewed { others: Some(others), .. } => {
            others.into_iter().find(|(name, _)| name == of).map(|(_, number)| number)
        }
        lease => panic!("{lease:?}"),
    };
    let first = number("n").await;
    assert_eq!((number("n").await, number("m").await), (first, None));
    one.renew("n").await.unwrap();
    assert!(number("n").await > first);
    // Another node reports what a lost one has left, and the lost one reports nothing twice.
    two.lose("n").await.unwrap();
    for (key, event) in open {
        two.end("n", &key, &event).await.unwrap();
    }
    assert_eq!(two.open_on("n", 10).await.unwrap(), []);
    two.forget("n").await.unwrap();
    assert_eq!(one.renew("n").await.unwrap(), Lease::Lost);
    one.end("n", "b", b"\"late\"").await.unwrap();
    let mut all = Vec::new();
    while all.len() < 2 {
        let taken = take(one).await;
        one.acknowledge(&taken.iter().map(|one| one.id.clone()).collect::<Vec<_>>()).await.unwrap();
        all.extend(texts(&taken));
    }
    assert_eq!(all, ["\"lost\"", "\"lost\""]);
    assert_eq!(one.take(10).await.unwrap(), []);
    assert_eq!(number("n").await, None);
    // Open records are found among any number of ends.
    for ended in 0..300 {
        one.open("busy", &ended.to_string(), b"\"lost\"").await.unwrap();
        one.end("busy", &ended.to_string(), b"\"ended\"").await.unwrap();
    }
    one.open("busy", "open", b"\"lost\"").await.unwrap();
    let open = two.open_on("busy", 256).await.unwrap();
    assert_eq!(open.iter().map(|(key, _)| &**key).collect::<Vec<_>>(), ["open"]);
}

/// The next process reports what was open when the one before ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_events_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    // A server that another test is starting holds the lock of the file until it executes its own program.
    let open = || {
        let begin = std::time::Instant::now();
        loop {
            match DiskEngine::open(directory.path(), MemoryEngine::new(100)) {
                Ok(engine) => break engine,
                Err(error) => assert!(begin.elapsed() < Duration::from_secs(60), "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let engine = open();
    let queue = engine.events().unwrap();
    for key in ["a", "b", "c"] {
        queue.open("n", key, b"\"lost\"").await.unwrap();
    }
    queue.end("n", "a", b"\"ended\"").await.unwrap();
    let texts = async |engine: &DiskEngine| {
        let taken = engine.events().unwrap().take(10).await.unwrap();
        let texts: Vec<_> = taken.iter().map(|one| String::from_utf8(one.event.to_vec()).unwrap()).collect();
        (texts, taken)
    };
    drop(engine);
    let engine = open();
    let (found, taken) = texts(&engine).await;
    assert_eq!(found, ["\"ended\"", "\"lost\"", "\"lost\""]);
    engine.events().unwrap().acknowledge(&[taken[0].id.clone()]).await.unwrap();
    drop(engine);
    assert_eq!(texts(&open()).await.0, ["\"lost\"", "\"lost\""]);
}
