//! The task of a client: it has the connection, and answers the handles.
//!
//! ```text
//!            +--- delay <--- lost -----------+
//!            v                               |
//! start -> Opening -- connect reply --> Connected -- final code, disconnect --> end
//!            |                                                                   ^
//!            +-- refused for good -----------------------------------------------+
//! ```
//!
//! Layers: `deliveries`, `entry`, `pending`, `server_side`, `sweep`, `tokens`.

mod deliveries;
mod entry;
mod pending;
mod server_side;
mod sweep;
mod tokens;

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use self::deliveries::{Deliveries, Event};
use self::entry::{Entry, State, WrongBase};
use self::pending::{Pending, is_wanted};
use self::server_side::ServerSide;
use self::sweep::Sweep;
use self::tokens::{Token, Tokens};
use super::builder::{ClientBuilder, TokenSource};
use super::connection::{Connection, Lost, Opened, Received, Replies, check_len};
use super::queue::Sender;
use super::subscription::{SubscribeOptions, Subscribed, SubscriptionEvent};
use super::{ClientError, ClientEvent};
use crate::history::Position;
use crate::protocol::{
    Command, Publication, Push, RefreshRequest, Reply, SubRefreshRequest, SubscribeRequest, SubscribeResult,
    UnsubscribeRequest,
};
use crate::random::fraction;

/// The delay before a token is asked for again after its source or the server failed.
const RENEWAL_DELAY: Duration = Duration::from_secs(5);

/// The number of commands that may wait while a message is sent. Beyond it the connection is not read.
const COMMANDS_MAX: usize = 1_024;

/// The number of calls, and of subscriptions, that are begun once the commands before have left. An unsubscribe may precede a subscribe.
const BACKLOG_PER_TURN: usize = COMMANDS_MAX / 4;

/// The number of replies that are handled before requests have their turn.
const REPLIES_PER_TURN: usize = 64;

/// The length of a connect command besides its token, data, name and positions, in bytes.
const CONNECT_LEN: usize = 128;

/// The code of an error that says that a token has expired.
const TOKEN_EXPIRED: u32 = 109;

/// A request of a handle.
#[derive(Debug)]
pub(super) enum Request {
    Call(Box<Call>),
    Subscribe {
        channel: String,
        options: Box<SubscribeOptions>,
        events: Sender<SubscriptionEvent>,
        done: oneshot::Sender<Result<(), ClientError>>,
    },
    Events(Sender<ClientEvent>),
    Connected(oneshot::Sender<Result<(), ClientError>>),
}

/// A message of a handle that is received even while requests are pending. The channel closes when all handles are dropped.
#[derive(Debug)]
pub(super) enum Notice {
    /// The handle of the subscription to this channel was dropped.
    Dropped(String),
    Disconnect(oneshot::Sender<()>),
}

/// A command, and who waits for its reply.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) command: Command,
    pub(super) done: oneshot::Sender<Result<Reply, ClientError>>,
}

/// Of the lists of callers.
#[derive(Default)]
struct Sweeps {
    calls: Sweep,
    waiting: Sweep,
    pending: Sweep,
}

pub(super) struct Task {
    builder: Arc<ClientBuilder>,
    requests: mpsc::Receiver<Request>,
    /// Without bound, so that none is missed: there is one for each subscription, and for each caller of `disconnect`.
    notices: mpsc::UnboundedReceiver<Notice>,
    token: String,
    entries: HashMap<String, Entry>,
    /// No entry is due before this.
    due_at: Option<Instant>,
    server_side: ServerSide,
    /// Calls that wait for a connection.
    calls: VecDeque<Call>,
    waiting: Vec<oneshot::Sender<Result<(), ClientError>>>,
    events: Option<Sender<ClientEvent>>,
    deliveries: Deliveries,
    pending: HashMap<u32, Pending>,
    sweeps: Sweeps,
    /// The pending commands that are no calls, in their order, and perhaps some that were answered.
    owed: VecDeque<u32>,
    /// The messages of callers that wait until they have left, in their order: the server does not answer them.
    unsent: VecDeque<u32>,
    last_id: u32,
    last_key: u64,
    /// A connection could be opened.
    was_connected: bool,
    /// When a new token of the connection is due.
    renew_at: Option<Instant>,
    tokens: Tokens,
    failures: u32,
}

/// Why the task ends.
enum End {
    /// All handles were dropped, or one has asked for it.
    Closed(Option<oneshot::Sender<()>>),
    Final {
        code: u32,
        reason: String,
    },
}

