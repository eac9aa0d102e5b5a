//! An engine whose histories are at a broker, over the simulated network. What is said crosses the network as numbers; what it means is
//! in a table of this process, so that nothing has to be encoded.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use turmoil::net::{TcpListener, TcpStream};
use wireloom_hub::engine::{
    Control, Delivery, Engine, EngineError, EngineFuture, Maintaining, Membership, MemoryEngine,
    PendingDelivery,
};
use wireloom_hub::protocol::{ClientInfo, Publication};
use wireloom_hub::{History, HistoryQuery, Position, Recovery, RecoveryMode, Retention};

/// A node waits for an answer of the broker for this long. Longer silence is taken for a lost connection.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Orders and announcements take connections of their own, as with Redis: what a node reads and what is announced to it race.
const ORDERS: u16 = 4222;
const ANNOUNCEMENTS: u16 = 4223;
/// Both ends send something at this interval.
const HEARTBEAT: Duration = Duration::from_secs(1);

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;
type Order = Box<dyn FnOnce(Arc<MemoryEngine>) -> Work + Send>;
type Happening = Box<dyn FnOnce(&dyn Delivery) + Send>;

enum Letter {
    Heartbeat,
    /// From a node: work for the broker's engine, and who waits for it.
    Order(Order, oneshot::Sender<()>),
    /// From the broker: the work is done.
    Done(oneshot::Sender<()>),
    /// From the broker, for the hub of a node.
    Deliver(Happening),
}

/// Messages on the network, by number.
#[derive(Clone, Default)]
struct Letters(Arc<Mutex<(u64, HashMap<u64, Letter>)>>);

impl Letters {
    fn post(&self, letter: Letter) -> u64 {
        let mut letters = self.0.lock().unwrap();
        letters.0 += 1;
        let number = letters.0;
        letters.1.insert(number, letter);
        number
    }

    fn take(&self, number: u64) -> Letter {
        self.0.lock().unwrap().1.remove(&number).expect("a number arrives once")
    }
}

/// The publications, by channel, epoch and offset.
pub(crate) type Truth = HashMap<(String, String, u64), Published>;

#[derive(Clone, Debug)]
pub(crate) struct Published {
    pub(crate) data: Vec<u8>,
    pub(crate) at: Duration,
}

/// The broker: its engine and the nodes that are connected to it.
#[derive(Clone)]
pub(crate) struct Broker {
    engine: Arc<MemoryEngine>,
    fanout: Arc<Fanout>,
    letters: Letters,
}

struct Fanout {
    nodes: Mutex<Vec<mpsc::UnboundedSender<Letter>>>,
    retention: Retention,
    truth: Mutex<Truth>,
}

impl Fanout {
    fn deliver(&self, happening: impl Fn(&dyn Delivery) + Clone + Send + 'static) {
        self.nodes
            .lock()
            .unwrap()
            .retain(|node| node.send(Letter::Deliver(Box::new(happening.clone()))).is_ok());
    }
}

impl Delivery for Fanout {
    fn deliver_publication(
        &self,
        channel: &str,
        epoch: &str,
        previous: u64,
        publication: &Arc<Publication>,
    ) -> PendingDelivery {
        let key = (channel.to_owned(), epoch.to_owned(), publication.offset);
        let published =
            Published { data: publication.data.to_vec(), at: turmoil::sim_elapsed().unwrap_or_default() };
        let twice = self.truth.lock().unwrap().insert(key, published);
        assert!(twice.is_none(), "an offset was assigned twice");
        let (channel, epoch, publication) = (channel.to_owned(), epoch.to_owned(), publication.clone());
        self.deliver(move |hub| hub.deliver_publication(&channel, &epoch, previous, &publication).finish());
        PendingDelivery::default()
    }

    fn deliver_membership(&self, channel: &str, membership: &Membership) {
        let (channel, membership) = (channel.to_owned(), membership.clone());
        self.deliver(move |hub| hub.deliver_membership(&channel, &membership));
    }

    fn deliver_history_lost(&self, channel: &str) {
        let channel = channel.to_owned();
        self.deliver(move |hub| hub.deliver_history_lost(&channel));
    }

    fn deliver_control(&self, control: &Control) {
        let control = control.clone();
        self.deliver(move |hub| hub.deliver_control(&control));
    }

    fn retention(&self, _: &str) -> Option<Retention> {
        Some(self.retention)
    }
}

impl Broker {
    pub(crate) fn new(retention: Retention) -> Self {
        let fanout = Arc::new(Fanout { nodes: Mutex::default(), retention, truth: Mutex::default() });
        let engine = Arc::new(MemoryEngine::new(100));
        let delivery: Arc<dyn Delivery> = fanout.clone();
        engine.start(Arc::downgrade(&delivery));
        Self { engine, fanout, letters: Letters::default() }
    }

    pub(crate) fn truth(&self) -> Truth {
        self.fanout.truth.lock().unwrap().clone()
    }

