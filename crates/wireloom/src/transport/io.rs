//! The transport of a connection: TCP, TLS over it, or anything else that reads and writes. It has no buffer.

use std::any::Any;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::buffer::Buffer;
#[cfg(feature = "tls")]
use super::counted::Counted;
#[cfg(feature = "tls")]
use super::records;
use super::ring::Socket;
use super::tap::Tapped;
#[cfg(target_os = "linux")]
use super::unsent::Kept;

/// Anything that reads and writes bytes in order.
pub trait Transport: AsyncRead + AsyncWrite + Any + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Any + Send + Unpin> Transport for T {}

/// A transport over a stream of another connection, such as one of HTTP/2 (RFC 8441).
pub(crate) trait Tunnel: Transport {
    /// Ready when a read would be.
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Whether the stream or its connection has failed.
    fn is_disconnected(&self) -> bool;
}

/// The transports a connection is made of.
pub(crate) enum Io {
    Tcp(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<tokio_rustls::TlsStream<Counted>>),
    /// A stream of HTTP/2.
    Tunnel(Box<dyn Tunnel>),
    /// Any of the others, which is observed.
    Tapped(Box<Tapped>),
    Other(Box<dyn Transport>),
}

impl Io {
    /// A transport, with its own type if this crate knows it.
    pub(crate) fn of(transport: impl Transport) -> Self {
        let mut transport = Some(transport);
        let any: &mut dyn Any = &mut transport;
        if let Some(tcp) = any.downcast_mut::<Option<TcpStream>>().and_then(Option::take) {
            return Self::Tcp(tcp);
        }
        match transport {
            Some(transport) => Self::Other(Box::new(transport)),
            None => Self::Other(Box::new(tokio::io::empty())),
        }
    }

    /// The transport as a trait object.
    pub(crate) fn into_transport(self) -> Box<dyn Transport> {
        match self {
            Self::Tcp(io) => Box::new(io),
            #[cfg(feature = "tls")]
            Self::Tls(io) => io,
            Self::Tunnel(io) => io,
            Self::Tapped(io) => io,
            Self::Other(io) => io,
        }
    }

    /// The socket, if the transport is nothing but that, or TLS over it.
    pub(crate) fn socket(&self) -> Option<Socket<'_>> {
        match self {
            Self::Tcp(io) => Some(Socket::of(io)),
            #[cfg(feature = "tls")]
            Self::Tls(io) => match io.get_ref().0.io() {
                Self::Tcp(io) => Some(Socket::of(io)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Encrypts `bytes`, if the transport is TLS, and appends the records to `into`. The transport keeps them, and writes those that
    /// [`records_written`](Self::records_written) does not name. The caller has checked that nothing
    /// [is buffered](Self::has_buffered_writes). Returns how many of `bytes` the transport has accepted.
    ///
    /// # Errors
    /// As [`poll_write`](Self::poll_write).
    pub(crate) fn encrypt(&mut self, bytes: &[u8], into: &mut Vec<u8>) -> io::Result<Option<usize>> {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(io) => records::encrypt(io, bytes, into).map(Some),
            _ => {
                let _ = (bytes, into);
                Ok(None)
            }
        }
    }

    /// The first `len` bytes of the [records](Self::encrypt) were written to the [socket](Self::socket).
    pub(crate) fn records_written(&mut self, len: usize) {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(io) => records::written(io, len),
            _ => {
                let _ = len;
            }
        }
    }

    /// Whether the transport encrypts what it writes.
    pub(crate) fn encrypts(&self) -> bool {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(_) => true,
            _ => false,
        }
    }

    /// The transport under those that observe.
    #[inline]
    fn observed(&self) -> &Self {
        let mut io = self;
        while let Self::Tapped(tapped) = io {
            io = tapped.io();
        }
        io
    }

    /// Whether a read may have to wait for a write, or a write for a read, as with TLS.
    pub(crate) fn may_mix_directions(&self) -> bool {
        !matches!(self.observed(), Self::Tcp(_) | Self::Tunnel(_))
    }

    /// Whether the transport buffers written bytes, which [`Io::poll_flush`] then writes.
    pub(crate) fn buffers_writes(&self) -> bool {
        !matches!(self.observed(), Self::Tcp(_))
    }

    /// Whether the transport has buffered bytes that [`Io::poll_flush`] would write, or may have.
    pub(crate) fn has_buffered_writes(&self) -> bool {
        self.buffered_len_max() != Some(0)
    }

