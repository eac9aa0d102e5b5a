//! The messages that were sent over a connection, and which of them are known to have arrived.
//!
//! ```text
//! sent        m1 m2 m3 [ping 1] m4 m5
//! pong 1      `--------' have arrived; m4, m5 may have arrived
//! ```

use std::collections::VecDeque;

use tokio::time::Instant;

use crate::websocket::{OwnedMessage, Payload, Utf8Bytes};

/// `confirmed <= sent`; `kept` holds the last of those that are not confirmed, `kept_len <= keep_len_max` bytes.
#[derive(Debug)]
pub(super) struct SentMessages {
    sent: u64,
    confirmed: u64,
    /// The unanswered ping, and the number of messages sent before it.
    pending_ping: Option<(u32, u64)>,
    /// When the last ping was sent, or could not be sent.
    pub(super) pinged_at: Instant,
    kept: VecDeque<OwnedMessage>,
    kept_len: usize,
    keep_len_max: usize,
    /// Messages that are not kept any more. They may have destructors of the application.
    forgotten: Vec<OwnedMessage>,
}

impl SentMessages {
    pub(super) fn new(keep_len_max: usize, now: Instant) -> Self {
        Self {
            sent: 0,
            confirmed: 0,
            pending_ping: None,
            pinged_at: now,
            kept: VecDeque::new(),
            kept_len: 0,
            keep_len_max,
            forgotten: Vec::new(),
        }
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Messages that may not have arrived.
    pub(super) fn unconfirmed(&self) -> u64 {
        self.sent - self.confirmed
    }

    /// A message is about to be sent.
    pub(super) fn record(&mut self, message: &Payload<'_>) {
        self.sent += 1;
        if self.keep_len_max == 0 {
            return;
        }
        if message.len() > self.keep_len_max {
            // The last messages are kept, without a gap.
            self.forget(self.kept.len());
            return;
        }
        self.kept_len += message.len();
        self.kept.push_back(owned(message));
        while self.kept_len > self.keep_len_max {
            self.forget(1);
        }
    }

    /// The message recorded last was not sent.
    pub(super) fn remove_last(&mut self) {
        self.sent -= 1;
        if let Some(message) = self.kept.pop_back() {
            self.kept_len -= message.as_bytes().len();
            self.forgotten.push(message);
        }
    }

    /// Whether a ping would confirm messages.
    pub(super) fn needs_ping(&self) -> bool {
        self.pending_ping.is_none() && self.unconfirmed() > 0
    }

    /// Whether a ping has not been answered yet.
    pub(super) fn awaits_pong(&self) -> bool {
        self.pending_ping.is_some()
    }

    /// A ping with this number is being sent.
    pub(super) fn record_ping(&mut self, ping: u32, now: Instant) {
        self.pending_ping = Some((ping, self.sent));
        self.pinged_at = now;
    }

    /// The ping with this number has been answered, which confirms the messages before it and before earlier pings.
    pub(super) fn handle_pong(&mut self, ping: u32) {
        if let Some((pending, sent)) = self.pending_ping
            && ping.wrapping_sub(pending) < 1 << 31
        {
            self.pending_ping = None;
            self.confirmed = sent;
            let unconfirmed = usize::try_from(self.unconfirmed()).unwrap_or(usize::MAX);
            self.forget(self.kept.len().saturating_sub(unconfirmed));
        }
    }

    fn forget(&mut self, count: usize) {
        for message in self.kept.drain(..count) {
            self.kept_len -= message.as_bytes().len();
            self.forgotten.push(message);
        }
    }

    /// Takes the messages that are not kept any more, to drop them while nothing is locked.
    pub(super) fn take_forgotten(&mut self) -> Vec<OwnedMessage> {
        std::mem::take(&mut self.forgotten)
    }

    /// Takes the messages that were kept.
    pub(super) fn take_kept(&mut self) -> Vec<OwnedMessage> {
        self.kept_len = 0;
        std::mem::take(&mut self.kept).into()
    }
}

fn owned(message: &Payload<'_>) -> OwnedMessage {
    match message {
        Payload::Text(text) => OwnedMessage::Text(Utf8Bytes::from(*text)),
        Payload::Binary(data) => OwnedMessage::Binary(data.to_vec().into()),
        Payload::Shared(data) => OwnedMessage::Binary(data.clone()),
        Payload::SharedText(text) => OwnedMessage::Text(text.clone()),
        Payload::Prepared(message) => message.to_owned_message(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(sent_messages: &SentMessages) -> Vec<&str> {
        sent_messages.kept.iter().map(|message| message.as_text().unwrap()).collect()
    }

    #[tokio::test]
    async fn a_pong_confirms_what_was_sent_before_its_ping() {
        let now = Instant::now();
        let mut sent_messages = SentMessages::new(100, now);
        assert!(!sent_messages.needs_ping());
        for text in ["a", "b"] {
            sent_messages.record(&text.into());
        }
        assert!(sent_messages.needs_ping());
        sent_messages.record_ping(u32::MAX, now);
        assert!(!sent_messages.needs_ping());
        sent_messages.record(&"c".into());
        // An older one, such as keepalive's.
        sent_messages.handle_pong(u32::MAX - 1);
        assert_eq!((sent_messages.unconfirmed(), kept(&sent_messages)), (3, vec!["a", "b", "c"]));
        // A later one; numbers wrap.
        sent_messages.handle_pong(0);
        assert_eq!((sent_messages.unconfirmed(), kept(&sent_messages)), (1, vec!["c"]));
        assert!(sent_messages.needs_ping());
        sent_messages.remove_last();
        assert_eq!((sent_messages.sent(), sent_messages.unconfirmed(), sent_messages.kept_len), (2, 0, 0));
    }

    #[tokio::test]
    async fn keeps_the_newest_within_a_bound() {
        let mut sent_messages = SentMessages::new(4, Instant::now());
        for text in ["a", "bb", "c"] {
            sent_messages.record(&text.into());
        }
        assert_eq!(kept(&sent_messages), ["a", "bb", "c"]);
        sent_messages.record(&"d".into());
        assert_eq!(kept(&sent_messages), ["bb", "c", "d"]);
        sent_messages.record(&"eeee".into());
        assert_eq!(kept(&sent_messages), ["eeee"]);
        sent_messages.record(&"fffff".into());
        assert_eq!(
            (kept(&sent_messages).len(), sent_messages.kept_len, sent_messages.unconfirmed()),
            (0, 0, 6)
        );
    }
}
