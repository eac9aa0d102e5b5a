//! A publication as subscribers receive it, encoded once for each kind of them.

use std::sync::Arc;

use bytes::Bytes;
use wireloom::{OwnedMessage, PreparedMessage};

use crate::client::{Format, encode, event};
use crate::protocol::{Encoding, Publication, Push, Reply};

/// The tag of publications by bare connections: `text` when the payload is a JSON string that represents a text that is not
/// JSON, `binary` when the message was binary.
const BARE_TAG: &str = "bare";

/// A publication in every format that a subscriber of the channel wants.
pub(crate) struct Encoded<'a> {
    channel: &'a str,
    pub(crate) publication: &'a Arc<Publication>,
    shared: Shared,
    bare: Option<PreparedMessage>,
    reply: Option<Reply>,
}

impl<'a> Encoded<'a> {
    pub(crate) fn new(channel: &'a str, publication: &'a Arc<Publication>) -> Self {
        Self { channel, publication, shared: Shared::default(), bare: None, reply: None }
    }

    pub(crate) fn get(&mut self, format: Format) -> PreparedMessage {
        if format == Format::Bare {
            return self.bare.get_or_insert_with(|| bare(self.publication)).clone();
        }
        let reply = self.reply.get_or_insert_with(|| {
            let publication = Some(Publication::clone(self.publication));
            let push = Push { channel: self.channel.into(), publication, ..Push::default() };
            Reply { push: Some(push), ..Reply::default() }
        });
        self.shared.get(format, reply).unwrap_or_else(|| PreparedMessage::text(""))
    }
}

/// A push in every format but the bare one, each made once.
#[derive(Default)]
pub(crate) struct Shared {
    json: Option<PreparedMessage>,
    protobuf: Option<PreparedMessage>,
    event: Option<PreparedMessage>,
}

impl Shared {
    /// `None` for formats that do not have this push.
    pub(crate) fn get(&mut self, format: Format, reply: &Reply) -> Option<PreparedMessage> {
        let (message, encoding) = match format {
            Format::Protocol(encoding @ Encoding::Json) => (&mut self.json, encoding),
            Format::Protocol(encoding @ Encoding::Protobuf) => (&mut self.protobuf, encoding),
            Format::EventStream => {
                if self.event.is_none() {
                    self.event = event(reply);
                }
                return self.event.clone();
            }
            Format::Bare => return None,
        };
        Some(message.get_or_insert_with(|| encode(encoding, reply)).clone())
    }
}

/// A publication as a bare connection receives it.
fn bare(publication: &Publication) -> PreparedMessage {
    let data = &publication.data;
    let kind = publication.tags.get(BARE_TAG).map(String::as_str);
    if kind == Some("text")
        && let Ok(text) = serde_json::from_slice::<String>(data)
    {
        return PreparedMessage::text(&text);
    }
    match std::str::from_utf8(data) {
        Ok(text) if kind != Some("binary") => PreparedMessage::text(text),
        _ => PreparedMessage::binary(data),
    }
}

/// A bare connection's message as a publication.
pub(crate) fn publication_of(message: OwnedMessage) -> Publication {
    let tag = |kind: &str| [(BARE_TAG.to_owned(), kind.to_owned())].into();
    match message.as_text() {
        Some(text) if serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok() => {
            Publication { data: message.into_bytes(), ..Publication::default() }
        }
        Some(text) => {
            let data = Bytes::from(serde_json::Value::from(text).to_string());
            Publication { data, tags: tag("text"), ..Publication::default() }
        }
        None => Publication { data: message.into_bytes(), tags: tag("binary"), ..Publication::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_messages_come_out_as_they_went_in() {
        for message in [
            OwnedMessage::from("hello"),
            "\"quoted\"".into(),
            "{\"a\": 1}".into(),
            "".into(),
            OwnedMessage::from(b"\xff\x00".to_vec()),
            OwnedMessage::from(b"text".to_vec()),
        ] {
            let received = bare(&publication_of(message.clone()));
            assert_eq!((received.as_text(), received.as_bytes()), (message.as_text(), message.as_bytes()));
        }
    }
}
