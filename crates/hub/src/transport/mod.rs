//! How clients reach a hub.

mod websocket;

pub(crate) use websocket::{bare, protocol};
