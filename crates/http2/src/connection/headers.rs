//! Field blocks from the peer: requests, responses, trailers and promises (RFC 9113 §6.2, §6.6, §6.10, §8).
//!
//! A block is decoded whatever becomes of it, because both ends keep one table (RFC 9113 §4.3). A stream is opened when its
//! request is valid, and costs nothing when it is not.

use super::Connection;
use super::receive::Collecting;
use crate::Role;
use crate::error::{Error, ErrorCode, Exceeded, Violation};
use crate::event::PendingEvent;
use crate::field::{Field, FieldLimits, Token};
use crate::frame::{Continuation, Headers, PushPromise, RstStream, StreamId};
use crate::message;
use crate::priority::Priority;
use crate::rate_limit::Charge;
use crate::stream::{CloseCause, RecvPhase, SendPhase, millis};

/// What a collected block may keep while it is empty.
const BLOCK_KEPT: usize = 4096;

impl Connection {
    #[inline]
    pub(super) fn receive_headers(&mut self, headers: &Headers<'_>) -> Result<Option<PendingEvent>, Error> {
        let self_dependent = match headers.dependency {
            Some(dependency) => dependency.check(headers.stream_id).is_err(),
            None => false,
        };
        let collecting = Collecting {
            stream_id: headers.stream_id,
            end_stream: headers.end_stream,
            promised: None,
            self_dependent,
            continuations: 0,
        };
        if headers.end_headers {
            return self.receive_block(collecting, headers.fragment);
        }
        self.collect(collecting, headers.fragment)?;
        Ok(None)
    }

    pub(super) fn receive_push_promise(
        &mut self,
        promise: &PushPromise<'_>,
    ) -> Result<Option<PendingEvent>, Error> {
        let connection = StreamId::CONNECTION;
        // RFC 9113 §8.4: a client cannot push.
        if self.role == Role::Server {
            return Err(Error::peer(Violation::PushByClient, connection));
        }
        // RFC 9113 §6.6: not after the peer acknowledged that this side disabled push.
        if !self.exchange.acknowledged.enable_push {
            return Err(Error::peer(Violation::PushDisabled, connection));
        }
        let collecting = Collecting {
            stream_id: promise.stream_id,
            end_stream: false,
            promised: Some(promise.promised_id),
            self_dependent: false,
            continuations: 0,
        };
        if promise.end_headers {
            return self.receive_block(collecting, promise.fragment);
        }
        self.collect(collecting, promise.fragment)?;
        Ok(None)
    }

    pub(super) fn receive_continuation(
        &mut self,
        more: &Continuation<'_>,
    ) -> Result<Option<PendingEvent>, Error> {
        // RFC 9113 §6.10: preceded by a frame without END_HEADERS.
        let Some(mut collecting) = self.reader.collecting.take() else {
            return Err(Error::peer(Violation::ContinuationUnexpected, StreamId::CONNECTION));
        };
        collecting.continuations += 1;
        if collecting.continuations > self.limits().continuations_max {
            return Err(Error::limit(Exceeded::Continuations, StreamId::CONNECTION));
        }
        self.collect(collecting, more.fragment)?;
        if !more.end_headers {
            return Ok(None);
        }
        self.reader.collecting = None;
        self.reader.end_incomplete();
        let mut block = core::mem::take(&mut self.reader.block);
        let step = self.receive_block(collecting, &block);
        block.clear();
        block.shrink_to(BLOCK_KEPT);
        self.reader.block = block;
        step
    }

    fn collect(&mut self, collecting: Collecting, fragment: &[u8]) -> Result<(), Error> {
        if fragment.is_empty() {
            self.charge(Charge::EmptyFrame)?;
        }
        if self.reader.block.len() + fragment.len() > self.limits().field_block_len_max {
            return Err(Error::limit(Exceeded::FieldBlock, StreamId::CONNECTION));
        }
        self.reader.collect(collecting, fragment, self.now);
        Ok(())
    }

