//! The task without a connection: what it answers to replies, pushes, tokens and deadlines.

use std::sync::Mutex;

use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use wireloom::WebSocket;

use super::*;
use crate::fossil;
use crate::protocol::{ConnectResult, ErrorCode, RpcRequest, SendRequest, SubscribePush, UnsubscribePush};
use crate::sdk::Client;
use crate::sdk::queue::{Receiver, queue};
use crate::sdk::subscription::Subscription;

const CHANNEL: &str = "x";

/// A task and its handle, between which at most this number of requests wait.
fn client(requests_max: usize) -> (Client, Task) {
    ClientBuilder::new("ws://127.0.0.1".into()).build(requests_max)
}

/// A task that has no connection, and its handle.
fn task() -> (Task, Client) {
    let builder = ClientBuilder::new("ws://127.0.0.1".into());
    let (client, task) = builder.reconnect_delay(Duration::from_secs(1), Duration::from_secs(1)).build(1);
    (task, client)
}

fn add(task: &mut Task, options: SubscribeOptions) -> Receiver<SubscriptionEvent> {
    let (events, received) = queue(100);
    task.add(CHANNEL.into(), options, events, oneshot::channel().0);
    received
}

/// The commands that are due after this time.
async fn commands_after(task: &mut Task, time: Duration) -> Vec<Command> {
    tokio::time::advance(time).await;
    let earliest = task.entries.values().filter_map(Entry::due_at).min();
    assert!(earliest.is_none_or(|at| task.due_at.is_some_and(|due_at| due_at <= at)), "a deadline is missed");
    let mut commands = VecDeque::new();
    task.handle_deadlines(&mut commands);
    commands.into()
}

/// The subscribe request among some commands; there is one.
fn subscribe_in(commands: &[Command]) -> (u32, SubscribeRequest) {
    let mut requests = commands.iter().filter_map(|command| Some((command.id, command.subscribe.clone()?)));
    let request = requests.next().expect("no subscribe request");
    assert!(requests.next().is_none(), "{commands:?}");
    request
}

fn reply(task: &mut Task, id: u32, result: SubscribeResult) {
    let pending = task.pending.remove(&id).unwrap();
    let reply = Reply { id, subscribe: Some(result), ..Reply::default() };
    task.handle_reply(pending, reply, &mut VecDeque::new());
}

fn push(task: &mut Task, push: Push) {
    task.handle_push(Push { channel: CHANNEL.into(), ..push }).unwrap();
}

fn whole(offset: u64, text: &str) -> Publication {
    Publication { offset, data: format!("{text:?}").into(), ..Publication::default() }
}

fn delta(offset: u64, base: &str, text: &str) -> Publication {
    let delta = fossil::delta(base.as_bytes(), text.as_bytes()).unwrap();
    let delta = String::from_utf8(delta).unwrap();
    Publication { delta: true, ..whole(offset, &delta) }
}

fn result(offset: u64, publications: Vec<Publication>) -> SubscribeResult {
    let recovered = !publications.is_empty();
    SubscribeResult {
        offset,
        epoch: "e".into(),
        recoverable: true,
        delta: true,
        recovered,
        was_recovering: recovered,
        publications,
        ..SubscribeResult::default()
    }
}

/// The offsets and the data that the application has received.
fn received(events: &mut Receiver<SubscriptionEvent>) -> Vec<(u64, String)> {
    let events = std::iter::from_fn(|| events.try_recv());
    let publications = events.filter_map(|event| match event {
        SubscriptionEvent::Publication(one) => {
            Some((one.offset, String::from_utf8(one.data.to_vec()).unwrap()))
        }
        _ => None,
    });
    publications.collect()
}

