//! The static table (RFC 7541 Appendix A).

use crate::field::{Field, Token};

/// An entry; the token identifies its name.
pub(crate) struct StaticEntry {
    pub(crate) token: Token,
    pub(crate) value: &'static [u8],
}

const fn entry(token: Token, value: &'static str) -> StaticEntry {
    StaticEntry { token, value: value.as_bytes() }
}

/// The number of entries, which is also the index of the last one.
pub const LEN: usize = 61;

/// The table. The entry that the RFC numbers 1 is at 0.
pub(crate) static STATIC_TABLE: [StaticEntry; LEN] = [
    entry(Token::Authority, ""),
    entry(Token::Method, "GET"),
    entry(Token::Method, "POST"),
    entry(Token::Path, "/"),
    entry(Token::Path, "/index.html"),
    entry(Token::Scheme, "http"),
    entry(Token::Scheme, "https"),
    entry(Token::Status, "200"),
    entry(Token::Status, "204"),
    entry(Token::Status, "206"),
    entry(Token::Status, "304"),
    entry(Token::Status, "400"),
    entry(Token::Status, "404"),
    entry(Token::Status, "500"),
    entry(Token::AcceptCharset, ""),
    entry(Token::AcceptEncoding, "gzip, deflate"),
    entry(Token::AcceptLanguage, ""),
    entry(Token::AcceptRanges, ""),
    entry(Token::Accept, ""),
    entry(Token::AccessControlAllowOrigin, ""),
    entry(Token::Age, ""),
    entry(Token::Allow, ""),
    entry(Token::Authorization, ""),
    entry(Token::CacheControl, ""),
    entry(Token::ContentDisposition, ""),
    entry(Token::ContentEncoding, ""),
    entry(Token::ContentLanguage, ""),
    entry(Token::ContentLength, ""),
    entry(Token::ContentLocation, ""),
    entry(Token::ContentRange, ""),
    entry(Token::ContentType, ""),
    entry(Token::Cookie, ""),
    entry(Token::Date, ""),
    entry(Token::Etag, ""),
    entry(Token::Expect, ""),
    entry(Token::Expires, ""),
    entry(Token::From, ""),
    entry(Token::Host, ""),
    entry(Token::IfMatch, ""),
    entry(Token::IfModifiedSince, ""),
    entry(Token::IfNoneMatch, ""),
    entry(Token::IfRange, ""),
    entry(Token::IfUnmodifiedSince, ""),
    entry(Token::LastModified, ""),
    entry(Token::Link, ""),
    entry(Token::Location, ""),
    entry(Token::MaxForwards, ""),
    entry(Token::ProxyAuthenticate, ""),
    entry(Token::ProxyAuthorization, ""),
    entry(Token::Range, ""),
    entry(Token::Referer, ""),
    entry(Token::Refresh, ""),
    entry(Token::RetryAfter, ""),
    entry(Token::Server, ""),
    entry(Token::SetCookie, ""),
    entry(Token::StrictTransportSecurity, ""),
    entry(Token::TransferEncoding, ""),
    entry(Token::UserAgent, ""),
    entry(Token::Vary, ""),
    entry(Token::Via, ""),
    entry(Token::WwwAuthenticate, ""),
];

/// The field at an index (from 1).
#[inline]
pub fn get(index: usize) -> Option<Field<'static>> {
    STATIC_TABLE.get(index.checked_sub(1)?).map(|entry| Field::known(entry.token, entry.value))
}

/// The first index (from 1) of each name, by token; 0 for names that are not in the table.
static NAME_INDEX: [u8; Token::ALL.len()] = {
    let mut index = [0; Token::ALL.len()];
    let mut i = LEN;
    while i > 0 {
        index[STATIC_TABLE[i - 1].token as usize] = i as u8;
        i -= 1;
    }
    index
};

/// The first index (from 1) of a name; 0 if it is not in the table.
#[inline]
pub fn name_index(token: Token) -> u32 {
    u32::from(NAME_INDEX[token as usize])
}

/// The index (from 1) of the entry with this name and value.
#[inline]
pub fn find(token: Token, value: &[u8]) -> Option<u32> {
    let index = match token {
        Token::Method => match value {
            b"GET" => 2,
            b"POST" => 3,
            _ => return None,
        },
        Token::Path => match value {
            b"/" => 4,
            b"/index.html" => 5,
            _ => return None,
        },
        Token::Scheme => match value {
            b"https" => 7,
            b"http" => 6,
            _ => return None,
        },
        Token::Status => match value {
            b"200" => 8,
            b"204" => 9,
            b"206" => 10,
            b"304" => 11,
            b"400" => 12,
            b"404" => 13,
            b"500" => 14,
            _ => return None,
        },
        Token::AcceptEncoding if value == b"gzip, deflate" => 16,
        _ => {
            // The remaining entries hold an empty value: found so, they are whole.
            return match name_index(token) {
                index @ (1 | 15..) if value.is_empty() && token != Token::AcceptEncoding => Some(index),
                _ => None,
            };
        }
    };
    Some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_where_the_appendix_has_them() {
        // RFC 7541 Appendix A, a sample of each stretch.
        for (index, name, value) in [
            (1, ":authority", ""),
            (3, ":method", "POST"),
            (8, ":status", "200"),
            (16, "accept-encoding", "gzip, deflate"),
            (20, "access-control-allow-origin", ""),
            (32, "cookie", ""),
            (46, "location", ""),
            (61, "www-authenticate", ""),
        ] {
            let entry = &STATIC_TABLE[index - 1];
            assert_eq!((entry.token.name(), entry.value), (name, value.as_bytes()));
        }
    }

    #[test]
    fn finds_every_entry_and_the_first_of_each_name() {
        for (at, entry) in STATIC_TABLE.iter().enumerate() {
            assert_eq!(find(entry.token, entry.value), Some(at as u32 + 1));
            assert_eq!(find(entry.token, b"other"), None);
            let first = STATIC_TABLE.iter().position(|other| other.token == entry.token);
            assert_eq!(first.map(|at| at as u32 + 1), Some(name_index(entry.token)));
        }
        assert_eq!(find(Token::Unknown, b""), None);
        assert_eq!(find(Token::Method, b""), None);
        assert_eq!(find(Token::AcceptEncoding, b""), None);
        assert_eq!(name_index(Token::Protocol), 0);
    }
}
