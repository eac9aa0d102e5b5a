//! The formats of a report.
//!
//! Layers: `csv`, `json`, `plot`, `prometheus`, `table` → `html`.

pub(super) mod csv;
pub(super) mod html;
pub(super) mod json;
mod plot;
pub(super) mod prometheus;
pub(super) mod table;
