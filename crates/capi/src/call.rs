//! The border: every exported function is the body of one [`call`].

use crate::status::wl_status;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of an exported function. A panic becomes [`wl_status::Panicked`]: it must not reach C.
#[inline]
pub(crate) fn call<R: Into<Done>>(body: impl FnOnce() -> Result<R, wl_status>) -> wl_status {
    // `Table::with` makes an object unusable when its call panicked, and nothing else outlives the call.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(done)) => done.into().0,
        Ok(Err(status)) => status,
        Err(panic) => {
            // Dropping it could panic again.
            std::mem::forget(panic);
            wl_status::Panicked
        }
    }
}

/// The status of a successful call.
pub(crate) struct Done(wl_status);

impl From<()> for Done {
    #[inline]
    fn from((): ()) -> Self {
        Self(wl_status::Ok)
    }
}

impl From<wl_status> for Done {
    #[inline]
    fn from(status: wl_status) -> Self {
        Self(status)
    }
}
