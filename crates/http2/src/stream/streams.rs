//! [`Streams`]: opens, counts and closes the streams of a connection. [`SendSide`] and [`RecvSide`] have the state of each direction, which
//! only `send` and `receive` access.
//!
//! Its methods return what the connection has to write. Waiting requests are opened only by [`Streams::next_request`], which the
//! connection calls when it fills the output: the HEADERS of a request never precede the RST_STREAM that made room for it.

use super::opening::Request;
use super::receive::RecvSide;
use super::send::SendSide;
use super::{
    Closed, ClosedStreams, IdlePriorities, LateFrame, LocalReset, Opening, RecvPhase, SendPhase, Slab,
    Stream, StreamKey,
};
use crate::Role;
use crate::config::Config;
use crate::error::{ErrorCode, Misuse};
use crate::field::{Field, FieldList};
use crate::frame::{RstStream, StreamId};
use crate::message::ContentLeft;
use crate::priority::Priority;
use crate::settings::Settings;

/// The streams and the windows of one connection.
pub(crate) struct Streams {
    role: Role,
    pub(super) slab: Slab,
    closed_streams: ClosedStreams,
    idle_priorities: IdlePriorities,
    /// Requests of this side that wait to open.
    opening: Opening,
    /// The next stream that this side opens; `None` if all identifiers are used.
    next_local: Option<StreamId>,
    /// The highest stream that the peer opened or promised; [`StreamId::CONNECTION`] if there is none.
    highest_peer: StreamId,
    /// The numbers of streams that count towards SETTINGS_MAX_CONCURRENT_STREAMS of the peer, and of this side.
    open_local: u32,
    open_peer: u32,
    /// The number of reserved streams, of both sides.
    reserved: u32,
    /// The peer's SETTINGS_MAX_CONCURRENT_STREAMS.
    open_local_max: u32,
    pub(super) send: SendSide,
    pub(super) recv: RecvSide,
}

/// The actions of the connection after a stream was closed, in the order of the fields.
#[must_use]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CloseEffects {
    /// A frame to write.
    pub(crate) reset: Option<RstStream>,
    /// Whether the stream was removed.
    pub(crate) removed: bool,
    /// Whether window of the connection was released.
    pub(crate) released: bool,
}

impl CloseEffects {
    const STILL_OPEN: Self = Self { reset: None, removed: false, released: false };
}

/// A waiting request that opens.
pub(crate) struct OpenedRequest {
    pub(crate) request: Request,
    pub(crate) end_stream: bool,
}

impl Streams {
    pub(crate) fn new(role: Role, config: &Config) -> Self {
        let next_local = match role {
            Role::Client => StreamId::FIRST_CLIENT,
            Role::Server => StreamId::FIRST_SERVER,
        };
        Self {
            role,
            slab: Slab::new(config.hash_key),
            closed_streams: ClosedStreams::new(config.limits.resets_remembered_max),
            idle_priorities: IdlePriorities::new(),
            opening: Opening::new(),
            next_local: Some(next_local),
            highest_peer: StreamId::CONNECTION,
            open_local: 0,
            open_peer: 0,
            reserved: 0,
            open_local_max: Settings::INITIAL.max_concurrent_streams,
            send: SendSide::new(config),
            recv: RecvSide::new(config),
        }
    }

    // ---- identity

    /// The number of streams: open, half-closed, reserved and waiting.
    #[inline]
    pub(crate) const fn len(&self) -> u32 {
        self.slab.len()
    }

    #[inline]
    pub(crate) fn find(&self, id: StreamId) -> Option<u32> {
        self.slab.find(id)
    }

    #[inline]
    pub(crate) fn slot(&self, key: StreamKey) -> Option<u32> {
        self.slab.slot(key)
    }

