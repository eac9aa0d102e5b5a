//! HTTP/2 on tokio, for clients and servers: the task that moves bytes between a transport and
//! [`wireloom_http2::Connection`], and the handles of its streams.
//!
//! ```text
//!            read -> read buffer -> core -> events -> slots of the streams -> wakers
//! Driver ----|                                   '-> Incoming: requests (server)
//!            '---- one vectored write <----- core <--- SendStream, RecvStream, Requests: commands
//! ```
//!
//! The core and the slots are behind one mutex, which is never held across an `.await`. A command of a handle takes effect in
//! the core at once and wakes the driver to write. The driver lets all tasks that are ready run first: the output of one
//! wake-up leaves in one write.
//!
//! - A server: [`Driver::new`] with [`Role::Server`](wireloom_http2::Role), then [`Driver::poll`] until
//!   [`Progress::Ended`]. Each [`Incoming`] request is answered with [`Shared::send_response`] or with a [`SendStream`]; its
//!   content is a [`RecvStream`].
//! - A client: the same driver in a task of its own ([`Driver::run`]), and [`Requests`]: [`Requests::ready`] waits for the
//!   server's SETTINGS, [`Requests::open`] opens a request and returns the [`SendStream`] for its content and the
//!   [`RecvStream`] for the response.
//! - Window is given back when content is read from the [`RecvStream`]: a slow reader slows down its sender.
//! - Dropping a [`RecvStream`] before its end, or a [`SendStream`] before END_STREAM, resets the stream. A server that has sent
//!   a complete response resets with NO_ERROR (RFC 9113 §8.1).
//! - [`Tunnel`] makes a transport of the two.
//!
//! Layers: `deadlines`, `driver_handle`, `head`, `leaving`, `memory_report`, `peer_preface`, `read_buffer`, `recv_buffer`, `timers`, `unread` → `heads` →
//! `slots` → `state` → `shared` → `handler_ref`, `head_memory`, `send_stream` → `recv_stream` → `incoming`, `requests` → `driver`,
//! `tunnel`.

mod deadlines;
mod driver;
mod driver_handle;
mod handler_ref;
mod head;
mod head_memory;
mod heads;
mod incoming;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod latency;
mod leaving;
mod memory_report;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod model;
mod peer_preface;
mod read_buffer;
mod recv_buffer;
mod recv_stream;
mod requests;
mod send_stream;
mod shared;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]
mod simulation;
mod slots;
mod state;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod testing;
mod timers;
mod tunnel;
mod unread;

pub(crate) use driver::{Driver, Progress};
pub(crate) use handler_ref::HandlerRef;
pub(crate) use head::to_fields;
pub(crate) use head_memory::HeadMemory;
pub(crate) use incoming::Incoming;
pub(crate) use recv_stream::RecvStream;
pub(crate) use requests::Requests;
pub(crate) use send_stream::SendStream;
pub(crate) use shared::Shared;
pub(crate) use tunnel::Tunnel;
