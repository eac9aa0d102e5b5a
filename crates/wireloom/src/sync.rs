//! Synchronization primitives and spawned tasks, in one place so that a model checker can replace them.

pub(crate) use std::sync::{Arc, PoisonError, TryLockError};

#[cfg(test)]
pub(crate) use model::{AbortHandle, AtomicBool, Model, Mutex, MutexGuard, spawn};
#[cfg(not(test))]
pub(crate) use {
    std::sync::atomic::AtomicBool,
    std::sync::{Mutex, MutexGuard},
    tokio::task::AbortHandle,
};

/// Spawns a task of this runtime. A runtime that shuts down drops the task: then it is finished at once.
#[cfg(not(test))]
pub(crate) fn spawn(
    runtime: &tokio::runtime::Handle,
    future: impl Future<Output = ()> + Send + 'static,
) -> AbortHandle {
    runtime.spawn(future).abort_handle()
}

/// In tests these are shuttle's while shuttle explores the orders of its tasks, and otherwise those of the standard library
/// and of tokio.
#[cfg(test)]
mod model {
    use std::cell::{Cell, RefCell};
    use std::ops::{Deref, DerefMut};
    use std::sync::atomic::Ordering;
    use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};

    use tokio::runtime::{Builder, Handle};

    thread_local! {
        /// shuttle runs all tasks of an execution on one thread.
        static IS_SHUTTLE: Cell<bool> = const { Cell::new(false) };
        /// Tasks that [`spawn`] has spawned in this execution.
        static SPAWNED: RefCell<Vec<shuttle::future::JoinHandle<()>>> = const { RefCell::new(Vec::new()) };
    }

    /// While this exists, primitives that this thread makes are shuttle's.
    pub(crate) struct Model(());

    impl Model {
        /// Runs `test` under `schedules` random schedules. A failure prints the schedule for `shuttle::replay`. No timer
        /// ever expires: a lost wake-up is a deadlock, which shuttle reports.
        pub(crate) fn explore(schedules: usize, test: impl Fn() + Send + Sync + 'static) {
            // Timers need a runtime; it is never driven.
            let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            let _entered = runtime.enter();
            let _model = Self::enter();
            let test_and_tasks = move || {
                test();
                // Those that continue without the test. One that never ends is a deadlock.
                while let Some(task) = SPAWNED.with_borrow_mut(Vec::pop) {
                    let _ = shuttle::future::block_on(task);
                }
            };
            shuttle::check_random(test_and_tasks, schedules);
        }

        fn enter() -> Self {
            IS_SHUTTLE.set(true);
            Self(())
        }

        /// Whether primitives of this thread are shuttle's.
        pub(crate) fn is_entered() -> bool {
            IS_SHUTTLE.get()
        }
    }

    impl Drop for Model {
        fn drop(&mut self) {
            IS_SHUTTLE.set(false);
        }
    }

    pub(crate) enum Mutex<T> {
        Std(std::sync::Mutex<T>),
        Shuttle(shuttle::sync::Mutex<T>),
    }

    pub(crate) enum MutexGuard<'a, T> {
        Std(std::sync::MutexGuard<'a, T>),
        Shuttle(shuttle::sync::MutexGuard<'a, T>),
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            if Model::is_entered() {
                Self::Shuttle(shuttle::sync::Mutex::new(value))
            } else {
                Self::Std(std::sync::Mutex::new(value))
            }
        }

        pub(crate) fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
            fn wrap<G, H>(locked: TryLockResult<G>, wrap: fn(G) -> H) -> TryLockResult<H> {
                locked.map(wrap).map_err(|error| match error {
                    TryLockError::Poisoned(error) => PoisonError::new(wrap(error.into_inner())).into(),
                    TryLockError::WouldBlock => TryLockError::WouldBlock,
                })
            }
            match self {
                Self::Std(mutex) => wrap(mutex.try_lock(), MutexGuard::Std),
                Self::Shuttle(mutex) => wrap(mutex.try_lock(), MutexGuard::Shuttle),
            }
        }

        pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            fn wrap<G, H>(locked: LockResult<G>, wrap: fn(G) -> H) -> LockResult<H> {
                locked.map(wrap).map_err(|error| PoisonError::new(wrap(error.into_inner())))
            }
            match self {
                Self::Std(mutex) => wrap(mutex.lock(), MutexGuard::Std),
                Self::Shuttle(mutex) => wrap(mutex.lock(), MutexGuard::Shuttle),
            }
        }
    }

    impl<T: Default> Default for Mutex<T> {
        fn default() -> Self {
            Self::new(T::default())
        }
    }

    impl<T> std::fmt::Debug for Mutex<T> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Mutex")
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            match self {
                Self::Std(guard) => guard,
                Self::Shuttle(guard) => guard,
            }
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            match self {
                Self::Std(guard) => guard,
                Self::Shuttle(guard) => guard,
            }
        }
    }

    pub(crate) enum AtomicBool {
        Std(std::sync::atomic::AtomicBool),
        Shuttle(shuttle::sync::atomic::AtomicBool),
    }

    impl AtomicBool {
        pub(crate) fn new(value: bool) -> Self {
            if Model::is_entered() {
                Self::Shuttle(shuttle::sync::atomic::AtomicBool::new(value))
            } else {
                Self::Std(std::sync::atomic::AtomicBool::new(value))
            }
        }

        pub(crate) fn load(&self, order: Ordering) -> bool {
            match self {
                Self::Std(atomic) => atomic.load(order),
                Self::Shuttle(atomic) => atomic.load(order),
            }
        }

        pub(crate) fn store(&self, value: bool, order: Ordering) {
            match self {
                Self::Std(atomic) => atomic.store(value, order),
                Self::Shuttle(atomic) => atomic.store(value, order),
            }
        }
    }

    #[derive(Debug)]
    pub(crate) enum AbortHandle {
        Tokio(tokio::task::AbortHandle),
        Shuttle(shuttle::future::AbortHandle),
    }

    impl AbortHandle {
        pub(crate) fn is_finished(&self) -> bool {
            match self {
                Self::Tokio(task) => task.is_finished(),
                Self::Shuttle(task) => task.is_finished(),
            }
        }
    }

    pub(crate) fn spawn(runtime: &Handle, future: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        if Model::is_entered() {
            let task = shuttle::future::spawn(future);
            let handle = AbortHandle::Shuttle(task.abort_handle());
            SPAWNED.with_borrow_mut(|spawned| spawned.push(task));
            handle
        } else {
            AbortHandle::Tokio(runtime.spawn(future).abort_handle())
        }
    }
}
