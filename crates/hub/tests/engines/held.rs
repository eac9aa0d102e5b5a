//! A node that is held up while announcements arrive.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::block_in_place;
use wireloom_hub::engine::{Control, Delivery, Engine, Membership, NatsEngine, PendingDelivery, RedisEngine};
use wireloom_hub::protocol::Publication;
use wireloom_hub::{Position, RecoveryMode, Retention};

use crate::nats_server::Nats;
use crate::redis_server::Redis;
use crate::{Event, KEEP, Recorder, publication, publish, text};

/// A recorder that takes as long as the test wants for what is published in `held`.
struct Held {
    recorder: Recorder,
    entered: Sender<()>,
    leave: Mutex<Receiver<()>>,
}

/// The other side of it.
struct Holder {
    entered: Receiver<()>,
    leave: Sender<()>,
}

impl Delivery for Held {
    fn deliver_publication(
        &self,
        channel: &str,
        epoch: &str,
        previous: u64,
        publication: &Arc<Publication>,
    ) -> PendingDelivery {
        if channel == "held" {
            self.entered.send(()).unwrap();
            // Otherwise a task that this worker was to run next waits, too.
            block_in_place(|| self.leave.lock().unwrap().recv().unwrap());
        }
        if let Some(time) = text(publication).strip_prefix("sleep ") {
            std::thread::sleep(Duration::from_millis(time.parse().unwrap()));
        }
        self.recorder.deliver_publication(channel, epoch, previous, publication)
    }

    fn deliver_membership(&self, channel: &str, membership: &Membership) {
        self.recorder.deliver_membership(channel, membership);
    }

    fn deliver_history_lost(&self, channel: &str) {
        self.recorder.deliver_history_lost(channel);
    }

    fn deliver_control(&self, _: &Control) {}

    fn retention(&self, channel: &str) -> Option<Retention> {
        self.recorder.retention(channel)
    }
}

fn started(engine: &dyn Engine) -> (Arc<Held>, Holder) {
    let ((entered, entering), (leave, leaving)) = (channel(), channel());
    let held = Arc::new(Held { recorder: Recorder::default(), entered, leave: leaving.into() });
    let delivery: Arc<dyn Delivery> = held.clone();
    engine.start(Arc::downgrade(&delivery));
    (held, Holder { entered: entering, leave })
}

impl Held {
    async fn until_published(&self, channel: &str, position: Position, text: &str) -> Vec<Event> {
        let event = Event::Published(channel.into(), position, text.into());
        self.recorder.until(|events| events.contains(&event)).await
    }
}

/// One subscriber is there while something is announced, and another one begins where the history ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_recovery_takes_nothing_from_other_subscribers() {
    let Some(redis) = Redis::start() else { return };
    let (one, two) = (RedisEngine::connect(&redis.url()).await, RedisEngine::connect(&redis.url()).await);
    let (one, two) = (one.unwrap(), two.unwrap());
    let (held, holder) = started(&one);
    for channel in ["held", "a"] {
        one.subscribe(channel).await.unwrap();
    }
    publish(&two, "held", "0").await;
    holder.entered.recv().unwrap();
    let first = publish(&two, "a", "0").await;
    let recovered = one.recover("a", None, RecoveryMode::Stream, KEEP, usize::MAX).await.unwrap();
    assert_eq!(recovered.position, first);
    let second = publish(&two, "a", "1").await;
    holder.leave.send(()).unwrap();
    let events = held.until_published("a", second.clone(), "1").await;
    let of_a: Vec<_> = events
        .into_iter()
        .filter(|event| matches!(event, Event::Published(channel, ..) if channel == "a"))
        .collect();
    let expected =
        [(first, "0"), (second, "1")].map(|(at, text)| Event::Published("a".into(), at, text.into()));
    assert_eq!(of_a, expected);
}

