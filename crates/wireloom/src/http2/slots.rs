//! State of streams outside of the protocol core: content that the application has not read, errors, and wakers.

use std::task::{Context, Poll};

use bytes::Bytes;
use slab::Slab;
use wireloom_http2::{Connection, Event, Role, StreamKey};

use super::head::to_headers;
use super::heads::Heads;
use super::leaving::Leaving;
use super::recv_buffer::RecvBuffer;
use crate::error::HttpError;
use crate::guard::{Deferred, WakerSlot};
use crate::headers::Head;

/// Identifies a stream and its slot. A handle or task that holds one keeps the slot; the core may have forgotten the stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamRef {
    pub(super) key: StreamKey,
    index: u32,
}

/// The slots of a connection: one for each stream that a handle or a task refers to.
#[derive(Default)]
pub(super) struct Slots {
    slots: Slab<Box<Slot>>,
    /// By [`StreamKey::slot`]: the index of the last slot that was made for it.
    indexes: Vec<u32>,
    leaving: Leaving<StreamRef>,
}

/// One stream.
#[derive(Default)]
pub(super) struct Slot {
    /// `None` only before it is inserted.
    key: Option<StreamKey>,
    /// Handles and tasks that refer to it.
    references: u8,
    pub(super) receiving: Receiving,
    /// END_STREAM was sent or is queued.
    pub(super) finished: bool,
    pub(super) request_end: RequestEnd,
    /// The status of the response, which has ended, was below 300.
    pub(super) is_accepted: bool,
    /// It is read as a transport.
    pub(super) is_tunnel: bool,
    /// The client waits for `100 Continue`, which is sent when content is first read (RFC 9110 §10.1.1).
    pub(super) continue_due: bool,
    /// Content that arrived and was not read.
    pub(super) data: RecvBuffer,
    pub(super) heads: Heads,
    pub(super) error: Option<HttpError>,
    /// Waits for a head or content.
    pub(super) receiver: WakerSlot,
    /// Waits for send capacity, or for the last output to leave.
    pub(super) sender: WakerSlot,
    /// The task that runs the handler; waits for the stream to fail.
    pub(super) handler: WakerSlot,
}

/// The receiving half of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Receiving {
    /// Content is queued for the reader.
    #[default]
    Open,
    /// The reader was dropped, or the end of the connection has dropped what it had not read: content is released as it arrives.
    Discarding,
    /// END_STREAM has arrived.
    Ended,
}

/// END_STREAM of a client's request that has content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RequestEnd {
    /// It is queued, if it was sent at all.
    #[default]
    Queued,
    /// It is in the output, and does not depend on its stream any more.
    Leaving,
    /// It has left.
    Left,
}

impl Slots {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn find(&self, key: StreamKey) -> Option<StreamRef> {
        let index = *self.indexes.get(key.slot())?;
        let slot = self.slots.get(index as usize)?;
        (slot.key == Some(key)).then_some(StreamRef { key, index })
    }

