//! A client without a socket: it passes commands to a session and reads its outbox.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use super::CHANNELS;
use super::model::Model;
use crate::client::{Client, Transport};
use crate::fossil;
use crate::history::Position;
use crate::hub::Hub;
use crate::outbox::Taken;
use crate::protocol::{
    Command, ConnectRequest, Disconnect, Encoding, Publication, Reply, SubscribeRequest, SubscribeResult,
    UnsubscribeRequest,
};
use crate::session::Session;

/// The state of a channel at a client.
#[derive(Debug, Default)]
struct Channel {
    position: Option<Position>,
    record: Vec<Step>,
    /// Whether payloads may be deltas from the previous one, which is in `payload`.
    has_deltas: bool,
    payload: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// The client was informed that it continues from this position.
    From(Position),
    Received(u64, Bytes),
}

/// The counts of one simulation, or of several.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Summary {
    pub(super) received: usize,
    pub(super) recoveries: usize,
    pub(super) gaps: usize,
    pub(super) deltas: usize,
}

impl std::ops::AddAssign for Summary {
    fn add_assign(&mut self, other: Self) {
        self.received += other.received;
        self.recoveries += other.recoveries;
        self.gaps += other.gaps;
        self.deltas += other.deltas;
    }
}

/// A client that connects and disconnects at random.
pub(super) struct Roaming {
    hub: Hub,
    rng: Rng,
    channels: HashMap<&'static str, Channel>,
    /// It asks for deltas.
    wants_deltas: bool,
    recoveries: usize,
    deltas: usize,
}

/// The commands of one connection and the channels that await a reply.
struct Connection {
    commands: mpsc::UnboundedSender<Bytes>,
    pending: HashMap<u32, &'static str>,
    /// The channels that are given up, to be subscribed to again.
    leaving: HashMap<u32, &'static str>,
    next_id: u32,
    wants_deltas: bool,
}

impl Connection {
    fn send(&mut self, command: &Command) {
        // The session may have ended.
        let _ = self.commands.send(serde_json::to_vec(command).unwrap().into());
    }

    fn subscribe(&mut self, name: &'static str, position: Option<&Position>) {
        self.next_id += 1;
        self.pending.insert(self.next_id, name);
        let position = position.cloned();
        let request = SubscribeRequest {
            channel: name.into(),
            recover: position.is_some(),
            epoch: position.as_ref().map(|position| position.epoch.clone()).unwrap_or_default(),
            offset: position.map_or(0, |position| position.offset),
            delta: if self.wants_deltas { "fossil".into() } else { String::new() },
            ..SubscribeRequest::default()
        };
        self.send(&Command { id: self.next_id, subscribe: Some(request), ..Command::default() });
    }

    fn unsubscribe(&mut self, name: &'static str) {
        self.next_id += 1;
        self.leaving.insert(self.next_id, name);
        let request = UnsubscribeRequest { channel: name.into() };
        self.send(&Command { id: self.next_id, unsubscribe: Some(request), ..Command::default() });
    }
}

impl Roaming {
    pub(super) fn new(hub: Hub, wants_deltas: bool, rng: Rng) -> Self {
        let channels = CHANNELS.map(|name| (name, Channel::default())).into();
        Self { hub, rng, channels, wants_deltas, recoveries: 0, deltas: 0 }
    }

    pub(super) async fn run(mut self, model: Arc<Model>, is_over: watch::Receiver<bool>) -> Self {
        let mut give_up = None;
        loop {
            if *is_over.borrow() {
                let give_up = *give_up.get_or_insert_with(|| Instant::now() + Duration::from_secs(600));
                let is_current = |(name, channel): (&&str, &Channel)| {
                    channel.position.as_ref() == Some(&model.position(name))
                };
                if self.channels.iter().all(is_current) {
                    return self;
                }
                assert!(Instant::now() < give_up, "not everything arrived: {:?}", self.channels);
            }
            let until = Duration::from_millis(self.rng.u64(10..20_000));
            let (commands, received) = mpsc::unbounded_channel();
            let Ok(client) = self.hub.0.accept(Transport::WebSocket(Encoding::Json), None, None) else {
                panic!("refused")
            };
            let session = Session::new(self.hub.0.clone(), client.clone(), crate::proxy::Headers::NONE);
            let serving = tokio::spawn(serve(session, received));
            let (pending, leaving) = Default::default();
            let connection =
                Connection { commands, pending, leaving, next_id: 1, wants_deltas: self.wants_deltas };
            let _ = timeout(until, self.connection(&client, connection)).await;
            // Lose the connection at any point.
            serving.abort();
            if let Err(error) = serving.await
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
            self.hub.0.forget(&client, Disconnect::ConnectionClosed).await;
            sleep(Duration::from_millis(self.rng.u64(..5_000))).await;
        }
    }

