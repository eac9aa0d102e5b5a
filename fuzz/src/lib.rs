//! Other implementations that fuzz targets compare Wireloom with, and what targets share.

#[cfg(feature = "capi")]
pub mod capi;
#[cfg(feature = "peers")]
#[path = "../../crates/http2/tests/differential/comparison/mod.rs"]
pub mod differential;
#[cfg(feature = "peers")]
pub mod hpack;
#[cfg(feature = "peers")]
pub mod nghttp2;
