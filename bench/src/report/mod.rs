//! The report: tables on stdout, and the pages, plots and raw figures that `all` writes.

mod metadata;
mod pages;
mod plot;
mod table;
mod units;

pub(crate) use metadata::{Metadata, load};
pub(crate) use pages::write;

use crate::results::Results;
use crate::workloads::ALL;
use std::fmt::Write;

/// Everything that was measured, as text.
pub(crate) fn text(results: &Results, metadata: &Metadata) -> String {
    let mut out = metadata.lines().join("\n") + "\n";
    for workload in ALL {
        for (_, data) in results.data.iter().filter(|(name, _)| name == workload.name) {
            _ = writeln!(out, "\n{} data: {data}", workload.name);
        }
        for race in results.races.iter().filter(|race| race.workload == workload.name) {
            _ = write!(out, "\n{} {}\n{}", race.workload, race.title, table::of_race(race).to_text());
            for remark in table::remarks(race) {
                _ = writeln!(out, "  {remark}");
            }
        }
        let figures: Vec<_> = results.figures.iter().filter(|it| it.workload == workload.name).collect();
        if !figures.is_empty() {
            _ = write!(out, "\n{}", table::of_figures(&figures).to_text());
        }
    }
    for missing in &results.missing {
        _ = writeln!(out, "\nmissing: {}: {}. {}", missing.name, missing.reason, missing.remedy);
    }
    out
}

/// The lines for a run that only checked the results.
pub(crate) fn smoke(results: &Results) -> String {
    let mut out = String::new();
    for (workload, data) in &results.data {
        _ = writeln!(out, "{workload} data: {data}");
    }
    for missing in &results.missing {
        _ = writeln!(out, "without {}: {}. {}", missing.name, missing.reason, missing.remedy);
    }
    _ = writeln!(out, "{} races: every contestant did the same work", results.races.len());
    out
}
