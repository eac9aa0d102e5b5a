//! The native part of the gem `wireloom`: the two cores behind Ruby classes. It owns how bytes and events cross into Ruby;
//! protocol rules are the cores', and code that Ruby expresses well is in `lib/`.
//!
//! Rules, each kept by a type or by `test/soundness_test.rb`:
//!
//! * exported methods are defined by [`guard::method!`] and [`guard::function!`], so that no panic reaches Ruby;
//! * objects in Rust memory are [`held::Held`], in a struct that [`held::managed!`] or [`held::traced!`] traces, or
//!   [`held::Immortal`];
//! * mutable state is [`exclusive::Exclusive`]: no Ruby code runs while it is borrowed, and no exception skips a borrow;
//! * statics are set while the library loads, by one thread;
//! * payloads are written once, into the String that the application gets.

mod clock;
mod deflate;
mod exclusive;
mod guard;
mod held;
mod hpack;
mod http2;
mod keys;
mod memory;
mod protocol_http2;
mod protocol_websocket;
mod scratch;
mod strings;
mod web_socket;
mod websocket_driver;

use magnus::{Error, RModule, Ruby, prelude::*};

use guard::function;

#[magnus::init(name = "wireloom")]
fn init(ruby: &Ruby) -> Result<(), Error> {
    // SAFETY: called while the extension is loaded. State is in objects, and statics are set before a Ractor can use them.
    unsafe { rb_sys::rb_ext_ractor_safe(true) };
    keys::init();
    strings::check_coderange(ruby)?;
    let wireloom = ruby.define_module("Wireloom")?;
    guard::init(ruby, wireloom)?;
    web_socket::init(ruby, wireloom)?;
    http2::init(ruby, wireloom)?;
    hpack::init(ruby, wireloom)?;
    deflate::init(ruby, wireloom)?;
    protocol_http2::init(ruby, wireloom)?;
    protocol_websocket::init(ruby, wireloom)?;
    websocket_driver::init(ruby, wireloom)?;
    wireloom.define_singleton_method("complete", function!(complete, 1))
}

/// `Wireloom.complete(Wireloom)`: called by `lib/wireloom.rb`, once its classes are defined.
fn complete(ruby: &Ruby, wireloom: RModule) -> Result<(), Error> {
    web_socket::complete(ruby, wireloom)?;
    http2::complete(ruby, wireloom)
}
