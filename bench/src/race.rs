//! Times the contestants of a race in one process, in interleaved rounds whose order changes, so that a change of the
//! machine's speed affects all of them.

use crate::clock;
use crate::contestant::Work;
use crate::results::{Cost, Entry, RaceResult, Role, Rounds, Target};
use std::time::Duration;

/// The number and length of rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// How many times `all` measures everything, each time in new processes.
    pub(crate) runs: usize,
    /// Rounds of a race within one process.
    pub(crate) rounds: usize,
    /// The minimum time of such a round.
    pub(crate) round_time: Duration,
    /// Rounds of a race between processes.
    pub(crate) process_rounds: usize,
    /// The time of such a round.
    pub(crate) process_round_time: Duration,
}

impl Effort {
    /// For published figures.
    pub(crate) const FULL: Self = Self {
        runs: 3,
        rounds: 15,
        round_time: Duration::from_millis(4),
        process_rounds: 5,
        process_round_time: Duration::from_millis(250),
    };
    /// Shorter rounds, to evaluate a change.
    pub(crate) const QUICK: Self = Self {
        runs: 2,
        rounds: 11,
        round_time: Duration::from_millis(1),
        process_rounds: 3,
        process_round_time: Duration::from_millis(120),
    };
    /// One round, to check that everything runs and that the results are right.
    pub(crate) const SMOKE: Self = Self {
        runs: 1,
        rounds: 1,
        round_time: Duration::ZERO,
        process_rounds: 1,
        process_round_time: Duration::ZERO,
    };
}

/// A contestant of a race.
pub(crate) struct Contestant {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) note: Option<&'static str>,
    pub(crate) work: Box<dyn Work>,
}

impl Contestant {
    pub(crate) fn new(name: impl Into<String>, role: Role, work: impl Work + 'static) -> Self {
        Self { name: name.into(), role, note: None, work: Box::new(work) }
    }

    /// Adds what a reader must know to compare it with the others.
    pub(crate) fn with_note(self, note: &'static str) -> Self {
        Self { note: Some(note), ..self }
    }
}

/// The same work, done by several contestants.
pub(crate) struct Race {
    /// The workload's short name.
    pub(crate) workload: &'static str,
    pub(crate) title: String,
    /// The project's targets: the highest ratios that it accepts.
    pub(crate) targets: Vec<Target>,
    /// Messages in one pass.
    pub(crate) messages: usize,
    pub(crate) contestants: Vec<Contestant>,
}

impl Race {
    /// Checks every contestant, then times them all.
    ///
    /// # Errors
    /// The contestant that does not do the same work as the others.
    pub(crate) fn run(
        mut self,
        effort: Effort,
        mut progress: impl FnMut(&str),
    ) -> Result<RaceResult, String> {
        for contestant in &mut self.contestants {
            progress(&format!("{}: checking {}", self.title, contestant.name));
            let checked = contestant.work.check();
            checked.map_err(|error| format!("{}, {}: {error}", self.title, contestant.name))?;
        }
        let messages = self.messages as f64;
        let passes: Vec<u32> =
            self.contestants.iter_mut().map(|contestant| passes(contestant, effort.round_time)).collect();
        let allocations: Vec<f64> = self
            .contestants
            .iter_mut()
            .map(|contestant| contestant.work.allocations() as f64 / messages)
            .collect();
        let mut costs = vec![Vec::with_capacity(effort.rounds); self.contestants.len()];
        for round in 0..effort.rounds {
            progress(&format!("{}: round {} of {}", self.title, round + 1, effort.rounds));
            for at in turns(round, self.contestants.len()) {
                costs[at].push(time(&mut self.contestants[at], passes[at]) / messages);
            }
        }
        let entries = self.contestants.into_iter().zip(costs).zip(allocations).map(
            |((contestant, costs), allocations)| Entry {
                name: contestant.name,
                role: contestant.role,
                note: contestant.note.map(Into::into),
                allocations: Some(allocations),
                runs: vec![Rounds { costs, rates: Vec::new() }],
            },
        );
        Ok(RaceResult {
            workload: self.workload.into(),
            title: self.title,
            cost: Cost::CpuTime,
            message_len: None,
            entries: entries.collect(),
            targets: self.targets,
        })
    }
}

/// The order of a round: every second round runs backwards, and each pair of rounds begins with the next contestant, so
/// that no contestant always follows the same one.
pub(crate) fn turns(round: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |turn| {
        let step = if round.is_multiple_of(2) { turn } else { count - 1 - turn };
        (step + round / 2) % count
    })
}

/// The number of passes that fill a round. Measuring it also warms up the contestant.
fn passes(contestant: &mut Contestant, round_time: Duration) -> u32 {
    let mut passes = 1;
    loop {
        let time = time(contestant, passes) * f64::from(passes);
        if time >= round_time.as_nanos() as f64 {
            return passes;
        }
        passes *= 2;
    }
}

/// The time of a pass, in nanoseconds.
fn time(contestant: &mut Contestant, passes: u32) -> f64 {
    let start = clock::now();
    for _ in 0..passes {
        contestant.work.pass();
    }
    (clock::now() - start).as_nanos() as f64 / f64::from(passes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contestant_that_fails_its_check_stops_the_race() {
        struct Liar;
        impl Work for Liar {
            fn pass(&mut self) {}
            fn check(&mut self) -> Result<(), String> {
                Err("a wrong result".into())
            }
        }
        let contestants = vec![Contestant::new("liar", Role::Rival, Liar)];
        let race =
            Race { workload: "w0", title: "race".into(), targets: Vec::new(), messages: 1, contestants };
        assert_eq!(race.run(Effort::SMOKE, |_| ()).err().as_deref(), Some("race, liar: a wrong result"));
    }

    #[test]
    fn every_round_has_every_turn_once() {
        for round in 0..10 {
            let mut order: Vec<_> = turns(round, 5).collect();
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2, 3, 4]);
        }
        assert_eq!(turns(0, 3).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(turns(1, 3).collect::<Vec<_>>(), [2, 1, 0]);
        assert_eq!(turns(2, 3).collect::<Vec<_>>(), [1, 2, 0]);
    }
}
