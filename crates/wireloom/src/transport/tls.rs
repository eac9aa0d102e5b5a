//! TLS by rustls, with ring for the cryptography: it builds with a C compiler alone, in a fraction of the time and code of
//! aws-lc-rs, whose advantages (FIPS, post-quantum key exchange) are not needed here yet.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustls::ServerConnection;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::TlsInfo;
use crate::error::Error;

/// The application protocols (RFC 7301).
const ALPN: &[u8] = b"http/1.1";

/// RFC 9113 §3.2.
const ALPN_HTTP2: &[u8] = b"h2";

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Appends to the file that `SSLKEYLOGFILE` names. One that did not exist is for this user alone, which rustls does not see to.
pub(crate) fn key_log() -> Arc<dyn rustls::KeyLog> {
    if let Some(path) = std::env::var_os("SSLKEYLOGFILE") {
        let mut options = std::fs::File::options();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        // rustls opens it again, and logs an error.
        let _ = options.append(true).create(true).open(path);
    }
    Arc::new(rustls::KeyLogFile::new())
}

/// The server's side: a certificate and its key, which can be exchanged while it serves.
#[derive(Clone, Debug)]
pub struct ServerTls {
    current: Arc<RwLock<Arc<rustls::ServerConfig>>>,
    files: Option<Arc<Files>>,
    key_log: Option<Arc<dyn rustls::KeyLog>>,
}

#[derive(Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    hasher: RandomState,
    /// The hash of the contents in use. Times are not enough: a file that is read while it is written may be complete within the same
    /// tick of the file system's clock.
    loaded: Mutex<u64>,
    /// The error of the last attempt to load them.
    last_error: Mutex<Option<Error>>,
}

impl Files {
    /// The contents of both files, and their hash.
    fn read(&self) -> io::Result<([Vec<u8>; 2], u64)> {
        let contents = [std::fs::read(&self.certificate)?, std::fs::read(&self.key)?];
        let hash = self.hasher.hash_one(&contents);
        Ok((contents, hash))
    }

    /// Whether the files can be read again. A pipe cannot.
    fn are_regular(&self) -> io::Result<bool> {
        Ok(self.certificate.metadata()?.is_file() && self.key.metadata()?.is_file())
    }
}

fn config_from_pem([certificate, key]: &[Vec<u8>; 2]) -> Result<Arc<rustls::ServerConfig>, Error> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let key = PrivateKeyDer::from_pem_slice(key).map_err(pem_error)?;
    server_config(chain.map_err(pem_error)?, key)
}

pub(crate) fn pem_error(error: rustls::pki_types::pem::Error) -> Error {
    match error {
        rustls::pki_types::pem::Error::Io(error) => Error::Io(error.into()),
        rustls::pki_types::pem::Error::NoItemsFound => {
            rustls::Error::General("the file holds no certificate or private key in PEM".into()).into()
        }
        error => rustls::Error::General(format!("malformed PEM: {error}")).into(),
    }
}

fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<rustls::ServerConfig>, Error> {
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(Error::from)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(Error::from)?;
    config.alpn_protocols = vec![
        #[cfg(feature = "http2")]
        ALPN_HTTP2.into(),
        ALPN.into(),
    ];
    Ok(Arc::new(config))
}

