//! The sending half of a stream.

use std::task::{Context, Poll};

use bytes::Bytes;
use wireloom_http2::error::{Error as CoreError, ErrorCode, Misuse};
use wireloom_http2::field::Field;
use wireloom_http2::{Role, StreamKey};

use super::head::to_fields;
use super::shared::Shared;
use super::slots::{Receiving, RequestEnd, StreamRef};
use super::state::State;
use super::unread::is_accepted;
use crate::error::HttpError;
use crate::headers::Headers;
use crate::sync::Arc;

impl Shared {
    /// The sending half of a stream that a peer opened.
    pub(crate) fn send_stream(self: &Arc<Self>, key: StreamKey) -> SendStream {
        let mut state = self.lock();
        let stream = match state.core.contains(key) {
            true => state.slots.refer(key, Receiving::Discarding),
            false => state.slots.refer_to_closed(key),
        };
        drop(state);
        SendStream::new(self.clone(), stream)
    }
}

/// Sends the head of a response, content and trailers. Dropping it before the end resets the stream.
pub(crate) struct SendStream {
    shared: Arc<Shared>,
    stream: StreamRef,
    /// END_STREAM was sent or queued, or the stream was reset.
    done: bool,
    /// The status of the response is below 300.
    is_accepted: bool,
}

impl SendStream {
    pub(super) fn new(shared: Arc<Shared>, stream: StreamRef) -> Self {
        Self { shared, stream, done: false, is_accepted: false }
    }

    /// The sending half of a request that has no content.
    pub(super) fn finished(shared: Arc<Shared>, stream: StreamRef) -> Self {
        Self { shared, stream, done: true, is_accepted: false }
    }

    /// Sends the final response head; `fields` begin with `:status`.
    ///
    /// # Errors
    /// The stream or the connection has ended, or the peer does not accept a field list of this size.
    pub(crate) fn send_response<'f, I>(&mut self, fields: I, end_stream: bool) -> Result<(), HttpError>
    where
        I: IntoIterator<Item = Field<'f>>,
        I::IntoIter: Clone,
    {
        let fields = fields.into_iter();
        self.is_accepted = is_accepted(fields.clone());
        self.command(end_stream, |state, key| {
            state.send_continue(key);
            state.core.send_response(key, fields, end_stream)
        })
    }

    /// Sends an interim response; `fields` begin with `:status`, from 100 to 199.
    ///
    /// # Errors
    /// As [`send_response`](Self::send_response).
    #[cfg(test)]
    pub(crate) fn send_informational<'f, I>(&mut self, fields: I) -> Result<(), HttpError>
    where
        I: IntoIterator<Item = Field<'f>>,
        I::IntoIter: Clone,
    {
        self.command(false, |state, key| state.core.send_informational(key, fields))
    }

    /// Ready with the free room of the stream's send queue, in bytes. [`send`](Self::send) accepts more, and queues it.
    ///
    /// # Errors
    /// The stream was reset, or the connection failed.
    pub(crate) fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, HttpError>> {
        let mut state = self.shared.lock();
        let State { slots, core, deferred, .. } = &mut *state;
        let Some(slot) = slots.get(self.stream) else { return Poll::Ready(Err(HttpError::Closed)) };
        if let Some(error) = &slot.error {
            return Poll::Ready(Err(error.clone()));
        }
        if !core.contains(self.stream.key) {
            return Poll::Ready(Err(HttpError::Closed));
        }
        match core.send_capacity(self.stream.key) {
            0 => {
                deferred.register(&mut slot.sender, cx);
                Poll::Pending
            }
            len => Poll::Ready(Ok(len)),
        }
    }

