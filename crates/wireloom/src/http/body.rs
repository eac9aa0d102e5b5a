//! The content of a request or a response, complete or as a stream of chunks, and its trailers. The protocol modules send and
//! receive it.

use std::fmt;
use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::coop::poll_proceed;
use tokio::time::Instant;
#[cfg(feature = "http2")]
use wireloom_http2::error::ErrorCode;

use crate::deadline::{PeerDeadline, Timer};
use crate::error::HttpError;
use crate::headers::Headers;
use crate::http1::{BodyReceiver, Content};
#[cfg(feature = "http2")]
use crate::http2::RecvStream;
use crate::memory::{Account, Category, Reservation};

/// Capacity of the channel of a [`BodySender`], in chunks.
const CHANNEL_LEN: usize = 4;

/// A body that is collected gets another second for each of this number of bytes.
const BYTES_PER_SECOND_MIN: usize = 16 << 10;

/// Content: of a request as it arrives, of a response as it is to be sent.
///
/// Complete content is converted with `from`. Content that is produced over time is sent through a [`channel`](Self::channel) or a
/// [`Stream`](Self::from_stream). The body of a request can be used as the body of a response.
///
/// ```
/// use wireloom::{Body, Request, Response};
///
/// async fn count_down(_: Request) -> Response {
///     let (mut sender, body) = Body::channel();
///     tokio::spawn(async move {
///         for left in (0..3).rev() {
///             // Waits while the client is slow; fails when it has disconnected.
///             if sender.send(format!("{left}\n")).await.is_err() {
///                 return;
///             }
///         }
///     });
///     Response::new(200).with_body("text/plain", body)
/// }
/// ```
#[derive(Default)]
pub struct Body {
    source: Source,
    /// `None` for the defaults.
    options: Option<Box<StreamOptions>>,
}

/// Options for content that is received or sent in chunks.
#[derive(Default)]
struct StreamOptions {
    /// The longest content that is collected, in bytes.
    len_max: Option<usize>,
    /// The announced length, without the chunks that have been read.
    len: Option<u64>,
    /// How long to wait for the next chunk.
    timeout: Option<Duration>,
    /// For the next chunk, while it is waited for.
    deadline: Option<Box<ReadDeadline>>,
    trailers: Option<Headers>,
    /// The connection's memory, which collected content is part of.
    account: Account,
    /// The memory of the collected content. Its handler has it for as long as it has the body, in general.
    collected: Option<Reservation>,
}

/// A deadline for content, and its timer.
struct ReadDeadline(PeerDeadline, Timer);

impl ReadDeadline {
    fn after(timeout: Duration) -> Self {
        Self(PeerDeadline::after(timeout), Timer::Unset)
    }

    /// No content is read until the next poll.
    fn pause(&mut self) {
        self.0.pause(Instant::now());
    }

    /// `is_read`: the caller expects to read the content until the next poll.
    fn poll(&mut self, cx: &mut Context<'_>, is_read: bool) -> Poll<HttpError> {
        let passed = self.0.poll(&mut self.1, cx);
        if passed.is_pending() && !is_read {
            self.pause();
        }
        passed.map(|()| HttpError::BodyTimeout)
    }
}

#[derive(Default)]
enum Source {
    #[default]
    Empty,
    Whole(Bytes),
    /// Content of this length that is not sent: that of a response to HEAD.
    Omitted(u64),
    /// No response: the stream is reset with this code.
    #[cfg(feature = "http2")]
    Reset(ErrorCode),
    Http1(BodyReceiver),
    #[cfg(feature = "http2")]
    Http2(RecvStream),
    Channel(mpsc::Receiver<BodyFrame>, AbortReceiver),
    Stream(Pin<Box<dyn Stream<Item = Result<BodyFrame, HttpError>> + Send + Sync>>),
}

/// Ready with a value when the body was aborted, with an error when its sender was dropped.
struct AbortReceiver {
    receiver: oneshot::Receiver<()>,
    /// The result, once it is known.
    is_aborted: Option<bool>,
}

impl AbortReceiver {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        if self.is_aborted.is_none() {
            self.is_aborted = Some(ready!(Pin::new(&mut self.receiver).poll(cx)).is_ok());
        }
        self.is_aborted.map_or(Poll::Pending, Poll::Ready)
    }
}

/// Content or trailers, as in `http_body`.
pub(crate) enum BodyFrame {
    Data(Bytes),
    Trailers(Headers),
}

