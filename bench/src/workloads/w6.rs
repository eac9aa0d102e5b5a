//! W6: echo over loopback, idle connections and handshakes, with servers in separate processes.

use super::open_loop::{self, Paced};
use crate::loopback::clients;
use crate::loopback::cores::Cores;
use crate::loopback::echo::{Echo, Load, Until};
use crate::loopback::opening;
use crate::loopback::process::files_max;
use crate::loopback::rounds::{self, Contestant};
use crate::loopback::servers::{self, Dialect, RAW_TOKIO, Running};
use crate::loopback::tunnels::Tunnels;
use crate::results::{Cost, Entry, Figure, RaceResult, Role, Rounds, Target};
use crate::runner::Runner;
use std::time::Duration;

/// All races.
pub(crate) fn run(runner: &mut Runner) -> Result<(), String> {
    let cores = Cores::take();
    let files_max = files_max();
    let running = servers::start(runner, &cores, servers::echoes())?;
    let load = |payload_len, connections, depth| Load { payload_len, connections, depth, tls: false };
    let small = runner.scale(64, 4);
    let large = runner.scale(1 << 20, 1 << 18);
    let batched = |batched| {
        vec![Target::fastest_rival(1.0), Target::fastest_batched(batched), Target::named(RAW_TOKIO, 1.34)]
    };
    let rival = |most| vec![Target::fastest_rival(most)];
    let loads = [
        ("32 B, 64 connections, depth 1", load(32, small, 1), rival(0.95)),
        ("32 B, 64 connections, depth 64", load(32, small, 64), batched(0.67)),
        ("1 KiB, 64 connections, depth 16", load(1 << 10, small, 16), batched(0.77)),
        ("64 KiB, 8 connections, depth 1", load(64 << 10, 8, 1), rival(0.95)),
        ("1 MiB, 4 connections, depth 1", load(large, 4, 1), rival(1.0)),
    ];
    for (title, load, targets) in loads {
        echo(runner, "w6", &running, title, load, targets)?;
    }
    handshakes(runner, "w6", &running, rival(0.95))?;
    drop(running);
    paced(runner, &cores)?;
    over_tls(runner, &cores)?;
    tunnels(runner, &cores)?;
    idle(runner, &cores, files_max)
}

/// One load on all servers. The rate is in messages, for large messages in bytes.
pub(super) fn echo(
    runner: &mut Runner,
    workload: &str,
    running: &[Running],
    title: &str,
    load: Load,
    targets: Vec<Target>,
) -> Result<(), String> {
    let title = format!("echo, {title}");
    let mut contestants = Vec::with_capacity(running.len());
    let until = round(runner, load);
    for Running { server, process, address, .. } in running {
        let failed = |error| format!("{title}, {}: {error}", server.name);
        runner.show(&format!("{title}: checking {}", server.name));
        let mut echo = Echo::open(*address, server.dialect(), load).map_err(failed)?;
        echo.run(Until::Messages(2 * load.depth as u64), true).map_err(failed)?;
        let work = Box::new(move || echo.run(until, false));
        let (name, role, note) = (server.name.clone(), server.role, server.note);
        contestants.push(Contestant { name, role, note, process, work });
    }
    let entries = rounds::run(runner, &title, contestants)?;
    let message_len = (load.payload_len >= 64 << 10).then_some(load.payload_len as f64);
    runner.keep(RaceResult { message_len, targets, ..RaceResult::new(workload, title, entries) });
    Ok(())
}

/// Connections that are opened and reset, 32 at once.
pub(super) fn handshakes(
    runner: &mut Runner,
    workload: &str,
    running: &[Running],
    targets: Vec<Target>,
) -> Result<(), String> {
    let (time, least) =
        if runner.smoke { (Duration::ZERO, 40) } else { (runner.effort.process_round_time / 2, 100) };
    let contestants = running.iter().map(|Running { server, process, address, .. }| Contestant {
        name: server.name.clone(),
        role: server.role,
        note: (server.dialect() == Dialect::Bytes).then_some("returns the response that it was sent"),
        process,
        work: Box::new(move || opening::flood(*address, server.dialect(), 32, time, least)),
    });
    let title = "handshakes, each on a new connection".to_owned();
    let entries = rounds::run(runner, &title, contestants.collect())?;
    runner.keep(RaceResult { targets, ..RaceResult::new(workload, title, entries) });
    Ok(())
}

/// Short messages that are sent at a rate.
fn paced(runner: &mut Runner, cores: &Cores) -> Result<(), String> {
    let running = servers::start(runner, cores, servers::paced_echoes())?;
    let load = Load { payload_len: 32, connections: runner.scale(64, 4), depth: 1, tls: false };
    let title = format!("echo, 32 B, {} connections", load.connections);
    let mut paced = Vec::with_capacity(running.len());
    for Running { server, process, address, .. } in &running {
        let failed = |error| format!("{title}, {}: {error}", server.name);
        let clients = Echo::open(*address, server.dialect(), load).map_err(failed)?;
        paced.push(Paced { name: server.name.clone(), role: server.role, process, clients });
    }
    open_loop::race(runner, "w6", &title, 1, paced)
}

