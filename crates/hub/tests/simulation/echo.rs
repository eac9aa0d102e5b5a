//! `Reconnecting` clients and an echo server, over HTTP/1.1 and HTTP/2. Each connection has a number, which its path names.
//!
//! - What a server received over a connection is a prefix of what was sent over it, and what came back is a prefix of that: nothing
//!   twice, nothing out of order, no gap.
//! - What `Loss` calls confirmed was received; the rest, all of it, was kept.
//! - In the end every message that `send` accepted has been received.
//! - When the faults are over and their consequences too, no connection is lost, and each message is echoed within [`PROMPT`].
//! - A server that shuts down ends within its grace, and holds no memory then.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use wireloom::client::{Attempt, Loss, ReconnectEvent, ReconnectPolicy, Reconnecting};
use wireloom::wireloom_ws::Keepalive;
use wireloom::{
    CloseCode, Connector, DeflateConfig, OwnedMessage, Request, Response, Server, ServerConfig, SlowPeer,
    WebSocketConfig, WebSocketError,
};

use crate::faults::{self, Clocks, Faults};
use crate::network;

const CLIENTS: [&str; 3] = ["anna", "berta", "clara"];
/// The faults end here, and the server shuts down no more a while after.
const DISTURBED: Duration = Duration::from_secs(40);
/// From here on until [`END`] nothing is disturbed: what the faults left behind has timed out.
const CALM: Duration = Duration::from_secs(90);
const END: Duration = Duration::from_secs(105);
/// The longest time for an echo then: several round trips of the slowest link.
const PROMPT: Duration = Duration::from_secs(10);
const GRACE: Duration = Duration::from_secs(5);

/// Results of a run, kept outside of simulated time.
#[derive(Default)]
struct Seen {
    /// The numbers of the messages that a server received, by client and connection.
    received: BTreeMap<(usize, u64), Vec<u64>>,
    failures: Vec<String>,
    connections: u64,
    losses: u64,
    kept: u64,
    confirmed: u64,
    shutdowns: u64,
}

type Shared = Arc<Mutex<Seen>>;

fn fail(seen: &Shared, why: String) {
    seen.lock().unwrap().failures.push(why);
}

/// Message number `number` of a client: some are long.
fn message(client: usize, number: u64) -> Vec<u8> {
    let mut rng = Rng::with_seed((client as u64) << 40 | number);
    let len = match rng.u32(..20) {
        0 => rng.usize(20_000..200_000),
        1..5 => rng.usize(500..5_000),
        _ => rng.usize(..200),
    };
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.resize(8 + len, 0);
    // Half of it compresses.
    rng.fill(&mut bytes[8..8 + len / 2]);
    bytes
}

/// The number of a message whose content is right.
fn number_of(client: usize, bytes: &[u8]) -> Option<u64> {
    let number = u64::from_be_bytes(*bytes.first_chunk()?);
    (message(client, number) == bytes).then_some(number)
}

fn websocket_config() -> WebSocketConfig {
    let mut config = WebSocketConfig::default();
    config.core.keepalive =
        Some(Keepalive { ping_after: Duration::from_secs(4), dead_after: Duration::from_secs(12) });
    config.slow_peer = SlowPeer::Wait { stall_timeout: Duration::from_secs(15) };
    config
}

async fn serve(seen: Shared, clocks: Clocks, mut rng: Rng) -> turmoil::Result {
    loop {
        let config = ServerConfig {
            shutdown_grace: GRACE,
            websocket: websocket_config(),
            deflate: rng.bool().then(DeflateConfig::default),
            ..ServerConfig::default()
        };
        let server = Server::new(network::listen(80).await?).config(config);
        let handle = server.handle();
        let stopping = handle.clone();
        let (after, jumping) = (Duration::from_secs(rng.u64(5..60)), clocks.clone());
        let stopped = tokio::spawn(async move {
            sleep(after).await;
            faults::until_shutdowns_end(DISTURBED).await;
            stopping.shut_down();
            (Instant::now(), jumping.jumps("server"))
        });
        let seen_here = seen.clone();
        server.serve(move |request| answer(seen_here.clone(), request)).await?;
        let (since, jumps) = stopped.await?;
        let took = since.elapsed();
        if clocks.jumps("server") == jumps && took > GRACE + Duration::from_secs(1) {
            fail(&seen, format!("shutting down took {took:?}"));
        }
        let stats = handle.stats();
        if (stats.connections_open, stats.memory.total, stats.handlers_panicked) != (0, 0, 0) {
            fail(&seen, format!("after the shutdown: {stats:?}"));
        }
        seen.lock().unwrap().shutdowns += 1;
        sleep(Duration::from_millis(rng.u64(..2_000))).await;
    }
}

