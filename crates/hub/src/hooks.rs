//! Callbacks by which an application decides what clients may do.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::protocol::{self, Disconnect, ErrorCode};

/// The future of a callback.
pub type HookFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

type Hook<A, T> = Option<Arc<dyn Fn(A) -> HookFuture<T> + Send + Sync>>;

/// A client that wants to connect. Its token, if it sent one, has been verified.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectEvent {
    /// The id of the connection.
    pub client: String,
    /// The user that the token names; empty without a token.
    pub user: String,
    /// Whether there was a valid token.
    pub has_token: bool,
    /// When the token expires, since 1970. The connection does not outlast it, whatever is granted.
    pub expires_at: Option<Duration>,
    /// The channels that the token names, in its claims `channels` and `subs`. Those are subscribed to that are granted.
    pub channels: Vec<String>,
    /// The data of the client's command.
    pub data: Bytes,
    /// Headers that the client sent within its connect command.
    pub headers: HashMap<String, String>,
    /// The address of the client; `None` if the server that accepted the connection does not report it.
    pub peer: Option<SocketAddr>,
}

/// The identity and rights of a client that may connect.
#[derive(Clone, Debug, Default)]
pub struct ConnectGrant {
    /// The user; empty for an anonymous one.
    pub user: String,
    /// A JSON value that others see.
    pub info: Bytes,
    /// A JSON value for the client.
    pub data: Bytes,
    /// Channels to subscribe the connection to.
    pub channels: Vec<String>,
    /// When the connection expires, since 1970, but not after its token. Where this is earlier, another token does not extend it: the client
    /// connects again, which asks the callback. The server API and the endpoint `refresh` do extend it.
    pub expires_at: Option<Duration>,
}

/// A client that wants to subscribe.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SubscribeEvent {
    /// The id of the connection.
    pub client: String,
    /// Empty for an anonymous client.
    pub user: String,
    /// The channel.
    pub channel: String,
    /// The data of the client's command.
    pub data: Bytes,
}

/// The properties of a granted subscription.
#[derive(Clone, Debug, Default)]
pub struct SubscribeGrant {
    /// A JSON value that others see, for this channel.
    pub info: Bytes,
    /// A JSON value for the client.
    pub data: Bytes,
    /// When the subscription expires, since 1970.
    pub expires_at: Option<Duration>,
}

/// A client that wants to publish.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PublishEvent {
    /// The id of the connection.
    pub client: String,
    /// Empty for an anonymous client.
    pub user: String,
    /// The channel.
    pub channel: String,
    /// The payload.
    pub data: Bytes,
}

/// A client that calls a method, or sends a message (then `method` is empty).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RpcEvent {
    /// The id of the connection.
    pub client: String,
    /// Empty for an anonymous client.
    pub user: String,
    /// The method.
    pub method: String,
    /// The argument.
    pub data: Bytes,
}

/// A connection that has ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DisconnectEvent {
    /// The id of the connection.
    pub client: String,
    /// Empty for an anonymous client.
    pub user: String,
    /// Why it ended.
    pub reason: Disconnect,
}

/// A refusal by a callback: a code of the protocol, or of the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// 1 to 399 are the protocol's; applications use 400 to 1999.
    pub code: u32,
    /// The reason, as a text.
    pub message: String,
    /// Whether the client may try again.
    pub temporary: bool,
}

/// A copy of bytes of the application, or of a request. They may have a destructor that calls the hub, and be part of a buffer that is much
/// larger: they are dropped here, where nothing is locked.
pub(crate) fn copied(bytes: Bytes) -> Bytes {
    Bytes::copy_from_slice(&bytes)
}

/// Why the application's answer is not a result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    /// The reply carries an error.
    Refused(Refusal),
    /// The application ends the connection.
    Disconnected(Disconnect),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<ErrorCode> for Failure {
    fn from(code: ErrorCode) -> Self {
        Self::Refused(code.into())
    }
}

impl From<ErrorCode> for Refusal {
    fn from(code: ErrorCode) -> Self {
        Self { code: code.code(), message: code.message().into(), temporary: code.is_temporary() }
    }
}

impl From<Refusal> for protocol::Error {
    fn from(refusal: Refusal) -> Self {
        Self { code: refusal.code, message: refusal.message, temporary: refusal.temporary }
    }
}

/// The callbacks of the application.
#[derive(Default)]
pub(crate) struct Hooks {
    pub(crate) connect: Hook<ConnectEvent, Result<ConnectGrant, Disconnect>>,
    pub(crate) subscribe: Hook<SubscribeEvent, Result<SubscribeGrant, Refusal>>,
    pub(crate) publish: Hook<PublishEvent, Result<Bytes, Refusal>>,
    pub(crate) rpc: Hook<RpcEvent, Result<Bytes, Refusal>>,
    pub(crate) message: Hook<RpcEvent, ()>,
    pub(crate) disconnect: Hook<DisconnectEvent, ()>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooks")
    }
}
