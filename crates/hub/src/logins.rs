//! Logins of the admin page: the sessions that are open, and the wrong keys of the last minute.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Mutex;
use std::time::Duration;

use subtle::ConstantTimeEq as _;

use crate::random::secret;
use crate::shards::lock;

/// How long a session lasts.
pub(crate) const SESSION_TTL: Duration = Duration::from_secs(12 * 3600);

/// The maximum number of sessions. One more ends the oldest.
const SESSIONS_MAX: usize = 64;

/// Wrong keys that an address may send in each [`TRIES_WINDOW`].
const TRIES_MAX: u32 = 10;

/// The time in which the wrong keys of an address are counted, from the first of them.
const TRIES_WINDOW: Duration = Duration::from_secs(60);

/// The maximum number of addresses whose wrong keys are counted. Others may not log in meanwhile.
const ADDRESSES_MAX: usize = 1_024;

/// The result of an attempt to log in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Login {
    /// The id of a new session.
    Opened(String),
    WrongKey,
    /// The address has sent too many wrong keys. Its keys are not looked at until this time has passed.
    TooMany(Duration),
}

#[derive(Default)]
pub(crate) struct Logins(Mutex<State>);

impl std::fmt::Debug for Logins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Logins")
    }
}

#[derive(Default)]
struct State {
    /// In the order in which they expire.
    sessions: VecDeque<Session>,
    tries: HashMap<IpAddr, Tries>,
}

struct Session {
    id: String,
    /// The key that opened it. The session ends with its key.
    key: String,
    /// Of the page that opened it, the scheme included.
    origin: String,
    expires_at: Duration,
}

struct Tries {
    count: u32,
    end: Duration,
}

impl Logins {
    /// Opens a session for the pages of an origin if `given` is the key.
    pub(crate) fn log_in(&self, peer: IpAddr, given: &[u8], key: &str, origin: &str, now: Duration) -> Login {
        let is_right = bool::from(given.ct_eq(key.as_bytes()));
        let state = &mut *lock(&self.0);
        state.expire(now);
        let address = network(peer);
        match state.tries.get(&address) {
            Some(tries) if tries.count >= TRIES_MAX => return Login::TooMany(tries.end - now),
            None if state.tries.len() >= ADDRESSES_MAX => return Login::TooMany(TRIES_WINDOW),
            _ => {}
        }
        if !is_right {
            let first = Tries { count: 0, end: now.saturating_add(TRIES_WINDOW) };
            state.tries.entry(address).or_insert(first).count += 1;
            return Login::WrongKey;
        }
        if state.sessions.len() >= SESSIONS_MAX {
            state.sessions.pop_front();
        }
        let id = secret();
        let expires_at = now.saturating_add(SESSION_TTL);
        let (key, origin) = (key.to_owned(), origin.to_owned());
        state.sessions.push_back(Session { id: id.clone(), key, origin, expires_at });
        Login::Opened(id)
    }

    /// Whether a session with this id was opened with `key`, by a page of this origin, and has not ended. Sessions with other keys end,
    /// also if their key is configured again later. Browsers name no origin where a page reads from its own.
    pub(crate) fn is_open(&self, id: &[u8], key: &str, origin: Option<&str>, now: Duration) -> bool {
        let state = &mut *lock(&self.0);
        state.expire(now);
        state.sessions.retain(|one| one.key == key);
        let is_of = |one: &Session| origin.is_none_or(|origin| one.origin == origin);
        state.sessions.iter().any(|one| one.has_id(id) && is_of(one))
    }

    pub(crate) fn log_out(&self, id: &[u8]) {
        lock(&self.0).sessions.retain(|one| !one.has_id(id));
    }
}

impl Session {
    fn has_id(&self, id: &[u8]) -> bool {
        id.ct_eq(self.id.as_bytes()).into()
    }
}

impl State {
    fn expire(&mut self, now: Duration) {
        self.tries.retain(|_, tries| tries.end > now);
        while self.sessions.front().is_some_and(|one| one.expires_at <= now) {
            self.sessions.pop_front();
        }
    }
}

