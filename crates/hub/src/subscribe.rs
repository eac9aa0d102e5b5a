//! Subscribing: rights, history and presence, in the required order.
//!
//! ```text
//! Pending -> subscriber added, publications wait -> history read -> presence -> Active, reply, what waited, live -> join
//! ```

use std::sync::Arc;

use prost::Message as _;

use crate::budget::{self, charge};
use crate::channel_limits;
use crate::channels::{Deltas, Start, Started};
use crate::client::{Active, Client, Format, Pending, Subscription};
use crate::clock::seconds;
use crate::config::{ChannelOptions, DeltaType, HubConfig, ProxyChoice};
use crate::encoded;
use crate::engine::EngineError;
use crate::filter::Filter;
use crate::history::{Position, Retention};
use crate::hooks::{Refusal, SubscribeEvent, SubscribeGrant, copied};
use crate::node::{Node, retention};
use crate::outbox::Later;
use crate::protocol::{Encoding, ErrorCode, Reply, SubscribeRequest, SubscribeResult};
use crate::proxy::{Caller, Headers};
use crate::rights::{self, Decision, Grant, Operation, Requester, WithoutCallback};
use crate::session::reply_len_max;
use crate::shards::lock;

/// The bit of a subscribe command's `flag` that asks for an error instead of a subscription that has not recovered.
const REJECT_UNRECOVERED: i64 = 2;

/// A request for a subscription.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) command: SubscribeRequest,
    /// The grant of the server or of the connection's token, if there is one.
    pub(crate) granted: Option<Grant>,
    pub(crate) headers: Headers,
    /// The length of what other subscriptions recover in the same reply.
    pub(crate) recovered_len: usize,
}

/// A subscription whose publications are kept until it is [started](Established::start).
pub(crate) struct Established {
    reserved: Reserved,
    active: Active,
    start: Start,
    options: ChannelOptions,
    /// The answer to the client.
    pub(crate) result: SubscribeResult,
}

/// A subscription that is being established. Dropping it undoes the steps so far, also if the connection ends during
/// the command.
struct Reserved {
    node: Arc<Node>,
    client: Arc<Client>,
    channel: Arc<str>,
    /// Its entry in the client's list.
    pending: Arc<Pending>,
    step: Step,
}

/// The steps that a drop undoes.
enum Step {
    /// The client's list has a pending entry.
    Listed,
    /// The channel has a subscriber, too.
    Added { key: usize },
    /// The engine follows the channel, too.
    Followed { key: usize },
    /// Nothing: the subscriber has started.
    Done,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Step::Added { key } | Step::Followed { key } = self.step {
            self.node.channels.remove(&self.channel, key);
        }
        if let Step::Followed { .. } = self.step {
            self.node.engine().unsubscribe(&self.channel);
        }
        if !matches!(self.step, Step::Done) {
            let mut subscriptions = lock(&self.client.subscriptions);
            if subscriptions.get(&self.channel).is_some_and(|one| one.is(&self.pending)) {
                subscriptions.remove(&self.channel);
            }
            drop(subscriptions);
            if self.pending.listed.get().is_some() {
                self.node.unlist(&self.channel, &self.client);
            }
            if let Some(opened) = self.pending.opened.get().cloned() {
                self.node.events.end(opened, ErrorCode::Internal.code(), "not established");
            }
        }
    }
}

impl Request {
    /// A subscription that the server makes on its own.
    pub(crate) fn from_server(channel: &str) -> Self {
        let command = SubscribeRequest { channel: channel.into(), ..SubscribeRequest::default() };
        Self::granted(command, Grant { server_side: true, ..Grant::default() })
    }

    /// A subscription that the connection's token or the application has granted.
    pub(crate) fn granted(command: SubscribeRequest, grant: Grant) -> Self {
        Self { command, granted: Some(grant), headers: Headers::NONE, recovered_len: 0 }
    }

    /// A subscription that the client asks for.
    pub(crate) fn from_client(command: SubscribeRequest, headers: &Headers) -> Self {
        Self { command, granted: None, headers: headers.clone(), recovered_len: 0 }
    }
}

