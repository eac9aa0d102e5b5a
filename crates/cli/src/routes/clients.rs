//! The open WebSockets of the routes, to find the clients that read most slowly.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use slab::Slab;
use wireloom::{Sender, Version};
use wireloom_hub::Hub;

#[derive(Default)]
pub(super) struct Clients {
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    entries: Slab<Entry>,
    /// The number of clients that use HTTP/2.
    http2: usize,
}

struct Entry {
    sender: Sender,
    peer: SocketAddr,
    route: &'static str,
    version: Version,
}

/// Removes a client when it is dropped. Drop it before the WebSocket, which stays open while there is a sender.
pub(super) struct Guard<'a> {
    clients: &'a Clients,
    key: usize,
}

impl Clients {
    pub(super) fn add(
        &self,
        sender: Sender,
        peer: SocketAddr,
        route: &'static str,
        version: Version,
    ) -> Guard<'_> {
        let mut open = self.lock();
        open.http2 += usize::from(version == Version::Http2);
        let key = open.entries.insert(Entry { sender, peer, route, version });
        Guard { clients: self, key }
    }

    /// How many are open over HTTP/1.1 and over HTTP/2.
    pub(super) fn count(&self) -> [(&'static str, usize); 2] {
        let open = self.lock();
        [("http1", open.entries.len() - open.http2), ("http2", open.http2)]
    }

    /// At most `max` clients with a send queue, those of the hub among them, the longest queue first.
    pub(super) fn slowest(&self, hub: &Hub, max: usize) -> Vec<Value> {
        let mut slow = self.slowest_of_routes(max);
        slow.extend(hub.slowest(max).into_iter().map(|client| {
            let value = json!({
                "client": client.peer.map_or(client.client, |peer| peer.to_string()),
                "route": client.path,
                "queued": client.queued_len,
                "sent": client.written_len,
            });
            (client.queued_len, value)
        }));
        slow.sort_by_key(|(len, _)| std::cmp::Reverse(*len));
        slow.truncate(max);
        slow.into_iter().map(|(_, value)| value).collect()
    }

    fn slowest_of_routes(&self, max: usize) -> Vec<(usize, Value)> {
        let open = self.lock();
        // Without waiting: a WebSocket may be compressing a long message.
        let queued = open.entries.iter().filter_map(|(_, entry)| {
            let len = entry.sender.try_queued_len().filter(|len| *len > 0)?;
            Some((len, entry))
        });
        let mut slow: Vec<_> = queued.collect();
        slow.sort_unstable_by_key(|(len, _)| std::cmp::Reverse(*len));
        slow.truncate(max);
        let value = |entry: &Entry, len: usize| {
            json!({
                "client": entry.peer.to_string(),
                "route": entry.route,
                "protocol": if entry.version == Version::Http2 { "HTTP/2" } else { "HTTP/1.1" },
                "queued": len,
                "sent": entry.sender.try_traffic().map(|traffic| traffic.bytes_sent),
            })
        };
        slow.into_iter().map(|(len, entry)| (len, value(entry, len))).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let mut open = self.clients.lock();
        let entry = open.entries.try_remove(self.key);
        open.http2 -= usize::from(entry.as_ref().is_some_and(|entry| entry.version == Version::Http2));
        drop(open);
        // Dropped outside of the lock, because dropping a sender may write to the transport.
        drop(entry);
    }
}
