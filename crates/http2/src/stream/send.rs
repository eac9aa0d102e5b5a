//! Sending on streams: DATA within the windows, in the order of the scheduler (RFC 9113 §5.2, §6.9; RFC 9218 §10).

use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;

use super::stall::Stall;
use super::{ChunkPool, List, NONE, Scheduler, SendPhase, Slab, Stream, StreamKey, Streams, TrailerPool};
use crate::Limits;
use crate::config::Config;
use crate::error::{Error, Misuse, Violation};
use crate::field::{Field, FieldList};
use crate::flow_control::{WINDOW_DEFAULT, WINDOW_MAX, grant, spend, window};
use crate::frame::{StreamId, WindowUpdate};
use crate::message::ContentLeft;
use crate::priority::Priority;
use crate::settings::Settings;

/// The next frame of a stream. The connection writes it before it requests another one.
pub(crate) enum NextFrame {
    /// A DATA frame of `len` queued bytes, which [`Streams::take_chunk`] returns.
    Data {
        id: StreamId,
        len: u32,
        end_stream: bool,
        /// The trailers in [`Streams::trailers`] end the stream behind this frame. [`Streams::remove_trailers`] follows.
        trailers: bool,
        /// The key of the stream if the caller waits for room in its queue and there is some.
        writable: Option<StreamKey>,
    },
    /// No frame.
    None,
}

/// Subtracts `len` bytes from the announced content. Checks that no content is missing at the end of the message (RFC 9113
/// §8.1.1), because the peer would reset the stream.
#[inline]
pub(crate) fn check_content(
    mut left: ContentLeft,
    len: usize,
    end_stream: bool,
) -> Result<ContentLeft, Misuse> {
    let counted = left.receive(len).and_then(|()| if end_stream { left.end() } else { Ok(()) });
    counted.map_err(|_| Misuse::ContentLengthMismatch)?;
    Ok(left)
}

/// The send windows, the queues, and the order in which streams send.
pub(super) struct SendSide {
    /// The window of the connection.
    window: i64,
    /// The peer's SETTINGS_INITIAL_WINDOW_SIZE.
    initial: u32,
    /// An upper bound of `send_delta` of all streams.
    delta_max: i32,
    scheduler: Scheduler,
    chunks: ChunkPool,
    trailers: TrailerPool,
    stall: Stall,
}

impl SendSide {
    pub(super) const fn new(config: &Config) -> Self {
        Self {
            window: WINDOW_DEFAULT as i64,
            initial: Settings::INITIAL.initial_window_size,
            delta_max: 0,
            scheduler: Scheduler::new(),
            chunks: ChunkPool::new(),
            trailers: TrailerPool::new(),
            stall: Stall::new(config.limits.stall_timeout),
        }
    }

    /// Discards what a stream has queued.
    #[inline]
    pub(super) fn remove(&mut self, slab: &mut Slab, slot: u32) {
        let stream = slab.get_mut(slot);
        if stream.trailers != NONE {
            self.trailers.remove(stream.trailers);
        }
        if stream.last_chunk != NONE {
            self.chunks.clear(stream);
        }
        self.scheduler.remove(slab, slot);
    }

    /// The number of chunks and trailers for which memory is allocated.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.chunks.capacity() + self.trailers.capacity()
    }

    /// Frees unused memory.
    pub(super) fn shrink(&mut self) {
        self.chunks.shrink();
        self.trailers.shrink();
    }
}

impl Streams {
    /// The send window of a stream.
    #[inline]
    fn send_window_of(&self, stream: &Stream) -> i64 {
        window(self.send.initial, stream.send_delta)
    }

    /// The send window of the connection.
    #[inline]
    pub(crate) const fn send_window(&self) -> i64 {
        self.send.window
    }

    /// Whether a stream has DATA that its window allows.
    #[inline]
    pub(crate) const fn has_ready(&self) -> bool {
        !self.send.scheduler.is_idle()
    }

