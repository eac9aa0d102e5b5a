//! Observes the bytes of connections, above TLS.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Io;
use crate::event_queue::{self, EventQueue, Observed};
use crate::guard::{Deferred, Guardable, Guarded, WakerSlot, is_held};

/// Observes the bytes of connections above TLS, such as to record them: set [`ServerConfig::tap`](crate::ServerConfig::tap) or
/// [`Connector::tap`](crate::Connector::tap).
///
/// The function is called by the tasks of the connection, in the order of its reads and writes, with what was read or accepted for writing.
/// Credentials are among it. It may use the connection, which waits for a function that is slow.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use wireloom::{Connector, Tap, TapEvent};
///
/// let received = Arc::new(AtomicUsize::new(0));
/// let counter = received.clone();
/// let tap = Tap::new(move |_connection, event| {
///     if let TapEvent::Received(bytes) = event {
///         counter.fetch_add(bytes.len(), Ordering::Relaxed);
///     }
/// });
/// let connector = Connector::new().tap(tap);
/// ```
#[derive(Clone)]
pub struct Tap(Arc<Inner>);

struct Inner {
    /// Connections so far.
    connections: AtomicU64,
    observe: Box<dyn Fn(u64, TapEvent<'_>) + Send + Sync>,
}

/// Bytes of a connection, or the end of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TapEvent<'a> {
    /// Bytes that were read.
    Received(&'a [u8]),
    /// Bytes that the transport has accepted.
    Sent(&'a [u8]),
    /// The peer has ended its direction.
    ReceiveEnded,
    /// This end has ended its direction, or dropped the connection.
    SendEnded,
}

impl Tap {
    /// Calls `observe` with the number of the connection, from 1, and what happened on it.
    pub fn new(observe: impl Fn(u64, TapEvent<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { connections: AtomicU64::new(0), observe: Box::new(observe) }))
    }

    /// Observes a transport, of which `received` has been read already.
    pub(crate) fn wrap(&self, io: Io, received: &[u8]) -> Io {
        let connection = self.0.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let observation = Arc::new(Observation { tap: self.clone(), connection, queue: Guarded::default() });
        let tapped = Tapped { io, observation, receive_ended: false, send_ended: false };
        if !received.is_empty() {
            tapped.observe(TapEvent::Received(received));
        }
        Io::Tapped(Box::new(tapped))
    }
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap").field("connections", &self.0.connections).finish_non_exhaustive()
    }
}

/// The same function.
impl PartialEq for Tap {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Tap {}

/// A transport that is observed.
pub(crate) struct Tapped {
    io: Io,
    observation: Arc<Observation>,
    receive_ended: bool,
    send_ended: bool,
}

/// The tap of one connection. A connection that is locked is observed after the unlock, because the function may lock it.
///
/// ```text
/// locked       read, write --> events --.
/// unlocked     read, write --------------+--> the function
/// ```
struct Observation {
    tap: Tap,
    connection: u64,
    queue: Guarded<Queue>,
}

#[derive(Default)]
struct Queue {
    events: EventQueue<OwnedEvent>,
    /// The tasks that wait for room: [`READER`] and [`WRITER`].
    waiting: [WakerSlot; 2],
    deferred: Deferred,
}

const READER: usize = 0;
const WRITER: usize = 1;

impl Guardable for Queue {
    fn deferred(&mut self) -> &mut Deferred {
        &mut self.deferred
    }
}

impl Queue {
    fn wake(&mut self) {
        let Self { waiting, deferred, .. } = self;
        waiting.iter_mut().for_each(|slot| deferred.wake(slot));
    }
}

enum OwnedEvent {
    Received(Vec<u8>),
    Sent(Vec<u8>),
    ReceiveEnded,
    SendEnded,
}

impl OwnedEvent {
    fn of(event: TapEvent<'_>) -> Self {
        match event {
            TapEvent::Received(bytes) => Self::Received(bytes.to_vec()),
            TapEvent::Sent(bytes) => Self::Sent(bytes.to_vec()),
            TapEvent::ReceiveEnded => Self::ReceiveEnded,
            TapEvent::SendEnded => Self::SendEnded,
        }
    }

    fn borrow(&self) -> TapEvent<'_> {
        match self {
            Self::Received(bytes) => TapEvent::Received(bytes),
            Self::Sent(bytes) => TapEvent::Sent(bytes),
            Self::ReceiveEnded => TapEvent::ReceiveEnded,
            Self::SendEnded => TapEvent::SendEnded,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Received(bytes) | Self::Sent(bytes) => bytes.len(),
            Self::ReceiveEnded | Self::SendEnded => 0,
        }
    }
}

