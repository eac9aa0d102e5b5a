//! The send queue of one connection, bounded in bytes.
//!
//! ```text
//!             batch.write() wrote all              the transport is full
//!            +----------------------+        +------------------------------+
//!            v                      |        |                              v
//!  Batch { is_due: false } ---> Batch { is_due: true }                   Stalled
//!            ^      a publication                                           |
//!            |                   poll_take() finds messages                 |
//!            +------ Task <-----------------------------------(any)---------+
//!   poll_take() finds none
//! ```
//!
//! In `Task` the connection's task has messages that it has not written: no other task may write then, or messages would be reordered.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use wireloom::{PreparedMessage, Sender};

use crate::config::SlowPolicy;
use crate::protocol::Disconnect;
use crate::shards::lock;

/// The cost of a message in addition to its bytes, so that the number of empty messages is bounded too.
const MESSAGE_COST: usize = 64;

/// The capacity, in messages, that an idle connection keeps.
pub(crate) const CAPACITY_KEPT: usize = 16;

/// The send queue of one connection. Any task adds messages. The connection's own task writes them; a
/// [`batch`](crate::batch) writes those of many connections that received the same publication.
#[derive(Debug)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
}

#[derive(Debug)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// The cost of the queued messages. `len <= len_max`, except for replies, of which there is one per command.
    len: usize,
    len_max: usize,
    /// Bytes that the connection's task has taken and is writing. They count as written when it polls again.
    writing: usize,
    /// Bytes written.
    written: u64,
    policy: SlowPolicy,
    end: Option<Disconnect>,
    /// The sender for batches; `None` if they cannot write.
    sender: Option<Sender>,
    writer: Writer,
    /// The waker of the connection's task, while it waits.
    task: Option<Waker>,
}

/// Which task writes the queued messages.
#[derive(Debug)]
enum Writer {
    /// The connection's task.
    Task,
    /// A batch. `is_due`: a batch has been scheduled.
    Batch { is_due: bool },
    /// The connection's task, once it runs: the transport has not accepted all bytes of a batch.
    Stalled,
}

/// Bytes of messages, without framing.
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

/// What the connection's task takes from an outbox.
#[derive(Debug, PartialEq)]
pub(crate) enum Taken {
    /// The messages were moved out.
    Messages,
    /// There are no more messages: close the connection.
    End(Disconnect),
}

