//! The server's opening handshake over a stream that is open already (RFC 6455 §4.2).

use std::future::poll_fn;

use bytes::BytesMut;
use wireloom_ws::Role;
use wireloom_ws::handshake::server::{Progress, ServerHandshake};
use wireloom_ws::handshake::{Acceptance, HandshakeLimits};

use super::WebSocket;
use super::config::SharedConfig;
use crate::error::{Error, HttpError};
use crate::memory::Account;
use crate::transport::{Io, Linger, Transport, read, write_all};

/// Accepts a WebSocket over a stream that is open already, such as one of a listener of your own, of TLS, or of a pipe in memory:
/// reads the request and answers it, whatever its path and its origin are. The handshake has no timeout: see `tokio::time::timeout`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), wireloom::Error> {
/// let (here, there) = tokio::io::duplex(1024);
/// let (client, server) = tokio::join!(wireloom::connect_over(here, "ws://localhost/"), wireloom::accept(there));
/// let (mut client, mut server) = (client?, server?);
/// client.send("hello").await?;
/// assert_eq!(server.recv().await?.unwrap().as_text(), Some("hello"));
/// # Ok(())
/// # }
/// ```
///
/// For subprotocols, compression, headers and refusals serve the stream by `wireloom::server::serve_connection`, or do the handshake
/// with [`wireloom_ws::handshake`] and continue with [`WebSocket::from_transport`].
///
/// # Errors
/// The request is not a valid opening handshake, and was answered with a refusal ([`Error::Handshake`]), which the peer has had a moment to
/// read; the stream failed.
pub async fn accept(transport: impl Transport) -> Result<WebSocket, Error> {
    let mut io = Io::of(transport);
    let mut handshake = ServerHandshake::new(HandshakeLimits::default());
    let (mut bytes, mut answer) = (BytesMut::new(), Vec::new());
    loop {
        bytes.clear();
        if read(&mut io, &mut bytes).await? == 0 {
            return Err(HttpError::ConnectionLost.into());
        }
        match handshake.handle_input(&bytes) {
            Ok(Progress::Incomplete) => {}
            Ok(Progress::Complete { consumed }) => {
                let negotiated = handshake.accept(&Acceptance::default(), &mut answer)?;
                write_all(&mut io, &[&answer]).await?;
                let (config, arrived) = (SharedConfig::default(), &bytes[consumed..]);
                let account = Account::default();
                return Ok(WebSocket::open(io, Role::Server, negotiated, None, config, arrived, &account));
            }
            Err(error) => {
                error.refusal().write_to(&mut answer);
                // The client may have closed, and otherwise should read this, although it may send more than was read.
                if write_all(&mut io, &[&answer]).await.is_ok() {
                    let mut linger = Linger::http();
                    poll_fn(|cx| linger.poll(&mut io, cx)).await;
                }
                return Err(error.into());
            }
        }
    }
}
