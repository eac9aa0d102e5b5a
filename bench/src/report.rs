//! The table on stdout, and the same figures as JSON.

use crate::bench::{Bench, Figure};
use crate::measure::{Kind, Outcome, Timing};
use serde_json::{Value, json};
use std::fmt::Write;

/// What was measured where: without it the figures mean nothing.
pub(crate) fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name));
    format!("{} ({}), {}", model.unwrap_or("unknown CPU"), simd(), std::env::consts::OS)
}

/// The widest vectors that this CPU offers to those who ask at run time.
fn simd() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512bw") {
            return "AVX-512";
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            return "AVX2";
        }
    }
    "baseline SIMD"
}

/// Everything that was measured.
pub(crate) fn table(bench: &Bench) -> String {
    let mut out = format!(
        "{}\n{} interleaved rounds; CPU time of a message: median and quartiles; allocations; ratio to the fastest rival\n",
        machine(),
        bench.effort.rounds
    );
    for outcome in &bench.outcomes {
        race(&mut out, outcome);
    }
    if !bench.figures.is_empty() {
        out.push('\n');
    }
    for figure in &bench.figures {
        _ = writeln!(
            out,
            "{} {}: {:.2}, {}{}",
            figure.workload,
            figure.title,
            figure.value,
            figure.note,
            at_least(figure)
        );
    }
    let verdicts = || {
        let races = bench.outcomes.iter().map(Outcome::is_met);
        races.chain(bench.figures.iter().map(Figure::is_met)).flatten()
    };
    let met = verdicts().filter(|met| *met).count();
    _ = writeln!(out, "\n{met} of {} bars met", verdicts().count());
    out
}

fn race(out: &mut String, outcome: &Outcome) {
    let bar = outcome.bar.map(|bar| format!(" (bar: at most {bar:.2}×)")).unwrap_or_default();
    _ = writeln!(out, "\n{} {}{bar}", outcome.workload, outcome.title);
    let fastest = outcome.fastest_rival().map(|timing| timing.median);
    for timing in &outcome.timings {
        let ratio = match (timing.kind, fastest) {
            (Kind::Floor, _) | (_, None) => String::new(),
            (_, Some(fastest)) => format!("{:.2}×", timing.median / fastest),
        };
        let verdict = match (timing.kind, outcome.is_met()) {
            (Kind::Headline, Some(true)) => "  met",
            (Kind::Headline, Some(false)) => "  MISSED",
            _ => "",
        };
        _ = writeln!(
            out,
            "  {:<28} {:>9}  [{:>9} .. {:>9}]  {:>6.2} alloc  {ratio:>6}{verdict}",
            timing.name,
            duration(timing.median),
            duration(timing.quartiles.0),
            duration(timing.quartiles.1),
            timing.allocations,
        );
    }
}

fn at_least(figure: &Figure) -> String {
    match (figure.bar, figure.is_met()) {
        (Some(bar), Some(met)) => {
            format!(" (bar: at least {bar:.2})  {}", if met { "met" } else { "MISSED" })
        }
        _ => String::new(),
    }
}

/// Nanoseconds with three digits and a unit.
fn duration(ns: f64) -> String {
    let (value, unit) = match ns {
        ..1e3 => (ns, "ns"),
        1e3..1e6 => (ns / 1e3, "µs"),
        _ => (ns / 1e6, "ms"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

/// The same as JSON; times in nanoseconds a message.
pub(crate) fn json(bench: &Bench) -> Value {
    let timing = |timing: &Timing| {
        json!({
            "name": timing.name,
            "kind": format!("{:?}", timing.kind).to_lowercase(),
            "median_ns": timing.median,
            "quartiles_ns": [timing.quartiles.0, timing.quartiles.1],
            "allocations": timing.allocations,
        })
    };
    let races = bench.outcomes.iter().map(|outcome| {
        json!({
            "workload": outcome.workload,
            "title": outcome.title,
            "bar": outcome.bar,
            "ratio": outcome.ratio(),
            "met": outcome.is_met(),
            "timings": outcome.timings.iter().map(timing).collect::<Vec<_>>(),
        })
    });
    let figures = bench.figures.iter().map(|figure| {
        json!({
            "workload": figure.workload,
            "title": figure.title,
            "value": figure.value,
            "bar": figure.bar,
            "met": figure.is_met(),
            "note": figure.note,
        })
    });
    json!({
        "machine": machine(),
        "rounds": bench.effort.rounds,
        "races": races.collect::<Vec<_>>(),
        "figures": figures.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_keep_three_digits() {
        let shown = [5.678, 56.78, 567.8, 5_678.0, 56_780_000.0].map(duration);
        assert_eq!(shown, ["5.68 ns", "56.8 ns", "568 ns", "5.68 µs", "56.8 ms"]);
    }
}
