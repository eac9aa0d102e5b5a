//! The clients of each channel, in a bucket of JetStream's key-value store. Entries that are not refreshed expire.

use async_nats::jetstream::{kv, stream};
use prost::Message as _;
use tokio_stream::StreamExt as _;

use super::streams::{Nats, encoded};
use super::unavailable;
use crate::engine::{EngineError, PRESENCE_REFRESH};
use crate::protocol::ClientInfo;

/// The bucket of all channels.
const BUCKET: &str = "WL_PRESENCE";

/// The key of a client.
pub(super) fn key(channel: &str, client: &str) -> String {
    format!("{}.{client}", encoded(channel))
}

pub(super) async fn bucket(nats: &Nats) -> Result<kv::Store, EngineError> {
    let config = kv::Config {
        bucket: BUCKET.into(),
        history: 1,
        max_age: 3 * PRESENCE_REFRESH,
        storage: stream::StorageType::Memory,
        ..kv::Config::default()
    };
    nats.jetstream.create_or_update_key_value(config).await.map_err(unavailable)
}

/// The clients of a channel.
pub(super) async fn list(bucket: &kv::Store, channel: &str) -> Result<Vec<ClientInfo>, EngineError> {
    let prefix = format!("$KV.{BUCKET}.");
    let filter = format!("{prefix}{}.*", encoded(channel));
    let mut subjects = bucket.stream.info_with_subjects(filter).await.map_err(unavailable)?;
    let mut clients = Vec::new();
    while let Some(subject) = subjects.next().await {
        let (subject, _) = subject.map_err(unavailable)?;
        let Some(key) = subject.strip_prefix(&prefix) else { continue };
        if let Some(value) = bucket.get(key).await.map_err(unavailable)?
            && let Ok(info) = ClientInfo::decode(value)
        {
            clients.push(info);
        }
    }
    Ok(clients)
}
