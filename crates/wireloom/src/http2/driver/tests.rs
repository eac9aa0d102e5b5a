use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf};
use wireloom_http2::field::{Field, Token};
use wireloom_testing::http2::{Frame, PREFACE, code, join, kind, literal, split};

use super::super::testing::{driver, get};
use super::*;
use crate::memory::{Category, Memory};
use crate::transport::counted::Counted;
use crate::transport::tls::{ServerTls, provider};

/// A peer whose bytes arrive as `read` returns them, `None` if there are none yet, and that accepts what is sent as `write` does.
struct Scripted<R, W> {
    read: R,
    write: W,
}

impl<R, W> Scripted<R, W>
where
    R: FnMut() -> Option<Vec<u8>> + Send + Unpin + 'static,
    W: FnMut(&[u8]) -> io::Result<usize> + Send + Unpin + 'static,
{
    fn io(read: R, write: W) -> Io {
        Io::Other(Box::new(Self { read, write }))
    }
}

impl<R: FnMut() -> Option<Vec<u8>> + Unpin, W: Unpin> AsyncRead for Scripted<R, W> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let budget = std::task::ready!(tokio::task::coop::poll_proceed(cx));
        let Some(bytes) = (self.read)() else { return Poll::Pending };
        budget.made_progress();
        buf.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl<R: Unpin, W: FnMut(&[u8]) -> io::Result<usize> + Unpin> AsyncWrite for Scripted<R, W> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready((self.write)(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Bytes between a test and the transport of a driver.
#[derive(Clone, Default)]
struct Queue(std::sync::Arc<std::sync::Mutex<std::collections::VecDeque<Vec<u8>>>>);

impl Queue {
    fn push(&self, bytes: Vec<u8>) {
        self.0.lock().unwrap().push_back(bytes);
    }

    fn pop(&self) -> Option<Vec<u8>> {
        self.0.lock().unwrap().pop_front()
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_never_stops_sending_does_not_postpone_deadlines() {
    let opening = [PREFACE, &join(&[Frame::settings(&[]), Frame::settings_ack()])].concat();
    let mut opening = Some(opening);
    let read = move || opening.take().or_else(|| Some(Frame::ping("question").to_bytes()));
    let mut driver =
        driver(Scripted::io(read, |bytes| Ok(bytes.len())), Role::Server).with_idle_timeout(IDLE_TIMEOUT);
    let shared = driver.shared().clone();
    let driving = tokio::spawn(async move {
        let mut incoming = Vec::new();
        poll_fn(|cx| driver.poll(cx, &mut incoming)).await
    });
    let start = Instant::now();
    let is_going_away = || shared.lock().core.is_going_away();
    while start.elapsed() < Duration::from_secs(58) {
        assert!(!is_going_away());
        // Each poll reads until its budget is used up.
        tokio::time::advance(Duration::from_secs(2)).await;
    }
    for _ in 0..3 {
        tokio::time::advance(Duration::from_secs(2)).await;
    }
    assert!(is_going_away(), "the idle timeout of 60 s has passed");
    driving.abort();
}

#[tokio::test]
async fn the_reason_of_a_server_that_has_closed_is_read_after_a_failed_write() {
    let closes = Arc::new(AtomicBool::new(false));
    let reads = Queue::default();
    reads.push(Frame::settings(&[]).to_bytes());
    let (is_closing, answers, mut has_begun) = (closes.clone(), reads.clone(), false);
    let write = move |bytes: &[u8]| match is_closing.load(Ordering::Relaxed) {
        false => Ok(bytes.len()),
        // The request has begun to leave.
        true if !std::mem::replace(&mut has_begun, true) => Ok(1),
        true => {
            answers.push(Frame::goaway(1, code::ENHANCE_YOUR_CALM, "").to_bytes());
            Err(io::ErrorKind::ConnectionReset.into())
        }
    };
    let driver = driver(Scripted::io(move || reads.pop(), write), Role::Client);
    let requests = driver.requests();
    tokio::spawn(driver.run());
    requests.ready().await.unwrap();
    closes.store(true, Ordering::Relaxed);
    let (_send, mut recv) = requests.open(get(), true).unwrap();
    assert_eq!(recv.head().await.unwrap_err(), HttpError::GoAway(ErrorCode::ENHANCE_YOUR_CALM));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_has_sent_the_rest_is_not_late_if_this_process_is() {
    for (rest, is_reset) in [(Frame::data(1, "end").end_stream(), false), (Frame::data(1, "more"), true)] {
        let (reads, writes) = (Queue::default(), Queue::default());
        let (read, written) = (reads.clone(), writes.clone());
        let write = move |bytes: &[u8]| {
            written.push(bytes.to_vec());
            Ok(bytes.len())
        };
        let send = |bytes| reads.push(bytes);
        send([PREFACE, &join(&[Frame::settings(&[]), Frame::settings_ack(), Frame::post(1)])].concat());
        let mut driver = driver(Scripted::io(move || read.pop(), write), Role::Server);
        let mut incoming = Vec::new();
        let progress = poll_fn(|cx| driver.poll(cx, &mut incoming)).await;
        assert_eq!(progress, Progress::Incoming);
        let refusal = [Field::known(Token::Status, b"404")];
        let key = incoming.drain(..).next().unwrap().key;
        driver.shared().send_response(key, refusal, "no".into()).unwrap();
        let mut poll = async || {
            let polled = poll_fn(|cx| Poll::Ready(driver.poll(cx, &mut incoming))).await;
            assert!(polled.is_pending());
        };
        poll().await;
        // The process is paused while the rest arrives, which takes two reads.
        tokio::time::advance(Duration::from_secs(10)).await;
        send(Frame::data(1, "some").to_bytes());
        send(rest.to_bytes());
        poll().await;
        let received: Vec<_> = std::iter::from_fn(|| writes.pop()).flatten().collect();
        let was_reset = split(&received).iter().any(|frame| frame.kind == kind::RST_STREAM);
        assert_eq!(was_reset, is_reset, "{rest:?}");
    }
}

const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A server that closes idle connections, and a client that has sent these frames.
async fn idle_server(opening: &[Frame]) -> (DuplexStream, Driver) {
    let (mut client, server) = tokio::io::duplex(1 << 20);
    client.write_all(&[PREFACE, &join(opening)].concat()).await.unwrap();
    let driver = driver(Io::Other(Box::new(server)), Role::Server);
    (client, driver.with_idle_timeout(IDLE_TIMEOUT))
}

// Its requests are answered within one poll, so that no stream is open whenever the driver waits.
#[tokio::test(start_paused = true)]
async fn a_busy_connection_is_not_idle() {
    let (mut client, mut driver) = idle_server(&[Frame::settings(&[]), Frame::settings_ack()]).await;
    let shared = driver.shared().clone();
    let answering = shared.clone();
    tokio::spawn(async move {
        let mut incoming = Vec::new();
        while poll_fn(|cx| driver.poll(cx, &mut incoming)).await == Progress::Incoming {
            for request in incoming.drain(..) {
                answering
                    .send_response(request.key, [Field::known(Token::Status, b"200")], "a".into())
                    .unwrap();
            }
        }
    });
    for stream in 0..20 {
        client.write_all(&Frame::get(1 + 2 * stream).to_bytes()).await.unwrap();
        tokio::time::sleep(IDLE_TIMEOUT / 6).await;
        assert!(!shared.lock().core.is_going_away(), "{stream}");
    }
    tokio::time::sleep(IDLE_TIMEOUT).await;
    assert!(shared.lock().core.is_going_away());
}

// The driver waits again before the task of the handler learns that its stream was reset.
#[tokio::test(start_paused = true)]
async fn a_connection_whose_last_request_is_reset_is_idle() {
    let (mut client, mut driver) =
        idle_server(&[Frame::settings(&[]), Frame::settings_ack(), Frame::get(1)]).await;
    let shared = driver.shared().clone();
    let handling = shared.clone();
    tokio::spawn(async move {
        let mut incoming = Vec::new();
        while poll_fn(|cx| driver.poll(cx, &mut incoming)).await == Progress::Incoming {
            for request in incoming.drain(..) {
                let handler = handling.handler_of(request.key).unwrap();
                tokio::spawn(async move { poll_fn(|cx| handler.poll_failed(cx)).await });
            }
        }
    });
    // Nothing is left that would wake the driver.
    tokio::time::sleep(IDLE_TIMEOUT).await;
    client.write_all(&Frame::rst_stream(1, code::CANCEL).to_bytes()).await.unwrap();
    tokio::time::sleep(IDLE_TIMEOUT - Duration::from_secs(1)).await;
    assert!(!shared.lock().core.is_going_away());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(shared.lock().core.is_going_away());
}

// Its acknowledgement of SETTINGS and the rest of its frame are not read, and arrive in time.
#[tokio::test(start_paused = true)]
async fn a_peer_that_is_not_read_for_lack_of_memory_is_not_late() {
    const MAX: usize = 64 << 20;
    let memory = Memory::new(MAX);
    let account = memory.account();
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let get = Frame::get(1).to_bytes();
    client.write_all(&[PREFACE, &Frame::settings(&[]).to_bytes(), &get[..5]].concat()).await.unwrap();
    let mut driver = driver(Io::Other(Box::new(server)), Role::Server);
    driver = driver.with_account(&account);
    let shared = driver.shared().clone();
    let (answered, answering) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let mut incoming = Vec::new();
        let progress = poll_fn(|cx| driver.poll(cx, &mut incoming)).await;
        answered.send((progress, driver)).ok().unwrap();
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut held = account.reservation(Category::Body);
    held.set(MAX - 1);
    client.write_all(&[&get[5..], &Frame::settings_ack().to_bytes()].concat()).await.unwrap();
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(shared.lock().core.ended(), None);
    }
    drop(held);
    let (progress, _driver) = answering.await.unwrap();
    assert_eq!(progress, Progress::Incoming);
    assert_eq!(shared.lock().core.ended(), None);
}

/// A client of a server that is near its memory limit, whose connection holds `queued` bytes of a response and nothing else. Returns
/// how much of it arrives at a client that grants window for what it has read.
async fn content_read_near_the_limit(queued: usize, is_queued_first: bool) -> usize {
    const MAX: usize = 64 << 20;
    let memory = Memory::new(MAX);
    let (account, other) = (memory.account(), memory.account());
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let opening = [Frame::settings(&[]), Frame::settings_ack(), Frame::get(1)];
    client.write_all(&[PREFACE, &join(&opening)].concat()).await.unwrap();
    let driver = driver(Io::Other(Box::new(server)), Role::Server);
    let mut driver = driver.with_account(&account);
    let shared = driver.shared().clone();
    let (requested, request) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let (mut incoming, mut requested) = (Vec::new(), Some(requested));
        while poll_fn(|cx| driver.poll(cx, &mut incoming)).await == Progress::Incoming {
            requested.take().unwrap().send(incoming.pop().unwrap()).ok().unwrap();
        }
    });
    let mut send = shared.send_stream(request.await.unwrap().key);
    // All of the window.
    let window = 65_535;
    send.send_response([Field::known(Token::Status, b"200")], false).unwrap();
    send.send(vec![CONTENT; window].into(), false).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (mut held, mut of_connection) =
        (other.reservation(Category::Body), account.reservation(Category::Body));
    let mut rest = Some(vec![CONTENT; queued - window]);
    if is_queued_first {
        send.send(rest.take().unwrap().into(), true).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    held.set(MAX / 4 * 3);
    // The connection also holds memory that reading does not free.
    of_connection.set(100_000);
    let (mut total, mut bytes) = (0, vec![0; 1 << 16]);
    while total < queued {
        let Ok(read) = tokio::time::timeout(Duration::from_secs(100), client.read(&mut bytes)).await else {
            break;
        };
        let bytes = &bytes[..read.unwrap()];
        let len = bytes.iter().filter(|&&byte| byte == CONTENT).count();
        total += len;
        if len > 0 {
            let grants = [Frame::window_update(0, len as u32), Frame::window_update(1, len as u32)];
            client.write_all(&join(&grants)).await.unwrap();
        }
        if total == window
            && let Some(rest) = rest.take()
        {
            // The server does not read any more.
            tokio::time::sleep(Duration::from_secs(1)).await;
            send.send(rest.into(), true).unwrap();
        }
    }
    total
}

// The rest of what has arrived is read under the mutex.
#[test]
fn near_the_memory_limit_a_write_that_fails_ends_the_connection() {
    let (ended, has_ended) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            const MAX: usize = 64 << 20;
            let memory = Memory::new(MAX);
            let (account, other) = (memory.account(), memory.account());
            let (mut client, server) = tokio::io::duplex(1 << 20);
            let opening = [Frame::settings(&[]), Frame::settings_ack(), Frame::get(1)];
            client.write_all(&[PREFACE, &join(&opening)].concat()).await.unwrap();
            let driver = driver(Io::Other(Box::new(server)), Role::Server);
            let mut driver = driver.with_account(&account);
            let shared = driver.shared().clone();
            let mut incoming = Vec::new();
            assert!(poll_fn(|cx| driver.poll(cx, &mut incoming)).await == Progress::Incoming);
            let mut send = shared.send_stream(incoming.pop().unwrap().key);
            let mut held = other.reservation(Category::Body);
            held.set(MAX / 4 * 3);
            let mut of_connection = account.reservation(Category::Body);
            of_connection.set(100_000);
            drop(client);
            send.send_response([Field::known(Token::Status, b"204")], true).unwrap();
            assert!(poll_fn(|cx| driver.poll(cx, &mut incoming)).await == Progress::Ended);
        });
        ended.send(()).unwrap();
    });
    match has_ended.recv_timeout(Duration::from_secs(60)) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("a deadlock"),
        _ => thread.join().unwrap(),
    }
}

