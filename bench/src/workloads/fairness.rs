//! Fairness: what an honest client keeps of its rate while hostile ones send short messages that inflate to a megabyte each.

use crate::loopback::cores::Cores;
use crate::loopback::flooding::Flood;
use crate::loopback::pacing::{Delays, Paced};
use crate::loopback::servers::{self, Running};
use crate::results::{Figure, Role};
use crate::runner::Runner;
use crate::statistics::quantile;
use std::time::Duration;

/// The honest client's messages.
const RATE: u32 = 2_000;
const HOSTILE: usize = 200;

/// The share of the rate that has to be left, and the time in which 99 % of the messages have to be answered.
const SHARE_MIN: f64 = 0.9;
const DELAY_MAX: Duration = Duration::from_millis(50);

/// All figures.
pub(crate) fn run(runner: &mut Runner) -> Result<(), String> {
    let cores = Cores::take();
    for over_http2 in [false, true] {
        let servers = if over_http2 { servers::inflating_http2() } else { servers::inflating() };
        for running in servers::start(runner, &cores, servers)? {
            attack(runner, &running, over_http2)
                .map_err(|error| format!("{}: {error}", running.server.name))?;
        }
    }
    Ok(())
}

fn attack(runner: &mut Runner, running: &Running, over_http2: bool) -> Result<(), String> {
    let Running { server, address, .. } = running;
    let seconds = if runner.smoke { 0.02 } else { runner.effort.process_round_time.as_secs_f64() * 10.0 };
    let (count, interval) = ((seconds * f64::from(RATE)) as usize, Duration::from_secs(1) / RATE);
    runner.show(&format!("fairness: {}", server.name));
    let mut honest = Paced::open(*address, over_http2)?;
    let quiet = honest.run(count, interval)?;
    let hostile = runner.scale(HOSTILE, 3);
    let flood = Flood::begin(*address, hostile, over_http2)?;
    let delays = honest.run(count, interval)?;
    drop(flood);
    let version = if over_http2 { "HTTP/2" } else { "HTTP/1.1" };
    let percentile = |delays: &Delays, at| match quantile(&delays.0, at) {
        ms if ms.is_finite() => format!("{ms:.2} ms"),
        _ => "unanswered".into(),
    };
    let note = format!(
        "{count} messages; p50 {}, p99 {}, most {}; without the attack p99 {}",
        percentile(&delays, 0.5),
        percentile(&delays, 0.99),
        percentile(&delays, 1.0),
        percentile(&quiet, 0.99)
    );
    let is_ours = server.role == Role::Wireloom;
    let mut keep = |what: &str, value: f64, least: f64| {
        let title = format!("{}, {hostile} hostile connections, {version}: {what}", server.name);
        runner.keep_figure(Figure::new("fairness", title, value, is_ours.then_some(least), note.clone()));
    };
    // Answers later than a second are no rate.
    keep("share of the rate", delays.within(Duration::from_secs(1)), SHARE_MIN);
    keep("answered within 50 ms", delays.within(DELAY_MAX), 0.99);
    Ok(())
}
