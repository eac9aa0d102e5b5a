//! The commands of a connected client that have one reply each.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;

use super::{Session, list_again, reply_len_max};
use crate::auth::Flaw;
use crate::budget::{self, BYTES_PER_UNIT, READ_PER_UNIT, charge};
use crate::channel_limits;
use crate::client::{Format, Subscription};
use crate::clock::seconds;
use crate::engine::EngineError;
use crate::history::{HistoryQuery, Position};
use crate::hooks::{PublishEvent, Refusal, RpcEvent, copied};
use crate::idempotency::Origin;
use crate::node::{Node, PublishError, retention};
use crate::protocol::{
    Command, Encoding, ErrorCode, HistoryRequest, HistoryResult, PingResult, PresenceResult, Publication,
    PublishRequest, PublishResult, RefreshResult, Reply, RpcRequest, RpcResult, SubRefreshRequest,
    SubRefreshResult, UnsubscribeResult,
};
use crate::rights::{self, Decision, Operation, Requester, WithoutCallback};
use crate::shards::lock;

/// The maximum number of publications that one history command returns.
const HISTORY_MAX: usize = 1_000;

impl Session {
    /// Commands that have one reply.
    pub(super) async fn answer(&mut self, command: Box<Command>, reply: &mut Reply) -> Result<(), Refusal> {
        if let Some(request) = command.unsubscribe {
            self.unsubscribe(&request.channel).await?;
            reply.unsubscribe = Some(UnsubscribeResult {});
        } else if let Some(request) = command.publish {
            reply.publish = Some(self.publish(request).await?);
        } else if let Some(request) = command.presence {
            reply.presence = Some(self.presence(&request.channel).await?);
        } else if let Some(request) = command.presence_stats {
            self.check(&request.channel, Operation::Presence)?;
            let stats = self.node.engine().presence_stats(&request.channel).await;
            let stats =
                stats.map_err(|error| self.failed(&request.channel, &error, "presence was not read"))?;
            charge(stats.num_clients as usize / READ_PER_UNIT).await;
            reply.presence_stats = Some(stats);
        } else if let Some(request) = command.history {
            reply.history = Some(self.history(request).await?);
        } else if command.ping.is_some() {
            reply.ping = Some(PingResult {});
        } else if let Some(request) = command.rpc {
            let RpcRequest { method, data } = request;
            let data = match &self.node.hooks.rpc {
                Some(hook) => hook(self.event(method, data)).await?,
                None => self.call(&method, &data).await?,
            };
            reply.rpc = Some(RpcResult { data });
        } else if let Some(request) = command.refresh {
            reply.refresh = Some(self.refresh(&request.token).await?);
        } else if let Some(request) = command.sub_refresh {
            reply.sub_refresh = Some(self.sub_refresh(&request).await?);
        } else {
            return Err(ErrorCode::MethodNotFound.into());
        }
        Ok(())
    }

    async fn unsubscribe(&self, channel: &str) -> Result<(), Refusal> {
        if channel.is_empty() {
            return Err(ErrorCode::BadRequest.into());
        }
        Ok(self.node.unsubscribe_by_client(channel, &self.client).await?)
    }

    /// Asks the gate about an operation of this client.
    fn check(&self, channel: &str, operation: Operation<'_>) -> Result<Decision, ErrorCode> {
        let requester = Requester::Client(&self.client);
        rights::check(
            &self.node.settings(),
            &self.node.clock,
            &self.node.warnings,
            requester,
            channel,
            operation,
        )
    }

    async fn publish(&mut self, request: PublishRequest) -> Result<PublishResult, Refusal> {
        let PublishRequest { channel, data } = request;
        if data.is_empty() {
            return Err(ErrorCode::BadRequest.into());
        }
        let data = match self.client.transport.encoding() {
            Encoding::Json => data,
            // Copied, because a slice would keep the whole message in memory as long as the history.
            Encoding::Protobuf => Bytes::copy_from_slice(&data),
        };
        let publication = Publication { data, ..Publication::default() };
        self.publish_message(&channel, publication).await?;
        // A subscriber receives its own publication before the reply.
        if self.client.is_subscribed(&channel) {
            self.node.settle(&channel);
        }
        Ok(PublishResult {})
    }

