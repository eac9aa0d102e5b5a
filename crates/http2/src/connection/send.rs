//! Sending of messages: HEADERS, and DATA within the windows.
//!
//! HEADERS are written to the output at once, because HPACK blocks must be sent in the order in which they are encoded. DATA is
//! written to the output if nothing is queued before it, and queued by reference otherwise.

use bytes::Bytes;

use super::Connection;
use crate::Role;
use crate::error::{Error, Misuse};
use crate::event::Event;
use crate::field::{Field, Token};
use crate::frame::{Flags, FrameHeader, Kind, StreamId};
use crate::limits::Limits;
use crate::message::{self, ContentLeft, RequestKind, Section, forbids_content_length, response_content};
use crate::settings::Settings;
use crate::stream::{NextFrame, OpenedRequest, RecvPhase, SendPhase, StreamKey, check_content};

/// A shortened frame has at least this many bytes: as much as the window of a peer that does not stall.
const SHORTENED_LEN_MIN: usize = Limits::PROGRESS_MIN as usize;

/// The properties of a message that this side sends.
struct Outgoing {
    kind: RequestKind,
    status: u16,
    content: ContentLeft,
}

impl Connection {
    /// Sends a request: opens a stream, or queues the request until the peer allows another stream. [`Connection::send_data`] sends
    /// its content, unless `end_stream`.
    ///
    /// The fields are sent unchanged: pseudo-fields first, names in lower case. [`crate::Config::check_outgoing`] checks them.
    ///
    /// # Errors
    /// [`Misuse::NotClient`], [`Misuse::GoingAway`], [`Misuse::StreamIdsExhausted`], [`Misuse::OpenQueueFull`],
    /// [`Misuse::MessageInvalid`] without a method, with an invalid `content-length` or with another field that the server would refuse, [`Misuse::ContentLengthMismatch`]
    /// if that announces content and `end_stream` is set, [`Misuse::ConnectProtocolNotEnabled`],
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
        let stream_id = self.streams.next_local().ok_or(Misuse::StreamIdsExhausted)?;
        let outgoing = self.check_outgoing(fields.clone(), Section::Request)?;
        if outgoing.kind == RequestKind::ExtendedConnect && !self.control.peer.enable_connect_protocol {
            return Err(Misuse::ConnectProtocolNotEnabled.into());
        }
        let is_tunnel = outgoing.kind.is_connect();
        // RFC 9110 §9.3.6, RFC 8441 §4: what a tunnel carries is no content.
        let content = if is_tunnel { ContentLeft::UNKNOWN } else { outgoing.content };
        check_content(content, 0, end_stream)?;
        let recv = RecvPhase::Headers(outgoing.kind);
        let mut stream =
            self.streams.record(stream_id, recv, SendPhase::after_headers(is_tunnel), &self.config);
        stream.send_content = content;
        if self.streams.must_wait() {
            if end_stream {
                stream.send = SendPhase::EndQueued;
            }
            let waiting_max = self.limits().queued_opens_max;
            return Ok(self.streams.queue_request(stream, fields, waiting_max)?);
        }
        if end_stream {
            stream.send = SendPhase::End;
        }
        self.write_request(stream_id, fields, end_stream);
        Ok(self.streams.open_request(stream))
    }

    /// Opens waiting requests, while the peer allows it and the output has room.
    fn open_waiting(&mut self) {
        while self.out.len() < self.config.output_ahead {
            let Some(OpenedRequest { request, end_stream }) = self.streams.next_request() else { return };
            let (slot, id) = (request.key.slot_u32(), request.key.stream_id());
            self.write_request(id, request.fields.iter(), end_stream);
            if let Some(priority) = request.priority {
                self.write_priority_update(id, priority);
            }
            if self.streams.finish_request(slot, request.fields) {
                self.write_trailers(slot, id);
            } else if end_stream {
                self.finish_sending(slot);
            }
        }
    }

    /// Sends the final response to a request.
    ///
    /// # Errors
    /// [`Misuse::NotServer`], [`Misuse::StreamGone`], [`Misuse::HeadersSent`], [`Misuse::MessageInvalid`] without a status
    /// of 200 to 999, with an invalid `content-length`, or with one although the response never has content (204, and 2xx to
    /// CONNECT), [`Misuse::ContentLengthMismatch`] if that announces content and `end_stream` is set,
    /// [`Misuse::FieldListTooLarge`].
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
        let (slot, request) = self.check_responding(stream)?;
        let outgoing = self.check_response(fields.clone(), request)?;
        if outgoing.status < 200 {
            return Err(Misuse::MessageInvalid.into());
        }
        let content = response_content(outgoing.status, request, outgoing.content);
        check_content(content, 0, end_stream)?;
        self.write_headers(stream.stream_id(), fields, end_stream);
        if self.streams.get(slot).is_reserved() {
            // RFC 9113 §5.1 (reserved (local)): the promised response begins.
            self.streams.begin_reserved(slot);
        }
        let is_tunnel = request.is_connect() && outgoing.status / 100 == 2;
        let record = self.streams.get_mut(slot);
        record.send_content = content;
        record.send = SendPhase::after_headers(is_tunnel);
        if !is_tunnel && record.recv == RecvPhase::Tunnel {
            // RFC 9113 §8.5: the tunnel was refused; the rest of the request is content.
            record.recv = RecvPhase::Content;
        }
        if end_stream {
            self.finish_sending(slot);
        }
        Ok(())
    }

    /// Sends an interim response (RFC 9110 §15.2) before the final one. Its status is 100 to 199, except 101.
    ///
    /// # Errors
    /// As [`Connection::send_response`].
    pub fn send_informational<'f, I>(&mut self, stream: StreamKey, fields: I) -> Result<(), Error>
    where
        I: IntoIterator<Item = Field<'f>>,
        I::IntoIter: Clone,
    {
        let fields = fields.into_iter();
        let (slot, request) = self.check_responding(stream)?;
        let outgoing = self.check_response(fields.clone(), request)?;
        // RFC 9113 §8.6: there is no 101. A promised stream continues with its final response.
        if outgoing.status >= 200 || outgoing.status == 101 || self.streams.get(slot).is_reserved() {
            return Err(Misuse::MessageInvalid.into());
        }
        self.write_headers(stream.stream_id(), fields, false);
        Ok(())
    }

    fn check_responding(&self, stream: StreamKey) -> Result<(u32, RequestKind), Error> {
        self.check_server()?;
        let slot = self.streams.slot(stream).ok_or(Misuse::StreamGone)?;
        match self.streams.get(slot).send {
            SendPhase::Headers(request) => Ok((slot, request)),
            _ => Err(Misuse::HeadersSent.into()),
        }
    }

    /// Promises a response on a new stream to a request that the client has not made (RFC 9113 §8.4).
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
        if !self.control.peer.enable_push {
            return Err(Misuse::PushRefused.into());
        }
        if self.is_going_away() {
            return Err(Misuse::GoingAway.into());
        }
        let parent = self.streams.slot(stream).ok_or(Misuse::StreamGone)?;
        // RFC 9113 §6.6: on a stream of the client that this side has not ended.
        if self.streams.is_local(stream.stream_id()) || !self.streams.get(parent).send.is_open() {
            return Err(Misuse::StreamGone.into());
        }
        let promised = self.streams.next_local().ok_or(Misuse::StreamIdsExhausted)?;
        let outgoing = self.check_outgoing(fields.clone(), Section::Request)?;
        // RFC 9113 §8.2.2 of promises: one that the client has room for.
        if self.streams.reserved() >= self.streams.open_capacity() {
            return Err(Misuse::PushRefused.into());
        }
        let (out, frame_len_max) = (self.out.frames(), self.control.peer.max_frame_size);
        self.contexts.write_promise(out, frame_len_max, stream.stream_id(), promised, fields);
        let send = SendPhase::Headers(outgoing.kind);
        let stream = self.streams.record(promised, RecvPhase::Reserved, send, &self.config);
        Ok(self.streams.reserve_local(stream))
    }

    /// Sends content, or queues it until the windows allow it and it is the stream's turn. Large chunks are never copied. Chunks that are
    /// queued share frames.
    ///
    /// All content is accepted, and [`Connection::queued`] returns how much is queued. A caller with unbounded content should wait for
    /// [`crate::Event::Writable`] if [`Connection::send_capacity`] is 0.
    ///
    /// # Errors
    /// [`Misuse::StreamGone`], [`Misuse::SendBeforeHeaders`], [`Misuse::SendAfterEnd`]; [`Misuse::ContentLengthMismatch`]
    /// if there is more content than `content-length` announced, or less at the end, or if a response to HEAD, 204 or 304 would have
    /// content; [`Misuse::StreamQueueFull`] if the queue of the stream would reach 4 GiB.
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
        let checked = self.check_sending(key).and_then(|slot| {
            let left = self.streams.get(slot).send_content;
            Ok((slot, check_content(left, data.len(), end_stream)?))
        });
        let (slot, content) = match checked {
            Ok(checked) => checked,
            Err(error) => {
                self.out.discard(data);
                return Err(error);
            }
        };
        let len = data.len();
        let has_room = len == 0 || len <= self.data_room();
        if has_room && self.streams.may_send_now(slot, len) {
            // RFC 9113 §6.9.1: an empty frame needs no window. Without END_STREAM it has no effect and is not sent.
            if len > 0 || end_stream {
                self.streams.get_mut(slot).send_content = content;
                self.streams.spend_send(slot, len as u32);
                self.write_data_header(key.stream_id(), len, end_stream);
                self.out.push(data);
                if end_stream {
                    self.finish_sending(slot);
                }
            } else {
                self.out.discard(data);
            }
            return Ok(());
        }
        let queue_max = self.config.queue_max(self.streams.queued());
        Ok(self.streams.queue_data(slot, data, end_stream, content, queue_max)?)
    }

    /// Sends trailers after the content. They end the stream.
    ///
    /// # Errors
    /// As [`Connection::send_data`], [`Misuse::MessageInvalid`] if there is a pseudo-field, or on a tunnel, and
    /// [`Misuse::FieldListTooLarge`].
    pub fn send_trailers<'f, I>(&mut self, stream: StreamKey, fields: I) -> Result<(), Error>
    where
        I: IntoIterator<Item = Field<'f>>,
        I::IntoIter: Clone,
    {
        let fields = fields.into_iter();
        let slot = self.check_sending(stream)?;
        if fields.clone().any(|field| field.is_pseudo())
            || (self.config.check_outgoing
                && message::check_outgoing(fields.clone(), Section::Trailers).is_err())
        {
            return Err(Misuse::MessageInvalid.into());
        }
        let record = self.streams.get(slot);
        // RFC 9113 §8.5: a tunnel has nothing but DATA.
        if record.send == SendPhase::Tunnel {
            return Err(Misuse::MessageInvalid.into());
        }
        check_content(record.send_content, 0, true)?;
        let size: usize = fields.clone().map(|field| field.list_size()).sum();
        if size > self.control.peer.max_header_list_size as usize {
            return Err(Misuse::FieldListTooLarge.into());
        }
        if self.streams.must_queue_trailers(slot) {
            self.streams.queue_trailers(slot, fields);
            return Ok(());
        }
        self.write_headers(stream.stream_id(), fields, true);
        self.finish_sending(slot);
        Ok(())
    }

    /// The queued DATA of a stream, in bytes: passed to [`Connection::send_data`] and not framed yet.
    pub fn queued(&self, stream: StreamKey) -> usize {
        self.streams.slot(stream).map_or(0, |slot| self.streams.get(slot).queued as usize)
    }

    /// The number of bytes that the caller should send on a stream now. If it is 0, [`crate::Event::Writable`] reports when there is
    /// room again.
    pub fn send_capacity(&mut self, stream: StreamKey) -> usize {
        let Some(slot) = self.streams.slot(stream) else { return 0 };
        let queue_max = self.config.queue_max(self.streams.queued());
        let record = self.streams.get_mut(slot);
        let room = queue_max.saturating_sub(record.queued);
        if room == 0 && record.send.takes_data() {
            record.set_wants_writable(true);
        }
        room as usize
    }

    fn check_sending(&self, stream: StreamKey) -> Result<u32, Error> {
        self.check_alive()?;
        let slot = self.streams.slot(stream).ok_or(Misuse::StreamGone)?;
        self.streams.check_sending(slot)?;
        Ok(slot)
    }

    /// The maximum length of a DATA frame: the peer's SETTINGS_MAX_FRAME_SIZE, or less, so that one frame does not delay other
    /// streams by more than [`crate::Config::output_ahead`].
    #[inline]
    fn data_len_max(&self) -> usize {
        const LEAST: usize = Settings::INITIAL.max_frame_size as usize;
        (self.control.peer.max_frame_size as usize).min(self.config.output_ahead.max(LEAST))
    }

    /// The maximum length of the next DATA frame; 0 if the output is full. The last frame that has room is shortened, so that all
    /// of the output is one packet for the kernel.
    #[inline]
    fn data_room(&self) -> usize {
        let max = self.data_len_max();
        if self.out.is_empty() {
            return max;
        }
        let room = self.config.output_ahead.saturating_sub(self.out.len() + FrameHeader::LEN).min(max);
        if room >= SHORTENED_LEN_MIN { room } else { 0 }
    }

    #[inline]
    fn write_data_header(&mut self, stream_id: StreamId, len: usize, end_stream: bool) {
        let flags = Flags::NONE.with(Flags::END_STREAM, end_stream);
        let header = FrameHeader { len: len as u32, kind: Kind::DATA, flags, stream_id };
        header.encode(self.out.frames());
        self.rates.data_sent(len, &self.config.limits);
    }

    /// Fills the output up to [`crate::Config::output_ahead`]: HEADERS of waiting requests, then DATA and trailers in the order of the
    /// scheduler.
    pub(super) fn fill_output(&mut self) {
        if self.has_ended() {
            return;
        }
        if self.streams.has_ready() || self.streams.has_request() {
            self.write_streams();
        }
        if !self.streams.has_ready() {
            self.timers.window_not_needed();
        }
        if self.streams.start_probe(self.now) {
            self.write_probe();
        }
        if !self.out.is_empty() {
            self.timers.output_buffered(self.now);
        }
        if self.closing.input_ended() {
            self.reset_blocked_by_eof();
        }
    }

    /// Writes the frames of streams until the output is full or a window is closed.
    #[inline(never)]
    fn write_streams(&mut self) {
        self.open_waiting();
        loop {
            let room = self.data_room();
            if room == 0 {
                break;
            }
            let Some(slot) = self.streams.next_ready() else { break };
            self.write_next(slot, room as u32);
            if self.streams.send_window() <= 0 {
                break;
            }
        }
        if self.streams.is_window_closed() {
            self.timers.window_closed(self.input_time());
        }
    }

    /// Writes the next frame of a stream, with at most `frame_len_max` bytes.
    fn write_next(&mut self, slot: u32, frame_len_max: u32) {
        let queue_max = self.config.queue_max(self.streams.queued());
        match self.streams.next_frame(slot, self.input_time(), frame_len_max, queue_max) {
            NextFrame::Data { id, len, end_stream, trailers, writable } => {
                self.write_data_header(id, len as usize, end_stream);
                let mut left = len as usize;
                while left > 0 {
                    let Some(chunk) = self.streams.take_chunk(slot, left) else { break };
                    left -= chunk.len();
                    self.out.push(chunk);
                }
                if let Some(stream) = writable {
                    self.pending.push_back(Event::Writable { stream });
                }
                if trailers {
                    self.write_trailers(slot, id);
                } else if end_stream {
                    self.finish_sending(slot);
                }
            }
            NextFrame::None => {}
        }
    }

    /// Writes the queued trailers of a stream.
    fn write_trailers(&mut self, slot: u32, id: StreamId) {
        let (out, frame_len_max) = (self.out.frames(), self.control.peer.max_frame_size);
        self.contexts.write_headers(out, frame_len_max, id, self.streams.trailers(slot).iter(), true);
        self.streams.remove_trailers(slot);
        self.finish_sending(slot);
    }

    /// END_STREAM of a stream is in the output.
    #[inline]
    fn finish_sending(&mut self, slot: u32) {
        if self.role == Role::Client {
            let stream = self.streams.key(slot);
            self.pending.push_back(Event::SendEnded { stream });
        }
        let closed = self.streams.end_send(slot);
        self.apply_close(closed);
    }

    #[inline]
    fn write_request<'f>(
        &mut self,
        stream_id: StreamId,
        fields: impl Iterator<Item = Field<'f>>,
        end_stream: bool,
    ) {
        let out = self.out.request(stream_id);
        self.contexts.write_headers(out, self.control.peer.max_frame_size, stream_id, fields, end_stream);
    }

    #[inline]
    fn write_headers<'f>(
        &mut self,
        stream_id: StreamId,
        fields: impl Iterator<Item = Field<'f>>,
        end_stream: bool,
    ) {
        let out = self.out.frames();
        self.contexts.write_headers(out, self.control.peer.max_frame_size, stream_id, fields, end_stream);
    }

    fn check_response<'f>(
        &self,
        fields: impl Iterator<Item = Field<'f>> + Clone,
        request: RequestKind,
    ) -> Result<Outgoing, Error> {
        let outgoing = self.check_outgoing(fields, Section::Response)?;
        let has_length = outgoing.content != ContentLeft::UNKNOWN;
        if self.config.check_outgoing && has_length && forbids_content_length(outgoing.status, request) {
            return Err(Misuse::MessageInvalid.into());
        }
        Ok(outgoing)
    }

    /// Checks a message before it is sent: it has the required field, and its list is not larger than the peer accepts (RFC 9113
    /// §6.5.2, §8.3).
    #[inline]
    fn check_outgoing<'f>(
        &self,
        fields: impl Iterator<Item = Field<'f>> + Clone,
        section: Section,
    ) -> Result<Outgoing, Error> {
        if self.config.check_outgoing && message::check_outgoing(fields.clone(), section).is_err() {
            return Err(Misuse::MessageInvalid.into());
        }
        let needed = if section == Section::Request { Token::Method } else { Token::Status };
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
        if size > self.control.peer.max_header_list_size as usize {
            return Err(Misuse::FieldListTooLarge.into());
        }
        Ok(outgoing)
    }
}
