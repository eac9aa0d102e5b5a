//! A subscription of a client, as the application sees it.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;

use super::Client;
use super::builder::TokenSource;
use super::queue::{Len, Receiver};
use super::task::Notice;
use crate::history::Position;
use crate::protocol::{ClientInfo, Publication};

/// Options of a subscription.
#[derive(Clone, Default)]
pub struct SubscribeOptions {
    pub(super) token: String,
    pub(super) token_source: Option<TokenSource>,
    pub(super) data: Bytes,
    pub(super) since: Option<Position>,
    pub(super) is_recoverable: bool,
    pub(super) is_positioned: bool,
    pub(super) wants_joins: bool,
    pub(super) wants_deltas: bool,
}

impl std::fmt::Debug for SubscribeOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SubscribeOptions").field("since", &self.since).finish_non_exhaustive()
    }
}

impl SubscribeOptions {
    /// The token of the subscription.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = token.into();
        self
    }

    /// Asks `source` for a token of the subscription: the first, unless there is [`token`](Self::token), and a new one whenever that has
    /// expired.
    #[must_use]
    pub fn token_source<F, Fut>(mut self, source: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<String, String>> + Send + 'static,
    {
        self.token_source = Some(Arc::new(move || Box::pin(source())));
        self
    }

    /// Data for the application, a JSON value.
    #[must_use]
    pub fn data(mut self, data: impl Into<Bytes>) -> Self {
        self.data = data.into();
        self
    }

    /// Begins with what was published after this position.
    #[must_use]
    pub fn since(mut self, position: Position) -> Self {
        self.since = Some(position);
        self
    }

    /// Asks for recovery, where the server does not force it.
    #[must_use]
    pub fn recoverable(mut self) -> Self {
        self.is_recoverable = true;
        self
    }

    /// Asks the server to check the position for gaps.
    #[must_use]
    pub fn positioned(mut self) -> Self {
        self.is_positioned = true;
        self
    }

    /// Asks for joins and leaves.
    #[must_use]
    pub fn joins(mut self) -> Self {
        self.wants_joins = true;
        self
    }

    /// Asks for deltas. Publications arrive whole all the same.
    #[must_use]
    pub fn deltas(mut self) -> Self {
        self.wants_deltas = true;
        self
    }
}

/// The state of a subscription when it was established.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subscribed {
    /// The position in the history, if there is one. What was missed before it follows as publications.
    pub position: Position,
    /// The client asked for recovery.
    pub was_recovering: bool,
    /// Everything that was missed follows.
    pub recovered: bool,
    /// Data of the application.
    pub data: Bytes,
}

impl Subscribed {
    /// Whether publications were missed that do not follow.
    #[must_use]
    pub fn has_gap(&self) -> bool {
        self.was_recovering && !self.recovered
    }
}

/// An event of a subscription.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum SubscriptionEvent {
    /// It is established, for the first time or again.
    Subscribed(Subscribed),
    /// A publication. Its data is whole, also where it arrived as a delta.
    Publication(Publication),
    /// A client has subscribed.
    Join(ClientInfo),
    /// A client has unsubscribed.
    Leave(ClientInfo),
    /// The server has ended the subscription for good, with this code and reason. It is the last event.
    Unsubscribed {
        /// The code.
        code: u32,
        /// The reason, as a text.
        reason: String,
    },
}

impl Len for SubscriptionEvent {
    fn len(&self) -> usize {
        match self {
            Self::Subscribed(subscribed) => subscribed.len(),
            Self::Publication(publication) => publication.encoded_len(),
            Self::Join(info) | Self::Leave(info) => info.encoded_len(),
            Self::Unsubscribed { reason, .. } => reason.len(),
        }
    }
}

/// A subscription to a channel. It ends when this is dropped.
#[derive(Debug)]
pub struct Subscription {
    client: Client,
    channel: String,
    events: Receiver<SubscriptionEvent>,
}

impl Subscription {
    pub(super) fn new(client: Client, channel: String, events: Receiver<SubscriptionEvent>) -> Self {
        Self { client, channel, events }
    }

    /// The channel.
    #[must_use]
    pub fn channel(&self) -> &str {
        &self.channel
    }

    /// The next event; `None` once the subscription or the client has ended.
    ///
    /// # Cancel safety
    /// No event is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<SubscriptionEvent> {
        self.events.recv().await
    }

    /// The next publication; `None` once the subscription or the client has ended. Other events are skipped.
    ///
    /// # Cancel safety
    /// No publication is lost when the future is dropped.
    pub async fn publication(&mut self) -> Option<Publication> {
        loop {
            if let SubscriptionEvent::Publication(publication) = self.next().await? {
                return Some(publication);
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.events.close();
        let _ = self.client.notices.send(Notice::Dropped(std::mem::take(&mut self.channel)));
    }
}
