//! Heads of requests and responses: conversion between HTTP/2 fields and [`Headers`].

use wireloom_http2::field::{Field, FieldList, Token};

use crate::headers::Headers;

/// The fields of a response or of trailers.
pub(super) fn to_headers(fields: FieldList) -> Headers {
    let (mut headers, fields) = Headers::take_apart(fields, 0);
    for field in fields.filter(|field| field.token != Token::Status) {
        headers.push_placed(field);
    }
    headers
}

/// Headers whose names are in lower case, as fields.
pub(crate) fn to_fields(headers: &Headers) -> impl Iterator<Item = Field<'_>> + Clone {
    headers
        .marked_fields()
        .map(|(name, value, is_sensitive)| Field::new(name, value).with_sensitive(is_sensitive))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use wireloom_ws::handshake::is_connection_specific;

    // The cores do not know each other. A proxy forwards a field over HTTP/2 exactly if it does over HTTP/1.1.
    #[test]
    fn both_cores_know_the_same_fields_of_a_connection() {
        let tokens: Vec<Token> = (0..=u8::MAX).map_while(Token::from_index).collect();
        assert_eq!(tokens.iter().filter(|token| token.is_connection_specific()).count(), 6);
        for token in tokens {
            let is_known = is_connection_specific(token.name().as_bytes());
            assert_eq!(is_known, token.is_connection_specific(), "{token:?}");
        }
    }

    #[test]
    fn a_field_that_is_forwarded_stays_sensitive() {
        // RFC 7541 §6.2.3: an intermediary MUST use the same representation.
        let received: FieldList = [
            Field::known(Token::Status, b"200"),
            Field::new(b"x-token", b"secret").with_sensitive(true),
            Field::new(b"x-other", b"1"),
        ]
        .into_iter()
        .collect();
        let headers = to_headers(received);
        let marks: Vec<bool> = to_fields(&headers).map(|field| field.is_sensitive()).collect();
        assert_eq!(marks, [true, false]);
        assert!(headers.is_sensitive("X-Token"));
    }
}
