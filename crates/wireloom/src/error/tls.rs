//! Texts of TLS errors, for the person who configures TLS.

use std::fmt;

use rustls::{AlertDescription, CertificateError, Error, InconsistentKeys};

/// Writes the meaning of `error`.
pub(super) fn reason(error: &Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let text = match error {
        Error::InvalidCertificate(error) => return certificate(error, f),
        Error::InvalidMessage(_) => "the peer does not speak TLS here",
        Error::NoCertificatesPresented => "the peer shows no certificate",
        Error::AlertReceived(alert) => match alert {
            AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity => {
                "the peer finds no cipher in common, or wants a certificate (handshake_failure)"
            }
            AlertDescription::ProtocolVersion => "the peer supports no TLS version that this end supports",
            AlertDescription::CertificateRequired => "the peer wants a client certificate",
            AlertDescription::UnknownCA => "the peer does not know who signed the certificate shown to it",
            AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnsupportedCertificate => {
                "the peer does not accept the certificate shown to it"
            }
            AlertDescription::CertificateExpired => "the certificate shown to the peer has expired",
            AlertDescription::CertificateRevoked => "the certificate shown to the peer has been revoked",
            AlertDescription::UnrecognisedName => "the peer does not know this host name",
            AlertDescription::NoApplicationProtocol => {
                "the peer supports none of the offered protocols (ALPN)"
            }
            AlertDescription::AccessDenied => "the peer denies access",
            alert => return write!(f, "the peer refused ({alert:?})"),
        },
        Error::PeerIncompatible(_) => "the peer has no version or cipher in common with this end",
        Error::NoApplicationProtocol => "there is no protocol in common (ALPN)",
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => "the key is not that of the certificate",
        Error::General(text) => text,
        other => return write!(f, "{other}"),
    };
    f.write_str(text)
}

fn certificate(error: &CertificateError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("the certificate is not accepted: ")?;
    let text = match error {
        CertificateError::UnknownIssuer => "its issuer is not trusted",
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "it has expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => "it is not valid yet",
        CertificateError::Revoked => "it has been revoked",
        CertificateError::NotValidForName => "it is for another name",
        CertificateError::NotValidForNameContext { expected, presented } => {
            // The list comes from the peer and may be long.
            let shown: Vec<&str> = presented.iter().take(5).map(|name| bare(name)).collect();
            let more = if presented.len() > shown.len() { ", …" } else { "" };
            let names = shown.join(", ");
            return write!(f, "it is for {names}{more}, not for {}", expected.to_str());
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "it is for another purpose"
        }
        CertificateError::BadSignature => "its signature is wrong",
        other => return write!(f, "{other}"),
    };
    f.write_str(text)
}

/// The name in rustls's debug output: `example.com` in `DnsName("example.com")`.
fn bare(name: &str) -> &str {
    let inside = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inside.map_or(name, |inside| inside.trim_matches('"'))
}
