//! The native part of `wireloom/drop_in/protocol_http2`: what frames, streams and connections of the gem protocol-http2 do most often.
//! HPACK is `Wireloom::HPACK::Context`; the classes, their instance variables and all rare cases are the gem's own.
//!
//! Each method here comes before the gem's method of that name and calls it (`super`) when anything is not as usual: a step that
//! the native code would leave out is overridden ([`steps`]), an argument has another type, a window is too small, a state is wrong.
//! It looks before it changes anything, so that the gem's method begins from the same state.
//!
//! ```text
//! read_frame ─▶ frames::read (ahead) ─▶ connection::apply ─▶ stream::receive_data, receive_headers ─▶ process_* ─▶ hpack
//! send_headers ─▶ hpack ─▶ frames::headers_head ─▶ io
//! send_data ─▶ flow::Window::consume ─▶ frames::data_head ─▶ io
//! ```

mod ahead;
mod connection;
mod flow;
mod frames;
mod io;
mod names;
mod objects;
mod steps;
mod stream;

use magnus::{Error, RModule, Ruby, prelude::*};

use crate::guard::{function, method};

pub(crate) fn init(_: &Ruby, wireloom: RModule) -> Result<(), Error> {
    let module = wireloom.define_module("ProtocolHTTP2")?;
    module.define_singleton_method("attach", function!(names::attach, 0))?;
    module.define_singleton_method("changed", function!(steps::changed, 1))?;
    module.define_singleton_method("forget", function!(steps::forget, 1))?;
    module.define_singleton_method("plain", function!(steps::is_plain, 0))?;
    module.define_singleton_method("header", function!(frames::header, 4))?;
    module.define_singleton_method("frame", function!(frames::frame, 4))?;
    module.define_singleton_method("hold", function!(io::hold, 2))?;
    module.define_singleton_method("release", function!(io::release, 1))?;
    let stream = module.define_module("Stream")?;
    stream.define_private_method("initialize", method!(stream::initialize, -1))?;
    stream.define_method("send_headers", method!(stream::send_headers, -1))?;
    stream.define_method("send_data", method!(stream::send_data, -1))?;
    stream.define_method("available_frame_size", method!(stream::available_frame_size, -1))?;
    stream.define_method("receive_headers", method!(stream::receive_headers, -1))?;
    stream.define_method("receive_data", method!(stream::receive_data, -1))?;
    stream.define_method("process_headers", method!(stream::process_headers, -1))?;
    stream.define_method("process_data", method!(stream::process_data, -1))?;
    let framer = module.define_module("Framer")?;
    framer.define_method("read_frame", method!(connection::framer_read_frame, -1))?;
    let connection = module.define_module("Connection")?;
    connection.define_method("read_frame", method!(connection::read_frame, -1))?;
    connection.define_method("consume_window", method!(connection::consume_window, -1))?;
    connection.define_method("receive_window_update", method!(connection::windows_changed, -1))?;
    connection.define_method("receive_settings", method!(connection::windows_changed, -1))?;
    connection.define_method("decode_headers", method!(connection::decode_headers, -1))
}
