//! W6: echo over loopback, idle connections and handshakes, by servers in processes of their own.

use crate::bench::Bench;
use crate::heat::{BYTES, CPU, Class, Column, Heat, RATE, Score, Spread, USER, Unit};
use crate::loopback::clients;
use crate::loopback::cores::Cores;
use crate::loopback::echo::{Echo, Load, Until};
use crate::loopback::opening;
use crate::loopback::process::files_max;
use crate::loopback::rounds::{self, Entry};
use crate::loopback::servers::{self, Dialect, RAW_TOKIO, Running};
use crate::loopback::tunnels::Tunnels;
use std::time::Duration;

/// All heats.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    let cores = Cores::take();
    let files_max = files_max();
    let running = servers::start(bench, &cores, servers::echoes())?;
    let load = |payload_len, connections, depth| Load { payload_len, connections, depth };
    let small = bench.scale(64, 4);
    echo(bench, "w6", &running, "32 B, 64 connections, depth 1", load(32, small, 1), |heat| {
        heat.judge("the best rival", 0.97, is_rival);
    })?;
    echo(bench, "w6", &running, "32 B, 64 connections, depth 64", load(32, small, 64), |heat| {
        heat.judge("the floor on the same runtime", 0.75, |score| score.name == RAW_TOKIO);
        heat.judge("the best that is batched by hand", 1.5, |score| score.class == Class::Batched);
        heat.judge_ours("ns of user time a message", 2, 1.0, 20.0);
    })?;
    echo(bench, "w6", &running, "1 KiB, 64 connections, depth 16", load(1 << 10, small, 16), |heat| {
        heat.judge("the best that is batched by hand", 1.3, |score| score.class == Class::Batched);
    })?;
    echo(bench, "w6", &running, "64 KiB, 8 connections, depth 1", load(64 << 10, 8, 1), |heat| {
        heat.judge("the best rival", 1.0, is_rival);
    })?;
    let large = bench.scale(1 << 20, 1 << 18);
    echo(bench, "w6", &running, "1 MiB, 4 connections, depth 1", load(large, 4, 1), |heat| {
        heat.judge("the best rival", 1.0, is_rival);
    })?;
    handshakes(bench, "w6", &running, |heat| {
        heat.judge("the best rival", 1.0, is_rival);
        heat.judge_ours("µs of user time each", 2, 1e3, 4.0);
    })?;
    drop(running);
    tunnels(bench, &cores)?;
    idle(bench, &cores, files_max)
}

fn is_rival(score: &Score) -> bool {
    matches!(score.class, Class::Rival | Class::Batched)
}

/// One load on all of them. Rates are of messages, of large ones in bytes.
pub(super) fn echo(
    bench: &mut Bench,
    workload: &'static str,
    running: &[Running],
    title: &str,
    load: Load,
    judge: impl FnOnce(&mut Heat),
) -> Result<(), String> {
    let title = format!("echo, {title}");
    let mut entries = Vec::with_capacity(running.len());
    let until = round(bench, load);
    for Running { server, process, address } in running {
        let failed = |error| format!("{title}, {}: {error}", server.name);
        bench.say(&format!("{title}: checking {}", server.name));
        let mut echo = Echo::open(*address, server.dialect(), load).map_err(failed)?;
        echo.run(Until::Messages(2 * load.depth as u64), true).map_err(failed)?;
        let work = Box::new(move || echo.run(until, false));
        entries.push(Entry { name: server.name.clone(), class: server.class, process, work });
    }
    let scores = rounds::run(bench, &title, entries)?;
    let mut heat = Heat { workload, title, columns: vec![RATE, CPU, USER], scores, verdicts: Vec::new() };
    judge(&mut heat);
    if load.payload_len >= 64 << 10 {
        heat.columns[0] = BYTES;
        for score in &mut heat.scores {
            score.values[0] = score.values[0].times(load.payload_len as f64);
        }
    }
    bench.keep(heat);
    Ok(())
}

/// Connections opened and cut, 32 at once.
pub(super) fn handshakes(
    bench: &mut Bench,
    workload: &'static str,
    running: &[Running],
    judge: impl FnOnce(&mut Heat),
) -> Result<(), String> {
    let (time, least) = if bench.smoke { (Duration::ZERO, 40) } else { (bench.effort.turn / 2, 100) };
    let speaking = running.iter().filter(|running| running.server.dialect() == Dialect::WebSocket);
    let entries = speaking.map(|Running { server, process, address }| Entry {
        name: server.name.clone(),
        class: server.class,
        process,
        work: Box::new(move || opening::flood(*address, 32, time, least)),
    });
    let title = "handshakes, each on a new connection".to_owned();
    let scores = rounds::run(bench, &title, entries.collect())?;
    let mut heat = Heat { workload, title, columns: vec![RATE, CPU, USER], scores, verdicts: Vec::new() };
    judge(&mut heat);
    bench.keep(heat);
    Ok(())
}