    fn receive_block(&mut self, block: Collecting, bytes: &[u8]) -> Result<Option<PendingEvent>, Error> {
        let limits =
            FieldLimits::new(self.config.settings.max_header_list_size, self.config.limits.fields_max);
        self.decoder.decode(bytes, &limits, &mut self.fields)?;
        if let Some(promised) = block.promised {
            return self.receive_promise(block.stream_id, promised);
        }
        let id = block.stream_id;
        let Some(slot) = self.streams.find(id) else {
            return self.receive_first_headers(&block);
        };
        let (stream, record) = (self.streams.key(slot), self.streams.get(slot));
        let peer = |violation| Error::peer(violation, id);
        // A request that waits to open is idle for the peer.
        if record.is_waiting() {
            return Err(peer(Violation::FrameOnIdleStream));
        }
        let request = match record.recv {
            RecvPhase::Headers(request) => request,
            // RFC 9113 §5.1 (half-closed (remote)): STREAM_CLOSED.
            RecvPhase::End => return Err(peer(Violation::FrameAfterEndStream)),
            // RFC 9113 §5.1 (reserved (local)).
            RecvPhase::Reserved => return Err(peer(Violation::FrameOnReservedStream)),
            RecvPhase::Content | RecvPhase::Tunnel => return self.receive_trailers(slot, &block),
        };
        let is_reserved = record.is_reserved();
        self.check_block(&block)?;
        // RFC 9113 §5.1.2: a promised stream counts from its response on.
        if is_reserved && self.streams.open_peer() >= self.config.settings.max_concurrent_streams {
            return Err(Error::limit(Exceeded::ConcurrentStreams, id));
        }
        let response = message::check_response(&self.fields, request).map_err(peer)?;
        let status = response.status;
        if response.is_interim() {
            // RFC 9113 §8.1: an interim response does not end the stream.
            if block.end_stream {
                return Err(peer(Violation::InterimEndStream));
            }
            self.charge(Charge::InterimResponse)?;
            return Ok(Some(PendingEvent::Informational { stream, status }));
        }
        let end_stream = block.end_stream;
        if end_stream {
            // RFC 9113 §8.1.1: no DATA will come.
            response.content.end().map_err(peer)?;
        }
        if is_reserved {
            self.streams.begin_reserved(slot);
        }
        let record = self.streams.get_mut(slot);
        record.content = response.content;
        record.recv = if response.tunnel { RecvPhase::Tunnel } else { RecvPhase::Content };
        if end_stream {
            let closed = self.streams.end_recv(slot);
            self.apply(closed);
        }
        Ok(Some(PendingEvent::Response { stream, status, end_stream }))
    }

    /// HEADERS behind the final header section of a message.
    fn receive_trailers(&mut self, slot: u32, block: &Collecting) -> Result<Option<PendingEvent>, Error> {
        self.check_block(block)?;
        let (stream, record) = (self.streams.key(slot), self.streams.get(slot));
        let peer = |violation| Error::peer(violation, block.stream_id);
        // RFC 9113 §8.5: a tunnel has nothing but DATA.
        if record.recv == RecvPhase::Tunnel {
            return Err(peer(Violation::HeadersInTunnel));
        }
        // RFC 9113 §8.1: a second HEADERS that does not end the stream is malformed.
        if !block.end_stream {
            return Err(peer(Violation::TrailersWithoutEndStream));
        }
        message::check_trailers(&self.fields).map_err(peer)?;
        // RFC 9113 §8.1.1: the content was as long as announced.
        record.content.end().map_err(peer)?;
        let closed = self.streams.end_recv(slot);
        self.apply(closed);
        Ok(Some(PendingEvent::Trailers { stream }))
    }

    /// HEADERS on a stream that is not in the store: a request, if it is new.
    fn receive_first_headers(&mut self, block: &Collecting) -> Result<Option<PendingEvent>, Error> {
        let id = block.stream_id;
        if self.role == Role::Client || id.opener() != Some(Role::Client) || id <= self.streams.highest_peer()
        {
            self.absent(id, true)?;
            return Ok(None);
        }
        let updated = self.streams.use_peer_id(id);
        // RFC 9113 §6.8: what comes above the last stream of GOAWAY is ignored, its fields having been decoded.
        if self.closing.ignores(id) {
            return Ok(None);
        }
        if self.fields.too_large() && !block.self_dependent {
            return self.refuse_fields(block);
        }
        self.check_block(block)?;
        // RFC 9113 §5.1.2: after REFUSED_STREAM the client may try again.
        if self.streams.open_peer() >= self.config.settings.max_concurrent_streams {
            return Err(Error::limit(Exceeded::ConcurrentStreams, id));
        }
        if self.streams.caller_memory() > self.config.memory_max {
            return Err(Error::limit(Exceeded::Memory, id));
        }
        let peer = |violation| Error::peer(violation, id);
        let connect_protocol = self.config.settings.enable_connect_protocol;
        let request = message::check_request(&self.fields, connect_protocol).map_err(peer)?;
        let (kind, end_stream) = (request.kind, block.end_stream);
        if end_stream {
            // RFC 9113 §8.1.1: no DATA will come.
            request.content.end().map_err(peer)?;
        }
        let recv = match kind.is_connect() {
            _ if end_stream => RecvPhase::End,
            true => RecvPhase::Tunnel,
            false => RecvPhase::Content,
        };
        // RFC 9218 §5: the priority field of a request.
        let field = self.fields.find(Token::Priority).and_then(|field| Priority::parse(field.value()));
        if field.is_some() {
            self.streams.signal_priority();
        }
        let mut stream = self.streams.record(id, recv, SendPhase::Headers(kind), &self.config);
        stream.content = request.content;
        // RFC 9218 §7.1: PRIORITY_UPDATE that came before overrides the field.
        if let Some(priority) = updated.or(field) {
            stream.set_priority(priority);
        }
        let stream = self.streams.accept_request(stream);
        if let Some(priority) = updated {
            self.pending.push_back(PendingEvent::Priority { stream, priority });
        }
        Ok(Some(PendingEvent::Request { stream, kind, end_stream }))
    }

