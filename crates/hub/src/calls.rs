//! Calls between the nodes of a cluster, over the engine that they share.
//!
//! ```text
//! Node::call -> Engine::send_to_node -> Delivery::deliver_from_node -> answer -> Engine::send_to_node -> the waiting call
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use crate::sessions::Delivered;
use crate::shards::lock;

/// How long another node may take to answer.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The sum of the names in a part of an answer, in bytes. In JSON they are at most six times as long, and below `max_payload` of NATS.
const PART_LEN: usize = 128 << 10;

/// The maximum length of a node's name.
const NAME_LEN_MAX: usize = 64;

/// A message between nodes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    Call {
        id: u64,
        from: String,
        call: Call,
    },
    /// A part of an answer, from 0 on.
    Answer {
        id: u64,
        part: usize,
        is_last: bool,
        answer: Answer,
    },
}

/// A call from one node to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Call {
    /// Commands for a session of the other node.
    Emulate { session: String, commands: Payload },
    /// The channels with subscribers, and the numbers of these, as a [`ChannelList`].
    Channels { pattern: String, len_max: usize },
    /// The figures of the node.
    Info,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Emulated(Delivered),
    Channels(BTreeMap<String, usize>),
    /// The channels are more than were asked for.
    TooMany,
    Info(NodeInfo),
    /// There is an answer that could not be sent, such as one that is too long for the engine.
    Failed(String),
}

/// Channels and their numbers of subscribers, while these fit into a reply of the server API.
#[derive(Debug)]
pub(crate) struct ChannelList {
    channels: BTreeMap<String, usize>,
    /// The length of what may be added, in bytes of JSON.
    room: usize,
}

impl ChannelList {
    /// The least length of a channel in a reply, without its name, in bytes.
    pub(crate) const ENTRY_LEN: usize = r#""":{"num_clients":1},"#.len();

    pub(crate) fn new(len_max: usize) -> Self {
        Self { channels: BTreeMap::new(), room: len_max }
    }

    /// Adds subscribers of a channel. Returns whether there was room for it.
    pub(crate) fn add(&mut self, name: &str, subscribers: usize) -> bool {
        if let Some(known) = self.channels.get_mut(name) {
            *known += subscribers;
            return true;
        }
        let room = self.room.checked_sub(name.len() + Self::ENTRY_LEN);
        if let Some(room) = room {
            self.room = room;
            self.channels.insert(name.to_owned(), subscribers);
        }
        room.is_some()
    }

    pub(crate) fn into_channels(self) -> BTreeMap<String, usize> {
        self.channels
    }
}

/// The figures of a node, with the names of Centrifugo's server API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NodeInfo {
    pub(crate) uid: String,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) num_clients: usize,
    pub(crate) num_users: usize,
    pub(crate) num_subs: usize,
    pub(crate) num_channels: usize,
    /// In seconds.
    pub(crate) uptime: u64,
}

/// Bytes, which are base64 in JSON.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Payload(pub(crate) Bytes);

impl Serialize for Payload {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let bytes = STANDARD.decode(String::deserialize(from)?).map_err(serde::de::Error::custom)?;
        Ok(Self(bytes.into()))
    }
}

impl Answer {
    /// The parts that one message can carry.
    fn into_parts(self) -> Vec<Self> {
        let Self::Channels(channels) = self else { return vec![self] };
        let (mut parts, mut part, mut len) = (Vec::new(), BTreeMap::new(), 0);
        for (name, clients) in channels {
            if len >= PART_LEN {
                parts.push(Self::Channels(std::mem::take(&mut part)));
                len = 0;
            }
            // The quotes, the colon, the comma and the number.
            len += name.len() + 24;
            part.insert(name, clients);
        }
        parts.push(Self::Channels(part));
        parts
    }

    /// The messages with this answer.
    pub(crate) fn into_messages(self, id: u64) -> impl Iterator<Item = Message> {
        let parts = self.into_parts();
        let last = parts.len() - 1;
        parts.into_iter().enumerate().map(move |(part, answer)| {
            let is_last = part == last;
            Message::Answer { id, part, is_last, answer }
        })
    }
}

