//! The messages that wait to be written to one connection, bounded in bytes.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use wireloom::PreparedMessage;

use crate::config::SlowPolicy;
use crate::protocol::Disconnect;
use crate::shards::lock;

/// The cost of one message beyond its bytes, so that many empty ones are bounded as well.
const MESSAGE_COST: usize = 64;

/// Messages for which an idle connection keeps room.
pub(crate) const CAPACITY_KEPT: usize = 16;

/// The messages that wait to be written to one connection. Any task adds to it; the connection's own task empties it.
#[derive(Debug)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
}

#[derive(Debug)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// The cost of what waits. `len <= len_max`, but for replies, which a client asked for one at a time.
    len: usize,
    len_max: usize,
    /// Bytes that the connection's task has taken, and is writing until it comes for more.
    writing: usize,
    /// Bytes written.
    written: u64,
    policy: SlowPolicy,
    end: Option<Disconnect>,
    writer: Option<Waker>,
}

/// The bytes of messages, without framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backlog {
    /// Not written yet.
    pub(crate) queued: usize,
    /// Written so far.
    pub(crate) written: u64,
}

#[derive(Debug)]
struct Waiting {
    message: PreparedMessage,
    may_drop: bool,
}

/// The content of an outbox, as its connection's task takes it.
#[derive(Debug, PartialEq)]
pub(crate) enum Taken {
    /// There were messages, which were moved out.
    Messages,
    /// Nothing more will come: the connection is to be closed.
    End(Disconnect),
}

/// The outcome of adding a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// It waits to be written.
    Queued,
    /// It, or an older one, was dropped.
    Dropped,
    /// The connection is too slow and is being ended by this message.
    Overflowed,
    /// The connection has ended.
    Ended,
}

impl Outbox {
    pub(crate) fn new(len_max: usize, policy: SlowPolicy) -> Self {
        Self {
            queue: Mutex::new(Queue {
                waiting: VecDeque::new(),
                len: 0,
                len_max,
                writing: 0,
                written: 0,
                policy,
                end: None,
                writer: None,
            }),
        }
    }

    /// Adds a reply, or anything else that the client cannot do without.
    pub(crate) fn push(&self, message: PreparedMessage) -> Pushed {
        self.add(message, false)
    }

    /// Adds a publication that the client can do without.
    pub(crate) fn push_droppable(&self, message: PreparedMessage) -> Pushed {
        self.add(message, true)
    }

    fn add(&self, message: PreparedMessage, may_drop: bool) -> Pushed {
        let mut queue = lock(&self.queue);
        if queue.end.is_some() {
            return Pushed::Ended;
        }
        let cost = cost(&message);
        let mut pushed = Pushed::Queued;
        if queue.len + cost > queue.len_max && queue.len > 0 {
            let policy = queue.policy;
            match policy {
                SlowPolicy::DropNewest if may_drop => return Pushed::Dropped,
                SlowPolicy::DropOldest if may_drop && queue.make_room(cost) => pushed = Pushed::Dropped,
                _ => {
                    queue.end(Disconnect::Slow);
                    return Pushed::Overflowed;
                }
            }
        }
        queue.len += cost;
        queue.waiting.push_back(Waiting { message, may_drop });
        // The writer takes everything at once: one wake-up does for all that comes until it runs.
        if let Some(writer) = queue.writer.take() {
            drop(queue);
            writer.wake();
        }
        pushed
    }

    /// Ends the connection once what waits has been written. The first reason counts.
    pub(crate) fn end(&self, reason: Disconnect) {
        let writer = {
            let mut queue = lock(&self.queue);
            if queue.end.is_none() {
                queue.end = Some(reason);
            }
            queue.writer.take()
        };
        if let Some(writer) = writer {
            writer.wake();
        }
    }

