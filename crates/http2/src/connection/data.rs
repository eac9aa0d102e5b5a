//! DATA from the peer, and the windows it fills (RFC 9113 §6.1, §6.9).
//!
//! Owns both receive windows. The stream's is given back as the caller releases; the connection's as well, but ahead of
//! the caller while all that is held together stays within a bound, so that one slow reader stalls no other stream.
//!
//! ```text
//! stream      |held by the caller|  window the peer has  |   deficit   |
//!             |<------------------ target ---------------------------->|
//! WINDOW_UPDATE of the deficit when it is half of the target
//! ```

use super::Connection;
use super::exchange::PROBE;
use super::since::Since;
use crate::error::{Error, Misuse, Violation};
use crate::flow_control::{grant, spend, window};
use crate::frame::{Ping, StreamId, WindowUpdate};
use crate::rate_limit::Charge;
use crate::stream::{self, Ended, State, StreamKey, flag};
use crate::{Limits, frame};

impl Connection {
    /// Judges a DATA frame by its header: `flow_len` bytes of both windows, `data_len` of content. `None` is for a frame
    /// that is passed over.
    #[inline]
    pub(super) fn receive_data(
        &mut self,
        id: StreamId,
        flow_len: u32,
        data_len: u32,
        end_stream: bool,
    ) -> Result<Option<StreamKey>, Error> {
        // RFC 9113 §6.9.1: first of all the connection's window, which counts whatever becomes of the stream.
        if flow_len > 0 && i64::from(flow_len) > self.recv_window {
            return Err(Error::peer(Violation::ConnectionWindowExceeded, StreamId::CONNECTION));
        }
        self.recv_window -= i64::from(flow_len);
        self.growth.received(flow_len);
        let judged = self.receive_stream_data(id, flow_len, data_len, end_stream);
        if !matches!(judged, Ok(Some(_))) {
            // RFC 9113 §5.4.2, §6.9: the window of the connection is given back all the same.
            self.release_connection();
        }
        judged
    }

    /// Takes a DATA frame that is lawful and whole, and charged to no bucket; otherwise `None`, and nothing has changed.
    #[inline]
    pub(super) fn accept_whole_data(
        &mut self,
        id: StreamId,
        len: u32,
        end_stream: bool,
    ) -> Option<StreamKey> {
        let slot = self.slab.find(id.get())?;
        let initial = self.exchange.acknowledged.initial_window_size;
        let stream = self.slab.get_mut(slot);
        let mut content = stream.content;
        content.receive(len as usize).ok()?;
        if end_stream {
            content.end().ok()?;
        } else if len < Limits::TINY_DATA_LEN as u32 {
            return None;
        }
        // The rules are `receive_data`'s, which says what each breaks.
        let lawful = stream.state.may_receive_data()
            && stream.has(flag::RECV_FINAL)
            && (len == 0
                || i64::from(len) <= window(initial, stream.recv_delta)
                    && i64::from(len) <= self.recv_window);
        if !lawful {
            return None;
        }
        stream.content = content;
        stream.recv_delta = spend(stream.recv_delta, len);
        self.recv_window -= i64::from(len);
        self.growth.received(len);
        let key = self.slab.key(slot);
        self.hold(key, len);
        self.finish_data(key, end_stream);
        Some(key)
    }

