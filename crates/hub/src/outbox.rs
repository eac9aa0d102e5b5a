//! The send queue of one connection, bounded in bytes.
//!
//! Pushes that do not fit end the connection as too slow, or are dropped. Replies are never refused: the client's next command
//! [waits](Outbox::poll_room) until they are written. So the queue holds at most `len_max` of pushes, and `len_max` and one reply
//! of replies. As much as of pushes [waits](Outbox::reserve) elsewhere, until histories are read.
//!
//! ```text
//!             all is written                                     the transport is full, or more was queued
//!            +-----------------------------------------------+   +-------------------------------+
//!            v                                               |   |                               v
//!  Batch { is_due: false } ---> Batch { is_due: true } ---> Writing                           Stalled
//!            ^      a publication               write_all()                                      |
//!            |                   poll_take() finds messages                                      |
//!            +------ Task <--------------------------------------------(any but Writing)---------+
//!   poll_take() finds none
//! ```
//!
//! In `Task` the connection's task has messages that it has not written, in `Writing` a batch has: no other task may write then, or
//! messages would be reordered. Nothing is written, woken or dropped while the queue is locked.

mod messages;

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use wireloom::{Fanout, PreparedMessage, Sender};

pub(crate) use self::messages::Run;
use self::messages::{Cost, Kind, Messages, Waiting};
use crate::config::SlowPolicy;
use crate::protocol::Disconnect;
use crate::shards::lock;

/// The cost of a message in addition to its bytes, so that the number of empty messages is bounded too.
const MESSAGE_COST: usize = 64;

/// The length of messages after which the connection's task takes no more at once: it reads the client between two writes, and they are no
/// longer those that may be dropped.
const TAKEN_LEN_MAX: usize = 64 << 10;

/// The capacity, in messages, that an idle connection keeps.
const CAPACITY_KEPT: usize = 16;

/// The send queue of one connection. Any task adds messages. The connection's own task writes them; a
/// [`batch`](crate::batch) writes those of many connections that received the same publication.
#[derive(Debug)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
}

#[derive(Debug)]
struct Queue {
    waiting: Messages,
    /// The cost of the queued messages, replies included.
    len: usize,
    /// The cost of the queued replies. `len - replies_len <= len_max`, except for a single message.
    replies_len: usize,
    /// At most 4 GiB.
    len_max: u32,
    /// Bytes that the connection's task has taken and is writing, at most 4 GiB. They count as written when it polls again.
    writing: u32,
    /// Bytes written.
    written: u64,
    policy: SlowPolicy,
    /// The sender for batches; `None` if they cannot write.
    sender: Option<Sender>,
    writer: Writer,
    /// The number of messages that a batch is writing.
    in_batch: u32,
    /// The waker of the connection's task, while it waits.
    task: Option<Waker>,
    rare: Option<Box<Rare>>,
}

/// Fields that few connections need, boxed.
#[derive(Debug, Default)]
struct Rare {
    /// Why the connection is being ended.
    end: Option<Disconnect>,
    /// The waker of the session, while it waits for room.
    session: Option<Waker>,
    /// The cost of the publications that wait for the reads of histories.
    reserved: usize,
}

impl Rare {
    fn is_empty(&self) -> bool {
        self.end.is_none() && self.session.is_none() && self.reserved == 0
    }
}

