//! The endpoint that decides about an operation, as a namespace chooses it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The endpoint of an operation: in the file `false`, `true`, or the name of an `[[endpoint]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProxyChoice {
    /// None.
    #[default]
    Off,
    /// The one that the configuration has for the operation, such as `[proxy.subscribe]`.
    On,
    /// The `[[endpoint]]` with this name.
    Named(String),
}

impl Serialize for ProxyChoice {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => to.serialize_bool(false),
            Self::On => to.serialize_bool(true),
            Self::Named(name) => to.serialize_str(name),
        }
    }
}

impl<'de> Deserialize<'de> for ProxyChoice {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl serde::de::Visitor<'_> for Visitor {
            type Value = ProxyChoice;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or the name of an [[endpoint]]")
            }

            fn visit_bool<E>(self, is_on: bool) -> Result<ProxyChoice, E> {
                Ok(if is_on { ProxyChoice::On } else { ProxyChoice::Off })
            }

            fn visit_str<E>(self, name: &str) -> Result<ProxyChoice, E> {
                Ok(ProxyChoice::Named(name.to_owned()))
            }
        }

        from.deserialize_any(Visitor)
    }
}
