//! TLS for clients: trusted roots, client certificates, ALPN.

use std::io;
use std::path::Path;
use std::sync::{Arc, LazyLock, OnceLock};

use rustls::client::{ResolvesClientCert, WebPkiServerVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, RootCertStore, SignatureScheme};
use wireloom_ws::handshake::uri::UriError;

use super::verifier::{TrustAnyone, TrustOwn};
use super::{Protocols, failed};
use crate::error::Error;
use crate::transport::counted::Counted;
use crate::transport::tls::{key_log, pem_error, provider};
use crate::transport::{Io, TlsInfo};

/// The certificates that a client trusts, and its own.
///
/// It keeps the configuration of rustls and the sessions that can be resumed; clones share both.
#[derive(Clone, Debug, Default)]
pub struct ClientTls {
    trust: Trust,
    identity: Option<Arc<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>>,
    /// No client certificate is sent, not even that of a configuration of rustls.
    hides_identity: bool,
    /// A choice was added to a configuration of rustls, which cannot be changed.
    conflicts: bool,
    key_log: Option<Arc<dyn rustls::KeyLog>>,
    built: Arc<OnceLock<Arc<ClientConfig>>>,
}

#[derive(Clone, Debug, Default)]
enum Trust {
    /// Whom the platform trusts.
    #[default]
    Platform,
    Roots(Roots),
    Anyone,
    Rustls(Arc<ClientConfig>),
}

#[derive(Clone, Debug, Default)]
struct Roots {
    platform: bool,
    #[cfg(feature = "webpki-roots")]
    webpki: bool,
    own: Vec<CertificateDer<'static>>,
}

impl Protocols {
    fn names(self) -> Vec<Vec<u8>> {
        match self {
            Self::Http1 => vec![b"http/1.1".to_vec()],
            #[cfg(feature = "http2")]
            Self::Http2 => vec![b"h2".to_vec()],
            #[cfg(feature = "http2")]
            Self::Any => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        }
    }
}

impl ClientTls {
    fn changed(mut self) -> Self {
        self.built = Arc::default();
        self
    }

    fn conflicting(mut self) -> Self {
        self.conflicts = true;
        self.changed()
    }

    fn with_roots(mut self, add: impl FnOnce(&mut Roots)) -> Self {
        let mut roots = match self.trust {
            Trust::Roots(roots) => roots,
            Trust::Rustls(_) => return self.conflicting(),
            Trust::Platform | Trust::Anyone => Roots::default(),
        };
        add(&mut roots);
        self.trust = Trust::Roots(roots);
        self.changed()
    }

    /// Trusts this certificate (DER), those it has signed, and those added before, instead of the platform's. It may be a
    /// certificate authority, or the server's own certificate.
    #[must_use]
    pub fn with_root(self, der: impl Into<Vec<u8>>) -> Self {
        let root = CertificateDer::from(der.into());
        self.with_roots(|roots| roots.own.push(root))
    }