    /// Whether DATA is ready, but the window of the connection is closed.
    #[inline]
    pub(crate) const fn is_window_closed(&self) -> bool {
        self.has_ready() && self.send.window <= 0
    }

    /// Whether a frame of a stream can be written.
    #[inline]
    pub(crate) fn wants_write(&self) -> bool {
        (self.has_ready() && self.send.window > 0) || self.has_request()
    }

    /// Whether the caller may send content or trailers.
    ///
    /// # Errors
    /// [`Misuse::SendAfterEnd`], [`Misuse::SendBeforeHeaders`]
    #[inline]
    pub(crate) fn check_sending(&self, slot: u32) -> Result<(), Misuse> {
        match self.slab.get(slot).send {
            SendPhase::Content | SendPhase::Tunnel => Ok(()),
            SendPhase::Headers(_) => Err(Misuse::SendBeforeHeaders),
            _ => Err(Misuse::SendAfterEnd),
        }
    }

    /// Whether `len` bytes may be written at once as one frame, without overtaking other DATA.
    #[inline]
    pub(crate) fn may_send_now(&self, slot: u32, len: usize) -> bool {
        let stream = self.slab.get(slot);
        stream.list == List::None
            && !self.is_waiting(stream.id)
            && (len == 0
                || (self.send.scheduler.is_idle()
                    && len as i64 <= self.send.window
                    && len as i64 <= self.send_window_of(stream)))
    }

    /// Subtracts a DATA frame from both windows. Returns the identifier of its stream.
    #[inline]
    pub(crate) fn spend_send(&mut self, slot: u32, len: u32) -> StreamId {
        let stream = self.slab.get_mut(slot);
        stream.send_delta = spend(stream.send_delta, len);
        self.send.window -= i64::from(len);
        stream.id
    }

    /// Queues content, or END_STREAM after the queued content.
    ///
    /// # Errors
    /// [`Misuse::StreamQueueFull`] if the queue of the stream would reach 4 GiB.
    pub(crate) fn queue_data(
        &mut self,
        slot: u32,
        data: Bytes,
        end_stream: bool,
        content: ContentLeft,
        queue_max: u32,
    ) -> Result<(), Misuse> {
        let stream = self.slab.get_mut(slot);
        let is_empty = data.is_empty();
        if is_empty {
            self.send.chunks.discard(data);
        } else if !self.send.chunks.push(stream, data) {
            return Err(Misuse::StreamQueueFull);
        }
        stream.send_content = content;
        if end_stream {
            stream.send = SendPhase::EndQueued;
        } else if stream.queued > queue_max {
            stream.set_wants_writable(true);
        }
        if !is_empty || end_stream {
            self.schedule(slot);
        }
        Ok(())
    }

    /// Whether trailers have to wait for content or for the request itself.
    #[inline]
    pub(crate) fn must_queue_trailers(&self, slot: u32) -> bool {
        let stream = self.slab.get(slot);
        stream.list != List::None || self.is_waiting(stream.id)
    }

