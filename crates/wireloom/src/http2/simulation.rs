//! A client's and a server's driver over in-memory pipes of 1 B to 256 KiB, with a paused clock: random requests, tunnels,
//! cancels, resets, trailers, interim responses and GOAWAY.
//!
//! Every exchange has a [`Plan`] that both ends derive from the same seed. Time passes only while nothing else can happen: a
//! lost wake-up or a mutual stall shows as time that passed.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::task::JoinSet;
use tokio::time::Instant;
use wireloom_http2::error::ErrorCode;
use wireloom_http2::field::{Field, Token};
use wireloom_http2::{Config, Role};
use wireloom_testing::Rng;

use super::{Driver, Incoming, Progress, RecvStream, Requests, SendStream, Shared, Tunnel};
use crate::error::HttpError;
use crate::headers::Headers;
use crate::sync::Arc;
use crate::transport::Io;

/// The delays of all plans of a round together are shorter than this.
const TIME_MAX: Duration = Duration::from_secs(2);

/// In real time a busy machine takes longer. No timer of a driver expires before: after a lost wake-up nothing happens.
const RACE_TIME_MAX: Duration = Duration::from_secs(25);

/// One exchange.
#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    is_tunnel: bool,
    request_len: usize,
    response_len: usize,
    chunk_len: usize,
    /// Of an additional header field, in both directions.
    header_len: usize,
    has_trailers: bool,
    interim_responses: usize,
    delay: Option<Duration>,
    server: Server,
    /// The client drops its handles after this many bytes of the response.
    cancel_after: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    /// Reads the request, then responds.
    Respond,
    /// Responds and never reads the request.
    Ignore,
    /// Resets the stream in the middle of the response.
    Reset,
}

impl Plan {
    fn new(seed: u64, volume: usize) -> Self {
        let mut rng = Rng::with_seed(seed);
        let is_tunnel = rng.u8(..5) == 0;
        Self {
            seed,
            is_tunnel,
            request_len: if rng.bool() { rng.len(volume) } else { 0 },
            response_len: rng.len(volume),
            chunk_len: rng.usize(1..=volume),
            header_len: if rng.u8(..4) == 0 { rng.len(volume.min(16 << 10)) } else { 0 },
            has_trailers: rng.bool(),
            interim_responses: usize::from(rng.u8(..3)),
            delay: (rng.u8(..4) == 0).then(|| Duration::from_millis(rng.u64(1..5))),
            server: match rng.u8(..8) {
                0 => Server::Ignore,
                1 => Server::Reset,
                _ => Server::Respond,
            },
            cancel_after: (rng.u8(..6) == 0).then(|| rng.usize(..volume)),
        }
    }

    fn content(&self, len: usize) -> Bytes {
        (0..len).map(|at| (at as u64 ^ self.seed ^ (at as u64 >> 8)) as u8).collect()
    }

    async fn pause(&self) {
        match self.delay {
            Some(delay) => tokio::time::sleep(delay).await,
            None => tokio::task::yield_now().await,
        }
    }

    /// Sends `content` in chunks, as the peer accepts them, and trailers.
    async fn send(&self, send: &mut SendStream, content: Bytes) -> Result<(), HttpError> {
        for chunk in content.chunks(self.chunk_len) {
            poll_fn(|cx| send.poll_capacity(cx)).await?;
            send.send(content.slice_ref(chunk), false)?;
        }
        self.pause().await;
        if !self.has_trailers {
            return send.send(Bytes::new(), true);
        }
        let mut trailers = Headers::new();
        trailers.push("x-trailer", self.seed.to_string())?;
        send.send_trailers(&mut trailers)
    }

    /// Receives content to its end, and checks it and the trailers.
    async fn receive(&self, recv: &mut RecvStream, expected: &[u8]) -> Result<(), HttpError> {
        let mut received = 0;
        while let Some(chunk) = poll_fn(|cx| recv.poll_data(cx)).await {
            let chunk = chunk?;
            assert_eq!(chunk, expected[received..received + chunk.len()], "{self:?} at {received}");
            received += chunk.len();
        }
        assert_eq!(received, expected.len(), "{self:?}");
        let trailers = recv.trailers()?;
        let trailer = trailers.as_ref().and_then(|trailers| trailers.get("x-trailer"));
        let expected = self.seed.to_string();
        assert_eq!(trailer, self.has_trailers.then_some(expected.as_bytes()), "{self:?}");
        Ok(())
    }
}

