//! Values that repeat from connection to connection, kept once for each thread.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::LocalKey;

/// Values that a thread keeps. A server has few configurations, and few answers to the offers of its clients.
const KEPT_MAX: usize = 4;

/// The values that a thread has shared last, the newest at the end.
pub(super) type Kept<T> = RefCell<VecDeque<Arc<T>>>;

/// The value that is kept already, if one is equal; otherwise this one is kept.
pub(super) fn interned<T: PartialEq>(value: T, kept: &'static LocalKey<Kept<T>>) -> Arc<T> {
    let shared = kept.try_with(|kept| kept.borrow().iter().find(|&kept| **kept == value).cloned());
    if let Ok(Some(shared)) = shared {
        return shared;
    }
    let value = Arc::new(value);
    // Nothing is kept while the thread ends. The oldest value is dropped after the borrow.
    let _oldest = kept.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        let oldest = if kept.len() < KEPT_MAX { None } else { kept.pop_front() };
        kept.push_back(value.clone());
        oldest
    });
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static KEPT: Kept<String> = const { RefCell::new(VecDeque::new()) };
    }

    #[test]
    fn equal_values_share_memory() {
        let intern = |value: usize| interned(value.to_string(), &KEPT);
        let values: Vec<_> = (0..KEPT_MAX).map(intern).collect();
        for (number, value) in values.iter().enumerate() {
            assert_eq!(**value, number.to_string());
            assert!(Arc::ptr_eq(value, &intern(number)));
        }
        // The oldest makes room for another.
        assert_eq!(*intern(KEPT_MAX), KEPT_MAX.to_string());
        assert!(Arc::ptr_eq(&values[1], &intern(1)) && !Arc::ptr_eq(&values[0], &intern(0)));
    }
}
