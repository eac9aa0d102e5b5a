//! The result of a run, with its checks and warnings.

use std::time::Duration;

use serde_json::{Value, json};
use wireloom::client::url_without_secrets;

use super::comparison::Comparison;
use super::hdr::Log;
use super::recorder::{Counts, Second};
use super::runner::Outcome;
use super::units::time;
use crate::args::{Expectation, Load, Metric, Scenario, Sizes};
use crate::signals::Signal;

/// The percentiles that are printed.
const PERCENTILES: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 99.99];

/// The minimum number of samples above a percentile: with fewer, its value depends on chance.
const SAMPLES_ABOVE_MIN: f64 = 10.0;

/// The fraction of a core above which the generator may be the bottleneck.
const CPU_MAX: f64 = 0.9;

/// The send delay of the open loop, in nanoseconds, above which it distorts the latency.
const SEND_DELAY_MAX: u64 = 1_000_000;

/// The length of a round of a comparison, in seconds, below which it is a short sample.
const ROUND_MIN_S: f64 = 1.0;

/// The minimum number of connections for which memory per connection is reported: with fewer, most of it is shared
/// buffers.
const MEMORY_CONNECTIONS_MIN: usize = 1000;

/// The result of a run.
pub(super) struct Report {
    pub(super) url: String,
    pub(super) config: Value,
    pub(super) scenario: Scenario,
    /// The warm-up, which the series includes.
    pub(super) warmup: Duration,
    pub(super) measured: Duration,
    pub(super) counts: Counts,
    pub(super) connections: usize,
    /// Answers per second.
    pub(super) rate: f64,
    pub(super) latency: Latency,
    /// How long opening the connections took.
    pub(super) connect: Latency,
    pub(super) send_delay_p99: Option<u64>,
    /// Processor time divided by elapsed time.
    pub(super) cpu: f64,
    /// Memory of a connection, in bytes.
    pub(super) memory: Option<u64>,
    pub(super) interrupted_by: Option<Signal>,
    pub(super) first_error: Option<String>,
    pub(super) series: Vec<Second>,
    pub(super) expectations: Vec<Checked>,
    pub(super) warnings: Vec<String>,
    pub(super) comparison: Option<Comparison>,
    /// With `--hdr`.
    pub(super) log: Option<Log>,
}

/// A distribution of times, in nanoseconds.
pub(super) struct Latency {
    pub(super) samples: u64,
    pub(super) mean: f64,
    pub(super) max: u64,
    /// Percentile and time.
    pub(super) percentiles: Vec<(f64, u64)>,
    /// The whole distribution, in finer steps towards 100 %.
    pub(super) curve: Vec<(f64, u64)>,
}

impl Latency {
    /// With the percentiles that are printed, and those that are expected.
    pub(super) fn expected(histogram: &hdrhistogram::Histogram<u64>, expectations: &[Expectation]) -> Self {
        let expected = expectations.iter().filter_map(|expectation| match expectation.metric {
            Metric::Percentile(percentile) => Some(percentile),
            _ => None,
        });
        let mut asked: Vec<f64> = PERCENTILES.into_iter().chain(expected).collect();
        asked.sort_by(f64::total_cmp);
        asked.dedup();
        Self::new(histogram, &asked)
    }

    fn new(histogram: &hdrhistogram::Histogram<u64>, asked: &[f64]) -> Self {
        let samples = histogram.len();
        let at = |percentile: f64| (percentile, histogram.value_at_percentile(percentile));
        let curve = if samples == 0 {
            Vec::new()
        } else {
            let steps = histogram
                .iter_quantiles(5)
                .map(|step| (step.quantile_iterated_to() * 100.0, step.value_iterated_to()));
            steps.filter(|(percentile, _)| *percentile < 100.0).chain([(100.0, histogram.max())]).collect()
        };
        Self {
            samples,
            mean: histogram.mean(),
            max: if samples == 0 { 0 } else { histogram.max() },
            percentiles: asked.iter().map(|&percentile| at(percentile)).collect(),
            curve,
        }
    }

    pub(super) fn has_samples_for(&self, percentile: f64) -> bool {
        percentile >= 100.0 || self.samples as f64 * (100.0 - percentile) / 100.0 >= SAMPLES_ABOVE_MIN - 1e-6
    }

    pub(super) fn percentile(&self, asked: f64) -> Option<u64> {
        self.percentiles.iter().find(|(percentile, _)| *percentile == asked).map(|(_, nanos)| *nanos)
    }
}

/// An expectation, and whether it was met.
pub(super) struct Checked {
    pub(super) expectation: Expectation,
    pub(super) value: f64,
    pub(super) is_met: bool,
}

impl Checked {
    /// Checks expectations. One about a latency is not met if there are no samples.
    pub(super) fn all(expectations: &[Expectation], latency: &Latency, rate: f64, errors: u64) -> Vec<Self> {
        let seconds = |nanos: f64| if latency.samples == 0 { f64::NAN } else { nanos / 1e9 };
        let check = |expectation: &Expectation| {
            let value = match expectation.metric {
                Metric::Percentile(asked) => {
                    seconds(latency.percentile(asked).map_or(f64::NAN, |nanos| nanos as f64))
                }
                Metric::Mean => seconds(latency.mean),
                Metric::Max => seconds(latency.max as f64),
                Metric::Rate => rate,
                Metric::Errors => errors as f64,
            };
            Self { expectation: expectation.clone(), value, is_met: expectation.is_met_by(value) }
        };
        expectations.iter().map(check).collect()
    }

