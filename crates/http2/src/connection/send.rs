//! What this side sends on streams: messages, DATA within the windows, and its turn among the others.
//!
//! Owns the commands of a caller who has something to say. HEADERS go out at once, because HPACK wants the order of the
//! wire; DATA goes straight to the output when nothing is before it, and is queued by reference otherwise.

use bytes::Bytes;

use super::Connection;
use super::headers::request_kind;
use super::output::BY_REFERENCE;
use super::since::Since;
use crate::Role;
use crate::error::{Error, Misuse};
use crate::event::Step;
use crate::field::{Field, Token};
use crate::flow_control::{spend, window};
use crate::frame::{BlockWriter, Flags, FrameHeader, Kind, StreamId};
use crate::message::{ContentLeft, RequestKind, response_content};
use crate::settings::Settings;
use crate::stream::{self, NONE, State, Stream, StreamKey, flag};

/// What the fields of a message say about it, to its sender.
struct Outgoing {
    kind: RequestKind,
    status: u16,
    content: ContentLeft,
}

/// What is left of the content after `len` bytes more, and the end if they are the last (RFC 9113 §8.1.1): a message that
/// does not add up would be reset by the peer.
#[inline]
fn check_content(mut left: ContentLeft, len: usize, end_stream: bool) -> Result<ContentLeft, Misuse> {
    let counted = left.receive(len).and_then(|()| if end_stream { left.end() } else { Ok(()) });
    counted.map_err(|_| Misuse::ContentLengthMismatch)?;
    Ok(left)
}

impl Connection {
    /// Sends a request: opens a stream, at once or as soon as the peer allows one more. Its content follows by
    /// [`Connection::send_data`], unless `end_stream`.
    ///
    /// The fields are sent as they are: pseudo-fields first, names in lower case (see [`crate::message::check_request`]).
    ///
    /// # Errors
    /// [`Misuse::NotClient`], [`Misuse::GoingAway`], [`Misuse::StreamIdsExhausted`], [`Misuse::OpenQueueFull`],
    /// [`Misuse::MessageInvalid`] without a method or with an invalid `content-length`, [`Misuse::ContentLengthMismatch`]
    /// when that announces content and there is none, [`Misuse::ConnectProtocolNotEnabled`],
    /// [`Misuse::FieldListTooLarge`].
    pub fn send_request<'f, I>(&mut self, fields: I, end_stream: bool) -> Result<StreamKey, Error>
    where
        I: IntoIterator<Item = Field<'f>>,
        I::IntoIter: Clone,
    {
        let fields = fields.into_iter();
        if self.role == Role::Server {
            return Err(Misuse::NotClient.into());
        }
        self.check_alive()?;
        if self.is_going_away() {
            return Err(Misuse::GoingAway.into());
        }
        let stream_id = StreamId::new(self.next_local).ok_or(Misuse::StreamIdsExhausted)?;
        let outgoing = self.look_over(fields.clone(), Token::Method)?;
        if outgoing.kind == RequestKind::ExtendedConnect && !self.exchange.peer.enable_connect_protocol {
            return Err(Misuse::ConnectProtocolNotEnabled.into());
        }
        // RFC 9110 §9.3.6, RFC 8441 §4: what a tunnel carries is no content.
        let content = if outgoing.kind.is_connect() { ContentLeft::UNKNOWN } else { outgoing.content };
        check_content(content, 0, end_stream)?;
        let mut flags = flag::LOCAL | flag::SENT_FINAL | Self::request_flags(outgoing.kind);
        if !self.config.auto_release {
            flags |= flag::MANUAL;
        }
        let waits = self.open_local >= self.exchange.peer.max_concurrent_streams
            || self.scheduler.first_opening().is_some();
        if waits {
            let waiting = self.slab.len() - self.open_local - self.open_peer - self.reserved;
            if waiting as usize >= self.limits().queued_opens_max {
                return Err(Misuse::OpenQueueFull.into());
            }
            let (at, list) = self.parked.add();
            list.extend(fields);
            let mut stream = Stream::new(stream_id.get(), State::Idle, flags);
            stream.parked = at;
            stream.send_content = content;
            if end_stream {
                stream.set(flag::END_QUEUED);
            }
            self.next_local += 2;
            let slot = self.slab.insert(stream);
            self.scheduler.add_opening(&mut self.slab, slot);
            return Ok(self.slab.key(slot));
        }
        self.next_local += 2;
        self.write_headers(stream_id, fields, end_stream);
        let state = if end_stream { State::HalfClosedLocal } else { State::Open };
        let mut stream = Stream::new(stream_id.get(), state, flags);
        stream.send_content = content;
        let slot = self.slab.insert(stream);
        self.open_local += 1;
        Ok(StreamKey::new(slot, stream_id.get()))
    }

