//! Where the events of the core go: to the slots of their streams, and to whoever waits there.

use std::task::Waker;

use bytes::Bytes;
use wireloom_http2::{Event, StreamKey};

use super::head::{Head, Incoming, to_headers};
use super::shared::Slot;
use crate::error::Error;

/// Interim responses that are kept for a client that does not look at them; further ones are dropped.
const INTERIM_MAX: usize = 16;

/// What is left to do once an event is no longer borrowed.
pub(super) enum Then {
    Nothing,
    /// A request whose content follows, perhaps in the same read.
    Opened(StreamKey),
    /// Content that nobody wants.
    Discarded(StreamKey, usize),
    /// The task that answered was stopped.
    Released(StreamKey),
    SettingsSeen,
}

/// Where events go.
pub(super) struct Seen<'a> {
    pub(super) slots: &'a mut [Option<Box<Slot>>],
    /// By the core's slot.
    pub(super) places: &'a [u32],
    /// The input, if parts of it may be kept.
    pub(super) lender: Option<&'a Bytes>,
    /// Whom to wake.
    pub(super) woken: &'a mut Vec<Waker>,
}

impl Seen<'_> {
    #[inline]
    fn slot(&mut self, key: StreamKey) -> Option<&mut Slot> {
        let place = *self.places.get(key.slot())?;
        self.slots.get_mut(place as usize)?.as_deref_mut().filter(|slot| slot.is_of(key))
    }

    pub(super) fn see(mut self, event: Event<'_>, incoming: &mut Vec<Incoming>) -> Then {
        match event {
            Event::Request { stream, kind, fields, end_stream } => {
                incoming.push(Incoming::new(stream, kind, fields));
                if !end_stream {
                    return Then::Opened(stream);
                }
            }
            Event::Data { stream, data, end_stream } => {
                let lender = self.lender;
                let Some(slot) = self.slot(stream) else { return Then::Discarded(stream, data.len()) };
                slot.ended |= end_stream;
                let unwanted = slot.discards;
                if !unwanted {
                    slot.data.push(data, lender);
                }
                let waker = slot.receiver.take();
                self.woken.extend(waker);
                if unwanted {
                    return Then::Discarded(stream, data.len());
                }
            }
            Event::Response { stream, status, fields, end_stream } => {
                let Some(slot) = self.slot(stream) else { return Then::Nothing };
                slot.ended |= end_stream;
                slot.head = Some(Head { status, headers: to_headers(fields) });
                let waker = slot.receiver.take();
                self.woken.extend(waker);
            }
            Event::Informational { stream, status, fields } => {
                let Some(slot) = self.slot(stream) else { return Then::Nothing };
                if slot.interim.len() < INTERIM_MAX {
                    slot.interim.push_back(Head { status, headers: to_headers(fields) });
                }
                let waker = slot.receiver.take();
                self.woken.extend(waker);
            }
            Event::Trailers { stream, fields } => {
                let Some(slot) = self.slot(stream) else { return Then::Nothing };
                slot.ended = true;
                slot.trailers = Some(to_headers(fields));
                let waker = slot.receiver.take();
                self.woken.extend(waker);
            }
            Event::Reset { stream, code, .. } => return self.fail(stream, &Error::StreamReset(code)),
            Event::Refused { stream } => return self.fail(stream, &Error::NotProcessed),
            Event::Writable { stream } => {
                let waker = self.slot(stream).and_then(|slot| slot.sender.take());
                self.woken.extend(waker);
            }
            Event::Settings => return Then::SettingsSeen,
            _ => {}
        }
        Then::Nothing
    }

    fn fail(&mut self, key: StreamKey, error: &Error) -> Then {
        let Some(slot) = self.slot(key) else { return Then::Nothing };
        slot.fail(error);
        let wakers = [slot.receiver.take(), slot.sender.take()];
        let task = slot.task.take();
        self.woken.extend(wakers.into_iter().flatten());
        let Some(task) = task else { return Then::Nothing };
        task.abort();
        Then::Released(key)
    }
}
