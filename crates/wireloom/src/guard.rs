//! A mutex that runs foreign code only after it is unlocked.
//!
//! ```text
//!   lock()      data is read and changed; wakers to wake and values to drop are collected in its `Deferred`
//!   drop guard  before_unlock(), unlock, then: wake, notify, drop, call
//! ```
//!
//! A waker may poll its task in place, the last waker of a task drops its future, and a payload may have a destructor of the
//! application: each may lock the same mutex again. So a [`WakerSlot`] can be woken through a [`Deferred`] only, and a `Deferred` runs
//! only on a thread that holds no [`Guard`]. If one connection is used while another is locked, as a tunnel is, the outer guard runs
//! what both have collected.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::task::{Context, Waker};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Data that a [`Guarded`] protects.
pub(crate) trait Guardable {
    /// The wakes and drops collected since the lock.
    fn deferred(&mut self) -> &mut Deferred;

    /// Called before each unlock.
    fn before_unlock(&mut self) {}
}

/// A mutex whose guard runs the data's [`Deferred`] after the unlock.
#[derive(Debug, Default)]
pub(crate) struct Guarded<T> {
    mutex: Mutex<T>,
}

impl<T: Guardable> Guarded<T> {
    pub(crate) fn new(data: T) -> Self {
        Self { mutex: Mutex::new(data) }
    }

    /// Locks. A panic while the mutex was held does not poison it: the data keeps its invariants when a panic unwinds through it.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        let data = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        Guard { data, _held: Held::new(), deferred: Deferred::default() }
    }

    /// Locks, unless that would wait. A thread that holds guards may lock another only so.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        let data = match self.mutex.try_lock() {
            Ok(data) => data,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Guard { data, _held: Held::new(), deferred: Deferred::default() })
    }

    /// Reads or changes data where nothing is collected. [`Guardable::before_unlock`] is not called.
    #[inline]
    pub(crate) fn with<R>(&self, run: impl FnOnce(&mut T) -> R) -> R {
        run(&mut self.lock_plain())
    }

    /// As [`with`](Self::with), for a fast path: the compiler does not inline a large closure.
    #[inline(always)]
    pub(crate) fn lock_plain(&self) -> MutexGuard<'_, T> {
        self.mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Locked data.
pub(crate) struct Guard<'a, T: Guardable> {
    // Dropped in this order: the mutex is unlocked first, the work runs last.
    data: MutexGuard<'a, T>,
    _held: Held,
    /// Empty until the guard is dropped.
    deferred: Deferred,
}

impl<T: Guardable> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.data
    }
}

impl<T: Guardable> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.data
    }
}

impl<T: Guardable> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.data.before_unlock();
        let collected = self.data.deferred();
        if !collected.is_empty() {
            self.deferred = std::mem::take(collected);
        }
    }
}

/// A place for the waker of one task. The waker is registered, woken and dropped through a [`Deferred`].
#[derive(Debug, Default)]
pub(crate) struct WakerSlot(Option<Waker>);

impl WakerSlot {
    /// Whether it has a waker.
    pub(crate) fn is_registered(&self) -> bool {
        self.0.is_some()
    }

    /// Whether it has a waker of this task.
    pub(crate) fn will_wake(&self, cx: &Context<'_>) -> bool {
        self.0.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()))
    }
}

/// Work that was collected while a mutex was held. It runs when this is dropped on a thread that holds no [`Guard`], otherwise when
/// that thread drops its last guard.
#[derive(Default)]
pub(crate) struct Deferred {
    /// One word, because idle connections have it too.
    collected: Option<Box<Collected>>,
}

/// Its memory is kept by the thread.
#[derive(Default)]
struct Collected {
    wakers: Vec<Waker>,
    notified: Vec<Arc<Notify>>,
    dropped: Vec<Dropped>,
    calls: Vec<Box<dyn FnOnce() + Send>>,
}

/// Only held to be dropped.
#[expect(dead_code, reason = "the fields exist for their destructors")]
pub(crate) enum Dropped {
    Waker(Waker),
    Bytes(Bytes),
    Boxed(Box<dyn Send>),
}

impl From<Bytes> for Dropped {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl<T: Send + 'static> From<Box<T>> for Dropped {
    fn from(boxed: Box<T>) -> Self {
        Self::Boxed(boxed)
    }
}

impl Deferred {
    /// Wakes the task that waits in `slot`, if there is one.
    #[inline]
    pub(crate) fn wake(&mut self, slot: &mut WakerSlot) {
        if let Some(waker) = slot.0.take() {
            self.push_waker(waker);
        }
    }

    /// As [`wake`](Self::wake), but the waker stays registered.
    pub(crate) fn wake_by_ref(&mut self, slot: &WakerSlot) {
        if let Some(waker) = &slot.0 {
            self.push_waker(waker.clone());
        }
    }

    fn push_waker(&mut self, waker: Waker) {
        self.collected().wakers.push(waker);
    }

