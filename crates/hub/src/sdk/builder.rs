//! The options of a client.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wireloom::Connector;
use wireloom::client::url_without_secrets;

/// The result of a source of tokens: a token, or a text that says why there is none now.
pub type TokenFuture = Pin<Box<dyn Future<Output = Result<String, String>> + Send>>;

/// The longest timeout and delay: others would be after the end of time.
const TIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// The most bytes of commands in one message, where a command may be longer.
const BATCH_LEN_MAX: usize = 32 << 10;

/// Makes tokens.
pub(super) type TokenSource = Arc<dyn Fn() -> TokenFuture + Send + Sync>;

/// Makes a [`Client`](super::Client).
#[derive(Clone)]
pub struct ClientBuilder {
    pub(super) url: String,
    pub(super) connector: Connector,
    pub(super) token: String,
    pub(super) token_source: Option<TokenSource>,
    pub(super) data: Bytes,
    pub(super) name: String,
    pub(super) command_len_max: usize,
    pub(super) timeout: Duration,
    pub(super) delay_min: Duration,
    pub(super) delay_max: Duration,
}

impl std::fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientBuilder").field("url", &url_without_secrets(&self.url)).finish_non_exhaustive()
    }
}

impl ClientBuilder {
    pub(super) fn new(url: String) -> Self {
        Self {
            url,
            connector: Connector::new(),
            token: String::new(),
            token_source: None,
            data: Bytes::new(),
            name: "wireloom".into(),
            command_len_max: 64 << 10,
            timeout: Duration::from_secs(5),
            delay_min: Duration::from_millis(500),
            delay_max: Duration::from_secs(20),
        }
    }

    /// Makes connections with this connector: TLS, proxies, HTTP/2.
    #[must_use]
    pub fn connector(mut self, connector: Connector) -> Self {
        self.connector = connector;
        self
    }

    /// The token of the connection. The default is none: an anonymous client.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = token.into();
        self
    }

    /// Asks `source` for a token of the connection: the first, unless there is [`token`](Self::token), and a new one whenever that has
    /// expired.
    ///
    /// ```no_run
    /// use wireloom_hub::Client;
    ///
    /// # async fn from_backend() -> Result<String, String> { Ok(String::new()) }
    /// # async fn example() {
    /// let client = Client::builder("ws://127.0.0.1:8000/connection/websocket").token_source(from_backend).start();
    /// # }
    /// ```
    #[must_use]
    pub fn token_source<F, Fut>(mut self, source: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<String, String>> + Send + 'static,
    {
        self.token_source = Some(Arc::new(move || Box::pin(source())));
        self
    }

    /// Data for the application, a JSON value, sent when the client connects.
    #[must_use]
    pub fn data(mut self, data: impl Into<Bytes>) -> Self {
        self.data = data.into();
        self
    }

    /// The name of the client software, for the server's figures.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The most bytes of commands in one message, unless it has only one. Servers close a connection whose message is too long for them.
    pub(super) fn batch_len_max(&self) -> usize {
        self.command_len_max.min(BATCH_LEN_MAX)
    }

    /// The longest command, in bytes of JSON; a longer one fails with [`TooLong`](super::ClientError::TooLong). Several in one message are no
    /// longer together, and 32 KiB at most. A server ends a connection for good whose message is too long for it. The default is 64 KiB, as is
    /// that of `client.message_len_max`.
    #[must_use]
    pub fn command_len_max(mut self, len: usize) -> Self {
        self.command_len_max = len;
        self
    }

    /// How long a command may take, and the opening of a connection; at most a day. A connection is not given up while bytes of a message
    /// arrive or leave, unless the server owes an answer for 60 times as long. The default is 5 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.min(TIME_MAX);
        self
    }

    /// The delay before a connection is made again: random, below a bound that doubles from `min` to `max` with each failure. The default
    /// is 500 ms to 20 s, the longest delay a day.
    #[must_use]
    pub fn reconnect_delay(mut self, min: Duration, max: Duration) -> Self {
        (self.delay_min, self.delay_max) = (min.min(TIME_MAX), max.max(min).min(TIME_MAX));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::super::Client;
    use super::*;

    #[test]
    fn the_longest_times_are_no_overflow() {
        let builder = Client::builder("ws://127.0.0.1/").timeout(Duration::MAX);
        let builder = builder.reconnect_delay(Duration::MAX, Duration::MAX);
        let _ = tokio::time::Instant::now() + 60 * builder.timeout + builder.delay_min + builder.delay_max;
    }
}
