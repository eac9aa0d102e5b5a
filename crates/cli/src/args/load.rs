//! The arguments of `wireloom load`.
//!
//! Layers: `expectation` → `speed`, `volume`.

mod expectation;
mod speed;
mod volume;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::connect::Tls;
use super::value::{self, has_scheme};
use crate::exit::exit_codes;
pub(crate) use expectation::{Expectation, Metric};
pub(crate) use speed::Speed;
pub(crate) use volume::{Sizes, Stage};

const AFTER: &str = concat!(
    "\
Scenarios:
  echo      send messages to an echo and check that each answer equals what was sent; the default
  sink      send messages that are not answered; pings confirm that they have arrived
  source    receive messages, as fast as they come
  rooms     --publishers send, the other connections receive: latency, loss, order, repetition
  churn     open connections and close them again; the latency is the time to open
  idle      hold connections that send nothing, and check at the end that each is alive
  slow      receive only --rate messages per second, of all connections together
  requests  HTTP requests: HTTP/2 (by prior knowledge for http://), or --http1.1; the default for
            such URLs
  --script  send, expect and wait as a file says
  --replay  send again what the clients of a capture sent, when they sent it

Closed loop (--pipeline): a connection sends the next message when an answer has arrived. This finds
the highest rate, but while the server is paused, nothing is sent and nothing measured.
Open loop (--rate, --stage): messages are sent on a schedule, and latency counts from the time at
which each was to be sent. A pause of the server shows in all messages that it delayed.

One process loads with one core. Several, on several machines too, write --hdr files, and
`load merge` adds them up.

A server that accepts no connection any more for a second ends the load.

The load may harm a server. Hosts outside loopback and private networks are refused without
--i-own-this-server.

Steps of --script, one a line; each connection repeats them:
  send TEXT             send a text message; {connection} and {round} are replaced by numbers
  send-binary HEX       send a binary message
  expect TEXT           the next message is this text
  expect-prefix TEXT    the next message begins with this text
  expect-any            any next message; without one within --timeout the round ends
  wait TIME             pause
  # COMMENT

Metrics of --expect:
  p50, p99, p99.9 ...   a percentile of the latency: 'p99<5ms'
  mean, max             of the latency
  rate                  answers per second: 'rate>=10k'
  errors                messages lost, wrong or unexpected, and connections failed or closed by the
                        server: 'errors<=10'

",
    exit_codes!(),
    "
Try it:
  wireloom serve &
  wireloom load ws://127.0.0.1:8080/echo
  wireloom load ws://127.0.0.1:8080/echo --rate 5000 --connections 50 --html report.html
  wireloom load ws://127.0.0.1:8080/echo --http2 --pipeline 16 --size 1K --expect 'p99<5ms'
  wireloom load ws://127.0.0.1:8080/rooms/lobby --scenario rooms --publishers 2 --rate 100
  wireloom load http://127.0.0.1:8080/echo --size 1K --pipeline 16 --json
  wireloom load http://127.0.0.1:8080/echo --http1.1 --size 1K --check --csv seconds.csv
  wireloom load ws://127.0.0.1:8080/echo --hdr a.hdr &
  wireloom load ws://127.0.0.1:8080/echo --hdr b.hdr; wait
  wireloom load merge a.hdr b.hdr --expect 'p99<5ms'"
);

#[derive(Args, Debug)]
#[command(after_help = AFTER, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Load {
    #[command(subcommand)]
    pub(crate) command: Option<LoadCommand>,
    /// ws:// or wss://; http:// or https:// for requests; without a scheme ws://
    #[arg(value_name = "URL", required = true, value_parser = value::url)]
    url: Option<String>,
    /// The task of the connections; see below
    #[arg(long, value_enum, value_name = "NAME", hide_possible_values = true, conflicts_with = "script")]
    scenario: Option<Scenario>,
    /// Run the steps in this file; see below
    #[arg(long, value_name = "FILE")]
    pub(crate) script: Option<PathBuf>,
    /// Send the messages of the clients in this capture: what `serve --record` and `connect --record` write, or any other that
    /// `wireloom inspect` reads. Each connection plays one of the capture, in turn; by default there are as many as in the capture
    #[arg(long, value_name = "FILE", conflicts_with_all = ["script", "scenario"])]
    pub(crate) replay: Option<PathBuf>,
    /// With --replay: how fast, such as 2 for twice the speed of the capture, or max
    #[arg(long, value_name = "N|max", value_parser = Speed::parse, requires = "replay")]
    pub(crate) speed: Option<Speed>,
    /// Add a header; may be repeated. Host and Origin replace the usual ones
    #[arg(long, short = 'H', value_name = "NAME: VALUE", value_parser = value::header, allow_hyphen_values = true)]
    pub(crate) header: Vec<(String, String)>,
    /// Give each connection its own token, a line of this file. {token} in the URL and in headers is replaced; if there is
    /// none, `Authorization: Bearer` is sent
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
    /// Offer a subprotocol; may be repeated, the preferred one first
    #[arg(long, value_name = "NAME")]
    pub(crate) subprotocol: Vec<String>,
    /// Use WebSocket over HTTP/2 (RFC 8441), each over its own connection: by ALPN for wss://, by prior knowledge for ws://
    #[arg(long)]
    pub(crate) http2: bool,
    /// Requests over HTTP/1.1, one at a time on each connection
    #[arg(long = "http1.1", conflicts_with = "http2")]
    pub(crate) http1: bool,
    /// With --http2: WebSockets over each HTTP/2 connection
    #[arg(long, value_name = "N", value_parser = value::count, requires = "http2")]
    pub(crate) streams: Option<usize>,
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
    pub(crate) comparison: ComparisonArgs,
    #[command(flatten)]
    pub(crate) tls: Tls,
}

