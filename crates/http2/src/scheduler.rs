//! Who sends DATA next: RFC 9218 urgency, then fairness between equals.
//!
//! Owns the lists of streams that have DATA: ready ones by priority, those without window, and the requests that wait
//! for SETTINGS_MAX_CONCURRENT_STREAMS. Lists run through the records (`prev`, `next`), a bitmap says which are not
//! empty: every operation is O(1).
//!
//! ```text
//! bitmap   ..10 00 01   bit 2u: urgency u, one at a time, by identifier; bit 2u+1: urgency u, incremental, in turns
//!            |      `-> [slot]<->[slot]<->[slot]
//!            `--------> [slot]<->[slot]
//! ```
//!
//! The most urgent list is served first (RFC 9218 §10). Within one urgency, streams that are not incremental are sent one
//! after the other in the order of their identifiers, incremental ones share, and when there are both the two
//! groups alternate frame by frame, so that neither starves.

use crate::stream::{NONE, Priority, Slab, flag};

/// How far back a stream that became ready late looks for its place among older ones. Order by identifier is exact
/// in all ordinary cases; the bound keeps a peer from making the search long (RFC 9218 §10 only recommends).
const PLACE_STEPS_MAX: usize = 16;

#[derive(Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
}

impl List {
    const EMPTY: Self = Self { head: NONE, tail: NONE };

    /// Puts `slot` behind `prev`, in front when that is `NONE`.
    #[inline]
    fn insert_after(&mut self, slab: &mut Slab, prev: u32, slot: u32) {
        let next = if prev == NONE { self.head } else { slab.get(prev).next };
        let stream = slab.get_mut(slot);
        stream.prev = prev;
        stream.next = next;
        if prev == NONE {
            self.head = slot;
        } else {
            slab.get_mut(prev).next = slot;
        }
        if next == NONE {
            self.tail = slot;
        } else {
            slab.get_mut(next).prev = slot;
        }
    }

    #[inline]
    fn unlink(&mut self, slab: &mut Slab, slot: u32) {
        let (prev, next) = {
            let stream = slab.get(slot);
            (stream.prev, stream.next)
        };
        if prev == NONE {
            self.head = next;
        } else {
            slab.get_mut(prev).next = next;
        }
        if next == NONE {
            self.tail = prev;
        } else {
            slab.get_mut(next).prev = prev;
        }
    }
}

/// The lists. A stream is in at most one, which its flags name.
pub(crate) struct Scheduler {
    ready: [List; 16],
    blocked: List,
    opening: List,
    /// Bit n: `ready[n]` is not empty.
    bitmap: u16,
    /// Bit u: within urgency u it is the incremental group's turn.
    turns: u8,
}

impl Scheduler {
    pub(crate) const fn new() -> Self {
        Self { ready: [List::EMPTY; 16], blocked: List::EMPTY, opening: List::EMPTY, bitmap: 0, turns: 0 }
    }

    /// Whether no stream is ready.
    #[inline]
    pub(crate) const fn is_idle(&self) -> bool {
        self.bitmap == 0
    }

    /// A stream has DATA and window.
    pub(crate) fn add_ready(&mut self, slab: &mut Slab, slot: u32) {
        debug_assert!(!slab.get(slot).has(flag::IN_LIST));
        let (id, priority) = {
            let stream = slab.get(slot);
            (stream.id, stream.priority)
        };
        let list = &mut self.ready[priority.index()];
        let mut prev = list.tail;
        if !priority.is_incremental() {
            for _ in 0..PLACE_STEPS_MAX {
                if prev == NONE || slab.get(prev).id < id {
                    break;
                }
                prev = slab.get(prev).prev;
            }
        }
        list.insert_after(slab, prev, slot);
        slab.get_mut(slot).set(flag::IN_READY);
        self.bitmap |= 1 << priority.index();
    }

    /// A stream has DATA and no window. One that comes back with an older clock goes to the front.
    pub(crate) fn add_blocked(&mut self, slab: &mut Slab, slot: u32, in_front: bool) {
        debug_assert!(!slab.get(slot).has(flag::IN_LIST));
        let prev = if in_front { NONE } else { self.blocked.tail };
        self.blocked.insert_after(slab, prev, slot);
        slab.get_mut(slot).set(flag::IN_BLOCKED);
    }

