//! The messages that were sent over a connection, and which of them are known to have arrived.
//!
//! ```text
//! sent        m1 m2 m3 [ping 1] m4 m5
//! pong 1      `--------' have arrived; m4, m5 may have arrived
//! ```

use std::collections::VecDeque;

use tokio::time::Instant;

use crate::websocket::{OwnedMessage, Payload, Utf8Bytes};

/// The least that a message counts: what it takes besides its bytes.
const KEPT_LEN_MIN: usize = size_of::<OwnedMessage>();

/// `confirmed <= sent`; `kept` holds the last of those that are not confirmed, `kept_len <= keep_len_max` as [`len_of`] counts, and in
/// addition the message that is being queued.
#[derive(Debug)]
pub(super) struct SentMessages {
    sent: u64,
    confirmed: u64,
    pending_ping: Option<PendingPing>,
    /// When the last ping was sent, or could not be sent.
    pub(super) pinged_at: Instant,
    kept: VecDeque<OwnedMessage>,
    kept_len: usize,
    keep_len_max: usize,
    /// The message that is being queued is not kept: if it is sent, the older ones are not the last.
    has_gap: bool,
    /// The message that is being queued was among those that [`take_kept`](Self::take_kept) took.
    is_taken: bool,
    /// Messages that are not kept any more. They may have destructors of the application.
    forgotten: Vec<OwnedMessage>,
}

/// A ping that has not been answered.
#[derive(Debug)]
struct PendingPing {
    number: u32,
    /// The messages sent before it.
    sent: u64,
    /// Where it ends in the bytes of the connection.
    end: u64,
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
            has_gap: false,
            is_taken: false,
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

    /// Whether a copy of this message is kept.
    pub(super) fn keeps(&self, message: &Payload<'_>) -> bool {
        message.len().max(KEPT_LEN_MIN) <= self.keep_len_max
    }

    /// A message is about to be queued; `copy` if it is [kept](Self::keeps). It counts as sent until [`cancel`](Self::cancel).
    pub(super) fn begin(&mut self, copy: Option<OwnedMessage>) {
        self.is_taken = false;
        self.sent += 1;
        self.has_gap = copy.is_none();
        self.kept_len += copy.as_ref().map_or(0, len_of);
        self.kept.extend(copy);
    }

    /// The message was queued. Older ones make room for it.
    pub(super) fn commit(&mut self) {
        if std::mem::take(&mut self.has_gap) {
            // The last messages are kept, without a gap.
            self.forget(self.kept.len());
        }
        while self.kept_len > self.keep_len_max {
            self.forget(1);
        }
    }

    /// The message was not queued. Returns its copy, unless the message counts among those of a lost connection.
    pub(super) fn cancel(&mut self) -> Result<Option<OwnedMessage>, Taken> {
        self.sent -= 1;
        let copy = if std::mem::take(&mut self.has_gap) { None } else { self.kept.pop_back() };
        self.kept_len -= copy.as_ref().map_or(0, len_of);
        self.forget_confirmed();
        if self.is_taken { Err(Taken) } else { Ok(copy) }
    }

    #[cfg(test)]
    pub(super) fn record(&mut self, message: &Payload<'_>) {
        self.begin(self.keeps(message).then(|| owned(message)));
        self.commit();
    }

    /// Whether a ping would confirm messages.
    pub(super) fn needs_ping(&self) -> bool {
        self.pending_ping.is_none() && self.unconfirmed() > 0
    }

    /// The end of the ping that has not been answered yet, in the bytes of the connection.
    pub(super) fn awaited_end(&self) -> Option<u64> {
        self.pending_ping.as_ref().map(|ping| ping.end)
    }

    /// A ping with this number is being sent, which ends at `end`.
    pub(super) fn record_ping(&mut self, number: u32, end: u64, now: Instant) {
        self.pending_ping = Some(PendingPing { number, sent: self.sent, end });
        self.pinged_at = now;
    }

    /// The ping with this number has been answered, which confirms the messages before it and before earlier pings.
    pub(super) fn handle_pong(&mut self, ping: u32) {
        if let Some(PendingPing { number, sent, .. }) = self.pending_ping
            && ping.wrapping_sub(number) < 1 << 31
        {
            self.pending_ping = None;
            self.confirmed = sent;
            self.forget_confirmed();
        }
    }

    fn forget_confirmed(&mut self) {
        let unconfirmed = usize::try_from(self.unconfirmed()).unwrap_or(usize::MAX);
        self.forget(self.kept.len().saturating_sub(unconfirmed));
    }

    fn forget(&mut self, count: usize) {
        for message in self.kept.drain(..count) {
            self.kept_len -= len_of(&message);
            self.forgotten.push(message);
        }
    }

    /// Takes the messages that are not kept any more, to drop them while nothing is locked.
    pub(super) fn take_forgotten(&mut self) -> Vec<OwnedMessage> {
        std::mem::take(&mut self.forgotten)
    }

