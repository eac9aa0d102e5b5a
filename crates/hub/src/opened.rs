//! A connection or a subscription whose end is reported to the application's backend, and the event that reports it.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::random::Uuid;

/// Something that is open, whose end is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    /// The lease under which it was stored.
    pub(crate) lease: Arc<str>,
    /// Identifies its event, which the backend may receive twice.
    pub(crate) id: String,
    client: String,
    user: String,
    /// `None` for a connection.
    channel: Option<String>,
}

/// An event as the backend receives it.
#[derive(Serialize)]
struct Event<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    client: &'a str,
    user: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    channel: Option<&'a str>,
    code: u32,
    reason: &'a str,
    /// Since 1970. Of a loss, which is stored before it happens, it is added when it is reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    time_ms: Option<u64>,
}

impl Opened {
    pub(crate) fn new(lease: Arc<str>, client: &str, user: &str, channel: Option<&str>) -> Self {
        let channel = channel.map(str::to_owned);
        Self { lease, id: Uuid::new().to_string(), client: client.to_owned(), user: user.to_owned(), channel }
    }

    /// The event of its end, as JSON.
    pub(crate) fn event(&self, code: u32, reason: &str, now: Duration) -> Vec<u8> {
        self.event_at(code, reason, Some(u64::try_from(now.as_millis()).unwrap_or(u64::MAX)))
    }

    fn event_at(&self, code: u32, reason: &str, time_ms: Option<u64>) -> Vec<u8> {
        let Self { id, client, user, channel, .. } = self;
        let kind = if channel.is_some() { "unsubscribe" } else { "disconnect" };
        let event = Event { id, kind, client, user, channel: channel.as_deref(), code, reason, time_ms };
        serde_json::to_vec(&event).unwrap_or_default()
    }

    /// The event that reports that it was lost with its node, without the time.
    pub(crate) fn event_of_loss(&self) -> Vec<u8> {
        self.event_at(3000, "node lost", None)
    }
}
