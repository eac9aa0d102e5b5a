//! Whether a connection is idle, so that its memory is released.

/// Whether bytes have been transferred lately.
///
/// ```text
///  Recent -- check --> Quiet -- check --> Releasing -- the receiver has released its memory --> Released
///    ^                   |                    |                                                    |
///    +-- a read or write +--------------------+----------------------------------------------------+
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Activity {
    /// Since the last check.
    Recent,
    /// None since the last check.
    #[default]
    Quiet,
    /// As `Released`, but the receiver has not released its memory yet.
    Releasing,
    /// None since the memory of the connection was released.
    Released,
}

impl Activity {
    /// Bytes were read or written.
    #[inline]
    pub(super) fn transferred(&mut self) {
        *self = Self::Recent;
    }

    /// Whether nothing has been transferred since the last check, and memory is to be released: by the receiver too, if it `holds` memory.
    pub(super) fn check(&mut self, receiver_holds: bool) -> bool {
        let was_quiet = *self == Self::Quiet;
        *self = match *self {
            Self::Recent => Self::Quiet,
            Self::Quiet if receiver_holds => Self::Releasing,
            Self::Quiet => Self::Released,
            released => released,
        };
        was_quiet
    }

    /// Whether the receiver must free as much memory as it can, once.
    pub(super) fn take_release(&mut self) -> bool {
        let releases = *self == Self::Releasing;
        if releases {
            *self = Self::Released;
        }
        releases
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_released_once_after_two_checks_without_a_transfer() {
        for receiver_holds in [false, true] {
            let mut activity = Activity::default();
            activity.transferred();
            assert_eq!([0; 4].map(|_| activity.check(receiver_holds)), [false, true, false, false]);
            assert_eq!([activity.take_release(), activity.take_release()], [receiver_holds, false]);
            activity.transferred();
            assert!(!activity.check(receiver_holds) && !activity.take_release());
        }
    }
}
