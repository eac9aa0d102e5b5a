//! The way from Ruby into Rust. Every exported method is defined by [`method!`] or [`function!`] of this module, whose
//! wrappers turn panics into `Wireloom::InternalError`; magnus's own raise `fatal`, which ends the process. A panic below
//! [`protect`] gets there as well; below that of magnus it ends the process. A test fails when a file uses those.

use magnus::error::ErrorType;
use magnus::prelude::*;
use magnus::rb_sys::{protect as protect_without_panics, resume_error};
use magnus::{Error, Exception, ExceptionClass, RModule, Ruby, Value};
use rb_sys::VALUE;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::exclusive::LostInFork;
use crate::held::Immortal;
use crate::strings;

static ERROR: Immortal<ExceptionClass> = Immortal::new();
static INTERNAL_ERROR: Immortal<ExceptionClass> = Immortal::new();

pub(crate) fn init(ruby: &Ruby, wireloom: RModule) -> Result<(), Error> {
    let error = wireloom.define_error("Error", ruby.exception_standard_error())?;
    ERROR.set(ruby, error);
    let internal = wireloom.define_error("InternalError", error)?;
    INTERNAL_ERROR.set(ruby, internal);
    internal.define_singleton_method("provoke", function!(provoke, 0))?;
    internal.funcall::<_, _, Value>("private_class_method", (ruby.to_symbol("provoke"),))?;
    Ok(())
}

/// `InternalError.provoke`, which is private: panics where most work is done, for the test that it can be rescued.
fn provoke() -> Result<(), Error> {
    protect(|| panic!("provoked")).map(drop)
}

/// Runs `work`, through which Ruby may raise: it has nothing to drop then.
///
/// # Errors
/// An exception, a throw, or the end of the thread.
#[inline]
pub(crate) fn protect(work: impl FnOnce() -> VALUE) -> Result<VALUE, Error> {
    let mut panicked = None;
    let done = protect_without_panics(|| {
        // No panic may pass the frames of Ruby.
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
            panicked = Some(panic);
            rb_sys::Qnil as VALUE
        })
    });
    match panicked {
        Some(panic) => resume_unwind(panic),
        None => done,
    }
}

/// Runs `work`, which makes objects but calls no method, and has nothing to drop when Ruby raises.
///
/// # Errors
/// There is no memory for an object.
#[inline]
pub(crate) fn making<R>(work: impl FnOnce() -> R) -> Result<R, Error> {
    let mut made = None;
    protect(|| {
        made = Some(work());
        rb_sys::Qnil as VALUE
    })?;
    Ok(made.expect("`work` returned"))
}

/// Runs an exported method: a panic in it becomes `Wireloom::InternalError`, and an error is raised once nothing of Rust is
/// left to be dropped.
///
/// # Safety
/// Ruby calls this, by a function that has nothing to drop.
#[inline]
pub(crate) unsafe fn enter(work: impl FnOnce(&Ruby) -> Result<Value, Error>) -> Value {
    // SAFETY: Ruby called.
    let ruby = unsafe { Ruby::get_unchecked() };
    let error = match catch_unwind(AssertUnwindSafe(|| work(&ruby))) {
        Ok(Ok(value)) => return value,
        Ok(Err(error)) => error,
        Err(panic) => internal_error(&ruby, panic),
    };
    // `initialize` may throw, and another thread may kill this one meanwhile: `resume_error` would end the process.
    let error = made(&ruby, error);
    // SAFETY: the error is moved in, and nothing else is alive.
    unsafe { resume_error(error) }
}

/// The error with its exception made, or what ended that.
pub(crate) fn made(ruby: &Ruby, error: Error) -> Error {
    exception(ruby, error).map_or_else(|error| error, Error::from)
}

/// The exception of an error, made where it was not yet. The memory of its message is freed before: `initialize` is the program's, and may
/// never return, in a Fiber that is abandoned, or return twice, by a continuation.
///
/// # Errors
/// A throw or the end of a thread, which is no exception; or whatever `initialize` raised.
pub(crate) fn exception(ruby: &Ruby, error: Error) -> Result<Exception, Error> {
    let (class, message) = match error.error_type() {
        ErrorType::Error(class, message) => {
            (*class, strings::protected(ruby, |ruby| strings::text(ruby, message)))
        }
        ErrorType::Exception(exception) => return Ok(*exception),
        ErrorType::Jump(_) => return Err(error),
    };
    drop(error);
    class.new_instance((message?,))
}

/// The same for a method of `rb_self`.
///
/// # Safety
/// As for [`enter`].
#[inline]
pub(crate) unsafe fn enter_any(_: Value, work: impl FnOnce(&Ruby) -> Result<Value, Error>) -> Value {
    // SAFETY: the caller vouches for it.
    unsafe { enter(work) }
}

/// The same for a method that changes `rb_self`: FrozenError when that is frozen.
///
/// # Safety
/// As for [`enter`].
#[inline]
pub(crate) unsafe fn enter_mut(rb_self: Value, work: impl FnOnce(&Ruby) -> Result<Value, Error>) -> Value {
    // SAFETY: the caller vouches for it.
    unsafe {
        enter(|ruby| {
            rb_self.check_frozen()?;
            work(ruby)
        })
    }
}

