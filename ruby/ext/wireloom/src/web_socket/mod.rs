//! `Wireloom::WebSocket`: the WebSocket core behind Ruby classes, for programs that own their sockets.
//!
//! `Client` and `Server` are Ruby classes over [`connection::Connection`], which is this end of one WebSocket from its
//! handshake on: bytes in, events out, bytes out.

mod connection;
mod options;

use magnus::{Error, RModule, Ruby};

pub(crate) fn init(ruby: &Ruby, wireloom: RModule) -> Result<(), Error> {
    connection::init(ruby, wireloom)
}
