//! The results of a run, which can be serialized and merged with those of another run.

use crate::statistics::Summary;
use serde::{Deserialize, Serialize};

/// The role of a contestant in a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    /// Wireloom, through the API whose ratio is the result of the race.
    Wireloom,
    /// Wireloom through another API or set-up.
    Variant,
    /// Another library, used as its documentation shows.
    Rival,
    /// Another library, with batching that its application has to write.
    Batched,
    /// No library: the minimum work of every contestant.
    Baseline,
}

impl Role {
    /// Whether Wireloom is compared with it.
    pub(crate) fn is_rival(self) -> bool {
        matches!(self, Self::Rival | Self::Batched)
    }
}

/// The measure of a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Cost {
    /// Nanoseconds of CPU time for each message, stream or request.
    CpuTime,
    /// Bytes of memory for each connection, or another thing that is counted.
    Memory,
    /// Nanoseconds from when a message was due until its answer or delivery, which 99 % do not exceed.
    P99,
}

/// The rounds of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Rounds {
    /// The cost of one message in each round.
    pub(crate) costs: Vec<f64>,
    /// Messages a second by wall-clock time in each round; empty where only CPU time is measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) rates: Vec<f64>,
}

/// The results of one contestant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// A caveat for the comparison of this contestant with the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// Allocations for each message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) allocations: Option<f64>,
    /// One for each run, each in a process of its own; without rounds for a run in which it took no part.
    pub(crate) runs: Vec<Rounds>,
}

impl Entry {
    fn summary(&self, rounds: impl Fn(&Rounds) -> &[f64]) -> Option<Summary> {
        Summary::of(self.runs.iter().flat_map(|run| rounds(run).iter().copied()))
    }

    /// The cost over all rounds.
    pub(crate) fn cost(&self) -> Option<Summary> {
        self.summary(|run| &run.costs)
    }

    /// The rate over all rounds.
    pub(crate) fn rate(&self) -> Option<Summary> {
        self.summary(|run| &run.rates)
    }

    /// Whether it reads from or writes to a stream, as applications do; a core works on buffers.
    fn is_stream(&self) -> bool {
        self.name.contains("stream")
    }

    fn median(&self) -> f64 {
        self.cost().map_or(f64::INFINITY, |cost| cost.median)
    }

    /// The ratios of each run, round by round.
    fn ratios(&self, other: &Self, values: impl Fn(&Rounds) -> &[f64]) -> Vec<Vec<f64>> {
        let ratios = |(mine, its): (&Rounds, &Rounds)| {
            values(mine).iter().zip(values(its)).map(|(mine, its)| mine / its).collect()
        };
        self.runs.iter().zip(&other.runs).map(ratios).collect()
    }

    /// Its cost divided by the other's.
    pub(crate) fn ratio_to(&self, other: &Self) -> Option<Ratio> {
        let runs = self.ratios(other, |run| &run.costs);
        let medians: Vec<f64> =
            runs.iter().filter_map(|run| Some(Summary::of(run.iter().copied())?.median)).collect();
        let ends = (f64::INFINITY, 0.0_f64);
        let runs_range =
            medians.iter().fold(ends, |(low, high), &median| (low.min(median), high.max(median)));
        let summary = Summary::of(runs.iter().flatten().copied())?;
        Some(Ratio {
            median: summary.median,
            interval: summary.interval,
            runs: runs_range,
            runs_len: medians.len(),
        })
    }

    /// Its rate divided by the other's.
    fn rate_to(&self, other: &Self) -> Option<f64> {
        Some(Summary::of(self.ratios(other, |run| &run.rates).into_iter().flatten())?.median)
    }
}

/// The cost of one contestant divided by another's. Rounds are paired: both costs of a pair are from the same round, so
/// that a change of the machine's speed affects both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    /// The confidence interval of the median.
    pub(crate) interval: (f64, f64),
    /// The lowest and the highest median of all runs.
    pub(crate) runs: (f64, f64),
    /// The number of runs in which both took part.
    pub(crate) runs_len: usize,
}

impl Ratio {
    /// Whether one is shown to cost less: both the interval and the medians of all runs are on one side of 1.
    pub(crate) fn shows_difference(&self) -> bool {
        let below = self.interval.1 < 1.0 && self.runs.1 < 1.0;
        let above = self.interval.0 > 1.0 && self.runs.0 > 1.0;
        below || above
    }
}

/// The reference of Wireloom's cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Against {
    FastestRival,
    FastestBatched,
    /// The stream of Wireloom, the API of its applications, is compared with the fastest rival that is one too.
    FastestStream,
    /// The cheapest contestant whose name begins with this.
    Named(String),
}

/// A target of the project: the highest ratio that it accepts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) against: Against,
    pub(crate) most: f64,
}