async fn answer(seen: Shared, request: Request) -> Response {
    let mut path = request.path().split('/').skip(1).map(|part| part.parse::<u64>().unwrap());
    let (client, connection) = (path.next().unwrap() as usize, path.next().unwrap());
    match request.websocket() {
        Err(refusal) => refusal,
        Ok(upgrade) => upgrade.on_open(move |socket| async move {
            let (mut sender, mut receiver) = socket.split();
            // A client that waits for room to send receives nothing meanwhile: it must find that here.
            let (echoing, mut echoes) = mpsc::unbounded_channel();
            let receiving = async move {
                while let Ok(Some(message)) = receiver.recv_owned().await {
                    match number_of(client, message.as_bytes()) {
                        Some(number) => {
                            let mut seen = seen.lock().unwrap();
                            seen.received.entry((client, connection)).or_default().push(number);
                        }
                        None => fail(&seen, format!("client {client}: a message arrived changed")),
                    }
                    if echoing.send(message).is_err() {
                        break;
                    }
                }
            };
            let sending = async move {
                while let Some(message) = echoes.recv().await {
                    if sender.send(message).await.is_err() {
                        break;
                    }
                }
            };
            tokio::join!(receiving, sending);
        }),
    }
}

/// A client that sends numbered messages and checks what becomes of them.
struct Client {
    me: usize,
    seen: Shared,
    rng: Rng,
    /// Messages to send, those that were kept first.
    waiting: VecDeque<u64>,
    /// Sent over the current connection.
    sent: Vec<u64>,
    /// When each of these was sent.
    sent_at: Vec<Duration>,
    echoed: usize,
    /// The number of the current connection.
    connection: Arc<Mutex<u64>>,
}

impl Client {
    async fn run(mut self, connector: Connector) -> turmoil::Result {
        let policy = ReconnectPolicy {
            // `prepare` waits instead, for a time that the seed decides.
            delay_first: Duration::ZERO,
            confirm_after: Duration::from_millis(self.rng.u64(10..2_000)),
            confirm_timeout: Duration::from_secs(10),
            keep_len_max: usize::MAX,
            ..ReconnectPolicy::default()
        };
        let (me, number, mut rng) = (self.me, self.connection.clone(), self.rng.fork());
        let socket = connector.reconnecting("", policy).prepare(move |mut attempt: Attempt| {
            let number = {
                let mut number = number.lock().unwrap();
                *number += 1;
                *number
            };
            let delay = Duration::from_millis(rng.u64(..1_000));
            async move {
                sleep(delay).await;
                attempt.url = format!("ws://server/{me}/{number}");
                Ok(attempt)
            }
        });
        self.exchange(socket).await;
        Ok(())
    }

    async fn exchange(&mut self, mut socket: Reconnecting) {
        let began = Instant::now();
        let (mut next, mut created) = (began, 0);
        loop {
            // The clock may have jumped.
            let now = turmoil::sim_elapsed().unwrap();
            let creates = now < DISTURBED + Duration::from_secs(5) || (CALM..END).contains(&now);
            if creates && self.waiting.len() < 20 {
                self.waiting.push_back(created);
                created += 1;
            }
            let is_all_echoed = self.waiting.is_empty() && self.echoed == self.sent.len();
            if now >= END && is_all_echoed && socket.is_connected() && socket.unconfirmed() == 0 {
                break;
            }
            tokio::select! {
                biased;
                step = socket.next() => match step {
                    Ok(Some(step)) => self.handle(step),
                    end => return fail(&self.seen, format!("client {} ended: {end:?}", self.me)),
                },
                () = sleep_until(next), if socket.is_connected() && (creates || !self.waiting.is_empty()) => {
                    next = Instant::now() + Duration::from_millis(self.rng.u64(..200));
                    self.send(&mut socket).await;
                }
                () = sleep(Duration::from_secs(1)) => {}
            }
        }
        let all: std::collections::BTreeSet<u64> = {
            let seen = self.seen.lock().unwrap();
            let of_mine = seen.received.iter().filter(|((client, _), _)| *client == self.me);
            of_mine.flat_map(|(_, numbers)| numbers.iter().copied()).collect()
        };
        let missing: Vec<u64> = (0..created).filter(|number| !all.contains(number)).collect();
        if !missing.is_empty() {
            fail(
                &self.seen,
                format!("client {}: {missing:?} never arrived, and no loss was reported", self.me),
            );
        }
        self.check_received();
        let _ = socket.close(CloseCode::NORMAL, "").await;
    }

    async fn send(&mut self, socket: &mut Reconnecting) {
        let Some(number) = self.waiting.pop_front() else { return };
        match socket.send(message(self.me, number)).await {
            Err(WebSocketError::Closed | WebSocketError::Protocol(_)) => self.waiting.push_front(number),
            // After another error it may have arrived; the loss says so.
            Ok(()) | Err(_) => {
                self.sent.push(number);
                self.sent_at.push(turmoil::sim_elapsed().unwrap());
            }
        }
    }

    fn handle(&mut self, step: ReconnectEvent) {
        match step {
            ReconnectEvent::Connected(_) => {
                (self.sent, self.sent_at, self.echoed) = (Vec::new(), Vec::new(), 0);
                self.seen.lock().unwrap().connections += 1;
            }
            ReconnectEvent::Message(message) => self.check_echo(&message),
            ReconnectEvent::Lost(loss) => self.check_loss(loss),
            _ => {}
        }
    }

