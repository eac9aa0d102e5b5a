//! Two nodes of a hub with a broker between them, publishers at the nodes, and subscribers that return to either node.
//!
//! - Between two positions that a subscriber received, the offsets of its publications are consecutive, and each payload is the one that
//!   the broker has for that offset: none is repeated, out of order, or missing unnoticed.
//! - A subscriber learns that it cannot recover only when it has missed more than the history holds.
//! - A publication whose position `publish` returned is at that position.
//! - When the faults are over and their consequences too, no connection and no subscription is lost, and each publication arrives within
//!   [`PROMPT`], also at a subscriber that recovers at that moment. Before that nothing is published for a while, and every subscriber catches
//!   up. In half of the seeds the last publications are lost to one node, whose subscribers learn that.
//! - In the end every subscriber is at the last publication of each channel.
//! - The server of a node that shuts down ends within its grace, and holds no memory then.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use wireloom::client::{Attempt, ReconnectEvent, ReconnectPolicy, Reconnecting, Retry};
use wireloom::wireloom_ws::Keepalive;
use wireloom::{CloseCode, Server, ServerConfig, WebSocketConfig};
use wireloom_hub::{Hub, HubConfig, Position, Retention};

use crate::faults::{self, Clocks, Faults};
use crate::network;
use crate::relay::{Broker, RelayEngine, Truth};

const NODES: [&str; 2] = ["north", "south"];
const SUBSCRIBERS: [&str; 3] = ["anna", "berta", "clara"];
const CHANNELS: [&str; 2] = ["stream:a", "stream:b"];
/// The faults end here, and the nodes shut down no more a while after.
const DISTURBED: Duration = Duration::from_secs(40);
/// The last publication before the calm: no later one reveals what the last faults have lost.
const LAST: Duration = Duration::from_secs(35);
/// The same where the last fault is one that loses publications: when no other one makes up for it.
const LAST_LOST: Duration = Duration::from_secs(65);
/// From here on until [`END`] nothing is disturbed: what the faults left behind has timed out.
const CALM: Duration = Duration::from_secs(90);
const END: Duration = Duration::from_secs(150);
/// When it is calm, something is published at each multiple of this: seldom, so that none makes up for what became of the one before.
const BEAT: Duration = Duration::from_secs(7);
/// The longest time for a publication then: it crosses two links of at most 1.5 s, and may wait while a history is read over the first one.
const PROMPT: Duration = Duration::from_secs(5);
/// A keepalive ping would wake what was forgotten: it comes later than that.
const KEEPALIVE: Keepalive =
    Keepalive { ping_after: Duration::from_secs(14), dead_after: Duration::from_secs(28) };
/// The longest time that the broker's messages take then. A history that is read and a publication that it lacks overtake each other.
const BROKER_MAX: Duration = Duration::from_millis(1_500);
/// When it is calm, this subscriber leaves and returns before each publication: some arrive while it recovers.
const RESTLESS: &str = SUBSCRIBERS[2];
const GRACE: Duration = Duration::from_secs(5);
const RETENTION: Retention =
    Retention { size: 30, ttl: Duration::from_secs(3_600), position_ttl: Duration::from_secs(24 * 3600) };

const CONFIG: &str = r#"
client.anonymous = true

[[namespace]]
name = "stream"
subscribe = "anyone"
history_size = 30
history_ttl = "1h"
force_recovery = true
"#;

