//! HTTP/2 on tokio, for servers and clients alike: the task that moves bytes between a transport and
//! [`wireloom_http2::Connection`], and the handles of its streams. What requests and responses are is
//! [`crate::http`]'s; what the frames mean is the core's.
//!
//! ```text
//!            read -> buffer of the thread -> core -> events -> slots of the streams -> wakers
//! Driver ----|                                        '-> Incoming: requests (server)
//!            '---- one vectored write <----- core <------- SendStream, RecvStream, Requests: commands
//! ```
//!
//! The core and the slots are under one lock, held for work on what is there and never while waiting. A command of a
//! handle takes effect in the core at once; the driver is woken to write, and lets every task that is ready go first, so
//! that what one wake-up produced leaves in one write.
//!
//! - A server: [`Driver::new`] with [`Role::Server`](wireloom_http2::Role), then [`Driver::poll`] until
//!   [`Moved::Ended`]; every [`Incoming`] is to be answered by [`Shared::respond`] or an [`SendStream`], whose
//!   [`RecvStream`] is the content of the request.
//! - A client: the same driver in a task of its own ([`Driver::run`]), and [`Requests`], which can be cloned:
//!   [`Requests::ready`] waits for the server's SETTINGS, [`Requests::open`] opens a request and gives the
//!   [`SendStream`] for its content and the [`RecvStream`] on which [`RecvStream::head`] waits for the response,
//!   interim ones first, [`RecvStream::poll_data`] for its content and [`RecvStream::trailers`] for the rest.
//! - Window is given back as content is taken from the [`RecvStream`], not before: who does not read holds the peer back.
//! - Dropping a [`RecvStream`] before its end, or a [`SendStream`] that was not finished, resets the stream (a server
//!   that has answered in full resets with NO_ERROR, RFC 9113 §8.1).
//! - [`Tunnel`] makes a transport of the two.

mod content;
mod driver;
mod events;
mod handles;
mod head;
mod shared;
mod tunnel;

pub(crate) use driver::{Driver, Moved};
pub(crate) use handles::{RecvStream, Requests, SendStream};
pub(crate) use head::{Head, Incoming, to_fields};
pub(crate) use shared::{At, Shared};
pub(crate) use tunnel::Tunnel;
