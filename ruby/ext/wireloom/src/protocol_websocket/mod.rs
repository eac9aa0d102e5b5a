//! What the drop-in replacement of the gem `protocol-websocket` does natively.

use magnus::{Error, RModule, Ruby};

pub(crate) fn init(_ruby: &Ruby, _wireloom: RModule) -> Result<(), Error> {
    Ok(())
}
