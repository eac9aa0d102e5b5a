//! Logs of HdrHistogram, version 1.3 with histograms in V2: the latencies of each second, in nanoseconds. A comment has what a
//! histogram lacks.

use std::path::Path;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, IntervalLogWriterBuilder, LogEntry};
use hdrhistogram::serialization::{Deserializer, V2DeflateSerializer};
use serde_json::{Map, Value, json};

use super::recorder::Counts;

/// Begins the comment with the counts.
const COUNTS: &str = "#[wireloom ";

/// The longest file that is read: an hour of a process takes about 10 MiB.
const FILE_LEN_MAX: u64 = 1 << 30;

/// The lines of a run so far.
#[derive(Default)]
pub(super) struct Log {
    started: Option<SystemTime>,
    lines: Vec<u8>,
}

impl Log {
    /// Adds the latencies of the time from `begin` to `end` of the run.
    pub(super) fn add(&mut self, latencies: &Histogram<u64>, begin: Duration, end: Duration) {
        let now = SystemTime::now();
        self.started.get_or_insert_with(|| now.checked_sub(end).unwrap_or(now));
        if latencies.is_empty() {
            return;
        }
        let mut serializer = V2DeflateSerializer::new();
        let writer = IntervalLogWriterBuilder::new().begin_log_with(&mut self.lines, &mut serializer);
        // Writing to memory does not fail, nor does a histogram with a bound.
        let _ = writer.map(|mut writer| writer.write_histogram(latencies, begin, end - begin, None));
    }

    /// The file. `time` is what was measured.
    pub(super) fn text(
        &self,
        counts: &Counts,
        connections: usize,
        time: Duration,
        is_interrupted: bool,
    ) -> Vec<u8> {
        let errors =
            counts.errors.kinds().iter().map(|(kind, count)| ((*kind).to_owned(), json!(count))).collect();
        let head = Head {
            connections: connections as u64,
            time,
            sent: counts.sent,
            received: counts.received,
            is_interrupted,
            errors,
        };
        let started =
            self.started.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok()).unwrap_or_default();
        file(started, &head, &self.lines)
    }
}

/// The sum of counts, which a file may hold in any size.
pub(super) fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// All parts as a log with one histogram.
pub(super) fn text(latencies: &Histogram<u64>, parts: &[Part], time: Duration) -> Vec<u8> {
    let mut log = Log::default();
    log.add(latencies, Duration::ZERO, time);
    let mut errors = Map::new();
    for (kind, count) in parts.iter().flat_map(|part| &part.errors) {
        let sum = errors.get(kind).and_then(Value::as_u64).unwrap_or_default().saturating_add(*count);
        errors.insert(kind.clone(), json!(sum));
    }
    let sum = |count: fn(&Part) -> u64| sum(parts.iter().map(count));
    let head = Head {
        connections: sum(|part| part.connections),
        time,
        sent: sum(|part| part.sent),
        received: sum(|part| part.received),
        is_interrupted: parts.iter().any(|part| part.is_interrupted),
        errors,
    };
    let started = parts.iter().filter_map(|part| part.started).min().unwrap_or_default();
    file(started, &head, &log.lines)
}

/// The counts in the comment of the file.
struct Head {
    connections: u64,
    time: Duration,
    sent: u64,
    received: u64,
    is_interrupted: bool,
    errors: Map<String, Value>,
}

fn file(started: Duration, head: &Head, lines: &[u8]) -> Vec<u8> {
    let counted = json!({
        "connections": head.connections, "time": head.time.as_secs_f64(), "sent": head.sent,
        "answered": head.received, "interrupted": head.is_interrupted, "errors": head.errors,
    });
    let mut text = format!(
        "#[Histogram log format version 1.3]\n\
         #[StartTime: {:.3} (seconds since epoch)]\n\
         #[latencies in nanoseconds]\n\
         {COUNTS}{counted}]\n\
         \"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n",
        started.as_secs_f64(),
    )
    .into_bytes();
    text.extend_from_slice(lines);
    text
}

/// The measurements of one process.
pub(super) struct Part {
    pub(super) name: String,
    /// Since 1970.
    pub(super) started: Option<Duration>,
    pub(super) time: Duration,
    pub(super) connections: u64,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// A signal ended it.
    pub(super) is_interrupted: bool,
    /// By kind.
    pub(super) errors: Vec<(String, u64)>,
    pub(super) latencies: Histogram<u64>,
}