/// Which task writes the queued messages.
#[derive(Debug)]
enum Writer {
    /// The connection's task.
    Task,
    /// A batch. `is_due`: a batch has been scheduled.
    Batch { is_due: bool },
    /// A batch, now. `is_awaited`: the connection's task goes on when it is done.
    Writing { is_awaited: bool },
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

/// A batch writes the messages.
#[derive(Debug, PartialEq)]
pub(crate) struct InBatch;

/// The result of taking the messages of an outbox.
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

/// Work for after the unlock: tasks to wake and messages to drop. `Drop` does it, so declare this before the guard: it is then dropped
/// after it.
#[derive(Debug, Default)]
pub(crate) struct Later {
    wakers: Vec<Waker>,
    dropped: Vec<Messages>,
}

impl Drop for Later {
    fn drop(&mut self) {
        self.dropped.clear();
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

impl Outbox {
    pub(crate) fn new(len_max: usize, policy: SlowPolicy) -> Self {
        let len_max = u32::try_from(len_max).unwrap_or(u32::MAX);
        Self {
            queue: Mutex::new(Queue {
                waiting: Messages::default(),
                len: 0,
                replies_len: 0,
                len_max,
                writing: 0,
                written: 0,
                policy,
                sender: None,
                writer: Writer::Task,
                in_batch: 0,
                task: None,
                rare: None,
            }),
        }
    }

    /// Allows batches to write to this connection.
    pub(crate) fn open_to_batches(&self, sender: Sender) {
        let closed = lock(&self.queue).sender.replace(sender);
        drop(closed);
    }

    /// Batches may not write any more.
    pub(crate) fn close_to_batches(&self) {
        let mut queue = lock(&self.queue);
        queue.writer = Writer::Task;
        let sender = queue.sender.take();
        drop(queue);
        drop(sender);
    }

    /// The number of bytes that the connection's transport has accepted; 0 once batches may not write.
    pub(crate) fn bytes_sent(&self) -> u64 {
        let sender = lock(&self.queue).sender.clone();
        sender.map_or(0, |sender| sender.traffic().bytes_sent)
    }

    /// Queues part of the answer to a command, however long the queue is.
    pub(crate) fn reply(&self, message: PreparedMessage, later: &mut Later) {
        self.add(message, Kind::Reply, false, later);
    }

    /// Ready when another command may be answered; otherwise registers the session.
    pub(crate) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut queue = lock(&self.queue);
        if queue.has_room() {
            return Poll::Ready(());
        }
        let old = queue.rare.get_or_insert_default().session.replace(cx.waker().clone());
        drop(queue);
        drop(old);
        Poll::Pending
    }

    /// Reserves room for a publication of this cost that waits for the read of a history: there is as much for all of them together as
    /// for pushes. Returns whether there is room, as for a single one.
    pub(crate) fn reserve(&self, cost: usize) -> bool {
        let mut queue = lock(&self.queue);
        let len_max = queue.len_max();
        let reserved = &mut queue.rare.get_or_insert_default().reserved;
        let has_room = *reserved == 0 || *reserved + cost <= len_max;
        if has_room {
            *reserved += cost;
        }
        has_room
    }

    /// Gives reserved room back.
    pub(crate) fn release(&self, cost: usize) {
        let mut queue = lock(&self.queue);
        if let Some(rare) = &mut queue.rare {
            rare.reserved -= cost;
            queue.rare.take_if(|rare| rare.is_empty());
        }
    }

    /// Queues another message that only this client receives.
    pub(crate) fn push(&self, message: PreparedMessage, later: &mut Later) -> Pushed {
        self.add(message, Kind::Push, false, later)
    }

    /// Queues a message that other clients receive as well.
    pub(crate) fn publish(&self, message: PreparedMessage, may_drop: bool, later: &mut Later) -> Pushed {
        self.add(message, Kind::of(may_drop), true, later)
    }

    /// Queues a run for a batch, as [`publish`](Self::publish) of each of its messages does. `None` if other messages are before it, or not
    /// all of it fits: then nothing is queued.
    pub(crate) fn publish_run(&self, run: &Arc<Run>) -> Option<Pushed> {
        let mut queue = lock(&self.queue);
        if queue.ended().is_some() {
            return Some(Pushed::Ended);
        }
        if !queue.waiting.is_empty() || queue.len + run.cost() > queue.len_max() {
            return None;
        }
        let Writer::Batch { is_due } = &mut queue.writer else { return None };
        let was_due = std::mem::replace(is_due, true);
        queue.len += run.cost();
        queue.waiting.set_run(run.clone());
        Some(if was_due { Pushed::Queued } else { Pushed::Unwritten })
    }

    fn add(&self, message: PreparedMessage, kind: Kind, for_batch: bool, later: &mut Later) -> Pushed {
        let mut queue = lock(&self.queue);
        if queue.ended().is_some() {
            return Pushed::Ended;
        }
        let cost = cost(&message);
        let mut pushed = Pushed::Queued;
        let pushes_len = queue.pushes_len();
        if kind != Kind::Reply && pushes_len + cost > queue.len_max() && pushes_len > 0 {
            let (policy, may_drop) = (queue.policy, kind == Kind::Droppable);
            match policy {
                SlowPolicy::DropOldest if may_drop && queue.make_room(cost) => pushed = Pushed::Dropped,
                // Also where the others cannot be dropped: they must not be, or a batch is writing them.
                SlowPolicy::DropOldest | SlowPolicy::DropNewest if may_drop => return Pushed::Dropped,
                _ => {
                    queue.end(Disconnect::Slow, later);
                    return Pushed::Overflowed;
                }
            }
        }
        queue.len += cost;
        queue.replies_len += if kind == Kind::Reply { cost } else { 0 };
        queue.waiting.push(Waiting { message, kind });
        if let Writer::Batch { is_due } = &mut queue.writer
            && (*is_due || for_batch && pushed == Pushed::Queued)
        {
            return if std::mem::replace(is_due, true) { pushed } else { Pushed::Unwritten };
        }
        if let Writer::Writing { .. } = queue.writer {
            // The task writes it after the batch.
            return pushed;
        }
        // The task takes all messages at once, so one wake-up is enough for all that are queued until it runs.
        later.wakers.extend(queue.task.take());
        pushed
    }

    /// Takes the messages for a batch, and the sender; `None` if the connection's task writes.
    fn begin_batch(&self) -> Option<Batch<'_>> {
        let mut queue = lock(&self.queue);
        let Writer::Batch { is_due } = &mut queue.writer else { return None };
        *is_due = false;
        let sender = queue.sender.take()?;
        queue.writer = Writer::Writing { is_awaited: false };
        let messages = std::mem::take(&mut queue.waiting);
        queue.in_batch = messages.len() as u32;
        Some(Batch { outbox: self, sender, messages })
    }

