//! The end of a connection: a graceful shutdown in two steps, or immediate (RFC 9113 §6.8, §5.4.1).
//!
//! ```text
//! shutdown()   GOAWAY(2^31-1), PING ->        requests in flight are accepted
//!                                   <- PING ACK, or Limits::settings_timeout has passed
//!              GOAWAY(last)         ->        newer streams are ignored, and the peer can retry them
//!              ... streams finish ...         ended: Drained
//! ```

use super::Connection;
use crate::Role;
use crate::error::{Error, ErrorCode, Misuse, Violation};
use crate::event::Event;
use crate::frame::{Goaway, StreamId};
use crate::rate_limit::Charge;
use crate::stream::StreamKey;

/// The reason why a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// All streams have finished after [`Connection::shutdown`] or the peer's GOAWAY.
    Drained,
    /// The peer violated a rule or exceeded a limit. GOAWAY was sent.
    Failed(Error),
    /// [`Connection::abort`] was called with this code.
    Aborted(ErrorCode),
    /// The transport ended, after [`Connection::handle_eof`] or [`Connection::handle_disconnect`]. The peer's last GOAWAY, if there was
    /// one, came as an event.
    Eof,
}

/// The shutdown of the connection by this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// A tag of its own, not a niche of `Ended`: each frame is compared with it.
#[repr(u8)]
enum Phase {
    Open,
    /// GOAWAY(2^31-1) was sent. Streams of the peer still open until it has read that, or has had the time for it.
    Announced,
    /// GOAWAY(last) was sent. The streams up to `last` finish, and later ones are ignored.
    Draining {
        last: StreamId,
    },
    /// The peer has closed its side of the transport, and GOAWAY(last) was sent. Complete requests are answered.
    InputEnded {
        last: StreamId,
    },
    /// Nothing is sent or handled any more.
    Ended(Ended),
}

pub(super) struct Closing {
    phase: Phase,
    /// The last stream ID of the peer's last GOAWAY.
    received: Option<StreamId>,
}

impl Closing {
    pub(super) const fn new() -> Self {
        Self { phase: Phase::Open, received: None }
    }

    /// The last stream ID of the final GOAWAY of this side.
    const fn last(&self) -> Option<StreamId> {
        match self.phase {
            Phase::Draining { last } | Phase::InputEnded { last } => Some(last),
            Phase::Open | Phase::Announced | Phase::Ended(_) => None,
        }
    }

    /// Whether frames that would open this stream are ignored.
    #[inline]
    pub(super) fn ignores(&self, id: StreamId) -> bool {
        self.last().is_some_and(|last| id > last)
    }

    /// Whether the second GOAWAY follows once the peer has read the first, or has had the time for it.
    #[inline]
    pub(super) const fn is_announced(&self) -> bool {
        matches!(self.phase, Phase::Announced)
    }

    /// Whether the peer has closed its side of the transport.
    #[inline]
    pub(super) const fn input_ended(&self) -> bool {
        matches!(self.phase, Phase::InputEnded { .. })
    }
}

impl Connection {
    /// Why the connection has ended; `None` if it has not. Write the remaining output.
    pub const fn ended(&self) -> Option<Ended> {
        match self.closing.phase {
            Phase::Ended(ended) => Some(ended),
            _ => None,
        }
    }

    #[inline]
    pub(super) const fn has_ended(&self) -> bool {
        matches!(self.closing.phase, Phase::Ended(_))
    }

    /// Whether GOAWAY was sent or received, so that no stream can be opened.
    pub const fn is_going_away(&self) -> bool {
        !matches!(self.closing.phase, Phase::Open) || self.closing.received.is_some()
    }

    fn end(&mut self, ended: Ended) {
        self.closing.phase = Phase::Ended(ended);
        self.reader.free();
        self.refuse_waiting();
    }

    /// Ends the connection while streams may be open. Requests that were not sent leave the output: the peer never sees them, so they are
    /// safe to send again (RFC 9113 §8.7). `goaway` has the code and debug data of GOAWAY, which follows the rest of the output.
    fn end_early(&mut self, ended: Ended, goaway: Option<(ErrorCode, &[u8])>) {
        if self.has_ended() {
            return;
        }
        let unsent = self.out.retract_requests();
        if let Some((code, debug_data)) = goaway {
            self.write_last_goaway(code, debug_data);
        }
        // Nothing that follows is written.
        self.closing.phase = Phase::Ended(ended);
        self.streams.discard_queued();
        for id in unsent {
            if let Some(slot) = self.streams.find(id) {
                self.refuse(self.streams.key(slot));
            }
        }
        self.end(ended);
    }

    /// The transport has failed.
    pub(super) fn end_by_disconnect(&mut self) {
        self.end_early(Ended::Eof, None);
        self.out.clear();
    }

    pub(super) fn check_alive(&self) -> Result<(), Misuse> {
        if self.has_ended() { Err(Misuse::ConnectionClosed) } else { Ok(()) }
    }

    /// Ends the connection with an error, whose reason is in GOAWAY (RFC 9113 §5.4.1).
    #[cold]
    pub(super) fn fail(&mut self, error: Error) -> Error {
        let error = error.for_connection();
        let code = error.code().unwrap_or(ErrorCode::INTERNAL_ERROR);
        self.end_early(Ended::Failed(error), Some((code, error.reason().as_bytes())));
        error
    }

