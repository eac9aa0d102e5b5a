//! Input, cut into frames.
//!
//! Between two inputs the [`Reader`] keeps the beginning of a frame, the rest of a DATA payload, and a field block that is
//! not complete. A frame that is whole in the input is read in place; DATA is borrowed from the input as it comes.
//!
//! ```text
//! input   ..rest of DATA | frame | frame | frame | fra
//!           borrowed, or   dispatched in place     `-> partial, until the next input completes it
//!           ignored
//! ```

use alloc::vec::Vec;
use core::time::Duration;

use super::{Connection, RateLimit, Since};
use crate::Role;
use crate::error::{Error, Exceeded, Scope, Violation};
use crate::event::PendingEvent;
use crate::frame::{Flags, Frame, FrameHeader, Kind, Settings, StreamId};
use crate::rate_limit::Charge;
use crate::stream::StreamKey;
use crate::upgrade::PREFACE;

/// A DATA payload of which a part has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataRest {
    /// Its stream; `None` when it is ignored.
    pub(super) stream: Option<StreamKey>,
    /// Content that has not arrived, in bytes.
    pub(super) data_left: u32,
    /// Padding behind it.
    pub(super) padding_left: u32,
    pub(super) end_stream: bool,
}

/// A field block that is being collected: HEADERS or PUSH_PROMISE without END_HEADERS.
#[derive(Clone, Copy, Debug)]
pub(super) struct Collecting {
    pub(super) stream_id: StreamId,
    pub(super) end_stream: bool,
    pub(super) promised: Option<StreamId>,
    /// The stream depends on itself: an error of the stream, once the block is decoded.
    pub(super) self_dependent: bool,
    pub(super) continuations: usize,
}

pub(super) struct Reader {
    /// How much of the client's preface is still to come (RFC 9113 §3.4).
    preface_left: u8,
    /// Whether the peer's first frame has come, which is SETTINGS.
    pub(super) settings_seen: bool,
    /// The beginning of a frame that is not DATA, or of a header: `partial.len() < 9 + max_frame_size`.
    partial: Vec<u8>,
    /// Since when `partial` or `collecting` is in use.
    pub(super) incomplete_since: Since,
    data: Option<DataRest>,
    pub(super) collecting: Option<Collecting>,
    /// The field block so far.
    pub(super) block: Vec<u8>,
}

/// What `partial` and `block` may keep while they are empty.
const KEPT: usize = 1024;

impl Reader {
    pub(super) const fn new(role: Role) -> Self {
        Self {
            preface_left: match role {
                Role::Client => 0,
                Role::Server => PREFACE.len() as u8,
            },
            settings_seen: false,
            partial: Vec::new(),
            incomplete_since: Since::Never,
            data: None,
            collecting: None,
            block: Vec::new(),
        }
    }

    /// A frame or a field block begins that is not whole in the input.
    fn begin_incomplete(&mut self, now: Duration) {
        if self.incomplete_since == Since::Never {
            self.incomplete_since = Since::At(now);
        }
    }

    /// A frame or a field block is complete.
    #[inline]
    pub(super) fn end_incomplete(&mut self) {
        if self.partial.is_empty() && self.collecting.is_none() {
            self.incomplete_since = Since::Never;
        }
    }

    pub(super) fn collect(&mut self, collecting: Collecting, fragment: &[u8], now: Duration) {
        self.begin_incomplete(now);
        self.block.extend_from_slice(fragment);
        self.collecting = Some(collecting);
    }

    /// Bytes that are kept until a frame or a field block is complete.
    pub(super) const fn len(&self) -> usize {
        self.partial.len() + self.block.len()
    }

    /// Frees bytes that will never be complete: the connection has ended.
    pub(super) fn free(&mut self) {
        self.partial = Vec::new();
        self.block = Vec::new();
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.partial.capacity() + self.block.capacity()
    }

    pub(super) fn shrink(&mut self) {
        self.partial.shrink_to_fit();
        self.block.shrink_to_fit();
    }
}