    /// Queues trailers after the content.
    pub(crate) fn queue_trailers<'f>(&mut self, slot: u32, fields: impl Iterator<Item = Field<'f>>) {
        let stream = self.slab.get_mut(slot);
        let (at, list) = self.send.trailers.add();
        list.extend(fields);
        stream.trailers = at;
        stream.send = SendPhase::TrailersQueued;
    }

    /// Adds a stream with queued DATA to the list of ready streams. [`Streams::next_frame`], which has the time, finds out whether its
    /// window is closed. A request that waits to open is not ready.
    pub(super) fn schedule(&mut self, slot: u32) {
        let stream = self.slab.get(slot);
        if stream.list == List::None && !self.is_waiting(stream.id) {
            self.send.scheduler.add_ready(&mut self.slab, slot);
        }
    }

    /// The stream that sends next.
    #[inline]
    pub(crate) fn next_ready(&self) -> Option<u32> {
        self.send.scheduler.next()
    }

    /// The next frame of a stream, with at most `frame_len_max` bytes.
    pub(crate) fn next_frame(
        &mut self,
        slot: u32,
        now: Duration,
        frame_len_max: u32,
        queue_max: u32,
    ) -> NextFrame {
        let stream = self.slab.get_mut(slot);
        let id = stream.id;
        let stream_window = window(self.send.initial, stream.send_delta);
        let room = stream_window.min(self.send.window).min(i64::from(frame_len_max));
        if room <= 0 {
            if stream_window <= 0 {
                self.send.scheduler.remove(&mut self.slab, slot);
                self.send.stall.block(&mut self.slab, &mut self.send.scheduler, slot, now);
            }
            return NextFrame::None;
        }
        let len = self.send.chunks.frame_len(stream, room as usize) as u32;
        let left = stream.queued - len;
        if room >= i64::from(Limits::PROGRESS_MIN) || left == 0 {
            stream.set_stalled_since(None);
        } else {
            self.send.stall.postpone(stream, len, now);
        }
        let end_stream = left == 0 && stream.send == SendPhase::EndQueued;
        // RFC 9113 §5.2.1: flow control applies only to DATA, so trailers do not wait for another turn.
        let trailers = left == 0 && stream.send == SendPhase::TrailersQueued;
        let is_writable = stream.wants_writable() && stream.send.takes_data() && left <= queue_max / 2;
        if is_writable {
            stream.set_wants_writable(false);
        }
        stream.send_delta = spend(stream.send_delta, len);
        self.send.window -= i64::from(len);
        let priority = stream.priority();
        self.send.scheduler.pass_turn(priority);
        if left == 0 {
            self.send.scheduler.remove(&mut self.slab, slot);
        } else if stream_window == i64::from(len) {
            self.send.scheduler.remove(&mut self.slab, slot);
            self.send.stall.block(&mut self.slab, &mut self.send.scheduler, slot, now);
        } else {
            self.send.scheduler.rotate(&mut self.slab, slot, priority);
        }
        let writable = is_writable.then(|| StreamKey::new(slot, id));
        NextFrame::Data { id, len, end_stream, trailers, writable }
    }

    /// Discards the queued DATA of all streams, because the connection has ended. O(slots).
    #[cold]
    pub(crate) fn discard_queued(&mut self) {
        let mut queued = Vec::new();
        self.slab.for_each(|slot, stream| queued.extend((stream.queued > 0).then_some(slot)));
        for slot in queued {
            self.send.chunks.clear(self.slab.get_mut(slot));
        }
    }

    /// Moves the chunks of streams that have ended to `to`.
    pub(crate) fn take_spent(&mut self, to: &mut Vec<Bytes>) {
        self.send.chunks.take_spent(to);
    }

    /// Drops the chunks of streams that have ended.
    #[inline]
    pub(crate) fn drop_spent(&mut self) {
        self.send.chunks.drop_spent();
    }

    /// Removes at most `max` bytes from the queue of a stream.
    #[inline]
    pub(crate) fn take_chunk(&mut self, slot: u32, max: usize) -> Option<Bytes> {
        self.send.chunks.pop(self.slab.get_mut(slot), max)
    }

    /// Removes the queued trailers of a stream, which were written.
    pub(crate) fn remove_trailers(&mut self, slot: u32) {
        self.send.trailers.remove(core::mem::replace(&mut self.slab.get_mut(slot).trailers, NONE));
    }

    /// The queued trailers of a stream.
    pub(crate) fn trailers(&self, slot: u32) -> &FieldList {
        self.send.trailers.fields(self.slab.get(slot).trailers)
    }

    /// The memory of the queued DATA of all streams, in bytes.
    pub(crate) const fn queued(&self) -> u64 {
        self.send.chunks.queued()
    }

    /// Changes the priority of a stream.
    pub(crate) fn set_priority(&mut self, slot: u32, priority: Priority) {
        self.send.scheduler.set_priority(&mut self.slab, slot, priority);
    }

    /// A stream with DATA that no window allows.
    pub(crate) fn without_window(&self) -> Option<StreamKey> {
        let ready = self.send.scheduler.next().filter(|_| self.send.window <= 0);
        self.send.scheduler.first_blocked().or(ready).map(|slot| self.slab.key(slot))
    }

    /// The time at which to call [`Streams::stalled`].
    pub(crate) fn stall_deadline(&self) -> Option<Duration> {
        self.send.stall.deadline(&self.send.scheduler)
    }

    /// The streams that have had DATA but no window for the timeout.
    pub(crate) fn stalled(&mut self, now: Duration) -> Vec<StreamKey> {
        self.send.stall.expired(&self.slab, &self.send.scheduler, now)
    }

    /// Applies a WINDOW_UPDATE of the connection.
    ///
    /// # Errors
    /// [`Violation::WindowOverflow`] beyond 2^31-1 (RFC 9113 §6.9.1).
    #[inline]
    pub(crate) fn grant_connection(&mut self, increment: u32) -> Result<(), Error> {
        self.send.window += i64::from(increment);
        // RFC 9113 §6.9.1: a connection error if the window exceeds 2^31-1.
        if self.send.window > WINDOW_MAX {
            return Err(Error::peer(Violation::WindowOverflow, StreamId::CONNECTION));
        }
        Ok(())
    }

    /// Applies a WINDOW_UPDATE of a stream.
    ///
    /// # Errors
    /// A rule of RFC 9113 §5.1 or §6.9.1 that the frame violates.
    #[inline]
    pub(crate) fn grant_stream(&mut self, slot: u32, update: WindowUpdate) -> Result<(), Error> {
        let stream = self.slab.get_mut(slot);
        // RFC 9113 §5.1 (reserved (remote)): the peer may only send HEADERS and RST_STREAM.
        if stream.send == SendPhase::Reserved {
            return Err(Error::peer(Violation::FrameOnReservedStream, StreamId::CONNECTION));
        }
        let Some(delta) = grant(self.send.initial, stream.send_delta, update.increment) else {
            return Err(Error::peer(Violation::WindowOverflow, update.stream_id));
        };
        stream.send_delta = delta;
        let unblocked = stream.list == List::Blocked && window(self.send.initial, delta) > 0;
        self.send.delta_max = self.send.delta_max.max(delta);
        if unblocked {
            self.unblock(slot);
        }
        Ok(())
    }

    fn unblock(&mut self, slot: u32) {
        self.send.scheduler.remove(&mut self.slab, slot);
        self.send.scheduler.add_ready(&mut self.slab, slot);
    }

    /// Applies the peer's SETTINGS_INITIAL_WINDOW_SIZE. Returns `false` if the window of a stream exceeds 2^31-1 (RFC 9113 §6.9.2).
    pub(super) fn set_send_initial(&mut self, initial: u32) -> bool {
        let before = core::mem::replace(&mut self.send.initial, initial);
        initial <= before || self.send_windows_grew()
    }

    /// Unblocks streams whose windows were closed, after all windows have grown.
    fn send_windows_grew(&mut self) -> bool {
        if window(self.send.initial, self.send.delta_max) > WINDOW_MAX {
            // The bound includes streams that have been closed. Compute the maximum of the open ones.
            let mut max = 0;
            self.slab.for_each(|_, stream| max = max.max(stream.send_delta));
            self.send.delta_max = max;
            if window(self.send.initial, max) > WINDOW_MAX {
                return false;
            }
        }
        let mut at = self.send.scheduler.first_blocked();
        while let Some(slot) = at {
            let stream = self.slab.get(slot);
            at = (stream.next != NONE).then_some(stream.next);
            if self.send_window_of(stream) > 0 {
                self.unblock(slot);
            }
        }
        true
    }
}

