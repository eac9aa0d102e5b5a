//! Splits the input into frames and dispatches them.
//!
//! Frames that are complete in the input are parsed in place, and DATA is borrowed from the input as it arrives. Between two
//! inputs the [`Reader`] stores an incomplete frame, the state of a DATA payload, and an incomplete field block.
//!
//! ```text
//! input   ..DATA payload | frame | frame | frame | fra
//!           borrowed, or   dispatched in place     `-> `partial`, until the next input completes it
//!           ignored
//! ```

use alloc::vec::Vec;
use core::time::Duration;

use super::{Connection, RateLimit, Timer};
use crate::Role;
use crate::error::{Error, Exceeded, Scope, Violation};
use crate::event::PendingEvent;
use crate::frame::{Flags, Frame, FrameHeader, Kind, SettingsFrame, StreamId};
use crate::rate_limit::Charge;
use crate::stream::StreamKey;
use crate::upgrade::PREFACE;

/// A DATA payload that has not arrived completely.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartialData {
    /// The stream; `None` if the payload is ignored.
    pub(super) stream: Option<StreamKey>,
    /// The content that has not arrived, in bytes.
    pub(super) data_left: u32,
    /// The padding that has not arrived, in bytes.
    pub(super) padding_left: u32,
    pub(super) end_stream: bool,
}

/// A field block of HEADERS or PUSH_PROMISE without END_HEADERS.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartialBlock {
    pub(super) stream_id: StreamId,
    pub(super) end_stream: bool,
    pub(super) promised: Option<StreamId>,
    /// Whether the stream depends on itself, which is a stream error once the block is decoded.
    pub(super) self_dependent: bool,
    pub(super) continuations: usize,
}

pub(super) struct Reader {
    /// The number of bytes of the client's preface that have not arrived (RFC 9113 §3.4).
    preface_left: u8,
    /// Whether the peer's first frame has arrived, which must be SETTINGS.
    pub(super) settings_seen: bool,
    /// An incomplete frame that is not DATA, or an incomplete header: `partial.len() < 9 + max_frame_size`.
    partial: Vec<u8>,
    /// Runs while `partial` or `partial_block` is in use.
    pub(super) incomplete_timer: Timer,
    data: Option<PartialData>,
    pub(super) partial_block: Option<PartialBlock>,
    /// The fragments of `partial_block`.
    pub(super) block: Vec<u8>,
}

