//! The messages of the client protocol. Field numbers are those of its published Protobuf schema; in JSON the fields have the
//! same names, empty ones are left out, and `data`, `conn_info` and `chan_info` are any JSON value.

use std::collections::HashMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::codec::{object, raw};

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Why a command was refused.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Error {
    /// See [`ErrorCode`](super::ErrorCode).
    #[prost(uint32, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub code: u32,
    /// In words.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub message: String,
    /// The same command may succeed later.
    #[prost(bool, tag = "3")]
    #[serde(skip_serializing_if = "is_default")]
    pub temporary: bool,
}

/// A command of a client: one of the fields below `id` is set.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Command {
    /// Repeated in the reply. 0 for a command without a reply.
    #[prost(uint32, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub id: u32,
    /// The first command of every connection.
    #[prost(message, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "object")]
    pub connect: Option<ConnectRequest>,
    /// Subscribes to a channel.
    #[prost(message, optional, tag = "5")]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "object")]
    pub subscribe: Option<SubscribeRequest>,
    /// Ends a subscription.
    #[prost(message, optional, tag = "6")]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "object")]
    pub unsubscribe: Option<UnsubscribeRequest>,
    /// Publishes into a channel.
    #[prost(message, optional, tag = "7")]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "object")]
    pub publish: Option<PublishRequest>,
    /// Lists the clients of a channel.
    #[prost(message, optional, tag = "8")]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "object")]
    pub presence: Option<PresenceRequest>,
    /// Counts the clients of a channel.
    #[prost(message, optional, tag = "9")]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "object")]
    pub presence_stats: Option<PresenceStatsRequest>,
    /// Reads the history of a channel.
    #[prost(message, optional, tag = "10")]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "object")]
    pub history: Option<HistoryRequest>,
    /// Asks for a reply.
    #[prost(message, optional, tag = "11")]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "object")]
    pub ping: Option<PingRequest>,
    /// A message without a reply.
    #[prost(message, optional, tag = "12")]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "object")]
    pub send: Option<SendRequest>,
    /// Calls a method of the application.
    #[prost(message, optional, tag = "13")]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "object")]
    pub rpc: Option<RpcRequest>,
    /// Renews the token of the connection.
    #[prost(message, optional, tag = "14")]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "object")]
    pub refresh: Option<RefreshRequest>,
    /// Renews the token of a subscription.
    #[prost(message, optional, tag = "15")]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "object")]
    pub sub_refresh: Option<SubRefreshRequest>,
}

/// A reply of the server, or a push when `id` is 0.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Reply {
    /// The id of the command that this answers.
    #[prost(uint32, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub id: u32,
    /// The command was refused.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
    /// Not an answer.
    #[prost(message, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub push: Option<Push>,
    /// Answers `connect`.
    #[prost(message, optional, tag = "5")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect: Option<ConnectResult>,
    /// Answers `subscribe`.
    #[prost(message, optional, tag = "6")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscribe: Option<SubscribeResult>,
    /// Answers `unsubscribe`.
    #[prost(message, optional, tag = "7")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsubscribe: Option<UnsubscribeResult>,
    /// Answers `publish`.
    #[prost(message, optional, tag = "8")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publish: Option<PublishResult>,
    /// Answers `presence`.
    #[prost(message, optional, tag = "9")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence: Option<PresenceResult>,
    /// Answers `presence_stats`.
    #[prost(message, optional, tag = "10")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_stats: Option<PresenceStatsResult>,
    /// Answers `history`.
    #[prost(message, optional, tag = "11")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<HistoryResult>,
    /// Answers `ping`.
    #[prost(message, optional, tag = "12")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ping: Option<PingResult>,
    /// Answers `rpc`.
    #[prost(message, optional, tag = "13")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc: Option<RpcResult>,
    /// Answers `refresh`.
    #[prost(message, optional, tag = "14")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh: Option<RefreshResult>,
    /// Answers `sub_refresh`.
    #[prost(message, optional, tag = "15")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sub_refresh: Option<SubRefreshResult>,
}