/// The task of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    Echo,
    Sink,
    Source,
    Rooms,
    Churn,
    Idle,
    Slow,
    Requests,
    /// `--script`.
    #[value(skip)]
    Script,
    /// `--replay`.
    #[value(skip)]
    Replay,
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Echo => "echo",
            Self::Sink => "sink",
            Self::Source => "source",
            Self::Rooms => "rooms",
            Self::Churn => "churn",
            Self::Idle => "idle",
            Self::Slow => "slow",
            Self::Requests => "requests",
            Self::Script => "script",
            Self::Replay => "replay",
        })
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum LoadCommand {
    /// Add up the --hdr files of several processes that loaded a server at the same time
    Merge(Merge),
}

#[derive(Args, Debug)]
pub(crate) struct Merge {
    /// Files that --hdr has written
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Print the result as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Write all latencies to this file, in the same format
    #[arg(long, value_name = "FILE")]
    pub(crate) hdr: Option<PathBuf>,
    /// Require this of the result, such as 'p99<5ms' or 'rate>=10k'; may be repeated
    #[arg(long, value_name = "METRIC<VALUE", value_parser = Expectation::parse)]
    pub(crate) expect: Vec<Expectation>,
}

impl Load {
    /// The URL; empty with a subcommand.
    pub(crate) fn url(&self) -> &str {
        self.url.as_deref().unwrap_or_default()
    }

    pub(crate) fn scenario(&self) -> Scenario {
        match self.scenario {
            Some(scenario) => scenario,
            None if self.script.is_some() => Scenario::Script,
            None if self.replay.is_some() => Scenario::Replay,
            None if is_http(self.url()) => Scenario::Requests,
            None => Scenario::Echo,
        }
    }

    /// How long messages are sent, after the warm-up.
    pub(crate) fn duration(&self) -> Duration {
        const DEFAULT: Duration = Duration::from_secs(10);
        match &self.volume.stage[..] {
            [] => self.volume.duration.unwrap_or(DEFAULT),
            stages => stages.iter().map(|stage| stage.time).sum(),
        }
    }

    /// Whether messages are sent on a schedule.
    pub(crate) fn is_open_loop(&self) -> bool {
        self.volume.rate.is_some() || !self.volume.stage.is_empty()
    }

    /// How fast the capture is played; `None` without `--replay`.
    pub(crate) fn speed_of_replay(&self) -> Option<Speed> {
        self.replay.as_ref().map(|_| self.speed.unwrap_or_default())
    }

    /// Whether each message has a time at which it is to be sent.
    pub(crate) fn is_paced(&self) -> bool {
        self.is_open_loop() || matches!(self.speed_of_replay(), Some(Speed::Times(_)))
    }

    /// The lengths of the messages.
    pub(crate) fn sizes(&self) -> Sizes {
        self.payload.size.clone().unwrap_or(Sizes::Fixed(32))
    }

