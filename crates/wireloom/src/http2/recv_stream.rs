//! The receiving half of a stream.

use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::Bytes;
use wireloom_http2::Role;
use wireloom_http2::error::ErrorCode;
use wireloom_http2::priority::Priority;

use super::recv_buffer::RecvBuffer;
use super::send_stream::SendStream;
use super::shared::Shared;
use super::slots::{Receiving, StreamRef};
use super::state::State;
use crate::error::HttpError;
use crate::headers::{Head, Headers};
use crate::sync::Arc;

/// Heads, content and trailers from the peer. Dropping it before the end discards the rest.
pub(crate) struct RecvStream {
    shared: Arc<Shared>,
    stream: StreamRef,
    /// Content of the request that the server did not ask for. It resets the stream when it is dropped, so it lives as long as this.
    unsent: Option<Box<SendStream>>,
}

impl RecvStream {
    pub(super) fn new(shared: Arc<Shared>, stream: StreamRef) -> Self {
        Self { shared, stream, unsent: None }
    }

    /// The same stream, of a request whose content is not sent.
    pub(crate) fn with_unsent(mut self, unsent: SendStream) -> Self {
        self.unsent = Some(Box::new(unsent));
        self
    }

    /// Content is read as that of a transport: when the connection ends, what has not been read is dropped.
    pub(super) fn set_tunnel(&self) {
        if let Some(slot) = self.shared.lock().slots.get(self.stream) {
            slot.is_tunnel = true;
        }
    }

    /// Asks the server for another priority of the response (RFC 9218 §7.1).
    ///
    /// # Errors
    /// The stream or the connection has ended.
    pub(crate) fn send_priority_update(&self, priority: Priority) -> Result<(), HttpError> {
        self.shared.send_priority_update(self.stream.key, priority)
    }

    /// Whether the stream or the connection has failed, and with it what was not read. A client reads what has arrived.
    pub(super) fn has_failed(&self) -> bool {
        let mut state = self.shared.lock();
        state.core.role() == Role::Server
            && state.slots.get(self.stream).is_none_or(|slot| slot.error.is_some())
    }

    /// Whether the connection reads what the peer sends.
    pub(crate) fn is_read(&self) -> bool {
        self.shared.lock().is_reading()
    }

    #[cfg(test)]
    pub(super) fn end_connection(&self) {
        self.shared.lock().fail(HttpError::ConnectionLost);
    }

    /// The next head of a response: interim ones (below 200), then the final one.
    ///
    /// # Errors
    /// The stream was reset or refused, or the connection failed.
    pub(crate) async fn head(&mut self) -> Result<Head, HttpError> {
        poll_fn(|cx| {
            let mut state = self.shared.lock();
            let State { slots, core, deferred, .. } = &mut *state;
            let Some(slot) = slots.get(self.stream) else { return Poll::Ready(Err(HttpError::Closed)) };
            let Some(head) = slot.heads.take_head(core) else {
                return slot.poll_received(cx, deferred);
            };
            state.wake_driver();
            Poll::Ready(Ok(head))
        })
        .await
    }

    /// The next chunk of content; `None` at the end. Its window is given back to the peer.
    ///
    /// # Errors
    /// The stream was reset, or the connection failed.
    pub(crate) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        let stream = self.stream;
        self.shared.command(|state| {
            let polled = state.poll_content(cx, stream, RecvBuffer::pop, Bytes::len);
            if polled.is_pending() {
                state.send_continue(stream.key);
            }
            polled.map(Result::transpose)
        })
    }

    /// The trailers, if there are any, once [`poll_data`](Self::poll_data) has returned `None`.
    ///
    /// # Errors
    /// The connection has been evicted since then, and they were lost.
    pub(crate) fn trailers(&mut self) -> Result<Option<Headers>, HttpError> {
        let mut state = self.shared.lock();
        let State { slots, core, .. } = &mut *state;
        let Some(slot) = slots.get(self.stream) else { return Ok(None) };
        let Some(trailers) = slot.heads.take_trailers(core) else {
            let lost = slot.error.clone().filter(|_| slot.receiving == Receiving::Discarding);
            return lost.map_or(Ok(None), Err);
        };
        state.wake_driver();
        Ok(Some(trailers))
    }

    /// Reads content like a socket; 0 bytes at the end.
    ///
    /// # Errors
    /// As [`poll_data`](Self::poll_data).
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<Result<usize, HttpError>> {
        let stream = self.stream;
        self.shared.command(|state| {
            let polled = state.poll_content(cx, stream, |data| data.read(into), |&len| len);
            polled.map_ok(Option::unwrap_or_default)
        })
    }

    /// Ready when [`poll_read`](Self::poll_read) would be.
    pub(crate) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.shared.lock();
        let State { slots, deferred, .. } = &mut *state;
        match slots.get(self.stream) {
            Some(slot) if slot.data.is_empty() && slot.receiving != Receiving::Ended => {
                slot.poll_received::<()>(cx, deferred).map(drop)
            }
            _ => Poll::Ready(()),
        }
    }
}

