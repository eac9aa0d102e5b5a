//! The messages of a send queue in their order. Adding one, taking the first and dropping the oldest droppable one take constant time.

use std::collections::VecDeque;

use wireloom::PreparedMessage;

/// Messages in their order. One is in place: most clients wait for one at a time, and hold nothing more while they are idle.
#[derive(Debug, Default)]
pub(super) struct Messages {
    first: Option<Waiting>,
    /// Those after the first; empty if there is no first. Boxed, because most clients have none.
    rest: Option<Box<Rest>>,
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) message: PreparedMessage,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Part of the answer to a command.
    Reply,
    Push,
    /// A push that is dropped where that is the policy for slow clients.
    Droppable,
}

/// Messages by what may happen to them, so that the oldest droppable one is found at once. Numbers give the order of all.
#[derive(Debug, Default)]
struct Rest {
    kept: VecDeque<(u64, Waiting)>,
    droppable: VecDeque<(u64, Waiting)>,
    /// The number of the next one.
    next: u64,
}

impl Rest {
    fn push(&mut self, waiting: Waiting) {
        let queue = if waiting.kind == Kind::Droppable { &mut self.droppable } else { &mut self.kept };
        queue.push_back((self.next, waiting));
        self.next += 1;
    }

    fn pop(&mut self) -> Option<Waiting> {
        let queue = match (self.kept.front(), self.droppable.front()) {
            (Some((kept, _)), Some((droppable, _))) if droppable < kept => &mut self.droppable,
            (None, _) => &mut self.droppable,
            (Some(_), _) => &mut self.kept,
        };
        queue.pop_front().map(|(_, waiting)| waiting)
    }

    fn iter(&self) -> impl Iterator<Item = &Waiting> {
        let (mut kept, mut droppable) = (self.kept.iter().peekable(), self.droppable.iter().peekable());
        std::iter::from_fn(move || {
            let next = match (kept.peek(), droppable.peek()) {
                (Some((one, _)), Some((other, _))) if other < one => droppable.next(),
                (None, _) => droppable.next(),
                (Some(_), _) => kept.next(),
            };
            next.map(|(_, waiting)| waiting)
        })
    }
}

impl Messages {
    pub(super) fn len(&self) -> usize {
        let rest = self.rest.as_ref().map_or(0, |rest| rest.kept.len() + rest.droppable.len());
        usize::from(self.first.is_some()) + rest
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) fn capacity(&self) -> usize {
        self.rest.as_ref().map_or(0, |rest| rest.kept.capacity() + rest.droppable.capacity())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.first.iter().chain(self.rest.iter().flat_map(|rest| rest.iter()))
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        match self.first {
            None => self.first = Some(waiting),
            Some(_) => self.rest.get_or_insert_default().push(waiting),
        }
    }

    /// Takes the first one.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let next = self.rest.as_mut().and_then(|rest| rest.pop());
        std::mem::replace(&mut self.first, next)
    }

    /// Takes the oldest droppable one.
    pub(super) fn remove_droppable(&mut self) -> Option<Waiting> {
        if self.first.as_ref()?.kind == Kind::Droppable {
            return self.pop();
        }
        self.rest.as_mut()?.droppable.pop_front().map(|(_, waiting)| waiting)
    }

    /// Takes all but the first `at`.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        let mut after = std::mem::take(self);
        if after.len() <= at {
            return std::mem::replace(self, after);
        }
        for _ in 0..at {
            after.pop().into_iter().for_each(|waiting| self.push(waiting));
        }
        after
    }

    /// Moves all of `other` behind these.
    pub(super) fn append(&mut self, other: &mut Self) {
        while let Some(waiting) = other.pop() {
            self.push(waiting);
        }
    }

    pub(super) fn clear(&mut self) {
        self.first = None;
        if let Some(rest) = &mut self.rest {
            rest.kept.clear();
            rest.droppable.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_order() {
        // What an idle client holds.
        assert_eq!(size_of::<Messages>(), 24);
        let text_of = |one: &Waiting| one.message.as_text().unwrap().to_owned();
        let texts = |messages: &Messages| messages.iter().map(text_of).collect::<Vec<_>>();
        // Those with odd numbers may be dropped.
        let numbered = |numbers: std::ops::Range<usize>| {
            let mut messages = Messages::default();
            for number in numbers {
                let kind = if number % 2 == 1 { Kind::Droppable } else { Kind::Push };
                messages.push(Waiting { message: PreparedMessage::text(&number.to_string()), kind });
            }
            messages
        };
        for len in 0..5 {
            let all: Vec<_> = (0..len).map(|number| number.to_string()).collect();
            for at in 0..=len {
                let mut before = numbered(0..len);
                let mut after = before.split_off(at);
                assert_eq!((texts(&before), texts(&after)), (all[..at].to_vec(), all[at..].to_vec()));
                assert_eq!((before.len(), after.is_empty()), (at, at == len));
                before.append(&mut after);
                assert_eq!((texts(&before), after.len()), (all.clone(), 0));
                let mut rest = numbered(at..len);
                let dropped = std::iter::from_fn(|| rest.remove_droppable().as_ref().map(text_of));
                assert!(
                    dropped.eq((at..len).filter(|number| number % 2 == 1).map(|number| number.to_string()))
                );
                assert_eq!(rest.len(), (at..len).filter(|number| number % 2 == 0).count());
                rest.clear();
                assert_eq!((rest.len(), rest.pop().is_none()), (0, true));
            }
        }
    }

    /// However many others are before it.
    #[test]
    fn the_oldest_droppable_one_is_found_at_once() {
        let mut messages = Messages::default();
        let waiting = |kind| Waiting { message: PreparedMessage::text("x"), kind };
        (0..1_000).for_each(|_| messages.push(waiting(Kind::Push)));
        (0..2).for_each(|_| messages.push(waiting(Kind::Droppable)));
        assert!(messages.remove_droppable().is_some());
        let Rest { kept, droppable, .. } = messages.rest.as_deref().unwrap();
        assert_eq!((kept.len(), droppable.len()), (999, 1), "the others are not looked at");
    }
}
