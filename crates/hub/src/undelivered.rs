//! The backlog of publications that are not written yet. Above the limit, a publication that would begin a burst waits: otherwise the tasks
//! that write would starve the others.
//!
//! ```text
//! reserve() -> Place -> Load, while the engine has the publications -> Load, while their burst is to be written
//! ```
//!
//! Those that wait share the room by their length, in classes which it quadruples between: each class is a flow of self-clocked fair queueing
//! (Golestani 1994). So a burst waits for those of its class that came before, and those of any other get ahead of it by no more than its
//! own length: neither do many short ones keep a long one waiting, nor many long ones a short one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::SetOnce;
use tokio::time::timeout;

use crate::shards::lock;

/// The number of visits of subscribers, each with a write, above which publishers wait. It takes some 20 ms of a worker.
const VISITS_MAX: usize = 4 << 10;

/// The number of further publications of a burst that cost as much as the visit of a subscriber.
const LATER_PER_VISIT: usize = 64;

/// How long publishers wait at most while none of them has room: a runtime that is not run any more writes nothing.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The number of classes of lengths.
const CLASSES: usize = usize::BITS as usize / 2;

/// Of a node.
#[derive(Debug, Default)]
pub(crate) struct Undelivered(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    visits: usize,
    /// By their tags, and the order in which they came. The tag grows in a class by the visits of each.
    waiting: BTreeMap<(usize, u64), Waiting>,
    /// The tag of the last one that came, by class.
    tags: [usize; CLASSES],
    /// The tag of the last one that was admitted: classes of which none waited begin there.
    tag: usize,
    /// How many have waited so far.
    came: u64,
    /// How often one of them was admitted.
    admitted: u64,
}

#[derive(Debug)]
struct Waiting {
    visits: usize,
    place: Weak<Place>,
}

/// Room for a burst, once it is set. A waiter keeps its turn.
pub(crate) type Place = SetOnce<Load>;

impl Undelivered {
    /// Takes room for the visits of a burst, or a place among those that wait for some. A burst that is longer than the limit has room as
    /// well: it is the only one beyond the limit.
    pub(crate) fn reserve(self: &Arc<Self>, visits: usize) -> Arc<Place> {
        let mut state = lock(&self.0);
        let has_room = state.waiting.is_empty() && state.visits <= VISITS_MAX;
        // Where there is no runtime there is no timer.
        if has_room || Handle::try_current().is_err() {
            return Arc::new(Place::new_with(Some(state.load(self, visits))));
        }
        let place = Arc::default();
        let turn = (state.next_tag(visits), state.came);
        state.came += 1;
        state.waiting.insert(turn, Waiting { visits, place: Arc::downgrade(&place) });
        place
    }

    /// Waits for the room of a burst with this number of visits.
    pub(crate) async fn wait(self: &Arc<Self>, place: &Place, visits: usize) {
        loop {
            let before = lock(&self.0).admitted;
            if timeout(WAIT_MAX, place.wait()).await.is_ok() {
                return;
            }
            let mut state = lock(&self.0);
            if state.admitted == before {
                // As if the rest had been written. Those that wait have their share each second, this one first: others may belong to a
                // runtime that is not run any more.
                state.visits = 0;
                state.admitted += 1;
                let load = state.load(self, visits);
                drop(state);
                let _ = place.set(load);
                self.admit();
            }
        }
    }

    /// Those of the waiting that have room now.
    fn admit(self: &Arc<Self>) {
        let admitted = lock(&self.0).admit(self);
        for (place, load) in admitted {
            // If it is given up at this moment, or has room already, the next ones have this.
            let _ = place.set(load);
        }
    }
}

impl State {
    fn load(&mut self, undelivered: &Arc<Undelivered>, visits: usize) -> Load {
        self.visits += visits;
        Load { undelivered: undelivered.clone(), visits }
    }

    fn next_tag(&mut self, visits: usize) -> usize {
        let class = visits.checked_ilog2().unwrap_or(0) as usize / 2;
        self.tags[class] = self.tags[class].max(self.tag).saturating_add(visits);
        self.tags[class]
    }

    /// The places of those that have room now. They are set after the unlock.
    fn admit(&mut self, undelivered: &Arc<Undelivered>) -> Vec<(Arc<Place>, Load)> {
        let mut admitted = Vec::new();
        while self.visits <= VISITS_MAX
            && let Some(((tag, _), Waiting { visits, place })) = self.waiting.pop_first()
        {
            self.tag = tag;
            // Otherwise it has been given up.
            if let Some(place) = place.upgrade() {
                self.admitted += 1;
                admitted.push((place, self.load(undelivered, visits)));
            }
        }
        admitted
    }
}