    /// Publishes what the client sent, if it may.
    pub(crate) async fn publish_message(
        &mut self,
        channel: &str,
        mut publication: Publication,
    ) -> Result<(), Refusal> {
        let without_callback = match self.check(channel, Operation::Publish)? {
            Decision::Allowed(_) => WithoutCallback::Allowed,
            Decision::Application(without_callback) => without_callback,
        };
        self.pace(channel, publication.data.len()).await?;
        let (mut skip_history, mut key) = (false, String::new());
        if let Some(hook) = &self.node.hooks.publish {
            let event = PublishEvent {
                client: self.client.id.to_string(),
                user: self.client.user().into(),
                channel: channel.to_owned(),
                data: publication.data,
            };
            publication.data = copied(hook(event).await?);
        } else {
            match without_callback {
                WithoutCallback::Endpoint(endpoint) => {
                    let asked = self.caller().publish(&endpoint, channel, publication.data).await;
                    let (data, outcome) = asked.map_err(|failure| self.client.fail(failure))?;
                    (publication.data, skip_history, key) =
                        (data, outcome.skip_history, outcome.idempotency_key);
                    publication.tags.extend(outcome.tags);
                }
                WithoutCallback::Allowed => {}
                WithoutCallback::Refused => return Err(ErrorCode::PermissionDenied.into()),
            }
        }
        // After every refusal, because it counts the channel.
        if !skip_history {
            self.admit_to_history(channel)?;
        }
        let info =
            lock(&self.client.subscriptions).get(channel).and_then(|subscription| match subscription {
                Subscription::Active(active) => Some(active.info()),
                Subscription::Pending(_) => None,
            });
        // Nothing is known of an anonymous client in a room.
        let is_nameless = self.client.format() == Format::Bare && self.client.user().is_empty();
        publication.info = (!is_nameless).then(|| self.client.info(info.unwrap_or_default()));
        let published = self.node.publish(channel, publication, skip_history, Origin::Client, &key).await;
        published.map_err(|error| match error {
            PublishError::UnknownNamespace => ErrorCode::UnknownChannel,
            PublishError::BadChannel
            | PublishError::BadKey
            | PublishError::Engine(EngineError::ChannelLimit | EngineError::TooLong) => {
                ErrorCode::LimitExceeded
            }
            PublishError::Engine(error) => self.failed(channel, &error, "a client did not publish"),
        })?;
        Ok(())
    }

    /// Counts a failure of the engine; returns the error for the client.
    fn failed(&self, channel: &str, error: &EngineError, what: &str) -> ErrorCode {
        self.node.note_engine_failure(channel, error, what);
        ErrorCode::Internal
    }

    /// Waits until the connection may publish `len` bytes.
    async fn pace(&mut self, channel: &str, len: usize) -> Result<(), ErrorCode> {
        let settings = self.node.settings();
        let config = &settings.config;
        let options = config.channel_options(channel).ok_or(ErrorCode::UnknownChannel)?;
        let (pace, now) = (&mut self.kept.rare.get_or_insert_default().pace, self.node.clock.now());
        let paced_until = now.saturating_add(pace.delay(options, config.client.queue_len_max, len, now));
        while self.node.clock.now() < paced_until {
            let wakes_at =
                self.kept.renewal_at(&self.node, &self.client).map_or(paced_until, |at| at.min(paced_until));
            tokio::time::sleep_until(self.node.clock.instant(wakes_at)).await;
            self.renew_if_due().await;
            if self.client.outbox.has_ended() {
                return Err(ErrorCode::TokenExpired);
            }
        }
        Ok(())
    }

    /// Refuses a publication whose history would be one channel too many; counts the channel otherwise.
    fn admit_to_history(&self, channel: &str) -> Result<(), ErrorCode> {
        let settings = self.node.settings();
        let config = &settings.config;
        let options = config.channel_options(channel).ok_or(ErrorCode::UnknownChannel)?;
        let Node { channels, clock, .. } = &*self.node;
        let kept_for = retention(options).map(|retention| self.node.engine().channel_ttl(retention));
        let times = [clock.now(), kept_for.unwrap_or_default()];
        if channel_limits::admits_publication(config, options, channels, channel, &self.client, times) {
            Ok(())
        } else {
            Err(ErrorCode::LimitExceeded)
        }
    }

    async fn presence(&self, channel: &str) -> Result<PresenceResult, Refusal> {
        self.check(channel, Operation::Presence)?;
        let len_max = reply_len_max(&self.node.settings().config);
        let clients = self.node.engine().presence(channel, len_max).await;
        let clients = clients.map_err(|error| self.failed(channel, &error, "presence was not read"))?;
        let Some(clients) = clients else {
            charge(len_max / BYTES_PER_UNIT).await;
            let message = "too many clients for a reply; presence_stats counts them".into();
            return Err(Refusal { message, ..ErrorCode::LimitExceeded.into() });
        };
        let len: usize = clients.iter().map(|info| info.client.len() + info.encoded_len()).sum();
        charge(clients.len() / READ_PER_UNIT + len / BYTES_PER_UNIT).await;
        let clients = clients.into_iter().map(Arc::unwrap_or_clone);
        Ok(PresenceResult { presence: clients.map(|info| (info.client.clone(), info)).collect() })
    }

