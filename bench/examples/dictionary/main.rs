//! A firehose of JSON events to many subscribers over loopback, compressed in four ways: what a delivery costs in bytes, and in CPU time
//! of the server and of a client. Dictionaries are trained with one half of the events, and the other half is sent.
//!
//! ```text
//! cargo run --profile dist -p wireloom-bench --example dictionary
//! ```
//!
//! `FIREHOSE` may name a file of recorded events of the AT Protocol, each preceded by its length in four bytes; without it events are made up.

#[path = "../../src/clock.rs"]
mod clock;
mod fan_out;
mod feed;
#[path = "../../src/statistics.rs"]
mod statistics;

use fan_out::{Cost, Scheme};
use statistics::Summary;

/// How much is sent.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) subscribers: usize,
    /// Events to each subscriber in a round.
    pub(crate) events: usize,
    pub(crate) rounds: usize,
}

/// Bytes of the dictionary.
const DICTIONARY_LEN: usize = 16 << 10;

/// Runs all schemes in turns; returns the costs of each, by round.
///
/// # Errors
/// The events cannot be read, or a connection failed.
pub(crate) fn measure(effort: Effort) -> Result<Vec<(Scheme, Vec<Cost>)>, String> {
    let events = feed::events()?;
    let (training, held_out): (Vec<_>, Vec<_>) =
        events.into_iter().enumerate().partition(|(at, _)| at % 2 == 0);
    let training: Vec<String> = training.into_iter().map(|(_, event)| event).collect();
    let held_out: Vec<String> = held_out.into_iter().map(|(_, event)| event).collect();
    let dictionary =
        zstd::dict::from_samples(&training, DICTIONARY_LEN).map_err(|error| error.to_string())?;
    let sent: Vec<String> = held_out.iter().cycle().take(effort.events).cloned().collect();
    let mean = sent.iter().map(String::len).sum::<usize>() / sent.len().max(1);
    println!(
        "{} events of {mean} B to {} subscribers; a dictionary of {} B",
        sent.len(),
        effort.subscribers,
        dictionary.len()
    );
    let mut costs: Vec<(Scheme, Vec<Cost>)> = Scheme::ALL.map(|scheme| (scheme, Vec::new())).into();
    for round in 0..effort.rounds {
        for turn in 0..costs.len() {
            let at = (turn + round) % Scheme::ALL.len();
            let (scheme, costs) = &mut costs[at];
            costs.push(fan_out::run(*scheme, &dictionary, &sent, effort.subscribers)?);
        }
    }
    Ok(costs)
}

/// A line for each scheme: medians, and the ratios to deflate on each connection, taken within a round.
fn print(costs: &[(Scheme, Vec<Cost>)]) {
    let Some((_, base)) = costs.iter().find(|(scheme, _)| *scheme == Scheme::DeflateEach) else { return };
    let median = |values: Vec<f64>| Summary::of(values).map_or(f64::NAN, |summary| summary.median);
    println!("| | bytes | ratio | server, µs | ratio | client, µs | ratio |\n|---|---|---|---|---|---|---|");
    for (scheme, costs) in costs {
        let column = |value: fn(&Cost) -> f64, digits: usize| {
            let ratio = costs.iter().zip(base).map(|(ours, base)| value(ours) / value(base)).collect();
            format!("{:.digits$} | {:.2}×", median(costs.iter().map(value).collect()), median(ratio))
        };
        println!(
            "| {} | {} | {} | {} |",
            scheme.name(),
            column(|cost| cost.bytes, 0),
            column(|cost| cost.server_us, 2),
            column(|cost| cost.client_us, 2)
        );
    }
}

#[allow(dead_code, reason = "the test calls what it calls")]
fn main() -> Result<(), String> {
    print(&measure(Effort { subscribers: 200, events: 500, rounds: 9 })?);
    Ok(())
}
