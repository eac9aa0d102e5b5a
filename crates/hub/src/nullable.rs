//! Members of JSON objects that are `null`, as Go writes an empty list: they have their default, as Go reads them.

use std::collections::HashMap;

use serde::{Deserialize, Deserializer};

/// For `#[serde(deserialize_with = "or_default")]`.
pub(crate) fn or_default<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::deserialize(from).map(Option::unwrap_or_default)
}

/// The same for a map, and for each of its values.
pub(crate) fn map_or_default<'de, T, D>(from: D) -> Result<HashMap<String, T>, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    let values: HashMap<String, Option<T>> = or_default(from)?;
    Ok(values.into_iter().map(|(name, value)| (name, value.unwrap_or_default())).collect())
}