    pub(super) fn all_are_met(all: &[Self]) -> bool {
        all.iter().all(|checked| checked.is_met)
    }

    /// Whether there are errors that no expectation is about.
    pub(super) fn has_errors(all: &[Self], errors: u64) -> bool {
        errors > 0 && all.iter().all(|checked| checked.expectation.metric != Metric::Errors)
    }
}

impl Report {
    pub(super) fn new(args: &Load, outcome: Outcome) -> Self {
        let Outcome { url, mut recorder, measured, cpu, elapsed, memory, interrupted_by } = outcome;
        let counts = recorder.counts;
        let latency = Latency::expected(recorder.latency(), &args.output.expect);
        let connections = args.volume.connections();
        let send_delay = recorder.send_delay();
        let rate = if measured.is_zero() { 0.0 } else { counts.received as f64 / measured.as_secs_f64() };
        let mut report = Self {
            url: url_without_secrets(&url),
            config: config(args),
            scenario: args.scenario(),
            warmup: args.volume.warmup.unwrap_or_default(),
            measured,
            counts,
            connections,
            rate,
            latency,
            connect: Latency::new(&recorder.connect, &PERCENTILES[..3]),
            send_delay_p99: args.is_paced().then(|| send_delay.value_at_quantile(0.99)),
            cpu: cpu.as_secs_f64() / elapsed.as_secs_f64().max(1e-9),
            memory: memory.filter(|_| connections >= MEMORY_CONNECTIONS_MIN),
            interrupted_by,
            first_error: recorder.first_error.take(),
            series: recorder.series,
            expectations: Vec::new(),
            warnings: Vec::new(),
            comparison: None,
            log: recorder.log.take(),
        };
        report.expectations =
            Checked::all(&args.output.expect, &report.latency, rate, report.counts.errors.total());
        report.warnings = report.find_warnings(args);
        report
    }

    fn find_warnings(&self, args: &Load) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.cpu >= CPU_MAX {
            warnings.push(format!(
                "load used {:.0}% of a core: it may be the bottleneck, not the server",
                self.cpu * 100.0
            ));
        }
        if let Some(delay) = self.send_delay_p99.filter(|&delay| delay > SEND_DELAY_MAX) {
            warnings.push(format!(
                "1% of the messages left {} or more later than intended, which is part of their latency",
                time(delay as f64)
            ));
        }
        let answers_each = !matches!(self.scenario, Scenario::Rooms | Scenario::Source | Scenario::Slow);
        if let Some(rate) = args.volume.rate.filter(|_| answers_each)
            && self.interrupted_by.is_none()
            && args.volume.ramp_up.is_none()
            && self.rate < rate * 0.95
        {
            warnings.push(format!("the rate of answers, {:.0}/s, is below --rate, {rate:.0}/s", self.rate));
        }
        let expected = self.expectations.iter().filter_map(|checked| match checked.expectation.metric {
            Metric::Percentile(percentile) => Some(percentile),
            _ => None,
        });
        if args.comparison.against.is_some() && self.interrupted_by.is_none() {
            let round = args.duration().as_secs_f64() / args.comparison.rounds as f64;
            if round < ROUND_MIN_S {
                let enough = ROUND_MIN_S * args.comparison.rounds as f64;
                warnings.push(format!(
                    "rounds of {round:.1} s are short samples: what else the machine does may look like a difference; -d {enough:.0}"
                ));
            }
        }
        // The most used percentile; a scenario without latencies has none.
        let usual = (self.latency.samples > 0).then_some(99.0);
        for percentile in
            expected.chain(usual).filter(|&percentile| !self.latency.has_samples_for(percentile))
        {
            let text = format!("{} latencies are too few for p{percentile}", self.latency.samples);
            if !warnings.contains(&text) {
                warnings.push(text);
            }
        }
        if self.counts.errors.closed > 0 {
            warnings.push(format!(
                "the server closed {} of {} connections",
                self.counts.errors.closed, self.connections
            ));
        }
        if self.interrupted_by.is_some() {
            warnings.push("interrupted before the end".to_owned());
        }
        warnings
    }
}

/// The arguments that a comparison needs.
fn config(args: &Load) -> Value {
    let volume = &args.volume;
    let size = match args.sizes() {
        Sizes::Fixed(len) => json!(len),
        Sizes::Uniform(min, max) => json!({ "min": min, "max": max }),
        Sizes::Weighted(lens) => {
            json!(lens.iter().map(|(len, share)| json!({ "size": len, "share": share })).collect::<Vec<_>>())
        }
    };
    let stages: Vec<Value> = volume
        .stage
        .iter()
        .map(|stage| json!({ "time": stage.time.as_secs_f64(), "rate": stage.rate }))
        .collect();
    json!({
        "scenario": args.scenario().to_string(),
        "connections": volume.connections(),
        "pipeline": (!args.is_open_loop() && args.replay.is_none()).then_some(volume.pipeline.unwrap_or(1)),
        "rate": volume.rate,
        "stages": stages,
        "publishers": (args.scenario() == Scenario::Rooms).then_some(volume.publishers.unwrap_or(1)),
        "speed": args.speed_of_replay().map(|speed| speed.to_json()),
        "warmup": volume.warmup.unwrap_or_default().as_secs_f64(),
        "size": size,
        "type": if args.payload.binary { "binary" } else { "text" },
        "compress": args.payload.compress,
        "http2": args.http2 || (args.scenario() == Scenario::Requests && !args.http1),
    })
}