impl Connection {
    /// Reads on from `at`, which is not the end of the input. Returns the new position, behind `at`, and an event.
    #[inline]
    pub(super) fn read(&mut self, input: &[u8], at: usize) -> Result<(usize, Option<PendingEvent>), Error> {
        if self.reader.data.is_some() {
            return self.read_data(input, at);
        }
        let rest = &input[at..];
        if self.reader.partial.is_empty() && self.reader.preface_left == 0 {
            // The common case: a frame whole in the input.
            if let Some((bytes, after)) = rest.split_first_chunk::<{ FrameHeader::LEN }>() {
                let header = FrameHeader::decode(bytes);
                self.check_header(&header)?;
                let len = header.len as usize;
                if header.kind == Kind::DATA {
                    return self.begin_data(&header, input, at + FrameHeader::LEN);
                }
                if let Some(payload) = after.get(..len) {
                    let step = self.dispatch(&header, payload)?;
                    return Ok((at + FrameHeader::LEN + len, step));
                }
            }
        }
        self.read_slowly(input, at)
    }

    /// The fast path: DATA without padding that is whole in the input and breaks no rule. Returns its stream, its end in the
    /// input and END_STREAM. `None` has changed nothing: the input goes through [`Connection::read`].
    #[inline]
    pub(super) fn read_whole_data(&mut self, input: &[u8]) -> Option<(StreamKey, usize, bool)> {
        let reader = &self.reader;
        let between_frames = reader.data.is_none()
            && reader.partial.is_empty()
            && reader.settings_seen
            && reader.collecting.is_none();
        if !between_frames {
            return None;
        }
        let (bytes, payload) = input.split_first_chunk::<{ FrameHeader::LEN }>()?;
        let header = FrameHeader::decode(bytes);
        if header.kind != Kind::DATA
            || header.flags.contains(Flags::PADDED)
            || payload.len() < header.len as usize
            || header.check_len(self.frame_len_max()).is_err()
            || !self.pending.is_empty()
            || self.has_ended()
            || !self.wants_read()
        {
            return None;
        }
        let end_stream = header.flags.contains(Flags::END_STREAM);
        let stream = self.accept_whole_data(header.stream_id, header.len, end_stream)?;
        Some((stream, FrameHeader::LEN + header.len as usize, end_stream))
    }

    #[cold]
    fn read_slowly(&mut self, input: &[u8], at: usize) -> Result<(usize, Option<PendingEvent>), Error> {
        let rest = &input[at..];
        if self.reader.preface_left > 0 {
            let left = usize::from(self.reader.preface_left);
            let expected = &PREFACE[PREFACE.len() - left..];
            let len = rest.len().min(left);
            // RFC 9113 §3.4: an invalid preface is a connection error, PROTOCOL_ERROR.
            if rest[..len] != expected[..len] {
                return Err(Error::peer(Violation::PrefaceInvalid, StreamId::CONNECTION));
            }
            self.reader.preface_left -= len as u8;
            return Ok((at + len, None));
        }
        let have = self.reader.partial.len();
        if have < FrameHeader::LEN {
            let len = rest.len().min(FrameHeader::LEN - have);
            self.reader.begin_incomplete(self.now);
            self.reader.partial.extend_from_slice(&rest[..len]);
            let Some(bytes) = self.reader.partial.first_chunk() else { return Ok((at + len, None)) };
            let header = FrameHeader::decode(bytes);
            self.check_header(&header)?;
            // Padding waits for its length, unless the header alone is wrong.
            let padded = header.flags.contains(Flags::PADDED) && !header.stream_id.is_connection();
            if header.kind == Kind::DATA && !padded {
                self.reader.partial.clear();
                self.reader.end_incomplete();
                return self.begin_data(&header, input, at + len);
            }
            if header.len > 0 {
                return Ok((at + len, None));
            }
            return Ok((at + len, self.dispatch_partial(&header)?));
        }
        let Some(bytes) = self.reader.partial.first_chunk() else { return Ok((at, None)) };
        let header = FrameHeader::decode(bytes);
        if header.kind == Kind::DATA {
            self.reader.partial.clear();
            self.reader.end_incomplete();
            return self.begin_data(&header, input, at);
        }
        let wanted = FrameHeader::LEN + header.len as usize - have;
        let len = rest.len().min(wanted);
        self.reader.partial.extend_from_slice(&rest[..len]);
        if len < wanted {
            return Ok((at + len, None));
        }
        Ok((at + len, self.dispatch_partial(&header)?))
    }

