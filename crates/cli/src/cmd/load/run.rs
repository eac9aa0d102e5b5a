//! A run: opens the connections, lets them send, and takes the figures each second.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use wireloom::{Connector, Error, WebSocket};

use super::echo::{Echo, Loop};
use super::pacer::{Pacer, Schedule};
use super::payload::Template;
use super::progress::Progress;
use super::recorder::Recorder;
use crate::args::Load;
use crate::signals::Signals;

/// Handshakes at once. More would overflow the backlog of common servers.
const HANDSHAKES_MAX: usize = 100;

/// When to send, and when to stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// When the measurement begins, after the warm-up.
    pub(super) measured_from: Instant,
    /// When sending ends; `None` with `--count`.
    pub(super) end: Option<Instant>,
    pub(super) timeout: Duration,
}

impl Plan {
    /// Whether a message that is due then is measured.
    pub(super) fn is_measured(&self, intended: Instant) -> bool {
        intended >= self.measured_from
    }

    /// Whether nothing is sent any more then.
    pub(super) fn is_over(&self, intended: Instant) -> bool {
        self.end.is_some_and(|end| intended >= end)
    }
}

/// What the connections of a run share.
pub(super) struct Run {
    pub(super) plan: Plan,
    recorder: Arc<Mutex<Recorder>>,
    /// Messages that may still be sent.
    tickets: AtomicU64,
    stop: watch::Sender<bool>,
}