    /// An upper bound of the bytes that the transport has buffered and [`Io::poll_flush`] would write; `None` if unknown.
    pub(crate) fn buffered_len_max(&self) -> Option<usize> {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(io) if self.socket().is_some() => {
                Some(if io.get_ref().1.wants_write() { super::BUFFERED_LEN_MAX } else { 0 })
            }
            _ => (!self.buffers_writes()).then_some(0),
        }
    }

    /// Bytes that have left a transport that buffers written bytes; `None` if unknown.
    pub(crate) fn left_len(&self) -> Option<u64> {
        match self.observed() {
            #[cfg(feature = "tls")]
            Self::Tls(io) => Some(io.get_ref().0.left_len()),
            _ => None,
        }
    }

    /// Whether a write that fails may have written bytes: rustls accepts all of them before it writes to the socket.
    pub(crate) fn may_write_before_error(&self) -> bool {
        match self.observed() {
            #[cfg(feature = "tls")]
            Self::Tls(_) => true,
            _ => false,
        }
    }

    /// Whether the transport is known to have failed without a read.
    pub(crate) fn is_disconnected(&self) -> bool {
        match self.observed() {
            Self::Tunnel(io) => io.is_disconnected(),
            _ => false,
        }
    }

    /// Whether the socket has an error, which the next read would report: the peer has reset the connection, or no longer answers.
    #[cfg(any(feature = "client", feature = "server"))]
    pub(crate) fn has_error(&self) -> bool {
        self.tcp().is_some_and(|tcp| !matches!(tcp.take_error(), Ok(None)))
    }

    /// Reads into `into`; returns 0 at the end of the stream.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut into = ReadBuf::new(into);
        ready!(match self {
            Self::Tunnel(io) => Pin::new(io).poll_read(cx, &mut into),
            Self::Tcp(io) => Pin::new(io).poll_read(cx, &mut into),
            #[cfg(feature = "tls")]
            Self::Tls(io) => Pin::new(io).poll_read(cx, &mut into),
            Self::Tapped(io) => Pin::new(io).poll_read(cx, &mut into),
            Self::Other(io) => Pin::new(io).poll_read(cx, &mut into),
        })?;
        Poll::Ready(Ok(into.filled().len()))
    }

    /// Whether [`poll_read_ready`](Self::poll_read_ready) waits. If not, only reading does.
    pub(crate) fn tells_readiness(&self) -> bool {
        matches!(self.observed(), Self::Tcp(_) | Self::Tunnel(_))
    }

    /// Waits, without a buffer, until the transport is readable, if it can report that.
    pub(crate) fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(io) => io.poll_read_ready(cx),
            Self::Tunnel(io) => io.poll_read_ready(cx),
            Self::Tapped(tapped) => tapped.poll_read_ready(cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match (self, slices) {
            (Self::Tcp(io), [one]) => Pin::new(io).poll_write(cx, one),
            (Self::Tcp(io), slices) => Pin::new(io).poll_write_vectored(cx, slices),
            #[cfg(feature = "tls")]
            (Self::Tls(io), slices) => Pin::new(io).poll_write_vectored(cx, slices),
            (Self::Tunnel(io), slices) => Pin::new(io).poll_write_vectored(cx, slices),
            (Self::Tapped(io), slices) => Pin::new(io).poll_write_vectored(cx, slices),
            (Self::Other(io), [one]) => Pin::new(io).poll_write(cx, one),
            (Self::Other(io), slices) => Pin::new(io).poll_write_vectored(cx, slices),
        }
    }

    /// Writes the bytes that the transport accepts now; fails with [`WouldBlock`](io::ErrorKind::WouldBlock) when it is full. This
    /// clears the waker of a pending write: call [`poll_write`](Self::poll_write) afterwards to wait.
    pub(crate) fn try_write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match (&*self, slices) {
            (Self::Tcp(io), [one]) => io.try_write(one),
            (Self::Tcp(io), slices) => io.try_write_vectored(slices),
            _ => match self.poll_write(&mut Context::from_waker(Waker::noop()), slices) {
                Poll::Ready(written) => written,
                Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
            },
        }
    }

    /// Writes bytes that the transport itself buffers.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(_) | Self::Tunnel(_) => Poll::Ready(Ok(())),
            #[cfg(feature = "tls")]
            Self::Tls(io) => Pin::new(io).poll_flush(cx),
            Self::Tapped(io) => Pin::new(io).poll_flush(cx),
            Self::Other(io) => Pin::new(io).poll_flush(cx),
        }
    }

    /// Limits the unsent bytes in the kernel's buffer (`TCP_NOTSENT_LOWAT`), so that urgent bytes that are written later do not wait
    /// behind them. Does nothing where the option does not exist.
    #[cfg(feature = "http2")]
    pub(crate) fn limit_unsent(&self, len: u32) {
        let Some(tcp) = self.tcp() else { return };
        #[cfg(any(target_os = "android", target_os = "linux"))]
        // The option is an optimization: its failure is ignored.
        let _ = socket2::SockRef::from(tcp).set_tcp_notsent_lowat(len);
        #[cfg(not(any(target_os = "android", target_os = "linux")))]
        let _ = (tcp, len);
    }

    /// Makes the transport discard unsent bytes and reset the connection when it is dropped, so that the kernel keeps nothing for
    /// the peer. A stream of HTTP/2 does so in any case. Where there is no TCP, as with Unix sockets, there is no reset: the peer sees
    /// the end of the stream.
    pub(crate) fn abandon(&self) {
        if let Some(tcp) = self.tcp() {
            // The option only frees memory of the kernel: its failure is ignored.
            let _ = tcp.set_zero_linger();
        }
    }

    /// Whether the kernel holds bytes that the peer has no room for. Always false except on Linux, the only kernel that reports it.
    pub(crate) fn has_unsent(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.tcp().is_some_and(|tcp| super::unsent::len(tcp, Kept::Unsent) > 0);
        #[cfg(not(target_os = "linux"))]
        false
    }

    /// Bytes that the peer has acknowledged, of `written` that the transport has accepted. Except on Linux, the only kernel that reports
    /// it, all that have left the transport.
    #[cfg(feature = "client")]
    pub(crate) fn acknowledged_len(&self, written: u64) -> u64 {
        let left = self.left_len().unwrap_or(written);
        #[cfg(target_os = "linux")]
        if let Some(tcp) = self.tcp() {
            return left.saturating_sub(super::unsent::len(tcp, Kept::Unacknowledged) as u64);
        }
        left
    }

    /// The TCP connection under the transport, if this crate knows it.
    fn tcp(&self) -> Option<&TcpStream> {
        match self.observed() {
            Self::Tcp(io) => Some(io),
            #[cfg(feature = "tls")]
            Self::Tls(io) => io.get_ref().0.io().tcp(),
            _ => None,
        }
    }

    /// Ends the writing side.
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(io) => Pin::new(io).poll_shutdown(cx),
            Self::Tunnel(io) => Pin::new(io).poll_shutdown(cx),
            #[cfg(feature = "tls")]
            Self::Tls(io) => Pin::new(io).poll_shutdown(cx),
            Self::Tapped(io) => Pin::new(io).poll_shutdown(cx),
            Self::Other(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}

