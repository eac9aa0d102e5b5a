//! SETTINGS and PING, and the frames of extensions that belong to the connection (RFC 9113 §6.5, §6.7; RFC 9218, 7838, 8336).
//!
//! The peer's settings apply at once, this side's when the peer acknowledges them (RFC 9113 §6.5.3).

use alloc::collections::VecDeque;
use core::time::Duration;

use super::Connection;
use super::output::Position;
use super::timer::Timer;
use crate::Role;
use crate::error::{Error, Exceeded, Misuse, Violation};
use crate::event::Event;
use crate::frame::{self, AltSvc, Origin, Ping, PriorityUpdate, StreamId, Values};
use crate::priority::Priority;
use crate::rate_limit::Charge;
use crate::settings::Settings;
use crate::stream::StreamKey;

/// The payload of PING that measures the round trip for flow control.
pub(super) const PROBE: [u8; 8] = *b"wl probe";
/// The payload of PING after the first GOAWAY.
pub(super) const DRAIN: [u8; 8] = *b"wl drain";

pub(super) struct Control {
    pub(super) peer: Settings,
    pub(super) acknowledged: Settings,
    /// The longest frame that this side accepts, in bytes. A larger setting applies when it is announced, because the peer may use it
    /// before its acknowledgement arrives.
    pub(super) frame_len_max: u32,
    /// SETTINGS that the peer has not acknowledged, in the order in which they were sent: at most
    /// [`crate::Limits::settings_unacknowledged_max`].
    unacknowledged: VecDeque<SentSettings>,
    /// PING that the peer has not acknowledged, in the order in which they were sent: at most
    /// [`crate::Limits::pings_unacknowledged_max`] of the caller, a probe, and one after GOAWAY.
    pings: VecDeque<SentPing>,
    pub(super) round_trip: Option<Duration>,
    first_settings: bool,
}

/// A SETTINGS frame without an acknowledgement.
struct SentSettings {
    settings: Settings,
    ack: AckTimer,
}

/// The time for the acknowledgement of a frame. It begins when the transport has accepted the frame.
struct AckTimer {
    /// The end of the frame in the output.
    end: Position,
    timer: Timer,
}

impl AckTimer {
    const fn new(end: Position) -> Self {
        Self { end, timer: Timer::Stopped }
    }
}

/// A PING without an acknowledgement.
struct SentPing {
    /// Not unique: the caller may use the payload of another PING. The first one in the list is acknowledged first.
    payload: [u8; 8],
    purpose: PingPurpose,
    sent_at: Duration,
    ack: AckTimer,
}

/// Why this side sent a PING.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PingPurpose {
    /// [`Connection::send_ping`]
    Caller,
    /// To measure the round trip for flow control.
    Probe,
    /// To learn that the peer has read the first GOAWAY, which precedes it.
    Drain,
}

impl Control {
    pub(super) const fn new() -> Self {
        Self {
            peer: Settings::INITIAL,
            acknowledged: Settings::INITIAL,
            frame_len_max: Settings::INITIAL.max_frame_size,
            unacknowledged: VecDeque::new(),
            pings: VecDeque::new(),
            round_trip: None,
            first_settings: true,
        }
    }

    /// Whether SETTINGS are not acknowledged.
    #[inline]
    pub(super) fn awaits_settings(&self) -> bool {
        !self.unacknowledged.is_empty()
    }

    /// The transport has accepted the output before `sent`, while an acknowledgement has a deadline.
    #[cold]
    pub(super) fn transmitted(&mut self, sent: Position, now: Duration) {
        self.ack_timers().filter(|ack| ack.end <= sent).for_each(|ack| ack.timer.begin(now));
    }

    fn ack_timers(&mut self) -> impl Iterator<Item = &mut AckTimer> {
        let settings = self.unacknowledged.iter_mut().map(|sent| &mut sent.ack);
        settings.chain(self.pings.iter_mut().map(|sent| &mut sent.ack))
    }

    /// The largest value of a setting that the peer may use: acknowledged, or in a frame that it may have received.
    pub(super) fn largest(&self, value: impl Fn(&Settings) -> u32) -> u32 {
        let sent = self.unacknowledged.iter().map(|sent| value(&sent.settings));
        sent.fold(value(&self.acknowledged), u32::max)
    }