impl Message {
    pub(crate) fn encode(&self) -> Vec<u8> {
        // Serialization fails only for maps whose keys are not strings; there are none.
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// The most bytes of calls for clients that wait: while a node does not answer, each keeps its request and its commands for
/// [`ANSWER_TIMEOUT`]. In JSON they are a third longer, and all of them fit into what Redis keeps for a node that is busy.
const CLIENT_CALLS_LEN_MAX: u32 = 8 << 20;

/// The memory of a call besides its commands, in bytes.
const CALL_LEN: usize = 4 << 10;

/// The calls that wait for their answers.
#[derive(Debug)]
pub(crate) struct Calls {
    waiting: Mutex<HashMap<u64, Pending>>,
    last_id: AtomicU64,
    for_clients: Semaphore,
}

impl Default for Calls {
    fn default() -> Self {
        let for_clients = Semaphore::new(CLIENT_CALLS_LEN_MAX as usize);
        Self { waiting: Mutex::default(), last_id: AtomicU64::default(), for_clients }
    }
}

/// A call without a complete answer, and the parts that have arrived.
#[derive(Debug)]
struct Pending {
    answer: oneshot::Sender<Answer>,
    parts: usize,
    channels: BTreeMap<String, usize>,
}

/// A call that waits. It is forgotten when this is dropped.
pub(crate) struct Waiting<'a> {
    calls: &'a Calls,
    pub(crate) id: u64,
    pub(crate) answer: oneshot::Receiver<Answer>,
}

impl Calls {
    /// A permit for a call with commands of this length that a client has caused; `None` while too much waits. A longer one than all
    /// may have waits for none.
    pub(crate) fn permit_for_client(&self, len: usize) -> Option<SemaphorePermit<'_>> {
        let len = u32::try_from(CALL_LEN.saturating_add(len)).unwrap_or(u32::MAX);
        self.for_clients.try_acquire_many(len.min(CLIENT_CALLS_LEN_MAX)).ok()
    }

    pub(crate) fn begin(&self) -> Waiting<'_> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        let pending = Pending { answer: sender, parts: 0, channels: BTreeMap::new() };
        lock(&self.waiting).insert(id, pending);
        Waiting { calls: self, id, answer }
    }

    /// Hands over an answer once its last part has arrived. An answer to an unknown call is dropped.
    pub(crate) fn answer(&self, id: u64, part: usize, is_last: bool, answer: Answer) {
        let mut waiting = lock(&self.waiting);
        let Some(pending) = waiting.get_mut(&id) else { return };
        let answer = match answer {
            Answer::Failed(reason) => Answer::Failed(reason),
            _ if part != pending.parts => Answer::Failed("a part of the answer was lost".into()),
            Answer::Channels(channels) => {
                pending.parts += 1;
                pending.channels.extend(channels);
                if !is_last {
                    return;
                }
                Answer::Channels(std::mem::take(&mut pending.channels))
            }
            other => other,
        };
        let pending = waiting.remove(&id);
        drop(waiting);
        if let Some(pending) = pending {
            let _ = pending.answer.send(answer);
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let forgotten = lock(&self.calls.waiting).remove(&self.id);
        drop(forgotten);
    }
}

