//! Recordings: the bytes of connections above TLS, with their times, as `serve --record` and `connect --record` write them.
//!
//! A recording is text, one JSON object per line, so that one that was cut off can be read up to there:
//!
//! ```text
//! {"wireloom_recording":1,"started":1800000000.25,"masked":true}
//! {"t":0.000121,"c":1,"from":"client","data":"R0VUIC9lY2hvIEhUVFAvMS4xDQo…"}
//! {"t":0.000480,"c":1,"from":"server","data":"SFRUUC8xLjEgMTAxIFN3aXRjaGl…"}
//! {"t":1.000000,"c":1,"from":"client","lost":4096}
//! {"t":1.250000,"c":1,"from":"client","end":true}
//! ```
//!
//! | member | meaning |
//! |---|---|
//! | `wireloom_recording` | the version of the format, 1; first in the first line |
//! | `started` | seconds since the Unix epoch |
//! | `masked` | whether secrets in heads have been masked |
//! | `t` | seconds since `started` |
//! | `c` | the connection, numbered from 1 |
//! | `from` | the sender: `client` or `server` |
//! | `data` | bytes, in base64 |
//! | `lost` | the number of bytes that are missing here, because the file did not take the lines as fast as they came |
//! | `end` | the sender sends no more |
//!
//! Members and lines that a reader does not know are ignored. Masked are the values of fields such as `Authorization` and `Cookie`,
//! of parameters such as `token` in targets, and tokens among subprotocols, each byte by `*`; see [`crate::secret`]. Field blocks of HTTP/2 are encoded again for
//! that. Contents of messages and bodies are never masked. Where no head can be read (one that is malformed, longer than 64 KiB, or
//! has more than 256 fields), every byte that the sender sends from there on is.

mod mask;
mod mask_http2;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::entry::Direction;
use mask::Masker;

/// The beginning of a recording.
pub(crate) const MAGIC: &str = "{\"wireloom_recording\":1,";

/// Bytes of a line, before base64. Longer runs are several lines.
const DATA_LEN_MAX: usize = 64 << 10;

/// The first line. `started` is the time since the Unix epoch.
#[must_use]
pub fn first_line(started: Duration, masks_secrets: bool) -> String {
    format!("{MAGIC}\"started\":{:.6},\"masked\":{masks_secrets}}}\n", started.as_secs_f64())
}

/// Encodes the events of one connection as lines of a recording, which the caller writes in their order.
#[derive(Debug)]
pub struct Encoder {
    connection: u64,
    /// `None` if secrets are not masked.
    masker: Option<Masker>,
    /// Bytes of each direction that were lost since its latest line.
    lost: [u64; 2],
    has_ended: [bool; 2],
}

/// Lines about bytes of one direction.
#[derive(Debug)]
pub struct Lines {
    /// To be written as a whole, or not at all.
    pub text: String,
    direction: Direction,
    /// Bytes, with those that were lost before.
    len: u64,
}

impl Encoder {
    /// For the connection with this number.
    #[must_use]
    pub fn new(connection: u64, masks_secrets: bool) -> Self {
        let masker = masks_secrets.then(Masker::default);
        Self { connection, masker, lost: [0; 2], has_ended: [false; 2] }
    }

    /// Bytes that were sent at `offset` after the start. There are no lines while a head is incomplete.
    pub fn bytes(&mut self, offset: Duration, direction: Direction, bytes: &[u8]) -> Lines {
        let masked = match &mut self.masker {
            Some(masker) => masker.handle(direction, bytes).into(),
            None => Cow::Borrowed(bytes),
        };
        self.lines(offset, direction, &masked)
    }

    /// The sender of a direction sends no more.
    pub fn end(&mut self, offset: Duration, direction: Direction) -> Lines {
        let rest = self.masker.as_mut().map(|masker| masker.finish(direction)).unwrap_or_default();
        self.has_ended[direction.index()] = true;
        let mut lines = self.lines(offset, direction, &rest);
        self.line(&mut lines.text, offset, direction, "\"end\":true");
        lines
    }

    /// Whether both directions have ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.has_ended == [true; 2]
    }

    /// The latest lines were not written: the next ones of their direction say so.
    pub fn lose(&mut self, lines: &Lines) {
        self.lost[lines.direction.index()] += lines.len;
    }

    fn lines(&mut self, offset: Duration, direction: Direction, bytes: &[u8]) -> Lines {
        let mut text = String::new();
        let mut lost = 0;
        if !bytes.is_empty() || self.has_ended[direction.index()] {
            lost = std::mem::take(&mut self.lost[direction.index()]);
        }
        if lost > 0 {
            self.line(&mut text, offset, direction, &format!("\"lost\":{lost}"));
        }
        for chunk in bytes.chunks(DATA_LEN_MAX) {
            self.line(&mut text, offset, direction, &format!("\"data\":\"{}\"", STANDARD.encode(chunk)));
        }
        Lines { text, direction, len: lost + bytes.len() as u64 }
    }

    fn line(&self, text: &mut String, offset: Duration, direction: Direction, member: &str) {
        let (t, c, from) = (offset.as_secs_f64(), self.connection, direction.sender());
        let _ = writeln!(text, "{{\"t\":{t:.6},\"c\":{c},\"from\":\"{from}\",{member}}}");
    }
}

