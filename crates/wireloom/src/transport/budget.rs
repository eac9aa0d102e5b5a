//! The number of bytes that a task may produce before it yields. On a server they are charged to the connection's share of the processor
//! ([`crate::scheduler`]), elsewhere to tokio's budget for a task.

use std::task::{Context, Poll, ready};

use tokio::task::coop::poll_proceed;

use crate::memory::Account;
use crate::scheduler::Ticket;

/// Bytes that one unit of tokio's budget pays for. A task has 128 units each time it is polled: 1 MiB, about a millisecond of inflating
/// or of copying.
const UNIT: usize = 8 << 10;

/// The most that a task of a client owes: it yields at most 4 times for one long message.
const DEBT_MAX: usize = 4 * 128 * UNIT;

/// Work that has been done and not been paid for.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    debt: usize,
    /// Set while the task waits for the next turn of its connection.
    ticket: Option<Ticket>,
}

impl Budget {
    /// Work of the cost of a read.
    pub(crate) const REQUEST: usize = UNIT;

    /// Adds work that produced this many bytes.
    #[inline]
    pub(crate) fn spend(&mut self, len: usize) {
        self.debt = self.debt.saturating_add(len);
    }

    /// Charges the connection at once, so that its other tasks wait too.
    #[inline]
    pub(crate) fn charge(&mut self, account: &Account) {
        if self.debt >= UNIT && account.has_turns() {
            account.charge(std::mem::take(&mut self.debt));
        }
    }

    /// Whether the task waits for the next turn of its connection.
    pub(crate) fn is_waiting(&self) -> bool {
        self.ticket.is_some()
    }

    /// Pays for the work. Pending when the share of the connection, or the budget of the task, is used up: then the task is polled again
    /// after the others that are ready.
    #[inline]
    pub(crate) fn poll_paid(&mut self, account: &Account, cx: &mut Context<'_>) -> Poll<()> {
        if account.has_turns() {
            self.charge(account);
            return account.poll_turn(&mut self.ticket, cx);
        }
        self.ticket = None;
        self.debt = self.debt.min(DEBT_MAX);
        while self.debt >= UNIT {
            ready!(poll_proceed(cx)).made_progress();
            self.debt -= UNIT;
        }
        Poll::Ready(())
    }

    /// Forgets the work, and does not wait any more.
    pub(crate) fn reset(&mut self, account: &Account) {
        self.debt = 0;
        if let Some(ticket) = self.ticket.take() {
            account.cancel_turn(ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// How often a task yields that produces this many bytes.
    async fn yields(len: usize) -> usize {
        let (mut budget, mut yields) = (Budget::default(), 0);
        budget.spend(len);
        tokio::task::yield_now().await;
        poll_fn(|cx| {
            let paid = budget.poll_paid(&Account::default(), cx);
            yields += usize::from(paid.is_pending());
            paid
        })
        .await;
        yields
    }

    #[tokio::test]
    async fn a_task_yields_in_proportion_to_its_work() {
        let task = |len| async move { tokio::spawn(yields(len)).await.unwrap() };
        assert_eq!(task(UNIT - 1).await, 0);
        assert_eq!(task(128 * UNIT).await, 0);
        assert_eq!(task(129 * UNIT).await, 1);
        assert_eq!(task(257 * UNIT).await, 2);
        assert_eq!(task(usize::MAX).await, 3);
    }
}
