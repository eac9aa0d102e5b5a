//! The connection for commands, which is made again after a failure.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection, PubSubSink, PubSubStream};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::io::tcp::TcpSettings;
use redis::sentinel::{Sentinel, SentinelNodeConnectionInfo};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, FromRedisValue, Msg, Pipeline, ProtocolVersion, PushInfo,
    PushKind, RedisError, RedisFuture, RedisResult, ScriptInvocation, ServerErrorKind, TlsCertificates,
    Value,
};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_stream::StreamExt as _;

use super::names::Names;
use super::{refused, unavailable};
use crate::engine::status::Status;
use crate::engine::{EngineError, EngineHealth};
use crate::shards::lock;

/// How long the server may take to accept a connection, and to answer a command.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum length of the announcements that have arrived and are not handled, on one connection or of a cluster: that at which Redis ends a connection
/// whose client does not read (`client-output-buffer-limit pubsub`). redis-rs reads whatever arrives.
const ANNOUNCEMENTS_LEN_MAX: usize = 32 << 20;

/// How often a command in a cluster is tried again before it fails: at the server that has its slot now, or on a new connection.
const RETRIES_MAX: u32 = 2;

/// Longer than a command may take, so that it is given up and not sent again: the server may have executed it.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// The connection for commands.
pub(super) struct Connection {
    pub(super) names: Names,
    source: Source,
    /// `None` after a failure, else with its number. Tokio's mutex, so that one task connects, and the others wait for it.
    open: tokio::sync::Mutex<Option<(u64, Open)>>,
    /// The number of the next connection.
    next: AtomicU64,
    clock: ServerClock,
    status: Status,
}

/// The clock of the server, or of those of a cluster.
struct ServerClock {
    started: Instant,
    /// By how many milliseconds it was ahead of `started` at the last answer, or less: an answer takes time to arrive.
    ahead_ms: AtomicI64,
}

impl ServerClock {
    fn new() -> Self {
        // Not known yet, and thus behind.
        Self { started: Instant::now(), ahead_ms: AtomicI64::new(i64::MIN) }
    }

    fn ahead_ms(&self) -> i64 {
        self.ahead_ms.load(Ordering::Relaxed)
    }

    /// Takes the server's time from an answer that has just arrived. Returns how far it is ahead.
    fn handle_answer(&self, now_ms: i64) -> i64 {
        let ahead_ms = now_ms.saturating_sub(self.ms(Instant::now()));
        self.ahead_ms.store(ahead_ms, Ordering::Relaxed);
        ahead_ms
    }

    fn ms(&self, at: Instant) -> i64 {
        at.saturating_duration_since(self.started).as_millis().try_into().unwrap_or(i64::MAX)
    }
}

/// How the address of the server is found.
enum Source {
    Server(Box<Client>),
    Sentinels {
        sentinels: Box<tokio::sync::Mutex<Sentinel>>,
        master: String,
        /// How to connect to the master.
        node: Box<SentinelNodeConnectionInfo>,
    },
    /// Announcements of nodes reach every server of a cluster, so one of them is listened to. Those of a channel reach the server of
    /// its slot alone.
    Cluster {
        cluster: Box<ClusterClient>,
        urls: Vec<String>,
        certificates: Option<TlsCertificates>,
        nodes: Vec<Client>,
    },
}

/// The announcements of channels in a cluster.
pub(super) struct Sharded {
    pub(super) connection: ClusterConnection,
    /// Messages, and the ends of subscriptions.
    pub(super) pushes: Pushes,
    pub(super) confirmed: Arc<Confirmed>,
}

/// Pushes of a cluster that are not handled yet, at most [`ANNOUNCEMENTS_LEN_MAX`] bytes. The first push beyond the limit is dropped, and
/// so are all later ones.
pub(super) struct Pushes {
    pushes: mpsc::UnboundedReceiver<PushInfo>,
    queued: Arc<Queued>,
}

/// The backlog of a [`Pushes`].
#[derive(Default)]
struct Queued {
    len: AtomicUsize,
    /// Whether some have been dropped.
    is_behind: AtomicBool,
}

