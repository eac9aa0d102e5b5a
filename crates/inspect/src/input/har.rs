//! HAR 1.2 (<http://www.softwareishard.com/blog/har-12-spec/>), read entry by entry by serde_json. WebSocket messages are those that
//! Chromium adds to an entry: a HAR holds messages, not frames.

use std::cell::RefCell;
use std::fmt;
use std::io::{BufRead, Read};
use std::marker::PhantomData;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{ReadError, Sink};
use crate::entry::{Context, Direction, Entry, Payload, Protocol};
use crate::inspector::Inspector;
use crate::limits::{CONTENT_LEN_MAX, HAR_HEADERS_MAX, HAR_MESSAGES_MAX};
use crate::websocket::text_or_binary;

/// The longest HAR, in bytes: 1 GiB. A single string may take up nearly all of it.
const LEN_MAX: u64 = 1 << 30;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HarEntry {
    #[serde(default)]
    started_date_time: String,
    request: Request,
    #[serde(default)]
    response: Option<Response>,
    #[serde(rename = "_webSocketMessages", default, deserialize_with = "messages")]
    messages: Vec<Message>,
    /// Milliseconds that the exchange took.
    #[serde(default)]
    time: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    #[serde(default)]
    method: String,
    #[serde(default)]
    url: String,
    #[serde(default)]
    http_version: String,
    #[serde(default, deserialize_with = "headers")]
    headers: Vec<Header>,
    #[serde(default)]
    body_size: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    #[serde(default)]
    status: i64,
    #[serde(default)]
    status_text: String,
    #[serde(default)]
    http_version: String,
    #[serde(default, deserialize_with = "headers")]
    headers: Vec<Header>,
    #[serde(default)]
    body_size: i64,
}

#[derive(Deserialize)]
struct Header {
    name: String,
    value: String,
}

#[derive(Deserialize)]
struct Message {
    #[serde(rename = "type")]
    kind: String,
    /// Since the epoch: in seconds by Chromium, in milliseconds by Playwright.
    #[serde(default)]
    time: f64,
    #[serde(default)]
    opcode: i64,
    #[serde(default)]
    data: String,
}

fn headers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Header>, D::Error> {
    deserializer.deserialize_seq(List { len_max: HAR_HEADERS_MAX, noun: "header fields", item: PhantomData })
}

fn messages<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Message>, D::Error> {
    deserializer.deserialize_seq(List { len_max: HAR_MESSAGES_MAX, noun: "messages", item: PhantomData })
}

/// An array of at most `len_max` items: each takes more memory than in the file.
struct List<T> {
    len_max: usize,
    noun: &'static str,
    item: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an array of {}", self.noun)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            if list.len() == self.len_max {
                let text = format_args!("an entry has more than {} {}", self.len_max, self.noun);
                return Err(serde::de::Error::custom(text));
            }
            list.push(item);
        }
        Ok(list)
    }
}

impl Message {
    fn seconds(&self) -> f64 {
        // As seconds, this would be in the year 5138.
        const MILLISECONDS_MIN: f64 = 1e11;
        if self.time >= MILLISECONDS_MIN { self.time / 1000.0 } else { self.time }
    }
}

pub(super) fn read(
    input: &mut impl BufRead,
    inspector: &mut Inspector,
    sink: &mut Sink<'_>,
) -> Result<(), ReadError> {
    let counter = Counter { input: input.take(LEN_MAX), len: RefCell::new(0) };
    let mut reader = counter;
    let mut json = serde_json::Deserializer::from_reader(&mut reader);
    let mut visit = |entry: HarEntry| {
        let connection = inspector.next_connection();
        let mut entries = Vec::new();
        let mut context = Context {
            out: &mut entries,
            budget: inspector.budget(),
            time: None,
            connection,
            direction: Direction::ToServer,
            stream: None,
        };
        report(&mut context, entry, &mut |entries| super::flush(entries, sink).is_continue())
    };
    let result = Level { name: "log", visit: &mut visit }.deserialize(&mut json);
    drop(json);
    let offset = *reader.len.borrow();
    match result {
        Ok(()) => Ok(()),
        Err(error) if error.is_io() => Err(ReadError::Io(error.into())),
        Err(error) if error.is_eof() => Err(ReadError::Truncated { offset }),
        Err(error) if error.to_string().starts_with(STOPPED) => Ok(()),
        Err(error) => Err(ReadError::Malformed { offset, reason: error.to_string() }),
    }
}

