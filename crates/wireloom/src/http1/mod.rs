//! HTTP/1.1 messages (RFC 9112), for servers, clients and tunnels through proxies alike: heads, body framing, the chunked
//! coding, and how both are written. Connections are the server's and the client's.

mod body_channel;
mod body_decoder;
mod body_reader;
pub(crate) mod date;
pub(crate) mod head;
pub(crate) mod write;

pub(crate) use body_channel::BodyReceiver;
pub(crate) use body_decoder::Framing;
pub(crate) use body_reader::{BodyEnd, BodyReader, Content};
