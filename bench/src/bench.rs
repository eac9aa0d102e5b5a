//! One run of the benchmark: how thorough it is, what it has measured so far, and how it shows that it is alive.

use crate::clock;
use crate::heat::Heat;
use crate::measure::{Effort, Outcome, Race};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A single figure, in which no rival takes part.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) workload: &'static str,
    pub(crate) title: String,
    pub(crate) value: f64,
    /// The lowest value that the project allows itself.
    pub(crate) bar: Option<f64>,
    /// What the value is made of.
    pub(crate) note: String,
}

impl Figure {
    /// Whether the bar is met; `None` without a bar.
    pub(crate) fn is_met(&self) -> Option<bool> {
        Some(self.value >= self.bar?)
    }
}

/// What a workload hands its races to.
pub(crate) struct Bench {
    pub(crate) effort: Effort,
    /// Only to see that everything runs and is right: inputs are to be tiny.
    pub(crate) smoke: bool,
    /// Only lanes whose name begins so, for a profile.
    pub(crate) only: Option<String>,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) figures: Vec<Figure>,
    pub(crate) heats: Vec<Heat>,
    /// Who is missing, and why.
    pub(crate) skipped: Vec<(String, String)>,
    progress: ProgressBar,
}

impl Bench {
    pub(crate) fn new(effort: Effort, smoke: bool, only: Option<String>) -> Self {
        // It draws on stderr, and nothing at all if that is not a terminal.
        let progress = ProgressBar::new_spinner();
        progress.set_style(ProgressStyle::default_spinner());
        Self {
            effort,
            smoke,
            only,
            outcomes: Vec::new(),
            figures: Vec::new(),
            heats: Vec::new(),
            skipped: Vec::new(),
            progress,
        }
    }

    /// Says what is being done.
    pub(crate) fn say(&self, state: &str) {
        self.progress.set_message(state.to_owned());
        self.progress.tick();
    }

    /// Whether a contestant of this name is to run.
    pub(crate) fn is_wanted(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|only| name.starts_with(only))
    }

    /// Notes, once, that someone cannot take part.
    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        let entry = (name.to_owned(), reason.to_owned());
        if !self.skipped.contains(&entry) {
            self.skipped.push(entry);
        }
    }

    /// `full`, or `tiny` in a smoke test.
    pub(crate) fn scale(&self, full: usize, tiny: usize) -> usize {
        if self.smoke { tiny } else { full }
    }

    /// Keeps what processes came to, if any took part.
    #[cfg(target_os = "linux")]
    pub(crate) fn keep(&mut self, heat: Heat) {
        if !heat.scores.is_empty() {
            self.heats.push(heat);
        }
    }

    /// Runs a race and keeps its outcome.
    ///
    /// # Errors
    /// The lane that does not do the same work as the others.
    pub(crate) fn race(&mut self, mut race: Race) -> Result<(), String> {
        race.lanes.retain(|lane| self.is_wanted(&lane.name));
        let outcome = race.run(self.effort, |state| self.say(state))?;
        self.outcomes.push(outcome);
        Ok(())
    }

    /// The median time that each of these pieces of work takes, run in turns.
    pub(crate) fn turns<const N: usize>(&self, mut works: [&mut dyn FnMut(); N]) -> [Duration; N] {
        let passes = works.each_mut().map(|work| passes(self.effort.sample, work));
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

fn passes(sample: Duration, work: &mut dyn FnMut()) -> u32 {
    let mut passes = 1;
    while time(passes, work) * passes < sample {
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
