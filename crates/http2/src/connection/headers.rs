//! Field blocks from the peer: requests, responses, trailers and promises (RFC 9113 §6.2, §6.6, §6.10, §8).
//!
//! Every block is decoded, even if its stream is refused, because the dynamic tables of both ends must stay equal (RFC 9113 §4.3).
//! A stream is opened only for a valid request.

use super::Connection;
use super::receive::PartialBlock;
use crate::Role;
use crate::error::{Error, ErrorCode, Exceeded, Violation};
use crate::event::Event;
use crate::field::{Field, FieldLimits, Token};
use crate::frame::{Continuation, Headers, PushPromise, RstStream, StreamId};
use crate::message;
use crate::priority::Priority;
use crate::rate_limit::Charge;
use crate::stream::{LateFrame, RecvPhase, SendPhase};

impl Connection {
    #[inline]
    pub(super) fn receive_headers(&mut self, headers: &Headers<'_>) -> Result<Option<Event<'static>>, Error> {
        let self_dependent = match headers.dependency {
            Some(dependency) => dependency.check(headers.stream_id).is_err(),
            None => false,
        };
        let partial = PartialBlock {
            stream_id: headers.stream_id,
            end_stream: headers.end_stream,
            promised: None,
            self_dependent,
            continuations: 0,
        };
        self.receive_fragment(partial, headers.fragment, headers.end_headers)
    }

    pub(super) fn receive_push_promise(
        &mut self,
        promise: &PushPromise<'_>,
    ) -> Result<Option<Event<'static>>, Error> {
        let connection = StreamId::CONNECTION;
        // RFC 9113 §8.4: a client cannot push.
        if self.role == Role::Server {
            return Err(Error::peer(Violation::PushByClient, connection));
        }
        // RFC 9113 §6.6: the peer has acknowledged that this side disables push.
        if !self.control.acknowledged.enable_push {
            return Err(Error::peer(Violation::PushDisabled, connection));
        }
        let partial = PartialBlock {
            stream_id: promise.stream_id,
            end_stream: false,
            promised: Some(promise.promised_id),
            self_dependent: false,
            continuations: 0,
        };
        self.receive_fragment(partial, promise.fragment, promise.end_headers)
    }

