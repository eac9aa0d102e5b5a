//! A JSON Web Key Set (RFC 7517) at a URL: fetched when it is first needed and regularly from then on, cached, and kept while its server is
//! down.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use jsonwebtoken::jwk::{AlgorithmParameters, Jwk, JwkSet};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::warn;
use wireloom::Connector;
use wireloom::client::{Request, url_without_secrets};

use crate::shards::lock;

/// The maximum length of a key set, in bytes.
const LEN_MAX: usize = 256 << 10;
/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The shortest time between two requests. Tokens with invented key ids cause no more.
const INTERVAL_MIN: Duration = Duration::from_secs(5);

/// The keys at a URL.
pub(crate) struct RemoteKeys {
    url: String,
    state: Mutex<State>,
    /// Held during a request, so that there is one at a time.
    fetching: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    keys: Arc<Vec<Jwk>>,
    /// RFC 9110 §8.8.3: the version of `keys`, for the next request.
    etag: Option<Vec<u8>>,
    /// When the keys were fetched, or confirmed.
    fetched: Option<Instant>,
    /// When the last request began. It is in progress or has failed if this is later than `fetched`.
    asked: Option<Instant>,
    /// The sender is dropped when the last request has ended.
    running: Option<watch::Receiver<()>>,
    refresh: Refresh,
}

/// The task that fetches the keys again, and its interval; none before they are first needed.
#[derive(Default)]
struct Refresh {
    every: Option<Duration>,
    task: Option<AbortHandle>,
}

impl Refresh {
    /// Whether there is a task with this interval. It may have ended with its runtime.
    fn is_running(&self, every: Duration) -> bool {
        self.every == Some(every) && self.task.as_ref().is_some_and(|task| !task.is_finished())
    }
}

impl State {
    /// Whether a request is missing: the runtime of the task exists, but nothing runs it.
    fn is_overdue(&self, every: Duration) -> bool {
        let is_over = |of: Duration, since: Instant| since.elapsed() > of.saturating_add(TIMEOUT);
        self.asked.is_some_and(|at| is_over(INTERVAL_MIN, at))
            && self.fetched.is_none_or(|at| is_over(every, at))
    }
}

impl Drop for Refresh {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl RemoteKeys {
    /// # Errors
    /// A text: the URL is not one of `http` or `https`.
    pub(crate) fn new(url: &str) -> Result<Self, &'static str> {
        let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        if rest.is_none_or(|rest| rest.is_empty() || rest.starts_with('/')) {
            return Err("not a URL of http or https");
        }
        let (state, fetching) = Default::default();
        Ok(Self { url: url.to_owned(), state, fetching })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The key with this id, as it was last fetched.
    pub(crate) fn find(&self, id: &str) -> Option<Jwk> {
        let keys = lock(&self.state).keys.clone();
        keys.iter().find(|key| key.common.key_id.as_deref() == Some(id)).cloned()
    }

    /// Whether the last request did not succeed.
    pub(crate) fn has_failed(&self) -> bool {
        let state = lock(&self.state);
        state.asked > state.fetched
    }

    /// Fetches the keys if this one is not known, and from now on every `refresh`: a token whose key is known never waits. One whose key is
    /// not known waits for the request in progress, and then until the next one is allowed, so that a key which was published a moment ago
    /// is found.
    pub(crate) async fn prepare(self: &Arc<Self>, id: &str, refresh: Duration) {
        self.refresh_every(refresh);
        let begin = Instant::now();
        if self.is_known(id) {
            return;
        }
        let running = lock(&self.state).running.clone();
        if let Some(mut running) = running {
            // It may bring the key. Its end is an error here.
            let _ = running.changed().await;
        }
        if self.is_known(id) {
            return;
        }
        let asked = lock(&self.state).asked;
        tokio::time::sleep_until(asked.map_or(begin, |asked| asked + INTERVAL_MIN)).await;
        // In a task of its own, because this caller may leave, and others wait for the same keys. One that panics is a request that failed.
        let _ = tokio::spawn(self.clone().fetch_since(begin)).await;
    }