/// Something that the server sends on its own.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Push {
    /// The channel, where there is one.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub channel: String,
    /// A message of the channel.
    #[prost(message, optional, tag = "4")]
    #[serde(rename = "pub", skip_serializing_if = "Option::is_none")]
    pub publication: Option<Publication>,
    /// A client has subscribed.
    #[prost(message, optional, tag = "5")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub join: Option<Join>,
    /// A client has unsubscribed.
    #[prost(message, optional, tag = "6")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leave: Option<Leave>,
    /// The server has ended the subscription.
    #[prost(message, optional, tag = "7")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsubscribe: Option<UnsubscribePush>,
    /// A message to this connection alone.
    #[prost(message, optional, tag = "8")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<MessagePush>,
    /// The server has subscribed this connection.
    #[prost(message, optional, tag = "9")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscribe: Option<SubscribePush>,
    /// The connection is established; on transports that only send.
    #[prost(message, optional, tag = "10")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect: Option<ConnectPush>,
    /// The connection ends; on transports without close codes.
    #[prost(message, optional, tag = "11")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disconnect: Option<DisconnectPush>,
    /// The connection now expires at another time.
    #[prost(message, optional, tag = "12")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh: Option<RefreshPush>,
}

/// A client as others see it.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientInfo {
    /// The user; empty for an anonymous one.
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub user: String,
    /// The id of the connection.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub client: String,
    /// From the token of the connection.
    #[prost(bytes = "bytes", tag = "3")]
    #[serde(skip_serializing_if = "Bytes::is_empty", with = "raw")]
    pub conn_info: Bytes,
    /// From the token of the subscription.
    #[prost(bytes = "bytes", tag = "4")]
    #[serde(skip_serializing_if = "Bytes::is_empty", with = "raw")]
    pub chan_info: Bytes,
}

/// A message of a channel.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Publication {
    /// The payload.
    #[prost(bytes = "bytes", tag = "4")]
    #[serde(skip_serializing_if = "Bytes::is_empty", with = "raw")]
    pub data: Bytes,
    /// The publisher, when it is a client.
    #[prost(message, optional, tag = "5")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub info: Option<ClientInfo>,
    /// Its place in the history, from 1 on; 0 without history.
    #[prost(uint64, tag = "6")]
    #[serde(skip_serializing_if = "is_default")]
    pub offset: u64,
    /// Tags of the publisher.
    #[prost(map = "string, string", tag = "7")]
    #[serde(skip_serializing_if = "is_default")]
    pub tags: HashMap<String, String>,
    /// `data` is a delta to the publication before.
    #[prost(bool, tag = "8")]
    #[serde(skip_serializing_if = "is_default")]
    pub delta: bool,
    /// When it was published, in milliseconds since 1970.
    #[prost(int64, tag = "9")]
    #[serde(skip_serializing_if = "is_default")]
    pub time: i64,
    /// The channel, where the subscription covers several.
    #[prost(string, tag = "10")]
    #[serde(skip_serializing_if = "is_default")]
    pub channel: String,
}

/// A client has subscribed.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Join {
    /// The client.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub info: Option<ClientInfo>,
}

/// A client has unsubscribed.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Leave {
    /// The client.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub info: Option<ClientInfo>,
}

/// The server has ended a subscription.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct UnsubscribePush {
    /// See [`UnsubscribeCode`](super::UnsubscribeCode).
    #[prost(uint32, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub code: u32,
    /// In words.
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "is_default")]
    pub reason: String,
}

/// The server has subscribed a connection.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct SubscribePush {
    /// Missed publications can be recovered.
    #[prost(bool, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub recoverable: bool,
    /// The epoch of the position.
    #[prost(string, tag = "4")]
    #[serde(skip_serializing_if = "is_default")]
    pub epoch: String,
    /// The offset of the position.
    #[prost(uint64, tag = "5")]
    #[serde(skip_serializing_if = "is_default")]
    pub offset: u64,
    /// The position is watched.
    #[prost(bool, tag = "6")]
    #[serde(skip_serializing_if = "is_default")]
    pub positioned: bool,
    /// Data of the application.
    #[prost(bytes = "bytes", tag = "7")]
    #[serde(skip_serializing_if = "Bytes::is_empty", with = "raw")]
    pub data: Bytes,
}

