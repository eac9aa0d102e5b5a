//! What the drop-in replacement of the gem `websocket-driver` does natively: frames in and out, and handing messages to their
//! listeners. Everything that applications see of the driver, and the handshake, is Ruby (`lib/wireloom/drop_in`).

mod codec;
mod delivery;
mod frames;

use magnus::{Error, RModule, Ruby};

pub(crate) fn init(ruby: &Ruby, wireloom: RModule) -> Result<(), Error> {
    codec::init(ruby, wireloom)
}
