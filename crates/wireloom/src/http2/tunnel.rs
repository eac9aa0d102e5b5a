//! A stream of HTTP/2 as a transport: bytes written leave as DATA, and bytes of DATA are read (RFC 9113 §8.5, RFC 8441 §4).
//!
//! ```text
//! shutdown             END_STREAM           like FIN of TCP
//! drop before that     RST_STREAM, CANCEL   like RST of TCP
//! flow control         window is given back as bytes are read, and writes wait for room in the stream's send queue
//! ```

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use wireloom_http2::error::ErrorCode;

use super::{RecvStream, Requests, SendStream};
use crate::error::HttpError;

/// A tunnel, open in both directions.
pub(crate) struct Tunnel {
    send: SendStream,
    recv: RecvStream,
    /// END_STREAM was sent.
    is_shut_down: bool,
    /// Keeps a client's connection open.
    _requests: Option<Requests>,
}

impl Tunnel {
    pub(crate) fn new(send: SendStream, recv: RecvStream) -> Self {
        recv.set_tunnel();
        Self { send, recv, is_shut_down: false, _requests: None }
    }

    /// The same tunnel, which keeps a client's connection open.
    pub(crate) fn with_requests(mut self, requests: Requests) -> Self {
        self._requests = Some(requests);
        self
    }
}

impl crate::transport::Tunnel for Tunnel {
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.recv.poll_readable(cx).map(Ok)
    }

    fn is_disconnected(&self) -> bool {
        self.recv.has_failed()
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let len =
            ready!(self.get_mut().recv.poll_read(cx, into.initialize_unfilled())).map_err(transport_error)?;
        into.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(data)])
    }

    /// Copies as much as the stream's send queue has room for.
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let tunnel = self.get_mut();
        if tunnel.is_shut_down {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = ready!(tunnel.send.poll_capacity(cx)).map_err(transport_error)?;
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let len = room.min(total);
        let data = match slices {
            [one] => Bytes::copy_from_slice(&one[..len]),
            _ => {
                let mut data = BytesMut::with_capacity(len);
                for slice in slices {
                    data.extend_from_slice(&slice[..slice.len().min(len - data.len())]);
                }
                data.freeze()
            }
        };
        tunnel.send.send(data, false).map_err(transport_error)?;
        Poll::Ready(Ok(len))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// The connection's driver writes by itself.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let tunnel = self.get_mut();
        if !std::mem::replace(&mut tunnel.is_shut_down, true) {
            // Fails when the stream has ended.
            let _ = tunnel.send.send(Bytes::new(), true);
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        if !self.is_shut_down {
            // RFC 9113 §8.5: like RST of TCP.
            self.send.reset(ErrorCode::CANCEL);
        }
    }
}