    async fn history(&self, request: HistoryRequest) -> Result<HistoryResult, Refusal> {
        let channel = &request.channel;
        self.check(channel, Operation::History)?;
        let since = request.since.map(|since| Position { offset: since.offset, epoch: since.epoch });
        // One command returns at most HISTORY_MAX publications.
        let limit = usize::try_from(request.limit).unwrap_or(usize::MAX).min(HISTORY_MAX);
        let len_max = Some(reply_len_max(&self.node.settings().config));
        // At least one publication: the client reads on behind the last.
        let query = HistoryQuery { since, limit: Some(limit), reverse: request.reverse, len_max };
        let history = self.node.history(channel, &query).await;
        let history = history.map_err(|error| self.failed(channel, &error, "a history was not read"))?;
        let history = history.unwrap_or_default();
        if let Some(since) = &query.since
            && !since.is_in(&history.position.epoch)
        {
            return Err(ErrorCode::UnrecoverablePosition.into());
        }
        charge(budget::of_publications(&history.publications)).await;
        Ok(HistoryResult {
            publications: history.publications.iter().map(|one| (**one).clone()).collect(),
            epoch: history.position.epoch,
            offset: history.position.offset,
        })
    }

    /// Calls a method of the application.
    async fn call(&self, method: &str, data: &Bytes) -> Result<Bytes, Refusal> {
        let settings = self.node.settings();
        let endpoint = settings.proxies.of_method(method).ok_or(ErrorCode::NotAvailable)?;
        let called = self.caller().rpc(endpoint, method, data).await;
        called.map_err(|failure| self.client.fail(failure))
    }

    fn event(&self, method: String, data: Bytes) -> RpcEvent {
        RpcEvent { client: self.client.id.to_string(), user: self.client.user().into(), method, data }
    }

    pub(super) async fn message(&self, data: Bytes) {
        if let Some(hook) = &self.node.hooks.message {
            hook(self.event(String::new(), data)).await;
        }
    }

    async fn refresh(&self, token: &str) -> Result<RefreshResult, ErrorCode> {
        if token.is_empty() {
            return Err(ErrorCode::BadRequest);
        }
        let (settings, clock) = (self.node.settings(), &self.node.clock);
        let verifier = &settings.verifier;
        let verify = || verifier.connect(token, clock.system_now());
        let verified = verifier.in_turn_of_connect(token, verify).await;
        let (meta, claims) = verified
            .and_then(|claims| match claims.sub == self.client.user() {
                true => Ok((claims.meta()?, claims)),
                false => Err(Flaw::OtherUser.into()),
            })
            .map_err(|error| error.logged(clock, &self.node.warnings, self.client.id).code())?;
        let expires_at =
            [clock.expiry(claims.expires_at()), self.granted_until()].into_iter().flatten().min();
        self.client.set_expires_at(expires_at);
        // A callback has decided what others see.
        let info = if self.node.hooks.connect.is_none() { claims.info() } else { Bytes::new() };
        self.change(info, meta);
        Ok(RefreshResult {
            client: self.client.id.to_string(),
            version: env!("CARGO_PKG_VERSION").into(),
            expires: expires_at.is_some(),
            ttl: expires_at.map_or(0, |at| seconds(at.saturating_sub(clock.now()))),
        })
    }

    async fn sub_refresh(&self, request: &SubRefreshRequest) -> Result<SubRefreshResult, ErrorCode> {
        if request.channel.is_empty() || request.token.is_empty() {
            return Err(ErrorCode::BadRequest);
        }
        let (settings, operation) = (self.node.settings(), Operation::Renew { token: &request.token });
        let check = || self.check(&request.channel, operation);
        let grant = match settings.verifier.in_turn_of_subscribe(&request.token, check).await? {
            Decision::Allowed(grant) => grant,
            // A token is what renews it.
            Decision::Application(_) => return Err(ErrorCode::PermissionDenied),
        };
        if self.client.renew_subscription(&request.channel, grant.expires_at, grant.info) {
            list_again(&self.node, &self.client, vec![request.channel.as_str().into()]).await;
        }
        let now = self.node.clock.now();
        let ttl = grant.expires_at.map_or(0, |at| seconds(at.saturating_sub(now)));
        Ok(SubRefreshResult { expires: grant.expires_at.is_some(), ttl })
    }
}
