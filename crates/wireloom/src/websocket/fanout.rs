//! Messages to many WebSockets at once. Where a WebSocket of a server has an empty send queue and is on TCP or TLS, the frames are written
//! from where they are, and not copied into its queue; with io_uring, those of many WebSockets in one system call.
//!
//! ```text
//! for each member: lock -> frames -+-> plain write -------------------------------------+-> queue the rest, flush -> unlock
//!                                  '-> TLS records -> submission of up to 32 -> results-'
//! ```
//!
//! While the members of a submission are locked, further ones are locked only if that does not wait. So two threads that send to
//! the same members in different orders do not wait for each other; the members that were locked receive their messages afterwards.

use std::io;
use std::ops::Range;

use wireloom_ws::{Outbound, PreparedFrame};

use super::config::IoUring;
use super::prepared::PreparedMessage;
use super::sender::{Sender, flush_now};
use super::state::State;
use crate::error::WebSocketError;
use crate::guard::Guard;
use crate::transport::ring;

/// A shorter submission does not pay: it costs a system call more than it saves.
const SUBMISSION_LEN_MIN: usize = 4;

/// TLS records of one submission, in bytes. Members stay locked while those of others are encrypted.
const RECORDS_LEN_MAX: usize = 128 << 10;

/// Frames that are longer together, in bytes, are encrypted and written for one member after the other.
const ENCRYPTED_LEN_MAX: usize = RECORDS_LEN_MAX / 8;

/// Frames that are longer together, in bytes, are not copied behind each other, but into the send queue of each member.
const JOINED_LEN_MAX: usize = 256 << 10;

/// Different runs of frames that are kept behind each other. Members choose how many there are, by what they have negotiated.
const JOINED_MAX: usize = 8;

/// Messages for many WebSockets, to send at once: for the subscribers of a channel. This costs less than a
/// [`try_send_all`](Sender::try_send_all) for each of them, and does the same.
///
/// Members that receive the same messages share their frames, which are written from where they are. On Linux 6.1 and later, the writes to
/// many connections over TCP and TLS are one system call, by io_uring ([`WebSocketConfig::io_uring`](super::WebSocketConfig::io_uring)).
///
/// ```
/// use wireloom::{Fanout, PreparedMessage, Sender};
///
/// fn publish(subscribers: &mut [Sender], message: &PreparedMessage) {
///     let mut fanout = Fanout::default();
///     for subscriber in subscribers {
///         fanout.push(subscriber, [message]);
///     }
///     for delivery in fanout.try_send() {
///         match delivery {
///             Ok(delivery) if delivery.sent == 1 => {}
///             Ok(_) => println!("a subscriber is slow"),
///             Err(error) => println!("a subscriber has gone: {error}"),
///         }
///     }
/// }
/// ```
#[derive(Default)]
pub struct Fanout<'a> {
    members: Vec<Member<'a>>,
    messages: Vec<&'a PreparedMessage>,
}

struct Member<'a> {
    sender: &'a mut Sender,
    /// The place of its messages among those of all members.
    messages: Range<usize>,
}

/// The result of the messages for one WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivery {
    /// The number of messages that were sent, from the first on. The send queue had no room for the others.
    pub sent: usize,
    /// Bytes that are queued for writing, as [`Sender::queued_len`] returns.
    pub queued_len: usize,
}

impl<'a> Fanout<'a> {
    /// Adds a WebSocket, and its messages in their order. Messages that are added with another clone of its sender may overtake them.
    pub fn push(&mut self, sender: &'a mut Sender, messages: impl IntoIterator<Item = &'a PreparedMessage>) {
        let first = self.messages.len();
        self.messages.extend(messages);
        self.members.push(Member { sender, messages: first..self.messages.len() });
    }