    /// A sentence about arguments that do not go together; `None` if they do.
    pub(crate) fn conflict(&self) -> Option<String> {
        let scenario = self.scenario();
        if let Some(option) = self.misplaced(scenario) {
            return Some(format!("{option} does not apply to the scenario {scenario}"));
        }
        if let Some(url) = [Some(self.url()), self.comparison.against.as_deref()]
            .into_iter()
            .flatten()
            .find(|url| is_http(url) != (scenario == Scenario::Requests))
        {
            // An invalid scheme is reported when the URL is used.
            return match (scenario, is_http(url)) {
                (Scenario::Requests, _) => {
                    Some("the scenario requests needs an http:// or https:// URL".into())
                }
                _ => Some(format!("the scenario {scenario} needs a ws:// or wss:// URL")),
            };
        }
        let Volume { publishers, rate, .. } = self.volume;
        let connections = self.volume.connections();
        match scenario {
            Scenario::Slow if rate.is_none() => {
                return Some("the scenario slow needs --rate: the messages per second to read".into());
            }
            Scenario::Rooms => {
                if !self.is_open_loop() {
                    return Some(
                        "the scenario rooms needs --rate or --stage: publishers get no answers".into(),
                    );
                }
                if connections <= publishers.unwrap_or(1) {
                    return Some(
                        "the scenario rooms needs more --connections than --publishers: the others subscribe"
                            .into(),
                    );
                }
                if self.sizes().min() < ROOM_SIZE_MIN {
                    return Some(format!(
                        "the scenario rooms needs a --size of at least {ROOM_SIZE_MIN}: its messages carry a number and a time"
                    ));
                }
            }
            Scenario::Requests if self.http1 && self.volume.pipeline.is_some_and(|pipeline| pipeline > 1) => {
                return Some(
                    "--http1.1 has one request at a time on each connection: --connections, not --pipeline"
                        .into(),
                );
            }
            Scenario::Requests
                if self.payload.check && self.payload.size.is_none() && self.payload.messages.is_none() =>
            {
                return Some(
                    "--check needs --size or --messages: without them, requests have no content".into(),
                );
            }
            _ => {}
        }
        if self.comparison.fail_if_slower.is_some()
            && self.comparison.compare.is_none()
            && self.comparison.against.is_none()
        {
            return Some("--fail-if-slower needs --compare or --against: something to be slower than".into());
        }
        if self.comparison.against.is_some() && self.comparison.rounds < ROUNDS_MIN {
            return Some(format!(
                "--rounds must be at least {ROUNDS_MIN}: fewer give no confidence interval"
            ));
        }
        if self.output.json && self.output.prometheus.as_deref().is_some_and(|file| file.as_os_str() == "-") {
            return Some("--json and --prometheus - both write to the standard output".into());
        }
        None
    }

    /// The first option that does not apply to the scenario.
    fn misplaced(&self, scenario: Scenario) -> Option<&'static str> {
        use Scenario::{Churn, Echo, Idle, Replay, Requests, Rooms, Script, Sink, Slow};
        let Volume { pipeline, publishers, rate, stage, ramp_up, count, warmup, .. } = &self.volume;
        let PayloadArgs { size, text, binary, messages, compress, method, check } = &self.payload;
        let sends = [Echo, Sink, Rooms, Requests];
        let options: [(&str, bool, &[Scenario]); 15] = [
            ("--pipeline", pipeline.is_some(), &[Echo, Requests]),
            ("--publishers", publishers.is_some(), &[Rooms]),
            ("--rate", rate.is_some(), &[Echo, Sink, Rooms, Churn, Slow, Requests]),
            ("--stage", !stage.is_empty(), &[Echo, Sink, Rooms, Churn, Requests]),
            ("--size", size.is_some(), &sends),
            ("--text", *text, &[Echo, Sink, Rooms]),
            ("--binary", *binary, &sends),
            // These scenarios write their own numbers into the messages.
            ("--messages", messages.is_some(), &[Echo, Sink, Requests]),
            ("--method", method.is_some(), &[Requests]),
            ("--check", *check, &[Requests, Replay]),
            ("--ramp-up", ramp_up.is_some() && matches!(scenario, Rooms | Churn), &[]),
            ("--count", count.is_some() && matches!(scenario, Idle | Replay), &[]),
            ("--warmup", warmup.is_some() && matches!(scenario, Idle | Script | Replay), &[]),
            ("--streams", self.streams.is_some() && scenario == Churn, &[]),
            ("--http1.1", self.http1, &[Requests]),
        ];
        let of_websockets = [
            ("--subprotocol", !self.subprotocol.is_empty()),
            ("--compress", *compress),
            ("--http2", self.http2),
        ];
        options
            .into_iter()
            .find(|(_, is_given, scenarios)| *is_given && !scenarios.contains(&scenario))
            .map(|(name, ..)| name)
            .or_else(|| {
                let found = of_websockets.into_iter().find(|(_, is_given)| *is_given);
                found.map(|(name, _)| name).filter(|_| scenario == Requests)
            })
    }
}

