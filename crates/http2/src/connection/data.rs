//! DATA from the peer and WINDOW_UPDATE of both ends (RFC 9113 §6.1, §6.9).

use super::Connection;
use crate::error::{Error, Misuse};
use crate::event::Event;
use crate::frame::{StreamId, WindowUpdate};
use crate::rate_limit::Charge;
use crate::stream::{DataCheck, LateFrame, StreamKey};

impl Connection {
    /// Receives the header of a DATA frame with `flow_len` flow-controlled bytes, of which `data_len` are content. Returns the slot of
    /// its stream; `None` if the frame is ignored.
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
            DataCheck::NotFound => {
                self.receive_late(id, LateFrame::Data { len: flow_len, end_stream }).map(|()| None)
            }
            DataCheck::Refused(error) => Err(error),
        };
        // RFC 9113 §5.4.2, §6.9: DATA that is ignored counts for the window of the connection, and is released at once.
        self.streams.spend_connection(flow_len);
        self.release_connection();
        result
    }

    /// Passes content to the caller. At the end of its frame, `frame_end` is END_STREAM: the message ends, or window is released.
    #[inline]
    pub(super) fn pass_content(&mut self, slot: u32, len: u32, frame_end: Option<bool>) {
        self.streams.hold(slot, len);
        match frame_end {
            None => return,
            Some(true) => {
                let closed = self.streams.end_recv(slot);
                self.apply_close(closed);
            }
            Some(false) => self.release_stream(slot),
        }
        self.release_connection();
    }

    /// Releases window for `len` bytes of DATA that were passed to the caller, on a stream without automatic release.
    ///
    /// On a stream that has ended it does nothing, because its DATA was released then, unless
    /// [`crate::Config::release_at_end`] is `false`.
    ///
    /// # Errors
    /// [`Misuse::ReleaseTooMuch`] if the caller holds less.
    pub fn release_capacity(&mut self, stream: StreamKey, len: usize) -> Result<(), Error> {
        match self.streams.slot(stream) {
            Some(slot) => {
                self.streams.release(slot, len)?;
                self.release_stream(slot);
            }
            None => self.streams.release_ended(len),
        }
        self.release_connection();
        Ok(())
    }

    /// Sets whether a stream releases window automatically. DATA that the caller already holds stays held until it is released.
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
        if let Some(update) = self.streams.connection_update(&self.config, self.reader.arriving()) {
            self.write_update(update);
        }
    }

    fn write_update(&mut self, update: WindowUpdate) {
        if self.has_ended() {
            return;
        }
        self.out.answer(|out| update.encode(out));
        // A WINDOW_UPDATE of a stream means that much DATA arrives, so the round trip is measured.
        if !update.stream_id.is_connection() {
            self.streams.request_probe();
        }
    }

    #[inline]
    pub(super) fn receive_window_update(
        &mut self,
        update: WindowUpdate,
    ) -> Result<Option<Event<'static>>, Error> {
        let id = update.stream_id;
        if id.is_connection() {
            self.charge(Charge::WindowUpdate)?;
            self.streams.grant_connection(update.increment)?;
            let now = self.input_time();
            self.timers.window_granted(update.increment, self.config.limits.stall_timeout, now);
            return Ok(None);
        }
        let Some(slot) = self.streams.find(id) else {
            self.receive_late(id, LateFrame::WindowUpdate)?;
            return Ok(None);
        };
        self.charge(Charge::WindowUpdate)?;
        self.streams.grant_stream(slot, update)?;
        Ok(None)
    }
}