/// The client's side of one exchange.
async fn request(requests: Requests, plan: Plan) -> Result<(), HttpError> {
    let (seed, filler) = (plan.seed.to_string(), vec![b'x'; plan.header_len]);
    let protocol = Field::known(Token::Protocol, b"websocket");
    let fields = [
        Field::known(Token::Method, if plan.is_tunnel { b"CONNECT" } else { b"POST" }),
        Field::known(Token::Scheme, b"http"),
        Field::known(Token::Authority, b"a"),
        Field::known(Token::Path, b"/"),
    ];
    let more = [Field::new(b"x-seed", seed.as_bytes()), Field::new(b"x-filler", &filler)];
    let fields = fields.into_iter().chain(plan.is_tunnel.then_some(protocol)).chain(more);
    let fields: Vec<Field<'_>> = fields.collect();
    let (mut send, mut recv) = requests.open(fields.iter().copied(), false)?;
    plan.pause().await;
    if plan.is_tunnel {
        let head = recv.head().await?;
        assert_eq!(head.status, 200);
        let mut tunnel = Tunnel::new(send, recv).with_requests(requests);
        if plan.cancel_after.is_some() {
            return Ok(());
        }
        return echo(&mut tunnel, &plan).await;
    }
    let body = plan.content(plan.request_len);
    let sending = async {
        let sent = plan.send(&mut send, body).await;
        // A server that does not read the request resets it; the response shows whether it did.
        assert!(
            sent.is_ok() || plan.server != Server::Respond || sent == Err(HttpError::NotProcessed),
            "{sent:?}"
        );
        drop(send);
    };
    let receiving = async {
        let mut interim_responses = 0;
        let head = loop {
            match recv.head().await? {
                head if head.status >= 200 => break head,
                _ => interim_responses += 1,
            }
        };
        assert_eq!((head.status, interim_responses), (200, plan.interim_responses), "{plan:?}");
        assert_eq!(head.headers.get("x-filler").map(<[u8]>::len), Some(plan.header_len));
        if let Some(len) = plan.cancel_after {
            let mut received = 0;
            while received < len {
                match poll_fn(|cx| recv.poll_data(cx)).await {
                    Some(chunk) => received += chunk?.len(),
                    None => break,
                }
            }
            return Ok(());
        }
        plan.receive(&mut recv, &plan.content(plan.response_len)).await
    };
    let received = if plan.cancel_after.is_some() {
        // Whatever is pending is dropped with the response.
        tokio::select! { received = receiving => received, () = async { sending.await; std::future::pending().await } => Ok(()) }
    } else {
        tokio::join!(receiving, sending).0
    };
    match received {
        Err(HttpError::StreamReset(ErrorCode::CANCEL)) if plan.server == Server::Reset => Ok(()),
        Ok(()) if plan.server == Server::Reset && plan.cancel_after.is_none() => panic!("no reset: {plan:?}"),
        received => received,
    }
}

async fn echo(tunnel: &mut Tunnel, plan: &Plan) -> Result<(), HttpError> {
    let content = plan.content(plan.request_len);
    let (mut read, mut write) = tokio::io::split(tunnel);
    let writing = async {
        for chunk in content.chunks(plan.chunk_len) {
            write.write_all(chunk).await?;
        }
        plan.pause().await;
        write.shutdown().await
    };
    let mut received = Vec::new();
    let (written, read) = tokio::join!(writing, read.read_to_end(&mut received));
    written?;
    read?;
    assert!(received == content, "{plan:?}: {} bytes", received.len());
    Ok(())
}

/// The server's side of one exchange.
async fn respond(shared: Arc<Shared>, incoming: Incoming, volume: usize) -> Result<(), HttpError> {
    let seed = incoming.headers.get("x-seed").and_then(|seed| std::str::from_utf8(seed).ok()?.parse().ok());
    let plan = Plan::new(seed.unwrap_or_default(), volume);
    let recv = incoming.content;
    let mut send = shared.send_stream(incoming.key);
    let filler = vec![b'x'; plan.header_len];
    let fields = [Field::known(Token::Status, b"200"), Field::new(b"x-filler", &filler)];
    if plan.is_tunnel {
        send.send_response(fields, false)?;
        let Some(recv) = recv else { return Err(HttpError::Closed) };
        let mut tunnel = Tunnel::new(send, recv);
        let mut bytes = vec![0; plan.chunk_len];
        loop {
            match tunnel.read(&mut bytes).await? {
                0 => return Ok(tunnel.shutdown().await?),
                len => tunnel.write_all(&bytes[..len]).await?,
            }
        }
    }
    for _ in 0..plan.interim_responses {
        send.send_informational([Field::known(Token::Status, b"103")])?;
    }
    plan.pause().await;
    match recv {
        Some(mut recv) if plan.server != Server::Ignore => {
            plan.receive(&mut recv, &plan.content(plan.request_len)).await?;
        }
        _ => {}
    }
    send.send_response(fields, false)?;
    let content = plan.content(plan.response_len);
    if plan.server == Server::Reset {
        send.send(content.slice(..content.len() / 2), false)?;
        plan.pause().await;
        send.reset(ErrorCode::CANCEL);
        return Ok(());
    }
    plan.send(&mut send, content).await
}