    /// Whether the connection is being ended.
    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.queue).end.is_some()
    }

    /// Ready once the connection is being ended; registers the task until then.
    pub(crate) fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut queue = lock(&self.queue);
        if queue.end.is_some() {
            return Poll::Ready(());
        }
        queue.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The bytes that are queued or being written, and those that have been written.
    pub(crate) fn backlog(&self) -> Backlog {
        let queue = lock(&self.queue);
        Backlog { queued: queue.bytes() + queue.writing, written: queue.written }
    }

    /// Moves everything that waits to `into`, or registers the task when nothing does.
    pub(crate) fn poll_take(&self, cx: &mut Context<'_>, into: &mut Vec<PreparedMessage>) -> Poll<Taken> {
        let mut queue = lock(&self.queue);
        // The task comes back when it has written everything that it took.
        queue.written += std::mem::take(&mut queue.writing) as u64;
        if !queue.waiting.is_empty() {
            queue.writing = queue.bytes();
            into.extend(queue.waiting.drain(..).map(|waiting| waiting.message));
            queue.len = 0;
            if queue.waiting.capacity() > CAPACITY_KEPT {
                queue.waiting = VecDeque::new();
            }
            return Poll::Ready(Taken::Messages);
        }
        if let Some(end) = &queue.end {
            return Poll::Ready(Taken::End(end.clone()));
        }
        if !queue.writer.as_ref().is_some_and(|writer| writer.will_wake(cx.waker())) {
            queue.writer = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Queue {
    /// The bytes of the messages that wait.
    fn bytes(&self) -> usize {
        self.len - self.waiting.len() * MESSAGE_COST
    }

    /// Drops the oldest that may be dropped, until `cost` fits. False when there is not enough of it.
    fn make_room(&mut self, cost: usize) -> bool {
        while self.len + cost > self.len_max {
            let Some(oldest) = self.waiting.iter().position(|waiting| waiting.may_drop) else { return false };
            if let Some(waiting) = self.waiting.remove(oldest) {
                self.len -= self::cost(&waiting.message);
            }
        }
        true
    }

    /// Ends a connection that is too slow: what waits for it is dropped.
    fn end(&mut self, reason: Disconnect) {
        self.end = Some(reason);
        self.waiting = VecDeque::new();
        self.len = 0;
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
    }
}

fn cost(message: &PreparedMessage) -> usize {
    message.as_bytes().len() + MESSAGE_COST
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> PreparedMessage {
        PreparedMessage::text(text)
    }

    fn take(outbox: &Outbox) -> (Poll<Taken>, Vec<String>) {
        let mut taken = Vec::new();
        let poll = outbox.poll_take(&mut Context::from_waker(Waker::noop()), &mut taken);
        (poll, taken.iter().map(|message| message.as_text().unwrap().to_owned()).collect())
    }

    fn full(policy: SlowPolicy) -> Outbox {
        // Room for three messages of a byte.
        let outbox = Outbox::new(3 * (MESSAGE_COST + 1), policy);
        assert_eq!(outbox.push(text("r")), Pushed::Queued);
        assert_eq!(outbox.push_droppable(text("1")), Pushed::Queued);
        assert_eq!(outbox.push_droppable(text("2")), Pushed::Queued);
        outbox
    }

    #[test]
    fn disconnects_a_slow_client() {
        let outbox = full(SlowPolicy::Disconnect);
        assert_eq!(outbox.push_droppable(text("3")), Pushed::Overflowed);
        assert_eq!(outbox.push(text("4")), Pushed::Ended);
        assert_eq!(take(&outbox), (Poll::Ready(Taken::End(Disconnect::Slow)), vec![]));
    }

    #[test]
    fn drops_the_oldest_publications_and_no_reply() {
        let outbox = full(SlowPolicy::DropOldest);
        assert_eq!(outbox.push_droppable(text("3")), Pushed::Dropped);
        assert_eq!(outbox.push_droppable(text("4")), Pushed::Dropped);
        assert_eq!(take(&outbox), (Poll::Ready(Taken::Messages), ["r", "3", "4"].map(String::from).to_vec()));
    }

    #[test]
    fn drops_the_newest_publication() {
        let outbox = full(SlowPolicy::DropNewest);
        assert_eq!(outbox.push_droppable(text("3")), Pushed::Dropped);
        assert_eq!(take(&outbox), (Poll::Ready(Taken::Messages), ["r", "1", "2"].map(String::from).to_vec()));
    }

    #[test]
    fn disconnects_when_a_message_that_must_not_be_dropped_does_not_fit() {
        for policy in [SlowPolicy::DropOldest, SlowPolicy::DropNewest, SlowPolicy::Disconnect] {
            assert_eq!(full(policy).push(text("3")), Pushed::Overflowed, "{policy:?}");
        }
    }

    #[test]
    fn takes_one_message_of_any_length() {
        let outbox = Outbox::new(10, SlowPolicy::Disconnect);
        assert_eq!(outbox.push(text(&"x".repeat(1000))), Pushed::Queued);
    }

    #[test]
    fn counts_what_is_queued_and_what_is_being_written() {
        let outbox = full(SlowPolicy::DropNewest);
        assert_eq!(outbox.backlog(), Backlog { queued: 3, written: 0 });
        assert_eq!(take(&outbox).0, Poll::Ready(Taken::Messages));
        outbox.push(text("next"));
        assert_eq!(outbox.backlog(), Backlog { queued: 7, written: 0 });
        assert_eq!(take(&outbox).0, Poll::Ready(Taken::Messages));
        assert_eq!(outbox.backlog(), Backlog { queued: 4, written: 3 });
        assert_eq!(take(&outbox).0, Poll::Pending);
        assert_eq!(outbox.backlog(), Backlog { queued: 0, written: 7 });
    }

    #[test]
    fn writes_what_waits_before_it_ends() {
        let outbox = full(SlowPolicy::Disconnect);
        outbox.end(Disconnect::Shutdown);
        outbox.end(Disconnect::Slow);
        assert_eq!(take(&outbox).0, Poll::Ready(Taken::Messages));
        assert_eq!(take(&outbox).0, Poll::Ready(Taken::End(Disconnect::Shutdown)));
    }
}