    #[inline]
    pub(super) fn get(&mut self, stream: StreamRef) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(stream.index as usize)?;
        (slot.key == Some(stream.key)).then_some(&mut **slot)
    }

    #[inline]
    pub(super) fn get_by_key(&mut self, key: StreamKey) -> Option<&mut Slot> {
        let index = *self.indexes.get(key.slot())?;
        let slot = self.slots.get_mut(index as usize)?;
        (slot.key == Some(key)).then_some(&mut **slot)
    }

    /// Adds a reference to a stream that the core knows. A slot that has to be made begins as `receiving`: `Discarding` when
    /// no reader can exist.
    pub(super) fn refer(&mut self, key: StreamKey, receiving: Receiving) -> StreamRef {
        if let Some(stream) = self.find(key) {
            if let Some(slot) = self.get(stream) {
                slot.references += 1;
            }
            return stream;
        }
        let stream = self.insert(Slot { references: 1, receiving, ..Slot::default() }, key);
        if self.indexes.len() <= key.slot() {
            self.indexes.resize(key.slot() + 1, u32::MAX);
        }
        self.indexes[key.slot()] = stream.index;
        stream
    }

    /// A slot for a stream that the core has removed. Only its handles refer to the slot: the core may use the stream's index for
    /// another stream.
    pub(super) fn refer_to_closed(&mut self, key: StreamKey) -> StreamRef {
        match self.find(key) {
            Some(_) => self.refer(key, Receiving::Ended),
            None => {
                let error = Some(HttpError::Closed);
                self.insert(Slot { references: 1, error, ..Slot::default() }, key)
            }
        }
    }

    fn insert(&mut self, slot: Slot, key: StreamKey) -> StreamRef {
        let slot = Slot { key: Some(key), ..slot };
        StreamRef { key, index: self.slots.insert(Box::new(slot)) as u32 }
    }

    /// Removes one reference, and the slot with the last one.
    pub(super) fn release(&mut self, stream: StreamRef, deferred: &mut Deferred) {
        let Some(slot) = self.get(stream) else { return };
        slot.references = slot.references.saturating_sub(1);
        if slot.references > 0 {
            return;
        }
        // The reader has dropped what was not read.
        debug_assert!(slot.data.is_empty() && slot.heads.is_empty());
        deferred.drop_later(self.slots.remove(stream.index as usize));
        if self.slots.is_empty() {
            // A connection without streams holds no memory for them.
            *self = Self::default();
        }
    }

    /// Fails one stream: its handles report `error` once they have read what arrived before.
    pub(super) fn fail(&mut self, key: StreamKey, error: &HttpError, deferred: &mut Deferred) {
        if let Some(slot) = self.get_by_key(key) {
            slot.fail(error, deferred);
        }
    }

    /// The streams that have not failed, and on which this side has yet to send something.
    pub(super) fn unanswered(&self) -> Vec<StreamKey> {
        let slots = self.slots.iter().filter(|(_, slot)| !slot.finished && slot.error.is_none());
        slots.filter_map(|(_, slot)| slot.key).collect()
    }

    /// Fails every stream. Tunnels of a server lose what has not been read: what they would answer has no receiver. A client reads on.
    pub(super) fn fail_all(&mut self, error: &HttpError, core: &mut Connection, deferred: &mut Deferred) {
        self.leaving.clear();
        for (_, slot) in &mut self.slots {
            if slot.request_end == RequestEnd::Leaving {
                slot.request_end = RequestEnd::Queued;
            }
            if core.role() == Role::Server && slot.is_tunnel && slot.receiving == Receiving::Open {
                slot.lose_unread(core, deferred);
            }
            slot.fail(error, deferred);
        }
    }

    /// The transport has accepted `len` bytes of the output.
    pub(super) fn transmitted(&mut self, len: usize) {
        self.leaving.transmitted(len);
    }

    /// END_STREAM of a request is in the output, or was.
    pub(super) fn end_request(&mut self, stream: StreamRef, core: &Connection) {
        if let Some(slot) = self.get(stream) {
            slot.request_end = RequestEnd::Leaving;
            self.leaving.push(stream, core.memory().output);
        }
    }

    /// Wakes the senders whose END_STREAM has left a transport that buffers at most `buffered_len` of the bytes that it has accepted.
    pub(super) fn note_left(&mut self, buffered_len: usize, deferred: &mut Deferred) {
        while let Some(stream) = self.leaving.pop(buffered_len) {
            if let Some(slot) = self.get(stream) {
                slot.request_end = RequestEnd::Left;
                deferred.wake(&mut slot.sender);
            }
        }
    }

    /// Drops all that has not been read.
    pub(super) fn lose_unread(&mut self, core: &mut Connection, deferred: &mut Deferred) {
        for (_, slot) in &mut self.slots {
            slot.lose_unread(core, deferred);
        }
    }

    /// Copies borrowed content, so that unread content keeps no read buffer.
    pub(super) fn copy_borrowed(&mut self) {
        for (_, slot) in &mut self.slots {
            slot.data.copy_borrowed();
        }
    }

    /// Keeps content for its reader. Returns false if there is none. `input` is the read buffer if content may borrow from it.
    #[inline]
    pub(super) fn handle_data(
        &mut self,
        stream: StreamKey,
        data: &[u8],
        end_stream: bool,
        input: Option<&Bytes>,
        deferred: &mut Deferred,
    ) -> bool {
        let Some(slot) = self.get_by_key(stream) else { return false };
        let is_discarded = slot.receiving == Receiving::Discarding;
        if end_stream {
            slot.receiving = Receiving::Ended;
        }
        if !is_discarded {
            slot.data.push(data, input);
            deferred.wake(&mut slot.receiver);
        }
        !is_discarded
    }

    /// Applies an event of a stream that is neither a request nor content. The fields of a message are taken from the core, also if no reader
    /// reads them: it would keep their memory.
    #[inline]
    pub(super) fn handle_event(&mut self, event: &Event<'_>, core: &mut Connection, deferred: &mut Deferred) {
        match *event {
            Event::Response { stream, status, end_stream } => {
                let fields = core.take_fields();
                if let Some(slot) = self.get_by_key(stream) {
                    if slot.receiving != Receiving::Discarding {
                        slot.heads.set_head(Head { status, headers: to_headers(fields) }, core);
                        deferred.wake(&mut slot.receiver);
                    }
                    if end_stream {
                        slot.receiving = Receiving::Ended;
                    }
                }
            }
            Event::Informational { stream, status } => {
                let fields = core.take_fields();
                if let Some(slot) = self.get_by_key(stream)
                    && slot.receiving != Receiving::Discarding
                {
                    slot.heads.push_interim(Head { status, headers: to_headers(fields) }, core);
                    deferred.wake(&mut slot.receiver);
                }
            }
            Event::Trailers { stream } => {
                let fields = core.take_fields();
                if let Some(slot) = self.get_by_key(stream) {
                    if slot.receiving != Receiving::Discarding {
                        slot.heads.set_trailers(to_headers(fields), core);
                        deferred.wake(&mut slot.receiver);
                    }
                    slot.receiving = Receiving::Ended;
                }
            }
            Event::Reset { stream, code, error } => {
                self.fail(stream, &error.map_or(HttpError::StreamReset(code), HttpError::Http2), deferred);
            }
            Event::Refused { stream } => self.fail(stream, &HttpError::NotProcessed, deferred),
            Event::SendEnded { stream } => {
                if let Some(stream) = self.find(stream) {
                    self.end_request(stream, core);
                }
            }
            Event::Writable { stream } => {
                if let Some(slot) = self.get_by_key(stream) {
                    deferred.wake(&mut slot.sender);
                }
            }
            _ => {}
        }
    }
}