    /// Takes the messages that were kept.
    pub(super) fn take_kept(&mut self) -> Vec<OwnedMessage> {
        self.is_taken = true;
        // The one that is being queued may be sent.
        self.commit();
        self.kept_len = 0;
        std::mem::take(&mut self.kept).into()
    }
}

/// A loss has been reported with the message that was to be queued.
#[derive(Debug)]
pub(super) struct Taken;

/// The length of a message as it counts towards the limit: empty ones take memory too.
fn len_of(message: &OwnedMessage) -> usize {
    message.as_bytes().len().max(KEPT_LEN_MIN)
}

/// A copy to be kept.
pub(super) fn owned(message: &Payload<'_>) -> OwnedMessage {
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
        let mut sent_messages = SentMessages::new(1_000, now);
        assert!(!sent_messages.needs_ping());
        for text in ["a", "b"] {
            sent_messages.record(&text.into());
        }
        assert!(sent_messages.needs_ping());
        sent_messages.record_ping(u32::MAX, 0, now);
        assert!(!sent_messages.needs_ping());
        sent_messages.record(&"c".into());
        // An older one, such as keepalive's.
        sent_messages.handle_pong(u32::MAX - 1);
        assert_eq!((sent_messages.unconfirmed(), kept(&sent_messages)), (3, vec!["a", "b", "c"]));
        // A later one; numbers wrap.
        sent_messages.handle_pong(0);
        assert_eq!((sent_messages.unconfirmed(), kept(&sent_messages)), (1, vec!["c"]));
        assert!(sent_messages.needs_ping());
    }

    #[tokio::test]
    async fn a_message_that_is_not_queued_leaves_the_others_alone() {
        let now = Instant::now();
        let mut sent_messages = SentMessages::new(4 * KEPT_LEN_MIN, now);
        let [one, two, four, five] = [1, 2, 4, 5].map(|count| "x".repeat(count * KEPT_LEN_MIN));
        for text in [&*one, &*two] {
            sent_messages.record(&text.into());
        }
        for text in [&*four, &*five] {
            let copy = sent_messages.keeps(&text.into()).then(|| owned(&text.into()));
            sent_messages.begin(copy);
            assert_eq!(sent_messages.unconfirmed(), 3, "it may be sent before the connection is lost");
            let copy = sent_messages.cancel().unwrap();
            assert_eq!(copy.is_some(), text == four);
            assert_eq!(
                (sent_messages.sent(), sent_messages.unconfirmed(), sent_messages.kept_len),
                (2, 2, 3 * KEPT_LEN_MIN)
            );
            assert_eq!(kept(&sent_messages), [&*one, &*two]);
        }
        // A pong may confirm the others meanwhile.
        sent_messages.record_ping(1, 0, now);
        sent_messages.begin(None);
        sent_messages.handle_pong(1);
        assert!(sent_messages.cancel().unwrap().is_none());
        assert_eq!((sent_messages.sent(), sent_messages.unconfirmed(), sent_messages.kept_len), (2, 0, 0));
        // The connection is lost meanwhile.
        sent_messages.record(&"d".into());
        sent_messages.begin(None);
        assert!(sent_messages.take_kept().is_empty());
    }

    // The sender must not conclude that the message was never sent.
    #[tokio::test]
    async fn a_message_that_is_being_queued_may_be_reported_as_lost() {
        let mut sent_messages = SentMessages::new(1_000, Instant::now());
        sent_messages.begin(Some(owned(&"a".into())));
        assert_eq!(sent_messages.take_kept().len(), 1);
        assert!(sent_messages.cancel().is_err());
        sent_messages.begin(Some(owned(&"b".into())));
        assert!(sent_messages.cancel().unwrap().is_some());
        // It is the caller's again, and no part of a later loss.
        assert!(sent_messages.take_kept().is_empty());
    }

    #[tokio::test]
    async fn keeps_the_newest_within_a_bound() {
        let mut sent_messages = SentMessages::new(4 * KEPT_LEN_MIN, Instant::now());
        let [two, four, five] = [2, 4, 5].map(|count| "x".repeat(count * KEPT_LEN_MIN));
        for text in ["", &*two, "c"] {
            sent_messages.record(&text.into());
        }
        assert_eq!(kept(&sent_messages), ["", &*two, "c"]);
        sent_messages.record(&"d".into());
        assert_eq!(kept(&sent_messages), [&*two, "c", "d"]);
        sent_messages.record(&(&*four).into());
        assert_eq!(kept(&sent_messages), [&*four]);
        sent_messages.record(&(&*five).into());
        assert_eq!(
            (kept(&sent_messages).len(), sent_messages.kept_len, sent_messages.unconfirmed()),
            (0, 0, 6)
        );
    }
}