/// The address whose tries are counted: of IPv6 the network of 64 bits, which one host may have to itself.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);
    const KEY: &str = "the key";
    const ORIGIN: &str = "https://admin.example";

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn open(logins: &Logins, now: Duration) -> String {
        match logins.log_in(address("192.0.2.1"), KEY.as_bytes(), KEY, ORIGIN, now) {
            Login::Opened(id) => id,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_session_lasts_until_its_time_its_key_or_its_end() {
        let logins = Logins::default();
        let (id, other) = (open(&logins, S), open(&logins, S));
        assert_ne!(id, other);
        assert!(
            logins.is_open(id.as_bytes(), KEY, Some(ORIGIN), S)
                && logins.is_open(other.as_bytes(), KEY, Some(ORIGIN), S)
        );
        assert!(
            !logins.is_open(b"", KEY, Some(ORIGIN), S)
                && !logins.is_open(&id.as_bytes()[1..], KEY, Some(ORIGIN), S)
        );
        assert!(logins.is_open(id.as_bytes(), KEY, Some(ORIGIN), SESSION_TTL));
        assert!(logins.is_open(id.as_bytes(), KEY, None, S));
        for origin in ["http://admin.example", "https://admin.example:444", ""] {
            assert!(!logins.is_open(id.as_bytes(), KEY, Some(origin), S), "{origin}");
        }
        logins.log_out(other.as_bytes());
        assert!(
            !logins.is_open(other.as_bytes(), KEY, Some(ORIGIN), S)
                && logins.is_open(id.as_bytes(), KEY, Some(ORIGIN), S)
        );
        assert!(!logins.is_open(id.as_bytes(), KEY, Some(ORIGIN), SESSION_TTL + S));
        let id = open(&logins, S);
        assert!(!logins.is_open(id.as_bytes(), "a new key", Some(ORIGIN), S));
        assert!(!logins.is_open(id.as_bytes(), KEY, Some(ORIGIN), S), "the key is back");
    }

    #[test]
    fn the_oldest_of_too_many_sessions_ends() {
        let logins = Logins::default();
        let ids: Vec<_> = (0..=SESSIONS_MAX).map(|_| open(&logins, S)).collect();
        let are_open: Vec<_> =
            ids.iter().map(|id| logins.is_open(id.as_bytes(), KEY, Some(ORIGIN), S)).collect();
        assert!(!are_open[0] && are_open[1..].iter().all(|&is_open| is_open));
    }

    #[test]
    fn an_address_has_ten_wrong_keys_a_minute() {
        let logins = Logins::default();
        let log_in =
            |from: &str, given: &str, now| logins.log_in(address(from), given.as_bytes(), KEY, ORIGIN, now);
        for _ in 0..TRIES_MAX {
            assert_eq!(log_in("192.0.2.1", "wrong", S), Login::WrongKey);
        }
        // The right key as well: otherwise the answers would reveal it.
        for from in ["192.0.2.1", "::ffff:192.0.2.1"] {
            assert_eq!(log_in(from, KEY, 2 * S), Login::TooMany(59 * S), "{from}");
        }
        assert!(matches!(log_in("192.0.2.2", KEY, 2 * S), Login::Opened(_)));
        assert!(matches!(log_in("192.0.2.1", KEY, 61 * S), Login::Opened(_)));
        for n in 0..TRIES_MAX {
            let from = format!("2001:db8::{n}");
            assert_eq!(log_in(&from, "wrong", 70 * S), Login::WrongKey);
        }
        assert_eq!(log_in("2001:db8::ffff", KEY, 70 * S), Login::TooMany(60 * S));
        assert!(matches!(log_in("2001:db8:0:1::1", KEY, 70 * S), Login::Opened(_)));
    }

    #[test]
    fn the_addresses_that_are_counted_are_bounded() {
        let logins = Logins::default();
        let log_in = |n: usize, given: &str, now| {
            logins.log_in(
                address(&format!("198.51.{}.{}", n / 256, n % 256)),
                given.as_bytes(),
                KEY,
                ORIGIN,
                now,
            )
        };
        for n in 0..ADDRESSES_MAX {
            assert_eq!(log_in(n, "wrong", S), Login::WrongKey);
        }
        assert_eq!(log_in(ADDRESSES_MAX, KEY, S), Login::TooMany(60 * S));
        assert!(matches!(log_in(0, KEY, S), Login::Opened(_)), "it has tries left");
        assert!(matches!(log_in(ADDRESSES_MAX, KEY, 61 * S), Login::Opened(_)));
        assert!(lock(&logins.0).tries.is_empty());
    }
}