    fn dispatch_partial(&mut self, header: &FrameHeader) -> Result<Option<PendingEvent>, Error> {
        let mut partial = core::mem::take(&mut self.reader.partial);
        let step = self.dispatch(header, &partial[FrameHeader::LEN..]);
        partial.clear();
        partial.shrink_to(KEPT);
        self.reader.partial = partial;
        self.reader.end_incomplete();
        step
    }

    /// What a header alone can break, before its payload is waited for.
    #[inline]
    fn check_header(&mut self, header: &FrameHeader) -> Result<(), Error> {
        let connection = StreamId::CONNECTION;
        if !self.reader.settings_seen {
            // RFC 9113 §3.4: the first frame of either side is SETTINGS, and no acknowledgement.
            if header.kind != Kind::SETTINGS || header.flags.contains(Flags::ACK) {
                return Err(Error::peer(Violation::PrefaceWithoutSettings, connection));
            }
            self.reader.settings_seen = true;
        }
        header.check_len(self.frame_len_max()).map_err(|violation| Error::peer(violation, connection))?;
        match &self.reader.collecting {
            None => Ok(()),
            // RFC 9113 §6.2, §6.10: nothing but CONTINUATION of the same stream.
            Some(collecting)
                if header.kind == Kind::CONTINUATION && header.stream_id == collecting.stream_id =>
            {
                Ok(())
            }
            Some(_) => Err(Error::peer(Violation::FieldBlockInterrupted, connection)),
        }
    }