impl Task {
    pub(super) fn new(
        builder: ClientBuilder,
        requests: mpsc::Receiver<Request>,
        notices: mpsc::UnboundedReceiver<Notice>,
    ) -> Self {
        let (token, command_len_max) = (builder.token.clone(), builder.command_len_max);
        let (entries, server_side, calls, waiting, events, deliveries, pending, sweeps) = Default::default();
        Self {
            builder: Arc::new(builder),
            requests,
            notices,
            token,
            entries,
            due_at: None,
            server_side,
            calls,
            waiting,
            events,
            deliveries,
            pending,
            sweeps,
            owed: VecDeque::new(),
            unsent: VecDeque::new(),
            // 1 is that of `connect`.
            last_id: 1,
            last_key: 0,
            was_connected: false,
            renew_at: None,
            tokens: Tokens::new(command_len_max),
            failures: 0,
        }
    }

    pub(super) async fn run(mut self) {
        let end = loop {
            let opened = match self.open().await {
                Ok(opened) => opened,
                Err(end) => break end,
            };
            let lost = match opened {
                Ok(opened) => match self.serve(opened).await {
                    Ok(lost) => lost,
                    Err(end) => break end,
                },
                Err(lost) => lost,
            };
            if let Err(end) = self.recover(lost).await {
                break end;
            }
        };
        self.finish(end).await;
    }

    /// Opens a connection, and answers the handles meanwhile.
    async fn open(&mut self) -> Result<Result<Opened, Lost>, End> {
        let (builder, token) = (self.builder.clone(), self.token.clone());
        let len = token.len() + builder.data.len() + builder.name.len() + CONNECT_LEN;
        let subs = self.server_side.positions(builder.command_len_max.saturating_sub(len));
        let opening = Box::pin(async move {
            let token = match &builder.token_source {
                Some(source) if token.is_empty() => match tokens::ask(source.clone()).await {
                    Ok(token) => token,
                    Err(reason) => return Err(Lost::Retry { code: 0, reason }),
                },
                _ => token,
            };
            let opened = Connection::open(builder, token.clone(), subs).await?;
            Ok((opened, token))
        });
        let opened = self.wait_for(opening).await?;
        Ok(opened.map(|(opened, token)| {
            self.token = token;
            opened
        }))
    }

    /// Waits, without a connection, and answers the handles meanwhile. Each connection may add all that was missed, so that none is made
    /// while events wait.
    async fn wait_for<T>(&mut self, mut future: Pin<Box<impl Future<Output = T>>>) -> Result<T, End> {
        loop {
            tokio::select! {
                result = &mut future, if !self.deliveries.are_stalled() => return Ok(result),
                Some(request) = self.requests.recv() => self.handle_offline(request),
                notice = self.notices.recv() => match notice {
                    Some(Notice::Dropped(channel)) => drop(self.remove_dropped(&channel)),
                    Some(Notice::Disconnect(done)) => return Err(End::Closed(Some(done))),
                    None => return Err(End::Closed(None)),
                },
                () = self.deliveries.make_room(), if self.deliveries.are_stalled() => {}
            }
        }
    }

    /// Waits before the next attempt, unless the connection is lost for good.
    async fn recover(&mut self, lost: Lost) -> Result<(), End> {
        self.disconnected();
        let mut delay_max = self.delay_max(self.failures);
        let (code, reason) = match lost {
            Lost::Final { code, reason } => return Err(End::Final { code, reason }),
            Lost::NotOpened { reason } if !self.was_connected => return Err(End::Final { code: 0, reason }),
            Lost::NotOpened { reason } => {
                delay_max = self.builder.delay_max;
                (0, reason)
            }
            Lost::TokenExpired if self.builder.token_source.is_none() => {
                return Err(End::Final { code: TOKEN_EXPIRED, reason: "token expired".into() });
            }
            Lost::TokenExpired => {
                self.token.clear();
                (TOKEN_EXPIRED, "token expired".into())
            }
            Lost::Retry { code, reason } => (code, reason),
        };
        self.emit(ClientEvent::Connecting { code, reason });
        self.failures = self.failures.saturating_add(1);
        self.wait_for(Box::pin(tokio::time::sleep(delay_max.mul_f64(fraction())))).await
    }

    /// A random delay.
    fn delay(&self, failures: u32) -> Duration {
        self.delay_max(failures).mul_f64(fraction())
    }

