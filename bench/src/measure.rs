//! Times the lanes of a race against one another: in one process, in interleaved rounds whose order turns, so that a
//! change of the machine's mood strikes everyone alike.

use crate::allocation;
use crate::clock;
use crate::contestant::Contestant;
use std::time::Duration;

/// How long a race is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// How many times each lane is timed.
    pub(crate) rounds: usize,
    /// How long one timing lasts at least.
    pub(crate) sample: Duration,
    /// How many times each process is timed under load.
    pub(crate) turns: usize,
    /// How long one of those lasts.
    pub(crate) turn: Duration,
}

impl Effort {
    /// What the published figures are made with.
    pub(crate) const FULL: Self =
        Self { rounds: 25, sample: Duration::from_millis(5), turns: 7, turn: Duration::from_millis(600) };
    /// Fewer and shorter rounds, to look at a change.
    pub(crate) const QUICK: Self =
        Self { rounds: 15, sample: Duration::from_millis(1), turns: 3, turn: Duration::from_millis(200) };
    /// Once, to see that everything runs and that the results are right.
    pub(crate) const SMOKE: Self = Self { rounds: 1, sample: Duration::ZERO, turns: 1, turn: Duration::ZERO };
}

/// Whose lane it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Ours, by the door that users take: its ratio is held against the bar.
    Headline,
    /// Ours, by another door.
    Ours,
    Rival,
    /// What nobody can go below.
    Floor,
}

/// One contestant in a race.
pub(crate) struct Lane {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) contestant: Box<dyn Contestant>,
}

impl Lane {
    pub(crate) fn new(name: impl Into<String>, kind: Kind, contestant: impl Contestant + 'static) -> Self {
        Self { name: name.into(), kind, contestant: Box::new(contestant) }
    }
}

/// The same work, done by several.
pub(crate) struct Race {
    /// The workload's short name.
    pub(crate) workload: &'static str,
    pub(crate) title: String,
    /// The highest ratio to the fastest rival's time that the project allows itself.
    pub(crate) bar: Option<f64>,
    /// Messages in one pass.
    pub(crate) messages: usize,
    pub(crate) lanes: Vec<Lane>,
}

/// What one lane did.
#[derive(Clone, Debug)]
pub(crate) struct Timing {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Nanoseconds a message: the median of the rounds.
    pub(crate) median: f64,
    /// The quarter of the rounds below and the quarter above.
    pub(crate) quartiles: (f64, f64),
    pub(crate) allocations: f64,
}

/// What a race came to.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) workload: &'static str,
    pub(crate) title: String,
    pub(crate) bar: Option<f64>,
    pub(crate) timings: Vec<Timing>,
}

impl Outcome {
    /// The rival with the least time.
    pub(crate) fn fastest_rival(&self) -> Option<&Timing> {
        let rivals = self.timings.iter().filter(|timing| timing.kind == Kind::Rival);
        rivals.min_by(|a, b| a.median.total_cmp(&b.median))
    }

    /// Our time in parts of the fastest rival's.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let ours = self.timings.iter().find(|timing| timing.kind == Kind::Headline)?;
        Some(ours.median / self.fastest_rival()?.median)
    }

    /// Whether the bar is met; `None` without a bar, or with nobody to hold against it.
    pub(crate) fn is_met(&self) -> Option<bool> {
        Some(self.ratio()? <= self.bar?)
    }
}

impl Race {
    /// Checks every lane, then times them all.
    ///
    /// # Errors
    /// The lane that does not do the same work as the others.
    pub(crate) fn run(mut self, effort: Effort, mut progress: impl FnMut(&str)) -> Result<Outcome, String> {
        for lane in &mut self.lanes {
            progress(&format!("{}: checking {}", self.title, lane.name));
            lane.contestant.check().map_err(|error| format!("{}, {}: {error}", self.title, lane.name))?;
        }
        let messages = self.messages as f64;
        let passes: Vec<u32> = self.lanes.iter_mut().map(|lane| passes(lane, effort.sample)).collect();
        let allocations: Vec<f64> = self
            .lanes
            .iter_mut()
            .map(|lane| allocation::count(|| lane.contestant.pass()) as f64 / messages)
            .collect();
        let mut samples = vec![Vec::with_capacity(effort.rounds); self.lanes.len()];
        for round in 0..effort.rounds {
            progress(&format!("{}: round {} of {}", self.title, round + 1, effort.rounds));
            for turn in 0..self.lanes.len() {
                // Every other round runs backwards, so that nobody always follows the same neighbour.
                let step = if round % 2 == 0 { turn } else { self.lanes.len() - 1 - turn };
                let at = (step + round / 2) % self.lanes.len();
                samples[at].push(sample(&mut self.lanes[at], passes[at]) / messages);
            }
        }
        let timings =
            self.lanes.iter().zip(samples).zip(allocations).map(|((lane, mut samples), allocations)| {
                samples.sort_by(f64::total_cmp);
                Timing {
                    name: lane.name.clone(),
                    kind: lane.kind,
                    median: quantile(&samples, 0.5),
                    quartiles: (quantile(&samples, 0.25), quantile(&samples, 0.75)),
                    allocations,
                }
            });
        Ok(Outcome { workload: self.workload, title: self.title, bar: self.bar, timings: timings.collect() })
    }
}

/// How many passes fill a sample. The attempts warm the lane up as well.
fn passes(lane: &mut Lane, sample_time: Duration) -> u32 {
    let mut passes = 1;
    loop {
        let time = sample(lane, passes) * f64::from(passes);
        if time >= sample_time.as_nanos() as f64 {
            return passes;
        }
        passes *= 2;
    }
}

/// Nanoseconds a pass.
fn sample(lane: &mut Lane, passes: u32) -> f64 {
    let start = clock::now();
    for _ in 0..passes {
        lane.contestant.pass();
    }
    (clock::now() - start).as_nanos() as f64 / f64::from(passes)
}

/// The quantile of sorted samples, interpolated.
pub(crate) fn quantile(sorted: &[f64], at: f64) -> f64 {
    let place = at * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    low + (high - low) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(quantile(&[1.0], 0.25), 1.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.25), 2.0);
        assert_eq!(quantile(&[1.0, 3.0], 0.5), 2.0);
    }

    #[test]
    fn a_lane_that_fails_its_check_stops_the_race() {
        struct Liar;
        impl Contestant for Liar {
            fn pass(&mut self) {}
            fn check(&mut self) -> Result<(), String> {
                Err("lies".into())
            }
        }
        let lanes = vec![Lane::new("liar", Kind::Rival, Liar)];
        let race = Race { workload: "w0", title: "race".into(), bar: None, messages: 1, lanes };
        assert_eq!(race.run(Effort::SMOKE, |_| ()).err().as_deref(), Some("race, liar: lies"));
    }

    #[test]
    fn the_bar_is_held_against_the_fastest_rival() {
        let timing = |name: &str, kind, median| Timing {
            name: name.into(),
            kind,
            median,
            quartiles: (median, median),
            allocations: 0.0,
        };
        let timings = vec![
            timing("ours", Kind::Headline, 2.0),
            timing("floor", Kind::Floor, 1.0),
            timing("slow", Kind::Rival, 10.0),
            timing("fast", Kind::Rival, 4.0),
        ];
        let mut outcome = Outcome { workload: "w0", title: String::new(), bar: Some(0.5), timings };
        assert_eq!((outcome.ratio(), outcome.is_met()), (Some(0.5), Some(true)));
        outcome.bar = Some(0.49);
        assert_eq!(outcome.is_met(), Some(false));
    }
}