/// Visits that a burst takes, until it has been written, or that one is expected to take, until it has been published.
#[derive(Debug)]
pub(crate) struct Load {
    undelivered: Arc<Undelivered>,
    visits: usize,
}

impl Load {
    /// That of a burst which has begun, whether there is room or not.
    pub(crate) fn new(undelivered: &Arc<Undelivered>, subscribers: usize) -> Self {
        lock(&undelivered.0).load(undelivered, subscribers)
    }

    /// Adds a further publication of the burst.
    pub(crate) fn add_later(&mut self, subscribers: usize) {
        let visits = subscribers / LATER_PER_VISIT;
        if visits > 0 {
            self.visits += visits;
            lock(&self.undelivered.0).visits += visits;
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let mut state = lock(&self.undelivered.0);
        // Visits that were abandoned do not count either.
        state.visits = state.visits.saturating_sub(self.visits);
        drop(state);
        self.undelivered.admit();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use tokio::task::unconstrained;
    use wireloom_testing::rng::generators;

    use super::*;

    fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    async fn reserve(undelivered: &Arc<Undelivered>, visits: usize) -> Arc<Place> {
        let place = undelivered.reserve(visits);
        undelivered.wait(&place, visits).await;
        place
    }

    fn visits(undelivered: &Undelivered) -> usize {
        lock(&undelivered.0).visits
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_have_room_one_after_the_other() {
        let undelivered = Arc::<Undelivered>::default();
        let first = reserve(&undelivered, VISITS_MAX + 1).await;
        let mut waiting: Vec<_> = (0..4).map(|_| Box::pin(reserve(&undelivered, 3_000))).collect();
        assert!(waiting.iter_mut().all(|one| poll(one.as_mut()).is_pending()));
        // One is given up while it waits, and one when it has room.
        drop(waiting.remove(0));
        drop(first);
        drop(waiting.remove(0));
        let ready: Vec<_> = waiting.iter_mut().map(|one| poll(one.as_mut()).is_ready()).collect();
        assert_eq!((ready, visits(&undelivered)), (vec![true, true], 0), "what nobody keeps makes room");
        let [first, second] = [(); 2].map(|()| Load::new(&undelivered, 3_000));
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(reserve(&undelivered, 3_000))).collect();
        assert!(waiting.iter_mut().all(|one| poll(one.as_mut()).is_pending()));
        drop(first);
        let Poll::Ready(third) = poll(waiting.remove(0).as_mut()) else { panic!("there is room") };
        assert!(waiting.iter_mut().all(|one| poll(one.as_mut()).is_pending()), "it is taken");
        drop((second, third));
        let both: Vec<_> = waiting.iter_mut().map(|one| poll(one.as_mut())).collect();
        assert!(both.iter().all(Poll::is_ready));
        assert_eq!(visits(&undelivered), 6_000);
        drop((waiting, both));
        assert_eq!(visits(&undelivered), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn short_bursts_do_not_wait_for_many_long_ones() {
        let undelivered = Arc::<Undelivered>::default();
        let unwritten = Load::new(&undelivered, 2 * VISITS_MAX);
        let reserve = |visits| Box::pin(reserve(&undelivered, visits));
        let mut long: Vec<_> = (0..10).map(|_| reserve(VISITS_MAX + 1)).collect();
        assert!(long.iter_mut().all(|one| poll(one.as_mut()).is_pending()));
        let mut short = reserve(10);
        assert!(poll(short.as_mut()).is_pending());
        drop(unwritten);
        assert!(poll(short.as_mut()).is_ready());
        // Nor do the long ones wait for all short ones that come later.
        let mut admitted: Vec<_> = long.iter_mut().map(|one| poll(one.as_mut())).collect();
        let is_ready = |admitted: &[Poll<Arc<Place>>]| admitted.iter().filter(|one| one.is_ready()).count();
        assert_eq!(is_ready(&admitted), 1);
        let mut rounds = 0;
        let mut rest = long.split_off(1);
        while !rest.is_empty() {
            let mut later: Vec<_> = (0..100).map(|_| reserve(1_000)).collect();
            assert!(later.iter_mut().all(|one| poll(one.as_mut()).is_pending()));
            admitted.clear();
            while let Some(index) = later.iter_mut().position(|one| poll(one.as_mut()).is_ready()) {
                drop(later.swap_remove(index));
            }
            rest.retain_mut(|one| match poll(one.as_mut()) {
                Poll::Ready(load) => {
                    admitted.push(Poll::Ready(load));
                    false
                }
                Poll::Pending => true,
            });
            rounds += 1;
            assert!(rounds < 100, "long ones wait forever");
        }
    }

    /// Publishers that publish again as soon as they are admitted get ahead of one of another length by no more than its own length.
    #[tokio::test(start_paused = true)]
    async fn no_length_keeps_another_waiting() {
        for (one, many, count) in [(50_000, 10, 1_000), (50_000, 1_000, 2_000), (10, 50_000, 100)] {
            let undelivered = Arc::<Undelivered>::default();
            let reserve = |visits| Box::pin(unconstrained(reserve(&undelivered, visits)));
            let unwritten = Load::new(&undelivered, 2 * VISITS_MAX);
            let mut others: Vec<_> = (0..count).map(|_| reserve(many)).collect();
            assert!(others.iter_mut().all(|other| poll(other.as_mut()).is_pending()));
            drop(unwritten);
            let (mut ahead, mut publisher) = (0, None);
            for round in 0.. {
                let mut admitted = Vec::new();
                for other in &mut others {
                    if let Poll::Ready(load) = poll(other.as_mut()) {
                        admitted.push(load);
                        *other = reserve(many);
                        assert!(poll(other.as_mut()).is_pending());
                    }
                }
                assert!(!admitted.is_empty() || publisher.is_some());
                // The others have gone on for a while.
                if round == 1_000 {
                    publisher = Some(reserve(one));
                }
                if let Some(publisher) = &mut publisher {
                    if poll(publisher.as_mut()).is_ready() {
                        break;
                    }
                    ahead += admitted.iter().map(|place| place.get().unwrap().visits).sum::<usize>();
                    assert!(ahead <= one + many + VISITS_MAX, "{ahead} of {many} ahead of {one}");
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn publishers_go_on_though_nothing_is_written() {
        let undelivered = Arc::<Undelivered>::default();
        let unwritten = Load::new(&undelivered, 3 * VISITS_MAX);
        // This one belongs to a runtime that is not run any more.
        let mut left = Box::pin(reserve(&undelivered, VISITS_MAX));
        assert!(poll(left.as_mut()).is_pending());
        let begun = tokio::time::Instant::now();
        let mut waiting: Vec<_> = (0..6).map(|_| Box::pin(reserve(&undelivered, 3_000))).collect();
        let mut admitted = Vec::new();
        for second in 1..=2 {
            poll_fn(|cx| {
                waiting.retain_mut(|one| match one.as_mut().poll(cx) {
                    Poll::Ready(load) => {
                        admitted.push(load);
                        false
                    }
                    Poll::Pending => true,
                });
                if begun.elapsed() >= second * WAIT_MAX { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            let admitted: usize = admitted.iter().map(|place| place.get().unwrap().visits).sum();
            assert!((1..=second as usize * 3 * VISITS_MAX).contains(&admitted), "{admitted} {second}");
        }
        drop((unwritten, admitted, waiting, left));
        assert_eq!(visits(&undelivered), 0);
    }

    /// Those that are given up at any moment, also when they have just been admitted, keep no room.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn all_are_admitted_though_some_give_up() {
        let undelivered = Arc::<Undelivered>::default();
        let publishers = generators(64).map(|mut rng| {
            let undelivered = undelivered.clone();
            tokio::spawn(async move {
                for _ in 0..100 {
                    let reserving = reserve(&undelivered, rng.usize(1..3_000));
                    if rng.bool() {
                        let load = reserving.await;
                        tokio::task::yield_now().await;
                        drop(load);
                    } else {
                        let _ = timeout(Duration::from_micros(rng.u64(..500)), reserving).await;
                    }
                }
            })
        });
        for publisher in publishers.collect::<Vec<_>>() {
            timeout(Duration::from_secs(60), publisher).await.expect("all are admitted").unwrap();
        }
        let state = lock(&undelivered.0);
        assert_eq!((state.visits, state.waiting.len()), (0, 0));
    }

    #[tokio::test]
    async fn a_publication_that_joins_a_burst_costs_less() {
        let undelivered = Arc::<Undelivered>::default();
        let mut load = Load::new(&undelivered, LATER_PER_VISIT);
        (0..2).for_each(|_| load.add_later(LATER_PER_VISIT));
        assert_eq!(visits(&undelivered), LATER_PER_VISIT + 2);
        drop(load);
        assert_eq!(visits(&undelivered), 0);
    }
}