/// Subscribes a client; publications are kept until the subscription is started.
pub(crate) async fn subscribe(
    node: &Arc<Node>,
    client: &Arc<Client>,
    mut request: Request,
) -> Result<Established, Refusal> {
    // At once: a malformed one may be large, and the application may take its time.
    let filter = match request.command.tf.take() {
        Some(filter) => Some(Box::new(Filter::new(&filter).ok_or(ErrorCode::BadRequest)?)),
        None => None,
    };
    charge(budget::READ).await;
    let settings = node.settings();
    let config = &settings.config;
    let name = request.command.channel.as_str();
    // The end of the subscription before is announced first. What the server asks for has this order already.
    if request.granted.is_none() {
        node.changes_made(name, client).await;
    }
    let pending = Arc::<Pending>::default();
    {
        let mut subscriptions = lock(&client.subscriptions);
        // `Node::leave_all` ends the outbox before it takes the list, so that nothing is added afterwards.
        if client.outbox.has_ended() {
            return Err(ErrorCode::Internal.into());
        }
        if subscriptions.get(name).is_some() {
            return Err(ErrorCode::AlreadySubscribed.into());
        }
        if subscriptions.len() >= config.client.channels_max {
            return Err(ErrorCode::LimitExceeded.into());
        }
        subscriptions.insert(name.into(), Subscription::Pending(pending.clone()));
    }
    let (node, client) = (node.clone(), client.clone());
    let reserved = Reserved { node, client, channel: name.into(), pending, step: Step::Listed };
    let mut grant = authorise(&reserved.node, &reserved.client, &request).await?;
    let mut options = reserved.node.options(&reserved.channel).ok_or(ErrorCode::UnknownChannel)?;
    grant.overrides.apply(&mut options);
    // A delta is relative to the previous publication, which a filter may leave out.
    if filter.is_some() && (!options.allow_tags_filter || !request.command.delta.is_empty()) {
        return Err(ErrorCode::BadRequest.into());
    }
    if grant.filter.is_some() {
        options.allowed_delta_types.clear();
    }
    check_limits(&reserved, config, &options, request.granted.is_some())?;
    grant.filter = match (grant.filter, filter) {
        (Some(granted), Some(own)) => Some(Box::new(Filter::And(vec![*granted, *own]))),
        (one, other) => one.or(other),
    };
    add(reserved, &request, options, grant).await
}

/// Checks the limits on the channels of a client's namespace and user. The first is one of what clients open on their own.
fn check_limits(
    reserved: &Reserved,
    config: &HubConfig,
    options: &ChannelOptions,
    is_granted: bool,
) -> Result<(), ErrorCode> {
    let Reserved { node, client, channel, .. } = reserved;
    let is_admitted = is_granted
        || channel_limits::admits_subscription(config, options, &node.channels, channel, node.clock.now());
    // The one that is reserved is counted.
    if is_admitted && user_has_room(node, config, client.user(), 0) {
        Ok(())
    } else {
        Err(ErrorCode::LimitExceeded)
    }
}

/// Whether `more` further subscriptions of a user are within its limit.
fn user_has_room(node: &Node, config: &HubConfig, user: &str, more: usize) -> bool {
    let max = config.client.channels_per_user_max;
    max == 0 || user.is_empty() || node.subscriptions_of(user) + more <= max
}

/// Checks whether the server may subscribe all these connections of a user, but for rooms, to a channel.
pub(crate) fn check_granted(node: &Node, clients: &[Arc<Client>], channel: &str) -> Result<(), ErrorCode> {
    let settings = node.settings();
    let operation = Operation::Subscribe { token: "" };
    let mut more = 0;
    for client in clients.iter().filter(|client| client.takes_channels()) {
        rights::check(
            &settings,
            &node.clock,
            &node.warnings,
            Requester::Granted(client),
            channel,
            operation,
        )?;
        let subscriptions = lock(&client.subscriptions);
        if subscriptions.get(channel).is_some() {
            continue;
        }
        if subscriptions.len() >= settings.config.client.channels_max {
            return Err(ErrorCode::LimitExceeded);
        }
        more += 1;
    }
    let user = clients.first().map_or("", |client| client.user());
    if more == 0 || user_has_room(node, &settings.config, user, more) {
        Ok(())
    } else {
        Err(ErrorCode::LimitExceeded)
    }
}

