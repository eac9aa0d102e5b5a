//! The order of the changes of subscriptions that take time, by connection and channel: those that the server makes, joins and leaves.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::client::{Active, Client};
use crate::protocol::ClientInfo;

/// Pending changes. One task per connection and channel makes them.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    waiting: HashMap<Key, Waiting>,
}

/// A connection and a channel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    client: String,
    channel: String,
}

#[derive(Debug)]
struct Waiting {
    client: Arc<Client>,
    changes: VecDeque<Change>,
    /// Cleared if the task is dropped, because its runtime ends.
    has_task: bool,
    /// The subscription that is being made has been ended before it was listed.
    is_cancelled: bool,
}

/// A part of the change of a subscription that takes time.
#[derive(Debug)]
pub(crate) enum Change {
    Subscribe,
    /// The announcement of a client that has subscribed.
    Join(ClientInfo),
    /// Removes the client from presence if it has no subscription: one was given up while it was added.
    Unlist,
    /// The work after the end of a subscription, such as its leave.
    Leave(Active),
    /// Completes the wait for the changes before this one; the waiter is charged for their cost.
    Made(Option<oneshot::Sender<usize>>),
}

impl Key {
    pub(crate) fn new(channel: &str, client: &Client) -> Self {
        Self { client: client.id.to_string(), channel: channel.to_owned() }
    }

    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }
}

impl Changes {
    /// Whether nothing is left to be done.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a change behind those that were asked for before. Returns whether they have no task: the caller must start it.
    #[must_use]
    pub(crate) fn push(&mut self, key: &Key, client: &Arc<Client>, change: Change) -> bool {
        let new = || Waiting {
            client: client.clone(),
            changes: VecDeque::new(),
            has_task: false,
            is_cancelled: false,
        };
        let waiting = self.waiting.entry(key.clone()).or_insert_with(new);
        waiting.changes.push_back(change);
        !std::mem::replace(&mut waiting.has_task, true)
    }

    /// The task of these was dropped, while it made a change.
    pub(crate) fn abandon(&mut self, key: &Key, current: Option<Change>) {
        if let Some(waiting) = self.waiting.get_mut(key) {
            waiting.has_task = false;
            let again =
                current.filter(|change| !waiting.is_cancelled || !matches!(change, Change::Subscribe));
            again.into_iter().for_each(|change| waiting.changes.push_front(change));
        }
    }

    /// Those that have no task: the caller must start it.
    #[must_use]
    pub(crate) fn resume(&mut self) -> Vec<(Key, Arc<Client>)> {
        let resumed = self.waiting.iter_mut().filter(|(_, waiting)| !waiting.has_task);
        let resumed = resumed.map(|(key, waiting)| {
            waiting.has_task = true;
            (key.clone(), waiting.client.clone())
        });
        resumed.collect()
    }

    /// Resolves with their cost when the changes that were asked for before have been made; `None` if there are none.
    pub(crate) fn made(&mut self, key: impl FnOnce() -> Key) -> Option<oneshot::Receiver<usize>> {
        if self.waiting.is_empty() {
            return None;
        }
        let waiting = self.waiting.get_mut(&key())?;
        let (sender, made) = oneshot::channel();
        waiting.changes.push_back(Change::Made(Some(sender)));
        Some(made)
    }

    /// The next change. After the last one they have no task any more.
    pub(crate) fn pop(&mut self, key: &Key) -> Option<Change> {
        let waiting = self.waiting.get_mut(key)?;
        waiting.is_cancelled = false;
        let next = waiting.changes.pop_front();
        if next.is_none() {
            self.waiting.remove(key);
            // A storm of ends leaves no memory behind.
            if self.waiting.is_empty() {
                self.waiting = HashMap::new();
            }
        }
        next
    }

    /// Drops the subscriptions that are still to be made, and marks the one that is being made.
    pub(crate) fn cancel_subscribes(&mut self, key: &Key) {
        if let Some(waiting) = self.waiting.get_mut(key) {
            waiting.changes.retain(|change| !matches!(change, Change::Subscribe));
            waiting.is_cancelled = true;
        }
    }

    /// Whether the subscription that is being made has been ended.
    pub(crate) fn is_cancelled(&self, key: &Key) -> bool {
        self.waiting.get(key).is_some_and(|waiting| waiting.is_cancelled)
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future as _, poll_fn};
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::Poll;

    use super::*;
    use crate::client::{Identity, Transport};
    use crate::config::HubConfig;
    use crate::hub::Hub;
    use crate::protocol::{Encoding, Reply, SubscribeRequest, UnsubscribeCode};
    use crate::subscribe::{Request, subscribe};

    const CONFIG: &str = r#"
[[namespace]]
name = "n"
subscribe = "anyone"
presence = true
join_leave = true
force_push_join_leave = true
"#;

    #[tokio::test]
    async fn a_client_has_left_before_it_joins_again() {
        let hub = Hub::builder().config(HubConfig::from_toml(CONFIG).unwrap()).build().unwrap();
        let node = &hub.0;
        let accept = || {
            let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
            client.connect(Identity { user: "7".into(), ..Identity::default() });
            client
        };
        let join = async |client: &Arc<Client>| {
            let command = SubscribeRequest { channel: "n:a".into(), ..SubscribeRequest::default() };
            let request = Request::from_client(command, &crate::proxy::Headers::NONE);
            assert!(subscribe(node, client, request).await.unwrap().start(Vec::new()).await);
        };
        let (observer, client) = (accept(), accept());
        let observed = async || -> Vec<_> {
            let mut messages = Vec::new();
            poll_fn(|cx| observer.outbox.poll_take(cx, &mut messages)).await;
            let push = |bytes| serde_json::from_slice::<Reply>(bytes).unwrap().push.unwrap();
            let name = |bytes| if push(bytes).join.is_some() { "join" } else { "leave" };
            messages.iter().map(|message| name(message.as_bytes())).collect()
        };
        join(&observer).await;
        join(&client).await;
        // The client subscribes again at once after this.
        node.unsubscribe("n:a", &client, UnsubscribeCode::InsufficientState);
        join(&client).await;
        assert_eq!(observed().await, ["join", "leave", "join"]);
        assert_eq!(node.engine().presence("n:a", usize::MAX).await.unwrap().unwrap().len(), 2);
        // One that closes while it unsubscribes has left, too.
        {
            let mut leaving = pin!(node.unsubscribe_by_client("n:a", &client));
            let is_pending = poll_fn(|cx| Poll::Ready(leaving.as_mut().poll(cx).is_pending())).await;
            assert!(is_pending);
        }
        assert_eq!(observed().await, ["leave"]);
        assert_eq!(node.engine().presence("n:a", usize::MAX).await.unwrap().unwrap().len(), 1);
    }
}
