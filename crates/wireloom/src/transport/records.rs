//! TLS records that are written past the TLS stream, with those of other connections in one system call.
//!
//! ```text
//! encrypt: plaintext -> rustls, which keeps the records -> a copy -> the socket
//! written:              rustls drops those that the socket has accepted, and writes the others itself
//! ```

use std::io::{self, IoSlice, Write};

use rustls::{ConnectionCommon, SideData};
use tokio_rustls::TlsStream;

use super::counted::Counted;

/// Encrypts `bytes`, and appends the records to `into`. Returns how many of `bytes` they contain: not all if rustls's buffer is full.
pub(super) fn encrypt(
    stream: &mut TlsStream<Counted>,
    bytes: &[u8],
    into: &mut Vec<u8>,
) -> io::Result<usize> {
    fn encrypt(
        connection: &mut ConnectionCommon<impl SideData>,
        bytes: &[u8],
        into: &mut Vec<u8>,
    ) -> io::Result<usize> {
        let len = connection.writer().write(bytes)?;
        let peeked = connection.write_tls(&mut Peek(into));
        match peeked {
            // rustls drops bytes of a session whose keys are exhausted.
            Ok(_) => Err(io::ErrorKind::BrokenPipe.into()),
            Err(_) => Ok(len),
        }
    }
    match stream {
        TlsStream::Client(stream) => encrypt(stream.get_mut().1, bytes, into),
        TlsStream::Server(stream) => encrypt(stream.get_mut().1, bytes, into),
    }
}

/// The first `len` bytes of the records were written.
pub(super) fn written(stream: &mut TlsStream<Counted>, len: usize) {
    let accepted = match stream {
        TlsStream::Client(stream) => stream.get_mut().1.write_tls(&mut Accept(len)),
        TlsStream::Server(stream) => stream.get_mut().1.write_tls(&mut Accept(len)),
    };
    debug_assert_eq!(accepted.ok(), Some(len));
    stream.get_mut().0.count(len);
}

/// Copies bytes and refuses them, so that the writer keeps them.
struct Peek<'a>(&'a mut Vec<u8>);

impl Write for Peek<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        slices.iter().for_each(|slice| self.0.extend_from_slice(slice));
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Accepts this many bytes at once.
struct Accept(usize);

impl Write for Accept {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Ok(self.0)
    }

    fn write_vectored(&mut self, _: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(self.0)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Waker};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use crate::ServerTls;
    use crate::transport::counted::Counted;
    use crate::transport::{Io, tls};

    // The socket accepts the first bytes of a record; the flush writes the rest, and later records follow.
    #[tokio::test]
    async fn a_flush_writes_what_was_not_written_of_the_records() {
        let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let private = rustls::pki_types::PrivateKeyDer::Pkcs8(key.signing_key.serialize_der().into());
        let config = rustls::ServerConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![key.cert.der().clone()], private)
            .unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(key.cert.der().clone()).unwrap();
        let client = rustls::ClientConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connecting = async {
            let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
            connector.connect("localhost".try_into().unwrap(), tcp).await.unwrap()
        };
        let accepting = async {
            // Another descriptor of the same socket, for the records.
            let tcp = listener.accept().await.unwrap().0.into_std().unwrap();
            let direct = TcpStream::from_std(tcp.try_clone().unwrap()).unwrap();
            let counted = Counted::new(TcpStream::from_std(tcp).unwrap().into());
            let stream = ServerTls::from_rustls(Arc::new(config)).accept(counted).await.unwrap();
            (Io::Tls(Box::new(stream.into())), direct)
        };
        let (mut peer, (mut io, mut direct)) = tokio::join!(connecting, accepting);
        assert!(io.socket().is_some() && io.encrypts() && !io.has_buffered_writes());
        let left_len = io.left_len().unwrap();
        let mut records = b"kept".to_vec();
        assert_eq!(io.encrypt(b"hello", &mut records).unwrap(), Some(5));
        assert!(io.has_buffered_writes());
        let records = &records[4..];
        direct.write_all(&records[..7]).await.unwrap();
        io.records_written(7);
        assert_eq!(io.left_len(), Some(left_len + 7));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(io.poll_flush(&mut cx).is_ready() && !io.has_buffered_writes());
        assert_eq!(io.left_len(), Some(left_len + records.len() as u64));
        let mut whole = Vec::new();
        io.encrypt(b" world", &mut whole).unwrap();
        direct.write_all(&whole).await.unwrap();
        io.records_written(whole.len());
        assert!(!io.has_buffered_writes());
        let mut received = [0; 11];
        peer.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"hello world");
    }
}
