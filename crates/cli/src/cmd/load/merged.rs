//! The sum of what several processes have measured: `load merge`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::hdr::{Part, sum};
use super::recorder::histogram;
use super::report::{Checked, Latency};
use crate::args::Merge;

/// The sum of the files.
pub(super) struct Merged {
    pub(super) files: Vec<String>,
    pub(super) connections: u64,
    /// Of the process that measured longest.
    pub(super) time: Duration,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// A signal ended one of the processes.
    pub(super) is_interrupted: bool,
    /// Answers per second: the sum of the rates of the processes.
    pub(super) rate: f64,
    pub(super) latency: Latency,
    /// By kind.
    pub(super) errors: Vec<(String, u64)>,
    pub(super) expectations: Vec<Checked>,
    pub(super) warnings: Vec<String>,
    /// As a log with one histogram.
    pub(super) text: Vec<u8>,
}

impl Merged {
    /// # Errors
    /// A file cannot be read.
    pub(super) fn new(args: &Merge) -> Result<Self, String> {
        let parts: Vec<Part> = args
            .files
            .iter()
            .map(|path: &std::path::PathBuf| Part::read(Path::new(path)))
            .collect::<Result<_, _>>()?;
        let mut latencies = histogram();
        let mut errors = BTreeMap::<String, u64>::new();
        let mut rate = 0.0;
        for part in &parts {
            // All histograms have the same bounds, for which this cannot fail.
            let _ = latencies.add(&part.latencies);
            rate += part.received as f64 / part.time.as_secs_f64().max(1e-9);
            for (kind, count) in &part.errors {
                let sum = errors.entry(kind.clone()).or_default();
                *sum = sum.saturating_add(*count);
            }
        }
        let latency = Latency::expected(&latencies, &args.expect);
        let sum = |count: fn(&Part) -> u64| sum(parts.iter().map(count));
        let mut merged = Self {
            files: parts.iter().map(|part| part.name.clone()).collect(),
            connections: sum(|part| part.connections),
            time: parts.iter().map(|part| part.time).max().unwrap_or_default(),
            sent: sum(|part| part.sent),
            received: sum(|part| part.received),
            is_interrupted: parts.iter().any(|part| part.is_interrupted),
            rate,
            latency,
            errors: errors.into_iter().collect(),
            expectations: Vec::new(),
            warnings: warnings(&parts),
            text: Vec::new(),
        };
        merged.expectations = Checked::all(&args.expect, &merged.latency, merged.rate, merged.errors_total());
        merged.text = super::hdr::text(&latencies, &parts, merged.time);
        Ok(merged)
    }

    pub(super) fn errors_total(&self) -> u64 {
        sum(self.errors.iter().map(|(_, count)| *count))
    }
}

fn warnings(parts: &[Part]) -> Vec<String> {
    let interrupted = parts.iter().filter(|part| part.is_interrupted);
    let interrupted = interrupted.map(|part| format!("{} was interrupted before its end", part.name));
    interrupted.chain(not_together(parts)).collect()
}

/// Rates add up only if the processes ran at the same time.
fn not_together(parts: &[Part]) -> Option<String> {
    let starts: Option<Vec<Duration>> = parts.iter().map(|part| part.started).collect();
    let last_start = starts?.into_iter().max()?;
    let ended = parts
        .iter()
        .find(|part| part.started.is_some_and(|started| started.saturating_add(part.time) < last_start))?;
    Some(format!("{} had ended before the last one began: their rates do not add up", ended.name))
}
