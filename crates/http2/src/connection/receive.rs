//! Splits the input into frames and dispatches them.
//!
//! Frames that are complete in the input are parsed in place, and DATA is borrowed from the input as it arrives. Between two
//! inputs the [`Reader`] stores an incomplete frame, the state of a DATA payload, and an incomplete field block.
//!
//! ```text
//! input   ..DATA payload | frame | frame | frame | fra
//!           borrowed, or   dispatched in place     `-> `frame`, until the next input completes it
//!           ignored
//! ```

use alloc::vec::Vec;
use core::time::Duration;

use super::timer::{InputClock, Timer};
use super::{Connection, RateLimit};
use crate::Role;
use crate::error::{Error, Exceeded, Scope, Violation};
use crate::event::Event;
use crate::frame::{Flags, Frame, FrameHeader, Kind, SettingsFrame, StreamId};
use crate::rate_limit::Charge;
use crate::stream::{DataCheck, StreamKey};
use crate::upgrade::PREFACE;

/// The element that the next byte of the input belongs to. [`Reader::frame`] has the first bytes of a frame that is not DATA.
///
/// ```text
/// Preface (server) -> Settings -> Frame <-> Data
/// Settings (client) ------------^   ^----> Continuation
/// ```
#[derive(Clone, Copy, Debug)]
enum Next {
    /// The client's preface, of which `left` bytes are missing: `left > 0` (RFC 9113 §3.4).
    Preface { left: usize },
    /// The header of the first frame, which must be SETTINGS (RFC 9113 §3.4).
    Settings,
    /// Any frame but CONTINUATION.
    Frame,
    /// CONTINUATION of this block (RFC 9113 §6.10).
    Continuation(PartialBlock),
    /// The payload of a DATA frame.
    Data(PartialData),
}

/// A DATA payload that has not arrived completely.
#[derive(Clone, Copy, Debug)]
struct PartialData {
    /// The stream; `None` if the payload is ignored.
    stream: Option<StreamKey>,
    /// The content that has not arrived, in bytes.
    data_left: u32,
    /// The padding that has not arrived, in bytes.
    padding_left: u32,
    end_stream: bool,
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
    next: Next,
    /// An incomplete frame that is not DATA, or an incomplete header: `frame.len() < 9 + max_frame_size`.
    frame: Vec<u8>,
    /// The fragments of `Next::Continuation`.
    block: Vec<u8>,
    /// Runs while `frame` or `block` is in use.
    timer: Timer,
    /// Runs while the caller reads from the transport.
    clock: InputClock,
}

/// The capacity that `frame` keeps while it is empty, in bytes.
const FRAME_KEPT: usize = 1024;

/// The capacity that `block` keeps while it is empty, in bytes.
const BLOCK_KEPT: usize = 4096;

impl Reader {
    pub(super) const fn new(role: Role) -> Self {
        let next = match role {
            Role::Client => Next::Settings,
            Role::Server => Next::Preface { left: PREFACE.len() },
        };
        Self { next, frame: Vec::new(), block: Vec::new(), timer: Timer::Stopped, clock: InputClock::new() }
    }

    pub(super) const fn clock(&self) -> &InputClock {
        &self.clock
    }

    pub(super) fn set_reading(&mut self, now: Duration, is_reading: bool) {
        self.clock.set_running(now, is_reading);
    }

    /// Whether the input is at the header of a frame that may be any but CONTINUATION.
    #[inline]
    const fn is_between_frames(&self) -> bool {
        matches!(self.next, Next::Frame) && self.frame.is_empty()
    }

    /// The stored header; `None` while it is incomplete.
    fn header(&self) -> Option<FrameHeader> {
        self.frame.first_chunk().map(FrameHeader::decode)
    }

    /// Stores bytes of a frame that is incomplete.
    fn push(&mut self, bytes: &[u8], now: Duration) {
        self.timer.begin(now);
        self.frame.extend_from_slice(bytes);
    }

    /// The stored bytes of a frame were handled. Its buffer is kept.
    fn reuse_frame(&mut self, mut frame: Vec<u8>) {
        frame.clear();
        frame.shrink_to(FRAME_KEPT);
        self.frame = frame;
        self.end_frame();
    }

    /// Stops the timer if no frame and no field block is incomplete.
    fn end_frame(&mut self) {
        if self.frame.is_empty() && !matches!(self.next, Next::Continuation(_)) {
            self.timer = Timer::Stopped;
        }
    }

    /// The next `len` bytes, the payload of a DATA frame, are ignored.
    fn ignore_data(&mut self, len: u32) {
        self.next = match len {
            0 => Next::Frame,
            _ => Next::Data(PartialData { stream: None, data_left: 0, padding_left: len, end_stream: false }),
        };
    }