    /// Opens the requests that wait, as far as the peer allows.
    pub(super) fn open_waiting(&mut self) {
        while self.open_local < self.exchange.peer.max_concurrent_streams {
            let Some(slot) = self.scheduler.first_opening() else { return };
            if self.has_ended() {
                return;
            }
            self.scheduler.remove(&mut self.slab, slot);
            let stream = self.slab.get_mut(slot);
            let at = stream.parked;
            let (queued, trailers) = (stream.queued > 0, stream.has(flag::TRAILERS));
            let end_stream = stream.has(flag::END_QUEUED) && !queued && !trailers;
            stream.state = if end_stream { State::HalfClosedLocal } else { State::Open };
            let Some(stream_id) = StreamId::new(stream.id) else { return };
            let priority = self.parked.priority(at).take();
            let behind = self.write_parked(stream_id, at, end_stream);
            if let Some(priority) = priority {
                self.write_priority_update(stream_id, priority);
            }
            self.slab.get_mut(slot).parked = behind;
            self.open_local += 1;
            if queued {
                self.schedule(slot);
            } else if trailers {
                self.finish_with_trailers(slot);
            }
        }
    }

    /// Writes fields that waited; says what waits behind them.
    fn write_parked(&mut self, stream_id: StreamId, at: u32, end_stream: bool) -> u32 {
        let block = BlockWriter::headers(stream_id, end_stream, &mut self.out.bytes);
        self.encoder.encode(self.parked.fields(at), &mut self.out.bytes);
        block.finish(self.exchange.peer.max_frame_size, &mut self.out.bytes);
        self.parked.remove(at)
    }

    /// The trailers that waited for the content, which has gone.
    fn finish_with_trailers(&mut self, slot: u32) {
        let record = self.slab.get_mut(slot);
        let at = core::mem::replace(&mut record.parked, NONE);
        let stream_id = StreamId::new(record.id).unwrap_or_default();
        self.write_parked(stream_id, at, true);
        self.step(slot, stream::Step::SendEnd, stream::Ended::Finished);
    }

