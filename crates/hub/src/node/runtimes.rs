//! The runtime of a node's tasks: the one in which the node is first used, and once that has ended, the next one.

use std::sync::{Mutex, OnceLock};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::shards::lock;

/// The runtimes of a node's tasks. Engines may deliver from other threads, and need one to spawn tasks.
#[derive(Debug, Default)]
pub(super) struct Runtimes {
    /// Read without a lock.
    first: OnceLock<Running>,
    /// Used once the first one has ended.
    next: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    runtime: Handle,
    /// A task that ends with the runtime.
    sentinel: JoinHandle<()>,
}

impl Running {
    fn new(runtime: Handle) -> Self {
        let sentinel = runtime.spawn(std::future::pending());
        Self { runtime, sentinel }
    }

    fn has_ended(&self) -> bool {
        self.sentinel.is_finished()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.sentinel.abort();
    }
}

impl Runtimes {
    /// The one in use, unless it has ended.
    pub(super) fn get(&self) -> Option<Handle> {
        let first = self.first.get()?;
        if !first.has_ended() {
            return Some(first.runtime.clone());
        }
        let next = lock(&self.next);
        next.as_ref().filter(|next| !next.has_ended()).map(|next| next.runtime.clone())
    }

    /// Begins to use that of the caller, if none is in use, or the one before has ended. Returns whether it does.
    pub(super) fn begin(&self) -> bool {
        if self.first.get().is_some_and(|first| !first.has_ended()) {
            return false;
        }
        let Ok(current) = Handle::try_current() else { return false };
        let mut is_first = false;
        let first = self.first.get_or_init(|| {
            is_first = true;
            Running::new(current.clone())
        });
        if is_first || !first.has_ended() {
            return is_first;
        }
        let mut next = lock(&self.next);
        let is_needed = next.as_ref().is_none_or(Running::has_ended);
        if is_needed {
            *next = Some(Running::new(current));
        }
        is_needed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    #[test]
    fn one_of_many_threads_begins() {
        let runtime = Builder::new_current_thread().build().unwrap();
        for _ in 0..200 {
            let (runtimes, start) = (Runtimes::default(), Barrier::new(4));
            let begun = || {
                let _entered = runtime.enter();
                start.wait();
                runtimes.begin()
            };
            let begun: usize = std::thread::scope(|scope| {
                let threads = [(); 4].map(|()| scope.spawn(begun));
                threads.map(|thread| usize::from(thread.join().unwrap())).iter().sum()
            });
            assert_eq!(begun, 1);
        }
    }

    #[test]
    fn a_runtime_that_has_ended_is_replaced() {
        let runtimes = Runtimes::default();
        let runtime = || Builder::new_current_thread().build().unwrap();
        let begin_in = |runtime: &Runtime| runtime.block_on(async { runtimes.begin() });
        let used = || runtimes.get().map(|runtime| runtime.id());
        assert_eq!((runtimes.begin(), used()), (false, None), "there is none");
        for _ in 0..3 {
            let (one, other) = (runtime(), runtime());
            assert_eq!([&one, &one, &other].map(begin_in), [true, false, false]);
            assert_eq!(used(), Some(one.handle().id()));
            drop(one);
            assert_eq!((runtimes.begin(), used()), (false, None), "it has ended");
        }
    }
}