#[cfg(test)]
impl Streams {
    /// The length of the queued DATA of all streams, in bytes.
    pub(super) const fn queued_content(&self) -> u64 {
        self.send.chunks.content()
    }

    /// The send window of a stream.
    pub(super) fn send_window_at(&self, slot: u32) -> i64 {
        self.send_window_of(self.slab.get(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Role;
    use crate::stream::RecvPhase;
    use alloc::vec;

    /// A server's streams, of which one sends content in a window of `initial`.
    fn sending(initial: u32) -> (Streams, u32) {
        let config = Config::new(Role::Server);
        let mut streams = Streams::new(Role::Server, &config);
        let settings = Settings { initial_window_size: initial, ..Settings::INITIAL };
        assert!(streams.apply_peer_settings(&settings));
        let stream = streams.record(StreamId::FIRST_CLIENT, RecvPhase::End, SendPhase::Content, &config);
        let slot = streams.accept_request(stream);
        (streams, slot)
    }

    fn queue(streams: &mut Streams, slot: u32, len: usize) {
        streams.queue_data(slot, vec![7; len].into(), false, ContentLeft::UNKNOWN, 1 << 20).unwrap();
    }

    /// The output is filled while no window is open.
    fn block(streams: &mut Streams, slot: u32) {
        assert!(matches!(streams.next_frame(slot, Duration::ZERO, 10, 1 << 20), NextFrame::None));
    }

    #[test]
    fn a_stream_without_window_is_blocked_when_the_output_is_filled() {
        let (mut streams, slot) = sending(0);
        queue(&mut streams, slot, 5);
        assert!(streams.wants_write(), "the timeout needs the time");
        block(&mut streams, slot);
        assert_eq!((streams.next_ready(), streams.send.scheduler.first_blocked()), (None, Some(slot)));
        assert!(!streams.wants_write() && !streams.is_window_closed());
        let (mut streams, slot) = sending(1);
        queue(&mut streams, slot, 5);
        assert_eq!((streams.next_ready(), streams.send.scheduler.first_blocked()), (Some(slot), None));
        assert!(streams.wants_write());
    }

    #[test]
    fn a_frame_that_uses_up_the_window_blocks_its_stream() {
        for (window, is_blocked) in [(10, true), (11, false)] {
            let (mut streams, slot) = sending(window);
            queue(&mut streams, slot, 25);
            let frame = streams.next_frame(slot, Duration::ZERO, 10, 1 << 20);
            assert!(matches!(frame, NextFrame::Data { len: 10, end_stream: false, writable: None, .. }));
            streams.take_chunk(slot, 10).unwrap();
            assert_eq!(streams.next_ready().is_none(), is_blocked);
            streams.check();
        }
    }

    #[test]
    fn short_streams_of_one_group_do_not_starve_the_other_group() {
        for tunnels_are_short in [false, true] {
            let (mut streams, long) = sending(65_535);
            streams.set_priority(long, Priority { urgency: 3, incremental: !tunnels_are_short });
            queue(&mut streams, long, 100);
            let config = Config::new(Role::Server);
            for id in [3, 5, 7, 9] {
                let stream =
                    streams.record(StreamId::new(id).unwrap(), RecvPhase::End, SendPhase::Content, &config);
                let slot = streams.accept_request(stream);
                streams.set_priority(slot, Priority { urgency: 3, incremental: tunnels_are_short });
                queue(&mut streams, slot, 10);
            }
            let mut order = vec![];
            for _ in 0..6 {
                let slot = streams.next_ready().unwrap();
                let NextFrame::Data { id, .. } = streams.next_frame(slot, Duration::ZERO, 10, 1 << 20) else {
                    panic!()
                };
                streams.take_chunk(slot, 10).unwrap();
                order.push(id.get());
            }
            let turns = order.iter().filter(|&&id| id == 1).count();
            assert_eq!(turns, 3, "every second frame is the long stream's: {order:?}");
        }
    }

    #[test]
    fn the_clock_of_a_stream_stops_once_its_queue_is_empty_or_its_window_is_large() {
        const TIMEOUT: Duration = crate::Limits::DEFAULT.stall_timeout;
        let update = |increment| WindowUpdate { stream_id: StreamId::FIRST_CLIENT, increment };
        let frame_len = |frame| match frame {
            NextFrame::Data { len, .. } => len,
            NextFrame::None => 0,
        };
        // The window of the stream, and how much of it the window of the connection allows.
        for (queued, window, room) in [(5, 5, 5), (1_026, 1_025, 1_024), (5_000, 2_025, 2_024)] {
            let (mut streams, slot) = sending(0);
            let frame_at =
                |streams: &mut Streams, now| frame_len(streams.next_frame(slot, now, 1 << 14, 1 << 20));
            queue(&mut streams, slot, queued);
            assert_eq!(frame_at(&mut streams, Duration::ZERO), 0);
            assert_eq!(streams.stall_deadline(), Some(TIMEOUT));
            streams.send.window = room;
            streams.grant_stream(slot, update(window)).unwrap();
            assert_eq!(frame_at(&mut streams, TIMEOUT / 4), room as u32);
            assert_eq!(streams.take_chunk(slot, room as usize).unwrap().len(), room as usize);
            // Later it is blocked again.
            streams.send.window = 1;
            if queued == 5 {
                queue(&mut streams, slot, 5);
            }
            assert!(frame_at(&mut streams, TIMEOUT / 2) <= 1);
            assert_eq!(streams.stall_deadline(), Some(TIMEOUT / 2 + TIMEOUT), "{room}");
        }
    }

    #[test]
    fn the_window_of_the_connection_is_closed_while_content_is_ready() {
        let (mut streams, slot) = sending(100_000);
        streams.send.window = 0;
        assert!(!streams.is_window_closed() && !streams.wants_write());
        queue(&mut streams, slot, 5);
        assert!(streams.is_window_closed() && !streams.wants_write());
        assert_eq!(streams.without_window(), Some(streams.key(slot)));
        assert!(matches!(streams.next_frame(slot, Duration::ZERO, 10, 1 << 20), NextFrame::None));
        assert_eq!(streams.next_ready(), Some(slot));
        streams.grant_connection(1).unwrap();
        assert!(!streams.is_window_closed() && streams.wants_write());
        assert_eq!(streams.without_window(), None);
    }

    #[test]
    fn content_is_sent_at_once_within_both_windows_and_overtakes_nothing() {
        let (streams, slot) = sending(10);
        assert!(streams.may_send_now(slot, 10) && !streams.may_send_now(slot, 11));
        let (mut streams, slot) = sending(100);
        streams.send.window = 10;
        assert!(streams.may_send_now(slot, 10) && !streams.may_send_now(slot, 11));
        assert!(!streams.must_queue_trailers(slot));
        queue(&mut streams, slot, 1);
        assert!(!streams.may_send_now(slot, 0) && streams.must_queue_trailers(slot));
    }

    #[test]
    fn a_window_update_unblocks_a_stream_once_its_window_is_positive() {
        let (mut streams, slot) = sending(0);
        queue(&mut streams, slot, 5);
        block(&mut streams, slot);
        let update = |increment| WindowUpdate { stream_id: StreamId::FIRST_CLIENT, increment };
        streams.get_mut(slot).send_delta = -3;
        streams.grant_stream(slot, update(3)).unwrap();
        assert_eq!(streams.next_ready(), None);
        streams.grant_stream(slot, update(1)).unwrap();
        assert_eq!(streams.next_ready(), Some(slot));
        // A stream without content has nothing to send.
        let (mut streams, slot) = sending(5);
        streams.grant_stream(slot, update(1)).unwrap();
        assert_eq!((streams.next_ready(), streams.wants_write()), (None, false));
    }

    #[test]
    fn settings_unblock_streams_whose_windows_become_positive() {
        let (mut streams, slot) = sending(0);
        queue(&mut streams, slot, 5);
        block(&mut streams, slot);
        streams.get_mut(slot).send_delta = -3;
        let initial = |initial_window_size| Settings { initial_window_size, ..Settings::INITIAL };
        assert!(streams.apply_peer_settings(&initial(3)));
        assert_eq!(streams.next_ready(), None);
        assert!(streams.apply_peer_settings(&initial(4)));
        assert_eq!(streams.next_ready(), Some(slot));
    }
}
