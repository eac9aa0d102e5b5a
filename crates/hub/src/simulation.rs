//! A hub under a fake clock, with an engine that fails, delays, loses and repeats at random, and clients that come and go.
//!
//! The engine is compared with a model of its histories at every recovery. The clients must have received each publication
//! exactly once, or have been informed of a gap.
//!
//! Layers: `model` → `client`, `faulty`.

mod client;
mod faulty;
mod model;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use wireloom_testing::rng::{Rng, generators};

use self::client::{Roaming, Summary};
use self::faulty::FaultyEngine;
use self::model::Model;
use crate::client::{Client, Identity, Transport};
use crate::engine::{Engine, MemoryEngine};
use crate::protocol::{Encoding, Publication, SubscribeRequest, UnsubscribeCode};
use crate::proxy::Headers;
use crate::shards::lock;
use crate::subscribe::{Established, Request, subscribe};
use crate::{Hub, HubConfig};

const CONFIG: &str = r#"
client.anonymous = true
client.queue_len_max = 4000

[[namespace]]
name = "stream"
subscribe = "anyone"
history_size = 10
history_ttl = "60s"
force_recovery = true
allowed_delta_types = ["fossil"]
presence = true
join_leave = true

[[namespace]]
name = "cache"
subscribe = "anyone"
history_size = 3
history_ttl = "60s"
force_recovery = true
allowed_delta_types = ["fossil"]
recovery_mode = "cache"
"#;

const CHANNELS: [&str; 4] = ["stream:a", "stream:b", "stream:c", "cache:d"];

/// Long enough for a delta.
fn payload(number: usize) -> String {
    format!("\"the payload of publication number {number} of this simulation\"")
}

/// Runs publishers, removals and clients for a while, then checks what the clients have.
async fn simulate(rng: &mut Rng, engine: impl Engine) -> Summary {
    let model = Arc::<Model>::default();
    let engine = FaultyEngine::new(engine, model.clone(), rng.fork());
    let faults = engine.faults();
    let hub = Hub::builder().config(HubConfig::from_toml(CONFIG).unwrap()).engine(engine).build().unwrap();
    let (over, is_over) = watch::channel(false);
    let clients: Vec<_> = (0..4)
        .map(|number| {
            let client = Roaming::new(hub.clone(), number % 2 == 0, rng.fork());
            tokio::spawn(client.run(model.clone(), is_over.clone()))
        })
        .collect();
    for number in 0..300 {
        let channel = CHANNELS[rng.usize(..CHANNELS.len())];
        // After a failure it may have been published or not; the model records which.
        let _ = hub.publish(channel, payload(number)).await;
        match rng.u32(..100) {
            0 => drop(hub.remove_history(channel).await),
            // Histories expire.
            1 => sleep(Duration::from_secs(61)).await,
            2..30 => sleep(Duration::from_millis(rng.u64(..2_000))).await,
            _ => {}
        }
        if number % 20 == 0 {
            *lock(&faults) = faulty::Faults::NONE;
            check_presence(&hub, &model).await;
            *lock(&faults) = faulty::Faults::MANY;
        }
    }
    *lock(&faults) = faulty::Faults::NONE;
    sleep(Duration::from_secs(5)).await;
    for (number, channel) in CHANNELS.iter().enumerate() {
        hub.publish(channel, payload(1_000 + number)).await.unwrap();
    }
    over.send_replace(true);
    let mut summary = Summary::default();
    for client in clients {
        summary += client.await.unwrap().check(&model);
    }
    check_presence(&hub, &model).await;
    summary
}

