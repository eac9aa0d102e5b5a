//! A user and a password, in a URL (RFC 3986 §3.2.1) and in a header (RFC 7617). They are never logged.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A user and a password, as bytes.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(super) user: Vec<u8>,
    pub(super) password: Vec<u8>,
}

impl Credentials {
    /// The user information before the `@` of an authority.
    pub(super) fn from_userinfo(userinfo: &str) -> Option<Self> {
        let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
        Some(Self { user: percent_decode(user)?, password: percent_decode(password)? })
    }

    /// The value of `Authorization` or `Proxy-Authorization`. RFC 7617 §2: no colon in the user, no control characters.
    pub(super) fn basic(&self) -> Option<String> {
        let joined = [&*self.user, b":", &*self.password].concat();
        let sendable = !self.user.contains(&b':') && !joined.iter().any(u8::is_ascii_control);
        sendable.then(|| format!("Basic {}", STANDARD.encode(joined)))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// Splits `user:password@host` into both sides of the last `@`.
pub(super) fn split_userinfo(authority: &str) -> (Option<&str>, &str) {
    match authority.rsplit_once('@') {
        Some((userinfo, host)) => (Some(userinfo), host),
        None => (None, authority),
    }
}

/// RFC 3986 §2.1; `None` when a `%` begins no byte.
fn percent_decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            byte => byte,
        });
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_user_information_and_writes_a_header() {
        // RFC 7617 §2.
        let basic = |userinfo: &str| Credentials::from_userinfo(userinfo).and_then(|both| both.basic());
        assert_eq!(basic("Aladdin:open%20sesame").as_deref(), Some("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="));
        assert_eq!(basic("a").as_deref(), Some("Basic YTo="));
        assert_eq!(basic("a:b:c").as_deref(), Some("Basic YTpiOmM="));
        for bad in ["a%3Ab:c", "a:%0d%0aX", "a:%", "a:%4", "a:%zz"] {
            assert_eq!(basic(bad), None, "{bad}");
        }
        assert_eq!(split_userinfo("a:b@c@host:1"), (Some("a:b@c"), "host:1"));
        assert_eq!(split_userinfo("host"), (None, "host"));
    }

    #[test]
    fn keeps_secrets_out_of_logs() {
        let secret = Credentials::from_userinfo("anna:hunter2").unwrap();
        assert_eq!(format!("{secret:?}"), "Credentials(..)");
    }
}
