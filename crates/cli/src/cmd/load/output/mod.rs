//! The formats of a report.

pub(super) mod html;
pub(super) mod json;
mod plot;
pub(super) mod prometheus;
pub(super) mod table;
