//! The DEFLATE codecs of a thread, shared by its connections.

use std::cell::RefCell;

use wireloom_ws::deflate::DeflatePool;

/// Inflating codecs that a thread keeps, of 48 KB each.
const INFLATERS_MAX: usize = 32;

/// Deflating codecs that a thread keeps, of 280 KB each by default.
const DEFLATERS_MAX: usize = 8;

thread_local! {
    static POOL: RefCell<DeflatePool> = const { RefCell::new(DeflatePool::new(INFLATERS_MAX, DEFLATERS_MAX)) };
}

/// Calls `run` with this thread's pool. While the thread ends there is none, and a codec stays with its connection.
pub(super) fn with(run: impl FnOnce(&mut DeflatePool)) {
    let _ = POOL.try_with(|pool| run(&mut pool.borrow_mut()));
}