    /// The rest of the content that arrives is ignored, because its stream was reset.
    fn abandon_data(&mut self) {
        if let Next::Data(data) = &mut self.next {
            data.stream = None;
        }
    }

    /// Content that has not arrived of a DATA frame whose window is spent, in bytes.
    pub(super) const fn arriving(&self) -> u32 {
        match self.next {
            Next::Data(PartialData { stream: Some(_), data_left, .. }) => data_left,
            _ => 0,
        }
    }

    /// The block that CONTINUATION continues.
    pub(super) const fn partial_block(&self) -> Option<PartialBlock> {
        match self.next {
            Next::Continuation(block) => Some(block),
            _ => None,
        }
    }

    /// Stores a fragment of a block that is incomplete.
    pub(super) fn push_fragment(&mut self, block: PartialBlock, fragment: &[u8], now: Duration) {
        self.timer.begin(now);
        self.block.extend_from_slice(fragment);
        self.next = Next::Continuation(block);
    }

    /// Takes the fragments of a block that is complete. [`Reader::reuse_block`] follows.
    pub(super) fn take_block(&mut self) -> Vec<u8> {
        self.next = Next::Frame;
        self.timer = Timer::Stopped;
        core::mem::take(&mut self.block)
    }

    /// Keeps the buffer of [`Reader::take_block`].
    pub(super) fn reuse_block(&mut self, mut block: Vec<u8>) {
        block.clear();
        block.shrink_to(BLOCK_KEPT);
        self.block = block;
    }

    /// The length of the stored fragments, in bytes.
    pub(super) const fn block_len(&self) -> usize {
        self.block.len()
    }

    /// The stored bytes of an incomplete frame and an incomplete field block.
    pub(super) const fn len(&self) -> usize {
        self.frame.len() + self.block.len()
    }

    /// When the frame or the field block must be complete.
    pub(super) fn deadline(&self, timeout: Duration) -> Option<Duration> {
        self.timer.deadline(timeout)
    }

    /// Starts the time for an incomplete frame again, because no input was taken.
    pub(super) fn restart_timer(&mut self, now: Duration) {
        self.timer.restart(now);
    }

    /// Frees the stored bytes, because the connection has ended.
    pub(super) fn free(&mut self) {
        self.frame = Vec::new();
        self.block = Vec::new();
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.frame.capacity() + self.block.capacity()
    }

    pub(super) fn shrink(&mut self) {
        self.frame.shrink_to_fit();
        self.block.shrink_to_fit();
    }
}

