//! Forwards bursts, and writes publications to many connections from one task, so that the tasks of the connections need not be woken.

use std::mem;
use std::sync::{Arc, Mutex, Weak};

use tokio::runtime::{Handle, Id};

use crate::budget::charge;
use crate::client::Client;
use crate::outbox;
use crate::shards::lock;
use crate::undelivered::Load;

/// The maximum number of connections that one task writes to. Further tasks can run on other workers.
const TASK_LEN: usize = 128;

/// The number of connections that are written to at once: their messages stay in the processor's caches meanwhile.
const FANOUT_LEN: usize = 64;

thread_local! {
    /// Work of this thread's publications that no task has taken yet.
    static DUE: Arc<Mutex<Due>> = Arc::default();
}

#[derive(Default)]
struct Due {
    /// The runtime of the task that takes the work.
    runtime: Option<Id>,
    work: Work,
}

#[derive(Default)]
struct Work {
    bursts: Vec<DueBurst>,
    unwritten: Unwritten,
}

/// The burst of a channel that is to be forwarded. `Drop` forwards it if its task never ran because the runtime has ended: otherwise later
/// publications would join a burst that is never forwarded.
struct DueBurst(Option<(Weak<dyn FanOut>, Arc<str>)>);

impl DueBurst {
    fn forward(&mut self) -> Unwritten {
        let due = self.0.take().and_then(|(node, channel)| Some((node.upgrade()?, channel)));
        due.map(|(node, channel)| node.fan_out(&channel)).unwrap_or_default()
    }
}

impl Drop for DueBurst {
    fn drop(&mut self) {
        drop(self.forward());
    }
}

/// A node, which has channels.
pub(crate) trait FanOut: Send + Sync {
    /// Forwards the burst of a channel to its subscribers.
    fn fan_out(&self, channel: &str) -> Unwritten;
}

/// Has a task of this runtime forward the burst of a channel, and write it, when the publishing task yields.
pub(crate) fn fan_out_later(node: Weak<dyn FanOut>, channel: Arc<str>, runtime: &Handle) {
    Work { bursts: vec![DueBurst(Some((node, channel)))], ..Work::default() }.do_later(runtime);
}

/// Connections whose queued messages a batch must write. What holds a lock returns them: nothing is written where they are collected.
/// Dropping it wakes the tasks of these connections, which then write: the runtime of a batch may have ended.
#[derive(Debug, Default)]
#[must_use = "their messages are queued until a batch writes them"]
pub(crate) struct Unwritten {
    clients: Vec<Arc<Client>>,
    /// The cost of collecting them, in units of a task's budget.
    cost: usize,
    /// Those of the bursts, until all has been written.
    loads: Vec<Arc<Load>>,
}

impl Unwritten {
    pub(crate) fn push(&mut self, client: Arc<Client>) {
        self.clients.push(client);
    }

    pub(crate) fn charge(&mut self, cost: usize) {
        self.cost += cost;
    }

    pub(crate) fn hold(&mut self, load: Load) {
        self.loads.push(Arc::new(load));
    }

    /// Has a task of this runtime write the messages, when the publishing task yields. The calling thread, which may be one of the
    /// engine's, writes nothing.
    pub(crate) fn write_later(self, runtime: &Handle) {
        Work { unwritten: self, ..Work::default() }.do_later(runtime);
    }

    fn append(&mut self, mut more: Self) {
        self.clients.append(&mut more.clients);
        self.loads.append(&mut more.loads);
    }

    /// Leaves as many as one task writes to.
    fn spawn_writes(&mut self) {
        while self.clients.len() > TASK_LEN {
            let clients = self.clients.split_off(self.clients.len() - TASK_LEN);
            let rest = Self { clients, cost: 0, loads: self.loads.clone() };
            tokio::spawn(async move { rest.write() });
        }
    }

    fn write(mut self) {
        for some in self.clients.chunks(FANOUT_LEN) {
            outbox::write_all(some.iter().map(|client| &client.outbox));
        }
        self.clients.clear();
    }
}

impl Drop for Unwritten {
    fn drop(&mut self) {
        self.clients.iter().for_each(|client| client.outbox.wake());
    }
}

impl Work {
    fn is_empty(&self) -> bool {
        self.bursts.is_empty() && self.unwritten.clients.is_empty()
    }

    fn append(&mut self, mut more: Self) {
        self.bursts.append(&mut more.bursts);
        self.unwritten.append(more.unwritten);
    }

    fn do_later(self, runtime: &Handle) {
        if self.is_empty() {
            return;
        }
        // The list does not exist while the thread ends.
        let Ok(due) = DUE.try_with(Arc::clone) else {
            runtime.spawn(self.run());
            return;
        };
        let mut all = lock(&due);
        let is_first = all.work.is_empty();
        if !is_first && all.runtime != Some(runtime.id()) {
            // The other runtime may have been left before its task has run.
            drop(all);
            runtime.spawn(self.run());
            return;
        }
        all.runtime = Some(runtime.id());
        all.work.append(self);
        drop(all);
        if is_first {
            // A runtime that is shut down drops the task at once.
            let mut task = Task(Some(due));
            runtime.spawn(async move { task.take().run().await });
        }
    }