    #[inline]
    fn receive_stream_data(
        &mut self,
        id: StreamId,
        flow_len: u32,
        data_len: u32,
        end_stream: bool,
    ) -> Result<Option<StreamKey>, Error> {
        let Some(slot) = self.slab.find(id.get()) else {
            self.absent(id, false)?;
            if flow_len == 0 && !end_stream {
                self.charge(Charge::EmptyFrame)?;
            }
            return Ok(None);
        };
        let key = self.slab.key(slot);
        let initial = self.exchange.acknowledged.initial_window_size;
        let stream = self.slab.get_mut(slot);
        let peer = |violation| Error::peer(violation, id);
        if !stream.state.may_receive_data() {
            return Err(peer(match stream.state {
                // RFC 9113 §5.1 (half-closed (remote)): STREAM_CLOSED.
                State::HalfClosedRemote => Violation::FrameAfterEndStream,
                State::Idle => Violation::FrameOnIdleStream,
                _ => Violation::FrameOnReservedStream,
            }));
        }
        // RFC 9113 §6.9.1: no more than the stream's window; an empty frame may come even where that is negative.
        if flow_len > 0 && i64::from(flow_len) > window(initial, stream.recv_delta) {
            return Err(peer(Violation::StreamWindowExceeded));
        }
        // RFC 9113 §8.1: content follows the final fields.
        if !stream.has(flag::RECV_FINAL) {
            return Err(peer(Violation::DataBeforeHeaders));
        }
        stream.content.receive(data_len as usize).map_err(peer)?;
        if end_stream {
            stream.content.end().map_err(peer)?;
        } else if data_len < Limits::TINY_DATA_LEN as u32 {
            // The first tiny frame of a stream is free: a short answer in two pieces is ordinary, and opening a stream
            // for each costs the peer more than the frame.
            let charged = stream.has(flag::TINY_BEFORE) && !stream.has(flag::CONNECT);
            stream.set(flag::TINY_BEFORE);
            if data_len == 0 {
                // CVE-2019-9518: frames that carry nothing and end nothing.
                self.charge(Charge::EmptyFrame)?;
            } else if charged {
                // CVE-2019-9511: data dribble.
                self.charge(Charge::TinyData)?;
            }
        }
        let stream = self.slab.get_mut(slot);
        stream.recv_delta = spend(stream.recv_delta, flow_len);
        Ok(Some(key))
    }

    /// Content is handed out: on a stream without automatic release the caller holds it from now on.
    #[inline]
    pub(super) fn hold(&mut self, key: StreamKey, len: u32) {
        if let Some(slot) = self.slab.slot(key) {
            let stream = self.slab.get_mut(slot);
            if stream.has(flag::MANUAL) {
                stream.held = stream.held.saturating_add(len);
                self.held += u64::from(len);
            }
        }
    }

    /// The last content of a DATA frame was handed out: window goes back, and the message may have ended.
    #[inline]
    pub(super) fn finish_data(&mut self, key: StreamKey, end_stream: bool) {
        if let Some(slot) = self.slab.slot(key) {
            if end_stream {
                self.step(slot, stream::Step::RecvEnd, Ended::Finished);
            } else {
                self.release_stream(slot);
            }
        }
        self.release_connection();
    }

    /// Gives window back for `len` bytes of DATA that were handed out, on a stream without automatic release.
    ///
    /// A stream that has ended had everything given back with it: releasing then does nothing.
    ///
    /// # Errors
    /// [`Misuse::ReleaseTooMuch`] when less is held.
    pub fn release_capacity(&mut self, stream: StreamKey, len: usize) -> Result<(), Error> {
        let Some(slot) = self.slab.slot(stream) else { return Ok(()) };
        let record = self.slab.get_mut(slot);
        let len = u32::try_from(len).map_err(|_| Misuse::ReleaseTooMuch)?;
        record.held = record.held.checked_sub(len).ok_or(Misuse::ReleaseTooMuch)?;
        self.held -= u64::from(len);
        self.release_stream(slot);
        self.release_connection();
        Ok(())
    }

    /// Chooses for one stream whether window is given back automatically; what is held stays held until released.
    ///
    /// # Errors
    /// [`Misuse::StreamGone`]
    pub fn set_auto_release(&mut self, stream: StreamKey, auto: bool) -> Result<(), Error> {
        let slot = self.slab.slot(stream).ok_or(Misuse::StreamGone)?;
        let record = self.slab.get_mut(slot);
        if auto {
            record.clear(flag::MANUAL)
        } else {
            record.set(flag::MANUAL)
        }
        Ok(())
    }

