//! The result for programs, as docs/src/guides/load.schema.json defines it. Times are in seconds.

use serde_json::{Map, Value, json};

use super::super::comparison::Comparison;
use super::super::merged::Merged;
use super::super::report::{Checked, Latency, Report};

/// The version of the schema. It changes when a field is removed or gets another meaning.
const SCHEMA: u32 = 1;

pub(in crate::cmd::load) fn json(report: &Report) -> Value {
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let series: Vec<Value> = report
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
    let mut errors: Map<String, Value> =
        report.counts.errors.kinds().iter().map(|(kind, count)| ((*kind).to_owned(), json!(count))).collect();
    errors.insert("total".into(), json!(report.counts.errors.total()));
    errors.insert("first".into(), json!(report.first_error));
    let curve: Vec<Value> =
        report.latency.curve.iter().map(|&(percentile, nanos)| json!([percentile, seconds(nanos)])).collect();
    let mut latency = times(&report.latency);
    latency.insert("curve".into(), curve.into());
    json!({
        "schema": SCHEMA,
        "url": report.url,
        "config": report.config,
        "time": report.measured.as_secs_f64(),
        "sent": report.counts.sent,
        "answered": report.counts.received,
        "sent_bytes": report.counts.sent_bytes,
        "answered_bytes": report.counts.received_bytes,
        "rate": report.rate,
        "latency": latency,
        "connect": times(&report.connect),
        "send_delay_p99": report.send_delay_p99.map(seconds),
        "cpu": report.cpu,
        "memory_per_connection": report.memory,
        "errors": errors,
        "expected": expected(&report.expectations),
        "warnings": report.warnings,
        "interrupted": report.interrupted_by.is_some(),
        "series": series,
        "comparison": report.comparison.as_ref().map(comparison),
    })
}

/// The sum of several processes.
pub(in crate::cmd::load) fn merged(merged: &Merged) -> Value {
    let mut errors: Map<String, Value> =
        merged.errors.iter().map(|(kind, count)| (kind.clone(), json!(count))).collect();
    errors.insert("total".into(), json!(merged.errors_total()));
    json!({
        "schema": SCHEMA,
        "files": merged.files,
        "connections": merged.connections,
        "time": merged.time.as_secs_f64(),
        "sent": merged.sent,
        "answered": merged.received,
        "rate": merged.rate,
        "latency": times(&merged.latency),
        "errors": errors,
        "expected": expected(&merged.expectations),
        "warnings": merged.warnings,
        "interrupted": merged.is_interrupted,
    })
}

fn expected(expectations: &[Checked]) -> Vec<Value> {
    let one = |checked: &Checked| json!({ "text": checked.expectation.text, "value": checked.value, "met": checked.is_met });
    expectations.iter().map(one).collect()
}

fn times(latency: &Latency) -> Map<String, Value> {
    let mut times = Map::new();
    times.insert("samples".into(), json!(latency.samples));
    times.insert("mean".into(), json!(latency.mean / 1e9));
    times.insert("max".into(), json!(latency.max as f64 / 1e9));
    for &(percentile, nanos) in &latency.percentiles {
        times.insert(format!("p{percentile}"), json!(nanos as f64 / 1e9));
    }
    times
}

fn comparison(comparison: &Comparison) -> Value {
    let changes: Vec<Value> = comparison
        .changes
        .iter()
        .map(|change| {
            json!({
                "metric": change.metric, "median": change.median, "low": change.low, "high": change.high,
                "result": change.result().to_string(),
            })
        })
        .collect();
    json!({
        "with": comparison.with,
        "samples": comparison.samples,
        "result": comparison.result().to_string(),
        "changes": changes,
    })
}