    /// A request waits for its turn to open.
    pub(crate) fn add_opening(&mut self, slab: &mut Slab, slot: u32) {
        debug_assert!(!slab.get(slot).has(flag::IN_LIST));
        let tail = self.opening.tail;
        self.opening.insert_after(slab, tail, slot);
        slab.get_mut(slot).set(flag::IN_OPENING);
    }

    /// Takes a stream out of the list it is in, if any.
    #[inline]
    pub(crate) fn remove(&mut self, slab: &mut Slab, slot: u32) {
        let (flags, index) = {
            let stream = slab.get(slot);
            (stream.flags, stream.priority.index())
        };
        if flags & flag::IN_LIST == 0 {
            return;
        }
        if flags & flag::IN_READY != 0 {
            self.ready[index].unlink(slab, slot);
            if self.ready[index].head == NONE {
                self.bitmap &= !(1 << index);
            }
        } else if flags & flag::IN_BLOCKED != 0 {
            self.blocked.unlink(slab, slot);
        } else {
            self.opening.unlink(slab, slot);
        }
        slab.get_mut(slot).clear(flag::IN_LIST);
    }

    /// The stream whose turn it is.
    #[inline]
    pub(crate) fn next(&self) -> Option<u32> {
        if self.bitmap == 0 {
            return None;
        }
        let urgency = self.bitmap.trailing_zeros() / 2;
        let pair = self.bitmap >> (2 * urgency) & 0b11;
        let incremental = pair == 0b10 || (pair == 0b11 && self.turns >> urgency & 1 != 0);
        Some(self.ready[(2 * urgency) as usize + usize::from(incremental)].head)
    }

    /// The stream sent one frame and has more: equals take their turn.
    #[inline]
    pub(crate) fn rotate(&mut self, slab: &mut Slab, slot: u32) {
        let priority = slab.get(slot).priority;
        let turn = 1 << priority.urgency();
        if !priority.is_incremental() {
            self.turns |= turn;
            return;
        }
        self.turns &= !turn;
        let list = &mut self.ready[priority.index()];
        if list.tail != slot {
            list.unlink(slab, slot);
            let tail = list.tail;
            list.insert_after(slab, tail, slot);
        }
    }

    /// Changes the priority, wherever the stream is.
    pub(crate) fn set_priority(&mut self, slab: &mut Slab, slot: u32, priority: Priority) {
        if slab.get(slot).priority == priority {
            return;
        }
        let was_ready = slab.get(slot).has(flag::IN_READY);
        if was_ready {
            self.remove(slab, slot);
        }
        slab.get_mut(slot).priority = priority;
        if was_ready {
            self.add_ready(slab, slot);
        }
    }

    /// The stream that has waited for window the shortest.
    #[inline]
    pub(crate) const fn last_blocked(&self) -> Option<u32> {
        if self.blocked.tail == NONE { None } else { Some(self.blocked.tail) }
    }

    /// The stream that has waited for window the longest.
    #[inline]
    pub(crate) const fn first_blocked(&self) -> Option<u32> {
        if self.blocked.head == NONE { None } else { Some(self.blocked.head) }
    }

