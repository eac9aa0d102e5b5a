//! The mutex around [`State`], and the commands of the server that have no handle.
//!
//! The mutex is held for work in memory and never across an `.await`. Wakers, slots and notifications are collected until it is
//! unlocked (`crate::guard`).

use std::task::Poll;

use bytes::Bytes;
use wireloom_http2::error::ErrorCode;
use wireloom_http2::field::Field;
use wireloom_http2::message::RequestKind;
use wireloom_http2::priority::Priority;
use wireloom_http2::{Config, Role, StreamKey};

use super::driver_handle::DriverState;
use super::state::State;
use super::unread::is_accepted;
use crate::error::HttpError;
use crate::guard::{Guard, Guarded};
use crate::memory::Evict;
use crate::sync::Arc;

pub(crate) struct Shared {
    state: Guarded<State>,
}

impl Shared {
    pub(super) fn new(role: Role, config: Config) -> Result<Arc<Self>, HttpError> {
        Ok(Arc::new(Self { state: Guarded::new(State::new(role, config)?) }))
    }

    /// The server's end after an upgrade from HTTP/1.1, and the stream of the upgraded request (RFC 7540 §3.2).
    ///
    /// # Errors
    /// `HTTP2-Settings` is invalid: the server must not upgrade.
    pub(crate) fn upgraded(
        config: Config,
        http2_settings: &[u8],
        kind: RequestKind,
    ) -> Result<(Arc<Self>, StreamKey), HttpError> {
        let (state, key) = State::upgraded(config, http2_settings, kind)?;
        Ok((Arc::new(Self { state: Guarded::new(state) }), key))
    }

    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    /// Runs a command of a handle, and wakes the driver if that gave it something to do.
    pub(super) fn command<T>(&self, run: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        if state.driver.state == DriverState::Waiting {
            // The core's clock has not advanced since the driver began to wait.
            state.advance_clock();
        }
        let result = run(&mut state);
        state.wake_driver();
        result
    }

    /// Waits until `check` is ready. It is called again when the peer's SETTINGS arrive and when the connection ends.
    pub(super) async fn wait_until<T>(&self, check: impl Fn(&State) -> Poll<T>) -> T {
        let ready = self.lock().ready.clone();
        loop {
            // Created before the check: it receives every notification from here on.
            let notified = ready.notified();
            if let Poll::Ready(result) = check(&self.lock()) {
                return result;
            }
            notified.await;
        }
    }

    /// Sends a complete response. `fields` begin with `:status`.
    ///
    /// # Errors
    /// The stream or the connection has ended, or the peer does not accept a field list of this size.
    pub(crate) fn send_response<'f, I>(&self, key: StreamKey, fields: I, body: Bytes) -> Result<(), HttpError>
    where
        I: IntoIterator<Item = Field<'f>>,
        I::IntoIter: Clone,
    {
        let fields = fields.into_iter();
        let is_accepted = is_accepted(fields.clone());
        // An unsent body is dropped after the unlock: its destructor may be code of the application.
        let mut body = Some(body).filter(|body| !body.is_empty());
        self.command(|state| {
            state.check_alive()?;
            state.send_continue(key);
            state.core.send_response(key, fields, body.is_none())?;
            if let Some(body) = body.take() {
                state.core.send_data(key, body, true)?;
            }
            state.finish(key, is_accepted);
            Ok(())
        })
    }

    /// Sends an interim response; `fields` begin with `:status`, from 100 to 199.
    ///
    /// # Errors
    /// As for [`send_response`](Self::send_response).
    pub(crate) fn send_informational<'f, I>(&self, key: StreamKey, fields: I) -> Result<(), HttpError>
    where
        I: IntoIterator<Item = Field<'f>>,
        I::IntoIter: Clone,
    {
        self.command(|state| {
            state.check_alive()?;
            Ok(state.core.send_informational(key, fields)?)
        })
    }

    /// The priority of a stream (RFC 9218); `None` when it has ended.
    pub(crate) fn priority(&self, key: StreamKey) -> Option<Priority> {
        self.lock().core.priority(key)
    }

