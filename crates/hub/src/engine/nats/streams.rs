//! The connection to NATS, and the streams that hold histories: one for each retention, with a subject for each channel.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream::{self, stream};
use async_nats::{Client, connection};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use tokio::sync::OnceCell;

use super::unavailable;
use crate::engine::EngineError;
use crate::history::Retention;
use crate::shards::lock;

/// The connection to NATS and the streams that this node has used.
pub(super) struct Nats {
    pub(super) client: Client,
    pub(super) jetstream: jetstream::Context,
    streams: Mutex<Streams>,
}

/// The streams, by the number of publications and the seconds for which they are kept.
type Streams = HashMap<(usize, u64), Arc<OnceCell<stream::Stream>>>;

/// A subject without subscribers.
const UNUSED_SUBJECT: &str = "wl.unused";

/// The name of a channel, encoded as a token of a subject.
pub(super) fn encoded(channel: &str) -> String {
    URL_SAFE_NO_PAD.encode(channel)
}

/// The token of a subject for a retention.
fn key(retention: Retention) -> String {
    format!("{}_{}", retention.size, retention.ttl.as_secs().max(1))
}

/// The retention of a token of a subject.
pub(super) fn retention_of(key: &str) -> Option<Retention> {
    let (size, ttl) = key.split_once('_')?;
    Some(Retention { size: size.parse().ok()?, ttl: Duration::from_secs(ttl.parse().ok()?) })
}

/// The epoch of a stream, which changes when the stream is created again.
pub(super) fn epoch(info: &stream::Info) -> String {
    format!("{:x}", info.created.unix_timestamp_nanos())
}

impl Nats {
    pub(super) fn new(client: Client, jetstream: jetstream::Context) -> Self {
        Self { client, jetstream, streams: Mutex::default() }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.client.connection_state() == connection::State::Connected
    }

    /// Waits until the server has processed this node's earlier subscriptions. The server handles the commands of a
    /// connection in order, and answers this request itself, because its subject has no subscribers.
    ///
    /// Without an answer the connection is about to be lost; the client repeats its subscriptions on the next one.
    pub(super) async fn confirm_subscriptions(&self) {
        if self.is_connected() {
            let _no_responders = self.client.request(UNUSED_SUBJECT, Bytes::new()).await;
        }
    }

    pub(super) fn subject(channel: &str, retention: Retention) -> String {
        format!("wlh.{}.{}", key(retention), encoded(channel))
    }

    /// Forgets the known streams: a server that was restarted without its data has new ones.
    pub(super) fn forget_streams(&self) {
        lock(&self.streams).clear();
    }

    /// The stream of a retention, which is created if it does not exist.
    pub(super) async fn stream(&self, retention: Retention) -> Result<stream::Stream, EngineError> {
        let ttl = Duration::from_secs(retention.ttl.as_secs().max(1));
        let cell = lock(&self.streams).entry((retention.size, ttl.as_secs())).or_default().clone();
        let make = async {
            let key = key(retention);
            let config = stream::Config {
                name: format!("WL_{key}"),
                subjects: vec![format!("wlh.{key}.*")],
                max_age: ttl,
                // One more than is promised, so that a full history after the oldest position is known to be complete.
                max_messages_per_subject: i64::try_from(retention.size).unwrap_or(i64::MAX - 1) + 1,
                duplicate_window: ttl.min(Duration::from_secs(120)),
                allow_direct: true,
                republish: Some(stream::Republish {
                    source: format!("wlh.{key}.*"),
                    destination: format!("wl.live.{key}.{{{{wildcard(1)}}}}"),
                    headers_only: false,
                }),
                ..stream::Config::default()
            };
            self.jetstream.get_or_create_stream(config).await.map_err(unavailable)
        };
        cell.get_or_try_init(|| make).await.cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_channels_and_retentions_in_subjects() {
        for channel in ["a", "chat:lobby", "a.b*c>d", "grüße"] {
            assert!(encoded(channel).chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_'));
        }
        let retention = Retention { size: 10, ttl: Duration::from_secs(60) };
        assert_eq!(retention_of(&key(retention)), Some(retention));
    }
}
