//! `Wireloom::HTTP2`: the HTTP/2 core behind Ruby classes.

use magnus::{Error, RModule, Ruby};

pub(crate) fn init(_ruby: &Ruby, _wireloom: RModule) -> Result<(), Error> {
    Ok(())
}
