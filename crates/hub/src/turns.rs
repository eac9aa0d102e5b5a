//! Turns to call an endpoint of the backend: the number of calls in progress is limited, and a user leaves turns to the others.
//!
//! A user may begin a call while it has fewer calls in progress than three times the free turns: the dynamic threshold of Choudhury and
//! Hahne (1998), for queues in one memory. A user that is alone has 3/4 of all turns; users who want as many as they can have end with an
//! equal number each, and leave a third of that free.
//!
//! With `n` calls of a user in progress and `f` free turns after it began one, `n <= 3 * (f + 1)`. Until it begins the next one, `n` does
//! not grow. So if others hold all but `m` turns, it leaves `f >= (m - 3) / 4`: of 256 turns one user leaves 64, a second one 16, a third
//! one 4, and a fourth one 1. When none is free, a user without a call has the next one that is, since those with three or more wait until
//! there are two. Among users who may begin a call, each has one in its turn.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use crate::shards::lock;

/// The maximum number of calls in progress. Further ones wait, within their timeout.
pub(crate) const CALLS_MAX: usize = 256;

/// A user may have this many calls in progress for each free turn.
const CALLS_PER_FREE: usize = 3;

/// The calls of an endpoint.
#[derive(Clone, Default)]
pub(crate) struct Turns(Arc<Mutex<State>>);

/// The caller may call until this is dropped.
pub(crate) struct Turn {
    turns: Arc<Mutex<State>>,
    user: User,
}

/// `None` where the user is not known yet: such calls have no limit of their own.
type User = Option<Box<str>>;

struct State {
    free: usize,
    /// The users that call or wait.
    users: HashMap<User, Calls>,
    /// Those that wait, the next one first.
    waiting: VecDeque<User>,
}

/// Of a user.
#[derive(Default)]
struct Calls {
    in_progress: usize,
    /// In the order in which they came. While there are some, the user is one of those that wait.
    waiting: VecDeque<oneshot::Sender<Turn>>,
}

impl Default for State {
    fn default() -> Self {
        Self { free: CALLS_MAX, users: HashMap::new(), waiting: VecDeque::new() }
    }
}

impl Turns {
    /// Waits for a turn of a user. Anonymous clients are one user.
    pub(crate) async fn acquire(&self, user: Option<&str>) -> Turn {
        let user: User = user.map(Into::into);
        let waiting = {
            let mut state = lock(&self.0);
            let State { free, users, waiting } = &mut *state;
            let calls = users.entry(user.clone()).or_default();
            let is_waiting = !calls.waiting.is_empty();
            if !is_waiting && may_begin(&user, calls, *free) {
                *free -= 1;
                calls.in_progress += 1;
                return Turn { turns: self.0.clone(), user };
            }
            if !is_waiting {
                waiting.push_back(user);
            }
            let (admit, admission) = oneshot::channel();
            calls.forget_given_up();
            calls.waiting.push_back(admit);
            admission
        };
        waiting.await.expect("the state lives as long as `self`, and admits each of those that wait")
    }
}

