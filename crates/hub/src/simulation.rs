//! A hub under a fake clock, with an engine that fails, delays, loses and repeats at random, and clients that come and go.
//!
//! The engine is compared with a model of its histories at every recovery. The clients must have received each publication
//! exactly once, or have been informed of a gap. A failure prints the seed that repeats it.

mod client;
mod faulty;
mod model;

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::watch;
use tokio::time::sleep;

use self::client::{Roaming, Summary};
use self::faulty::FaultyEngine;
use self::model::Model;
use crate::engine::{Engine, MemoryEngine};
use crate::shards::lock;
use crate::{Hub, HubConfig};

const CONFIG: &str = r#"
client.anonymous = true
client.queue_len_max = 2000

[[namespace]]
name = "stream"
subscribe = "anyone"
history_size = 10
history_ttl = "60s"
force_recovery = true
presence = true

[[namespace]]
name = "cache"
subscribe = "anyone"
history_size = 3
history_ttl = "60s"
force_recovery = true
recovery_mode = "cache"
"#;

const CHANNELS: [&str; 4] = ["stream:a", "stream:b", "stream:c", "cache:d"];

/// Runs publishers, removals and clients for a while, then checks what the clients have.
async fn simulate(seed: u64, engine: impl Engine) -> Summary {
    let mut rng = Rng::with_seed(seed);
    let model = Arc::<Model>::default();
    let engine = FaultyEngine::new(engine, model.clone(), rng.fork());
    let faults = engine.faults();
    let hub = Hub::builder().config(HubConfig::from_toml(CONFIG).unwrap()).engine(engine).build().unwrap();
    let (over, is_over) = watch::channel(false);
    let clients: Vec<_> = (0..4)
        .map(|_| tokio::spawn(Roaming::new(hub.clone(), rng.fork()).run(model.clone(), is_over.clone())))
        .collect();
    for number in 0..300 {
        let channel = CHANNELS[rng.usize(..CHANNELS.len())];
        // A failure leaves open whether it was published; the model knows.
        let _ = hub.publish(channel, number.to_string()).await;
        match rng.u32(..100) {
            0 => drop(hub.remove_history(channel).await),
            // Histories expire.
            1 => sleep(Duration::from_secs(61)).await,
            2..30 => sleep(Duration::from_millis(rng.u64(..2_000))).await,
            _ => {}
        }
    }
    *lock(&faults) = faulty::Faults::NONE;
    sleep(Duration::from_secs(5)).await;
    for (number, channel) in CHANNELS.iter().enumerate() {
        hub.publish(channel, (1_000 + number).to_string()).await.unwrap();
    }
    over.send_replace(true);
    let mut summary = Summary::default();
    for client in clients {
        summary += client.await.unwrap().check(&model);
    }
    summary
}

/// The seeds to run: one when `SEED` names it.
fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..count).map(|_| fastrand::u64(..)).collect(),
    }
}

#[tokio::test(start_paused = true)]
async fn every_publication_arrives_once_or_the_client_is_informed() {
    let mut all = Summary::default();
    for seed in seeds(8) {
        println!("SEED={seed}");
        all += simulate(seed, MemoryEngine::new(100)).await;
    }
    println!("{all:?}");
    if std::env::var_os("SEED").is_none() {
        assert!(all.received > 500 && all.recoveries > 50 && all.gaps > 50, "{all:?}");
    }
}