/// The minimum number of rounds: with fewer, the order statistics give no interval of 95% for three metrics together.
pub(crate) const ROUNDS_MIN: usize = 8;

/// The minimum length of a room's message in bytes: its number and its time.
pub(crate) const ROOM_SIZE_MIN: usize = 32;

fn is_http(url: &str) -> bool {
    has_scheme(url, "http") || has_scheme(url, "https")
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Load")]
pub(crate) struct Volume {
    /// Connections at once; 10 by default
    #[arg(long, short, value_name = "N", value_parser = value::count)]
    pub(crate) connections: Option<usize>,
    /// Closed loop: messages of a connection that wait for their answers at once; 1 by default
    #[arg(long, value_name = "N", value_parser = value::count, conflicts_with_all = ["rate", "stage"])]
    pub(crate) pipeline: Option<usize>,
    /// Open loop: messages per second of all connections together, such as 500 or 20k
    #[arg(long, short, value_name = "RATE", value_parser = volume::rate)]
    pub(crate) rate: Option<f64>,
    /// Open loop: this rate for this time, such as 10s@1k/s; may be repeated, one stage follows the other
    #[arg(long, value_name = "TIME@RATE", value_parser = volume::stage, conflicts_with_all = ["rate", "duration", "count"])]
    pub(crate) stage: Vec<Stage>,
    /// Rooms: connections that publish; 1 by default. The others subscribe
    #[arg(long, value_name = "N", value_parser = value::count)]
    pub(crate) publishers: Option<usize>,
    /// Open the connections evenly over this time, which counts as part of the run. Otherwise all are opened before it begins
    #[arg(long, value_name = "TIME", value_parser = value::time)]
    pub(crate) ramp_up: Option<Duration>,
    /// How long to send, after --warmup; 10s by default. A --replay is played once by default, and again and again until then
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

impl Volume {
    pub(crate) fn connections(&self) -> usize {
        const DEFAULT: usize = 10;
        self.connections.unwrap_or(DEFAULT)
    }
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Messages")]
pub(crate) struct PayloadArgs {
    /// The length of each message, 32 by default: a number; MIN..MAX, all equally often; or lengths with their shares, such as
    /// 32:90,64K:10
    #[arg(long, value_name = "BYTES", value_parser = volume::sizes)]
    pub(crate) size: Option<Sizes>,
    /// Send text, which is the default: JSON-like, so that it compresses
    #[arg(long, conflicts_with = "binary")]
    pub(crate) text: bool,
    /// Send random bytes; with --messages, send its lines as binary messages
    #[arg(long)]
    pub(crate) binary: bool,
    /// Send the lines of this file, one after the other, and again from the first
    #[arg(long, value_name = "FILE", conflicts_with = "size")]
    pub(crate) messages: Option<PathBuf>,
    /// Offer compression (permessage-deflate)
    #[arg(long)]
    pub(crate) compress: bool,
    /// Requests: the method; GET by default, or POST with --size or --messages
    #[arg(long, short = 'X', value_name = "METHOD", value_parser = value::method)]
    pub(crate) method: Option<String>,
    /// Requests: the content of each response must equal that of its request. With --replay: the server is an echo, each answer must
    /// equal its message, and latency is measured
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Output")]
pub(crate) struct Output {
    /// Print the result as one JSON object, and progress on the standard error
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the result to this file as a page with plots
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write the result to this file (- for the standard output, instead of the table) in the text format of Prometheus
    #[arg(long, value_name = "FILE")]
    pub(crate) prometheus: Option<PathBuf>,
    /// Write each second to this file, as comma-separated values
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Write the latencies of each second to this file, as a log of HdrHistogram (V2), for `load merge` and its other tools
    #[arg(long, value_name = "FILE", conflicts_with = "against")]
    pub(crate) hdr: Option<PathBuf>,
    /// Print no progress
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Require this of the result, such as 'p99<5ms' or 'rate>=10k'; may be repeated
    #[arg(long, value_name = "METRIC<VALUE", value_parser = Expectation::parse)]
    pub(crate) expect: Vec<Expectation>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Comparison")]
pub(crate) struct ComparisonArgs {
    /// Compare with an earlier result of --json
    #[arg(long, value_name = "FILE", conflicts_with = "against")]
    pub(crate) compare: Option<PathBuf>,
    /// Load this server too, in turns, and compare URL with it
    #[arg(long, value_name = "URL", value_parser = value::url, conflicts_with_all = ["count", "stage", "ramp_up"])]
    pub(crate) against: Option<String>,
    /// Turns of each server; --duration is divided by it
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value::count, requires = "against")]
    pub(crate) rounds: usize,
    /// Exit with 4 if the comparison shows that URL is slower by this much or more
    #[arg(long, value_name = "PERCENT", value_parser = volume::percentage)]
    pub(crate) fail_if_slower: Option<f64>,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Args, Command};

    fn load(args: &str) -> Load {
        let args = Args::try_parse_from(["wireloom", "load"].into_iter().chain(args.split(' ')));
        match args.unwrap_or_else(|error| panic!("{error}")).command {
            Command::Load(load) => *load,
            _ => unreachable!("load was given"),
        }
    }

    #[test]
    fn refuses_options_that_do_not_go_together() {
        for (args, expected) in [
            ("ws://h/ --scenario sink --pipeline 2", "--pipeline does not apply to the scenario sink"),
            ("ws://h/ --scenario idle --count 2", "--count does not apply to the scenario idle"),
            ("ws://h/ --scenario source --size 9", "--size does not apply to the scenario source"),
            ("ws://h/ --publishers 2", "--publishers does not apply to the scenario echo"),
            ("ws://h/ --method PUT", "--method does not apply to the scenario echo"),
            ("ws://h/ --script f --rate 1", "--rate does not apply to the scenario script"),
            ("ws://h/ --replay f --size 9", "--size does not apply to the scenario replay"),
            ("ws://h/ --replay f --count 9", "--count does not apply to the scenario replay"),
            ("http://h/ --replay f", "the scenario replay needs a ws:// or wss:// URL"),
            ("http://h/ --compress", "--compress does not apply to the scenario requests"),
            ("ws://h/ --http1.1", "--http1.1 does not apply to the scenario echo"),
            ("http://h/ --http1.1 --pipeline 2", "one request at a time"),
            ("http://h/ --scenario echo", "the scenario echo needs a ws:// or wss:// URL"),
            ("ws://h/ --scenario requests", "the scenario requests needs an http:// or https:// URL"),
            ("ws://h/ --against http://h/", "the scenario echo needs a ws:// or wss:// URL"),
            ("ws://h/ --scenario slow", "the scenario slow needs --rate"),
            ("ws://h/ --scenario rooms", "the scenario rooms needs --rate or --stage"),
            ("ws://h/ --scenario rooms --rate 1 --publishers 10", "more --connections than --publishers"),
            ("ws://h/ --scenario rooms --rate 1 --size 31", "a --size of at least 32"),
            ("http://h/ --check", "--check needs --size or --messages"),
            ("ws://h/ --fail-if-slower 5%", "--fail-if-slower needs --compare or --against"),
            ("ws://h/ --against ws://i/ --rounds 5", "--rounds must be at least 8"),
            ("ws://h/ --json --prometheus -", "both write to the standard output"),
        ] {
            let conflict = load(args).conflict();
            assert!(conflict.as_ref().is_some_and(|text| text.contains(expected)), "{args}: {conflict:?}");
        }
        for args in [
            "ws://h/",
            "http://h/",
            "https://h/ --scenario requests --size 1K --check",
            "wss://h/ --scenario rooms --rate 10 --publishers 9",
            "ws://h/ --stage 1s@10 --stage 2s@20/s --http2 --streams 5",
            "ws://h/ --replay f --speed 2.5 --check --duration 1m --connections 3",
        ] {
            assert_eq!(load(args).conflict(), None, "{args}");
        }
    }

    #[test]
    fn merges_files_or_loads_a_url() {
        let merge = load("merge a b --json");
        assert!(
            matches!(&merge.command, Some(LoadCommand::Merge(merge)) if merge.files.len() == 2 && merge.json)
        );
        assert_eq!(load("ws://h/").url(), "ws://h/");
        for wrong in ["", "merge", "ws://h/ merge a", "--json merge a"] {
            let args = ["wireloom", "load"].into_iter().chain(wrong.split_whitespace());
            assert!(Args::try_parse_from(args).is_err(), "{wrong}");
        }
    }

    #[test]
    fn stages_make_the_duration() {
        assert_eq!(load("ws://h/ --stage 1s@10 --stage 2s@20").duration(), Duration::from_secs(3));
        assert_eq!(load("ws://h/").duration(), Duration::from_secs(10));
    }
}
