//! Panics of Rust as exceptions of Ruby that can be rescued: `Wireloom::InternalError`. Without this, magnus raises `fatal`,
//! which ends the process.

use magnus::prelude::*;
use magnus::value::Lazy;
use magnus::{Error, ExceptionClass, RModule, Ruby, function};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

static INTERNAL_ERROR: Lazy<ExceptionClass> = Lazy::new(|ruby| {
    ruby.class_object()
        .const_get::<_, RModule>("Wireloom")
        .and_then(|wireloom| wireloom.const_get("InternalError"))
        .unwrap_or_else(|_| ruby.exception_runtime_error())
});

pub(crate) fn init(ruby: &Ruby, wireloom: RModule) -> Result<(), Error> {
    let error = wireloom.define_error("Error", ruby.exception_standard_error())?;
    let internal = wireloom.define_error("InternalError", error)?;
    internal.define_singleton_method("provoke", function!(provoke, 0))?;
    Lazy::force(&INTERNAL_ERROR, ruby);
    Ok(())
}

/// `Wireloom::InternalError.provoke`: panics, for the test that it can be rescued.
fn provoke(ruby: &Ruby) -> Result<(), Error> {
    guard(ruby, || panic!("provoked"))
}

/// Runs `work`; a panic in it becomes `Wireloom::InternalError`. Every function that Ruby calls runs in one.
///
/// Ruby must not raise or throw through `work`: call back into Ruby by magnus, which returns errors.
pub(crate) fn guard<T>(ruby: &Ruby, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(panic) => Err(Error::new(ruby.get_inner(&INTERNAL_ERROR), message(&*panic))),
    }
}

#[cold]
fn message(panic: &(dyn Any + Send)) -> String {
    let said = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(said), _) => said,
        (_, Some(said)) => said.as_str(),
        _ => "no message",
    };
    format!("a bug in wireloom: {said}")
}
