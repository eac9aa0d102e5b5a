//! The whole system on simulated time and a simulated network: the real server, client, `Reconnecting` and hub in one process, over
//! turmoil's TCP. Hosts crash and restart, clocks jump, links are slow, are cut in one direction or both, or hold what is sent.
//!
//! turmoil is maintained with tokio and takes the code as it is: hosts are runtimes with a paused clock, transports are passed to
//! `Server::new` and `Connector::dial_with`. madsim replaces tokio itself in every dependency, by a fork that follows releases later.
//! A link that was cut loses segments, which turmoil does not send again: its connections are half open from then on.
//!
//! Each seed runs in a process of its own, since the seeds of hash maps and of `select!` depend on what ran before.
//!
//! ```sh
//! cargo test -p wireloom-hub --test simulation                         # some seeds
//! WIRELOOM_ROUNDS=1000 WIRELOOM_SEED=random cargo test -p wireloom-hub --test simulation    # hours
//! WIRELOOM_SIMULATION=SEED cargo test -p wireloom-hub --test simulation NAME                # one seed, with its log
//! ```

#![allow(clippy::unwrap_used)]

mod cluster;
mod echo;
mod faults;
mod network;
mod random;
mod relay;

use std::process::{Command, Stdio};
use std::thread;

use wireloom_testing::rng::generators;

/// The seed to run, in the process that runs it.
const SEED: &str = "WIRELOOM_SIMULATION";

/// Seeds that have failed, each with what was wrong.
const FOUND: &[(&str, u64)] = &[
    // Reconnecting over HTTP/2 gave up when a server that restarted closed a connection before its first byte.
    ("messages_arrive_or_their_sender_learns_of_the_loss", 1_942_159_744_912_000_378),
    ("messages_arrive_or_their_sender_learns_of_the_loss", 12_319_681_531_975_222_756),
    // It gave up when the server was silent while a connection over HTTP/2 opened.
    ("messages_arrive_or_their_sender_learns_of_the_loss", 16_822_521_228_543_691_267),
];

/// Runs `simulate` in this process if it has a seed, and else the test `name` in `count` processes with one each. `simulate` returns a
/// line about what happened.
fn run(name: &str, count: u64, simulate: fn(u64) -> String) {
    if let Ok(seed) = std::env::var(SEED) {
        let seed = seed.parse().unwrap_or_else(|_| panic!("{SEED}={seed} is not a seed"));
        random::start(seed);
        println!("summary: {}", simulate(seed));
        return;
    }
    // The seeds that found something first.
    let found = FOUND.iter().filter(|(test, _)| *test == name).map(|(_, seed)| *seed);
    let seeds: Vec<u64> = found.chain(generators(count).map(|mut rng| rng.u64(..))).collect();
    // The processes take one core each.
    let halves = seeds.split_at(seeds.len() / 2);
    thread::scope(|scope| {
        for half in [halves.0, halves.1] {
            scope.spawn(move || half.iter().for_each(|&seed| drop(run_one(name, seed))));
        }
    });
    // A seed is reproducible.
    let first = seeds[0];
    assert_eq!(
        run_one(name, first),
        run_one(name, first),
        "{SEED}={first} cargo test -p wireloom-hub --test simulation {name}"
    );
}

/// Runs one seed in a process of its own, and returns its summary.
fn run_one(name: &str, seed: u64) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(SEED, seed.to_string())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{SEED}={seed} cargo test -p wireloom-hub --test simulation {name}\n{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let summary = text.lines().find_map(|line| line.split_once("summary: "));
    summary.unwrap_or_else(|| panic!("no summary of seed {seed}: {text}")).1.to_owned()
}

#[test]
fn messages_arrive_or_their_sender_learns_of_the_loss() {
    run("messages_arrive_or_their_sender_learns_of_the_loss", 10, echo::simulate);
}

#[test]
fn subscribers_of_a_cluster_miss_nothing_unknowingly() {
    run("subscribers_of_a_cluster_miss_nothing_unknowingly", 12, cluster::simulate);
}
