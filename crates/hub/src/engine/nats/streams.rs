//! The connection to NATS, and the streams that hold histories: one for each namespace, with a subject for each channel.
//!
//! A stream keeps at least what every node's configuration asks for: it grows when a node asks for more, and never
//! shrinks. How much of it is a channel's history is decided by the node that reads it. So nodes with different settings
//! share one history, and a change of the settings keeps it.
//!
//! NATS updates a stream even if it has changed since it was read. So if two nodes raise different settings at the same time, the later one may undo
//! the change of the earlier one, until that reads the stream again, some ten seconds later. Meanwhile the stream has its earlier settings. Clients that
//! miss dropped publications receive `recovered: false`: the smallest size is part of each update.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::client::RequestErrorKind;
use async_nats::jetstream::{self, stream};
use async_nats::{Client, connection};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;

use super::backlog;
use super::names::{Names, encoded, epoch_in, namespace, token_of};
use super::try_cell::TryCell;
use super::unavailable;
use crate::clock::{Clock, WarningLimit};
use crate::engine::{EngineError, IDEMPOTENCY_TTL};
use crate::history::Retention;
use crate::random::token;
use crate::shards::lock;

/// The connection to NATS and the streams that this node has used.
pub(super) struct Nats {
    pub(super) names: Names,
    pub(super) client: Client,
    pub(super) jetstream: jetstream::Context,
    streams: Mutex<Streams>,
    /// Permits to compare a history with what was delivered.
    pub(super) comparing: Semaphore,
    pub(super) backlogs: Arc<backlog::Total>,
    server_clock: ServerClock,
    warnings: WarningLimit,
}

/// The clock of the server, which notes when it has stored a message. That of this node may be wrong, also for a moment.
struct ServerClock {
    node: Clock,
    /// By how many milliseconds it is ahead of the node's; negative if it is behind.
    ahead_ms: AtomicI64,
}

impl ServerClock {
    fn new() -> Self {
        Self { node: Clock::new(), ahead_ms: AtomicI64::new(0) }
    }

    /// Takes the time of an answer that has just arrived, or this node's system time if the answer has none.
    fn handle_answer(&self, at: Option<SystemTime>) {
        let at = at.unwrap_or_else(SystemTime::now).duration_since(UNIX_EPOCH).unwrap_or_default();
        self.ahead_ms.store(millis(at).saturating_sub(self.node_ms()), Ordering::Relaxed);
    }

    /// Since 1970.
    fn now(&self) -> Duration {
        let now = self.node_ms().saturating_add(self.ahead_ms.load(Ordering::Relaxed));
        Duration::from_millis(u64::try_from(now).unwrap_or(0))
    }

