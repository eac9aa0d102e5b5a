//! SETTINGS and PING, and the frames of extensions that belong to the connection (RFC 9113 §6.5, §6.7; RFC 9218, 7838, 8336).
//!
//! The peer's settings count at once, this side's when they are acknowledged (RFC 9113 §6.5.3).

use alloc::collections::VecDeque;
use core::time::Duration;

use super::Connection;
use super::since::Since;
use crate::Role;
use crate::error::{Error, Exceeded, Misuse, Violation};
use crate::event::PendingEvent;
use crate::frame::{self, AltSvc, Origin, Ping, PriorityUpdate, StreamId, Values};
use crate::priority::Priority;
use crate::rate_limit::Charge;
use crate::settings::Settings;
use crate::stream::StreamKey;

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

    pub(super) fn start_clocks(&mut self, now: Duration) {
        self.unacknowledged.iter_mut().for_each(|(_, sent)| sent.start(now));
    }

    /// Whether it is not known when the last SETTINGS were sent.
    pub(super) fn awaits_time(&self) -> bool {
        self.unacknowledged.back().is_some_and(|&(_, sent)| sent == Since::Next)
    }

    pub(super) fn sent_settings(&mut self, settings: Settings) {
        self.unacknowledged.push_back((settings, Since::Next));
    }

    /// The largest SETTINGS_INITIAL_WINDOW_SIZE that the peer may count with.
    pub(super) fn initial_window_max(&self) -> u32 {
        let sent = self.unacknowledged.iter().map(|(settings, _)| settings.initial_window_size);
        sent.fold(self.acknowledged.initial_window_size, u32::max)
    }

    pub(super) fn settings_deadline(&self, timeout: Duration) -> Option<Duration> {
        let (_, sent) = self.unacknowledged.front()?;
        sent.deadline(timeout)
    }
}

impl Connection {
    /// The longest frame that this side takes: what it announced counts from then on, because the peer may have
    /// read it before its acknowledgement is here.
    #[inline]
    pub(super) fn frame_len_max(&self) -> u32 {
        self.config.settings.max_frame_size.max(self.exchange.acknowledged.max_frame_size)
    }

    pub(super) fn receive_settings(&mut self, values: Values<'_>) -> Result<Option<PendingEvent>, Error> {
        let connection = StreamId::CONNECTION;
        self.charge(Charge::Settings)?;
        if values.len() > self.limits().settings_entries_max {
            return Err(Error::limit(Exceeded::SettingsEntries, connection));
        }
        let first = core::mem::take(&mut self.exchange.first_settings);
        let peer = |violation| Error::peer(violation, connection);
        let changes = self.exchange.peer.apply(values, self.role.peer(), first).map_err(peer)?;
        if let Some(smallest) = changes.header_table_size_min {
            // RFC 7541 §4.2: a table that shrank in between is announced, even if it may be large again.
            self.encoder.set_table_size_max(smallest);
            self.encoder.set_table_size_max(self.exchange.peer.header_table_size);
        }
        if !self.streams.apply_peer_settings(&self.exchange.peer) {
            // RFC 9113 §6.9.2: a connection error, FLOW_CONTROL_ERROR.
            return Err(peer(Violation::WindowOverflowBySettings));
        }
        frame::Settings::encode_ack(&mut self.out.bytes);
        self.out.answers_len += 9;
        Ok(Some(PendingEvent::Settings))
    }

    pub(super) fn receive_settings_ack(&mut self) -> Result<Option<PendingEvent>, Error> {
        let Some((settings, _)) = self.exchange.unacknowledged.pop_front() else {
            // An answer to nothing: RFC 9113 §6.5.3 does not say; it is counted.
            self.charge(Charge::UnknownFrame)?;
            return Ok(None);
        };
        if settings.header_table_size != self.exchange.acknowledged.header_table_size {
            self.decoder.set_table_size_max(settings.header_table_size);
        }
        self.exchange.acknowledged = settings;
        // RFC 9113 §6.9.2: a smaller setting may have shut windows of which nothing is held that would be released.
        for slot in self.streams.set_recv_initial(self.exchange.initial_window_max()) {
            self.release_stream(slot);
        }
        Ok(Some(PendingEvent::SettingsAcknowledged))
    }

