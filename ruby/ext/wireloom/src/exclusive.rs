//! State of an object that one call at a time works on.
//!
//! Ruby code never runs while it is borrowed: [`Exclusive::with`] takes a closure that is `Send`, and no handle of Ruby is,
//! neither `&Ruby` nor a value. [`Exclusive::allocating`] may make objects, which can raise NoMemoryError: the borrow lies
//! outside of the `protect` that catches it, so that it ends.
//!
//! A thread [works without the GVL](Ready::detached) on a [`Detachable`], and ends its borrow before it takes the GVL again. So another
//! thread can wait for it in any way. It does so at the beginning of a method, where it handles interrupts: while one is pending, Ruby
//! keeps the GVL, and the threads wait that do not need the state. An exception comes back as an error, which skips no destructor.

use std::cell::{RefCell, RefMut};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use magnus::{Error, Ruby};

use crate::guard::{making, protect};
use crate::keys;

/// From this length on input is unmasked and validated without the GVL, in bytes: about 50 µs of work (`bench/gvl.rb`).
pub(crate) const DETACHED_UNMASK_LEN: usize = 256 << 10;

/// The same for messages that are deflated, and for input that may have to be inflated.
pub(crate) const DETACHED_DEFLATE_LEN: usize = 4 << 10;

/// State of an object that one call at a time works on.
#[derive(Default)]
pub(crate) struct Exclusive<T>(RefCell<T>);

/// State on which a thread may work without the GVL. [`ready`](Self::ready) borrows it.
#[derive(Default)]
pub(crate) struct Detachable<T> {
    state: ManuallyDrop<Exclusive<T>>,
    /// A thread works on it without the GVL. While it is set, only that thread touches `state`.
    detached: AtomicBool,
    /// [`keys::forks`] when that thread began.
    forks: AtomicUsize,
    /// Threads that wait for it.
    waiting: AtomicUsize,
}

/// State on which no thread works without the GVL, as long as this thread keeps the GVL. Nothing here waits: the bytes of a String that
/// were borrowed after [`Detachable::ready`] cannot be changed by another thread before they are used.
pub(crate) struct Ready<'a, T>(&'a Detachable<T>);

/// The payload of the panic that ends a call for a state on which a thread worked when the process forked. That thread does not
/// exist in the child, and its progress is unknown.
pub(crate) struct LostInFork;

/// How long a thread sleeps before it looks again whether another one has finished.
const BUSY_WAIT: Duration = Duration::from_micros(50);

/// How many times a thread that has finished looks whether those that wait have begun. Without that, one that works all the time keeps
/// them waiting for hundreds of milliseconds: they have to look while it waits for the GVL.
const TURN_WAITS: u32 = 20;

impl<T> Exclusive<T> {
    pub(crate) fn new(state: T) -> Self {
        Self(RefCell::new(state))
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }

    /// Runs `work`, which can call nothing of Ruby.
    #[inline]
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R + Send) -> R {
        work(&mut self.borrow())
    }

    /// The same, when the state is not in use.
    pub(crate) fn try_with<R>(&self, work: impl FnOnce(&mut T) -> R + Send) -> Option<R> {
        self.0.try_borrow_mut().ok().map(|mut state| work(&mut state))
    }

    /// Runs `work`, which makes objects but calls no method.
    ///
    /// # Errors
    /// There is no memory for an object.
    #[inline]
    pub(crate) fn allocating<R>(
        &self,
        ruby: &Ruby,
        work: impl FnOnce(&Ruby, &mut T) -> R,
    ) -> Result<R, Error> {
        let mut state = self.borrow();
        making(|| work(ruby, &mut state))
    }

    /// # Panics
    /// When a call for the same object is below this one on the stack, which nothing here makes possible.
    #[inline]
    fn borrow(&self) -> RefMut<'_, T> {
        self.0.borrow_mut()
    }
}

impl<T> Drop for Detachable<T> {
    fn drop(&mut self) {
        // The state that a thread left half changed in a fork is leaked.
        if !*self.detached.get_mut() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.state) };
        }
    }
}

impl<T> Detachable<T> {
    pub(crate) fn new(state: T) -> Self {
        Self {
            state: ManuallyDrop::new(Exclusive::new(state)),
            detached: AtomicBool::new(false),
            forks: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Waits for the thread that works without the GVL. Other threads of Ruby run meanwhile. Methods call it before they change anything.
    ///
    /// # Errors
    /// The exception that another thread raised in this one while it waited.
    #[inline]
    pub(crate) fn ready(&self, ruby: &Ruby) -> Result<Ready<'_, T>, Error> {
        if self.is_detached() {
            self.wait_interruptible(ruby)?;
        }
        Ok(Ready(self))
    }

    /// The same in the middle of a method, where an exception would lose what it has done: an interrupt is handled after it. Hardly ever is
    /// there anything to wait for, since no other thread has run meanwhile, or only while this one worked without the GVL.
    #[inline]
    pub(crate) fn ready_again(&self) -> Ready<'_, T> {
        while self.is_detached() {
            self.wait(true);
        }
        Ready(self)
    }

    /// Runs `work`, which can call nothing of Ruby, when the state is not in use.
    pub(crate) fn try_with<R>(&self, work: impl FnOnce(&mut T) -> R + Send) -> Option<R> {
        if self.is_detached() { None } else { self.state.try_with(work) }
    }