    /// A batch has sent the first `sent` of its messages, of which `queued_len` bytes are not written yet.
    fn end_batch(&self, sender: Sender, mut messages: Messages, sent: usize, queued_len: usize) {
        let count = messages.len();
        let mut unsent = messages.split_off(sent);
        let Cost { all: sent_cost, replies: sent_replies_cost } = messages.cost();
        let sent_len = sent_cost - messages.len() * MESSAGE_COST;
        messages.clear();
        let mut queue = lock(&self.queue);
        let writing = queued_len.min(sent_len);
        queue.writing = u32::try_from(writing).unwrap_or(u32::MAX);
        queue.written += (sent_len - writing) as u64;
        // A connection that was ended as too slow has dropped its messages.
        if std::mem::take(&mut queue.in_batch) as usize == count {
            queue.len -= sent_cost;
            queue.replies_len -= sent_replies_cost;
            unsent.append(&mut queue.waiting);
            std::mem::swap(&mut queue.waiting, &mut unsent);
        }
        if queue.waiting.is_empty() && messages.capacity() <= CAPACITY_KEPT {
            std::mem::swap(&mut queue.waiting, &mut messages);
        }
        let (is_open, is_awaited) = match queue.writer {
            Writer::Writing { is_awaited } => (true, is_awaited),
            _ => (false, false),
        };
        let session = queue.wakes_session();
        let mut closed = None;
        if is_open {
            queue.writer = Writer::Batch { is_due: false };
            queue.sender = Some(sender);
        } else {
            closed = Some(sender);
        }
        let mut task = None;
        if !queue.waiting.is_empty() || queued_len > 0 || queue.ended().is_some() {
            if is_open {
                // The task limits the time for the rest, and handles errors of the connection.
                queue.writer = Writer::Stalled;
            }
            task = queue.task.take();
        } else if is_awaited {
            task = queue.task.take();
        }
        drop(queue);
        drop((closed, messages, unsent));
        [task, session].into_iter().flatten().for_each(Waker::wake);
    }

    /// Ends the connection after the queued messages have been written. Only the first reason counts.
    pub(crate) fn end(&self, reason: Disconnect) {
        let wakers = {
            let mut queue = lock(&self.queue);
            queue.rare.get_or_insert_default().end.get_or_insert(reason);
            [queue.task.take(), queue.take_session()]
        };
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Why the connection is being ended.
    pub(crate) fn ended(&self) -> Option<Disconnect> {
        lock(&self.queue).ended().cloned()
    }

    /// Wakes the task of the connection.
    pub(crate) fn wake(&self) {
        let task = lock(&self.queue).task.take();
        task.into_iter().for_each(Waker::wake);
    }

    /// Whether the connection is being ended.
    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.queue).ended().is_some()
    }