    /// Sends the messages of each WebSocket, as [`Sender::try_send_all`] does: until its send queue is full. The results are in the order of the
    /// calls of [`push`](Self::push); the errors are those of [`Sender::send`].
    pub fn try_send(self) -> Vec<Result<Delivery, WebSocketError>> {
        let Self { members, messages } = self;
        let mut submission = Submission { deliveries: vec![None; members.len()], ..Submission::default() };
        // Before anything is locked.
        let has_ring = members.len() >= SUBMISSION_LEN_MIN && ring::is_usable();
        for (index, member) in members.iter().enumerate() {
            let messages = &messages[member.messages.clone()];
            let Some(mut direct) = submission.prepare(member.sender, messages) else { continue };
            if has_ring && submission.fits(&direct) {
                submission.push(index, direct);
            } else {
                let written = direct.write(submission.bytes(&direct.frames));
                submission.deliveries[index] = Some(direct.finish(&submission.frames, written));
            }
        }
        submission.write();
        let deliveries = std::mem::take(&mut submission.deliveries);
        drop(submission);
        let all = members.into_iter().zip(deliveries).map(|(member, delivery)| {
            delivery.unwrap_or_else(|| {
                let sent = member.sender.try_send_all(messages[member.messages].iter().copied())?;
                Ok(Delivery { sent, queued_len: member.sender.queued_len() })
            })
        });
        all.collect()
    }
}

/// Members whose frames are written directly.
#[derive(Default)]
struct Submission<'m> {
    /// The results of all members, once there are any.
    deliveries: Vec<Option<Result<Delivery, WebSocketError>>>,
    /// The members of the next submission to a ring, with their places among all.
    locked: Vec<(usize, Direct<'m>)>,
    /// The frames of all members.
    frames: Vec<&'m PreparedFrame>,
    /// Several frames behind each other.
    joined: Vec<Joined>,
    /// The messages of the last member that does not compress, and their frames: many members receive the same ones.
    last: Option<(&'m [&'m PreparedMessage], Frames)>,
    /// The TLS records of the locked members.
    records: Vec<u8>,
}

/// The frames of a member.
#[derive(Clone)]
struct Frames {
    /// Their places among those of the submission.
    range: Range<usize>,
    /// Their length in bytes.
    len: usize,
    /// The place of their bytes among `joined`; `None` for a single frame.
    joined: Option<usize>,
}

struct Joined {
    /// The frames of the first member that they are for.
    frames: Range<usize>,
    bytes: Vec<u8>,
}

/// A locked WebSocket to which frames are written directly.
struct Direct<'m> {
    state: Guard<'m, State>,
    frames: Frames,
    /// The TLS records that are written in place of the frames' bytes.
    records: Option<Records>,
}

/// TLS records of a member.
struct Records {
    /// Their place among those of the submission.
    place: Range<usize>,
    /// The bytes that they contain.
    content: io::Result<usize>,
}

