//! The answers of the server. Field numbers are those of the published Protobuf schema.

use super::push::{ClientInfo, Publication, Push};
use super::schema::messages;

messages! {
    /// Why a command was refused.
    message Error {
        /// See [`ErrorCode`](super::ErrorCode).
        uint32 code = 1;
        /// In words.
        string message = 2;
        /// The same command may succeed later.
        bool temporary = 3;
    }

    /// A reply of the server, or a push when `id` is 0.
    message Reply {
        /// The id of the command that this answers.
        uint32 id = 1;
        /// The command was refused.
        Error error = 2;
        /// A push, which is not an answer.
        Push push = 4;
        /// Answers `connect`.
        ConnectResult connect = 5;
        /// Answers `subscribe`.
        SubscribeResult subscribe = 6;
        /// Answers `unsubscribe`.
        UnsubscribeResult unsubscribe = 7;
        /// Answers `publish`.
        PublishResult publish = 8;
        /// Answers `presence`.
        PresenceResult presence = 9;
        /// Answers `presence_stats`.
        PresenceStatsResult presence_stats = 10;
        /// Answers `history`.
        HistoryResult history = 11;
        /// Answers `ping`.
        PingResult ping = 12;
        /// Answers `rpc`.
        RpcResult rpc = 13;
        /// Answers `refresh`.
        RefreshResult refresh = 14;
        /// Answers `sub_refresh`.
        SubRefreshResult sub_refresh = 15;
    }

    /// The connection is established.
    message ConnectResult {
        /// The id of the connection.
        string client = 1;
        /// The version of the server.
        string version = 2;
        /// The connection expires.
        bool expires = 3;
        /// When it expires, in seconds.
        uint32 ttl = 4;
        /// Data of the application.
        bytes data = 5;
        /// The subscriptions that the server made.
        map<string, SubscribeResult> subs = 6;
        /// The interval of pings, in seconds.
        uint32 ping = 7;
        /// The client must answer pings.
        bool pong = 8;
        /// The session, for clients whose connection cannot carry commands: see [`EmulationRequest`](super::EmulationRequest).
        string session = 9;
        /// The node.
        string node = 10;
        /// The time of the server, in milliseconds since 1970.
        int64 time = 11;
    }

    /// The token was renewed.
    message RefreshResult {
        /// The id of the connection.
        string client = 1;
        /// The version of the server.
        string version = 2;
        /// The connection expires.
        bool expires = 3;
        /// When, in seconds.
        uint32 ttl = 4;
    }

    /// The subscription is established.
    message SubscribeResult {
        /// The subscription expires.
        bool expires = 1;
        /// When, in seconds.
        uint32 ttl = 2;
        /// Missed publications can be recovered.
        bool recoverable = 3;
        /// The epoch of the position.
        string epoch = 6;
        /// The publications that the client missed.
        repeated Publication publications = 7;
        /// `publications` holds everything that the client missed.
        bool recovered = 8;
        /// The offset of the position.
        uint64 offset = 9;
        /// The server checks the position for gaps.
        bool positioned = 10;
        /// Data of the application.
        bytes data = 11;
        /// The client asked for recovery.
        bool was_recovering = 12;
        /// Publications may come as deltas.
        bool delta = 13;
        /// Unused.
        int64 id = 14;
    }

    /// The token was renewed.
    message SubRefreshResult {
        /// The subscription expires.
        bool expires = 1;
        /// When, in seconds.
        uint32 ttl = 2;
    }

    /// The subscription has ended.
    message UnsubscribeResult {}

    /// It was published.
    message PublishResult {}

    /// The clients of a channel.
    message PresenceResult {
        /// By the id of the connection.
        map<string, ClientInfo> presence = 1;
    }

    /// How many clients a channel has.
    message PresenceStatsResult {
        /// Connections.
        always uint32 num_clients = 1;
        /// Different users.
        always uint32 num_users = 2;
    }

    /// The history of a channel.
    message HistoryResult {
        /// The publications.
        repeated Publication publications = 1;
        /// The epoch of the position.
        string epoch = 2;
        /// The offset of the newest publication.
        uint64 offset = 3;
    }

    /// The reply.
    message PingResult {}

    /// The result of the method.
    message RpcResult {
        /// The result.
        bytes data = 1;
    }
}