    /// Sends the final response to a request.
    ///
    /// # Errors
    /// [`Misuse::NotServer`], [`Misuse::StreamGone`], [`Misuse::HeadersSent`], [`Misuse::MessageInvalid`] without a status
    /// of 200 to 999 or with an invalid `content-length`, [`Misuse::ContentLengthMismatch`] when that announces content
    /// and there is none, [`Misuse::FieldListTooLarge`].
    pub fn send_response<'f, I>(
        &mut self,
        stream: StreamKey,
        fields: I,
        end_stream: bool,
    ) -> Result<(), Error>
    where
        I: IntoIterator<Item = Field<'f>>,
        I::IntoIter: Clone,
    {
        let fields = fields.into_iter();
        let (slot, stream_id) = self.responding(stream)?;
        let outgoing = self.look_over(fields.clone(), Token::Status)?;
        if outgoing.status < 200 {
            return Err(Misuse::MessageInvalid.into());
        }
        let request = request_kind(self.slab.get(slot));
        let content = response_content(outgoing.status, request, outgoing.content);
        check_content(content, 0, end_stream)?;
        self.write_headers(stream_id, fields, end_stream);
        let record = self.slab.get_mut(slot);
        record.send_content = content;
        record.set(flag::SENT_FINAL);
        if outgoing.status / 100 != 2 {
            record.clear(flag::CONNECT);
        }
        if record.state == State::ReservedLocal {
            // RFC 9113 §5.1 (reserved (local)): the promised response begins.
            self.reserved -= 1;
            self.open_local += 1;
        }
        self.step(slot, stream::Step::SendHeaders, stream::Ended::Finished);
        if end_stream {
            self.step(slot, stream::Step::SendEnd, stream::Ended::Finished);
        }
        Ok(())
    }

    /// Sends an interim response (RFC 9110 §15.2): 100 to 199 but 101, before the final one.
    ///
    /// # Errors
    /// As [`Connection::send_response`].
    pub fn send_informational<'f, I>(&mut self, stream: StreamKey, fields: I) -> Result<(), Error>
    where
        I: IntoIterator<Item = Field<'f>>,
        I::IntoIter: Clone,
    {
        let fields = fields.into_iter();
        let (slot, stream_id) = self.responding(stream)?;
        let outgoing = self.look_over(fields.clone(), Token::Status)?;
        // RFC 9113 §8.6: there is no 101. A promised stream goes on by its final response.
        if outgoing.status >= 200
            || outgoing.status == 101
            || self.slab.get(slot).state == State::ReservedLocal
        {
            return Err(Misuse::MessageInvalid.into());
        }
        self.write_headers(stream_id, fields, false);
        Ok(())
    }

    fn responding(&self, stream: StreamKey) -> Result<(u32, StreamId), Error> {
        self.check_server()?;
        let slot = self.slab.slot(stream).ok_or(Misuse::StreamGone)?;
        let record = self.slab.get(slot);
        if record.has(flag::SENT_FINAL) {
            return Err(Misuse::HeadersSent.into());
        }
        Ok((slot, StreamId::new(record.id).unwrap_or_default()))
    }

    /// Promises a response to a request that the client has not made (RFC 9113 §8.4), on a stream of its own.
    ///
    /// # Errors
    /// [`Misuse::NotServer`], [`Misuse::PushRefused`], [`Misuse::StreamGone`] when `stream` is not open on this side,
    /// [`Misuse::GoingAway`], [`Misuse::StreamIdsExhausted`], [`Misuse::MessageInvalid`].
    pub fn push_promise<'f, I>(&mut self, stream: StreamKey, fields: I) -> Result<StreamKey, Error>
    where
        I: IntoIterator<Item = Field<'f>>,
        I::IntoIter: Clone,
    {
        let fields = fields.into_iter();
        self.check_server()?;
        if !self.exchange.peer.enable_push {
            return Err(Misuse::PushRefused.into());
        }
        if self.is_going_away() {
            return Err(Misuse::GoingAway.into());
        }
        let parent = self.slab.slot(stream).ok_or(Misuse::StreamGone)?;
        let record = self.slab.get(parent);
        // RFC 9113 §6.6: on a stream of the client that this side has not ended.
        if record.has(flag::LOCAL) || !record.state.may_send_data() {
            return Err(Misuse::StreamGone.into());
        }
        let parent_id = StreamId::new(record.id).unwrap_or_default();
        let promised = StreamId::new(self.next_local).ok_or(Misuse::StreamIdsExhausted)?;
        let outgoing = self.look_over(fields.clone(), Token::Method)?;
        // RFC 9113 §8.2.2 of promises: one that the client has room for.
        if self.open_local + self.reserved >= self.exchange.peer.max_concurrent_streams {
            return Err(Misuse::PushRefused.into());
        }
        let block = BlockWriter::push_promise(parent_id, promised, &mut self.out.bytes);
        self.encoder.encode(fields, &mut self.out.bytes);
        block.finish(self.exchange.peer.max_frame_size, &mut self.out.bytes);
        self.next_local += 2;
        self.reserved += 1;
        let flags = flag::LOCAL | flag::RECV_FINAL | Self::request_flags(outgoing.kind);
        let slot = self.slab.insert(Stream::new(promised.get(), State::PROMISED_HERE, flags));
        Ok(self.slab.key(slot))
    }

    /// Sends content: at once as far as the windows allow, the rest when its turn comes. Large pieces are kept by
    /// reference and never copied; small ones that had to wait share frames.
    ///
    /// Everything is taken. [`Connection::queued`] says what waits; a caller that produces without end waits for
    /// [`crate::Event::Writable`] when [`Connection::send_capacity`] is 0.
    ///
    /// # Errors
    /// [`Misuse::StreamGone`], [`Misuse::SendBeforeHeaders`], [`Misuse::SendAfterEnd`]; [`Misuse::ContentLengthMismatch`]
    /// when it is more than `content-length` announced, or ends with less, or a response to HEAD, 204 or 304 would have
    /// content; [`Misuse::StreamQueueFull`] when a stream would queue 4 GiB.
    #[inline]
    pub fn send_data(
        &mut self,
        stream: StreamKey,
        data: impl Into<Bytes>,
        end_stream: bool,
    ) -> Result<(), Error> {
        self.send_bytes(stream, data.into(), end_stream)
    }

    fn send_bytes(&mut self, key: StreamKey, data: Bytes, end_stream: bool) -> Result<(), Error> {
        let slot = self.sending(key)?;
        let initial = self.exchange.peer.initial_window_size;
        let frame_len_max = self.data_len_max();
        let len = data.len();
        let record = self.slab.get_mut(slot);
        let content = check_content(record.send_content, len, end_stream)?;
        let direct = record.queued == 0
            && !record.has(flag::IN_LIST)
            && len <= frame_len_max
            && (len == 0
                || (self.scheduler.is_idle()
                    && self.out.len() < self.config.output_ahead
                    && len as i64 <= self.send_window
                    && len as i64 <= window(initial, record.send_delta)));
        if direct {
            // RFC 9113 §6.9.1: an empty frame is sent whatever the windows are; without END_STREAM it says nothing.
            if len > 0 || end_stream {
                record.send_content = content;
                self.write_data(slot, data, end_stream);
            }
            return Ok(());
        }
        if len > 0 && !self.chunks.push(record, data) {
            return Err(Misuse::StreamQueueFull.into());
        }
        record.send_content = content;
        if end_stream {
            record.set(flag::END_QUEUED);
        }
        if record.queued > self.config.stream_queue {
            record.set(flag::WANTS_ROOM);
        }
        if record.state != State::Idle && (len > 0 || end_stream) {
            self.schedule(slot);
        }
        Ok(())
    }

    /// Sends trailers behind the content, which end the stream.
    ///
    /// # Errors
    /// As [`Connection::send_data`], and [`Misuse::MessageInvalid`] when there is a pseudo-field, or on a tunnel.
    pub fn send_trailers<'f, I>(&mut self, stream: StreamKey, fields: I) -> Result<(), Error>
    where
        I: IntoIterator<Item = Field<'f>>,
        I::IntoIter: Clone,
    {
        let fields = fields.into_iter();
        let slot = self.sending(stream)?;
        if fields.clone().any(|field| field.name().first() == Some(&b':')) {
            return Err(Misuse::MessageInvalid.into());
        }
        let record = self.slab.get_mut(slot);
        // RFC 9113 §8.5: a tunnel has nothing but DATA.
        if record.has(flag::CONNECT) {
            return Err(Misuse::MessageInvalid.into());
        }
        check_content(record.send_content, 0, true)?;
        if record.queued > 0 || record.has(flag::IN_LIST) {
            if record.parked == NONE {
                let (at, list) = self.parked.add();
                list.extend(fields);
                record.parked = at;
            } else {
                // The request itself waits.
                self.parked.add_behind(record.parked).extend(fields);
            }
            record.set(flag::TRAILERS | flag::END_QUEUED);
            return Ok(());
        }
        let stream_id = StreamId::new(stream.id()).unwrap_or_default();
        self.write_headers(stream_id, fields, true);
        self.step(slot, stream::Step::SendEnd, stream::Ended::Finished);
        Ok(())
    }

    /// What a stream has queued, in bytes: taken by [`Connection::send_data`] and not framed yet.
    pub fn queued(&self, stream: StreamKey) -> usize {
        self.slab.slot(stream).map_or(0, |slot| self.slab.get(slot).queued as usize)
    }

    /// How much a stream should be given now, in bytes; 0 means to wait for [`crate::Event::Writable`], which is sent
    /// after this was asked for.
    pub fn send_capacity(&mut self, stream: StreamKey) -> usize {
        let Some(slot) = self.slab.slot(stream) else { return 0 };
        let queue = self.config.stream_queue;
        let record = self.slab.get_mut(slot);
        let room = queue.saturating_sub(record.queued);
        if room == 0 {
            record.set(flag::WANTS_ROOM);
        }
        room as usize
    }

    fn sending(&self, stream: StreamKey) -> Result<u32, Error> {
        self.check_alive()?;
        let slot = self.slab.slot(stream).ok_or(Misuse::StreamGone)?;
        let record = self.slab.get(slot);
        if record.has(flag::END_QUEUED) {
            return Err(Misuse::SendAfterEnd.into());
        }
        if !record.has(flag::SENT_FINAL) {
            return Err(Misuse::SendBeforeHeaders.into());
        }
        if !record.state.may_send_data() && record.state != State::Idle {
            return Err(Misuse::SendAfterEnd.into());
        }
        Ok(slot)
    }

    /// The longest DATA frame: no longer than the peer takes, and than one stream may be ahead of the others.
    #[inline]
    fn data_len_max(&self) -> usize {
        const LEAST: usize = Settings::INITIAL.max_frame_size as usize;
        (self.exchange.peer.max_frame_size as usize).min(self.config.output_ahead.max(LEAST))
    }

    /// Writes one DATA frame, which both windows allow.
    #[inline]
    fn write_data(&mut self, slot: u32, data: Bytes, end_stream: bool) {
        self.write_data_header(slot, data.len(), end_stream);
        self.out.push(data);
        if end_stream {
            self.step(slot, stream::Step::SendEnd, stream::Ended::Finished);
        }
    }

    /// Writes one DATA frame of so many bytes that are queued.
    fn write_queued(&mut self, slot: u32, len: usize, end_stream: bool) {
        self.write_data_header(slot, len, end_stream);
        let mut left = len;
        while left > 0 {
            let Some(piece) = self.chunks.take(self.slab.get_mut(slot), left) else { break };
            left -= piece.len();
            self.out.push(piece);
        }
        if end_stream {
            self.step(slot, stream::Step::SendEnd, stream::Ended::Finished);
        }
    }

    #[inline]
    fn write_data_header(&mut self, slot: u32, len: usize, end_stream: bool) {
        let stream = self.slab.get_mut(slot);
        stream.send_delta = spend(stream.send_delta, len as u32);
        self.send_window -= len as i64;
        let header = FrameHeader {
            len: len as u32,
            kind: Kind::DATA,
            flags: Flags::NONE.with(Flags::END_STREAM, end_stream),
            stream_id: StreamId::new(stream.id).unwrap_or_default(),
        };
        header.encode(&mut self.out.bytes);
        self.rates.data_sent(len, &self.config.limits);
    }

    /// Frames DATA of the streams whose turn it is, until enough is ahead of the transport.
    pub(super) fn pump(&mut self) {
        if self.has_ended() {
            return;
        }
        while self.out.len() < self.config.output_ahead {
            let Some(slot) = self.scheduler.next() else { break };
            self.pump_stream(slot);
            if self.send_window <= 0 {
                break;
            }
        }
        if self.stalled == Since::Never
            && (!self.out.is_empty() || (!self.scheduler.is_idle() && self.send_window <= 0))
        {
            self.stalled = Since::Next;
            self.untimed = true;
        }
    }

    fn pump_stream(&mut self, slot: u32) {
        let initial = self.exchange.peer.initial_window_size;
        let frame_len_max = self.data_len_max() as i64;
        let record = self.slab.get_mut(slot);
        let stream_window = window(initial, record.send_delta);
        let empty = record.queued == 0;
        let room = stream_window.min(self.send_window).min(frame_len_max);
        if !empty && room <= 0 {
            if stream_window <= 0 {
                // The window was taken away by SETTINGS (RFC 9113 §6.9.2).
                self.scheduler.remove(&mut self.slab, slot);
                self.schedule(slot);
            }
            return;
        }
        if !empty {
            // Small pieces that waited together leave together.
            let len = self.chunks.frame_len(record, room as usize, BY_REFERENCE);
            let left = record.queued - len as u32;
            let last = left == 0 && record.has(flag::END_QUEUED) && !record.has(flag::TRAILERS);
            if room >= Self::PROGRESS_MIN || left == 0 {
                record.clear(flag::STALL_CLOCK);
            }
            let wants_room = record.has(flag::WANTS_ROOM) && left <= self.config.stream_queue / 2;
            if wants_room {
                record.clear(flag::WANTS_ROOM);
            }
            let key = StreamKey::new(slot, record.id);
            if last {
                // The stream may live on to receive; its turns to send are over.
                self.scheduler.remove(&mut self.slab, slot);
                return self.write_queued(slot, len, true);
            }
            self.write_queued(slot, len, false);
            if wants_room {
                self.pending.push_back(Step::Writable { stream: key });
            }
        }
        let record = self.slab.get(slot);
        if record.queued > 0 {
            if window(initial, record.send_delta) > 0 {
                return self.scheduler.rotate(&mut self.slab, slot);
            }
            self.scheduler.remove(&mut self.slab, slot);
            return self.schedule(slot);
        }
        self.scheduler.remove(&mut self.slab, slot);
        let record = self.slab.get_mut(slot);
        if record.has(flag::TRAILERS) {
            self.finish_with_trailers(slot);
        } else if record.has(flag::END_QUEUED) {
            self.write_data(slot, Bytes::new(), true);
        }
    }

    #[inline]
    pub(super) fn write_headers<'f>(
        &mut self,
        stream_id: StreamId,
        fields: impl Iterator<Item = Field<'f>>,
        end_stream: bool,
    ) {
        let block = BlockWriter::headers(stream_id, end_stream, &mut self.out.bytes);
        self.encoder.encode(fields, &mut self.out.bytes);
        block.finish(self.exchange.peer.max_frame_size, &mut self.out.bytes);
    }

    /// Looks a message over before it is sent: what kind it is, that it has the field it cannot do without, and that
    /// the peer takes a list of this size (RFC 9113 §6.5.2, §8.3).
    #[inline]
    fn look_over<'f>(
        &self,
        fields: impl Iterator<Item = Field<'f>>,
        needed: Token,
    ) -> Result<Outgoing, Error> {
        let mut outgoing = Outgoing { kind: RequestKind::Plain, status: 0, content: ContentLeft::UNKNOWN };
        let (mut found, mut size, mut protocol) = (false, 0, false);
        for field in fields {
            size += field.list_size();
            let token = field.token();
            protocol |= token == Token::Protocol;
            if token == Token::ContentLength {
                outgoing.content.announce(field.value()).map_err(|_| Misuse::MessageInvalid)?;
            }
            if token != needed {
                continue;
            }
            found = true;
            match (needed, field.value()) {
                (Token::Method, b"HEAD") => outgoing.kind = RequestKind::Head,
                (Token::Method, b"CONNECT") => outgoing.kind = RequestKind::Connect,
                (Token::Status, &[a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9']) => {
                    outgoing.status =
                        u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0');
                }
                (Token::Status, _) => return Err(Misuse::MessageInvalid.into()),
                _ => {}
            }
        }
        if !found {
            return Err(Misuse::MessageInvalid.into());
        }
        if protocol && outgoing.kind == RequestKind::Connect {
            outgoing.kind = RequestKind::ExtendedConnect;
        }
        if size > self.exchange.peer.max_header_list_size as usize {
            return Err(Misuse::FieldListTooLarge.into());
        }
        Ok(outgoing)
    }
}
