//! Heads of requests and responses: conversion between HTTP/2 fields and [`Headers`].

use wireloom_http2::StreamKey;
use wireloom_http2::field::{Field, FieldList, Token};
use wireloom_http2::message::RequestKind;

use super::slots::StreamRef;
use crate::headers::{Headers, Place};

/// A request that has arrived at a server.
pub(crate) struct Incoming {
    pub(crate) key: StreamKey,
    pub(crate) kind: RequestKind,
    pub(crate) method: Place,
    pub(crate) path: Place,
    pub(crate) scheme: Place,
    pub(crate) protocol: Option<Place>,
    /// The fields, with `host` in place of `:authority`. The places above point into them.
    pub(crate) headers: Headers,
    /// Its content, if there is any: for [`Shared::recv_stream`](super::Shared::recv_stream).
    pub(crate) content: Option<StreamRef>,
}

impl Incoming {
    pub(super) fn new(
        key: StreamKey,
        kind: RequestKind,
        fields: &FieldList,
        content: Option<StreamRef>,
    ) -> Self {
        let mut headers = Headers::with_capacity(fields.len() + 1, fields.list_size() + 8);
        let (mut method, mut path, mut scheme) = Default::default();
        let (mut protocol, mut authority) = (None, None);
        let (mut cookies, mut has_host) = (0, false);
        for field in fields {
            let value = field.value();
            match field.token() {
                Token::Method => method = headers.put(value),
                Token::Path => path = headers.put(value),
                Token::Scheme => scheme = headers.put(value),
                Token::Protocol => protocol = Some(headers.put(value)),
                Token::Authority => authority = Some(value),
                Token::Cookie => cookies += 1,
                Token::Host => {
                    has_host = true;
                    headers.push_unchecked(b"host", value);
                }
                _ => headers.push_unchecked(field.name(), value),
            }
        }
        // RFC 9113 §8.3.1: `:authority` takes the place of Host.
        if let Some(authority) = authority.filter(|_| !has_host) {
            headers.push_unchecked(b"host", authority);
        }
        if cookies > 0
            && let Some(cookie) = wireloom_http2::message::cookie(fields, &mut Vec::new())
        {
            headers.push_unchecked(b"cookie", cookie);
        }
        if kind == RequestKind::Connect
            && let Some(authority) = authority
        {
            path = headers.put(authority);
        }
        Self { key, kind, method, path, scheme, protocol, headers, content }
    }
}

/// The fields without pseudo-fields.
pub(super) fn to_headers(fields: &FieldList) -> Headers {
    let mut headers = Headers::with_capacity(fields.len(), fields.list_size());
    for field in fields.iter().filter(|field| !field.is_pseudo()) {
        headers.push_unchecked(field.name(), field.value());
    }
    headers
}

/// Headers whose names are in lower case, as fields.
pub(crate) fn to_fields(headers: &Headers) -> impl Iterator<Item = Field<'_>> + Clone {
    headers.iter().map(|(name, value)| Field::new(name.as_bytes(), value))
}
