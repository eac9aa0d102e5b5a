//! The messages of a send queue in their order. Adding one, taking the first and dropping the oldest droppable one take constant time.

use std::collections::VecDeque;
use std::sync::Arc;

use wireloom::PreparedMessage;

use super::cost;

/// Messages in their order. One is in place: most clients wait for one at a time, and hold nothing more while they are idle. So is a run,
/// which all subscribers share that have nothing else.
#[derive(Debug, Default)]
pub(super) struct Messages {
    first: First,
    /// Those after the first; empty if there is no first. Boxed, because most clients have none.
    rest: Option<Box<Rest>>,
}

#[derive(Debug, Default)]
enum First {
    #[default]
    None,
    One(Waiting),
    Run(Arc<Run>),
}

/// The messages of a burst, for the subscribers that receive all of them.
#[derive(Debug)]
pub(crate) struct Run {
    messages: Vec<PreparedMessage>,
    kind: Kind,
    cost: usize,
}

impl Run {
    pub(crate) fn new(messages: Vec<PreparedMessage>, may_drop: bool) -> Self {
        let cost = messages.iter().map(cost).sum();
        Self { messages, kind: Kind::of(may_drop), cost }
    }

    /// The cost of its messages in a queue, in bytes.
    pub(super) fn cost(&self) -> usize {
        self.cost
    }
}

/// The cost of messages in a queue, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    pub(super) all: usize,
    pub(super) replies: usize,
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

impl Kind {
    /// That of a push.
    pub(super) fn of(may_drop: bool) -> Self {
        if may_drop { Self::Droppable } else { Self::Push }
    }
}

/// Messages by what may happen to them, so that the oldest droppable one is found at once. Numbers give the order of all.
#[derive(Debug, Default)]
struct Rest {
    kept: VecDeque<(u64, Waiting)>,
    droppable: VecDeque<(u64, Waiting)>,
    droppable_cost: usize,
    /// The number of the next one.
    next: u64,
}

impl Rest {
    fn push(&mut self, waiting: Waiting) {
        let queue = if waiting.kind == Kind::Droppable {
            self.droppable_cost += cost(&waiting.message);
            &mut self.droppable
        } else {
            &mut self.kept
        };
        queue.push_back((self.next, waiting));
        self.next += 1;
    }

    fn pop(&mut self) -> Option<Waiting> {
        match (self.kept.front(), self.droppable.front()) {
            (Some((kept, _)), Some((droppable, _))) if droppable < kept => self.pop_droppable(),
            (None, _) => self.pop_droppable(),
            (Some(_), _) => self.kept.pop_front().map(|(_, waiting)| waiting),
        }
    }

