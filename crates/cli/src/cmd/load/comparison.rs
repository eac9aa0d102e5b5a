//! Compares two servers, or two runs: the median change of each metric with a confidence interval.

use std::fmt;

use serde_json::Value;

use super::recorder::Second;
use crate::args::ROUNDS_MIN;

/// The minimum number of seconds for a comparison of two runs.
const SECONDS_MIN: usize = 8;

/// The probability that a comparison of equal servers shows a difference by any of the three metrics.
const ERROR_MAX: f64 = 0.05;

/// The same for one metric and one direction: whatever the metrics have to do with each other, together they err no more often.
const TAIL_MAX: f64 = ERROR_MAX / 3.0 / 2.0;

/// Values to compare, each measured several times. `None`: a second or a round without answers.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples {
    /// Answers per second; empty in an open loop, where the rate is given.
    rate: Vec<Option<f64>>,
    /// Latencies, in any unit.
    p50: Vec<Option<f64>>,
    p99: Vec<Option<f64>>,
}

/// The values that replace those of a round without answers, in the units of [`Samples`].
#[derive(Clone, Copy, Debug)]
pub(super) struct NoAnswer {
    /// At most this rate.
    pub(super) rate: f64,
    /// At least this latency.
    pub(super) latency: f64,
}

impl Samples {
    /// The whole seconds that were measured.
    pub(super) fn of_series(series: &[Second], warmup_s: f64, is_open_loop: bool) -> Self {
        let seconds = series.iter().map(|second| {
            let seconds = |nanos: u64| nanos as f64 / 1e9;
            (second.at.as_secs_f64(), [second.received as f64, seconds(second.p50), seconds(second.p99)])
        });
        Self::of_seconds(seconds, warmup_s, is_open_loop)
    }

    /// The whole seconds that were measured, in a result of `--json`.
    ///
    /// # Errors
    /// It is not such a result.
    pub(super) fn of_json(text: &str) -> Result<Self, String> {
        const SHAPE: &str = "it is not a result of `wireloom load --json`";
        let report: Value = serde_json::from_str(text).map_err(|error| format!("{SHAPE}: {error}"))?;
        let series = report["series"].as_array().ok_or(SHAPE)?;
        let warmup_s = report["config"]["warmup"].as_f64().ok_or(SHAPE)?;
        let is_open_loop = report["config"]["pipeline"].is_null();
        let seconds: Result<Vec<(f64, [f64; 3])>, &str> = series
            .iter()
            .map(|second| {
                let number = |name: &str| second[name].as_f64().ok_or(SHAPE);
                Ok((number("at")?, [number("answered")?, number("p50")?, number("p99")?]))
            })
            .collect();
        Ok(Self::of_seconds(seconds?, warmup_s, is_open_loop))
    }

    /// The end of each second, and its answers, p50 and p99. Seconds of the warm-up are left out, and so is one that ended early.
    fn of_seconds(
        seconds: impl IntoIterator<Item = (f64, [f64; 3])>,
        warmup_s: f64,
        is_open_loop: bool,
    ) -> Self {
        /// The minimum length of a whole second: on a busy machine, the end of the previous second may be recorded
        /// late.
        const WHOLE_S: f64 = 0.9;
        let mut samples = Self::default();
        let mut begin_s = 0.0;
        for (end_s, [answered, p50, p99]) in seconds {
            if begin_s >= warmup_s - 1e-3 && end_s - begin_s >= WHOLE_S {
                samples.push(answered / (end_s - begin_s), p50, p99, is_open_loop);
            }
            begin_s = end_s;
        }
        samples
    }

    /// Adds a second or a round. A latency of 0 means that there were no answers.
    pub(super) fn push(&mut self, rate: f64, p50: f64, p99: f64, is_open_loop: bool) {
        let answered = |value: f64| (value > 0.0).then_some(value);
        if !is_open_loop {
            self.rate.push(answered(rate));
        }
        self.p50.push(answered(p50));
        self.p99.push(answered(p99));
    }

