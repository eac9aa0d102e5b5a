//! The result: a table, or JSON as docs/src/guides/load.md documents it.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::recorder::{Counts, Second};
use super::run::Outcome;
use crate::args::{Expectation, Load, Metric};
use crate::cmd::connect::trace::without_secrets;

/// The version of the JSON; it changes when a field is removed or gets another meaning.
const SCHEMA: u32 = 1;

/// The percentiles that are printed.
const PERCENTILES: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 99.99];

/// Samples above a percentile without which it is a matter of chance.
const SAMPLES_ABOVE_MIN: f64 = 10.0;

/// Processor time per time from which on the generator may be the bottleneck.
const CPU_MAX: f64 = 0.9;

/// The send delay of the open loop, in nanoseconds, from which on it distorts the latency.
const SEND_DELAY_MAX: u64 = 1_000_000;

/// What was measured.
pub(super) struct Report {
    url: String,
    config: Value,
    measured: Duration,
    counts: Counts,
    connections: usize,
    /// Answers per second.
    rate: f64,
    mean: f64,
    max: u64,
    /// Percentile and nanoseconds.
    percentiles: Vec<(f64, u64)>,
    samples: u64,
    send_delay_p99: Option<u64>,
    cpu: f64,
    is_interrupted: bool,
    first_error: Option<String>,
    series: Vec<Second>,
    expectations: Vec<Checked>,
    warnings: Vec<String>,
}

/// An expectation, and whether it was met.
struct Checked {
    expectation: Expectation,
    value: f64,
    is_met: bool,
}

impl Report {
    pub(super) fn new(args: &Load, outcome: Outcome) -> Self {
        let Outcome { mut recorder, measured, cpu, is_interrupted } = outcome;
        let counts = recorder.counts;
        let expected = args.output.expect.iter().filter_map(|expectation| match expectation.metric {
            Metric::Percentile(percentile) => Some(percentile),
            _ => None,
        });
        let mut asked: Vec<f64> = PERCENTILES.into_iter().chain(expected).collect();
        asked.sort_by(f64::total_cmp);
        asked.dedup();
        let latency = recorder.latency();
        let samples = latency.len();
        let (mean, max) = (latency.mean(), if samples == 0 { 0 } else { latency.max() });
        let percentiles =
            asked.iter().map(|&percentile| (percentile, latency.value_at_percentile(percentile))).collect();
        let send_delay = recorder.send_delay();
        let send_delay_p99 = args.volume.rate.map(|_| send_delay.value_at_quantile(0.99));
        let rate = if measured.is_zero() { 0.0 } else { counts.received as f64 / measured.as_secs_f64() };
        let mut report = Self {
            url: without_secrets(&args.url),
            config: config(args),
            measured,
            counts,
            connections: args.volume.connections,
            rate,
            mean,
            max,
            percentiles,
            samples,
            send_delay_p99,
            cpu,
            is_interrupted,
            first_error: recorder.first_error,
            series: recorder.series,
            expectations: Vec::new(),
            warnings: Vec::new(),
        };
        report.expectations =
            args.output.expect.iter().map(|expectation| report.check(expectation)).collect();
        report.warnings = report.find_warnings(args);
        report
    }

    /// Whether each `--expect` was met.
    pub(super) fn is_as_expected(&self) -> bool {
        self.expectations.iter().all(|checked| checked.is_met)
    }

    /// Whether there were errors that no `--expect` is about.
    pub(super) fn has_errors(&self) -> bool {
        let is_expected =
            self.expectations.iter().any(|checked| checked.expectation.metric == Metric::Errors);
        self.counts.errors() > 0 && !is_expected
    }