    /// Ready with the reason when the connection is being ended; otherwise registers the task.
    pub(crate) fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<Disconnect> {
        let mut queue = lock(&self.queue);
        if let Some(reason) = queue.ended() {
            return Poll::Ready(reason.clone());
        }
        let old = queue.register(cx);
        drop(queue);
        drop(old);
        Poll::Pending
    }

    /// The bytes that are queued or being written, and those that have been written.
    pub(crate) fn backlog(&self) -> Backlog {
        let queue = lock(&self.queue);
        Backlog { queued: queue.bytes() + queue.writing as usize, written: queue.written }
    }

    /// Moves the first queued messages to `into`, or registers the task if there are none. Ready without messages after a
    /// batch has stalled: then its bytes must be flushed.
    pub(crate) fn poll_take(&self, cx: &mut Context<'_>, into: &mut Vec<PreparedMessage>) -> Poll<Taken> {
        self.poll_take_after_batch(cx, into).unwrap_or(Poll::Pending)
    }

    /// The same, which says whether a batch writes at the moment: the task is woken when it is done.
    ///
    /// # Errors
    /// A batch writes.
    pub(crate) fn poll_take_after_batch(
        &self,
        cx: &mut Context<'_>,
        into: &mut Vec<PreparedMessage>,
    ) -> Result<Poll<Taken>, InBatch> {
        let mut queue = lock(&self.queue);
        if let Writer::Writing { is_awaited } = &mut queue.writer {
            *is_awaited = true;
            let old = queue.register(cx);
            drop(queue);
            drop(old);
            return Err(InBatch);
        }
        let is_stalled = matches!(queue.writer, Writer::Stalled);
        if !is_stalled {
            // The task polls again after it has written everything that it took.
            queue.written += u64::from(std::mem::take(&mut queue.writing));
        }
        if !queue.waiting.is_empty() || is_stalled {
            queue.writer = Writer::Task;
            let mut taken_len = 0;
            while taken_len < TAKEN_LEN_MAX
                && let Some(Waiting { message, kind }) = queue.waiting.pop()
            {
                taken_len += message.as_bytes().len();
                queue.len -= cost(&message);
                queue.replies_len -= if kind == Kind::Reply { cost(&message) } else { 0 };
                into.push(message);
            }
            queue.writing = queue.writing.saturating_add(u32::try_from(taken_len).unwrap_or(u32::MAX));
            if queue.waiting.is_empty() && queue.waiting.capacity() > CAPACITY_KEPT {
                queue.waiting = Messages::default();
            }
            if let Some(session) = queue.wakes_session() {
                drop(queue);
                session.wake();
            }
            return Ok(Poll::Ready(Taken::Messages));
        }
        if let Some(end) = queue.ended() {
            return Ok(Poll::Ready(Taken::End(end.clone())));
        }
        if queue.sender.is_some() {
            queue.writer = Writer::Batch { is_due: false };
        }
        let old = queue.register(cx);
        drop(queue);
        drop(old);
        Ok(Poll::Pending)
    }
}

/// Writes the messages of each outbox until its transport is full, unless the connection's task writes.
pub(crate) fn write_all<'a>(outboxes: impl IntoIterator<Item = &'a Outbox>) {
    let mut batches: Vec<_> = outboxes.into_iter().filter_map(Outbox::begin_batch).collect();
    let mut fanout = Fanout::default();
    for Batch { sender, messages, .. } in &mut batches {
        fanout.push(sender, messages.iter());
    }
    let deliveries = fanout.try_send();
    for (batch, delivery) in batches.into_iter().zip(deliveries) {
        // The task handles errors of the connection.
        let (sent, queued_len) = delivery.map_or((0, 0), |delivery| (delivery.sent, delivery.queued_len));
        let Batch { outbox, sender, messages } = batch;
        outbox.end_batch(sender, messages, sent, queued_len);
    }
}

/// The messages of an outbox that a batch writes.
struct Batch<'a> {
    outbox: &'a Outbox,
    sender: Sender,
    messages: Messages,
}