/// A line of a recording.
#[derive(Debug, PartialEq)]
pub(crate) enum Event {
    Start {
        started: Option<Duration>,
    },
    Bytes {
        offset: Duration,
        connection: u64,
        direction: Direction,
        bytes: Vec<u8>,
    },
    Lost {
        offset: Duration,
        connection: u64,
        direction: Direction,
        len: u64,
    },
    End {
        offset: Duration,
        connection: u64,
        direction: Direction,
    },
    /// Another line, which is ignored.
    Other,
}

#[derive(Deserialize)]
struct Line {
    wireloom_recording: Option<u32>,
    started: Option<f64>,
    #[serde(default)]
    t: f64,
    #[serde(default)]
    c: u64,
    from: Option<String>,
    data: Option<String>,
    lost: Option<u64>,
    #[serde(default)]
    end: bool,
}

/// Reads a line.
pub(crate) fn parse(line: &[u8]) -> Result<Event, String> {
    if line.trim_ascii().is_empty() {
        return Ok(Event::Other);
    }
    let line: Line = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string());
    if let Some(version) = line.wireloom_recording {
        if version != 1 {
            return Err(format!("version {version} of the format is not known"));
        }
        return Ok(Event::Start { started: line.started.map(seconds).transpose()? });
    }
    let direction = match line.from.as_deref() {
        Some("client") => Direction::ToServer,
        Some("server") => Direction::ToClient,
        _ => return Ok(Event::Other),
    };
    let (offset, connection) = (seconds(line.t)?, line.c);
    if let Some(data) = line.data {
        let bytes = STANDARD.decode(data).map_err(|error| format!("data: {error}"))?;
        Ok(Event::Bytes { offset, connection, direction, bytes })
    } else if let Some(len) = line.lost {
        Ok(Event::Lost { offset, connection, direction, len })
    } else if line.end {
        Ok(Event::End { offset, connection, direction })
    } else {
        Ok(Event::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        let mut out = first_line(Duration::from_millis(1500), false);
        let mut encoder = Encoder::new(7, false);
        let lost = encoder.bytes(Duration::ZERO, Direction::ToClient, b"lost");
        encoder.lose(&lost);
        let lost = encoder.bytes(Duration::ZERO, Direction::ToClient, b"again");
        encoder.lose(&lost);
        out += &encoder.bytes(Duration::from_micros(250), Direction::ToClient, b"\x81\x02hi").text;
        out += &encoder.end(Duration::from_secs(2), Direction::ToServer).text;
        assert!(!encoder.has_ended());
        let events: Vec<Event> = out.split('\n').map(|line| parse(line.as_bytes()).unwrap()).collect();
        let (offset, connection) = (Duration::from_micros(250), 7);
        assert_eq!(
            events,
            [
                Event::Start { started: Some(Duration::from_millis(1500)) },
                Event::Lost { offset, connection, direction: Direction::ToClient, len: 9 },
                Event::Bytes {
                    offset,
                    connection,
                    direction: Direction::ToClient,
                    bytes: b"\x81\x02hi".to_vec()
                },
                Event::End { offset: Duration::from_secs(2), connection, direction: Direction::ToServer },
                Event::Other,
            ]
        );
        assert!(out.starts_with(MAGIC));
    }

    #[test]
    fn lost_bytes_are_a_gap_in_their_message() {
        use crate::entry::Entry;
        use crate::inspector::{Config, Inspector};

        let mut encoder = Encoder::new(1, true);
        let mut out = first_line(Duration::ZERO, true);
        let mut push = |bytes: &[u8], is_lost: bool| {
            let lines = encoder.bytes(Duration::ZERO, Direction::ToServer, bytes);
            if is_lost { encoder.lose(&lines) } else { out += &lines.text }
        };
        push(b"POST / HTTP/1.1\r\nCookie: a\r\nContent-Length: 9\r\n\r\nabc", false);
        push(b"def", true);
        push(b"ghiGET /next HTTP/1.1\r\nCookie: a\r\n\r\n", false);
        let mut entries: Vec<Entry> = Vec::new();
        let mut inspector = Inspector::new(Config::default());
        let sink = &mut |entry| {
            entries.push(entry);
            std::ops::ControlFlow::Continue(())
        };
        crate::read(out.as_bytes(), None, &mut inspector, sink).unwrap();
        let gap = entries.iter().find(|entry| entry.kind == "gap").expect("a gap");
        assert_eq!(gap.len, 3);
        assert!(entries.iter().any(|entry| format!("{entry:?}").contains("/next")), "{entries:?}");
    }

    #[test]
    fn refuses_other_versions_and_malformed_lines() {
        for line in [
            "{\"wireloom_recording\":2}",
            "{",
            "[]",
            "{\"t\":-1,\"from\":\"client\"}",
            "{\"from\":\"client\",\"data\":\"?\"}",
        ] {
            assert!(parse(line.as_bytes()).is_err(), "{line}");
        }
        assert_eq!(parse(b"{\"note\":\"unknown\"}"), Ok(Event::Other));
    }
}