/// Logs and counts that a client was refused what it had been granted.
pub(crate) fn warn_refused(node: &Node, client: &Client, channel: &str, refusal: &Refusal) {
    node.metrics.refused.increment(refusal.code);
    if node.warnings.may_warn(node.clock.now()) {
        let (client, user, reason) = (&*client.id.text(), client.user(), &*refusal.message);
        tracing::warn!(channel, client, user, reason, "a subscription that the server made was refused");
    }
}

/// Asks the gate, and the application where that decides; returns the properties of the subscription.
async fn authorise(node: &Node, client: &Client, request: &Request) -> Result<Grant, Refusal> {
    let SubscribeRequest { channel, token, data, .. } = &request.command;
    let requester = match &request.granted {
        Some(_) => Requester::Granted(client),
        None => Requester::Client(client),
    };
    let (operation, settings) = (Operation::Subscribe { token }, node.settings());
    let check = || rights::check(&settings, &node.clock, &node.warnings, requester, channel, operation);
    let without_callback = match settings.verifier.in_turn_of_subscribe(token, check).await? {
        Decision::Allowed(grant) => return Ok(request.granted.clone().unwrap_or(grant)),
        Decision::Application(without_callback) => without_callback,
    };
    if let Some(hook) = &node.hooks.subscribe {
        let event = SubscribeEvent {
            client: client.id.to_string(),
            user: client.user().into(),
            channel: channel.clone(),
            data: data.clone(),
        };
        let SubscribeGrant { info, data, expires_at } = hook(event).await?;
        let expires_at = node.clock.expiry(expires_at);
        return Ok(Grant { info: copied(info), data, expires_at, ..Grant::default() });
    }
    match without_callback {
        WithoutCallback::Endpoint(endpoint) => {
            let caller = Caller { client, headers: &request.headers };
            let asked = caller.subscribe(&endpoint, channel, data).await;
            let granted = asked
                .and_then(|outcome| Grant::of(outcome, &node.clock).map_err(|flaw| endpoint.failed(flaw)));
            granted.map_err(|failure| client.fail(failure))
        }
        WithoutCallback::Allowed => Ok(Grant::default()),
        WithoutCallback::Refused => Err(ErrorCode::PermissionDenied.into()),
    }
}

/// Adds the subscriber and reads what it missed.
async fn add(
    mut reserved: Reserved,
    request: &Request,
    options: ChannelOptions,
    grant: Grant,
) -> Result<Established, Refusal> {
    let (node, client) = (reserved.node.clone(), reserved.client.clone());
    let command = &request.command;
    let has_deltas = deltas(&client, command, &options).is_some();
    node.settle(&command.channel);
    let (channel, key) = node.channels.add(&command.channel, client.clone(), has_deltas);
    reserved.channel = channel;
    reserved.step = Step::Added { key };
    node.engine().subscribe(&reserved.channel).await.map_err(|error| reserved.refusal(&error))?;
    reserved.step = Step::Followed { key };
    let (start, mut result) = position(&reserved, request, &options, grant.filter).await?;
    if options.unsubscribe_events
        && let Some(opened) = node.prepare(&client, Some(&command.channel))
    {
        // First, so that its end is reported whatever happens.
        let opened = reserved.pending.opened.get_or_init(|| opened);
        node.events.open(opened).await.map_err(|error| reserved.refusal(&error))?;
    }
    // Where the backend renews subscriptions, clients need not.
    let renewed_by_backend = options.sub_refresh_proxy != ProxyChoice::Off;
    let client_renews_at = grant.expires_at.filter(|_| !renewed_by_backend);
    result.expires = client_renews_at.is_some();
    result.ttl = client_renews_at.map_or(0, |at| seconds(at.saturating_sub(node.clock.now())));
    result.data = grant.data;
    let mut active = Active::new(key, grant.info, grant.expires_at);
    active.presence = options.presence;
    active.server_side = grant.server_side;
    active.renewed_by_backend = renewed_by_backend;
    Ok(Established { reserved, active, start, options, result })
}

