//! Clients that reconnect to random nodes at random times, and a record of what each of them received.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use wireloom::WebSocket;

/// The publications that NATS acknowledged: by channel and offset, the number in the payload.
#[derive(Debug, Default)]
pub(crate) struct Acknowledged(Mutex<HashMap<String, BTreeMap<u64, u64>>>);

impl Acknowledged {
    pub(crate) fn add(&self, channel: &str, offset: u64, number: u64) {
        let other = self.0.lock().unwrap().entry(channel.into()).or_default().insert(offset, number);
        assert_eq!(other, None, "{channel} has two publications at offset {offset}");
    }

    /// Panics unless a history has everything that was acknowledged, at its offset. What was not answered may be there.
    pub(crate) fn check_history(&self, name: &str, publications: &[Value]) {
        let kept = publications
            .iter()
            .map(|one| (one["offset"].as_u64().unwrap(), one["data"]["n"].as_u64().unwrap()));
        let kept: Vec<_> = kept.collect();
        assert!(kept.is_sorted_by(|one, next| one.0 < next.0), "{name} is not in order");
        let kept: BTreeMap<u64, u64> = kept.into_iter().collect();
        for (offset, number) in &self.0.lock().unwrap()[name] {
            assert_eq!(kept.get(offset), Some(number), "{name} at {offset}");
        }
    }

    fn last(&self, channel: &str) -> u64 {
        let all = self.0.lock().unwrap();
        all.get(channel).and_then(|channel| channel.last_key_value()).map_or(0, |(offset, _)| *offset)
    }
}

/// The state of a channel at a client.
#[derive(Debug, Default)]
struct Channel {
    epoch: String,
    offset: u64,
    is_subscribed: bool,
    record: Vec<Step>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// The client was informed that it continues from this offset.
    From(u64),
    /// It received a publication: its offset and its number.
    Received(u64, u64),
}

/// A client that follows some channels from node to node.
pub(crate) struct Roaming {
    channels: HashMap<String, Channel>,
    /// How long it takes over each message.
    delay: Duration,
    rng: Rng,
    pub(crate) recoveries: usize,
}

/// The instructions to the clients.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The nodes that can be reached.
    pub(crate) urls: Vec<String>,
    /// Everything has been published.
    pub(crate) is_over: bool,
}

impl Roaming {
    pub(crate) fn new(channels: Vec<String>, delay: Duration, seed: u64) -> Self {
        let channels = channels.into_iter().map(|name| (name, Channel::default())).collect();
        Self { channels, delay, rng: Rng::with_seed(seed), recoveries: 0 }
    }

    /// Roams until everything was published and this client has all of it.
    pub(crate) async fn run(mut self, plan: watch::Receiver<Plan>, all: Arc<Acknowledged>) -> Self {
        let mut give_up = None;
        loop {
            let Plan { urls, is_over } = plan.borrow().clone();
            if is_over {
                let give_up = *give_up.get_or_insert_with(|| Instant::now() + Duration::from_secs(60));
                self.delay = Duration::ZERO;
                if self.channels.iter().all(|(name, channel)| channel.offset >= all.last(name)) {
                    return self;
                }
                assert!(Instant::now() < give_up, "not everything arrived: {:?}", self.positions(&all));
            }
            let url = &urls[self.rng.usize(..urls.len())];
            let until = Instant::now() + Duration::from_millis(self.rng.u64(50..3_000));
            // Any failure ends the connection, and the next one begins.
            let _ = timeout_at(until, self.connection(url)).await;
            sleep(Duration::from_millis(self.rng.u64(1..20))).await;
        }
    }

    fn positions(&self, all: &Acknowledged) -> Vec<(&String, u64, u64)> {
        self.channels.iter().map(|(name, channel)| (name, channel.offset, all.last(name))).collect()
    }

    /// One connection, until it fails. Dropping the future ends the connection without a closing handshake.
    async fn connection(&mut self, url: &str) -> Option<()> {
        let mut socket = timeout(Duration::from_secs(2), wireloom::connect(url)).await.ok()?.ok()?;
        socket.send(&json!({ "id": 1, "connect": {} }).to_string()).await.ok()?;
        let mut pending = HashMap::new();
        let names: Vec<_> = self.channels.keys().cloned().collect();
        for name in names {
            self.channels.get_mut(&name).unwrap().is_subscribed = false;
            self.subscribe(&mut socket, &mut pending, &name).await?;
        }
        loop {
            let message = socket.recv_owned().await.ok()??;
            for line in message.as_text().unwrap().lines() {
                let reply: Value = serde_json::from_str(line).unwrap();
                self.handle(&mut socket, &mut pending, reply).await?;
            }
            sleep(self.delay).await;
        }
    }

