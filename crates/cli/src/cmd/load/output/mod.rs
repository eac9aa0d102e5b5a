//! The formats of a report.
//!
//! Layers: `json`, `plot`, `prometheus`, `table` → `html`.

pub(super) mod html;
pub(super) mod json;
mod plot;
pub(super) mod prometheus;
pub(super) mod table;