#[cold]
fn internal_error(ruby: &Ruby, panic: Box<dyn Any + Send>) -> Error {
    if panic.is::<LostInFork>() {
        let message = "a thread was working on this object when the process forked; make a new one";
        return Error::new(ERROR.get(ruby), message);
    }
    let class = INTERNAL_ERROR.get(ruby);
    let message = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(message), _) => message,
        (_, Some(message)) => message.as_str(),
        _ => "no message",
    };
    Error::new(class, format!("a bug in wireloom: {message}"))
}

/// A method of an object: a function that takes `&Ruby` or not, `self` and as many arguments as the arity says (-1: a slice of
/// them). `method!(mut function, arity)` changes the object, which must not be frozen.
macro_rules! method {
    (mut $f:expr, $arity:tt) => { crate::guard::method!(@arity enter_mut, $f, $arity) };
    (mut $f:expr, -1) => { crate::guard::method!(@many enter_mut, $f) };
    ($f:expr, $arity:tt) => { crate::guard::method!(@arity enter_any, $f, $arity) };
    ($f:expr, -1) => { crate::guard::method!(@many enter_any, $f) };
    (@many $enter:ident, $f:expr) => {{
        unsafe extern "C" fn exported(
            argc: std::ffi::c_int,
            argv: *const magnus::Value,
            rb_self: magnus::Value,
        ) -> magnus::Value {
            #[allow(unused_imports)]
            use magnus::method::{MethodCAry, RubyMethodCAry};
            // SAFETY: Ruby calls this, with as many arguments as it says.
            unsafe {
                crate::guard::$enter(rb_self, |ruby| $f.call_convert_value(ruby, argc, argv, rb_self))
            }
        }
        exported as unsafe extern "C" fn(std::ffi::c_int, *const magnus::Value, magnus::Value) -> magnus::Value
    }};
    (@arity $enter:ident, $f:expr, 0) => { crate::guard::method!(@fixed $enter, $f, Method0, RubyMethod0,) };
    (@arity $enter:ident, $f:expr, 1) => { crate::guard::method!(@fixed $enter, $f, Method1, RubyMethod1, a) };
    (@arity $enter:ident, $f:expr, 2) => { crate::guard::method!(@fixed $enter, $f, Method2, RubyMethod2, a b) };
    (@arity $enter:ident, $f:expr, 3) => { crate::guard::method!(@fixed $enter, $f, Method3, RubyMethod3, a b c) };
    (@arity $enter:ident, $f:expr, 4) => { crate::guard::method!(@fixed $enter, $f, Method4, RubyMethod4, a b c d) };
    (@arity $enter:ident, $f:expr, 5) => { crate::guard::method!(@fixed $enter, $f, Method5, RubyMethod5, a b c d e) };
    (@arity $enter:ident, $f:expr, 6) => { crate::guard::method!(@fixed $enter, $f, Method6, RubyMethod6, a b c d e f) };
    (@fixed $enter:ident, $f:expr, $method:ident, $ruby_method:ident, $($arg:ident)*) => {{
        unsafe extern "C" fn exported(rb_self: magnus::Value, $($arg: magnus::Value),*) -> magnus::Value {
            #[allow(unused_imports)]
            use magnus::method::{$method, $ruby_method};
            // SAFETY: Ruby calls this.
            unsafe { crate::guard::$enter(rb_self, |ruby| $f.call_convert_value(ruby, rb_self, $($arg),*)) }
        }
        exported as unsafe extern "C" fn(magnus::Value, $(crate::guard::method!(@value $arg)),*) -> magnus::Value
    }};
    (@value $arg:ident) => { magnus::Value };
}

/// A method of a module: the same without `self`.
macro_rules! function {
    ($f:expr, 0) => { crate::guard::function!(@fixed $f, Function0, RubyFunction0,) };
    ($f:expr, 1) => { crate::guard::function!(@fixed $f, Function1, RubyFunction1, a) };
    ($f:expr, 2) => { crate::guard::function!(@fixed $f, Function2, RubyFunction2, a b) };
    ($f:expr, 3) => { crate::guard::function!(@fixed $f, Function3, RubyFunction3, a b c) };
    ($f:expr, 4) => { crate::guard::function!(@fixed $f, Function4, RubyFunction4, a b c d) };
    ($f:expr, 5) => { crate::guard::function!(@fixed $f, Function5, RubyFunction5, a b c d e) };
    (@fixed $f:expr, $function:ident, $ruby_function:ident, $($arg:ident)*) => {{
        unsafe extern "C" fn exported(_module: magnus::Value, $($arg: magnus::Value),*) -> magnus::Value {
            #[allow(unused_imports)]
            use magnus::method::{$function, $ruby_function};
            // SAFETY: Ruby calls this.
            unsafe { crate::guard::enter(|ruby| $f.call_convert_value(ruby, $($arg),*)) }
        }
        exported as unsafe extern "C" fn(magnus::Value, $(crate::guard::method!(@value $arg)),*) -> magnus::Value
    }};
}

pub(crate) use {function, method};
