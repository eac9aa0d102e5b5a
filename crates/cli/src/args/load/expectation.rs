//! `--expect`: a requirement for the result.

use std::fmt;

/// A figure that `--expect` compares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Metric {
    /// A percentile of the latency, from 0 to 100.
    Percentile(f64),
    Mean,
    Max,
    /// Answers per second.
    Rate,
    Errors,
}

/// `METRIC OPERATOR VALUE`. Latencies are in seconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expectation {
    pub(crate) text: String,
    pub(crate) metric: Metric,
    operator: Operator,
    value: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Expectation {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        const SHAPE: &str = "it is a metric, <, <=, > or >=, and a value, such as 'p99<5ms' or 'rate>=10k'";
        let at = text.find(['<', '>']).ok_or(SHAPE)?;
        let (name, rest) = text.split_at(at);
        let (operator, value) = match rest.split_at(1) {
            ("<", rest) => match rest.strip_prefix('=') {
                Some(value) => (Operator::LessOrEqual, value),
                None => (Operator::Less, rest),
            },
            (_, rest) => match rest.strip_prefix('=') {
                Some(value) => (Operator::GreaterOrEqual, value),
                None => (Operator::Greater, rest),
            },
        };
        let metric = match name.trim() {
            "mean" => Metric::Mean,
            "max" => Metric::Max,
            "rate" => Metric::Rate,
            "errors" => Metric::Errors,
            name => match name.strip_prefix('p').and_then(|number| number.parse().ok()) {
                Some(percentile) if (0.0..=100.0).contains(&percentile) => Metric::Percentile(percentile),
                _ => return Err("the metric is p50, p99, p99.9 or such, mean, max, rate or errors".into()),
            },
        };
        let value = value.trim();
        let value = match metric {
            Metric::Rate | Metric::Errors => number(value),
            _ => latency(value),
        };
        Ok(Self { text: text.trim().to_owned(), metric, operator, value: value.ok_or(SHAPE)? })
    }

    /// Whether a value meets it.
    pub(crate) fn is_met_by(&self, value: f64) -> bool {
        match self.operator {
            Operator::Less => value < self.value,
            Operator::LessOrEqual => value <= self.value,
            Operator::Greater => value > self.value,
            Operator::GreaterOrEqual => value >= self.value,
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percentile(percentile) => write!(f, "p{percentile}"),
            Self::Mean => f.write_str("mean"),
            Self::Max => f.write_str("max"),
            Self::Rate => f.write_str("rate"),
            Self::Errors => f.write_str("errors"),
        }
    }
}

/// Seconds, from a number with a unit.
fn latency(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(|char: char| char.is_alphabetic());
    let unit = match &text[digits.len()..] {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return None,
    };
    plain(digits).map(|number| number * unit)
}

/// A number, or one with k or M for thousands or millions.
pub(super) fn number(text: &str) -> Option<f64> {
    let (digits, factor) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1e3),
        None => text.strip_suffix('M').map_or((text, 1.0), |digits| (digits, 1e6)),
    };
    plain(digits).map(|number| number * factor)
}

fn plain(digits: &str) -> Option<f64> {
    digits.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_expectations() {
        let parsed = Expectation::parse("p99.9 < 5ms").unwrap();
        assert_eq!(parsed.metric, Metric::Percentile(99.9));
        assert!(parsed.is_met_by(0.004_9) && !parsed.is_met_by(0.005));
        let parsed = Expectation::parse("rate>=10k").unwrap();
        assert!(parsed.is_met_by(10_000.0) && !parsed.is_met_by(9_999.0));
        assert!(Expectation::parse("max<=250us").unwrap().is_met_by(250e-6));
        assert!(Expectation::parse("errors<=0").unwrap().is_met_by(0.0));
        for wrong in [
            "", "p99", "p99<", "p99<5", "p101<5ms", "pp<1s", "rate>5ms", "rate=5", "x<1", "max<-1s",
            "max<nans",
        ] {
            assert!(Expectation::parse(wrong).is_err(), "{wrong}");
        }
    }
}