#[tokio::test(start_paused = true)]
async fn near_the_memory_limit_the_windows_for_queued_content_are_read() {
    for is_queued_first in [true, false] {
        for queued in [1 << 20, 70_000] {
            assert_eq!(content_read_near_the_limit(queued, is_queued_first).await, queued);
        }
    }
}

// The rest of a request that was answered lies in the socket for a minute.
#[tokio::test(start_paused = true)]
async fn the_rest_of_a_request_is_not_late_while_nothing_is_read() {
    const MAX: usize = 64 << 20;
    let memory = Memory::new(MAX);
    let (account, other) = (memory.account(), memory.account());
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let opening = [Frame::settings(&[]), Frame::settings_ack(), Frame::post(1)];
    client.write_all(&[PREFACE, &join(&opening)].concat()).await.unwrap();
    let driver = driver(Io::Other(Box::new(server)), Role::Server);
    let (mut driver, mut incoming) = (driver.with_account(&account), Vec::new());
    let shared = driver.shared().clone();
    assert!(poll_fn(|cx| driver.poll(cx, &mut incoming)).await == Progress::Incoming);
    let (key, status) = (incoming.pop().unwrap().key, [Field::known(Token::Status, b"404")]);
    shared.send_response(key, status, "no".into()).unwrap();
    tokio::spawn(
        async move { while poll_fn(|cx| driver.poll(cx, &mut incoming)).await == Progress::Incoming {} },
    );
    // The response leaves.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut of_connection = account.reservation(Category::Body);
    of_connection.set(100_000);
    let mut held = other.reservation(Category::Body);
    held.set(MAX / 4 * 3);
    let rest = [Frame::data(1, "content"), Frame::data(1, "").end_stream()];
    client.write_all(&join(&rest)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    drop(held);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(shared.lock().streams(), 0);
    let mut received = vec![0; 1 << 16];
    let len = client.read(&mut received).await.unwrap();
    let reset = Frame::rst_stream(1, code::NO_ERROR).to_bytes();
    assert!(!received[..len].windows(reset.len()).any(|bytes| bytes == reset));
}

// It receives what it can, although one of its requests is never answered.
#[tokio::test(start_paused = true)]
async fn a_client_that_sends_no_more_receives_what_is_ready() {
    const LEN: usize = 60_000;
    for waits in [false, true] {
        let (mut client, server) = tokio::io::duplex(1_000);
        let mut opening = vec![Frame::settings(&[]), Frame::settings_ack(), Frame::get(1)];
        opening.extend(waits.then(|| Frame::get(3)));
        client.write_all(&[PREFACE, &join(&opening)].concat()).await.unwrap();
        client.shutdown().await.unwrap();
        let mut driver = driver(Io::Other(Box::new(server)), Role::Server);
        let shared = driver.shared().clone();
        let driving = tokio::spawn(async move {
            let (mut incoming, mut handlers, mut is_answered) = (Vec::new(), Vec::new(), false);
            while poll_fn(|cx| driver.poll(cx, &mut incoming)).await == Progress::Incoming {
                for request in incoming.drain(..) {
                    if !std::mem::replace(&mut is_answered, true) {
                        let status = [Field::known(Token::Status, b"200")];
                        shared.send_response(request.key, status, vec![CONTENT; LEN].into()).unwrap();
                        continue;
                    }
                    let handler = shared.handler_of(request.key).unwrap();
                    handlers.push(tokio::spawn(async move { poll_fn(|cx| handler.poll_failed(cx)).await }));
                }
            }
            driver.linger().await;
            assert!(handlers.iter().all(tokio::task::JoinHandle::is_finished));
        });
        let (mut received, mut bytes) = (Vec::new(), [0; 1_000]);
        while let Ok(len @ 1..) = client.read(&mut bytes).await {
            received.extend_from_slice(&bytes[..len]);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        driving.await.unwrap();
        assert_eq!(received.iter().filter(|&&byte| byte == CONTENT).count(), LEN, "{waits}");
        let has = |frame: Frame| received.windows(13).any(|bytes| frame.to_bytes().starts_with(bytes));
        assert!(has(Frame::goaway(if waits { 3 } else { 1 }, code::NO_ERROR, "")), "{waits}");
        assert_eq!(has(Frame::rst_stream(3, code::CANCEL)), waits);
    }
}

// The driver lives for a while after the end, so that the peer receives GOAWAY.
#[tokio::test]
async fn a_connection_that_is_evicted_frees_what_was_not_read_at_once() {
    let memory = Memory::new(64 << 20);
    let account = memory.account();
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let opening = [Frame::settings(&[]), Frame::settings_ack(), Frame::post(1)];
    let content: Vec<_> = (0..3).map(|_| Frame::data(1, vec![CONTENT; 16_384])).collect();
    client.write_all(&[PREFACE, &join(&opening), &join(&content)].concat()).await.unwrap();
    let mut driver = driver(Io::Other(Box::new(server)), Role::Server);
    driver = driver.with_account(&account);
    let shared = driver.shared().clone();
    let (mut requests, mut incoming) = (Vec::new(), Vec::new());
    let drive = async |driver: &mut Driver, incoming: &mut Vec<Incoming>| {
        let driven = poll_fn(|cx| driver.poll(cx, incoming));
        tokio::time::timeout(Duration::from_millis(20), driven).await.ok()
    };
    while drive(&mut driver, &mut incoming).await.is_some() {
        requests.append(&mut incoming);
    }
    assert_eq!(requests.len(), 1);
    assert!(memory.stats().http2_windows > 40_000, "{:?}", memory.stats());
    shared.evict();
    assert_eq!(drive(&mut driver, &mut incoming).await, Some(Progress::Ended));
    assert_eq!(memory.stats().total, 0, "{:?}", memory.stats());
}

/// A byte that no head has.
const CONTENT: u8 = 0xfe;

/// The two ends of a connection over TCP or TLS, on which `step` bytes pass to the client every second.
async fn slow_link(tls: bool, step: usize) -> (Io, Io) {
    let (server, near) = tokio::io::duplex(1_000);
    let (far, client) = tokio::io::duplex(1 << 20);
    let (mut from_server, mut to_server) = tokio::io::split(near);
    let (mut from_client, mut to_client) = tokio::io::split(far);
    tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
    tokio::spawn(async move {
        let mut bytes = vec![0; step];
        while let Ok(len @ 1..) = from_server.read(&mut bytes).await {
            to_client.write_all(&bytes[..len]).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        to_client.shutdown().await.unwrap();
    });
    let (client, server) = (Io::of(client), Io::of(server));
    if tls { over_tls(client, server).await } else { (client, server) }
}

async fn over_tls(client: Io, server: Io) -> (Io, Io) {
    let name = "localhost";
    let (tls, certificate) = ServerTls::self_signed(&[name]).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.der().into()).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connecting = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config))
        .connect(name.try_into().unwrap(), Counted::new(client));
    let (client, server) = tokio::join!(connecting, tls.accept(Counted::new(server)));
    let tls = |stream: tokio_rustls::TlsStream<Counted>| Io::Tls(Box::new(stream));
    (tls(client.unwrap().into()), tls(server.unwrap().into()))
}