    pub(super) fn receive_continuation(
        &mut self,
        more: &Continuation<'_>,
    ) -> Result<Option<Event<'static>>, Error> {
        // RFC 9113 §6.10: preceded by a frame without END_HEADERS.
        let Some(mut partial) = self.reader.partial_block() else {
            return Err(Error::peer(Violation::ContinuationUnexpected, StreamId::CONNECTION));
        };
        partial.continuations += 1;
        if partial.continuations > self.limits().continuations_max {
            return Err(Error::limit(Exceeded::Continuations, StreamId::CONNECTION));
        }
        self.receive_fragment(partial, more.fragment, more.end_headers)
    }

    /// Handles the block that this fragment completes, or stores the fragment. A block of one fragment is not copied.
    #[inline]
    fn receive_fragment(
        &mut self,
        partial: PartialBlock,
        fragment: &[u8],
        end_headers: bool,
    ) -> Result<Option<Event<'static>>, Error> {
        if self.reader.block_len() + fragment.len() > self.limits().field_block_len_max {
            return Err(Error::limit(Exceeded::FieldBlock, StreamId::CONNECTION));
        }
        if end_headers && partial.continuations == 0 {
            return self.receive_block(partial, fragment);
        }
        if fragment.is_empty() {
            self.charge(Charge::EmptyFrame)?;
        }
        self.reader.push_fragment(partial, fragment, self.now);
        if !end_headers {
            return Ok(None);
        }
        let block = self.reader.take_block();
        let step = self.receive_block(partial, &block);
        self.reader.reuse_block(block);
        step
    }

    fn receive_block(&mut self, block: PartialBlock, bytes: &[u8]) -> Result<Option<Event<'static>>, Error> {
        let limits =
            FieldLimits::new(self.config.settings.max_header_list_size, self.config.limits.fields_max);
        self.contexts.decode(bytes, &limits)?;
        let result = self.receive_message(&block);
        if !matches!(result, Ok(Some(_))) {
            self.contexts.discard_fields();
        }
        result
    }

    /// Handles the message whose fields were decoded.
    #[inline]
    fn receive_message(&mut self, block: &PartialBlock) -> Result<Option<Event<'static>>, Error> {
        if let Some(promised) = block.promised {
            return self.receive_promise(block.stream_id, promised);
        }
        let id = block.stream_id;
        let Some(slot) = self.streams.find(id) else {
            return self.receive_first_headers(block);
        };
        let (stream, record) = (self.streams.key(slot), self.streams.get(slot));
        let peer = |violation| Error::peer(violation, id);
        let request = match record.recv {
            RecvPhase::Headers(request) => request,
            // RFC 9113 §5.1 (half-closed (remote)): STREAM_CLOSED.
            RecvPhase::End => return Err(peer(Violation::FrameAfterEndStream)),
            // RFC 9113 §5.1 (reserved (local)).
            RecvPhase::Reserved => return Err(peer(Violation::FrameOnReservedStream)),
            RecvPhase::Content | RecvPhase::Tunnel => return self.receive_trailers(slot, block),
        };
        let is_reserved = record.is_reserved();
        self.check_block(block)?;
        // RFC 9113 §5.1.2: a promised stream counts once its response begins.
        if is_reserved && self.streams.open_peer() >= self.config.settings.max_concurrent_streams {
            return Err(Error::limit(Exceeded::ConcurrentStreams, id));
        }
        let response = message::check_response(self.contexts.fields(), request).map_err(peer)?;
        let status = response.status;
        if response.is_interim() {
            // RFC 9113 §8.1: an interim response does not end the stream.
            if block.end_stream {
                return Err(peer(Violation::InterimEndStream));
            }
            self.charge(Charge::InterimResponse)?;
            return Ok(Some(Event::Informational { stream, status }));
        }
        let end_stream = block.end_stream;
        if end_stream {
            // RFC 9113 §8.1.1: no DATA follows.
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
            self.apply_close(closed);
        }
        Ok(Some(Event::Response { stream, status, end_stream }))
    }

    /// Handles HEADERS after the final header section of a message.
    fn receive_trailers(&mut self, slot: u32, block: &PartialBlock) -> Result<Option<Event<'static>>, Error> {
        self.check_block(block)?;
        let (stream, record) = (self.streams.key(slot), self.streams.get(slot));
        let peer = |violation| Error::peer(violation, block.stream_id);
        // RFC 9113 §8.5: a tunnel has only DATA.
        if record.recv == RecvPhase::Tunnel {
            return Err(peer(Violation::HeadersInTunnel));
        }
        // RFC 9113 §8.1: a second HEADERS that does not end the stream is malformed.
        if !block.end_stream {
            return Err(peer(Violation::TrailersWithoutEndStream));
        }
        message::check_trailers(self.contexts.fields()).map_err(peer)?;
        // RFC 9113 §8.1.1: the content has the announced length.
        record.content.end().map_err(peer)?;
        let closed = self.streams.end_recv(slot);
        self.apply_close(closed);
        Ok(Some(Event::Trailers { stream }))
    }

    /// Handles HEADERS on a stream that is not in the store: a request, or an error.
    fn receive_first_headers(&mut self, block: &PartialBlock) -> Result<Option<Event<'static>>, Error> {
        let id = block.stream_id;
        if self.role == Role::Client || id.opener() != Some(Role::Client) || id <= self.streams.highest_peer()
        {
            // RFC 9113 §5.1.1, §8.4: a server opens streams by PUSH_PROMISE, not by HEADERS.
            if self.streams.is_idle(id) && id.opener() == Some(Role::Server) {
                return Err(Error::peer(Violation::StreamIdParity, StreamId::CONNECTION));
            }
            self.receive_late(id, LateFrame::Headers { list_size: self.contexts.fields().list_size() })?;
            return Ok(None);
        }
        let updated = self.streams.use_peer_id(id);
        if self.closing.ignores(id) {
            return self.ignore_stream();
        }
        if self.contexts.fields().too_large() && !block.self_dependent {
            return self.refuse_fields(block);
        }
        self.check_block(block)?;
        // RFC 9113 §5.1.2: the client may retry after REFUSED_STREAM.
        if self.streams.open_peer() >= self.config.settings.max_concurrent_streams {
            return Err(Error::limit(Exceeded::ConcurrentStreams, id));
        }
        if self.streams.caller_memory() > self.config.memory_max {
            return Err(Error::limit(Exceeded::Memory, id));
        }
        let peer = |violation| Error::peer(violation, id);
        let connect_protocol = self.config.settings.enable_connect_protocol;
        let request = message::check_request(self.contexts.fields(), connect_protocol).map_err(peer)?;
        let (kind, end_stream) = (request.kind, block.end_stream);
        if end_stream {
            // RFC 9113 §8.1.1: no DATA follows.
            request.content.end().map_err(peer)?;
        }
        let recv = match kind.is_connect() {
            _ if end_stream => RecvPhase::End,
            true => RecvPhase::Tunnel,
            false => RecvPhase::Content,
        };
        // RFC 9218 §5: the priority field of a request.
        let field = Priority::of_fields(self.contexts.fields());
        let mut stream = self.streams.record(id, recv, SendPhase::Headers(kind), &self.config);
        stream.content = request.content;
        // RFC 9218 §7.1: an earlier PRIORITY_UPDATE overrides the field.
        let signal = updated.or(field);
        let slot = self.streams.accept_request(stream);
        let stream = self.streams.key(slot);
        if let Some(signal) = signal {
            let priority = self.streams.signal_priority(slot, signal);
            if updated.is_some() {
                self.pending.push_back(Event::Priority { stream, priority });
            }
        }
        Ok(Some(Event::Request { stream, kind, end_stream }))
    }

    /// Ignores a stream above the last stream of GOAWAY (RFC 9113 §6.8).
    #[cold]
    fn ignore_stream(&mut self) -> Result<Option<Event<'static>>, Error> {
        // CVE-2025-8671: its fields were decoded, as those of a refused stream are.
        self.charge(Charge::StreamError)?;
        Ok(None)
    }

    /// Answers a request whose header section is too large with 431 (RFC 9113 §10.5.1, RFC 6585 §5). No event reports it, and it gets
    /// no record.
    #[cold]
    fn refuse_fields(&mut self, block: &PartialBlock) -> Result<Option<Event<'static>>, Error> {
        let (id, status) = (block.stream_id, Field::known(Token::Status, b"431"));
        if status.list_size() > self.control.peer.max_header_list_size as usize {
            return Err(Error::limit(Exceeded::Fields, id));
        }
        // CVE-2025-8671: it causes an answer, as a reset does.
        self.charge(Charge::StreamError)?;
        let (contexts, frame_len_max) = (&mut self.contexts, self.control.peer.max_frame_size);
        self.out.answer(|out| {
            contexts.write_headers(out, frame_len_max, id, core::iter::once(status), true);
            if !block.end_stream {
                // RFC 9113 §8.1: the response is complete, and the client should stop sending the request.
                RstStream { stream_id: id, code: ErrorCode::NO_ERROR }.encode(out);
            }
        });
        if block.end_stream {
            self.streams.remember_finished(id);
        } else {
            self.streams.remember_reset(id);
        }
        Ok(None)
    }

    fn receive_promise(
        &mut self,
        parent: StreamId,
        promised: StreamId,
    ) -> Result<Option<Event<'static>>, Error> {
        let connection = StreamId::CONNECTION;
        // RFC 9113 §6.6: the server may not promise this identifier.
        if promised.opener() != Some(Role::Server) || promised <= self.streams.highest_peer() {
            return Err(Error::peer(Violation::PromisedIdInvalid, connection));
        }
        let parent_slot = self.streams.find(parent);
        match parent_slot {
            // RFC 9113 §6.6: only on streams that the client opened and the server has not ended.
            Some(slot) if self.streams.is_local(parent) && self.streams.get(slot).may_lead_to_promise() => {}
            Some(_) => return Err(Error::peer(Violation::PushOnClosedStream, connection)),
            None => self.receive_late(parent, LateFrame::PushPromise)?,
        }
        self.streams.use_peer_id(promised);
        if self.closing.ignores(promised) {
            return self.ignore_stream();
        }
        let parent = parent_slot.map(|slot| self.streams.key(slot));
        let limits = self.limits();
        // Push is disabled and the peer may not know it yet, the associated stream is closed, or too many streams are reserved.
        if !self.config.settings.enable_push
            || parent.is_none()
            || self.streams.reserved() as usize >= limits.promises_max
        {
            return Err(Error::limit(Exceeded::Promises, promised));
        }
        if self.contexts.fields().too_large() {
            return Err(Error::limit(Exceeded::Fields, promised));
        }
        let request = message::check_promise(self.contexts.fields()).map_err(|v| Error::peer(v, promised))?;
        let recv = RecvPhase::Headers(request.kind);
        let stream = self.streams.record(promised, recv, SendPhase::Reserved, &self.config);
        let promised = self.streams.reserve_remote(stream);
        Ok(Some(Event::Promise { stream: parent, promised }))
    }

    /// Checks the rules of a block that do not depend on its message.
    #[inline]
    fn check_block(&self, block: &PartialBlock) -> Result<(), Error> {
        // RFC 7540 §5.3.1: a stream cannot depend on itself.
        if block.self_dependent {
            return Err(Error::peer(Violation::PrioritySelfDependency, block.stream_id));
        }
        if self.contexts.fields().too_large() {
            return Err(Error::limit(Exceeded::Fields, block.stream_id));
        }
        Ok(())
    }
}
