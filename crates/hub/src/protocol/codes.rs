//! The codes of errors, unsubscriptions and disconnections.

use super::reply::Error;

/// Why a command was refused. The numbers are those of the client protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// The server failed; the client may try again.
    Internal,
    /// The client has not proved who it is.
    Unauthorized,
    /// The channel's namespace does not exist.
    UnknownChannel,
    /// The client may not do this.
    PermissionDenied,
    /// The command, or the RPC method, does not exist.
    MethodNotFound,
    /// The client is subscribed to this channel already.
    AlreadySubscribed,
    /// A limit would be exceeded: the number of channels, the length of a name or of a message.
    LimitExceeded,
    /// The command is malformed.
    BadRequest,
    /// The channel's namespace has this feature switched off.
    NotAvailable,
    /// The token has expired; the client should ask for a new one.
    TokenExpired,
    /// The connection or the subscription has expired.
    Expired,
    /// The client sends too many commands; it may try again later.
    TooManyRequests,
    /// The position from which the client wants to continue cannot be recovered.
    UnrecoverablePosition,
}

impl ErrorCode {
    /// The code as the protocol numbers it.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            Self::Internal => 100,
            Self::Unauthorized => 101,
            Self::UnknownChannel => 102,
            Self::PermissionDenied => 103,
            Self::MethodNotFound => 104,
            Self::AlreadySubscribed => 105,
            Self::LimitExceeded => 106,
            Self::BadRequest => 107,
            Self::NotAvailable => 108,
            Self::TokenExpired => 109,
            Self::Expired => 110,
            Self::TooManyRequests => 111,
            Self::UnrecoverablePosition => 112,
        }
    }

    /// The message that accompanies the code.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            Self::Internal => "internal server error",
            Self::Unauthorized => "unauthorized",
            Self::UnknownChannel => "unknown channel",
            Self::PermissionDenied => "permission denied",
            Self::MethodNotFound => "method not found",
            Self::AlreadySubscribed => "already subscribed",
            Self::LimitExceeded => "limit exceeded",
            Self::BadRequest => "bad request",
            Self::NotAvailable => "not available",
            Self::TokenExpired => "token expired",
            Self::Expired => "expired",
            Self::TooManyRequests => "too many requests",
            Self::UnrecoverablePosition => "unrecoverable position",
        }
    }

    /// Whether the same command may succeed later.
    #[must_use]
    pub fn is_temporary(self) -> bool {
        matches!(self, Self::Internal | Self::TooManyRequests)
    }
}

impl From<ErrorCode> for Error {
    fn from(code: ErrorCode) -> Self {
        Self { code: code.code(), message: code.message().into(), temporary: code.is_temporary() }
    }
}

/// Why the server ends a subscription. A client resubscribes after codes of 2500 and above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unsubscribe {
    /// The server API or the application ended it.
    Server,
    /// The server can no longer guarantee the position; the client resubscribes and recovers.
    InsufficientState,
    /// The subscription has expired.
    Expired,
}

impl Unsubscribe {
    /// The code as the protocol numbers it.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            Self::Server => 2000,
            Self::InsufficientState => 2500,
            Self::Expired => 2501,
        }
    }

    /// The reason that accompanies the code.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Server => "server unsubscribe",
            Self::InsufficientState => "insufficient state",
            Self::Expired => "subscription expired",
        }
    }
}

/// Why the server ends a connection: a WebSocket close code from 3000 on, and its reason. A client reconnects after codes below
/// 3500 and stays disconnected after codes of 3500 and above.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Disconnect {
    /// The client closed the connection.
    ConnectionClosed,
    /// This node shuts down; the client reconnects to another one.
    Shutdown,
    /// The server failed.
    Internal,
    /// The connection's token has expired and was not renewed.
    Expired,
    /// A subscription's token has expired and was not renewed.
    SubscriptionExpired,
    /// The client reads too slowly.
    Slow,
    /// The server can no longer guarantee a position; the client reconnects and recovers.
    InsufficientState,
    /// The server API asks the client to reconnect.
    ForceReconnect,
    /// The client did not answer a ping in time.
    NoPong,
    /// The client sends too many commands.
    TooManyRequests,
    /// The token is invalid.
    InvalidToken,
    /// The client broke the protocol.
    BadRequest,
    /// The client did not send a connect command in time.
    Stale,
    /// The server API asks the client not to reconnect.
    ForceNoReconnect,
    /// The connection limit is reached.
    ConnectionLimit,
    /// The client subscribes to too many channels.
    ChannelLimit,
    /// The client may not connect.
    PermissionDenied,
    /// A code and a reason of the application.
    Custom {
        /// 3000 to 4999.
        code: u16,
        /// At most 123 bytes.
        reason: String,
    },
}