    /// Writes GOAWAY with the last stream that this side handles, which it returns.
    fn write_last_goaway(&mut self, code: ErrorCode, debug_data: &[u8]) -> StreamId {
        let highest = self.streams.highest_peer();
        // RFC 9113 §6.8: the last stream ID MUST NOT increase.
        let last_stream_id = self.closing.last().map_or(highest, |last| last.min(highest));
        Goaway { last_stream_id, code, debug_data }.encode(self.out.frames());
        last_stream_id
    }

    /// Ends the connection gracefully: open streams and requests of the peer that are in flight continue, and new streams are
    /// refused. [`Connection::ended`] returns `Some` when all streams have finished.
    pub fn shutdown(&mut self) {
        if !matches!(self.closing.phase, Phase::Open) {
            return;
        }
        self.closing.phase = Phase::Announced;
        // RFC 9113 §6.8: the first GOAWAY has the maximum stream ID. The actual one follows after a round trip.
        let goaway = Goaway { last_stream_id: StreamId::MAX, code: ErrorCode::NO_ERROR, debug_data: b"" };
        goaway.encode(self.out.frames());
        self.write_drain_ping();
        self.refuse_waiting();
    }

    /// Sends the second GOAWAY, because the peer has read the first or has had the time for it.
    pub(super) fn finish_drain(&mut self) {
        if !self.closing.is_announced() {
            return;
        }
        let last = self.write_last_goaway(ErrorCode::NO_ERROR, b"");
        self.closing.phase = Phase::Draining { last };
        self.check_drained();
    }

    /// Ends the connection immediately. Only GOAWAY is added to the output.
    pub fn abort(&mut self, code: ErrorCode, debug_data: &[u8]) {
        // RFC 9113 §4.2: every peer accepts frames of up to 16 KiB.
        let debug_data = &debug_data[..debug_data.len().min(1024)];
        self.end_early(Ended::Aborted(code), Some((code, debug_data)));
    }

    /// The peer has closed its side of the transport: see [`Connection::handle_eof`].
    pub(super) fn end_input(&mut self) {
        if self.role == Role::Client {
            return self.end_early(Ended::Eof, None);
        }
        self.reader.free();
        // RFC 9113 §6.8: an endpoint sends GOAWAY before it closes a connection.
        let last = self.write_last_goaway(ErrorCode::NO_ERROR, b"");
        self.closing.phase = Phase::InputEnded { last };
        for stream in self.streams.incomplete() {
            self.reset_by_eof(stream);
        }
        self.check_drained();
    }

    /// Resets the streams that need window, which cannot arrive any more.
    #[cold]
    pub(super) fn reset_blocked_by_eof(&mut self) {
        while let Some(stream) = self.streams.without_window() {
            self.reset_by_eof(stream);
        }
    }

    fn reset_by_eof(&mut self, stream: StreamKey) {
        let code = ErrorCode::CANCEL;
        if self.reset(stream, code).is_ok() {
            self.pending.push_back(Event::Reset { stream, code, error: None });
        }
    }

    #[inline]
    pub(super) fn check_drained(&mut self) {
        if self.streams.len() > 0 {
            return;
        }
        match self.closing.phase {
            Phase::Open | Phase::Announced => {
                if self.role == Role::Client && self.closing.received.is_some() {
                    // RFC 9113 §6.8: an endpoint sends GOAWAY before it closes the connection, even if the peer has sent it.
                    self.write_last_goaway(ErrorCode::NO_ERROR, b"");
                    self.end(Ended::Drained);
                }
            }
            Phase::Draining { .. } => self.end(Ended::Drained),
            Phase::InputEnded { .. } => self.end(Ended::Eof),
            Phase::Ended(_) => {}
        }
    }

    pub(super) fn receive_goaway(&mut self, goaway: &Goaway<'_>) -> Result<Option<Event<'static>>, Error> {
        let last = goaway.last_stream_id;
        if let Some(before) = self.closing.received {
            // RFC 9113 §6.8: the last stream ID MUST NOT increase.
            if last > before {
                return Err(Error::peer(Violation::GoawayIdIncreased, StreamId::CONNECTION));
            }
            self.charge(Charge::UnknownFrame)?;
        }
        let first = self.closing.received.replace(last).is_none();
        if first {
            self.refuse_waiting();
        }
        // RFC 9113 §6.8: streams above it were not processed and will not be.
        for stream in self.streams.local_above(last) {
            self.refuse(stream);
        }
        self.payload.set(goaway.debug_data, &[]);
        if last != StreamId::MAX || goaway.code != ErrorCode::NO_ERROR {
            self.check_drained();
        }
        Ok(Some(Event::GoAway { last_stream_id: last, code: goaway.code }))
    }

    /// Ends a stream that the peer does not process.
    fn refuse(&mut self, stream: StreamKey) {
        if let Some(slot) = self.streams.slot(stream) {
            let closed = self.streams.abandon(slot);
            self.apply_close(closed);
            self.pending.push_back(Event::Refused { stream });
        }
    }

    /// Refuses the requests that wait to open.
    fn refuse_waiting(&mut self) {
        while let Some((stream, closed)) = self.streams.remove_waiting() {
            self.apply_close(closed);
            self.pending.push_back(Event::Refused { stream });
        }
    }
}