/// The text of the error that stops the parser when the sink breaks.
const STOPPED: &str = "reading was stopped";

/// Counts the bytes that have been read.
struct Counter<R> {
    input: R,
    len: RefCell<u64>,
}

impl<R: Read> Read for Counter<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let len = self.input.read(buffer)?;
        *self.len.borrow_mut() += len as u64;
        Ok(len)
    }
}

/// An object of which one member is read: first `log`, and in it `entries`.
struct Level<'v> {
    name: &'static str,
    visit: &'v mut dyn FnMut(HarEntry) -> bool,
}

impl<'de> DeserializeSeed<'de> for Level<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Level<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with a member {}", self.name)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut is_found = false;
        while let Some(key) = map.next_key::<String>()? {
            if key != self.name {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            is_found = true;
            if self.name == "log" {
                map.next_value_seed(Level { name: "entries", visit: &mut *self.visit })?;
            } else {
                map.next_value_seed(Entries { visit: &mut *self.visit })?;
            }
        }
        if !is_found {
            let text = format_args!("the JSON is not an HTTP Archive: it has no member \"{}\"", self.name);
            return Err(serde::de::Error::custom(text));
        }
        Ok(())
    }
}

struct Entries<'v> {
    visit: &'v mut dyn FnMut(HarEntry) -> bool,
}

impl<'de> DeserializeSeed<'de> for Entries<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some(entry) = entries.next_element()? {
            if !(self.visit)(entry) {
                return Err(serde::de::Error::custom(STOPPED));
            }
        }
        Ok(())
    }
}

/// Reports an entry, a part at a time: it may have many messages. Returns whether `flush`, which takes each part, wants the next.
fn report(context: &mut Context<'_>, har: HarEntry, flush: &mut dyn FnMut(&mut Vec<Entry>) -> bool) -> bool {
    let started = time(&har.started_date_time);
    context.time = started;
    let protocol = match har.request.http_version.to_ascii_lowercase().as_str() {
        "h2" | "http/2" | "http/2.0" => Protocol::Http2,
        _ => Protocol::Http1,
    };
    let Request { method, url, http_version, headers, body_size } = har.request;
    let start = format!("{method} {url} {http_version}");
    context.report(head(context, protocol, "request", start, headers, body_size));
    if let Some(response) = har.response {
        let taken = Duration::try_from_secs_f64(har.time.max(0.0) / 1000.0).unwrap_or_default();
        context.time = started.and_then(|started| started.checked_add(taken));
        // The time of a WebSocket entry is that of its end.
        if !har.messages.is_empty() || response.status == 101 {
            context.time = started;
        }
        let Response { status, status_text, http_version, headers, body_size } = response;
        let start = format!("{http_version} {status} {status_text}");
        let mut context = context.reverse();
        let entry = head(&context, protocol, "response", start.trim().to_owned(), headers, body_size);
        context.report(entry);
    }
    let mut continues = flush(context.out);
    for message in har.messages {
        if !continues {
            break;
        }
        let direction = if message.kind == "send" { Direction::ToServer } else { Direction::ToClient };
        let time = Duration::try_from_secs_f64(message.seconds()).ok().filter(|time| !time.is_zero());
        let entry = frame(&Context { direction, time: time.or(started), ..context.on_same() }, message);
        context.report(entry);
        continues = flush(context.out);
    }
    continues
}