    /// Announces other settings; they are in force from [`crate::Event::SettingsAcknowledged`] on.
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
        self.announce(before.initial_window_size);
        Ok(())
    }

    /// The settings of the configuration were written; those before had another initial window.
    pub(super) fn announce(&mut self, initial_window_before: u32) {
        let settings = self.config.settings;
        self.exchange.sent_settings(settings);
        // The largest setting only grows here: no window is shut.
        self.streams.set_recv_initial(self.exchange.initial_window_max());
        self.streams.announce_initial_window(
            initial_window_before,
            settings.initial_window_size,
            &self.config,
        );
        self.is_untimed = true;
    }

    pub(super) fn receive_ping(&mut self, ping: Ping) -> Result<Option<PendingEvent>, Error> {
        if !ping.ack {
            self.charge(Charge::Ping)?;
            // RFC 9113 §6.7: answered with the same payload.
            Ping { ack: true, payload: ping.payload }.encode(&mut self.out.bytes);
            self.out.answers_len += 17;
            return Ok(None);
        }
        if ping.payload == PROBE
            && let Some(round_trip) = self.streams.finish_probe(self.now)
        {
            self.exchange.round_trip = Some(round_trip);
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
        self.exchange.round_trip = Some(round_trip);
        Ok(Some(PendingEvent::Pong { payload, round_trip }))
    }

    /// Asks the peer for an answer, which comes as [`crate::Event::Pong`] with the round-trip time. `now` is the time of
    /// asking.
    ///
    /// # Errors
    /// [`Misuse::ConnectionClosed`]
    pub fn send_ping(&mut self, now: Duration, payload: [u8; 8]) -> Result<(), Error> {
        self.check_alive()?;
        self.update_now(now);
        self.exchange.pings.push_back((payload, self.now));
        Ping { ack: false, payload }.encode(&mut self.out.bytes);
        Ok(())
    }

    // ---- priorities

    pub(super) fn receive_priority_update(
        &mut self,
        update: &PriorityUpdate<'_>,
    ) -> Result<Option<PendingEvent>, Error> {
        let connection = StreamId::CONNECTION;
        // RFC 9218 §7.1: a server does not send it.
        if self.role == Role::Client {
            return Err(Error::peer(Violation::PriorityUpdateByServer, connection));
        }
        self.charge(Charge::Priority)?;
        let id = update.prioritized_id;
        // RFC 9218 §7.1: a push stream that was not promised yet.
        if id.opener() == Some(Role::Server) && self.streams.is_idle(id) {
            return Err(Error::peer(Violation::PriorityUpdateIdlePush, connection));
        }
        let Some(priority) = Priority::parse(update.value) else { return Ok(None) };
        self.streams.signal_priority();
        let Some(slot) = self.streams.find(id) else {
            if self.streams.is_idle(id) && !self.closing.ignores(id) {
                self.set_idle_priority(id, priority)?;
            }
            return Ok(None);
        };
        if self.streams.get(slot).is_priority_fixed() {
            return Ok(None);
        }
        self.streams.set_priority(slot, priority);
        Ok(Some(PendingEvent::Priority { stream: self.streams.key(slot), priority }))
    }

    /// The priority of a request that has not arrived.
    fn set_idle_priority(&mut self, id: StreamId, priority: Priority) -> Result<(), Error> {
        // RFC 9218 §7.1: idle streams that were prioritized and active ones MUST NOT be more than may be open; while a lower
        // number is not acknowledged, the client may not know it.
        let [announced, acknowledged] = [&self.config.settings, &self.exchange.acknowledged]
            .map(|settings| settings.max_concurrent_streams as usize);
        let (streams_max, kept_max) = (announced.max(acknowledged), self.config.limits.idle_priorities_max);
        if !self.streams.set_idle_priority(id, priority, streams_max, kept_max) {
            return Err(Error::peer(Violation::PriorityUpdatesExceeded, StreamId::CONNECTION));
        }
        Ok(())
    }

    /// How this side serves a stream, from now on; the peer's signals no longer count (RFC 9218 §8).
    ///
    /// # Errors
    /// [`Misuse::StreamGone`]
    pub fn set_priority(&mut self, stream: StreamKey, priority: Priority) -> Result<(), Error> {
        let slot = self.streams.slot(stream).ok_or(Misuse::StreamGone)?;
        self.streams.get_mut(slot).fix_priority();
        self.streams.set_priority(slot, priority);
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
        let slot = self.streams.slot(stream).ok_or(Misuse::StreamGone)?;
        if self.streams.get(slot).is_waiting() {
            self.streams.set_waiting_priority(slot, priority);
        } else {
            self.write_priority_update(stream.stream_id(), priority);
        }
        Ok(())
    }

    pub(super) fn write_priority_update(&mut self, prioritized_id: StreamId, priority: Priority) {
        PriorityUpdate { prioritized_id, value: priority.as_str().as_bytes() }.encode(&mut self.out.bytes);
    }

    // ---- where else, and for whom

    pub(super) fn receive_altsvc(&mut self, altsvc: &AltSvc<'_>) -> Result<Option<PendingEvent>, Error> {
        self.charge(Charge::UnknownFrame)?;
        // RFC 7838 §4: a server ignores it, and a client what does not say which origin it means.
        if self.role == Role::Server || !altsvc.is_valid() {
            return Ok(None);
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(altsvc.origin);
        self.scratch.extend_from_slice(altsvc.value);
        Ok(Some(PendingEvent::AltSvc { stream_id: altsvc.stream_id, origin_len: altsvc.origin.len() }))
    }

    pub(super) fn receive_origin(
        &mut self,
        origin: &Origin<'_>,
        payload: &[u8],
    ) -> Result<Option<PendingEvent>, Error> {
        self.charge(Charge::UnknownFrame)?;
        // RFC 8336 §2.1: a server ignores it, and a client on another stream than 0.
        if self.role == Role::Server || !origin.is_valid() {
            return Ok(None);
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(payload);
        Ok(Some(PendingEvent::Origin))
    }

    /// Announces where else an origin is served (RFC 7838 §4): `origin` by name, or empty for the origin of `stream`.
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
            Some(key) if self.contains(key) => key.stream_id(),
            Some(_) => return Err(Misuse::StreamGone.into()),
        };
        AltSvc { stream_id, origin, value }.encode(&mut self.out.bytes);
        Ok(())
    }

    /// Announces the origins that the connection serves (RFC 8336).
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
