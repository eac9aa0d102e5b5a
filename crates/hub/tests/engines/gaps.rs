//! Gaps: publications that a node misses while it is cut off, or while more arrives than it can deliver.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::task::block_in_place;
use wireloom_hub::engine::{Control, Delivery, Engine, Membership, PendingDelivery, RedisEngine};
use wireloom_hub::protocol::Publication;
use wireloom_hub::{HistoryQuery, Position, RecoveryMode, Retention};

use crate::attacks::{nats_engine, until};
use crate::nats_server::{Link, LinkState, Nats};
use crate::redis_server::Redis;
use crate::{Event, KEEP, publication, publish, started};

/// The length of a reply, for a history that is sixteen times as long.
const REPLY_LEN: usize = 1 << 20;

/// Publishes that history, and returns where it begins.
async fn publish_much(engine: &dyn Engine, long: Retention) -> Position {
    let begin = engine.recover("a", None, RecoveryMode::Stream, long, 0).await.unwrap().position;
    for _ in 0..256 {
        engine.publish("a", publication("x".repeat(64 << 10)), Some(long), "").await.unwrap();
    }
    begin
}

/// The server sends no more publications to the node than fit into a reply.
#[tokio::test(flavor = "multi_thread")]
async fn no_more_is_read_than_a_reply_may_have() {
    let long = Retention { size: 1_000, ..KEEP };
    let read = async |engine: &dyn Engine, since: &Position, reverse| {
        let recovered = engine.recover("a", Some(since), RecoveryMode::Stream, long, REPLY_LEN).await;
        assert!(!recovered.unwrap().recovered);
        let query = HistoryQuery { limit: Some(1_000), len_max: Some(REPLY_LEN), reverse, since: None };
        let read = engine.history("a", &query, long).await.unwrap();
        assert_eq!(read.publications.len(), 15);
    };
    let is_little =
        |before: u64, after: u64| assert!(after - before < 4 * REPLY_LEN as u64, "{}", after - before);
    if let Some(redis) = Redis::start() {
        let engine = RedisEngine::connect(&redis.url()).await.unwrap();
        let begin = publish_much(&engine, long).await;
        for reverse in [false, true] {
            let before = redis.sent_len();
            read(&engine, &begin, reverse).await;
            is_little(before, redis.sent_len());
        }
    }
    if let Some(nats) = Nats::start() {
        let engine = nats_engine(nats.port).await;
        let begin = publish_much(&engine, long).await;
        let before = nats.sent_len().await;
        read(&engine, &begin, false).await;
        is_little(before, nats.sent_len().await);
    }
}

/// Publishes into a channel eight times, while the far node cannot.
async fn cut(near: &dyn Engine, far: &dyn Engine, link: &Link, channel: &str, data: &str) -> Position {
    let is_connected = async || far.publish("probe", publication("1"), Some(KEEP), "").await.is_ok();
    link.set(LinkState::Cut);
    until(async || !is_connected().await).await;
    let mut last = Position::default();
    for _ in 0..8 {
        last = publish(near, channel, data).await;
    }
    link.set(LinkState::Clear);
    until(is_connected).await;
    // Every tenth call compares.
    for _ in 0..10 {
        far.maintain().await;
    }
    last
}

