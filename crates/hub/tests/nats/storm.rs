//! Publications over three nodes, while nodes, NATS and the links between them fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use wireloom_hub::Hub;
use wireloom_testing::rng::generator;

use crate::node::Node;
use crate::roaming::{Acknowledged, Plan, Roaming};
use crate::server::{Link, LinkState, Nats};

const CONFIG: &str = r#"
client.anonymous = true
client.queue_len_max = 65536

[[namespace]]
name = "long"
subscribe = "anyone"
history_size = 2000
history_ttl = "10m"
force_recovery = true

[[namespace]]
name = "short"
subscribe = "anyone"
history_size = 20
history_ttl = "10m"
force_recovery = true
"#;

const NODES: usize = 3;
const CHANNELS: usize = 20;
/// `WIRELOOM_STORM` sets another number.
const PUBLICATIONS: usize = 20_000;
const CLIENTS: u64 = 12;
const FAULTS: usize = 12;

/// A node with threads of its own, so that it can be killed.
struct Killable {
    runtime: Option<Runtime>,
    link: Link,
    hub: Hub,
    url: String,
}

impl Killable {
    async fn start(nats: u16) -> Self {
        let link = Link::to(nats).await;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let node = runtime.spawn(Node::connect_to(link.port, CONFIG)).await.unwrap();
        Self { runtime: Some(runtime), link, hub: node.hub, url: node.url }
    }

    /// Ends every task and connection of the node, in the middle of anything.
    fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        self.kill();
    }
}

fn channel(n: usize) -> String {
    format!("{}:{n}", if n.is_multiple_of(2) { "long" } else { "short" })
}

/// Publishes into one channel through random nodes, until as many publications as wanted were acknowledged.
async fn publish(
    n: usize,
    total: usize,
    seed: u64,
    hubs: watch::Receiver<Vec<Hub>>,
    all: Arc<Acknowledged>,
    count: Arc<AtomicUsize>,
) {
    let (channel, mut rng) = (channel(n), Rng::with_seed(seed));
    // Some publications are so large that the buffers of the system do not hold them for a slow client.
    let padding = "x".repeat(if n < 4 { 2_048 } else { 16 });
    let mut acknowledged = 0;
    for number in 0.. {
        let hub = {
            let hubs = hubs.borrow();
            hubs[rng.usize(..hubs.len())].clone()
        };
        let data = json!({ "n": number, "padding": padding }).to_string();
        match timeout(Duration::from_secs(2), hub.publish(&channel, data)).await {
            Ok(Ok(position)) if position.offset > 0 => {
                all.add(&channel, position.offset, number);
                acknowledged += 1;
                count.fetch_add(1, Ordering::Relaxed);
            }
            // Without an answer the publication may be in the history, or not.
            _ => sleep(Duration::from_millis(20)).await,
        }
        if acknowledged == total / CHANNELS {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_publication_arrives_once_or_the_client_is_informed() {
    let Some(mut nats) = Nats::start() else { return };
    let mut rng = generator();
    let total = std::env::var("WIRELOOM_STORM").map_or(PUBLICATIONS, |total| total.parse().unwrap());
    let mut nodes = Vec::new();
    for _ in 0..NODES {
        nodes.push(Killable::start(nats.port).await);
    }
    let hubs_of = |nodes: &[Killable]| nodes.iter().map(|node| node.hub.clone()).collect::<Vec<_>>();
    let plan_of = |nodes: &[Killable], is_over| Plan {
        urls: nodes.iter().map(|node| node.url.clone()).collect(),
        is_over,
    };
    let (hubs, hubs_seen) = watch::channel(hubs_of(&nodes));
    let (plan, plan_seen) = watch::channel(plan_of(&nodes, false));
    let (all, count) = (Arc::<Acknowledged>::default(), Arc::<AtomicUsize>::default());
    let mut reader = Node::connect_to(nats.port, CONFIG).await.connect().await;
    let mut begins = Vec::new();
    for n in (0..CHANNELS).step_by(2) {
        begins.push((channel(n), reader.call("subscribe", json!({ "channel": channel(n) })).await));
    }
    drop(reader);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|id| {
            let is_slow = id < 2;
            let delay = Duration::from_millis(if is_slow { 20 } else { 0 });
            // Slow clients follow the channels of large publications.
            let first = if is_slow { 0 } else { rng.usize(..CHANNELS) };
            let channels = (first..first + 5).map(|n| channel(n % CHANNELS)).collect();
            let client = Roaming::new(channels, delay, rng.u64(..));
            tokio::spawn(client.run(plan_seen.clone(), all.clone()))
        })
        .collect();
    let publishers: Vec<_> = (0..CHANNELS)
        .map(|n| tokio::spawn(publish(n, total, rng.u64(..), hubs_seen.clone(), all.clone(), count.clone())))
        .collect();

    for fault in 0..FAULTS {
        while count.load(Ordering::Relaxed) < total * fault / FAULTS {
            sleep(Duration::from_millis(10)).await;
        }
        let hurt = rng.usize(..NODES);
        match fault % 6 {
            0 => nodes[hurt].link.set(LinkState::Cut),
            1 => nodes[hurt].link.set(LinkState::Slow(Duration::from_millis(20))),
            2 => nodes[hurt].link.set(LinkState::Stalled),
            3 => {
                nodes[hurt].kill();
                nodes[hurt] = Killable::start(nats.port).await;
                hubs.send_replace(hubs_of(&nodes));
                plan.send_replace(plan_of(&nodes, false));
            }
            4 => {
                nats.stop();
                sleep(Duration::from_millis(rng.u64(100..4_000))).await;
                nats.resume();
            }
            _ => {
                nats.kill();
                sleep(Duration::from_millis(300)).await;
                nats.restart();
            }
        }
        sleep(Duration::from_millis(rng.u64(100..1_000))).await;
        nodes[hurt].link.set(LinkState::Clear);
        println!("fault {fault} after {} publications", count.load(Ordering::Relaxed));
    }
    for publisher in publishers {
        publisher.await.unwrap();
    }
    plan.send_replace(plan_of(&nodes, true));
    // Everything that was acknowledged is in the histories, in order. One reply has all of a history.
    let config = CONFIG.replace("65536", "1048576");
    let mut reader = Node::connect_to(nats.port, &config).await.connect().await;
    for (name, begin) in begins {
        let (epoch, offset) = (&begin["epoch"], begin["offset"].as_u64().unwrap_or(0));
        let request = json!({ "channel": name, "recover": true, "epoch": epoch, "offset": offset });
        let result = reader.call("subscribe", request).await;
        assert_eq!(result["recovered"], true, "{name}");
        all.check_history(&name, result["publications"].as_array().unwrap());
    }
    let (mut received, mut gaps, mut recoveries) = (0, 0, 0);
    for client in clients {
        let client = client.await.unwrap();
        let (own, own_gaps) = client.check(&all);
        received += own;
        gaps += own_gaps;
        recoveries += client.recoveries;
    }
    println!(
        "{total} publications, {FAULTS} faults: {received} received, {recoveries} recoveries, {gaps} gaps reported"
    );
    assert!(recoveries > 0 && gaps > 0, "{recoveries} recoveries, {gaps} gaps");
}
