//! The answers of the server. Field numbers are those of the published Protobuf schema.

use std::collections::HashMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::codec::{is_default, raw};
use super::push::{ClientInfo, Publication, Push};

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

/// The subscription has ended.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct UnsubscribeResult {}

/// It was published.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct PublishResult {}

/// The clients of a channel.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct PresenceResult {
    /// By the id of the connection.
    #[prost(map = "string, message", tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub presence: HashMap<String, ClientInfo>,
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

/// The reply.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct PingResult {}

/// The result of the method.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct RpcResult {
    /// The result.
    #[prost(bytes = "bytes", tag = "1")]
    #[serde(skip_serializing_if = "Bytes::is_empty", with = "raw")]
    pub data: Bytes,
}
