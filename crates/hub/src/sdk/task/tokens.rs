//! The tokens that the application is asked for.

use tokio::sync::mpsc;

use super::super::builder::TokenSource;

/// A token that was made.
pub(super) struct Token {
    /// Of this channel's subscription, and the key of the token; `None` for the connection's.
    pub(super) subscription: Option<(String, u64)>,
    pub(super) result: Result<String, String>,
}

/// Tokens that are being made, each in a task of its own, and those that wait for the task of the client.
pub(super) struct Tokens {
    len_max: usize,
    made: (mpsc::UnboundedSender<Token>, mpsc::UnboundedReceiver<Token>),
}

impl Tokens {
    /// Tokens shorter than `len_max` bytes.
    pub(super) fn new(len_max: usize) -> Self {
        Self { len_max, made: mpsc::unbounded_channel() }
    }

    /// Asks a source for a token.
    pub(super) fn make(&self, subscription: Option<(String, u64)>, source: TokenSource) {
        let (made, len_max) = (self.made.0.clone(), self.len_max);
        tokio::spawn(async move {
            let result = match ask(source).await {
                Ok(token) if token.len() >= len_max => Err("the token is too long".into()),
                result => result,
            };
            let _ = made.send(Token { subscription, result });
        });
    }

    /// The next token that was made.
    pub(super) async fn next(&mut self) -> Option<Token> {
        self.made.1.recv().await
    }
}

/// Asks a source in a task of its own: it may panic.
pub(super) async fn ask(source: TokenSource) -> Result<String, String> {
    let made = tokio::spawn(async move { source().await }).await;
    made.unwrap_or_else(|_| Err("the source of tokens has panicked".into()))
}
