//! Receiving DATA, and the receive windows (RFC 9113 §6.1, §6.9).
//!
//! The window of a stream grows when the caller releases its DATA. The window of the connection grows when DATA arrives, as long as
//! all DATA that the caller holds is within a bound. So a slow reader of one stream does not stall the others.
//!
//! ```text
//! stream      |held by the caller|  window the peer has  |   deficit   |
//!             |<------------------ target ---------------------------->|
//! The deficit is granted by WINDOW_UPDATE when it is half of what the caller does not hold.
//! ```

use alloc::vec::Vec;
use core::time::Duration;

use super::{RecvPhase, Stream, Streams};
use crate::Limits;
use crate::config::Config;
use crate::error::{Error, Misuse, Violation};
use crate::flow_control::{WINDOW_DEFAULT, WINDOW_MAX, WindowTuner, grant, spend, window};
use crate::frame::{StreamId, WindowUpdate};
use crate::message::ContentLeft;
use crate::rate_limit::Charge;
use crate::settings::Settings;

/// The minimum increment of a WINDOW_UPDATE of the connection, in bytes.
const UPDATE_MIN: i64 = 4096;

/// A valid DATA frame.
pub(crate) struct AcceptedData {
    slot: u32,
    content: ContentLeft,
    is_tiny: bool,
    /// The rate limit that the frame counts towards.
    pub(crate) charge: Option<Charge>,
}

/// The result of checking a DATA frame.
pub(crate) enum DataCheck {
    Accepted(AcceptedData),
    /// The stream is not open.
    NotFound,
    Refused(Error),
}

/// The receive windows, and the memory that bounds them.
pub(super) struct RecvSide {
    /// The window of the connection. It is not negative, unless the peer has exceeded it and the connection ends.
    window: i64,
    /// The largest SETTINGS_INITIAL_WINDOW_SIZE of this side that the peer may use: acknowledged or in flight.
    initial: u32,
    tuner: WindowTuner,
    /// DATA of all streams that was passed to the caller and not released, in bytes.
    held: u64,
    /// The part of `held` whose streams have ended; always 0 if their end releases it.
    held_ended: u64,
    release_at_end: bool,
    /// Other memory that the caller uses for this connection, in bytes. It shares the bound with `held`.
    caller_memory: u64,
}

impl RecvSide {
    pub(super) const fn new(config: &Config) -> Self {
        Self {
            window: WINDOW_DEFAULT as i64,
            initial: Settings::INITIAL.initial_window_size,
            tuner: WindowTuner::new(config.settings.initial_window_size, config.stream_window_max),
            held: 0,
            held_ended: 0,
            release_at_end: config.release_at_end,
            caller_memory: 0,
        }
    }

    /// The receive window of a stream, as much of which may still arrive after a reset.
    pub(super) fn window_left(&self, stream: &Stream) -> u32 {
        match stream.recv.is_open() {
            true => window(self.initial, stream.recv_delta).clamp(0, WINDOW_MAX) as u32,
            false => 0,
        }
    }

    /// An upper bound of the window of a stream that the peer has just opened.
    pub(super) fn window_new(&self) -> u32 {
        self.initial.max(self.tuner.target())
    }

    /// A stream has ended of which the caller holds `held` bytes. Returns whether they are released to the window of the connection.
    #[inline]
    pub(super) fn end_stream(&mut self, held: u32) -> bool {
        if !self.release_at_end {
            self.held_ended += u64::from(held);
            return false;
        }
        self.held -= u64::from(held);
        held > 0
    }
}