/// Whether a client's text can be the name of a node. Engines make subjects of names.
pub(crate) fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=NAME_LEN_MAX).contains(&text.len()) && text.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let commands = Payload(Bytes::from_static(b"{\"id\":1}\n\xff\0"));
        let call = Call::Emulate { session: "s".into(), commands };
        let message = Message::Call { id: 7, from: "n".into(), call };
        let Some(Message::Call { id: 7, from, call: Call::Emulate { session, commands } }) =
            Message::decode(&message.encode())
        else {
            panic!("{message:?}");
        };
        assert_eq!((&*from, &*session, &commands.0[..]), ("n", "s", &b"{\"id\":1}\n\xff\0"[..]));
        assert!(Message::decode(b"{}").is_none());
    }

    #[test]
    fn names_have_no_separators() {
        for (text, is) in
            [("A-z_0", true), ("", false), ("a.b", false), ("a b", false), ("*", false), (">", false)]
        {
            assert_eq!(is_name(text), is, "{text}");
        }
        assert!(is_name(&"x".repeat(NAME_LEN_MAX)) && !is_name(&"x".repeat(NAME_LEN_MAX + 1)));
    }

    #[test]
    fn a_list_has_what_fits_into_a_reply() {
        for more in [-1, 0, 1] {
            let len_max = 2 * (1 + ChannelList::ENTRY_LEN);
            let mut list = ChannelList::new(len_max.checked_add_signed(more).unwrap());
            let added =
                [("a", 1), ("b", 2), ("a", 3), ("c", 4)].map(|(name, clients)| list.add(name, clients));
            assert_eq!(added, [true, more >= 0, true, false]);
            assert_eq!(list.channels["a"], 4);
            assert_eq!(list.into_channels().len(), if more < 0 { 1 } else { 2 });
        }
    }

    #[tokio::test]
    async fn long_answers_arrive_in_parts() {
        let channels: BTreeMap<_, _> = (0..20_000).map(|n| (format!("{n:0>40}"), n)).collect();
        let calls = Calls::default();
        for lost in [None, Some(0), Some(1), Some(9)] {
            let mut waiting = calls.begin();
            let messages: Vec<_> = Answer::Channels(channels.clone()).into_messages(waiting.id).collect();
            assert_eq!(messages.len(), 10);
            for (number, message) in
                messages.into_iter().enumerate().filter(|(number, _)| lost != Some(*number))
            {
                let encoded = message.encode();
                assert!(encoded.len() < PART_LEN + 1_000, "{}", encoded.len());
                let Some(Message::Answer { id, part, is_last, answer }) = Message::decode(&encoded) else {
                    panic!("{number} is an answer");
                };
                calls.answer(id, part, is_last, answer);
            }
            match lost {
                None => assert_eq!((&mut waiting.answer).await, Ok(Answer::Channels(channels.clone()))),
                // Without the last one, the call waits in vain.
                Some(9) => assert!(waiting.answer.try_recv().is_err()),
                Some(_) => assert!(matches!((&mut waiting.answer).await, Ok(Answer::Failed(_)))),
            }
        }
        assert!(lock(&calls.waiting).is_empty());
    }

    #[test]
    fn calls_for_clients_are_bounded_in_bytes() {
        let calls = Calls::default();
        let (all, half) = (CLIENT_CALLS_LEN_MAX as usize, CLIENT_CALLS_LEN_MAX as usize / 2 - CALL_LEN);
        let permits = [calls.permit_for_client(half), calls.permit_for_client(half)];
        assert!(permits.iter().all(Option::is_some) && calls.permit_for_client(0).is_none());
        drop(permits);
        assert!(
            calls.permit_for_client(half + 1).is_some_and(|_one| calls.permit_for_client(half).is_none())
        );
        assert!(calls.permit_for_client(10 * all).is_some_and(|_one| calls.permit_for_client(0).is_none()));
        let many: Vec<_> = std::iter::from_fn(|| calls.permit_for_client(0)).collect();
        assert_eq!(many.len(), all / CALL_LEN);
    }

    #[tokio::test]
    async fn calls_that_are_given_up_are_forgotten() {
        let calls = Calls::default();
        let mut waiting = calls.begin();
        calls.answer(waiting.id + 1, 0, true, Answer::Emulated(Delivered::Full));
        calls.answer(waiting.id, 0, true, Answer::Emulated(Delivered::Queued));
        assert_eq!((&mut waiting.answer).await, Ok(Answer::Emulated(Delivered::Queued)));
        drop(waiting);
        drop(calls.begin());
        assert!(lock(&calls.waiting).is_empty());
    }
}