impl Pushes {
    /// The function that queues a push, which fails at the limit, and the other end.
    fn new() -> (impl Fn(PushInfo) -> Result<(), ()> + Send + Sync, Self) {
        let (sender, pushes) = mpsc::unbounded_channel();
        let queued = Arc::<Queued>::default();
        let receiver = Self { pushes, queued: queued.clone() };
        let send = move |push: PushInfo| {
            let len = len_of_push(&push);
            let is_full = queued.len.fetch_add(len, Ordering::Relaxed) + len > ANNOUNCEMENTS_LEN_MAX;
            if is_full {
                queued.is_behind.store(true, Ordering::Relaxed);
            }
            if queued.is_behind.load(Ordering::Relaxed) {
                queued.len.fetch_sub(len, Ordering::Relaxed);
                return Err(());
            }
            sender.send(push).map_err(drop)
        };
        (send, receiver)
    }

    /// The next one; `None` if some were dropped, or the connection is lost.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn next(&mut self) -> Option<PushInfo> {
        let push = self.pushes.recv().await.filter(|_| !self.queued.is_behind.load(Ordering::Relaxed))?;
        self.queued.len.fetch_sub(len_of_push(&push), Ordering::Relaxed);
        Some(push)
    }
}

/// The approximate memory of a push.
fn len_of_push(push: &PushInfo) -> usize {
    let len = |value: &Value| match value {
        Value::BulkString(bytes) => bytes.len(),
        Value::SimpleString(text) => text.len(),
        _ => 0,
    };
    size_of::<PushInfo>() + push.data.iter().map(|value| size_of::<Value>() + len(value)).sum::<usize>()
}

/// Messages of a connection for announcements.
pub(super) struct Announcements {
    messages: mpsc::UnboundedReceiver<Msg>,
    /// The length of those that are not handled.
    len: Arc<AtomicUsize>,
}

impl Announcements {
    fn new(mut stream: PubSubStream) -> Self {
        let (sender, messages) = mpsc::unbounded_channel();
        let len = Arc::<AtomicUsize>::default();
        let queued = len.clone();
        tokio::spawn(async move {
            loop {
                let message = tokio::select! {
                    message = stream.next() => message,
                    () = sender.closed() => None,
                };
                // The receiver handles the buffered messages before it sees the end of the stream.
                let Some(message) = message else { return };
                let len = len_of(&message);
                if queued.fetch_add(len, Ordering::Relaxed) + len > ANNOUNCEMENTS_LEN_MAX
                    || sender.send(message).is_err()
                {
                    return;
                }
            }
        });
        Self { messages, len }
    }

    /// The next one; `None` if the connection is lost.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn next(&mut self) -> Option<Msg> {
        let message = self.messages.recv().await?;
        self.len.fetch_sub(len_of(&message), Ordering::Relaxed);
        Some(message)
    }
}

/// The approximate memory of an announcement.
fn len_of(message: &Msg) -> usize {
    size_of::<Msg>() + message.get_channel_name().len() + message.get_payload_bytes().len()
}

/// The subjects of subscriptions that were confirmed and not yet handled. The client connects again where a server is lost, and
/// subscribes to everything at once, more than a queue has room for.
#[derive(Default)]
pub(super) struct Confirmed {
    subjects: Mutex<BTreeSet<Vec<u8>>>,
    added: Notify,
}

impl Confirmed {
    fn add(&self, push: PushInfo) {
        if let Some(Ok(subject)) = push.data.into_iter().next().map(redis::from_redis_value) {
            lock(&self.subjects).insert(subject);
            self.added.notify_one();
        }
    }

    /// Waits for one.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn next(&self) -> Vec<u8> {
        loop {
            if let Some(subject) = lock(&self.subjects).pop_first() {
                return subject;
            }
            self.added.notified().await;
        }
    }
}

/// With TCP_NODELAY: commands of many tasks follow each other on a connection, and none should wait until the server has acknowledged the
/// one before.
fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

/// How to connect to a server that sentinels name, with these credentials.
fn node_info(user: &str) -> RedisResult<SentinelNodeConnectionInfo> {
    let client = Client::open(format!("redis://{user}localhost"))?;
    let own = client.get_connection_info().redis_settings().clone();
    Ok(SentinelNodeConnectionInfo::default().set_tcp_settings(tcp_settings()).set_redis_connection_info(own))
}