/// Results of a run, kept outside of simulated time.
#[derive(Default)]
struct Seen {
    failures: Vec<String>,
    acknowledged: Vec<(&'static str, Position, String)>,
    refused: u64,
    received: u64,
    gaps: u64,
    recoveries: u64,
    shutdowns: u64,
    published: u64,
}

type Shared = Arc<Mutex<Seen>>;

fn fail(seen: &Shared, why: String) {
    seen.lock().unwrap().failures.push(why);
}

/// One node, again and again.
async fn run_node(
    name: &'static str,
    broker: Broker,
    last: Duration,
    seen: Shared,
    clocks: Clocks,
    mut rng: Rng,
) -> turmoil::Result {
    loop {
        let hub =
            Hub::builder().config(HubConfig::from_toml(CONFIG)?).engine(RelayEngine::new(&broker)).build()?;
        let config = ServerConfig { shutdown_grace: GRACE, ..ServerConfig::default() };
        let server = Server::new(network::listen(80).await?).config(config);
        let handle = server.handle();
        let (stopping, stopped_hub) = (handle.clone(), hub.clone());
        let (after, jumping) = (Duration::from_secs(rng.u64(5..90)), clocks.clone());
        let stopped = tokio::spawn(async move {
            sleep(after).await;
            faults::until_shutdowns_end(DISTURBED).await;
            let began = (Instant::now(), jumping.jumps(name));
            stopped_hub.shut_down(Duration::from_secs(1)).await;
            stopping.shut_down();
            began
        });
        let publishing = tokio::spawn(publish(hub.clone(), name, last, seen.clone(), rng.fork()));
        let answering = hub.clone();
        server
            .serve(move |request| {
                let hub = answering.clone();
                async move { hub.answer(request).await }
            })
            .await?;
        publishing.abort();
        let (since, jumps) = stopped.await?;
        let took = since.elapsed();
        if clocks.jumps(name) == jumps && took > GRACE + Duration::from_secs(2) {
            fail(&seen, format!("shutting {name} down took {took:?}"));
        }
        let stats = handle.stats();
        if (stats.connections_open, stats.memory.total, stats.handlers_panicked) != (0, 0, 0) {
            fail(&seen, format!("after the shutdown of {name}: {stats:?}"));
        }
        seen.lock().unwrap().shutdowns += 1;
        sleep(Duration::from_millis(rng.u64(..2_000))).await;
    }
}

async fn publish(hub: Hub, node: &'static str, last: Duration, seen: Shared, mut rng: Rng) {
    loop {
        sleep(Duration::from_millis(rng.u64(..600))).await;
        match turmoil::sim_elapsed().unwrap() {
            now if now > END => return,
            now if now > CALM => {
                // The nodes take turns.
                let beat = next_beat(now);
                let is_mine = NODES[beat as usize % NODES.len()] == node;
                sleep(BEAT * beat - now).await;
                if !is_mine {
                    continue;
                }
            }
            now if now > last => continue,
            _ => {}
        }
        // When it is calm, to both channels.
        let is_calm = turmoil::sim_elapsed().unwrap() > CALM;
        let one = CHANNELS[rng.usize(..CHANNELS.len())];
        for channel in CHANNELS.into_iter().filter(|channel| is_calm || *channel == one) {
            let payload = {
                let mut seen = seen.lock().unwrap();
                seen.published += 1;
                format!("\"publication {}\"", seen.published)
            };
            match hub.publish(channel, payload.clone()).await {
                Ok(position) => seen.lock().unwrap().acknowledged.push((channel, position, payload)),
                Err(_) => seen.lock().unwrap().refused += 1,
            }
        }
    }
}

/// The number of the next beat.
fn next_beat(now: Duration) -> u32 {
    now.div_duration_f64(BEAT) as u32 + 1
}

/// A client of the JSON protocol, and the messages that it received of a channel.
struct Subscriber {
    name: &'static str,
    seen: Shared,
    broker: Broker,
    rng: Rng,
    positions: BTreeMap<&'static str, Position>,
    /// Subscribe and unsubscribe commands that wait for a reply.
    pending: HashMap<u64, &'static str>,
    next_id: u64,
}

impl Subscriber {
    async fn run(mut self) -> turmoil::Result {
        let mut config = WebSocketConfig::default();
        config.core.keepalive = Some(KEEPALIVE);
        let policy = ReconnectPolicy {
            delay_first: Duration::ZERO,
            confirm_timeout: Duration::from_secs(10),
            retry: Retry::when(|_| true),
            ..ReconnectPolicy::default()
        };
        let mut rng = self.rng.fork();
        let connector = network::connector().config(config).http2(self.rng.bool());
        let mut socket = connector.reconnecting("", policy).prepare(move |mut attempt: Attempt| {
            let delay = Duration::from_millis(rng.u64(..1_500));
            attempt.url = format!("ws://{}/connection/websocket", NODES[rng.usize(..NODES.len())]);
            async move {
                sleep(delay).await;
                Ok(attempt)
            }
        });
        let mut was_calm = false;
        let mut leaves_at =
            if self.name == RESTLESS { CALM + Duration::from_millis(1) } else { Duration::MAX };
        loop {
            let now = turmoil::sim_elapsed().unwrap();
            if now > CALM && !was_calm {
                was_calm = true;
                if !self.is_current() {
                    fail(&self.seen, format!("{}: at {:?} when it is calm", self.name, self.positions));
                }
            }
            if now > END && self.is_current() {
                break;
            }
            if let Some(late) = self.late(now) {
                fail(&self.seen, format!("{}: {late:?} has not arrived at {now:?}", self.name));
            }
            if now > leaves_at && now < END && self.pending.is_empty() {
                let lead = Duration::from_millis(1 << self.rng.u32(4..11));
                leaves_at = BEAT * (next_beat(now) + 1) - lead;
                for channel in CHANNELS {
                    self.command(&mut socket, channel, "unsubscribe", json!({"channel": channel})).await;
                }
            }
            let wait = leaves_at.saturating_sub(now).clamp(network::TICK, Duration::from_millis(300));
            let Ok(event) = tokio::time::timeout(wait, socket.next()).await else { continue };
            match event {
                Ok(Some(ReconnectEvent::Connected(_))) => self.begin(&mut socket).await,
                Ok(Some(ReconnectEvent::Message(message))) => {
                    let text = message.as_text().unwrap().to_owned();
                    for line in text.lines() {
                        self.handle(&mut socket, serde_json::from_str(line).unwrap()).await;
                    }
                }
                Ok(Some(ReconnectEvent::Lost(loss))) => {
                    self.fail_if_calm(&format!("the connection is lost: {:?}", loss.reason));
                }
                Ok(Some(_)) => {}
                end => {
                    fail(&self.seen, format!("{}: {end:?}", self.name));
                    return Ok(());
                }
            }
        }
        let _ = socket.close(CloseCode::NORMAL, "").await;
        Ok(())
    }