impl Queue {
    /// The number of bytes of the queued messages.
    fn bytes(&self) -> usize {
        self.len - (self.waiting.len() + self.in_batch as usize) * MESSAGE_COST
    }

    fn len_max(&self) -> usize {
        self.len_max as usize
    }

    /// Whether another command may be answered.
    fn has_room(&self) -> bool {
        self.replies_len <= self.len_max() || self.ended().is_some()
    }

    /// The session that waits, to wake after the unlock, if it may go on.
    #[must_use]
    fn wakes_session(&mut self) -> Option<Waker> {
        if self.has_room() { self.take_session() } else { None }
    }

    fn take_session(&mut self) -> Option<Waker> {
        self.rare.as_mut()?.session.take()
    }

    /// Why the connection is being ended.
    fn ended(&self) -> Option<&Disconnect> {
        self.rare.as_ref()?.end.as_ref()
    }

    /// The cost of the queued messages that are no replies.
    fn pushes_len(&self) -> usize {
        self.len - self.replies_len
    }

    /// Drops the oldest droppable messages until `cost` fits; returns false, and drops none, if it does not fit even then.
    fn make_room(&mut self, cost: usize) -> bool {
        if self.pushes_len() - self.waiting.droppable_cost() + cost > self.len_max() {
            return false;
        }
        while self.pushes_len() + cost > self.len_max() {
            let Some(oldest) = self.waiting.remove_droppable() else { return false };
            self.len -= self::cost(&oldest.message);
        }
        true
    }

    /// Registers the task. Returns the waker that it replaces, to drop after the unlock.
    #[must_use]
    fn register(&mut self, cx: &Context<'_>) -> Option<Waker> {
        if self.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            return None;
        }
        self.task.replace(cx.waker().clone())
    }

    /// Ends a connection that is too slow and drops its messages.
    fn end(&mut self, reason: Disconnect, later: &mut Later) {
        self.rare.get_or_insert_default().end = Some(reason);
        (self.len, self.replies_len) = (0, 0);
        self.in_batch = 0;
        later.wakers.extend(self.task.take());
        later.wakers.extend(self.take_session());
        later.dropped.push(std::mem::take(&mut self.waiting));
    }
}

