//! SETTINGS and PING, and the frames of extensions that belong to the connection (RFC 9113 §6.5, §6.7; RFC 9218, 7838, 8336).
//!
//! Owns which settings are in force on either side, and what waits for an answer. The peer's count at once, this side's
//! when they are acknowledged (RFC 9113 §6.5.3).

use alloc::collections::VecDeque;
use core::time::Duration;

use super::Connection;
use super::since::Since;
use crate::Role;
use crate::error::{Error, Exceeded, Misuse, Violation};
use crate::event::Step;
use crate::flow_control::{WINDOW_MAX, window};
use crate::frame::{self, AltSvc, Origin, Ping, PriorityUpdate, StreamId, Values};
use crate::priority::Priority;
use crate::rate_limit::Charge;
use crate::settings::Settings;
use crate::stream::{self, StreamKey, flag};

/// PING of this side's own, to measure the path.
pub(super) const PROBE: [u8; 8] = *b"wl probe";
/// PING behind the first GOAWAY: when it comes back, the peer has read that.
pub(super) const DRAIN: [u8; 8] = *b"wl drain";

pub(super) struct Exchange {
    pub(super) peer: Settings,
    pub(super) acknowledged: Settings,
    /// Sent and not acknowledged, with the time of sending, in order.
    unacknowledged: VecDeque<(Settings, Since)>,
    /// PING of the caller that wait for an answer.
    pings: VecDeque<([u8; 8], Duration)>,
    pub(super) round_trip: Option<Duration>,
    first_settings: bool,
}

impl Exchange {
    pub(super) const fn new() -> Self {
        Self {
            peer: Settings::INITIAL,
            acknowledged: Settings::INITIAL,
            unacknowledged: VecDeque::new(),
            pings: VecDeque::new(),
            round_trip: None,
            first_settings: true,
        }
    }

    pub(super) fn tell_time(&mut self, now: Duration) {
        self.unacknowledged.iter_mut().for_each(|(_, sent)| sent.tell(now));
    }

    /// Whether it is not known when the last SETTINGS were sent.
    pub(super) fn awaits_time(&self) -> bool {
        self.unacknowledged.back().is_some_and(|&(_, sent)| sent == Since::Next)
    }

    pub(super) fn sent_settings(&mut self, settings: Settings) {
        self.unacknowledged.push_back((settings, Since::Next));
    }
}

impl Connection {
    /// The longest frame that this side takes: what it announced counts from then on, because the peer may have
    /// read it before its acknowledgement is here.
    #[inline]
    pub(super) fn frame_len_max(&self) -> u32 {
        self.config.settings.max_frame_size.max(self.exchange.acknowledged.max_frame_size)
    }

    pub(super) fn settings_deadline(&self) -> Option<Duration> {
        let (_, sent) = self.exchange.unacknowledged.front()?;
        sent.deadline(self.limits().settings_timeout)
    }

    pub(super) fn receive_settings(&mut self, values: Values<'_>) -> Result<Option<Step>, Error> {
        let connection = StreamId::CONNECTION;
        self.charge(Charge::Settings)?;
        if values.len() > self.limits().settings_entries_max {
            return Err(Error::limit(Exceeded::SettingsEntries, connection));
        }
        let first = core::mem::take(&mut self.exchange.first_settings);
        let peer = |violation| Error::peer(violation, connection);
        let changes = self.exchange.peer.apply(values, self.role.peer(), first).map_err(peer)?;
        if let Some(smallest) = changes.header_table_size_min {
            // RFC 7541 §4.2: a table that shrank in between says so, even if it may be large again.
            self.encoder.set_table_size_max(smallest);
            self.encoder.set_table_size_max(self.exchange.peer.header_table_size);
        }
        if changes.initial_window_delta > 0 {
            self.initial_window_grew()?;
        }
        frame::Settings::encode_ack(&mut self.out.bytes);
        self.out.answers_len += 9;
        self.open_waiting();
        Ok(Some(Step::Settings))
    }

    /// RFC 9113 §6.9.2: windows of all streams have moved; some may send again.
    fn initial_window_grew(&mut self) -> Result<(), Error> {
        let initial = self.exchange.peer.initial_window_size;
        if window(initial, self.send_delta_max) > WINDOW_MAX {
            // The bound is of all streams that ever were; those that are there may be fine.
            let mut max = 0;
            self.slab.for_each(|_, stream| max = max.max(stream.send_delta));
            self.send_delta_max = max;
            if window(initial, max) > WINDOW_MAX {
                // RFC 9113 §6.9.2: a connection error, FLOW_CONTROL_ERROR.
                return Err(Error::peer(Violation::WindowOverflowBySettings, StreamId::CONNECTION));
            }
        }
        let mut at = self.scheduler.first_blocked();
        while let Some(slot) = at {
            let stream = self.slab.get(slot);
            at = (stream.next != stream::NONE).then_some(stream.next);
            if window(initial, stream.send_delta) > 0 {
                self.scheduler.remove(&mut self.slab, slot);
                self.scheduler.add_ready(&mut self.slab, slot);
            }
        }
        Ok(())
    }

