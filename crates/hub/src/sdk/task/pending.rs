//! The commands of a client that wait for their replies.

use std::collections::HashMap;

use tokio::sync::oneshot;

use crate::protocol::{Command, Reply};
use crate::sdk::ClientError;

/// A command that waits for its reply.
pub(super) enum Pending {
    Call(oneshot::Sender<Result<Reply, ClientError>>),
    Subscribe { channel: String, key: u64 },
    Refresh,
    SubRefresh { channel: String, key: u64 },
    Unsubscribe,
}

impl Pending {
    /// Whether it is a call whose caller has given up.
    pub(super) fn has_gone(&self) -> bool {
        matches!(self, Self::Call(done) if done.is_closed())
    }
}

/// Whether a command is still to be sent. One whose caller has given up is not: the caller may make the call again.
pub(super) fn is_wanted(pending: &mut HashMap<u32, Pending>, command: &Command) -> bool {
    let has_gone = pending.get(&command.id).is_some_and(Pending::has_gone);
    if has_gone {
        pending.remove(&command.id);
    }
    !has_gone
}