fn cluster_builder(urls: &[String], certificates: Option<&TlsCertificates>) -> ClusterClientBuilder {
    let cluster = ClusterClient::builder(urls.to_vec())
        // One of the servers may be silent.
        .connection_timeout(TIMEOUT / 2)
        .response_timeout(RESPONSE_TIMEOUT)
        .tcp_settings(tcp_settings())
        .retries(RETRIES_MAX);
    match certificates {
        Some(certificates) => cluster.certs(certificates.clone()),
        None => cluster,
    }
}

/// An open connection.
#[derive(Clone)]
enum Open {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl ConnectionLike for Open {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Server(server) => server.req_packed_command(command),
            Self::Cluster(cluster) => cluster.req_packed_command(command),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Server(server) => server.req_packed_commands(pipeline, offset, count),
            Self::Cluster(cluster) => cluster.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Server(server) => server.get_db(),
            Self::Cluster(cluster) => cluster.get_db(),
        }
    }
}

/// The parts of `SCHEME://[USER:PASSWORD@]HOST:PORT,HOST:PORT[/REST][?ca=FILE]`, with `?sentinel=USER:PASSWORD` for sentinels.
struct Address<'a> {
    scheme: &'a str,
    /// `USER:PASSWORD@`, or empty.
    user: String,
    /// The URL of each server or sentinel.
    servers: Vec<String>,
    rest: &'a str,
    certificates: Option<TlsCertificates>,
}

impl<'a> Address<'a> {
    fn parse(url: &'a str) -> Result<Self, EngineError> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| refused("the URL has no scheme"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (servers, rest) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = servers.rsplit_once('@').map_or(("", servers), |(user, hosts)| (user, hosts));
        let (is_secure, is_sentinel) = (scheme.starts_with("rediss"), scheme == "redis+sentinel");
        let with_at = |user: &str| if user.is_empty() { String::new() } else { format!("{user}@") };
        let user = with_at(user);
        let mut certificates = None;
        // Sentinels have credentials of their own, or none.
        let mut own = if is_sentinel { String::new() } else { user.clone() };
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("ca", file)) if is_secure => {
                    let root =
                        std::fs::read(file).map_err(|error| refused(format_args!("{file}: {error}")))?;
                    certificates = Some(TlsCertificates { client_tls: None, root_cert: Some(root) });
                }
                Some(("sentinel", user)) if is_sentinel => own = with_at(user),
                // Its value may be a secret.
                other => {
                    // So may be the end of a password that has a question mark.
                    let name = other.filter(|_| !query.contains('@')).map(|(name, _)| format!(": {name}"));
                    let name = name.unwrap_or_default();
                    return Err(refused(format_args!("the URL has an unknown parameter{name}")));
                }
            }
        }
        let plain = if is_secure { "rediss" } else { "redis" };
        let servers = hosts.split(',').map(|host| format!("{plain}://{own}{}", host.trim())).collect();
        Ok(Self { scheme, user, servers, rest, certificates })
    }

    fn client(&self, url: &str) -> Result<Client, EngineError> {
        let client = match &self.certificates {
            Some(certificates) => Client::build_with_tls(url, certificates.clone()),
            None => Client::open(url),
        };
        let info = client.map_err(refused)?.get_connection_info().clone();
        Client::open(info.set_tcp_settings(tcp_settings())).map_err(refused)
    }
}

/// Whether the server has answered, and would answer the next command on this connection. A server that no longer is the master
/// answers, too, but the next command must find the new one.
pub(super) fn is_answer(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(kind) => !matches!(kind, ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown),
        ErrorKind::Extension => true,
        _ => false,
    }
}

fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

