//! How clients reach a hub.

mod event_stream;
mod leaving;
mod websocket;

pub(crate) use event_stream::event_stream;
pub(crate) use websocket::{bare, protocol};
