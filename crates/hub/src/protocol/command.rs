//! The commands of clients. Field numbers are those of the published Protobuf schema.

use std::collections::HashMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::codec::{is_default, object, raw};

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

/// Renews the token of the connection.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct RefreshRequest {
    /// A JWT.
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub token: String,
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

/// Ends a subscription.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct UnsubscribeRequest {
    /// The channel.
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub channel: String,
}

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

/// Lists the clients of a channel.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct PresenceRequest {
    /// The channel.
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub channel: String,
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

/// Asks for a reply.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct PingRequest {}

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

/// A message to the application.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct SendRequest {
    /// The payload.
    #[prost(bytes = "bytes", tag = "1")]
    #[serde(skip_serializing_if = "Bytes::is_empty", with = "raw")]
    pub data: Bytes,
}
