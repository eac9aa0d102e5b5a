//! Turns to call an endpoint of the backend: at most so many calls are in progress, and one user has a part of them at most.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::shards::lock;

/// The maximum number of calls in progress. Further ones wait, within their timeout.
pub(crate) const CALLS_MAX: usize = 256;

/// The maximum number of those of one user; anonymous clients are one. A user with many connections leaves the others some.
const USER_CALLS_MAX: usize = CALLS_MAX - CALLS_MAX / 4;

/// The calls of an endpoint.
pub(crate) struct Turns {
    all: Semaphore,
    /// Those of the users that call, or wait.
    users: Mutex<HashMap<Box<str>, Arc<Semaphore>>>,
}

/// The caller may call until this is dropped.
pub(crate) struct Turn<'a> {
    _own: Option<Own<'a>>,
    _permit: SemaphorePermit<'a>,
}

/// A call of a user, or one that waits.
struct Own<'a> {
    turns: &'a Turns,
    user: Box<str>,
    calls: Option<Arc<Semaphore>>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { all: Semaphore::new(CALLS_MAX), users: Mutex::default() }
    }
}

impl Turns {
    /// Waits for a turn of a user; `None` where the user is not known yet. A call that waits for others of its user is not in the queue of all
    /// users.
    pub(crate) async fn acquire(&self, user: Option<&str>) -> Result<Turn<'_>, AcquireError> {
        let mut own = user.map(|user| self.own(user));
        if let Some(Own { calls: Some(calls), permit, .. }) = &mut own {
            *permit = Some(calls.clone().acquire_owned().await?);
        }
        Ok(Turn { _own: own, _permit: self.all.acquire().await? })
    }

    fn own(&self, user: &str) -> Own<'_> {
        let mut users = lock(&self.users);
        let calls = match users.get(user) {
            Some(calls) => calls.clone(),
            None => users.entry(user.into()).or_insert(Arc::new(Semaphore::new(USER_CALLS_MAX))).clone(),
        };
        Own { turns: self, user: user.into(), calls: Some(calls), permit: None }
    }
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        drop(self.permit.take());
        let mut users = lock(&self.turns.users);
        // That of the map is the last: nobody else calls or waits.
        if self.calls.take().is_some_and(|calls| Arc::strong_count(&calls) == 2) {
            users.remove(&self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// A turn that is there at once.
    fn turn<'a>(turns: &'a Turns, user: &str) -> Option<Turn<'a>> {
        match pin!(turns.acquire(Some(user))).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => turn.ok(),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_user_leaves_turns_to_others_and_is_forgotten() {
        let turns = Turns::default();
        let mut held: Vec<_> = (0..USER_CALLS_MAX).map(|_| turn(&turns, "many").unwrap()).collect();
        let mut waiting: Vec<_> = (0..CALLS_MAX).map(|_| Box::pin(turns.acquire(Some("many")))).collect();
        for turn in &mut waiting {
            assert!(turn.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        // Behind all that wait, and at once.
        let others: Vec<_> = (0..CALLS_MAX - USER_CALLS_MAX).map(|user| user.to_string()).collect();
        held.extend(others.iter().map(|user| turn(&turns, user).unwrap()));
        assert!(turn(&turns, "one more").is_none());
        assert_eq!(lock(&turns.users).len(), 1 + others.len());
        drop((held, waiting));
        assert!(lock(&turns.users).is_empty());
        assert_eq!(turns.all.available_permits(), CALLS_MAX);
    }
}
