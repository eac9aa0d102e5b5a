//! The commands of clients. Field numbers are those of the published Protobuf schema.

use super::schema::messages;

messages! {
    /// A command of a client: one of the fields below `id` is set.
    message Command {
        /// Repeated in the reply. 0 for a command without a reply.
        uint32 id = 1;
        /// The first command of every connection.
        ConnectRequest connect = 4;
        /// Subscribes to a channel.
        SubscribeRequest subscribe = 5;
        /// Ends a subscription.
        UnsubscribeRequest unsubscribe = 6;
        /// Publishes into a channel.
        PublishRequest publish = 7;
        /// Lists the clients of a channel.
        PresenceRequest presence = 8;
        /// Counts the clients of a channel.
        PresenceStatsRequest presence_stats = 9;
        /// Reads the history of a channel.
        HistoryRequest history = 10;
        /// Asks for a reply.
        PingRequest ping = 11;
        /// A message without a reply.
        SendRequest send = 12;
        /// Calls a method of the application.
        RpcRequest rpc = 13;
        /// Renews the token of the connection.
        RefreshRequest refresh = 14;
        /// Renews the token of a subscription.
        SubRefreshRequest sub_refresh = 15;
    }

    /// Commands of a client whose connection cannot carry them, such as one over HTTP streaming.
    message EmulationRequest {
        /// The node of the connection, from its `connect` reply.
        string node = 1;
        /// The session of the connection, from the same reply.
        string session = 2;
        /// The commands; in JSON a string.
        bytes data = 3;
    }

    /// The first command of a connection.
    message ConnectRequest {
        /// A JWT; empty for an anonymous client.
        string token = 1;
        /// Data for the application.
        bytes data = 2;
        /// Positions of server-side subscriptions to recover from.
        map<string, SubscribeRequest> subs = 3;
        /// The name of the client software.
        string name = 4;
        /// Its version.
        string version = 5;
        /// Headers for the application, from clients that cannot set HTTP headers.
        map<string, string> headers = 6;
        /// Bits of options; ignored.
        int64 flag = 7;
    }

    /// Renews the token of the connection.
    message RefreshRequest {
        /// A JWT.
        string token = 1;
    }

    /// Subscribes to a channel.
    message SubscribeRequest {
        /// The channel.
        string channel = 1;
        /// A JWT for channels that need one.
        string token = 2;
        /// Deliver everything since `epoch` and `offset`.
        bool recover = 3;
        /// The epoch of the last known position.
        string epoch = 6;
        /// The offset of the last known position.
        uint64 offset = 7;
        /// Data for the application.
        bytes data = 8;
        /// Asks the server to check the position for gaps.
        bool positioned = 9;
        /// Asks for recovery.
        bool recoverable = 10;
        /// Asks for join and leave pushes.
        bool join_leave = 11;
        /// The delta format that the client understands.
        string delta = 12;
        /// Only publications whose tags fit.
        FilterNode tf = 13;
        /// Bits of options. 2: a position that cannot be recovered is error 112. Others are ignored.
        int64 flag = 14;
    }

    /// A condition on the tags of publications: a comparison, or an operation on other conditions.
    message FilterNode {
        /// `and`, `or` and `not` combine `nodes`; empty for a comparison.
        string op = 1;
        /// The name of the tag.
        string key = 2;
        /// `eq`, `neq`, `in`, `nin`, `ex`, `nex`, `sw`, `ew`, `ct`, `lt`, `lte`, `gt` or `gte`.
        string cmp = 3;
        /// The value to compare with.
        string val = 4;
        /// The values of `in` and `nin`.
        repeated string vals = 5;
        /// The conditions that `op` combines.
        repeated FilterNode nodes = 6;
    }

    /// Renews the token of a subscription.
    message SubRefreshRequest {
        /// The channel.
        string channel = 1;
        /// A JWT.
        string token = 2;
    }

    /// Ends a subscription.
    message UnsubscribeRequest {
        /// The channel.
        string channel = 1;
    }

    /// Publishes into a channel.
    message PublishRequest {
        /// The channel.
        string channel = 1;
        /// The payload.
        bytes data = 2;
    }

    /// Lists the clients of a channel.
    message PresenceRequest {
        /// The channel.
        string channel = 1;
    }

    /// Counts the clients of a channel.
    message PresenceStatsRequest {
        /// The channel.
        string channel = 1;
    }

    /// A place in the history of a channel.
    message StreamPosition {
        /// Counted from 1.
        uint64 offset = 1;
        /// The history that the offset belongs to.
        string epoch = 2;
    }

    /// Reads the history of a channel.
    message HistoryRequest {
        /// The channel.
        string channel = 1;
        /// At most this many publications; 0 for the position alone, negative for all.
        int32 limit = 7;
        /// Only publications after this position.
        StreamPosition since = 8;
        /// The newest first.
        bool reverse = 9;
    }

    /// Asks for a reply.
    message PingRequest {}

    /// Calls a method of the application.
    message RpcRequest {
        /// The argument.
        bytes data = 1;
        /// The method.
        string method = 2;
    }

    /// A message to the application.
    message SendRequest {
        /// The payload.
        bytes data = 1;
    }
}

impl Command {
    /// Whether it connects or subscribes and does nothing else.
    pub(crate) fn only_opens(&self) -> bool {
        let opens = Self {
            id: self.id,
            connect: self.connect.clone(),
            subscribe: self.subscribe.clone(),
            ..Self::default()
        };
        *self == opens
    }

    /// Whether the answer is read from a channel, and costs as much as the channel holds. Subscriptions, which also `connect` makes,
    /// are charged where they are made.
    pub(crate) fn reads(&self) -> bool {
        self.presence.is_some() || self.presence_stats.is_some() || self.history.is_some()
    }
}
