//! The schedule of the open loop, and the clock that wakes connections when their messages are due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::args::Stage;

/// When the messages of all connections are due: evenly spaced within each stage.
#[derive(Debug)]
pub(super) struct Timetable {
    begin: Instant,
    /// The messages before each stage, and when it begins, in seconds. The last stage has no end.
    stages: Vec<(f64, f64, f64)>,
}

impl Timetable {
    /// The first stage begins at `begin`; the last one lasts as long as messages are sent.
    pub(super) fn new(begin: Instant, stages: &[Stage]) -> Self {
        let (mut messages, mut at) = (0.0, 0.0);
        let stages = stages.iter().map(|stage| {
            let first = (messages, at, stage.rate);
            messages += stage.rate * stage.time.as_secs_f64();
            at += stage.time.as_secs_f64();
            first
        });
        Self { begin, stages: stages.collect() }
    }

    /// When the message with this number is due.
    fn due(&self, number: u64) -> Instant {
        let number = number as f64;
        let stage = self.stages.iter().rfind(|(messages, ..)| *messages <= number).or(self.stages.first());
        let Some((messages, at, rate)) = stage else { return self.begin };
        self.begin + Duration::from_secs_f64(at + (number - messages) / rate)
    }

    /// Messages per second, of the fastest stage.
    pub(super) fn rate_max(&self) -> f64 {
        self.stages.iter().map(|(_, _, rate)| *rate).fold(0.0, f64::max)
    }
}

/// The messages of one connection: every `step`th of the timetable.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    timetable: Arc<Timetable>,
    number: u64,
    step: u64,
    next: Instant,
}

impl Schedule {
    /// Messages that were due before `from` are left out.
    pub(super) fn new(timetable: Arc<Timetable>, first: u64, step: u64, from: Instant) -> Self {
        let next = timetable.due(first);
        let mut schedule = Self { timetable, number: first, step, next };
        while schedule.next < from {
            schedule.advance();
        }
        schedule
    }

    /// When the next message is due.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    pub(super) fn advance(&mut self) {
        self.number += self.step;
        self.next = self.timetable.due(self.number);
    }
}

/// Wakes connections when their messages are due. The runtime's timers have a resolution of a millisecond; a sleeping
/// thread is more exact. The thread wakes one task of the runtime, which wakes the connections without a system call
/// for each.
pub(super) struct Pacer {
    state: Mutex<PacerState>,
    clock: Sender<Instant>,
    /// Wakes the task.
    tick: Arc<Notify>,
    /// The minimum time between two ticks.
    pause: Duration,
}

#[derive(Default)]
struct PacerState {
    alarms: Vec<AlarmState>,
    due: BinaryHeap<Reverse<(Instant, usize)>>,
    /// When the clock ticks next.
    next_tick: Option<Instant>,
    /// The end of the pause after the last tick.
    earliest: Option<Instant>,
}

/// The state of an [`Alarm`].
#[derive(Default)]
struct AlarmState {
    /// The task to be woken; `None` if the alarm was dropped.
    waker: Option<Waker>,
    is_due: bool,
}

impl Pacer {
    /// For messages at up to this rate, of all connections together.
    ///
    /// # Errors
    /// The operating system cannot start a thread.
    pub(super) fn start(rate_max: f64) -> std::io::Result<Arc<Self>> {
        // Messages that are due within this time leave together, in fewer system calls.
        let pause = match rate_max {
            ..20e3 => Duration::from_micros(50),
            20e3..80e3 => Duration::from_micros(200),
            _ => Duration::from_micros(400),
        };
        let tick = Arc::new(Notify::new());
        let (clock, receiver) = channel();
        let clock_tick = tick.clone();
        std::thread::Builder::new().name("clock".into()).spawn(move || run_clock(&receiver, &clock_tick))?;
        let pacer = Arc::new(Self { state: Mutex::default(), clock, tick, pause });
        let weak = Arc::downgrade(&pacer);
        let tick = pacer.tick.clone();
        tokio::spawn(async move {
            loop {
                tick.notified().await;
                match weak.upgrade() {
                    Some(pacer) => pacer.wake_due(),
                    None => return,
                }
            }
        });
        Ok(pacer)
    }

    /// An alarm for a connection.
    pub(super) fn add(self: &Arc<Self>) -> Alarm {
        let mut state = self.lock();
        state.alarms.push(AlarmState::default());
        Alarm { pacer: self.clone(), index: state.alarms.len() - 1, at: None }
    }