#[cfg(test)]
impl Turns {
    pub(crate) fn are_those_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

fn may_begin(user: &User, calls: &Calls, free: usize) -> bool {
    free > 0 && (user.is_none() || calls.in_progress < CALLS_PER_FREE * free)
}

impl Calls {
    /// Forgets those at the front that have been given up; all have the same timeout.
    fn forget_given_up(&mut self) {
        while self.waiting.front().is_some_and(oneshot::Sender::is_closed) {
            self.waiting.pop_front();
        }
    }
}

impl State {
    /// Ends a call. Returns those that may begin now, which are to be admitted after the unlock.
    fn end(&mut self, user: &User, turns: &Arc<Mutex<Self>>) -> Vec<(oneshot::Sender<Turn>, Turn)> {
        self.free += 1;
        if let Some(calls) = self.users.get_mut(user) {
            calls.in_progress -= 1;
            if calls.in_progress == 0 && calls.waiting.is_empty() {
                self.users.remove(user);
            }
        }
        let (mut admitted, mut next) = (Vec::new(), 0);
        // Few are passed over: each of them has three calls in progress, or more.
        while self.free > 0
            && let Some(user) = self.waiting.get(next)
        {
            let Some(calls) = self.users.get_mut(user) else {
                self.waiting.remove(next);
                continue;
            };
            calls.forget_given_up();
            if !calls.waiting.is_empty() && !may_begin(user, calls, self.free) {
                next += 1;
                continue;
            }
            let Some(user) = self.waiting.remove(next) else { break };
            if let Some(admit) = calls.waiting.pop_front() {
                self.free -= 1;
                calls.in_progress += 1;
                admitted.push((admit, Turn { turns: turns.clone(), user: user.clone() }));
            }
            if !calls.waiting.is_empty() {
                self.waiting.push_back(user);
            } else if calls.in_progress == 0 {
                self.users.remove(&user);
            }
        }
        admitted
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let admitted = lock(&self.turns).end(&self.user, &self.turns);
        for (admit, turn) in admitted {
            // One that is given up at this moment ends at once.
            drop(admit.send(turn));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use tokio::time::timeout;
    use wireloom_testing::rng::generators;

    use super::*;

    type Acquiring<'a> = Pin<Box<dyn Future<Output = Turn> + 'a>>;

    fn poll(acquiring: Pin<&mut (impl Future<Output = Turn> + ?Sized)>) -> Option<Turn> {
        match acquiring.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    /// A turn that is there at once.
    fn turn(turns: &Turns, user: &str) -> Option<Turn> {
        poll(pin!(turns.acquire(Some(user))))
    }

    /// As many turns as the user has at once.
    fn all(turns: &Turns, user: &str) -> Vec<Turn> {
        std::iter::from_fn(|| turn(turns, user)).collect()
    }

    #[test]
    fn a_user_leaves_turns_to_others_and_is_forgotten() {
        let turns = Turns::default();
        let mut held = all(&turns, "many");
        assert_eq!(held.len(), 192);
        let mut waiting: Vec<_> = (0..CALLS_MAX).map(|_| Box::pin(turns.acquire(Some("many")))).collect();
        assert!(waiting.iter_mut().all(|turn| poll(turn.as_mut()).is_none()));
        // Behind all that wait, and at once.
        let others: Vec<_> = (0..CALLS_MAX - held.len()).map(|user| user.to_string()).collect();
        held.extend(others.iter().map(|user| turn(&turns, user).unwrap()));
        assert!(turn(&turns, "one more").is_none());
        drop((held, waiting));
        assert!(lock(&turns.0).users.is_empty() && lock(&turns.0).waiting.is_empty());
        assert_eq!(lock(&turns.0).free, CALLS_MAX);
    }

    #[test]
    fn greedy_users_leave_turns_to_another_one() {
        for mut rng in generators(20) {
            let turns = Turns::default();
            let greedy = ["first", "second"];
            let mut held: Vec<(&str, Turn)> = Vec::new();
            let mut waiting: Vec<(&str, Acquiring<'_>)> = Vec::new();
            for step in 0..2_000 {
                // Each has some that wait, at any time.
                for user in greedy {
                    while waiting.iter().filter(|(waiting, _)| *waiting == user).count() < 10 {
                        waiting.push((user, Box::pin(turns.acquire(Some(user)))));
                    }
                }
                waiting.retain_mut(|(user, acquiring)| match poll(acquiring.as_mut()) {
                    Some(turn) => {
                        held.push((user, turn));
                        false
                    }
                    None => true,
                });
                match rng.u8(..4) {
                    0 => drop(turn(&turns, "third").expect("a turn is free")),
                    1 if !waiting.is_empty() => drop(waiting.swap_remove(rng.usize(..waiting.len()))),
                    _ if step > 500 => drop(held.swap_remove(rng.usize(..held.len()))),
                    _ => {}
                }
            }
            let [first, second] = greedy.map(|user| held.iter().filter(|(held, _)| *held == user).count());
            assert!(first.abs_diff(second) < 10 && first + second > 200, "{first} {second}");
        }
    }

    /// Those that are given up at any moment, also when they have just been admitted, keep no turn.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn all_have_turns_though_some_give_up() {
        let turns = Arc::<Turns>::default();
        let callers = generators(1_000).map(|mut rng| {
            let turns = turns.clone();
            tokio::spawn(async move {
                for _ in 0..10 {
                    let user = ["a", "b", "c", "d"][rng.usize(..4)];
                    let acquiring = turns.acquire(rng.bool().then_some(user));
                    if rng.bool() {
                        let turn = acquiring.await;
                        tokio::task::yield_now().await;
                        drop(turn);
                    } else {
                        let _ = timeout(Duration::from_micros(rng.u64(..500)), acquiring).await;
                    }
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            timeout(Duration::from_secs(60), caller).await.expect("all have turns").unwrap();
        }
        let State { free, users, waiting } = &*lock(&turns.0);
        assert_eq!((*free, users.len(), waiting.len()), (CALLS_MAX, 0, 0));
    }

    #[test]
    fn users_have_turns_one_after_the_other() {
        let turns = Turns::default();
        let mut held: Vec<_> =
            ["a", "b", "c", "d", "e", "f"].iter().flat_map(|user| all(&turns, user)).collect();
        assert_eq!(held.len(), CALLS_MAX);
        let users = ["x", "x", "y", "a", "y", "z"];
        let mut waiting: Vec<_> =
            users.into_iter().map(|user| (user, Box::pin(turns.acquire(Some(user))))).collect();
        assert!(waiting.iter_mut().all(|(_, turn)| poll(turn.as_mut()).is_none()));
        let mut begun = Vec::new();
        for ends in 0..5 {
            // The calls of the first user end last.
            drop(held.pop().unwrap());
            waiting.retain_mut(|(user, turn)| match poll(turn.as_mut()) {
                Some(turn) => {
                    held.insert(ends, turn);
                    begun.push(*user);
                    false
                }
                None => true,
            });
        }
        assert_eq!(begun, ["x", "y", "z", "x", "y"]);
    }
}
