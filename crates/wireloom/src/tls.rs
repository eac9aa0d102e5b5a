//! TLS by rustls, with ring for the cryptography: it builds with a C compiler alone, in a fraction of the time and code of
//! aws-lc-rs, whose advantages (FIPS, post-quantum key exchange) nobody here has asked for yet.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConnection, SignatureScheme};
use tokio::net::TcpStream;

use crate::error::Error;
use crate::http::TlsInfo;

/// What is spoken inside (RFC 7301).
const ALPN: &[u8] = b"http/1.1";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The server's side: a certificate and its key, which can be exchanged while it serves.
#[derive(Clone, Debug)]
pub struct ServerTls {
    current: Arc<RwLock<Arc<rustls::ServerConfig>>>,
    files: Option<Arc<Files>>,
}

#[derive(Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    read_at: Mutex<Option<(SystemTime, SystemTime)>>,
}

impl Files {
    fn modified(&self) -> io::Result<(SystemTime, SystemTime)> {
        let modified = |path: &Path| path.metadata()?.modified();
        Ok((modified(&self.certificate)?, modified(&self.key)?))
    }

    fn read(&self) -> Result<Arc<rustls::ServerConfig>, Error> {
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_file_iter(&self.certificate).map_err(pem_error)?.collect();
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(pem_error)?;
        server_config(chain.map_err(pem_error)?, key)
    }
}

fn pem_error(error: rustls::pki_types::pem::Error) -> Error {
    match error {
        rustls::pki_types::pem::Error::Io(error) => Error::Io(error.kind()),
        _ => Error::Tls(rustls::Error::General("not a PEM file with what is wanted".into())),
    }
}

fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<rustls::ServerConfig>, Error> {
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(Error::Tls)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(Error::Tls)?;
    config.alpn_protocols = vec![ALPN.into()];
    Ok(Arc::new(config))
}

impl ServerTls {
    /// A certificate with its chain and its key, from PEM files. A server looks at them every few seconds and takes new ones.
    ///
    /// # Errors
    /// A file cannot be read, or is not what it should be.
    pub fn from_pem_files(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Self, Error> {
        let files = Files { certificate: certificate.into(), key: key.into(), read_at: Mutex::new(None) };
        *lock(&files.read_at) = files.modified().ok();
        let config = files.read()?;
        Ok(Self { current: Arc::new(RwLock::new(config)), files: Some(Arc::new(files)) })
    }

    /// A configuration of rustls. Its ALPN should name `http/1.1` or nothing.
    pub fn from_rustls(config: Arc<rustls::ServerConfig>) -> Self {
        Self { current: Arc::new(RwLock::new(config)), files: None }
    }

    /// A certificate for these names that nobody vouches for, made now and kept in memory alone: for development.
    ///
    /// # Errors
    /// A name that cannot be in a certificate.
    #[cfg(feature = "self-signed")]
    pub fn self_signed(names: &[&str]) -> Result<(Self, SelfSigned), Error> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let made = rcgen::generate_simple_self_signed(names).map_err(|_| {
            Error::Tls(rustls::Error::General("no certificate can be made for these names".into()))
        })?;
        let der = made.cert.der().clone();
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let config = server_config(vec![der.clone()], key)?;
        Ok((Self::from_rustls(config), SelfSigned { der: der.to_vec() }))
    }

    /// Takes the files' contents if they have changed. True when they had.
    ///
    /// # Errors
    /// A file cannot be read or is not what it should be; what was in use stays in use.
    pub fn reload_if_changed(&self) -> Result<bool, Error> {
        let Some(files) = &self.files else { return Ok(false) };
        let modified = files.modified()?;
        if lock(&files.read_at).replace(modified) == Some(modified) {
            return Ok(false);
        }
        let config = files.read()?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(true)
    }

    pub(crate) fn accept(&self, stream: TcpStream) -> tokio_rustls::Accept<TcpStream> {
        let config = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        tokio_rustls::TlsAcceptor::from(config).accept(stream)
    }
}

/// A certificate that was made for development.
#[cfg(feature = "self-signed")]
#[derive(Clone, Debug)]
pub struct SelfSigned {
    der: Vec<u8>,
}