    fn metrics(&self) -> [(&'static str, &[Option<f64>], bool); 3] {
        [("rate", &self.rate, true), ("p50", &self.p50, false), ("p99", &self.p99, false)]
    }
}

/// The comparison of a server with another one.
#[derive(Debug)]
pub(super) struct Comparison {
    /// The other one.
    pub(super) with: String,
    /// Samples of this one and of the other.
    pub(super) samples: [usize; 2],
    pub(super) changes: Vec<Change>,
}

/// The change of one metric, as a fraction of the other server's value.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) metric: &'static str,
    is_better_high: bool,
    pub(super) median: f64,
    /// The confidence interval: 95% that it holds for all metrics together.
    pub(super) low: f64,
    pub(super) high: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Faster,
    Slower,
    /// The interval includes 0: no difference is shown.
    NotShown,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::NotShown => "no difference shown",
        })
    }
}

impl Change {
    pub(super) fn result(&self) -> Direction {
        match (self.low > 0.0, self.high < 0.0) {
            (true, _) if self.is_better_high => Direction::Faster,
            (true, _) => Direction::Slower,
            (_, true) if self.is_better_high => Direction::Slower,
            (_, true) => Direction::Faster,
            _ => Direction::NotShown,
        }
    }
}

impl Comparison {
    /// Compares rounds in which the servers took turns, in an order by chance: each round of one with that of the other.
    /// A round without answers of one of them counts as `no_answer`.
    pub(super) fn paired(with: &str, own: &Samples, other: &Samples, no_answer: NoAnswer) -> Self {
        let changes = own.metrics().into_iter().zip(other.metrics()).filter_map(
            |((metric, own, is_better_high), (_, other, _))| {
                let worst = if is_better_high { no_answer.rate } else { no_answer.latency };
                let mut ratios: Vec<f64> = own
                    .iter()
                    .zip(other)
                    .filter(|(own, other)| own.is_some() || other.is_some())
                    .map(|(own, other)| own.unwrap_or(worst) / other.unwrap_or(worst) - 1.0)
                    .collect();
                if ratios.len() < ROUNDS_MIN {
                    return None;
                }
                ratios.sort_by(f64::total_cmp);
                let rank = interval_rank(ratios.len());
                let (low, high) = (ratios[rank], ratios[ratios.len() - 1 - rank]);
                Some(Change { metric, is_better_high, median: median(&ratios), low, high })
            },
        );
        Self { with: with.to_owned(), samples: own.lens(other), changes: changes.collect() }
    }

    /// Compares the seconds of two runs.
    pub(super) fn unpaired(with: &str, own: &Samples, other: &Samples) -> Self {
        let changes = own.metrics().into_iter().zip(other.metrics()).filter_map(
            |((metric, own, is_better_high), (_, other, _))| {
                let answered =
                    |samples: &[Option<f64>]| samples.iter().copied().flatten().collect::<Vec<f64>>();
                let (own, other) = (answered(own), answered(other));
                if own.len() < SECONDS_MIN || other.len() < SECONDS_MIN {
                    return None;
                }
                let (median, low, high) = bootstrap(&own, &other);
                Some(Change { metric, is_better_high, median, low, high })
            },
        );
        Self { with: with.to_owned(), samples: own.lens(other), changes: changes.collect() }
    }

    /// The result of all metrics together.
    pub(super) fn result(&self) -> &'static str {
        let has = |direction| self.changes.iter().any(|change| change.result() == direction);
        match (has(Direction::Faster), has(Direction::Slower)) {
            (true, true) => "faster by some metrics, slower by others",
            (true, false) => "faster",
            (false, true) => "slower",
            (false, false) if !self.is_conclusive() => "no difference shown: too few samples",
            (false, false) => "no difference shown",
        }
    }

    /// Whether there were enough samples of any metric.
    pub(super) fn is_conclusive(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Whether a metric is shown to be slower, by this fraction or more.
    pub(super) fn is_slower_by(&self, fraction: f64) -> bool {
        self.changes
            .iter()
            .any(|change| change.result() == Direction::Slower && change.median.abs() >= fraction)
    }
}

impl Samples {
    fn lens(&self, other: &Self) -> [usize; 2] {
        [self.p50.len(), other.p50.len()]
    }
}

/// The order statistic, from either end, that bounds the median with enough confidence, whatever the distribution: the highest rank
/// that [`TAIL_MAX`] of the binomial distribution allows.
fn interval_rank(samples: usize) -> usize {
    let mut rank = 0;
    let mut probability = 0.5_f64.powi(samples as i32);
    let mut tail = probability;
    while rank < samples / 2 {
        // The probability that the median is outside the next rank.
        probability *= (samples - rank) as f64 / (rank + 1) as f64;
        if tail + probability > TAIL_MAX {
            break;
        }
        tail += probability;
        rank += 1;
    }
    rank
}

