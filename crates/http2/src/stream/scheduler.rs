//! [`Scheduler`] chooses the stream that sends DATA next: by urgency (RFC 9218), then fairly between equal streams.
//!
//! It has a list of ready streams for each priority, and a list of streams with DATA but no window. The records are the links of the
//! lists (`prev`, `next`), and a bitmap shows which lists of ready streams are not empty: every operation is O(1).
//!
//! ```text
//! bitmap   ..10 00 01   bit 2u: urgency u, one at a time, by identifier; bit 2u+1: urgency u, incremental, in turns
//!            |      `-> [slot]<->[slot]<->[slot]
//!            `--------> [slot]<->[slot]
//! ```
//!
//! The most urgent list is served first (RFC 9218 §10). Within one urgency, non-incremental streams are sent one after the other
//! in the order of their identifiers, and incremental ones in turns, frame by frame. If there are both, the two groups alternate,
//! so that neither starves. Streams without a priority signal are incremental ([`Priority::UNSIGNALLED`]), and so are tunnels, which
//! have no end that others could wait for (RFC 9218 §11). A turn is one DATA frame.

use super::{List as Membership, NONE, Slab};
use crate::priority::Priority;

/// The maximum number of steps to find the position of a stream in its list. The order by identifier, which RFC 9218 §10 only
/// recommends, is exact in ordinary cases. The bound limits the work that a peer can cause.
const PLACE_STEPS_MAX: usize = 16;

#[derive(Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
}

impl List {
    const EMPTY: Self = Self { head: NONE, tail: NONE };

    /// Inserts `slot` after `prev`, or at the front if that is `NONE`.
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

/// The lists. A stream is in at most one, which `Stream::list` identifies.
pub(crate) struct Scheduler {
    ready: [List; 16],
    blocked: List,
    /// Bit n: `ready[n]` is not empty.
    bitmap: u16,
    /// By urgency: whether the incremental group has the next turn.
    incremental_next: [bool; 8],
}

impl Scheduler {
    pub(crate) const fn new() -> Self {
        Self { ready: [List::EMPTY; 16], blocked: List::EMPTY, bitmap: 0, incremental_next: [false; 8] }
    }

    /// Whether no stream is ready.
    #[inline]
    pub(crate) const fn is_idle(&self) -> bool {
        self.bitmap == 0
    }

    /// Adds a stream that has DATA.
    pub(crate) fn add_ready(&mut self, slab: &mut Slab, slot: u32) {
        debug_assert!(slab.get(slot).list == Membership::None);
        let (id, priority) = {
            let stream = slab.get(slot);
            (stream.id, stream.priority())
        };
        let list = &mut self.ready[priority.index()];
        let mut prev = list.tail;
        if !priority.incremental {
            for _ in 0..PLACE_STEPS_MAX {
                if prev == NONE || slab.get(prev).id < id {
                    break;
                }
                prev = slab.get(prev).prev;
            }
        }
        list.insert_after(slab, prev, slot);
        slab.get_mut(slot).list = Membership::Ready;
        self.bitmap |= 1 << priority.index();
    }

    /// Adds a stream that has DATA but no window.
    pub(crate) fn add_blocked(&mut self, slab: &mut Slab, slot: u32) {
        debug_assert!(slab.get(slot).list == Membership::None);
        let tail = self.blocked.tail;
        self.blocked.insert_after(slab, tail, slot);
        slab.get_mut(slot).list = Membership::Blocked;
    }

    /// Removes a stream from its list, if it is in one.
    #[inline]
    pub(crate) fn remove(&mut self, slab: &mut Slab, slot: u32) {
        let (list, index) = {
            let stream = slab.get(slot);
            (stream.list, stream.priority().index())
        };
        match list {
            Membership::None => return,
            Membership::Ready => {
                self.ready[index].unlink(slab, slot);
                if self.ready[index].head == NONE {
                    self.bitmap &= !(1 << index);
                }
            }
            Membership::Blocked => self.blocked.unlink(slab, slot),
        }
        slab.get_mut(slot).list = Membership::None;
    }

    /// The stream that sends next.
    #[inline]
    pub(crate) fn next(&self) -> Option<u32> {
        if self.bitmap == 0 {
            return None;
        }
        let urgency = self.bitmap.trailing_zeros() / 2;
        let pair = self.bitmap >> (2 * urgency) & 0b11;
        let incremental = pair == 0b10 || (pair == 0b11 && self.incremental_next[urgency as usize]);
        Some(self.ready[(2 * urgency) as usize + usize::from(incremental)].head)
    }

    /// Gives the next turn to the other group of the same urgency, after a stream of this priority has sent a frame. The frame may have
    /// been its last: a group of many short streams is no reason for the other to wait.
    #[inline]
    pub(crate) fn pass_turn(&mut self, priority: Priority) {
        self.incremental_next[priority.index() / 2] = !priority.incremental;
    }

    /// Puts an incremental stream that has sent a frame, and is still ready, behind the others of its list. `priority` is that of the stream.
    #[inline]
    pub(crate) fn rotate(&mut self, slab: &mut Slab, slot: u32, priority: Priority) {
        let list = &mut self.ready[priority.index()];
        if priority.incremental && list.tail != slot {
            list.unlink(slab, slot);
            let tail = list.tail;
            list.insert_after(slab, tail, slot);
        }
    }

