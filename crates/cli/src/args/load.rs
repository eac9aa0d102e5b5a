//! The arguments of `wireloom load`.

use std::fmt;
use std::time::Duration;

use clap::Args;

use super::connect::Tls;
use super::value;

const AFTER: &str = "\
Each connection sends messages to an echo, such as the route /echo of `wireloom serve`, and checks
that each answer equals what was sent. Each message begins with its number, in up to 16 hexadecimal
digits, so that lost, repeated and changed messages are found.

Closed loop (--pipeline): a connection sends the next message when an answer has arrived. This finds
the highest rate, but while the server is paused, nothing is sent and nothing measured.
Open loop (--rate): messages are sent on a schedule, and latency counts from the time at which each
was to be sent. A pause of the server shows in all messages that it delayed.

The load may harm a server. Hosts outside loopback and private networks are refused without
--i-own-this-server.

Metrics of --expect:
  p50, p99, p99.9 ...   a percentile of the latency: 'p99<5ms'
  mean, max             of the latency
  rate                  answers per second: 'rate>=10k'
  errors                messages lost, wrong or unexpected, and connections failed or closed by the
                        server: 'errors<=10'

Exit codes:
  0  no errors, and each --expect was met
  1  no connection: not found, refused, timed out, or the handshake failed
  2  invalid arguments, or a host that is not private
  4  an --expect was not met
  5  there were errors, and no --expect about errors

Try it:
  wireloom serve &
  wireloom load ws://127.0.0.1:8080/echo
  wireloom load ws://127.0.0.1:8080/echo --rate 5000 --connections 50 --expect 'p99<5ms'
  wireloom load ws://127.0.0.1:8080/echo --http2 --pipeline 16 --size 1K --json";

#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Load {
    /// ws:// or wss://
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// Add a header; may be repeated. Host and Origin replace the usual ones
    #[arg(long, short = 'H', value_name = "NAME: VALUE", value_parser = value::header, allow_hyphen_values = true)]
    pub(crate) header: Vec<(String, String)>,
    /// Offer a subprotocol; may be repeated, the preferred one first
    #[arg(long, value_name = "NAME")]
    pub(crate) subprotocol: Vec<String>,
    /// Use WebSocket over HTTP/2 (RFC 8441), each over a connection of its own: by ALPN for wss://, by prior knowledge for ws://
    #[arg(long)]
    pub(crate) http2: bool,
    /// Allow a host outside loopback and private networks
    #[arg(long)]
    pub(crate) i_own_this_server: bool,

    #[command(flatten)]
    pub(crate) volume: Volume,
    #[command(flatten)]
    pub(crate) payload: PayloadArgs,
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) tls: Tls,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Load")]
pub(crate) struct Volume {
    /// Connections at once
    #[arg(long, short, value_name = "N", default_value_t = 10, value_parser = value::count)]
    pub(crate) connections: usize,
    /// Closed loop: messages of a connection that wait for their answers at once; 1 by default
    #[arg(long, value_name = "N", value_parser = value::count, conflicts_with = "rate")]
    pub(crate) pipeline: Option<usize>,
    /// Open loop: messages per second of all connections together, such as 500 or 20k
    #[arg(long, short, value_name = "RATE", value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// Open the connections evenly over this time, which counts as part of the run. Otherwise all are opened before it begins
    #[arg(long, value_name = "TIME", value_parser = value::time)]
    pub(crate) ramp_up: Option<Duration>,
    /// How long to send, after --warmup; 10s by default
    #[arg(long, short, value_name = "TIME", value_parser = value::time, conflicts_with = "count")]
    pub(crate) duration: Option<Duration>,
    /// Send this many messages instead, after --warmup
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Send for this long before the measurement begins
    #[arg(long, value_name = "TIME", value_parser = value::time)]
    pub(crate) warmup: Option<Duration>,
    /// A message without an answer after this time is lost; also the limit for connecting
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = value::time)]
    pub(crate) timeout: Duration,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Messages")]
pub(crate) struct PayloadArgs {
    /// The length of each message
    #[arg(long, value_name = "BYTES", default_value = "32", value_parser = value::memory)]
    pub(crate) size: usize,
    /// Send text, which is the default: JSON-like, so that it compresses
    #[arg(long, conflicts_with = "binary")]
    pub(crate) text: bool,
    /// Send random bytes
    #[arg(long)]
    pub(crate) binary: bool,
    /// Offer compression (permessage-deflate)
    #[arg(long)]
    pub(crate) compress: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Output")]
pub(crate) struct Output {
    /// Print the result as one JSON object, and progress on the standard error
    #[arg(long)]
    pub(crate) json: bool,
    /// Print no progress
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Require this of the result, such as 'p99<5ms' or 'rate>=10k'; may be repeated
    #[arg(long, value_name = "METRIC<VALUE", value_parser = Expectation::parse)]
    pub(crate) expect: Vec<Expectation>,
}

/// What `--expect` compares.
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
    fn parse(text: &str) -> Result<Self, String> {
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
fn number(text: &str) -> Option<f64> {
    let (digits, factor) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1e3),
        None => text.strip_suffix('M').map_or((text, 1.0), |digits| (digits, 1e6)),
    };
    plain(digits).map(|number| number * factor)
}

fn plain(digits: &str) -> Option<f64> {
    digits.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
}

/// Messages per second.
fn rate(text: &str) -> Result<f64, String> {
    match number(text) {
        Some(rate) if (0.001..=1e8).contains(&rate) => Ok(rate),
        _ => Err("a rate is a number of messages per second, such as 500 or 20k".into()),
    }
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

    #[test]
    fn reads_rates() {
        assert_eq!(rate("500"), Ok(500.0));
        assert_eq!(rate("1.5k"), Ok(1500.0));
        assert_eq!(rate("2M"), Ok(2e6));
        for wrong in ["", "0", "-1", "k", "1G", "nan", "inf"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