/// TLS 1.3 with AES-128-GCM and one certificate for all.
fn over_tls(runner: &mut Runner, cores: &Cores) -> Result<(), String> {
    let running = servers::start(runner, cores, servers::echoes_over_tls())?;
    let small = runner.scale(64, 4);
    for (title, payload_len, connections, depth) in [
        ("TLS, 32 B, 64 connections, depth 1", 32, small, 1),
        ("TLS, 1 KiB, 64 connections, depth 16", 1 << 10, small, 16),
        ("TLS, 64 KiB, 8 connections, depth 1", 64 << 10, 8, 1),
    ] {
        let load = Load { payload_len, connections, depth, tls: true };
        echo(runner, "w6", &running, title, load, vec![Target::fastest_rival(1.0)])?;
    }
    Ok(())
}

/// WebSockets over one HTTP/2 connection, compared with as many HTTP/1.1 connections to the same server.
fn tunnels(runner: &mut Runner, cores: &Cores) -> Result<(), String> {
    let running = servers::start(runner, cores, servers::tunnels())?;
    for depth in [1, 64] {
        let load = Load { payload_len: 32, connections: runner.scale(64, 4), depth, tls: false };
        let title =
            format!("echo over HTTP/2, 32 B, {} streams on one connection, depth {depth}", load.connections);
        let mut contestants = Vec::new();
        let until = round(runner, load);
        for Running { server, process, address, .. } in &running {
            let failed = |error| format!("{title}, {}: {error}", server.name);
            let mut tunnels = Tunnels::open(*address, load).map_err(failed)?;
            tunnels.run(Until::Messages(2 * depth as u64)).map_err(failed)?;
            let work = Box::new(move || tunnels.run(until));
            let (name, role) = (server.name.clone(), server.role);
            contestants.push(Contestant { name, role, note: None, process, work });
            if server.role == Role::Wireloom {
                let mut echo = Echo::open(*address, server.dialect(), load).map_err(failed)?;
                let name = format!("{}, as many connections of HTTP/1.1", server.name);
                let work = Box::new(move || echo.run(until, false));
                contestants.push(Contestant { name, role: Role::Variant, note: None, process, work });
            }
        }
        let entries = rounds::run(runner, &title, contestants)?;
        runner.keep(RaceResult::new("w6", title, entries));
    }
    Ok(())
}

/// The length of each round of an echo.
fn round(runner: &Runner, load: Load) -> Until {
    match runner.smoke {
        true => Until::Messages(2 * load.depth as u64),
        false => Until::Time(runner.effort.process_round_time),
    }
}

/// The growth of a server process for each connection that has echoed once and is idle. Each load has a new process,
/// because memory that another load left to the allocator would hide the growth.
fn idle(runner: &mut Runner, cores: &Cores, files_max: usize) -> Result<(), String> {
    let (first, most) = (runner.scale(100, 4), runner.scale(5_000, 16));
    let count = most.min(files_max.saturating_sub(300)).max(1);
    let title = format!("memory, {count} idle connections");
    let mut entries = Vec::new();
    for running in servers::start(runner, cores, servers::echoes())? {
        if running.server.dialect() == Dialect::Bytes {
            continue;
        }
        let (address, dialect) = (running.address, running.server.dialect());
        runner.show(&format!("{title}: {}", running.server.name));
        entries.extend(memory(runner, &title, running, count, first, |connections| {
            let load = Load { payload_len: 32, connections, depth: 1, tls: false };
            let mut echo = Echo::open(address, dialect, load)?;
            echo.run(Until::Messages(1), true)?;
            Ok(echo)
        })?);
    }
    let bytes = entries.iter().find(|entry| entry.role == Role::Wireloom).and_then(Entry::cost);
    if let Some(bytes) = bytes {
        let note = "the target is at most 1024 B, so at least 1".into();
        let title = "1024 B in parts of the memory of an idle connection";
        runner.keep_figure(Figure::new("w6", title, 1024.0 / bytes.median, Some(1.0), note));
    }
    let race = RaceResult { cost: Cost::Memory, ..RaceResult::new("w6", title.clone(), entries) };
    runner.keep(race);
    // TLS handshakes take long in this process, the client; fewer connections show the same.
    let (first, count) = (runner.scale(50, 2), runner.scale(1_000, 4));
    let title = format!("memory, {count} idle connections over TLS");
    let mut entries = Vec::new();
    for running in servers::start(runner, cores, servers::idle_over_tls())? {
        let address = running.address;
        runner.show(&format!("{title}: {}", running.server.name));
        entries.extend(memory(runner, &title, running, count, first, |connections| {
            clients::over_tls(address, connections)
        })?);
    }
    runner.keep(RaceResult { cost: Cost::Memory, ..RaceResult::new("w6", title, entries) });
    Ok(())
}

/// The growth of a process for each of `count` connections, after `first` have been opened.
fn memory<T>(
    runner: &mut Runner,
    title: &str,
    running: Running,
    count: usize,
    first: usize,
    open: impl Fn(usize) -> Result<T, String>,
) -> Result<Option<Entry>, String> {
    let Running { server, process, .. } = running;
    let failed = |error| format!("{title}, {}: {error}", server.name);
    let _warm = open(first).map_err(failed)?;
    let before = process.memory();
    let _idle = open(count).map_err(failed)?;
    let Some((before, after)) = before.zip(process.memory()) else {
        runner.skip(title, "the kernel has no smaps_rollup", "Linux has had it since 4.14");
        return Ok(None);
    };
    let each = after.saturating_sub(before) as f64 / count as f64;
    let runs = vec![Rounds { costs: vec![each], rates: Vec::new() }];
    let note = server.note.map(Into::into);
    Ok(Some(Entry { name: server.name, role: server.role, note, allocations: None, runs }))
}
