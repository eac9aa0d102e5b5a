//! The committed counts: a text file with one benchmark a line, so that a change of it reads well in a review.
//!
//! ```text
//! rustc 1.95.0
//! valgrind 3.19.0
//! websocket::decode::ascii_13 7934
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::path::Path;

/// Instructions by benchmark, and the versions that they were counted with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Baseline {
    /// The version of the Rust toolchain, as rustup names it.
    pub(crate) rustc: String,
    pub(crate) valgrind: String,
    pub(crate) counts: BTreeMap<String, u64>,
}

const HEADER: &str = "\
# Instructions of each benchmark, counted by Callgrind. `cargo run -p wireloom-counts -- --renew` writes this file.
# To move to another version of Rust, edit the line `rustc` and renew.
";

impl Baseline {
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        Self::parse(&std::fs::read_to_string(path)?)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        std::fs::write(path, self.to_text())
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (mut rustc, mut valgrind, mut counts) = (None, None, BTreeMap::new());
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (name, value) = line.split_once(' ').ok_or_else(|| format!("no value in {line:?}"))?;
            match name {
                "rustc" => rustc = Some(value.to_owned()),
                "valgrind" => valgrind = Some(value.to_owned()),
                _ => {
                    let count = value.trim().parse().map_err(|_| format!("no count in {line:?}"))?;
                    counts.insert(name.to_owned(), count);
                }
            }
        }
        Ok(Self {
            rustc: rustc.ok_or("no line `rustc`")?,
            valgrind: valgrind.ok_or("no line `valgrind`")?,
            counts,
        })
    }

    fn to_text(&self) -> String {
        let mut text = format!("{HEADER}rustc {}\nvalgrind {}\n", self.rustc, self.valgrind);
        for (name, count) in &self.counts {
            writeln!(text, "{name} {count}").expect("writing to a string");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_baseline_reads_back() {
        let counts = BTreeMap::from([("a::b".to_owned(), 12), ("a::c".to_owned(), 7)]);
        let baseline = Baseline { rustc: "1.95.0".into(), valgrind: "3.19.0".into(), counts };
        assert_eq!(Baseline::parse(&baseline.to_text()), Ok(baseline));
    }

    #[test]
    fn rejects_a_line_without_a_count_and_a_file_without_versions() {
        assert!(Baseline::parse("rustc 1\nvalgrind 3\na b").is_err());
        assert!(Baseline::parse("rustc 1\nvalgrind 3\na").is_err());
        assert!(Baseline::parse("valgrind 3\na 1").is_err());
        assert!(Baseline::parse("rustc 1\na 1").is_err());
    }
}