    pub(crate) fn published(&self, channel: &str, epoch: &str, offset: u64) -> Option<Published> {
        self.fanout.truth.lock().unwrap().get(&(channel.to_owned(), epoch.to_owned(), offset)).cloned()
    }

    pub(crate) async fn serve(self) -> turmoil::Result {
        let orders = TcpListener::bind(("0.0.0.0", ORDERS)).await?;
        let announcements = TcpListener::bind(("0.0.0.0", ANNOUNCEMENTS)).await?;
        loop {
            let (stream, announces) = tokio::select! {
                accepted = orders.accept() => (accepted?.0, false),
                accepted = announcements.accept() => (accepted?.0, true),
            };
            let broker = self.clone();
            tokio::spawn(async move { broker.talk(stream, announces).await });
        }
    }

    async fn talk(self, stream: TcpStream, announces: bool) {
        let (outgoing, to_write) = mpsc::unbounded_channel();
        if announces {
            self.fanout.nodes.lock().unwrap().push(outgoing.clone());
        }
        let (engine, letters) = (self.engine, self.letters);
        let handle = move |letter| -> Work {
            let Letter::Order(order, waiting) = letter else { return Box::pin(std::future::ready(())) };
            let (engine, outgoing) = (engine.clone(), outgoing.clone());
            Box::pin(async move {
                order(engine).await;
                let _ = outgoing.send(Letter::Done(waiting));
            })
        };
        let _ = exchange(stream, &letters, to_write, handle).await;
    }
}

/// Writes and reads letters until the connection ends or is silent.
async fn exchange(
    stream: TcpStream,
    letters: &Letters,
    mut to_write: mpsc::UnboundedReceiver<Letter>,
    mut handle: impl FnMut(Letter) -> Work,
) -> std::io::Result<()> {
    let (mut reader, mut writer) = stream.into_split();
    let writing = async {
        loop {
            let letter = timeout(HEARTBEAT, to_write.recv()).await.unwrap_or(Some(Letter::Heartbeat));
            let Some(letter) = letter else { return Ok(()) };
            timeout(TIMEOUT, writer.write_all(&letters.post(letter).to_be_bytes())).await??;
        }
    };
    let reading = async {
        loop {
            let number = timeout(TIMEOUT, reader.read_u64()).await??;
            handle(letters.take(number)).await;
        }
    };
    tokio::select! { ended = writing => ended, ended = reading => ended }
}

/// The engine of a node.
#[derive(Clone)]
pub(crate) struct RelayEngine(Arc<Relay>);

type Link = Mutex<Option<mpsc::UnboundedSender<Letter>>>;

struct Relay {
    letters: Letters,
    hub: OnceLock<Weak<dyn Delivery>>,
    /// The connections to the broker.
    orders: Link,
    announcements: Link,
    /// The subscriptions of this node's clients.
    channels: Mutex<HashMap<String, usize>>,
}

impl RelayEngine {
    pub(crate) fn new(broker: &Broker) -> Self {
        Self(Arc::new(Relay {
            letters: broker.letters.clone(),
            hub: OnceLock::new(),
            orders: Link::default(),
            announcements: Link::default(),
            channels: Mutex::default(),
        }))
    }

    /// Has the broker's engine do something.
    async fn ask<T, F, Fut>(&self, work: F) -> Result<T, EngineError>
    where
        F: FnOnce(Arc<MemoryEngine>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, EngineError>> + Send + 'static,
        T: Send + 'static,
    {
        let lost = || EngineError::Unavailable("the broker does not answer".into());
        let result = Arc::new(Mutex::new(None));
        let slot = result.clone();
        let order: Order = Box::new(move |engine| {
            Box::pin(async move {
                let done = work(engine).await;
                *slot.lock().unwrap() = Some(done);
            })
        });
        let (waiting, done) = oneshot::channel();
        let link = self.0.orders.lock().unwrap().clone().ok_or_else(lost)?;
        link.send(Letter::Order(order, waiting)).map_err(|_| lost())?;
        // The answer may be lost although it was done.
        timeout(TIMEOUT, done).await.map_err(|_| lost())?.map_err(|_| lost())?;
        let result = result.lock().unwrap().take();
        result.ok_or_else(lost)?
    }
}

impl Relay {
    fn hub(&self) -> Option<Arc<dyn Delivery>> {
        self.hub.get()?.upgrade()
    }