    /// The time of the node, suspensions included, in milliseconds.
    fn node_ms(&self) -> i64 {
        self.node.correct();
        millis(self.node.now())
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// The answer to a request for the state of a stream: the server's time, since version 2.10.
#[derive(Deserialize)]
struct Answered {
    ts: Option<String>,
}

/// The maximum number of histories that are compared at the same time: every ten seconds each of them is due, and NATS has a queue.
const COMPARING_MAX: usize = 32;

/// The streams, by their encoded namespace.
type Streams = HashMap<String, Arc<TryCell<stream::Stream>>>;

/// The metadata of a stream with the smallest number of publications of a channel that it has ever kept.
const SIZE_MIN: &str = "wireloom_size_min";

/// How many publications after a position were certainly kept, if the stream has dropped none because of their age. The
/// stream keeps one more.
pub(super) fn size_min(config: &stream::Config) -> u64 {
    let now = u64::try_from(config.max_messages_per_subject - 1).unwrap_or(u64::MAX);
    let before = config.metadata.get(SIZE_MIN).and_then(|size| size.parse().ok());
    before.unwrap_or(now).min(now)
}

/// How long a stream keeps publications. A client that has missed nothing recovers although its publications have expired: they are
/// kept, but not read. The server remembers keys of publications no longer than these.
fn age(retention: Retention) -> Duration {
    retention.ttl.max(retention.position_ttl).max(IDEMPOTENCY_TTL)
}

/// Makes a configuration keep what a retention asks for. Returns whether that changes it.
fn grow(config: &mut stream::Config, retention: Retention) -> bool {
    // One more than is promised, so that a full history after the oldest position is known to be complete.
    let size = i64::try_from(retention.size).unwrap_or(i64::MAX - 1) + 1;
    let age = age(retention);
    let is_enough = config.max_messages_per_subject >= size && config.max_age >= age;
    if !is_enough {
        config.metadata.insert(SIZE_MIN.into(), size_min(config).to_string());
        config.max_messages_per_subject = config.max_messages_per_subject.max(size);
        config.max_age = config.max_age.max(age);
    }
    !is_enough
}

/// The subjects of a stream, but for the channel: `PREFIX.log.nEPOCHNAMESPACE.`
fn subjects(info: &stream::Info) -> &str {
    info.config.subjects.first().map_or("", |subjects| subjects.trim_end_matches('*'))
}

/// The epoch of a stream, which changes when the stream is created again. It is part of the subjects: what was meant for another epoch
/// finds no stream.
pub(super) fn epoch(info: &stream::Info) -> String {
    token_of(subjects(info)).and_then(epoch_in).unwrap_or_default().to_owned()
}

/// The subject of a channel in a stream.
pub(super) fn subject(info: &stream::Info, channel: &str) -> String {
    format!("{}{}", subjects(info), encoded(channel))
}

impl Nats {
    pub(super) fn new(names: Names, client: Client, jetstream: jetstream::Context) -> Self {
        Self {
            names,
            client,
            jetstream,
            streams: Mutex::default(),
            comparing: Semaphore::new(COMPARING_MAX),
            backlogs: Arc::default(),
            server_clock: ServerClock::new(),
            warnings: WarningLimit::default(),
        }
    }

    /// Whether a failure that is tried again may be logged.
    pub(super) fn may_warn(&self) -> bool {
        self.warnings.may_warn(self.server_clock.node.now())
    }

    /// The time of the server since 1970, extrapolated from its last answer. Each use of a stream has received one before.
    pub(super) fn server_time(&self) -> Duration {
        self.server_clock.now()
    }

    async fn ask_time(&self, stream: &str) -> Result<(), EngineError> {
        let request = json!({});
        let answer = self.jetstream.request(format!("STREAM.INFO.{stream}"), &request).await;
        let Answered { ts } = answer.map_err(unavailable)?;
        self.server_clock.handle_answer(ts.and_then(|ts| humantime::parse_rfc3339(&ts).ok()));
        Ok(())
    }

    /// The number of the connection, or of the last one.
    pub(super) fn connection(&self) -> u64 {
        self.client.statistics().connects.load(Ordering::Relaxed)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.client.connection_state() == connection::State::Connected
    }

    /// Waits until the server has processed this node's earlier subscriptions. The server handles the commands of a
    /// connection in order, and answers this request itself, because its subject has no subscribers.
    ///
    /// Without a connection there is nothing to wait for: the client repeats its subscriptions on the next one.
    pub(super) async fn confirm_subscriptions(&self) -> Result<(), EngineError> {
        if !self.is_connected() {
            return Ok(());
        }
        match self.client.request(self.names.unused(), Bytes::new()).await {
            Err(error) if error.kind() != RequestErrorKind::NoResponders => Err(unavailable(error)),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Forgets the known streams: a server that was restarted without its data has new ones.
    pub(super) fn forget_streams(&self) {
        lock(&self.streams).clear();
    }

    /// The stream of a channel, which is created if it does not exist, and keeps at least what `retention` says.
    pub(super) async fn stream(
        &self,
        channel: &str,
        retention: Retention,
    ) -> Result<stream::Stream, EngineError> {
        let namespace = namespace(channel);
        let cell = lock(&self.streams).entry(namespace.clone()).or_default().clone();
        let make = async {
            let token = format!("n{}{namespace}", token());
            let subjects_of_all = format!("{}*", self.names.log(&token));
            let mut config = stream::Config {
                name: self.names.stream(&namespace),
                subjects: vec![subjects_of_all.clone()],
                max_age: age(retention),
                max_messages_per_subject: 1,
                duplicate_window: IDEMPOTENCY_TTL,
                allow_direct: true,
                republish: Some(stream::Republish {
                    source: subjects_of_all,
                    destination: self.names.live(&token, "{{wildcard(1)}}"),
                    headers_only: false,
                }),
                ..stream::Config::default()
            };
            grow(&mut config, retention);
            config.metadata.clear();
            let name = config.name.clone();
            let stream = match self.jetstream.get_or_create_stream(config).await {
                Ok(stream) => stream,
                // Another node may have created it meanwhile, with an epoch of its own.
                Err(error) => self.jetstream.get_stream(&name).await.map_err(|_| unavailable(error))?,
            };
            let of_stream = subjects(stream.cached_info());
            let epoch = epoch(stream.cached_info());
            if epoch.is_empty() || of_stream != self.names.log(&format!("n{epoch}{namespace}")) {
                return Err(unavailable(format_args!("the stream {name} has other subjects")));
            }
            self.ask_time(&name).await?;
            self.grown(stream, retention).await
        };
        let stream = cell.get_or_make(make).await?;
        if !grow(&mut stream.cached_info().config.clone(), retention) {
            return Ok(stream);
        }
        // The configuration of the node has changed, or another node has written its own at the same time.
        self.forget_streams();
        // The cached information may be from before another node made the stream grow.
        let stream =
            self.jetstream.get_stream(&stream.cached_info().config.name).await.map_err(unavailable)?;
        self.grown(stream, retention).await
    }

    async fn grown(
        &self,
        stream: stream::Stream,
        retention: Retention,
    ) -> Result<stream::Stream, EngineError> {
        let mut config = stream.cached_info().config.clone();
        if !grow(&mut config, retention) {
            return Ok(stream);
        }
        self.jetstream.update_stream(&config).await.map_err(unavailable)?;
        self.jetstream.get_stream(&config.name).await.map_err(unavailable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::PRETENDED;

    #[test]
    fn the_time_is_that_of_the_server() {
        let clock = ServerClock::new();
        let (hour, minute) = (Duration::from_secs(3600), Duration::from_secs(60));
        for server in [clock.node.now() - hour, clock.node.now() + hour] {
            clock.handle_answer(Some(UNIX_EPOCH + server));
            let is_about = |expected: Duration| {
                let now = clock.now();
                assert!((expected - minute..expected + minute).contains(&now), "{expected:?} {now:?}");
            };
            is_about(server);
            // This node is suspended, and the server goes on.
            PRETENDED.set(PRETENDED.get() + hour);
            is_about(server + hour);
            // Servers before version 2.10 send no time.
            clock.handle_answer(None);
            is_about(SystemTime::now().duration_since(UNIX_EPOCH).unwrap());
        }
    }

    #[test]
    fn a_stream_grows_and_remembers_how_little_it_kept() {
        let hours = |hours: u64| Duration::from_secs(3600 * hours);
        let retention = |size, ttl| Retention { size, ttl: hours(ttl), position_ttl: hours(24) };
        let mut config =
            stream::Config { max_messages_per_subject: 11, max_age: hours(24), ..Default::default() };
        assert!(!grow(&mut config, retention(10, 1)) && !grow(&mut config, retention(3, 24)));
        assert!(grow(&mut config, retention(20, 48)));
        assert_eq!((config.max_messages_per_subject, config.max_age), (21, hours(48)));
        assert_eq!(size_min(&config), 10);
        assert!(grow(&mut config, retention(30, 1)));
        assert_eq!((config.max_messages_per_subject, size_min(&config)), (31, 10));
        assert!(grow(&mut config, Retention { position_ttl: hours(720), ..retention(10, 1) }));
        assert_eq!(config.max_age, hours(720));
    }
}