/// The capacity that `partial` keeps while it is empty, in bytes.
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
            incomplete_timer: Timer::Stopped,
            data: None,
            partial_block: None,
            block: Vec::new(),
        }
    }

    /// Starts the timer of a frame or field block that is incomplete in the input.
    fn begin_incomplete(&mut self, now: Duration) {
        if self.incomplete_timer == Timer::Stopped {
            self.incomplete_timer = Timer::Since(now);
        }
    }

    /// Stops the timer if no frame and no field block is incomplete.
    #[inline]
    pub(super) fn end_incomplete(&mut self) {
        if self.partial.is_empty() && self.partial_block.is_none() {
            self.incomplete_timer = Timer::Stopped;
        }
    }

    /// Content that has not arrived of a DATA frame whose window is spent, in bytes.
    pub(super) fn arriving(&self) -> u32 {
        self.data.filter(|data| data.stream.is_some()).map_or(0, |data| data.data_left)
    }

    pub(super) fn append_fragment(&mut self, partial_block: PartialBlock, fragment: &[u8], now: Duration) {
        self.begin_incomplete(now);
        self.block.extend_from_slice(fragment);
        self.partial_block = Some(partial_block);
    }

    /// The stored bytes of an incomplete frame and an incomplete field block.
    pub(super) const fn len(&self) -> usize {
        self.partial.len() + self.block.len()
    }

    /// Frees the stored bytes, because the connection has ended.
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
    /// Reads the input from `at`, which is not its end. Returns the new position, which is after `at`, and an event.
    #[inline]
    pub(super) fn read(&mut self, input: &[u8], at: usize) -> Result<(usize, Option<PendingEvent>), Error> {
        if self.reader.data.is_some() {
            return self.read_data(input, at);
        }
        let rest = &input[at..];
        if self.reader.partial.is_empty() && self.reader.preface_left == 0 {
            // The common case: a complete frame in the input.
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

    /// The fast path for a complete DATA frame without padding that is valid. Returns its stream, its end in the input, and
    /// END_STREAM. Otherwise returns `None` without changing anything, and [`Connection::read`] handles the input.
    #[inline]
    pub(super) fn read_whole_data(&mut self, input: &[u8]) -> Option<(StreamKey, usize, bool)> {
        let reader = &self.reader;
        let between_frames = reader.data.is_none()
            && reader.partial.is_empty()
            && reader.settings_seen
            && reader.partial_block.is_none();
        if !between_frames {
            return None;
        }
        let (bytes, payload) = input.split_first_chunk::<{ FrameHeader::LEN }>()?;
        let header = FrameHeader::decode(bytes);
        if header.kind != Kind::DATA
            || header.flags.contains(Flags::PADDED)
            || payload.len() < header.len as usize
            || header.check_len(self.control.frame_len_max).is_err()
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
            // Padded DATA needs one more byte, the length of the padding, unless the header is already invalid.
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

    /// Checks a header before its payload has arrived.
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
        header
            .check_len(self.control.frame_len_max)
            .map_err(|violation| Error::peer(violation, connection))?;
        match &self.reader.partial_block {
            None => Ok(()),
            // RFC 9113 §6.2, §6.10: only CONTINUATION of the same stream may follow.
            Some(partial_block)
                if header.kind == Kind::CONTINUATION && header.stream_id == partial_block.stream_id =>
            {
                Ok(())
            }
            Some(_) => Err(Error::peer(Violation::FieldBlockInterrupted, connection)),
        }
    }

    /// Handles a frame other than DATA. Answers stream errors with RST_STREAM and returns connection errors.
    #[inline]
    fn dispatch(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<Option<PendingEvent>, Error> {
        let result = match header.kind {
            // The most frequent kinds first.
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
                // RFC 9113 §5.1: only PRIORITY is allowed on an idle stream, and an idle stream cannot be reset.
                if matches!(error.scope(), Some(Scope::Stream(id)) if self.streams.is_idle(id)) {
                    return Err(error.for_connection());
                }
                return Err(error);
            }
        };
        match frame {
            Frame::RstStream(reset) => self.receive_reset(reset),
            Frame::Settings(SettingsFrame::Values(values)) => self.receive_settings(values),
            Frame::Settings(SettingsFrame::Ack) => self.receive_settings_ack(),
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
            // RFC 9113 §5.5: unknown types MUST be ignored. DATA, HEADERS and WINDOW_UPDATE are handled elsewhere.
            _ => {
                self.charge(Charge::UnknownFrame)?;
                Ok(None)
            }
        }
    }

    /// Handles the header of a DATA frame whose payload begins at `at`.
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
            // RFC 9113 §6.1 with §4.2: a padded frame contains the length of its padding.
            if header.len == 0 {
                return Err(Error::peer(Violation::DataSize, connection));
            }
            let Some(&len) = input.get(at) else {
                // The length of the padding has not arrived.
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
                // Complete DATA without padding: no state is stored.
                if padding == 0 && input.len() - from >= data_len as usize && (data_len > 0 || end_stream) {
                    let end = from + data_len as usize;
                    self.streams.hold(slot, data_len);
                    self.finish_data(slot, end_stream);
                    return Ok((end, Some(PendingEvent::Data { stream, input: from..end, end_stream })));
                }
                let stream = Some(stream);
                let payload = PartialData { stream, data_left: data_len, padding_left: padding, end_stream };
                self.reader.data = Some(payload);
                // The content arrives with the next input.
                if data_len > 0 && from == input.len() {
                    return Ok((from, None));
                }
                self.read_data(input, from)
            }
            Ok(None) => {
                let padding_left = padding + data_len;
                self.reader.data =
                    Some(PartialData { stream: None, data_left: 0, padding_left, end_stream: false });
                self.read_data(input, from)
            }
            Err(error) => {
                let padding_left = data_len + padding;
                let payload = PartialData { stream: None, data_left: 0, padding_left, end_stream: false };
                self.reader.data = (padding_left > 0).then_some(payload);
                let step = self.stream_error(error)?;
                Ok((from, step))
            }
        }
    }

    /// Continues a DATA payload.
    fn read_data(&mut self, input: &[u8], at: usize) -> Result<(usize, Option<PendingEvent>), Error> {
        let Some(mut payload) = self.reader.data else { return Ok((at, None)) };
        let available = input.len() - at;
        let len = available.min(payload.data_left as usize);
        let end = at + len;
        payload.data_left -= len as u32;
        let mut event = None;
        if let Some(stream) = payload.stream {
            match self.streams.slot(stream) {
                // The stream was reset within the frame: no more events.
                None => {
                    payload.stream = None;
                    self.release_connection();
                }
                Some(slot) => {
                    let end_stream = payload.data_left == 0 && payload.end_stream;
                    if len > 0 || end_stream {
                        self.streams.hold(slot, len as u32);
                        event = Some(PendingEvent::Data { stream, input: at..end, end_stream });
                    }
                    if payload.data_left == 0 {
                        payload.stream = None;
                        // What is missing of a frame counts as memory until here.
                        self.reader.data = Some(payload);
                        self.finish_data(slot, end_stream);
                    }
                }
            }
        }
        let mut next = end;
        if payload.data_left == 0 {
            let padding = (input.len() - end).min(payload.padding_left as usize);
            payload.padding_left -= padding as u32;
            next += padding;
        }
        self.reader.data = (payload.data_left > 0 || payload.padding_left > 0).then_some(payload);
        Ok((next, event))
    }

    /// Counts a frame towards its rate limit.
    #[inline]
    pub(super) fn charge(&mut self, charge: Charge) -> Result<(), Error> {
        let rates: &mut RateLimit = &mut self.rates;
        rates
            .charge(charge, &self.config.limits, self.now)
            .map_err(|exceeded: Exceeded| Error::limit(exceeded, StreamId::CONNECTION))
    }
}