    /// RFC 9113 §10.5.1, RFC 6585 §5: a request with more fields than this side takes is answered 431. No event
    /// reports it, and only its identifier is remembered.
    #[cold]
    fn refuse_fields(&mut self, block: &Collecting) -> Result<Option<PendingEvent>, Error> {
        let (id, status) = (block.stream_id, Field::known(Token::Status, b"431"));
        if status.list_size() > self.exchange.peer.max_header_list_size as usize {
            return Err(Error::limit(Exceeded::Fields, id));
        }
        // CVE-2025-8671: it costs an answer, as a reset does.
        self.charge(Charge::StreamError)?;
        let before = self.out.bytes.len();
        self.write_headers(id, core::iter::once(status), true);
        if !block.end_stream {
            // RFC 9113 §8.1: the answer is complete, and the rest of the request is not wanted.
            RstStream { stream_id: id, code: ErrorCode::NO_ERROR }.encode(&mut self.out.bytes);
        }
        self.streams.remember_refused(id, !block.end_stream, millis(self.now));
        self.out.answers_len += self.out.bytes.len() - before;
        Ok(None)
    }

    fn receive_promise(
        &mut self,
        parent: StreamId,
        promised: StreamId,
    ) -> Result<Option<PendingEvent>, Error> {
        let connection = StreamId::CONNECTION;
        // RFC 9113 §6.6: an identifier that the server may not use next.
        if promised.opener() != Some(Role::Server) || promised <= self.streams.highest_peer() {
            return Err(Error::peer(Violation::PromisedIdInvalid, connection));
        }
        let parent_slot = self.streams.find(parent);
        match parent_slot {
            // RFC 9113 §6.6: only on streams that this side opened and the peer has not ended.
            Some(slot) if self.streams.get(slot).is_waiting() => {
                return Err(Error::peer(Violation::FrameOnIdleStream, connection));
            }
            Some(slot) if self.streams.get(slot).may_lead_to_promise() => {}
            Some(_) => return Err(Error::peer(Violation::PushOnClosedStream, connection)),
            // RFC 9113 §6.6: a promise may be under way while its stream is reset; it reserves a stream all the same.
            None if self.streams.close_cause(parent) == Some(CloseCause::LocalReset) => {}
            None if self.streams.is_idle(parent) => {
                return Err(Error::peer(Violation::FrameOnIdleStream, connection));
            }
            None => return Err(Error::peer(Violation::PushOnClosedStream, connection)),
        }
        self.streams.use_peer_id(promised);
        if self.closing.ignores(promised) {
            return Ok(None);
        }
        let parent = parent_slot.map(|slot| self.streams.key(slot));
        let limits = self.limits();
        // The peer may not know yet that push is disabled, the stream it belongs to is closed, or too many wait.
        if !self.config.settings.enable_push
            || parent.is_none()
            || self.streams.reserved() as usize >= limits.promises_max
        {
            return Err(Error::limit(Exceeded::Promises, promised));
        }
        if self.fields.too_large() {
            return Err(Error::limit(Exceeded::Fields, promised));
        }
        let request = message::check_promise(&self.fields).map_err(|v| Error::peer(v, promised))?;
        let recv = RecvPhase::Headers(request.kind);
        let stream = self.streams.record(promised, recv, SendPhase::Reserved, &self.config);
        let promised = self.streams.reserve_remote(stream);
        Ok(Some(PendingEvent::Promise { stream: parent, promised }))
    }

    /// The rules of a block that do not depend on its message.
    #[inline]
    fn check_block(&self, block: &Collecting) -> Result<(), Error> {
        // RFC 7540 §5.3.1: a stream cannot depend on itself.
        if block.self_dependent {
            return Err(Error::peer(Violation::PrioritySelfDependency, block.stream_id));
        }
        if self.fields.too_large() {
            return Err(Error::limit(Exceeded::Fields, block.stream_id));
        }
        Ok(())
    }
}
