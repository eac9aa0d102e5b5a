//! One run of the benchmark in one process: its effort, its results so far, and its progress on the terminal.

use crate::clock;
use crate::race::{Effort, Race};
use crate::results::{Figure, Missing, RaceResult, Results};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// Runs the races of the workloads and keeps the results.
pub(crate) struct Runner {
    pub(crate) effort: Effort,
    /// Inputs are tiny: only the results are checked.
    pub(crate) smoke: bool,
    /// Run only the contestants whose name begins with this, for a profile.
    pub(crate) only: Option<String>,
    pub(crate) results: Results,
    progress: ProgressBar,
}

impl Runner {
    pub(crate) fn new(effort: Effort, smoke: bool, only: Option<String>) -> Self {
        // It draws on stderr, if that is a terminal.
        let progress = ProgressBar::new_spinner();
        progress.set_style(ProgressStyle::default_spinner());
        Self { effort, smoke, only, results: Results::default(), progress }
    }

    /// Shows the current activity.
    pub(crate) fn show(&self, state: &str) {
        self.progress.set_message(state.to_owned());
        self.progress.tick();
    }

    /// Whether a contestant of this name is to run.
    pub(crate) fn is_wanted(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|only| name.starts_with(only))
    }

    /// Records that a contestant cannot take part, and how to get it.
    pub(crate) fn skip(&mut self, name: &str, reason: &str, remedy: &str) {
        let missing = Missing { name: name.into(), reason: reason.into(), remedy: remedy.into() };
        if !self.results.missing.contains(&missing) {
            self.results.missing.push(missing);
        }
    }

    /// Records the data that a workload uses.
    pub(crate) fn used_data(&mut self, workload: &str, data: impl Into<String>) {
        self.results.data.push((workload.into(), data.into()));
    }

    /// `full`, or `tiny` in a smoke test.
    pub(crate) fn scale(&self, full: usize, tiny: usize) -> usize {
        if self.smoke { tiny } else { full }
    }

    /// Keeps a result, if any contestant took part.
    pub(crate) fn keep(&mut self, race: RaceResult) {
        if !race.entries.is_empty() {
            self.results.races.push(race);
        }
    }

    pub(crate) fn keep_figure(&mut self, figure: Figure) {
        self.results.figures.push(figure);
    }

    /// Runs a race and keeps its result.
    ///
    /// # Errors
    /// The contestant that does not do the same work as the others.
    pub(crate) fn race(&mut self, mut race: Race) -> Result<(), String> {
        race.contestants.retain(|contestant| self.is_wanted(&contestant.name));
        let result = race.run(self.effort, |state| self.show(state))?;
        self.keep(result);
        Ok(())
    }

    /// The median time of each of these works, which take turns.
    pub(crate) fn alternate<const N: usize>(&self, mut works: [&mut dyn FnMut(); N]) -> [Duration; N] {
        let passes = works.each_mut().map(|work| passes(self.effort.round_time, work));
        let mut times = [const { Vec::new() }; N];
        for _ in 0..self.effort.rounds {
            for ((times, work), passes) in times.iter_mut().zip(&mut works).zip(passes) {
                times.push(time(passes, work));
            }
        }
        times.map(|mut times| {
            times.sort();
            times[times.len() / 2]
        })
    }

    /// Clears the progress line.
    pub(crate) fn finish(&self) {
        self.progress.finish_and_clear();
    }
}

fn passes(round_time: Duration, work: &mut dyn FnMut()) -> u32 {
    let mut passes = 1;
    while time(passes, work) * passes < round_time {
        passes *= 2;
    }
    passes
}

fn time(passes: u32, work: &mut dyn FnMut()) -> Duration {
    let start = clock::now();
    for _ in 0..passes {
        work();
    }
    (clock::now() - start) / passes
}
