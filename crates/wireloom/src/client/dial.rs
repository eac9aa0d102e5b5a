//! From a host to a TCP connection: names are resolved, and addresses are tried as Happy Eyeballs does (RFC 8305), so that
//! an unreachable address family costs a quarter of a second and not half a minute.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::error::Error;
use crate::transport::{Io, Transport};

/// RFC 8305 §5: the Connection Attempt Delay that it recommends.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// After this time without traffic the kernel sends TCP keepalive probes. Many NATs forget a connection after five minutes.
const TCP_KEEPALIVE: Duration = Duration::from_secs(60);

/// At most this number of addresses of a host is tried, which bounds the sockets of one attempt.
const ADDRESSES_MAX: usize = 32;

/// A transport to a host and a port, by the application.
type Dial =
    dyn Fn(&str, u16) -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Transport>>> + Send>> + Send + Sync;

/// How hosts are reached.
#[derive(Clone, Default)]
pub(super) struct Dialer {
    /// Addresses of hosts that override the resolver.
    known: Vec<(String, Vec<SocketAddr>)>,
    /// Takes the place of resolver and TCP.
    dial: Option<Arc<Dial>>,
}

impl Dialer {
    pub(super) fn add(&mut self, host: String, addresses: Vec<SocketAddr>) {
        self.known.retain(|(known, _)| !known.eq_ignore_ascii_case(&host));
        self.known.push((host, addresses));
    }

    pub(super) fn dial_with<F, Fut, T>(&mut self, dial: F)
    where
        F: Fn(String, u16) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<T>> + Send + 'static,
        T: Transport,
    {
        self.dial = Some(Arc::new(move |host, port| {
            let dialing = dial(host.to_owned(), port);
            Box::pin(async move { dialing.await.map(|transport| Box::new(transport) as Box<dyn Transport>) })
        }));
    }

    /// A transport to this host, and the address of its other end.
    pub(super) async fn dial(&self, host: &str, port: u16) -> Result<(Io, Option<SocketAddr>), Error> {
        match &self.dial {
            Some(dial) => Ok((Io::Other(dial(host, port).await?), None)),
            None => {
                let stream = self.connect(host, port).await?;
                let peer = stream.peer_addr().ok();
                Ok((Io::Tcp(stream), peer))
            }
        }
    }

    /// A TCP connection to this host.
    async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, Error> {
        let addresses = self.resolve(host, port).await?;
        let stream = race(&addresses, TcpStream::connect).await?;
        // Writes are batched already.
        let _ = stream.set_nodelay(true);
        // TCP keepalive detects a vanished peer on an idle connection.
        let keepalive = TcpKeepalive::new().with_time(TCP_KEEPALIVE);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
        Ok(stream)
    }

    /// The addresses of a host in the order in which to try them.
    pub(super) async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, Error> {
        let known = self.known.iter().find(|(known, _)| known.eq_ignore_ascii_case(host));
        let found: Vec<SocketAddr> = match known {
            // Port 0 means the port of the URL.
            Some((_, addresses)) => {
                let with_port =
                    |at: &SocketAddr| SocketAddr::new(at.ip(), if at.port() == 0 { port } else { at.port() });
                addresses.iter().map(with_port).collect()
            }
            None => match tokio::net::lookup_host((host, port)).await {
                Ok(found) => found.collect(),
                Err(error) => return Err(Error::HostNotFound(Some(error.into()))),
            },
        };
        if found.is_empty() { Err(Error::HostNotFound(None)) } else { Ok(interleave(found)) }
    }
}

/// RFC 8305 §4: the families alternate, beginning with that of the first address.
fn interleave(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (mut first, mut second): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == first_is_v6);
    let mut turns = Vec::with_capacity(first.len() + second.len());
    let mut rest = (first.drain(..), second.drain(..));
    loop {
        let pair = (rest.0.next(), rest.1.next());
        if pair == (None, None) {
            turns.truncate(ADDRESSES_MAX);
            return turns;
        }
        turns.extend(pair.0.into_iter().chain(pair.1));
    }
}