    /// Reads a frame other than DATA. Errors of a stream are answered here, those of the connection are passed on.
    #[inline]
    fn dispatch(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<Option<PendingEvent>, Error> {
        let result = match header.kind {
            // The two kinds that every exchange has come first.
            Kind::HEADERS => crate::frame::Headers::parse(header, payload)
                .map_err(|violation| Error::peer(violation, header.stream_id))
                .and_then(|headers| self.receive_headers(&headers)),
            Kind::WINDOW_UPDATE => crate::frame::WindowUpdate::parse(header, payload)
                .map_err(|violation| Error::peer(violation, header.stream_id))
                .and_then(|update| self.receive_window_update(update)),
            _ => self.dispatch_other(header, payload),
        };
        match result {
            Ok(step) => Ok(step),
            Err(error) => self.stream_error(error),
        }
    }

    fn dispatch_other(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<Option<PendingEvent>, Error> {
        let frame = match Frame::parse(header, payload) {
            Ok(frame) => frame,
            Err(violation) => {
                let error = Error::peer(violation, header.stream_id);
                // RFC 9113 §5.1: whatever the frame has wrong, it has no business on an idle stream. PRIORITY alone may
                // be there, and there is no idle stream to reset.
                if matches!(error.scope(), Some(Scope::Stream(id)) if self.streams.is_idle(id)) {
                    return Err(error.for_connection());
                }
                return Err(error);
            }
        };
        match frame {
            Frame::RstStream(reset) => self.receive_reset(reset),
            Frame::Settings(Settings::Values(values)) => self.receive_settings(values),
            Frame::Settings(Settings::Ack) => self.receive_settings_ack(),
            Frame::PushPromise(promise) => self.receive_push_promise(&promise),
            Frame::Ping(ping) => self.receive_ping(ping),
            Frame::Goaway(goaway) => self.receive_goaway(&goaway),
            Frame::Continuation(more) => self.receive_continuation(&more),
            Frame::Priority(_) => {
                // RFC 9113 §5.3.2: the deprecated priorities are ignored.
                self.charge(Charge::Priority)?;
                Ok(None)
            }
            Frame::PriorityUpdate(update) => self.receive_priority_update(&update),
            Frame::AltSvc(altsvc) => self.receive_altsvc(&altsvc),
            Frame::Origin(origin) => self.receive_origin(&origin, payload),
            // RFC 9113 §5.5: what is unknown MUST be ignored. DATA, HEADERS and WINDOW_UPDATE went another way.
            _ => {
                self.charge(Charge::UnknownFrame)?;
                Ok(None)
            }
        }
    }

    /// Begins a DATA frame whose payload starts at `at`.
    #[inline]
    fn begin_data(
        &mut self,
        header: &FrameHeader,
        input: &[u8],
        at: usize,
    ) -> Result<(usize, Option<PendingEvent>), Error> {
        let mut from = at;
        let mut padding = 0;
        let mut data_len = header.len;
        let connection = StreamId::CONNECTION;
        // RFC 9113 §6.1: DATA on stream 0.
        if header.stream_id.is_connection() {
            return Err(Error::peer(Violation::StreamIdZero, connection));
        }
        if header.flags.contains(Flags::PADDED) {
            // RFC 9113 §6.1 with §4.2: there is room for the length of the padding.
            if header.len == 0 {
                return Err(Error::peer(Violation::DataSize, connection));
            }
            let Some(&len) = input.get(at) else {
                // The header waits for its tenth byte.
                self.reader.begin_incomplete(self.now);
                self.reader.partial.extend_from_slice(&header.to_bytes());
                return Ok((at, None));
            };
            from += 1;
            padding = u32::from(len);
            // RFC 9113 §6.1: padding as long as the payload or longer.
            data_len = (header.len - 1)
                .checked_sub(padding)
                .ok_or_else(|| Error::peer(Violation::PaddingTooLong, connection))?;
        }
        let end_stream = header.flags.contains(Flags::END_STREAM);
        match self.receive_data(header.stream_id, header.len, data_len, end_stream) {
            Ok(Some(slot)) => {
                let stream = self.streams.key(slot);
                // DATA whole in the input, without padding: nothing is kept between.
                if padding == 0 && input.len() - from >= data_len as usize && (data_len > 0 || end_stream) {
                    let end = from + data_len as usize;
                    self.streams.hold(slot, data_len);
                    self.finish_data(slot, end_stream);
                    return Ok((end, Some(PendingEvent::Data { stream, input: from..end, end_stream })));
                }
                let stream = Some(stream);
                let rest = DataRest { stream, data_left: data_len, padding_left: padding, end_stream };
                self.reader.data = Some(rest);
                // A header that was written by itself: its content comes with the next input.
                if data_len > 0 && from == input.len() {
                    return Ok((from, None));
                }
                self.read_data(input, from)
            }
            Ok(None) => {
                let padding_left = padding + data_len;
                self.reader.data =
                    Some(DataRest { stream: None, data_left: 0, padding_left, end_stream: false });
                self.read_data(input, from)
            }
            Err(error) => {
                let padding_left = data_len + padding;
                let rest = DataRest { stream: None, data_left: 0, padding_left, end_stream: false };
                self.reader.data = (padding_left > 0).then_some(rest);
                let step = self.stream_error(error)?;
                Ok((from, step))
            }
        }
    }

    /// Goes on with a DATA payload.
    fn read_data(&mut self, input: &[u8], at: usize) -> Result<(usize, Option<PendingEvent>), Error> {
        let Some(mut rest) = self.reader.data else { return Ok((at, None)) };
        let available = input.len() - at;
        let piece = available.min(rest.data_left as usize);
        let end = at + piece;
        rest.data_left -= piece as u32;
        let mut event = None;
        if let Some(stream) = rest.stream {
            match self.streams.slot(stream) {
                // A stream that was reset in the middle has no more events.
                None => {
                    rest.stream = None;
                    self.release_connection();
                }
                Some(slot) => {
                    let end_stream = rest.data_left == 0 && rest.end_stream;
                    if piece > 0 || end_stream {
                        self.streams.hold(slot, piece as u32);
                        event = Some(PendingEvent::Data { stream, input: at..end, end_stream });
                    }
                    if rest.data_left == 0 {
                        rest.stream = None;
                        self.finish_data(slot, end_stream);
                    }
                }
            }
        }
        let mut next = end;
        if rest.data_left == 0 {
            let padding = (input.len() - end).min(rest.padding_left as usize);
            rest.padding_left -= padding as u32;
            next += padding;
        }
        self.reader.data = (rest.data_left > 0 || rest.padding_left > 0).then_some(rest);
        Ok((next, event))
    }

    /// Counts a frame against its rate limit.
    #[inline]
    pub(super) fn charge(&mut self, charge: Charge) -> Result<(), Error> {
        let rates: &mut RateLimit = &mut self.rates;
        rates
            .charge(charge, &self.config.limits, self.now)
            .map_err(|exceeded: Exceeded| Error::limit(exceeded, StreamId::CONNECTION))
    }
}