/// A server that responds with 40,000 bytes to a request and shuts down, and a client that reads `step` bytes every second.
/// Returns how much of the content has arrived, and the maximum of memory that the server has counted for it.
async fn content_read_after_shutdown(tls: bool, step: usize, stall_timeout: Duration) -> (usize, usize) {
    let (client, server) = slow_link(tls, step).await;
    let mut client = client.into_transport();
    let opening = [Frame::settings(&[]), Frame::settings_ack(), Frame::get(1)];
    client.write_all(&[PREFACE, &join(&opening)].concat()).await.unwrap();
    client.flush().await.unwrap();
    let mut config = Config::new(Role::Server);
    config.limits.stall_timeout = stall_timeout;
    let memory = Memory::new(64 << 20);
    let account = memory.account();
    let mut driver = Driver::new(server, Role::Server, config).unwrap().with_account(&account);
    let shared = driver.shared().clone();
    tokio::spawn(async move {
        let mut incoming = Vec::new();
        while poll_fn(|cx| driver.poll(cx, &mut incoming)).await == Progress::Incoming {
            let key = incoming.pop().unwrap().key;
            let status = [Field::known(Token::Status, b"200")];
            shared.send_response(key, status, vec![CONTENT; 40_000].into()).unwrap();
            shared.shut_down();
        }
        driver.linger().await;
    });
    let (mut received, mut counted, mut bytes) = (0, 0, vec![0; 1 << 16]);
    while let Ok(len @ 1..) = client.read(&mut bytes).await {
        received += bytes[..len].iter().filter(|&&byte| byte == CONTENT).count();
        counted = counted.max(memory.stats().send_queues);
    }
    (received, counted)
}