impl Run {
    pub(super) fn recorder(&self) -> MutexGuard<'_, Recorder> {
        lock(&self.recorder)
    }

    /// Takes the right to send a message. Those of the warm-up are not counted.
    pub(super) fn take_ticket(&self, is_measured: bool) -> bool {
        let take = |tickets: u64| tickets.checked_sub(1);
        !is_measured || self.tickets.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// The message was not sent.
    pub(super) fn return_ticket(&self, is_measured: bool) {
        if is_measured {
            self.tickets.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// True once the run is interrupted.
    pub(super) fn stopped(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }
}

/// The result of a run.
pub(super) struct Outcome {
    pub(super) recorder: Recorder,
    /// Between the first message that was measured and the end of sending, or the last answer if that came later.
    pub(super) measured: Duration,
    /// Processor time per time: 1 is a full core.
    pub(super) cpu: f64,
    pub(super) is_interrupted: bool,
}

fn lock(recorder: &Mutex<Recorder>) -> MutexGuard<'_, Recorder> {
    recorder.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Loads the server.
///
/// # Errors
/// No connection could be opened; or the operating system gives no thread or signals.
pub(super) async fn run(
    args: &Load,
    connector: Connector,
    progress: &mut Progress,
    signals: &mut Signals,
) -> Result<Outcome, Error> {
    let volume = &args.volume;
    let recorder = Arc::new(Mutex::new(Recorder::new()));
    let mut open: Vec<WebSocket> = Vec::new();
    let is_opened = tokio::select! {
        opened = open_all(args, &connector, &mut open, &recorder) => {
            opened?;
            true
        }
        () = signals.recv() => false,
    };
    let begin = Instant::now();
    let measured_from = begin + volume.warmup.unwrap_or_default();
    let end = match volume.count {
        Some(_) => None,
        None => Some(measured_from + volume.duration.unwrap_or(Duration::from_secs(10))),
    };
    let run = Arc::new(Run {
        plan: Plan { measured_from, end, timeout: volume.timeout },
        recorder: recorder.clone(),
        tickets: AtomicU64::new(volume.count.unwrap_or(u64::MAX)),
        stop: watch::Sender::new(false),
    });
    let pacer = match volume.rate {
        Some(_) => Some(Pacer::start().map_err(Error::from)?),
        None => None,
    };
    let mut tasks = JoinSet::new();
    let connections = if volume.ramp_up.is_some() && is_opened { volume.connections } else { open.len() };
    let mut open = open.into_iter();
    for index in 0..connections {
        let fraction = index as f64 / connections as f64;
        let opens_at = begin + volume.ramp_up.unwrap_or_default().mul_f64(fraction);
        let socket = open.next();
        let connection = Connection { run: run.clone(), opens_at, fraction, pacer: pacer.clone() };
        let (connector, url) = (connector.clone(), args.url.clone());
        let template = Template::new(args.payload.size, !args.payload.binary);
        let (rate, pipeline) = (volume.rate, volume.pipeline.unwrap_or(1));
        // With a ramp, each connection has the share that it has in the end.
        let interval = rate.map(|rate| volume.connections as f64 / rate);
        tasks.spawn(async move {
            if let Some(socket) = connection.open(socket, &connector, &url).await {
                connection.load(socket, interval, pipeline, template).await;
            }
        });
    }
    drop(pacer);
    run.stop.send_replace(!is_opened);
    let cpu_before = cpu_time();
    let is_interrupted = watch_run(&run, begin, &mut tasks, progress, signals).await || !is_opened;
    let elapsed = begin.elapsed().as_secs_f64();
    let cpu = (cpu_time().saturating_sub(cpu_before)).as_secs_f64() / elapsed.max(1e-9);
    let recorder = std::mem::replace(&mut *lock(&recorder), Recorder::new());
    let sending_end = if is_interrupted { Some(Instant::now()) } else { end.or(recorder.last_sent) };
    let last = sending_end.max(recorder.last_answer).unwrap_or(measured_from);
    let measured = last.saturating_duration_since(measured_from);
    Ok(Outcome { recorder, measured, cpu, is_interrupted })
}

/// Opens the connections before the run begins; with a ramp only the first.
///
/// # Errors
/// The first connection could not be opened.
async fn open_all(
    args: &Load,
    connector: &Connector,
    open: &mut Vec<WebSocket>,
    recorder: &Mutex<Recorder>,
) -> Result<(), Error> {
    open.push(connector.connect(&args.url).await?);
    if args.volume.ramp_up.is_some() {
        return Ok(());
    }
    let permits = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    let mut opening = JoinSet::new();
    for _ in 1..args.volume.connections {
        let (connector, url, permits) = (connector.clone(), args.url.clone(), permits.clone());
        opening.spawn(async move {
            let _permit = permits.acquire().await;
            connector.connect(&url).await
        });
    }
    while let Some(opened) = opening.join_next().await {
        match opened {
            Ok(Ok(socket)) => open.push(socket),
            Ok(Err(error)) => connect_failed(&mut lock(recorder), &error),
            Err(_) => {}
        }
    }
    Ok(())
}

fn connect_failed(recorder: &mut Recorder, error: &Error) {
    recorder.counts.connect_failed += 1;
    recorder.note_error(|| format!("a connection could not be opened: {error}"));
}

/// Ends each second until the tasks have ended or a signal arrives. Returns whether one did.
async fn watch_run(
    run: &Run,
    begin: Instant,
    tasks: &mut JoinSet<()>,
    progress: &mut Progress,
    signals: &mut Signals,
) -> bool {
    const SECOND: Duration = Duration::from_secs(1);
    let mut ticks = tokio::time::interval_at((begin + SECOND).into(), SECOND);
    let mut is_interrupted = false;
    loop {
        tokio::select! {
            ended = tasks.join_next() => if ended.is_none() {
                break;
            },
            tick = ticks.tick() => {
                let second = run.recorder().end_second(tick.into_std().saturating_duration_since(begin));
                progress.show(&second);
            }
            () = signals.recv() => {
                if is_interrupted {
                    break;
                }
                is_interrupted = true;
                run.stop.send_replace(true);
            }
        }
    }
    is_interrupted
}

/// One connection of the run.
struct Connection {
    run: Arc<Run>,
    opens_at: Instant,
    /// Its position among all, from 0 to 1.
    fraction: f64,
    pacer: Option<Pacer>,
}

impl Connection {
    async fn open(&self, socket: Option<WebSocket>, connector: &Connector, url: &str) -> Option<WebSocket> {
        let mut stopped = self.run.stopped();
        tokio::select! {
            () = tokio::time::sleep_until(self.opens_at.into()) => {}
            _ = stopped.wait_for(|&is_stopped| is_stopped) => return None,
        }
        if socket.is_some() {
            return socket;
        }
        match connector.connect(url).await {
            Ok(socket) => Some(socket),
            Err(error) => {
                connect_failed(&mut self.run.recorder(), &error);
                None
            }
        }
    }

    async fn load(&self, socket: WebSocket, interval: Option<f64>, pipeline: usize, template: Template) {
        let load = match (interval, &self.pacer) {
            (Some(interval), Some(pacer)) => {
                // Spread over the interval, so that the connections do not send at the same time.
                let now = Instant::now().max(self.opens_at);
                let schedule =
                    Schedule::new(now + Duration::from_secs_f64(interval * self.fraction), interval);
                Loop::Open(schedule, pacer.add(schedule))
            }
            _ => Loop::Closed(pipeline),
        };
        self.run.recorder().connections += 1;
        Echo::new(&self.run, load, template).run(socket).await;
        self.run.recorder().connections -= 1;
    }
}

/// Processor time of this process.
#[cfg(unix)]
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(not(unix))]
fn cpu_time() -> Duration {
    Duration::ZERO
}