/// The cost of a message in a queue, in bytes.
pub(crate) fn cost(message: &PreparedMessage) -> usize {
    message.as_bytes().len() + MESSAGE_COST
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
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
        assert_eq!(outbox.push(text("r"), &mut Later::default()), Pushed::Queued);
        assert_eq!(outbox.publish(text("1"), true, &mut Later::default()), Pushed::Queued);
        assert_eq!(outbox.publish(text("2"), true, &mut Later::default()), Pushed::Queued);
        outbox
    }

    #[test]
    fn disconnects_a_slow_client() {
        let outbox = full(SlowPolicy::Disconnect);
        assert_eq!(outbox.publish(text("3"), true, &mut Later::default()), Pushed::Overflowed);
        assert_eq!(outbox.push(text("4"), &mut Later::default()), Pushed::Ended);
        assert_eq!(take(&outbox), (Poll::Ready(Taken::End(Disconnect::Slow)), vec![]));
    }

    #[test]
    fn drops_the_oldest_publications_and_no_reply() {
        let outbox = full(SlowPolicy::DropOldest);
        assert_eq!(outbox.publish(text("3"), true, &mut Later::default()), Pushed::Dropped);
        assert_eq!(outbox.publish(text("4"), true, &mut Later::default()), Pushed::Dropped);
        assert_eq!(take(&outbox), (Poll::Ready(Taken::Messages), ["r", "3", "4"].map(String::from).to_vec()));
    }

    #[test]
    fn drops_the_newest_publication() {
        let outbox = full(SlowPolicy::DropNewest);
        assert_eq!(outbox.publish(text("3"), true, &mut Later::default()), Pushed::Dropped);
        assert_eq!(take(&outbox), (Poll::Ready(Taken::Messages), ["r", "1", "2"].map(String::from).to_vec()));
    }

    #[test]
    fn disconnects_when_a_message_that_must_not_be_dropped_does_not_fit() {
        for policy in [SlowPolicy::DropOldest, SlowPolicy::DropNewest, SlowPolicy::Disconnect] {
            assert_eq!(full(policy).push(text("3"), &mut Later::default()), Pushed::Overflowed, "{policy:?}");
        }
    }

    #[tokio::test]
    async fn drops_a_publication_that_nothing_makes_room_for() {
        let len_max = MESSAGE_COST + 1;
        let outbox = Outbox::new(len_max, SlowPolicy::DropOldest);
        assert_eq!(outbox.push(text("1"), &mut Later::default()), Pushed::Queued);
        assert_eq!(outbox.publish(text("2"), true, &mut Later::default()), Pushed::Dropped);
        assert_eq!(take(&outbox), (Poll::Ready(Taken::Messages), vec!["1".into()]));
        // Nothing is dropped in vain.
        let outbox = Outbox::new(3 * len_max, SlowPolicy::DropOldest);
        assert_eq!(outbox.push(text("1"), &mut Later::default()), Pushed::Queued);
        assert_eq!(outbox.publish(text("2"), true, &mut Later::default()), Pushed::Queued);
        assert_eq!(
            outbox.publish(text(&"3".repeat(2 * len_max)), true, &mut Later::default()),
            Pushed::Dropped
        );
        assert_eq!(take(&outbox), (Poll::Ready(Taken::Messages), vec!["1".into(), "2".into()]));
        // A batch writes all that could be dropped.
        let (socket, _peer) = open(1 << 10);
        let outbox = Outbox::new(len_max, SlowPolicy::DropOldest);
        outbox.open_to_batches(socket.split().0);
        assert_eq!(take(&outbox), (Poll::Pending, vec![]));
        assert_eq!(outbox.publish(text("1"), true, &mut Later::default()), Pushed::Unwritten);
        let Batch { sender, messages, .. } = outbox.begin_batch().unwrap();
        assert_eq!(outbox.publish(text("2"), true, &mut Later::default()), Pushed::Dropped);
        outbox.end_batch(sender, messages, 0, 0);
        assert_eq!(take(&outbox), (Poll::Ready(Taken::Messages), vec!["1".into()]));
    }

    #[test]
    fn replies_take_no_room_of_pushes_and_hold_up_the_next_command() {
        let outbox = full(SlowPolicy::Disconnect);
        let has_room = || outbox.poll_room(&mut Context::from_waker(Waker::noop())).is_ready();
        for expected in [true, true, true, false] {
            outbox.reply(text("1"), &mut Later::default());
            assert_eq!(has_room(), expected);
        }
        assert_eq!(take(&outbox).1.len(), 7);
        assert!(has_room());
        outbox.reply(text(&"x".repeat(1000)), &mut Later::default());
        assert!(!has_room());
        // Pushes still have what they had.
        for _ in 0..3 {
            assert_eq!(outbox.publish(text("1"), true, &mut Later::default()), Pushed::Queued);
        }
        assert_eq!(outbox.publish(text("1"), true, &mut Later::default()), Pushed::Overflowed);
        // A session does not wait for a connection that has ended.
        assert!(has_room());
    }

    #[test]
    fn a_session_is_woken_when_its_replies_are_taken() {
        struct Count(AtomicUsize);

        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }

        let outbox = Outbox::new(10, SlowPolicy::Disconnect);
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
        let frees: [fn(&Outbox); 2] = [|outbox| drop(take(outbox)), |outbox| outbox.end(Disconnect::Slow)];
        for (turn, free) in frees.into_iter().enumerate() {
            outbox.reply(text("1"), &mut Later::default());
            assert!(outbox.poll_room(&mut Context::from_waker(&waker)).is_pending());
            free(&outbox);
            assert_eq!(count.0.load(Ordering::Relaxed), turn + 1);
        }
    }

    #[test]
    fn takes_one_message_of_any_length() {
        let outbox = Outbox::new(10, SlowPolicy::Disconnect);
        assert_eq!(outbox.push(text(&"x".repeat(1000)), &mut Later::default()), Pushed::Queued);
    }

    #[test]
    fn counts_what_is_queued_and_what_is_being_written() {
        let outbox = full(SlowPolicy::DropNewest);
        assert_eq!(outbox.backlog(), Backlog { queued: 3, written: 0 });
        assert_eq!(take(&outbox).0, Poll::Ready(Taken::Messages));
        outbox.push(text("next"), &mut Later::default());
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
        outbox.open_to_batches(socket.split().0);
        assert_eq!(
            outbox.publish(text("0"), true, &mut Later::default()),
            Pushed::Queued,
            "the task has not looked yet"
        );
        assert_eq!(take(&outbox), (Poll::Ready(Taken::Messages), vec!["0".into()]));
        // Until the task has written that, no other task may write.
        outbox.publish(text("1"), true, &mut Later::default());
        write_all([&outbox]);
        assert_eq!(take(&outbox), (Poll::Ready(Taken::Messages), vec!["1".into()]));
        assert_eq!(take(&outbox), (Poll::Pending, vec![]));
        assert_eq!(outbox.push(text("2"), &mut Later::default()), Pushed::Queued);
        assert_eq!(outbox.publish(text("3"), true, &mut Later::default()), Pushed::Unwritten);
        assert_eq!(outbox.publish(text("4"), false, &mut Later::default()), Pushed::Queued);
        write_all([&outbox]);
        assert_eq!(read(&mut peer, 9).await, b"\x81\x012\x81\x013\x81\x014");
        assert_eq!(take(&outbox), (Poll::Pending, vec![]));
        outbox.close_to_batches();
        assert_eq!(outbox.publish(text("5"), true, &mut Later::default()), Pushed::Queued);
        write_all([&outbox]);
        assert_eq!(take(&outbox), (Poll::Ready(Taken::Messages), vec!["5".into()]));
    }

    #[tokio::test]
    async fn a_run_is_queued_where_a_batch_writes_all_of_it() {
        let (socket, mut peer) = open(1 << 10);
        let outbox = Outbox::new(2 * (MESSAGE_COST + 1), SlowPolicy::DropOldest);
        let run = |len: usize| {
            let messages = (0..len).map(|number| text(&number.to_string())).collect();
            Arc::new(Run::new(messages, true))
        };
        assert_eq!(outbox.publish_run(&run(2)), None, "the task writes");
        outbox.open_to_batches(socket.split().0);
        assert_eq!(take(&outbox), (Poll::Pending, vec![]));
        assert_eq!(outbox.publish_run(&run(3)), None, "too long");
        assert_eq!(outbox.publish_run(&run(2)), Some(Pushed::Unwritten));
        assert_eq!(outbox.publish_run(&run(1)), None, "others are before it");
        assert_eq!(outbox.backlog(), Backlog { queued: 2, written: 0 });
        assert_eq!(outbox.publish(text("2"), true, &mut Later::default()), Pushed::Dropped);
        write_all([&outbox]);
        assert_eq!(read(&mut peer, 6).await, b"\x81\x011\x81\x012");
        assert_eq!(outbox.publish_run(&run(2)), Some(Pushed::Unwritten));
        write_all([&outbox]);
        assert_eq!(read(&mut peer, 6).await, b"\x81\x010\x81\x011");
        assert_eq!(outbox.backlog(), Backlog { queued: 0, written: 4 });
        assert_eq!(outbox.publish_run(&run(2)), Some(Pushed::Unwritten));
        assert_eq!(take(&outbox), (Poll::Ready(Taken::Messages), vec!["0".into(), "1".into()]));
        outbox.end(Disconnect::Shutdown);
        assert_eq!(outbox.publish_run(&run(2)), Some(Pushed::Ended));
    }

    #[tokio::test]
    async fn what_is_queued_while_a_batch_writes_is_left_to_the_task() {
        let (socket, mut peer) = open(1 << 10);
        let outbox = Outbox::new(1 << 20, SlowPolicy::Disconnect);
        outbox.open_to_batches(socket.split().0);
        assert_eq!(take(&outbox), (Poll::Pending, vec![]));
        assert_eq!(outbox.publish(text("1"), true, &mut Later::default()), Pushed::Unwritten);
        let Batch { mut sender, messages, .. } = outbox.begin_batch().unwrap();
        assert_eq!(outbox.publish(text("2"), true, &mut Later::default()), Pushed::Queued);
        assert_eq!(outbox.backlog(), Backlog { queued: 2, written: 0 });
        write_all([&outbox]);
        assert_eq!(take(&outbox), (Poll::Pending, vec![]), "another task writes");
        let sent = sender.try_send_all(messages.iter()).unwrap();
        outbox.end_batch(sender, messages, sent, 0);
        assert_eq!(read(&mut peer, 3).await, b"\x81\x011");
        assert_eq!(outbox.backlog(), Backlog { queued: 1, written: 1 });
        assert_eq!(take(&outbox), (Poll::Ready(Taken::Messages), vec!["2".into()]));
        assert_eq!(take(&outbox), (Poll::Pending, vec![]));
        // A connection that is ended meanwhile.
        for (reason, left) in [(Disconnect::Slow, 0), (Disconnect::Shutdown, 1)] {
            outbox.publish(text("3"), true, &mut Later::default());
            let Batch { sender, messages, .. } = outbox.begin_batch().unwrap();
            if left == 0 {
                let mut later = Later::default();
                lock(&outbox.queue).end(reason, &mut later);
            }
            outbox.end_batch(sender, messages, 0, 0);
            assert_eq!(outbox.backlog().queued, left);
            lock(&outbox.queue).rare = None;
            assert_eq!(take(&outbox).1.len(), left);
            assert_eq!(take(&outbox), (Poll::Pending, vec![]));
        }
        // One that is closed meanwhile.
        outbox.publish(text("4"), true, &mut Later::default());
        let Batch { sender, messages, .. } = outbox.begin_batch().unwrap();
        outbox.close_to_batches();
        outbox.end_batch(sender, messages, 0, 0);
        assert_eq!(take(&outbox), (Poll::Ready(Taken::Messages), vec!["4".into()]));
        assert_eq!(outbox.publish(text("5"), true, &mut Later::default()), Pushed::Queued);
    }

    // An executor that polls the task in place, or drops it with its last waker.
    #[test]
    fn wakers_may_use_the_outbox() {
        struct CallBack(Arc<Outbox>, Arc<AtomicUsize>);

        impl CallBack {
            fn call(&self) {
                let _ = self.0.backlog();
                self.1.fetch_add(1, Ordering::Relaxed);
            }
        }

        impl Wake for CallBack {
            fn wake(self: Arc<Self>) {
                self.call();
            }
        }

        impl Drop for CallBack {
            fn drop(&mut self) {
                self.call();
            }
        }

        let outbox = Arc::new(Outbox::new(MESSAGE_COST + 1, SlowPolicy::Disconnect));
        let calls = Arc::new(AtomicUsize::new(0));
        let wait = || {
            let waker = Waker::from(Arc::new(CallBack(outbox.clone(), calls.clone())));
            assert!(outbox.poll_ended(&mut Context::from_waker(&waker)).is_pending());
        };
        wait();
        // Replaces it.
        wait();
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        outbox.push(text("1"), &mut Later::default());
        assert_eq!(calls.load(Ordering::Relaxed), 3);
        wait();
        assert_eq!(outbox.push(text("2"), &mut Later::default()), Pushed::Overflowed);
        assert_eq!(calls.load(Ordering::Relaxed), 5);
    }

    #[tokio::test]
    async fn a_batch_leaves_a_full_transport_to_the_task() {
        let (socket, mut peer) = open(4);
        let outbox = Outbox::new(1 << 20, SlowPolicy::Disconnect);
        let (sender, _receiver) = socket.split();
        let mut of_task = sender.clone();
        outbox.open_to_batches(sender);
        assert_eq!(take(&outbox), (Poll::Pending, vec![]));
        assert_eq!(outbox.publish(text("first"), true, &mut Later::default()), Pushed::Unwritten);
        write_all([&outbox]);
        // The task flushes; messages that are queued meanwhile wait for it.
        assert_eq!(take(&outbox), (Poll::Ready(Taken::Messages), vec![]));
        assert_eq!(outbox.publish(text("second"), true, &mut Later::default()), Pushed::Queued);
        write_all([&outbox]);
        let (first, flushed) = tokio::join!(read(&mut peer, 7), of_task.flush());
        assert_eq!((&first[..], flushed), (&b"\x81\x05first"[..], Ok(())));
        assert_eq!(take(&outbox), (Poll::Ready(Taken::Messages), vec!["second".into()]));
        assert_eq!(take(&outbox), (Poll::Pending, vec![]));
        assert_eq!(outbox.publish(text("third"), true, &mut Later::default()), Pushed::Unwritten);
    }
}