#[tokio::test(start_paused = true)]
async fn a_slow_client_receives_its_response_although_the_server_goes_away() {
    let timeout = Duration::from_secs(60);
    for tls in [false, true] {
        for step in [1_000, 100] {
            let (received, counted) = content_read_after_shutdown(tls, step, timeout).await;
            assert_eq!(received, 40_000, "{tls} {step}");
            // Bytes buffered in TLS count too.
            assert!(counted >= 20_000, "{tls} {step}: {counted}");
        }
        // A client that takes less than 1,024 bytes in each timeout is stalled.
        let (received, _) = content_read_after_shutdown(tls, 10, timeout).await;
        assert!(received < 40_000, "{tls}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_reads_steadily_is_alive_without_an_answer() {
    // It reads output that precedes the PING, and has no reason to send anything.
    let (client, mut server) = tokio::io::duplex(1_000);
    let window = 1 << 20;
    let opening = [Frame::settings(&[(4, window)]), Frame::settings_ack(), Frame::window_update(0, window)];
    server.write_all(&join(&opening)).await.unwrap();
    let keepalive = Keepalive { ping_after: Duration::from_secs(10), dead_after: Duration::from_secs(25) };
    let driver = driver(Io::Other(Box::new(client)), Role::Client).with_keepalive(Some(keepalive));
    let requests = driver.requests();
    tokio::spawn(driver.run());
    requests.ready().await.unwrap();
    let (mut send, _recv) = requests.open(get(), false).unwrap();
    send.send(vec![CONTENT; 200_000].into(), true).unwrap();
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.read_exact(&mut [0; 100]).await.unwrap();
        assert!(requests.is_open());
    }
    // One that does not read is dead.
    tokio::time::sleep(Duration::from_secs(24)).await;
    assert!(requests.is_open());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!requests.is_open());
}