/// Checks that presence lists those who are subscribed, and that they have joined, once what was delayed is done.
async fn check_presence(hub: &Hub, model: &Model) {
    // All tasks are idle when this has passed.
    sleep(Duration::from_secs(1)).await;
    for channel in CHANNELS {
        let presence = hub.0.engine().presence(channel, usize::MAX).await.unwrap().unwrap();
        let mut listed: Vec<_> = presence.iter().map(|info| info.client.clone()).collect();
        let subscribed = hub.0.all_clients().into_iter().filter_map(|client| client.presence_in(channel));
        let mut subscribed: Vec<_> = subscribed.map(|info| info.client).collect();
        listed.sort_unstable();
        subscribed.sort_unstable();
        assert_eq!(listed, subscribed, "{channel}");
        if channel.starts_with("stream:") {
            let mut joined = model.joined(channel);
            joined.sort_unstable();
            assert_eq!(joined, subscribed, "{channel}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_publication_arrives_once_or_the_client_is_informed() {
    const ROUNDS: u64 = 8;
    let (mut all, mut rounds) = (Summary::default(), 0);
    for mut rng in generators(ROUNDS) {
        all += simulate(&mut rng, MemoryEngine::new(100)).await;
        rounds += 1;
    }
    println!("{all:?}");
    // A single round may have few of each.
    if rounds >= ROUNDS {
        assert!(all.received > 500 && all.recoveries > 50 && all.gaps > 50 && all.deltas > 100, "{all:?}");
    }
}

/// A client of a hub whose engine is slow.
fn slow(rng: &mut Rng) -> (Hub, Arc<Client>) {
    let engine = FaultyEngine::new(MemoryEngine::new(100), Arc::default(), rng.fork());
    *lock(&engine.faults()) = faulty::Faults::SLOW;
    let config = HubConfig::from_toml("[channel]\nsubscribe = \"anyone\"\npresence = true\n").unwrap();
    let hub = Hub::builder().config(config).engine(engine).build().unwrap();
    let client = hub.0.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
    client.connect(Identity::default());
    (hub, client)
}

async fn established(hub: &Hub, client: &Arc<Client>) -> Established {
    let command = SubscribeRequest { channel: "a".into(), ..SubscribeRequest::default() };
    subscribe(&hub.0, client, Request::from_client(command, &Headers::NONE)).await.unwrap()
}

/// At any time: the engine takes up to a second for all of it.
fn times() -> impl Iterator<Item = Duration> {
    (1..40).map(|number| Duration::from_millis(25 * number))
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_is_given_up_leaves_nothing_behind() {
    let mut rng = Rng::with_seed(1);
    let mut started = 0;
    for time in times() {
        let (hub, client) = slow(&mut rng);
        let node = &hub.0;
        let subscribing = async { established(&hub, &client).await.start(Vec::new()).await };
        let outcome = timeout(time, subscribing).await;
        sleep(Duration::from_secs(1)).await;
        let listed = node.engine().presence("a", usize::MAX).await.unwrap().unwrap().len();
        let expected = usize::from(outcome.is_ok());
        started += expected;
        let subscriptions = lock(&client.subscriptions).len();
        assert_eq!([subscriptions, node.channels.len(), listed], [expected; 3], "{time:?}");
    }
    assert!((1..times().count()).contains(&started), "{started}");
}

/// The first one waits for the engine while the server ends it and the client subscribes again.
#[tokio::test(start_paused = true)]
async fn a_subscription_that_starts_late_does_not_start_the_next_one() {
    let mut rng = Rng::with_seed(2);
    let mut late = 0;
    for time in times() {
        let (hub, client) = slow(&mut rng);
        let node = &hub.0;
        let first = tokio::spawn({
            let (hub, client) = (hub.clone(), client.clone());
            async move { established(&hub, &client).await.start(Vec::new()).await }
        });
        sleep(time).await;
        late += usize::from(!first.is_finished());
        node.unsubscribe("a", &client, UnsubscribeCode::Server);
        let next = established(&hub, &client).await;
        sleep(Duration::from_secs(1)).await;
        assert!(first.is_finished());
        let queued = || client.outbox.backlog().queued;
        let before = queued();
        let publication = Arc::new(Publication { data: "1".into(), ..Publication::default() });
        node.channels.append("a", "", 0, &publication);
        node.settle("a");
        assert_eq!(queued(), before, "{time:?}");
        assert!(next.start(Vec::new()).await);
        assert!(queued() > before && client.is_subscribed("a"), "{time:?}");
    }
    assert!((1..times().count()).contains(&late), "{late}");
}