    #[inline]
    pub(crate) fn key(&self, slot: u32) -> StreamKey {
        self.slab.key(slot)
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> &Stream {
        self.slab.get(slot)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut Stream {
        self.slab.get_mut(slot)
    }

    /// Whether this side opens or promises streams of this identifier (RFC 9113 §5.1.1).
    #[inline]
    pub(crate) fn is_local(&self, id: StreamId) -> bool {
        id.opener() == Some(self.role)
    }

    /// Whether neither side has used this stream (RFC 9113 §5.1.1).
    pub(crate) fn is_idle(&self, id: StreamId) -> bool {
        if self.is_local(id) {
            self.next_local.is_some_and(|next| id >= next) || self.opening.is_before_opening(id)
        } else {
            id > self.highest_peer
        }
    }

    /// The highest stream that the peer opened or promised.
    #[inline]
    pub(crate) const fn highest_peer(&self) -> StreamId {
        self.highest_peer
    }

    /// The next stream that this side opens.
    #[inline]
    pub(crate) const fn next_local(&self) -> Option<StreamId> {
        self.next_local
    }

    /// Why a stream has no record.
    pub(crate) fn closed(&self, id: StreamId) -> Closed {
        if self.is_idle(id) { Closed::Idle } else { self.closed_streams.find(id) }
    }

    /// A frame on a closed stream was ignored.
    pub(crate) fn ignored(&mut self, id: StreamId, frame: LateFrame) {
        self.closed_streams.ignored(id, frame);
    }

    /// Remembers RST_STREAM for a stream without a record: the peer may send as much as a new stream allows.
    pub(crate) fn remember_reset(&mut self, id: StreamId) {
        self.closed_streams
            .add_local_reset(id, LocalReset { window: self.recv.window_new(), is_tunnel: false });
    }

    /// Remembers a stream without a record that both sides have ended.
    pub(crate) fn remember_finished(&mut self, id: StreamId) {
        self.closed_streams.add_finished(id);
    }

    // ---- opening

    /// The number of streams of the peer that count as open (RFC 9113 §5.1.2).
    #[inline]
    pub(crate) const fn open_peer(&self) -> u32 {
        self.open_peer
    }

    /// The number of reserved streams.
    #[inline]
    pub(crate) const fn reserved(&self) -> u32 {
        self.reserved
    }

    /// The number of requests or promises that the peer's SETTINGS_MAX_CONCURRENT_STREAMS still allows.
    #[inline]
    pub(crate) const fn open_capacity(&self) -> u32 {
        self.open_local_max.saturating_sub(self.open_local)
    }

    /// Whether a new request has to wait for the peer's SETTINGS_MAX_CONCURRENT_STREAMS.
    #[inline]
    pub(crate) fn must_wait(&self) -> bool {
        self.open_local >= self.open_local_max || !self.opening.is_empty()
    }

    /// Whether this stream, which has a record, waits to open.
    #[inline]
    pub(super) fn is_waiting(&self, id: StreamId) -> bool {
        !self.opening.is_empty() && self.is_local(id) && self.opening.is_before_opening(id)
    }

    /// Opens a request of this side, whose HEADERS the caller writes.
    #[inline]
    pub(crate) fn open_request(&mut self, stream: Stream) -> StreamKey {
        let id = stream.id;
        self.next_local = id.next();
        let slot = self.slab.insert(stream);
        self.open_local += 1;
        StreamKey::new(slot, id)
    }

    /// Queues a request of this side until the peer allows one more stream.
    ///
    /// # Errors
    /// [`Misuse::OpenQueueFull`]
    pub(crate) fn queue_request<'f>(
        &mut self,
        stream: Stream,
        fields: impl Iterator<Item = Field<'f>>,
        waiting_max: usize,
    ) -> Result<StreamKey, Misuse> {
        if self.opening.len() >= waiting_max {
            return Err(Misuse::OpenQueueFull);
        }
        self.next_local = stream.id.next();
        let slot = self.slab.insert_unlisted(stream);
        let key = self.slab.key(slot);
        self.opening.push(key, fields);
        Ok(key)
    }

    /// Whether a waiting request may open.
    #[inline]
    pub(crate) fn has_request(&self) -> bool {
        !self.opening.is_empty() && self.open_local < self.open_local_max
    }

    /// Opens the first waiting request, if the peer allows one more. The caller writes its fields as HEADERS and then calls
    /// [`Streams::finish_request`].
    #[inline]
    pub(crate) fn next_request(&mut self) -> Option<OpenedRequest> {
        if !self.has_request() {
            return None;
        }
        let request = self.opening.pop()?;
        let slot = request.key.slot_u32();
        self.slab.list(slot);
        self.open_local += 1;
        let stream = self.slab.get(slot);
        let end_stream = stream.send == SendPhase::EndQueued && stream.queued == 0;
        Some(OpenedRequest { request, end_stream })
    }

    /// Schedules the DATA of a waiting request whose HEADERS were written. Returns whether trailers follow at once.
    pub(crate) fn finish_request(&mut self, slot: u32, fields: FieldList) -> bool {
        self.opening.reuse(fields);
        let stream = self.slab.get(slot);
        if stream.queued > 0 {
            self.schedule(slot);
            return false;
        }
        stream.send == SendPhase::TrailersQueued
    }

    /// Sets the PRIORITY_UPDATE to send after a waiting request.
    pub(crate) fn set_waiting_priority(&mut self, id: StreamId, priority: Priority) {
        self.opening.set_priority(id, priority);
    }

    /// The peer uses an identifier, which closes the lower idle ones (RFC 9113 §5.1.1). Returns the priority that it has sent for
    /// this stream before.
    #[inline]
    pub(crate) fn use_peer_id(&mut self, id: StreamId) -> Option<Priority> {
        self.highest_peer = id;
        self.idle_priorities.take(id)
    }

    /// Opens a request of the peer.
    #[inline]
    pub(crate) fn accept_request(&mut self, stream: Stream) -> u32 {
        self.open_peer += 1;
        self.slab.insert(stream)
    }

    /// Reserves a stream that this side promises (RFC 9113 §8.4).
    pub(crate) fn reserve_local(&mut self, stream: Stream) -> StreamKey {
        self.next_local = stream.id.next();
        self.reserved += 1;
        let slot = self.slab.insert(stream);
        self.slab.key(slot)
    }

    /// Reserves a stream that the peer promises.
    pub(crate) fn reserve_remote(&mut self, stream: Stream) -> StreamKey {
        self.reserved += 1;
        let slot = self.slab.insert(stream);
        self.slab.key(slot)
    }

    /// The promised response begins: the stream is half-closed, and counts as open (RFC 9113 §5.1.2).
    pub(crate) fn begin_reserved(&mut self, slot: u32) {
        let stream = self.slab.get_mut(slot);
        debug_assert!(stream.is_reserved());
        self.reserved -= 1;
        if stream.recv == RecvPhase::Reserved {
            stream.recv = RecvPhase::End;
            self.open_local += 1;
        } else {
            stream.send = SendPhase::End;
            self.open_peer += 1;
        }
    }

    // ---- closing

    /// This side sent END_STREAM.
    #[inline]
    pub(crate) fn end_send(&mut self, slot: u32) -> CloseEffects {
        let stream = self.slab.get_mut(slot);
        stream.send = SendPhase::End;
        if stream.recv == RecvPhase::End { self.finish(slot) } else { CloseEffects::STILL_OPEN }
    }

    /// The peer sent END_STREAM.
    #[inline]
    pub(crate) fn end_recv(&mut self, slot: u32) -> CloseEffects {
        let stream = self.slab.get_mut(slot);
        stream.recv = RecvPhase::End;
        if stream.send == SendPhase::End { self.finish(slot) } else { CloseEffects::STILL_OPEN }
    }

    /// Both sides sent END_STREAM.
    #[inline]
    fn finish(&mut self, slot: u32) -> CloseEffects {
        self.closed_streams.add_finished(self.slab.get(slot).id);
        let released = self.remove(slot);
        CloseEffects { reset: None, removed: true, released }
    }

    /// Resets a stream. RST_STREAM is sent unless the request waits to open: for the peer this stream is idle, and RFC 9113 §6.4
    /// forbids RST_STREAM on an idle stream.
    pub(crate) fn reset(&mut self, slot: u32, code: ErrorCode) -> CloseEffects {
        let stream = self.slab.get(slot);
        let (stream_id, was_waiting) = (stream.id, self.is_waiting(stream.id));
        self.closed_streams.add_local_reset(stream_id, self.local_reset(stream));
        let released = self.remove(slot);
        let reset = (!was_waiting).then_some(RstStream { stream_id, code });
        CloseEffects { reset, removed: true, released }
    }

    fn local_reset(&self, stream: &Stream) -> LocalReset {
        LocalReset { window: self.recv.window_left(stream), is_tunnel: stream.recv == RecvPhase::Tunnel }
    }

    /// Closes a stream that the peer will not process (RFC 9113 §6.8). Nothing is sent.
    pub(crate) fn abandon(&mut self, slot: u32) -> CloseEffects {
        let stream = self.slab.get(slot);
        self.closed_streams.add_local_reset(stream.id, self.local_reset(stream));
        let released = self.remove(slot);
        CloseEffects { reset: None, removed: true, released }
    }

    /// The peer reset the stream.
    pub(crate) fn reset_by_peer(&mut self, slot: u32) -> CloseEffects {
        self.closed_streams.add_peer_reset(self.slab.get(slot).id);
        let released = self.remove(slot);
        CloseEffects { reset: None, removed: true, released }
    }

    /// Removes the first waiting request.
    pub(crate) fn remove_waiting(&mut self) -> Option<(StreamKey, CloseEffects)> {
        let key = self.opening.first()?;
        Some((key, self.reset(key.slot_u32(), ErrorCode::CANCEL)))
    }

    /// The streams of this side above `last`, in the order of their identifiers. O(streams): for GOAWAY.
    pub(crate) fn local_above(&self, last: StreamId) -> alloc::vec::Vec<StreamKey> {
        let mut keys = alloc::vec::Vec::new();
        if self.next_local.is_none_or(|next| last < next) {
            self.slab.for_each(|slot, stream| {
                if self.is_local(stream.id) && stream.id > last {
                    keys.push(StreamKey::new(slot, stream.id));
                }
            });
            keys.sort_unstable_by_key(|key| key.stream_id());
        }
        keys
    }

    /// The streams on which the peer has not ended its message.
    pub(crate) fn incomplete(&self) -> alloc::vec::Vec<StreamKey> {
        let mut keys = alloc::vec::Vec::new();
        self.slab.for_each(|slot, stream| {
            if stream.recv != RecvPhase::End {
                keys.push(StreamKey::new(slot, stream.id));
            }
        });
        keys
    }

    /// Removes a stream in any phase. Returns whether the caller held DATA of it, which is released to the window of the
    /// connection.
    #[inline]
    fn remove(&mut self, slot: u32) -> bool {
        let id = self.slab.get(slot).id;
        let was_waiting = self.is_waiting(id);
        if was_waiting {
            self.opening.cancel(id);
        }
        let stream = self.slab.get(slot);
        if was_waiting {
            // Waiting requests are not counted.
        } else if stream.is_reserved() {
            self.reserved -= 1;
        } else if stream.id.opener() == Some(self.role) {
            self.open_local -= 1;
        } else {
            self.open_peer -= 1;
        }
        let held = stream.held;
        self.send.remove(&mut self.slab, slot);
        self.slab.remove(slot);
        self.recv.end_stream(held)
    }

    // ---- settings, priorities, memory

    /// Applies changed settings of the peer. Returns `false` if the window of a stream exceeds 2^31-1 (RFC 9113 §6.9.2).
    pub(crate) fn apply_peer_settings(&mut self, settings: &Settings) -> bool {
        self.open_local_max = settings.max_concurrent_streams;
        self.set_send_initial(settings.initial_window_size)
    }

    /// Applies a priority signal of the client. A tunnel stays incremental: it has no end that others could wait for (RFC 9218 §11).
    pub(crate) fn signal_priority(&mut self, slot: u32, signal: Priority) -> Priority {
        let is_tunnel = self.slab.get(slot).is_tunnel();
        let priority = Priority { incremental: signal.incremental || is_tunnel, ..signal };
        self.set_priority(slot, priority);
        priority
    }

    /// Sets the priority of a request that has not arrived. Returns `false` if there would be more than `streams_max` streams that
    /// are open, or idle with a priority (RFC 9218 §7.1).
    pub(crate) fn set_idle_priority(
        &mut self,
        id: StreamId,
        priority: Priority,
        streams_max: usize,
        kept_max: usize,
    ) -> bool {
        if !self.idle_priorities.contains(id)
            && self.idle_priorities.len() + 1 + self.open_peer as usize > streams_max
        {
            return false;
        }
        self.idle_priorities.set(id, priority, kept_max);
        true
    }

    /// Frees unused memory.
    pub(crate) fn shrink(&mut self) {
        self.slab.shrink();
        self.closed_streams.shrink();
        self.idle_priorities.shrink();
        self.send.shrink();
        self.opening.shrink();
    }

    /// A new record with the defaults of the configuration.
    #[inline]
    pub(crate) fn record(&self, id: StreamId, recv: RecvPhase, send: SendPhase, config: &Config) -> Stream {
        let mut stream = Stream::new(id, recv, send);
        stream.set_priority(Priority::UNSIGNALLED);
        stream.set_auto_release(config.auto_release);
        stream.content = ContentLeft::UNKNOWN;
        stream
    }
}

#[cfg(test)]
impl Streams {
    /// Skips the identifiers below `id`.
    pub(crate) fn set_next_local(&mut self, id: StreamId) {
        self.next_local = Some(id);
    }