impl Observation {
    fn observe(self: &Arc<Self>, event: TapEvent<'_>) {
        if !is_held() && self.queue.with(|queue| queue.events.is_idle()) {
            return (self.tap.0.observe)(self.connection, event);
        }
        let event = OwnedEvent::of(event);
        let len = event.len();
        let Queue { events, deferred, .. } = &mut *self.queue.lock();
        events.push(event, len);
        if events.begin_delivery() {
            let delivery = event_queue::Delivery::new(self.clone());
            // When this thread has unlocked the connection.
            deferred.call(move || delivery.run());
        }
    }

    /// Ready when the transport may read or write; otherwise the task of this direction is woken then.
    fn poll_room(&self, direction: usize, cx: &Context<'_>) -> Poll<()> {
        let Queue { events, waiting, deferred } = &mut *self.queue.lock();
        if events.has_room() {
            return Poll::Ready(());
        }
        deferred.register(&mut waiting[direction], cx);
        Poll::Pending
    }
}

impl Observed for Observation {
    fn next_delivery(&self) -> Option<impl FnOnce()> {
        let mut queue = self.queue.lock();
        let (event, has_room_again) = queue.events.next_delivery()?;
        if has_room_again {
            queue.wake();
        }
        Some(move || (self.tap.0.observe)(self.connection, event.borrow()))
    }

    fn cancel_delivery(&self) {
        let mut queue = self.queue.lock();
        queue.events.cancel_delivery();
        queue.wake();
    }
}

impl Tapped {
    /// The transport, for what concerns no bytes.
    pub(super) fn io(&self) -> &Io {
        &self.io
    }

    /// As the transport's. Not inlined, because that calls it.
    #[inline(never)]
    pub(super) fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_read_ready(cx)
    }

    fn observe(&self, event: TapEvent<'_>) {
        self.observation.observe(event);
    }

    fn end_sending(&mut self) {
        if !std::mem::replace(&mut self.send_ended, true) {
            self.observe(TapEvent::SendEnded);
        }
    }

    fn end_receiving(&mut self) {
        if !std::mem::replace(&mut self.receive_ended, true) {
            self.observe(TapEvent::ReceiveEnded);
        }
    }
}

impl Drop for Tapped {
    fn drop(&mut self) {
        self.end_sending();
        self.end_receiving();
    }
}

impl AsyncRead for Tapped {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let into = buffer.initialize_unfilled();
        let is_empty = into.is_empty();
        ready!(self.observation.poll_room(READER, cx));
        let len = ready!(self.io.poll_read(cx, into))?;
        if len > 0 {
            self.observe(TapEvent::Received(&into[..len]));
        } else if !is_empty {
            self.end_receiving();
        }
        buffer.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tapped {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.observation.poll_room(WRITER, cx));
        let written = ready!(self.io.poll_write(cx, slices))?;
        let mut left = written;
        for slice in slices {
            let len = left.min(slice.len());
            if len > 0 {
                self.observe(TapEvent::Sent(&slice[..len]));
            }
            left -= len;
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.io.poll_shutdown(cx))?;
        self.end_sending();
        Poll::Ready(Ok(()))
    }
}