    fn handle(&self, letter: Letter) {
        match letter {
            Letter::Done(waiting) => drop(waiting.send(())),
            Letter::Deliver(happening) => {
                if let Some(hub) = self.hub() {
                    happening(&*hub);
                }
            }
            Letter::Heartbeat | Letter::Order(..) => {}
        }
    }
}

/// Connects to the broker again and again. Deliveries without a connection are lost, which subscribers learn after the reconnect.
async fn connect(relay: Arc<Relay>, port: u16) {
    let link = || if port == ORDERS { &relay.orders } else { &relay.announcements };
    loop {
        if let Ok(Ok(stream)) = timeout(TIMEOUT, TcpStream::connect(("broker", port))).await {
            let (outgoing, to_write) = mpsc::unbounded_channel();
            *link().lock().unwrap() = Some(outgoing);
            let lost: Vec<String> = relay.channels.lock().unwrap().keys().cloned().collect();
            if port == ANNOUNCEMENTS
                && let Some(hub) = relay.hub()
            {
                lost.iter().for_each(|channel| hub.deliver_history_lost(channel));
            }
            let handling = relay.clone();
            let handle = move |letter| -> Work {
                handling.handle(letter);
                Box::pin(std::future::ready(()))
            };
            let _ = exchange(stream, &relay.letters, to_write, handle).await;
            *link().lock().unwrap() = None;
        }
        sleep(Duration::from_millis(200)).await;
    }
}

impl Engine for RelayEngine {
    fn name(&self) -> &'static str {
        "relay"
    }

    fn start(&self, hub: Weak<dyn Delivery>) {
        let _ = self.0.hub.set(hub);
        tokio::spawn(connect(self.0.clone(), ORDERS));
        tokio::spawn(connect(self.0.clone(), ANNOUNCEMENTS));
    }

    fn publish<'a>(
        &'a self,
        channel: &'a str,
        publication: Publication,
        retention: Option<Retention>,
        key: &'a str,
    ) -> EngineFuture<'a, Position> {
        let (channel, key) = (channel.to_owned(), key.to_owned());
        Box::pin(self.ask(async move |engine| engine.publish(&channel, publication, retention, &key).await))
    }

    fn publish_membership<'a>(&'a self, channel: &'a str, membership: Membership) -> EngineFuture<'a, ()> {
        let channel = channel.to_owned();
        Box::pin(self.ask(async move |engine| engine.publish_membership(&channel, membership).await))
    }

    fn subscribe<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()> {
        *self.0.channels.lock().unwrap().entry(channel.to_owned()).or_default() += 1;
        Box::pin(async move {
            // Every publication is delivered to every node: it need only be connected.
            let mut asked = self.ask(async |_| Ok(())).await;
            if self.0.announcements.lock().unwrap().is_none() {
                asked = Err(EngineError::Unavailable("nothing is announced".into()));
            }
            if asked.is_err() {
                self.unsubscribe(channel);
            }
            asked
        })
    }

    fn unsubscribe(&self, channel: &str) {
        let mut channels = self.0.channels.lock().unwrap();
        if let Some(count) = channels.get_mut(channel) {
            *count -= 1;
            if *count == 0 {
                channels.remove(channel);
            }
        }
    }

    fn history<'a>(
        &'a self,
        channel: &'a str,
        query: &'a HistoryQuery,
        retention: Retention,
    ) -> EngineFuture<'a, History> {
        let (channel, query) = (channel.to_owned(), query.clone());
        Box::pin(self.ask(async move |engine| engine.history(&channel, &query, retention).await))
    }

    fn recover<'a>(
        &'a self,
        channel: &'a str,
        since: Option<&'a Position>,
        mode: RecoveryMode,
        retention: Retention,
        len_max: usize,
    ) -> EngineFuture<'a, Recovery> {
        let (channel, since) = (channel.to_owned(), since.cloned());
        Box::pin(self.ask(async move |engine| {
            engine.recover(&channel, since.as_ref(), mode, retention, len_max).await
        }))
    }

    fn remove_history<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()> {
        let channel = channel.to_owned();
        Box::pin(self.ask(async move |engine| engine.remove_history(&channel).await))
    }

    fn add_presence<'a>(&'a self, channel: &'a str, info: &'a ClientInfo) -> EngineFuture<'a, ()> {
        let (channel, info) = (channel.to_owned(), info.clone());
        Box::pin(self.ask(async move |engine| engine.add_presence(&channel, &info).await))
    }

    fn remove_presence<'a>(&'a self, channel: &'a str, client: &'a str) -> EngineFuture<'a, ()> {
        let (channel, client) = (channel.to_owned(), client.to_owned());
        Box::pin(self.ask(async move |engine| engine.remove_presence(&channel, &client).await))
    }

    fn presence<'a>(
        &'a self,
        channel: &'a str,
        len_max: usize,
    ) -> EngineFuture<'a, Option<Vec<Arc<ClientInfo>>>> {
        let channel = channel.to_owned();
        Box::pin(self.ask(async move |engine| engine.presence(&channel, len_max).await))
    }

    fn control(&self, control: Control) -> EngineFuture<'_, ()> {
        Box::pin(self.ask(async move |engine| engine.control(control).await))
    }

    fn maintain(&self) -> Maintaining<'_> {
        Box::pin(std::future::ready(()))
    }
}