    /// The bound of the delay, which doubles with each failure.
    fn delay_max(&self, failures: u32) -> Duration {
        self.builder.delay_min.saturating_mul(1 << failures.min(16)).min(self.builder.delay_max)
    }

    /// The connection is gone, and with it the replies.
    fn disconnected(&mut self) {
        self.renew_at = None;
        self.owed.clear();
        self.unsent.clear();
        for (_, pending) in self.pending.drain() {
            if let Pending::Call(done) = pending {
                let _ = done.send(Err(ClientError::ConnectionLost));
            }
        }
        let now = Instant::now();
        for entry in self.entries.values_mut() {
            entry.subscribe_at(now);
            entry.is_known = false;
        }
        self.due_at = Some(now);
    }

    fn handle_offline(&mut self, request: Request) {
        match request {
            Request::Call(call) => {
                // Callers give up after their timeout.
                let calls = &mut self.calls;
                self.sweeps.calls.run(calls.len(), || {
                    calls.retain(|call| !call.done.is_closed());
                    calls.len()
                });
                calls.push_back(*call);
            }
            Request::Subscribe { channel, options, events, done } => {
                self.add(channel, *options, events, done);
            }
            Request::Events(events) => self.events = Some(events),
            Request::Connected(done) => {
                let waiting = &mut self.waiting;
                self.sweeps.waiting.run(waiting.len(), || {
                    waiting.retain(|done| !done.is_closed());
                    waiting.len()
                });
                waiting.push(done);
            }
        }
    }

    fn add(
        &mut self,
        channel: String,
        options: SubscribeOptions,
        events: Sender<SubscriptionEvent>,
        done: oneshot::Sender<Result<(), ClientError>>,
    ) {
        // The caller has given up.
        if events.is_closed() {
            return;
        }
        let is_known = self.remove_dropped(&channel);
        if self.entries.contains_key(&channel) {
            let _ = done.send(Err(ClientError::AlreadySubscribed));
            return;
        }
        self.last_key += 1;
        let entry = Entry {
            key: self.last_key,
            is_known,
            making: None,
            token: options.token.clone(),
            position: options.since.clone(),
            options,
            events,
            done: Some(done),
            state: State::DueAt(Instant::now()),
            base: None,
            renew_at: None,
            failures: 0,
        };
        self.due_at = earlier(self.due_at, entry.due_at());
        self.entries.insert(channel, entry);
    }

    /// Changes a subscription, and with it when the next one is due.
    fn update<T>(&mut self, channel: &str, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let entry = self.entries.get_mut(channel)?;
        let result = change(entry);
        self.due_at = earlier(self.due_at, entry.due_at());
        Some(result)
    }

    /// Removes a subscription whose handle is gone. Returns whether it must be ended on the server, which may have made one of its own instead.
    fn remove_dropped(&mut self, channel: &str) -> bool {
        let is_dropped = self.entries.get(channel).is_some_and(|entry| entry.events.is_closed());
        let removed = if is_dropped { self.entries.remove(channel) } else { None };
        let is_known = removed.is_some_and(|entry| entry.is_known || entry.state == State::Subscribing);
        is_known && !self.server_side.contains(channel)
    }

    /// Serves a connection until it is lost.
    async fn serve(&mut self, opened: Opened) -> Result<Lost, End> {
        let opened_at = Instant::now();
        let lost = self.serve_until_lost(opened).await?;
        // Otherwise a server that ends each connection at once would be asked without delay.
        if opened_at.elapsed() >= self.delay_max(self.failures) {
            self.failures = 0;
        }
        Ok(lost)
    }