impl Streams {
    /// Validates a DATA frame by its header: `flow_len` bytes of both windows, `data_len` of content. Changes nothing.
    #[inline(always)]
    pub(crate) fn check_data(
        &self,
        id: StreamId,
        flow_len: u32,
        data_len: u32,
        end_stream: bool,
    ) -> DataCheck {
        // RFC 9113 §6.9.1: the window of the connection is checked first, because DATA on closed streams counts as well.
        if i64::from(flow_len) > self.recv.window {
            return DataCheck::Refused(Error::peer(
                Violation::ConnectionWindowExceeded,
                StreamId::CONNECTION,
            ));
        }
        let Some(slot) = self.slab.find(id) else { return DataCheck::NotFound };
        let stream = self.slab.get(slot);
        let refused = |violation| DataCheck::Refused(Error::peer(violation, id));
        let is_tunnel = match stream.recv {
            RecvPhase::Content => false,
            RecvPhase::Tunnel => true,
            // RFC 9113 §5.1 (half-closed (remote)): STREAM_CLOSED.
            RecvPhase::End => return refused(Violation::FrameAfterEndStream),
            // RFC 9113 §5.1 (reserved (local)), (reserved (remote)).
            _ if stream.is_reserved() => return refused(Violation::FrameOnReservedStream),
            // RFC 9113 §8.1: content follows the final header section.
            _ => return refused(Violation::DataBeforeHeaders),
        };
        // RFC 9113 §6.9.1: no more than the stream's window. An empty frame is allowed even if the window is negative.
        if flow_len > 0 && i64::from(flow_len) > window(self.recv.initial, stream.recv_delta) {
            return refused(Violation::StreamWindowExceeded);
        }
        // RFC 9113 §8.1.1
        let mut content = stream.content;
        if let Err(violation) = content.receive(data_len as usize) {
            return refused(violation);
        }
        let (mut is_tiny, mut charge) = (false, None);
        if end_stream {
            if let Err(violation) = content.end() {
                return refused(violation);
            }
        } else if data_len < Limits::TINY_DATA_LEN as u32 {
            is_tiny = true;
            if data_len == 0 {
                // CVE-2019-9518: empty frames without END_STREAM.
                charge = Some(Charge::EmptyFrame);
            } else if stream.had_tiny_data() && !is_tunnel {
                // CVE-2019-9511: data dribble. The first tiny frame of a stream is free: a short message in two frames is ordinary,
                // and opening a stream costs the peer more than the frame.
                charge = Some(Charge::TinyData);
            }
        }
        DataCheck::Accepted(AcceptedData { slot, content, is_tiny, charge })
    }

    /// Accepts a DATA frame that was validated. Returns the slot of its stream.
    #[inline(always)]
    pub(crate) fn accept_data(&mut self, accepted: &AcceptedData, flow_len: u32) -> u32 {
        let stream = self.slab.get_mut(accepted.slot);
        stream.content = accepted.content;
        stream.recv_delta = spend(stream.recv_delta, flow_len);
        if accepted.is_tiny {
            stream.set_had_tiny_data();
        }
        self.spend_connection(flow_len);
        accepted.slot
    }

    /// Subtracts DATA from the window of the connection. DATA that is ignored counts too (RFC 9113 §5.1, §6.9).
    #[inline]
    pub(crate) fn spend_connection(&mut self, flow_len: u32) {
        self.recv.window -= i64::from(flow_len);
        self.recv.tuner.received(flow_len);
    }

    /// Counts content that is passed to the caller. The caller holds it if the stream releases manually.
    #[inline]
    pub(crate) fn hold(&mut self, slot: u32, len: u32) {
        let stream = self.slab.get_mut(slot);
        if stream.releases_manually() {
            stream.held = stream.held.saturating_add(len);
            self.recv.held += u64::from(len);
        }
    }

    /// The caller releases `len` bytes that it holds.
    ///
    /// # Errors
    /// [`Misuse::ReleaseTooMuch`] if it holds less.
    pub(crate) fn release(&mut self, slot: u32, len: usize) -> Result<(), Misuse> {
        let stream = self.slab.get_mut(slot);
        let len = u32::try_from(len).map_err(|_| Misuse::ReleaseTooMuch)?;
        stream.held = stream.held.checked_sub(len).ok_or(Misuse::ReleaseTooMuch)?;
        self.recv.held -= u64::from(len);
        Ok(())
    }

    /// The caller releases `len` bytes of a stream that has ended. DATA that the end of the stream has released is not counted again.
    pub(crate) fn release_ended(&mut self, len: usize) {
        let len = (len as u64).min(self.recv.held_ended);
        self.recv.held_ended -= len;
        self.recv.held -= len;
    }

    /// The WINDOW_UPDATE of a stream, if its deficit is large enough.
    #[inline]
    pub(crate) fn stream_update(&mut self, slot: u32) -> Option<WindowUpdate> {
        let (initial, target) = (self.recv.initial, i64::from(self.recv.tuner.target()));
        let stream = self.slab.get_mut(slot);
        if !stream.recv.is_open() {
            return None;
        }
        // Half of the possible window, not of the target: a caller may hold most of it until its message is complete.
        let allowed = target - i64::from(stream.held);
        let deficit = allowed - window(initial, stream.recv_delta);
        if deficit <= 0 || deficit * 2 < allowed {
            return None;
        }
        // The deficit exceeds the target (at most 2^31-1) if the window is negative.
        let increment = deficit.min(WINDOW_MAX) as u32;
        stream.recv_delta = grant(initial, stream.recv_delta, increment)?;
        Some(WindowUpdate { stream_id: stream.id, increment })
    }