    fn fail_if_calm(&self, what: &str) {
        let now = turmoil::sim_elapsed().unwrap();
        if now > CALM {
            fail(&self.seen, format!("{}: {what} at {now:?}, which nothing disturbed", self.name));
        }
    }

    /// Whether it has all publications.
    fn is_current(&self) -> bool {
        let truth = self.broker.truth();
        CHANNELS.iter().all(|channel| {
            self.positions.get(channel).is_some_and(|position| {
                let next = (channel.to_string(), position.epoch.clone(), position.offset + 1);
                position.offset > 0 && !truth.contains_key(&next)
            })
        })
    }

    /// A publication that it should have when it is calm.
    fn late(&self, now: Duration) -> Option<(String, String, u64)> {
        let has = |(channel, epoch, offset): &(String, String, u64)| {
            let at = self.positions.get(&**channel);
            self.pending.values().any(|pending| pending == channel)
                || at.is_some_and(|at| at.epoch == *epoch && at.offset >= *offset)
        };
        let mut truth = self.broker.truth().into_iter();
        let late =
            truth.find(|(key, published)| published.at > CALM && published.at + PROMPT < now && !has(key));
        late.map(|(key, _)| key)
    }

    async fn send(&self, socket: &mut Reconnecting, command: Value) {
        // If it is lost, so is the connection.
        let _ = socket.send(command.to_string()).await;
    }

    async fn begin(&mut self, socket: &mut Reconnecting) {
        self.pending.clear();
        self.next_id = 1;
        self.send(socket, json!({"id": 1, "connect": {}})).await;
        for channel in CHANNELS {
            self.subscribe(socket, channel).await;
        }
    }

    async fn subscribe(&mut self, socket: &mut Reconnecting, channel: &'static str) {
        let mut subscribe = json!({"channel": channel});
        if let Some(position) = self.positions.get(channel) {
            subscribe["recover"] = json!(true);
            subscribe["epoch"] = json!(position.epoch);
            subscribe["offset"] = json!(position.offset);
        }
        self.command(socket, channel, "subscribe", subscribe).await;
    }

    async fn command(
        &mut self,
        socket: &mut Reconnecting,
        channel: &'static str,
        name: &str,
        command: Value,
    ) {
        self.next_id += 1;
        self.pending.insert(self.next_id, channel);
        self.send(socket, json!({"id": self.next_id, name: command})).await;
    }

    async fn handle(&mut self, socket: &mut Reconnecting, reply: Value) {
        if reply == json!({}) {
            return self.send(socket, json!({})).await;
        }
        let id = reply["id"].as_u64().unwrap_or_default();
        if let Some(channel) = self.pending.remove(&id) {
            if reply["subscribe"].is_object() {
                self.subscribed(channel, &reply["subscribe"]);
            } else if reply["unsubscribe"].is_object() {
                self.subscribe(socket, channel).await;
            } else {
                sleep(Duration::from_millis(100)).await;
                self.subscribe(socket, channel).await;
            }
        }
        let push = &reply["push"];
        let Some(&channel) = CHANNELS.iter().find(|channel| push["channel"] == **channel) else { return };
        if push["pub"].is_object() {
            self.received(channel, &push["pub"]);
        } else if push["unsubscribe"].is_object() {
            self.fail_if_calm(&format!("unsubscribed from {channel}: {}", push["unsubscribe"]));
            self.subscribe(socket, channel).await;
        }
    }