    pub(super) fn receive_settings_ack(&mut self) -> Result<Option<Step>, Error> {
        let Some((settings, _)) = self.exchange.unacknowledged.pop_front() else {
            // An answer to nothing: RFC 9113 §6.5.3 does not say; it is counted.
            self.charge(Charge::UnknownFrame)?;
            return Ok(None);
        };
        if settings.header_table_size != self.exchange.acknowledged.header_table_size {
            self.decoder.set_table_size_max(settings.header_table_size);
        }
        self.exchange.acknowledged = settings;
        Ok(Some(Step::SettingsAcknowledged))
    }

    /// Announces other settings; they count when [`crate::Event::SettingsAcknowledged`] says so.
    ///
    /// # Errors
    /// [`Misuse::SettingInvalid`] for a value out of range, and for extended CONNECT taken back (RFC 8441 §3) or the
    /// priorities of RFC 7540 changed (RFC 9218 §2.1).
    pub fn update_settings(&mut self, settings: Settings) -> Result<(), Error> {
        settings.check(self.role)?;
        let before = self.config.settings;
        if (before.enable_connect_protocol && !settings.enable_connect_protocol)
            || before.no_rfc7540_priorities != settings.no_rfc7540_priorities
            || (self.role == Role::Server && before.enable_push != settings.enable_push)
        {
            return Err(Misuse::SettingInvalid.into());
        }
        self.check_alive()?;
        frame::Settings::encode(settings.entries_since(&before), &mut self.out.bytes);
        self.config.settings = settings;
        self.exchange.sent_settings(settings);
        self.untimed = true;
        Ok(())
    }

    pub(super) fn receive_ping(&mut self, ping: Ping) -> Result<Option<Step>, Error> {
        if !ping.ack {
            self.charge(Charge::Ping)?;
            // RFC 9113 §6.7: answered with the same payload.
            Ping { ack: true, payload: ping.payload }.encode(&mut self.out.bytes);
            self.out.answers_len += 17;
            return Ok(None);
        }
        if ping.payload == PROBE && self.growth.finish_probe(self.now).is_some_and(|rtt| self.measured(rtt)) {
            return Ok(None);
        }
        if ping.payload == DRAIN && self.finish_drain() {
            return Ok(None);
        }
        let position = self.exchange.pings.iter().position(|(payload, _)| *payload == ping.payload);
        let Some((payload, sent_at)) = position.and_then(|at| self.exchange.pings.remove(at)) else {
            self.charge(Charge::UnknownFrame)?;
            return Ok(None);
        };
        let round_trip = self.now.saturating_sub(sent_at);
        self.measured(round_trip);
        Ok(Some(Step::Pong { payload, round_trip }))
    }

    fn measured(&mut self, round_trip: Duration) -> bool {
        self.exchange.round_trip = Some(round_trip);
        true
    }

    /// Asks the peer for an answer, which comes as [`crate::Event::Pong`] with the round-trip time. `now` is the time of
    /// asking.
    ///
    /// # Errors
    /// [`Misuse::ConnectionClosed`]
    pub fn send_ping(&mut self, now: Duration, payload: [u8; 8]) -> Result<(), Error> {
        self.check_alive()?;
        self.tell_time(now);
        self.exchange.pings.push_back((payload, self.now));
        Ping { ack: false, payload }.encode(&mut self.out.bytes);
        Ok(())
    }

    // ---- priorities

    pub(super) fn receive_priority_update(
        &mut self,
        update: &PriorityUpdate<'_>,
    ) -> Result<Option<Step>, Error> {
        let connection = StreamId::CONNECTION;
        // RFC 9218 §7.1: a server does not send it.
        if self.role == Role::Client {
            return Err(Error::peer(Violation::PriorityUpdateByServer, connection));
        }
        self.charge(Charge::Priority)?;
        let id = update.prioritized_id;
        // RFC 9218 §7.1: a push stream that was not promised yet.
        if id.opener() == Some(Role::Server) && self.is_idle(id) {
            return Err(Error::peer(Violation::PriorityUpdateIdlePush, connection));
        }
        let Some(priority) = Priority::parse(update.value) else { return Ok(None) };
        let packed = stream::Priority::new(priority.urgency, priority.incremental);
        let Some(slot) = self.slab.find(id.get()) else {
            if self.is_idle(id) && !self.closing.ignores(id) {
                self.keep_idle_priority(id, packed)?;
            }
            return Ok(None);
        };
        if self.slab.get(slot).has(flag::PRIORITY_SET) {
            return Ok(None);
        }
        self.scheduler.set_priority(&mut self.slab, slot, packed);
        Ok(Some(Step::Priority { stream: self.slab.key(slot), priority }))
    }

