//! Memory of one connection for one use.

use super::account::Account;
use super::{Category, Exhausted};

/// Reservations are rounded up to multiples of this many bytes.
pub(super) const GRANULE: usize = 16 << 10;

/// A reservation of at most this many bytes is not counted.
pub(crate) const FREE_LEN: usize = 4 << 10;

/// Memory of one connection for one use. Dropping it frees the reserved bytes.
#[derive(Debug)]
pub(crate) struct Reservation {
    account: Account,
    granules: u32,
    category: Category,
}

impl Reservation {
    pub(super) fn new(account: Account, category: Category) -> Self {
        Self { account, granules: 0, category }
    }

    /// The account of the connection.
    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    /// Reports that `len` bytes are held now. No atomic operation unless that changes the number of granules.
    #[inline]
    pub(crate) fn set(&mut self, len: usize) {
        let granules = granules_of(len);
        if granules != self.granules {
            self.change(granules);
        }
    }

    /// Reserves `len` bytes in all before they are allocated.
    ///
    /// # Errors
    /// The limit would be exceeded; nothing has changed.
    #[inline]
    pub(crate) fn try_set(&mut self, len: usize) -> Result<(), Exhausted> {
        let granules = granules_of(len);
        if granules > self.granules {
            self.try_grow(granules)?;
        } else if granules < self.granules {
            self.change(granules);
        }
        Ok(())
    }

    /// Moves the reserved bytes to a reservation of their own; `None` if there are none.
    #[cfg(feature = "server")]
    pub(crate) fn take(&mut self) -> Option<Self> {
        (self.granules > 0).then(|| Self {
            account: self.account.clone(),
            granules: std::mem::take(&mut self.granules),
            category: self.category,
        })
    }

    #[cold]
    fn try_grow(&mut self, granules: u32) -> Result<(), Exhausted> {
        self.account.try_add(self.category, (granules - self.granules) as usize * GRANULE)?;
        self.granules = granules;
        Ok(())
    }

    #[cold]
    fn change(&mut self, granules: u32) {
        let before = std::mem::replace(&mut self.granules, granules);
        let len = before.abs_diff(granules) as usize * GRANULE;
        if granules > before {
            self.account.add(self.category, len);
        } else {
            self.account.subtract(self.category, len);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.granules > 0 {
            self.change(0);
        }
    }
}

fn granules_of(len: usize) -> u32 {
    if len <= FREE_LEN { 0 } else { len.div_ceil(GRANULE).try_into().unwrap_or(u32::MAX) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{Memory, lock};
    use super::*;

    const MAX: usize = 64 * GRANULE;

    #[test]
    fn counts_in_granules_and_small_amounts_not_at_all() {
        let memory = Memory::new(MAX);
        let account = memory.account();
        let mut queue = account.reservation(Category::SendQueue);
        for (len, expected) in [
            (0, 0),
            (FREE_LEN, 0),
            (FREE_LEN + 1, GRANULE),
            (GRANULE, GRANULE),
            (GRANULE + 1, 2 * GRANULE),
            (FREE_LEN, 0),
            (3 * GRANULE, 3 * GRANULE),
        ] {
            queue.set(len);
            assert_eq!((memory.stats().total, memory.stats().send_queues), (expected, expected), "{len}");
        }
        drop(queue);
        assert_eq!(memory.stats().total, 0);
        drop(account);
        assert_eq!(lock(&memory.accounts).len(), 0);
    }

    #[test]
    fn accounts_have_places_of_their_own_and_leave_nothing_behind() {
        let memory = Memory::new(MAX);
        let mut rng = fastrand::Rng::with_seed(7);
        let mut accounts = Vec::new();
        for _ in 0..1_000 {
            match rng.bool() || accounts.is_empty() {
                true => accounts.push(memory.account()),
                false => drop(accounts.swap_remove(rng.usize(..accounts.len()))),
            }
            let listed: Vec<_> = lock(&memory.accounts).iter().filter_map(std::sync::Weak::upgrade).collect();
            assert_eq!((listed.len(), lock(&memory.accounts).len()), (accounts.len(), accounts.len()));
            assert!(listed.iter().all(|account| lock(&memory.accounts).iter().nth(account.key()).is_some()));
        }
        drop(accounts);
        assert_eq!(lock(&memory.accounts).iter().count(), 0);
    }

    #[test]
    fn refuses_what_exceeds_the_limit() {
        let memory = Memory::new(MAX);
        let account = memory.account();
        let mut body = account.reservation(Category::Body);
        assert_eq!(body.try_set(MAX - 1), Ok(()));
        assert_eq!(body.try_set(MAX), Ok(()));
        assert!(!account.takes_new_work());
        assert_eq!(body.try_set(MAX + 1), Err(Exhausted));
        assert_eq!((memory.stats().bodies, memory.stats().refused), (MAX, 2));
        // A client's account has no limit.
        let mut free = Account::default().reservation(Category::Body);
        assert_eq!(free.try_set(usize::MAX), Ok(()));
        assert_eq!(memory.stats().bodies, MAX);
    }

    // Heads cannot evict connections.
    #[test]
    fn heads_use_at_most_half_of_the_memory() {
        let memory = Memory::new(MAX);
        let account = memory.account();
        let mut heads: Vec<Reservation> = (0..33).map(|_| account.reservation(Category::Head)).collect();
        let refused = heads.iter_mut().filter_map(|head| head.try_set(GRANULE).err()).count();
        assert_eq!((refused, memory.stats().heads), (1, MAX / 2));
        assert_eq!(account.reservation(Category::Body).try_set(MAX / 2), Ok(()));
    }

    #[test]
    fn a_group_has_a_limit_of_its_own() {
        let memory = Memory::new(100 * GRANULE);
        let group = memory.group(2 * GRANULE);
        let mut reservations: Vec<Reservation> =
            (0..3).map(|_| memory.account_in(Some(group.clone())).reservation(Category::Assembly)).collect();
        assert_eq!(reservations[0].try_set(GRANULE), Ok(()));
        assert_eq!(reservations[1].try_set(2 * GRANULE), Err(Exhausted));
        assert_eq!(reservations[1].try_set(GRANULE), Ok(()));
        assert_eq!(reservations[2].try_set(GRANULE), Err(Exhausted));
        drop(reservations.remove(0));
        assert_eq!(reservations[1].try_set(GRANULE), Ok(()));
        drop(reservations);
        assert_eq!((group.held(), memory.stats().total, memory.stats().refused), (0, 0, 2));
    }
}
