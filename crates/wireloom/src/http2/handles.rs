//! The handles of streams: what a task that answers or asks holds of one.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use wireloom_http2::error::{ErrorCode, Misuse};
use wireloom_http2::field::{Field, Token};
use wireloom_http2::{Role, StreamKey};

use super::content::Content;
use super::head::{Head, to_fields};
use super::shared::{At, Shared, Slot, State, register};
use crate::error::Error;
use crate::headers::Headers;

/// What arrives on a stream. Dropped before the end, it says that the rest is not wanted.
pub(crate) struct RecvStream {
    shared: Arc<Shared>,
    at: At,
    /// The client waits for `100 Continue` before it sends content (RFC 9110 §10.1.1).
    continues: bool,
}

/// What is sent on a stream. Dropped before the end, it resets the stream.
pub(crate) struct SendStream {
    shared: Arc<Shared>,
    at: At,
    /// The end was sent, or the stream reset.
    done: bool,
}

impl RecvStream {
    pub(super) fn new(shared: Arc<Shared>, at: At) -> Self {
        Self { shared, at, continues: false }
    }

    /// Tells the client to go on when content is first asked for.
    pub(crate) fn expected(self) -> Self {
        let mut stream = self;
        stream.continues = true;
        stream
    }

    /// The next head of a response: interim ones (below 200) as they come, then the final one.
    ///
    /// # Errors
    /// The stream was reset or refused, or the connection failed.
    pub(crate) async fn head(&mut self) -> Result<Head, Error> {
        poll_fn(|cx| {
            let mut state = self.shared.lock();
            let Some(slot) = state.slot(self.at) else { return Poll::Ready(Err(Error::Closed)) };
            if let Some(head) = slot.interim.pop_front().or_else(|| slot.head.take()) {
                return Poll::Ready(Ok(head));
            }
            slot.wait(cx)
        })
        .await
    }

    /// The next content, all that is there; `None` at the end. Window is given back for it.
    ///
    /// # Errors
    /// The stream was reset, or the connection failed.
    pub(crate) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        let (at, continues) = (self.at, std::mem::take(&mut self.continues));
        self.shared.command(|state| {
            let Some(slot) = state.slot(at) else { return Poll::Ready(Some(Err(Error::Closed))) };
            if !slot.data.is_empty() {
                let data = slot.data.take();
                // Misuse is not possible: it is what arrived.
                let _ = state.core.release_capacity(at.key, data.len());
                return Poll::Ready(Some(Ok(data)));
            }
            if slot.ended {
                return Poll::Ready(None);
            }
            let waits = slot.wait(cx).map(Some);
            if continues && waits.is_pending() {
                // Once the final response has begun there is nothing to say.
                let _ = state.core.send_informational(at.key, [Field::known(Token::Status, b"100")]);
            }
            waits
        })
    }

    /// The trailers, once [`poll_data`](Self::poll_data) was `None`, if there were any.
    pub(crate) fn trailers(&mut self) -> Option<Headers> {
        self.shared.lock().slot(self.at)?.trailers.take()
    }

    /// As of a socket: copies what is there, and says how much; 0 at the end.
    ///
    /// # Errors
    /// As [`poll_data`](Self::poll_data).
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<Result<usize, Error>> {
        let at = self.at;
        self.shared.command(|state| {
            let Some(slot) = state.slot(at) else { return Poll::Ready(Err(Error::Closed)) };
            if !slot.data.is_empty() {
                let len = slot.data.read(into);
                let _ = state.core.release_capacity(at.key, len);
                return Poll::Ready(Ok(len));
            }
            if slot.ended {
                return Poll::Ready(Ok(0));
            }
            slot.wait(cx)
        })
    }

    /// Ready when [`poll_read`](Self::poll_read) would be.
    pub(crate) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.shared.lock();
        match state.slot(self.at) {
            Some(slot) if slot.data.is_empty() && !slot.ended => slot.wait::<()>(cx).map(drop),
            _ => Poll::Ready(()),
        }
    }
}

impl Slot {
    /// Pending until something arrives; ready when it never will.
    fn wait<T>(&mut self, cx: &Context<'_>) -> Poll<Result<T, Error>> {
        if let Some(error) = &self.failed {
            return Poll::Ready(Err(error.clone()));
        }
        register(&mut self.receiver, cx);
        Poll::Pending
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        let at = self.at;
        self.shared.command(|state| {
            let Some(slot) = state.slot(at) else { return };
            let (held, ended, finished) = (slot.data.len(), slot.ended, slot.finished);
            slot.discards = true;
            slot.data = Content::default();
            if held > 0 {
                let _ = state.core.release_capacity(at.key, held);
            }
            if !ended && state.core.role() == Role::Client {
                // Nobody hears the answer: whoever sends need not go on.
                let _ = state.core.reset(at.key, ErrorCode::CANCEL);
                state.fail_stream(at.key, &Error::StreamReset(ErrorCode::CANCEL));
            } else if !ended && finished {
                state.finish(at.key);
            }
            state.release(at);
        });
    }
}

impl SendStream {
    pub(super) fn new(shared: Arc<Shared>, at: At) -> Self {
        Self { shared, at, done: false }
    }

    /// Sends the final response to a request; `fields` begin with `:status`.
    ///
    /// # Errors
    /// The stream or the connection is gone, or the peer takes no such list of fields.
    pub(crate) fn respond<'f, I>(&mut self, fields: I, end_stream: bool) -> Result<(), Error>
    where
        I: IntoIterator<Item = Field<'f>>,
        I::IntoIter: Clone,
    {
        self.command(end_stream, |state, key| state.core.send_response(key, fields, end_stream))
    }