impl Body {
    /// No content.
    pub fn empty() -> Self {
        Self::default()
    }

    /// For a response to HEAD: the length that the content would have (RFC 9110 §8.6). Any other response is sent without content.
    pub fn omitted(len: u64) -> Self {
        Source::Omitted(len).into()
    }

    /// Not the content of a response: its stream is reset.
    #[cfg(all(feature = "server", feature = "http2"))]
    pub(crate) fn reset(code: ErrorCode) -> Self {
        Source::Reset(code).into()
    }

    /// The code with which the stream of the response is reset instead.
    #[cfg(all(feature = "server", feature = "http2"))]
    pub(crate) fn reset_code(&self) -> Option<ErrorCode> {
        match self.source {
            Source::Reset(code) => Some(code),
            _ => None,
        }
    }

    /// Content that is produced by the sender. It ends when the sender is dropped.
    pub fn channel() -> (BodySender, Self) {
        let (sender, receiver) = mpsc::channel(CHANNEL_LEN);
        let (abort, aborted) = oneshot::channel();
        let aborted = AbortReceiver { receiver: aborted, is_aborted: None };
        (BodySender { abort: Some(abort), sender }, Source::Channel(receiver, aborted).into())
    }

    /// Content produced by a stream. An error aborts the body, so that the peer knows that it is incomplete.
    pub fn from_stream<S, E>(stream: S) -> Self
    where
        S: Stream<Item = Result<Bytes, E>> + Send + 'static,
        E: Into<HttpError> + 'static,
    {
        Self::from_frames(DataStream(Exclusive::new(stream)), None)
    }

    /// Content and trailers produced by a stream; `len` is the length of the content in bytes, if known.
    pub(crate) fn from_frames<S>(stream: S, len: Option<u64>) -> Self
    where
        S: Stream<Item = Result<BodyFrame, HttpError>> + Send + Sync + 'static,
    {
        let body = Self::from(Source::Stream(Box::pin(stream)));
        if len.is_some() { body.options(|options| options.len = len) } else { body }
    }

    /// The content of an HTTP/1.1 message.
    pub(crate) fn http1(content: Content) -> Self {
        match content {
            Content::Whole(bytes) => bytes.into(),
            Content::Streamed(receiver, len) => {
                Self::from(Source::Http1(receiver)).options(|options| options.len = len)
            }
        }
    }

    /// The content of an HTTP/2 message, with its announced length.
    #[cfg(feature = "http2")]
    pub(crate) fn http2(stream: RecvStream, len: Option<u64>) -> Self {
        Self::from(Source::Http2(stream)).options(|options| options.len = len)
    }

    fn options(mut self, set: impl FnOnce(&mut StreamOptions)) -> Self {
        set(self.options.get_or_insert_default());
        self
    }

    /// Sets the length of the content in bytes.
    #[cfg(feature = "tower")]
    pub(crate) fn with_len(self, len: u64) -> Self {
        self.options(|options| options.len = Some(len))
    }

    /// Sets the timeout for the next chunk, after which [`chunk`](Self::chunk) fails; `None` for no timeout.
    #[must_use]
    pub fn with_timeout(self, timeout: Option<Duration>) -> Self {
        self.options(|options| options.timeout = timeout)
    }

    /// Sets the maximum number of bytes that [`bytes`](Self::bytes) collects.
    #[must_use]
    pub fn with_len_max(self, len_max: usize) -> Self {
        self.options(|options| options.len_max = Some(len_max))
    }

    /// Counts collected content among the memory of its connection.
    pub(crate) fn with_account(self, account: &Account) -> Self {
        if let Source::Http1(receiver) = &self.source {
            receiver.count_in(account);
        }
        self.options(|options| options.account = account.clone())
    }

