//! A publication as subscribers receive it, encoded once for each format.

use std::sync::Arc;

use bytes::Bytes;
use wireloom::{OwnedMessage, PreparedMessage};

use crate::budget::{BYTES_PER_UNIT, DELTA_BYTES_PER_UNIT, charge};
use crate::client::{Format, encode, one_way};
use crate::fossil;
use crate::protocol::{Encoding, Publication, Push, Reply, json_text};

/// The tag of publications from bare connections: `text` when the payload is a JSON string that represents a text that
/// is not JSON, `binary` when the message was binary.
const BARE_TAG: &str = "bare";

/// How a subscriber receives the payload of a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// As it was published.
    Plain,
    /// Whole, for a subscriber with deltas that has no base.
    Whole,
    /// As a delta, for a subscriber that has the previous publication.
    Delta,
}

/// A publication in each form that a subscriber of the channel needs. Each form is made once.
pub(crate) struct Encoded<'a> {
    channel: &'a str,
    pub(crate) publication: &'a Arc<Publication>,
    /// The previous publication, if it is known: the base of deltas.
    base: Option<&'a Publication>,
    plain: Shared,
    whole: Shared,
    delta: Shared,
    /// The encodings in which at least one subscriber receives the delta.
    pub(crate) delta_encodings: Vec<Encoding>,
    bare: Option<PreparedMessage>,
}

impl<'a> Encoded<'a> {
    /// `deltas` are those from `base` that were made before.
    pub(crate) fn new(
        channel: &'a str,
        base: Option<&'a Publication>,
        publication: &'a Arc<Publication>,
        deltas: Option<Shared>,
    ) -> Self {
        let (plain, whole, delta_encodings) = Default::default();
        let delta = deltas.unwrap_or_default();
        Self { channel, publication, base, plain, whole, delta, delta_encodings, bare: None }
    }

    /// The cost of the forms encoded so far, in units of a task's budget.
    pub(crate) fn cost(&self) -> usize {
        let forms = self.plain.len() + self.whole.len() + usize::from(self.bare.is_some());
        let len = self.publication.data.len();
        forms * len / BYTES_PER_UNIT + self.delta.len() * len / DELTA_BYTES_PER_UNIT
    }

    pub(crate) fn get(&mut self, format: Format, payload: Payload) -> PreparedMessage {
        let Format::Protocol(encoding) = format else { return self.plain(format) };
        let (shared, base) = match payload {
            Payload::Plain => return self.plain(format),
            Payload::Whole => (&mut self.whole, None),
            Payload::Delta => {
                if !self.delta_encodings.contains(&encoding) {
                    self.delta_encodings.push(encoding);
                }
                (&mut self.delta, self.base)
            }
        };
        let reply = || push(self.channel, with_delta(encoding, base, self.publication));
        shared.get(format, reply).unwrap_or_else(|| PreparedMessage::text(""))
    }

    fn plain(&mut self, format: Format) -> PreparedMessage {
        if format == Format::Bare {
            return self.bare.get_or_insert_with(|| bare(self.publication)).clone();
        }
        let reply = || push(self.channel, Publication::clone(self.publication));
        self.plain.get(format, reply).unwrap_or_else(|| PreparedMessage::text(""))
    }
}

fn push(channel: &str, publication: Publication) -> Reply {
    let push = Push { channel: channel.into(), publication: Some(publication), ..Push::default() };
    Reply { push: Some(push), ..Reply::default() }
}

/// Consecutive publications for a subscriber with deltas; the first one is whole.
pub(crate) async fn with_deltas(encoding: Encoding, publications: &[Arc<Publication>]) -> Vec<Publication> {
    let bases = std::iter::once(None).chain(publications.iter().map(|base| Some(&**base)));
    let mut all = Vec::with_capacity(publications.len());
    for (base, publication) in bases.zip(publications) {
        charge(publication.data.len() / DELTA_BYTES_PER_UNIT).await;
        all.push(with_delta(encoding, base, publication));
    }
    all
}

/// A publication for a subscriber with deltas: the delta from `base`, unless there is none or it would be longer. Deltas for JSON clients
/// are between the texts that clients without deltas receive, and every payload is a string with such a text or a delta.
fn with_delta(encoding: Encoding, base: Option<&Publication>, publication: &Publication) -> Publication {
    let mut publication = publication.clone();
    match encoding {
        Encoding::Json => {
            let text = json_text(&publication.data);
            let delta =
                base.and_then(|base| fossil::delta(json_text(&base.data).as_bytes(), text.as_bytes()));
            // The delta between two texts is a text.
            let delta = delta.and_then(|delta| String::from_utf8(delta).ok());
            publication.delta = delta.is_some();
            let string = serde_json::Value::from(delta.unwrap_or_else(|| text.into_owned()));
            publication.data = string.to_string().into();
        }
        Encoding::Protobuf => {
            if let Some(delta) = base.and_then(|base| fossil::delta(&base.data, &publication.data)) {
                publication.delta = true;
                publication.data = delta.into();
            }
        }
    }
    publication
}

/// A push in each format except the bare one. Each is made once.
#[derive(Default)]
pub(crate) struct Shared {
    json: Option<PreparedMessage>,
    protobuf: Option<PreparedMessage>,
    one_way: Option<PreparedMessage>,
}

impl Shared {
    /// The number of formats that were made.
    fn len(&self) -> usize {
        [&self.json, &self.protobuf, &self.one_way].into_iter().flatten().count()
    }

    /// The message for a format; `None` if the format does not have this push.
    pub(crate) fn get(&mut self, format: Format, reply: impl FnOnce() -> Reply) -> Option<PreparedMessage> {
        let (message, encoding) = match format {
            Format::Protocol(encoding @ Encoding::Json) => (&mut self.json, encoding),
            Format::Protocol(encoding @ Encoding::Protobuf) => (&mut self.protobuf, encoding),
            Format::OneWay => {
                if self.one_way.is_none() {
                    self.one_way = one_way(&reply());
                }
                return self.one_way.clone();
            }
            Format::Bare => return None,
        };
        Some(message.get_or_insert_with(|| encode(encoding, &reply())).clone())
    }
}

/// The deltas of a publication in these encodings.
pub(crate) fn deltas(
    channel: &str,
    base: &Publication,
    publication: &Publication,
    encodings: &[Encoding],
) -> Shared {
    let mut deltas = Shared::default();
    for encoding in encodings {
        let reply = || push(channel, with_delta(*encoding, Some(base), publication));
        deltas.get(Format::Protocol(*encoding), reply);
    }
    deltas
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
    use std::future::poll_fn;
    use std::pin::pin;

    use super::*;

    #[tokio::test]
    async fn deltas_of_long_publications_take_turns() {
        let data = Bytes::from(vec![b'1'; 64 << 10]);
        let publication = || Publication { data: data.clone(), ..Publication::default() };
        let publications = [(); 8].map(|()| Arc::new(publication()));
        let mut making = pin!(with_deltas(Encoding::Protobuf, &publications));
        let mut turns = 0;
        let all = poll_fn(|cx| {
            turns += 1;
            making.as_mut().poll(cx)
        });
        assert_eq!(all.await.iter().map(|one| one.delta).collect::<Vec<_>>()[..2], [false, true]);
        assert!(turns >= 4, "{turns}");
    }

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