    /// The largest SETTINGS_INITIAL_WINDOW_SIZE that the peer may use.
    pub(super) fn initial_window_max(&self) -> u32 {
        self.largest(|settings| settings.initial_window_size)
    }

    /// Starts the time for acknowledgements again, because no input was taken.
    pub(super) fn restart(&mut self, now: Duration) {
        self.ack_timers().for_each(|ack| ack.timer.restart(now));
    }

    /// When SETTINGS must be acknowledged.
    pub(super) fn settings_deadline(&self, timeout: Duration) -> Option<Duration> {
        self.unacknowledged.front()?.ack.timer.deadline(timeout)
    }

    /// When the peer's time for reading the first GOAWAY is over.
    pub(super) fn drain_deadline(&self, timeout: Duration) -> Option<Duration> {
        let ping = self.pings.iter().find(|ping| ping.purpose == PingPurpose::Drain)?;
        ping.ack.timer.deadline(timeout)
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.unacknowledged.capacity() + self.pings.capacity()
    }

    /// Frees unused memory.
    pub(super) fn shrink(&mut self) {
        self.unacknowledged.shrink_to_fit();
        self.pings.shrink_to_fit();
    }
}

impl Connection {
    pub(super) fn receive_settings(&mut self, values: Values<'_>) -> Result<Option<Event<'static>>, Error> {
        let connection = StreamId::CONNECTION;
        self.charge(Charge::Settings)?;
        if values.len() > self.limits().settings_entries_max {
            return Err(Error::limit(Exceeded::SettingsEntries, connection));
        }
        let first = core::mem::take(&mut self.control.first_settings);
        let peer = |violation| Error::peer(violation, connection);
        let changes = self.control.peer.apply(values, self.role.peer(), first).map_err(peer)?;
        if let Some(smallest) = changes.header_table_size_min {
            // RFC 7541 §4.2: the smallest size is announced as well, even if the final size is larger.
            self.contexts.set_encoder_table_size(smallest);
            self.contexts.set_encoder_table_size(self.control.peer.header_table_size);
        }
        if !self.streams.apply_peer_settings(&self.control.peer) {
            // RFC 9113 §6.9.2: a connection error, FLOW_CONTROL_ERROR.
            return Err(peer(Violation::WindowOverflowBySettings));
        }
        self.out.answer(frame::SettingsFrame::encode_ack);
        Ok(Some(Event::Settings))
    }

    pub(super) fn receive_settings_ack(&mut self) -> Result<Option<Event<'static>>, Error> {
        let Some(SentSettings { settings, .. }) = self.control.unacknowledged.pop_front() else {
            // RFC 9113 §6.5.3 does not mention an acknowledgement without SETTINGS. It is ignored and counted.
            self.charge(Charge::UnknownFrame)?;
            return Ok(None);
        };
        if settings.header_table_size != self.control.acknowledged.header_table_size {
            self.contexts.set_decoder_table_size(settings.header_table_size);
        }
        self.control.acknowledged = settings;
        self.control.frame_len_max = self.control.largest(|settings| settings.max_frame_size);
        // RFC 9113 §6.9.2: a smaller setting may have closed windows of streams that hold no DATA to release.
        for slot in self.streams.set_recv_initial(self.control.initial_window_max()) {
            self.release_stream(slot);
        }
        Ok(Some(Event::SettingsAcknowledged))
    }