impl Target {
    pub(crate) fn fastest_rival(most: f64) -> Self {
        Self { against: Against::FastestRival, most }
    }

    pub(crate) fn fastest_batched(most: f64) -> Self {
        Self { against: Against::FastestBatched, most }
    }

    pub(crate) fn fastest_stream(most: f64) -> Self {
        Self { against: Against::FastestStream, most }
    }

    pub(crate) fn named(name: impl Into<String>, most: f64) -> Self {
        Self { against: Against::Named(name.into()), most }
    }
}

/// Whether a target is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Met,
    Missed,
    /// The target is within the confidence interval.
    Undecided,
}

/// A contestant of Wireloom compared with another contestant.
pub(crate) struct Comparison<'a> {
    pub(crate) ours: &'a Entry,
    pub(crate) other: &'a Entry,
    pub(crate) ratio: Ratio,
    /// The ratio of the rates by wall-clock time.
    pub(crate) wall: Option<f64>,
    pub(crate) target: Option<f64>,
}

impl Comparison<'_> {
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let (target, (low, high)) = (self.target?, self.ratio.interval);
        Some(match () {
            () if high <= target => Verdict::Met,
            () if low > target => Verdict::Missed,
            () => Verdict::Undecided,
        })
    }
}

/// The result of a race.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RaceResult {
    pub(crate) workload: String,
    pub(crate) title: String,
    pub(crate) cost: Cost,
    /// The length of a message in bytes, if rates are shown in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message_len: Option<f64>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) targets: Vec<Target>,
}

impl RaceResult {
    /// A race whose cost is CPU time.
    #[cfg(target_os = "linux")]
    pub(crate) fn new(workload: &str, title: impl Into<String>, entries: Vec<Entry>) -> Self {
        Self {
            workload: workload.into(),
            title: title.into(),
            cost: Cost::CpuTime,
            message_len: None,
            entries,
            targets: Vec::new(),
        }
    }

    /// The contestant whose ratio is the result.
    pub(crate) fn wireloom(&self) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.role == Role::Wireloom)
    }

    fn fastest(&self, among: impl Fn(&Entry) -> bool) -> Option<&Entry> {
        let entries = self.entries.iter().filter(|entry| among(entry) && entry.cost().is_some());
        entries.min_by(|a, b| a.median().total_cmp(&b.median()))
    }

    /// The rival with the least cost.
    pub(crate) fn fastest_rival(&self) -> Option<&Entry> {
        self.fastest(|entry| entry.role.is_rival())
    }

    /// The contestant whose name begins with `name`, other than the one whose ratio is the result.
    pub(crate) fn contestant(&self, name: &str) -> Option<&Entry> {
        self.fastest(|entry| entry.role != Role::Wireloom && entry.name.starts_with(name))
    }

    /// The headline with each target, then each variant with the fastest rival.
    pub(crate) fn comparisons(&self) -> Vec<Comparison<'_>> {
        let mut comparisons: Vec<Comparison<'_>> = Vec::new();
        let mut compare = |ours: Option<&'_ Entry>, other: Option<&'_ Entry>, target: Option<f64>| {
            let (Some(ours), Some(other)) = (ours, other) else { return };
            // The borrow of the closure's arguments is that of `self`.
            let find = |entry: &Entry| self.entries.iter().find(|it| it.name == entry.name);
            let (Some(ours), Some(other)) = (find(ours), find(other)) else { return };
            let is_known = |it: &Comparison<'_>| it.ours.name == ours.name && it.other.name == other.name;
            if target.is_none() && comparisons.iter().any(is_known) {
                return;
            }
            let Some(ratio) = ours.ratio_to(other) else { return };
            comparisons.push(Comparison { ours, other, ratio, wall: ours.rate_to(other), target });
        };
        let variants = || self.entries.iter().filter(|entry| entry.role == Role::Variant);
        let pairs = self.targets.iter().map(|target| match &target.against {
            Against::FastestRival => (self.wireloom(), self.fastest_rival()),
            Against::FastestBatched => (self.wireloom(), self.fastest(|it| it.role == Role::Batched)),
            Against::FastestStream => (
                variants().find(|entry| entry.is_stream()),
                self.fastest(|entry| entry.role.is_rival() && entry.is_stream()),
            ),
            Against::Named(name) => (self.wireloom(), self.contestant(name)),
        });
        let pairs: Vec<_> = pairs.collect();
        let is_headline = |ours: Option<&Entry>| ours.is_some_and(|ours| ours.role == Role::Wireloom);
        // Without a target of its own, the fastest rival comes first.
        if let Some(rival) = self.fastest_rival()
            && !pairs
                .iter()
                .any(|(ours, it)| is_headline(*ours) && it.is_some_and(|it| it.name == rival.name))
        {
            compare(self.wireloom(), Some(rival), None);
        }
        for (target, (ours, other)) in self.targets.iter().zip(pairs) {
            compare(ours, other, Some(target.most));
        }
        for variant in variants() {
            compare(Some(variant), self.fastest_rival(), None);
        }
        comparisons
    }
}