    /// Changes the priority of a stream, in whichever list it is.
    pub(crate) fn set_priority(&mut self, slab: &mut Slab, slot: u32, priority: Priority) {
        if slab.get(slot).priority() == priority {
            return;
        }
        let was_ready = slab.get(slot).list == Membership::Ready;
        if was_ready {
            self.remove(slab, slot);
        }
        slab.get_mut(slot).set_priority(priority);
        if was_ready {
            self.add_ready(slab, slot);
        }
    }

    /// The first blocked stream.
    #[inline]
    pub(crate) const fn first_blocked(&self) -> Option<u32> {
        if self.blocked.head == NONE { None } else { Some(self.blocked.head) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RecvPhase, SendPhase, Stream};
    use super::*;
    use crate::frame::StreamId;
    use alloc::vec;
    use alloc::vec::Vec;
    use wireloom_testing::{Rng, rounds};

    fn slab_of(priorities: &[(u32, u8, bool)]) -> (Slab, Vec<u32>) {
        let mut slab = Slab::new(1);
        let slots = priorities
            .iter()
            .map(|&(id, urgency, incremental)| {
                let id = StreamId::new(id).unwrap();
                let mut stream = Stream::new(id, RecvPhase::Content, SendPhase::Content);
                stream.set_priority(Priority { urgency, incremental });
                slab.insert(stream)
            })
            .collect();
        (slab, slots)
    }

    fn serve(scheduler: &mut Scheduler, slab: &mut Slab, frames: usize) -> Vec<u32> {
        let mut order = vec![];
        for _ in 0..frames {
            let Some(slot) = scheduler.next() else { break };
            order.push(slab.get(slot).id.get());
            let priority = slab.get(slot).priority();
            scheduler.pass_turn(priority);
            scheduler.rotate(slab, slot, priority);
        }
        order
    }

    #[test]
    fn urgent_streams_are_sent_first() {
        let (mut slab, slots) = slab_of(&[(1, 7, false), (3, 0, true), (5, 3, false)]);
        let mut scheduler = Scheduler::new();
        slots.iter().for_each(|&slot| scheduler.add_ready(&mut slab, slot));
        let mut order = vec![];
        while let Some(slot) = scheduler.next() {
            order.push(slab.get(slot).id.get());
            scheduler.remove(&mut slab, slot);
        }
        assert_eq!(order, [3, 5, 1]);
        assert!(scheduler.is_idle());
    }

    #[test]
    fn streams_of_equal_urgency_are_sent_in_order_or_in_turns() {
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
    fn incremental_and_other_streams_of_one_urgency_alternate() {
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
        scheduler.set_priority(&mut slab, slots[1], Priority { urgency: 1, incremental: false });
        assert_eq!(scheduler.next(), Some(slots[1]));
        scheduler.set_priority(&mut slab, slots[1], Priority { urgency: 5, incremental: true });
        assert_eq!(scheduler.next(), Some(slots[0]));
        scheduler.remove(&mut slab, slots[0]);
        assert_eq!(scheduler.next(), Some(slots[1]));
    }

    #[test]
    fn lists_and_bitmap_agree_over_random_operations() {
        rounds(4, random_operations);
    }

    fn random_operations(random: &mut Rng) {
        let all: Vec<_> = (0..40).map(|n| (1 + 2 * n, random.u8(..8), random.bool())).collect();
        let (mut slab, slots) = slab_of(&all);
        let mut scheduler = Scheduler::new();
        for _ in 0..6_000 {
            let slot = slots[random.usize(..slots.len())];
            match random.u32(..6) {
                0 => scheduler.remove(&mut slab, slot),
                1 => {
                    let priority = Priority { urgency: random.u8(..8), incremental: random.bool() };
                    scheduler.set_priority(&mut slab, slot, priority);
                }
                2 => {
                    if let Some(slot) = scheduler.next() {
                        let priority = slab.get(slot).priority();
                        scheduler.rotate(&mut slab, slot, priority);
                    }
                }
                kind => {
                    scheduler.remove(&mut slab, slot);
                    match kind {
                        3 => scheduler.add_ready(&mut slab, slot),
                        _ => scheduler.add_blocked(&mut slab, slot),
                    }
                }
            }
            let mut seen = 0;
            let lists = scheduler.ready.iter().chain([&scheduler.blocked]);
            for (index, list) in lists.enumerate() {
                let (mut at, mut prev) = (list.head, NONE);
                while at != NONE {
                    let stream = slab.get(at);
                    assert_eq!(stream.prev, prev);
                    match index {
                        0..16 => {
                            assert!(stream.list == Membership::Ready && stream.priority().index() == index)
                        }
                        _ => assert!(stream.list == Membership::Blocked),
                    }
                    (prev, at) = (at, stream.next);
                    seen += 1;
                }
                assert_eq!(list.tail, prev);
                if index < 16 {
                    assert_eq!(scheduler.bitmap >> index & 1 == 1, list.head != NONE);
                }
            }
            let flagged = slots.iter().filter(|&&slot| slab.get(slot).list != Membership::None).count();
            assert_eq!(seen, flagged);
        }
    }
}