// The server reads no more, and other output waits for room.
#[tokio::test]
async fn an_end_that_has_left_does_not_wait_for_other_streams() {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let client = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    let window = 64 << 20;
    let opening = [Frame::settings(&[(4, window)]), Frame::window_update(0, window)];
    server.write_all(&join(&opening)).await.unwrap();
    let driver = driver(client.into(), Role::Client);
    let requests = driver.requests();
    tokio::spawn(driver.run());
    requests.ready().await.unwrap();
    let (mut first, _response) = requests.open(get(), false).unwrap();
    let (mut second, _other_response) = requests.open(get(), false).unwrap();
    first.send("first".into(), true).unwrap();
    second.send(vec![CONTENT; 8 << 20].into(), true).unwrap();
    let sent = tokio::time::timeout(Duration::from_secs(20), poll_fn(|cx| first.poll_sent(cx)));
    assert_eq!(sent.await, Ok(Ok(())));
    assert!(first.is_sent() && !second.is_sent());
    drop(server);
    assert_eq!(poll_fn(|cx| second.poll_sent(cx)).await, Err(HttpError::ConnectionLost));
}

// TLS buffers some of what follows at all times: the server makes less room than that.
#[tokio::test]
async fn an_end_that_has_left_does_not_wait_for_records_of_other_streams() {
    let small = || {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4 << 10).unwrap();
        socket.set_send_buffer_size(4 << 10).unwrap();
        socket
    };
    let socket = small();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let client = small().connect(listener.local_addr().unwrap()).await.unwrap();
    let (client, server) = over_tls(client.into(), listener.accept().await.unwrap().0.into()).await;
    let mut server = server.into_transport();
    let window = 64 << 20;
    let opening = [Frame::settings(&[(4, window)]), Frame::window_update(0, window)];
    server.write_all(&join(&opening)).await.unwrap();
    server.flush().await.unwrap();
    let driver = driver(client, Role::Client);
    let requests = driver.requests();
    tokio::spawn(driver.run());
    requests.ready().await.unwrap();
    let (mut first, _response) = requests.open(get(), false).unwrap();
    let (mut second, _other_response) = requests.open(get(), false).unwrap();
    second.send(vec![CONTENT; 8 << 20].into(), true).unwrap();
    // It is in the way.
    server.read_exact(&mut [0; 1_000]).await.unwrap();
    first.send("first".into(), true).unwrap();
    for _ in 0..1_000 {
        server.read_exact(&mut [0; 1_000]).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert!(first.is_sent() && !second.is_sent());
}