/// A gap is delivered at once if the subscribers' queues have room for it. Otherwise subscribers with a position recover it, each at its
/// pace, and the others receive it in parts.
async fn miss(near: &dyn Engine, far: &dyn Engine, link: &Link) {
    let recorder = started(far);
    let _near = started(near);
    for channel in ["a", "positioned:a"] {
        far.subscribe(channel).await.unwrap();
        far.recover(channel, None, RecoveryMode::Stream, KEEP, usize::MAX).await.unwrap();
    }
    let long = "x".repeat(256 << 10);
    let (short, is_lost) = ("short", Event::Lost("a".into()));
    let last = cut(near, far, link, "a", &long).await;
    let last = Event::Published("a".into(), last, long.clone());
    let events = recorder.until(|events| events.contains(&last)).await;
    let first = events.iter().position(|event| matches!(event, Event::Published(name, ..) if name == "a"));
    assert!(events.iter().position(|event| *event == is_lost) < first);
    // The next gap fits.
    let last = cut(near, far, link, "a", short).await;
    let last = Event::Published("a".into(), last, short.into());
    let events = recorder.until(|events| events.contains(&last)).await;
    let published = events.iter().filter_map(|event| match event {
        Event::Published(channel, _, text) if channel == "a" => Some(&**text),
        _ => None,
    });
    assert_eq!(published.collect::<Vec<_>>(), [[long.as_str(); 8], [short; 8]].concat());
    assert_eq!(events.iter().filter(|event| **event == is_lost).count(), 1);
    // Where all have a position, they wait for no parts.
    let positioned = || "positioned:a".to_owned();
    cut(near, far, link, "positioned:a", &long).await;
    recorder.until(|events| events.contains(&Event::Lost(positioned()))).await;
    let last = publish(near, "positioned:a", short).await;
    let last = Event::Published(positioned(), last, short.into());
    let events = recorder.until(|events| events.contains(&last)).await;
    let is_its = |event: &&Event| match event {
        Event::Published(channel, ..) | Event::Lost(channel) => channel == "positioned:a",
        _ => false,
    };
    assert!(events.iter().filter(is_its).eq([&Event::Lost(positioned()), &last]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_has_missed_in_redis_fits_into_the_queues_of_its_clients() {
    let Some(redis) = Redis::start() else { return };
    let link = Link::to(redis.port).await;
    let near = RedisEngine::connect(&redis.url()).await.unwrap();
    let far = RedisEngine::connect(&format!("redis://127.0.0.1:{}", link.port)).await.unwrap();
    miss(&near, &far, &link).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_has_missed_in_nats_fits_into_the_queues_of_its_clients() {
    let Some(nats) = Nats::start() else { return };
    let link = Link::to(nats.port).await;
    let (near, far) = (nats_engine(nats.port).await, nats_engine(link.port).await);
    miss(&near, &far, &link).await;
}

/// Announcements do not wait until the histories of all channels have been compared with what was delivered.
#[tokio::test(flavor = "multi_thread")]
async fn redis_delivers_while_histories_are_compared() {
    const CHANNELS: u32 = 100;
    const DELAY: Duration = Duration::from_millis(100);
    let Some(redis) = Redis::start() else { return };
    let link = Link::to(redis.port).await;
    let engine = RedisEngine::connect(&format!("redis://127.0.0.1:{}", link.port)).await.unwrap();
    let other = RedisEngine::connect(&redis.url()).await.unwrap();
    let recorder = started(&engine);
    for number in 0..CHANNELS {
        let channel = format!("c{number}");
        engine.subscribe(&channel).await.unwrap();
        engine.recover(&channel, None, RecoveryMode::Stream, KEEP, usize::MAX).await.unwrap();
    }
    link.set(LinkState::Slow(DELAY));
    engine.maintain().await;
    let begin = Instant::now();
    for number in 0..5 {
        let at = publish(&other, "c0", &number.to_string()).await;
        let event = Event::Published("c0".into(), at, number.to_string());
        recorder.until(|events| events.contains(&event)).await;
    }
    // One comparison after the other would take twice the delay of the link for each channel.
    assert!(begin.elapsed() < CHANNELS * DELAY, "{:?}", begin.elapsed());
}

/// A node whose configuration has no history cannot read the publications that it has missed.
#[tokio::test(flavor = "multi_thread")]
async fn a_gap_in_redis_ends_at_a_node_without_history() {
    let Some(redis) = Redis::start() else { return };
    let engines = (RedisEngine::connect(&redis.url()).await, RedisEngine::connect(&redis.url()).await);
    let (one, two) = (engines.0.unwrap(), engines.1.unwrap());
    let recorder = started(&two);
    two.subscribe("none:a").await.unwrap();
    let at = publish(&one, "none:a", "0").await;
    let event = Event::Published("none:a".into(), at, "0".into());
    recorder.until(|events| events.contains(&event)).await;
    redis.command("CLIENT KILL TYPE pubsub");
    for _ in 0..10 {
        publish(&one, "none:a", "missed").await;
    }
    let is_received = async || {
        publish(&one, "none:a", "1").await;
        recorder
            .0
            .lock()
            .unwrap()
            .iter()
            .any(|event| matches!(event, Event::Published(.., text) if text == "1"))
    };
    until(is_received).await;
}

/// A hub that delivers nothing before it may, and the offsets that it has delivered.
#[derive(Default)]
struct Held {
    may_deliver: OnceLock<()>,
    delivered: Mutex<Vec<u64>>,
}

const MANY: Retention = Retention { size: 1_000, ..KEEP };

impl Delivery for Held {
    fn deliver_publication(
        &self,
        _: &str,
        _: &str,
        _: u64,
        publication: &Arc<Publication>,
    ) -> PendingDelivery {
        // Otherwise a task that this worker was to run next waits, too.
        block_in_place(|| self.may_deliver.wait());
        self.delivered.lock().unwrap().push(publication.offset);
        PendingDelivery::default()
    }

    fn deliver_membership(&self, _: &str, _: &Membership) {}

    fn deliver_history_lost(&self, _: &str) {
        panic!("the history is kept");
    }

    fn deliver_control(&self, _: &Control) {}

    fn retention(&self, _: &str) -> Option<Retention> {
        Some(MANY)
    }

    fn catch_up_len_max(&self, _: &str) -> usize {
        usize::MAX
    }
}

/// The stream has dropped what was published during the cut, and the next publication arrives before the history is compared.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_of_nats_that_is_longer_than_positions_are_kept_is_reported() {
    let Some(nats) = Nats::start() else { return };
    let link = Link::to(nats.port).await;
    let (near, far) = (nats_engine(nats.port).await, nats_engine(link.port).await);
    let (recorder, _near) = (started(&far), started(&near));
    far.subscribe("a").await.unwrap();
    far.recover("a", None, RecoveryMode::Stream, KEEP, usize::MAX).await.unwrap();
    let first = publish(&near, "a", "first").await;
    recorder
        .until(|events| events.contains(&Event::Published("a".into(), first.clone(), "first".into())))
        .await;
    let is_connected = async || far.publish("probe", publication("1"), Some(KEEP), "").await.is_ok();
    link.set(LinkState::Cut);
    until(async || !is_connected().await).await;
    publish(&near, "a", "missed").await;
    let raw = async_nats::connect(format!("127.0.0.1:{}", nats.port)).await.unwrap();
    let stream = async_nats::jetstream::new(raw).get_stream("wl_n").await.unwrap();
    // As if it had expired.
    stream.purge().await.unwrap();
    link.set(LinkState::Clear);
    until(is_connected).await;
    let next = publish(&near, "a", "next").await;
    let published = Event::Published("a".into(), next, "next".into());
    // Also to subscribers without a position.
    let events = recorder.until(|events| events.contains(&published)).await;
    assert_eq!(events[1..], [Event::Lost("a".into()), published]);
}

/// A node holds only a part of what arrives faster than it delivers. It reads the others, also when nothing comes after them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_arrives_faster_than_it_is_delivered_is_read_again() {
    const COUNT: u64 = 300;
    let Some(nats) = Nats::start() else { return };
    let (one, two) = (nats_engine(nats.port).await, nats_engine(nats.port).await);
    let _recorder = started(&one);
    let held = Arc::<Held>::default();
    let delivery: Arc<dyn Delivery> = held.clone();
    two.start(Arc::downgrade(&delivery));
    two.subscribe("a").await.unwrap();
    let begin = two.recover("a", None, RecoveryMode::Stream, MANY, usize::MAX).await.unwrap().position.offset;
    let data = "x".repeat(100_000);
    for _ in 0..COUNT {
        one.publish("a", publication(&*data), Some(MANY), "").await.unwrap();
    }
    held.may_deliver.set(()).unwrap();
    until(async || held.delivered.lock().unwrap().len() as u64 >= COUNT).await;
    assert_eq!(*held.delivered.lock().unwrap(), (begin + 1..=begin + COUNT).collect::<Vec<_>>());
    assert!(two.health().dropped > 0);
    assert_eq!(one.health().dropped, 0);
}

/// Any client of NATS that may publish there can write delete markers, which are no publications.
#[tokio::test(flavor = "multi_thread")]
async fn a_history_of_markers_is_read_to_its_end() {
    let Some(nats) = Nats::start() else { return };
    let engine = nats_engine(nats.port).await;
    let retention =
        |size| Retention { size, ttl: Duration::from_secs(600), position_ttl: Duration::from_secs(600) };
    let position = engine.publish("a", Publication::default(), Some(retention(10)), "").await.unwrap();
    let raw = async_nats::connect(format!("127.0.0.1:{}", nats.port)).await.unwrap();
    let stream = async_nats::jetstream::new(raw.clone()).get_stream("wl_n").await.unwrap();
    let subject = stream.cached_info().config.subjects[0].replace('*', "YQ");
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("KV-Operation", "DEL");
    for _ in 0..8 {
        raw.publish_with_headers(subject.clone(), headers.clone(), Bytes::new()).await.unwrap();
    }
    raw.flush().await.unwrap();
    let recovering = engine.recover("a", Some(&position), RecoveryMode::Stream, retention(1), usize::MAX);
    let recovery = tokio::time::timeout(Duration::from_secs(20), recovering).await.unwrap().unwrap();
    assert_eq!((recovery.recovered, recovery.publications.len()), (true, 0));
}