    async fn serve_until_lost(&mut self, opened: Opened) -> Result<Lost, End> {
        let Opened { mut connection, result, rest: mut replies } = opened;
        self.was_connected = true;
        self.waiting.drain(..).for_each(|done| drop(done.send(Ok(()))));
        self.set_renewal(result.expires, result.ttl);
        self.emit(ClientEvent::Connected { client: result.client, data: result.data });
        for channel in self.server_side.retain(|channel| result.subs.contains_key(channel)) {
            self.emit(ClientEvent::Unsubscribed { channel });
        }
        for (channel, mut result) in result.subs {
            // Its position may have found no room in the connect command.
            result.was_recovering |= self.server_side.has_position(&channel);
            if let Err(lost) = self.server_subscribed(channel, result) {
                return Ok(lost);
            }
        }
        let mut commands = VecDeque::new();
        // The replies that arrived before a command could not be sent are handled first.
        let mut lost = None;
        loop {
            if let Err(lost) = self.handle(&mut replies, &connection, &mut commands) {
                return Ok(lost);
            }
            if lost.is_none() && commands.is_empty() {
                self.handle_backlog(&mut commands);
            }
            if lost.is_none() && !commands.is_empty() && !connection.is_sending() {
                let is_wanted = |command: &Command| is_wanted(&mut self.pending, command);
                lost =
                    connection.begin_send(&mut commands, self.builder.batch_len_max(), is_wanted).await.err();
                // No command was wanted any more. There may be no event that wakes this task for the next calls.
                if lost.is_none() && !connection.is_sending() && !self.calls.is_empty() {
                    continue;
                }
            }
            if lost.is_some() {
                commands.clear();
            }
            if let Some(lost) = lost.take_if(|_| replies.is_empty()) {
                return Ok(lost);
            }
            connection.note_owed(self.first_owed());
            let handles = self.has_room(&commands);
            let reads = handles && replies.is_empty();
            let deadline = self.deadline(&connection, reads, lost.is_none() && commands.is_empty());
            // Not biased: there may always be a request, and always a message.
            tokio::select! {
                Some(request) = self.requests.recv(), if !connection.is_sending() => match request {
                    Request::Call(call) => self.begin(*call, &mut commands),
                    Request::Connected(done) => drop(done.send(Ok(()))),
                    other => self.handle_offline(other),
                },
                notice = self.notices.recv() => {
                    let done = match notice {
                        Some(Notice::Dropped(channel)) => {
                            if self.remove_dropped(&channel) {
                                self.send_unsubscribe(channel, &mut commands);
                            }
                            continue;
                        }
                        Some(Notice::Disconnect(done)) => Some(done),
                        None => None,
                    };
                    let is_wanted = |command: &Command| is_wanted(&mut self.pending, command);
                    if connection.close(commands, self.builder.batch_len_max(), is_wanted).await {
                        self.handle_sent(&VecDeque::new());
                    }
                    return Err(End::Closed(done));
                }
                () = tokio::task::yield_now(), if handles && !replies.is_empty() => {}
                Some(token) = self.tokens.next() => self.handle_token(token, &mut commands),
                () = self.deliveries.make_room(), if self.deliveries.are_stalled() => {}
                received = connection.recv(reads) => match received {
                    Ok(Received::Sent) => self.handle_sent(&commands),
                    Ok(Received::Unsent) => {}
                    Ok(Received::Replies(received)) => replies = received,
                    Err(lost) => return Ok(lost),
                },
                () = tokio::time::sleep_until(deadline) => {
                    if let Some(reason) = connection.failure(reads) {
                        return Ok(connection.abandon(reason));
                    }
                }
            }
        }
    }

    fn next_id(&mut self) -> u32 {
        self.last_id = self.last_id.checked_add(1).unwrap_or(2);
        self.last_id
    }

    /// The id of a command that is no call: the server owes an answer. Callers give up after their timeout.
    fn owe(&mut self, pending: Pending) -> u32 {
        let id = self.next_id();
        self.pending.insert(id, pending);
        self.owed.push_back(id);
        id
    }

    /// The first command that the server owes an answer to.
    fn first_owed(&mut self) -> Option<u32> {
        while let Some(id) = self.owed.front() {
            if self.pending.contains_key(id) {
                return Some(*id);
            }
            self.owed.pop_front();
        }
        None
    }

    fn begin(&mut self, call: Call, commands: &mut VecDeque<Command>) {
        let Call { mut command, done } = call;
        if done.is_closed() {
            return;
        }
        command.id = self.next_id();
        if command.send.is_some() {
            self.unsent.push_back(command.id);
        }
        // Pending replies whose callers have gone may never arrive.
        let pending = &mut self.pending;
        self.sweeps.pending.run(pending.len(), || {
            pending.retain(|_, pending| !pending.has_gone());
            pending.len()
        });
        self.pending.insert(command.id, Pending::Call(done));
        commands.push_back(command);
    }

    /// A batch has left, `commands` have not.
    fn handle_sent(&mut self, commands: &VecDeque<Command>) {
        if self.unsent.is_empty() {
            return;
        }
        let next = commands.iter().find(|command| command.send.is_some()).map(|command| command.id);
        while let Some(id) = self.unsent.front().copied().filter(|id| Some(*id) != next) {
            self.unsent.pop_front();
            // The caller may have given up.
            if let Some(Pending::Call(done)) = self.pending.remove(&id) {
                let _ = done.send(Ok(Reply::default()));
            }
        }
    }

