//! The signatures of JSON Web Tokens (RFC 7518 §3) by ring, which rustls uses already.

use std::sync::Once;

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind, Result, new_error};
use jsonwebtoken::jwk::{EllipticCurve, ThumbprintHash};
use jsonwebtoken::signature::{self, Signer, Verifier};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED,
    ECDSA_P384_SHA384_FIXED_SIGNING, ED25519, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair,
    KeyPair as _, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512,
    RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384,
    RSA_PSS_2048_8192_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
    RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use ring::{digest, hmac};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: signer,
    verifier_factory: verifier,
    key_utils: KeyUtils {
        rsa_pub_components_from_private_key: rsa_components,
        // ring parses public keys only to verify with them.
        rsa_pub_components_from_public_key: |_| Err(new_error(ErrorKind::UnsupportedAlgorithm)),
        ec_pub_components_from_private_key: ec_components,
        ed_pub_components_from_private_key: ed_component,
        compute_digest: thumbprint,
    },
};

/// Has `jsonwebtoken` use ring, unless the application has chosen another provider before. To be called before its first use.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = PROVIDER.install_default();
    });
}

struct Signing {
    algorithm: Algorithm,
    key: SigningKey,
}

enum SigningKey {
    Hmac(hmac::Key),
    Rsa(RsaKeyPair, &'static dyn RsaEncoding),
    Ecdsa(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

struct Verifying {
    algorithm: Algorithm,
    key: VerifyingKey,
}

enum VerifyingKey {
    Hmac(hmac::Key),
    Public(UnparsedPublicKey<Vec<u8>>),
    Rsa(RsaPublicKeyComponents<Vec<u8>>, &'static RsaParameters),
}

/// RFC 8725 §3.1: a key is used only with the algorithms of its own kind.
fn check(algorithm: Algorithm, key: AlgorithmFamily) -> Result<()> {
    if algorithm.family() == key { Ok(()) } else { Err(new_error(ErrorKind::InvalidKeyFormat)) }
}

fn signer(algorithm: &Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    check(*algorithm, key.family())?;
    let bytes = key.as_bytes();
    let rsa = |encoding: &'static dyn RsaEncoding| {
        RsaKeyPair::from_der(bytes)
            .map(|pair| SigningKey::Rsa(pair, encoding))
            .map_err(|error| new_error(ErrorKind::InvalidRsaKey(error.to_string())))
    };
    let key = match algorithm {
        Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 => {
            SigningKey::Hmac(hmac::Key::new(hmac_of(*algorithm), bytes))
        }
        Algorithm::ES256 => SigningKey::Ecdsa(ec_pair(&ECDSA_P256_SHA256_FIXED_SIGNING, bytes)?),
        Algorithm::ES384 => SigningKey::Ecdsa(ec_pair(&ECDSA_P384_SHA384_FIXED_SIGNING, bytes)?),
        Algorithm::RS256 => rsa(&RSA_PKCS1_SHA256)?,
        Algorithm::RS384 => rsa(&RSA_PKCS1_SHA384)?,
        Algorithm::RS512 => rsa(&RSA_PKCS1_SHA512)?,
        Algorithm::PS256 => rsa(&RSA_PSS_SHA256)?,
        Algorithm::PS384 => rsa(&RSA_PSS_SHA384)?,
        Algorithm::PS512 => rsa(&RSA_PSS_SHA512)?,
        Algorithm::EdDSA => SigningKey::Ed(ed_pair(bytes)?),
        _ => return Err(new_error(ErrorKind::UnsupportedAlgorithm)),
    };
    Ok(Box::new(Signing { algorithm: *algorithm, key }))
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    check(*algorithm, key.family())?;
    let public = |parameters: &'static dyn VerificationAlgorithm| {
        key.try_get_as_bytes()
            .map(|bytes| VerifyingKey::Public(UnparsedPublicKey::new(parameters, bytes.to_vec())))
    };
    // RFC 7518 §3.3, §3.5: RSA keys have 2,048 bits or more.
    let rsa = |parameters: &'static RsaParameters| match key.kind() {
        DecodingKeyKind::SecretOrDer(_) => public(parameters),
        DecodingKeyKind::RsaModulusExponent { n, e } => {
            Ok(VerifyingKey::Rsa(RsaPublicKeyComponents { n: n.clone(), e: e.clone() }, parameters))
        }
    };
    let key = match algorithm {
        Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 => {
            VerifyingKey::Hmac(hmac::Key::new(hmac_of(*algorithm), key.try_get_as_bytes()?))
        }
        Algorithm::ES256 => public(&ECDSA_P256_SHA256_FIXED)?,
        Algorithm::ES384 => public(&ECDSA_P384_SHA384_FIXED)?,
        Algorithm::RS256 => rsa(&RSA_PKCS1_2048_8192_SHA256)?,
        Algorithm::RS384 => rsa(&RSA_PKCS1_2048_8192_SHA384)?,
        Algorithm::RS512 => rsa(&RSA_PKCS1_2048_8192_SHA512)?,
        Algorithm::PS256 => rsa(&RSA_PSS_2048_8192_SHA256)?,
        Algorithm::PS384 => rsa(&RSA_PSS_2048_8192_SHA384)?,
        Algorithm::PS512 => rsa(&RSA_PSS_2048_8192_SHA512)?,
        Algorithm::EdDSA => public(&ED25519)?,
        _ => return Err(new_error(ErrorKind::UnsupportedAlgorithm)),
    };
    Ok(Box::new(Verifying { algorithm: *algorithm, key }))
}

/// The hash of an HMAC algorithm; of no other is it asked.
fn hmac_of(algorithm: Algorithm) -> hmac::Algorithm {
    match algorithm {
        Algorithm::HS384 => hmac::HMAC_SHA384,
        Algorithm::HS512 => hmac::HMAC_SHA512,
        _ => hmac::HMAC_SHA256,
    }
}

fn thumbprint(data: &[u8], hash: ThumbprintHash) -> Result<Vec<u8>> {
    let hash = match hash {
        ThumbprintHash::SHA256 => &digest::SHA256,
        ThumbprintHash::SHA384 => &digest::SHA384,
        ThumbprintHash::SHA512 => &digest::SHA512,
        _ => return Err(new_error(ErrorKind::UnsupportedAlgorithm)),
    };
    Ok(digest::digest(hash, data).as_ref().to_vec())
}

fn ec_pair(algorithm: &'static EcdsaSigningAlgorithm, pkcs8: &[u8]) -> Result<EcdsaKeyPair> {
    EcdsaKeyPair::from_pkcs8(algorithm, pkcs8, &SystemRandom::new())
        .map_err(|_| new_error(ErrorKind::InvalidEcdsaKey))
}

/// OpenSSL writes keys without their public half.
fn ed_pair(pkcs8: &[u8]) -> Result<Ed25519KeyPair> {
    Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8).map_err(|_| new_error(ErrorKind::InvalidEddsaKey))
}

