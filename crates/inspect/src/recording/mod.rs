//! Recordings: the bytes of connections above TLS, with their times, as `serve --record` and `connect --record` write them.
//!
//! A recording is text, one JSON object per line, so that one that was cut off can be read up to there:
//!
//! ```text
//! {"wireloom_recording":1,"started":1800000000.25,"masked":true}
//! {"t":0.000121,"c":1,"from":"client","data":"R0VUIC9lY2hvIEhUVFAvMS4xDQo…"}
//! {"t":0.000480,"c":1,"from":"server","data":"SFRUUC8xLjEgMTAxIFN3aXRjaGl…"}
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
//! | `end` | the sender sends no more |
//!
//! Members and lines that a reader does not know are ignored. Masked are the values of fields such as `Authorization` and `Cookie`,
//! of parameters such as `token` in targets, and tokens among subprotocols, each byte by `*`; see [`crate::secret`]. Field blocks of HTTP/2 are encoded again for
//! that. Contents of messages and bodies are never masked. Where no head can be read (one that is malformed, longer than 64 KiB, or
//! has more than 256 fields), every byte that the sender sends from there on is.

mod mask;
mod mask_http2;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write};
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

/// Writes a recording.
#[derive(Debug)]
pub struct Recorder<W> {
    writer: W,
    /// The masker of each connection, and the directions that have ended; `None` if secrets are not masked.
    masks: Option<HashMap<u64, (Masker, [bool; 2])>>,
    line: String,
}

impl<W: Write> Recorder<W> {
    /// Begins a recording. `started` is the time since the Unix epoch.
    ///
    /// # Errors
    /// The recording cannot be written.
    pub fn new(mut writer: W, started: Duration, masks_secrets: bool) -> io::Result<Self> {
        writeln!(writer, "{MAGIC}\"started\":{:.6},\"masked\":{masks_secrets}}}", started.as_secs_f64())?;
        Ok(Self { writer, masks: masks_secrets.then(HashMap::new), line: String::new() })
    }

    /// Records bytes that were sent at `offset` after the start.
    ///
    /// # Errors
    /// The recording cannot be written.
    pub fn bytes(
        &mut self,
        offset: Duration,
        connection: u64,
        direction: Direction,
        bytes: &[u8],
    ) -> io::Result<()> {
        let Some(masks) = &mut self.masks else { return self.write(offset, connection, direction, bytes) };
        let (masker, _) = masks.entry(connection).or_default();
        let masked = masker.handle(direction, bytes);
        self.write(offset, connection, direction, &masked)
    }

    /// Records that the sender of a direction sends no more.
    ///
    /// # Errors
    /// The recording cannot be written.
    pub fn end(&mut self, offset: Duration, connection: u64, direction: Direction) -> io::Result<()> {
        if let Some(masks) = &mut self.masks
            && let Some((masker, ended)) = masks.get_mut(&connection)
        {
            let rest = masker.finish(direction);
            ended[direction.index()] = true;
            if *ended == [true; 2] {
                masks.remove(&connection);
            }
            self.write(offset, connection, direction, &rest)?;
        }
        let from = direction.sender();
        writeln!(
            self.writer,
            "{{\"t\":{:.6},\"c\":{connection},\"from\":\"{from}\",\"end\":true}}",
            offset.as_secs_f64()
        )
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// The recording cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }

    fn write(
        &mut self,
        offset: Duration,
        connection: u64,
        direction: Direction,
        bytes: &[u8],
    ) -> io::Result<()> {
        for chunk in bytes.chunks(DATA_LEN_MAX) {
            self.line.clear();
            let (t, from) = (offset.as_secs_f64(), direction.sender());
            let _ = write!(self.line, "{{\"t\":{t:.6},\"c\":{connection},\"from\":\"{from}\",\"data\":\"");
            STANDARD.encode_string(chunk, &mut self.line);
            self.line.push_str("\"}\n");
            self.writer.write_all(self.line.as_bytes())?;
        }
        Ok(())
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
    match line.data {
        Some(data) => {
            let bytes = STANDARD.decode(data).map_err(|error| format!("data: {error}"))?;
            Ok(Event::Bytes { offset, connection, direction, bytes })
        }
        None if line.end => Ok(Event::End { offset, connection, direction }),
        None => Ok(Event::Other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        let mut out = Vec::new();
        let mut recorder = Recorder::new(&mut out, Duration::from_millis(1500), false).unwrap();
        recorder.bytes(Duration::from_micros(250), 7, Direction::ToClient, b"\x81\x02hi").unwrap();
        recorder.end(Duration::from_secs(2), 7, Direction::ToServer).unwrap();
        let events: Vec<Event> = out.split(|&byte| byte == b'\n').map(|line| parse(line).unwrap()).collect();
        let (offset, connection) = (Duration::from_micros(250), 7);
        assert_eq!(
            events,
            [
                Event::Start { started: Some(Duration::from_millis(1500)) },
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
        assert!(out.starts_with(MAGIC.as_bytes()));
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