/// The change of the median, with the interval that holds it in all but [`TAIL_MAX`] at either end of the resampled pairs.
fn bootstrap(own: &[f64], other: &[f64]) -> (f64, f64, f64) {
    const RESAMPLES: usize = 2000;
    // The same samples give the same interval.
    let mut rng = fastrand::Rng::with_seed(1);
    let mut resampled_median = |samples: &[f64]| {
        let mut resample: Vec<f64> =
            (0..samples.len()).map(|_| samples[rng.usize(..samples.len())]).collect();
        resample.sort_by(f64::total_cmp);
        median(&resample)
    };
    let sorted = |samples: &[f64]| {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted
    };
    let change = |own: f64, other: f64| own / other.max(f64::MIN_POSITIVE) - 1.0;
    let mut changes: Vec<f64> =
        (0..RESAMPLES).map(|_| change(resampled_median(own), resampled_median(other))).collect();
    changes.sort_by(f64::total_cmp);
    let middle = change(median(&sorted(own)), median(&sorted(other)));
    let cut = (RESAMPLES as f64 * TAIL_MAX) as usize;
    (middle, changes[cut], changes[RESAMPLES - 1 - cut])
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The table of the sign test: with 12 samples the third and the tenth bound the median with 96.1% confidence, the second and the
    // eleventh with 99.4%.
    #[test]
    fn ranks_are_those_of_the_binomial_distribution() {
        let ranks: Vec<usize> = [8, 9, 10, 12, 20, 100].map(interval_rank).into();
        assert_eq!(ranks, [0, 0, 0, 1, 4, 37]);
    }

    fn paired(with: &str, own: &Samples, other: &Samples) -> Comparison {
        Comparison::paired(with, own, other, NoAnswer { rate: 1.0, latency: 10.0 })
    }

    // Each round of one server is compared with that of the other, also after a round without answers.
    #[test]
    fn a_round_without_answers_is_the_slowest() {
        let mut sides = [Samples::default(), Samples::default()];
        for round in 0..8 {
            // The machine is slower in each round. The other server is always faster by a tenth, and hangs in the third.
            let slowdown = f64::from(round + 1);
            let (rate, p50) = (1000.0 / slowdown, slowdown / 1000.0);
            sides[0].push(rate, p50, p50, false);
            match round {
                2 => sides[1].push(0.0, 0.0, 0.0, false),
                _ => sides[1].push(rate / 0.9, p50 * 0.9, p50 * 0.9, false),
            }
        }
        let comparison = paired("x", &sides[0], &sides[1]);
        assert_eq!(comparison.samples, [8, 8]);
        let [rate, p50, _] = &comparison.changes[..] else { panic!("{comparison:?}") };
        assert!((rate.median + 0.1).abs() < 0.001 && rate.low > -0.101 && rate.high > 300.0, "{rate:?}");
        assert!((p50.median - 1.0 / 9.0).abs() < 0.001 && p50.high < 0.112 && p50.low < -0.999, "{p50:?}");
        // A metric that neither server has is not compared.
        let none = Samples { p50: vec![None; 8], p99: vec![None; 8], ..Samples::default() };
        assert_eq!(paired("x", &none, &none).changes.len(), 0);
    }

    fn samples(rate: f64, p50: f64, spread: f64, seed: u64) -> Samples {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut samples = Samples::default();
        for _ in 0..20 {
            let mut noise = || 1.0 + spread * (rng.f64() - 0.5);
            samples.push(rate * noise(), p50 * noise(), 2.0 * p50 * noise(), false);
        }
        samples
    }

    #[test]
    fn shows_known_differences() {
        for compare in [paired, Comparison::unpaired] {
            let faster = compare("x", &samples(1100.0, 0.9, 0.02, 1), &samples(1000.0, 1.0, 0.02, 2));
            assert_eq!(faster.result(), "faster");
            let change = &faster.changes[0];
            assert!(
                (change.median - 0.1).abs() < 0.01 && change.low < 0.1 && change.high > 0.09,
                "{change:?}"
            );
            assert!(!faster.is_slower_by(0.0));
            let slower = compare("x", &samples(900.0, 1.1, 0.02, 1), &samples(1000.0, 1.0, 0.02, 2));
            assert_eq!(slower.result(), "slower");
            assert!(slower.is_slower_by(0.05) && !slower.is_slower_by(0.2));
            let same = compare("x", &samples(1000.0, 1.0, 0.5, 1), &samples(1000.0, 1.0, 0.5, 2));
            assert_eq!(same.result(), "no difference shown", "{same:?}");
            let mixed = compare("x", &samples(1100.0, 1.1, 0.02, 1), &samples(1000.0, 1.0, 0.02, 2));
            assert_eq!(mixed.result(), "faster by some metrics, slower by others");
        }
    }

    // Among many comparisons of equal servers, each metric may show a difference in 5 % of them.
    #[test]
    fn few_comparisons_of_equal_servers_show_a_difference() {
        let mut shown = [0, 0];
        for seed in 0..40 {
            let (own, other) = (samples(1000.0, 1.0, 0.2, seed), samples(1000.0, 1.0, 0.2, seed + 1000));
            for (shown, compare) in shown.iter_mut().zip([paired, Comparison::unpaired]) {
                let comparison = compare("x", &own, &other);
                *shown +=
                    comparison.changes.iter().filter(|change| change.result() != Direction::NotShown).count();
            }
        }
        // Of 120 comparisons for each metric, at most three times the expected number.
        assert!(shown.iter().all(|&shown| shown <= 18), "{shown:?}");
    }

    /// Other programs take the processor for a while, whichever server has its turn.
    #[test]
    fn a_server_against_itself_under_load_shows_no_difference() {
        for rounds in [ROUNDS_MIN, 9, 10, 12, 20, 40] {
            let mut shown = 0;
            for seed in 0..100 {
                let mut rng = fastrand::Rng::with_seed(seed);
                let mut load = 0.0_f64;
                let mut sides = [Samples::default(), Samples::default()];
                for _ in 0..rounds {
                    let first = rng.usize(..2);
                    for turn in [first, 1 - first] {
                        load = 0.7 * load + rng.f64() * 0.3;
                        let mut noise = || 1.0 + 0.1 * (rng.f64() - 0.5);
                        let slowdown = 1.0 + 2.0 * load;
                        let (rate, p50) = (1000.0 / slowdown * noise(), slowdown * noise());
                        sides[turn].push(rate, p50, 3.0 * p50 * noise(), false);
                    }
                }
                let [own, other] = &sides;
                shown += usize::from(!paired("x", own, other).result().starts_with("no difference shown"));
            }
            assert!(shown <= 5, "{rounds} rounds: {shown} of 100");
        }
    }

    #[test]
    fn too_few_samples_show_nothing() {
        let few = [Some(1.0); 5].to_vec();
        let few = Samples { rate: few.clone(), p50: few.clone(), p99: few };
        assert_eq!(paired("x", &few, &few).result(), "no difference shown: too few samples");
        assert_eq!(Comparison::unpaired("x", &few, &few).result(), "no difference shown: too few samples");
    }

    #[test]
    fn reads_results() {
        let second = |at: f64| format!("{{\"at\":{at},\"answered\":9,\"p50\":0.5,\"p99\":1}}");
        let text = format!(
            "{{\"config\":{{\"warmup\":1,\"pipeline\":1}},\"series\":[{},{}]}}",
            second(1.0),
            second(2.0)
        );
        assert_eq!(Samples::of_json(&text).unwrap().rate, [Some(9.0)]);
        // A process that was stopped records a longer second.
        let long = text.replace("]}", &format!(",{}]}}", second(5.0)));
        assert_eq!(Samples::of_json(&long).unwrap().rate, [Some(9.0), Some(3.0)]);
        // A second that errors ended early is not a sample.
        let cut = text.replace("]}", &format!(",{}]}}", second(2.4)));
        assert_eq!(Samples::of_json(&cut).unwrap().rate, [Some(9.0)]);
        for wrong in ["", "{}", "[1]", "{\"config\":{\"warmup\":1},\"series\":[{}]}"] {
            assert!(Samples::of_json(wrong).is_err(), "{wrong}");
        }
    }
}
