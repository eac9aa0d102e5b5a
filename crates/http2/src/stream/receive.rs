//! DATA from the peer, and the windows it fills (RFC 9113 §6.1, §6.9).
//!
//! The window of a stream is given back as the caller releases. The window of the connection is given back ahead of the
//! caller while all that it holds stays within a bound, so that one slow reader stalls no other stream.
//!
//! ```text
//! stream      |held by the caller|  window the peer has  |   deficit   |
//!             |<------------------ target ---------------------------->|
//! WINDOW_UPDATE of the deficit when it is half of the target
//! ```

use alloc::vec::Vec;
use core::time::Duration;

use super::{RecvPhase, Streams};
use crate::Limits;
use crate::config::Config;
use crate::error::{Error, Misuse, Violation};
use crate::flow_control::{WINDOW_DEFAULT, WINDOW_MAX, grant, spend, window};
use crate::frame::{StreamId, WindowUpdate};
use crate::message::ContentLeft;
use crate::rate_limit::Charge;

/// WINDOW_UPDATE of the connection is not sent for less, in bytes.
const UPDATE_MIN: i64 = 4096;

/// A DATA frame that its stream takes.
pub(crate) struct AcceptedData {
    slot: u32,
    content: ContentLeft,
    is_tiny: bool,
    /// The rate limit that the frame counts against.
    pub(crate) charge: Option<Charge>,
}

/// How DATA is received.
pub(crate) enum DataCheck {
    Accepted(AcceptedData),
    /// There is no such stream.
    NotFound,
    Refused(Error),
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
        // RFC 9113 §6.9.1: the window of the connection comes first, because it counts whatever becomes of the stream.
        if i64::from(flow_len) > self.recv_window {
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
            _ if stream.is_waiting() => return refused(Violation::FrameOnIdleStream),
            // RFC 9113 §8.1: content follows the final fields.
            _ => return refused(Violation::DataBeforeHeaders),
        };
        // RFC 9113 §6.9.1: no more than the stream's window; an empty frame may come even where that is negative.
        if flow_len > 0 && i64::from(flow_len) > window(self.recv_initial, stream.recv_delta) {
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
                // CVE-2019-9518: frames that carry nothing and end nothing.
                charge = Some(Charge::EmptyFrame);
            } else if stream.had_tiny_data() && !is_tunnel {
                // CVE-2019-9511: data dribble. The first tiny frame of a stream is free: a short answer in two frames is
                // ordinary, and opening a stream for each costs the peer more than the frame.
                charge = Some(Charge::TinyData);
            }
        }
        DataCheck::Accepted(AcceptedData { slot, content, is_tiny, charge })
    }

    /// Takes a DATA frame that was validated.
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

    /// DATA came that no stream takes: the window of the connection counts it all the same (RFC 9113 §5.1, §6.9).
    #[inline]
    pub(crate) fn spend_connection(&mut self, flow_len: u32) {
        self.recv_window -= i64::from(flow_len);
        self.growth.received(flow_len);
    }

    /// Content is passed to the caller, who holds it from now on if the stream releases manually.
    #[inline]
    pub(crate) fn hold(&mut self, slot: u32, len: u32) {
        let stream = self.slab.get_mut(slot);
        if stream.releases_manually() {
            stream.held = stream.held.saturating_add(len);
            self.held += u64::from(len);
        }
    }

    /// The caller gives back `len` bytes that it held.
    ///
    /// # Errors
    /// [`Misuse::ReleaseTooMuch`] when less is held.
    pub(crate) fn release(&mut self, slot: u32, len: usize) -> Result<(), Misuse> {
        let stream = self.slab.get_mut(slot);
        let len = u32::try_from(len).map_err(|_| Misuse::ReleaseTooMuch)?;
        stream.held = stream.held.checked_sub(len).ok_or(Misuse::ReleaseTooMuch)?;
        self.held -= u64::from(len);
        Ok(())
    }

    /// The WINDOW_UPDATE of a stream, if it is worth one.
    #[inline]
    pub(crate) fn stream_update(&mut self, slot: u32) -> Option<WindowUpdate> {
        let (initial, target) = (self.recv_initial, i64::from(self.growth.target()));
        let stream = self.slab.get_mut(slot);
        if !stream.recv.is_open() {
            return None;
        }
        let deficit = target - i64::from(stream.held) - window(initial, stream.recv_delta);
        if deficit <= 0 || deficit * 2 < target {
            return None;
        }
        // A deficit is at most the target (2^31-1) and what a negative window adds to it.
        let increment = deficit.min(WINDOW_MAX) as u32;
        stream.recv_delta = grant(initial, stream.recv_delta, increment)?;
        Some(WindowUpdate { stream_id: stream.id, increment })
    }

    /// The WINDOW_UPDATE of the connection, if it is worth one.
    #[inline]
    pub(crate) fn connection_update(&mut self, config: &Config) -> Option<WindowUpdate> {
        // Window that is granted and DATA that is held stay within the bound together. The peer may count with the first
        // window whatever this side does (RFC 9113 §6.9.2).
        let bound = config.receive_max().max(i64::from(WINDOW_DEFAULT));
        let target = i64::from(config.connection_window).max(i64::from(self.growth.target())).min(bound);
        let room = bound.saturating_sub_unsigned(self.held + self.caller_memory);
        // Half of what the window can be, not of the target: where slow readers hold much, the other streams get the rest.
        let allowed = target.min(room);
        let deficit = allowed - self.recv_window;
        if deficit < UPDATE_MIN.min(target / 2).max(1) || deficit * 2 < allowed {
            return None;
        }
        let increment = deficit.min(WINDOW_MAX) as u32;
        self.recv_window += i64::from(increment);
        Some(WindowUpdate { stream_id: StreamId::CONNECTION, increment })
    }

    /// The settings of this side that the peer may count with changed: `initial_window_max` is the largest
    /// SETTINGS_INITIAL_WINDOW_SIZE that is acknowledged or on its way.
    ///
    /// Window is granted against the largest, because the peer adds the difference when it applies the setting
    /// (RFC 9113 §6.9.2): what was granted before must not be granted twice.
    ///
    /// Returns the streams whose window shrank. O(streams).
    pub(crate) fn set_recv_initial(&mut self, initial_window_max: u32) -> Vec<u32> {
        let before = core::mem::replace(&mut self.recv_initial, initial_window_max);
        let mut shrunk = Vec::new();
        if initial_window_max < before {
            self.slab.for_each(|slot, _| shrunk.push(slot));
        }
        shrunk
    }

    /// The caller announced another SETTINGS_INITIAL_WINDOW_SIZE.
    pub(crate) fn announce_initial_window(&mut self, before: u32, after: u32, config: &Config) {
        self.growth.set_start(before, after, config.stream_window_max);
    }

    /// Whether a PING is to leave with a WINDOW_UPDATE, to measure the path; it counts as sent.
    #[inline]
    pub(crate) fn start_probe(&mut self, now: Duration) -> bool {
        self.growth.start_probe(now)
    }

    /// The probe was answered: the round trip, or `None` when none was sent.
    pub(crate) fn finish_probe(&mut self, now: Duration) -> Option<Duration> {
        self.growth.finish_probe(now)
    }
}