#[cfg(feature = "self-signed")]
impl SelfSigned {
    /// The certificate, in DER: a client that trusts it takes it by [`ClientTls::with_root`].
    pub fn der(&self) -> &[u8] {
        &self.der
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was agreed upon.
pub(crate) fn info(connection: &ServerConnection) -> TlsInfo {
    TlsInfo {
        server_name: connection.server_name().map(String::from),
        version: connection.protocol_version().map(|version| format!("{version:?}")).unwrap_or_default(),
        alpn: connection.alpn_protocol().map(Vec::from),
    }
}

/// The client's side: whom it trusts, and who it is.
#[derive(Clone, Debug)]
pub struct ClientTls {
    trust: Trust,
    identity: Option<Arc<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>>,
}

#[derive(Clone, Debug)]
enum Trust {
    Platform,
    Roots(Vec<CertificateDer<'static>>),
    Anyone,
    Rustls(Arc<ClientConfig>),
}

impl Default for ClientTls {
    /// Trusts whom the platform trusts.
    fn default() -> Self {
        Self { trust: Trust::Platform, identity: None }
    }
}

impl ClientTls {
    /// Trusts this certificate (DER) and what it vouches for, and those added before, instead of the platform's.
    #[must_use]
    pub fn with_root(mut self, der: impl Into<Vec<u8>>) -> Self {
        let root = CertificateDer::from(der.into());
        match &mut self.trust {
            Trust::Roots(roots) => roots.push(root),
            other => *other = Trust::Roots(vec![root]),
        }
        self
    }

    /// Trusts the certificates of a PEM file, as [`with_root`](Self::with_root) does.
    ///
    /// # Errors
    /// The file cannot be read, or holds none.
    pub fn with_root_file(mut self, path: impl AsRef<Path>) -> Result<Self, Error> {
        for root in CertificateDer::pem_file_iter(path).map_err(pem_error)? {
            self = self.with_root(root.map_err(pem_error)?.to_vec());
        }
        Ok(self)
    }

    /// Shows this certificate to servers that ask for one (PEM files).
    ///
    /// # Errors
    /// A file cannot be read, or is not what it should be.
    pub fn with_identity(
        mut self,
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, Error> {
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_file_iter(certificate).map_err(pem_error)?.collect();
        let key = PrivateKeyDer::from_pem_file(key).map_err(pem_error)?;
        self.identity = Some(Arc::new((chain.map_err(pem_error)?, key)));
        Ok(self)
    }

    /// Trusts anyone: whoever is in between can read and change everything. For development.
    #[must_use]
    pub fn insecure(self) -> Self {
        Self { trust: Trust::Anyone, ..self }
    }

    /// A configuration of rustls, taken as it is.
    pub fn from_rustls(config: Arc<ClientConfig>) -> Self {
        Self { trust: Trust::Rustls(config), identity: None }
    }

    /// TLS to this server.
    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<tokio_rustls::client::TlsStream<TcpStream>, Error> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| Error::Url)?;
        let connector = tokio_rustls::TlsConnector::from(self.config()?);
        Ok(connector.connect(name, stream).await?)
    }

    fn config(&self) -> Result<Arc<ClientConfig>, Error> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(Error::Tls)?;
        let builder = match &self.trust {
            Trust::Rustls(config) => return Ok(config.clone()),
            Trust::Anyone => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(TrustAnyone { provider: provider() })),
            Trust::Roots(roots) => {
                let mut store = RootCertStore::empty();
                for root in roots {
                    store.add(root.clone()).map_err(Error::Tls)?;
                }
                builder.with_root_certificates(store)
            }
            Trust::Platform => {
                let mut store = RootCertStore::empty();
                store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                builder.with_root_certificates(store)
            }
        };
        let mut config = match self.identity.as_deref() {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                builder.with_client_auth_cert(chain.clone(), key.clone_key()).map_err(Error::Tls)?
            }
        };
        config.alpn_protocols = vec![ALPN.into()];
        Ok(Arc::new(config))
    }
}

/// Checks that the peer has the key of its certificate, and not whose certificate it is.
#[derive(Debug)]
struct TrustAnyone {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for TrustAnyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
