//! The messages that a server sends on its own. Field numbers are those of the published Protobuf schema.

use super::reply::SubscribeResult;
use super::schema::messages;

messages! {
    /// Something that the server sends on its own.
    message Push {
        /// The channel, where there is one.
        string channel = 2;
        /// A message of the channel.
        Publication publication = 4 as "pub";
        /// A client has subscribed.
        Join join = 5;
        /// A client has unsubscribed.
        Leave leave = 6;
        /// The server has ended the subscription.
        UnsubscribePush unsubscribe = 7;
        /// A message to this connection alone.
        MessagePush message = 8;
        /// The server has subscribed this connection.
        SubscribePush subscribe = 9;
        /// The connection is established; for unidirectional transports.
        ConnectPush connect = 10;
        /// The connection ends; for transports without close codes.
        DisconnectPush disconnect = 11;
        /// The connection now expires at another time.
        RefreshPush refresh = 12;
    }

    /// A client as others see it.
    message ClientInfo {
        /// The user; empty for an anonymous one.
        string user = 1;
        /// The id of the connection.
        string client = 2;
        /// From the token of the connection.
        bytes conn_info = 3;
        /// From the token of the subscription.
        bytes chan_info = 4;
    }

    /// A message of a channel.
    message Publication {
        /// The payload.
        bytes data = 4;
        /// The publisher, when it is a client.
        ClientInfo info = 5;
        /// Its place in the history, from 1 on; 0 without history.
        uint64 offset = 6;
        /// Tags of the publisher.
        map<string, string> tags = 7;
        /// `data` is a delta to the publication before.
        bool delta = 8;
        /// When it was published, in milliseconds since 1970.
        int64 time = 9;
        /// The channel, where the subscription covers several.
        string channel = 10;
    }

    /// A client has subscribed.
    message Join {
        /// The client.
        ClientInfo info = 1;
    }

    /// A client has unsubscribed.
    message Leave {
        /// The client.
        ClientInfo info = 1;
    }

    /// The server has ended a subscription.
    message UnsubscribePush {
        /// See [`UnsubscribeCode`](super::UnsubscribeCode).
        uint32 code = 2;
        /// In words.
        string reason = 3;
    }

    /// The server has subscribed a connection.
    message SubscribePush {
        /// Missed publications can be recovered.
        bool recoverable = 1;
        /// The epoch of the position.
        string epoch = 4;
        /// The offset of the position.
        uint64 offset = 5;
        /// The server checks the position for gaps.
        bool positioned = 6;
        /// Data of the application.
        bytes data = 7;
    }

    /// A message to one connection.
    message MessagePush {
        /// The payload.
        bytes data = 1;
    }

    /// The connection is established.
    message ConnectPush {
        /// The id of the connection.
        string client = 1;
        /// The version of the server.
        string version = 2;
        /// Data of the application.
        bytes data = 3;
        /// The subscriptions that the server made.
        map<string, SubscribeResult> subs = 4;
        /// The connection expires.
        bool expires = 5;
        /// When it expires, in seconds.
        uint32 ttl = 6;
        /// The interval of pings, in seconds.
        uint32 ping = 7;
        /// The client must answer pings.
        bool pong = 8;
        /// Unused.
        string session = 9;
        /// The node.
        string node = 10;
        /// The time of the server, in milliseconds since 1970.
        int64 time = 11;
    }

    /// The connection ends.
    message DisconnectPush {
        /// See [`Disconnect`](super::Disconnect).
        uint32 code = 1;
        /// In words.
        string reason = 2;
        /// The client should reconnect.
        bool reconnect = 3;
    }

    /// The connection expires at another time.
    message RefreshPush {
        /// It expires.
        bool expires = 1;
        /// When, in seconds.
        uint32 ttl = 2;
    }
}
