//! Compares the counts of this tree with the baseline: the table, and whether the run passes.

use crate::baseline::Baseline;
use std::collections::BTreeSet;
use std::fmt;

/// How far a count may exceed its baseline, in percent.
const TOLERANCE: f64 = 2.0;

/// A benchmark in the baseline, in this tree, or in both.
struct Row<'a> {
    name: &'a str,
    base: Option<u64>,
    head: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Within,
    Better,
    Worse,
    /// Not in the baseline.
    New,
    /// In the baseline only.
    Gone,
}

impl Row<'_> {
    fn percent(&self) -> Option<f64> {
        let (base, head) = (self.base? as f64, self.head? as f64);
        Some((head - base) / base * 100.0)
    }

    fn change(&self) -> Change {
        match (self.percent(), self.base) {
            (Some(percent), _) if percent > TOLERANCE => Change::Worse,
            (Some(percent), _) if percent < -TOLERANCE => Change::Better,
            (Some(_), _) => Change::Within,
            (None, None) => Change::New,
            (None, Some(_)) => Change::Gone,
        }
    }
}

/// Every benchmark of either side.
pub(crate) struct Comparison<'a> {
    base: &'a Baseline,
    head: &'a Baseline,
    rows: Vec<Row<'a>>,
}

impl<'a> Comparison<'a> {
    pub(crate) fn new(base: &'a Baseline, head: &'a Baseline) -> Self {
        let names: BTreeSet<&str> =
            base.counts.keys().chain(head.counts.keys()).map(String::as_str).collect();
        let row =
            |name| Row { name, base: base.counts.get(name).copied(), head: head.counts.get(name).copied() };
        Self { base, head, rows: names.into_iter().map(row).collect() }
    }

    /// Whether no count is too high and the baseline names the same benchmarks.
    pub(crate) fn is_within_tolerance(&self) -> bool {
        self.rows.iter().all(|row| matches!(row.change(), Change::Within | Change::Better))
    }

    fn has(&self, change: Change) -> bool {
        self.rows.iter().any(|row| row.change() == change)
    }
}

impl fmt::Display for Comparison<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
        writeln!(f, "{:width$}  {:>12}  {:>12}  {:>8}", "instructions", "base", "head", "change")?;
        let cell = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |count| count.to_string());
        for row in &self.rows {
            let (base, head) = (cell(row.base), cell(row.head));
            let percent = row.percent().map_or_else(String::new, |percent| format!("{percent:+.2} %"));
            let note = match row.change() {
                Change::Within => "",
                Change::Better => "  better",
                Change::Worse => "  WORSE",
                Change::New => "  NOT IN THE BASELINE",
                Change::Gone => "  ONLY IN THE BASELINE",
            };
            writeln!(f, "{:width$}  {base:>12}  {head:>12}  {percent:>8}{note}", row.name)?;
        }
        writeln!(f, "rustc {}, tolerance {TOLERANCE} %", self.head.rustc)?;
        if self.base.valgrind != self.head.valgrind {
            writeln!(f, "base: valgrind {}, head: valgrind {}", self.base.valgrind, self.head.valgrind)?;
        }
        let renew = "`cargo run -p wireloom-counts -- --renew` writes a new baseline";
        if !self.is_within_tolerance() {
            writeln!(
                f,
                "the counts do not match the baseline. If the change is worth its cost, {renew}; say why in the commit."
            )
        } else if self.has(Change::Better) {
            writeln!(f, "better counts: {renew}, so that the gain is kept.")
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn baseline(counts: &[(&str, u64)]) -> Baseline {
        let counts = counts.iter().map(|&(name, count)| (name.to_owned(), count)).collect();
        Baseline { rustc: "1.95.0".into(), valgrind: "3.19.0".into(), counts }
    }

    #[test]
    fn two_percent_more_is_tolerated_and_no_more() {
        let base = baseline(&[("a", 10_000)]);
        assert!(Comparison::new(&base, &baseline(&[("a", 10_200)])).is_within_tolerance());
        assert!(!Comparison::new(&base, &baseline(&[("a", 10_201)])).is_within_tolerance());
        assert!(Comparison::new(&base, &baseline(&[("a", 5_000)])).is_within_tolerance());
    }

    #[test]
    fn a_benchmark_on_one_side_only_fails() {
        let (one, two) = (baseline(&[("a", 1)]), baseline(&[("a", 1), ("b", 1)]));
        assert!(!Comparison::new(&one, &two).is_within_tolerance());
        assert!(!Comparison::new(&two, &one).is_within_tolerance());
    }

    #[test]
    fn the_table_marks_a_count_that_became_worse() {
        let table = Comparison::new(&baseline(&[("a", 100)]), &baseline(&[("a", 110)])).to_string();
        assert!(table.contains("+10.00 %  WORSE") && table.contains("--renew"), "{table}");
    }
}
