//! Tables with names: `[[namespace]]` and `[[endpoint]]`.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, IntoDeserializer as _, MapAccess, SeqAccess};
use serde::{Deserialize, Deserializer};

use super::{ChannelOptions, ProxyConfig};

/// The settings of a table beside its name.
pub(super) trait Settings: DeserializeOwned {
    /// The name of the tables.
    const TABLE: &str;
}

impl Settings for ChannelOptions {
    const TABLE: &str = "namespace";
}

impl Settings for ProxyConfig {
    const TABLE: &str = "endpoint";
}

/// A table. Read in one pass, so that errors keep the line of the value.
struct Named<T> {
    name: String,
    settings: T,
}

/// Whether a namespace or an endpoint can have this name.
pub(super) fn is_name(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.chars().all(is_part)
}

impl<'de, T: Settings> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor<T>(PhantomData<T>);

        impl<'de, T: Settings> serde::de::Visitor<'de> for Visitor<T> {
            type Value = Named<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Named<T>, A::Error> {
                let mut name = None;
                let settings =
                    T::deserialize(MapAccessDeserializer::new(WithoutName { map, name: &mut name }))?;
                let table = T::TABLE;
                let name = name.ok_or_else(|| A::Error::custom(format!("[[{table}]] needs a name")))?;
                if !is_name(&name) {
                    return Err(A::Error::custom(format!("{name:?} cannot be the name of [[{table}]]")));
                }
                Ok(Named { name, settings })
            }
        }

        from.deserialize_map(Visitor(PhantomData))
    }
}

/// The entries of a table but its name.
struct WithoutName<'a, A> {
    map: A,
    name: &'a mut Option<String>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for WithoutName<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(key) = self.map.next_key::<String>()? {
            if key != "name" {
                return seed.deserialize(key.into_deserializer()).map(Some);
            }
            *self.name = Some(self.map.next_value()?);
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

/// The settings of tables, by name.
pub(super) fn tables<'de, D: Deserializer<'de>, T: Settings>(
    from: D,
) -> Result<HashMap<String, T>, D::Error> {
    struct Visitor<T>(PhantomData<T>);

    impl<'de, T: Settings> serde::de::Visitor<'de> for Visitor<T> {
        type Value = HashMap<String, T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "tables [[{}]], with two brackets", T::TABLE)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut tables: A) -> Result<Self::Value, A::Error> {
            let mut all = HashMap::new();
            while let Some(Named { name, settings }) = tables.next_element()? {
                if all.insert(name.clone(), settings).is_some() {
                    return Err(A::Error::custom(format!("{} {name} is defined twice", T::TABLE)));
                }
            }
            Ok(all)
        }
    }

    from.deserialize_seq(Visitor(PhantomData))
}
