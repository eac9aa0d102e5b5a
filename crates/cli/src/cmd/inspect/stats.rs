//! `--stats`: a summary of each connection, and of each stream of HTTP/2.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::json;
use wireloom_inspect::{Entry, ProblemKind, Protocol};

use crate::terminal::{visible_json, visible_line};

/// Streams that are listed one by one; those beyond are counted together.
const STREAMS_MAX: usize = 64 << 10;

/// Sums of the entries, by connection and stream.
#[derive(Debug, Default)]
pub(super) struct Stats {
    streams: BTreeMap<(u32, Option<u32>), Sums>,
    others: u64,
}

#[derive(Debug, Default)]
struct Sums {
    first: Option<Duration>,
    last: Option<Duration>,
    /// Entries and bytes of payload, by direction.
    frames: [u64; 2],
    bytes: [u64; 2],
    messages: [u64; 2],
    types: BTreeMap<String, u64>,
    violations: u64,
    missing: u64,
}

impl Stats {
    pub(super) fn add(&mut self, entry: &Entry) {
        let key = (entry.connection, entry.stream);
        if self.streams.len() >= STREAMS_MAX && !self.streams.contains_key(&key) {
            self.others += 1;
            return;
        }
        let sums = self.streams.entry(key).or_default();
        sums.first = sums.first.or(entry.time);
        sums.last = entry.time.or(sums.last);
        for problem in &entry.problems {
            match problem.kind {
                ProblemKind::Violation => sums.violations += 1,
                _ => sums.missing += 1,
            }
        }
        if entry.protocol == Protocol::Tcp {
            return;
        }
        let side = entry.direction as usize;
        sums.frames[side] += 1;
        sums.bytes[side] = sums.bytes[side].saturating_add(entry.len);
        let is_data = ["TEXT", "BINARY", "CONTINUATION"].contains(&&*entry.kind);
        if entry.protocol == Protocol::WebSocket && is_data && entry.flags.contains(&"FIN") {
            sums.messages[side] += 1;
        }
        *sums.types.entry(format!("{} {}", entry.protocol, entry.kind)).or_default() += 1;
    }

    pub(super) fn table(&self) -> String {
        let mut out = String::from(
            "stream       seconds   > frames      > bytes   < frames      < bytes  messages >/<  violations  types\n",
        );
        for (key, sums) in &self.streams {
            let types: Vec<String> =
                sums.types.iter().map(|(name, count)| format!("{count} {name}")).collect();
            let messages = format!("{}/{}", sums.messages[0], sums.messages[1]);
            let line = format!(
                "{:<8} {:>11.3} {:>10} {:>12} {:>10} {:>12} {messages:>13} {:>11}  {}",
                name(*key),
                sums.seconds(),
                sums.frames[0],
                sums.bytes[0],
                sums.frames[1],
                sums.bytes[1],
                sums.violations,
                types.join(", "),
            );
            let _ = writeln!(out, "{}", visible_line(line.trim_end()));
        }
        if self.others > 0 {
            let _ = writeln!(out, "and {} entries of other streams", self.others);
        }
        out
    }

    pub(super) fn json_lines(&self) -> String {
        let mut out = String::new();
        for ((connection, stream), sums) in &self.streams {
            let side = |at: usize| json!({ "frames": sums.frames[at], "bytes": sums.bytes[at], "messages": sums.messages[at] });
            let mut object = json!({
                "connection": connection,
                "seconds": sums.seconds(),
                "client": side(0),
                "server": side(1),
                "types": sums.types,
                "violations": sums.violations,
                "incomplete": sums.missing,
            });
            if let Some(stream) = stream {
                object["stream"] = (*stream).into();
            }
            let _ = writeln!(out, "{}", visible_json(&object.to_string()));
        }
        out
    }
}

impl Sums {
    fn seconds(&self) -> f64 {
        match (self.first, self.last) {
            (Some(first), Some(last)) => last.saturating_sub(first).as_secs_f64(),
            _ => 0.0,
        }
    }
}

fn name((connection, stream): (u32, Option<u32>)) -> String {
    match stream {
        Some(stream) => format!("{connection}:{stream}"),
        None => connection.to_string(),
    }
}