    /// The priority of a request that has not come yet.
    fn keep_idle_priority(&mut self, id: StreamId, priority: stream::Priority) -> Result<(), Error> {
        if !self.idle_priorities.contains(id.get()) {
            // RFC 9218 §7.1: idle streams that were prioritized and active ones MUST NOT be more than may be open; while
            // a lower number is not acknowledged, the client may not know it.
            let [announced, acknowledged] = [&self.config.settings, &self.exchange.acknowledged]
                .map(|settings| settings.max_concurrent_streams as usize);
            let after = self.idle_priorities.len() + 1 + self.open_peer as usize;
            if after > announced.max(acknowledged) {
                return Err(Error::peer(Violation::PriorityUpdatesExceeded, StreamId::CONNECTION));
            }
        }
        self.idle_priorities.keep(id.get(), priority, self.config.limits.idle_priorities_max);
        Ok(())
    }

    /// How this side serves a stream, from now on; what the peer asks for no longer counts (RFC 9218 §8).
    ///
    /// # Errors
    /// [`Misuse::StreamGone`]
    pub fn set_priority(&mut self, stream: StreamKey, priority: Priority) -> Result<(), Error> {
        let slot = self.slab.slot(stream).ok_or(Misuse::StreamGone)?;
        self.slab.get_mut(slot).set(flag::PRIORITY_SET);
        let packed = stream::Priority::new(priority.urgency, priority.incremental);
        self.scheduler.set_priority(&mut self.slab, slot, packed);
        Ok(())
    }

    /// Asks the server to serve a response differently (RFC 9218 §7.1); where the request waits to open, when it does.
    ///
    /// # Errors
    /// [`Misuse::NotClient`], [`Misuse::StreamGone`]
    pub fn send_priority_update(&mut self, stream: StreamKey, priority: Priority) -> Result<(), Error> {
        if self.role == Role::Server {
            return Err(Misuse::NotClient.into());
        }
        self.check_alive()?;
        let slot = self.slab.slot(stream).ok_or(Misuse::StreamGone)?;
        let record = self.slab.get(slot);
        if record.has(flag::IN_OPENING) {
            // RFC 9218 §7.1: for no more streams than may be open.
            *self.parked.priority(record.parked) = Some(priority);
            return Ok(());
        }
        self.write_priority_update(StreamId::new(stream.id()).unwrap_or_default(), priority);
        Ok(())
    }

    pub(super) fn write_priority_update(&mut self, prioritized_id: StreamId, priority: Priority) {
        PriorityUpdate { prioritized_id, value: priority.as_str().as_bytes() }.encode(&mut self.out.bytes);
    }

    // ---- where else, and for whom

    pub(super) fn receive_altsvc(&mut self, altsvc: &AltSvc<'_>) -> Result<Option<Step>, Error> {
        self.charge(Charge::UnknownFrame)?;
        // RFC 7838 §4: a server ignores it, and a client what does not say which origin it means.
        if self.role == Role::Server || !altsvc.is_valid() {
            return Ok(None);
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(altsvc.origin);
        self.scratch.extend_from_slice(altsvc.value);
        Ok(Some(Step::AltSvc { stream_id: altsvc.stream_id, origin_len: altsvc.origin.len() }))
    }

    pub(super) fn receive_origin(
        &mut self,
        origin: &Origin<'_>,
        payload: &[u8],
    ) -> Result<Option<Step>, Error> {
        self.charge(Charge::UnknownFrame)?;
        // RFC 8336 §2.1: a server ignores it, and a client on another stream than 0.
        if self.role == Role::Server || !origin.is_valid() {
            return Ok(None);
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(payload);
        Ok(Some(Step::Origin))
    }

    /// Says where else an origin is served (RFC 7838 §4): `origin` by name, or empty for the origin of `stream`.
    ///
    /// # Errors
    /// [`Misuse::NotServer`], [`Misuse::StreamGone`]
    pub fn send_altsvc(
        &mut self,
        stream: Option<StreamKey>,
        origin: &[u8],
        value: &[u8],
    ) -> Result<(), Error> {
        self.check_server()?;
        let stream_id = match stream {
            None => StreamId::CONNECTION,
            Some(key) if self.slab.slot(key).is_some() => StreamId::new(key.id()).unwrap_or_default(),
            Some(_) => return Err(Misuse::StreamGone.into()),
        };
        AltSvc { stream_id, origin, value }.encode(&mut self.out.bytes);
        Ok(())
    }

    /// Says which origins the connection serves (RFC 8336).
    ///
    /// # Errors
    /// [`Misuse::NotServer`]
    pub fn send_origin<'b>(&mut self, origins: impl IntoIterator<Item = &'b [u8]>) -> Result<(), Error> {
        self.check_server()?;
        Origin::encode(origins, &mut self.out.bytes);
        Ok(())
    }

    pub(super) fn check_server(&self) -> Result<(), Error> {
        self.check_alive()?;
        if self.role == Role::Client { Err(Misuse::NotServer.into()) } else { Ok(()) }
    }
}