/// RFC 8305 §5: the first connection wins. The next address is tried when an attempt fails, or after a delay while others
/// are in progress. If all fail, the error is that of the first attempt that failed.
async fn race<S, F>(addresses: &[SocketAddr], connect: impl Fn(SocketAddr) -> F) -> io::Result<S>
where
    F: Future<Output = io::Result<S>>,
{
    let mut waiting = addresses.iter();
    let mut attempts: Vec<Pin<Box<F>>> = Vec::new();
    let mut failed = None;
    let mut is_due = true;
    let mut delay = pin!(tokio::time::sleep(ATTEMPT_DELAY));
    poll_fn(|cx| {
        loop {
            let mut at = 0;
            while let Some(attempt) = attempts.get_mut(at) {
                match attempt.as_mut().poll(cx) {
                    Poll::Ready(Ok(stream)) => return Poll::Ready(Ok(stream)),
                    Poll::Ready(Err(error)) => {
                        drop(attempts.swap_remove(at));
                        failed.get_or_insert(error);
                        is_due = true;
                    }
                    Poll::Pending => at += 1,
                }
            }
            if waiting.len() > 0 && (is_due || delay.as_mut().poll(cx).is_ready()) {
                is_due = false;
                delay.as_mut().reset(Instant::now() + ATTEMPT_DELAY);
                attempts.extend(waiting.next().map(|&address| Box::pin(connect(address))));
            } else if attempts.is_empty() {
                return Poll::Ready(Err(failed.take().unwrap_or_else(|| io::ErrorKind::NotFound.into())));
            } else {
                return Poll::Pending;
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn addresses(all: &[&str]) -> Vec<SocketAddr> {
        all.iter().map(|one| format!("{one}:1").parse().unwrap()).collect()
    }

    #[test]
    fn families_alternate() {
        let sorted = interleave(addresses(&["[::1]", "[::2]", "[::3]", "1.1.1.1", "1.1.1.2"]));
        assert_eq!(sorted, addresses(&["[::1]", "1.1.1.1", "[::2]", "1.1.1.2", "[::3]"]));
        let sorted = interleave(addresses(&["1.1.1.1", "1.1.1.2", "[::1]"]));
        assert_eq!(sorted, addresses(&["1.1.1.1", "[::1]", "1.1.1.2"]));
        assert_eq!(interleave(vec!["1.1.1.1:1".parse().unwrap(); 100]).len(), ADDRESSES_MAX);
    }

    /// The time that an attempt takes, and its result.
    type Outcome = (u64, Result<(), io::ErrorKind>);

    /// When each attempt began, which won, and when, in milliseconds.
    async fn run(outcomes: &[Outcome]) -> (Vec<u64>, Result<usize, io::ErrorKind>, u64) {
        let all: Vec<SocketAddr> = (0..outcomes.len()).map(|at| ([127, 0, 0, 1], at as u16).into()).collect();
        let begin = Instant::now();
        let began = Mutex::new(Vec::new());
        let won = race(&all, |address| {
            let (after, outcome) = outcomes[usize::from(address.port())];
            began.lock().unwrap().push(begin.elapsed().as_millis() as u64);
            async move {
                tokio::time::sleep(Duration::from_millis(after)).await;
                outcome.map(|()| usize::from(address.port())).map_err(io::Error::from)
            }
        });
        let won = won.await.map_err(|error| error.kind());
        (began.into_inner().unwrap(), won, begin.elapsed().as_millis() as u64)
    }

    const REFUSED: Result<(), io::ErrorKind> = Err(io::ErrorKind::ConnectionRefused);

    // RFC 8305 §5.
    #[tokio::test(start_paused = true)]
    async fn tries_the_next_address_after_a_quarter_of_a_second() {
        // The first is unreachable.
        assert_eq!(run(&[(100_000, Ok(())), (20, Ok(()))]).await, (vec![0, 250], Ok(1), 270));
        // It is slow, and still wins.
        assert_eq!(run(&[(260, Ok(())), (100, Ok(()))]).await, (vec![0, 250], Ok(0), 260));
        // It is quick: the second is not tried.
        assert_eq!(run(&[(249, Ok(())), (1, Ok(()))]).await, (vec![0], Ok(0), 249));
        let slow = (100_000, Ok(()));
        assert_eq!(run(&[slow, slow, slow, (10, Ok(()))]).await, (vec![0, 250, 500, 750], Ok(3), 760));
    }

    #[tokio::test(start_paused = true)]
    async fn tries_the_next_address_at_once_when_one_fails() {
        assert_eq!(run(&[(10, REFUSED), (5, Ok(()))]).await, (vec![0, 10], Ok(1), 15));
        // The delay restarts with each attempt.
        let slow = (100_000, Ok(()));
        assert_eq!(run(&[(200, REFUSED), slow, (5, Ok(()))]).await, (vec![0, 200, 450], Ok(2), 455));
    }

    #[tokio::test(start_paused = true)]
    async fn returns_the_first_error_when_all_fail() {
        let reset = Err(io::ErrorKind::ConnectionReset);
        assert_eq!(
            run(&[(10, REFUSED), (5, reset)]).await,
            (vec![0, 10], Err(io::ErrorKind::ConnectionRefused), 15)
        );
        assert_eq!(run(&[]).await.1, Err(io::ErrorKind::NotFound));
    }

    #[tokio::test]
    async fn connections_have_tcp_keepalive() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stream = Dialer::default().connect("127.0.0.1", port).await.unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), TCP_KEEPALIVE);
    }

    #[tokio::test]
    async fn known_addresses_replace_the_resolver() {
        let mut known = Dialer::default();
        known.add("Example.com".into(), addresses(&["127.0.0.1"]));
        known.add("example.com".into(), vec!["127.0.0.2:0".parse().unwrap(), "[::1]:7".parse().unwrap()]);
        let found = known.resolve("EXAMPLE.com", 80).await.unwrap();
        assert_eq!(found, ["127.0.0.2:80".parse().unwrap(), "[::1]:7".parse().unwrap()]);
        assert_eq!(known.resolve("127.0.0.1", 80).await.unwrap(), ["127.0.0.1:80".parse().unwrap()]);
        known.add("example.com".into(), Vec::new());
        assert_eq!(known.resolve("example.com", 80).await, Err(Error::HostNotFound(None)));
    }
}
