//! Values of `wireloom load`: rates, stages, lengths of messages, percentages.

use std::time::Duration;

use super::expectation::number;
use crate::args::value;

/// Messages per second.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    match number(text) {
        Some(rate) if (0.001..=1e8).contains(&rate) => Ok(rate),
        _ => Err("a rate is a number of messages per second, such as 500 or 20k".into()),
    }
}

/// A part of an open loop with a rate of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stage {
    pub(crate) time: Duration,
    /// Messages per second.
    pub(crate) rate: f64,
}

/// `TIME@RATE`.
pub(super) fn stage(text: &str) -> Result<Stage, String> {
    const SHAPE: &str = "a stage is TIME@RATE, such as 10s@1k/s";
    let (time, per_second) = text.split_once('@').ok_or(SHAPE)?;
    let per_second = per_second.strip_suffix("/s").unwrap_or(per_second);
    Ok(Stage { time: value::time(time)?, rate: rate(per_second)? })
}

/// The lengths of messages, in bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Sizes {
    Fixed(usize),
    /// Uniformly distributed from the first to the second length.
    Uniform(usize, usize),
    /// Lengths, each with its share of the messages; the shares add up to 1.
    Weighted(Vec<(usize, f64)>),
}

impl Sizes {
    pub(crate) fn min(&self) -> usize {
        match self {
            Self::Fixed(len) | Self::Uniform(len, _) => *len,
            Self::Weighted(lens) => lens.iter().map(|(len, _)| *len).min().unwrap_or_default(),
        }
    }

    pub(crate) fn max(&self) -> usize {
        match self {
            Self::Fixed(len) | Self::Uniform(_, len) => *len,
            Self::Weighted(lens) => lens.iter().map(|(len, _)| *len).max().unwrap_or_default(),
        }
    }
}

/// The longest message: it is held in memory.
const LEN_MAX: usize = 1 << 30;

fn len(text: &str) -> Result<usize, String> {
    match value::memory(text)? {
        len if len > LEN_MAX => Err("a message is held in memory, so it has at most 1G".into()),
        len => Ok(len),
    }
}

/// `64K`, `32..1K`, or `32:90,64K:10`.
pub(super) fn sizes(text: &str) -> Result<Sizes, String> {
    const SHAPE: &str =
        "the length is BYTES, MIN..MAX, or BYTES:SHARE,BYTES:SHARE..., such as 1K, 32..1K or 32:90,64K:10";
    if let Some((min, max)) = text.split_once("..") {
        let (min, max) = (len(min)?, len(max)?);
        return if min < max { Ok(Sizes::Uniform(min, max)) } else { Err(SHAPE.into()) };
    }
    if !text.contains(':') {
        return len(text).map(Sizes::Fixed);
    }
    let mut lens = Vec::new();
    for part in text.split(',') {
        let (bytes, share) = part.split_once(':').ok_or(SHAPE)?;
        let share = number(share).filter(|&share| share > 0.0).ok_or(SHAPE)?;
        lens.push((len(bytes)?, share));
    }
    let sum: f64 = lens.iter().map(|(_, share)| share).sum();
    for (_, share) in &mut lens {
        *share /= sum;
    }
    Ok(Sizes::Weighted(lens))
}

/// `5%`, as a fraction.
pub(super) fn percentage(text: &str) -> Result<f64, String> {
    text.strip_suffix('%')
        .and_then(number)
        .filter(|percent| *percent <= 1000.0)
        .map(|percent| percent / 100.0)
        .ok_or_else(|| "it is a percentage, such as 5%".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_rates() {
        assert_eq!(rate("500"), Ok(500.0));
        assert_eq!(rate("1.5k"), Ok(1500.0));
        assert_eq!(rate("2M"), Ok(2e6));
        for wrong in ["", "0", "-1", "k", "1G", "nan", "inf"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reads_stages() {
        let expected = Stage { time: Duration::from_secs(10), rate: 1000.0 };
        assert_eq!(stage("10s@1k/s"), Ok(expected));
        assert_eq!(stage("10@1000"), Ok(expected));
        for wrong in ["", "10s", "10s@", "@1k", "0s@1k", "10s@0/s"] {
            assert!(stage(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reads_sizes() {
        assert_eq!(sizes("1K"), Ok(Sizes::Fixed(1024)));
        assert_eq!(sizes("32..1K"), Ok(Sizes::Uniform(32, 1024)));
        assert_eq!(sizes("32:90,64K:10"), Ok(Sizes::Weighted(vec![(32, 0.9), (65_536, 0.1)])));
        for wrong in ["", "0", "9..9", "9..8", "0..8", "1:", "1:0", "1:2,", "x:1", "2G", "1..2G", "2G:1"] {
            assert!(sizes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reads_percentages() {
        assert_eq!(percentage("5%"), Ok(0.05));
        assert_eq!(percentage("0%"), Ok(0.0));
        for wrong in ["", "5", "%", "-1%", "x%"] {
            assert!(percentage(wrong).is_err(), "{wrong}");
        }
    }
}
