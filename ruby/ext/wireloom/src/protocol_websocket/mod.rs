//! The native part of the drop-in replacement of the gem `protocol-websocket`: reading frames from a stream, masking, the
//! headers of frames, and a fast path from a frame to a message. The classes are in Ruby (`lib/wireloom/drop_in/`).

mod connection;
mod framer;
mod names;
mod payload;
mod stream;
mod utf8;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use magnus::prelude::*;
use magnus::{Error, RModule, Ruby, Value};

use crate::guard::function;

/// Counts overridden methods since `attach`; what was found out about a connection holds for one count.
static EPOCH: AtomicU32 = AtomicU32::new(0);

/// Whether one of the replacement's own classes was reopened: then no fast path is taken any more.
static REOPENED: AtomicBool = AtomicBool::new(false);

pub(crate) fn init(ruby: &Ruby, wireloom: RModule) -> Result<(), Error> {
    let module = wireloom.define_module("ProtocolWebSocket")?;
    module.define_singleton_method("attach", function!(attach, 1))?;
    module.define_singleton_method("overridden", function!(overridden, 1))?;
    module.define_singleton_method("epoch", function!(epoch, 0))?;
    module.define_singleton_method("mask", function!(payload::mask, 2))?;
    module.define_singleton_method("text", function!(payload::text, 1))?;
    module.define_singleton_method("header", function!(framer::header, 5))?;
    utf8::init(ruby, module)
}

/// Gives the classes in `Protocol::WebSocket` their native methods.
fn attach(protocol: RModule) -> Result<(), Error> {
    framer::attach(protocol)?;
    connection::attach(protocol)?;
    // From here on, a class that gets a method is one that was reopened.
    names::attach(protocol)
}

/// Called by `Watch` when `class`, or a module, overrides a method that the fast paths omit.
fn overridden(class: Value) {
    let Some(names) = names::get() else { return };
    EPOCH.fetch_add(1, Ordering::Relaxed);
    if names.is_own_class(class) {
        REOPENED.store(true, Ordering::Relaxed);
    }
}

fn epoch() -> u32 {
    EPOCH.load(Ordering::Relaxed)
}

fn reopened() -> bool {
    REOPENED.load(Ordering::Relaxed)
}
