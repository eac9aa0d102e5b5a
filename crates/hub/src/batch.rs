//! Writing what was published to many connections. One task writes to many of them; their own tasks are not woken for it.

use std::mem;
use std::sync::{Arc, Mutex};

use tokio::runtime::Handle;

use crate::client::Client;
use crate::shards::lock;

/// The connections that one task writes to. Other workers of the runtime take over the tasks for the rest.
const TASK_LEN: usize = 128;

thread_local! {
    /// The connections for which something was published on this thread since the task that writes to them began.
    static DUE: Arc<Due> = Arc::default();
}

type Due = Mutex<Vec<Arc<Client>>>;

/// Writes what waits for these clients once the task that publishes has no more to publish at the moment.
pub(crate) fn write_later(mut clients: Vec<Arc<Client>>) {
    if clients.is_empty() {
        return;
    }
    // There is no list while the thread ends.
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
    clients.iter().for_each(|client| client.outbox.write());
}
