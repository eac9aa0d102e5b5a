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
        if all.is_empty() {
            runtime.spawn(write_due(due.clone()));
        }
        all.append(&mut clients);
    }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wireloom::Server;

    use super::*;
    use crate::config::HubConfig;
    use crate::engine::Delivery as _;
    use crate::hub::Hub;
    use crate::protocol::Publication;

    /// Engines deliver from threads of their own, with their histories locked.
    #[tokio::test]
    async fn the_thread_that_delivers_writes_nothing() {
        let config = "[client]\nanonymous = true\n[[namespace]]\nname = \"rooms\"\nsubscribe = \"anyone\"\n";
        let hub = Hub::builder().config(HubConfig::from_toml(config).unwrap()).build().unwrap();
        let server = Server::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/rooms/x", server.local_addr().unwrap());
        let answering = hub.clone();
        tokio::spawn(server.serve(move |request| {
            let hub = answering.clone();
            async move { hub.answer(request).await }
        }));
        let mut socket = wireloom::connect(&url).await.unwrap();
        // Batches write to connections that are idle.
        while hub.stats().channels == 0 {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        let publication = Arc::new(Publication { data: "1".into(), ..Publication::default() });
        let deliver = || hub.0.deliver_publication("rooms:x", "", 0, &publication);
        std::thread::scope(|scope| scope.spawn(deliver).join().unwrap());
        assert_eq!(hub.slowest(10).len(), 1);
        assert_eq!(socket.recv_owned().await.unwrap().unwrap().as_bytes(), b"1");
    }
}
