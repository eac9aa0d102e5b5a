//! `Wireloom::HTTP2`: the HTTP/2 core behind Ruby classes, and the drop-in for the gem `http-2`.

mod drop_in;
mod endpoint;
mod events;

pub(crate) use drop_in::class_of;

use magnus::prelude::*;
use magnus::{Error, RModule, Ruby};

pub(crate) fn init(ruby: &Ruby, wireloom: RModule) -> Result<(), Error> {
    endpoint::init(ruby, wireloom)?;
    drop_in::init(ruby, wireloom)
}

/// Called when the Ruby part of the module is loaded.
pub(crate) fn complete(ruby: &Ruby, wireloom: RModule) -> Result<(), Error> {
    events::complete(ruby, wireloom.const_get("HTTP2")?)
}
