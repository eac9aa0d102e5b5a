//! The arguments of `wireloom serve` that limit HTTP/2.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use wireloom::ServerConfig;
use wireloom::wireloom_http2::Limits;
use wireloom::wireloom_http2::limits::Rate;

use super::value;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits of HTTP/2")]
pub(crate) struct Http2Limits {
    /// Requests and WebSockets at once on a connection
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) h2_streams: u32,
    /// What a client may send on a stream before the server has read it
    #[arg(long, value_name = "BYTES", default_value = "256K", value_parser = window)]
    pub(crate) h2_window: u32,
    /// How large that may grow on connections with a high bandwidth-delay product
    #[arg(long, value_name = "BYTES", default_value = "8M", value_parser = window)]
    pub(crate) h2_window_max: u32,
    /// The same for all streams of a connection together
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = window)]
    pub(crate) h2_connection_window: u32,
    /// The longest frame
    #[arg(long, value_name = "BYTES", default_value = "16K", value_parser = frame)]
    pub(crate) h2_frame: u32,
    /// The largest head of a request
    #[arg(long, value_name = "BYTES", default_value = "64K", value_parser = window)]
    pub(crate) h2_head: u32,
    /// The size of the HPACK table
    #[arg(long, value_name = "BYTES", default_value = "4K", value_parser = window)]
    pub(crate) h2_table: u32,
    /// How long queued data may wait for a client that reads nothing
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = value::time)]
    pub(crate) h2_stall_timeout: Duration,
    /// How long a client may take to acknowledge the settings
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = value::time)]
    pub(crate) h2_settings_timeout: Duration,
    /// Let plain HTTP/1.1 requests switch to HTTP/2 by Upgrade: h2c, which is deprecated: requests could bypass the rules of a
    /// reverse proxy that forwards Upgrade
    #[arg(long)]
    pub(crate) h2c_upgrade: bool,
    /// Change another limit, listed below; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = Bound::from_str)]
    pub(crate) h2_limit: Vec<Bound>,
}

/// Defines the limits of `--h2-limit` by name.
macro_rules! bounds {
    () => {
        "\
Limits of --h2-limit, as a number:
  settings-entries 32, continuations 8, field-block 131072, fields 512,
  resets-remembered 1024, idle-priorities 256, answers 65536
and as a burst and a rate per second, such as pings=1000/100:
  peer-resets 1000/33, stream-errors 1000/33, pings 1000/100, settings 100/10,
  empty-frames 10000/330, tiny-data 1000000/200000, priorities 2000/200,
  window-updates 10000/1000, unknown-frames 1000/100"
    };
}
pub(super) use bounds;

impl Http2Limits {
    /// Applies the arguments.
    pub(crate) fn apply(&self, server: &mut ServerConfig) {
        server.http2_upgrade = self.h2c_upgrade;
        let config = &mut server.http2;
        let settings = &mut config.settings;
        settings.max_concurrent_streams = self.h2_streams;
        settings.initial_window_size = self.h2_window;
        settings.max_frame_size = self.h2_frame;
        settings.max_header_list_size = self.h2_head;
        settings.header_table_size = self.h2_table;
        config.stream_window_max = self.h2_window_max;
        config.connection_window = self.h2_connection_window;
        config.limits.stall_timeout = self.h2_stall_timeout;
        config.limits.settings_timeout = self.h2_settings_timeout;
        self.h2_limit.iter().for_each(|bound| bound.apply(&mut config.limits));
    }
}

/// A size that a window may have (RFC 9113 §6.9.1).
fn window(text: &str) -> Result<u32, String> {
    u32::try_from(value::size(text)?).ok().filter(|&size| size < 1 << 31).ok_or("at most 2G - 1".into())
}

/// A size that SETTINGS_MAX_FRAME_SIZE may have (RFC 9113 §6.5.2).
fn frame(text: &str) -> Result<u32, String> {
    let size = value::size(text)?;
    u32::try_from(size)
        .ok()
        .filter(|size| (1 << 14..1 << 24).contains(size))
        .ok_or("from 16K to 16M - 1".into())
}