    /// Stores the task's waker in `slot`; the waker that it replaces is dropped later.
    #[inline]
    pub(crate) fn register(&mut self, slot: &mut WakerSlot, cx: &Context<'_>) {
        if !slot.will_wake(cx) {
            let old = slot.0.replace(cx.waker().clone());
            self.drop_waker(old);
        }
    }

    /// Removes the waker from `slot` and does not wake it.
    pub(crate) fn unregister(&mut self, slot: &mut WakerSlot) {
        let waker = slot.0.take();
        self.drop_waker(waker);
    }

    fn drop_waker(&mut self, waker: Option<Waker>) {
        if let Some(waker) = waker {
            self.collected().dropped.push(Dropped::Waker(waker));
        }
    }

    /// Drops a payload or a boxed value.
    pub(crate) fn drop_later(&mut self, value: impl Into<Dropped>) {
        self.collected().dropped.push(value.into());
    }

    /// Notifies all tasks that wait for `notify`.
    pub(crate) fn notify(&mut self, notify: &Arc<Notify>) {
        self.collected().notified.push(notify.clone());
    }

    /// Calls a function: for code of the application, such as an observer.
    pub(crate) fn call(&mut self, run: impl FnOnce() + Send + 'static) {
        self.collected().calls.push(Box::new(run));
    }

    /// The number of tasks in slots that will be woken.
    pub(crate) fn wakers_len(&self) -> usize {
        self.collected.as_ref().map_or(0, |collected| collected.wakers.len())
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.collected.is_none()
    }

    fn collected(&mut self) -> &mut Collected {
        self.collected.get_or_insert_with(|| SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default())
    }

    #[cold]
    #[inline(never)]
    fn run(&mut self) {
        let mut this = std::mem::take(self);
        if is_held() {
            this = match defer_to_outer_guard(this) {
                None => return,
                // The thread ends.
                Some(this) => this,
            };
        }
        let Some(mut collected) = this.collected.take() else { return };
        collected.wakers.drain(..).for_each(Waker::wake);
        collected.notified.drain(..).for_each(|notify| notify.notify_waiters());
        collected.dropped.clear();
        collected.calls.drain(..).for_each(|call| call());
        let _ = SPARE.try_with(|spare| spare.set(Some(collected)));
    }
}

impl Drop for Deferred {
    #[inline]
    fn drop(&mut self) {
        if !self.is_empty() {
            self.run();
        }
    }
}

thread_local! {
    /// Guards that this thread holds, and [`COLLECTED`] if `OUTER` is not empty.
    static HELD: Cell<usize> = const { Cell::new(0) };
    /// Work of inner guards, for when the last guard is dropped.
    static OUTER: RefCell<Vec<Deferred>> = const { RefCell::new(Vec::new()) };
    static SPARE: Cell<Option<Box<Collected>>> = const { Cell::new(None) };
}

const COLLECTED: usize = 1 << (usize::BITS - 1);

#[cfg(test)]
shuttle::thread_local! {
    /// `HELD` and `OUTER` of a thread of the model.
    static MODEL_HELD: Cell<usize> = Cell::new(0);
    static MODEL_OUTER: RefCell<Vec<Deferred>> = RefCell::new(Vec::new());
}

#[inline]
fn with_held<R>(run: impl FnOnce(&Cell<usize>) -> R) -> R {
    #[cfg(test)]
    if crate::sync::Model::is_entered() {
        return MODEL_HELD.with(run);
    }
    HELD.with(run)
}

/// `None` while the thread ends.
fn with_outer<R>(run: impl FnOnce(&mut Vec<Deferred>) -> R) -> Option<R> {
    #[cfg(test)]
    if crate::sync::Model::is_entered() {
        return MODEL_OUTER.try_with(|outer| run(&mut outer.borrow_mut())).ok();
    }
    OUTER.try_with(|outer| run(&mut outer.borrow_mut())).ok()
}

/// Whether this thread holds a [`Guard`], so that foreign code has to wait for the unlock.
pub(crate) fn is_held() -> bool {
    with_held(Cell::get) != 0
}

/// Returns the work if it has to run now.
fn defer_to_outer_guard(deferred: Deferred) -> Option<Deferred> {
    let mut deferred = Some(deferred);
    with_outer(|outer| outer.extend(deferred.take()));
    if deferred.is_none() {
        with_held(|held| held.set(held.get() | COLLECTED));
    }
    deferred
}

/// A guard that this thread holds.
struct Held {
    /// It is dropped by the thread that made it.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Held {
    #[inline]
    fn new() -> Self {
        with_held(|held| held.set(held.get() + 1));
        Self { _not_send: std::marker::PhantomData }
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        let left = with_held(|held| {
            held.set(held.get() - 1);
            held.get()
        });
        if left == COLLECTED {
            run_outer();
        }
    }
}

