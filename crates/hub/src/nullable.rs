//! Members of JSON objects that are `null`, as Go writes an empty list: they have their default, as Go reads them.

use serde::{Deserialize, Deserializer};

/// For `#[serde(deserialize_with = "or_default")]`.
pub(crate) fn or_default<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::deserialize(from).map(Option::unwrap_or_default)
}