impl Connection {
    /// Handles bytes from the peer. Returns the number of bytes that were consumed, and at most one event.
    ///
    /// Call it again with the remaining bytes until there is no event. If bytes remain then, too much output is buffered (see
    /// [`Connection::wants_read`]): write it and pass the bytes again. Or more than [`Config::decoded_len_max`](crate::Config::decoded_len_max)
    /// was decoded: call [`Connection::take_decoded_len`] and pass the bytes again when you like. Incomplete frames are copied, so the
    /// caller's buffer is free when all bytes are consumed. DATA is borrowed from the input and never copied.
    ///
    /// # Errors
    /// The connection has ended. Write the output, which has GOAWAY with the reason, before closing the transport. The error is
    /// returned once; input is ignored from then on.
    #[inline]
    pub fn handle_input<'i>(
        &mut self,
        now: Duration,
        input: &'i [u8],
    ) -> Result<(usize, Option<Event<'i>>), Error> {
        self.advance_clock(now);
        if let Some((stream, data, end_stream)) = self.read_whole_data(input) {
            let event = Event::Data { stream, data, end_stream };
            return Ok((FrameHeader::LEN + data.len(), Some(event)));
        }
        let mut at = 0;
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok((at, Some(event)));
            }
            if at == input.len() || self.has_ended() || self.closing.input_ended() {
                return Ok((input.len(), None));
            }
            if !self.wants_read() {
                return Ok((at, None));
            }
            match self.read(input, at) {
                Ok((next, Some(event))) => return Ok((next, Some(event))),
                // Many fields were decoded.
                Ok((next, None)) if next == at => return Ok((at, None)),
                Ok((next, None)) => at = next,
                Err(error) => {
                    self.contexts.discard_fields();
                    return Err(self.fail(error));
                }
            }
        }
    }

    /// Reads the input from `at`, which is not its end. Returns the new position and an event. The position is `at` if more than
    /// [`Config::decoded_len_max`](crate::Config::decoded_len_max) was decoded.
    #[inline]
    fn read<'i>(&mut self, input: &'i [u8], at: usize) -> Result<(usize, Option<Event<'i>>), Error> {
        let rest = &input[at..];
        match self.reader.next {
            Next::Data(_) => return Ok(self.read_data(input, at)),
            Next::Preface { left } => return Ok((at + self.read_preface(left, rest)?, None)),
            Next::Settings | Next::Frame | Next::Continuation(_) => {}
        }
        if self.reader.frame.is_empty() {
            // The common case: a complete frame in the input.
            if let Some((bytes, after)) = rest.split_first_chunk::<{ FrameHeader::LEN }>() {
                let header = FrameHeader::decode(bytes);
                self.check_header(&header)?;
                let len = header.len as usize;
                if header.kind == Kind::DATA {
                    return self.begin_data(&header, input, at + FrameHeader::LEN);
                }
                if self.contexts.decoded_len() > self.config.decoded_len_max {
                    return Ok((at, None));
                }
                if let Some(payload) = after.get(..len) {
                    let step = self.dispatch(&header, payload)?;
                    return Ok((at + FrameHeader::LEN + len, step));
                }
            }
        }
        self.read_slowly(input, at)
    }

    /// Reads the client's preface, of which `left` bytes are missing. Returns the number of bytes that were consumed.
    #[cold]
    fn read_preface(&mut self, left: usize, input: &[u8]) -> Result<usize, Error> {
        let expected = &PREFACE[PREFACE.len() - left..];
        let len = input.len().min(left);
        // RFC 9113 §3.4: an invalid preface is a connection error, PROTOCOL_ERROR.
        if input[..len] != expected[..len] {
            return Err(Error::peer(Violation::PrefaceInvalid, StreamId::CONNECTION));
        }
        self.reader.next = if len < left { Next::Preface { left: left - len } } else { Next::Settings };
        Ok(len)
    }

    /// The fast path for a complete DATA frame without padding that is valid and not rate limited. Returns its stream, its content and
    /// END_STREAM. Otherwise returns `None` without changing anything, and [`Connection::read`] handles the input.
    #[inline]
    fn read_whole_data<'i>(&mut self, input: &'i [u8]) -> Option<(StreamKey, &'i [u8], bool)> {
        if !self.reader.is_between_frames() {
            return None;
        }
        let (bytes, payload) = input.split_first_chunk::<{ FrameHeader::LEN }>()?;
        let header = FrameHeader::decode(bytes);
        let data = payload.get(..header.len as usize)?;
        if header.kind != Kind::DATA
            || header.flags.contains(Flags::PADDED)
            || header.check_len(self.control.frame_len_max).is_err()
            || !self.pending.is_empty()
            || self.has_ended()
            || !self.wants_read()
        {
            return None;
        }
        let end_stream = header.flags.contains(Flags::END_STREAM);
        let accepted = match self.streams.check_data(header.stream_id, header.len, header.len, end_stream) {
            DataCheck::Accepted(accepted) if accepted.charge.is_none() => accepted,
            _ => return None,
        };
        let slot = self.streams.accept_data(&accepted, header.len);
        self.pass_content(slot, header.len, Some(end_stream));
        Some((StreamKey::new(slot, header.stream_id), data, end_stream))
    }

    /// Stores the bytes of an incomplete frame, or of an incomplete header of DATA.
    #[cold]
    fn read_slowly<'i>(&mut self, input: &'i [u8], at: usize) -> Result<(usize, Option<Event<'i>>), Error> {
        let have = self.reader.frame.len();
        let Some(header) = self.reader.header() else {
            let end = input.len().min(at + FrameHeader::LEN - have);
            self.reader.push(&input[at..end], self.now);
            let Some(header) = self.reader.header() else { return Ok((end, None)) };
            self.check_header(&header)?;
            if header.len > 0 && header.kind != Kind::DATA {
                return Ok((end, None));
            }
            return self.handle_stored(&header, input, end);
        };
        // A stored header of DATA waits for the length of its padding.
        let frame_len = FrameHeader::LEN + header.len as usize;
        let wanted = if header.kind == Kind::DATA { 0 } else { frame_len - have };
        let end = input.len().min(at + wanted);
        self.reader.push(&input[at..end], self.now);
        if end < at + wanted {
            return Ok((end, None));
        }
        self.handle_stored(&header, input, end)
    }

    /// Handles the stored frame, which is complete, or is a header of DATA whose payload begins at `at`.
    fn handle_stored<'i>(
        &mut self,
        header: &FrameHeader,
        input: &'i [u8],
        at: usize,
    ) -> Result<(usize, Option<Event<'i>>), Error> {
        if header.kind == Kind::DATA {
            self.reader.frame.clear();
            let result = self.begin_data(header, input, at);
            self.reader.end_frame();
            return result;
        }
        let frame = core::mem::take(&mut self.reader.frame);
        let step = self.dispatch(header, &frame[FrameHeader::LEN..]);
        self.reader.reuse_frame(frame);
        Ok((at, step?))
    }

    /// Checks a header before its payload has arrived.
    #[inline]
    fn check_header(&mut self, header: &FrameHeader) -> Result<(), Error> {
        let connection = StreamId::CONNECTION;
        if let Next::Settings = self.reader.next {
            // RFC 9113 §3.4: the first frame of either side is SETTINGS, and no acknowledgement.
            if header.kind != Kind::SETTINGS || header.flags.contains(Flags::ACK) {
                return Err(Error::peer(Violation::PrefaceWithoutSettings, connection));
            }
            self.reader.next = Next::Frame;
        }
        header
            .check_len(self.control.frame_len_max)
            .map_err(|violation| Error::peer(violation, connection))?;
        match &self.reader.next {
            // RFC 9113 §6.2, §6.10: only CONTINUATION of the same stream may follow.
            Next::Continuation(block)
                if header.kind != Kind::CONTINUATION || header.stream_id != block.stream_id =>
            {
                Err(Error::peer(Violation::FieldBlockInterrupted, connection))
            }
            _ => Ok(()),
        }
    }

    /// Handles a frame other than DATA. Answers stream errors with RST_STREAM and returns connection errors.
    #[inline]
    fn dispatch(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<Option<Event<'static>>, Error> {
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
    ) -> Result<Option<Event<'static>>, Error> {
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
            Frame::Origin(origin) => self.receive_origin(&origin),
            // RFC 9113 §5.5: unknown types MUST be ignored. DATA, HEADERS and WINDOW_UPDATE are handled elsewhere.
            _ => {
                self.charge(Charge::UnknownFrame)?;
                Ok(None)
            }
        }
    }

    /// Handles the header of a DATA frame whose payload begins at `at`.
    #[inline]
    fn begin_data<'i>(
        &mut self,
        header: &FrameHeader,
        input: &'i [u8],
        at: usize,
    ) -> Result<(usize, Option<Event<'i>>), Error> {
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
                self.reader.push(&header.to_bytes(), self.now);
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
                let stream = Some(self.streams.key(slot));
                self.reader.next = Next::Data(PartialData {
                    stream,
                    data_left: data_len,
                    padding_left: padding,
                    end_stream,
                });
                if data_len > 0 && from == input.len() {
                    // The content arrives with the next input.
                    return Ok((from, None));
                }
                Ok(self.read_data(input, from))
            }
            Ok(None) => {
                self.reader.ignore_data(data_len + padding);
                Ok(self.read_data(input, from))
            }
            Err(error) => {
                self.reader.ignore_data(data_len + padding);
                let step = self.stream_error(error)?;
                Ok((from, step))
            }
        }
    }

    /// Reads the payload of a DATA frame. Returns the new position and an event.
    fn read_data<'i>(&mut self, input: &'i [u8], at: usize) -> (usize, Option<Event<'i>>) {
        let Next::Data(data) = &mut self.reader.next else { return (at, None) };
        let (stream, end_stream) = (data.stream, data.end_stream);
        let len = (input.len() - at).min(data.data_left as usize);
        let end = at + len;
        // Stored before it has effects: what is missing of the content counts as memory.
        data.data_left -= len as u32;
        let is_last = data.data_left == 0;
        let mut next = end;
        if is_last {
            let padding = (input.len() - end).min(data.padding_left as usize);
            data.padding_left -= padding as u32;
            next += padding;
            data.stream = None;
            if data.padding_left == 0 {
                self.reader.next = Next::Frame;
            }
        }
        let Some(stream) = stream else { return (next, None) };
        let Some(slot) = self.streams.slot(stream) else {
            // The stream was reset within the frame: no more events, and its window is released.
            self.reader.abandon_data();
            self.release_connection();
            return (next, None);
        };
        let end_stream = is_last && end_stream;
        self.pass_content(slot, len as u32, is_last.then_some(end_stream));
        let has_event = len > 0 || end_stream;
        (next, has_event.then_some(Event::Data { stream, data: &input[at..end], end_stream }))
    }

    /// Counts a frame towards its rate limit.
    #[inline]
    pub(super) fn charge(&mut self, charge: Charge) -> Result<(), Error> {
        let rates: &mut RateLimit = &mut self.rates;
        rates
            .charge(charge, &self.config.limits, self.now)
            .map_err(|exceeded: Exceeded| Error::limit(exceeded, StreamId::CONNECTION))
    }

    /// Counts a frame that is ignored by the length of what it has.
    pub(super) fn charge_len(&mut self, len: usize) -> Result<(), Error> {
        self.rates
            .charge_len(len, &self.config.limits, self.now)
            .map_err(|exceeded| Error::limit(exceeded, StreamId::CONNECTION))
    }
}