    async fn run(self) {
        let Self { bursts, mut unwritten } = self;
        for mut burst in bursts {
            let forwarded = burst.forward();
            let cost = forwarded.cost;
            unwritten.append(forwarded);
            unwritten.spawn_writes();
            charge(1 + cost).await;
        }
        unwritten.spawn_writes();
        unwritten.write();
    }
}

/// The work of a scheduled task. If the runtime drops the task before it runs, `Drop` takes the work, and the next publication schedules
/// another task.
struct Task(Option<Arc<Mutex<Due>>>);

impl Task {
    fn take(&mut self) -> Work {
        self.0.take().map(|due| mem::take(&mut lock(&due).work)).unwrap_or_default()
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::runtime::{Builder, Runtime};
    use wireloom::{Server, WebSocket};

    use super::*;
    use crate::client::{Identity, Transport};
    use crate::config::HubConfig;
    use crate::engine::Delivery as _;
    use crate::hub::Hub;
    use crate::protocol::{Encoding, Publication, SubscribeRequest};
    use crate::proxy::Headers;
    use crate::subscribe::{self, Request};

    /// A hub, and a WebSocket that receives from it.
    async fn subscribed() -> (Hub, WebSocket) {
        let hub = hub();
        let socket = subscribe(&hub).await;
        (hub, socket)
    }

    fn hub() -> Hub {
        let config = "[client]\nanonymous = true\n[[namespace]]\nname = \"rooms\"\nsubscribe = \"anyone\"\n";
        Hub::builder().config(HubConfig::from_toml(config).unwrap()).build().unwrap()
    }

    async fn subscribe(hub: &Hub) -> WebSocket {
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
        socket
    }

    fn deliver(hub: &Hub, len: usize) {
        let publication = Arc::new(Publication { data: vec![b'1'; len].into(), ..Publication::default() });
        hub.0.deliver_publication("rooms:x", "", 0, &publication).finish();
    }

    fn is_unwritten(hub: &Hub) -> bool {
        hub.0.all_clients().iter().all(|client| client.outbox.backlog().written == 0)
    }

    #[tokio::test]
    async fn forwarding_costs_what_is_encoded() {
        let config = "[channel]\nsubscribe = \"anyone\"\nhistory_size = 10\nhistory_ttl = \"1h\"\n\
                      allowed_delta_types = [\"fossil\"]\n";
        let hub = Hub::builder().config(HubConfig::from_toml(config).unwrap()).build().unwrap();
        let node = &hub.0;
        for (delta, cost) in [("", 8), ("fossil", 64)] {
            let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
            client.connect(Identity::default());
            let channel = format!("x{delta}");
            let command = SubscribeRequest {
                channel: channel.clone(),
                delta: delta.into(),
                recoverable: true,
                ..Default::default()
            };
            let request = Request::from_client(command, &Headers::NONE);
            assert!(subscribe::subscribe(node, &client, request).await.unwrap().start(Vec::new()).await);
            for _ in 0..2 {
                drop(node.fan_out(&channel));
                hub.publish(&channel, vec![b'1'; 64 << 10]).await.unwrap();
            }
            assert_eq!(node.fan_out(&channel).cost, cost, "{delta}");
        }
    }

    /// Engines deliver from threads of their own.
    #[tokio::test]
    async fn the_thread_that_delivers_writes_nothing() {
        let (hub, mut socket) = subscribed().await;
        std::thread::scope(|scope| scope.spawn(|| deliver(&hub, 1)).join().unwrap());
        assert!(is_unwritten(&hub));
        assert_eq!(socket.recv_owned().await.unwrap().unwrap().as_bytes(), b"1");
    }

    #[test]
    fn a_runtime_that_is_left_before_its_batch_holds_up_no_other() {
        let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
        let leave_with_batch = |runtime: &Runtime| {
            let (hub, socket) = runtime.block_on(subscribed());
            runtime.block_on(async { deliver(&hub, 1) });
            assert!(is_unwritten(&hub));
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
                deliver(&hub, 1);
                let received = tokio::time::timeout(Duration::from_secs(10), socket.recv_owned()).await;
                assert_eq!(received.unwrap().unwrap().unwrap().as_bytes(), b"1", "{is_dropped}");
            });
        }
    }

    /// A hub may outlive the runtime in which it was first used, which may end before or after it was to write.
    #[test]
    fn what_is_due_is_sent_although_its_runtime_has_ended() {
        let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
        // The burst is due, or the connection is.
        for (len, ends_before) in [(1, true), (1, false), (128 << 10, true), (128 << 10, false)] {
            let (first, second, hub) = (runtime(), runtime(), hub());
            first.block_on(async { hub.0.start() });
            let mut socket = second.block_on(subscribe(&hub));
            if ends_before {
                drop(first);
                second.block_on(async { deliver(&hub, len) });
            } else {
                first.block_on(async { deliver(&hub, len) });
                drop(first);
            }
            second.block_on(async {
                for len in [len, 1] {
                    let received = tokio::time::timeout(Duration::from_secs(10), socket.recv_owned()).await;
                    let received = received.map(|received| received.unwrap().unwrap().as_bytes().len());
                    assert_eq!(received, Ok(len), "{len} {ends_before}");
                    deliver(&hub, 1);
                }
            });
        }
    }
}
