//! The native part of the drop-in replacement of the gem `websocket-driver`: frames in and out, and delivery of messages to
//! listeners. The classes that applications see, and the handshake, are in Ruby (`lib/wireloom/drop_in`).

mod codec;
mod delivery;
mod frames;
mod outgoing;
mod payload;

use magnus::{Error, RModule, Ruby};

pub(crate) fn init(ruby: &Ruby, wireloom: RModule) -> Result<(), Error> {
    delivery::load(ruby);
    codec::init(ruby, wireloom)
}
