//! How clients reach a hub.
//!
//! Layers: `clean_up`, `progress` → `work` → `stream`, `websocket`.

mod clean_up;
mod progress;
mod stream;
mod websocket;
mod work;

pub(crate) use stream::{First, stream};
pub(crate) use websocket::{bare, protocol};
