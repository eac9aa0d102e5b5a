//! Declares messages as the published Protobuf schema writes them.

/// Declares messages: a struct each, with both encodings.
///
/// ```text
/// messages! {
///     /// The documentation of the struct.
///     message Example {
///         /// Scalars are left out of JSON when they are empty: string, bool, int32, int64, uint32, uint64.
///         string channel = 1;
///         /// A number that JSON always has.
///         always uint32 num_clients = 7;
///         /// Any JSON value. Bytes that are not JSON are a string in base64.
///         bytes data = 2;
///         /// Another message, or `None`. `as` gives the name in JSON where that is no name in Rust.
///         Publication publication = 3 as "pub";
///         repeated Publication publications = 4;
///         map<string, ClientInfo> presence = 5;
///         map<string, string> tags = 6;
///     }
/// }
/// ```
macro_rules! messages {
    // Each step moves one field, translated to Rust, into the second list.
    (@fields $head:tt [$($done:tt)*] $(#[$doc:meta])* bytes $name:ident = $tag:tt; $($rest:tt)*) => {
        messages! { @fields $head [$($done)*
            $(#[$doc])*
            #[prost(bytes = "bytes", tag = $tag)]
            #[serde(skip_serializing_if = "bytes::Bytes::is_empty", with = "super::codec::raw")]
            pub $name: bytes::Bytes,
        ] $($rest)* }
    };
    (@fields $head:tt $done:tt $(#[$doc:meta])* string $name:ident = $tag:tt; $($rest:tt)*) => {
        messages! { @scalar $head $done $(#[$doc])* [string, tag = $tag] $name: String; $($rest)* }
    };
    (@fields $head:tt $done:tt $(#[$doc:meta])* bool $name:ident = $tag:tt; $($rest:tt)*) => {
        messages! { @scalar $head $done $(#[$doc])* [bool, tag = $tag] $name: bool; $($rest)* }
    };
    (@fields $head:tt $done:tt $(#[$doc:meta])* int32 $name:ident = $tag:tt; $($rest:tt)*) => {
        messages! { @scalar $head $done $(#[$doc])* [int32, tag = $tag] $name: i32; $($rest)* }
    };
    (@fields $head:tt $done:tt $(#[$doc:meta])* int64 $name:ident = $tag:tt; $($rest:tt)*) => {
        messages! { @scalar $head $done $(#[$doc])* [int64, tag = $tag] $name: i64; $($rest)* }
    };
    (@fields $head:tt $done:tt $(#[$doc:meta])* uint32 $name:ident = $tag:tt; $($rest:tt)*) => {
        messages! { @scalar $head $done $(#[$doc])* [uint32, tag = $tag] $name: u32; $($rest)* }
    };
    (@fields $head:tt [$($done:tt)*] $(#[$doc:meta])* always uint32 $name:ident = $tag:tt; $($rest:tt)*) => {
        messages! { @fields $head [$($done)*
            $(#[$doc])*
            #[prost(uint32, tag = $tag)]
            pub $name: u32,
        ] $($rest)* }
    };
    (@fields $head:tt $done:tt $(#[$doc:meta])* uint64 $name:ident = $tag:tt; $($rest:tt)*) => {
        messages! { @scalar $head $done $(#[$doc])* [uint64, tag = $tag] $name: u64; $($rest)* }
    };
    (@fields $head:tt $done:tt $(#[$doc:meta])* map<string, string> $name:ident = $tag:tt; $($rest:tt)*) => {
        messages! { @collection $head $done $(#[$doc])* [map = "string, string", tag = $tag]
            "super::codec::map" $name: std::collections::HashMap<String, String>; $($rest)* }
    };
    (@fields $head:tt $done:tt $(#[$doc:meta])* map<string, $type:ident> $name:ident = $tag:tt; $($rest:tt)*) => {
        messages! { @collection $head $done $(#[$doc])* [map = "string, message", tag = $tag]
            "super::codec::map" $name: std::collections::HashMap<String, $type>; $($rest)* }
    };
    (@fields $head:tt $done:tt $(#[$doc:meta])* repeated string $name:ident = $tag:tt; $($rest:tt)*) => {
        messages! { @collection $head $done $(#[$doc])* [string, repeated, tag = $tag]
            "super::codec::list" $name: Vec<String>; $($rest)* }
    };
    (@fields $head:tt $done:tt $(#[$doc:meta])* repeated $type:ident $name:ident = $tag:tt; $($rest:tt)*) => {
        messages! { @collection $head $done $(#[$doc])* [message, repeated, tag = $tag]
            "super::codec::list" $name: Vec<$type>; $($rest)* }
    };
    (@fields $head:tt [$($done:tt)*] $(#[$doc:meta])* $type:ident $name:ident = $tag:tt $(as $json:tt)?; $($rest:tt)*) => {
        messages! { @fields $head [$($done)*
            $(#[$doc])*
            #[prost(message, optional, tag = $tag)]
            #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "super::codec::object" $(, rename = $json)?)]
            pub $name: Option<$type>,
        ] $($rest)* }
    };
    (@collection $head:tt [$($done:tt)*] $(#[$doc:meta])* [$($prost:tt)*] $with:literal $name:ident: $type:ty; $($rest:tt)*) => {
        messages! { @fields $head [$($done)*
            $(#[$doc])*
            #[prost($($prost)*)]
            #[serde(skip_serializing_if = "super::codec::is_default", deserialize_with = $with)]
            pub $name: $type,
        ] $($rest)* }
    };
    (@scalar $head:tt [$($done:tt)*] $(#[$doc:meta])* [$($prost:tt)*] $name:ident: $type:ty; $($rest:tt)*) => {
        messages! { @fields $head [$($done)*
            $(#[$doc])*
            #[prost($($prost)*)]
            #[serde(skip_serializing_if = "super::codec::is_default")]
            pub $name: $type,
        ] $($rest)* }
    };
    (@fields [$(#[$doc:meta])* $name:ident] [$($fields:tt)*]) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, prost::Message, serde::Serialize, serde::Deserialize)]
        #[serde(default)]
        pub struct $name { $($fields)* }
    };
    ($($(#[$doc:meta])* message $name:ident { $($fields:tt)* })*) => {
        $(messages! { @fields [$(#[$doc])* $name] [] $($fields)* })*
    };
}

pub(super) use messages;