    /// Whether the body has been read to its end.
    #[cfg(feature = "tower")]
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.source, Source::Empty | Source::Omitted(_))
            && self.options.as_ref().is_none_or(|options| options.trailers.is_none())
    }

    /// Whether all of the content is in memory.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self.source, Source::Empty | Source::Omitted(_) | Source::Whole(_))
    }

    /// All of the content, if it is in memory.
    pub(crate) fn whole(&mut self) -> Option<Bytes> {
        match &mut self.source {
            Source::Empty | Source::Omitted(_) => Some(Bytes::new()),
            Source::Whole(bytes) => Some(std::mem::take(bytes)),
            _ => None,
        }
    }

    /// A copy of complete content; `None` for a stream.
    #[cfg(feature = "client")]
    pub(crate) fn try_clone(&self) -> Option<Self> {
        match &self.source {
            Source::Empty => Some(Self::empty()),
            Source::Whole(bytes) => Some(bytes.clone().into()),
            _ => None,
        }
    }

    /// The length of the content that has not been read, if it is known.
    pub fn len_hint(&self) -> Option<u64> {
        match &self.source {
            Source::Empty => Some(0),
            Source::Omitted(len) => Some(*len),
            Source::Whole(bytes) => Some(bytes.len() as u64),
            _ => self.options.as_ref()?.len,
        }
    }

    /// The next chunk, in the size in which it arrived; `None` at the end.
    ///
    /// The peer is slowed down while this is not called. A client that waits for `100 Continue` gets it at the first call.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// The peer disconnected, broke a rule of the protocol, or took too long.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, HttpError> {
        poll_fn(|cx| self.poll_chunk(cx)).await.transpose()
    }

    /// Polls for the next chunk; see [`chunk`](Self::chunk).
    ///
    /// # Errors
    /// As for [`chunk`](Self::chunk).
    pub fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        let next = self.poll_source(cx);
        let Some(options) = &mut self.options else { return next };
        if let Poll::Ready(chunk) = &next {
            options.deadline = None;
            if let (Some(Ok(chunk)), Some(len)) = (chunk, &mut options.len) {
                *len = len.saturating_sub(chunk.len() as u64);
            }
            return next;
        }
        let Some(timeout) = options.timeout else { return Poll::Pending };
        let deadline = options.deadline.get_or_insert_with(|| Box::new(ReadDeadline::after(timeout)));
        deadline.poll(cx, self.source.is_read()).map(|error| Some(Err(error)))
    }

    /// Ready when the producer has aborted the content, also while chunks are queued.
    pub(crate) fn poll_aborted(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.source {
            Source::Channel(_, aborted) => match ready!(aborted.poll(cx)) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            },
            _ => Poll::Pending,
        }
    }

    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        let mut trailers = None;
        let chunk = match &mut self.source {
            Source::Empty | Source::Omitted(_) => None,
            Source::Whole(bytes) => Some(Ok(std::mem::take(bytes))),
            #[cfg(feature = "http2")]
            Source::Reset(code) => Some(Err(HttpError::StreamReset(*code))),
            Source::Http1(reader) => {
                let chunk = ready!(reader.poll_chunk(cx));
                if chunk.is_none() {
                    trailers = reader.trailers();
                }
                chunk
            }
            #[cfg(feature = "http2")]
            Source::Http2(stream) => match ready!(stream.poll_data(cx)) {
                None => stream.trailers().map(|taken| trailers = taken).err().map(Err),
                chunk => chunk,
            },
            Source::Channel(receiver, aborted) => match ready!(receiver.poll_recv(cx)) {
                Some(frame) => frame.data(&mut trailers).map(Ok),
                // The sender was dropped, or is being dropped.
                None => ready!(aborted.poll(cx)).then_some(Err(HttpError::ConnectionLost)),
            },
            Source::Stream(stream) => {
                // The task yields also to a stream that is always ready, with chunks that are empty.
                let budget = ready!(poll_proceed(cx));
                let next = ready!(stream.as_mut().poll_next(cx));
                budget.made_progress();
                match next {
                    Some(Ok(frame)) => frame.data(&mut trailers).map(Ok),
                    Some(Err(error)) => Some(Err(error)),
                    None => None,
                }
            }
        };
        if !matches!(&chunk, Some(Ok(_))) || matches!(self.source, Source::Whole(_)) {
            self.source = Source::Empty;
        }
        if trailers.is_some() {
            self.options.get_or_insert_default().trailers = trailers;
        }
        Poll::Ready(chunk)
    }

    /// Collects all of the content. For a request it is limited by [`ServerConfig::body_len_max`](crate::ServerConfig) and
    /// [`body_timeout`](crate::ServerConfig).
    ///
    /// # Errors
    /// [`HttpError::TooLarge`], before anything is read when the peer says so itself; and as for [`chunk`](Self::chunk).
    /// [`Response`](crate::Response) can be made from the error.
    pub async fn bytes(&mut self) -> Result<Bytes, HttpError> {
        let options = self.options.as_deref();
        let (len_max, timeout) = options.map_or((None, None), |options| (options.len_max, options.timeout));
        let len_max = len_max.unwrap_or(usize::MAX);
        if !matches!(self.source, Source::Omitted(_))
            && self.len_hint().is_some_and(|len| len > len_max as u64)
        {
            return Err(HttpError::TooLarge);
        }
        if let Some(bytes) = self.whole() {
            return Ok(bytes);
        }
        let mut deadline = timeout.map(ReadDeadline::after);
        let mut collected = BytesMut::new();
        let mut reservation = self.options.get_or_insert_default().account.reservation(Category::Body);
        loop {
            let next = poll_fn(|cx| self.poll_collected(&mut deadline, cx)).await.transpose()?;
            let Some(next) = next else {
                self.options.get_or_insert_default().collected = Some(reservation);
                return Ok(collected.freeze());
            };
            if next.len() > len_max - collected.len() {
                return Err(HttpError::TooLarge);
            }
            let len = collected.len() + next.len();
            if len > collected.capacity() {
                // It doubles, as a vector does.
                let capacity = len.max(2 * collected.capacity());
                reservation.try_set(capacity).map_err(|_| HttpError::Overloaded)?;
                collected.reserve(capacity - collected.len());
            }
            let seconds = |len| (len / BYTES_PER_SECOND_MIN) as u64;
            let before = seconds(collected.len());
            collected.extend_from_slice(&next);
            if let Some(deadline) = &mut deadline {
                deadline.0.extend(Duration::from_secs(seconds(collected.len()) - before));
            }
        }
    }

    /// Polls for the next chunk of content that is collected; waits while the server is near its memory limit and this connection holds
    /// some of it.
    fn poll_collected(
        &mut self,
        deadline: &mut Option<ReadDeadline>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, HttpError>>> {
        let may_read = match &self.source {
            // The last chunk was copied.
            Source::Http1(receiver) => receiver.release_chunk(),
            _ => true,
        };
        let account = self.options.as_ref().map(|options| &options.account).filter(|_| may_read);
        if account.is_some_and(|account| account.poll_read_allowed(cx).is_pending()) {
            deadline.iter_mut().for_each(ReadDeadline::pause);
            let of_chunk = self.options.as_mut().and_then(|options| options.deadline.as_mut());
            of_chunk.into_iter().for_each(|deadline| deadline.pause());
            return Poll::Pending;
        }
        match (self.poll_chunk(cx), deadline) {
            (Poll::Pending, Some(deadline)) => {
                deadline.poll(cx, self.source.is_read()).map(|error| Some(Err(error)))
            }
            (next, _) => next,
        }
    }

    /// The trailers, once [`chunk`](Self::chunk) or [`bytes`](Self::bytes) has reached the end of the content.
    pub fn trailers(&mut self) -> Option<Headers> {
        self.options.as_mut()?.trailers.take()
    }
}