    /// Ready when the stream has ended, so that nothing can be sent.
    pub(crate) fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.shared.lock();
        let State { slots, core, deferred, .. } = &mut *state;
        match slots.get(self.stream) {
            Some(slot) if slot.error.is_none() && core.contains(self.stream.key) => {
                deferred.register(&mut slot.sender, cx);
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// Whether everything that was sent, up to the end of the stream, has left.
    pub(crate) fn is_sent(&self) -> bool {
        self.shared.lock().slots.get(self.stream).is_some_and(|slot| slot.request_end == RequestEnd::Left)
    }

    /// Ready when everything that was sent, up to the end of the stream, has left.
    ///
    /// # Errors
    /// The stream was reset, or the connection failed.
    pub(crate) fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HttpError>> {
        let mut state = self.shared.lock();
        let State { slots, deferred, .. } = &mut *state;
        let Some(slot) = slots.get(self.stream) else { return Poll::Ready(Err(HttpError::Closed)) };
        match (slot.request_end, &slot.error) {
            (RequestEnd::Left, _) => Poll::Ready(Ok(())),
            (RequestEnd::Queued, Some(error)) => Poll::Ready(Err(error.clone())),
            _ => {
                deferred.register(&mut slot.sender, cx);
                Poll::Pending
            }
        }
    }

    /// Sends content.
    ///
    /// # Errors
    /// The stream was reset, or the connection failed.
    pub(crate) fn send(&mut self, data: Bytes, end_stream: bool) -> Result<(), HttpError> {
        self.command(end_stream, |state, key| state.core.send_data(key, data, end_stream))
    }

    /// Sends trailers, which end the stream.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(crate) fn send_trailers(&mut self, trailers: &mut Headers) -> Result<(), HttpError> {
        trailers.make_names_lowercase();
        // RFC 9113 §8.2.2: trailers of HTTP/1.1 that are forwarded may have such fields.
        trailers.remove_forbidden_trailers();
        self.command(true, |state, key| state.core.send_trailers(key, to_fields(trailers)))
    }

    /// Resets the stream because its content has failed: with the code of the stream that it was forwarded from, if that was reset. The
    /// pending response fails with this error.
    pub(crate) fn fail(&mut self, error: &HttpError) {
        self.done = true;
        let key = self.stream.key;
        self.shared.command(|state| {
            let code = match *error {
                HttpError::StreamReset(code) if code != ErrorCode::NO_ERROR => code,
                _ => code_of_incomplete(state.core.role()),
            };
            let _ = state.core.reset(key, code);
            state.fail_stream(key, error);
        });
    }

    /// Resets the stream.
    pub(crate) fn reset(&mut self, code: ErrorCode) {
        self.done = true;
        self.shared.reset(self.stream.key, code);
    }

    fn command(
        &mut self,
        end_stream: bool,
        run: impl FnOnce(&mut State, StreamKey) -> Result<(), CoreError>,
    ) -> Result<(), HttpError> {
        let (stream, is_accepted) = (self.stream, self.is_accepted);
        let result = self.shared.command(|state| {
            match run(state, stream.key) {
                Ok(()) if end_stream => {
                    state.finish(stream.key, is_accepted);
                    // The end of a request, while its key still finds the slot.
                    state.handle_events();
                }
                Ok(()) => {}
                // The slot knows why the stream has ended.
                Err(CoreError::Misuse(Misuse::StreamGone | Misuse::ConnectionClosed)) => {
                    let error = state.slots.get(stream).and_then(|slot| slot.error.clone());
                    return Err(error.unwrap_or(HttpError::Closed));
                }
                Err(error) => {
                    let error = HttpError::from(error);
                    if matches!(error, HttpError::Http2(CoreError::Misuse(Misuse::ContentLengthMismatch))) {
                        // RFC 9113 §8.1.1: the message cannot become valid. The pending response fails with this error.
                        let code = code_of_incomplete(state.core.role());
                        let _ = state.core.reset(stream.key, code);
                        state.fail_stream(stream.key, &error);
                    }
                    return Err(error);
                }
            }
            Ok(())
        });
        self.done |= result.is_ok() && end_stream;
        result
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        let (stream, done) = (self.stream, self.done);
        self.shared.command(|state| {
            if !done {
                let code = code_of_incomplete(state.core.role());
                if state.core.reset(stream.key, code).is_ok() {
                    state.fail_stream(stream.key, &HttpError::StreamReset(code));
                }
            }
            state.release(stream);
        });
    }
}

/// The code of RST_STREAM for a message that this end cannot complete.
const fn code_of_incomplete(role: Role) -> ErrorCode {
    match role {
        Role::Server => ErrorCode::INTERNAL_ERROR,
        Role::Client => ErrorCode::CANCEL,
    }
}