fn head(
    context: &Context<'_>,
    protocol: Protocol,
    kind: &'static str,
    start: String,
    headers: Vec<Header>,
    body_size: i64,
) -> Entry {
    let mut entry = context.entry(protocol, kind);
    // -1 means that the size is not known.
    entry.len = u64::try_from(body_size).unwrap_or(0);
    let fields: Vec<(Vec<u8>, Vec<u8>)> =
        headers.into_iter().map(|Header { name, value }| (name.into_bytes(), value.into_bytes())).collect();
    crate::http1::describe(&mut entry, &fields);
    entry.payload = Payload::Fields { start, fields };
    entry
}

fn frame(context: &Context<'_>, message: Message) -> Entry {
    let kind: std::borrow::Cow<'static, str> = match message.opcode {
        1 => "TEXT".into(),
        2 => "BINARY".into(),
        8 => "CLOSE".into(),
        9 => "PING".into(),
        10 => "PONG".into(),
        // Chromium reports connection errors with this opcode.
        -1 => "error".into(),
        opcode => format!("opcode {opcode:#x}").into(),
    };
    let mut entry = context.entry(Protocol::WebSocket, kind);
    entry.detail("opcode", message.opcode.to_string(), "RFC 6455 §5.2");
    let mut bytes = message.data.into_bytes();
    if message.opcode == 2 {
        match STANDARD.decode(&bytes) {
            Ok(decoded) => bytes = decoded,
            Err(_) => {
                entry.undecoded("the data of a binary message is not base64");
            }
        }
    }
    entry.len = bytes.len() as u64;
    if bytes.len() > CONTENT_LEN_MAX {
        entry.payload_len = Some(entry.len);
        bytes.truncate(CONTENT_LEN_MAX);
    }
    entry.payload = match message.opcode {
        2 => Payload::Binary(bytes),
        1 => Payload::Text(String::from_utf8_lossy(&bytes).into_owned()),
        _ => text_or_binary(bytes),
    };
    entry
}

/// A time of RFC 3339, with any offset from UTC.
fn time(text: &str) -> Option<Duration> {
    let (local, offset_s) = match text.strip_suffix('Z') {
        Some(local) => (local, 0),
        None => {
            let at = text.rfind(['+', '-']).filter(|&at| at > 10)?;
            let (local, offset) = text.split_at(at);
            let (hours, minutes) = offset[1..].split_once(':')?;
            let seconds =
                i64::from(hours.parse::<u8>().ok()?) * 3600 + i64::from(minutes.parse::<u8>().ok()?) * 60;
            (local, if offset.starts_with('-') { -seconds } else { seconds })
        }
    };
    let utc = humantime::parse_rfc3339(&format!("{local}Z")).ok()?;
    let time = utc.duration_since(std::time::UNIX_EPOCH).ok()?;
    let seconds = time.as_secs().checked_add_signed(-offset_s)?;
    Some(Duration::new(seconds, time.subsec_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_times_in_seconds_or_milliseconds() {
        for time in ["1700000000.25", "1700000000250", "1700000000250.0"] {
            let message = format!(r#"{{"type": "send", "time": {time}, "opcode": 1, "data": "x"}}"#);
            let message: Message = serde_json::from_str(&message).unwrap();
            assert_eq!(message.seconds(), 1_700_000_000.25, "{time}");
        }
    }

    #[test]
    fn reads_times_of_any_zone() {
        let expected = Some(Duration::new(1_800_000_000, 250_000_000));
        assert_eq!(time("2027-01-15T08:00:00.250Z"), expected);
        assert_eq!(time("2027-01-15T09:30:00.250+01:30"), expected);
        assert_eq!(time("2027-01-15T03:00:00.25-05:00"), expected);
        for text in
            ["", "now", "2027-01-15", "2027-01-15T08:00:00+é", "2027-01-15T08:00:00+99999999999999999:0"]
        {
            assert_eq!(time(text), None, "{text}");
        }
    }
}