impl<'m> Submission<'m> {
    /// Locks a WebSocket to which these messages can be written directly; `None` if they have to be queued, or another thread has locked it.
    /// May write the submission before.
    fn prepare(&mut self, sender: &'m Sender, messages: &'m [&'m PreparedMessage]) -> Option<Direct<'m>> {
        let state = sender.shared.try_lock()?;
        if messages.is_empty() || !state.can_write_prepared() {
            return None;
        }
        let core = &state.session.core;
        let compresses = core.is_compressed();
        let known = self.last.as_ref().filter(|(of, _)| !compresses && are_same(of, messages));
        let frames = match known {
            Some((_, frames)) => frames.clone(),
            None => self.frames(core, messages),
        };
        // Of more, a part would be written before the rest is queued.
        if frames.len > core.queued_len_high() || messages.len() > 1 && frames.joined.is_none() {
            return None;
        }
        if !compresses {
            self.last = Some((messages, frames.clone()));
        }
        Some(Direct { state, frames, records: None })
    }

    /// The frames of messages for this member, joined unless they are too long for that. May write the submission before.
    fn frames(&mut self, core: &Outbound, messages: &[&'m PreparedMessage]) -> Frames {
        if !messages.iter().all(|message| message.is_ready(core)) {
            // No other member waits for the compression.
            self.write();
        }
        let first = self.frames.len();
        self.frames.extend(messages.iter().map(|message| message.frame(core)));
        let mut range = first..self.frames.len();
        let len: usize = self.frames[range.clone()].iter().map(|frame| frame.as_bytes().len()).sum();
        if messages.len() == 1 || len > JOINED_LEN_MAX {
            return Frames { range, len, joined: None };
        }
        let frames = &self.frames[range.clone()];
        let known =
            self.joined.iter().position(|joined| are_same(&self.frames[joined.frames.clone()], frames));
        let joined = known.unwrap_or_else(|| {
            if self.joined.len() == JOINED_MAX {
                self.write();
                self.joined.clear();
                self.last = None;
                self.frames.drain(..first);
                range = 0..self.frames.len();
            }
            let mut bytes = Vec::with_capacity(len);
            self.frames[range.clone()].iter().for_each(|frame| bytes.extend_from_slice(frame.as_bytes()));
            self.joined.push(Joined { bytes, frames: range.clone() });
            self.joined.len() - 1
        });
        Frames { range, len, joined: Some(joined) }
    }

    fn bytes(&self, frames: &Frames) -> &[u8] {
        match frames.joined {
            Some(joined) => &self.joined[joined].bytes,
            None => self.frames[frames.range.start].as_bytes(),
        }
    }

    /// Whether the frames of this member may be written together with those of others.
    fn fits(&self, direct: &Direct<'m>) -> bool {
        let is_short = !direct.state.link.io.encrypts() || direct.frames.len <= ENCRYPTED_LEN_MAX;
        is_short && direct.state.config.io_uring != IoUring::Off
    }

    /// Adds a locked member. May write the submission.
    fn push(&mut self, index: usize, mut direct: Direct<'m>) {
        let mut records = std::mem::take(&mut self.records);
        let start = records.len();
        let bytes = self.bytes(&direct.frames);
        if let Some(content) = direct.state.link.io.encrypt(bytes, &mut records).transpose() {
            direct.records = Some(Records { place: start..records.len(), content });
        }
        self.records = records;
        self.locked.push((index, direct));
        if self.locked.len() == ring::WRITES_MAX || self.records.len() >= RECORDS_LEN_MAX {
            self.write();
        }
    }

    /// Writes to the locked members, and unlocks them.
    fn write(&mut self) {
        let mut locked = std::mem::take(&mut self.locked);
        let writes: Option<Vec<_>> = match locked.len() {
            ..SUBMISSION_LEN_MIN => None,
            _ => locked.iter().map(|(_, direct)| self.ring_write(direct)).collect(),
        };
        let mut outcomes = writes.map_or_else(Vec::new, |writes| ring::write(&writes)).into_iter();
        for (index, mut direct) in locked.drain(..) {
            let written = match (direct.records.take(), outcomes.next().flatten()) {
                (Some(records), outcome) => direct.finish_records(records, outcome),
                (None, Some(written)) => written,
                (None, None) => direct.write(self.bytes(&direct.frames)),
            };
            self.deliveries[index] = Some(direct.finish(&self.frames, written));
        }
        self.locked = locked;
        self.records.clear();
    }

    fn ring_write<'w>(&'w self, direct: &'w Direct<'m>) -> Option<ring::Write<'w>> {
        let bytes = match &direct.records {
            Some(records) => &self.records[records.place.clone()],
            None => self.bytes(&direct.frames),
        };
        Some(ring::Write { socket: direct.state.link.io.socket()?, bytes })
    }
}

/// Whether these are references to the same values.
fn are_same<T>(one: &[&T], other: &[&T]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| std::ptr::eq(*one, *other))
}

impl<'m> Direct<'m> {
    /// Writes once.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.state.link.try_write(&[bytes])
    }

    /// Returns what the transport has accepted. The flush that follows writes the other records.
    fn finish_records(&mut self, records: Records, outcome: ring::Outcome) -> io::Result<usize> {
        let content = records.content?;
        match outcome {
            Some(Ok(len)) => self.state.link.io.records_written(len),
            Some(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
        Ok(content)
    }

    /// Queues what the transport has not accepted, and unlocks.
    fn finish(
        mut self,
        frames: &[&'m PreparedFrame],
        written: io::Result<usize>,
    ) -> Result<Delivery, WebSocketError> {
        let Frames { range, len, .. } = self.frames.clone();
        let sent = self.state.finish_prepared(&frames[range], len, written)?;
        flush_now(&mut self.state)?;
        Ok(Delivery { sent, queued_len: self.state.session.core.queued_len() })
    }
}
