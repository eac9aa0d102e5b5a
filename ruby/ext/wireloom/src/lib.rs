//! The native part of the gem `wireloom`: the two cores behind Ruby classes. It owns how bytes and events cross into Ruby;
//! it refuses to own protocol rules (the cores') and what Ruby says as well (`lib/`'s).
//!
//! Rules of the crossing, all paid for: whatever is called from Ruby goes through [`panic::guard`]; `mark` marks
//! unconditionally; payloads are written once, into the String that Ruby keeps; the GVL stays held.

mod hpack;
mod http2;
mod panic;
mod protocol_websocket;
mod scratch;
mod strings;
mod web_socket;
mod websocket_driver;

use magnus::{Error, Ruby};

#[magnus::init(name = "wireloom")]
fn init(ruby: &Ruby) -> Result<(), Error> {
    // SAFETY: called while the extension is loaded, as Ruby asks for; no class keeps state outside its objects.
    unsafe { rb_sys::rb_ext_ractor_safe(true) };
    let wireloom = ruby.define_module("Wireloom")?;
    panic::init(ruby, wireloom)?;
    web_socket::init(ruby, wireloom)?;
    http2::init(ruby, wireloom)?;
    hpack::init(ruby, wireloom)?;
    protocol_websocket::init(ruby, wireloom)?;
    websocket_driver::init(ruby, wireloom)
}