#[tokio::test(start_paused = true)]
async fn deltas_of_another_base_are_recovered_and_never_delivered() {
    let [one, two, three, four] = ["1", "2", "3", "4"].map(|end| format!("{}{end}", "the same ".repeat(20)));
    let wrong = format!("not {one}");
    let (mut task, _client) = task();
    let mut events = add(&mut task, SubscribeOptions::default().deltas());
    let (id, _) = subscribe_in(&commands_after(&mut task, Duration::ZERO).await);
    reply(&mut task, id, result(5, Vec::new()));
    push(&mut task, Push { publication: Some(whole(6, &one)), ..Push::default() });
    push(&mut task, Push { publication: Some(delta(7, &wrong, &two)), ..Push::default() });
    // One that follows is not taken for a whole payload.
    push(&mut task, Push { publication: Some(delta(8, &two, &three)), ..Push::default() });
    assert_eq!(received(&mut events), [(6, one.clone())]);

    // The same while it recovers.
    let commands = commands_after(&mut task, Duration::from_secs(1)).await;
    assert!(commands[0].unsubscribe.is_some());
    let (id, request) = subscribe_in(&commands);
    assert!(request.recover && (&*request.epoch, request.offset) == ("e", 6), "{request:?}");
    // The server may have sent it before it has received the commands.
    push(&mut task, Push { publication: Some(delta(9, &three, &four)), ..Push::default() });
    let publications = vec![whole(7, &two), delta(8, &wrong, &three), delta(9, &three, &four)];
    reply(&mut task, id, result(9, publications));
    assert_eq!(received(&mut events), [(7, two.clone())]);

    let (id, request) = subscribe_in(&commands_after(&mut task, Duration::from_secs(1)).await);
    assert!(request.recover && request.offset == 7, "{request:?}");
    reply(&mut task, id, result(9, vec![whole(8, &three), delta(9, &three, &four)]));
    assert_eq!(received(&mut events), [(8, three), (9, four)]);
    assert_eq!(task.entries[CHANNEL].position, Some(Position { offset: 9, epoch: "e".into() }));
}

/// Makes a token, or says why there is none.
type Made = oneshot::Sender<Result<String, String>>;

/// A source of tokens that are made when the test says so.
#[derive(Clone, Default)]
struct Source(Arc<Mutex<Vec<Made>>>);

impl Source {
    fn options(&self) -> SubscribeOptions {
        let asked = self.0.clone();
        SubscribeOptions::default().token_source(move || {
            let (made, result) = oneshot::channel();
            asked.lock().unwrap().push(made);
            async { result.await.unwrap() }
        })
    }

    /// The first token that was asked for is made, or not; returns the commands that follow.
    async fn make(&self, task: &mut Task, token: Result<&str, &str>) -> Vec<Command> {
        // It is asked in a task of its own.
        while self.0.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        let made = self.0.lock().unwrap().remove(0);
        made.send(token.map(str::to_owned).map_err(str::to_owned)).unwrap();
        let token = task.tokens.next().await.unwrap();
        let mut commands = VecDeque::new();
        task.handle_token(token, &mut commands);
        commands.into()
    }
}

fn expires_soon() -> SubscribeResult {
    SubscribeResult { expires: true, ttl: 1, ..SubscribeResult::default() }
}

#[tokio::test(start_paused = true)]
async fn a_late_token_subscribes_no_second_time() {
    let source = Source::default();
    let (mut task, _client) = task();
    let _events = add(&mut task, source.options().token("first"));
    let (id, request) = subscribe_in(&commands_after(&mut task, Duration::ZERO).await);
    assert_eq!(request.token, "first");
    reply(&mut task, id, expires_soon());
    // A token is being made when the server ends the subscription.
    assert!(commands_after(&mut task, Duration::from_secs(1)).await.is_empty());
    let unsubscribe = Some(UnsubscribePush { code: 2500, reason: String::new() });
    push(&mut task, Push { unsubscribe, ..Push::default() });
    let (id, _) = subscribe_in(&commands_after(&mut task, Duration::ZERO).await);
    assert!(source.make(&mut task, Ok("second")).await.is_empty());
    reply(&mut task, id, expires_soon());
    // It is renewed as any other.
    assert!(commands_after(&mut task, Duration::from_secs(1)).await.is_empty());
    let commands = source.make(&mut task, Ok("third")).await;
    assert_eq!(commands[0].sub_refresh.as_ref().unwrap().token, "third");
}

#[tokio::test(start_paused = true)]
async fn a_token_of_an_earlier_subscription_is_ignored() {
    let source = Source::default();
    let (mut task, _client) = task();
    let events = add(&mut task, source.options());
    assert!(commands_after(&mut task, Duration::ZERO).await.is_empty());
    drop(events);
    // The server knows nothing of a subscription whose token was not made.
    assert!(!task.remove_dropped(CHANNEL));
    let _events = add(&mut task, source.options());
    assert!(commands_after(&mut task, Duration::ZERO).await.is_empty());
    assert!(source.make(&mut task, Ok("first")).await.is_empty());
    let commands = source.make(&mut task, Ok("second")).await;
    assert_eq!(subscribe_in(&commands).1.token, "second");
}

