//! Runs the load: opens the connections, runs their tasks, and records the figures each second.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use wireloom::Error;

use super::end::End;
use super::hdr::Log;
use super::link::Link;
use super::pacer::{Pacer, Timetable};
use super::plan::Plan;
use super::process;
use super::progress::Progress;
use super::recorder::Recorder;
use super::room::Room;
use super::run::{Run, joined};
use super::scenario::{self, Connection};
use super::target::{Failure, Opener};
use super::work::Work;
use crate::args::{Load, Scenario, Stage};
use crate::signals::{Signal, Signals};

/// Handshakes at once. More would overflow the backlog of common servers.
const HANDSHAKES_MAX: usize = 100;

/// The result of a run.
pub(super) struct Outcome {
    /// Of the server that was measured.
    pub(super) url: String,
    pub(super) recorder: Recorder,
    /// Between the first message that was measured and the end of sending, or the last answer if that came later.
    pub(super) measured: Duration,
    /// Processor time.
    pub(super) cpu: Duration,
    /// Time, with the warm-up.
    pub(super) elapsed: Duration,
    /// Memory of this process per connection, in bytes; `None` where it is not known.
    pub(super) memory: Option<u64>,
    pub(super) interrupted_by: Option<Signal>,
}

impl Outcome {
    /// Adds a run that followed this one.
    pub(super) fn append(&mut self, later: Self) {
        self.recorder.append(later.recorder);
        self.measured += later.measured;
        self.cpu += later.cpu;
        self.elapsed += later.elapsed;
        self.memory = self.memory.max(later.memory);
        self.interrupted_by = self.interrupted_by.or(later.interrupted_by);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Loads the server for `duration` after the warm-up, or with `--count`.
///
/// # Errors
/// No connection could be opened, a signal came before that, or the operating system cannot start a thread.
pub(super) async fn run(
    args: &Load,
    work: Arc<Work>,
    opener: Arc<Opener>,
    duration: Duration,
    progress: &mut Progress,
    signals: &mut Signals,
) -> Result<Outcome, Failure> {
    let volume = &args.volume;
    let mut memory_before = None;
    let mut recorder = Recorder::new();
    recorder.log = args.output.hdr.is_some().then(Log::default);
    let recorder = Arc::new(Mutex::new(recorder));
    let mut links = Vec::with_capacity(volume.connections());
    let opening = async {
        open_all(args, &opener, &mut links, &recorder, &mut memory_before).await?;
        // They were opened in another order. Publishers are the first ones.
        links.sort_by_key(|(opened_as, _)| *opened_as);
        if work.scenario == Scenario::Rooms {
            let sockets = links.iter_mut().map(|(_, link)| link);
            scenario::wait_until_joined(&work, args.tokens.is_some(), volume.timeout, sockets).await?;
        }
        Ok::<(), Error>(())
    };
    tokio::select! {
        opened = opening => opened?,
        signal = signals.recv() => return Err(Failure::Interrupted(signal)),
    }
    let begin = Instant::now();
    let warmup = volume.warmup.unwrap_or_default();
    let measured_from = begin + warmup;
    let plays_once = work.scenario == Scenario::Replay && volume.duration.is_none();
    let end = (volume.count.is_none() && !plays_once).then(|| measured_from + duration);
    let plan = Plan { begin, measured_from, end, timeout: volume.timeout };
    let timetable = stages(args, warmup, duration).map(|stages| Arc::new(Timetable::new(begin, &stages)));
    let rate_max = match &timetable {
        Some(timetable) => Some(timetable.rate_max()),
        None => work.recording.rate(volume.connections()),
    };
    let pacer = rate_max.map(Pacer::start).transpose().map_err(Error::from)?;
    let run = Arc::new(Run {
        plan,
        room: Room::new(if work.scenario == Scenario::Rooms { work.publishers } else { 0 }),
        end: End::default(),
        work,
        opener,
        recorder: recorder.clone(),
        tickets: volume.count.map(AtomicU64::new),
        timetable,
        pacer,
    });
    if run.work.scenario == Scenario::Idle {
        let run = run.clone();
        tokio::spawn(async move {
            tokio::time::sleep_until(run.plan.sending_end().into()).await;
            run.end.signal();
        });
    }
    let mut tasks = JoinSet::new();
    let count = if volume.ramp_up.is_some() { volume.connections() } else { links.len() };
    let mut links = links.into_iter();
    for index in 0..count {
        let opens_at = begin + volume.ramp_up.unwrap_or_default().mul_f64(index as f64 / count as f64);
        let (opened_as, link) = links.next().map_or((index, None), |(index, link)| (index, Some(link)));
        let connection = Connection { run: run.clone(), index, opened_as, opens_at };
        match link {
            Some(link) => tasks.spawn(scenario::run(connection, link)),
            None => tasks.spawn(Box::pin(open_later(connection))),
        };
    }
    // Free its memory, which would otherwise stay allocated during the run.
    drop(links);
    let cpu_before = process::cpu_time();
    let result = watch_run(&run, &mut tasks, progress, signals).await;
    let elapsed = begin.elapsed();
    let cpu = process::cpu_time().saturating_sub(cpu_before);
    let mut recorder = std::mem::replace(&mut *lock(&recorder), Recorder::new());
    recorder.end(elapsed);
    // The server may have closed all connections before the end.
    let ended = Instant::now();
    let sending_end = match run.plan.end {
        _ if result.interrupted_by.is_some() => Some(ended),
        Some(end) => Some(end.min(ended)),
        None => recorder.last_sent,
    };
    let last = sending_end.max(recorder.last_answer).unwrap_or(run.plan.measured_from);
    let measured = last.saturating_duration_since(run.plan.measured_from);
    let memory = result.memory_max.zip(memory_before).and_then(|(after, (before, open))| {
        after.saturating_sub(before).checked_div(volume.connections().saturating_sub(open) as u64)
    });
    let url = run.opener.url().to_owned();
    Ok(Outcome { url, recorder, measured, cpu, elapsed, memory, interrupted_by: result.interrupted_by })
}

/// The stages of the open loop, with the warm-up at the rate of the first one.
fn stages(args: &Load, warmup: Duration, duration: Duration) -> Option<Vec<Stage>> {
    let volume = &args.volume;
    let stages = match volume.rate {
        Some(rate) => vec![Stage { time: duration, rate }],
        None => volume.stage.clone(),
    };
    let first = stages.first()?.rate;
    Some(std::iter::once(Stage { time: warmup, rate: first }).chain(stages).collect())
}

/// Opens the connections before the run begins; with a ramp only the first. Each has the number that chose its token.
/// `memory_before` is the memory of this process with few connections, and their number.
///
/// # Errors
/// The first connection could not be opened.
async fn open_all(
    args: &Load,
    opener: &Arc<Opener>,
    links: &mut Vec<(usize, Link)>,
    recorder: &Mutex<Recorder>,
    memory_before: &mut Option<(u64, usize)>,
) -> Result<(), Error> {
    if opener.opens_later() {
        // Open the first one alone: if it fails, the others would too.
        let mut socket = opener.websocket(0).await?;
        let _ = socket.close(wireloom::CloseCode::NORMAL, "").await;
        links.extend((0..args.volume.connections()).map(|index| (index, Link::None)));
        return Ok(());
    }
    let opened = timed_open(opener.clone(), 0).await;
    lock(recorder).connected(opened.1);
    links.push((0, opened.0?));
    *memory_before = process::memory().map(|memory| (memory, links.len()));
    if args.volume.ramp_up.is_some() {
        return Ok(());
    }
    let mut opening = JoinSet::new();
    let mut next = 1;
    loop {
        while next < args.volume.connections() && opening.len() < HANDSHAKES_MAX {
            let (opener, index) = (opener.clone(), next);
            opening.spawn(async move { (index, timed_open(opener, index).await) });
            next += 1;
        }
        match opening.join_next().await.map(joined) {
            None => return Ok(()),
            Some(Some((index, (Ok(link), time)))) => {
                lock(recorder).connected(time);
                links.push((index, link));
                // The buffers of this many concurrent handshakes are reused by later ones.
                if links.len() == HANDSHAKES_MAX {
                    *memory_before = process::memory().map(|memory| (memory, links.len()));
                }
            }
            Some(Some((_, (Err(error), _)))) => lock(recorder).connect_failed(&error),
            Some(None) => {}
        }
    }
}

async fn timed_open(opener: Arc<Opener>, index: usize) -> (Result<Link, Error>, Duration) {
    let begin = Instant::now();
    let opened = opener.open(index).await;
    (opened, begin.elapsed())
}

/// A connection that is opened during the run.
async fn open_later(connection: Connection) {
    tokio::time::sleep_until(connection.opens_at.into()).await;
    let (opened, time) = timed_open(connection.run.opener.clone(), connection.opened_as).await;
    match opened {
        Ok(link) => {
            connection.run.recorder().connected(time);
            scenario::run(connection, link).await;
        }
        Err(error) => connection.run.recorder().connect_failed(&error),
    }
}

/// The result of [`watch_run`].
struct WatchResult {
    interrupted_by: Option<Signal>,
    /// Memory of this process while messages were sent, in bytes; `None` where it is not known.
    memory_max: Option<u64>,
}

/// Records each second until the tasks have ended or a signal ends them.
async fn watch_run(
    run: &Run,
    tasks: &mut JoinSet<()>,
    progress: &mut Progress,
    signals: &mut Signals,
) -> WatchResult {
    const SECOND: Duration = Duration::from_secs(1);
    let mut ticks = tokio::time::interval_at((run.plan.begin + SECOND).into(), SECOND);
    // After a time in which this process could not run, there is one long second and no empty ones.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut result = WatchResult { interrupted_by: None, memory_max: None };
    loop {
        tokio::select! {
            ended = tasks.join_next() => if ended.map(joined).is_none() {
                result.memory_max = result.memory_max.or_else(process::memory);
                return result;
            },
            _ = ticks.tick() => {
                let now = Instant::now();
                let second = run.recorder().end_second(now.saturating_duration_since(run.plan.begin));
                progress.show(&second);
                // Idle connections send their ping at the end.
                if !run.plan.is_over(now) {
                    result.memory_max = result.memory_max.max(process::memory());
                }
            }
            signal = signals.recv() => {
                result.interrupted_by = result.interrupted_by.or(Some(signal));
                tasks.abort_all();
            }
        }
    }
}
