//! The requests of a client.

use std::task::Poll;

use wireloom_http2::field::Field;

use super::driver_handle::DriverState;
use super::peer_preface::PeerPreface;
use super::recv_stream::RecvStream;
use super::send_stream::SendStream;
use super::shared::Shared;
use super::slots::Receiving;
use crate::error::HttpError;
use crate::sync::Arc;

/// Opens requests on a client's connection. The connection shuts down gracefully when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct Requests {
    shared: Arc<Shared>,
    _shut_down: Arc<ShutDownOnDrop>,
}

struct ShutDownOnDrop(Arc<Shared>);

impl Drop for ShutDownOnDrop {
    fn drop(&mut self) {
        self.0.shut_down();
    }
}

impl Requests {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { _shut_down: Arc::new(ShutDownOnDrop(shared.clone())), shared }
    }

    /// Waits for the server's SETTINGS.
    ///
    /// # Errors
    /// The connection failed before they arrived.
    pub(crate) async fn ready(&self) -> Result<(), HttpError> {
        self.shared
            .wait_until(|state| match (&state.failure, state.peer_preface) {
                (_, PeerPreface::Complete) => Poll::Ready(Ok(())),
                (Some(error), _) => Poll::Ready(Err(error.clone())),
                (None, _) => Poll::Pending,
            })
            .await
    }

    /// Waits until the connection has ended and everything, GOAWAY included, was written.
    pub(crate) async fn closed(&self) {
        self.shared
            .wait_until(|state| match state.driver.state {
                DriverState::Ended => Poll::Ready(()),
                _ => Poll::Pending,
            })
            .await;
    }

    /// Whether nothing arrived, or something that is not HTTP/2: the server may speak HTTP/1.1.
    pub(crate) fn may_be_http1(&self) -> bool {
        matches!(self.shared.lock().peer_preface, PeerPreface::Partial(0) | PeerPreface::NotHttp2)
    }

    /// Whether the server accepts extended CONNECT (RFC 8441 §3): known once [`ready`](Self::ready).
    pub(crate) fn supports_extended_connect(&self) -> bool {
        self.shared.lock().core.peer_settings().enable_connect_protocol
    }

    /// Whether requests can be opened on this connection.
    pub(crate) fn is_open(&self) -> bool {
        let state = self.shared.lock();
        // RFC 9113 §5.1.1: without identifiers, the next request needs another connection.
        state.failure.is_none() && !state.core.is_going_away() && state.core.has_stream_ids()
    }

    /// Opens a request, at once or when the server's concurrency limit allows it. Fields are sent as they are: pseudo-fields
    /// first, names in lower case.
    ///
    /// # Errors
    /// [`HttpError::NotProcessed`] when the connection is going away or has ended, for whatever reason: nothing was sent, and the request
    /// may be sent on another one.
    pub(crate) fn open<'f, I>(
        &self,
        fields: I,
        end_stream: bool,
    ) -> Result<(SendStream, RecvStream), HttpError>
    where
        I: IntoIterator<Item = Field<'f>>,
        I::IntoIter: Clone,
    {
        let stream = self.shared.command(|state| {
            if state.failure.is_some() {
                return Err(HttpError::NotProcessed);
            }
            let key = match state.core.send_request(fields, end_stream).map_err(HttpError::from) {
                Err(HttpError::Closed) => return Err(HttpError::NotProcessed),
                opened => opened?,
            };
            // One reference for each half.
            state.slots.refer(key, Receiving::Open);
            let stream = state.slots.refer(key, Receiving::Open);
            if let Some(slot) = state.slots.get(stream) {
                slot.finished = end_stream;
            }
            Ok::<_, HttpError>(stream)
        })?;
        let send = match end_stream {
            true => SendStream::finished(self.shared.clone(), stream),
            false => SendStream::new(self.shared.clone(), stream),
        };
        Ok((send, RecvStream::new(self.shared.clone(), stream)))
    }

    /// Ends the connection gracefully.
    pub(crate) fn shut_down(&self) {
        self.shared.shut_down();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use wireloom_http2::Role;
    use wireloom_http2::error::{Error as CoreError, ErrorCode, Exceeded, Scope};
    use wireloom_http2::field::Token;
    use wireloom_testing::http2::Frame;

    use super::super::testing::{driver, get};
    use super::*;
    use crate::transport::Io;

    #[test]
    fn a_request_on_a_connection_that_has_ended_was_not_processed() {
        let io = std::io::ErrorKind::TimedOut;
        for failure in [
            HttpError::Closed,
            HttpError::ConnectionLost,
            HttpError::Io(io.into()),
            HttpError::GoAway(ErrorCode::INTERNAL_ERROR),
            HttpError::KeepaliveTimeout,
            HttpError::Http2(CoreError::Limit { exceeded: Exceeded::Stalled, scope: Scope::Connection }),
        ] {
            let driver = driver(Io::Other(Box::new(tokio::io::empty())), Role::Client);
            let requests = driver.requests();
            driver.shared().lock().fail(failure.clone());
            let opened = requests.open([Field::known(Token::Method, b"GET")], true);
            assert_eq!(opened.err(), Some(HttpError::NotProcessed), "{failure:?}");
        }
    }

    // RFC 9113 §8.7: the server has not seen it.
    #[tokio::test]
    async fn a_request_that_was_not_written_is_safe_to_send_again() {
        let (client, mut server) = tokio::io::duplex(256);
        let driver = driver(Io::Other(Box::new(client)), Role::Client);
        let requests = driver.requests();
        tokio::spawn(driver.run());
        server.write_all(&Frame::settings(&[]).to_bytes()).await.unwrap();
        requests.ready().await.unwrap();
        let long = vec![b'~'; 10_000];
        let (_, mut sent) = requests.open(get().chain([Field::new(b"x-long", &long)]), true).unwrap();
        // The transport is full in the middle of HEADERS.
        let mut received = Vec::new();
        while received.len() < 5_000 {
            server.read_buf(&mut received).await.unwrap();
        }
        let (_, mut waiting) = requests.open(get(), true).unwrap();
        drop(server);
        assert_eq!(waiting.head().await.unwrap_err(), HttpError::NotProcessed);
        assert_eq!(sent.head().await.unwrap_err(), HttpError::ConnectionLost);
    }

    // It could not be sent on another connection either.
    #[test]
    fn a_request_that_is_malformed_is_the_callers_mistake() {
        let driver = driver(Io::Other(Box::new(tokio::io::empty())), Role::Client);
        let opened = driver.requests().open([Field::new(b"Name", b"value")], true);
        assert!(matches!(opened.err(), Some(HttpError::Http2(CoreError::Misuse(_)))));
    }
}