fn rsa_components(der: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
    let pair =
        RsaKeyPair::from_der(der).map_err(|error| new_error(ErrorKind::InvalidRsaKey(error.to_string())))?;
    let public = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
    Ok((public.n, public.e))
}

fn ec_components(pkcs8: &[u8], algorithm: Algorithm) -> Result<(EllipticCurve, Vec<u8>, Vec<u8>)> {
    let (signing, curve) = match algorithm {
        Algorithm::ES256 => (&ECDSA_P256_SHA256_FIXED_SIGNING, EllipticCurve::P256),
        Algorithm::ES384 => (&ECDSA_P384_SHA384_FIXED_SIGNING, EllipticCurve::P384),
        _ => return Err(new_error(ErrorKind::InvalidEcdsaKey)),
    };
    let pair = ec_pair(signing, pkcs8)?;
    // SEC 1 §2.3.3: 4, x, y.
    let point = &pair.public_key().as_ref()[1..];
    let (x, y) = point.split_at(point.len() / 2);
    Ok((curve, x.to_vec(), y.to_vec()))
}

fn ed_component(pkcs8: &[u8], curve: &EllipticCurve) -> Result<Vec<u8>> {
    match curve {
        EllipticCurve::Ed25519 => Ok(ed_pair(pkcs8)?.public_key().as_ref().to_vec()),
        _ => Err(new_error(ErrorKind::InvalidAlgorithm)),
    }
}

fn unspecified(_: ring::error::Unspecified) -> signature::Error {
    signature::Error::from_source(Error::from(ErrorKind::InvalidSignature))
}

impl Signer<Vec<u8>> for Signing {
    fn try_sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, signature::Error> {
        Ok(match &self.key {
            SigningKey::Hmac(key) => hmac::sign(key, message).as_ref().to_vec(),
            SigningKey::Rsa(pair, encoding) => {
                let mut signed = vec![0; pair.public().modulus_len()];
                pair.sign(*encoding, &SystemRandom::new(), message, &mut signed).map_err(unspecified)?;
                signed
            }
            SigningKey::Ecdsa(pair) => {
                pair.sign(&SystemRandom::new(), message).map_err(unspecified)?.as_ref().to_vec()
            }
            SigningKey::Ed(pair) => pair.sign(message).as_ref().to_vec(),
        })
    }
}

impl JwtSigner for Signing {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for Verifying {
    fn verify(&self, message: &[u8], signed: &Vec<u8>) -> std::result::Result<(), signature::Error> {
        match &self.key {
            VerifyingKey::Hmac(key) => hmac::verify(key, message, signed),
            VerifyingKey::Public(key) => key.verify(message, signed),
            VerifyingKey::Rsa(key, parameters) => key.verify(parameters, message, signed),
        }
        .map_err(unspecified)
    }
}

impl JwtVerifier for Verifying {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
