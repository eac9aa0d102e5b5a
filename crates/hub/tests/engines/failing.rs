//! Acknowledged publications while the server is killed, stopped and cut off: they are in the history, in order, or the history has another
//! epoch, and clients do not recover.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::watch;
use tokio::time::sleep;
use wireloom_hub::engine::{Control, Delivery, Engine, Membership, NatsEngine, PendingDelivery, RedisEngine};
use wireloom_hub::protocol::Publication;
use wireloom_hub::{HistoryQuery, Position, Recovery, RecoveryMode, Retention};
use wireloom_testing::rng::generator;

use crate::nats_server::{Link, LinkState, Nats};
use crate::redis_server::Redis;
use crate::{publication, text};

const KEEP: Retention =
    Retention { size: 5_000, ttl: Duration::from_secs(600), position_ttl: Duration::from_secs(24 * 3600) };
const CHANNELS: usize = 4;
const FAULTS: usize = 4;

/// By channel, epoch and offset: the payload.
type Acknowledged = Mutex<BTreeMap<(usize, String, u64), String>>;

/// Publishes until the end; each payload with a key, until it is acknowledged.
async fn publisher(
    number: usize,
    engine: Arc<dyn Engine>,
    all: Arc<Acknowledged>,
    count: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
) {
    for n in 0.. {
        let data = format!("{number}-{n}");
        let channel = format!("c{}", number % CHANNELS);
        loop {
            if over.load(Ordering::Relaxed) {
                return;
            }
            match engine.publish(&channel, publication(&*data), Some(KEEP), &data).await {
                Ok(Position { offset, epoch }) => {
                    let other = all.lock().unwrap().insert((number % CHANNELS, epoch, offset), data);
                    assert_eq!(other, None, "{channel} has two publications at {offset}");
                    count.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        }
        sleep(Duration::from_millis(1)).await;
    }
}

/// The state of a client that recovers from time to time.
#[derive(Default)]
struct Reader {
    received: Vec<(Position, String)>,
    /// From which position to which it has everything.
    spans: Vec<(Position, Position)>,
}

impl Reader {
    async fn read(&mut self, engine: &dyn Engine, channel: &str) -> bool {
        let since = self.spans.last().map(|(_, at)| at.clone());
        let recovered = engine.recover(channel, since.as_ref(), RecoveryMode::Stream, KEEP, usize::MAX).await;
        recovered.map(|recovery| self.handle_recovery(recovery)).is_ok()
    }

    fn handle_recovery(&mut self, recovery: Recovery) {
        for one in &recovery.publications {
            let position = Position { offset: one.offset, epoch: recovery.position.epoch.clone() };
            self.received.push((position, text(one)));
        }
        match self.spans.last_mut() {
            Some((_, end)) if recovery.recovered => *end = recovery.position,
            _ => self.spans.push((recovery.position.clone(), recovery.position)),
        }
    }

    fn check(&self, channel: usize, all: &BTreeMap<(usize, String, u64), String>) {
        let received: BTreeMap<_, _> =
            self.received.iter().map(|(at, text)| ((at.epoch.clone(), at.offset), text)).collect();
        assert_eq!(received.len(), self.received.len(), "nothing is received twice");
        for (begin, end) in &self.spans {
            let first = (channel, begin.epoch.clone(), begin.offset + 1);
            let last = (channel, begin.epoch.clone(), end.offset);
            if first > last {
                continue;
            }
            for ((_, epoch, offset), payload) in all.range(first..=last) {
                let got = received.get(&(epoch.clone(), *offset));
                assert_eq!(got, Some(&payload), "c{channel} at {offset} between {begin:?} and {end:?}");
            }
        }
    }
}

/// The subscribers of a node, one of each channel: they follow what the engine delivers, and recover after a gap.
#[derive(Default)]
struct Subscribers(Mutex<HashMap<String, Subscriber>>);

#[derive(Default)]
struct Subscriber {
    reader: Reader,
    phase: Phase,
}

/// A delivery: the epoch, the offset of the previous publication, the publication.
type Delivered = (String, u64, Arc<Publication>);

#[derive(Default)]
enum Phase {
    /// A gap: it has to recover.
    #[default]
    Lost,
    /// Deliveries wait for the history.
    Recovering(Vec<Delivered>),
    Following,
}

impl Subscriber {
    fn handle(&mut self, (epoch, previous, publication): Delivered) {
        match &mut self.phase {
            Phase::Lost => return,
            Phase::Recovering(waiting) => return waiting.push((epoch, previous, publication)),
            Phase::Following => {}
        }
        let (_, end) = self.reader.spans.last_mut().unwrap();
        if end.epoch != epoch || previous > end.offset {
            self.phase = Phase::Lost;
        } else if publication.offset > end.offset {
            end.offset = publication.offset;
            self.reader.received.push((end.clone(), text(&publication)));
        }
    }
}

impl Delivery for Subscribers {
    fn deliver_publication(
        &self,
        channel: &str,
        epoch: &str,
        previous: u64,
        publication: &Arc<Publication>,
    ) -> PendingDelivery {
        if let Some(subscriber) = self.0.lock().unwrap().get_mut(channel) {
            subscriber.handle((epoch.into(), previous, publication.clone()));
        }
        PendingDelivery::default()
    }

    fn deliver_membership(&self, _: &str, _: &Membership) {}

    fn deliver_history_lost(&self, channel: &str) {
        if let Some(subscriber) = self.0.lock().unwrap().get_mut(channel) {
            subscriber.phase = Phase::Lost;
        }
    }

    fn deliver_control(&self, _: &Control) {}

    fn retention(&self, _: &str) -> Option<Retention> {
        Some(KEEP)
    }
}

impl Subscribers {
    /// Follows a channel, until it has everything up to the position that is set at the end.
    async fn follow(&self, engine: &dyn Engine, channel: &str, end: watch::Receiver<Option<Position>>) {
        self.0.lock().unwrap().insert(channel.into(), Subscriber::default());
        while engine.subscribe(channel).await.is_err() {
            sleep(Duration::from_millis(20)).await;
        }
        loop {
            let since = {
                let mut subscribers = self.0.lock().unwrap();
                let subscriber = subscribers.get_mut(channel).unwrap();
                let at = subscriber.reader.spans.last().map(|(_, at)| at.clone());
                let is_lost = matches!(subscriber.phase, Phase::Lost);
                if is_lost {
                    subscriber.phase = Phase::Recovering(Vec::new());
                } else if let (Some(at), Some(end)) = (&at, &*end.borrow())
                    && at.epoch == end.epoch
                    && at.offset >= end.offset
                {
                    return;
                }
                is_lost.then_some(at)
            };
            if let Some(since) = since {
                let recovered =
                    engine.recover(channel, since.as_ref(), RecoveryMode::Stream, KEEP, usize::MAX).await;
                let mut subscribers = self.0.lock().unwrap();
                let subscriber = subscribers.get_mut(channel).unwrap();
                // Otherwise it failed, or the history was lost meanwhile.
                if let (Ok(recovery), Phase::Recovering(waiting)) =
                    (recovered, std::mem::take(&mut subscriber.phase))
                {
                    subscriber.reader.handle_recovery(recovery);
                    subscriber.phase = Phase::Following;
                    waiting.into_iter().for_each(|one| subscriber.handle(one));
                }
            }
            sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Runs publishers, readers and subscribers over two nodes, and a fault at a time. Returns how many publications were acknowledged, and
/// how many spans the readers had.
async fn run(engines: [Arc<dyn Engine>; 2], mut fault: impl AsyncFnMut(usize, &mut Rng)) -> (usize, usize) {
    let mut rng = generator();
    let (all, count, over) =
        (Arc::<Acknowledged>::default(), Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let nodes = engines.each_ref().map(|engine| {
        let subscribers = Arc::<Subscribers>::default();
        let delivery: Arc<dyn Delivery> = subscribers.clone();
        engine.start(Arc::downgrade(&delivery));
        subscribers
    });
    let publishers: Vec<_> = (0..2 * CHANNELS)
        .map(|number| {
            let engine = engines[number / CHANNELS].clone();
            tokio::spawn(publisher(number, engine, all.clone(), count.clone(), over.clone()))
        })
        .collect();
    let (ends, followers): (Vec<_>, Vec<_>) = (0..2 * CHANNELS)
        .map(|number| {
            let (engine, (end, end_seen)) = (engines[number / CHANNELS].clone(), watch::channel(None));
            let subscribers = nodes[number / CHANNELS].clone();
            let follower = async move {
                subscribers.follow(&*engine, &format!("c{}", number % CHANNELS), end_seen).await;
            };
            (end, tokio::spawn(follower))
        })
        .unzip();
    let readers: Vec<_> = (0..CHANNELS)
        .map(|channel| {
            let (engine, over) = (engines[channel % 2].clone(), over.clone());
            tokio::spawn(async move {
                let mut reader = Reader::default();
                while !over.load(Ordering::Relaxed) {
                    reader.read(&*engine, &format!("c{channel}")).await;
                    sleep(Duration::from_millis(50)).await;
                }
                reader
            })
        })
        .collect();
    for number in 0..FAULTS {
        let before = count.load(Ordering::Relaxed);
        while count.load(Ordering::Relaxed) < before + 200 {
            sleep(Duration::from_millis(10)).await;
        }
        fault(number, &mut rng).await;
    }
    let before = count.load(Ordering::Relaxed);
    while count.load(Ordering::Relaxed) < before + 200 {
        sleep(Duration::from_millis(10)).await;
    }
    over.store(true, Ordering::Relaxed);
    for publisher in publishers {
        publisher.await.unwrap();
    }
    let mut spans = 0;
    for (channel, reader) in readers.into_iter().enumerate() {
        let (mut reader, name) = (reader.await.unwrap(), format!("c{channel}"));
        while !reader.read(&*engines[0], &name).await {
            sleep(Duration::from_millis(50)).await;
        }
        let all = all.lock().unwrap().clone();
        reader.check(channel, &all);
        spans += reader.spans.len();
        // The history has everything that was acknowledged in its epoch.
        let history = loop {
            match engines[1].history(&name, &HistoryQuery::default(), KEEP).await {
                Ok(history) => break history,
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        };
        let kept: BTreeMap<_, _> = history.publications.iter().map(|one| (one.offset, text(one))).collect();
        let epoch = history.position.epoch;
        for ((_, _, offset), payload) in
            all.range((channel, epoch.clone(), 0)..(channel, epoch.clone(), u64::MAX))
        {
            assert_eq!(kept.get(offset), Some(payload), "{name} at {offset}");
        }
        // Whatever is in the history arrives.
        let offset = kept.keys().next_back().copied().unwrap_or(0);
        for end in [&ends[channel], &ends[CHANNELS + channel]] {
            end.send_replace(Some(Position { offset, epoch: epoch.clone() }));
        }
    }
    let all = all.lock().unwrap().clone();
    for (number, follower) in followers.into_iter().enumerate() {
        let followed = tokio::time::timeout(Duration::from_secs(60), follower).await;
        let subscribers = nodes[number / CHANNELS].0.lock().unwrap();
        let reader = &subscribers[&format!("c{}", number % CHANNELS)].reader;
        assert!(followed.is_ok(), "c{} is not delivered: {:?}", number % CHANNELS, reader.spans);
        followed.unwrap().unwrap();
        reader.check(number % CHANNELS, &all);
    }
    (count.load(Ordering::Relaxed), spans)
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_keeps_its_promises() {
    // The first one loses what it has not saved, as Redis does by default; the second one has a log.
    for args in [&["--save", "1 1", "--appendonly", "no"][..], &["--appendonly", "yes", "--save", ""]] {
        let Some(mut redis) = Redis::start_with(args) else { return };
        let link = Link::to(redis.port).await;
        let one = RedisEngine::connect(&redis.url()).await.unwrap();
        let two = RedisEngine::connect(&format!("redis://127.0.0.1:{}", link.port)).await.unwrap();
        let (acknowledged, spans) = run([Arc::new(one), Arc::new(two)], async |number, rng| {
            match number % 4 {
                0 => link.set(LinkState::Cut),
                1 => link.set(LinkState::Stalled),
                2 => {
                    redis.signal("-STOP");
                    sleep(Duration::from_millis(rng.u64(100..1_000))).await;
                    redis.signal("-CONT");
                }
                _ => {
                    redis.kill();
                    sleep(Duration::from_millis(rng.u64(0..300))).await;
                    redis.restart();
                }
            }
            sleep(Duration::from_millis(rng.u64(100..1_000))).await;
            link.set(LinkState::Clear);
        })
        .await;
        println!("{args:?}: {acknowledged} acknowledged, {spans} spans");
        assert!(spans > CHANNELS, "a restart begins new epochs");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_keeps_its_promises() {
    let Some(mut nats) = Nats::start() else { return };
    let link = Link::to(nats.port).await;
    let connect = async |port: u16| loop {
        match NatsEngine::connect(&format!("nats://127.0.0.1:{port}")).await {
            Ok(engine) => return engine,
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    };
    let (one, two) = (connect(nats.port).await, connect(link.port).await);
    let (acknowledged, spans) = run([Arc::new(one), Arc::new(two)], async |number, rng| {
        match number % 4 {
            0 => link.set(LinkState::Cut),
            1 => link.set(LinkState::Stalled),
            2 => {
                nats.stop();
                sleep(Duration::from_millis(rng.u64(100..1_000))).await;
                nats.resume();
            }
            _ => {
                nats.kill();
                sleep(Duration::from_millis(rng.u64(0..300))).await;
                nats.restart();
            }
        }
        sleep(Duration::from_millis(rng.u64(100..1_000))).await;
        link.set(LinkState::Clear);
    })
    .await;
    println!("{acknowledged} acknowledged, {spans} spans");
    // A client that has received a position loses nothing.
    assert_eq!(spans, CHANNELS);
}