    fn send_unsubscribe(&mut self, channel: String, commands: &mut VecDeque<Command>) {
        let id = self.owe(Pending::Unsubscribe);
        let unsubscribe = Some(UnsubscribeRequest { channel });
        commands.push_back(Command { id, unsubscribe, ..Command::default() });
    }

    fn deadline(&self, connection: &Connection, reads: bool, sends: bool) -> Instant {
        let far = Instant::now() + Duration::from_secs(3_600);
        let [renew_at, due_at] = [self.renew_at, self.due_at].map(|at| at.filter(|_| sends));
        [connection.failure_at(reads), renew_at, due_at].into_iter().flatten().fold(far, Instant::min)
    }

    /// Begins calls that waited for a connection, and subscriptions that are due: not all at once, so that replies are read meanwhile.
    fn handle_backlog(&mut self, commands: &mut VecDeque<Command>) {
        while commands.len() < BACKLOG_PER_TURN
            && let Some(call) = self.calls.pop_front()
        {
            self.begin(call, commands);
        }
        self.handle_deadlines(commands);
    }

    /// Subscribes and renews what is due.
    fn handle_deadlines(&mut self, commands: &mut VecDeque<Command>) {
        let now = Instant::now();
        if self.renew_at.is_some_and(|at| at <= now) {
            self.renew_at = None;
            if let Some(source) = self.builder.token_source.clone() {
                self.tokens.make(None, source);
            }
        }
        if self.due_at.is_none_or(|at| at > now) {
            return;
        }
        let is_due = |entry: &Entry| entry.due_at().is_some_and(|at| at <= now);
        let due: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| is_due(entry))
            .map(|(channel, _)| channel.clone())
            .take(BACKLOG_PER_TURN)
            .collect();
        for channel in due {
            self.handle_due(channel, commands);
        }
        self.due_at = self.entries.values().filter_map(Entry::due_at).min();
    }

    fn handle_due(&mut self, channel: String, commands: &mut VecDeque<Command>) {
        let Some(entry) = self.entries.get_mut(&channel) else { return };
        let source = entry.options.token_source.clone();
        match entry.state {
            State::Subscribed => {
                entry.renew_at = None;
                if let Some(source) = source {
                    self.make_subscription_token(channel, source);
                }
            }
            State::DueAt(_) => {
                let source = source.filter(|_| entry.token.is_empty());
                entry.state = if source.is_some() { State::MakingToken } else { State::Subscribing };
                if std::mem::take(&mut entry.is_known) {
                    self.send_unsubscribe(channel.clone(), commands);
                }
                match source {
                    Some(source) => self.make_subscription_token(channel, source),
                    None => self.send_subscribe(channel, commands),
                }
            }
            State::MakingToken | State::Subscribing => {}
        }
    }

    fn make_subscription_token(&mut self, channel: String, source: TokenSource) {
        self.last_key += 1;
        let key = self.last_key;
        if let Some(entry) = self.entries.get_mut(&channel) {
            entry.making = Some(key);
            self.tokens.make(Some((channel, key)), source);
        }
    }

    fn handle_token(&mut self, token: Token, commands: &mut VecDeque<Command>) {
        let later = Instant::now() + RENEWAL_DELAY;
        match token {
            Token { subscription: None, result: Ok(token) } => {
                self.token.clone_from(&token);
                let id = self.owe(Pending::Refresh);
                let refresh = Some(RefreshRequest { token });
                commands.push_back(Command { id, refresh, ..Command::default() });
            }
            Token { subscription: None, result: Err(_) } => self.renew_at = Some(later),
            Token { subscription: Some((channel, key)), result } => {
                let before = self.update(&channel, |entry| {
                    if entry.making != Some(key) {
                        return None;
                    }
                    entry.making = None;
                    let before = entry.state;
                    match (&result, before) {
                        (Ok(token), _) => {
                            entry.token.clone_from(token);
                            if before == State::MakingToken {
                                entry.state = State::Subscribing;
                            }
                        }
                        (Err(_), State::MakingToken) => entry.subscribe_at(later),
                        (Err(_), State::Subscribed) => entry.renew_at = Some(later),
                        (Err(_), State::DueAt(_) | State::Subscribing) => {}
                    }
                    Some((before, entry.key))
                });
                let (Some(Some((before, key))), Ok(token)) = (before, result) else { return };
                match before {
                    State::MakingToken => self.send_subscribe(channel, commands),
                    State::Subscribed => {
                        let id = self.owe(Pending::SubRefresh { channel: channel.clone(), key });
                        let sub_refresh = Some(SubRefreshRequest { channel, token });
                        commands.push_back(Command { id, sub_refresh, ..Command::default() });
                    }
                    // It was made for a subscription that has ended meanwhile: the next one uses it.
                    State::DueAt(_) | State::Subscribing => {}
                }
            }
        }
    }

    fn send_subscribe(&mut self, channel: String, commands: &mut VecDeque<Command>) {
        let Some(entry) = self.entries.get(&channel) else { return };
        let position = entry.position.clone().unwrap_or_default();
        let subscribe = SubscribeRequest {
            channel: channel.clone(),
            token: entry.token.clone(),
            recover: entry.position.is_some(),
            epoch: position.epoch,
            offset: position.offset,
            data: entry.options.data.clone(),
            positioned: entry.options.is_positioned,
            recoverable: entry.options.is_recoverable,
            join_leave: entry.options.wants_joins,
            delta: if entry.options.wants_deltas { "fossil".into() } else { String::new() },
            ..SubscribeRequest::default()
        };
        let key = entry.key;
        let mut command = Command { subscribe: Some(subscribe), ..Command::default() };
        if let Err(error) = check_len(&command, self.builder.command_len_max) {
            return self.end_subscription(&channel, 0, error);
        }
        command.id = self.owe(Pending::Subscribe { channel, key });
        commands.push_back(command);
    }

    /// Ends a subscription for good.
    fn end_subscription(&mut self, channel: &str, code: u32, error: ClientError) {
        let Some(entry) = self.entries.remove(channel) else { return };
        match entry.done {
            Some(done) => drop(done.send(Err(error))),
            None => {
                let reason = match error {
                    ClientError::Refused(error) => error.message,
                    other => other.to_string(),
                };
                let event = SubscriptionEvent::Unsubscribed { code, reason };
                self.deliveries.deliver(Event::Subscription(entry.events, event));
            }
        }
    }

    /// Whether the next reply may be handled, and the next message be read.
    fn has_room(&self, commands: &VecDeque<Command>) -> bool {
        !self.deliveries.are_stalled() && commands.len() < COMMANDS_MAX
    }

    /// Handles the next replies of a message, while there is room; an error if it is malformed.
    fn handle(
        &mut self,
        replies: &mut Replies,
        connection: &Connection,
        commands: &mut VecDeque<Command>,
    ) -> Result<(), Lost> {
        for _ in 0..REPLIES_PER_TURN {
            if !self.has_room(commands) {
                break;
            }
            let Some(reply) = replies.next() else { break };
            let reply = reply?;
            if connection.wants_pong(&reply) {
                // One pong answers all pings before it.
                if commands.back() != Some(&Command::default()) {
                    commands.push_back(Command::default());
                }
            } else if let Some(push) = reply.push {
                self.handle_push(push)?;
            } else if let Some(pending) = self.pending.remove(&reply.id) {
                self.handle_reply(pending, reply, commands);
            }
        }
        Ok(())
    }

    fn handle_reply(&mut self, pending: Pending, reply: Reply, commands: &mut VecDeque<Command>) {
        match pending {
            Pending::Call(done) => {
                let result = match reply.error.clone() {
                    Some(error) => Err(ClientError::Refused(error)),
                    None => Ok(reply),
                };
                // The caller may have given up.
                let _ = done.send(result);
            }
            Pending::Unsubscribe => {}
            Pending::Subscribe { channel, key } => self.handle_subscribe(channel, key, reply, commands),
            Pending::Refresh => match (reply.refresh, reply.error) {
                (Some(result), _) => self.set_renewal(result.expires, result.ttl),
                _ => self.renew_at = Some(Instant::now() + RENEWAL_DELAY),
            },
            Pending::SubRefresh { channel, key } => {
                self.update(&channel, |entry| {
                    if entry.key == key && entry.state == State::Subscribed {
                        entry.renew_at = match reply.sub_refresh {
                            Some(result) => after(result.expires, result.ttl),
                            None => Some(Instant::now() + RENEWAL_DELAY),
                        };
                    }
                });
            }
        }
    }

    fn handle_subscribe(
        &mut self,
        channel: String,
        key: u64,
        reply: Reply,
        commands: &mut VecDeque<Command>,
    ) {
        let delay_of = |task: &Self, failures| Instant::now() + task.delay(failures);
        // Another subscription has taken its place, after the command that ends it.
        if self.entries.get(&channel).is_some_and(|entry| entry.key != key) {
            return;
        }
        let Some(entry) = self.entries.get(&channel) else {
            // It was dropped meanwhile.
            if reply.subscribe.is_some() {
                self.send_unsubscribe(channel, commands);
            }
            return;
        };
        let Some(error) = reply.error else {
            return self.subscribed(&channel, reply.subscribe.unwrap_or_default());
        };
        let has_source = entry.options.token_source.is_some();
        if error.temporary || (error.code == TOKEN_EXPIRED && has_source) {
            let at = delay_of(self, entry.failures);
            self.update(&channel, |entry| {
                entry.failures = entry.failures.saturating_add(1);
                if error.code == TOKEN_EXPIRED {
                    entry.token.clear();
                }
                entry.subscribe_at(at);
            });
            return;
        }
        self.end_subscription(&channel, error.code, ClientError::Refused(error));
    }

    fn subscribed(&mut self, channel: &str, result: SubscribeResult) {
        let subscribed = Subscribed::new(&result);
        let has_position = result.recoverable || result.positioned;
        let position = has_position.then(|| subscribed.position.clone());
        // The publications precede the position of the result. They are received one by one: any may have a wrong base.
        let first = result.publications.first().map_or(u64::MAX, |publication| publication.offset);
        let begin = position.clone().map(|Position { offset, epoch }| {
            let offset = offset.min(first.saturating_sub(1));
            Position { offset, epoch }
        });
        let delivered = self.update(channel, |entry| {
            entry.state = State::Subscribed;
            entry.is_known = true;
            entry.failures = 0;
            entry.base = result.delta.then(Bytes::new);
            entry.position = begin;
            entry.renew_at =
                after(result.expires, result.ttl).filter(|_| entry.options.token_source.is_some());
            if let Some(done) = entry.done.take() {
                let _ = done.send(Ok(()));
            }
            entry.events.clone()
        });
        let Some(events) = delivered else { return };
        self.deliveries.deliver(Event::Subscription(events, SubscriptionEvent::Subscribed(subscribed)));
        for publication in result.publications {
            self.received(channel, publication);
        }
        self.update(channel, |entry| {
            if entry.state == State::Subscribed {
                entry.position = position;
            }
        });
    }

    fn received(&mut self, channel: &str, mut publication: Publication) {
        let Some(entry) = self.entries.get_mut(channel) else { return };
        // Publications after a failure are recovered by the next subscription.
        if entry.state != State::Subscribed {
            return;
        }
        // A reply of short deltas may be long payloads.
        let has_room = !publication.delta || self.deliveries.have_room();
        let received = if has_room { entry.receive(&mut publication) } else { Err(WrongBase) };
        let Err(WrongBase) = received else {
            let events = entry.events.clone();
            let event = SubscriptionEvent::Publication(publication);
            return self.deliveries.deliver(Event::Subscription(events, event));
        };
        let at = Instant::now() + self.delay(0);
        self.update(channel, |entry| entry.subscribe_at(at));
    }

    fn handle_push(&mut self, push: Push) -> Result<(), Lost> {
        let Push { channel, publication, join, leave, unsubscribe, message, subscribe, refresh, .. } = push;
        if let Some(publication) = publication {
            self.handle_publication(channel, publication);
        } else if let Some(info) = join.and_then(|join| join.info) {
            self.deliver_to(&channel, SubscriptionEvent::Join(info));
        } else if let Some(info) = leave.and_then(|leave| leave.info) {
            self.deliver_to(&channel, SubscriptionEvent::Leave(info));
        } else if let Some(unsubscribe) = unsubscribe {
            if self.server_side.remove(&channel) {
                self.emit(ClientEvent::Unsubscribed { channel });
                return Ok(());
            }
            // Without a result yet, it is the subscription before this one that has ended.
            let is_new = self.entries.get(&channel).is_some_and(|entry| entry.done.is_some());
            // The protocol: from 2500 on the client subscribes again.
            if unsubscribe.code >= 2500 || is_new {
                self.update(&channel, |entry| match entry.state {
                    State::Subscribed => {
                        entry.subscribe_at(Instant::now());
                        entry.is_known = false;
                    }
                    State::DueAt(_) => entry.is_known = false,
                    // The subscription before this one has ended.
                    State::MakingToken | State::Subscribing => {}
                });
                return Ok(());
            }
            let Some(entry) = self.entries.remove(&channel) else { return Ok(()) };
            let event =
                SubscriptionEvent::Unsubscribed { code: unsubscribe.code, reason: unsubscribe.reason };
            self.deliveries.deliver(Event::Subscription(entry.events, event));
        } else if let Some(subscribe) = subscribe {
            let result = SubscribeResult {
                recoverable: subscribe.recoverable,
                positioned: subscribe.positioned,
                epoch: subscribe.epoch,
                offset: subscribe.offset,
                data: subscribe.data,
                ..SubscribeResult::default()
            };
            self.server_subscribed(channel, result)?;
        } else if let Some(message) = message {
            self.emit(ClientEvent::Message(message.data));
        } else if let Some(refresh) = refresh {
            self.set_renewal(refresh.expires, refresh.ttl);
        }
        Ok(())
    }

    fn handle_publication(&mut self, channel: String, publication: Publication) {
        // While the server has a subscription of its own, it refuses that of an entry.
        if self.server_side.received(&channel, publication.offset) {
            self.emit(ClientEvent::Publication { channel, publication });
        } else {
            self.received(&channel, publication);
        }
    }

    fn server_subscribed(&mut self, channel: String, result: SubscribeResult) -> Result<(), Lost> {
        let subscribed = Subscribed::new(&result);
        let position = result.recoverable.then(|| subscribed.position.clone());
        self.server_side.insert(channel.clone(), position)?;
        self.emit(ClientEvent::Subscribed { channel: channel.clone(), subscribed });
        for publication in result.publications {
            self.emit(ClientEvent::Publication { channel: channel.clone(), publication });
        }
        Ok(())
    }

    /// The connection expires after `ttl` seconds, and a new token is due then: the server grants some time more.
    fn set_renewal(&mut self, expires: bool, ttl: u32) {
        self.renew_at = after(expires, ttl).filter(|_| self.builder.token_source.is_some());
    }

    fn deliver_to(&mut self, channel: &str, event: SubscriptionEvent) {
        if let Some(entry) = self.entries.get(channel) {
            let events = entry.events.clone();
            self.deliveries.deliver(Event::Subscription(events, event));
        }
    }

    fn emit(&mut self, event: ClientEvent) {
        if let Some(events) = self.events.clone() {
            self.deliveries.deliver(Event::Client(events, event));
        }
    }

    /// Ends all pending and later calls with the reason of the client's end.
    async fn finish(mut self, end: End) {
        let (code, reason, closed) = match end {
            End::Closed(done) => (0, "closed".to_owned(), done),
            End::Final { code, reason } => (code, reason, None),
        };
        self.disconnected();
        // Requests from before the end, such as for events, of which the end is the last.
        for _ in 0..self.requests.len() {
            if let Ok(request) = self.requests.try_recv() {
                self.handle_offline(request);
            }
        }
        let error = ClientError::Disconnected { code, reason: reason.clone() };
        self.waiting.drain(..).for_each(|done| drop(done.send(Err(error.clone()))));
        self.calls.drain(..).for_each(|call| drop(call.done.send(Err(error.clone()))));
        for (_, mut entry) in std::mem::take(&mut self.entries) {
            match entry.done.take() {
                Some(done) => drop(done.send(Err(error.clone()))),
                None => {
                    let event = SubscriptionEvent::Unsubscribed { code, reason: reason.clone() };
                    self.deliveries.deliver(Event::Subscription(entry.events, event));
                }
            }
        }
        self.emit(ClientEvent::Disconnected { code, reason });
        std::mem::take(&mut self.deliveries).finish();
        self.events = None;
        if let Some(closed) = closed {
            let _ = closed.send(());
        }
        loop {
            tokio::select! {
                Some(request) = self.requests.recv() => match request {
                    Request::Call(call) => drop(call.done.send(Err(error.clone()))),
                    Request::Subscribe { done, .. } | Request::Connected(done) => {
                        drop(done.send(Err(error.clone())));
                    }
                    Request::Events(_) => {}
                },
                notice = self.notices.recv() => match notice {
                    Some(Notice::Dropped(_)) => {}
                    Some(Notice::Disconnect(done)) => drop(done.send(())),
                    None => return,
                },
            }
        }
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// When a token with `ttl` seconds left is renewed: not at once, or a source that returns the same token would be asked without pause.
fn after(expires: bool, ttl: u32) -> Option<Instant> {
    expires.then(|| Instant::now() + Duration::from_secs(ttl.max(1).into()))
}

#[cfg(test)]
mod tests;
