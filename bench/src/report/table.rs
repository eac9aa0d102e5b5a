//! One table for a race, one for single figures; printed as aligned text or as Markdown.

use super::units::{duration, factor, scaled};
use crate::results::{Comparison, Cost, Entry, Figure, RaceResult, Ratio, Role, Verdict};
use crate::statistics::Summary;

/// Cells, by row.
pub(super) struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new<const N: usize>(head: [&str; N]) -> Self {
        Self { head: head.map(Into::into).into(), rows: Vec::new() }
    }

    pub(super) fn push(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    pub(super) fn to_text(&self) -> String {
        let width = |at: usize| {
            let cells = self.rows.iter().chain([&self.head]).map(|row| row[at].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
            let cells: Vec<String> = cells.collect();
            format!("  {}\n", cells.join("  ").trim_end())
        };
        [&self.head].into_iter().chain(&self.rows).map(line).collect()
    }

    pub(super) fn to_markdown(&self) -> String {
        let line = |row: &[String]| format!("| {} |\n", row.join(" | "));
        let rule = vec!["---".to_owned(); self.head.len()];
        [&self.head, &rule].into_iter().chain(&self.rows).map(|row| line(row)).collect()
    }
}

fn amount(value: f64, cost: Cost) -> String {
    match cost {
        Cost::CpuTime | Cost::P99 => duration(value),
        Cost::Memory => format!("{value:.0} B"),
    }
}

fn with_quartiles(summary: Option<Summary>, show: impl Fn(f64) -> String) -> String {
    let Some(summary) = summary else { return "–".into() };
    let (low, high) = summary.quartiles;
    match low == high {
        true => show(summary.median),
        false => format!("{} [{} … {}]", show(summary.median), show(low), show(high)),
    }
}

/// The ratio and its interval, with *no difference shown* if it shows none.
pub(super) fn ratio(ratio: Ratio) -> String {
    let (low, high) = ratio.interval;
    let note = if ratio.shows_difference() { "" } else { ", no difference shown" };
    format!("{}× [{} … {}]{note}", factor(ratio.median), factor(low), factor(high))
}

/// All contestants of a race.
pub(super) fn of_race(race: &RaceResult) -> Table {
    let any = |has: fn(&Entry) -> bool| race.entries.iter().any(has);
    let has_rates = any(|entry| entry.rate().is_some());
    let has_allocations = any(|entry| entry.allocations.is_some());
    let has_notes = any(|entry| entry.note.is_some());
    let cost = match race.cost {
        Cost::CpuTime => "CPU time each: median [quartiles]",
        Cost::Memory => "memory each",
        Cost::P99 => "p99 of a round: median [quartiles]",
    };
    let mut head = vec!["contestant", cost];
    head.extend(has_rates.then_some("rate: median [quartiles]"));
    head.extend(has_allocations.then_some("allocations each"));
    head.push("in parts of wireloom's [95 % interval]");
    head.extend(has_notes.then_some("note"));
    let mut table = Table { head: head.into_iter().map(Into::into).collect(), rows: Vec::new() };
    for entry in &race.entries {
        let mut row =
            vec![entry.name.clone(), with_quartiles(entry.cost(), |value| amount(value, race.cost))];
        if has_rates {
            row.push(with_quartiles(entry.rate(), |value| match race.message_len {
                Some(len) => scaled(value * len, "B/s"),
                None => scaled(value, "/s"),
            }));
        }
        if has_allocations {
            row.push(entry.allocations.map(|count| format!("{count:.2}")).unwrap_or_default());
        }
        row.push(match (entry.role, race.wireloom().and_then(|ours| entry.ratio_to(ours))) {
            (Role::Wireloom, _) | (_, None) => "–".into(),
            (_, Some(found)) => ratio(found),
        });
        if has_notes {
            row.push(entry.note.clone().unwrap_or_default());
        }
        table.push(row);
    }
    table
}

/// The comparisons of a race, a sentence each.
pub(super) fn remarks(race: &RaceResult) -> Vec<String> {
    race.comparisons().iter().map(remark).collect()
}

fn remark(comparison: &Comparison<'_>) -> String {
    let (low, high) = comparison.ratio.runs;
    let mut remark =
        format!("{} ÷ {}: {}", comparison.ours.name, comparison.other.name, ratio(comparison.ratio));
    if comparison.ratio.runs_len > 1 {
        remark +=
            &format!("; medians of {} runs {} … {}", comparison.ratio.runs_len, factor(low), factor(high));
    }
    if let Some(wall) = comparison.wall {
        remark += &format!("; rate {}×", factor(wall));
    }
    if let (Some(target), Some(verdict)) = (comparison.target, comparison.verdict()) {
        remark += &format!("; target at most {}×: {}", factor(target), of_verdict(verdict));
    }
    remark
}

pub(super) fn of_verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Met => "met",
        Verdict::Missed => "missed",
        Verdict::Undecided => "within the interval",
    }
}