/// Serves until the connection ends; sends GOAWAY after `goaway_after` requests.
async fn serve(mut driver: Driver, volume: usize, goaway_after: Option<usize>) {
    let shared = driver.shared().clone();
    let (mut tasks, mut incoming, mut count) = (JoinSet::new(), Vec::new(), 0);
    loop {
        let progress = poll_fn(|cx| driver.poll(cx, &mut incoming)).await;
        for request in incoming.drain(..) {
            count += 1;
            if goaway_after == Some(count) {
                shared.shut_down();
            }
            tasks.spawn(respond(shared.clone(), request, volume));
        }
        if progress == Progress::Ended {
            break;
        }
    }
    driver.linger().await;
    while let Some(task) = tasks.join_next().await {
        // Errors are those of streams that the client cancelled; a panic is a failed check.
        let _ = task.expect("a check of the server failed");
    }
    let state = shared.lock();
    assert_eq!((state.slots.len(), state.core.streams()), (0, 0), "the server keeps streams");
    assert_eq!((state.core.memory().held, state.core.memory().caller), (0, 0));
}

fn random_config(rng: &mut Rng, role: Role) -> Config {
    let mut config = Config::new(role);
    config.settings.enable_connect_protocol = role == Role::Server;
    config.settings.initial_window_size = *rng.pick(&[100, 1_000, 65_535, 1 << 20]);
    config.settings.max_concurrent_streams = *rng.pick(&[1, 3, 100]);
    config.settings.max_frame_size = *rng.pick(&[16_384, 100_000]);
    config.output_max = *rng.pick(&[1_000, 100_000, 1 << 20]);
    config.stream_queue = *rng.pick(&[1_000, 64 << 10]);
    config.connection_window = *rng.pick(&[65_535, 1 << 20]);
    config
}

async fn round(rng: &mut Rng, time_max: Duration) {
    let pipe_len = *rng.pick(&[1, 2, 9, 100, 1_000, 16 << 10, 64 << 10, 256 << 10]);
    // Each byte of a short pipe costs up to eight calls of the transport, and these some 10 µs each without optimization:
    // 100 kB in both directions on 40 streams would take minutes.
    let volume = (pipe_len * 200).clamp(500, 100_000);
    let exchanges = rng.usize(1..if pipe_len < 100 { 10 } else { 40 });
    let (client_io, server_io) = tokio::io::duplex(pipe_len);
    let mut driver = |io, role| {
        let driver = Driver::new(Io::Other(Box::new(io)), role, random_config(rng, role)).unwrap();
        driver.with_shrink_interval(10 * RACE_TIME_MAX)
    };
    let (client, server) = (driver(client_io, Role::Client), driver(server_io, Role::Server));
    let goaway_after = (rng.u8(..4) == 0).then(|| rng.usize(1..=exchanges));
    let server = tokio::spawn(serve(server, volume, goaway_after));
    let (requests, shared) = (client.requests(), client.shared().clone());
    let client = tokio::spawn(client.run());

    let started = Instant::now();
    requests.ready().await.expect("SETTINGS arrive");
    let mut tasks = JoinSet::new();
    for _ in 0..exchanges {
        tasks.spawn(request(requests.clone(), Plan::new(rng.u64(..), volume)));
        if rng.u8(..4) == 0 {
            tokio::task::yield_now().await;
        }
    }
    while let Some(task) = tasks.join_next().await {
        match task.expect("a check of the client failed") {
            Ok(()) => {}
            Err(HttpError::NotProcessed) if goaway_after.is_some() => {}
            Err(error) => panic!("pipes of {pipe_len}: {error:?}"),
        }
    }
    let elapsed = started.elapsed();
    assert!(elapsed < time_max, "pipes of {pipe_len}: {exchanges} exchanges stalled, {elapsed:?}");
    requests.shut_down();
    requests.closed().await;
    drop(requests);
    client.await.unwrap();
    server.await.unwrap();
    let elapsed = started.elapsed();
    assert!(elapsed < time_max, "pipes of {pipe_len}: the end stalled, {elapsed:?}");
    let state = shared.lock();
    assert_eq!((state.slots.len(), state.core.streams()), (0, 0), "the client keeps streams");
    assert_eq!((state.core.memory().held, state.core.memory().caller), (0, 0));
}

