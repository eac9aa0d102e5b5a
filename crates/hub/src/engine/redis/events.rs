//! The queue of events in Redis: a hash of what is open on each node, a hash of leases, and a stream with a consumer group.

use std::sync::LazyLock;

use bytes::Bytes;
use redis::Script;
use redis::streams::{StreamAutoClaimReply, StreamId, StreamReadReply};
use tokio::sync::OnceCell;

use super::RedisEngine;
use super::connection::Connection;
use super::script::RUN;
use crate::engine::event_queue::{EventQueue, Lease, QUEUE_MAX, QueuedEvent, TAKEN_TIMEOUT};
use crate::engine::{EngineError, EngineFuture};

/// The kinds of keys.
const NODES: &str = "nodes";
/// The run of the server in which each node has renewed its lease.
const RUNS: &str = "runs";
const QUEUE: &str = "queue";
/// The consumer group of all nodes, and its only consumer: nodes come and go.
const GROUP: &str = "hub";

/// How long a lost node is remembered, in seconds: longer than a suspended one may be away.
const LOST_TTL: u64 = 7 * 24 * 3600;

fn taken_timeout_ms() -> u64 {
    u64::try_from(TAKEN_TIMEOUT.as_millis()).unwrap_or(u64::MAX)
}

/// KEYS: open, nodes. ARGV: node, key, event.
static OPEN: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])\nredis.call('HSETNX', KEYS[2], ARGV[1], 0)\nreturn 1",
    )
});

/// KEYS: open, queue, lost. ARGV: key, event, the maximum length of the queue. What is not open any more was reported by another
/// node if this one is lost; otherwise Redis has forgotten it.
static END: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
if redis.call('HDEL', KEYS[1], ARGV[1]) == 1 or redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'e', ARGV[2])
end
return 1",
    )
});

/// KEYS: nodes, lost, runs. ARGV: node. Returns all nodes and their counts, or nothing if the node is lost. In a run of the server that may
/// have lost what is open, the count begins again.
static RENEW: LazyLock<Script> = LazyLock::new(|| {
    let renew = r"
if redis.call('EXISTS', KEYS[2]) == 1 then return {} end
if not goes_on(redis.call('HGET', KEYS[3], ARGV[1])) then redis.call('HSET', KEYS[1], ARGV[1], 0) end
redis.call('HSET', KEYS[3], ARGV[1], run)
redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
return redis.call('HGETALL', KEYS[1])";
    Script::new(&format!("{RUN}{renew}"))
});

/// The state of the queue on this node.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Set once the consumer group exists.
    group: OnceCell<()>,
}

impl Events {
    async fn group(&self, connection: &Connection) -> Result<(), EngineError> {
        let make = async || {
            let mut command = redis::cmd("XGROUP");
            command.arg("CREATE").arg(connection.names.events(QUEUE)).arg(GROUP).arg("0").arg("MKSTREAM");
            match connection.query::<()>(&command).await {
                Err(EngineError::Unavailable(reason)) if reason.contains("BUSYGROUP") => Ok(()),
                other => other,
            }
        };
        self.group.get_or_try_init(make).await.map(drop)
    }
}

impl RedisEngine {
    /// A key of the queue.
    fn key(&self, kind: &str) -> String {
        self.connection.names.events(kind)
    }

    fn open_key(&self, node: &str) -> String {
        self.key(&format!("open:{node}"))
    }

    fn lost_key(&self, node: &str) -> String {
        self.key(&format!("lost:{node}"))
    }
}

fn events(ids: Vec<StreamId>) -> Vec<QueuedEvent> {
    let event = |one: StreamId| {
        let event: Vec<u8> = one.get("e")?;
        Some(QueuedEvent { id: one.id, event: event.into() })
    };
    ids.into_iter().filter_map(event).collect()
}