/// Single figures.
pub(super) fn of_figures(figures: &[&Figure]) -> Table {
    let mut table = Table::new(["figure", "median", "runs", "target", "made of"]);
    for figure in figures {
        let Some(summary) = Summary::of(figure.values.iter().copied()) else { continue };
        let (low, high) = figure
            .values
            .iter()
            .fold((f64::INFINITY, 0.0_f64), |(low, high), it| (low.min(*it), high.max(*it)));
        table.push(vec![
            figure.title.clone(),
            factor(summary.median),
            format!("{} … {}", factor(low), factor(high)),
            figure.least.map_or("–".into(), |least| {
                let met = if summary.median >= least { "met" } else { "missed" };
                format!("at least {}: {met}", factor(least))
            }),
            figure.note.clone(),
        ]);
    }
    table
}

/// Races in short: Wireloom beside one other contestant.
pub(super) fn summary<'a>(rows: impl IntoIterator<Item = (&'a RaceResult, Option<&'a Entry>)>) -> Table {
    let mut table = Table::new(["workload", "race", "wireloom", "rival", "wireloom ÷ rival [95 % interval]"]);
    for (race, other) in rows {
        let (Some(ours), Some(other)) = (race.wireloom(), other) else { continue };
        let Some(found) = ours.ratio_to(other) else { continue };
        let show = |entry: &Entry| entry.cost().map_or("–".into(), |cost| amount(cost.median, race.cost));
        table.push(vec![
            race.workload.clone(),
            race.title.clone(),
            show(ours),
            format!("{} {}", other.name, show(other)),
            ratio(found),
        ]);
    }
    table
}

/// Every comparison of the races, with its target: also what is missed, and Wireloom's other APIs and set-ups.
pub(super) fn comparisons<'a>(races: impl IntoIterator<Item = &'a RaceResult>) -> Table {
    let mut table =
        Table::new(["workload", "race", "wireloom", "rival", "wireloom ÷ rival [95 % interval]", "target"]);
    for race in races {
        for comparison in race.comparisons() {
            let Comparison { ours, other, ratio: found, target, .. } = comparison;
            let cost =
                |entry: &Entry| entry.cost().map_or("–".into(), |cost| amount(cost.median, race.cost));
            let show = |entry: &Entry| format!("{} {}", entry.name, cost(entry));
            table.push(vec![
                race.workload.clone(),
                race.title.clone(),
                show(ours),
                show(other),
                ratio(found),
                target.zip(comparison.verdict()).map_or("–".into(), |(target, verdict)| {
                    format!("at most {}: {}", factor(target), of_verdict(verdict))
                }),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Rounds, Target};

    fn race() -> RaceResult {
        let entry = |name: &str, role, cost: f64| Entry {
            name: name.into(),
            role,
            note: None,
            allocations: None,
            runs: vec![Rounds { costs: vec![cost; 9], rates: vec![1e9 / cost; 9] }],
        };
        RaceResult {
            workload: "w0".into(),
            title: "a race".into(),
            cost: Cost::CpuTime,
            message_len: None,
            entries: vec![entry("wireloom", Role::Wireloom, 50.0), entry("rival 1.0", Role::Rival, 100.0)],
            targets: vec![Target::fastest_rival(0.6)],
        }
    }

    #[test]
    fn a_race_becomes_a_table() {
        let markdown = of_race(&race()).to_markdown();
        let lines: Vec<&str> = markdown.lines().collect();
        assert_eq!(lines[2], "| wireloom | 50.0 ns | 20.0 M/s | – |");
        assert_eq!(lines[3], "| rival 1.0 | 100 ns | 10.0 M/s | 2.00× [2.00 … 2.00] |");
        assert_eq!(
            remarks(&race()),
            ["wireloom ÷ rival 1.0: 0.50× [0.50 … 0.50]; rate 2.00×; target at most 0.60×: met"]
        );
    }

    #[test]
    fn missed_targets_are_in_the_summary() {
        let mut race = race();
        race.targets = vec![Target::fastest_rival(0.4)];
        let markdown = comparisons([&race]).to_markdown();
        assert!(markdown.ends_with(
            "| wireloom 50.0 ns | rival 1.0 100 ns | 0.50× [0.50 … 0.50] | at most 0.40: missed |\n"
        ));
    }

    #[test]
    fn equal_costs_show_no_difference() {
        let mut race = race();
        race.entries[0].runs = race.entries[1].runs.clone();
        assert!(remarks(&race)[0].contains("no difference shown"));
    }
}