    fn pop_droppable(&mut self) -> Option<Waiting> {
        let (_, waiting) = self.droppable.pop_front()?;
        self.droppable_cost -= cost(&waiting.message);
        Some(waiting)
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
        self.first().len() + rest
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self.first, First::None)
    }

    pub(super) fn capacity(&self) -> usize {
        self.rest.as_ref().map_or(0, |rest| rest.kept.capacity() + rest.droppable.capacity())
    }

    fn first(&self) -> &[PreparedMessage] {
        match &self.first {
            First::None => &[],
            First::One(waiting) => std::slice::from_ref(&waiting.message),
            First::Run(run) => &run.messages,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PreparedMessage> {
        let rest = self.rest.iter().flat_map(|rest| rest.iter());
        self.first().iter().chain(rest.map(|waiting| &waiting.message))
    }

    pub(super) fn cost(&self) -> Cost {
        let mut cost = Cost::default();
        let mut add = |waiting: &Waiting| {
            let one = self::cost(&waiting.message);
            cost.all += one;
            cost.replies += if waiting.kind == Kind::Reply { one } else { 0 };
        };
        self.rest.iter().flat_map(|rest| rest.iter()).for_each(&mut add);
        match &self.first {
            First::None => {}
            First::One(waiting) => add(waiting),
            First::Run(run) => cost.all += run.cost,
        }
        cost
    }

    /// The cost of the messages that may be dropped, in bytes.
    pub(super) fn droppable_cost(&self) -> usize {
        let first = match &self.first {
            First::One(Waiting { kind: Kind::Droppable, message }) => cost(message),
            First::Run(run) if run.kind == Kind::Droppable => run.cost,
            First::None | First::One(_) | First::Run(_) => 0,
        };
        first + self.rest.as_ref().map_or(0, |rest| rest.droppable_cost)
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        match self.first {
            First::None => self.first = First::One(waiting),
            First::One(_) | First::Run(_) => self.rest.get_or_insert_default().push(waiting),
        }
    }

    /// Adds a run where there are no messages.
    pub(super) fn set_run(&mut self, run: Arc<Run>) {
        debug_assert!(self.is_empty());
        self.first = First::Run(run);
    }

    /// Takes the first one.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        self.divide_run();
        let next = self.rest.as_mut().and_then(|rest| rest.pop()).map_or(First::None, First::One);
        match std::mem::replace(&mut self.first, next) {
            First::One(waiting) => Some(waiting),
            First::None | First::Run(_) => None,
        }
    }

    /// Takes the oldest droppable one.
    pub(super) fn remove_droppable(&mut self) -> Option<Waiting> {
        self.divide_run();
        match &self.first {
            First::One(Waiting { kind: Kind::Droppable, .. }) => self.pop(),
            _ => self.rest.as_mut()?.pop_droppable(),
        }
    }

    /// Makes messages of a run.
    fn divide_run(&mut self) {
        let First::Run(run) = &self.first else { return };
        let run = run.clone();
        let rest = std::mem::take(self).rest;
        for message in &run.messages {
            self.push(Waiting { message: message.clone(), kind: run.kind });
        }
        let rest = rest.into_iter().flat_map(|mut rest| std::iter::from_fn(move || rest.pop()));
        rest.for_each(|waiting| self.push(waiting));
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
        self.first = First::None;
        if let Some(rest) = &mut self.rest {
            rest.kept.clear();
            rest.droppable.clear();
            rest.droppable_cost = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(messages: &Messages) -> Vec<String> {
        messages.iter().map(|message| message.as_text().unwrap().to_owned()).collect()
    }

    #[test]
    fn messages_keep_their_order() {
        // Memory of an idle client.
        assert_eq!(size_of::<Messages>(), 24);
        let text_of = |one: &Waiting| one.message.as_text().unwrap().to_owned();
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
                let odd: Vec<_> = before.iter().enumerate().filter(|(number, _)| number % 2 == 1).collect();
                let cost_of_odd: usize = odd.into_iter().map(|(_, message)| cost(message)).sum();
                assert_eq!(before.droppable_cost(), cost_of_odd);
                assert_eq!((texts(&before), after.len()), (all.clone(), 0));
                let mut rest = numbered(at..len);
                let dropped = std::iter::from_fn(|| rest.remove_droppable().as_ref().map(text_of));
                assert!(
                    dropped.eq((at..len).filter(|number| number % 2 == 1).map(|number| number.to_string()))
                );
                assert_eq!(rest.len(), (at..len).filter(|number| number % 2 == 0).count());
                assert_eq!(rest.droppable_cost(), 0);
                rest.clear();
                assert_eq!((rest.len(), rest.pop().is_none()), (0, true));
            }
        }
    }

    #[test]
    fn a_run_is_as_its_messages() {
        let message = |number: usize| PreparedMessage::text(&"x".repeat(number));
        for (may_drop, len) in [(false, 5), (true, 5), (false, 2), (true, 2)] {
            let pair = || {
                let (mut with_run, mut without) = (Messages::default(), Messages::default());
                with_run.set_run(Arc::new(Run::new((0..2).map(message).collect(), may_drop)));
                for number in 0..len {
                    let kind = match number {
                        0 | 1 => Kind::of(may_drop),
                        2 => Kind::Reply,
                        _ => Kind::Droppable,
                    };
                    without.push(Waiting { message: message(number), kind });
                    if number > 1 {
                        with_run.push(Waiting { message: message(number), kind });
                    }
                }
                [with_run, without]
            };
            let all = pair();
            assert_eq!(all[0].cost(), all[1].cost());
            assert_eq!(all[0].droppable_cost(), all[1].droppable_cost());
            assert_eq!(texts(&all[0]), texts(&all[1]));
            let popped = pair().map(|mut one| {
                std::iter::from_fn(|| one.pop().map(|waiting| (waiting.message.len(), waiting.kind)))
                    .collect::<Vec<_>>()
            });
            assert_eq!(popped[0], popped[1]);
            let dropped = pair().map(|mut one| {
                let dropped = std::iter::from_fn(|| one.remove_droppable()).count();
                (dropped, texts(&one))
            });
            assert_eq!(dropped[0], dropped[1]);
            for at in 0..=len {
                let parts = pair().map(|mut one| {
                    let after = one.split_off(at);
                    ((texts(&one), one.cost()), (texts(&after), after.cost()))
                });
                assert_eq!(parts[0], parts[1]);
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
