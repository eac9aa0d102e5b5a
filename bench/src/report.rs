//! The table on stdout, and the same figures as JSON.

use crate::bench::{Bench, Figure};
use crate::heat::{Class, Heat, Score, Spread, Unit, Verdict};
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
    if !bench.heats.is_empty() {
        _ = writeln!(
            out,
            "\nProcesses on a core each, {} interleaved rounds of {:?}: median and quartiles; bars are held against CPU time",
            bench.effort.turns, bench.effort.turn
        );
    }
    for heat in &bench.heats {
        processes(&mut out, heat);
    }
    for (name, reason) in &bench.skipped {
        _ = writeln!(out, "\nskipped: {name}: {reason}");
    }
    let verdicts = || {
        let races = bench.outcomes.iter().map(Outcome::is_met);
        let figures = races.chain(bench.figures.iter().map(Figure::is_met)).flatten();
        figures.chain(bench.heats.iter().flat_map(|heat| &heat.verdicts).map(Verdict::is_met))
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

fn processes(out: &mut String, heat: &Heat) {
    _ = writeln!(out, "\n{} {}", heat.workload, heat.title);
    _ = write!(out, "  {:<44}", "");
    for column in &heat.columns {
        _ = write!(out, "  {:>33}", column.name);
    }
    out.push('\n');
    for score in &heat.scores {
        let mark = if score.class == Class::Floor { "(floor)" } else { "" };
        _ = write!(out, "  {:<44}", format!("{} {mark}", score.name));
        for (column, spread) in heat.columns.iter().zip(&score.values) {
            let show = |value| in_unit(value, column.unit);
            _ = match *spread {
                Spread { median, quartiles } if quartiles == (median, median) => {
                    write!(out, "  {:>33}", show(median))
                }
                Spread { median, quartiles: (low, high) } => {
                    write!(out, "  {:>9}  [{:>9} .. {:>9}]", show(median), show(low), show(high))
                }
            };
        }
        out.push('\n');
    }
    for verdict in &heat.verdicts {
        _ = writeln!(
            out,
            "  {:.2} {} (bar: at {} {:.2})  {}",
            verdict.value,
            verdict.claim,
            if verdict.at_least { "least" } else { "most" },
            verdict.bar,
            if verdict.is_met() { "met" } else { "MISSED" }
        );
    }
}

fn in_unit(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Nanoseconds => duration(value),
        Unit::PerSecond => scaled(value, "/s"),
        Unit::BytesPerSecond => scaled(value, "B/s"),
        Unit::Bytes => format!("{value:.0} B"),
    }
}

/// With three digits, in thousands, millions or billions.
fn scaled(value: f64, unit: &str) -> String {
    let (value, prefix) = match value {
        ..1e3 => (value, ""),
        1e3..1e6 => (value / 1e3, "k"),
        1e6..1e9 => (value / 1e6, "M"),
        _ => (value / 1e9, "G"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {prefix}{unit}")
}

/// What is worth saying of a run that only looked at the results.
pub(crate) fn smoke(bench: &Bench) -> String {
    let mut out = String::new();
    for (name, reason) in &bench.skipped {
        _ = writeln!(out, "without {name}: {reason}");
    }
    let races = bench.outcomes.len() + bench.heats.len();
    _ = writeln!(out, "{races} races: every contestant did the same work");
    out
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
    let heats = bench.heats.iter().map(|heat| {
        let score = |score: &Score| {
            let columns = heat.columns.iter().zip(&score.values);
            let values = columns.map(|(column, Spread { median, quartiles })| {
                json!({ "column": column.name, "unit": format!("{:?}", column.unit), "median": median,
                    "quartiles": [quartiles.0, quartiles.1] })
            });
            json!({
                "name": score.name,
                "class": format!("{:?}", score.class).to_lowercase(),
                "values": values.collect::<Vec<_>>(),
            })
        };
        let verdict = |verdict: &Verdict| {
            json!({
                "claim": verdict.claim,
                "value": verdict.value,
                "bar": verdict.bar,
                "at_least": verdict.at_least,
                "met": verdict.is_met(),
            })
        };
        json!({
            "workload": heat.workload,
            "title": heat.title,
            "scores": heat.scores.iter().map(score).collect::<Vec<_>>(),
            "verdicts": heat.verdicts.iter().map(verdict).collect::<Vec<_>>(),
        })
    });
    json!({
        "machine": machine(),
        "rounds": bench.effort.rounds,
        "races": races.collect::<Vec<_>>(),
        "figures": figures.collect::<Vec<_>>(),
        "processes": heats.collect::<Vec<_>>(),
        "skipped": bench.skipped,
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
