//! Writes publications to many connections from one task, so that the tasks of the connections need not be woken.

use std::mem;
use std::sync::{Arc, Mutex};

use tokio::runtime::{Handle, Id};

use crate::client::Client;
use crate::outbox;
use crate::shards::lock;

/// The maximum number of connections that one task writes to. Further tasks can run on other workers.
const TASK_LEN: usize = 128;

/// The number of connections that are written to at once: their messages stay in the processor's caches meanwhile.
const FANOUT_LEN: usize = 64;

thread_local! {
    /// The connections with publications from this thread that no task has begun to write.
    static DUE: Arc<Mutex<Due>> = Arc::default();
}

#[derive(Default)]
struct Due {
    /// That of the task which writes to them.
    runtime: Option<Id>,
    clients: Vec<Arc<Client>>,
}

/// Connections whose queued messages a batch must write. What holds a lock returns them: nothing is written where they are collected.
#[derive(Debug, Default)]
#[must_use = "their messages are queued until a batch writes them"]
pub(crate) struct Unwritten(Vec<Arc<Client>>);

impl Unwritten {
    pub(crate) fn push(&mut self, client: Arc<Client>) {
        self.0.push(client);
    }

    /// Has a task of this runtime write the messages, when the publishing task yields. The calling thread, which may be one of the
    /// engine's, writes nothing.
    pub(crate) fn write_later(self, runtime: &Handle) {
        let Self(mut clients) = self;
        if clients.is_empty() {
            return;
        }
        // The list does not exist while the thread ends.
        let Ok(due) = DUE.try_with(Arc::clone) else {
            runtime.spawn(async move { write(&clients) });
            return;
        };
        let mut all = lock(&due);
        let is_first = all.clients.is_empty();
        if !is_first && all.runtime != Some(runtime.id()) {
            // The other runtime may have been left before its task has run.
            drop(all);
            runtime.spawn(async move { write(&clients) });
            return;
        }
        all.runtime = Some(runtime.id());
        all.clients.append(&mut clients);
        drop(all);
        if is_first {
            // A runtime that is shut down drops the task at once.
            runtime.spawn(write_due(Task(Some(due))));
        }
    }
}

/// What a task writes. If it is dropped before it has run, with its runtime, so is what the list has: the next one begins anew.
struct Task(Option<Arc<Mutex<Due>>>);

impl Task {
    fn take(&mut self) -> Vec<Arc<Client>> {
        self.0.take().map(|due| mem::take(&mut lock(&due).clients)).unwrap_or_default()
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        drop(self.take());
    }
}

async fn write_due(mut task: Task) {
    let mut clients = task.take();
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::runtime::{Builder, Runtime};
    use wireloom::{Server, WebSocket};

    use super::*;
    use crate::config::HubConfig;
    use crate::engine::Delivery as _;
    use crate::hub::Hub;
    use crate::protocol::Publication;

    /// A hub, and a WebSocket that receives from it.
    async fn subscribed() -> (Hub, WebSocket) {
        let config = "[client]\nanonymous = true\n[[namespace]]\nname = \"rooms\"\nsubscribe = \"anyone\"\n";
        let hub = Hub::builder().config(HubConfig::from_toml(config).unwrap()).build().unwrap();
        let server = Server::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/rooms/x", server.local_addr().unwrap());
        let answering = hub.clone();
        tokio::spawn(server.serve(move |request| {
            let hub = answering.clone();
            async move { hub.answer(request).await }
        }));
        let socket = wireloom::connect(&url).await.unwrap();
        // Batches write to connections that are idle.
        while hub.stats().channels == 0 {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        (hub, socket)
    }

    fn deliver(hub: &Hub) {
        let publication = Arc::new(Publication { data: "1".into(), ..Publication::default() });
        hub.0.deliver_publication("rooms:x", "", 0, &publication);
    }

    /// Engines deliver from threads of their own, with their histories locked.
    #[tokio::test]
    async fn the_thread_that_delivers_writes_nothing() {
        let (hub, mut socket) = subscribed().await;
        std::thread::scope(|scope| scope.spawn(|| deliver(&hub)).join().unwrap());
        assert_eq!(hub.slowest(10).len(), 1);
        assert_eq!(socket.recv_owned().await.unwrap().unwrap().as_bytes(), b"1");
    }

    #[test]
    fn a_runtime_that_is_left_before_its_batch_holds_up_no_other() {
        let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
        let leave_with_batch = |runtime: &Runtime| {
            let (hub, socket) = runtime.block_on(subscribed());
            runtime.block_on(async { deliver(&hub) });
            assert_eq!(hub.slowest(10).len(), 1);
            (hub, socket)
        };
        let mut left: Vec<Runtime> = Vec::new();
        for is_dropped in [true, false] {
            let first = runtime();
            let _connected = leave_with_batch(&first);
            if is_dropped {
                drop(first);
            } else {
                left.push(first);
            }
            runtime().block_on(async {
                let (hub, mut socket) = subscribed().await;
                deliver(&hub);
                let received = tokio::time::timeout(Duration::from_secs(10), socket.recv_owned()).await;
                assert_eq!(received.unwrap().unwrap().unwrap().as_bytes(), b"1", "{is_dropped}");
            });
        }
    }
}