#[cfg(all(test, feature = "client", feature = "server"))]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::sync::{Mutex, OnceLock};
    use std::task::Waker;
    use std::time::Duration;

    use super::*;
    use crate::event_queue::QUEUED_LEN_MAX;
    use crate::{Connector, Request, Response, Server};

    /// Longer than the test takes unless it is blocked.
    const DEADLOCK: Duration = Duration::from_secs(60);

    type Use = Box<dyn Fn() + Send + Sync>;

    /// The data of a lock.
    #[derive(Default)]
    struct Empty(Deferred);

    impl crate::guard::Guardable for Empty {
        fn deferred(&mut self) -> &mut Deferred {
            &mut self.0
        }
    }

    async fn echo(request: Request) -> Response {
        match request.websocket() {
            Ok(upgrade) => upgrade.on_open(async |mut socket| {
                while let Ok(Some(message)) = socket.recv_owned().await {
                    let _ = socket.send(message).await;
                }
            }),
            Err(_) => Response::text(200, "hello"),
        }
    }

    /// Uses a connection over HTTP/2 and a WebSocket, whose tap calls what is set.
    async fn use_observed() {
        let server = Server::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        tokio::spawn(server.serve(echo));
        let tapped = || {
            let (uses, sent) = (Arc::new(OnceLock::<Use>::new()), Arc::new(AtomicU64::new(0)));
            let (using, counting) = (uses.clone(), sent.clone());
            let tap = Tap::new(move |_, event| {
                if let TapEvent::Sent(bytes) = event {
                    counting.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                }
                using.get().into_iter().for_each(|using| using());
            });
            (Connector::new().tap(tap), uses, sent)
        };
        let (connector, uses, _) = tapped();
        let http2 = connector.connect_http2(&format!("http://{address}")).await.unwrap();
        let own = http2.clone();
        uses.set(Box::new(move || assert!(own.is_open()))).ok().unwrap();
        http2.request(crate::client::Request::get("/")).await.unwrap();
        let (connector, uses, sent) = tapped();
        let socket = connector.connect(&format!("ws://{address}/")).await.unwrap();
        let before = sent.load(Ordering::Relaxed);
        let (mut sender, mut receiver) = socket.split();
        let own = Mutex::new(sender.clone());
        uses.set(Box::new(move || assert!(own.lock().unwrap().queued_len() < 100))).ok().unwrap();
        for _ in 0..3 {
            sender.send("message").await.unwrap();
            assert!(receiver.recv().await.unwrap().is_some());
        }
        assert_eq!(sent.load(Ordering::Relaxed) - before, 3 * (2 + 4 + 7));
    }

    #[test]
    fn a_tap_may_use_the_connection_that_it_observes() {
        let (done, is_done) = channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(use_observed());
            done.send(()).unwrap();
        });
        match is_done.recv_timeout(DEADLOCK) {
            Err(RecvTimeoutError::Timeout) => panic!("a deadlock"),
            _ => thread.join().unwrap(),
        }
    }

    // The connection goes on, and what was left is observed with the next event.
    #[test]
    fn a_panic_before_or_in_the_tap_does_not_stop_the_connection() {
        use std::panic::{AssertUnwindSafe, catch_unwind};
        for is_in_tap in [false, true] {
            let seen = Arc::new(AtomicU64::new(0));
            let seeing = seen.clone();
            let tap = Tap::new(move |_, _| {
                assert!(!is_in_tap || seeing.fetch_add(1, Ordering::Relaxed) > 0, "the first event");
            });
            let observation = Arc::new(Observation { tap, connection: 1, queue: Guarded::default() });
            let cx = Context::from_waker(Waker::noop());
            let outer = crate::guard::Guarded::new(Empty::default());
            let mut guard = outer.lock();
            if !is_in_tap {
                guard.0.call(|| panic!("code of the application"));
            }
            for _ in 0..3 {
                observation.observe(TapEvent::Sent(&[1; QUEUED_LEN_MAX]));
            }
            assert!(observation.poll_room(WRITER, &cx).is_pending());
            assert!(catch_unwind(AssertUnwindSafe(|| drop(guard))).is_err());
            assert!(observation.poll_room(WRITER, &cx).is_ready());
            observation.observe(TapEvent::ReceiveEnded);
            assert!(observation.queue.lock().events.is_idle());
        }
    }

    #[test]
    fn what_waits_to_be_observed_is_bounded_and_in_order() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let seeing = seen.clone();
        let tap = Tap::new(move |_, event| {
            if let TapEvent::Sent(bytes) = event {
                seeing.lock().unwrap().push((bytes[0], bytes.len()));
            }
        });
        let observation = Arc::new(Observation { tap, connection: 1, queue: Guarded::default() });
        let cx = Context::from_waker(Waker::noop());
        let outer = crate::guard::Guarded::new(Empty::default());
        let guard = outer.lock();
        observation.observe(TapEvent::Sent(&[1; 10]));
        assert!(observation.poll_room(WRITER, &cx).is_ready());
        observation.observe(TapEvent::Sent(&[2; QUEUED_LEN_MAX]));
        assert!(observation.poll_room(WRITER, &cx).is_pending());
        assert_eq!(seen.lock().unwrap().len(), 0);
        drop(guard);
        assert!(observation.poll_room(WRITER, &cx).is_ready());
        observation.observe(TapEvent::Sent(&[3]));
        assert_eq!(*seen.lock().unwrap(), [(1, 10), (2, QUEUED_LEN_MAX), (3, 1)]);
    }
}