    /// Fetches the keys, unless that was done since `begin`.
    async fn fetch_since(self: Arc<Self>, begin: Instant) {
        let _fetching = self.fetching.lock().await;
        let (_ended, running) = watch::channel(());
        let etag = {
            let mut state = lock(&self.state);
            // Another task may have fetched them meanwhile.
            if state.asked.is_some_and(|asked| asked >= begin) {
                return;
            }
            state.asked = Some(Instant::now());
            state.running = Some(running);
            state.etag.clone()
        };
        let fetched = match tokio::time::timeout(TIMEOUT, self.fetch(etag)).await {
            Ok(fetched) => fetched,
            Err(_) => Err("no response in time".to_owned()),
        };
        match fetched {
            Ok(set) => {
                let mut state = lock(&self.state);
                if let Some((keys, etag)) = set {
                    (state.keys, state.etag) = (Arc::new(keys), etag);
                }
                state.fetched = Some(Instant::now());
            }
            Err(reason) => {
                // At most once in `INTERVAL_MIN`.
                warn!(
                    url = url_without_secrets(&self.url),
                    reason, "the keys of tokens were not fetched; those that are known stay in use"
                );
            }
        }
    }

    fn is_known(&self, id: &str) -> bool {
        lock(&self.state).keys.iter().any(|key| key.common.key_id.as_deref() == Some(id))
    }

    /// Starts the task that fetches the keys again, unless there is one with this interval which does so.
    fn refresh_every(self: &Arc<Self>, every: Duration) {
        {
            let state = lock(&self.state);
            if state.refresh.is_running(every) && !state.is_overdue(every) {
                return;
            }
        }
        let task = tokio::spawn(refresh(Arc::downgrade(self), every)).abort_handle();
        let refresh = Refresh { every: Some(every), task: Some(task) };
        let before = std::mem::replace(&mut lock(&self.state).refresh, refresh);
        drop(before);
    }

    /// The time until the keys are to be fetched again.
    fn refresh_in(&self, every: Duration) -> Duration {
        let state = lock(&self.state);
        let left = |of: Duration, since: Option<Instant>| since.map(|at| of.saturating_sub(at.elapsed()));
        let due = left(every, state.fetched).unwrap_or_default();
        due.max(left(INTERVAL_MIN, state.asked).unwrap_or(INTERVAL_MIN))
    }

