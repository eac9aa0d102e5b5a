//! The gate: whether an operation on a channel is allowed. Every way in asks [`check`], and no other code decides.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tracing::warn;
use wireloom::OriginPolicy;

use crate::auth::{Flaw, TokenError};
use crate::client::{Client, Page};
use crate::clock::{Clock, WarningLimit};
use crate::config::{Access, ChannelOptions, HubConfig};
use crate::endpoint::Endpoint;
use crate::filter::Filter;
use crate::overrides::Overrides;
use crate::protocol::ErrorCode;
use crate::proxy::{SubscribeOutcome, expiry};
use crate::settings::Settings;

/// The party that asks for an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Requester<'a> {
    /// A client by any transport.
    Client(&'a Client),
    /// A client that has been granted the operation: by the server API, or when it connected by a verified token or the application.
    Granted(&'a Client),
    /// The application's backend itself: the server API after its key was checked, or the library.
    Backend,
}

/// An operation on a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation<'a> {
    /// `token` is the one of the subscription; empty without one.
    Subscribe {
        token: &'a str,
    },
    /// Renews a subscription's token.
    Renew {
        token: &'a str,
    },
    Publish,
    Presence,
    History,
    /// Of the server API.
    RemoveHistory,
}

/// The result of a check that does not refuse.
#[derive(Clone, Debug)]
pub(crate) enum Decision {
    Allowed(Grant),
    /// A callback of the application decides; this, if there is none for the operation.
    Application(WithoutCallback),
}

/// Decides about an operation for which the application has no callback.
#[derive(Clone, Debug)]
pub(crate) enum WithoutCallback {
    /// The endpoint of the namespace.
    Endpoint(Arc<Endpoint>),
    /// The setting of the namespace.
    Allowed,
    Refused,
}

impl Decision {
    /// The endpoint decides if there is one, and otherwise the setting.
    fn of_application(endpoint: Option<&Arc<Endpoint>>, by_setting: bool) -> Self {
        Self::Application(match endpoint {
            Some(endpoint) => WithoutCallback::Endpoint(endpoint.clone()),
            None if by_setting => WithoutCallback::Allowed,
            None => WithoutCallback::Refused,
        })
    }
}

/// The properties of a granted subscription.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Grant {
    pub(crate) info: Bytes,
    pub(crate) data: Bytes,
    pub(crate) expires_at: Option<Duration>,
    pub(crate) server_side: bool,
    /// Options of the namespace that the application or a token has set for this subscription.
    pub(crate) overrides: Overrides,
    /// Publications with other tags are kept from the subscriber.
    pub(crate) filter: Option<Box<Filter>>,
}

impl Grant {
    /// The grant in the application's answer.
    ///
    /// # Errors
    /// The answer is invalid: the text names the field.
    pub(crate) fn of(mut outcome: SubscribeOutcome, clock: &Clock) -> Result<Self, &'static str> {
        let (info, data) = outcome.payloads()?;
        let expires_at = clock.expiry(expiry(outcome.expire_at));
        let (overrides, filter) = (outcome.overrides, outcome.filter()?);
        Ok(Self { info, data, expires_at, server_side: false, overrides, filter })
    }
}