    async fn subscribe(
        &mut self,
        socket: &mut WebSocket,
        pending: &mut HashMap<u64, String>,
        name: &str,
    ) -> Option<()> {
        let channel = &self.channels[name];
        let mut request = json!({ "channel": name });
        if !channel.epoch.is_empty() {
            request["recover"] = true.into();
            request["epoch"] = channel.epoch.clone().into();
            request["offset"] = channel.offset.into();
        }
        let id = 2 + self.rng.u64(..u64::from(u32::MAX) - 2);
        pending.insert(id, name.to_owned());
        socket.send(&json!({ "id": id, "subscribe": request }).to_string()).await.ok()
    }

    async fn handle(
        &mut self,
        socket: &mut WebSocket,
        pending: &mut HashMap<u64, String>,
        reply: Value,
    ) -> Option<()> {
        if reply == json!({}) {
            return socket.send("{}").await.ok();
        }
        if let Some(name) = reply["id"].as_u64().and_then(|id| pending.remove(&id)) {
            let result = reply.get("subscribe")?;
            return self.subscribed(&name, result);
        }
        // The reply to `connect` is no push.
        let Some(push) = reply.get("push") else { return Some(()) };
        let name = push["channel"].as_str()?.to_owned();
        if let Some(publication) = push.get("pub") {
            assert!(self.channels[&name].is_subscribed, "{push}");
            self.received(&name, publication);
        } else if push.get("unsubscribe").is_some() {
            // Codes from 2500 on ask the client to subscribe again.
            assert!(push["unsubscribe"]["code"].as_u64() >= Some(2500), "{push}");
            self.channels.get_mut(&name).unwrap().is_subscribed = false;
            self.subscribe(socket, pending, &name).await?;
        }
        Some(())
    }

    fn subscribed(&mut self, name: &str, result: &Value) -> Option<()> {
        let channel = self.channels.get_mut(name).unwrap();
        channel.is_subscribed = true;
        let offset = result["offset"].as_u64().unwrap_or(0);
        if result["recovered"] == true {
            self.recoveries += 1;
            for publication in result["publications"].as_array().into_iter().flatten() {
                self.received(name, publication);
            }
        } else {
            channel.record.push(Step::From(offset));
        }
        let channel = self.channels.get_mut(name).unwrap();
        channel.epoch = result["epoch"].as_str().unwrap().to_owned();
        channel.offset = channel.offset.max(offset);
        Some(())
    }

    fn received(&mut self, name: &str, publication: &Value) {
        let channel = self.channels.get_mut(name).unwrap();
        // A publication without an offset was made while its node had lost NATS; it is in no history.
        if let Some(offset) = publication["offset"].as_u64() {
            let number = publication["data"]["n"].as_u64().unwrap();
            channel.record.push(Step::Received(offset, number));
            channel.offset = offset;
        }
    }

    /// Panics unless each acknowledged publication arrived exactly once, or the client was informed of a gap. Returns how many
    /// publications it received and of how many gaps it was informed.
    pub(crate) fn check(&self, all: &Acknowledged) -> (usize, usize) {
        let (mut received, mut gaps) = (0, 0);
        let all = all.0.lock().unwrap();
        for (name, channel) in &self.channels {
            let published = &all[name];
            let mut at = None;
            for step in &channel.record {
                match *step {
                    Step::From(offset) => {
                        gaps += usize::from(at.is_some());
                        at = Some(offset);
                    }
                    Step::Received(offset, number) => {
                        let before = at.expect("a position before the first publication");
                        assert!(offset > before, "{name}: {offset} after {before}");
                        let missed: Vec<_> = published.range(before + 1..offset).collect();
                        assert!(missed.is_empty(), "{name}: {missed:?} missed between {before} and {offset}");
                        // The publisher of a publication that is not listed was not answered.
                        assert_eq!(*published.get(&offset).unwrap_or(&number), number, "{name} at {offset}");
                        received += 1;
                        at = Some(offset);
                    }
                }
            }
        }
        (received, gaps)
    }
}
