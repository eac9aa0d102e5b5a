//! The messages that clients sent in a capture, to send them again.

use std::collections::HashMap;
use std::io::Read;
use std::ops::ControlFlow;
use std::time::Duration;

use crate::entry::{Direction, Payload, Protocol};
use crate::input::{ReadError, read};
use crate::inspector::{Config, Inspector};

/// The maximum sum of the lengths of all messages, in bytes: 256 MiB.
pub const LEN_MAX: usize = 256 << 20;

/// A message that a client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Time since the first message of the capture; zero where the capture has no times.
    pub offset: Duration,
    /// The connection, numbered from 1; streams of HTTP/2 count as connections of their own.
    pub connection: u32,
    /// Whether it is a text message.
    pub text: bool,
    /// The content, unmasked and inflated.
    pub data: Vec<u8>,
}

/// The messages that clients sent, in their order, from any capture that [`read`] reads. Incomplete messages are left
/// out.
///
/// # Errors
/// The capture cannot be read to its end, or a message is longer than 1 MiB, or all together are longer than [`LEN_MAX`].
pub fn messages(input: impl Read + Send) -> Result<Vec<Message>, ReadError> {
    let mut inspector = Inspector::new(Config::default());
    let (mut messages, mut streams, mut first) = (Vec::new(), HashMap::new(), None);
    let (mut len, mut error) = (0, None);
    read(input, None, &mut inspector, &mut |entry| {
        let is_message = ["TEXT", "BINARY", "CONTINUATION"].contains(&&*entry.kind);
        // A HAR contains whole messages, without flags.
        let is_last = entry.flags.contains(&"FIN") || entry.flags.is_empty();
        if entry.protocol != Protocol::WebSocket
            || entry.direction != Direction::ToServer
            || !is_message
            || !is_last
            || !entry.problems.is_empty()
        {
            return ControlFlow::Continue(());
        }
        if let Some(len) = entry.payload_len {
            error = Some(format!("a message of {len} bytes is too long to be replayed"));
            return ControlFlow::Break(());
        }
        let (text, data) = match entry.payload {
            Payload::Text(text) => (true, text.into_bytes()),
            Payload::Binary(bytes) => (false, bytes),
            _ => (entry.kind == "TEXT", Vec::new()),
        };
        len += data.len();
        if len > LEN_MAX {
            error = Some(format!("the messages are longer than {LEN_MAX} bytes"));
            return ControlFlow::Break(());
        }
        let number = streams.len() as u32 + 1;
        let connection = *streams.entry((entry.connection, entry.stream)).or_insert(number);
        first = first.or(entry.time);
        let offset =
            entry.time.zip(first).map(|(time, first)| time.saturating_sub(first)).unwrap_or_default();
        messages.push(Message { offset, connection, text, data });
        ControlFlow::Continue(())
    })?;
    match error {
        Some(reason) => Err(ReadError::Malformed { offset: 0, reason }),
        None => Ok(messages),
    }
}