fn transport_error(error: HttpError) -> io::Error {
    match error {
        HttpError::Io(error) => error.kind().into(),
        // The code is for the user of the tunnel.
        HttpError::GoAway(_) => io::Error::new(io::ErrorKind::ConnectionReset, error),
        _ => io::ErrorKind::ConnectionReset.into(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use wireloom_http2::field::{Field, Token};
    use wireloom_http2::{Config, Role};
    use wireloom_testing::http2::{Frame, join};

    use super::super::{Driver, Progress, testing};
    use super::*;
    use crate::transport::Io;

    const CONNECT: [Field<'static>; 5] = [
        Field::known(Token::Method, b"CONNECT"),
        Field::known(Token::Scheme, b"https"),
        Field::known(Token::Authority, b"example.org"),
        Field::known(Token::Path, b"/"),
        Field::known(Token::Protocol, b"websocket"),
    ];

    /// Two ends of a tunnel, and the number of times that the tasks of their connections were polled.
    async fn tunnel() -> (Tunnel, Tunnel, &'static AtomicUsize) {
        let (client, server) = tokio::io::duplex(64 << 10);
        let polls: &AtomicUsize = Box::leak(Box::default());
        let config = |role| {
            let mut config = Config::new(role);
            config.settings.enable_connect_protocol = role == Role::Server;
            config
        };
        let mut client =
            Driver::new(Io::Other(Box::new(client)), Role::Client, config(Role::Client)).unwrap();
        let mut server =
            Driver::new(Io::Other(Box::new(server)), Role::Server, config(Role::Server)).unwrap();
        let (requests, shared) = (client.requests(), server.shared().clone());
        tokio::spawn(async move {
            let mut incoming = Vec::new();
            poll_fn(|cx| {
                polls.fetch_add(1, Ordering::Relaxed);
                client.poll(cx, &mut incoming)
            })
            .await
        });
        let (accepted, accepting) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let (mut incoming, mut accepted) = (Vec::new(), Some(accepted));
            loop {
                let progress = poll_fn(|cx| {
                    polls.fetch_add(1, Ordering::Relaxed);
                    server.poll(cx, &mut incoming)
                });
                if progress.await == Progress::Ended {
                    return;
                }
                let request = incoming.pop().unwrap();
                let mut send = shared.send_stream(request.key);
                send.send_response([Field::known(Token::Status, b"200")], false).unwrap();
                let accepted = accepted.take().unwrap();
                accepted.send(Tunnel::new(send, request.content.unwrap())).ok().unwrap();
            }
        });
        requests.ready().await.unwrap();
        let (send, mut recv) = requests.open(CONNECT, false).unwrap();
        assert_eq!(recv.head().await.unwrap().status, 200);
        let client = Tunnel::new(send, recv).with_requests(requests);
        (client, accepting.await.unwrap(), polls)
    }

    /// Writes until the tunnel takes no more.
    async fn fill(tunnel: &mut Tunnel) -> usize {
        let mut total = 0;
        loop {
            match tokio::time::timeout(Duration::from_millis(10), tunnel.write(&[7; 10_000])).await {
                Ok(written) => total += written.unwrap(),
                Err(_) => return total,
            }
        }
    }

    /// How often the connection's tasks are polled in ten quiet seconds.
    async fn polls_while_idle(polls: &AtomicUsize) -> usize {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = polls.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(10)).await;
        polls.load(Ordering::Relaxed) - before
    }

    /// More than once or twice for a timer is a busy loop.
    const POLLS_MAX: usize = 8;

    #[tokio::test(start_paused = true)]
    async fn a_half_that_nobody_polls_takes_no_processor_time() {
        let (mut client, mut server, polls) = tunnel().await;
        // Neither end reads, and the tasks that wrote wait no more.
        let filled = [fill(&mut client).await, fill(&mut server).await];
        assert!(filled.iter().all(|&len| len > 200_000), "{filled:?}");
        assert!(polls_while_idle(polls).await <= POLLS_MAX);
        // One end has sent END_STREAM, and the other one does not read it.
        client.shutdown().await.unwrap();
        assert!(polls_while_idle(polls).await <= POLLS_MAX);
        let mut content = Vec::new();
        server.read_to_end(&mut content).await.unwrap();
        assert_eq!(content.len(), filled[0]);
        assert!(polls_while_idle(polls).await <= POLLS_MAX);
        // RFC 9113 §8.5: the stream is reset, and the other end does not read that either.
        drop(client);
        assert!(polls_while_idle(polls).await <= POLLS_MAX);
        assert!(server.write(&[7]).await.is_err());
    }

    // Its last messages are what a server sends before it ends.
    #[tokio::test]
    async fn a_client_reads_what_has_arrived_before_the_end_of_the_connection() {
        let (client, mut server) = tokio::io::duplex(1 << 20);
        let driver = testing::driver(Io::Other(Box::new(client)), Role::Client);
        let requests = driver.requests();
        tokio::spawn(driver.run());
        let opening = [Frame::settings(&[(8, 1)]), Frame::settings_ack()];
        server.write_all(&join(&opening)).await.unwrap();
        requests.ready().await.unwrap();
        let (send, mut recv) = requests.open(CONNECT, false).unwrap();
        server.write_all(&Frame::headers(1, &[(":status", "200")]).to_bytes()).await.unwrap();
        assert_eq!(recv.head().await.unwrap().status, 200);
        let mut client = Tunnel::new(send, recv).with_requests(requests);
        server.write_all(&join(&[Frame::data(1, "one"), Frame::data(1, "two")])).await.unwrap();
        drop(server);
        let mut content = Vec::new();
        assert_eq!(
            client.read_to_end(&mut content).await.unwrap_err().kind(),
            io::ErrorKind::ConnectionReset
        );
        assert_eq!(content, b"onetwo");
    }

    // After the connection has ended, an answer has no receiver: the handler should not process unread content.
    #[tokio::test(start_paused = true)]
    async fn the_end_of_the_connection_drops_what_was_not_read() {
        let (mut client, mut server, _) = tunnel().await;
        client.write_all(b"unread").await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.recv.end_connection();
        assert!(server.read(&mut [0; 10]).await.is_err());
        // Content that was complete is not lost with the stream.
        let (mut client, mut server, _) = tunnel().await;
        client.write_all(b"complete").await.unwrap();
        client.shutdown().await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.recv.end_connection();
        let mut content = Vec::new();
        server.read_to_end(&mut content).await.unwrap();
        assert_eq!(content, b"complete");
    }
}
