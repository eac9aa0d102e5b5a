//! How clients reach a hub.
//!
//! Layers: `clean_up` → `event_stream`, `websocket`.

mod clean_up;
mod event_stream;
mod websocket;

pub(crate) use event_stream::event_stream;
pub(crate) use websocket::{bare, protocol};