    #[inline]
    fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Acquire)
    }

    /// Waits, and handles the interrupts before it and after it.
    #[cold]
    fn wait_interruptible(&self, ruby: &Ruby) -> Result<(), Error> {
        loop {
            // Other threads may run meanwhile.
            check_interrupts(ruby)?;
            if !self.is_detached() {
                return Ok(());
            }
            self.wait(false);
        }
    }

    /// Waits without the GVL, or where Ruby keeps it not at all, unless `with_gvl`.
    #[cold]
    fn wait(&self, with_gvl: bool) {
        let Self { detached, forks, waiting, .. } = self;
        let is_here = || forks.load(Ordering::Relaxed) == keys::forks();
        if !is_here() {
            resume_unwind(Box::new(LostInFork));
        }
        let _waiting = Waiting::new(waiting);
        without_gvl(|gvl| {
            while (with_gvl || gvl == Gvl::Released) && detached.load(Ordering::Acquire) && is_here() {
                std::thread::sleep(BUSY_WAIT);
            }
        });
    }
}

impl<T> Ready<'_, T> {
    /// Runs `work`, which can call nothing of Ruby.
    ///
    /// # Panics
    /// When this thread has released the GVL since [`Detachable::ready`], and another one works on the state.
    #[inline]
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R + Send) -> R {
        work(&mut self.borrow())
    }

    /// Runs `work` without the GVL. Other threads go on meanwhile; one that needs this state waits.
    ///
    /// # Panics
    /// As [`with`](Self::with).
    pub(crate) fn detached<R: Send>(self, work: impl FnOnce(&mut T) -> R + Send) -> R
    where
        T: Send,
    {
        let state = self.borrow();
        let Detachable { detached, forks, waiting, .. } = self.0;
        if forks.swap(keys::forks(), Ordering::Relaxed) != keys::forks() {
            // Those that waited before a fork are not in this process.
            waiting.store(0, Ordering::Relaxed);
        }
        detached.store(true, Ordering::Relaxed);
        let borrowed = Detached { state, _flag: Flag(detached) };
        without_gvl(move |gvl| {
            let mut borrowed = borrowed;
            let result = work(&mut borrowed.state);
            drop(borrowed);
            // Those that wait have their turn, for which they need the GVL.
            let mut turns = if gvl == Gvl::Released { TURN_WAITS } else { 0 };
            while turns > 0 && waiting.load(Ordering::Relaxed) > 0 {
                std::thread::sleep(BUSY_WAIT);
                turns -= 1;
            }
            result
        })
    }

    #[inline]
    fn borrow(&self) -> RefMut<'_, T> {
        assert!(!self.0.is_detached(), "another thread has detached the state");
        self.0.state.borrow()
    }
}

/// The borrow of a thread that works without the GVL. The fields are dropped in this order.
struct Detached<'a, T> {
    state: RefMut<'a, T>,
    _flag: Flag<'a>,
}

// SAFETY: while the flag is set no other thread touches the cell that `state` borrows; `T` may be used by any thread.
unsafe impl<T: Send> Send for Detached<'_, T> {}

/// A thread that waits, counted until it is dropped: also by the panic that ends the wait after a fork.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Cleared when it is dropped.
struct Flag<'a>(&'a AtomicBool);

impl Drop for Flag<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

unsafe extern "C" {
    // `ruby/thread.h`, which rb-sys has no bindings of.
    fn rb_thread_call_without_gvl2(
        run: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
        data: *mut c_void,
        unblock: Option<unsafe extern "C" fn(*mut c_void)>,
        unblock_data: *mut c_void,
    ) -> *mut c_void;
}

/// Handles the interrupts that are pending for this thread, such as the end of its time slice. Methods call it before work that
/// may run [without the GVL](Ready::detached), and before they change anything: while an interrupt is pending, Ruby keeps the
/// GVL.
///
/// # Errors
/// The exception that another thread raised in this one.
pub(crate) fn check_interrupts(_: &Ruby) -> Result<(), Error> {
    // SAFETY: nothing is borrowed, and what an interrupt raises is caught.
    protect(|| unsafe {
        rb_sys::rb_thread_check_ints();
        rb_sys::Qnil as rb_sys::VALUE
    })
    .map(drop)
}

/// Whether [`without_gvl`] could release the GVL. With an interrupt pending it could not.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gvl {
    Released,
    Kept,
}

/// Runs `work` without the GVL, so that other threads of Ruby run meanwhile. It cannot be interrupted.
pub(crate) fn without_gvl<R: Send>(work: impl FnOnce(Gvl) -> R + Send) -> R {
    struct Call<W, R> {
        work: Option<W>,
        gvl: Gvl,
        done: Option<std::thread::Result<R>>,
    }
    unsafe extern "C" fn run<W: FnOnce(Gvl) -> R, R>(call: *mut c_void) -> *mut c_void {
        // SAFETY: `call` is the `Call` below, which nothing else looks at meanwhile.
        let call = unsafe { &mut *call.cast::<Call<W, R>>() };
        if let Some(work) = call.work.take() {
            call.done = Some(catch_unwind(AssertUnwindSafe(|| work(call.gvl))));
        }
        std::ptr::null_mut()
    }
    fn runner<W: FnOnce(Gvl) -> R, R>(_: &Call<W, R>) -> unsafe extern "C" fn(*mut c_void) -> *mut c_void {
        run::<W, R>
    }
    let mut call = Call { work: Some(work), gvl: Gvl::Released, done: None };
    let run = runner(&call);
    let pointer = (&raw mut call).cast::<c_void>();
    // SAFETY: `work` touches nothing of Ruby's, since it is `Send`. This variant raises nothing: with an interrupt pending it
    // returns at once.
    unsafe {
        rb_thread_call_without_gvl2(run, pointer, None, std::ptr::null_mut());
        if call.work.is_some() {
            call.gvl = Gvl::Kept;
            run(pointer);
        }
    }
    match call.done.expect("ran") {
        Ok(done) => done,
        Err(panic) => resume_unwind(panic),
    }
}