    /// The WINDOW_UPDATE of the connection, if its deficit is large enough. `arriving` is the part of a DATA frame that has been
    /// subtracted from the window and that the caller does not have yet, in bytes.
    #[inline]
    pub(crate) fn connection_update(&mut self, config: &Config, arriving: u32) -> Option<WindowUpdate> {
        // The bound is for granted window and held DATA together. The peer may always use the initial window of the connection (RFC
        // 9113 §6.9.2).
        let bound = config.receive_max().max(i64::from(WINDOW_DEFAULT));
        let target = i64::from(config.connection_window).max(i64::from(self.recv.tuner.target())).min(bound);
        let used = self.recv.held.saturating_add(self.recv.caller_memory).saturating_add(u64::from(arriving));
        let room = bound.saturating_sub_unsigned(used).max(0);
        // Half of the possible window, not of the target: if slow readers hold much DATA, the other streams use the rest.
        let allowed = target.min(room);
        let deficit = allowed - self.recv.window;
        if deficit < UPDATE_MIN.min(target / 2).max(1) || deficit * 2 < allowed {
            return None;
        }
        let increment = deficit.min(WINDOW_MAX) as u32;
        self.recv.window += i64::from(increment);
        Some(WindowUpdate { stream_id: StreamId::CONNECTION, increment })
    }

    /// Changes the SETTINGS_INITIAL_WINDOW_SIZE that the peer may use: `initial_window_max` is the largest one that is acknowledged or in
    /// flight.
    ///
    /// Windows are computed from the largest one, because the peer adds the difference when it applies the setting (RFC 9113
    /// §6.9.2): it must not be granted twice.
    ///
    /// Returns the streams whose windows have shrunk. O(streams).
    pub(crate) fn set_recv_initial(&mut self, initial_window_max: u32) -> Vec<u32> {
        let before = core::mem::replace(&mut self.recv.initial, initial_window_max);
        let mut shrunk = Vec::new();
        if initial_window_max < before {
            self.slab.for_each(|slot, _| shrunk.push(slot));
        }
        shrunk
    }

    /// Adapts the target of the windows to a new SETTINGS_INITIAL_WINDOW_SIZE.
    pub(crate) fn announce_initial_window(&mut self, before: u32, after: u32, config: &Config) {
        self.recv.tuner.set_initial(before, after, config.stream_window_max);
    }

    /// A WINDOW_UPDATE is sent, with which the round trip can be measured.
    #[inline]
    pub(crate) fn request_probe(&mut self) {
        self.recv.tuner.request_probe();
    }

    /// Whether to send a PING that measures the round trip. If `true`, it counts as sent.
    #[inline]
    pub(crate) fn start_probe(&mut self, now: Duration) -> bool {
        self.recv.tuner.start_probe(now)
    }

    /// DATA that was passed to the caller and not released, in bytes.
    pub(crate) const fn held(&self) -> u64 {
        self.recv.held
    }

    /// Memory that the caller uses for this connection in addition to the DATA it holds, in bytes.
    pub(crate) const fn caller_memory(&self) -> u64 {
        self.recv.caller_memory
    }

    pub(crate) const fn set_caller_memory(&mut self, bytes: u64) {
        self.recv.caller_memory = bytes;
    }

    /// Handles the acknowledgement of the PING.
    pub(crate) fn finish_probe(&mut self, now: Duration) {
        self.recv.tuner.finish_probe(now);
    }
}

#[cfg(test)]
impl Streams {
    /// The target of the receive windows of streams.
    pub(crate) fn recv_target(&self) -> u32 {
        self.recv.tuner.target()
    }

    pub(crate) fn recv_window(&self) -> i64 {
        self.recv.window
    }

    /// The receive window of a stream.
    pub(super) fn recv_window_of(&self, slot: u32) -> i64 {
        window(self.recv.initial, self.slab.get(slot).recv_delta)
    }

    /// The part of [`Streams::held`] whose streams have ended.
    pub(super) fn held_ended(&self) -> u64 {
        self.recv.held_ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Role;

    #[test]
    fn the_window_of_the_connection_grows_by_4096_bytes_or_more() {
        let mut config = Config::new(Role::Server);
        (config.settings.initial_window_size, config.connection_window) = (8_192, 8_192);
        for (window, increment) in [(4_097, None), (4_096, Some(4_096)), (0, Some(8_192))] {
            let mut streams = Streams::new(Role::Server, &config);
            streams.spend_connection(WINDOW_DEFAULT - window);
            let update = streams.connection_update(&config, 0);
            assert_eq!(update.map(|update| update.increment), increment, "{window}");
        }
    }
}
