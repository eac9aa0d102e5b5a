//! A value that is made in NATS when it is first needed, by one caller for all that wait, and can be lost again.

use std::future::Future;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::unavailable;
use crate::engine::EngineError;
use crate::shards::lock;

/// How long making a value may take: up to eight requests one after the other, each of which has a time-out of its own.
const MAKING_MAX: Duration = Duration::from_secs(30);

/// Like [`tokio::sync::OnceCell`], but a failure is returned to everyone who began to wait before it: without answers of the server, a
/// thousand callers wait for one deadline, not for one each.
#[derive(Debug)]
pub(super) struct TryCell<T> {
    value: Mutex<Option<T>>,
    /// Held while the value is made. The last failure, and when it occurred.
    making: tokio::sync::Mutex<Option<(Instant, EngineError)>>,
}

impl<T> Default for TryCell<T> {
    fn default() -> Self {
        Self { value: Mutex::default(), making: Default::default() }
    }
}

impl<T: Clone> TryCell<T> {
    /// The value. The future that makes it is dropped if another caller does so.
    pub(super) async fn get_or_make(
        &self,
        make: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        if let Some(value) = self.value() {
            return Ok(value);
        }
        let began = Instant::now();
        // A caller that makes it may be dropped, and the next one begins anew.
        let mut failure = timeout(MAKING_MAX, self.making.lock()).await.map_err(unavailable)?;
        if let Some(value) = self.value() {
            return Ok(value);
        }
        if let Some((at, error)) = &*failure
            && *at >= began
        {
            return Err(error.clone());
        }
        let made = timeout(MAKING_MAX, make).await.map_err(unavailable).flatten();
        match &made {
            Ok(value) => *lock(&self.value) = Some(value.clone()),
            Err(error) => *failure = Some((Instant::now(), error.clone())),
        }
        made
    }

    fn value(&self) -> Option<T> {
        lock(&self.value).clone()
    }

    /// Forgets the value, if it is as `is_lost` says: the next caller makes it again.
    pub(super) fn forget_if(&self, is_lost: impl FnOnce(&T) -> bool) {
        let mut value = lock(&self.value);
        if value.as_ref().is_some_and(is_lost) {
            *value = None;
        }
    }

    pub(super) fn forget(&self) {
        self.forget_if(|_| true);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::concurrently::concurrently;

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_that_of_everyone_who_waits() {
        let (cell, tries) = (Arc::new(TryCell::<u8>::default()), Arc::new(AtomicUsize::new(0)));
        let get = |after: u64| {
            let (cell, tries) = (cell.clone(), tries.clone());
            async move {
                tokio::time::sleep(Duration::from_secs(after)).await;
                let make = async {
                    tries.fetch_add(1, Ordering::Relaxed);
                    std::future::pending().await
                };
                cell.get_or_make(make).await
            }
        };
        let begin = Instant::now();
        let results = concurrently(100, (0..100).map(|number| get(number % 4))).await;
        assert!(results.iter().all(Result::is_err));
        assert_eq!((begin.elapsed(), tries.load(Ordering::Relaxed)), (MAKING_MAX, 1));
        // One that comes later tries it again.
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(cell.get_or_make(async { Ok(1) }).await, Ok(1));
        assert_eq!(cell.get_or_make(async { Ok(2) }).await, Ok(1));
        cell.forget_if(|value| *value == 2);
        assert_eq!(cell.get_or_make(async { Ok(2) }).await, Ok(1));
        cell.forget();
        assert_eq!(cell.get_or_make(async { Ok(2) }).await, Ok(2));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_are_answered_slowly_have_the_time_of_all() {
        let cell = TryCell::<u8>::default();
        let second = Duration::from_secs(1);
        let make = async {
            for _request in 0..8 {
                tokio::time::sleep(second).await;
            }
            Ok(1)
        };
        let waiting = async {
            tokio::time::sleep(second).await;
            cell.get_or_make(async { Ok(2) }).await
        };
        assert_eq!(tokio::join!(cell.get_or_make(make), waiting), (Ok(1), Ok(1)));
    }
}
