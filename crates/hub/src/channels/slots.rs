//! Values by keys that stay valid, for the subscribers of a channel.
//!
//! A walk takes as many steps as there are values, however many were removed: vacant places beside each other are one gap, which it passes
//! in one step.
//!
//! ```text
//! places  [ a, b, -, -, -, c, -, d ]
//! gaps          2: 3,         6: 1
//! ```

use std::collections::BTreeMap;
use std::ops::Range;

/// See the module.
#[derive(Debug)]
pub(super) struct Slots<T> {
    /// By key. The last one is not vacant.
    places: Vec<Option<T>>,
    /// The numbers of vacant places, by the first of them. No two gaps are beside each other.
    gaps: BTreeMap<usize, usize>,
    len: usize,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { places: Vec::new(), gaps: BTreeMap::new(), len: 0 }
    }
}

impl<T> Slots<T> {
    /// The number of values.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// All keys are below this.
    pub(super) fn keys_end(&self) -> usize {
        self.places.len()
    }

    pub(super) fn get(&self, key: usize) -> Option<&T> {
        self.places.get(key)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, key: usize) -> Option<&mut T> {
        self.places.get_mut(key)?.as_mut()
    }

    /// Adds a value, and returns its key.
    pub(super) fn insert(&mut self, value: T) -> usize {
        self.len += 1;
        // The first vacant place, so that those at the end are given back.
        let Some((key, vacant)) = self.gaps.pop_first() else {
            if self.places.is_empty() {
                // Many channels have one subscriber: a vector would begin with four places.
                self.places.reserve_exact(1);
            }
            self.places.push(Some(value));
            return self.places.len() - 1;
        };
        if vacant > 1 {
            self.gaps.insert(key + 1, vacant - 1);
        }
        self.places[key] = Some(value);
        key
    }

    /// Removes a value, if it is there.
    pub(super) fn remove(&mut self, key: usize) -> Option<T> {
        let removed = self.places.get_mut(key)?.take()?;
        self.len -= 1;
        let before = self.gaps.range(..key).next_back().filter(|(first, len)| *first + *len == key);
        let (first, mut end) = (before.map_or(key, |(first, _)| *first), key + 1);
        end += self.gaps.remove(&end).unwrap_or(0);
        if end < self.places.len() {
            self.gaps.insert(first, end - first);
            return Some(removed);
        }
        self.gaps.remove(&first);
        self.places.truncate(first);
        if first < self.places.capacity() / 4 {
            self.places.shrink_to(2 * first);
        }
        Some(removed)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        ranges(&self.gaps, self.places.len()).flat_map(|keys| &self.places[keys]).flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let (keys, mut rest, mut passed) = (ranges(&self.gaps, self.places.len()), &mut self.places[..], 0);
        let walked = keys.flat_map(move |keys| {
            let (places, after) = std::mem::take(&mut rest).split_at_mut(keys.end - passed);
            let gap = keys.start - passed;
            (rest, passed) = (after, keys.end);
            &mut places[gap..]
        });
        walked.flatten()
    }
}

/// The keys of the values between gaps.
fn ranges(gaps: &BTreeMap<usize, usize>, end: usize) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    let gaps = gaps.iter().map(|(first, len)| *first..first + len).chain(std::iter::once(end..end));
    gaps.map(move |gap| std::mem::replace(&mut start, gap.end)..gap.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl<T> Slots<T> {
        /// The steps of a walk: one for each range, and one for each place in it.
        fn steps(&self) -> usize {
            ranges(&self.gaps, self.places.len()).map(|keys| 1 + keys.len()).sum()
        }
    }

    #[test]
    fn a_walk_takes_few_steps_after_many_have_left() {
        const COUNT: usize = 100_000;
        let mut slots = Slots::default();
        for value in 0..COUNT {
            slots.insert(value);
        }
        // The last one stays, then the first one.
        for key in 0..COUNT - 1 {
            slots.remove(key);
        }
        assert_eq!((slots.iter().count(), slots.steps()), (1, 3));
        slots.insert(0);
        slots.remove(COUNT - 1);
        assert_eq!((slots.iter().count(), slots.steps()), (1, 2));
        assert!(slots.places.capacity() < COUNT / 2, "the last ones leave no memory behind");
    }

    #[test]
    fn agrees_with_a_map() {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut slots, mut map) = (Slots::default(), BTreeMap::new());
            for step in 0..300 {
                // It grows first, and shrinks then.
                if rng.usize(..300) > step {
                    let key = slots.insert(step);
                    assert_eq!(map.insert(key, step), None, "{seed}");
                } else {
                    let key = rng.usize(..slots.keys_end() + 2);
                    assert_eq!(slots.remove(key), map.remove(&key), "{seed}");
                }
                assert!(slots.iter().eq(map.values()) && slots.iter_mut().eq(map.values_mut()), "{seed}");
                assert_eq!(
                    (slots.len(), slots.keys_end()),
                    (map.len(), map.keys().last().map_or(0, |key| key + 1))
                );
                assert!((0..slots.keys_end() + 1).all(|key| slots.get(key) == map.get(&key)), "{seed}");
                assert!(slots.steps() <= 2 * slots.len() + 1, "{seed}");
            }
        }
    }
}