impl Disconnect {
    /// The code as the protocol numbers it.
    #[must_use]
    pub fn code(&self) -> u16 {
        match self {
            Self::ConnectionClosed => 3000,
            Self::Shutdown => 3001,
            Self::Internal => 3004,
            Self::Expired => 3005,
            Self::SubscriptionExpired => 3006,
            Self::Slow => 3008,
            Self::InsufficientState => 3010,
            Self::ForceReconnect => 3011,
            Self::NoPong => 3012,
            Self::TooManyRequests => 3013,
            Self::InvalidToken => 3500,
            Self::BadRequest => 3501,
            Self::Stale => 3502,
            Self::ForceNoReconnect => 3503,
            Self::ConnectionLimit => 3504,
            Self::ChannelLimit => 3505,
            Self::PermissionDenied => 3507,
            Self::Custom { code, .. } => *code,
        }
    }

    /// The reason that accompanies the code.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::ConnectionClosed => "connection closed",
            Self::Shutdown => "shutdown",
            Self::Internal => "internal server error",
            Self::Expired => "connection expired",
            Self::SubscriptionExpired => "subscription expired",
            Self::Slow => "slow",
            Self::InsufficientState => "insufficient state",
            Self::ForceReconnect => "force reconnect",
            Self::NoPong => "no pong",
            Self::TooManyRequests => "too many requests",
            Self::InvalidToken => "invalid token",
            Self::BadRequest => "bad request",
            Self::Stale => "stale",
            Self::ForceNoReconnect => "force disconnect",
            Self::ConnectionLimit => "connection limit",
            Self::ChannelLimit => "channel limit",
            Self::PermissionDenied => "permission denied",
            Self::Custom { reason, .. } => reason,
        }
    }

    /// Whether clients reconnect after this code.
    #[must_use]
    pub fn allows_reconnect(&self) -> bool {
        let code = self.code();
        code < 3500 || (4000..4500).contains(&code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The lists at centrifugal.dev/docs/server/codes.
    #[test]
    fn codes_and_reasons_are_the_documented_ones() {
        use ErrorCode as E;
        let errors = [
            (E::Internal, 100, "internal server error"),
            (E::Unauthorized, 101, "unauthorized"),
            (E::UnknownChannel, 102, "unknown channel"),
            (E::PermissionDenied, 103, "permission denied"),
            (E::MethodNotFound, 104, "method not found"),
            (E::AlreadySubscribed, 105, "already subscribed"),
            (E::LimitExceeded, 106, "limit exceeded"),
            (E::BadRequest, 107, "bad request"),
            (E::NotAvailable, 108, "not available"),
            (E::TokenExpired, 109, "token expired"),
            (E::Expired, 110, "expired"),
            (E::TooManyRequests, 111, "too many requests"),
            (E::UnrecoverablePosition, 112, "unrecoverable position"),
        ];
        for (error, code, message) in errors {
            assert_eq!((error.code(), error.message()), (code, message));
            assert_eq!(error.is_temporary(), matches!(code, 100 | 111));
        }
        use Unsubscribe as U;
        let unsubscribes = [
            (U::Server, 2000, "server unsubscribe"),
            (U::InsufficientState, 2500, "insufficient state"),
            (U::Expired, 2501, "subscription expired"),
        ];
        for (unsubscribe, code, reason) in unsubscribes {
            assert_eq!((unsubscribe.code(), unsubscribe.reason()), (code, reason));
        }
        use Disconnect as D;
        let disconnects = [
            (D::ConnectionClosed, 3000, "connection closed"),
            (D::Shutdown, 3001, "shutdown"),
            (D::Internal, 3004, "internal server error"),
            (D::Expired, 3005, "connection expired"),
            (D::SubscriptionExpired, 3006, "subscription expired"),
            (D::Slow, 3008, "slow"),
            (D::InsufficientState, 3010, "insufficient state"),
            (D::ForceReconnect, 3011, "force reconnect"),
            (D::NoPong, 3012, "no pong"),
            (D::TooManyRequests, 3013, "too many requests"),
            (D::InvalidToken, 3500, "invalid token"),
            (D::BadRequest, 3501, "bad request"),
            (D::Stale, 3502, "stale"),
            (D::ForceNoReconnect, 3503, "force disconnect"),
            (D::ConnectionLimit, 3504, "connection limit"),
            (D::ChannelLimit, 3505, "channel limit"),
            (D::PermissionDenied, 3507, "permission denied"),
        ];
        for (disconnect, code, reason) in disconnects {
            assert_eq!((disconnect.code(), disconnect.reason()), (code, reason));
            assert_eq!(disconnect.allows_reconnect(), code < 3500);
        }
    }
}
