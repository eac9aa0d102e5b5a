//! What processes came to that were timed against one another: a table with named columns, and what is held against a bar.
#![cfg_attr(not(target_os = "linux"), allow(dead_code))] // Only there are processes measured.

/// In which part a contestant takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Ours, by the door that users take.
    Wireloom,
    /// Ours, by another door.
    Ours,
    /// Another library, used as its authors show.
    Rival,
    /// Another library, with the batching that it lacks written by hand.
    Batched,
    /// What a server does at least.
    Floor,
}

/// What a column of a table is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    PerSecond,
    BytesPerSecond,
    Nanoseconds,
    Bytes,
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
}

/// How much is done a second, by the clock on the wall.
pub(crate) const RATE: Column = Column { name: "rate", unit: Unit::PerSecond };
/// The same in bytes.
pub(crate) const BYTES: Column = Column { name: "rate", unit: Unit::BytesPerSecond };
/// CPU time of the measured process, for each.
pub(crate) const CPU: Column = Column { name: "CPU each", unit: Unit::Nanoseconds };
/// The part of it that is its own code.
pub(crate) const USER: Column = Column { name: "user", unit: Unit::Nanoseconds };

/// A figure with the quarter of the rounds below and above.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) quartiles: (f64, f64),
}

impl Spread {
    /// Of what the rounds gave.
    pub(crate) fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let at = |share| crate::measure::quantile(&samples, share);
        Self { median: at(0.5), quartiles: (at(0.25), at(0.75)) }
    }

    /// A figure that was taken once.
    pub(crate) fn once(value: f64) -> Self {
        Self { median: value, quartiles: (value, value) }
    }

    /// The same in another unit.
    pub(crate) fn times(self, factor: f64) -> Self {
        let (low, high) = self.quartiles;
        Self { median: self.median * factor, quartiles: (low * factor, high * factor) }
    }
}

/// What one contestant came to.
#[derive(Clone, Debug)]
pub(crate) struct Score {
    pub(crate) name: String,
    pub(crate) class: Class,
    /// One for each column.
    pub(crate) values: Vec<Spread>,
}

/// A figure held against a bar.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) claim: String,
    pub(crate) value: f64,
    pub(crate) bar: f64,
    /// Whether the value is to reach the bar, or to stay below it.
    pub(crate) at_least: bool,
}

impl Verdict {
    pub(crate) fn is_met(&self) -> bool {
        if self.at_least { self.value >= self.bar } else { self.value <= self.bar }
    }
}

/// The same work, done by several.
#[derive(Clone, Debug)]
pub(crate) struct Heat {
    pub(crate) workload: &'static str,
    pub(crate) title: String,
    pub(crate) columns: Vec<Column>,
    pub(crate) scores: Vec<Score>,
    pub(crate) verdicts: Vec<Verdict>,
}

impl Heat {
    /// Ours.
    pub(crate) fn ours(&self) -> Option<&Score> {
        self.scores.iter().find(|score| score.class == Class::Wireloom)
    }

    /// The least in this column of those that `among` chooses.
    pub(crate) fn least(&self, column: usize, among: impl Fn(&Score) -> bool) -> Option<&Score> {
        let scores = self.scores.iter().filter(|score| among(score));
        scores.min_by(|a, b| a.values[column].median.total_cmp(&b.values[column].median))
    }

    /// Judges the CPU time of each: that of the best of those that `among` chooses over ours, which is the ratio of what both
    /// do in the same CPU time. The ratio of the rates on the wall is said beside it.
    pub(crate) fn judge(&mut self, who: &str, bar: f64, among: impl Fn(&Score) -> bool) {
        let (Some(ours), Some(other)) = (self.ours(), self.least(1, among)) else { return };
        let wall = ours.values[0].median / other.values[0].median;
        self.verdicts.push(Verdict {
            claim: format!("of {who}, {} ({wall:.2}× by the clock on the wall)", other.name),
            value: other.values[1].median / ours.values[1].median,
            bar,
            at_least: true,
        });
    }

    /// Judges a figure of ours.
    pub(crate) fn judge_ours(&mut self, claim: &str, column: usize, scale: f64, bar: f64) {
        let Some(ours) = self.ours() else { return };
        let value = ours.values[column].median / scale;
        self.verdicts.push(Verdict { claim: claim.into(), value, bar, at_least: false });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(name: &str, class: Class, cpu: f64) -> Score {
        Score { name: name.into(), class, values: [1e9 / cpu, cpu, cpu / 10.0].map(Spread::once).to_vec() }
    }

    #[test]
    fn bars_are_held_against_cpu_time() {
        let scores = vec![
            score("ours", Class::Wireloom, 100.0),
            score("fast", Class::Rival, 150.0),
            score("slow", Class::Rival, 900.0),
            score("floor", Class::Floor, 50.0),
        ];
        let columns = vec![RATE, CPU, USER];
        let mut heat = Heat { workload: "w0", title: String::new(), columns, scores, verdicts: Vec::new() };
        heat.judge("the best rival", 1.5, |score| score.class == Class::Rival);
        heat.judge("the floor", 0.51, |score| score.class == Class::Floor);
        heat.judge_ours("ns of user time", 2, 1.0, 10.0);
        heat.judge_ours("ns of user time", 2, 1.0, 9.9);
        let met: Vec<_> = heat.verdicts.iter().map(|verdict| (verdict.value, verdict.is_met())).collect();
        assert_eq!(met, [(1.5, true), (0.5, false), (10.0, true), (10.0, false)]);
    }

    #[test]
    fn nothing_is_judged_without_ours() {
        let scores = vec![score("fast", Class::Rival, 150.0)];
        let mut heat =
            Heat { workload: "w0", title: String::new(), columns: vec![], scores, verdicts: Vec::new() };
        heat.judge("the best rival", 1.0, |_| true);
        assert!(heat.verdicts.is_empty());
    }
}
