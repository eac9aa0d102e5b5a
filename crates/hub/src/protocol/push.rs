//! The messages that a server sends on its own. Field numbers are those of the published Protobuf schema.

use std::collections::HashMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::codec::{is_default, raw};
use super::reply::SubscribeResult;

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