impl Source {
    /// Whether the connection reads what arrives: one of HTTP/2 does not while it lacks memory or processor time.
    fn is_read(&self) -> bool {
        match self {
            #[cfg(feature = "http2")]
            Self::Http2(stream) => stream.is_read(),
            _ => true,
        }
    }
}

impl From<Source> for Body {
    fn from(source: Source) -> Self {
        Self { source, options: None }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() { Self::empty() } else { Source::Whole(bytes).into() }
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl From<&'static [u8]> for Body {
    fn from(bytes: &'static [u8]) -> Self {
        Bytes::from_static(bytes).into()
    }
}

impl Stream for Body {
    type Item = Result<Bytes, HttpError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_chunk(cx)
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("len", &self.len_hint()).finish_non_exhaustive()
    }
}

impl BodyFrame {
    /// The data of the frame. Trailers, which end the content, are stored in `trailers`.
    fn data(self, trailers: &mut Option<Headers>) -> Option<Bytes> {
        match self {
            Self::Data(data) => Some(data),
            Self::Trailers(sent) => {
                *trailers = Some(sent);
                None
            }
        }
    }
}

/// A value that is only used through exclusive references, so that it is `Sync`: the mutex is never locked.
pub(crate) struct Exclusive<T>(Mutex<Pin<Box<T>>>);

impl<T> Exclusive<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(Box::pin(value)))
    }

    pub(crate) fn get_mut(&mut self) -> Pin<&mut T> {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut()
    }
}

/// Frames of a stream of chunks, with this crate's errors.
struct DataStream<S>(Exclusive<S>);

