//! The connection for commands, which is made again after a failure.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSub};
use redis::sentinel::Sentinel;
use redis::{AsyncConnectionConfig, Client, FromRedisValue, RedisError, RedisResult, ScriptInvocation};

use super::unavailable;
use crate::engine::{EngineError, EngineHealth};
use crate::shards::lock;

/// How long the server may take to accept a connection, and to answer a command.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The connection for commands.
pub(super) struct Connection {
    source: Source,
    /// `None` after a failure. Tokio's mutex, so that one task connects, and the others wait for it.
    open: tokio::sync::Mutex<Option<MultiplexedConnection>>,
    failure: Mutex<Option<String>>,
    failures: AtomicU64,
}

/// How the address of the server is found.
enum Source {
    Server(Client),
    Sentinels { sentinels: Box<tokio::sync::Mutex<Sentinel>>, master: String },
}

impl Connection {
    pub(super) fn new(url: &str) -> Result<Self, EngineError> {
        let source = match url.strip_prefix("redis+sentinel://") {
            None => Source::Server(Client::open(url).map_err(unavailable)?),
            Some(rest) => {
                let (addresses, master) =
                    rest.split_once('/').ok_or_else(|| unavailable("the URL names no master"))?;
                let addresses: Vec<_> =
                    addresses.split(',').map(|address| format!("redis://{address}")).collect();
                let sentinels = Sentinel::build(addresses).map_err(unavailable)?;
                Source::Sentinels { sentinels: Box::new(sentinels.into()), master: master.to_owned() }
            }
        };
        Ok(Self { source, open: Default::default(), failure: Mutex::default(), failures: AtomicU64::new(0) })
    }

    async fn client(&self) -> RedisResult<Client> {
        match &self.source {
            Source::Server(client) => Ok(client.clone()),
            Source::Sentinels { sentinels, master } => {
                sentinels.lock().await.async_master_for(master, None).await
            }
        }
    }

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(TIMEOUT))
            .set_response_timeout(Some(TIMEOUT));
        self.client().await?.get_multiplexed_async_connection_with_config(&config).await
    }

    /// A connection that receives announcements.
    pub(super) async fn listen(&self) -> Result<PubSub, EngineError> {
        let connecting = async { self.client().await?.get_async_pubsub().await };
        tokio::time::timeout(TIMEOUT, connecting).await.map_err(unavailable)?.map_err(unavailable)
    }

    async fn get(&self) -> RedisResult<MultiplexedConnection> {
        let mut open = self.open.lock().await;
        if let Some(connection) = &*open {
            return Ok(connection.clone());
        }
        let connecting = tokio::time::timeout(TIMEOUT, self.connect()).await;
        let timed_out = |_| RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        Ok(open.insert(connecting.map_err(timed_out)??).clone())
    }

    /// Runs a command. After a failure the next one uses a new connection, and asks the sentinels again.
    async fn run<T>(
        &self,
        command: impl AsyncFnOnce(&mut MultiplexedConnection) -> RedisResult<T>,
    ) -> Result<T, EngineError> {
        let result = match self.get().await {
            Ok(mut connection) => command(&mut connection).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(result) => {
                *lock(&self.failure) = None;
                Ok(result)
            }
            Err(error) => {
                *self.open.lock().await = None;
                self.failures.fetch_add(1, Ordering::Relaxed);
                *lock(&self.failure) = Some(format!("Redis: {error}"));
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

    pub(super) async fn query<T: FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, EngineError> {
        self.run(async |connection| command.query_async(connection).await).await
    }

    pub(super) async fn pipeline(&self, pipeline: &redis::Pipeline) -> Result<(), EngineError> {
        self.run(async |connection| pipeline.query_async(connection).await).await
    }

    /// Announces a message to the nodes that listen.
    pub(super) async fn publish(&self, channel: &str, message: &[u8]) -> Result<(), EngineError> {
        let command = redis::cmd("PUBLISH").arg(channel).arg(message).clone();
        self.run(async |connection| command.query_async::<()>(connection).await).await
    }

    pub(super) fn health(&self) -> EngineHealth {
        EngineHealth { failure: lock(&self.failure).clone(), failures: self.failures.load(Ordering::Relaxed) }
    }
}