    /// Receives until the server ends the connection.
    async fn connection(&mut self, client: &Client, mut connection: Connection) {
        let connect = Some(ConnectRequest::default());
        connection.send(&Command { id: 1, connect, ..Command::default() });
        for (name, channel) in &self.channels {
            connection.subscribe(name, channel.position.as_ref());
        }
        loop {
            let mut messages = Vec::new();
            if let Taken::End(_) = poll_fn(|cx| client.outbox.poll_take(cx, &mut messages)).await {
                return;
            }
            for message in messages {
                let reply: Reply = serde_json::from_slice(message.as_bytes()).unwrap();
                self.handle(&mut connection, reply).await;
            }
            if self.rng.u8(..20) == 0 {
                // Its outbox may overflow meanwhile.
                sleep(Duration::from_millis(self.rng.u64(..10_000))).await;
            }
        }
    }

    async fn handle(&mut self, connection: &mut Connection, reply: Reply) {
        if reply == Reply::default() {
            return connection.send(&Command::default());
        }
        if let Some(name) = connection.pending.remove(&reply.id) {
            match reply.subscribe {
                Some(result) => self.subscribed(name, result),
                None => {
                    assert!(reply.error.is_some(), "{reply:?}");
                    sleep(Duration::from_millis(100)).await;
                    connection.subscribe(name, self.channels[name].position.as_ref());
                }
            }
        }
        if let Some(name) = connection.leaving.remove(&reply.id)
            && !connection.pending.values().any(|pending| *pending == name)
        {
            connection.subscribe(name, self.channels[name].position.as_ref());
        }
        let Some(push) = reply.push else { return };
        let name = *CHANNELS.iter().find(|name| **name == push.channel).unwrap();
        if let Some(publication) = push.publication {
            self.received(name, publication);
            if self.rng.u8(..20) == 0 {
                connection.unsubscribe(name);
            }
        } else if let Some(unsubscribe) = push.unsubscribe {
            assert_eq!(unsubscribe.code, 2500);
            connection.subscribe(name, self.channels[name].position.as_ref());
        }
    }

    fn subscribed(&mut self, name: &'static str, result: SubscribeResult) {
        let channel = self.channels.get_mut(name).unwrap();
        assert_eq!(result.delta, self.wants_deltas);
        channel.has_deltas = result.delta;
        channel.payload.clear();
        let position = Position { offset: result.offset, epoch: result.epoch };
        let is_cache = name.starts_with("cache:");
        if result.recovered && !is_cache {
            self.recoveries += 1;
        } else {
            let before = result.publications.len() as u64;
            let from = Position { offset: position.offset - before, ..position.clone() };
            channel.record.push(Step::From(from));
        }
        for publication in result.publications {
            self.received(name, publication);
        }
        self.channels.get_mut(name).unwrap().position = Some(position);
    }

    fn received(&mut self, name: &'static str, publication: Publication) {
        let channel = self.channels.get_mut(name).unwrap();
        if let Some(position) = &mut channel.position {
            position.offset = publication.offset;
        }
        let mut payload = publication.data;
        if channel.has_deltas {
            let text: String = serde_json::from_slice(&payload).unwrap();
            channel.payload = match publication.delta {
                true => fossil::apply(&channel.payload, text.as_bytes()).unwrap(),
                false => text.into_bytes(),
            };
            payload = channel.payload.clone().into();
            self.deltas += usize::from(publication.delta);
        }
        channel.record.push(Step::Received(publication.offset, payload));
    }

    /// Panics unless the offsets between two reports of a gap are consecutive, and each payload is the one of its offset.
    pub(super) fn check(self, model: &Model) -> Summary {
        let mut summary = Summary { recoveries: self.recoveries, deltas: self.deltas, ..Summary::default() };
        for (name, channel) in self.channels {
            let mut at: Option<Position> = None;
            for step in channel.record {
                match (step, &mut at) {
                    (Step::From(position), at) => {
                        summary.gaps += usize::from(at.is_some());
                        *at = Some(position);
                    }
                    (Step::Received(offset, data), Some(at)) => {
                        assert_eq!(offset, at.offset + 1, "{name}");
                        at.offset = offset;
                        assert_eq!(model.payload(name, &at.epoch, offset).as_deref(), Some(&data[..]));
                        summary.received += 1;
                    }
                    (step, None) => panic!("{step:?} before a position"),
                }
            }
        }
        summary
    }
}

/// Executes the commands of a connection.
async fn serve(mut session: Session, mut commands: mpsc::UnboundedReceiver<Bytes>) {
    loop {
        let (node, client) = (session.node.clone(), session.client.clone());
        let deadline = node.clock.instant(session.kept.poll_timeout(&node, &client, true));
        tokio::select! {
            command = commands.recv() => match command {
                Some(command) => session.handle_message(wireloom::OwnedMessage::Binary(command)).await,
                None => return,
            },
            () = tokio::time::sleep_until(deadline) => session.kept.handle_timeout(&node, &client, true),
        }
    }
}
