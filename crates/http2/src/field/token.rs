//! [`Token`]: the names of the static table (RFC 7541 Appendix A), and those for which HTTP/2 has rules.
//!
//! A name is found by a perfect hash of its length and its first, middle and last byte, and then compared. Collisions are
//! compile errors.

macro_rules! tokens {
    ($($variant:ident = $name:literal,)*) => {
        /// A known field name, or [`Token::Unknown`].
        ///
        /// Names of the static table come first, in its order.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Token {
            /// Any other name.
            #[default]
            Unknown,
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl Token {
    /// Whether the field belongs to one connection of HTTP/1.1, so that no message of HTTP/2 may have it (RFC 9113 §8.2.2). `te` is such
    /// a field too, except in a request with the value `trailers`.
    #[inline]
    pub const fn is_connection_specific(self) -> bool {
        matches!(
            self,
            Self::Connection
                | Self::KeepAlive
                | Self::ProxyConnection
                | Self::TransferEncoding
                | Self::Upgrade
                | Self::Te
        )
    }

            /// Every token, `Unknown` first.
            pub(crate) const ALL: &[Token] = &[Token::Unknown, $(Token::$variant,)*];
        }

        const NAMES: &[&str] = &["", $($name,)*];
    };
}

tokens! {
    Authority = ":authority",
    Method = ":method",
    Path = ":path",
    Scheme = ":scheme",
    Status = ":status",
    AcceptCharset = "accept-charset",
    AcceptEncoding = "accept-encoding",
    AcceptLanguage = "accept-language",
    AcceptRanges = "accept-ranges",
    Accept = "accept",
    AccessControlAllowOrigin = "access-control-allow-origin",
    Age = "age",
    Allow = "allow",
    Authorization = "authorization",
    CacheControl = "cache-control",
    ContentDisposition = "content-disposition",
    ContentEncoding = "content-encoding",
    ContentLanguage = "content-language",
    ContentLength = "content-length",
    ContentLocation = "content-location",
    ContentRange = "content-range",
    ContentType = "content-type",
    Cookie = "cookie",
    Date = "date",
    Etag = "etag",
    Expect = "expect",
    Expires = "expires",
    From = "from",
    Host = "host",
    IfMatch = "if-match",
    IfModifiedSince = "if-modified-since",
    IfNoneMatch = "if-none-match",
    IfRange = "if-range",
    IfUnmodifiedSince = "if-unmodified-since",
    LastModified = "last-modified",
    Link = "link",
    Location = "location",
    MaxForwards = "max-forwards",
    ProxyAuthenticate = "proxy-authenticate",
    ProxyAuthorization = "proxy-authorization",
    Range = "range",
    Referer = "referer",
    Refresh = "refresh",
    RetryAfter = "retry-after",
    Server = "server",
    SetCookie = "set-cookie",
    StrictTransportSecurity = "strict-transport-security",
    TransferEncoding = "transfer-encoding",
    UserAgent = "user-agent",
    Vary = "vary",
    Via = "via",
    WwwAuthenticate = "www-authenticate",
    Protocol = ":protocol",
    Connection = "connection",
    KeepAlive = "keep-alive",
    ProxyConnection = "proxy-connection",
    Te = "te",
    Trailer = "trailer",
    Upgrade = "upgrade",
    Priority = "priority",
    Origin = "origin",
    SecWebsocketVersion = "sec-websocket-version",
    SecWebsocketProtocol = "sec-websocket-protocol",
    SecWebsocketExtensions = "sec-websocket-extensions",
}

/// The hash of no two names is the same with this multiplier. If a new name collides, `SLOTS` does not compile: try others.
const MULTIPLIER: u32 = 0x1778_8b95;

const fn slot(name: &[u8]) -> usize {
    let len = name.len();
    let key = (len as u8 as u32)
        | (name[0] as u32) << 8
        | (name[len / 2] as u32) << 16
        | (name[len - 1] as u32) << 24;
    (key.wrapping_mul(MULTIPLIER) >> 24) as usize
}

static SLOTS: [Token; 256] = {
    let mut slots = [Token::Unknown; 256];
    let mut i = 1;
    while i < NAMES.len() {
        let slot = slot(NAMES[i].as_bytes());
        assert!(slots[slot] as u8 == 0, "two names collide: choose another multiplier");
        slots[slot] = Token::ALL[i];
        i += 1;
    }
    slots
};

impl Token {
    /// The token of a name; [`Token::Unknown`] if there is none or the name is not in lower case.
    #[inline]
    pub fn of(name: &[u8]) -> Self {
        if name.is_empty() {
            return Self::Unknown;
        }
        let token = SLOTS[slot(name)];
        if token.name().as_bytes() == name { token } else { Self::Unknown }
    }

    /// The token at an index of the enumeration; [`Token::Unknown`] is at 0.
    #[inline]
    pub fn from_index(index: u8) -> Option<Self> {
        Self::ALL.get(usize::from(index)).copied()
    }

    /// The name, in lower case; empty for [`Token::Unknown`].
    #[inline]
    pub const fn name(self) -> &'static str {
        NAMES[self as usize]
    }

    /// Whether this is a known pseudo-field (RFC 9113 §8.3, RFC 8441 §4).
    #[inline]
    pub const fn is_pseudo(self) -> bool {
        matches!(
            self,
            Self::Authority | Self::Method | Self::Path | Self::Scheme | Self::Status | Self::Protocol
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn finds_every_name_and_nothing_else() {
        for &token in &Token::ALL[1..] {
            let name = token.name().as_bytes();
            assert_eq!(Token::of(name), token);
            assert_eq!(token.is_pseudo(), name[0] == b':');
            for at in 0..name.len() {
                let mut other = name.to_vec();
                other[at] ^= 0x20;
                assert_eq!(Token::of(&other), Token::Unknown, "{}", other.escape_ascii());
            }
            let longer: Vec<u8> = name.iter().copied().chain(*b"x").collect();
            assert_eq!(Token::of(&longer), Token::Unknown);
        }
        for (index, &token) in Token::ALL.iter().enumerate() {
            assert_eq!(Token::from_index(index as u8), Some(token));
        }
        assert_eq!(Token::from_index(Token::ALL.len() as u8), None);
        assert_eq!(Token::of(b""), Token::Unknown);
        assert_eq!(Token::Unknown.name(), "");
        assert_eq!(Token::of(&[b'a'; 300]), Token::Unknown);
    }
}