impl EventQueue for RedisEngine {
    fn open<'a>(&'a self, node: &'a str, key: &'a str, event: &'a [u8]) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            let mut script = OPEN.prepare_invoke();
            script.key(self.open_key(node)).key(self.key(NODES)).arg(node).arg(key).arg(event);
            self.connection.invoke(&script).await
        })
    }

    fn end<'a>(&'a self, node: &'a str, key: &'a str, event: &'a [u8]) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            let mut script = END.prepare_invoke();
            script
                .key(self.open_key(node))
                .key(self.key(QUEUE))
                .key(self.lost_key(node))
                .arg(key)
                .arg(event)
                .arg(QUEUE_MAX);
            self.connection.invoke(&script).await
        })
    }

    fn renew<'a>(&'a self, node: &'a str) -> EngineFuture<'a, Lease> {
        Box::pin(async move {
            let mut script = RENEW.prepare_invoke();
            script.key(self.key(NODES)).key(self.lost_key(node)).key(self.key(RUNS)).arg(node);
            let mut others: Vec<(String, u64)> = self.connection.invoke(&script).await?;
            let Some(own) = others.iter().position(|(name, _)| name == node) else { return Ok(Lease::Lost) };
            let (_, number) = others.swap_remove(own);
            Ok(Lease::Renewed { number, others: Some(others) })
        })
    }

    fn lose<'a>(&'a self, node: &'a str) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            let command = redis::cmd("SET").arg(self.lost_key(node)).arg(1).arg("EX").arg(LOST_TTL).clone();
            self.connection.query(&command).await
        })
    }

    fn open_on<'a>(&'a self, node: &'a str, max: usize) -> EngineFuture<'a, Vec<(String, Bytes)>> {
        Box::pin(async move {
            let command = redis::cmd("HSCAN").arg(self.open_key(node)).arg(0).arg("COUNT").arg(max).clone();
            let (cursor, found): (u64, Vec<(String, Vec<u8>)>) = self.connection.query(&command).await?;
            if found.is_empty() && cursor != 0 {
                let command = redis::cmd("HGETALL").arg(self.open_key(node)).clone();
                let all: Vec<(String, Vec<u8>)> = self.connection.query(&command).await?;
                return Ok(all.into_iter().map(|(key, event)| (key, event.into())).collect());
            }
            Ok(found.into_iter().map(|(key, event)| (key, event.into())).collect())
        })
    }

    fn forget<'a>(&'a self, node: &'a str) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            let mut pipeline = redis::pipe();
            pipeline.atomic();
            pipeline.cmd("HDEL").arg(self.key(NODES)).arg(node).ignore();
            pipeline.cmd("HDEL").arg(self.key(RUNS)).arg(node).ignore();
            self.connection.pipeline(&pipeline).await
        })
    }

    fn outlives_process(&self) -> bool {
        true
    }

    fn take(&self, max: usize) -> EngineFuture<'_, Vec<QueuedEvent>> {
        Box::pin(async move {
            self.events.group(&self.connection).await?;
            let mut claim = redis::cmd("XAUTOCLAIM");
            claim
                .arg(self.key(QUEUE))
                .arg(GROUP)
                .arg(GROUP)
                .arg(taken_timeout_ms())
                .arg("0")
                .arg("COUNT")
                .arg(max);
            let claimed = self.connection.query::<StreamAutoClaimReply>(&claim).await;
            let read = match claimed {
                Ok(reply) if !reply.claimed.is_empty() => return Ok(events(reply.claimed)),
                Ok(_) => {
                    let mut read = redis::cmd("XREADGROUP");
                    read.arg("GROUP").arg(GROUP).arg(GROUP).arg("COUNT").arg(max);
                    read.arg("STREAMS").arg(self.key(QUEUE)).arg(">");
                    self.connection.query::<Option<StreamReadReply>>(&read).await
                }
                Err(error) => Err(error),
            };
            match read {
                Ok(reply) => Ok(reply
                    .into_iter()
                    .flat_map(|reply| reply.keys)
                    .flat_map(|key| events(key.ids))
                    .collect()),
                // Redis was emptied: the group is made again.
                Err(EngineError::Unavailable(reason)) if reason.contains("NOGROUP") => {
                    let mut command = redis::cmd("XGROUP");
                    command.arg("CREATE").arg(self.key(QUEUE)).arg(GROUP).arg("0").arg("MKSTREAM");
                    self.connection.query::<()>(&command).await.map(|()| Vec::new())
                }
                Err(error) => Err(error),
            }
        })
    }

    fn acknowledge<'a>(&'a self, ids: &'a [String]) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            if ids.is_empty() {
                return Ok(());
            }
            let mut pipeline = redis::pipe();
            pipeline.atomic();
            pipeline.cmd("XACK").arg(self.key(QUEUE)).arg(GROUP).arg(ids).ignore();
            pipeline.cmd("XDEL").arg(self.key(QUEUE)).arg(ids).ignore();
            self.connection.pipeline(&pipeline).await
        })
    }

    fn release<'a>(&'a self, ids: &'a [String]) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            if ids.is_empty() {
                return Ok(());
            }
            // As if they had been taken that long ago.
            let mut claim = redis::cmd("XCLAIM");
            claim.arg(self.key(QUEUE)).arg(GROUP).arg(GROUP).arg(0).arg(ids);
            claim.arg("IDLE").arg(taken_timeout_ms()).arg("JUSTID");
            self.connection.query(&claim).await
        })
    }
}