    /// Sets the priority of a response.
    ///
    /// # Errors
    /// The stream has ended.
    pub(crate) fn set_priority(&self, key: StreamKey, priority: Priority) -> Result<(), HttpError> {
        self.command(|state| Ok(state.core.set_priority(key, priority)?))
    }

    /// Asks the server for this priority of a response (RFC 9218 §7.1).
    ///
    /// # Errors
    /// The stream or the connection has ended.
    pub(super) fn send_priority_update(&self, key: StreamKey, priority: Priority) -> Result<(), HttpError> {
        self.command(|state| Ok(state.core.send_priority_update(key, priority)?))
    }

    /// Resets a stream; does nothing when it has ended.
    pub(crate) fn reset(&self, key: StreamKey, code: ErrorCode) {
        self.command(|state| {
            let _ = state.core.reset(key, code);
            state.fail_stream(key, &HttpError::StreamReset(code));
        });
    }

    /// Ends the connection gracefully: sends GOAWAY, and open streams continue.
    pub(crate) fn shut_down(&self) {
        self.command(|state| state.core.shutdown());
    }
}

impl Evict for Shared {
    /// Ends the connection with ENHANCE_YOUR_CALM, and frees what was not read.
    fn evict(&self) -> bool {
        self.command(|state| {
            state.core.abort(ErrorCode::ENHANCE_YOUR_CALM, b"out of memory");
            state.fail(HttpError::StreamReset(ErrorCode::ENHANCE_YOUR_CALM));
            state.slots.lose_unread(&mut state.core, &mut state.deferred);
        });
        true
    }

    fn abort(&self) {
        self.command(|state| state.is_aborted = true);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use wireloom_http2::field::Token;
    use wireloom_testing::http2::{Frame, PREFACE, join};

    use super::super::testing::{receive, server};
    use super::*;

    /// Content whose destructor uses the connection.
    struct Asking {
        shared: Arc<Shared>,
        content: &'static [u8],
        dropped_unlocked: Arc<AtomicUsize>,
    }

    impl AsRef<[u8]> for Asking {
        fn as_ref(&self) -> &[u8] {
            self.content
        }
    }

    impl Drop for Asking {
        fn drop(&mut self) {
            let is_unlocked = self.shared.state.try_lock().is_some();
            self.dropped_unlocked.fetch_add(usize::from(is_unlocked), Ordering::Relaxed);
        }
    }

    #[test]
    fn content_that_cannot_be_sent_is_dropped_after_the_unlock() {
        let shared = server();
        let dropped_unlocked = Arc::new(AtomicUsize::new(0));
        let content = |content| {
            let (shared, dropped_unlocked) = (shared.clone(), dropped_unlocked.clone());
            Bytes::from_owner(Asking { shared, content, dropped_unlocked })
        };
        let requests = [Frame::settings(&[]), Frame::get(1), Frame::get(3), Frame::get(5), Frame::get(7)];
        let incoming = receive(&shared, &[PREFACE, &join(&requests)].concat());
        let keys: Vec<_> = incoming.iter().map(|request| request.key).collect();
        let status = [Field::known(Token::Status, b"200")];
        // The response is malformed, the stream has ended, the content is not what was announced, the connection has ended.
        shared.send_response(keys[0], [Field::known(Token::Status, b"2000")], content(b"1")).unwrap_err();
        shared.reset(keys[1], ErrorCode::CANCEL);
        shared.send_response(keys[1], status, content(b"2")).unwrap_err();
        let len = Field::known(Token::ContentLength, b"5");
        shared.send_response(keys[2], [status[0], len], content(b"3")).unwrap_err();
        shared.send_stream(keys[1]).send(content(b"4"), true).unwrap_err();
        shared.send_response(keys[3], status, content(b"")).unwrap();
        shared.lock().fail(HttpError::ConnectionLost);
        shared.send_response(keys[3], status, content(b"5")).unwrap_err();
        assert_eq!(dropped_unlocked.load(Ordering::Relaxed), 6);
    }
}