/// The outcome of adding a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// It is queued.
    Queued,
    /// It is queued for a batch, which the caller must schedule.
    Unwritten,
    /// It, or an older one, was dropped.
    Dropped,
    /// The connection is too slow: this message ends it.
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
                sender: None,
                writer: Writer::Task,
                task: None,
            }),
        }
    }

    /// Allows batches to write to this connection, until the result is dropped.
    pub(crate) fn open_to_batches(&self, sender: Sender) -> OpenToBatches<'_> {
        let mut queue = lock(&self.queue);
        queue.sender = Some(sender);
        OpenToBatches(self)
    }

    /// Queues a reply, or another message that only this client receives.
    pub(crate) fn push(&self, message: PreparedMessage) -> Pushed {
        self.add(message, false, false)
    }

    /// Queues a message that other clients receive as well.
    pub(crate) fn publish(&self, message: PreparedMessage, may_drop: bool) -> Pushed {
        self.add(message, may_drop, true)
    }

    fn add(&self, message: PreparedMessage, may_drop: bool, for_batch: bool) -> Pushed {
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
        if let Writer::Batch { is_due } = &mut queue.writer
            && (*is_due || for_batch && pushed == Pushed::Queued)
        {
            return if std::mem::replace(is_due, true) { pushed } else { Pushed::Unwritten };
        }
        // The task takes all messages at once, so one wake-up is enough for all that are queued until it runs.
        if let Some(task) = queue.task.take() {
            drop(queue);
            task.wake();
        }
        pushed
    }

    /// Writes messages until the transport is full, unless the connection's task writes.
    pub(crate) fn write(&self) {
        let mut queue = lock(&self.queue);
        let Queue { waiting, len, writing, written, sender: Some(sender), writer, task, .. } = &mut *queue
        else {
            return;
        };
        let Writer::Batch { is_due } = writer else { return };
        *is_due = false;
        let sent = sender.try_send_all(waiting.iter().map(|waiting| &waiting.message));
        let mut sent_len = 0;
        for sent in waiting.drain(..sent.unwrap_or(0)) {
            *len -= cost(&sent.message);
            sent_len += sent.message.as_bytes().len();
        }
        let queued_len = sender.queued_len();
        *writing = queued_len.min(sent_len);
        *written += (sent_len - *writing) as u64;
        if waiting.capacity() > CAPACITY_KEPT && waiting.is_empty() {
            *waiting = VecDeque::new();
        }
        if !waiting.is_empty() || queued_len > 0 {
            // The task limits the time for the rest, and handles errors of the connection.
            *writer = Writer::Stalled;
            if let Some(task) = task.take() {
                task.wake();
            }
        }
    }

    /// Ends the connection after the queued messages have been written. Only the first reason counts.
    pub(crate) fn end(&self, reason: Disconnect) {
        let task = {
            let mut queue = lock(&self.queue);
            if queue.end.is_none() {
                queue.end = Some(reason);
            }
            queue.task.take()
        };
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Whether the connection is being ended.
    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.queue).end.is_some()
    }

    /// Ready when the connection is being ended; otherwise registers the task.
    pub(crate) fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut queue = lock(&self.queue);
        if queue.end.is_some() {
            return Poll::Ready(());
        }
        queue.task = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The bytes that are queued or being written, and those that have been written.
    pub(crate) fn backlog(&self) -> Backlog {
        let queue = lock(&self.queue);
        Backlog { queued: queue.bytes() + queue.writing, written: queue.written }
    }

    /// Moves the queued messages to `into`, or registers the task if there are none. Ready without messages after a
    /// batch has stalled: then its bytes must be flushed.
    pub(crate) fn poll_take(&self, cx: &mut Context<'_>, into: &mut Vec<PreparedMessage>) -> Poll<Taken> {
        let mut queue = lock(&self.queue);
        let is_stalled = matches!(queue.writer, Writer::Stalled);
        if !is_stalled {
            // The task polls again after it has written everything that it took.
            queue.written += std::mem::take(&mut queue.writing) as u64;
        }
        if !queue.waiting.is_empty() || is_stalled {
            queue.writer = Writer::Task;
            queue.writing += queue.bytes();
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
        if queue.sender.is_some() {
            queue.writer = Writer::Batch { is_due: false };
        }
        if !queue.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            queue.task = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// While this exists, batches may write to the connection of this outbox.
pub(crate) struct OpenToBatches<'a>(&'a Outbox);

impl Drop for OpenToBatches<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.0.queue);
        queue.writer = Writer::Task;
        let sender = queue.sender.take();
        drop(queue);
        drop(sender);
    }
}

impl Queue {
    /// The number of bytes of the queued messages.
    fn bytes(&self) -> usize {
        self.len - self.waiting.len() * MESSAGE_COST
    }

    /// Drops the oldest droppable messages until `cost` fits; returns false if it does not fit even then.
    fn make_room(&mut self, cost: usize) -> bool {
        while self.len + cost > self.len_max {
            let Some(oldest) = self.waiting.iter().position(|waiting| waiting.may_drop) else { return false };
            if let Some(waiting) = self.waiting.remove(oldest) {
                self.len -= self::cost(&waiting.message);
            }
        }
        true
    }

    /// Ends a connection that is too slow and drops its messages.
    fn end(&mut self, reason: Disconnect) {
        self.end = Some(reason);
        self.waiting = VecDeque::new();
        self.len = 0;
        if let Some(task) = self.task.take() {
            task.wake();
        }
    }
}