    /// The first request that waits to open.
    #[inline]
    pub(crate) const fn first_opening(&self) -> Option<u32> {
        if self.opening.head == NONE { None } else { Some(self.opening.head) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{State, Stream};
    use alloc::vec;
    use alloc::vec::Vec;

    fn slab_of(priorities: &[(u32, u8, bool)]) -> (Slab, Vec<u32>) {
        let mut slab = Slab::new(1);
        let slots = priorities
            .iter()
            .map(|&(id, urgency, incremental)| {
                let mut stream = Stream::new(id, State::Open, 0);
                stream.priority = Priority::new(urgency, incremental);
                slab.insert(stream)
            })
            .collect();
        (slab, slots)
    }

    fn serve(scheduler: &mut Scheduler, slab: &mut Slab, frames: usize) -> Vec<u32> {
        let mut order = vec![];
        for _ in 0..frames {
            let Some(slot) = scheduler.next() else { break };
            order.push(slab.get(slot).id);
            scheduler.rotate(slab, slot);
        }
        order
    }

    #[test]
    fn urgent_streams_go_first() {
        let (mut slab, slots) = slab_of(&[(1, 7, false), (3, 0, true), (5, 3, false)]);
        let mut scheduler = Scheduler::new();
        slots.iter().for_each(|&slot| scheduler.add_ready(&mut slab, slot));
        let mut order = vec![];
        while let Some(slot) = scheduler.next() {
            order.push(slab.get(slot).id);
            scheduler.remove(&mut slab, slot);
        }
        assert_eq!(order, [3, 5, 1]);
        assert!(scheduler.is_idle());
    }

    #[test]
    fn equals_are_served_one_by_one_or_in_turns() {
        let (mut slab, slots) = slab_of(&[(5, 3, false), (1, 3, false), (3, 3, false)]);
        let mut scheduler = Scheduler::new();
        slots.iter().for_each(|&slot| scheduler.add_ready(&mut slab, slot));
        assert_eq!(serve(&mut scheduler, &mut slab, 3), [1, 1, 1]);
        scheduler.remove(&mut slab, slots[1]);
        assert_eq!(serve(&mut scheduler, &mut slab, 2), [3, 3]);

        let (mut slab, slots) = slab_of(&[(1, 3, true), (3, 3, true), (5, 3, true)]);
        let mut scheduler = Scheduler::new();
        slots.iter().for_each(|&slot| scheduler.add_ready(&mut slab, slot));
        assert_eq!(serve(&mut scheduler, &mut slab, 7), [1, 3, 5, 1, 3, 5, 1]);
    }

    #[test]
    fn both_kinds_of_one_urgency_alternate() {
        let (mut slab, slots) = slab_of(&[(1, 3, false), (3, 3, true), (5, 3, true), (7, 3, false)]);
        let mut scheduler = Scheduler::new();
        slots.iter().for_each(|&slot| scheduler.add_ready(&mut slab, slot));
        assert_eq!(serve(&mut scheduler, &mut slab, 6), [1, 3, 1, 5, 1, 3]);
    }

    #[test]
    fn a_new_priority_moves_a_waiting_stream() {
        let (mut slab, slots) = slab_of(&[(1, 3, false), (3, 3, false)]);
        let mut scheduler = Scheduler::new();
        slots.iter().for_each(|&slot| scheduler.add_ready(&mut slab, slot));
        scheduler.set_priority(&mut slab, slots[1], Priority::new(1, false));
        assert_eq!(scheduler.next(), Some(slots[1]));
        scheduler.set_priority(&mut slab, slots[1], Priority::new(5, true));
        assert_eq!(scheduler.next(), Some(slots[0]));
        scheduler.remove(&mut slab, slots[0]);
        assert_eq!(scheduler.next(), Some(slots[1]));
    }

    #[test]
    fn lists_and_bitmap_agree_over_random_operations() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let all: Vec<_> = (0..40).map(|n| (1 + 2 * n, random.u8(..8), random.bool())).collect();
        let (mut slab, slots) = slab_of(&all);
        let mut scheduler = Scheduler::new();
        for _ in 0..20_000 {
            let slot = slots[random.usize(..slots.len())];
            match random.u32(..6) {
                0 => scheduler.remove(&mut slab, slot),
                1 => {
                    let priority = Priority::new(random.u8(..8), random.bool());
                    scheduler.set_priority(&mut slab, slot, priority);
                }
                2 => {
                    if let Some(slot) = scheduler.next() {
                        scheduler.rotate(&mut slab, slot);
                    }
                }
                kind => {
                    scheduler.remove(&mut slab, slot);
                    match kind {
                        3 => scheduler.add_ready(&mut slab, slot),
                        4 => scheduler.add_blocked(&mut slab, slot, random.bool()),
                        _ => scheduler.add_opening(&mut slab, slot),
                    }
                }
            }
            let mut seen = 0;
            let lists = scheduler.ready.iter().chain([&scheduler.blocked, &scheduler.opening]);
            for (index, list) in lists.enumerate() {
                let (mut at, mut prev) = (list.head, NONE);
                while at != NONE {
                    let stream = slab.get(at);
                    assert_eq!(stream.prev, prev, "seed {seed}");
                    match index {
                        0..16 => assert!(stream.has(flag::IN_READY) && stream.priority.index() == index),
                        16 => assert!(stream.has(flag::IN_BLOCKED)),
                        _ => assert!(stream.has(flag::IN_OPENING)),
                    }
                    (prev, at) = (at, stream.next);
                    seen += 1;
                }
                assert_eq!(list.tail, prev, "seed {seed}");
                if index < 16 {
                    assert_eq!(scheduler.bitmap >> index & 1 == 1, list.head != NONE, "seed {seed}");
                }
            }
            let flagged = slots.iter().filter(|&&slot| slab.get(slot).has(flag::IN_LIST)).count();
            assert_eq!(seen, flagged, "seed {seed}");
        }
    }
}
