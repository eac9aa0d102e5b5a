//! The start of a connection: wait for the first byte, wait for a handshake permit, TLS where it is configured.

use std::future::poll_fn;
#[cfg(feature = "tls")]
use std::pin::Pin;
use std::sync::Arc;
#[cfg(feature = "tls")]
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::ReadBuf;
use tokio::sync::Semaphore;

use super::connection::{Connection, READ_LEN_MAX};
use super::timeouts::Deadline;
use crate::registry::{Handshaking, Phase};
use crate::transport::Io;
use crate::transport::poll_read_at_most;
#[cfg(feature = "tls")]
use crate::{http::Origin, transport::tls::ServerTls};

/// The first byte of a TLS connection.
pub(super) const TLS_HANDSHAKE: u8 = 0x16;

impl Connection {
    /// Waits for the first byte, and then for a permit: a silent client needs no permit, and one that waits for a permit needs no
    /// buffer. With `secured`, bytes that may be TLS stay in the socket. `None` when the client has disconnected or the server shuts
    /// down.
    pub(super) async fn begin(&mut self, secured: bool, handshakes: &Arc<Semaphore>) -> Option<Handshaking> {
        let Self { io, bytes, config, timeouts, .. } = self;
        let mut deadline = Deadline::after(config.handshake_timeout);
        loop {
            let readable = timeouts.within(&mut deadline, Phase::Draining, |cx| io.poll_read_ready(cx));
            readable.await.ok()?.ok()?;
            let turn = match handshakes.clone().try_acquire_owned() {
                Ok(turn) => turn,
                Err(_) => {
                    let mut turn = Box::pin(handshakes.clone().acquire_owned());
                    let turn = timeouts.within(&mut deadline, Phase::Draining, |cx| turn.as_mut().poll(cx));
                    turn.await.ok()?.ok()?
                }
            };
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

    /// Accepts TLS. `None` when that fails or takes too long, or the client does not use TLS.
    #[cfg(feature = "tls")]
    pub(super) async fn secure(mut self, tls: &ServerTls) -> Option<Self> {
        let failed = &self.registry.clone().counters.tls_failed;
        if !self.bytes.is_empty() {
            failed.fetch_add(1, Ordering::Relaxed);
            self.refuse(400, "this port requires TLS: use https:// or wss://").await;
            return None;
        }
        let Self { io, origin, config, registry, registration, mut timeouts, bytes } = self;
        let Io::Tcp(stream) = io else { return None };
        let mut accepting = tls.accept(stream);
        let mut deadline = Deadline::after(config.handshake_timeout);
        let accepted = timeouts.within(&mut deadline, Phase::Cut, |cx| Pin::new(&mut accepting).poll(cx));
        let Ok(Ok(stream)) = accepted.await else {
            failed.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let info = Some(Arc::new(crate::transport::tls::info(stream.get_ref().1)));
        let origin = Arc::new(Origin {
            tls: info,
            peer: origin.peer,
            config: origin.config.clone(),
            account: origin.account.clone(),
        });
        let io = Io::Tls(Box::new(tokio_rustls::TlsStream::Server(stream)));
        Some(Self { io, origin, config, registry, registration, timeouts, bytes })
    }
}

/// Peeks at the first byte, and reads when it is not TLS.
fn poll_tls(cx: &mut Context<'_>, io: &mut Io, bytes: &mut BytesMut) -> Poll<std::io::Result<usize>> {
    let Io::Tcp(stream) = &*io else { return Poll::Ready(Ok(1)) };
    let mut byte = [0];
    let len = ready!(stream.poll_peek(cx, &mut ReadBuf::new(&mut byte)))?;
    // RFC 8446 §5.1: a handshake is in records of type 22.
    if len == 0 || byte == [TLS_HANDSHAKE] {
        Poll::Ready(Ok(len))
    } else {
        poll_read_at_most(cx, io, bytes, READ_LEN_MAX)
    }
}