#[cold]
fn run_outer() {
    with_held(|held| held.set(0));
    // Each runs as it is dropped.
    drop(with_outer(std::mem::take));
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Poll, Wake};

    use super::*;
    use crate::sync::Model;

    #[derive(Default)]
    struct Data {
        deferred: Deferred,
        slots: [WakerSlot; 2],
        ready: bool,
        /// Calls of the application that have locked this again.
        called: usize,
        unlocks: usize,
    }

    impl Guardable for Data {
        fn deferred(&mut self) -> &mut Deferred {
            &mut self.deferred
        }

        fn before_unlock(&mut self) {
            self.unlocks += 1;
        }
    }

    /// Locks the data from everything that an application can provide.
    struct CallBack(Arc<Guarded<Data>>);

    impl CallBack {
        fn lock(&self) {
            self.0.lock().called += 1;
        }
    }

    impl Wake for CallBack {
        fn wake(self: Arc<Self>) {
            self.lock();
        }
    }

    impl Drop for CallBack {
        fn drop(&mut self) {
            self.lock();
        }
    }

    impl AsRef<[u8]> for CallBack {
        fn as_ref(&self) -> &[u8] {
            b"payload"
        }
    }

    fn register(data: &Arc<Guarded<Data>>, slot: usize) {
        let waker = Waker::from(Arc::new(CallBack(data.clone())));
        let mut guard = data.lock();
        let Data { deferred, slots, .. } = &mut *guard;
        deferred.register(&mut slots[slot], &Context::from_waker(&waker));
    }

    fn use_all(data: &Arc<Guarded<Data>>) {
        register(data, 0);
        // Replaces a waker, whose last reference this is.
        register(data, 0);
        register(data, 1);
        let payload = Bytes::from_owner(CallBack(data.clone()));
        let (boxed, called) = (CallBack(data.clone()), CallBack(data.clone()));
        let mut guard = data.lock();
        let Data { deferred, slots, .. } = &mut *guard;
        deferred.wake(&mut slots[0]);
        deferred.wake(&mut slots[1]);
        deferred.drop_later(payload);
        deferred.drop_later(Box::new(boxed));
        deferred.call(move || called.lock());
    }

    /// Calls of `use_all`: two wakes, one call, and the drops of six values.
    const CALLS: usize = 9;

    #[test]
    fn foreign_code_may_lock_again() {
        let data = Arc::new(Guarded::new(Data::default()));
        use_all(&data);
        let guard = data.lock();
        assert_eq!(guard.called, CALLS);
        assert!(guard.deferred.is_empty() && guard.slots[0].0.is_none());
        // Three registrations, one use, and each call.
        assert_eq!(guard.unlocks, 4 + CALLS);
        drop(guard);
        assert_eq!(Arc::strong_count(&data), 1);
    }

    // As a WebSocket does in a stream of HTTP/2.
    #[test]
    fn an_inner_guard_leaves_its_work_to_the_outer_one() {
        let outer = Arc::new(Guarded::new(Data::default()));
        let inner = Arc::new(Guarded::new(Data::default()));
        register(&outer, 0);
        let guard = outer.lock();
        use_all(&inner);
        inner.lock().deferred.call({
            let outer = outer.clone();
            move || outer.lock().called += 1
        });
        assert_eq!(inner.lock().called, 0);
        drop(guard);
        assert_eq!((inner.lock().called, outer.lock().called), (CALLS, 1));
    }

    #[test]
    fn the_memory_of_collected_work_is_used_again() {
        let data = Arc::new(Guarded::new(Data::default()));
        use_all(&data);
        let spare = SPARE.take().unwrap();
        assert!(spare.wakers.capacity() > 0 && spare.dropped.capacity() > 0);
        let address = std::ptr::from_ref(&*spare);
        SPARE.set(Some(spare));
        use_all(&data);
        assert_eq!(std::ptr::from_ref(&*SPARE.take().unwrap()), address);
    }

    #[test]
    fn tasks_are_woken_and_foreign_code_locks_again_in_any_order() {
        Model::explore(500, || {
            let data = Arc::new(Guarded::new(Data::default()));
            let finished = Arc::new(AtomicUsize::new(0));
            let waiting = shuttle::future::spawn({
                let data = data.clone();
                poll_fn(move |cx| {
                    let mut guard = data.lock();
                    let Data { deferred, slots, ready, .. } = &mut *guard;
                    if *ready {
                        return Poll::Ready(());
                    }
                    deferred.register(&mut slots[0], cx);
                    Poll::Pending
                })
            });
            let threads = [false, true].map(|wakes| {
                let (data, finished) = (data.clone(), finished.clone());
                shuttle::thread::spawn(move || {
                    register(&data, 1);
                    let payload = Bytes::from_owner(CallBack(data.clone()));
                    let mut guard = data.lock();
                    let Data { deferred, slots, ready, .. } = &mut *guard;
                    *ready |= wakes;
                    slots.iter_mut().for_each(|slot| deferred.wake(slot));
                    deferred.drop_later(payload);
                    deferred.call(move || {
                        finished.fetch_add(1, Ordering::Relaxed);
                    });
                })
            });
            shuttle::future::block_on(waiting).unwrap();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(finished.load(Ordering::Relaxed), 2);
            assert!(data.lock().deferred.is_empty());
        });
    }
}