    /// Trusts the certificates of a PEM file, as [`with_root`](Self::with_root) does.
    ///
    /// # Errors
    /// The file cannot be read, or holds none.
    pub fn with_root_file(self, path: impl AsRef<Path>) -> Result<Self, Error> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(pem_error)?.collect();
        let found = found.map_err(pem_error)?;
        if found.is_empty() {
            return Err(rustls::Error::General("there is no certificate in the file".into()).into());
        }
        Ok(self.with_roots(|roots| roots.own.extend(found)))
    }

    /// Trusts the platform's roots beside those that are added. Without any root added that is the default.
    #[must_use]
    pub fn with_platform_roots(self) -> Self {
        self.with_roots(|roots| roots.platform = true)
    }

    /// Trusts whom Mozilla trusts, by the list that is compiled in, beside those added: for machines that have no list.
    #[cfg(feature = "webpki-roots")]
    #[must_use]
    pub fn with_webpki_roots(self) -> Self {
        self.with_roots(|roots| roots.webpki = true)
    }

    /// Shows this certificate to servers that ask for one (PEM files). Proxies do not see it: see
    /// [`Proxy::tls`](crate::client::Proxy::tls).
    ///
    /// # Errors
    /// A file cannot be read, or is invalid.
    pub fn with_identity(
        mut self,
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, Error> {
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_file_iter(certificate).map_err(pem_error)?.collect();
        let key = PrivateKeyDer::from_pem_file(key).map_err(pem_error)?;
        let identity = (chain.map_err(pem_error)?, key);
        if let Trust::Rustls(_) = self.trust {
            return Ok(self.conflicting());
        }
        self.identity = Some(Arc::new(identity));
        Ok(self.changed())
    }

    /// Trusts any certificate: an attacker between client and server can read and change everything. For development.
    #[must_use]
    pub fn insecure(mut self) -> Self {
        if let Trust::Rustls(_) = self.trust {
            return self.conflicting();
        }
        self.trust = Trust::Anyone;
        self.changed()
    }

    /// Appends the secrets of each session to the file that the environment variable `SSLKEYLOGFILE` names, so that `wireloom inspect`
    /// and Wireshark can decrypt captured traffic. Does nothing without the variable, or where the file cannot be written. Anyone with
    /// the file can read the traffic: for development. A new file is for this user alone.
    #[must_use]
    pub fn log_secrets(mut self) -> Self {
        if let Trust::Rustls(_) = self.trust {
            return self.conflicting();
        }
        self.key_log = Some(key_log());
        self.changed()
    }

    /// A configuration of rustls, used as it is except for its ALPN, which follows from the protocols to be spoken. It decides alone
    /// whom to trust and which certificate to show: after a call of `with_root` and the like every connection fails.
    pub fn from_rustls(config: Arc<ClientConfig>) -> Self {
        Self { trust: Trust::Rustls(config), ..Self::default() }
    }

    /// Opens TLS to this server; returns the outcome of the handshake too.
    pub(crate) async fn connect(
        &self,
        host: &str,
        io: Io,
        protocols: Protocols,
    ) -> Result<(Io, TlsInfo), Error> {
        // The same for all connections, so that sessions are resumed.
        static NO_IDENTITY: LazyLock<Arc<NoIdentity>> = LazyLock::new(Arc::default);
        let mut config = (*self.config().await?).clone();
        if self.hides_identity {
            config.client_auth_cert_resolver = NO_IDENTITY.clone();
        }
        handshake(config, host, io, protocols).await
    }

    /// The same trust without a certificate: for a peer to which the client's would disclose who it is.
    pub(crate) fn without_identity(&self) -> Self {
        Self { hides_identity: true, ..self.clone() }
    }

    /// Whether one was cloned from the other and neither was changed since.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.built, &other.built)
    }

    async fn config(&self) -> Result<Arc<ClientConfig>, Error> {
        if let Some(built) = self.built.get() {
            return Ok(built.clone());
        }
        let built = if self.reads_files() {
            let tls = self.clone();
            let building = tokio::task::spawn_blocking(move || tls.build());
            building.await.map_err(|error| Error::Io(io::Error::other(error).into()))??
        } else {
            self.build()?
        };
        Ok(self.built.get_or_init(|| built).clone())
    }

    fn reads_files(&self) -> bool {
        match &self.trust {
            Trust::Platform => true,
            Trust::Roots(roots) => roots.platform,
            _ => false,
        }
    }

    fn build(&self) -> Result<Arc<ClientConfig>, Error> {
        if self.conflicts {
            let why = "roots, identities and `insecure` cannot be added to a configuration of rustls";
            return Err(rustls::Error::General(why.into()).into());
        }
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(Error::from)?;
        let builder = match &self.trust {
            Trust::Rustls(config) => return Ok(config.clone()),
            Trust::Anyone => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(TrustAnyone { provider: provider() })),
            Trust::Roots(roots) if roots.own.is_empty() => builder.with_root_certificates(roots.store()?),
            Trust::Roots(roots) => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(roots.verifier()?))
            }
            Trust::Platform => {
                builder.with_root_certificates(Roots { platform: true, ..Roots::default() }.store()?)
            }
        };
        let mut config = match self.identity.as_deref() {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                builder.with_client_auth_cert(chain.clone(), key.clone_key()).map_err(Error::from)?
            }
        };
        if let Some(key_log) = &self.key_log {
            config.key_log = key_log.clone();
        }
        Ok(Arc::new(config))
    }
}

impl Roots {
    fn verifier(&self) -> Result<TrustOwn, Error> {
        let standard = WebPkiServerVerifier::builder_with_provider(Arc::new(self.store()?), provider())
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        Ok(TrustOwn { standard, trusted: self.own.clone() })
    }

    fn store(&self) -> Result<RootCertStore, Error> {
        let mut store = RootCertStore::empty();
        for root in &self.own {
            store.add(root.clone()).map_err(Error::from)?;
        }
        let failure = if self.platform { add_platform(&mut store) } else { None };
        #[cfg(feature = "webpki-roots")]
        if self.webpki {
            store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        if store.is_empty() {
            // Every certificate would be refused with a misleading error.
            let why = match failure {
                Some(failure) => format!("the root certificates of this machine cannot be read: {failure}"),
                None => {
                    "this machine has no list of root certificates (often the package ca-certificates)".into()
                }
            };
            return Err(rustls::Error::General(why).into());
        }
        Ok(store)
    }
}

/// Adds the roots of the platform. Returns the first failure.
#[cfg(feature = "native-roots")]
fn add_platform(store: &mut RootCertStore) -> Option<String> {
    let loaded = rustls_native_certs::load_native_certs();
    store.add_parsable_certificates(loaded.certs);
    loaded.errors.first().map(ToString::to_string)
}

#[cfg(not(feature = "native-roots"))]
fn add_platform(_: &mut RootCertStore) -> Option<String> {
    None
}

async fn handshake(
    mut config: ClientConfig,
    host: &str,
    io: Io,
    protocols: Protocols,
) -> Result<(Io, TlsInfo), Error> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| Error::InvalidUrl(UriError::Authority))?;
    config.alpn_protocols = protocols.names();
    // RFC 6066 §3: an IP address is not sent.
    let is_sent = config.enable_sni && matches!(name, ServerName::DnsName(_));
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connector.connect(name, Counted::new(io)).await.map_err(failed)?;
    let mut info = agreed(stream.get_ref().1);
    info.server_name = is_sent.then(|| host.strip_suffix('.').unwrap_or(host).to_owned());
    Ok((Io::Tls(Box::new(stream.into())), info))
}

/// Shows no certificate.
#[derive(Debug, Default)]
struct NoIdentity;

impl ResolvesClientCert for NoIdentity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

fn agreed(connection: &ClientConnection) -> TlsInfo {
    TlsInfo {
        server_name: None,
        version: connection.protocol_version().map(|version| format!("{version:?}")).unwrap_or_default(),
        alpn: connection.alpn_protocol().map(Vec::from),
    }
}
