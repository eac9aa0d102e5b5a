//! W3: consume a firehose of binary events of 5 KB, by clients in separate processes: delivered, and decoded, over
//! HTTP/1.1 and HTTP/2.

use crate::events;
use crate::isa;
use crate::loopback::clients::{self, Consumption, Sums};
use crate::loopback::cores::Cores;
use crate::loopback::firehose::{Carrier, Events, Firehose, Listener};
use crate::loopback::process::Process;
use crate::loopback::rounds::{self, Contestant};
use crate::loopback::servers::own_command;
use crate::results::{RaceResult, Role, Target};
use crate::rivals::with_version;
use crate::runner::Runner;
use crate::wire::run as block_on;
use std::process::Command;

/// Generated events, and recorded ones if the environment names a file of events.
pub(crate) fn run(runner: &mut Runner) -> Result<(), String> {
    let cores = Cores::take();
    let made_up = events::made_up(runner.scale(160, 8));
    let mean = |events: &[Vec<u8>]| events.iter().map(Vec::len).sum::<usize>() / events.len().max(1);
    let data = format!("made-up events from a fixed seed, {} B in the mean", mean(&made_up));
    runner.used_data("w3", data);
    for carrier in [Carrier::Http1, Carrier::Http2] {
        for consumption in [Consumption::Deliver, Consumption::Decode] {
            race(runner, &cores, "", carrier, consumption, &made_up)?;
        }
    }
    if let Some(path) = events::recorded_path() {
        let recorded = events::recorded(&path)?;
        let data =
            format!("recorded events, {} B in the mean: the file that FIREHOSE names", mean(&recorded));
        runner.used_data("w3", data);
        for consumption in [Consumption::Deliver, Consumption::Decode] {
            race(runner, &cores, ", recorded events", Carrier::Http1, consumption, &recorded)?;
        }
    }
    Ok(())
}

/// A running client.
struct Running {
    name: String,
    role: Role,
    process: Process,
    firehose: Firehose,
    /// Whether it prints the sums of what it received when it ends.
    prints_sums: bool,
}

/// Returns the command that starts a client for this URL.
type Start<'a> = Box<dyn Fn(&str) -> Result<Command, String> + 'a>;

/// A client that can be started.
struct Client<'a> {
    name: String,
    role: Role,
    prints_sums: bool,
    start: Start<'a>,
}

fn clients<'a>(carrier: Carrier, consumption: Consumption, may_build: bool) -> Vec<Client<'a>> {
    let is_http2 = carrier == Carrier::Http2;
    let own = |name: &str, role| {
        let argument = clients::argument(name, consumption, is_http2);
        let title = if role == Role::Rival { with_version(name) } else { name.into() };
        let start = Box::new(move |url: &str| own_command(&["--connect", &argument, url]));
        Client { name: title, role, prints_sums: true, start }
    };
    let mut clients = vec![own("wireloom", Role::Wireloom)];
    // The kernels of `wireloom connect` cannot be capped.
    if !is_http2 && consumption == Consumption::Deliver && isa::capped().is_none() {
        clients.push(Client {
            name: "wireloom connect --count".into(),
            role: Role::Variant,
            prints_sums: false,
            start: Box::new(move |url| command(url, may_build)),
        });
    }
    let rivals: &[&str] = match carrier {
        Carrier::Http1 => &["tokio-tungstenite", "fastwebsockets", "tokio-websockets", "sockudo-ws", "yawc"],
        Carrier::Http2 => &["sockudo-ws", "yawc"],
    };
    clients.extend(rivals.iter().map(|name| own(name, Role::Rival)));
    let raw = own(clients::RAW, Role::Baseline);
    clients.push(Client { name: "the bytes, received and dropped".into(), prints_sums: false, ..raw });
    clients
}

fn race(
    runner: &mut Runner,
    cores: &Cores,
    suffix: &str,
    carrier: Carrier,
    consumption: Consumption,
    messages: &[Vec<u8>],
) -> Result<(), String> {
    let over = if carrier == Carrier::Http1 { "HTTP/1.1" } else { "HTTP/2" };
    let end = if consumption == Consumption::Deliver { "delivered" } else { "decoded" };
    let title = format!("firehose over {over}, {end}{suffix}");
    let events = Events::new(messages.iter().map(Vec::as_slice));
    let mut running = Vec::new();
    for Client { name, role, prints_sums, start } in clients(carrier, consumption, !runner.smoke) {
        if !runner.is_wanted(&name) {
            continue;
        }
        runner.show(&format!("{title}: starting {name}"));
        let listener = Listener::new()?;
        let url = format!("ws://{}/", listener.address()?);
        let started = start(&url).and_then(|command| {
            let mut process = Process::start(command, cores)?;
            let firehose = listener.accept(carrier, || process.is_running())?;
            Ok((process, firehose))
        });
        match started {
            Ok((process, firehose)) => running.push(Running { name, role, process, firehose, prints_sums }),
            Err(reason) if role == Role::Variant => {
                runner.skip(&name, &reason, "Build it with `cargo build --profile dist -p wireloom-cli`");
            }
            Err(error) => return Err(format!("{title}, {name}: {error}")),
        }
    }
    let time = runner.effort.process_round_time;
    for running in &mut running {
        // Warm up: buffers grow and caches fill before anything is timed.
        running.firehose.send(&events, time / 10).map_err(|error| format!("{}: {error}", running.name))?;
    }
    let contestants = running.iter_mut().map(|Running { name, role, process, firehose, .. }| Contestant {
        name: name.clone(),
        role: *role,
        note: None,
        process,
        work: Box::new(|| firehose.send(&events, time)),
    });
    let entries = rounds::run(runner, &title, contestants.collect())?;
    let once = sums(messages, consumption)?;
    for running in running {
        let name = running.name;
        let times = running.firehose.close().map_err(|error| format!("{title}, {name}: {error}"))?;
        let expected = once.times(times).to_string();
        let printed = running.prints_sums.then(|| running.process.output()).transpose()?;
        if printed.as_deref().is_some_and(|printed| printed.trim() != expected) {
            return Err(format!("{title}, {name}: received {printed:?} instead of {expected}"));
        }
    }
    let targets = vec![Target::fastest_rival(if consumption == Consumption::Deliver { 0.8 } else { 0.95 })];
    runner.keep(RaceResult { targets, ..RaceResult::new("w3", title, entries) });
    Ok(())
}

/// The sums that a client must print after all events were sent once.
fn sums(events: &[Vec<u8>], consumption: Consumption) -> Result<Sums, String> {
    let mut decoded = events::Decoded::default();
    if consumption == Consumption::Decode {
        events.iter().try_for_each(|event| block_on(events::decode(event, &mut decoded)))?;
    }
    let bytes = events.iter().map(|event| event.len() as u64).sum();
    Ok(Sums { events: events.len() as u64, bytes, decoded })
}

/// `wireloom connect`: the binary beside this program, which is built if it is missing.
fn command(url: &str, may_build: bool) -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("wireloom");
    if may_build {
        // Beside `cargo run` the one on the PATH, which chooses its toolchain for all crates.
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.args(["build", "--quiet", "--profile", "dist", "--locked", "-p", "wireloom-cli"]);
        let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).status();
        if !built.is_ok_and(|status| status.success()) {
            return Err("cannot be built".into());
        }
    }
    if !program.exists() {
        return Err(format!("not built: {} is missing", program.display()));
    }
    let mut command = Command::new(program);
    command.args(["connect", url, "--quiet", "--count", "1000000000000"]);
    Ok(command)
}