/// One bound of [`Limits`], by its name.
#[derive(Clone)]
pub(crate) struct Bound {
    name: String,
    set: Set,
}

#[derive(Clone, Copy)]
enum Set {
    Number(fn(&mut Limits) -> &mut usize, usize),
    Rate(fn(&mut Limits) -> &mut Rate, Rate),
}

impl Bound {
    fn apply(&self, limits: &mut Limits) {
        match self.set {
            Set::Number(field, number) => *field(limits) = number,
            Set::Rate(field, rate) => *field(limits) = rate,
        }
    }
}

impl FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const SHAPE: &str = "a limit is NAME=NUMBER or NAME=BURST/PER-SECOND, with a name that --help lists";
        let (name, value) = text.split_once('=').ok_or(SHAPE)?;
        let number = |field| {
            let number = value::size(value).ok().and_then(|number| usize::try_from(number).ok());
            Ok(Set::Number(field, number.ok_or(SHAPE)?))
        };
        let rate = |field| {
            let (burst, per_second) = value.split_once('/').ok_or(SHAPE)?;
            let number = |text: &str| text.parse().map_err(|_| SHAPE.to_owned());
            Ok(Set::Rate(field, Rate::new(number(burst)?, number(per_second)?)))
        };
        let set: Result<Set, String> = match name {
            "settings-entries" => number(|limits| &mut limits.settings_entries_max),
            "continuations" => number(|limits| &mut limits.continuations_max),
            "field-block" => number(|limits| &mut limits.field_block_len_max),
            "fields" => number(|limits| &mut limits.fields_max),
            "resets-remembered" => number(|limits| &mut limits.resets_remembered_max),
            "idle-priorities" => number(|limits| &mut limits.idle_priorities_max),
            "answers" => number(|limits| &mut limits.answers_len_max),
            "peer-resets" => rate(|limits| &mut limits.peer_resets),
            "stream-errors" => rate(|limits| &mut limits.stream_errors),
            "pings" => rate(|limits| &mut limits.pings),
            "settings" => rate(|limits| &mut limits.settings),
            "empty-frames" => rate(|limits| &mut limits.empty_frames),
            "tiny-data" => rate(|limits| &mut limits.tiny_data),
            "priorities" => rate(|limits| &mut limits.priorities),
            "window-updates" => rate(|limits| &mut limits.window_updates),
            "unknown-frames" => rate(|limits| &mut limits.unknown_frames),
            _ => Err(SHAPE.into()),
        };
        Ok(Self { name: name.into(), set: set? })
    }
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The help names every bound with the library's default.
    #[test]
    fn the_help_lists_the_limits() {
        let names = bounds!().lines().filter(|line| line.starts_with("  ")).flat_map(|line| line.split(", "));
        let mut listed = 0;
        for name in names {
            let (name, value) = name.trim().trim_end_matches(',').split_once(' ').unwrap();
            let bound: Bound = format!("{name}={value}").parse().unwrap();
            let mut limits = Limits::DEFAULT;
            bound.apply(&mut limits);
            assert_eq!(limits, Limits::DEFAULT, "{name}");
            listed += 1;
        }
        assert_eq!(listed, 16);
    }

    #[test]
    fn changes_one_bound() {
        let mut limits = Limits::DEFAULT;
        "pings=5/1".parse::<Bound>().unwrap().apply(&mut limits);
        "fields=7".parse::<Bound>().unwrap().apply(&mut limits);
        assert_eq!((limits.pings, limits.fields_max), (Rate::new(5, 1), 7));
        for wrong in ["pings", "pings=5", "pings=5/x", "fields=x", "none=1"] {
            assert!(wrong.parse::<Bound>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn reads_windows_and_frames() {
        assert_eq!(window("0"), Ok(0));
        assert_eq!(window("2147483647"), Ok(i32::MAX as u32));
        assert!(window("2G").is_err());
        assert_eq!(frame("16K"), Ok(16 << 10));
        assert!(frame("16383").is_err() && frame("16M").is_err());
    }
}