fn cost(message: &PreparedMessage) -> usize {
    message.as_bytes().len() + MESSAGE_COST
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, DuplexStream};
    use wireloom::wireloom_ws::{Role, handshake::Negotiated};
    use wireloom::{WebSocket, WebSocketConfig};

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
        assert_eq!(outbox.publish(text("1"), true), Pushed::Queued);
        assert_eq!(outbox.publish(text("2"), true), Pushed::Queued);
        outbox
    }

    #[test]
    fn disconnects_a_slow_client() {
        let outbox = full(SlowPolicy::Disconnect);
        assert_eq!(outbox.publish(text("3"), true), Pushed::Overflowed);
        assert_eq!(outbox.push(text("4")), Pushed::Ended);
        assert_eq!(take(&outbox), (Poll::Ready(Taken::End(Disconnect::Slow)), vec![]));
    }

    #[test]
    fn drops_the_oldest_publications_and_no_reply() {
        let outbox = full(SlowPolicy::DropOldest);
        assert_eq!(outbox.publish(text("3"), true), Pushed::Dropped);
        assert_eq!(outbox.publish(text("4"), true), Pushed::Dropped);
        assert_eq!(take(&outbox), (Poll::Ready(Taken::Messages), ["r", "3", "4"].map(String::from).to_vec()));
    }

    #[test]
    fn drops_the_newest_publication() {
        let outbox = full(SlowPolicy::DropNewest);
        assert_eq!(outbox.publish(text("3"), true), Pushed::Dropped);
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

    /// A server's WebSocket over a transport that buffers `len` bytes.
    fn open(len: usize) -> (WebSocket, DuplexStream) {
        let (peer, transport) = tokio::io::duplex(len);
        let config = WebSocketConfig::default();
        let socket =
            WebSocket::from_transport(transport, Role::Server, Negotiated::default(), None, config, &[]);
        (socket, peer)
    }

    async fn read(peer: &mut DuplexStream, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        peer.read_exact(&mut bytes).await.unwrap();
        bytes
    }

    #[tokio::test]
    async fn a_batch_writes_while_the_task_waits() {
        let (socket, mut peer) = open(1 << 10);
        let outbox = Outbox::new(1 << 20, SlowPolicy::Disconnect);
        let open = outbox.open_to_batches(socket.split().0);
        assert_eq!(outbox.publish(text("0"), true), Pushed::Queued, "the task has not looked yet");
        assert_eq!(take(&outbox), (Poll::Ready(Taken::Messages), vec!["0".into()]));
        // Until the task has written that, no other task may write.
        outbox.publish(text("1"), true);
        outbox.write();
        assert_eq!(take(&outbox), (Poll::Ready(Taken::Messages), vec!["1".into()]));
        assert_eq!(take(&outbox), (Poll::Pending, vec![]));
        assert_eq!(outbox.push(text("2")), Pushed::Queued);
        assert_eq!(outbox.publish(text("3"), true), Pushed::Unwritten);
        assert_eq!(outbox.publish(text("4"), false), Pushed::Queued);
        outbox.write();
        assert_eq!(read(&mut peer, 9).await, b"\x81\x012\x81\x013\x81\x014");
        assert_eq!(take(&outbox), (Poll::Pending, vec![]));
        drop(open);
        assert_eq!(outbox.publish(text("5"), true), Pushed::Queued);
        outbox.write();
        assert_eq!(take(&outbox), (Poll::Ready(Taken::Messages), vec!["5".into()]));
    }

    #[tokio::test]
    async fn a_batch_leaves_a_full_transport_to_the_task() {
        let (socket, mut peer) = open(4);
        let outbox = Outbox::new(1 << 20, SlowPolicy::Disconnect);
        let (sender, _receiver) = socket.split();
        let mut of_task = sender.clone();
        let _open = outbox.open_to_batches(sender);
        assert_eq!(take(&outbox), (Poll::Pending, vec![]));
        assert_eq!(outbox.publish(text("first"), true), Pushed::Unwritten);
        outbox.write();
        // The task flushes; messages that are queued meanwhile wait for it.
        assert_eq!(take(&outbox), (Poll::Ready(Taken::Messages), vec![]));
        assert_eq!(outbox.publish(text("second"), true), Pushed::Queued);
        outbox.write();
        let (first, flushed) = tokio::join!(read(&mut peer, 7), of_task.flush());
        assert_eq!((&first[..], flushed), (&b"\x81\x05first"[..], Ok(())));
        assert_eq!(take(&outbox), (Poll::Ready(Taken::Messages), vec!["second".into()]));
        assert_eq!(take(&outbox), (Poll::Pending, vec![]));
        assert_eq!(outbox.publish(text("third"), true), Pushed::Unwritten);
    }
}
