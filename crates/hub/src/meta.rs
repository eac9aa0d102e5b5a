//! A JSON value that the application's backend attaches to a connection for its own use. It is never sent to clients.

use std::sync::Arc;

use serde_json::value::RawValue;

/// The maximum length, in bytes. It is kept for as long as the connection, and sent with each call of an endpoint that wants it.
const LEN_MAX: usize = 16 << 10;

/// A JSON value that is attached to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meta(Arc<str>);

impl Meta {
    /// The meta in an answer or a token, if it has one.
    ///
    /// # Errors
    /// It is too long.
    pub(crate) fn new(json: Option<&RawValue>) -> Result<Option<Self>, &'static str> {
        match json.map(RawValue::get) {
            Some(json) if json.len() > LEN_MAX => Err("meta is longer than 16 KiB"),
            json => Ok(json.map(|json| Self(json.into()))),
        }
    }

    pub(crate) fn json(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_length_is_bounded() {
        for (len, is_kept) in [(LEN_MAX - 1, true), (LEN_MAX, true), (LEN_MAX + 1, false)] {
            let json = RawValue::from_string(format!("\"{}\"", "x".repeat(len - 2))).unwrap();
            assert_eq!(Meta::new(Some(&json)).is_ok_and(|meta| meta.unwrap().json() == json.get()), is_kept);
        }
        assert_eq!(Meta::new(None), Ok(None));
    }
}