#[tokio::test(start_paused = true)]
async fn a_source_that_fails_is_asked_again() {
    let source = Source::default();
    let (mut task, _client) = task();
    let _events = add(&mut task, source.options());
    assert!(commands_after(&mut task, Duration::ZERO).await.is_empty());
    assert!(source.make(&mut task, Err("no")).await.is_empty());
    assert!(commands_after(&mut task, RENEWAL_DELAY).await.is_empty());
    let commands = source.make(&mut task, Ok("second")).await;
    assert_eq!(subscribe_in(&commands).1.token, "second");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_subscription_does_not_end_the_next_one() {
    for is_sent in [false, true] {
        let (mut task, _client) = task();
        let events = add(&mut task, SubscribeOptions::default());
        let (id, _) = subscribe_in(&commands_after(&mut task, Duration::ZERO).await);
        reply(&mut task, id, SubscribeResult::default());
        drop(events);
        let (sender, mut events) = queue(100);
        let (done, mut result) = oneshot::channel();
        task.add(CHANNEL.into(), SubscribeOptions::default(), sender, done);
        let mut commands = Vec::new();
        if is_sent {
            commands = commands_after(&mut task, Duration::ZERO).await;
        }
        // The push was on its way.
        let unsubscribe = Some(UnsubscribePush { code: 2000, reason: String::new() });
        push(&mut task, Push { unsubscribe: unsubscribe.clone(), ..Push::default() });
        if !is_sent {
            commands = commands_after(&mut task, Duration::ZERO).await;
        }
        assert_eq!(commands.iter().any(|command| command.unsubscribe.is_some()), is_sent, "{commands:?}");
        let (id, _) = subscribe_in(&commands);
        reply(&mut task, id, SubscribeResult::default());
        assert_eq!(result.try_recv(), Ok(Ok(())));
        // The next one is its own.
        push(&mut task, Push { unsubscribe, ..Push::default() });
        assert!(matches!(events.try_recv(), Some(SubscriptionEvent::Subscribed(_))));
        assert!(matches!(events.try_recv(), Some(SubscriptionEvent::Unsubscribed { code: 2000, .. })));
    }
}

fn lost() -> Lost {
    Lost::Retry { code: 0, reason: "lost".into() }
}

#[tokio::test(start_paused = true)]
async fn events_are_delivered_while_there_is_no_connection() {
    let (mut task, _client) = task();
    let (events, mut received) = queue(1);
    task.events = Some(events);
    for n in 0..3 {
        task.emit(ClientEvent::Message(n.to_string().into()));
    }
    let reading = async {
        for _ in 0..3 {
            assert!(matches!(received.recv().await, Some(ClientEvent::Message(_))));
        }
        assert!(matches!(received.recv().await, Some(ClientEvent::Connecting { .. })));
    };
    tokio::select! {
        biased;
        () = reading => {}
        _ = async { while task.recover(lost()).await.is_ok() && task.failures < 20 {} } => panic!("events stay undelivered"),
    }
}

/// A connection over a pipe of this capacity in bytes, and its server.
async fn open(capacity: usize) -> (Opened, WebSocket) {
    let (near, far) = tokio::io::duplex(capacity);
    let client = wireloom::connect_over(near, "ws://localhost/");
    let (client, server) = tokio::join!(client, wireloom::accept(far));
    let connection = Connection::new(client.unwrap(), Duration::from_secs(5));
    (Opened { connection, result: ConnectResult::default(), rest: Replies::default() }, server.unwrap())
}

fn call(command: Command) -> (Request, oneshot::Receiver<Result<Reply, ClientError>>) {
    let (done, answered) = oneshot::channel();
    (Request::Call(Box::new(Call { command, done })), answered)
}

fn rpc(data: String) -> (Request, oneshot::Receiver<Result<Reply, ClientError>>) {
    let rpc = Some(RpcRequest { method: String::new(), data: data.into() });
    call(Command { rpc, ..Command::default() })
}

/// Calls once the task has begun what came before.
fn call_later(task: &mut Task, data: String) -> oneshot::Receiver<Result<Reply, ClientError>> {
    let (request, answered) = rpc(data);
    let Request::Call(call) = request else { unreachable!() };
    task.calls.push_back(*call);
    answered
}

#[tokio::test(start_paused = true)]
async fn a_server_that_owes_an_answer_is_given_up() {
    let (opened, mut server) = open(1 << 16).await;
    let (mut task, _client) = task();
    let _events = add(&mut task, SubscribeOptions::default());
    let began = Instant::now();
    // It is neither silent nor stuck.
    let serving = async {
        loop {
            server.send("{\"push\":{\"channel\":\"y\",\"pub\":{}}}").await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let lost = tokio::select! {
        lost = task.serve(opened) => lost,
        () = serving => unreachable!(),
        () = tokio::time::sleep(Duration::from_secs(3_600)) => panic!("it waits forever"),
    };
    assert!(matches!(lost, Ok(Lost::Retry { .. })));
    // 60 timeouts.
    assert_eq!(began.elapsed().as_secs(), 300);
    task.disconnected();
    assert!(task.first_owed().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_makes_subscriptions_without_end_is_given_up() {
    let channels = || (0..1_000).map(|n| format!("{n}{}", "x".repeat(1 << 16)));
    let (opened, mut server) = open(1 << 16).await;
    let (mut task, _client) = task();
    let serving = async {
        for channel in channels() {
            let push = json!({ "push": { "channel": channel, "subscribe": {} } });
            server.send(&*push.to_string()).await.unwrap();
        }
    };
    let lost = tokio::select! {
        lost = task.serve(opened) => lost,
        () = serving => panic!("it takes them all"),
    };
    assert!(matches!(lost, Ok(Lost::Retry { .. })));

    let (mut opened, _server) = open(1 << 16).await;
    opened.result.subs = channels().map(|channel| (channel, SubscribeResult::default())).collect();
    assert!(matches!(task.serve(opened).await, Ok(Lost::Retry { .. })));
}

/// The commands of a message.
fn commands_in(message: &wireloom::OwnedMessage) -> Vec<Value> {
    serde_json::Deserializer::from_slice(message.as_bytes()).into_iter().map(Result::unwrap).collect()
}

#[tokio::test(start_paused = true)]
async fn every_subscription_whose_handle_is_dropped_ends() {
    const SUBSCRIPTIONS: usize = 100;
    let (opened, mut server) = open(1 << 16).await;
    // The queue of requests is full.
    let (client, mut task) = client(1);
    client.requests.try_send(call(Command::default()).0).unwrap();
    let subscriptions: Vec<_> = (0..SUBSCRIPTIONS)
        .map(|n| {
            let (sender, events) = queue(1);
            task.add(n.to_string(), SubscribeOptions::default(), sender, oneshot::channel().0);
            Subscription::new(client.clone(), n.to_string(), events)
        })
        .collect();
    let serving = async move {
        let (mut ended, mut subscriptions) = (0, subscriptions);
        while ended < SUBSCRIPTIONS {
            for command in commands_in(&server.recv_owned().await.unwrap().unwrap()) {
                let method = if command["subscribe"].is_object() { "subscribe" } else { "unsubscribe" };
                ended += usize::from(method == "unsubscribe");
                server.send(&*json!({ "id": command["id"], method: {} }).to_string()).await.unwrap();
            }
            // All at once.
            subscriptions.clear();
        }
    };
    tokio::select! {
        _ = task.serve(opened) => panic!("the connection is lost"),
        () = serving => {}
        () = tokio::time::sleep(Duration::from_secs(60)) => panic!("some last"),
    }
    assert!(task.entries.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_has_given_up_gets_no_subscription() {
    let (mut task, _client) = task();
    let (sender, events) = queue(1);
    drop(events);
    task.add(CHANNEL.into(), SubscribeOptions::default(), sender, oneshot::channel().0);
    assert!(commands_after(&mut task, Duration::from_secs(60)).await.is_empty());
    assert!(task.entries.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_message_is_handled_as_far_as_there_is_room() {
    let (opened, mut server) = open(1 << 16).await;
    let (mut task, _client) = task();
    let (events, mut received) = queue(1);
    task.events = Some(events);
    let message = json!({ "push": { "message": { "data": 1 } } });
    server.send(&*vec![message.to_string(); 1_000].join("\n")).await.unwrap();
    tokio::select! {
        _ = task.serve(opened) => panic!("the connection is lost"),
        () = tokio::time::sleep(Duration::from_secs(1)) => {}
    }
    assert!(task.deliveries.len() <= 1, "{}", task.deliveries.len());
    assert!(matches!(received.try_recv(), Some(ClientEvent::Connected { .. })));
}

#[tokio::test(start_paused = true)]
async fn replies_that_have_arrived_are_handled_before_the_end() {
    const MESSAGES: usize = 2 * REPLIES_PER_TURN;
    let (opened, mut server) = open(1 << 16).await;
    let (client, mut task) = client(1);
    let (events, mut received) = queue(2 * MESSAGES);
    task.events = Some(events);
    let message = json!({ "push": { "message": { "data": 1 } } });
    server.send(&*vec![message.to_string(); MESSAGES].join("\n")).await.unwrap();
    drop(server.into_inner());
    // It cannot be sent.
    client.requests.try_send(rpc("1".into()).0).unwrap();
    assert!(task.serve(opened).await.is_ok());
    let messages = std::iter::from_fn(|| received.try_recv());
    assert_eq!(messages.filter(|event| matches!(event, ClientEvent::Message(_))).count(), MESSAGES);
}

/// A reply with a base and short deltas, each of which copies it as a whole.
#[tokio::test(start_paused = true)]
async fn a_reply_of_short_deltas_is_taken_in_parts() {
    const LEN: usize = 1 << 20;
    let base = "x".repeat(LEN);
    let (mut task, _client) = task();
    let mut events = add(&mut task, SubscribeOptions::default().deltas());
    let copies = |last| (2..=last).map(|offset| delta(offset, &base, &base));
    let (id, _) = subscribe_in(&commands_after(&mut task, Duration::ZERO).await);
    let all: Vec<_> = [whole(1, &base)].into_iter().chain(copies(100)).collect();
    reply(&mut task, id, result(100, all));
    let len = task.deliveries.len();
    assert!((10..40).contains(&len), "{len}");
    // The rest is recovered once those have been taken.
    let mut count = 0;
    while task.deliveries.are_stalled() {
        count += received(&mut events).len();
        task.deliveries.make_room().await;
    }
    count += received(&mut events).len();
    let (_, request) = subscribe_in(&commands_after(&mut task, Duration::from_secs(1)).await);
    assert_eq!(request.offset, u64::try_from(count).unwrap());
    assert!(request.recover);
}

#[tokio::test(start_paused = true)]
async fn the_delay_grows_while_connections_do_not_last() {
    let (mut task, _client) = task();
    task.builder = Arc::new(ClientBuilder::new("ws://127.0.0.1".into()));
    for _ in 0..20 {
        let (opened, server) = open(1 << 16).await;
        drop(server);
        let lost = task.serve(opened).await.ok().unwrap();
        assert!(task.recover(lost).await.is_ok());
    }
    assert_eq!(task.delay_max(task.failures), task.builder.delay_max);
    // One that lasts begins anew.
    let (opened, server) = open(1 << 16).await;
    let delay_max = task.builder.delay_max;
    tokio::spawn(async move {
        tokio::time::sleep(delay_max).await;
        drop(server);
    });
    assert!(task.serve(opened).await.is_ok());
    assert_eq!(task.failures, 0);
}

#[tokio::test(start_paused = true)]
async fn what_may_not_pass_ends_only_a_client_that_was_never_connected() {
    let lost = || Lost::NotOpened { reason: "404".into() };
    let (_client, mut task) = client(1);
    assert!(matches!(task.recover(lost()).await, Err(End::Final { code: 0, .. })));
    let (opened, server) = open(1 << 16).await;
    drop(server);
    assert!(task.serve(opened).await.is_ok());
    // The first delay has the longest bound.
    let began = Instant::now();
    for _ in 0..100 {
        task.failures = 0;
        assert!(task.recover(lost()).await.is_ok());
    }
    assert!(began.elapsed() > 100 * task.builder.delay_min, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_source_that_panics_is_asked_again() {
    let (mut task, _client) = task();
    let options = SubscribeOptions::default()
        .token_source(|| -> std::future::Ready<_> { panic!("as the test wants it") });
    let _events = add(&mut task, options);
    assert!(commands_after(&mut task, Duration::ZERO).await.is_empty());
    let token = task.tokens.next().await.unwrap();
    task.handle_token(token, &mut VecDeque::new());
    assert!(commands_after(&mut task, RENEWAL_DELAY).await.is_empty());
    assert!(task.tokens.next().await.unwrap().result.is_err());
}

async fn answer_rpcs(mut server: WebSocket) {
    while let Ok(Some(message)) = server.recv_owned().await {
        for command in commands_in(&message) {
            if command["rpc"].is_object() {
                let reply = json!({ "id": command["id"], "rpc": { "data": 1 } });
                server.send(&*reply.to_string()).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn replies_are_read_while_requests_wait() {
    const SENDS: usize = 10_000;
    let (opened, server) = open(1 << 16).await;
    let (client, mut task) = client(1 + SENDS);
    let (request, answered) = rpc("1".into());
    client.requests.try_send(request).unwrap();
    for _ in 0..SENDS {
        let send = Some(SendRequest { data: "1".into() });
        client.requests.try_send(call(Command { send, ..Command::default() }).0).unwrap();
    }
    tokio::spawn(answer_rpcs(server));
    tokio::select! {
        _ = task.serve(opened) => panic!("the connection is lost"),
        reply = answered => assert!(reply.unwrap().is_ok()),
    }
    assert!(
        client.requests.capacity() < client.requests.max_capacity(),
        "all requests came before the reply"
    );
}

// The server reads nothing while its own write waits.
#[tokio::test(start_paused = true)]
async fn messages_are_read_while_a_write_waits() {
    let (opened, mut server) = open(100).await;
    let (client, mut task) = client(1);
    let long = json!("x".repeat(10_000));
    let (request, answered) = rpc(long.to_string());
    client.requests.try_send(request).unwrap();
    tokio::spawn(async move {
        let publication = json!({ "push": { "channel": CHANNEL, "pub": { "data": long } } });
        server.send(&*publication.to_string()).await.unwrap();
        answer_rpcs(server).await;
    });
    tokio::select! {
        _ = task.serve(opened) => panic!("the connection is lost"),
        reply = answered => assert!(reply.unwrap().is_ok()),
    }
}

/// The commands of a connection reach the server in messages that it accepts.
#[tokio::test(start_paused = true)]
async fn no_message_is_longer_than_a_batch_may_be() {
    const COUNT: usize = 200;
    for (command_len_max, len_max) in [(64 << 10, 32 << 10), (4_000, 4_000)] {
        let (opened, mut server) = open(1 << 12).await;
        let builder = ClientBuilder::new("ws://127.0.0.1".into()).command_len_max(command_len_max);
        let (_client, mut task) = builder.build(1);
        let mut kept = Vec::new();
        for n in 0..COUNT {
            let (request, answered) = rpc(format!("{:?}", "x".repeat(1_000)));
            let Request::Call(call) = request else { unreachable!() };
            task.calls.push_back(*call);
            let (events, received) = queue(1);
            let options = SubscribeOptions::default().token("t".repeat(450));
            task.add(n.to_string(), options, events, oneshot::channel().0);
            kept.push((answered, received));
        }
        let receiving = async {
            let (mut count, mut longest) = (0, 0);
            while count < 2 * COUNT {
                let message = server.recv().await.unwrap().unwrap();
                longest = longest.max(message.as_bytes().len());
                count += message.as_bytes().split(|byte| *byte == b'\n').count();
            }
            longest
        };
        tokio::select! {
            _ = task.serve(opened) => panic!("the connection is lost"),
            longest = receiving => assert!((len_max / 2..=len_max).contains(&longest), "{longest}"),
        }
    }
}

fn emitted(events: &mut Receiver<ClientEvent>) -> Vec<ClientEvent> {
    std::iter::from_fn(|| events.try_recv()).collect()
}

/// The server has subscribed the client to a channel, with a position.
fn server_subscribes(task: &mut Task) {
    let subscribe = Some(SubscribePush { recoverable: true, epoch: "e".into(), ..SubscribePush::default() });
    push(task, Push { subscribe, ..Push::default() });
}

#[tokio::test(start_paused = true)]
async fn a_subscribe_that_is_refused_loses_no_publication_of_the_servers_subscription() {
    let (mut task, _client) = task();
    let (events, mut received) = queue(10);
    task.events = Some(events);
    server_subscribes(&mut task);
    let publish = |task: &mut Task, offset| {
        push(task, Push { publication: Some(whole(offset, "a")), ..Push::default() });
    };
    let mut own = add(&mut task, SubscribeOptions::default());
    publish(&mut task, 1);
    let (id, _) = subscribe_in(&commands_after(&mut task, Duration::ZERO).await);
    publish(&mut task, 2);
    let error = Some(ErrorCode::AlreadySubscribed.into());
    let pending = task.pending.remove(&id).unwrap();
    task.handle_reply(pending, Reply { id, error, ..Reply::default() }, &mut VecDeque::new());
    publish(&mut task, 3);
    let offsets = emitted(&mut received).into_iter().filter_map(|event| match event {
        ClientEvent::Publication { publication, .. } => Some(publication.offset),
        _ => None,
    });
    assert_eq!(offsets.collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(own.try_recv(), None);
}

// It would end the server's.
#[tokio::test(start_paused = true)]
async fn a_subscribe_that_is_given_up_does_not_unsubscribe_the_servers_subscription() {
    let (mut task, _client) = task();
    server_subscribes(&mut task);
    let own = add(&mut task, SubscribeOptions::default());
    subscribe_in(&commands_after(&mut task, Duration::ZERO).await);
    drop(own);
    assert!(!task.remove_dropped(CHANNEL));
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_subscription_of_the_server_has_lost_it() {
    let (mut opened, server) = open(1 << 16).await;
    opened.result.subs = [("kept".to_owned(), SubscribeResult::default())].into();
    let (mut task, _client) = task();
    for channel in ["kept", "lost"] {
        assert!(task.server_side.insert(channel.into(), None).is_ok());
    }
    let (events, mut received) = queue(10);
    task.events = Some(events);
    drop(server.into_inner());
    assert!(task.serve(opened).await.is_ok());
    let events = emitted(&mut received);
    assert!(matches!(&events[0], ClientEvent::Connected { .. }), "{events:?}");
    assert_eq!(events[1], ClientEvent::Unsubscribed { channel: "lost".into() });
    assert!(matches!(&events[2], ClientEvent::Subscribed { channel, .. } if channel == "kept"), "{events:?}");
    assert_eq!(events.len(), 3, "{events:?}");
}

/// Otherwise each connection adds what was missed.
#[tokio::test(start_paused = true)]
async fn no_connection_is_made_while_events_wait() {
    let (mut task, _client) = task();
    let (events, mut received) = queue(1);
    task.events = Some(events);
    for n in 0..3 {
        task.emit(ClientEvent::Message(n.to_string().into()));
    }
    let mut recovering = Box::pin(task.recover(lost()));
    tokio::select! {
        _ = &mut recovering => panic!("it connects"),
        () = tokio::time::sleep(Duration::from_secs(3_600)) => {}
    }
    let (recovered, events) = tokio::join!(recovering, async {
        [received.recv().await, received.recv().await, received.recv().await]
    });
    assert!(recovered.is_ok() && events.iter().all(Option::is_some));
    assert!(!task.deliveries.are_stalled());
}

/// A server that reads a byte per second.
async fn trickle(server: WebSocket) {
    let (mut transport, _) = server.into_inner();
    while transport.read_u8().await.is_ok() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_does_not_wait_for_a_server_that_reads_slowly() {
    for is_asked_for in [true, false] {
        let (opened, server) = open(100).await;
        let (client, mut task) = client(1);
        tokio::spawn(trickle(server));
        let (request, _answered) = rpc(json!("x".repeat(10_000)).to_string());
        client.requests.try_send(request).unwrap();
        let running = tokio::spawn(async move {
            match task.serve(opened).await {
                Err(end) => task.finish(end).await,
                Ok(lost) => panic!("{lost:?}"),
            }
        });
        // Its bytes are leaving.
        tokio::time::sleep(Duration::from_secs(20)).await;
        let minute = Duration::from_secs(60);
        if is_asked_for {
            tokio::time::timeout(minute, client.disconnect()).await.expect("it waits for the server");
        }
        drop(client);
        tokio::time::timeout(minute, running).await.expect("it waits for the server").unwrap();
    }
}

/// A message whose sending began before the end is sent in full.
#[tokio::test(start_paused = true)]
async fn the_end_waits_for_what_is_being_sent() {
    let (opened, mut server) = open(100).await;
    let (client, mut task) = client(1);
    tokio::spawn(async move {
        match task.serve(opened).await {
            Err(end) => task.finish(end).await,
            Ok(lost) => panic!("{lost:?}"),
        }
    });
    let data = json!("x".repeat(10_000)).to_string();
    let sending = async {
        client.send(data.clone()).await.unwrap();
        client.disconnect().await;
    };
    let receiving = async {
        let message = server.recv_owned().await.unwrap().expect("the command is lost");
        assert!(server.recv_owned().await.unwrap().is_none());
        message
    };
    let ((), message) = tokio::join!(sending, receiving);
    assert_eq!(commands_in(&message)[0]["send"]["data"].to_string(), data);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_leaves_before_the_end_is_sent() {
    let (opened, mut server) = open(100).await;
    let (client, mut task) = client(1);
    let send = Some(SendRequest { data: json!("x".repeat(10_000)).to_string().into() });
    let (request, sent) = call(Command { send, ..Command::default() });
    client.requests.try_send(request).unwrap();
    tokio::spawn(async move {
        if let Err(end) = task.serve(opened).await {
            task.finish(end).await;
        }
    });
    let ending = async {
        // It is being sent.
        tokio::time::sleep(Duration::from_secs(1)).await;
        client.disconnect().await;
        sent.await.unwrap()
    };
    let receiving = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        while server.recv_owned().await.unwrap().is_some() {}
    };
    assert_eq!(tokio::join!(ending, receiving).0, Ok(Reply::default()));
}

/// Its caller may make it again.
#[tokio::test(start_paused = true)]
async fn a_call_that_was_given_up_is_not_sent() {
    let (opened, mut server) = open(100).await;
    let (_client, mut task) = client(1);
    let long = |n: u8| json!([n, "x".repeat(30_000)]).to_string();
    let mut answers: Vec<_> = (0..3).map(|n| call_later(&mut task, long(n))).collect();
    let receiving = async {
        // The first is being sent.
        tokio::time::sleep(Duration::from_secs(1)).await;
        answers.remove(1);
        let mut received = Vec::new();
        while received.len() < 2 {
            let message = server.recv_owned().await.unwrap().unwrap();
            received
                .extend(commands_in(&message).into_iter().map(|command| command["rpc"]["data"].to_string()));
        }
        received
    };
    tokio::select! {
        _ = task.serve(opened) => panic!("the connection is lost"),
        received = receiving => assert!(received == [long(0), long(2)], "it was sent"),
    }
    assert_eq!(task.pending.len(), 2);
}

// Nothing else would wake the task.
#[tokio::test(start_paused = true)]
async fn a_call_behind_calls_that_were_given_up_is_sent() {
    let (opened, mut server) = open(100).await;
    let (_client, mut task) = client(1);
    let long = || format!("\"{}\"", "x".repeat(30_000));
    // The first two are a message each. All but the last are begun before the first has left.
    let data = [long(), long()].into_iter().chain((2..=BACKLOG_PER_TURN).map(|n| n.to_string()));
    let mut answers: Vec<_> = data.map(|data| call_later(&mut task, data)).collect();
    let receiving = async {
        // The first is being sent.
        tokio::time::sleep(Duration::from_secs(1)).await;
        answers.drain(1..BACKLOG_PER_TURN);
        server.recv_owned().await.unwrap().unwrap();
        let message = tokio::time::timeout(Duration::from_secs(1), server.recv_owned()).await;
        commands_in(&message.expect("it was not sent").unwrap().unwrap())
    };
    tokio::select! {
        _ = task.serve(opened) => panic!("the connection is lost"),
        commands = receiving => assert_eq!(commands[0]["rpc"]["data"], BACKLOG_PER_TURN),
    }
}

/// The token of an application that caches it may have no time left.
#[tokio::test(start_paused = true)]
async fn a_token_is_renewed_after_a_second_at_least() {
    let delays = [0, 1, 5].map(|ttl| after(true, ttl).map(|at| (at - Instant::now()).as_secs()));
    assert_eq!((delays, after(false, 0)), ([Some(1), Some(1), Some(5)], None));
}

#[tokio::test(start_paused = true)]
async fn a_message_is_sent_when_it_has_left() {
    let message = |text: &str| {
        let send = Some(SendRequest { data: json!(text).to_string().into() });
        call(Command { send, ..Command::default() })
    };
    for reads in [true, false] {
        let (opened, mut server) = open(100).await;
        let (client, mut task) = client(2);
        let began = Instant::now();
        let sent = ["x".repeat(10_000), "y".into()].map(|text| {
            let (request, sent) = message(&text);
            client.requests.try_send(request).unwrap();
            sent
        });
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if !reads {
                return drop(server.into_inner());
            }
            while server.recv().await.is_ok_and(|message| message.is_some()) {}
        });
        let serving = async {
            assert!(task.serve(opened).await.is_ok());
            task.disconnected();
            std::future::pending::<()>().await;
        };
        let results = async {
            let [first, second] = sent;
            let first = first.await.unwrap();
            assert_eq!(began.elapsed().as_secs(), 1);
            // The next connection has what was not begun.
            if reads { vec![first, second.await.unwrap()] } else { vec![first] }
        };
        let expected = if reads { Ok(Reply::default()) } else { Err(ClientError::ConnectionLost) };
        tokio::select! {
            () = serving => unreachable!(),
            results = results => assert!(results.iter().all(|result| *result == expected), "{results:?}"),
        }
    }
}