/// WebSockets over one connection of HTTP/2, beside as many connections of HTTP/1.1 to the same server.
fn tunnels(bench: &mut Bench, cores: &Cores) -> Result<(), String> {
    let running = servers::start(bench, cores, servers::tunnels())?;
    for depth in [1, 64] {
        let load = Load { payload_len: 32, connections: bench.scale(64, 4), depth };
        let title =
            format!("echo over HTTP/2, 32 B, {} streams on one connection, depth {depth}", load.connections);
        let mut entries = Vec::new();
        let until = round(bench, load);
        for Running { server, process, address } in &running {
            let failed = |error| format!("{title}, {}: {error}", server.name);
            let mut tunnels = Tunnels::open(*address, load).map_err(failed)?;
            tunnels.run(Until::Messages(2 * depth as u64)).map_err(failed)?;
            let work = Box::new(move || tunnels.run(until));
            entries.push(Entry { name: server.name.clone(), class: server.class, process, work });
            if server.class == Class::Wireloom {
                let mut echo = Echo::open(*address, server.dialect(), load).map_err(failed)?;
                let name = format!("{}, as many connections of HTTP/1.1", server.name);
                let work = Box::new(move || echo.run(until, false));
                entries.push(Entry { name, class: Class::Ours, process, work });
            }
        }
        let scores = rounds::run(bench, &title, entries)?;
        let mut heat =
            Heat { workload: "w6", title, columns: vec![RATE, CPU, USER], scores, verdicts: Vec::new() };
        heat.judge("its own over HTTP/1.1", 0.6, |score| score.class == Class::Ours);
        bench.keep(heat);
    }
    Ok(())
}

/// How long each round of an echo is.
fn round(bench: &Bench, load: Load) -> Until {
    match bench.smoke {
        true => Until::Messages(2 * load.depth as u64),
        false => Until::Time(bench.effort.turn),
    }
}

/// What a connection that has echoed once and now rests adds to its process. A fresh process each: what another load has
/// left to the allocator would hide it.
fn idle(bench: &mut Bench, cores: &Cores, files_max: usize) -> Result<(), String> {
    let (first, most) = (bench.scale(100, 4), bench.scale(5_000, 16));
    let count = most.min(files_max.saturating_sub(300)).max(1);
    let title = format!("memory, {count} idle connections");
    let mut scores = Vec::new();
    for running in servers::start(bench, cores, servers::echoes())? {
        if running.server.dialect() == Dialect::Bytes {
            continue;
        }
        let (address, dialect) = (running.address, running.server.dialect());
        bench.say(&format!("{title}: {}", running.server.name));
        scores.extend(memory(bench, &title, running, count, first, |connections| {
            let mut echo = Echo::open(address, dialect, Load { payload_len: 32, connections, depth: 1 })?;
            echo.run(Until::Messages(1), true)?;
            Ok(echo)
        })?);
    }
    // Handshakes of TLS take this process long: fewer connections say as much.
    let (first, count) = (bench.scale(50, 2), bench.scale(1_000, 4));
    for running in servers::start(bench, cores, servers::over_tls())? {
        let address = running.address;
        bench.say(&format!("{title}: {}", running.server.name));
        scores.extend(memory(bench, &title, running, count, first, |connections| {
            clients::over_tls(address, connections)
        })?);
    }
    let columns = vec![Column { name: "each", unit: Unit::Bytes }];
    let mut heat = Heat { workload: "w6", title, columns, scores, verdicts: Vec::new() };
    heat.judge_ours("B each", 0, 1.0, 1024.0);
    bench.keep(heat);
    Ok(())
}

/// By how much a process grows with each of `count` connections, once `first` have been opened.
fn memory<T>(
    bench: &mut Bench,
    title: &str,
    running: Running,
    count: usize,
    first: usize,
    open: impl Fn(usize) -> Result<T, String>,
) -> Result<Option<Score>, String> {
    let Running { server, process, .. } = running;
    let failed = |error| format!("{title}, {}: {error}", server.name);
    let _warm = open(first).map_err(failed)?;
    let before = process.memory();
    let _idle = open(count).map_err(failed)?;
    let Some((before, after)) = before.zip(process.memory()) else {
        bench.skip(title, "the kernel does not say");
        return Ok(None);
    };
    let each = Spread::once(after.saturating_sub(before) as f64 / count as f64);
    Ok(Some(Score { name: server.name, class: server.class, values: vec![each] }))
}
