//! The start of a connection: wait for the first byte, wait for a handshake permit, TLS where it is configured.

use std::future::poll_fn;
#[cfg(feature = "tls")]
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::ReadBuf;
use tokio::sync::Semaphore;

use super::connection::{Connection, READ_LEN_MAX};
use super::timeouts::Stopped;
use crate::deadline::PeerDeadline;
#[cfg(feature = "tls")]
use crate::memory::{TLS_HANDSHAKE_KIB, TLS_KIB};
use crate::registry::{Handshaking, Phase};
use crate::transport::Io;
#[cfg(feature = "tls")]
use crate::transport::counted::Counted;
use crate::transport::poll_read_at_most;
#[cfg(feature = "tls")]
use crate::{http::Origin, transport::tls::ServerTls};

/// The first byte of a TLS connection.
pub(super) const TLS_HANDSHAKE: u8 = 0x16;

impl Connection {
    /// Waits for the first byte, and then for a permit: a silent client needs no permit, and one that waits for a permit needs no buffer,
    /// unless its transport has no readiness. With `secured`, bytes of TLS stay in a TCP socket. `None` when the client has disconnected or
    /// the server shuts down.
    pub(super) async fn begin(&mut self, secured: bool, handshakes: &Arc<Semaphore>) -> Option<Handshaking> {
        let Self { io, bytes, bytes_memory, config, registry, timeouts, .. } = self;
        let mut deadline = PeerDeadline::after(config.handshake_timeout);
        loop {
            let may_read = if io.tells_readiness() {
                timeouts.until_drained(&mut deadline, |cx| io.poll_read_ready(cx)).await.ok()?.is_ok()
            } else {
                let read = |cx: &mut Context<'_>| poll_read_at_most(cx, io, bytes, READ_LEN_MAX);
                matches!(timeouts.until_drained(&mut deadline, read).await, Ok(Ok(1..)))
            };
            if !may_read {
                return None;
            }
            let turn = match handshakes.clone().try_acquire_owned() {
                Ok(turn) => turn,
                Err(_) => {
                    // Only a transport without readiness has a buffer here.
                    bytes_memory.try_set(bytes.capacity()).ok()?;
                    // The wait is this server's doing: the client's deadline begins again after it.
                    deadline = PeerDeadline::after(config.handshake_timeout);
                    let mut turn = Box::pin(handshakes.clone().acquire_owned());
                    // The client has sent something, which is answered also while the server drains.
                    let turn = timeouts.within(&mut deadline, Phase::Aborted, |cx| turn.as_mut().poll(cx));
                    let turn = turn.await;
                    if matches!(turn, Err(Stopped::TimedOut)) {
                        registry.counters.refused.fetch_add(1, Ordering::Relaxed);
                    }
                    deadline = PeerDeadline::after(config.handshake_timeout);
                    turn.ok()?.ok()?
                }
            };
            if !bytes.is_empty() {
                return Some(turn);
            }
            let first = poll_fn(|cx| {
                Poll::Ready(if secured {
                    poll_tls(cx, io, bytes)
                } else {
                    poll_read_at_most(cx, io, bytes, READ_LEN_MAX)
                })
            });
            match first.await {
                Poll::Ready(Ok(1..)) => return Some(turn),
                Poll::Ready(_) => return None,
                // Readiness may be spurious.
                Poll::Pending => {}
            }
        }
    }

    /// Accepts TLS. `None` when that fails or takes too long, or the client does not use TLS: its refusal needs no permit.
    #[cfg(feature = "tls")]
    pub(super) async fn secure(
        mut self,
        tls: &ServerTls,
        handshaking: Handshaking,
    ) -> Option<(Self, Handshaking)> {
        let failed = &self.registry.clone().counters.tls_failed;
        if self.bytes.first().is_some_and(|&first| first != TLS_HANDSHAKE) {
            failed.fetch_add(1, Ordering::Relaxed);
            drop(handshaking);
            self.refuse(400, "this port requires TLS: use https:// or wss://").await;
            return None;
        }
        self.origin.account.try_add_idle(TLS_HANDSHAKE_KIB).ok()?;
        let Self { io, origin, config, registry, registration, mut timeouts, mut bytes, mut bytes_memory } =
            self;
        let mut deadline = PeerDeadline::after(config.handshake_timeout);
        let mut accepting = tls.accept(Counted::new(io).with_read_ahead(std::mem::take(&mut bytes)));
        let accepted = timeouts.within(&mut deadline, Phase::Aborted, |cx| Pin::new(&mut accepting).poll(cx));
        let Some(stream) = accepted.await.ok().and_then(Result::ok) else {
            failed.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        bytes_memory.set(0);
        let info = Some(Arc::new(crate::transport::tls::info(stream.get_ref().1)));
        let io = Io::Tls(Box::new(stream.into()));
        origin.account.subtract_idle(TLS_HANDSHAKE_KIB - TLS_KIB);
        let origin = Arc::new(Origin {
            tls: info,
            peer: origin.peer,
            config: origin.config.clone(),
            account: origin.account.clone(),
        });
        let secured = Self { io, origin, config, registry, registration, timeouts, bytes, bytes_memory };
        Some((secured, handshaking))
    }
}

/// Reads, but from a TCP socket only what is not TLS.
fn poll_tls(cx: &mut Context<'_>, io: &mut Io, bytes: &mut BytesMut) -> Poll<std::io::Result<usize>> {
    if let Io::Tcp(stream) = &*io {
        let mut byte = [0];
        let len = ready!(stream.poll_peek(cx, &mut ReadBuf::new(&mut byte)))?;
        // RFC 8446 §5.1: a handshake is in records of type 22.
        if len == 0 || byte == [TLS_HANDSHAKE] {
            return Poll::Ready(Ok(len));
        }
    }
    poll_read_at_most(cx, io, bytes, READ_LEN_MAX)
}