impl<S, E> Stream for DataStream<S>
where
    S: Stream<Item = Result<Bytes, E>>,
    E: Into<HttpError>,
{
    type Item = Result<BodyFrame, HttpError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.get_mut().0.get_mut().poll_next(cx));
        Poll::Ready(next.map(|item| item.map(BodyFrame::Data).map_err(Into::into)))
    }
}

/// Sends the content of a [`Body::channel`].
#[derive(Debug)]
pub struct BodySender {
    /// Dropped before `sender`: when the receiver sees the end of the channel, it is known whether the body was aborted.
    abort: Option<oneshot::Sender<()>>,
    sender: mpsc::Sender<BodyFrame>,
}

impl BodySender {
    /// Sends a chunk; waits while the peer reads more slowly than chunks are sent. Nothing is sent for an empty one, which waits and
    /// fails as others do.
    ///
    /// # Cancel safety
    /// If the future is dropped, the chunk was either sent completely or not at all.
    ///
    /// # Errors
    /// [`HttpError::Closed`] when the receiver was dropped.
    pub async fn send(&mut self, data: impl Into<Bytes>) -> Result<(), HttpError> {
        let data = data.into();
        let permit = self.sender.reserve().await.map_err(|_| HttpError::Closed)?;
        if !data.is_empty() {
            permit.send(BodyFrame::Data(data));
        }
        Ok(())
    }

    /// Ends the content with trailers. HTTP/1.1 sends them to clients with `TE: trailers`.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn finish(self, trailers: Headers) -> Result<(), HttpError> {
        self.sender.send(BodyFrame::Trailers(trailers)).await.map_err(|_| HttpError::Closed)
    }

    /// Waits until the receiver is dropped: the peer has disconnected, or wants no more content.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }

    /// Aborts the body, so that the peer knows that it is incomplete. If the peer does not read, the connection or the stream is reset at
    /// once, and queued chunks are dropped. A client of HTTP/1.0 over a Unix socket cannot know: there a body has no end but that of the
    /// connection, and a connection no reset.
    pub fn abort(mut self) {
        self.set_aborted();
    }

    fn set_aborted(&mut self) {
        if let Some(abort) = self.abort.take() {
            // The receiver may have been dropped.
            let _ = abort.send(());
        }
    }
}

impl Drop for BodySender {
    /// A body whose producer panicked is aborted, because it is incomplete.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.set_aborted();
        }
    }
}