    fn lock(&self) -> MutexGuard<'_, PacerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_at(&self, state: &mut PacerState, index: usize, at: Instant) {
        state.due.push(Reverse((at, index)));
        let at = state.earliest.map_or(at, |earliest| at.max(earliest));
        if state.next_tick.is_none_or(|next| at < next) {
            state.next_tick = Some(at);
            // The thread runs for as long as the pacer exists.
            let _ = self.clock.send(at);
        }
    }

    fn wake_due(&self) {
        let mut state = self.lock();
        let now = Instant::now();
        while let Some(Reverse((at, index))) = state.due.peek().copied() {
            if at > now {
                break;
            }
            state.due.pop();
            let alarm = &mut state.alarms[index];
            alarm.is_due = true;
            if let Some(waker) = &alarm.waker {
                waker.wake_by_ref();
            }
        }
        // Connections that are woken now have their next messages after the pause.
        state.earliest = Some(now + self.pause);
        state.next_tick = state.due.peek().map(|Reverse((at, _))| (*at).max(now + self.pause));
        if let Some(next) = state.next_tick {
            let _ = self.clock.send(next);
        }
    }
}

/// Wakes a connection when its next message is due.
pub(super) struct Alarm {
    pacer: Arc<Pacer>,
    index: usize,
    /// The requested time.
    at: Option<Instant>,
}

impl Alarm {
    /// Ready at this time, or soon after it, once; registers the task until then. An earlier time may make it ready, too.
    pub(super) fn poll_at(&mut self, cx: &Context<'_>, at: Instant) -> Poll<()> {
        let mut state = self.pacer.lock();
        let alarm = &mut state.alarms[self.index];
        if std::mem::take(&mut alarm.is_due) {
            self.at = None;
            return Poll::Ready(());
        }
        if !alarm.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            alarm.waker = Some(cx.waker().clone());
        }
        if self.at != Some(at) {
            self.at = Some(at);
            self.pacer.wake_at(&mut state, self.index, at);
        }
        Poll::Pending
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let waker = self.pacer.lock().alarms[self.index].waker.take();
        // Dropped outside of the lock, because it may be the last reference to the task.
        drop(waker);
    }
}

fn run_clock(receiver: &Receiver<Instant>, tick: &Notify) {
    const FAR: Duration = Duration::from_secs(3600);
    let mut at = None;
    loop {
        let timeout = at.map_or(FAR, |at: Instant| at.saturating_duration_since(Instant::now()));
        match receiver.recv_timeout(timeout) {
            Ok(next) => at = Some(next),
            Err(RecvTimeoutError::Timeout) => {
                if at.take().is_some() {
                    tick.notify_one();
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                tick.notify_one();
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timetable(stages: &[(u64, f64)]) -> Arc<Timetable> {
        let stages: Vec<Stage> =
            stages.iter().map(|&(time, rate)| Stage { time: Duration::from_secs(time), rate }).collect();
        Arc::new(Timetable::new(Instant::now(), &stages))
    }

    fn seconds(timetable: &Timetable, number: u64) -> f64 {
        (timetable.due(number) - timetable.begin).as_secs_f64()
    }

    #[test]
    fn schedules_do_not_drift() {
        let timetable = timetable(&[(1, 3.0)]);
        assert!((seconds(&timetable, 300_000) - 100_000.0).abs() < 1e-6);
    }

    #[test]
    fn stages_follow_each_other() {
        let timetable = timetable(&[(10, 100.0), (5, 2000.0), (1, 10.0)]);
        assert_eq!(seconds(&timetable, 0), 0.0);
        assert_eq!(seconds(&timetable, 500), 5.0);
        assert_eq!(seconds(&timetable, 1000), 10.0);
        assert_eq!(seconds(&timetable, 2000), 10.5);
        assert_eq!(seconds(&timetable, 11_010), 16.0);
    }

    // Every message of the timetable belongs to one connection.
    #[test]
    fn connections_share_the_messages() {
        let timetable = timetable(&[(1, 10.0)]);
        let mut due = Vec::new();
        for first in 0..3 {
            let mut schedule = Schedule::new(timetable.clone(), first, 3, timetable.begin);
            for _ in 0..10 {
                due.push(schedule.next());
                schedule.advance();
            }
        }
        due.sort();
        let expected: Vec<Instant> = (0..30).map(|number| timetable.due(number)).collect();
        assert_eq!(due, expected);
        let late = Schedule::new(timetable.clone(), 0, 1, timetable.begin + Duration::from_millis(250));
        assert_eq!(late.next(), timetable.due(3));
    }
}
