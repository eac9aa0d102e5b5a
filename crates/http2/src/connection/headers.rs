//! Field blocks from the peer: requests, responses, trailers and promises (RFC 9113 §6.2, §6.6, §6.10, §8).
//!
//! Owns what a block means on its stream. A block is decoded whatever becomes of it, because both ends keep one table
//! (RFC 9113 §4.3); a stream is opened when its request is found valid, and costs nothing when it is not.

use super::Connection;
use super::receive::Collecting;
use crate::Role;
use crate::error::{Error, ErrorCode, Exceeded, Violation};
use crate::event::Step;
use crate::field::{Field, FieldLimits, Token};
use crate::frame::{Continuation, Headers, PushPromise, RstStream, StreamId};
use crate::message::{self, RequestKind};
use crate::priority::Priority;
use crate::rate_limit::Charge;
use crate::stream::{self, Ended, State, Stream, flag};

/// What a collected block may keep while it is empty.
const BLOCK_KEPT: usize = 4096;

impl Connection {
    #[inline]
    pub(super) fn receive_headers(&mut self, headers: &Headers<'_>) -> Result<Option<Step>, Error> {
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

    pub(super) fn receive_push_promise(&mut self, promise: &PushPromise<'_>) -> Result<Option<Step>, Error> {
        let connection = StreamId::CONNECTION;
        // RFC 9113 §8.4: a client cannot push.
        if self.role == Role::Server {
            return Err(Error::peer(Violation::PushByClient, connection));
        }
        // RFC 9113 §6.6: not when this side has said so and the peer has heard it.
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

    pub(super) fn receive_continuation(&mut self, more: &Continuation<'_>) -> Result<Option<Step>, Error> {
        // RFC 9113 §6.10: preceded by a frame without END_HEADERS.
        let Some(mut collecting) = self.reader.collecting.take() else {
            return Err(Error::peer(Violation::ContinuationUnexpected, StreamId::CONNECTION));
        };
        collecting.continuations += 1;
        if collecting.continuations > self.limits().continuations_max {
            return Err(Error::limit(Exceeded::Continuations, StreamId::CONNECTION));
        }
        if !more.end_headers {
            self.collect(collecting, more.fragment)?;
            return Ok(None);
        }
        self.collect(collecting, more.fragment)?;
        self.reader.collecting = None;
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
        self.reader.block.extend_from_slice(fragment);
        self.reader.collecting = Some(collecting);
        Ok(())
    }

    fn receive_block(&mut self, block: Collecting, bytes: &[u8]) -> Result<Option<Step>, Error> {
        let limits =
            FieldLimits::new(self.config.settings.max_header_list_size, self.config.limits.fields_max);
        self.decoder.decode(bytes, &limits, &mut self.fields)?;
        if let Some(promised) = block.promised {
            return self.receive_promise(block.stream_id, promised);
        }
        let id = block.stream_id;
        let Some(slot) = self.slab.find(id.get()) else {
            return self.receive_first_headers(&block);
        };
        let mut stream = self.slab.get(slot).clone();
        let Some(state) = stream.state.after(stream::Step::RecvHeaders) else {
            return Err(Error::peer(
                match stream.state {
                    // RFC 9113 §5.1 (half-closed (remote)): STREAM_CLOSED.
                    State::HalfClosedRemote => Violation::FrameAfterEndStream,
                    // A request that waits to open is idle to the peer.
                    State::Idle => Violation::FrameOnIdleStream,
                    // RFC 9113 §5.1 (reserved (local)).
                    _ => Violation::FrameOnReservedStream,
                },
                id,
            ));
        };
        self.check_block(&block)?;
        // RFC 9113 §5.1.2: a promised stream counts from its response on.
        if stream.state == State::ReservedRemote
            && self.open_peer >= self.config.settings.max_concurrent_streams
        {
            return Err(Error::limit(Exceeded::ConcurrentStreams, id));
        }
        let key = self.slab.key(slot);
        let peer = |violation| Error::peer(violation, id);
        if stream.has(flag::RECV_FINAL) {
            // RFC 9113 §8.5: a tunnel has nothing but DATA.
            if self.is_tunnel(&stream) {
                return Err(peer(Violation::HeadersInTunnel));
            }
            // RFC 9113 §8.1: a second HEADERS that does not end the stream is malformed.
            if !block.end_stream {
                return Err(peer(Violation::TrailersWithoutEndStream));
            }
            message::check_trailers(&self.fields).map_err(peer)?;
            // RFC 9113 §8.1.1: the content was as long as announced.
            stream.content.end().map_err(peer)?;
            self.step(slot, stream::Step::RecvEnd, Ended::Finished);
            return Ok(Some(Step::Trailers { stream: key }));
        }
        let response = message::check_response(&self.fields, request_kind(&stream)).map_err(peer)?;
        if response.is_interim() {
            // RFC 9113 §8.1: an interim response does not end the stream.
            if block.end_stream {
                return Err(peer(Violation::InterimEndStream));
            }
            self.charge(Charge::InterimResponse)?;
            return Ok(Some(Step::Informational { stream: key, status: response.status }));
        }
        stream.content = response.content;
        stream.set(flag::RECV_FINAL);
        if !response.tunnel {
            stream.clear(flag::CONNECT);
        }
        if block.end_stream && response.content.get().is_some_and(|left| left > 0) {
            return Err(peer(Violation::ContentLengthMismatch));
        }
        if stream.state == State::ReservedRemote {
            self.reserved -= 1;
            self.open_peer += 1;
        }
        stream.state = state;
        *self.slab.get_mut(slot) = stream;
        if block.end_stream {
            self.step(slot, stream::Step::RecvEnd, Ended::Finished);
        }
        Ok(Some(Step::Response { stream: key, status: response.status, end_stream: block.end_stream }))
    }

    /// HEADERS on a stream that is not there: a request, if it is new.
    fn receive_first_headers(&mut self, block: &Collecting) -> Result<Option<Step>, Error> {
        let id = block.stream_id;
        if self.role == Role::Client || id.opener() != Some(Role::Client) || id.get() <= self.highest_peer {
            self.absent(id, true)?;
            return Ok(None);
        }
        self.highest_peer = id.get();
        let updated = self.idle_priorities.take(id.get());
        // RFC 9113 §6.8: what comes above the last stream of GOAWAY is ignored, its fields having been decoded.
        if self.closing.ignores(id) {
            return Ok(None);
        }
        if self.fields.too_large() && !block.self_dependent {
            return self.refuse_fields(block);
        }
        self.check_block(block)?;
        // RFC 9113 §5.1.2: REFUSED_STREAM tells the client that it may try again.
        if self.open_peer >= self.config.settings.max_concurrent_streams {
            return Err(Error::limit(Exceeded::ConcurrentStreams, id));
        }
        let peer = |violation| Error::peer(violation, id);
        let connect_protocol = self.config.settings.enable_connect_protocol;
        let request = message::check_request(&self.fields, connect_protocol).map_err(peer)?;
        let end_stream = block.end_stream;
        if end_stream {
            // RFC 9113 §8.1.1: no DATA will come.
            request.content.end().map_err(peer)?;
        }
        let state = if end_stream { State::HalfClosedRemote } else { State::Open };
        let mut stream = Stream::new(id.get(), state, flag::RECV_FINAL | Self::request_flags(request.kind));
        if !self.config.auto_release {
            stream.set(flag::MANUAL);
        }
        stream.content = request.content;
        if let Some(field) = self.fields.find(Token::Priority)
            && let Some(priority) = Priority::parse(field.value())
        {
            // RFC 9218 §5: the priority field of a request.
            stream.priority = stream::Priority::new(priority.urgency, priority.incremental);
        }
        if let Some(priority) = updated {
            // RFC 9218 §7.1: PRIORITY_UPDATE that came before takes effect now, whatever the field says.
            stream.priority = priority;
        }
        let slot = self.slab.insert(stream);
        self.open_peer += 1;
        if let Some(packed) = updated {
            let priority = Priority { urgency: packed.urgency(), incremental: packed.is_incremental() };
            self.pending.push_back(Step::Priority { stream: self.slab.key(slot), priority });
        }
        Ok(Some(Step::Request { stream: self.slab.key(slot), kind: request.kind, end_stream }))
    }

    /// RFC 9113 §10.5.1, RFC 6585 §5: a request with more fields than this side takes is answered 431. The caller does not
    /// hear of it, and nothing is kept of it but that the stream was there.
    #[cold]
    fn refuse_fields(&mut self, block: &Collecting) -> Result<Option<Step>, Error> {
        let (id, status) = (block.stream_id, Field::known(Token::Status, b"431"));
        if status.list_size() > self.exchange.peer.max_header_list_size as usize {
            return Err(Error::limit(Exceeded::Fields, id));
        }
        // CVE-2025-8671: it costs an answer, as a reset does.
        self.charge(Charge::StreamError)?;
        let before = self.out.bytes.len();
        self.write_headers(id, core::iter::once(status), true);
        let mut ended = Ended::Finished;
        if !block.end_stream {
            // RFC 9113 §8.1: the answer is complete, and the rest of the request is not wanted.
            RstStream { stream_id: id, code: ErrorCode::NO_ERROR }.encode(&mut self.out.bytes);
            ended = Ended::ResetHere;
        }
        self.recent.remember(id.get(), ended, self.now_ms());
        self.out.answers_len += self.out.bytes.len() - before;
        Ok(None)
    }

    fn receive_promise(&mut self, parent: StreamId, promised: StreamId) -> Result<Option<Step>, Error> {
        let connection = StreamId::CONNECTION;
        // RFC 9113 §6.6: an identifier that the server may not use next.
        if promised.opener() != Some(Role::Server) || promised.get() <= self.highest_peer {
            return Err(Error::peer(Violation::PromisedIdInvalid, connection));
        }
        let parent_slot = self.slab.find(parent.get());
        match parent_slot {
            // RFC 9113 §6.6: only on streams that this side opened and the peer has not ended.
            Some(slot) if self.slab.get(slot).state.may_receive_data() => {}
            Some(_) => return Err(Error::peer(Violation::PushOnClosedStream, connection)),
            // RFC 9113 §6.6: a promise may be under way while its stream is reset; it reserves a stream all the same.
            None if self.recent.find(parent.get()) == Some(Ended::ResetHere) => {}
            None if self.is_idle(parent) => {
                return Err(Error::peer(Violation::FrameOnIdleStream, connection));
            }
            None => return Err(Error::peer(Violation::PushOnClosedStream, connection)),
        }
        self.highest_peer = promised.get();
        if self.closing.ignores(promised) {
            return Ok(None);
        }
        let parent = parent_slot.map(|slot| self.slab.key(slot));
        let limits = self.limits();
        // The peer has not heard yet that push is disabled, the stream it belongs to is gone, or too many wait.
        if !self.config.settings.enable_push
            || parent.is_none()
            || self.reserved as usize >= limits.promises_max
        {
            return Err(Error::limit(Exceeded::Promises, promised));
        }
        if self.fields.too_large() {
            return Err(Error::limit(Exceeded::Fields, promised));
        }
        let request = message::check_promise(&self.fields).map_err(|v| Error::peer(v, promised))?;
        let mut stream =
            Stream::new(promised.get(), State::PROMISED_BY_PEER, Self::request_flags(request.kind));
        if !self.config.auto_release {
            stream.set(flag::MANUAL);
        }
        let slot = self.slab.insert(stream);
        self.reserved += 1;
        Ok(Some(Step::Promise { stream: parent, promised: self.slab.key(slot) }))
    }

    /// What is wrong with a block whatever it says.
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

    /// Whether the stream has become a tunnel: CONNECT that was not answered otherwise.
    pub(super) fn is_tunnel(&self, stream: &Stream) -> bool {
        stream.has(flag::CONNECT)
    }
}

/// What the request of a stream was; plain and extended CONNECT are alike to a response.
pub(super) fn request_kind(stream: &Stream) -> RequestKind {
    if stream.has(flag::HEAD) {
        RequestKind::Head
    } else if stream.has(flag::CONNECT) {
        RequestKind::Connect
    } else {
        RequestKind::Plain
    }
}