/// A message to one connection.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct MessagePush {
    /// The payload.
    #[prost(bytes = "bytes", tag = "1")]
    #[serde(skip_serializing_if = "Bytes::is_empty", with = "raw")]
    pub data: Bytes,
}

/// The connection is established.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectPush {
    /// The id of the connection.
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub client: String,
    /// The version of the server.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub version: String,
    /// Data of the application.
    #[prost(bytes = "bytes", tag = "3")]
    #[serde(skip_serializing_if = "Bytes::is_empty", with = "raw")]
    pub data: Bytes,
    /// The subscriptions that the server made.
    #[prost(map = "string, message", tag = "4")]
    #[serde(skip_serializing_if = "is_default")]
    pub subs: HashMap<String, SubscribeResult>,
    /// The connection expires.
    #[prost(bool, tag = "5")]
    #[serde(skip_serializing_if = "is_default")]
    pub expires: bool,
    /// When it expires, in seconds.
    #[prost(uint32, tag = "6")]
    #[serde(skip_serializing_if = "is_default")]
    pub ttl: u32,
    /// The interval of pings, in seconds.
    #[prost(uint32, tag = "7")]
    #[serde(skip_serializing_if = "is_default")]
    pub ping: u32,
    /// The client must answer pings.
    #[prost(bool, tag = "8")]
    #[serde(skip_serializing_if = "is_default")]
    pub pong: bool,
    /// Unused.
    #[prost(string, tag = "9")]
    #[serde(skip_serializing_if = "is_default")]
    pub session: String,
    /// The node.
    #[prost(string, tag = "10")]
    #[serde(skip_serializing_if = "is_default")]
    pub node: String,
    /// The time of the server, in milliseconds since 1970.
    #[prost(int64, tag = "11")]
    #[serde(skip_serializing_if = "is_default")]
    pub time: i64,
}

/// The connection ends.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct DisconnectPush {
    /// See [`Disconnect`](super::Disconnect).
    #[prost(uint32, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub code: u32,
    /// In words.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub reason: String,
    /// The client should reconnect.
    #[prost(bool, tag = "3")]
    #[serde(skip_serializing_if = "is_default")]
    pub reconnect: bool,
}

/// The connection expires at another time.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct RefreshPush {
    /// It expires.
    #[prost(bool, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub expires: bool,
    /// When, in seconds.
    #[prost(uint32, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub ttl: u32,
}

/// The first command of a connection.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectRequest {
    /// A JWT; empty for an anonymous client.
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub token: String,
    /// Data for the application.
    #[prost(bytes = "bytes", tag = "2")]
    #[serde(skip_serializing_if = "Bytes::is_empty", with = "raw")]
    pub data: Bytes,
    /// Positions of server-side subscriptions to recover from.
    #[prost(map = "string, message", tag = "3")]
    #[serde(skip_serializing_if = "is_default")]
    pub subs: HashMap<String, SubscribeRequest>,
    /// The name of the client software.
    #[prost(string, tag = "4")]
    #[serde(skip_serializing_if = "is_default")]
    pub name: String,
    /// Its version.
    #[prost(string, tag = "5")]
    #[serde(skip_serializing_if = "is_default")]
    pub version: String,
    /// Headers for the application, from where no HTTP header can be set.
    #[prost(map = "string, string", tag = "6")]
    #[serde(skip_serializing_if = "is_default")]
    pub headers: HashMap<String, String>,
    /// Bits of options; ignored.
    #[prost(int64, tag = "7")]
    #[serde(skip_serializing_if = "is_default")]
    pub flag: i64,
}