    /// The keys and their version; `None` if they have not changed.
    async fn fetch(&self, etag: Option<Vec<u8>>) -> Result<Option<(Vec<Jwk>, Option<Vec<u8>>)>, String> {
        let request = Request::get(&self.url).header("accept", "application/json");
        let request = match &etag {
            Some(etag) => request.header("if-none-match", etag),
            None => request,
        };
        // Redirects are not followed: another host must not choose the keys.
        let connector = Connector::new().http1_only(self.url.starts_with("http://"));
        let response = connector.request(request).await.map_err(|error| error.to_string())?;
        match response.status {
            200 => {}
            304 if etag.is_some() => return Ok(None),
            status => return Err(format!("status {status}")),
        }
        let etag = response.headers.get("etag").map(<[u8]>::to_vec);
        let body = response.body.with_len_max(LEN_MAX).bytes().await.map_err(|error| error.to_string())?;
        let mut set: JwkSet = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        // A secret at a URL is not one.
        set.keys.retain(|key| !matches!(key.algorithm, AlgorithmParameters::OctetKey(_)));
        Ok(Some((set.keys, etag)))
    }
}

/// Fetches keys again and again while they are in use.
async fn refresh(keys: Weak<RemoteKeys>, every: Duration) {
    while let Some(wait) = keys.upgrade().map(|keys| keys.refresh_in(every)) {
        tokio::time::sleep(wait).await;
        // A token whose key is not known may have caused a request meanwhile.
        if let Some(keys) = keys.upgrade().filter(|keys| keys.refresh_in(every).is_zero()) {
            let _ = tokio::spawn(keys.fetch_since(Instant::now())).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const KEYS: &str = include_str!("../tests/keys/jwks.json");

    /// Answers a request with the keys.
    async fn answer(stream: &mut TcpStream) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") && stream.read_buf(&mut head).await.is_ok_and(|len| len > 0) {}
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{KEYS}", KEYS.len());
        let _ = stream.write_all(answer.as_bytes()).await;
    }

    #[tokio::test]
    async fn a_token_waits_for_the_request_in_progress_alone() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let keys = Arc::new(RemoteKeys::new(&url).unwrap());
        let mut first = Box::pin(keys.prepare("rsa", Duration::MAX));
        let (mut stream, _) = tokio::select! {
            () = &mut first => unreachable!("there is no answer yet"),
            accepted = listener.accept() => accepted.unwrap(),
        };
        let begin = Instant::now();
        let second = keys.prepare("rsa", Duration::MAX);
        tokio::join!(first, second, answer(&mut stream));
        assert!(begin.elapsed() < INTERVAL_MIN && keys.find("rsa").is_some());
    }

    #[tokio::test]
    async fn a_token_whose_key_is_known_does_not_wait_for_a_refresh() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let keys = Arc::new(RemoteKeys::new(&url).unwrap());
        let fetch = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            answer(&mut stream).await;
        };
        tokio::join!(keys.prepare("rsa", Duration::ZERO), fetch);
        // The next request gets no answer.
        let _silent = listener.accept().await.unwrap();
        assert!(lock(&keys.state).running.as_ref().unwrap().has_changed().is_ok(), "it is in progress");
        let mut known = Box::pin(keys.prepare("rsa", Duration::ZERO));
        assert!(poll_fn(|cx| Poll::Ready(known.as_mut().poll(cx).is_ready())).await);
        // Nothing asks for keys that are in use no longer.
        drop(known);
        let weak = Arc::downgrade(&keys);
        drop(keys);
        tokio::time::timeout(Duration::from_secs(60), async {
            while weak.strong_count() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .unwrap();
    }

    #[test]
    fn a_refresh_whose_runtime_has_ended_or_stands_still_starts_again() {
        for is_kept in [false, true] {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let url = format!("http://{}/", listener.local_addr().unwrap());
            let keys = Arc::new(RemoteKeys::new(&url).unwrap());
            let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let fetch = async || {
                let listener = TcpListener::from_std(listener.try_clone().unwrap()).unwrap();
                answer(&mut listener.accept().await.unwrap().0).await;
            };
            let first = runtime();
            first.block_on(async { tokio::join!(keys.prepare("rsa", Duration::ZERO), fetch()) });
            let _kept = is_kept.then_some(first);
            {
                let mut state = lock(&keys.state);
                let before = |at: Option<Instant>| at.map(|at| at - INTERVAL_MIN - TIMEOUT);
                (state.asked, state.fetched) = (before(state.asked), before(state.fetched));
            }
            runtime().block_on(async {
                keys.prepare("rsa", Duration::ZERO).await;
                tokio::time::timeout(Duration::from_secs(10), fetch()).await.unwrap();
            });
        }
    }

    #[tokio::test]
    async fn a_caller_that_leaves_does_not_end_the_request_of_others() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let keys = Arc::new(RemoteKeys::new(&url).unwrap());
        let (mut first, mut second) =
            (Box::pin(keys.prepare("rsa", Duration::MAX)), Box::pin(keys.prepare("rsa", Duration::MAX)));
        {
            // Both begin before the request.
            let _fetching = keys.fetching.lock().await;
            poll_fn(|cx| {
                assert!(first.as_mut().poll(cx).is_pending() && second.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        let (mut stream, _) = tokio::select! {
            () = &mut first => unreachable!("there is no answer yet"),
            accepted = listener.accept() => accepted.unwrap(),
        };
        drop(first);
        tokio::join!(second, answer(&mut stream));
        assert!(keys.find("rsa").is_some());
    }
}
