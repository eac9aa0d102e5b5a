//! W6: echo over loopback, idle connections and handshakes, by servers in processes of their own.

use crate::bench::Bench;
use crate::heat::{BYTES, CPU, Class, Column, Heat, RATE, Score, Spread, USER, Unit};
use crate::loopback::cores::Cores;
use crate::loopback::echo::{Echo, Load, Until};
use crate::loopback::opening;
use crate::loopback::process::Process;
use crate::loopback::rounds::{self, Entry};
use crate::loopback::servers::{self, Dialect, RAW_TOKIO, Server};
use std::net::SocketAddr;
use std::time::Duration;

/// A server that runs.
struct Running {
    server: Server,
    process: Process,
    address: SocketAddr,
}

/// All heats.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    let cores = Cores::take();
    let running = start(bench, &cores)?;
    let load = |payload_len, connections, depth| Load { payload_len, connections, depth };
    let small = bench.scale(64, 4);
    echo(bench, &running, "32 B, 64 connections, depth 1", load(32, small, 1), |heat| {
        heat.judge("the best rival", 0.97, is_rival);
    })?;
    echo(bench, &running, "32 B, 64 connections, depth 64", load(32, small, 64), |heat| {
        heat.judge("the floor on the same runtime", 0.75, |score| score.name == RAW_TOKIO);
        heat.judge("the best that is batched by hand", 1.5, |score| score.class == Class::Batched);
        heat.judge_ours("ns of user time a message", 2, 1.0, 20.0);
    })?;
    echo(bench, &running, "1 KiB, 64 connections, depth 16", load(1 << 10, small, 16), |heat| {
        heat.judge("the best that is batched by hand", 1.3, |score| score.class == Class::Batched);
    })?;
    echo(bench, &running, "64 KiB, 8 connections, depth 1", load(64 << 10, 8, 1), |heat| {
        heat.judge("the best rival", 1.0, is_rival);
    })?;
    let large = bench.scale(1 << 20, 1 << 18);
    echo(bench, &running, "1 MiB, 4 connections, depth 1", load(large, 4, 1), |heat| {
        heat.judge("the best rival", 1.0, is_rival);
    })?;
    handshakes(bench, &running)?;
    drop(running);
    idle(bench, &cores)
}

fn is_rival(score: &Score) -> bool {
    matches!(score.class, Class::Rival | Class::Batched)
}

/// Starts all of them; who cannot be had is said to be missing.
fn start(bench: &mut Bench, cores: &Cores) -> Result<Vec<Running>, String> {
    let mut running = Vec::new();
    for server in servers::all() {
        if !bench.is_wanted(&server.name) {
            continue;
        }
        bench.say(&format!("starting {}", server.name));
        match (server.command)(!bench.smoke) {
            Ok(command) => {
                let (process, address) =
                    Process::serve(command, cores).map_err(|error| format!("{}: {error}", server.name))?;
                running.push(Running { server, process, address });
            }
            Err(reason) => bench.skip(&server.name, &reason),
        }
    }
    Ok(running)
}

/// One load on all of them. Rates are of messages, of large ones in bytes.
fn echo(
    bench: &mut Bench,
    running: &[Running],
    title: &str,
    load: Load,
    judge: impl FnOnce(&mut Heat),
) -> Result<(), String> {
    let title = format!("echo, {title}");
    let mut entries = Vec::with_capacity(running.len());
    let until = match bench.smoke {
        true => Until::Messages(2 * load.depth as u64),
        false => Until::Time(bench.effort.turn),
    };
    for Running { server, process, address } in running {
        let failed = |error| format!("{title}, {}: {error}", server.name);
        bench.say(&format!("{title}: checking {}", server.name));
        let mut echo = Echo::open(*address, server.dialect, load).map_err(failed)?;
        echo.run(Until::Messages(2 * load.depth as u64), true).map_err(failed)?;
        let work = Box::new(move || echo.run(until, false));
        entries.push(Entry { name: server.name.clone(), class: server.class, process, work });
    }
    let scores = rounds::run(bench, &title, entries)?;
    let mut heat =
        Heat { workload: "w6", title, columns: vec![RATE, CPU, USER], scores, verdicts: Vec::new() };
    judge(&mut heat);
    if load.payload_len >= 64 << 10 {
        heat.columns[0] = BYTES;
        for score in &mut heat.scores {
            score.values[0] = score.values[0].times(load.payload_len as f64);
        }
    }
    bench.heats.push(heat);
    Ok(())
}

/// Connections opened and cut, 32 at once.
fn handshakes(bench: &mut Bench, running: &[Running]) -> Result<(), String> {
    let (time, least) = if bench.smoke { (Duration::ZERO, 40) } else { (bench.effort.turn / 2, 100) };
    let speaking = running.iter().filter(|running| running.server.dialect == Dialect::WebSocket);
    let entries = speaking.map(|Running { server, process, address }| Entry {
        name: server.name.clone(),
        class: server.class,
        process,
        work: Box::new(move || opening::flood(*address, 32, time, least)),
    });
    let title = "handshakes, each on a new connection".to_owned();
    let scores = rounds::run(bench, &title, entries.collect())?;
    let mut heat =
        Heat { workload: "w6", title, columns: vec![RATE, CPU, USER], scores, verdicts: Vec::new() };
    heat.judge("the best rival", 1.0, is_rival);
    heat.judge_ours("µs of user time each", 2, 1e3, 4.0);
    bench.heats.push(heat);
    Ok(())
}

/// What a connection that has echoed once and now rests adds to its process. A fresh process each: what another load has
/// left to the allocator would hide it.
fn idle(bench: &mut Bench, cores: &Cores) -> Result<(), String> {
    let (first, count) = (bench.scale(100, 4), bench.scale(5_000, 16));
    let title = format!("memory, {count} idle connections");
    let mut scores = Vec::new();
    for Running { server, process, address } in start(bench, cores)? {
        if server.dialect == Dialect::Bytes {
            continue;
        }
        let failed = |error: String| format!("{title}, {}: {error}", server.name);
        bench.say(&format!("{title}: {}", server.name));
        let load = |connections| Load { payload_len: 32, connections, depth: 1 };
        let open = |connections| -> Result<Echo, String> {
            let mut echo = Echo::open(address, server.dialect, load(connections))?;
            echo.run(Until::Messages(1), true)?;
            Ok(echo)
        };
        let _warm = open(first).map_err(failed)?;
        let before = process.memory();
        let _idle = open(count).map_err(failed)?;
        let Some((before, after)) = before.zip(process.memory()) else {
            bench.skip(&title, "the kernel does not say");
            return Ok(());
        };
        let each = Spread::once(after.saturating_sub(before) as f64 / count as f64);
        scores.push(Score { name: server.name, class: server.class, values: vec![each] });
    }
    let columns = vec![Column { name: "each", unit: Unit::Bytes }];
    let mut heat = Heat { workload: "w6", title, columns, scores, verdicts: Vec::new() };
    heat.judge_ours("B each", 0, 1.0, 1024.0);
    bench.heats.push(heat);
    Ok(())
}