impl Reserved {
    fn refusal(&self, error: &EngineError) -> Refusal {
        match error {
            EngineError::ChannelLimit | EngineError::TooLong => ErrorCode::LimitExceeded.into(),
            EngineError::Refused(_) | EngineError::Unavailable(_) => {
                self.node.note_engine_failure(&self.channel, error, "a client was not subscribed");
                ErrorCode::Internal.into()
            }
        }
    }
}

/// The history that a subscription follows, if it follows one.
fn followed(command: &SubscribeRequest, options: &ChannelOptions) -> Option<Retention> {
    let wanted = options.force_recovery || command.recoverable || command.positioned || command.recover;
    retention(options).filter(|_| wanted)
}

/// The encoding of the deltas that a subscription receives; `None` if it does not receive deltas.
fn deltas(client: &Client, command: &SubscribeRequest, options: &ChannelOptions) -> Option<Encoding> {
    followed(command, options)?;
    let delta_type = DeltaType::from_name(&command.delta)?;
    match client.format() {
        Format::Protocol(encoding) if options.allowed_delta_types.contains(&delta_type) => Some(encoding),
        _ => None,
    }
}

/// The position at which the subscription begins, and what the client missed.
async fn position(
    reserved: &Reserved,
    request: &Request,
    options: &ChannelOptions,
    filter: Option<Box<Filter>>,
) -> Result<(Start, SubscribeResult), Refusal> {
    let Reserved { node, client, channel, .. } = reserved;
    let command = &request.command;
    let join_leave = options.join_leave && (options.force_push_join_leave || command.join_leave);
    let mut start = Start { join_leave, filter, ..Start::default() };
    let mut result = SubscribeResult::default();
    let Some(retention) = followed(command, options) else { return Ok((start, result)) };
    result.recoverable = options.force_recovery || command.recoverable || command.recover;
    result.positioned = true;
    result.was_recovering = command.recover;
    let since = Position { offset: command.offset, epoch: command.epoch.clone() };
    let since = (command.recover && result.recoverable).then_some(&since);
    let len_max = reply_len_max(&node.settings().config).saturating_sub(request.recovered_len);
    let recovered = node.engine().recover(channel, since, options.recovery_mode, retention, len_max).await;
    let mut recovery = recovered.map_err(|error| reserved.refusal(&error))?;
    // Also for those that a filter leaves out.
    charge(budget::of_publications(&recovery.publications)).await;
    if let Some(filter) = &start.filter {
        recovery.publications.retain(|publication| filter.fits(&publication.tags));
    }
    let lens = recovery.publications.iter().map(|publication| publication.encoded_len());
    // One publication alone is sent however long it is.
    if request.recovered_len > 0 && lens.sum::<usize>() > len_max {
        (recovery.publications, recovery.recovered) = (Vec::new(), false);
    }
    if command.recover {
        let counter = if recovery.recovered { &node.metrics.recovered } else { &node.metrics.unrecovered };
        counter.increment();
        if !recovery.recovered && command.flag & REJECT_UNRECOVERED != 0 {
            return Err(ErrorCode::UnrecoverablePosition.into());
        }
    }
    result.recovered = recovery.recovered;
    result.epoch = recovery.position.epoch.clone();
    result.offset = recovery.position.offset;
    if let Some(encoding) = deltas(client, command, options) {
        result.delta = true;
        result.publications = encoded::with_deltas(encoding, &recovery.publications).await;
        let last = recovery.publications.last().map(|last| last.offset);
        start.deltas =
            if last == Some(recovery.position.offset) { Deltas::Following } else { Deltas::NoBase };
    } else {
        result.publications = recovery.publications.iter().map(|one| (**one).clone()).collect();
    }
    start.position = Some(recovery.position);
    Ok((start, result))
}

impl Established {
    /// Sends the replies, then the kept and all further publications, then announces the join. One reply may be for
    /// several subscriptions. Returns false, without doing any of this, if the server has ended the subscription.
    pub(crate) async fn start(self, replies: Vec<Reply>) -> bool {
        let Reserved { node, client, channel, .. } = &self.reserved;
        let (node, client, channel) = (node.clone(), client.clone(), channel.clone());
        let is_announced = self.options.join_leave;
        let has_begun = self.begin(replies).await;
        if is_announced {
            node.changes_made(&channel, &client).await;
        }
        has_begun
    }