impl Connection {
    pub(super) fn new(url: &str, names: Names) -> Result<Self, EngineError> {
        let address = Address::parse(url)?;
        let source = match address.scheme {
            "redis" | "rediss" => {
                let server = address.servers.first().map_or("", String::as_str);
                Source::Server(Box::new(address.client(&format!("{server}/{}", address.rest))?))
            }
            "redis+sentinel" => {
                if address.rest.is_empty() {
                    return Err(refused("the URL names no master"));
                }
                let sentinels = Sentinel::build(address.servers).map_err(refused)?;
                let node = node_info(&address.user).map_err(refused)?;
                let master = address.rest.to_owned();
                Source::Sentinels { sentinels: Box::new(sentinels.into()), master, node: Box::new(node) }
            }
            "redis+cluster" | "rediss+cluster" => {
                let cluster = cluster_builder(&address.servers, address.certificates.as_ref());
                let cluster = Box::new(cluster.build().map_err(refused)?);
                let nodes: Result<_, _> = address.servers.iter().map(|url| address.client(url)).collect();
                let Address { servers: urls, certificates, .. } = address;
                Source::Cluster { cluster, urls, certificates, nodes: nodes? }
            }
            other => return Err(refused(format_args!("{other} is not a scheme of Redis"))),
        };
        Ok(Self {
            names,
            source,
            open: Default::default(),
            next: AtomicU64::new(0),
            clock: ServerClock::new(),
            status: Status::default(),
        })
    }

