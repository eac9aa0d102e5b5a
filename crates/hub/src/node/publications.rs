//! Publishing, and reading what was published.

use std::sync::Arc;

use super::Node;
use crate::budget::{DELIVERIES_PER_UNIT, charge};
use crate::config::ChannelOptions;
use crate::engine::EngineError;
use crate::history::{History, HistoryQuery, Position, Retention};
use crate::idempotency::{KEY_LEN_MAX, Origin};
use crate::protocol::Publication;

/// Why a publication failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PublishError {
    /// The name is empty or too long.
    BadChannel,
    /// The idempotency key is too long.
    BadKey,
    /// The channel's namespace does not exist.
    UnknownNamespace,
    /// The engine failed.
    Engine(EngineError),
}

impl std::fmt::Display for PublishError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::BadChannel => f.write_str("the name of the channel is empty or too long"),
            Self::BadKey => f.write_str("the idempotency key is too long"),
            Self::UnknownNamespace => f.write_str("the namespace of the channel does not exist"),
            Self::Engine(error) => error.fmt(f),
        }
    }
}

impl From<EngineError> for PublishError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl std::error::Error for PublishError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Engine(error) => Some(error),
            _ => None,
        }
    }
}

impl Node {
    pub(crate) fn check_channel(&self, channel: &str) -> Result<(), PublishError> {
        let len_max = self.settings().config.client.channel_name_len_max;
        if channel.is_empty() || channel.len() > len_max { Err(PublishError::BadChannel) } else { Ok(()) }
    }

    /// Publishes once there is room. With a key, the engine is called in a task of its own, because a caller that gives up must not leave
    /// the outcome unknown: it will try again. Repeats wait for the outcome without room.
    pub(crate) async fn publish(
        self: &Arc<Self>,
        channel: &str,
        publication: Publication,
        skip_history: bool,
        origin: Origin,
        idempotency_key: &str,
    ) -> Result<Position, PublishError> {
        self.start();
        self.check_channel(channel)?;
        if idempotency_key.len() > KEY_LEN_MAX {
            return Err(PublishError::BadKey);
        }
        let settings = self.settings();
        let options = settings.config.channel_options(channel).ok_or(PublishError::UnknownNamespace)?;
        let retention = retention(options).filter(|_| !skip_history);
        let mut result = None;
        if !idempotency_key.is_empty() {
            let outcome = self.idempotency.result(origin, channel, idempotency_key, self.clock.now());
            let outcome = outcome.lock_owned().await;
            if let Some(known) = &*outcome {
                return Ok(known.clone());
            }
            result = Some(outcome);
        }
        let is_immediate = self.engine.is_immediate(retention.as_ref());
        let room = self.channels.room(channel, publication.data.len(), is_immediate).await;
        let published = match result {
            None => {
                self.metrics.publications.increment();
                let published = self.engine.publish(channel, publication, retention, "").await;
                drop(room);
                published
            }
            Some(mut result) => {
                let (node, channel) = (self.clone(), channel.to_owned());
                let key = origin.stored(idempotency_key);
                let publishing = tokio::spawn(async move {
                    node.metrics.publications.increment();
                    let published = node.engine.publish(&channel, publication, retention, &key).await;
                    *result = published.as_ref().ok().cloned();
                    drop(room);
                    published
                });
                let stopped = |error: tokio::task::JoinError| EngineError::Unavailable(error.to_string());
                publishing.await.map_err(stopped).flatten()
            }
        };
        charge(1 + self.channels.subscribers(channel) / DELIVERIES_PER_UNIT).await;
        published.map_err(PublishError::Engine)
    }

    pub(crate) async fn history(
        &self,
        channel: &str,
        query: &HistoryQuery,
    ) -> Result<Option<History>, EngineError> {
        let retention = self.settings().config.channel_options(channel).and_then(retention);
        let Some(retention) = retention else { return Ok(None) };
        self.engine.history(channel, query, retention).await.map(Some)
    }
}

/// How much of a channel's history is kept; `None` if it has no history.
pub(crate) fn retention(options: &ChannelOptions) -> Option<Retention> {
    options.has_history().then(|| Retention {
        size: options.history_size,
        ttl: options.history_ttl,
        position_ttl: options.history_meta_ttl.max(options.history_ttl),
    })
}
