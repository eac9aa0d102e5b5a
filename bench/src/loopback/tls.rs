//! TLS in the races: one certificate, TLS 1.3 and one cipher suite for all servers, because the client offers no other. A connection of the
//! load generators, with or without TLS.

use super::opening::{self, Opening};
use super::servers::foreign::beside;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned, version};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;

const NAME: &str = "localhost";

/// A connection of a load generator.
pub(super) enum Stream {
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    /// An open WebSocket.
    ///
    /// # Errors
    /// The server cannot be reached, or answers with something else.
    pub(super) fn open(
        address: SocketAddr,
        tls: Option<&Arc<ClientConfig>>,
        opening: Opening,
    ) -> Result<Self, String> {
        let mut stream = Self::connect(address, tls)?;
        opening::request(&mut stream, address, opening)?;
        Ok(stream)
    }

    /// A connection without a handshake of WebSocket.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub(super) fn connect(address: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> Result<Self, String> {
        let stream = opening::connect(address)?;
        let Some(config) = tls else { return Ok(Self::Tcp(stream)) };
        let name = ServerName::try_from(NAME).map_err(|error| error.to_string())?;
        let connection = ClientConnection::new(config.clone(), name).map_err(|error| error.to_string())?;
        Ok(Self::Tls(Box::new(StreamOwned::new(connection, stream))))
    }

    pub(super) fn set_nonblocking(&self) -> Result<(), String> {
        self.tcp().set_nonblocking(true).map_err(|error| error.to_string())
    }

    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Tcp(stream) => stream,
            Self::Tls(stream) => &stream.sock,
        }
    }
}

impl Read for Stream {
    /// One read of the socket. With TLS, `buffer` has to be longer than a socket's buffer of rustls: what was decrypted is returned at
    /// once, because epoll does not report it again.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    /// Writes the records that the socket has not accepted yet.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(_) => Ok(()),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp().as_fd()
    }
}

/// The file with the certificate and its key. It is made if there is none.
///
/// # Errors
/// It cannot be written.
pub(super) fn pem() -> Result<PathBuf, String> {
    let path = beside("tls.pem")?;
    if path.exists() {
        return Ok(path);
    }
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).map_err(|error| error.to_string())?;
    let text = made.cert.pem() + &made.signing_key.serialize_pem();
    let folder = beside("")?;
    // Renamed when it is complete: another run may look for it.
    let whole = folder.join(format!("tls-{}", std::process::id()));
    let written = fs::create_dir_all(&folder)
        .and_then(|()| fs::write(&whole, text))
        .and_then(|()| fs::rename(&whole, &path));
    written.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// The configuration of the load generators.
///
/// # Errors
/// The certificate cannot be made or read.
pub(super) fn client() -> Result<Arc<ClientConfig>, String> {
    let certificate = CertificateDer::from_pem_file(pem()?).map_err(|error| error.to_string())?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate).map_err(|error| error.to_string())?;
    // RFC 8446 §9.1: the suite that every implementation has.
    let provider = CryptoProvider {
        cipher_suites: vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256],
        ..ring::default_provider()
    };
    let config = ClientConfig::builder_with_provider(provider.into())
        .with_protocol_versions(&[&version::TLS13])
        .map_err(|error| error.to_string())?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

/// The configuration of the servers in this program, that of rustls by default.
///
/// # Errors
/// The certificate cannot be made or read.
pub(super) fn server() -> io::Result<Arc<ServerConfig>> {
    let path = pem().map_err(io::Error::other)?;
    let certificate = CertificateDer::from_pem_file(&path).map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_file(&path).map_err(io::Error::other)?;
    let config = ServerConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let config = config.with_no_client_auth().with_single_cert(vec![certificate], key);
    Ok(Arc::new(config.map_err(io::Error::other)?))
}