    async fn connect(&self) -> RedisResult<Open> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(TIMEOUT))
            .set_response_timeout(Some(TIMEOUT));
        let client = match &self.source {
            Source::Server(client) => (**client).clone(),
            Source::Sentinels { sentinels, master, node } => {
                sentinels.lock().await.async_master_for(master, Some(node)).await?
            }
            Source::Cluster { cluster, .. } => {
                return cluster.get_async_connection().await.map(Open::Cluster);
            }
        };
        client.get_multiplexed_async_connection_with_config(&config).await.map(Open::Server)
    }

    /// A connection that receives announcements.
    pub(super) async fn listen(&self) -> Result<(PubSubSink, Announcements), EngineError> {
        let clients = match &self.source {
            Source::Server(client) => vec![(**client).clone()],
            Source::Sentinels { sentinels, master, node } => {
                let asking = async { sentinels.lock().await.async_master_for(master, Some(node)).await };
                let asked = tokio::time::timeout(TIMEOUT, asking).await.map_err(unavailable)?;
                vec![asked.map_err(unavailable)?]
            }
            Source::Cluster { nodes, .. } => nodes.clone(),
        };
        let mut failure = unavailable("the URL names no server");
        for client in clients {
            match tokio::time::timeout(TIMEOUT, client.get_async_pubsub()).await {
                Ok(Ok(listening)) => {
                    let (sink, stream) = listening.split();
                    return Ok((sink, Announcements::new(stream)));
                }
                Ok(Err(error)) => failure = unavailable(error),
                Err(error) => failure = unavailable(error),
            }
        }
        Err(failure)
    }

    /// A connection to a cluster that receives the announcements of channels; `None` where there is no cluster.
    pub(super) async fn listen_sharded(&self) -> Result<Option<Sharded>, EngineError> {
        let Source::Cluster { urls, certificates, .. } = &self.source else { return Ok(None) };
        let (queue, pushes) = Pushes::new();
        let confirmed = Arc::<Confirmed>::default();
        let confirming = confirmed.clone();
        let send = move |push: PushInfo| {
            if push.kind == PushKind::SSubscribe {
                confirming.add(push);
                return Ok(());
            }
            queue(push)
        };
        let mut cluster = cluster_builder(urls, certificates.as_ref())
            .use_protocol(ProtocolVersion::RESP3)
            .push_sender(send)
            // A server that is lost must not hold up subscriptions at others.
            .response_timeout(TIMEOUT);
        #[cfg(target_os = "linux")]
        {
            cluster = cluster.tcp_settings(tcp_settings().set_user_timeout(TIMEOUT));
        }
        let cluster = cluster.build().map_err(unavailable)?;
        let connecting = tokio::time::timeout(TIMEOUT, cluster.get_async_connection()).await;
        let connection = connecting.map_err(unavailable)?.map_err(unavailable)?;
        Ok(Some(Sharded { connection, pushes, confirmed }))
    }

    /// The connection and its number.
    async fn get(&self) -> RedisResult<(u64, Open)> {
        // The one before this connects, or waits until its task runs.
        let mut open = tokio::time::timeout(TIMEOUT, self.open.lock()).await.map_err(|_| timed_out())?;
        if let Some(connection) = &*open {
            return Ok(connection.clone());
        }
        let connecting = tokio::time::timeout(TIMEOUT, self.connect()).await;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Ok(open.insert((number, connecting.map_err(|_| timed_out())??)).clone())
    }

    /// Runs a command. After a failure of the connection the next one uses a new one, and asks the sentinels again. The connection to a
    /// cluster is to all of its servers, and makes lost ones again by itself.
    async fn run<T>(&self, command: impl AsyncFnOnce(&mut Open) -> RedisResult<T>) -> Result<T, EngineError> {
        let (used, result) = match self.get().await {
            Ok((number, mut connection)) => {
                let running = tokio::time::timeout(TIMEOUT, command(&mut connection)).await;
                (Some(number), running.unwrap_or_else(|_| Err(timed_out())))
            }
            Err(error) => (None, Err(error)),
        };
        match result {
            Ok(result) => {
                self.status.succeeded();
                Ok(result)
            }
            Err(error) => {
                // Another command may have replaced the connection already. While one holds the lock, it connects or fails likewise.
                if !is_answer(&error)
                    && !matches!(self.source, Source::Cluster { .. })
                    && let Ok(mut open) = self.open.try_lock()
                    && open.as_ref().map(|(number, _)| *number) == used
                {
                    *open = None;
                }
                // Of one key, which another program has written.
                if error.code() == Some("WRONGTYPE") {
                    self.status.succeeded();
                    return Err(refused(error));
                }
                self.status.failed(&format!("Redis: {error}"));
                Err(unavailable(error))
            }
        }
    }

    pub(super) async fn invoke<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, EngineError> {
        self.run(async |connection| script.invoke_async(connection).await).await
    }

    /// Invokes a script that the server executes before this gives up, or not at all: it may read the command much later, when it was
    /// stopped or cut off, or is sent it again. `script` makes the invocation with a deadline in the server's time, at which the script
    /// refuses. Its answer begins with the server's time, and a refusal has no more.
    ///
    /// The server's clock is known from its last answer. If the known time is behind, as before the first answer or after the clock was set
    /// forward, the script refuses too early, and its answer has the current time. The known time is ahead only if the clock was set back
    /// since, or belongs to another server: of a cluster, or that took over.
    pub(super) async fn invoke_in_time<'a, T: FromRedisValue>(
        &self,
        script: impl Fn(i64) -> ScriptInvocation<'a>,
    ) -> Result<T, EngineError> {
        self.run(async |connection| {
            let until_ms = self.clock.ms(Instant::now() + TIMEOUT);
            let mut ahead_ms = self.clock.ahead_ms();
            loop {
                let script = script(until_ms.saturating_add(ahead_ms));
                let answer: Vec<Value> = script.invoke_async(connection).await?;
                let mut answer = answer.into_iter();
                ahead_ms =
                    self.clock.handle_answer(redis::from_redis_value(answer.next().unwrap_or(Value::Nil))?);
                if answer.len() > 0 {
                    return Ok(redis::from_redis_value(Value::Array(answer.collect()))?);
                }
            }
        })
        .await
    }

    pub(super) async fn query<T: FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, EngineError> {
        self.run(async |connection| command.query_async(connection).await).await
    }

    pub(super) async fn pipeline(&self, pipeline: &redis::Pipeline) -> Result<(), EngineError> {
        self.run(async |connection| pipeline.query_async(connection).await).await
    }

    /// Sends a message to the nodes that listen to a subject, which is not that of a channel. In a cluster all of a subject go through
    /// one server, because those through several would not keep their order.
    pub(super) async fn publish(&self, subject: &str, message: &[u8]) -> Result<(), EngineError> {
        let command = redis::cmd("PUBLISH").arg(subject).arg(message).clone();
        self.run(async |connection| match connection {
            Open::Server(server) => command.query_async::<()>(server).await,
            Open::Cluster(cluster) => {
                let server = Route::with_key(subject.as_bytes(), SlotAddr::Master);
                let routing = RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(server));
                cluster.route_command(command, routing).await.map(drop)
            }
        })
        .await
    }

    /// Announces a message to the nodes that follow a channel.
    pub(super) async fn announce(&self, subject: &str, message: &[u8]) -> Result<(), EngineError> {
        let command = redis::cmd(self.announce_command()).arg(subject).arg(message).clone();
        self.run(async |connection| command.query_async::<()>(connection).await).await
    }

    /// The command that announces what concerns a channel.
    pub(super) fn announce_command(&self) -> &'static str {
        match self.source {
            Source::Cluster { .. } => "SPUBLISH",
            Source::Server(_) | Source::Sentinels { .. } => "PUBLISH",
        }
    }

    /// Whether a command is sent again, with the same arguments, when the connection to its server was lost before the answer.
    pub(super) fn repeats(&self) -> bool {
        matches!(self.source, Source::Cluster { .. })
    }

    pub(super) fn health(&self) -> EngineHealth {
        self.status.health()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// A server that answers every command, but no PING on its first connection. Returns the number of connections.
    async fn server() -> (String, Arc<AtomicU64>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let accepted = Arc::<AtomicU64>::default();
        let count = accepted.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let is_first = count.fetch_add(1, Ordering::Relaxed) == 0;
                tokio::spawn(async move {
                    let mut bytes = vec![0; 4_096];
                    while let Ok(len @ 1..) = stream.read(&mut bytes).await {
                        let commands = bytes[..len].iter().filter(|byte| **byte == b'*').count();
                        let is_ping = bytes[..len].windows(4).any(|part| part == b"PING");
                        if !(is_first && is_ping) {
                            stream.write_all("+OK\r\n".repeat(commands).as_bytes()).await.unwrap();
                        }
                    }
                });
            }
        });
        (url, accepted)
    }

    #[test]
    fn connections_have_nodelay() {
        for url in ["redis://a", "redis://:secret@a:1/2", "redis+cluster://a,b"] {
            let clients = match Connection::new(url, Names::new("wl")).unwrap().source {
                Source::Server(client) => vec![*client],
                Source::Cluster { nodes, .. } => nodes,
                Source::Sentinels { .. } => Vec::new(),
            };
            assert!(!clients.is_empty());
            for client in clients {
                assert!(client.get_connection_info().tcp_settings().nodelay(), "{url}");
            }
        }
    }

    #[tokio::test]
    async fn a_command_that_fails_ends_its_own_connection_alone() {
        let (url, accepted) = server().await;
        let connection = Connection::new(&url, Names::new("wl")).unwrap();
        let ping = async || connection.query::<String>(&redis::cmd("PING")).await;
        let later = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            ping().await
        };
        let first = async {
            ping().await.unwrap_err();
            ping().await
        };
        let (later, first) = tokio::join!(later, first);
        assert!(later.is_err());
        assert_eq!(first, Ok("OK".to_owned()));
        assert_eq!(ping().await, Ok("OK".to_owned()));
        assert_eq!(accepted.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn pushes_are_bounded_by_their_length() {
        let (send, mut pushes) = Pushes::new();
        let push = |len| PushInfo {
            kind: PushKind::SMessage,
            data: vec![Value::BulkString(b"a".to_vec()), Value::BulkString(vec![b'x'; len])],
        };
        let large = ANNOUNCEMENTS_LEN_MAX / 4;
        // A handled push makes room.
        for _ in 0..10 {
            assert!((0..3).all(|_| send(push(large)).is_ok()));
            for _ in 0..3 {
                assert!(pushes.next().await.is_some());
            }
        }
        // Many are no more than few.
        for _ in 0..70_000 {
            send(push(1)).unwrap();
        }
        for _ in 0..70_000 {
            assert!(pushes.next().await.is_some());
        }
        assert_eq!((0..5).map(|_| send(push(large)).is_ok()).filter(|sent| *sent).count(), 3);
        // Nothing is handled after what is missing.
        assert!(send(push(1)).is_err() && pushes.next().await.is_none());
    }

    #[tokio::test]
    async fn confirmations_are_kept_once_whatever_their_number() {
        let confirmed = Confirmed::default();
        let push = |number: usize| PushInfo {
            kind: PushKind::SSubscribe,
            data: vec![Value::BulkString(number.to_string().into()), Value::Int(1)],
        };
        const COUNT: usize = 100_000;
        for number in (0..COUNT).chain([1, 2, 1]) {
            confirmed.add(push(number));
        }
        for _ in 0..COUNT {
            confirmed.next().await;
        }
        let mut next = std::pin::pin!(confirmed.next());
        assert!(tokio::time::timeout(Duration::ZERO, next.as_mut()).await.is_err());
        confirmed.add(push(3));
        assert_eq!(next.await, b"3");
    }
}
