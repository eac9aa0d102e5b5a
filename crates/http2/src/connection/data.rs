//! DATA from the peer and WINDOW_UPDATE of both ends (RFC 9113 §6.1, §6.9).

use super::Connection;
use super::exchange::PROBE;
use super::since::Since;
use crate::error::{Error, Misuse, Violation};
use crate::event::PendingEvent;
use crate::frame::{Ping, StreamId, WindowUpdate};
use crate::rate_limit::Charge;
use crate::stream::{DataCheck, PROGRESS_MIN, StreamKey};

impl Connection {
    /// A DATA frame, by its header: `flow_len` bytes of both windows, `data_len` of content. `None` is for a frame that is
    /// ignored.
    #[inline]
    pub(super) fn receive_data(
        &mut self,
        id: StreamId,
        flow_len: u32,
        data_len: u32,
        end_stream: bool,
    ) -> Result<Option<u32>, Error> {
        let result = match self.streams.check_data(id, flow_len, data_len, end_stream) {
            DataCheck::Accepted(accepted) => {
                if let Some(charge) = accepted.charge {
                    self.charge(charge)?;
                }
                return Ok(Some(self.streams.accept_data(&accepted, flow_len)));
            }
            DataCheck::Absent => self.receive_absent_data(id, flow_len, end_stream).map(|()| None),
            DataCheck::Refused(error) => Err(error),
        };
        // RFC 9113 §5.4.2, §6.9: the window of the connection is spent, and given back all the same.
        self.streams.spend_connection(flow_len);
        self.release_connection();
        result
    }

    #[cold]
    fn receive_absent_data(&mut self, id: StreamId, flow_len: u32, end_stream: bool) -> Result<(), Error> {
        self.absent(id, false)?;
        if flow_len == 0 && !end_stream {
            self.charge(Charge::EmptyFrame)?;
        }
        Ok(())
    }

    /// Takes a DATA frame that is valid and whole, and counts against no rate limit; otherwise `None`, and nothing has
    /// changed.
    #[inline]
    pub(super) fn accept_whole_data(
        &mut self,
        id: StreamId,
        len: u32,
        end_stream: bool,
    ) -> Option<StreamKey> {
        let accepted = match self.streams.check_data(id, len, len, end_stream) {
            DataCheck::Accepted(accepted) if accepted.charge.is_none() => accepted,
            _ => return None,
        };
        let slot = self.streams.accept_data(&accepted, len);
        self.streams.hold(slot, len);
        let key = StreamKey::new(slot, id);
        self.finish_data(slot, end_stream);
        Some(key)
    }

    /// The last content of a DATA frame was passed on: window goes back, and the message may have ended.
    #[inline]
    pub(super) fn finish_data(&mut self, slot: u32, end_stream: bool) {
        if end_stream {
            let closed = self.streams.end_recv(slot);
            self.apply(closed);
        } else {
            self.release_stream(slot);
        }
        self.release_connection();
    }

    /// Gives window back for `len` bytes of DATA that were passed on, on a stream without automatic release.
    ///
    /// A stream that has ended had everything given back with it: releasing then does nothing.
    ///
    /// # Errors
    /// [`Misuse::ReleaseTooMuch`] when less is held.
    pub fn release_capacity(&mut self, stream: StreamKey, len: usize) -> Result<(), Error> {
        let Some(slot) = self.streams.slot(stream) else { return Ok(()) };
        self.streams.release(slot, len)?;
        self.release_stream(slot);
        self.release_connection();
        Ok(())
    }

    /// Chooses for one stream whether window is given back automatically; what is held stays held until released.
    ///
    /// # Errors
    /// [`Misuse::StreamGone`]
    pub fn set_auto_release(&mut self, stream: StreamKey, auto: bool) -> Result<(), Error> {
        let slot = self.streams.slot(stream).ok_or(Misuse::StreamGone)?;
        self.streams.get_mut(slot).set_auto_release(auto);
        Ok(())
    }

    #[inline]
    pub(super) fn release_stream(&mut self, slot: u32) {
        if let Some(update) = self.streams.stream_update(slot) {
            self.write_update(update);
        }
    }

    #[inline]
    pub(super) fn release_connection(&mut self) {
        if let Some(update) = self.streams.connection_update(&self.config) {
            self.write_update(update);
        }
    }

    fn write_update(&mut self, update: WindowUpdate) {
        if self.has_ended() {
            return;
        }
        let before = self.out.bytes.len();
        update.encode(&mut self.out.bytes);
        // Where much comes in, the path is worth measuring.
        if self.reader.settings_seen
            && !update.stream_id.is_connection()
            && self.streams.start_probe(self.now)
        {
            Ping { ack: false, payload: PROBE }.encode(&mut self.out.bytes);
        }
        self.out.answers_len += self.out.bytes.len() - before;
    }

    #[inline]
    pub(super) fn receive_window_update(
        &mut self,
        update: WindowUpdate,
    ) -> Result<Option<PendingEvent>, Error> {
        let id = update.stream_id;
        if id.is_connection() {
            self.charge(Charge::WindowUpdate)?;
            self.streams.grant_connection(update.increment)?;
            if update.increment >= PROGRESS_MIN {
                self.stalled = Since::Never;
            }
            return Ok(None);
        }
        let Some(slot) = self.streams.find(id) else {
            // RFC 9113 §5.1 (closed): it may have been under way when the stream ended.
            if self.streams.is_idle(id) {
                return Err(Error::peer(Violation::FrameOnIdleStream, StreamId::CONNECTION));
            }
            if !self.was_just_reset(id) {
                self.charge(Charge::WindowUpdate)?;
            }
            return Ok(None);
        };
        self.charge(Charge::WindowUpdate)?;
        self.streams.grant_stream(slot, update)?;
        Ok(None)
    }
}