    fn check_echo(&mut self, message: &OwnedMessage) {
        let number = number_of(self.me, message.as_bytes());
        if number.is_none() || number != self.sent.get(self.echoed).copied() {
            fail(
                &self.seen,
                format!("client {}: echo {} is {number:?} of {:?}", self.me, self.echoed, self.sent),
            );
        }
        let now = turmoil::sim_elapsed().unwrap();
        let sent_at = self.sent_at.get(self.echoed).copied().unwrap_or(now);
        if sent_at > CALM && now - sent_at > PROMPT {
            fail(&self.seen, format!("client {}: echo {} took {:?}", self.me, self.echoed, now - sent_at));
        }
        self.echoed += 1;
    }

    fn check_loss(&mut self, loss: Loss) {
        let now = turmoil::sim_elapsed().unwrap();
        if now > CALM {
            fail(
                &self.seen,
                format!("client {}: {:?} at {now:?}, which nothing disturbed", self.me, loss.reason),
            );
        }
        let kept: Option<Vec<u64>> =
            loss.kept.iter().map(|message| number_of(self.me, message.as_bytes())).collect();
        let confirmed = self.sent.len().checked_sub(loss.unconfirmed as usize);
        let expected = confirmed.map(|confirmed| &self.sent[confirmed..]);
        if loss.sent != self.sent.len() as u64 || kept.as_deref() != expected {
            let Self { me, sent, .. } = self;
            return fail(&self.seen, format!("client {me}: sent {sent:?}, {loss:?}, kept {kept:?}"));
        }
        let confirmed = confirmed.unwrap_or_default();
        let arrived = self.check_received();
        if arrived < confirmed || arrived < self.echoed {
            fail(
                &self.seen,
                format!(
                    "client {}: {confirmed} confirmed, {} echoed, {arrived} arrived",
                    self.me, self.echoed
                ),
            );
        }
        let mut seen = self.seen.lock().unwrap();
        seen.losses += 1;
        seen.kept += loss.unconfirmed;
        seen.confirmed += confirmed as u64;
        drop(seen);
        for number in kept.unwrap_or_default().into_iter().rev() {
            self.waiting.push_front(number);
        }
        self.sent.clear();
        self.sent_at.clear();
    }

    /// The number of messages that arrived over the current connection.
    fn check_received(&self) -> usize {
        let key = (self.me, *self.connection.lock().unwrap());
        let received = self.seen.lock().unwrap().received.get(&key).cloned().unwrap_or_default();
        if !self.sent.starts_with(&received) {
            fail(&self.seen, format!("{key:?}: sent {:?}, received {received:?}", self.sent));
        }
        received.len()
    }
}

pub(crate) fn simulate(seed: u64) -> String {
    let mut rng = Rng::with_seed(seed);
    let seen = Shared::default();
    let clocks = Clocks::default();
    let mut sim = network::network(seed, END + Duration::from_secs(60));
    let hosting = (seen.clone(), clocks.clone(), Arc::new(Mutex::new(rng.fork())));
    sim.host("server", move || {
        let (seen, clocks, rng) = hosting.clone();
        let rng = rng.lock().unwrap().fork();
        async move {
            tokio::spawn(clocks.clone().follow("server"));
            serve(seen, clocks, rng).await
        }
    });
    for (me, name) in CLIENTS.into_iter().enumerate() {
        let client = Client {
            me,
            seen: seen.clone(),
            rng: rng.fork(),
            waiting: VecDeque::new(),
            sent: Vec::new(),
            sent_at: Vec::new(),
            echoed: 0,
            connection: Arc::default(),
        };
        let mut connector = network::connector().config(websocket_config()).http2(rng.bool());
        if rng.bool() {
            connector = connector.deflate(DeflateConfig::default());
        }
        let clocks = clocks.clone();
        sim.client(name, async move {
            tokio::spawn(clocks.follow(name));
            client.run(connector).await
        });
    }
    let mut hosts = vec!["server"];
    hosts.extend(CLIENTS);
    let mut faults = Faults::new(rng.fork(), hosts, vec!["server"], clocks, DISTURBED);
    faults.run(&mut sim, |now| {
        let seen = seen.lock().unwrap();
        assert!(seen.failures.is_empty(), "at {now:?}: {:#?}", seen.failures);
    });
    let seen = seen.lock().unwrap();
    assert!(seen.failures.is_empty(), "{:#?}", seen.failures);
    let received: usize = seen.received.values().map(Vec::len).sum();
    format!(
        "{} faults, {} connections, {received} messages received, {} losses, {} confirmed, {} kept, {} shutdowns, {:?}",
        faults.count,
        seen.connections,
        seen.losses,
        seen.confirmed,
        seen.kept,
        seen.shutdowns,
        sim.elapsed()
    )
}
