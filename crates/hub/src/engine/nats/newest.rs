//! Finds where the newest messages of a subject begin. A stream is read forwards only, but the server counts a subject's messages from a
//! sequence on, and the search uses these counts. No I/O.

/// The maximum number of questions of a search. After them, more is read than needed.
const QUESTIONS_MAX: usize = 12;

/// A search for a sequence from which on a subject has about `limit` messages.
#[derive(Debug)]
pub(super) struct Search {
    limit: u64,
    /// This many more may be read, instead of more questions.
    spare: u64,
    /// From this sequence on there are `low_count` messages: enough.
    low: u64,
    low_count: u64,
    /// From this sequence on there are `high_count` messages: too few.
    high: u64,
    high_count: u64,
    questions: usize,
}

impl Search {
    /// Between the first message, from which on there are `count` messages before the sequence `before`, and `before`.
    pub(super) fn new(first: u64, count: u64, before: u64, limit: u64) -> Self {
        Self {
            limit,
            spare: limit / 2 + 64,
            low: first,
            low_count: count,
            high: before,
            high_count: 0,
            questions: 0,
        }
    }

    /// Whether reading everything is not much more than what is wanted.
    pub(super) fn is_close(limit: u64, count: u64) -> bool {
        count <= limit.saturating_add(limit / 2 + 64)
    }

    /// The next sequence to ask about: how many messages are from there on, before `before`? `None` at the end of the search.
    pub(super) fn poll_question(&mut self) -> Option<u64> {
        let is_close = self.low_count <= self.limit + self.spare;
        if is_close || self.high.saturating_sub(self.low) < 2 || self.questions == QUESTIONS_MAX {
            return None;
        }
        let distance = self.high - self.low;
        // Channels of a stream may be busy at different times: every second question halves.
        let guess = if self.questions.is_multiple_of(2) {
            let wanted = (self.limit + self.spare / 2).saturating_sub(self.high_count);
            let found = (self.low_count - self.high_count).max(1);
            u64::try_from(u128::from(distance) * u128::from(wanted) / u128::from(found)).unwrap_or(distance)
        } else {
            distance / 2
        };
        self.questions += 1;
        Some(self.high - guess.clamp(1, distance - 1))
    }

    /// The answer to a question.
    pub(super) fn handle_count(&mut self, at: u64, count: u64) {
        if count < self.limit {
            (self.high, self.high_count) = (at, count);
        } else {
            (self.low, self.low_count) = (at, count);
        }
    }

    /// Where to begin to read.
    pub(super) fn begin(&self) -> u64 {
        self.low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_messages_are_found_by_few_questions() {
        for (round, mut rng) in wireloom_testing::rng::generators(500).enumerate() {
            // Evenly, or in bursts with long pauses.
            let gap = [1, 50, 100_000][round % 3];
            let mut at = 0;
            let messages: Vec<u64> = (0..rng.usize(1..3_000))
                .map(|_| {
                    at += 1 + if rng.u8(..) < 8 { rng.u64(0..gap * 100) } else { rng.u64(0..gap) };
                    at
                })
                .collect();
            let before = if rng.bool() { at + 1 } else { rng.u64(messages[0] + 1..at + 10) };
            let from = |at: u64| messages.iter().filter(|one| **one >= at && **one < before).count() as u64;
            let (limit, all) = (rng.u64(1..1_000), from(0));
            let mut search = Search::new(messages[0], all, before, limit);
            while let Some(at) = search.poll_question() {
                assert!(at > messages[0] && at < before);
                search.handle_count(at, from(at));
            }
            let read = from(search.begin());
            assert!(read >= all.min(limit), "{read} of {limit} of {all}");
            if search.questions < QUESTIONS_MAX {
                assert!(Search::is_close(limit, read), "{read} for {limit}");
            }
        }
    }
}