/// The connection is established.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectResult {
    /// The id of the connection.
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub client: String,
    /// The version of the server.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub version: String,
    /// The connection expires.
    #[prost(bool, tag = "3")]
    #[serde(skip_serializing_if = "is_default")]
    pub expires: bool,
    /// When it expires, in seconds.
    #[prost(uint32, tag = "4")]
    #[serde(skip_serializing_if = "is_default")]
    pub ttl: u32,
    /// Data of the application.
    #[prost(bytes = "bytes", tag = "5")]
    #[serde(skip_serializing_if = "Bytes::is_empty", with = "raw")]
    pub data: Bytes,
    /// The subscriptions that the server made.
    #[prost(map = "string, message", tag = "6")]
    #[serde(skip_serializing_if = "is_default")]
    pub subs: HashMap<String, SubscribeResult>,
    /// The interval of pings, in seconds.
    #[prost(uint32, tag = "7")]
    #[serde(skip_serializing_if = "is_default")]
    pub ping: u32,
    /// The client must answer pings.
    #[prost(bool, tag = "8")]
    #[serde(skip_serializing_if = "is_default")]
    pub pong: bool,
    /// Unused.
    #[prost(string, tag = "9")]
    #[serde(skip_serializing_if = "is_default")]
    pub session: String,
    /// The node.
    #[prost(string, tag = "10")]
    #[serde(skip_serializing_if = "is_default")]
    pub node: String,
    /// The time of the server, in milliseconds since 1970.
    #[prost(int64, tag = "11")]
    #[serde(skip_serializing_if = "is_default")]
    pub time: i64,
}

/// Renews the token of the connection.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct RefreshRequest {
    /// A JWT.
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub token: String,
}

/// The token was renewed.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct RefreshResult {
    /// The id of the connection.
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub client: String,
    /// The version of the server.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub version: String,
    /// The connection expires.
    #[prost(bool, tag = "3")]
    #[serde(skip_serializing_if = "is_default")]
    pub expires: bool,
    /// When, in seconds.
    #[prost(uint32, tag = "4")]
    #[serde(skip_serializing_if = "is_default")]
    pub ttl: u32,
}

/// Subscribes to a channel.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct SubscribeRequest {
    /// The channel.
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub channel: String,
    /// A JWT for channels that need one.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub token: String,
    /// Deliver everything since `epoch` and `offset`.
    #[prost(bool, tag = "3")]
    #[serde(skip_serializing_if = "is_default")]
    pub recover: bool,
    /// The epoch of the last known position.
    #[prost(string, tag = "6")]
    #[serde(skip_serializing_if = "is_default")]
    pub epoch: String,
    /// The offset of the last known position.
    #[prost(uint64, tag = "7")]
    #[serde(skip_serializing_if = "is_default")]
    pub offset: u64,
    /// Data for the application.
    #[prost(bytes = "bytes", tag = "8")]
    #[serde(skip_serializing_if = "Bytes::is_empty", with = "raw")]
    pub data: Bytes,
    /// Asks for a watched position.
    #[prost(bool, tag = "9")]
    #[serde(skip_serializing_if = "is_default")]
    pub positioned: bool,
    /// Asks for recovery.
    #[prost(bool, tag = "10")]
    #[serde(skip_serializing_if = "is_default")]
    pub recoverable: bool,
    /// Asks for join and leave pushes.
    #[prost(bool, tag = "11")]
    #[serde(skip_serializing_if = "is_default")]
    pub join_leave: bool,
    /// The delta format that the client understands.
    #[prost(string, tag = "12")]
    #[serde(skip_serializing_if = "is_default")]
    pub delta: String,
    /// Bits of options; ignored.
    #[prost(int64, tag = "14")]
    #[serde(skip_serializing_if = "is_default")]
    pub flag: i64,
}

/// The subscription is established.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct SubscribeResult {
    /// The subscription expires.
    #[prost(bool, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub expires: bool,
    /// When, in seconds.
    #[prost(uint32, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub ttl: u32,
    /// Missed publications can be recovered.
    #[prost(bool, tag = "3")]
    #[serde(skip_serializing_if = "is_default")]
    pub recoverable: bool,
    /// The epoch of the position.
    #[prost(string, tag = "6")]
    #[serde(skip_serializing_if = "is_default")]
    pub epoch: String,
    /// The publications that the client missed.
    #[prost(message, repeated, tag = "7")]
    #[serde(skip_serializing_if = "is_default")]
    pub publications: Vec<Publication>,
    /// `publications` holds everything that the client missed.
    #[prost(bool, tag = "8")]
    #[serde(skip_serializing_if = "is_default")]
    pub recovered: bool,
    /// The offset of the position.
    #[prost(uint64, tag = "9")]
    #[serde(skip_serializing_if = "is_default")]
    pub offset: u64,
    /// The position is watched.
    #[prost(bool, tag = "10")]
    #[serde(skip_serializing_if = "is_default")]
    pub positioned: bool,
    /// Data of the application.
    #[prost(bytes = "bytes", tag = "11")]
    #[serde(skip_serializing_if = "Bytes::is_empty", with = "raw")]
    pub data: Bytes,
    /// The client asked for recovery.
    #[prost(bool, tag = "12")]
    #[serde(skip_serializing_if = "is_default")]
    pub was_recovering: bool,
    /// Publications may come as deltas.
    #[prost(bool, tag = "13")]
    #[serde(skip_serializing_if = "is_default")]
    pub delta: bool,
    /// Unused.
    #[prost(int64, tag = "14")]
    #[serde(skip_serializing_if = "is_default")]
    pub id: i64,
}