    /// The same for a subscription that is itself one of the connection's changes: does not wait until the join is announced.
    pub(crate) async fn begin(self, replies: Vec<Reply>) -> bool {
        let Self { mut reserved, mut active, start, options, .. } = self;
        let (node, client, channel) =
            (reserved.node.clone(), reserved.client.clone(), reserved.channel.clone());
        let key = active.key();
        client.note_subscription_expiry(active.expires_at());
        // Before the reply, so that a subscribed client is listed.
        if active.presence {
            let _ = reserved.pending.listed.set(active.info());
            if let Err(error) = node.update_presence(&channel, &client).await {
                node.note_engine_failure(&channel, &error, "presence was not added");
            }
        }
        let on_slow = |pushed| node.note_pushed(pushed);
        let replies = replies.iter().filter_map(|reply| client.encode(reply)).collect();
        let mut later = Later::default();
        let (started, unwritten) = {
            let mut subscriptions = lock(&client.subscriptions);
            // The connection ended, or the server API ended the subscription. There may be another one since.
            if !subscriptions.get(&channel).is_some_and(|one| one.is(&reserved.pending)) {
                return false;
            }
            active.set_opened(reserved.pending.opened.get().cloned());
            // With the name that all subscribers of the channel share.
            subscriptions.insert(channel.clone(), Subscription::Active(active));
            reserved.step = Step::Done;
            // Before the subscription can be ended: the key may belong to another subscriber afterwards.
            node.channels.start(&channel, key, start, replies, &on_slow, &mut later)
        };
        drop(later);
        node.write_later(unwritten);
        match started {
            Started::Following if options.join_leave => node.join(&channel, &client, key),
            Started::Following => {}
            Started::Gap => node.lose_position(&channel, &client),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;

    use tokio::sync::Notify;

    use super::*;
    use crate::client::{Identity, Transport};
    use crate::hub::Hub;
    use crate::protocol::UnsubscribeCode;

    #[tokio::test]
    async fn a_subscription_that_was_ended_does_not_replace_the_next_one() {
        let (asked, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (asking, waiting) = (asked.clone(), release.clone());
        let hub = Hub::builder().on_subscribe(move |_| {
            let (asked, release) = (asking.clone(), waiting.clone());
            async move {
                asked.notify_one();
                release.notified().await;
                Ok(SubscribeGrant::default())
            }
        });
        let hub = hub.build().unwrap();
        let node = hub.0.clone();
        let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
        client.connect(Identity::default());
        let command = SubscribeRequest { channel: "a".into(), ..SubscribeRequest::default() };
        let (task_node, task_client) = (node.clone(), client.clone());
        let first = tokio::spawn(async move {
            let request = Request::from_client(command, &Headers::NONE);
            subscribe(&task_node, &task_client, request).await.unwrap().start(Vec::new()).await
        });
        asked.notified().await;
        node.unsubscribe("a", &client, UnsubscribeCode::Server);
        // The next one is established, or still pending, when the first goes on.
        let next = subscribe(&node, &client, Request::from_server("a")).await.unwrap();
        release.notify_one();
        assert!(!first.await.unwrap());
        assert!(next.start(Vec::new()).await);
        assert_eq!(node.channels.list().collect::<Vec<_>>(), [("a".into(), 1)]);
        node.unsubscribe("a", &client, UnsubscribeCode::Server);
        assert_eq!(node.channels.len(), 0);
    }

    #[tokio::test]
    async fn a_task_does_not_make_many_subscriptions_in_one_turn() {
        let hub = Hub::builder().build().unwrap();
        let node = &hub.0;
        let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
        client.connect(Identity::default());
        let mut all = pin!(async {
            for number in 0..16 {
                let request = Request::from_server(&number.to_string());
                assert!(subscribe(node, &client, request).await.unwrap().start(Vec::new()).await);
            }
        });
        let mut turns = 0;
        poll_fn(|cx| {
            turns += 1;
            all.as_mut().poll(cx)
        })
        .await;
        assert!((2..16).contains(&turns), "{turns}");
    }
}