    fn subscribed(&mut self, channel: &'static str, result: &Value) {
        let publications = result["publications"].as_array().cloned().unwrap_or_default();
        let told = Position {
            offset: result["offset"].as_u64().unwrap_or_default(),
            epoch: result["epoch"].as_str().unwrap_or_default().to_owned(),
        };
        if result["recovered"] == true {
            self.seen.lock().unwrap().recoveries += 1;
        } else {
            let before = told.offset - publications.len() as u64;
            if let Some(at) = self.positions.insert(channel, Position { offset: before, ..told.clone() }) {
                self.seen.lock().unwrap().gaps += 1;
                if at.epoch == told.epoch && told.offset - at.offset <= RETENTION.size as u64 {
                    fail(&self.seen, format!("{}: {channel} is lost from {at:?} to {told:?}", self.name));
                }
            }
        }
        for publication in &publications {
            self.received(channel, publication);
        }
        let at = self.positions.entry(channel).or_default();
        if *at != told {
            fail(&self.seen, format!("{}: {channel} is at {at:?}, and the reply says {told:?}", self.name));
        }
    }

    fn received(&mut self, channel: &'static str, publication: &Value) {
        let offset = publication["offset"].as_u64().unwrap_or_default();
        let at = self.positions.entry(channel).or_default();
        let truth = self.broker.published(channel, &at.epoch, offset);
        let data = publication["data"].to_string();
        let is_true = truth.as_ref().is_some_and(|published| published.data == data.as_bytes());
        if offset != at.offset + 1 || !is_true {
            fail(
                &self.seen,
                format!("{}: {publication} of {channel} after {at:?}; it is {truth:?}", self.name),
            );
        }
        at.offset = offset;
        self.seen.lock().unwrap().received += 1;
    }
}

fn check_acknowledged(seen: &Seen, truth: &Truth) {
    for (channel, position, payload) in &seen.acknowledged {
        let key = ((*channel).to_owned(), position.epoch.clone(), position.offset);
        let published = truth.get(&key).map(|published| &*published.data);
        assert_eq!(published, Some(payload.as_bytes()), "{channel} {position:?}");
    }
}

pub(crate) fn simulate(seed: u64) -> String {
    let mut rng = Rng::with_seed(seed);
    let seen = Shared::default();
    let clocks = Clocks::default();
    let broker = Broker::new(RETENTION);
    let last = if rng.bool() { LAST } else { LAST_LOST };
    let mut sim = network::network(seed, END + Duration::from_secs(60));
    let serving = broker.clone();
    sim.host("broker", move || serving.clone().serve());
    for name in NODES {
        let hosting = (broker.clone(), seen.clone(), clocks.clone(), Arc::new(Mutex::new(rng.fork())));
        sim.host(name, move || {
            let (broker, seen, clocks, rng) = hosting.clone();
            let rng = rng.lock().unwrap().fork();
            async move {
                tokio::spawn(clocks.clone().follow(name));
                run_node(name, broker, last, seen, clocks, rng).await
            }
        });
    }
    for name in SUBSCRIBERS {
        let subscriber = Subscriber {
            name,
            seen: seen.clone(),
            broker: broker.clone(),
            rng: rng.fork(),
            positions: BTreeMap::new(),
            pending: HashMap::new(),
            next_id: 0,
        };
        let clocks = clocks.clone();
        sim.client(name, async move {
            tokio::spawn(clocks.follow(name));
            subscriber.run().await
        });
    }
    let mut hosts = vec!["broker"];
    hosts.extend(NODES);
    hosts.extend(SUBSCRIBERS);
    let mut faults = Faults::new(rng.fork(), hosts, NODES.to_vec(), clocks, DISTURBED);
    if last == LAST_LOST {
        let node = NODES[rng.usize(..NODES.len())];
        faults.plan(last - Duration::from_secs(3), move |sim| sim.partition("broker", node));
        faults.plan(last + Duration::from_secs(2), move |sim| sim.repair("broker", node));
    }
    faults.plan(CALM, |sim| {
        for node in NODES {
            // From the shortest to the longest.
            sim.set_link_latency("broker", node, Duration::from_millis(1));
            sim.set_link_max_message_latency("broker", node, BROKER_MAX);
        }
    });
    faults.run(&mut sim, |now| {
        let seen = seen.lock().unwrap();
        assert!(seen.failures.is_empty(), "at {now:?}: {:#?}", seen.failures);
    });
    let seen = seen.lock().unwrap();
    assert!(seen.failures.is_empty(), "{:#?}", seen.failures);
    let truth = broker.truth();
    check_acknowledged(&seen, &truth);
    format!(
        "{} faults, {} published, {} acknowledged, {} refused, {} received, {} recoveries, {} gaps, {} shutdowns, {:?}",
        faults.count,
        truth.len(),
        seen.acknowledged.len(),
        seen.refused,
        seen.received,
        seen.recoveries,
        seen.gaps,
        seen.shutdowns,
        sim.elapsed()
    )
}