impl Slot {
    /// Drops unread content. It does not count as memory any more. False if there was nothing.
    pub(super) fn discard_unread(&mut self, core: &mut Connection, deferred: &mut Deferred) -> bool {
        let mut has_discarded = self.heads.discard(core, deferred);
        if let Some(key) = self.key
            && !self.data.is_empty()
        {
            let unread = std::mem::take(&mut self.data);
            // Never misuse: as much has arrived.
            let _ = core.release_capacity(key, unread.len());
            deferred.drop_later(Box::new(unread));
            has_discarded = true;
        }
        has_discarded
    }

    /// Drops what a reader has not read yet. It gets the error of the connection, never the end of content that is incomplete.
    fn lose_unread(&mut self, core: &mut Connection, deferred: &mut Deferred) {
        if self.discard_unread(core, deferred) {
            self.receiving = Receiving::Discarding;
        }
    }

    /// Content that arrived before can still be read, and so can an end.
    fn fail(&mut self, error: &HttpError, deferred: &mut Deferred) {
        self.error.get_or_insert_with(|| error.clone());
        deferred.wake(&mut self.receiver);
        deferred.wake(&mut self.sender);
        deferred.wake(&mut self.handler);
    }

    /// Pending until something arrives; ready with the error when nothing will.
    pub(super) fn poll_received<T>(
        &mut self,
        cx: &Context<'_>,
        deferred: &mut Deferred,
    ) -> Poll<Result<T, HttpError>> {
        if let Some(error) = &self.error {
            return Poll::Ready(Err(error.clone()));
        }
        deferred.register(&mut self.receiver, cx);
        Poll::Pending
    }
}