/// A single figure, in which no rival takes part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) workload: String,
    pub(crate) title: String,
    /// One value for each run.
    pub(crate) values: Vec<f64>,
    /// The project's target: the lowest value that it accepts.
    pub(crate) least: Option<f64>,
    /// How the value was computed, in the last run.
    pub(crate) note: String,
}

impl Figure {
    pub(crate) fn new(
        workload: &str,
        title: impl Into<String>,
        value: f64,
        least: Option<f64>,
        note: String,
    ) -> Self {
        Self { workload: workload.into(), title: title.into(), values: vec![value], least, note }
    }
}

/// A contestant that could not take part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Missing {
    pub(crate) name: String,
    pub(crate) reason: String,
    /// How to get it.
    pub(crate) remedy: String,
}

/// Everything that one or more runs measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) races: Vec<RaceResult>,
    pub(crate) figures: Vec<Figure>,
    pub(crate) missing: Vec<Missing>,
    /// The data that each workload used.
    pub(crate) data: Vec<(String, String)>,
}

impl Results {
    /// Adds the results of the run of this number, from 0.
    pub(crate) fn merge(&mut self, run: usize, other: Self) {
        for mut race in other.races {
            // Runs are paired by their place.
            let absent = |known: usize| std::iter::repeat_n(Rounds::default(), run.saturating_sub(known));
            let same = |it: &&mut RaceResult| it.workload == race.workload && it.title == race.title;
            let Some(known) = self.races.iter_mut().find(same) else {
                race.entries.iter_mut().for_each(|entry| _ = entry.runs.splice(..0, absent(0)));
                self.races.push(race);
                continue;
            };
            for mut entry in race.entries {
                if let Some(it) = known.entries.iter_mut().find(|it| it.name == entry.name) {
                    it.runs.extend(absent(it.runs.len()));
                    it.runs.extend(entry.runs);
                } else {
                    entry.runs.splice(..0, absent(0));
                    known.entries.push(entry);
                }
            }
        }
        for figure in other.figures {
            let same = |it: &&mut Figure| it.workload == figure.workload && it.title == figure.title;
            match self.figures.iter_mut().find(same) {
                Some(known) => {
                    known.values.extend(figure.values);
                    known.note = figure.note;
                }
                None => self.figures.push(figure),
            }
        }
        let new = |missing: &Missing| !self.missing.contains(missing);
        let missing: Vec<_> = other.missing.into_iter().filter(new).collect();
        self.missing.extend(missing);
        let data: Vec<_> = other.data.into_iter().filter(|data| !self.data.contains(data)).collect();
        self.data.extend(data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, role: Role, costs: &[f64]) -> Entry {
        let runs = vec![Rounds { costs: costs.to_vec(), rates: Vec::new() }];
        Entry { name: name.into(), role, note: None, allocations: None, runs }
    }

    fn race(entries: Vec<Entry>, targets: Vec<Target>) -> RaceResult {
        let (workload, title) = ("w0".into(), "a race".into());
        RaceResult { workload, title, cost: Cost::CpuTime, message_len: None, entries, targets }
    }

    #[test]
    fn targets_are_compared_with_the_fastest_rival() {
        let entries = vec![
            entry("ours", Role::Wireloom, &[2.0; 9]),
            entry("floor", Role::Baseline, &[1.0; 9]),
            entry("slow", Role::Rival, &[10.0; 9]),
            entry("fast", Role::Batched, &[4.0; 9]),
        ];
        let targets =
            vec![Target::fastest_rival(0.5), Target::fastest_rival(0.49), Target::named("slow", 1.0)];
        let race = race(entries, targets);
        let found: Vec<_> = race
            .comparisons()
            .iter()
            .map(|comparison| (comparison.other.name.clone(), comparison.ratio.median, comparison.verdict()))
            .collect();
        let fast = |verdict| ("fast".to_owned(), 0.5, Some(verdict));
        let expected =
            [fast(Verdict::Met), fast(Verdict::Missed), ("slow".to_owned(), 0.2, Some(Verdict::Met))];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_fastest_rival_is_compared_once() {
        let entries = || {
            vec![
                entry("ours", Role::Wireloom, &[2.0; 9]),
                entry("slow", Role::Rival, &[10.0; 9]),
                entry("fast", Role::Rival, &[4.0; 9]),
            ]
        };
        let others = |targets| -> Vec<String> {
            race(entries(), targets).comparisons().iter().map(|it| it.other.name.clone()).collect()
        };
        assert_eq!(others(vec![]), ["fast"]);
        assert_eq!(others(vec![Target::named("slow", 1.0)]), ["fast", "slow"]);
        assert_eq!(others(vec![Target::named("fast", 1.0), Target::named("slow", 1.0)]), ["fast", "slow"]);
    }

    #[test]
    fn a_stream_is_compared_with_the_fastest_stream() {
        let entries = vec![
            entry("ours, core", Role::Wireloom, &[2.0; 9]),
            entry("ours, stream", Role::Variant, &[9.0; 9]),
            entry("a rival, core", Role::Rival, &[4.0; 9]),
            entry("a rival, stream", Role::Rival, &[6.0; 9]),
        ];
        let race = race(entries, vec![Target::fastest_rival(0.5), Target::fastest_stream(0.9)]);
        let found: Vec<_> = race
            .comparisons()
            .iter()
            .map(|it| (it.ours.name.clone(), it.other.name.clone(), it.ratio.median, it.verdict()))
            .collect();
        let row =
            |ours: &str, other: &str, ratio, verdict| (ours.to_owned(), other.to_owned(), ratio, verdict);
        let expected = [
            row("ours, core", "a rival, core", 0.5, Some(Verdict::Met)),
            row("ours, stream", "a rival, stream", 1.5, Some(Verdict::Missed)),
            row("ours, stream", "a rival, core", 2.25, None),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_ratio_on_both_sides_of_one_shows_no_difference() {
        let rival = entry("rival", Role::Rival, &[1.0; 9]);
        let noisy = entry("ours", Role::Wireloom, &[0.8, 1.2, 0.9, 1.1, 0.8, 1.2, 0.9, 1.1, 1.0]);
        assert!(!noisy.ratio_to(&rival).expect("a ratio").shows_difference());
        let faster = entry("ours", Role::Wireloom, &[0.8, 0.82, 0.79, 0.8, 0.81, 0.8, 0.8, 0.83, 0.8]);
        assert!(faster.ratio_to(&rival).expect("a ratio").shows_difference());
    }

    #[test]
    fn rounds_are_paired() {
        // The machine is half as fast in every second round; the ratio of each pair is the same.
        let ours = entry("ours", Role::Wireloom, &[1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
        let rival = entry("rival", Role::Rival, &[2.0, 4.0, 2.0, 4.0, 2.0, 4.0]);
        let ratio = ours.ratio_to(&rival).expect("a ratio");
        assert_eq!((ratio.median, ratio.interval), (0.5, (0.5, 0.5)));
    }

    #[test]
    fn runs_are_merged_by_contestant() {
        let run = |cost: f64| Results {
            races: vec![race(
                vec![entry("ours", Role::Wireloom, &[cost; 3]), entry("rival", Role::Rival, &[2.0; 3])],
                Vec::new(),
            )],
            ..Results::default()
        };
        let mut results = run(1.0);
        results.merge(1, run(3.0));
        let [race] = &*results.races else { panic!("one race") };
        let ratio = race.comparisons()[0].ratio;
        assert_eq!(ratio.runs, (0.5, 1.5));
        assert!(!ratio.shows_difference());
    }

    #[test]
    fn runs_are_paired_also_when_a_contestant_missed_some() {
        // The machine is half as fast in the second run.
        let timed = |mut entry: Entry| {
            entry.runs[0].rates = entry.runs[0].costs.iter().map(|cost| 1.0 / cost).collect();
            entry
        };
        let ours = |cost: f64| timed(entry("ours", Role::Wireloom, &[cost; 3]));
        let rival = |cost: f64| timed(entry("rival", Role::Rival, &[cost; 3]));
        let run = |entries| Results { races: vec![race(entries, Vec::new())], ..Results::default() };
        for runs in [
            [vec![ours(1.0)], vec![ours(2.0), rival(4.0)], vec![ours(1.0), rival(2.0)]],
            [vec![ours(1.0), rival(2.0)], vec![ours(2.0)], vec![ours(2.0), rival(4.0)]],
            [vec![], vec![ours(2.0), rival(4.0)], vec![ours(1.0), rival(2.0)]],
        ] {
            let mut results = Results::default();
            for (number, entries) in runs.into_iter().enumerate() {
                results.merge(number, if entries.is_empty() { Results::default() } else { run(entries) });
            }
            let comparison = &results.races[0].comparisons()[0];
            assert_eq!((comparison.ratio.runs, comparison.ratio.runs_len), ((0.5, 0.5), 2));
            assert_eq!(comparison.wall, Some(2.0));
        }
    }
}