    /// A latency cannot be checked without a sample: it is not met then.
    fn check(&self, expectation: &Expectation) -> Checked {
        let seconds = |nanos: f64| if self.samples == 0 { f64::NAN } else { nanos / 1e9 };
        let value = match expectation.metric {
            Metric::Percentile(asked) => {
                let found = self.percentiles.iter().find(|(percentile, _)| *percentile == asked);
                seconds(found.map_or(f64::NAN, |(_, nanos)| *nanos as f64))
            }
            Metric::Mean => seconds(self.mean),
            Metric::Max => seconds(self.max as f64),
            Metric::Rate => self.rate,
            Metric::Errors => self.counts.errors() as f64,
        };
        Checked { expectation: expectation.clone(), value, is_met: expectation.is_met_by(value) }
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
                latency(delay as f64)
            ));
        }
        if let Some(rate) = args.volume.rate
            && !self.is_interrupted
            && args.volume.ramp_up.is_none()
            && self.rate < rate * 0.95
        {
            warnings.push(format!("the rate of answers, {:.0}/s, is below --rate, {rate:.0}/s", self.rate));
        }
        let expected = self.expectations.iter().filter_map(|checked| match checked.expectation.metric {
            Metric::Percentile(percentile) => Some(percentile),
            _ => None,
        });
        for percentile in expected.chain([99.0]).filter(|&percentile| !self.has_samples_for(percentile)) {
            let text = format!("{} answers are too few for p{percentile}", self.samples);
            if !warnings.contains(&text) {
                warnings.push(text);
            }
        }
        if self.counts.closed > 0 {
            warnings.push(format!(
                "the server closed {} of {} connections",
                self.counts.closed, self.connections
            ));
        }
        if self.is_interrupted {
            warnings.push("interrupted before the end".to_owned());
        }
        warnings
    }

    fn has_samples_for(&self, percentile: f64) -> bool {
        percentile >= 100.0 || self.samples as f64 * (100.0 - percentile) / 100.0 >= SAMPLES_ABOVE_MIN - 1e-6
    }

    /// The summary for people.
    pub(super) fn table(&self) -> String {
        let mut out = String::new();
        let mut row = |name: &str, value: String| {
            let _ = writeln!(out, "{name:<12} {value}");
        };
        row("target", self.url.clone());
        row("connections", self.connections.to_string());
        row("time", format!("{:.3} s", self.measured.as_secs_f64()));
        row("sent", self.counts.sent.to_string());
        row("answered", self.counts.received.to_string());
        row("rate", format!("{:.1}/s", self.rate));
        if self.samples > 0 {
            for &(percentile, nanos) in &self.percentiles {
                let few = if self.has_samples_for(percentile) { "" } else { "   (too few samples)" };
                row(&format!("p{percentile}"), format!("{}{few}", latency(nanos as f64)));
            }
            row("max", latency(self.max as f64));
            row("mean", latency(self.mean));
        }
        if let Some(delay) = self.send_delay_p99 {
            row("send delay", format!("p99 {}", latency(delay as f64)));
        }
        row("cpu", format!("{:.0}% of a core", self.cpu * 100.0));
        row("errors", self.errors_text());
        if let Some(error) = &self.first_error {
            row("first error", crate::terminal::visible_line(error));
        }
        for Checked { expectation, value, is_met } in &self.expectations {
            let result = if *is_met { "met" } else { "not met" };
            let value = match expectation.metric {
                Metric::Rate => format!("{value:.1}/s"),
                Metric::Errors => format!("{value}"),
                _ if value.is_nan() => "no answers".to_owned(),
                _ => latency(value * 1e9),
            };
            row("expected", format!("{}: {result} ({}: {value})", expectation.text, expectation.metric));
        }
        for warning in &self.warnings {
            row("warning", warning.clone());
        }
        out
    }

    fn errors_text(&self) -> String {
        let Counts { lost, wrong, unexpected, connect_failed, closed, broken, .. } = self.counts;
        let kinds = [
            (lost, "lost"),
            (wrong, "wrong"),
            (unexpected, "unexpected"),
            (connect_failed, "not connected"),
            (closed, "closed"),
            (broken, "broken"),
        ];
        let found: Vec<String> = kinds
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, kind)| format!("{count} {kind}"))
            .collect();
        if found.is_empty() {
            "0".to_owned()
        } else {
            format!("{} ({})", self.counts.errors(), found.join(", "))
        }
    }

    /// The same for programs. Times are in seconds.
    pub(super) fn json(&self) -> Value {
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        let Counts { sent, received, lost, wrong, unexpected, connect_failed, closed, broken } = self.counts;
        let percentiles: serde_json::Map<String, Value> = self
            .percentiles
            .iter()
            .map(|&(percentile, nanos)| (format!("p{percentile}"), json!(seconds(nanos))))
            .collect();
        let mut latency =
            json!({ "samples": self.samples, "mean": self.mean / 1e9, "max": seconds(self.max) });
        if let Value::Object(fields) = &mut latency {
            fields.extend(percentiles);
        }
        let series: Vec<Value> = self
            .series
            .iter()
            .map(|second| {
                json!({
                    "at": second.at.as_secs_f64(), "sent": second.sent, "answered": second.received,
                    "errors": second.errors, "connections": second.connections,
                    "p50": seconds(second.p50), "p99": seconds(second.p99), "max": seconds(second.max),
                })
            })
            .collect();
        let expected: Vec<Value> = self
            .expectations
            .iter()
            .map(|checked| json!({ "text": checked.expectation.text, "value": checked.value, "met": checked.is_met }))
            .collect();
        json!({
            "schema": SCHEMA,
            "url": self.url,
            "config": self.config,
            "time": self.measured.as_secs_f64(),
            "sent": sent,
            "answered": received,
            "rate": self.rate,
            "latency": latency,
            "send_delay_p99": self.send_delay_p99.map(seconds),
            "cpu": self.cpu,
            "errors": {
                "total": self.counts.errors(), "lost": lost, "wrong": wrong, "unexpected": unexpected,
                "not_connected": connect_failed, "closed": closed, "broken": broken, "first": self.first_error,
            },
            "expected": expected,
            "warnings": self.warnings,
            "interrupted": self.is_interrupted,
            "series": series,
        })
    }
}

/// The arguments that a comparison needs.
fn config(args: &Load) -> Value {
    let volume = &args.volume;
    json!({
        "connections": volume.connections,
        "pipeline": volume.rate.is_none().then_some(volume.pipeline.unwrap_or(1)),
        "rate": volume.rate,
        "size": args.payload.size,
        "type": if args.payload.binary { "binary" } else { "text" },
        "compress": args.payload.compress,
        "http2": args.http2,
    })
}

/// A latency in the unit that fits.
pub(super) fn latency(nanos: f64) -> String {
    if nanos < 1e6 {
        format!("{:.1}µs", nanos / 1e3)
    } else if nanos < 1e9 {
        format!("{:.2}ms", nanos / 1e6)
    } else {
        format!("{:.3}s", nanos / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_printed_in_the_unit_that_fits() {
        assert_eq!(latency(1500.0), "1.5µs");
        assert_eq!(latency(999_900.0), "999.9µs");
        assert_eq!(latency(1_234_567.0), "1.23ms");
        assert_eq!(latency(1.5e9), "1.500s");
    }
}