impl fmt::Debug for BodyFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(data) => f.debug_tuple("Data").field(&data.len()).finish(),
            Self::Trailers(trailers) => f.debug_tuple("Trailers").field(trailers).finish(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::memory::Memory;

    const TIMEOUT: Duration = Duration::from_secs(10);

    // A handler may wait for others with the content of its request.
    #[tokio::test]
    async fn collected_content_counts_until_its_body_is_dropped() {
        let memory = Memory::new(1 << 20);
        let account = memory.account();
        let bodies = || memory.stats().bodies;
        let (mut sender, body) = Body::channel();
        let mut body = body.with_account(&account);
        sender.send(vec![0; 100_000]).await.unwrap();
        drop(sender);
        let content = body.bytes().await.unwrap();
        assert_eq!(content.len(), 100_000);
        assert!(bodies() >= 100_000, "{}", bodies());
        drop(body);
        assert_eq!(bodies(), 0);
    }

    // Others hold the memory for a minute. Then the peer has the rest of its time.
    #[tokio::test(start_paused = true)]
    async fn time_in_which_nothing_is_read_does_not_count() {
        for is_late in [false, true] {
            let memory = Memory::new(1 << 20);
            let account = memory.account();
            let mut held = account.reservation(Category::Body);
            let (mut sender, body) = Body::channel();
            let mut body = body.with_account(&account).with_timeout(Some(TIMEOUT));
            let reading = tokio::spawn(async move { body.bytes().await });
            tokio::time::sleep(Duration::from_secs(4)).await;
            held.set(1 << 20);
            sender.send("content").await.unwrap();
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(!reading.is_finished());
            drop(held);
            tokio::time::sleep(Duration::from_secs(if is_late { 7 } else { 5 })).await;
            drop(sender);
            let expected = if is_late { Err(HttpError::BodyTimeout) } else { Ok("content".into()) };
            assert_eq!(reading.await.unwrap(), expected);
        }
    }

    // Others hold the memory for a minute, in which the connection is not read.
    #[cfg(feature = "http2")]
    #[tokio::test(start_paused = true)]
    async fn time_in_which_the_connection_does_not_read_does_not_count() {
        use tokio::io::AsyncWriteExt as _;
        use wireloom_http2::{Config, Role};
        use wireloom_testing::http2::{Frame, PREFACE, join};

        use crate::http2::{Driver, Progress};
        use crate::transport::Io;

        const MAX: usize = 64 << 20;
        for is_late in [false, true] {
            let memory = Memory::new(MAX);
            let (account, other) = (memory.account(), memory.account());
            let (mut client, server) = tokio::io::duplex(1 << 20);
            let opening = [Frame::settings(&[]), Frame::settings_ack(), Frame::post(1)];
            client.write_all(&[PREFACE, &join(&opening)].concat()).await.unwrap();
            let driver =
                Driver::new(Io::Other(Box::new(server)), Role::Server, Config::new(Role::Server)).unwrap();
            let (mut driver, mut incoming) = (driver.with_account(&account), Vec::new());
            assert!(poll_fn(|cx| driver.poll(cx, &mut incoming)).await == Progress::Incoming);
            let content = incoming.pop().unwrap().content.unwrap();
            tokio::spawn(async move {
                while poll_fn(|cx| driver.poll(cx, &mut incoming)).await == Progress::Incoming {}
            });
            let mut body = Body::http2(content, None).with_timeout(Some(TIMEOUT));
            let reading = tokio::spawn(async move { body.chunk().await });
            tokio::time::sleep(Duration::from_secs(4)).await;
            let mut of_connection = account.reservation(Category::Body);
            of_connection.set(100_000);
            let mut held = other.reservation(Category::Body);
            held.set(MAX / 4 * 3);
            client.write_all(&Frame::window_update(0, 1).to_bytes()).await.unwrap();
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(!reading.is_finished());
            drop(held);
            tokio::time::sleep(Duration::from_secs(if is_late { 8 } else { 3 })).await;
            client.write_all(&Frame::data(1, "content").to_bytes()).await.unwrap();
            let expected = if is_late { Err(HttpError::BodyTimeout) } else { Ok(Some("content".into())) };
            assert_eq!(reading.await.unwrap(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_the_process_is_stopped_does_not_count() {
        let (_sender, body) = Body::channel();
        let mut body = body.with_timeout(Some(TIMEOUT));
        let mut poll = || body.poll_chunk(&mut Context::from_waker(std::task::Waker::noop()));
        assert!(poll().is_pending());
        tokio::time::advance(6 * TIMEOUT).await;
        assert!(poll().is_pending());
        let mut seconds = 0;
        while poll().is_pending() {
            tokio::time::advance(Duration::from_secs(1)).await;
            seconds += 1;
        }
        // A look is due each 2.5 s.
        assert_eq!(seconds, 8);
    }

    // More often than a task may go on without yielding.
    const TIMES: usize = 10_000;

    #[tokio::test]
    async fn a_producer_of_nothing_yields_and_learns_of_the_end() {
        let (mut sender, body) = Body::channel();
        tokio::spawn(async move { drop(body) });
        for _ in 0..TIMES {
            if let Err(error) = sender.send("").await {
                assert_eq!(error, HttpError::Closed);
                return;
            }
        }
        panic!("the receiver could not run, or its end was not noticed");
    }

    #[tokio::test]
    async fn a_stream_of_nothing_yields() {
        let mut body = Body::from_stream(futures_util::stream::repeat(Ok::<_, HttpError>(Bytes::new())));
        let has_run = Arc::new(AtomicBool::new(false));
        let running = has_run.clone();
        tokio::spawn(async move { running.store(true, Ordering::Relaxed) });
        for _ in 0..TIMES {
            assert_eq!(body.chunk().await.unwrap().as_deref(), Some(&b""[..]));
        }
        assert!(has_run.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn the_length_is_that_of_the_rest() {
        // A handler may look at the first chunk and send the rest on, with its length.
        let frames = ["one", "three"].map(|chunk| Ok(BodyFrame::Data(chunk.into())));
        let mut frames = frames.into_iter();
        let stream = futures_util::stream::poll_fn(move |_| Poll::Ready(frames.next()));
        let mut body = Body::from_frames(stream, Some(8));
        for (chunk, left) in [(Some("one"), 5), (Some("three"), 0), (None, 0)] {
            assert_eq!(body.chunk().await.unwrap().as_deref(), chunk.map(str::as_bytes));
            assert_eq!(body.len_hint(), Some(left));
        }
    }
}
