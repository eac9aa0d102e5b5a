//! The names of keys and of subjects in Redis. They begin with the prefix of the hub, so that several hubs may share a server.

use std::sync::Arc;

/// The names of a hub. All keys of a channel and the subject of its announcements are in one slot of a cluster: that of what is between
/// the first brace and the next that closes. It is not empty, also where the channel begins with such a brace. A prefix has no brace.
#[derive(Clone, Debug)]
pub(super) struct Names {
    prefix: Arc<str>,
}

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }

    /// A key of a channel.
    pub(super) fn key(&self, channel: &str, kind: &str) -> String {
        format!("{}:{{={channel}}}:{kind}", self.prefix)
    }

    /// The subject of announcements for a channel.
    pub(super) fn subject(&self, channel: &str) -> String {
        format!("{}:c:{{={channel}}}", self.prefix)
    }

    /// The channel of a subject.
    pub(super) fn channel_of<'a>(&self, subject: &'a str) -> Option<&'a str> {
        self.own(subject)?.strip_prefix("c:{=")?.strip_suffix('}')
    }

    /// The subject of the names of the nodes that are alive.
    pub(super) fn nodes(&self) -> String {
        format!("{}:node", self.prefix)
    }

    /// The subject of messages to one node.
    pub(super) fn inbox(&self, node: &str) -> String {
        format!("{}:to:{node}", self.prefix)
    }

    /// A key of the queue of events. All of them are in one slot of a cluster.
    pub(super) fn events(&self, kind: &str) -> String {
        format!("{}:{{events}}:{kind}", self.prefix)
    }

    /// The rest of a name of this hub.
    fn own<'a>(&self, name: &'a str) -> Option<&'a str> {
        name.strip_prefix(&*self.prefix)?.strip_prefix(':')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Redis Cluster specification, "Hash tags".
    fn tag(name: &str) -> &str {
        let (_, rest) = name.split_once('{').unwrap();
        let (tag, _) = rest.split_once('}').unwrap();
        assert!(!tag.is_empty());
        tag
    }

    #[test]
    fn names_of_a_channel_are_in_one_slot_and_belong_to_one_hub() {
        let (one, other) = (Names::new("one"), Names::new("one-b"));
        for channel in ["a", "chat:{x}", "}", "{}", "c:{=a}"] {
            let subject = one.subject(channel);
            assert_eq!(tag(&one.key(channel, "s")), tag(&subject));
            assert_eq!((one.channel_of(&subject), other.channel_of(&subject)), (Some(channel), None));
        }
        assert_eq!([one.nodes(), one.inbox("n")].map(|name| one.channel_of(&name).is_some()), [false; 2]);
        assert_eq!(tag(&one.events("queue")), tag(&one.events("open:n")));
    }
}
