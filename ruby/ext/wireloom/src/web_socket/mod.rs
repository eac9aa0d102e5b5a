//! `Wireloom::WebSocket`: the WebSocket core behind Ruby classes, for programs that own their sockets.
//!
//! `Client` and `Server` are Ruby classes over [`connection::Connection`], which is this end of one WebSocket from its
//! handshake on: bytes in, events out, bytes out.

mod connection;
mod event;
mod options;

use magnus::prelude::*;
use magnus::{Error, RModule, Ruby};

pub(crate) fn init(ruby: &Ruby, wireloom: RModule) -> Result<(), Error> {
    connection::init(ruby, wireloom)
}

/// Called when the Ruby part of the module is loaded.
pub(crate) fn complete(ruby: &Ruby, wireloom: RModule) -> Result<(), Error> {
    let module = wireloom.const_get("WebSocket")?;
    connection::complete(ruby, module)?;
    event::complete(ruby, module)
}