    /// Window of a stream that is worth an update.
    #[inline]
    pub(super) fn release_stream(&mut self, slot: u32) {
        let initial = self.exchange.acknowledged.initial_window_size;
        let stream = self.slab.get_mut(slot);
        if !stream.state.may_receive_data() {
            return;
        }
        let target = i64::from(self.growth.target());
        let deficit = target - i64::from(stream.held) - window(initial, stream.recv_delta);
        if deficit <= 0 || deficit * 2 < target {
            return;
        }
        // A deficit is at most the target (2^31-1) and what a negative window adds to it.
        let increment = deficit.min(crate::flow_control::WINDOW_MAX) as u32;
        if let Some(delta) = grant(initial, stream.recv_delta, increment)
            && let Some(stream_id) = StreamId::new(stream.id)
        {
            stream.recv_delta = delta;
            self.write_update(stream_id, increment);
        }
    }

    /// Window of the connection that is worth an update.
    #[inline]
    pub(super) fn release_connection(&mut self) {
        let target = i64::from(self.config.connection_window).max(i64::from(self.growth.target()));
        // What is held beyond the bound is not replaced.
        let excess = self.held.saturating_sub(u64::from(self.config.held_max));
        let deficit = target - i64::try_from(excess).unwrap_or(i64::MAX).min(target) - self.recv_window;
        if deficit <= 0 || deficit * 2 < target {
            return;
        }
        let increment = deficit.min(crate::flow_control::WINDOW_MAX) as u32;
        self.recv_window += i64::from(increment);
        self.write_update(StreamId::CONNECTION, increment);
    }

    fn write_update(&mut self, stream_id: StreamId, increment: u32) {
        if self.has_ended() {
            return;
        }
        let before = self.out.bytes.len();
        WindowUpdate { stream_id, increment }.encode(&mut self.out.bytes);
        // Where much comes in, the path is worth measuring.
        if self.reader.settings_seen && !stream_id.is_connection() && self.growth.start_probe(self.now) {
            Ping { ack: false, payload: PROBE }.encode(&mut self.out.bytes);
        }
        self.out.answers_len += self.out.bytes.len() - before;
    }

    #[inline]
    pub(super) fn receive_window_update(
        &mut self,
        update: frame::WindowUpdate,
    ) -> Result<Option<crate::event::Step>, Error> {
        let increment = update.increment;
        if update.stream_id.is_connection() {
            self.charge(Charge::WindowUpdate)?;
            self.send_window += i64::from(increment);
            // RFC 9113 §6.9.1: a connection error when the window passes 2^31-1.
            if self.send_window > crate::flow_control::WINDOW_MAX {
                return Err(Error::peer(Violation::WindowOverflow, StreamId::CONNECTION));
            }
            if i64::from(increment) >= Self::PROGRESS_MIN {
                self.stalled = Since::Never;
            }
            return Ok(None);
        }
        let id = update.stream_id;
        let Some(slot) = self.slab.find(id.get()) else {
            // RFC 9113 §5.1 (closed): it may have been under way when the stream ended.
            if self.is_idle(id) {
                return Err(Error::peer(Violation::FrameOnIdleStream, StreamId::CONNECTION));
            }
            if !self.was_just_reset(id) {
                self.charge(Charge::WindowUpdate)?;
            }
            return Ok(None);
        };
        self.charge(Charge::WindowUpdate)?;
        let initial = self.exchange.peer.initial_window_size;
        let stream = self.slab.get_mut(slot);
        if stream.state == State::Idle {
            return Err(Error::peer(Violation::FrameOnIdleStream, StreamId::CONNECTION));
        }
        // RFC 9113 §5.1 (reserved (remote)): the peer sends nothing but HEADERS and RST_STREAM there.
        if stream.state == State::ReservedRemote {
            return Err(Error::peer(Violation::FrameOnReservedStream, StreamId::CONNECTION));
        }
        let Some(delta) = grant(initial, stream.send_delta, increment) else {
            return Err(Error::peer(Violation::WindowOverflow, id));
        };
        stream.send_delta = delta;
        let unblocked = stream.has(flag::IN_BLOCKED) && window(initial, delta) > 0;
        self.send_delta_max = self.send_delta_max.max(delta);
        if unblocked {
            self.scheduler.remove(&mut self.slab, slot);
            self.scheduler.add_ready(&mut self.slab, slot);
        }
        Ok(None)
    }
}