/// Checks an operation. A refusal whose cause is a setting that the client cannot know is logged.
///
/// # Errors
/// The code with which the command is refused.
pub(crate) fn check(
    settings: &Settings,
    clock: &Clock,
    warnings: &WarningLimit,
    requester: Requester<'_>,
    channel: &str,
    operation: Operation<'_>,
) -> Result<Decision, ErrorCode> {
    let config = &settings.config;
    if channel.is_empty() {
        return Err(ErrorCode::BadRequest);
    }
    if channel.len() > config.client.channel_name_len_max {
        return Err(ErrorCode::LimitExceeded);
    }
    let options = config.channel_options(channel).ok_or(ErrorCode::UnknownChannel)?;
    let proxies = settings.proxies.of_channel(channel).ok_or(ErrorCode::UnknownChannel)?;
    if !settings.allows_name(channel) {
        if warnings.may_warn(clock.now()) {
            warn!(channel, "a channel may not have this name; see channel_regex of its namespace");
        }
        return Err(ErrorCode::BadRequest);
    }
    match operation {
        Operation::Presence if !options.presence => return Err(ErrorCode::NotAvailable),
        Operation::History if !options.has_history() => return Err(ErrorCode::NotAvailable),
        _ => {}
    }
    let by_server = || Ok(Decision::Allowed(Grant { server_side: true, ..Grant::default() }));
    let (Requester::Client(client) | Requester::Granted(client)) = requester else { return by_server() };
    let page = client.page();
    if !allows_page(options, page) {
        if warnings.may_warn(clock.now()) {
            let page = page.map(Page::text);
            warn!(channel, page, "a page may not use a channel; see allowed_origins of its namespace");
        }
        return Err(ErrorCode::PermissionDenied);
    }
    // A client without an identity has not passed `connect`.
    if !client.has_connected() {
        return Err(ErrorCode::PermissionDenied);
    }
    if let Requester::Granted(_) = requester {
        return by_server();
    }
    match operation {
        Operation::Subscribe { token } => {
            if !token.is_empty() {
                return by_token(settings, clock, client, channel, token)
                    .map_err(|error| error.logged(clock, warnings, client.id).code())
                    .map(Decision::Allowed);
            }
            // Only a token opens a private channel.
            if channel.starts_with('$') {
                return Err(ErrorCode::PermissionDenied);
            }
            match names_user(config, options, channel, client.user()) {
                Some(true) => Ok(Decision::Allowed(Grant::default())),
                Some(false) => Err(ErrorCode::PermissionDenied),
                None => {
                    let endpoint = proxies.subscribe.as_ref();
                    Ok(Decision::of_application(endpoint, may_subscribe(options.subscribe, client)))
                }
            }
        }
        Operation::Renew { token } => {
            if !client.has_made_subscription(channel) {
                return Err(ErrorCode::PermissionDenied);
            }
            by_token(settings, clock, client, channel, token)
                .map_err(|error| error.logged(clock, warnings, client.id).code())
                .map(Decision::Allowed)
        }
        Operation::RemoveHistory => Err(ErrorCode::PermissionDenied),
        Operation::Publish | Operation::Presence | Operation::History => {
            // The other rights to a closed channel are those of its subscribers.
            let is_closed = channel.starts_with('$')
                || names_user(config, options, channel, client.user()) == Some(false);
            if is_closed && !client.is_subscribed(channel) {
                return Err(ErrorCode::PermissionDenied);
            }
            let access = match operation {
                Operation::Publish => options.publish,
                Operation::Presence => options.presence_access,
                _ => options.history_access,
            };
            let has_user = !client.user().is_empty();
            let by_setting = match access {
                Access::Anyone => true,
                Access::Client => has_user,
                Access::Subscriber => client.is_subscribed(channel),
                Access::SubscribedClient => has_user && client.is_subscribed(channel),
                Access::Token => false,
            };
            match operation {
                Operation::Publish => Ok(Decision::of_application(proxies.publish.as_ref(), by_setting)),
                _ if by_setting => Ok(Decision::Allowed(Grant::default())),
                _ => Err(ErrorCode::PermissionDenied),
            }
        }
    }
}

fn may_subscribe(access: Access, client: &Client) -> bool {
    match access {
        Access::Anyone => true,
        Access::Client | Access::Subscriber | Access::SubscribedClient => !client.user().is_empty(),
        Access::Token => false,
    }
}

/// Whether a channel that names users, such as `chat:x#7,42`, names this one; `None` for other channels. A personal channel names only its
/// owner.
fn names_user(config: &HubConfig, options: &ChannelOptions, channel: &str, user: &str) -> Option<bool> {
    if let Some(owner) = config.owner(channel, options) {
        return Some(!user.is_empty() && owner == user);
    }
    if !options.allow_user_limited_channels {
        return None;
    }
    let (_, users) = channel.split_once('#')?;
    Some(!user.is_empty() && users.split(',').any(|one| one == user))
}

fn allows_page(options: &ChannelOptions, page: Option<&Page>) -> bool {
    let origins = &options.allowed_origins;
    let is_listed = |page: &Page| {
        let listed = OriginPolicy::listed(origins);
        page.origins().any(|origin| listed.allows_page(Some(&origin), ""))
    };
    origins.is_empty() || origins.iter().any(|allowed| allowed == "*") || page.is_none_or(is_listed)
}

/// The grant of a subscription's token.
fn by_token(
    settings: &Settings,
    clock: &Clock,
    client: &Client,
    channel: &str,
    token: &str,
) -> Result<Grant, TokenError> {
    let claims = settings.verifier.subscribe(token, clock.system_now())?;
    if claims.channel != channel {
        return Err(Flaw::OtherChannel.into());
    }
    if claims.sub != client.user() {
        return Err(Flaw::OtherUser.into());
    }
    if !claims.client.is_empty() && claims.client != *client.id.text() {
        return Err(Flaw::OtherClient.into());
    }
    let (info, expires_at) = (claims.info(), clock.expiry(claims.expires_at()));
    Ok(Grant { info, expires_at, overrides: claims.overrides, ..Grant::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Identity, Transport};
    use crate::hub::Hub;
    use crate::protocol::Encoding;

    #[tokio::test]
    async fn a_user_whose_id_has_a_comma_is_not_those_users() {
        let config = HubConfig::from_toml(
            "[client]\npersonal_channel = true\n[channel]\nallow_user_limited_channels = true\n",
        );
        let node = Hub::builder().config(config.unwrap()).build().unwrap().0;
        for (user, expected) in [("7", true), ("8", true), ("7,8", false), ("9", false)] {
            let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
            client.connect(Identity { user: user.into(), ..Identity::default() });
            let operation = Operation::Subscribe { token: "" };
            let (settings, requester) = (node.settings(), Requester::Client(&client));
            let decision = check(&settings, &node.clock, &node.warnings, requester, "#7,8", operation);
            assert_eq!(decision.is_ok(), expected, "{user}: {decision:?}");
        }
    }
}
