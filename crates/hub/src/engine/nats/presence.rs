//! The clients of each channel, in a bucket of JetStream's key-value store. Entries that are not refreshed expire.

use std::sync::Arc;

use async_nats::jetstream::{kv, stream};
use prost::Message as _;

use super::history::{self, From};
use super::names::encoded;
use super::streams::Nats;
use super::unavailable;
use crate::engine::{EngineError, PRESENCE_REFRESH, room_after};
use crate::protocol::ClientInfo;

/// The key of a client.
pub(super) fn key(channel: &str, client: &str) -> String {
    format!("{}.{client}", encoded(channel))
}

pub(super) async fn bucket(nats: &Nats) -> Result<kv::Store, EngineError> {
    let config = kv::Config {
        bucket: nats.names.store("presence"),
        history: 1,
        max_age: 3 * PRESENCE_REFRESH,
        storage: stream::StorageType::Memory,
        ..kv::Config::default()
    };
    nats.jetstream.create_or_update_key_value(config).await.map_err(unavailable)
}

/// The clients of a channel; `None` if they have more than `len_max` bytes.
pub(super) async fn list(
    nats: &Nats,
    bucket: &kv::Store,
    channel: &str,
    len_max: usize,
) -> Result<Option<Vec<Arc<ClientInfo>>>, EngineError> {
    let stream = &bucket.stream.cached_info().config.name;
    let keys = format!("$KV.{}.{}.*", bucket.name, encoded(channel));
    let (mut clients, mut room, mut from) = (Vec::new(), len_max, 1);
    loop {
        let batch = history::batch(nats, stream, &keys, From::Sequence(from), usize::MAX, Some(room)).await?;
        let (last, has_more) = (batch.last(), batch.has_more());
        for info in batch.into_payloads().filter_map(|info| ClientInfo::decode(info).ok()) {
            let Some(left) = room_after(room, &info) else { return Ok(None) };
            room = left;
            clients.push(Arc::new(info));
        }
        match last {
            Some(last) if has_more => from = last + 1,
            _ => return Ok(Some(clients)),
        }
    }
}