/// Renews the token of a subscription.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct SubRefreshRequest {
    /// The channel.
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub channel: String,
    /// A JWT.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub token: String,
}

/// The token was renewed.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct SubRefreshResult {
    /// The subscription expires.
    #[prost(bool, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub expires: bool,
    /// When, in seconds.
    #[prost(uint32, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub ttl: u32,
}

/// Ends a subscription.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct UnsubscribeRequest {
    /// The channel.
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub channel: String,
}

/// The subscription has ended.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct UnsubscribeResult {}

/// Publishes into a channel.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct PublishRequest {
    /// The channel.
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub channel: String,
    /// The payload.
    #[prost(bytes = "bytes", tag = "2")]
    #[serde(skip_serializing_if = "Bytes::is_empty", with = "raw")]
    pub data: Bytes,
}

/// It was published.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct PublishResult {}

/// Lists the clients of a channel.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct PresenceRequest {
    /// The channel.
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub channel: String,
}

/// The clients of a channel.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct PresenceResult {
    /// By the id of the connection.
    #[prost(map = "string, message", tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub presence: HashMap<String, ClientInfo>,
}

/// Counts the clients of a channel.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct PresenceStatsRequest {
    /// The channel.
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub channel: String,
}

/// How many clients a channel has.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct PresenceStatsResult {
    /// Connections.
    #[prost(uint32, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub num_clients: u32,
    /// Different users.
    #[prost(uint32, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub num_users: u32,
}

/// A place in the history of a channel.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamPosition {
    /// Counted from 1.
    #[prost(uint64, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub offset: u64,
    /// The history that the offset belongs to.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub epoch: String,
}

/// Reads the history of a channel.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct HistoryRequest {
    /// The channel.
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub channel: String,
    /// At most this many publications; 0 for the position alone, negative for all.
    #[prost(int32, tag = "7")]
    #[serde(skip_serializing_if = "is_default")]
    pub limit: i32,
    /// Only what was published after this position.
    #[prost(message, optional, tag = "8")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<StreamPosition>,
    /// The newest first.
    #[prost(bool, tag = "9")]
    #[serde(skip_serializing_if = "is_default")]
    pub reverse: bool,
}

/// The history of a channel.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct HistoryResult {
    /// The publications.
    #[prost(message, repeated, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub publications: Vec<Publication>,
    /// The epoch of the position.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub epoch: String,
    /// The offset of the newest publication.
    #[prost(uint64, tag = "3")]
    #[serde(skip_serializing_if = "is_default")]
    pub offset: u64,
}

/// Asks for a reply.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct PingRequest {}

/// The reply.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct PingResult {}

/// Calls a method of the application.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct RpcRequest {
    /// The argument.
    #[prost(bytes = "bytes", tag = "1")]
    #[serde(skip_serializing_if = "Bytes::is_empty", with = "raw")]
    pub data: Bytes,
    /// The method.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub method: String,
}

/// The result of the method.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct RpcResult {
    /// The result.
    #[prost(bytes = "bytes", tag = "1")]
    #[serde(skip_serializing_if = "Bytes::is_empty", with = "raw")]
    pub data: Bytes,
}

/// A message to the application.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct SendRequest {
    /// The payload.
    #[prost(bytes = "bytes", tag = "1")]
    #[serde(skip_serializing_if = "Bytes::is_empty", with = "raw")]
    pub data: Bytes,
}
