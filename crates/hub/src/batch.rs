//! Writes publications to many connections from one task, so that the tasks of the connections need not be woken.

use std::mem;
use std::sync::{Arc, Mutex};

use tokio::runtime::Handle;

use crate::client::Client;
use crate::outbox;
use crate::shards::lock;

/// The maximum number of connections that one task writes to. Further tasks can run on other workers.
const TASK_LEN: usize = 128;

/// The number of connections that are written to at once: their messages stay in the processor's caches meanwhile.
const FANOUT_LEN: usize = 64;

thread_local! {
    /// The connections with publications from this thread that no task has begun to write.
    static DUE: Arc<Due> = Arc::default();
}

type Due = Mutex<Vec<Arc<Client>>>;

/// Writes the messages of these clients when the publishing task yields.
pub(crate) fn write_later(mut clients: Vec<Arc<Client>>) {
    if clients.is_empty() {
        return;
    }
    // The list does not exist while the thread ends.
    let due = DUE.try_with(Arc::clone);
    let (Ok(due), Ok(runtime)) = (due, Handle::try_current()) else { return write(&clients) };
    let mut all = lock(&due);
    if all.is_empty() {
        runtime.spawn(write_due(due.clone()));
    }
    all.append(&mut clients);
}

async fn write_due(due: Arc<Due>) {
    let mut clients = mem::take(&mut *lock(&due));
    while clients.len() > TASK_LEN {
        let rest = clients.split_off(clients.len() - TASK_LEN);
        tokio::spawn(async move { write(&rest) });
    }
    write(&clients);
}

fn write(clients: &[Arc<Client>]) {
    for some in clients.chunks(FANOUT_LEN) {
        outbox::write_all(some.iter().map(|client| &client.outbox));
    }
}
