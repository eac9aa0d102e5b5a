//! Heads of requests and responses: conversion between HTTP/2 fields and [`Headers`].

use wireloom_http2::field::{Field, FieldList};

use crate::headers::Headers;

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
