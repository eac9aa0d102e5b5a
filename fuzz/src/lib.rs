//! Other implementations that fuzz targets compare Wireloom with.

#[path = "../../crates/http2/tests/differential/comparison/mod.rs"]
pub mod differential;
pub mod hpack;
pub mod nghttp2;