impl ServerTls {
    /// A certificate with its chain and its key, from PEM files. A server reads both files every few seconds and uses changed ones, so they must
    /// stay readable for its user, also after it has given up privileges.
    ///
    /// # Errors
    /// A file cannot be read, or is invalid.
    pub fn from_pem_files(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Self, Error> {
        let files = Files {
            certificate: certificate.into(),
            key: key.into(),
            hasher: RandomState::new(),
            loaded: Mutex::default(),
            last_error: Mutex::default(),
        };
        let (contents, hash) = files.read()?;
        let config = config_from_pem(&contents)?;
        *lock(&files.loaded) = hash;
        Ok(Self { current: Arc::new(RwLock::new(config)), files: Some(Arc::new(files)), key_log: None })
    }

    /// A configuration of rustls. Its ALPN should name `h2` and `http/1.1`, one of them, or nothing.
    pub fn from_rustls(config: Arc<rustls::ServerConfig>) -> Self {
        Self { current: Arc::new(RwLock::new(config)), files: None, key_log: None }
    }

    /// A self-signed certificate for these names, made now and kept in memory: for development.
    ///
    /// # Errors
    /// A name that cannot be in a certificate.
    #[cfg(feature = "self-signed")]
    pub fn self_signed(names: &[&str]) -> Result<(Self, SelfSigned), Error> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let made = rcgen::generate_simple_self_signed(names)
            .map_err(|_| rustls::Error::General("no certificate can be made for these names".into()))?;
        let der = made.cert.der().clone();
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let config = server_config(vec![der.clone()], key)?;
        Ok((Self::from_rustls(config), SelfSigned { der: der.to_vec() }))
    }

    /// Appends the secrets of each session to the file that the environment variable `SSLKEYLOGFILE` names, as
    /// [`ClientTls::log_secrets`](crate::ClientTls::log_secrets) does.
    #[must_use]
    pub fn log_secrets(mut self) -> Self {
        self.key_log = Some(key_log());
        let config = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        let config = self.logging(config);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
        self
    }

    /// The same configuration, with the log of secrets.
    fn logging(&self, mut config: Arc<rustls::ServerConfig>) -> Arc<rustls::ServerConfig> {
        if let Some(key_log) = &self.key_log {
            Arc::make_mut(&mut config).key_log = key_log.clone();
        }
        config
    }

    /// Reads both files, and loads them if they have changed. Returns whether they had.
    ///
    /// # Errors
    /// A file cannot be read or is invalid; the certificate in use stays in use.
    pub fn reload_if_changed(&self) -> Result<bool, Error> {
        let Some(files) = &self.files else { return Ok(false) };
        if !files.are_regular()? {
            return Ok(false);
        }
        let (contents, hash) = files.read()?;
        if *lock(&files.loaded) == hash {
            return Ok(false);
        }
        let config = self.logging(config_from_pem(&contents)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
        *lock(&files.loaded) = hash;
        Ok(true)
    }

    /// [`ServerTls::reload_if_changed`] for a server: the certificate in use stays when the new one is invalid, and each change
    /// of the outcome is logged once.
    pub(crate) fn reload_and_log(&self) {
        let reloaded = self.reload_if_changed();
        let Some(files) = &self.files else { return };
        let last_error = std::mem::replace(&mut *lock(&files.last_error), reloaded.as_ref().err().cloned());
        #[cfg(feature = "tracing")]
        {
            let certificate = files.certificate.display();
            match reloaded {
                Ok(true) => tracing::info!(%certificate, "the certificate was reloaded"),
                Err(error) if last_error.as_ref() != Some(&error) => {
                    tracing::warn!(%certificate, %error, "the certificate cannot be reloaded; the old one stays in use");
                }
                _ => {}
            }
        }
        #[cfg(not(feature = "tracing"))]
        drop(last_error);
    }

    pub(crate) fn accept<T: AsyncRead + AsyncWrite + Unpin>(&self, stream: T) -> tokio_rustls::Accept<T> {
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
    /// The certificate, in DER: a client that trusts it takes it by [`ClientTls::with_root`](crate::ClientTls::with_root).
    pub fn der(&self) -> &[u8] {
        &self.der
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The outcome of the handshake.
pub(crate) fn info(connection: &ServerConnection) -> TlsInfo {
    TlsInfo {
        server_name: connection.server_name().map(String::from),
        version: connection.protocol_version().map(|version| format!("{version:?}")).unwrap_or_default(),
        alpn: connection.alpn_protocol().map(Vec::from),
    }
}
