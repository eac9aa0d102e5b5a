//! The names of subjects, streams and buckets in NATS. They begin with the prefix of the hub, so that several hubs may share an account.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::random::TOKEN_LEN;

/// The names of a hub. A prefix is a token of a subject and has no `_`, which ends it in the names of streams and buckets.
#[derive(Clone, Debug)]
pub(super) struct Names {
    prefix: Arc<str>,
}

/// The name of a channel, encoded as a token of a subject.
pub(super) fn encoded(channel: &str) -> String {
    URL_SAFE_NO_PAD.encode(channel)
}

/// The name of the namespace of a channel, encoded.
pub(super) fn namespace(channel: &str) -> String {
    let name = channel.strip_prefix('$').unwrap_or(channel);
    encoded(name.split_once(':').map_or("", |(namespace, _)| namespace))
}

/// The epoch in the token of a subject `PREFIX.log.nEPOCHNAMESPACE.CHANNEL` or `PREFIX.live.nEPOCHNAMESPACE.CHANNEL`; `None` if it is
/// another token.
pub(super) fn epoch_in(token: &str) -> Option<&str> {
    token.strip_prefix('n')?.get(..TOKEN_LEN)
}

/// The third token of a subject: that of the stream, or what is announced.
pub(super) fn token_of(subject: &str) -> Option<&str> {
    subject.split('.').nth(2)
}

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }

    /// The stream of an encoded namespace.
    pub(super) fn stream(&self, namespace: &str) -> String {
        format!("{}_n{namespace}", self.prefix)
    }

    /// The subjects of a stream, but for the channel.
    pub(super) fn log(&self, token: &str) -> String {
        format!("{}.log.{token}.", self.prefix)
    }

    /// The subject of what is announced in a channel: with the token of a stream, what it has stored; `p` for publications without history,
    /// `m` for joins and leaves, `*` for all. The channel is encoded.
    pub(super) fn live(&self, token: &str, channel: &str) -> String {
        format!("{}.live.{token}.{channel}", self.prefix)
    }

    /// A subject without subscribers.
    pub(super) fn unused(&self) -> String {
        format!("{}.unused", self.prefix)
    }

    /// The subject of a node's announcements; `*` for all nodes.
    pub(super) fn node(&self, node: &str) -> String {
        format!("{}.node.{node}", self.prefix)
    }

    /// The subject of messages to one node.
    pub(super) fn inbox(&self, node: &str) -> String {
        format!("{}.to.{node}", self.prefix)
    }

    /// The subject of the queue of events.
    pub(super) fn events(&self) -> String {
        format!("{}.events", self.prefix)
    }

    /// A bucket, or the stream of the queue of events.
    pub(super) fn store(&self, kind: &str) -> String {
        format!("{}_{kind}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::token;

    #[test]
    fn names_channels_and_namespaces_in_subjects() {
        for channel in ["a", "chat:lobby", "$chat:lobby", "a.b*c>d", "grüße", ":"] {
            for token in [encoded(channel), namespace(channel)] {
                assert!(
                    token.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')),
                    "{token}"
                );
            }
            let epoch = token();
            assert_eq!(epoch_in(&format!("n{epoch}{}", namespace(channel))), Some(&*epoch));
        }
        assert_eq!(namespace("$chat:a"), namespace("chat:b"));
        assert_ne!(namespace("chat"), namespace("chat:b"));
        assert_eq!(["p", "m", "n", "nshort"].map(epoch_in), [None; 4]);
    }
}
