//! `Wireloom::WebSocket`: the WebSocket core behind Ruby classes.

use magnus::{Error, RModule, Ruby};

pub(crate) fn init(_ruby: &Ruby, _wireloom: RModule) -> Result<(), Error> {
    Ok(())
}