fn paused_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

#[test]
fn everything_completes_over_pipes_of_any_size() {
    wireloom_testing::rounds(100, |rng| {
        paused_runtime().block_on(round(rng, TIME_MAX));
    });
}

/// On several threads and in real time, where commands of handles race with the driver.
#[test]
fn everything_completes_on_several_threads() {
    wireloom_testing::rounds(30, |rng| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(4).enable_time().build().unwrap();
        runtime.block_on(round(rng, RACE_TIME_MAX));
    });
}

/// Both ends queue more header fields than the other reads at once.
#[test]
fn large_heads_in_both_directions_do_not_stall() {
    paused_runtime().block_on(async {
        let (client_io, server_io) = tokio::io::duplex(256 << 10);
        let config = |role| {
            let mut config = Config::new(role);
            config.output_max = 64 << 10;
            config
        };
        let client = Driver::new(Io::Other(Box::new(client_io)), Role::Client, config(Role::Client)).unwrap();
        let server = Driver::new(Io::Other(Box::new(server_io)), Role::Server, config(Role::Server)).unwrap();
        tokio::spawn(serve(server, 100_000, None));
        let requests = client.requests();
        tokio::spawn(client.run());
        requests.ready().await.unwrap();
        let started = Instant::now();
        let mut plan = Plan::new(0, 100_000);
        let mut tasks = JoinSet::new();
        while tasks.len() < 256 {
            plan = Plan::new(plan.seed + 1, 100_000);
            if plan.header_len > 8_000 && !plan.is_tunnel && plan.server == Server::Respond {
                tasks.spawn(request(requests.clone(), plan.clone()));
            }
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap().unwrap();
        }
        assert!(started.elapsed() < TIME_MAX, "stalled: {:?}", started.elapsed());
    });
}

/// A transport that counts calls and bytes.
struct Counting {
    io: tokio::io::DuplexStream,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    calls: AtomicU64,
    bytes: AtomicU64,
}

impl AsyncRead for Counting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.counts.calls.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counting {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.counts.calls.fetch_add(1, Ordering::Relaxed);
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        if let Poll::Ready(Ok(len)) = &written {
            self.counts.bytes.fetch_add(*len as u64, Ordering::Relaxed);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Calls of the transport and bytes through one-byte pipes, for this many exchanges of up to `volume` bytes.
fn cost(exchanges: usize, volume: usize) -> (u64, u64) {
    let counts = Arc::new(Counts::default());
    paused_runtime().block_on(async {
        let (client_io, server_io) = tokio::io::duplex(1);
        let driver = |io, role| {
            let mut config = Config::new(role);
            config.settings.initial_window_size = 100;
            config.stream_window_max = 100;
            config.stream_queue = 1_000;
            Driver::new(Io::Other(Box::new(Counting { io, counts: counts.clone() })), role, config).unwrap()
        };
        let (client, server) = (driver(client_io, Role::Client), driver(server_io, Role::Server));
        tokio::spawn(serve(server, volume, None));
        let requests = client.requests();
        tokio::spawn(client.run());
        requests.ready().await.unwrap();
        let mut tasks = JoinSet::new();
        let plans = (0..).map(|seed| Plan::new(seed, volume));
        let is_long = |plan: &Plan| {
            !plan.is_tunnel
                && plan.server == Server::Respond
                && plan.cancel_after.is_none()
                && plan.request_len.min(plan.response_len) > volume / 2
        };
        for plan in plans.filter(is_long).take(exchanges) {
            tasks.spawn(request(requests.clone(), plan));
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap().unwrap();
        }
    });
    (counts.calls.load(Ordering::Relaxed), counts.bytes.load(Ordering::Relaxed))
}

/// Each byte of a short pipe costs a constant number of calls, however much waits and for however many streams. It is the
/// smallest number that both directions allow: a write that is accepted and one that is not, a read that returns a byte
/// and one that does not, and the same attempts once more when the pipe in the other direction wakes the task.
#[test]
fn a_byte_costs_the_same_however_much_is_queued() {
    for (exchanges, volume) in [(1, 500), (1, 8_000), (12, 500)] {
        let (calls, bytes) = cost(exchanges, volume);
        assert!(bytes > (exchanges * volume) as u64, "{bytes} bytes");
        assert!(calls <= 8 * bytes, "{exchanges} exchanges of {volume}: {calls} calls for {bytes} bytes");
    }
}
