//! The synchronization primitives of this module, in one place so that a model checker can replace them.

pub(super) use std::sync::{Arc, PoisonError};

#[cfg(test)]
pub(super) use model::{Model, Mutex, MutexGuard};
#[cfg(not(test))]
pub(super) use std::sync::{Mutex, MutexGuard};

/// In tests a mutex is one of shuttle while shuttle explores the orders of its tasks, and otherwise one of the standard
/// library.
#[cfg(test)]
mod model {
    use std::cell::Cell;
    use std::ops::{Deref, DerefMut};
    use std::sync::{LockResult, PoisonError};

    thread_local! {
        /// shuttle runs all tasks of an execution on one thread.
        static IS_SHUTTLE: Cell<bool> = const { Cell::new(false) };
    }

    /// While this exists, mutexes of this thread are new ones of shuttle.
    pub(in super::super) struct Model(());

    impl Model {
        pub(in super::super) fn enter() -> Self {
            IS_SHUTTLE.set(true);
            Self(())
        }
    }

    impl Drop for Model {
        fn drop(&mut self) {
            IS_SHUTTLE.set(false);
        }
    }

    pub(in super::super) enum Mutex<T> {
        Std(std::sync::Mutex<T>),
        Shuttle(shuttle::sync::Mutex<T>),
    }

    pub(in super::super) enum MutexGuard<'a, T> {
        Std(std::sync::MutexGuard<'a, T>),
        Shuttle(shuttle::sync::MutexGuard<'a, T>),
    }

    impl<T> Mutex<T> {
        pub(in super::super) fn new(value: T) -> Self {
            if IS_SHUTTLE.get() {
                Self::Shuttle(shuttle::sync::Mutex::new(value))
            } else {
                Self::Std(std::sync::Mutex::new(value))
            }
        }

        pub(in super::super) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            fn wrap<G, H>(locked: LockResult<G>, wrap: fn(G) -> H) -> LockResult<H> {
                locked.map(wrap).map_err(|error| PoisonError::new(wrap(error.into_inner())))
            }
            match self {
                Self::Std(mutex) => wrap(mutex.lock(), MutexGuard::Std),
                Self::Shuttle(mutex) => wrap(mutex.lock(), MutexGuard::Shuttle),
            }
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
}
