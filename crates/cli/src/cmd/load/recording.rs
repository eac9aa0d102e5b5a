//! `--replay`: the messages of a capture.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use wireloom::{Message, Payload};
use wireloom_inspect::replay;

use crate::args::Speed;

/// The longest time between the first and the last message of a capture: a year, as for times of arguments. At the lowest speed it is a
/// thousand, which the clock can add.
const TIME_MAX: Duration = Duration::from_secs(366 * 86_400);

/// The messages of the clients of a capture, by connection.
#[derive(Debug, Default)]
pub(super) struct Recording {
    connections: Vec<Vec<Recorded>>,
    messages: usize,
    /// The time between the first and the last message, at the replayed speed.
    pub(super) time: Duration,
    speed: Speed,
}

#[derive(Debug, PartialEq)]
pub(super) struct Recorded {
    /// The time since the first message of the capture, at the replayed speed.
    pub(super) at: Duration,
    pub(super) data: Data,
}

#[derive(Debug, PartialEq)]
pub(super) enum Data {
    Text(String),
    Binary(Vec<u8>),
}

impl Recorded {
    pub(super) fn payload(&self) -> Payload<'_> {
        match &self.data {
            Data::Text(text) => Payload::from(text.as_str()),
            Data::Binary(bytes) => Payload::from(bytes.as_slice()),
        }
    }

    pub(super) fn equals(&self, message: &Message<'_>) -> bool {
        match &self.data {
            Data::Text(text) => message.as_text() == Some(text),
            Data::Binary(bytes) => !message.is_text() && message.as_bytes() == bytes,
        }
    }
}

impl Recording {
    /// # Errors
    /// The file cannot be read to its end, or has no messages of clients that can be played.
    pub(super) fn from_file(path: &Path, speed: Speed) -> Result<Self, String> {
        let fail = |error: &dyn std::fmt::Display| format!("--replay {}: {error}", path.display());
        let file = File::open(path).map_err(|error| fail(&error))?;
        let messages = replay::messages(file).map_err(|error| fail(&error))?;
        if messages.iter().any(|message| message.offset > TIME_MAX) {
            return Err(fail(&"a message is more than a year after the first one"));
        }
        let recording = Self::new(messages, speed);
        if recording.messages == 0 {
            return Err(fail(&"no client sends a message in it"));
        }
        Ok(recording)
    }

    fn new(messages: Vec<replay::Message>, speed: Speed) -> Self {
        let mut recording = Self { messages: messages.len(), speed, ..Self::default() };
        for message in messages {
            let index = message.connection.saturating_sub(1) as usize;
            if index >= recording.connections.len() {
                recording.connections.resize_with(index + 1, Vec::new);
            }
            let data = match String::from_utf8(message.data) {
                Ok(text) if message.text => Data::Text(text),
                Ok(text) => Data::Binary(text.into_bytes()),
                Err(error) => Data::Binary(error.into_bytes()),
            };
            let at = speed.scale(message.offset);
            recording.time = recording.time.max(at);
            recording.connections[index].push(Recorded { at, data });
        }
        recording
    }

    /// The number of connections in the capture.
    pub(super) fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Messages per second when `connections` play it; `None` when there is no pace to keep.
    pub(super) fn rate(&self, connections: usize) -> Option<f64> {
        if self.messages == 0 || self.speed == Speed::Max {
            return None;
        }
        let rounds = connections as f64 / self.connections.len() as f64;
        Some(self.messages as f64 * rounds / self.time.as_secs_f64().max(1.0))
    }

    /// The messages of the connection with this index.
    pub(super) fn of(&self, index: usize) -> &[Recorded] {
        match self.connections.len() {
            0 => &[],
            len => &self.connections[index % len],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(offset_ms: u64, connection: u32, text: &str) -> replay::Message {
        let offset = Duration::from_millis(offset_ms);
        replay::Message { offset, connection, text: true, data: text.as_bytes().to_vec() }
    }

    #[test]
    fn connections_play_those_of_the_capture_in_turn() {
        let messages = vec![message(0, 1, "a"), message(500, 2, "b"), message(1000, 1, "c")];
        let recording = Recording::new(messages, Speed::Times(2.0));
        let texts = |index| {
            let recorded = recording.of(index).iter();
            recorded
                .map(|message| (message.at.as_millis(), format!("{:?}", message.data)))
                .collect::<Vec<_>>()
        };
        assert_eq!(recording.connections(), 2);
        assert_eq!(texts(0), [(0, "Text(\"a\")".to_owned()), (500, "Text(\"c\")".to_owned())]);
        assert_eq!(texts(1), [(250, "Text(\"b\")".to_owned())]);
        assert_eq!(texts(2), texts(0));
        assert_eq!(recording.rate(4), Some(6.0));
        assert_eq!(Recording::new(vec![message(0, 1, "a")], Speed::Max).rate(1), None);
    }
}
