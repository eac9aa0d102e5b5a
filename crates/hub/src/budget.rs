//! The prices of what clients ask for, which the task that does it pays.
//!
//! The currency is tokio's budget for one turn of a task ([`tokio::task::coop`]): after 128 units it is polled again behind the others that
//! are ready. A unit is meant as some 8 µs, a turn
//! as about a millisecond; the prices are estimates.

use std::sync::Arc;

use tokio::task::coop::consume_budget;

use crate::protocol::Publication;

/// The units of a turn.
pub(crate) const TURN: usize = 128;

/// The minimum cost of a command.
pub(crate) const COMMAND: usize = 1;

/// The least cost of a command that reads from a channel, or subscribes to it.
pub(crate) const READ: usize = 32;

/// The number of clients or publications whose reading costs one unit.
pub(crate) const READ_PER_UNIT: usize = 16;

/// The number of bytes that cost one unit: those of commands are decoded, those of replies encoded and copied.
pub(crate) const BYTES_PER_UNIT: usize = 8 << 10;

/// The number of bytes that cost one unit where a delta is searched for.
pub(crate) const DELTA_BYTES_PER_UNIT: usize = 1 << 10;

/// The cost of the end of a subscription.
pub(crate) const LEAVE: usize = 16;

/// The number of subscribers to whom a join or a leave is sent for one unit: most are written to by a system call of their own.
pub(crate) const ANNOUNCED_PER_UNIT: usize = 4;

/// The number of deliveries of a publication that cost its publisher one unit. Most of their cost is that of tasks that forward and write.
pub(crate) const DELIVERIES_PER_UNIT: usize = 2 << 10;

/// The number of visits of subscribers that cost the task which forwards a burst one unit.
pub(crate) const VISITS_PER_UNIT: usize = 512;

/// The number of such visits for which a publication is filtered or compared.
pub(crate) const COSTLY_PER_UNIT: usize = 32;

/// The number of histories that maintenance looks at for one unit.
pub(crate) const LOOKS_PER_UNIT: usize = 64;

/// The cost of publications that are read and sent.
pub(crate) fn of_publications(publications: &[Arc<Publication>]) -> usize {
    let len: usize = publications.iter().map(|publication| publication.data.len()).sum();
    publications.len() / READ_PER_UNIT + len / BYTES_PER_UNIT
}

/// Charges work to the turn of the task: others should not wait for all that this task has to do. Unlike `yield_now`, it counts across
/// what the task does in one turn.
pub(crate) async fn charge(units: usize) {
    for _ in 0..units {
        consume_budget().await;
    }
}