impl Part {
    /// # Errors
    /// The file cannot be read, or is no log of HdrHistogram.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let fail = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let len = std::fs::metadata(path).map_err(|error| fail(&error))?.len();
        if len > FILE_LEN_MAX {
            return Err(fail(&"it is larger than 1 GiB"));
        }
        let text = std::fs::read(path).map_err(|error| fail(&error))?;
        Self::parse(path.display().to_string(), &text).map_err(|error| fail(&error))
    }

    fn parse(name: String, text: &[u8]) -> Result<Self, String> {
        let mut latencies = super::recorder::histogram();
        let (mut started, mut end) = (None, Duration::ZERO);
        let mut begin = None;
        let mut deserializer = Deserializer::new();
        for entry in IntervalLogIterator::new(text) {
            match entry.map_err(|_| "a line is not of a log of HdrHistogram".to_owned())? {
                LogEntry::StartTime(at) => started = started.or(Some(at)),
                LogEntry::BaseTime(_) => {}
                LogEntry::Interval(interval) => {
                    let encoded = STANDARD.decode(interval.encoded_histogram());
                    let encoded = encoded.map_err(|_| "a histogram is not base64".to_owned())?;
                    let histogram: Histogram<u64> = deserializer
                        .deserialize(&mut &*encoded)
                        .map_err(|error| format!("a histogram cannot be read: {error}"))?;
                    latencies
                        .add(&histogram)
                        .map_err(|error| format!("a histogram cannot be added: {error}"))?;
                    let start = interval.start_timestamp();
                    begin = Some(begin.unwrap_or(start).min(start));
                    end = end.max(start.checked_add(interval.duration()).ok_or("a time is too large")?);
                }
            }
        }
        let counted = text.split(|&byte| byte == b'\n').find_map(|line| {
            let line = std::str::from_utf8(line).ok()?.trim_end();
            serde_json::from_str::<Value>(line.strip_prefix(COUNTS)?.strip_suffix(']')?).ok()
        });
        if counted.is_none() && begin.is_none() {
            return Err("it has neither counts nor histograms".into());
        }
        let counted = counted.unwrap_or_default();
        let count = |name: &str| counted[name].as_u64();
        let time = counted["time"].as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let errors = counted["errors"].as_object().into_iter().flatten();
        Ok(Self {
            name,
            started,
            time: time.unwrap_or_else(|| end.saturating_sub(begin.unwrap_or_default())),
            connections: count("connections").unwrap_or_default(),
            sent: count("sent").unwrap_or(latencies.len()),
            received: count("answered").unwrap_or(latencies.len()),
            is_interrupted: counted["interrupted"] == true,
            errors: errors.map(|(kind, count)| (kind.clone(), count.as_u64().unwrap_or_default())).collect(),
            latencies,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_as_it_was_written() {
        let mut log = Log::default();
        let mut all = super::super::recorder::histogram();
        for second in 0..3_u64 {
            let mut histogram = super::super::recorder::histogram();
            for number in 0..1_000 {
                histogram.record(1_000_000 * (second + 1) + number * 1_000).unwrap();
            }
            all.add(&histogram).unwrap();
            log.add(&histogram, Duration::from_secs(second), Duration::from_secs(second + 1));
        }
        // A second without answers.
        log.add(&super::super::recorder::histogram(), Duration::from_secs(3), Duration::from_secs(4));
        let mut counts = Counts { sent: 3_001, received: 3_000, ..Counts::default() };
        counts.errors.lost = 1;
        let text = log.text(&counts, 5, Duration::from_secs(4), true);
        let part = Part::parse("a".into(), &text).unwrap();
        assert!(part.is_interrupted);
        assert_eq!(part.latencies, all);
        assert_eq!((part.sent, part.received, part.connections), (3_001, 3_000, 5));
        assert_eq!(part.time, Duration::from_secs(4));
        assert!(part.errors.contains(&("lost".into(), 1)));
        let ago = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap() - part.started.unwrap();
        assert!(ago < Duration::from_secs(60), "{ago:?}");
        // Of another program: without the comment.
        let foreign: Vec<&[u8]> = text
            .split_inclusive(|&byte| byte == b'\n')
            .filter(|line| !line.starts_with(COUNTS.as_bytes()))
            .collect();
        let part = Part::parse("b".into(), &foreign.concat()).unwrap();
        assert_eq!((part.received, part.time, part.latencies.len()), (3_000, Duration::from_secs(3), 3_000));
        assert!(!part.is_interrupted);
        // An interval that ends after the end of time.
        let last = text.split_inclusive(|&byte| byte == b'\n').next_back().unwrap();
        let late = [b"18446744073709551615.0", &last[last.iter().position(|&byte| byte == b',').unwrap()..]]
            .concat();
        assert_eq!(Part::parse("d".into(), &late).err(), Some("a time is too large".into()));
        for wrong in [&b""[..], b"hello\n", b"0.1,1.0,2.0,!!!!\n", b"0.1,1.0,2.0,AAAA\n"] {
            assert!(Part::parse("c".into(), wrong).is_err(), "{wrong:?}");
        }
    }
}