fn published(events: Vec<Event>, channel: &str) -> Vec<(Position, String)> {
    let of = |event| match event {
        Event::Published(of, at, text) if of == channel && at.offset > 0 => Some((at, text)),
        _ => None,
    };
    events.into_iter().filter_map(of).collect()
}

/// Announcements from before a recovery are still pending when the histories are compared.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_comparison_takes_nothing_from_what_is_on_its_way() {
    let Some(redis) = Redis::start() else { return };
    let (one, two) = (RedisEngine::connect(&redis.url()).await, RedisEngine::connect(&redis.url()).await);
    let (one, two) = (one.unwrap(), two.unwrap());
    let (held, _holder) = started(&one);
    for channel in ["slow", "a"] {
        one.subscribe(channel).await.unwrap();
    }
    // The comparison is over long before the last of them.
    for _ in 0..1_500 {
        two.publish("slow", publication("sleep 2"), None, "").await.unwrap();
    }
    let first = publish(&two, "a", "0").await;
    let recovered = one.recover("a", None, RecoveryMode::Stream, KEEP, usize::MAX).await.unwrap();
    assert_eq!(recovered.position, first);
    let second = publish(&two, "a", "1").await;
    one.maintain().await;
    let events = held.until_published("a", second.clone(), "1").await;
    assert_eq!(published(events, "a"), [(first, "0".into()), (second, "1".into())]);
}

/// The same over NATS, where each channel has a queue of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_comparison_takes_nothing_from_what_has_arrived() {
    let Some(nats) = Nats::start() else { return };
    let connect = async || loop {
        match NatsEngine::connect(&format!("nats://127.0.0.1:{}", nats.port)).await {
            Ok(engine) => return engine,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let (one, two) = (connect().await, connect().await);
    let (held, _holder) = started(&one);
    for _ in 0..30 {
        one.subscribe("a").await.unwrap();
        two.publish("a", publication("sleep 100"), None, "").await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
        let first = publish(&two, "a", "0").await;
        let recovered = one.recover("a", None, RecoveryMode::Stream, KEEP, usize::MAX).await.unwrap();
        assert_eq!(recovered.position, first);
        let second = publish(&two, "a", "1").await;
        // Every tenth call compares.
        for _ in 0..10 {
            one.maintain().await;
        }
        let events = held.until_published("a", second.clone(), "1").await;
        let events = published(events, "a").into_iter().filter(|(at, _)| at.offset >= first.offset);
        assert_eq!(events.collect::<Vec<_>>(), [(first, "0".into()), (second, "1".into())]);
        one.unsubscribe("a");
    }
}

/// The pushes that a node has not handled take no more memory than Redis itself would keep for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_node_that_is_behind_does_not_queue_without_end() {
    const LEN: usize = 1 << 20;
    let Some(redis) = Redis::start() else { return };
    let (one, two) = (RedisEngine::connect(&redis.url()).await, RedisEngine::connect(&redis.url()).await);
    let (one, two) = (one.unwrap(), two.unwrap());
    let (held, holder) = started(&one);
    for channel in ["held", "a", "large"] {
        one.subscribe(channel).await.unwrap();
    }
    one.recover("a", None, RecoveryMode::Stream, KEEP, usize::MAX).await.unwrap();
    let begun = publish(&two, "a", "0").await;
    held.until_published("a", begun, "0").await;
    publish(&two, "held", "0").await;
    holder.entered.recv().unwrap();
    for _ in 0..100 {
        two.publish("large", publication("x".repeat(LEN)), None, "").await.unwrap();
    }
    let last = publish(&two, "a", "1").await;
    // The connection is given up.
    let is_listening = || redis.command("PUBSUB NUMSUB wl:c:{=large}").contains(":1");
    for _ in 0..1_000 {
        if !is_listening() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!is_listening());
    holder.leave.send(()).unwrap();
    // Then it listens again, and reads what it missed.
    held.until_published("a", last, "1").await;
}