impl State {
    /// Removes content from the stream's buffer and grants the peer new window for it; `None` at the end.
    fn poll_content<T>(
        &mut self,
        cx: &Context<'_>,
        stream: StreamRef,
        take: impl FnOnce(&mut RecvBuffer) -> T,
        len: impl FnOnce(&T) -> usize,
    ) -> Poll<Result<Option<T>, HttpError>> {
        let Self { slots, core, deferred, .. } = self;
        let Some(slot) = slots.get(stream) else { return Poll::Ready(Err(HttpError::Closed)) };
        if !slot.data.is_empty() {
            let content = take(&mut slot.data);
            // Never misuse: as much has arrived.
            let _ = core.release_capacity(stream.key, len(&content));
            return Poll::Ready(Ok(Some(content)));
        }
        if slot.receiving == Receiving::Ended {
            return Poll::Ready(Ok(None));
        }
        slot.poll_received(cx, deferred)
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        let stream = self.stream;
        self.shared.command(|state| {
            let State { slots, core, deferred, .. } = &mut *state;
            let Some(slot) = slots.get(stream) else { return };
            let (receiving, finished, is_accepted) = (slot.receiving, slot.finished, slot.is_accepted);
            // Content that a tunnel has sent before its end is still written, as over TCP.
            let is_sent = slot.is_tunnel && finished;
            if receiving == Receiving::Open {
                slot.receiving = Receiving::Discarding;
            }
            slot.discard_unread(core, deferred);
            if receiving == Receiving::Open && state.core.role() == Role::Client && !is_sent {
                // Without a reader of the response the request is pointless. Its content, if that is in the output, is before the reset.
                state.handle_events();
                let _ = state.core.reset(stream.key, ErrorCode::CANCEL);
                state.fail_stream(stream.key, &HttpError::StreamReset(ErrorCode::CANCEL));
            } else if receiving == Receiving::Open && finished {
                state.finish(stream.key, is_accepted);
            }
            state.release(stream);
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use wireloom_testing::http2::{Frame, PREFACE, join};

    use super::super::testing::{self, get};
    use super::super::{Driver, Progress, Requests};
    use super::*;
    use crate::memory::Evict as _;
    use crate::transport::Io;

    #[tokio::test]
    async fn unread_content_counts_after_its_stream_has_ended() {
        let (_driver, requests, shared) = client();
        let mut responses = Vec::new();
        for stream in [1, 3, 5] {
            responses.push(requests.open(get(), true).unwrap().1);
            let last = match stream {
                5 => Frame::rst_stream(5, 0),
                _ => Frame::data(stream, "").end_stream(),
            };
            receive(
                &shared,
                &[Frame::headers(stream, &[(":status", "200")]), Frame::data(stream, "content"), last],
            );
        }
        assert_eq!(shared.lock().core.streams(), 0);
        let held = || shared.lock().core.memory().held;
        assert_eq!(held(), 21);
        let content = std::future::poll_fn(|cx| responses[0].poll_data(cx)).await;
        assert_eq!((content.unwrap().unwrap(), held()), ("content".into(), 14));
        responses.pop();
        assert_eq!(held(), 7);
        responses.pop();
        assert_eq!(held(), 0);
    }

    /// A client, and a response of which a part was read when the connection is evicted. `end` are its last frames, which have arrived.
    async fn evicted(end: &[Frame]) -> (Driver, RecvStream) {
        let (driver, requests, shared) = client();
        let mut response = requests.open(get(), true).unwrap().1;
        let content = [Frame::headers(1, &[(":status", "200")]), Frame::data(1, "con")];
        receive(&shared, &[&content, end].concat());
        response.head().await.unwrap();
        let read = std::future::poll_fn(|cx| response.poll_read(cx, &mut [0; 3])).await;
        assert_eq!(read, Ok(3));
        shared.evict();
        (driver, response)
    }

    #[tokio::test]
    async fn content_that_an_eviction_has_dropped_does_not_end() {
        let rest = Frame::data(1, "tent");
        for end in
            [vec![rest.clone().end_stream()], vec![rest, Frame::headers(1, &[("a", "b")]).end_stream()]]
        {
            let (_driver, mut response) = evicted(&end).await;
            std::future::poll_fn(|cx| response.poll_readable(cx)).await;
            let read = std::future::poll_fn(|cx| response.poll_data(cx)).await;
            assert_eq!(read, Some(Err(HttpError::StreamReset(ErrorCode::ENHANCE_YOUR_CALM))));
        }
        let (_driver, mut response) = evicted(&[Frame::data(1, "").end_stream()]).await;
        assert_eq!(std::future::poll_fn(|cx| response.poll_data(cx)).await, None);
        assert_eq!(response.trailers(), Ok(None));
    }

    #[tokio::test]
    async fn trailers_that_an_eviction_has_dropped_are_an_error() {
        let long = "v".repeat(10_000);
        let (_driver, mut response) = evicted(&[Frame::headers(1, &[("a", &long)]).end_stream()]).await;
        assert_eq!(response.shared.lock().core.memory().caller, 0);
        let error = HttpError::StreamReset(ErrorCode::ENHANCE_YOUR_CALM);
        assert_eq!(response.trailers(), Err(error.clone()));
        assert_eq!(std::future::poll_fn(|cx| response.poll_data(cx)).await, Some(Err(error)));
    }

    // The driver waits, and reports the memory of the connection when it is woken.
    #[tokio::test]
    async fn heads_and_trailers_without_a_reader_are_freed() {
        let long = "v".repeat(10_000);
        let memory = crate::memory::Memory::new(1 << 30);
        let (mut peer, server) = tokio::io::duplex(1 << 20);
        let driver = testing::driver(Io::Other(Box::new(server)), Role::Server);
        let mut driver = driver.with_account(&memory.account());
        let shared = driver.shared().clone();
        let (sending, mut incoming_of_all) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut incoming = Vec::new();
            while std::future::poll_fn(|cx| driver.poll(cx, &mut incoming)).await == Progress::Incoming {
                incoming.drain(..).for_each(|request| sending.send(request).unwrap());
            }
        });
        let trailers = |stream| Frame::headers(stream, &[("a", &long)]).end_stream();
        let mut frames = vec![Frame::settings(&[]), Frame::settings_ack()];
        frames.extend((0..16).map(|n| Frame::post(1 + 2 * n)));
        frames.extend((0..8).map(|n| trailers(1 + 2 * n)));
        frames.extend((0..8).map(|n| Frame::rst_stream(1 + 2 * n, 8)));
        peer.write_all(&[PREFACE, &join(&frames)].concat()).await.unwrap();
        let mut handlers = Vec::new();
        for _ in 0..16 {
            let request = incoming_of_all.recv().await.unwrap();
            handlers.push((request.content, shared.handler_of(request.key)));
        }
        yield_often().await;
        assert!(memory.stats().heads > 80_000);
        // The trailers of the others arrive without a reader.
        handlers.iter_mut().for_each(|(content, _)| drop(content.take()));
        peer.write_all(&join(&(8..16).map(|n| trailers(1 + 2 * n)).collect::<Vec<_>>())).await.unwrap();
        yield_often().await;
        assert_eq!(memory.stats().heads, 0);
        drop(handlers);
        assert_eq!(shared.lock().slots.len(), 0);
    }

    async fn yield_often() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    /// A client whose server has sent SETTINGS.
    fn client() -> (Driver, Requests, Arc<Shared>) {
        let driver = testing::driver(Io::Other(Box::new(tokio::io::empty())), Role::Client);
        let (requests, shared) = (driver.requests(), driver.shared().clone());
        receive(&shared, &[Frame::settings(&[])]);
        (driver, requests, shared)
    }

    fn receive(shared: &Arc<Shared>, frames: &[Frame]) {
        testing::receive(shared, &join(frames));
    }

    #[tokio::test]
    async fn heads_and_trailers_that_nobody_takes_count_as_memory() {
        let (_driver, requests, shared) = client();
        let counted = || shared.lock().core.memory().caller;
        let long = "v".repeat(10_000);
        let open = || requests.open(get(), true).unwrap().1;
        let respond = |stream| {
            receive(
                &shared,
                &[
                    Frame::headers(stream, &[(":status", "103"), ("x-long", &long)]),
                    Frame::headers(stream, &[(":status", "200"), ("x-long", &long)]),
                    Frame::headers(stream, &[("x-long", &long)]).end_stream(),
                ],
            );
        };
        let mut taken = open();
        respond(1);
        for least in [20_000, 10_000] {
            taken.head().await.unwrap();
            assert!((least..least + 10_000).contains(&counted()), "{}", counted());
        }
        assert!(std::future::poll_fn(|cx| taken.poll_data(cx)).await.is_none());
        assert_eq!(taken.trailers().unwrap().unwrap().len(), 1);
        assert_eq!(counted(), 0);
        let dropped = open();
        respond(3);
        assert!(counted() > 30_000);
        drop(dropped);
        assert_eq!(counted(), 0);
        // Short ones are not worth it.
        let _short = open();
        receive(&shared, &[Frame::headers(5, &[(":status", "200"), ("x-short", &long[..1_000])])]);
        assert_eq!(counted(), 0);
    }

    // The core would keep their memory for the next message.
    #[tokio::test]
    async fn a_message_without_a_reader_leaves_no_memory() {
        let (_driver, requests, shared) = client();
        let response = requests.open(get(), true).unwrap();
        let long = "v".repeat(10_000);
        for _ in 0..20 {
            receive(&shared, &[Frame::headers(1, &[(":status", "103"), ("x-long", &long)])]);
            assert!(shared.lock().core.fields().is_empty());
        }
        drop(response);
    }
}
