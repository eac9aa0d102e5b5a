//! When to look for callers that have given up among those that wait.

/// No list is swept below this number of elements.
const ELEMENTS_MIN: usize = 16;

/// A list is swept once it is twice as long as after the sweep before: a new element costs the same, however many there are, and at most
/// half of a long list is of callers that have gone.
#[derive(Default)]
pub(super) struct Sweep {
    due_at: usize,
}

impl Sweep {
    /// Sweeps a list of this length if that is due. `sweep` returns the length that is left.
    pub(super) fn run(&mut self, len: usize, sweep: impl FnOnce() -> usize) {
        if len >= self.due_at.max(ELEMENTS_MIN) {
            self.due_at = 2 * sweep();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_costs_the_same_however_many_there_are() {
        const COUNT: usize = 100_000;
        let (mut list, mut sweep, mut visited) = (Vec::new(), Sweep::default(), 0);
        for n in 0..COUNT {
            sweep.run(list.len(), || {
                visited += list.len();
                list.len()
            });
            list.push(n);
        }
        assert!(visited < 2 * COUNT, "{visited}");
    }

    #[test]
    fn a_list_is_at_most_twice_as_long_as_it_need_be() {
        for kept in [0, ELEMENTS_MIN / 2 - 1, ELEMENTS_MIN / 2, ELEMENTS_MIN / 2 + 1, 10 * ELEMENTS_MIN] {
            let (mut list, mut sweep) = (Vec::new(), Sweep::default());
            for n in 0..1_000 * ELEMENTS_MIN {
                sweep.run(list.len(), || {
                    list.retain(|n| *n < kept);
                    list.len()
                });
                list.push(n);
                assert!(list.len() <= (2 * kept).max(ELEMENTS_MIN), "{} {kept}", list.len());
            }
        }
    }
}