impl From<TcpStream> for Io {
    fn from(io: TcpStream) -> Self {
        Self::Tcp(io)
    }
}

/// Reads once and appends to `into`; returns 0 at the end of the stream. No buffer is held while the read is pending.
pub(crate) fn poll_read(cx: &mut Context<'_>, io: &mut Io, into: &mut BytesMut) -> Poll<io::Result<usize>> {
    poll_read_at_most(cx, io, into, usize::MAX)
}

/// As [`poll_read`], but reads at most `len_max` bytes.
pub(crate) fn poll_read_at_most(
    cx: &mut Context<'_>,
    io: &mut Io,
    into: &mut BytesMut,
    len_max: usize,
) -> Poll<io::Result<usize>> {
    ready!(io.poll_read_ready(cx))?;
    let mut buffer = Buffer::take();
    let space = buffer.space();
    let len_max = space.len().min(len_max);
    let len = ready!(io.poll_read(cx, &mut space[..len_max]))?;
    buffer.filled(len);
    into.extend_from_slice(buffer.unread());
    Poll::Ready(Ok(len))
}

/// As [`poll_read`].
pub(crate) async fn read(io: &mut Io, into: &mut BytesMut) -> io::Result<usize> {
    poll_fn(|cx| poll_read(cx, io, into)).await
}

/// Writes all of `parts`, and flushes.
pub(crate) async fn write_all(io: &mut Io, parts: &[&[u8]]) -> io::Result<()> {
    let mut written = 0;
    poll_fn(|cx| poll_write_all(cx, io, parts, &mut written)).await
}

/// Writes `parts` from offset `written` on, and flushes; advances `written`.
pub(crate) fn poll_write_all(
    cx: &mut Context<'_>,
    io: &mut Io,
    parts: &[&[u8]],
    written: &mut usize,
) -> Poll<io::Result<()>> {
    loop {
        let mut slices = [IoSlice::new(&[]); 4];
        let (mut count, mut passed) = (0, *written);
        for part in parts {
            let rest = &part[passed.min(part.len())..];
            passed = passed.saturating_sub(part.len());
            if !rest.is_empty() && count < slices.len() {
                slices[count] = IoSlice::new(rest);
                count += 1;
            }
        }
        if count == 0 {
            return io.poll_flush(cx);
        }
        match ready!(io.poll_write(cx, &slices[..count]))? {
            0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            len => *written += len,
        }
    }
}

#[cfg(all(test, target_os = "linux", feature = "client"))]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn bytes_in_the_kernel_are_not_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut peer, _) = listener.accept().await.unwrap();
        let (mut io, mut written) = (Io::Tcp(stream), 0);
        io.tcp().unwrap().writable().await.unwrap();
        while let Ok(len) = io.try_write(&[IoSlice::new(&[7; 64 << 10])]) {
            written += len;
        }
        let before = io.acknowledged_len(written as u64);
        assert!(before < written as u64);
        peer.read_exact(&mut vec![0; written]).await.unwrap();
        while io.acknowledged_len(written as u64) < written as u64 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}