    /// The number of pages, buckets, chunks and trailers for which memory is allocated.
    pub(crate) fn capacity(&self) -> usize {
        self.slab.capacity() + self.send.capacity()
    }

    pub(crate) fn open_local(&self) -> u32 {
        self.open_local
    }

    /// The send window and the receive window of a stream.
    pub(crate) fn windows(&self, slot: u32) -> (i64, i64) {
        (self.send_window_at(slot), self.recv_window_of(slot))
    }

    pub(crate) fn for_each(&self, visit: impl FnMut(u32, &Stream)) {
        self.slab.for_each(visit);
    }

    /// Checks that every counter is the sum over the streams, and that every stream is in the right list.
    pub(crate) fn check(&self) {
        let (mut local, mut peer, mut reserved, mut waiting, mut held, mut queued) = (0, 0, 0, 0, 0, 0);
        self.slab.for_each(|slot, stream| {
            if self.is_waiting(stream.id) {
                waiting += 1;
            } else if stream.is_reserved() {
                reserved += 1;
            } else if self.is_local(stream.id) {
                local += 1;
            } else {
                peer += 1;
            }
            held += u64::from(stream.held);
            queued += u64::from(stream.queued);
            assert!((stream.recv, stream.send) != (RecvPhase::End, SendPhase::End), "{stream:?}");
            let ends = matches!(stream.send, SendPhase::EndQueued | SendPhase::TrailersQueued);
            if (stream.queued > 0 || ends) && !self.is_waiting(stream.id) {
                assert!(matches!(stream.list, super::List::Ready | super::List::Blocked), "{stream:?}");
            }
            if stream.list == super::List::Blocked {
                assert!(self.windows(slot).0 <= 0, "{stream:?}");
            }
        });
        let counted = (
            self.open_local,
            self.open_peer,
            self.reserved,
            self.opening.len(),
            self.held(),
            self.queued_content(),
        );
        assert_eq!((local, peer, reserved, waiting, held + self.held_ended(), queued), counted);
        assert!(self.send_window() >= 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_if_it_was_queued_and_has_not_opened() {
        let config = Config::new(Role::Client);
        let mut streams = Streams::new(Role::Client, &config);
        streams.open_local_max = 1;
        let id = |id| StreamId::new(id).unwrap_or(StreamId::CONNECTION);
        let (recv, send) = (RecvPhase::Headers(crate::message::RequestKind::Plain), SendPhase::End);
        let record = |streams: &Streams, id| streams.record(id, recv, send, &config);
        let first = record(&streams, id(1));
        streams.open_request(first);
        assert!(![1, 2, 3].into_iter().any(|n| streams.is_waiting(id(n))), "nothing is queued");
        let second = record(&streams, id(3));
        streams.queue_request(second, core::iter::empty(), 10).unwrap();
        assert_eq!([1, 2, 3, 4].map(|n| streams.is_waiting(id(n))), [false, false, true, false]);
    }
}
