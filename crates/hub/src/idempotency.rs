//! Publications that carry an idempotency key: a repeated request returns the first result and publishes nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Mutex as AsyncMutex;

use crate::history::Position;
use crate::shards::lock;

/// How long an idempotency key is remembered: as long as in Centrifugo.
pub const IDEMPOTENCY_TTL: Duration = Duration::from_secs(300);

/// The maximum number of remembered keys of each [`Origin`]. If there are more, its oldest are forgotten early.
pub(crate) const KEYS_MAX: usize = 100_000;

/// The maximum length of a key, in bytes.
pub(crate) const KEY_LEN_MAX: usize = 128;

/// The origin of a publication. Each origin has its own keys, so that keys of clients neither evict nor match those of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The server API or the library.
    Server,
    /// A client: an endpoint has given the key.
    Client,
}

/// Prefix of clients' keys in an engine.
const OF_CLIENT: char = '\0';

/// Prefix of those keys of the server that begin with this or with [`OF_CLIENT`].
const OF_SERVER: char = '\u{1}';

impl Origin {
    /// The key as engines have it.
    pub(crate) fn stored(self, key: &str) -> String {
        match self {
            Self::Client if !key.is_empty() => format!("{OF_CLIENT}{key}"),
            Self::Server if key.starts_with([OF_CLIENT, OF_SERVER]) => format!("{OF_SERVER}{key}"),
            Self::Client | Self::Server => key.to_owned(),
        }
    }

    /// The origin of a key that an engine has.
    pub(crate) fn of_stored(key: &str) -> Self {
        if key.starts_with(OF_CLIENT) { Self::Client } else { Self::Server }
    }
}

/// The result of a publication, which is locked while it is executed.
type Outcome = Arc<AsyncMutex<Option<Position>>>;

/// A channel and a key.
type Name = (Box<str>, Box<str>);

/// The results of the publications of the last minutes, by origin, channel and key.
#[derive(Debug, Default)]
pub(crate) struct Idempotency([Mutex<Results>; 2]);

#[derive(Debug, Default)]
struct Results {
    by_name: HashMap<Name, Outcome>,
    /// In the order in which they expire.
    expiries: VecDeque<(Duration, Name)>,
}

impl Idempotency {
    /// The place of the result of the publication with this key. Requests that arrive while the first one is executed
    /// wait for the lock; after a failure the next request is executed.
    pub(crate) fn result(&self, origin: Origin, channel: &str, key: &str, now: Duration) -> Outcome {
        self.bounded_result(origin, channel, key, now, KEYS_MAX)
    }

    fn bounded_result(
        &self,
        origin: Origin,
        channel: &str,
        key: &str,
        now: Duration,
        keys_max: usize,
    ) -> Outcome {
        let mut results = lock(&self.0[origin as usize]);
        results.expire(now);
        let name: Name = (channel.into(), key.into());
        if let Some(result) = results.by_name.get(&name) {
            return result.clone();
        }
        while results.by_name.len() >= keys_max {
            results.forget_oldest();
        }
        let result = Outcome::default();
        results.by_name.insert(name.clone(), result.clone());
        results.expiries.push_back((now.saturating_add(IDEMPOTENCY_TTL), name));
        result
    }

    /// Removes expired keys.
    pub(crate) fn expire(&self, now: Duration) {
        self.0.iter().for_each(|results| lock(results).expire(now));
    }
}

impl Results {
    fn expire(&mut self, now: Duration) {
        while self.expiries.front().is_some_and(|(at, _)| *at <= now) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, name)) = self.expiries.pop_front() {
            self.by_name.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn is_known(keys: &Idempotency, channel: &str, key: &str, now: Duration) -> bool {
        let result = keys.bounded_result(Origin::Server, channel, key, now, 3);
        result.try_lock().unwrap().replace(Position::default()).is_some()
    }

    #[test]
    fn remembers_a_key_by_channel_for_its_time() {
        let keys = Idempotency::default();
        assert!(!is_known(&keys, "a", "k", S));
        assert!(is_known(&keys, "a", "k", S));
        assert!(!is_known(&keys, "b", "k", S));
        assert!(is_known(&keys, "a", "k", S * 300));
        assert!(!is_known(&keys, "a", "k", S * 301));
    }

    #[test]
    fn forgets_the_oldest_of_too_many() {
        let keys = Idempotency::default();
        for key in ["1", "2", "3", "4"] {
            assert!(!is_known(&keys, "a", key, S));
        }
        assert!(is_known(&keys, "a", "2", S));
        assert!(!is_known(&keys, "a", "1", S), "it was forgotten for the fourth");
        let results = lock(&keys.0[Origin::Server as usize]);
        assert!(results.expiries.len() == 3 && results.by_name.len() == 3);
    }

    #[test]
    fn keys_of_clients_are_apart() {
        let keys = Idempotency::default();
        assert!(!is_known(&keys, "a", "k", S));
        for key in ["k", "1", "2", "3"] {
            let result = keys.bounded_result(Origin::Client, "a", key, S, 3);
            assert_eq!(result.try_lock().unwrap().replace(Position::default()), None);
        }
        assert!(is_known(&keys, "a", "k", S));
        for origin in [Origin::Server, Origin::Client] {
            assert_eq!(Origin::of_stored(&origin.stored("k")), origin);
            assert_eq!(origin.stored(""), "");
        }
        for key in ["\0k", "\u{1}k", "\u{1}\0k"] {
            assert_eq!(Origin::of_stored(&Origin::Server.stored(key)), Origin::Server, "{key:?}");
        }
        let stored = ["\0k", "\u{1}k", "\u{1}\0k", "k"].map(|key| Origin::Server.stored(key));
        assert_eq!(stored.iter().collect::<std::collections::HashSet<_>>().len(), stored.len());
    }
}
