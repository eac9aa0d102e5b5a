//! Tests of a node.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::Node;
use crate::client::{Client, Identity, Page, Transport};
use crate::config::HubConfig;
use crate::connecting::RECENT_MAX;
use crate::engine::{Action, Control, Delivery as _, DiskEngine, EngineError, MemoryEngine};
use crate::events::Host as _;
use crate::history::HistoryQuery;
use crate::hub::{Hub, PublishOptions};
use crate::outbox::Taken;
use crate::protocol::{Disconnect, Encoding, ErrorCode, Publication, SubscribeRequest};
use crate::proxy::Headers;
use crate::rights::{self, Operation, Requester};
use crate::shards::lock;
use crate::subscribe::{Request, subscribe};

/// A client of user 7 that has connected.
fn connected(node: &Node) -> Arc<Client> {
    let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
    assert!(node.identify(&client, Identity { user: "7".into(), ..Identity::default() }));
    node.answered(&client);
    client
}

fn give(node: &Node, action: Action) {
    node.deliver_control(&Control { user: "7".into(), client: String::new(), action });
}

/// Keeps warnings.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN && metadata.is_event()
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Line(String, String);
        impl tracing::field::Visit for Line {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                match field.name() {
                    "message" => self.0 = format!("{value:?}"),
                    name => self.1 += &format!(" {name}={value:?}"),
                }
            }
        }
        let mut line = Line(String::new(), String::new());
        event.record(&mut line);
        lock(&self.0).push(line.0 + &line.1);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn a_shutdown_takes_turns_and_goes_on_without_its_caller() {
    let hub = Hub::builder().build().unwrap();
    let node = &hub.0;
    let clients: Vec<_> = (0..1_000).map(|_| connected(node)).collect();
    let ended = || clients.iter().filter(|client| client.outbox.has_ended()).count();
    {
        let mut shutting_down = pin!(node.shut_down(Duration::from_secs(60)));
        assert!(shutting_down.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    tokio::task::yield_now().await;
    assert!((1..1_000).contains(&ended()), "another task ran when {} had ended", ended());
    let all = async {
        while ended() < 1_000 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
}

#[tokio::test]
async fn a_connection_is_listed_until_its_end_is_reported() {
    let config = HubConfig::from_toml("events.url = \"http://127.0.0.1:1/\"\n").unwrap();
    let hub = Hub::builder().config(config).build().unwrap();
    let node = &hub.0;
    let client = connected(node);
    node.note_opened(&client, node.prepare(&client, None).unwrap());
    // Nothing can be reported while this is held.
    let reporting = node.events.hold();
    std::thread::scope(|scope| {
        let removing = scope.spawn(|| node.remove(&client, &Disconnect::ConnectionClosed));
        while !lock(&node.clients).opened().is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(node.clients_len(), 1);
        drop(reporting);
        removing.join().unwrap();
    });
    assert_eq!(node.clients_len(), 0);
}

#[tokio::test]
async fn a_connection_that_ends_makes_room_for_the_next_one_of_its_user() {
    let config = HubConfig::from_toml("[client]\nconnections_per_user_max = 2\n").unwrap();
    let hub = Hub::builder().config(config).build().unwrap();
    let node = &hub.0;
    let (first, _second) = (connected(node), connected(node));
    let third = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
    assert!(!node.identify(&third, Identity { user: "7".into(), ..Identity::default() }));
    // The engine need not know yet.
    first.outbox.end(Disconnect::ConnectionClosed);
    let fourth = connected(node);
    node.forget(&first, Disconnect::ConnectionClosed).await;
    node.forget(&fourth, Disconnect::ConnectionClosed).await;
    connected(node);
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

#[test]
fn connections_are_woken_after_the_first_runtime_has_ended() {
    let hub = Hub::builder().build().unwrap();
    for _ in 0..2 {
        runtime().block_on(async {
            let client = connected(&hub.0);
            let at = hub.0.clock.now() + Duration::from_millis(10);
            assert!(!hub.0.is_due(&client, at));
            let woken = async {
                while client.wakes_at.get().is_some() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), woken).await.unwrap();
        });
    }
}

async fn changes_are_made(node: &Node) {
    while !lock(&node.changes).is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_command_that_is_no_longer_kept_ends_those_who_were_connecting() {
    let hub = Hub::builder().build().unwrap();
    let node = &hub.0;
    let accept = || node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
    let disconnect = |user: &str| {
        let action = Action::Disconnect { code: 3503, reason: String::new(), except: Vec::new() };
        node.deliver_control(&Control { user: user.into(), client: String::new(), action });
    };
    let is_ended = |client: Arc<Client>, user: &str| {
        assert!(node.identify(&client, Identity { user: user.into(), ..Identity::default() }));
        node.answered(&client);
        client.outbox.has_ended()
    };
    let (one, anonymous, in_time, other) = (accept(), accept(), accept(), accept());
    disconnect("7");
    (1..RECENT_MAX).for_each(|_| disconnect("8"));
    assert!(!is_ended(in_time, "9"));
    disconnect("8");
    let later = accept();
    assert_eq!([is_ended(one, "7"), is_ended(other, "9")], [true, true]);
    assert_eq!([is_ended(anonymous, ""), is_ended(later, "7")], [false, false]);
}

/// Counts the lines of the log.
#[derive(Clone, Default)]
struct Lines(Arc<AtomicUsize>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn failures_for_many_clients_are_one_line_a_second() {
    let lines = Lines::default();
    let _log = tracing::subscriber::set_default(lines.clone());
    let hub = Hub::builder().build().unwrap();
    let (node, client) = (&hub.0, connected(&hub.0));
    for second in 1..=3 {
        for _ in 0..100 {
            node.note_engine_failure("x", &EngineError::Unavailable("down".into()), "not subscribed");
            node.note_eviction(&client);
        }
        let stats = hub.stats();
        assert_eq!((stats.engine_failures, stats.evicted_slow), (100 * second, 100 * second));
        assert_eq!(lines.0.load(Ordering::Relaxed) as u64, 2 * second);
        tokio::time::advance(Duration::from_secs(1)).await;
    }
}

#[tokio::test]
async fn subscriptions_by_the_server_keep_the_order_of_its_commands() {
    let hub = Hub::builder().build().unwrap();
    let node = &hub.0;
    let client = connected(node);
    for (channel, count) in [("a", 2), ("b", 3), ("c", 4)] {
        for number in 0..count {
            let channel = channel.to_owned();
            give(
                node,
                match number % 2 {
                    0 => Action::Subscribe { channel },
                    _ => Action::Unsubscribe { channel },
                },
            );
        }
    }
    changes_are_made(node).await;
    assert_eq!(["a", "b", "c"].map(|channel| client.is_subscribed(channel)), [false, true, false]);
}

#[tokio::test]
async fn a_room_sees_at_once_that_it_expires() {
    let hub = Hub::builder().build().unwrap();
    let node = &hub.0;
    let client = node.accept(Transport::Room, None, None).unwrap();
    assert!(node.identify(&client, Identity { user: "7".into(), ..Identity::default() }));
    node.answered(&client);
    let polls = Arc::<AtomicUsize>::default();
    let (polled, waiting) = (polls.clone(), client.clone());
    let task = tokio::spawn(poll_fn(move |cx| {
        polled.fetch_add(1, Ordering::Relaxed);
        let _ = waiting.outbox.poll_take(cx, &mut Vec::new());
        std::task::Poll::<()>::Pending
    }));
    tokio::task::yield_now().await;
    give(node, Action::Refresh { expire_at: Some(1) });
    tokio::task::yield_now().await;
    assert_eq!(polls.load(Ordering::Relaxed), 2);
    task.abort();
}

#[tokio::test]
async fn a_refused_subscription_of_the_server_is_logged() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let hub = Hub::builder().build().unwrap();
    let node = &hub.0;
    let client = connected(node);
    give(node, Action::Subscribe { channel: "unknown:a".into() });
    changes_are_made(node).await;
    let lines = lock(&log.0).clone();
    let expected = format!(
        "a subscription that the server made was refused channel=\"unknown:a\" client=\"{}\" user=\"7\" reason=\"unknown channel\"",
        &*client.id.text()
    );
    assert_eq!(lines, [expected]);
    assert_eq!(hub.stats().refused, [(102, 1)].into());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_names_the_setting_in_the_log_once_a_second() {
    const CONFIG: &str = "channel.subscribe = \"anyone\"\n\
        [[namespace]]\nname = \"team\"\nsubscribe = \"anyone\"\nchannel_regex = '^[0-9]+$'\n\
        [[namespace]]\nname = \"page\"\nsubscribe = \"anyone\"\nallowed_origins = [\"https://a.example\"]\n";
    const NAME: &str =
        r#"a channel may not have this name; see channel_regex of its namespace channel="team:x""#;
    const PAGE: &str = "a page may not use a channel; see allowed_origins of its namespace \
        channel=\"page:1\" page=\"https://b.example\"";
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let hub = Hub::builder().config(HubConfig::from_toml(CONFIG).unwrap()).build().unwrap();
    let node = &hub.0;
    let page = Page::with_origin("https://b.example");
    let client = node.accept(Transport::WebSocket(Encoding::Json), None, Some(page)).unwrap();
    client.connect(Identity { user: "7".into(), ..Identity::default() });
    let mut expected = Vec::new();
    for (channel, line) in [("team:1", None), ("team:x", Some(NAME)), ("page:1", Some(PAGE)), ("x", None)] {
        tokio::time::advance(Duration::from_secs(1)).await;
        for _ in 0..3 {
            let (settings, operation) = (node.settings(), Operation::Subscribe { token: "" });
            let requester = Requester::Client(&client);
            let checked =
                rights::check(&settings, &node.clock, &node.warnings, requester, channel, operation);
            assert_eq!(checked.is_err(), line.is_some(), "{channel}");
        }
        expected.extend(line);
        assert_eq!(*lock(&log.0), expected);
    }
}

#[tokio::test]
async fn nothing_is_forwarded_after_the_server_has_unsubscribed_a_client() {
    let hub = Hub::builder().build().unwrap();
    let node = &hub.0;
    let client = connected(node);
    give(node, Action::Subscribe { channel: "a".into() });
    changes_are_made(node).await;
    let publish = async || {
        let before = client.outbox.backlog();
        hub.publish("a", "1").await.unwrap();
        node.settle("a");
        client.outbox.backlog() != before
    };
    assert!(publish().await);
    // This one is still to be made, and holds up no other.
    give(node, Action::Subscribe { channel: "b".into() });
    give(node, Action::Unsubscribe { channel: "a".into() });
    assert!(!publish().await);
    // Nor is a subscription made that is ended before.
    give(node, Action::Unsubscribe { channel: "b".into() });
    changes_are_made(node).await;
    assert!(!client.is_subscribed("b"));
    assert_eq!(node.channels.len(), 0);
}

/// Takes what is queued for a client.
fn take(client: &Client) -> Vec<String> {
    let (mut messages, mut cx) = (Vec::new(), Context::from_waker(Waker::noop()));
    while let Poll::Ready(Taken::Messages) = client.outbox.poll_take(&mut cx, &mut messages) {}
    messages.into_iter().map(|message| message.as_text().unwrap().to_owned()).collect()
}

/// A publication in channel `a` as clients receive it.
fn pushed(data: u32) -> String {
    format!("{{\"push\":{{\"channel\":\"a\",\"pub\":{{\"data\":{data}}}}}}}")
}

/// A publication is received before the action that follows it, although the burst is forwarded only when this task yields.
#[tokio::test]
async fn what_follows_a_publication_is_sent_after_it() {
    let follow = async |act: &dyn Fn(&Arc<Node>, &Arc<Client>)| {
        let config = "[channel]\njoin_leave = true\nforce_push_join_leave = true\n";
        let hub = Hub::builder().config(HubConfig::from_toml(config).unwrap()).build().unwrap();
        let node = &hub.0;
        let client = connected(node);
        give(node, Action::Subscribe { channel: "a".into() });
        changes_are_made(node).await;
        take(&client);
        for number in 1..3 {
            hub.publish("a", number.to_string()).await.unwrap();
        }
        act(node, &client);
        changes_are_made(node).await;
        tokio::task::yield_now().await;
        take(&client)
    };
    let published = [1, 2].map(pushed);
    let unsubscribed = follow(&|node, _| give(node, Action::Unsubscribe { channel: "a".into() })).await;
    assert_eq!(unsubscribed[..2], published);
    assert!(unsubscribed.len() == 3 && unsubscribed[2].contains("unsubscribe"), "{unsubscribed:?}");
    let action = || Action::Disconnect { code: 3503, reason: String::new(), except: Vec::new() };
    assert_eq!(follow(&|node, _| give(node, action())).await, published);
    let shut_down = follow(&|node, _| {
        let mut shutting_down = pin!(node.shut_down(Duration::ZERO));
        let _ = shutting_down.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    });
    assert_eq!(shut_down.await, published);
    let joined = follow(&|node, _| {
        connected(node);
        give(node, Action::Subscribe { channel: "a".into() });
    });
    let joined = joined.await;
    assert_eq!(joined[..2], published);
    assert!(joined.len() == 3 && joined[2].contains("join"), "{joined:?}");
    let lost = follow(&|node, _| node.deliver_history_lost("a")).await;
    assert_eq!(lost, published);
}

/// The engine may have the history locked until then.
#[test]
fn a_delivery_calls_no_engine_before_it_is_finished() {
    let config =
        "[channel]\nsubscribe = \"anyone\"\nhistory_size = 10\nhistory_ttl = \"1h\"\nforce_recovery = true\n";
    // A burst that is full, and one that no runtime can forward later.
    for (len, has_runtime) in [(128 << 10, true), (1, false)] {
        let hub = Hub::builder().config(HubConfig::from_toml(config).unwrap()).build().unwrap();
        let node = &hub.0;
        let mut runtime = Some(runtime());
        let client = runtime.as_ref().unwrap().block_on(async {
            let client = connected(node);
            let command = SubscribeRequest { channel: "a".into(), ..SubscribeRequest::default() };
            let subscribed = subscribe(node, &client, Request::from_client(command, &Headers::NONE)).await;
            assert!(subscribed.unwrap().start(Vec::new()).await);
            client
        });
        runtime.take_if(|_| !has_runtime);
        let data = vec![b'1'; len].into();
        let publication = Arc::new(Publication { data, offset: 1, ..Publication::default() });
        // The history that the client follows was removed.
        let pending = node.deliver_publication("a", "the next history", 0, &publication);
        assert!(client.is_subscribed("a"), "{len}");
        pending.finish();
        assert!(!client.is_subscribed("a"), "{len}");
    }
}

/// A subscriber without a history receives what is published after it has subscribed.
#[tokio::test]
async fn a_subscriber_receives_nothing_that_was_published_before() {
    let hub = Hub::builder().build().unwrap();
    let node = &hub.0;
    let clients = [connected(node), connected(node)];
    for client in &clients {
        hub.publish("a", "1").await.unwrap();
        let subscribed = subscribe(node, client, Request::from_server("a")).await.unwrap();
        hub.publish("a", "2").await.unwrap();
        assert!(subscribed.start(Vec::new()).await);
    }
    node.settle("a");
    assert_eq!(take(&clients[0]), [2, 1, 2].map(pushed));
    assert_eq!(take(&clients[1]), [2].map(pushed));
}

// The server API acknowledges it then: what is published afterwards is not for these connections.
#[tokio::test]
async fn a_disconnect_has_happened_when_it_is_delivered() {
    let hub = Hub::builder().build().unwrap();
    let clients = [connected(&hub.0), connected(&hub.0)];
    give(&hub.0, Action::Disconnect { code: 3503, reason: String::new(), except: Vec::new() });
    assert_eq!(clients.map(|client| client.outbox.has_ended()), [true; 2]);
}

/// A hub whose engine answers later, and its folder.
fn hub_on_disk() -> (Hub, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let engine = DiskEngine::open(directory.path(), MemoryEngine::new(10)).unwrap();
    let config = HubConfig::from_toml("channel.history_size = 10\nchannel.history_ttl = \"1h\"\n").unwrap();
    let hub = Hub::builder().config(config).engine(engine).build().unwrap();
    (hub, directory)
}

#[tokio::test]
async fn an_engine_that_answers_later_has_no_more_than_can_be_written() {
    let (hub, _directory) = hub_on_disk();
    let client = connected(&hub.0);
    for channel in ["a", "b"] {
        (0..5_000).for_each(|_| drop(hub.0.channels.add(channel, client.clone(), false)));
    }
    let publish = |channel| Box::pin(hub.publish(channel, "1"));
    let cx = &mut Context::from_waker(Waker::noop());
    // Those of a channel become one burst: they reach the engine together.
    let [mut first, mut second, mut other] = ["a", "a", "b"].map(publish);
    for publishing in [&mut first, &mut second, &mut other] {
        assert!(publishing.as_mut().poll(cx).is_pending());
    }
    first.await.unwrap();
    second.await.unwrap();
    // The engine stores in the order of the calls, and "c" has no subscribers.
    hub.publish("c", "1").await.unwrap();
    let history = hub.0.history("b", &HistoryQuery::default()).await.unwrap().unwrap();
    assert_eq!(history.position.offset, 0, "it was stored while there was no room");
    assert_eq!(other.await.unwrap().offset, 1);
}

#[tokio::test]
async fn nothing_is_left_of_a_publisher_that_gives_up_while_it_waits_for_room() {
    let (hub, _directory) = hub_on_disk();
    let client = connected(&hub.0);
    for channel in ["a", "b"] {
        (0..5_000).for_each(|_| drop(hub.0.channels.add(channel, client.clone(), false)));
    }
    let publish = |channel, key: &str| {
        let options = PublishOptions { idempotency_key: key.into(), ..PublishOptions::default() };
        Box::pin(hub.publish_with(channel, "1", options))
    };
    let cx = &mut Context::from_waker(Waker::noop());
    let [mut first, mut given_up] = [publish("a", ""), publish("b", "key")];
    assert!(first.as_mut().poll(cx).is_pending() && given_up.as_mut().poll(cx).is_pending());
    // A task of its own would begin to wait.
    tokio::task::yield_now().await;
    drop(given_up);
    first.await.unwrap();
    // The engine stores in the order of the calls: the abandoned publication would be stored before this one.
    hub.publish("c", "1").await.unwrap();
    hub.publish("b", "1").await.unwrap();
    assert_eq!(publish("b", "key").await.unwrap().offset, 2);
}

#[tokio::test]
async fn a_repeated_publication_waits_without_room() {
    let (hub, _directory) = hub_on_disk();
    let client = connected(&hub.0);
    (0..3_000).for_each(|_| drop(hub.0.channels.add("a", client.clone(), false)));
    hub.0.channels.add("b", client, false);
    let cx = &mut Context::from_waker(Waker::noop());
    let mut repeated: Vec<_> = (0..50)
        .map(|_| {
            let options = PublishOptions { idempotency_key: "key".into(), ..PublishOptions::default() };
            Box::pin(hub.publish_with("a", "1", options))
        })
        .collect();
    assert!(repeated.iter_mut().all(|one| one.as_mut().poll(cx).is_pending()));
    // The first one alone leaves room.
    assert!(pin!(hub.0.channels.room("b", 1, false)).poll(cx).is_ready());
    for one in repeated {
        assert_eq!(one.await.unwrap().offset, 1);
    }
}

#[tokio::test]
async fn a_task_does_not_make_many_deliveries_in_one_turn() {
    let hub = Hub::builder().build().unwrap();
    let client = connected(&hub.0);
    (0..20_000).for_each(|_| drop(hub.0.channels.add("a", client.clone(), false)));
    for (channel, at_least) in [("a", 7), ("b", 0)] {
        let mut all = pin!(async {
            for _ in 0..100 {
                hub.publish(channel, "").await.unwrap();
            }
        });
        let mut turns = 0;
        poll_fn(|cx| {
            turns += 1;
            all.as_mut().poll(cx)
        })
        .await;
        assert!((at_least..=2 * at_least + 2).contains(&turns), "{channel}: {turns}");
    }
}

#[tokio::test]
async fn a_lost_lease_ends_connections_that_are_older_than_the_reports_of_their_subscriptions() {
    const CONFIG: &str = "channel.unsubscribe_events = true\n[events]\nurl = \"http://127.0.0.1:9/events\"\n";
    let hub = Hub::builder().build().unwrap();
    let node = &hub.0;
    let [subscribed, other] = [connected(node), connected(node)];
    hub.reload(HubConfig::from_toml(CONFIG).unwrap()).unwrap();
    let client = subscribed.id.to_string();
    node.deliver_control(&Control {
        user: String::new(),
        client,
        action: Action::Subscribe { channel: "a".into() },
    });
    changes_are_made(node).await;
    assert!(subscribed.is_subscribed("a"));
    node.end_opened();
    assert_eq!([&subscribed, &other].map(|client| client.outbox.has_ended()), [true, false]);
}

#[tokio::test]
async fn a_client_that_is_refused_to_end_what_the_server_makes_stays_subscribed() {
    let hub = Hub::builder().build().unwrap();
    let node = &hub.0;
    let client = connected(node);
    let pending = subscribe(node, &client, Request::from_server("a")).await.unwrap();
    assert_eq!(node.unsubscribe_by_client("a", &client).await, Err(ErrorCode::PermissionDenied));
    assert!(pending.start(Vec::new()).await);
    assert_eq!(node.unsubscribe_by_client("a", &client).await, Err(ErrorCode::PermissionDenied));
}

/// The gap of a subscription is found by one task and ended by that, which may be late: the client may have subscribed again.
#[tokio::test]
async fn a_subscription_with_a_gap_is_ended_and_no_later_one() {
    let config = "[channel]\nsubscribe = \"anyone\"\nhistory_size = 10\nhistory_ttl = \"1m\"\n";
    let hub = Hub::builder().config(HubConfig::from_toml(config).unwrap()).build().unwrap();
    let node = &hub.0;
    let client = connected(node);
    let begin = async || {
        let command =
            SubscribeRequest { channel: "a".into(), positioned: true, ..SubscribeRequest::default() };
        subscribe(node, &client, Request::from_client(command, &Headers::NONE)).await.unwrap()
    };
    let miss = || {
        let publication = Arc::new(Publication { offset: 9, ..Publication::default() });
        node.channels.append("a", "other", 8, &publication);
        node.channels.fan_out("a", &|_| {}).0
    };
    for number in 0..8 {
        let [ends_itself, is_pending, is_removed] = [1, 2, 4].map(|bit| number & bit > 0);
        assert!(begin().await.start(Vec::new()).await);
        let lose = || if is_removed { node.channels.lose_history("a") } else { miss() };
        let mut lost = [lose(), miss()].concat();
        if ends_itself {
            node.unsubscribe_by_client("a", &client).await.unwrap();
        } else {
            node.lose_position("a", &lost.remove(0));
        }
        assert!(!client.is_subscribed("a"));
        let mut next = Some(begin().await);
        if !is_pending {
            assert!(next.take().unwrap().start(Vec::new()).await);
        }
        lost.iter().for_each(|client| node.lose_position("a", client));
        if let Some(next) = next {
            assert!(next.start(Vec::new()).await, "{number}");
        }
        assert!(client.is_subscribed("a"), "{number}");
        node.unsubscribe_by_client("a", &client).await.unwrap();
    }
}

#[test]
fn subscriptions_end_after_the_first_runtime_has_ended() {
    let config = "[channel]\nsubscribe = \"anyone\"\npresence = true\n";
    let hub = Hub::builder().config(HubConfig::from_toml(config).unwrap()).build().unwrap();
    let node = &hub.0;
    let [first, second] = [0; 2].map(|_| runtime());
    first.block_on(async { node.start() });
    let subscribe = async |client: &Arc<Client>| {
        let command = SubscribeRequest { channel: "a".into(), ..SubscribeRequest::default() };
        let request = Request::from_client(command, &Headers::NONE);
        assert!(subscribe(node, client, request).await.unwrap().start(Vec::new()).await);
    };
    let is_empty = async || {
        let listed = node.engine().presence("a", usize::MAX).await.unwrap().unwrap().len();
        (listed, node.channels.len(), lock(&node.changes).is_empty()) == (0, 0, true)
    };
    let client = second.block_on(async {
        let client = connected(node);
        subscribe(&client).await;
        client
    });
    drop(first);
    let ending = async {
        node.unsubscribe_by_client("a", &client).await.unwrap();
        assert!(is_empty().await);
        subscribe(&client).await;
        node.forget(&client, Disconnect::ConnectionClosed).await;
        assert!(is_empty().await);
    };
    second.block_on(async { tokio::time::timeout(Duration::from_secs(60), ending).await.unwrap() });
}

/// It waits for the disk when its runtime ends.
#[test]
fn a_change_in_progress_is_made_again_in_the_next_runtime() {
    const CONFIG: &str = "channel.unsubscribe_events = true\n[events]\nurl = \"http://127.0.0.1:9/events\"\n";
    let directory = tempfile::tempdir().unwrap();
    let engine = crate::engine::DiskEngine::open(directory.path(), crate::engine::MemoryEngine::new(10));
    let hub = Hub::builder().config(HubConfig::from_toml(CONFIG).unwrap()).engine(engine.unwrap());
    let hub = hub.build().unwrap();
    let node = &hub.0;
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let client = first.block_on(async {
        let client = connected(node);
        give(node, Action::Subscribe { channel: "a".into() });
        while lock(&client.subscriptions).len() == 0 {
            tokio::task::yield_now().await;
        }
        client
    });
    drop(first);
    runtime().block_on(async {
        node.start();
        tokio::time::timeout(Duration::from_secs(60), changes_are_made(node)).await.unwrap();
    });
    assert!(client.is_subscribed("a"));
}

#[tokio::test]
async fn the_end_of_a_connection_with_many_channels_takes_many_turns() {
    const CHANNELS: usize = 100;
    let hub = Hub::builder().build().unwrap();
    let node = &hub.0;
    // Whether it is dropped halfway.
    for is_dropped in [false, true] {
        let client = connected(node);
        for number in 0..CHANNELS {
            let subscribed = subscribe(node, &client, Request::from_server(&number.to_string())).await;
            assert!(subscribed.unwrap().start(Vec::new()).await);
        }
        let mut turns = 0;
        {
            let mut ending = pin!(node.forget(&client, Disconnect::ConnectionClosed));
            poll_fn(|cx| {
                turns += 1;
                if is_dropped && turns == 3 { Poll::Ready(()) } else { ending.as_mut().poll(cx) }
            })
            .await;
        }
        assert_eq!(turns > CHANNELS / 10, !is_dropped, "{turns}");
        tokio::time::timeout(Duration::from_secs(60), changes_are_made(node)).await.unwrap();
        assert_eq!(node.channels.len(), 0);
        node.remove(&client, &Disconnect::ConnectionClosed);
    }
}

#[test]
fn changes_are_made_in_the_next_runtime() {
    let hub = Hub::builder().build().unwrap();
    let node = &hub.0;
    let first = runtime();
    let client = first.block_on(async {
        let client = connected(node);
        give(node, Action::Subscribe { channel: "a".into() });
        client
    });
    // One is dropped, and the other comes when there is no runtime.
    drop(first);
    give(node, Action::Subscribe { channel: "b".into() });
    assert_eq!(["a", "b"].map(|channel| client.is_subscribed(channel)), [false, false]);
    runtime().block_on(async {
        node.start();
        tokio::time::timeout(Duration::from_secs(60), changes_are_made(node)).await.unwrap();
    });
    assert_eq!(["a", "b"].map(|channel| client.is_subscribed(channel)), [true, true]);
}