    /// Sends changed settings. They apply from [`crate::Event::SettingsAcknowledged`] on.
    ///
    /// # Errors
    /// [`Misuse::SettingInvalid`] if a value is out of range, if extended CONNECT is disabled after it was enabled (RFC 8441 §3), or
    /// if SETTINGS_NO_RFC7540_PRIORITIES changes (RFC 9218 §2.1); [`Misuse::ConnectionClosed`], [`Misuse::SettingsUnacknowledged`].
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
        if self.control.unacknowledged.len() >= self.limits().settings_unacknowledged_max {
            return Err(Misuse::SettingsUnacknowledged.into());
        }
        frame::SettingsFrame::encode(settings.entries_since(&before), self.out.frames());
        self.config.settings = settings;
        self.settings_written(before.initial_window_size);
        Ok(())
    }

    /// Records that the output ends with the settings of the configuration, which replace `initial_window_before`.
    pub(super) fn settings_written(&mut self, initial_window_before: u32) {
        let (settings, ack) = (self.config.settings, AckTimer::new(self.out.end()));
        self.control.unacknowledged.push_back(SentSettings { settings, ack });
        self.control.frame_len_max = self.control.largest(|settings| settings.max_frame_size);
        // The largest setting can only grow here, so no window closes.
        self.streams.set_recv_initial(self.control.initial_window_max());
        self.streams.announce_initial_window(
            initial_window_before,
            settings.initial_window_size,
            &self.config,
        );
    }

    pub(super) fn receive_ping(&mut self, ping: Ping) -> Result<Option<Event<'static>>, Error> {
        if !ping.ack {
            self.charge(Charge::Ping)?;
            // RFC 9113 §6.7: the acknowledgement has the same payload.
            let answer = Ping { ack: true, payload: ping.payload };
            self.out.answer(|out| answer.encode(out));
            return Ok(None);
        }
        let pings = &mut self.control.pings;
        let position = pings.iter().position(|sent| sent.payload == ping.payload);
        let Some(SentPing { payload, purpose, sent_at, .. }) = position.and_then(|at| pings.remove(at))
        else {
            self.charge(Charge::UnknownFrame)?;
            return Ok(None);
        };
        if purpose == PingPurpose::Drain {
            self.finish_drain();
            return Ok(None);
        }
        let round_trip = self.now.saturating_sub(sent_at);
        self.control.round_trip = Some(round_trip);
        if purpose == PingPurpose::Probe {
            self.streams.finish_probe(self.now);
            return Ok(None);
        }
        Ok(Some(Event::Pong { payload, round_trip }))
    }

    fn write_ping(&mut self, purpose: PingPurpose, payload: [u8; 8]) {
        Ping { ack: false, payload }.encode(self.out.frames());
        let (sent_at, ack) = (self.now, AckTimer::new(self.out.end()));
        self.control.pings.push_back(SentPing { payload, purpose, sent_at, ack });
    }

    /// Sends PING to measure the round trip for flow control.
    pub(super) fn write_probe(&mut self) {
        self.write_ping(PingPurpose::Probe, PROBE);
    }

    /// Sends PING to learn when the peer has read the output before it.
    pub(super) fn write_drain_ping(&mut self) {
        self.write_ping(PingPurpose::Drain, DRAIN);
    }

    /// Sends PING. [`crate::Event::Pong`] reports its acknowledgement and the round-trip time from `now` on.
    ///
    /// # Errors
    /// [`Misuse::ConnectionClosed`], [`Misuse::PingsUnacknowledged`]
    pub fn send_ping(&mut self, now: Duration, payload: [u8; 8]) -> Result<(), Error> {
        self.check_alive()?;
        let is_of_caller = |ping: &&SentPing| ping.purpose == PingPurpose::Caller;
        if self.control.pings.iter().filter(is_of_caller).count() >= self.limits().pings_unacknowledged_max {
            return Err(Misuse::PingsUnacknowledged.into());
        }
        self.advance_clock(now);
        self.write_ping(PingPurpose::Caller, payload);
        Ok(())
    }

    // ---- priorities

    pub(super) fn receive_priority_update(
        &mut self,
        update: &PriorityUpdate<'_>,
    ) -> Result<Option<Event<'static>>, Error> {
        let connection = StreamId::CONNECTION;
        // RFC 9218 §7.1: a server does not send PRIORITY_UPDATE.
        if self.role == Role::Client {
            return Err(Error::peer(Violation::PriorityUpdateByServer, connection));
        }
        self.charge(Charge::Priority)?;
        let id = update.prioritized_id;
        // RFC 9218 §7.1: PRIORITY_UPDATE for a push stream that was not promised.
        if id.opener() == Some(Role::Server) && self.streams.is_idle(id) {
            return Err(Error::peer(Violation::PriorityUpdateIdlePush, connection));
        }
        let Some(priority) = Priority::parse(update.value) else { return Ok(None) };
        let Some(slot) = self.streams.find(id) else {
            if self.streams.is_idle(id) && !self.closing.ignores(id) {
                self.set_idle_priority(id, priority)?;
            }
            return Ok(None);
        };
        if self.streams.get(slot).is_priority_fixed() {
            return Ok(None);
        }
        let priority = self.streams.signal_priority(slot, priority);
        Ok(Some(Event::Priority { stream: self.streams.key(slot), priority }))
    }

    /// Sets the priority of a request that has not arrived.
    fn set_idle_priority(&mut self, id: StreamId, priority: Priority) -> Result<(), Error> {
        // RFC 9218 §7.1: the number of prioritized idle streams and active ones MUST NOT exceed SETTINGS_MAX_CONCURRENT_STREAMS. The
        // client may not know a lower number that it has not acknowledged.
        let streams_max = self.control.largest(|settings| settings.max_concurrent_streams) as usize;
        let kept_max = self.config.limits.idle_priorities_max;
        if !self.streams.set_idle_priority(id, priority, streams_max, kept_max) {
            return Err(Error::peer(Violation::PriorityUpdatesExceeded, StreamId::CONNECTION));
        }
        Ok(())
    }

    /// The priority of a stream: what the last signal of either end says (RFC 9218 §4, §7.1). `None` once the stream is gone.
    pub fn priority(&self, stream: StreamKey) -> Option<Priority> {
        let slot = self.streams.slot(stream)?;
        Some(self.streams.get(slot).priority())
    }

    /// Sets the priority of a stream. Later signals of the peer are ignored (RFC 9218 §8).
    ///
    /// # Errors
    /// [`Misuse::StreamGone`]
    pub fn set_priority(&mut self, stream: StreamKey, priority: Priority) -> Result<(), Error> {
        let slot = self.streams.slot(stream).ok_or(Misuse::StreamGone)?;
        self.streams.get_mut(slot).fix_priority();
        self.streams.set_priority(slot, priority);
        Ok(())
    }

    /// Sends the priority of a response to the server (RFC 9218 §7.1). If the request waits to open, it is sent after the request.
    ///
    /// # Errors
    /// [`Misuse::NotClient`], [`Misuse::StreamGone`]
    pub fn send_priority_update(&mut self, stream: StreamKey, priority: Priority) -> Result<(), Error> {
        if self.role == Role::Server {
            return Err(Misuse::NotClient.into());
        }
        self.check_alive()?;
        self.streams.slot(stream).ok_or(Misuse::StreamGone)?;
        if self.streams.is_idle(stream.stream_id()) {
            self.streams.set_waiting_priority(stream.stream_id(), priority);
        } else {
            self.write_priority_update(stream.stream_id(), priority);
        }
        Ok(())
    }

    pub(super) fn write_priority_update(&mut self, prioritized_id: StreamId, priority: Priority) {
        let update = PriorityUpdate { prioritized_id, value: priority.as_str().as_bytes() };
        update.encode(self.out.frames());
    }

    // ---- alternative services and origins

    pub(super) fn receive_altsvc(&mut self, altsvc: &AltSvc<'_>) -> Result<Option<Event<'static>>, Error> {
        self.charge(Charge::UnknownFrame)?;
        // RFC 7838 §4: a server ignores ALTSVC, and a client ignores it if the origin is unclear.
        if self.role == Role::Server || !altsvc.is_valid() {
            return Ok(None);
        }
        self.payload.set(altsvc.origin, altsvc.value);
        Ok(Some(Event::AltSvc { stream_id: altsvc.stream_id }))
    }

    pub(super) fn receive_origin(&mut self, origin: &Origin<'_>) -> Result<Option<Event<'static>>, Error> {
        self.charge(Charge::UnknownFrame)?;
        // RFC 8336 §2.1: a server ignores ORIGIN, and a client ignores it if the stream is not 0.
        if self.role == Role::Server || !origin.is_valid() {
            return Ok(None);
        }
        self.payload.set(origin.entries(), &[]);
        Ok(Some(Event::Origin))
    }

    /// Announces alternative services (RFC 7838 §4) of `origin`, or of the origin of `stream` if `origin` is empty.
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
        AltSvc { stream_id, origin, value }.encode(self.out.frames());
        Ok(())
    }

    /// Announces the origins that the connection serves (RFC 8336).
    ///
    /// # Errors
    /// [`Misuse::NotServer`]
    pub fn send_origin<'b>(&mut self, origins: impl IntoIterator<Item = &'b [u8]>) -> Result<(), Error> {
        self.check_server()?;
        Origin::encode(origins, self.out.frames());
        Ok(())
    }

    pub(super) fn check_server(&self) -> Result<(), Error> {
        self.check_alive()?;
        if self.role == Role::Client { Err(Misuse::NotServer.into()) } else { Ok(()) }
    }
}