    /// Ready with what may be sent now, in bytes. More is taken as well, and held until the peer takes it.
    ///
    /// # Errors
    /// The stream was reset, or the connection failed.
    pub(crate) fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, Error>> {
        let mut state = self.shared.lock();
        if let Some(error) = state.slot(self.at).and_then(|slot| slot.failed.clone()) {
            return Poll::Ready(Err(error));
        }
        if !state.core.contains(self.at.key) {
            return Poll::Ready(Err(Error::Closed));
        }
        match state.core.send_capacity(self.at.key) {
            0 => {
                if let Some(slot) = state.slot(self.at) {
                    register(&mut slot.sender, cx);
                }
                Poll::Pending
            }
            len => Poll::Ready(Ok(len)),
        }
    }

    /// Ready when the stream is gone, so that nothing can be sent any more.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.shared.lock();
        let is_there = state.core.contains(self.at.key);
        match state.slot(self.at) {
            Some(slot) if is_there && slot.failed.is_none() => {
                register(&mut slot.sender, cx);
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// Sends content.
    ///
    /// # Errors
    /// The stream was reset, or the connection failed.
    pub(crate) fn send(&mut self, data: Bytes, end_stream: bool) -> Result<(), Error> {
        self.command(end_stream, |state, key| state.core.send_data(key, data, end_stream))
    }

    /// Sends trailers, which end the stream.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(crate) fn send_trailers(&mut self, trailers: &mut Headers) -> Result<(), Error> {
        trailers.make_names_lowercase();
        self.command(true, |state, key| state.core.send_trailers(key, to_fields(trailers)))
    }

    /// Ends the stream at once.
    pub(crate) fn reset(&mut self, code: ErrorCode) {
        self.done = true;
        self.shared.reset(self.at.key, code);
    }

    fn command(
        &mut self,
        end_stream: bool,
        work: impl FnOnce(&mut State, StreamKey) -> Result<(), wireloom_http2::error::Error>,
    ) -> Result<(), Error> {
        let at = self.at;
        let done = self.shared.command(|state| {
            match work(state, at.key) {
                Ok(()) => {}
                // Why it is gone is known here alone.
                Err(wireloom_http2::error::Error::Misuse(Misuse::StreamGone | Misuse::ConnectionClosed)) => {
                    let failed = state.slot(at).and_then(|slot| slot.failed.clone());
                    return Err(failed.unwrap_or(Error::Closed));
                }
                Err(error) => return Err(error.into()),
            }
            if end_stream {
                state.finish(at.key);
            }
            Ok(())
        });
        self.done |= done.is_ok() && end_stream;
        done
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        let (at, done) = (self.at, self.done);
        self.shared.command(|state| {
            if !done {
                let code = match state.core.role() {
                    Role::Server => ErrorCode::INTERNAL_ERROR,
                    Role::Client => ErrorCode::CANCEL,
                };
                if state.core.reset(at.key, code).is_ok()
                    && let Some(slot) = state.slot(at)
                {
                    slot.failed.get_or_insert(Error::StreamReset(code));
                    slot.receiver.take().into_iter().for_each(Waker::wake);
                }
            }
            state.release(at);
        });
    }
}

/// What a client asks by. The connection ends gracefully when the last one is dropped and the streams have finished.
#[derive(Clone)]
pub(crate) struct Requests {
    shared: Arc<Shared>,
    _alive: Arc<Alive>,
}

struct Alive(Arc<Shared>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.shut_down();
    }
}

impl Requests {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { _alive: Arc::new(Alive(shared.clone())), shared }
    }

    /// Waits for the server's SETTINGS: what it allows is known from then on.
    ///
    /// # Errors
    /// The connection failed.
    pub(crate) async fn ready(&self) -> Result<(), Error> {
        poll_fn(|cx| {
            let mut state = self.shared.lock();
            state.alive()?;
            if state.settings_seen {
                return Poll::Ready(Ok(()));
            }
            state.waiting.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Whether the server takes extended CONNECT (RFC 8441 §3): known once it is [`ready`](Self::ready).
    pub(crate) fn takes_extended_connect(&self) -> bool {
        self.shared.lock().core.peer_settings().enable_connect_protocol
    }

    /// Whether requests can still be opened.
    pub(crate) fn is_open(&self) -> bool {
        let state = self.shared.lock();
        state.failure.is_none() && !state.core.is_going_away()
    }

    /// Opens a request, now or as soon as the server allows one more. The fields are sent as they are: pseudo-fields first,
    /// names in lower case.
    ///
    /// # Errors
    /// [`Error::NotProcessed`] when the connection goes away: the request may be sent on another one.
    pub(crate) fn open<'f, I>(&self, fields: I, end_stream: bool) -> Result<(SendStream, RecvStream), Error>
    where
        I: IntoIterator<Item = Field<'f>>,
        I::IntoIter: Clone,
    {
        let at = self.shared.command(|state| {
            state.alive()?;
            let key = state.core.send_request(fields, end_stream)?;
            let at = state.hold(key, 2);
            if let Some(slot) = state.slot(at) {
                slot.finished = end_stream;
            }
            Ok::<At, Error>(at)
        })?;
        let mut send = SendStream::new(self.shared.clone(), at);
        send.done = end_stream;
        Ok((send, RecvStream::new(self.shared.clone(), at)))
    }

    /// Ends the connection gracefully.
    pub(crate) fn shut_down(&self) {
        self.shared.shut_down();
    }
}