// RFC 9113 §5.4.1.
#[tokio::test(start_paused = true)]
async fn a_client_has_closed_when_goaway_with_its_error_has_left() {
    let (client, mut server) = tokio::io::duplex(8);
    let driver = driver(Io::Other(Box::new(client)), Role::Client);
    let requests = driver.requests();
    tokio::spawn(driver.run());
    // DATA on the connection's own stream is forbidden.
    server.write_all(&join(&[Frame::settings(&[]), Frame::data(0, "")])).await.unwrap();
    while requests.is_open() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let is_closed = tokio::time::timeout(Duration::from_millis(1), requests.closed()).await.is_ok();
    assert!(!is_closed);
    let mut received = Vec::new();
    server.read_to_end(&mut received).await.unwrap();
    assert!(received.windows(9).any(|head| matches!(head, [0, 0, _, 7, 0, 0, 0, 0, 0])), "GOAWAY");
    requests.closed().await;
}

// No event reports a request that is refused, but its fields are decoded.
#[tokio::test]
async fn fields_are_paid_for_by_their_decoded_size() {
    const REQUESTS: u32 = 64;
    let memory = Memory::new(1 << 30);
    let scheduling = memory.clone();
    tokio::spawn(async move { scheduling.scheduler().run().await });
    tokio::task::yield_now().await;
    // RFC 7541 §6.2.1: with incremental indexing.
    let mut indexed = literal(b"x", &[b'v'; 3_000]);
    indexed[0] = 0x40;
    // RFC 7541 §6.1: the newest entry of the dynamic table.
    let (block, list_size) = ([0xbe; 20], 20 * (3_000 + 1 + 32));
    let mut frames = vec![Frame::settings(&[]), Frame::headers(1, &[]).payload(indexed)];
    frames.extend((1..=REQUESTS).map(|n| Frame::headers(2 * n + 1, &[]).payload(block)));
    frames.push(Frame::get(2 * REQUESTS + 3));
    let (mut client, server) = tokio::io::duplex(1 << 20);
    client.write_all(&[PREFACE, &join(&frames)].concat()).await.unwrap();
    let driver = driver(Io::Other(Box::new(server)), Role::Server);
    let mut driver = driver.with_account(&memory.account());
    let (mut incoming, mut waits) = (Vec::new(), 0);
    let driving = poll_fn(|cx| {
        let progress = driver.poll(cx, &mut incoming);
        waits += usize::from(driver.budget.is_waiting());
        progress
    });
    assert_eq!(driving.await, Progress::Incoming);
    let turns = REQUESTS as usize * list_size / crate::scheduler::TURN;
    assert!(turns >= 3 && waits >= turns, "{waits} of {turns}");
}
