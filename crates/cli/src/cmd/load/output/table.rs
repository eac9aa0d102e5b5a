//! The result as a table of text.

use std::fmt::Write as _;

use super::super::comparison::Comparison;
use super::super::merged::Merged;
use super::super::report::{Checked, Latency, Report};
use super::super::units::{throughput, time};
use crate::args::{Metric, Scenario};
use crate::terminal::visible_line;

pub(in crate::cmd::load) fn table(report: &Report) -> String {
    let mut out = String::new();
    for (name, value) in rows(report) {
        let _ = writeln!(out, "{name:<12} {value}");
    }
    out
}

/// The names and values, which the page shows too.
pub(super) fn rows(report: &Report) -> Vec<(String, String)> {
    let mut rows: Vec<(String, String)> = Vec::new();
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    let counts = &report.counts;
    row("target", report.url.clone());
    row("scenario", report.scenario.to_string());
    row("connections", report.connections.to_string());
    row("time", format!("{:.3} s", report.measured.as_secs_f64()));
    row("sent", counts.sent.to_string());
    row(answered(report.scenario), counts.received.to_string());
    row("rate", format!("{:.1}/s", report.rate));
    let bytes = counts.sent_bytes.max(counts.received_bytes);
    if bytes > 0 {
        row("payload", throughput(bytes, report.measured));
    }
    let latency = &report.latency;
    for (name, value) in latencies(latency) {
        row(&name, value);
    }
    if let Some(delay) = report.send_delay_p99 {
        row("send delay", format!("p99 {}", time(delay as f64)));
    }
    if report.connect.samples > 0 {
        let percentile =
            |asked| report.connect.percentile(asked).map_or_else(String::new, |nanos| time(nanos as f64));
        row("connecting", format!("p50 {}, p99 {}", percentile(50.0), percentile(99.0)));
    }
    row("cpu", format!("{:.0}% of a core", report.cpu * 100.0));
    if let Some(memory) = report.memory {
        row("memory", format!("{memory} B per connection"));
    }
    row("errors", errors(report));
    if let Some(error) = &report.first_error {
        row("first error", visible_line(error));
    }
    for checked in &report.expectations {
        row("expected", expected(checked));
    }
    if let Some(comparison) = &report.comparison {
        for line in compared(comparison) {
            row("compared", line);
        }
    }
    for warning in &report.warnings {
        row("warning", warning.clone());
    }
    rows
}

/// The percentiles, the maximum and the mean.
fn latencies(latency: &Latency) -> Vec<(String, String)> {
    if latency.samples == 0 {
        return Vec::new();
    }
    let percentiles = latency.percentiles.iter().map(|&(percentile, nanos)| {
        let few = if latency.has_samples_for(percentile) { "" } else { "   (too few samples)" };
        (format!("p{percentile}"), format!("{}{few}", time(nanos as f64)))
    });
    let others = [("max", latency.max as f64), ("mean", latency.mean)];
    percentiles.chain(others.map(|(name, nanos)| (name.to_owned(), time(nanos)))).collect()
}

fn expected(Checked { expectation, value, is_met }: &Checked) -> String {
    let result = if *is_met { "met" } else { "not met" };
    let value = match expectation.metric {
        Metric::Rate => format!("{value:.1}/s"),
        Metric::Errors => format!("{value}"),
        _ if value.is_nan() => "no latencies".to_owned(),
        _ => time(value * 1e9),
    };
    format!("{}: {result} ({}: {value})", expectation.text, expectation.metric)
}

/// The sum of several processes.
pub(in crate::cmd::load) fn merged(merged: &Merged) -> String {
    let mut rows: Vec<(String, String)> = Vec::new();
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    row("files", merged.files.join(", "));
    row("connections", merged.connections.to_string());
    row("time", format!("{:.3} s", merged.time.as_secs_f64()));
    row("sent", merged.sent.to_string());
    row("answered", merged.received.to_string());
    row("rate", format!("{:.1}/s", merged.rate));
    rows.extend(latencies(&merged.latency));
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    row("errors", errors_of(&merged.errors));
    for checked in &merged.expectations {
        row("expected", expected(checked));
    }
    for warning in &merged.warnings {
        row("warning", warning.clone());
    }
    // The files name the kinds of errors.
    rows.iter().map(|(name, value)| format!("{name:<12} {}\n", visible_line(value))).collect()
}

/// The result, and a line for each metric.
pub(super) fn compared(comparison: &Comparison) -> Vec<String> {
    let mut lines = vec![format!("with {}: {}", comparison.with, comparison.result())];
    for change in &comparison.changes {
        lines.push(format!(
            "{}: {:+.1}% (95% confidence: {:+.1}% to {:+.1}%), {}",
            change.metric,
            change.median * 100.0,
            change.low * 100.0,
            change.high * 100.0,
            change.result(),
        ));
    }
    lines
}

/// The scenario's word for an answer.
fn answered(scenario: Scenario) -> &'static str {
    match scenario {
        Scenario::Source | Scenario::Slow | Scenario::Rooms | Scenario::Replay => "received",
        Scenario::Sink => "confirmed",
        Scenario::Churn => "opened",
        _ => "answered",
    }
}

pub(super) fn errors(report: &Report) -> String {
    errors_of(&report.counts.errors.kinds())
}

fn errors_of(kinds: &[(impl AsRef<str>, u64)]) -> String {
    let total = kinds.iter().fold(0_u64, |total, (_, count)| total.saturating_add(*count));
    let kinds = kinds.iter().filter(|(_, count)| *count > 0);
    let found: Vec<String> =
        kinds.map(|(kind, count)| format!("{count} {}", kind.as_ref().replace('_', " "))).collect();
    if found.is_empty() { "0".to_owned() } else { format!("{total} ({})", found.join(", ")) }
}
