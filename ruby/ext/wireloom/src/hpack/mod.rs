//! `Wireloom::HPACK`: header compression alone.

use magnus::{Error, RModule, Ruby};

pub(crate) fn init(_ruby: &Ruby, _wireloom: RModule) -> Result<(), Error> {
    Ok(())
}
