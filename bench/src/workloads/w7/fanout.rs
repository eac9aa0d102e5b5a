//! Deliveries a second and CPU time for each: one channel, many channels, compressed.

use super::super::open_loop::{self, Paced};
use super::{Entrant, entrants};
use crate::loopback::cores::Cores;
use crate::loopback::fanout::{Fanout, Latency, Load};
use crate::loopback::protocol::Protocol;
use crate::loopback::rounds::{self, Contestant};
use crate::loopback::servers;
use crate::results::{Entry, Figure, RaceResult, Role, Target};
use crate::runner::Runner;
use std::time::Duration;

/// Every subscriber in one channel: bare messages and the protocols, side by side.
pub(super) fn of_one_channel(runner: &mut Runner, cores: &Cores, subscribers: usize) -> Result<(), String> {
    let mut fanouts = servers::fanouts();
    fanouts.push(servers::raw_broadcast());
    let running = servers::start(runner, cores, fanouts)?;
    for (payload_len, title) in [(128, "128 B"), (4 << 10, "4 KiB")] {
        for (burst, sent) in [(1, "one message at a time"), (16, "bursts of 16")] {
            let title = format!("fan-out, {title} to {subscribers} subscribers, {sent}");
            let loads = entrants(&running).into_iter().map(|entrant| {
                let load = Load::of_one_channel(entrant.protocol, payload_len, subscribers);
                (entrant, Load { burst, ..load })
            });
            let (entries, latencies) = race(runner, &title, loads.collect())?;
            compare_p99(runner, &title, &entries, &latencies);
            let targets = vec![Target::fastest_rival(1.0 / 1.2)];
            runner.keep(RaceResult { targets, ..RaceResult::new("w7", title, entries) });
        }
    }
    Ok(())
}

/// Bare messages in one channel that are sent at a rate.
pub(super) fn paced(runner: &mut Runner, cores: &Cores, subscribers: usize) -> Result<(), String> {
    let running = servers::start(runner, cores, servers::paced_fanouts())?;
    let title = format!("fan-out, 128 B to {subscribers} subscribers");
    let mut paced = Vec::with_capacity(running.len());
    for Entrant { name, role, protocol, running } in entrants(&running) {
        let load = Load::of_one_channel(protocol, 128, subscribers);
        let failed = |error| format!("{title}, {name}: {error}");
        let clients = Fanout::open(&running.addresses, load).map_err(failed)?;
        paced.push(Paced { name, role, process: &running.process, clients });
    }
    open_loop::race(runner, "w7", &title, subscribers, paced)
}

/// The CPU time of a delivery as a channel grows. Each size and each server has the machine alone, because this process may not have as
/// many connections at once: rounds are not interleaved.
pub(super) fn growth(runner: &mut Runner, cores: &Cores, most: usize) -> Result<(), String> {
    let sizes = [runner.scale(100, 2), runner.scale(10_000, 8), runner.scale(20_000, 16)];
    let mut costs: Vec<(String, Vec<(usize, f64)>)> = Vec::new();
    for subscribers in capped(sizes, most) {
        let title = format!("fan-out, 128 B to {subscribers} subscribers, one message at a time");
        let mut entries = Vec::new();
        for server in servers::large_fanouts() {
            let running = servers::start(runner, cores, vec![server])?;
            for entrant in entrants(&running) {
                let load = Load::of_one_channel(entrant.protocol, 128, subscribers);
                entries.extend(race(runner, &title, vec![(entrant, load)])?.0);
            }
        }
        for entry in &entries {
            let Some(cost) = entry.cost() else { continue };
            let cost = (subscribers, cost.median);
            match costs.iter_mut().find(|(name, _)| *name == entry.name) {
                Some((_, costs)) => costs.push(cost),
                None => costs.push((entry.name.clone(), vec![cost])),
            }
        }
        let targets = vec![Target::fastest_rival(1.0 / 1.2)];
        runner.keep(RaceResult { targets, ..RaceResult::new("w7", title, entries) });
    }
    for (name, costs) in costs {
        if let Some(figure) = flatness(&name, &costs) {
            runner.keep_figure(figure);
        }
    }
    Ok(())
}

/// Ascending sizes cut to `most`, each once.
fn capped(sizes: [usize; 3], most: usize) -> Vec<usize> {
    let mut sizes = sizes.map(|size| size.min(most)).to_vec();
    sizes.dedup();
    sizes
}

/// The cost in the smallest channel divided by that in the largest, from pairs of subscribers and nanoseconds; `None` if only one was
/// measured.
fn flatness(name: &str, costs: &[(usize, f64)]) -> Option<Figure> {
    let &[(few_len, few), .., (many_len, many)] = costs else { return None };
    let note = format!("{:.2} µs and {:.2} µs; the target is flat within 10 %", few / 1e3, many / 1e3);
    let title = format!("CPU of a delivery to {few_len} subscribers ÷ to {many_len}: {name}");
    let least = name.starts_with("wireloom").then_some(1.0 / 1.1);
    Some(Figure::new("w7", title, few / many, least, note))
}

/// `channels` channels of `members` members. Each connection is in many of them.
pub(super) fn of_many_channels(
    runner: &mut Runner,
    cores: &Cores,
    subscribers: usize,
    channels: usize,
    members: usize,
) -> Result<(), String> {
    let servers = if members == 1 { servers::many_channels() } else { servers::channels() };
    let running = servers::start(runner, cores, servers)?;
    let plural = if members == 1 { "" } else { "s" };
    let title = format!("fan-out, 128 B to {channels} channels of {members} member{plural}, bursts of 16");
    let loads = entrants(&running).into_iter().map(|entrant| {
        let load = Load::of_one_channel(entrant.protocol, 128, subscribers);
        (entrant, Load { channels, members, burst: 16, ..load })
    });
    let (entries, _) = race(runner, &title, loads.collect())?;
    let targets = vec![Target::fastest_rival(1.0)];
    runner.keep(RaceResult { targets, ..RaceResult::new("w7", title, entries) });
    Ok(())
}

/// Bare messages over TLS 1.3 with AES-128-GCM and one certificate for all.
pub(super) fn over_tls(runner: &mut Runner, cores: &Cores, subscribers: usize) -> Result<(), String> {
    let running = servers::start(runner, cores, servers::fanouts_over_tls())?;
    for (burst, sent) in [(1, "one message at a time"), (16, "bursts of 16")] {
        let title = format!("fan-out over TLS, 128 B to {subscribers} subscribers, {sent}");
        let load = Load::of_one_channel(Protocol::Bare, 128, subscribers);
        let loads =
            entrants(&running).into_iter().map(|entrant| (entrant, Load { burst, tls: true, ..load }));
        let (entries, _) = race(runner, &title, loads.collect())?;
        let targets = vec![Target::fastest_rival(1.0)];
        runner.keep(RaceResult { targets, ..RaceResult::new("w7", title, entries) });
    }
    Ok(())
}

/// Bare messages to clients that negotiated permessage-deflate, and to clients of the same server that did not.
pub(super) fn compressed(runner: &mut Runner, cores: &Cores, subscribers: usize) -> Result<(), String> {
    const PLAIN: &str = "wireloom-hub, uncompressed";
    let running = servers::start(runner, cores, servers::compressing())?;
    for (payload_len, title) in [(128, "128 B"), (4 << 10, "4 KiB")] {
        let title = format!("fan-out, {title} to {subscribers} subscribers, permessage-deflate");
        let load = Load::of_one_channel(Protocol::Bare, payload_len, subscribers);
        let mut loads = Vec::new();
        for entrant in entrants(&running) {
            if entrant.role == Role::Wireloom {
                let plain = Entrant { name: PLAIN.into(), role: Role::Baseline, ..entrant };
                loads.push((plain, load));
            }
            loads.push((entrant, Load { deflate: true, ..load }));
        }
        let (entries, _) = race(runner, &title, loads)?;
        let targets = vec![Target::named(PLAIN, 1.3), Target::fastest_rival(1.0)];
        runner.keep(RaceResult { targets, ..RaceResult::new("w7", title, entries) });
    }
    Ok(())
}

/// Runs all entrants in turn; returns their entries and, in the same order, the latencies of their deliveries.
pub(super) fn race(
    runner: &Runner,
    title: &str,
    loads: Vec<(Entrant<'_>, Load)>,
) -> Result<(Vec<Entry>, Vec<Option<Latency>>), String> {
    let time = if runner.smoke { Duration::ZERO } else { runner.effort.process_round_time };
    let mut fanouts = Vec::with_capacity(loads.len());
    for (entrant, load) in &loads {
        let failed = |error: String| format!("{title}, {}: {error}", entrant.name);
        runner.show(&format!("{title}: checking {}", entrant.name));
        let mut fanout = Fanout::open(&entrant.running.addresses, *load).map_err(failed)?;
        fanout.run(Duration::ZERO).map_err(failed)?;
        fanout.take_latency();
        fanouts.push(fanout);
    }
    let contestants = loads.iter().zip(&mut fanouts).map(|((entrant, _), fanout)| Contestant {
        name: entrant.name.clone(),
        role: entrant.role,
        note: None,
        process: &entrant.running.process,
        work: Box::new(move || fanout.run(time)),
    });
    let mut entries = rounds::run(runner, title, contestants.collect())?;
    let latencies: Vec<_> = fanouts.iter_mut().map(Fanout::take_latency).collect();
    for (entry, latency) in entries.iter_mut().zip(&latencies) {
        entry.note = latency.map(|Latency { median, p99 }| {
            format!("delivery latency: median {} µs, p99 {} µs", median / 1_000, p99 / 1_000)
        });
    }
    Ok((entries, latencies))
}

/// The best p99 of a rival divided by Wireloom's.
fn compare_p99(runner: &mut Runner, title: &str, entries: &[Entry], latencies: &[Option<Latency>]) {
    let p99 = |is_wanted: fn(Role) -> bool| {
        let of_those = entries.iter().zip(latencies).filter(|(entry, _)| is_wanted(entry.role));
        of_those.filter_map(|(_, latency)| latency.map(|latency| latency.p99)).min()
    };
    let (Some(ours), Some(best)) = (p99(|role| role == Role::Wireloom), p99(Role::is_rival)) else { return };
    let note = format!(
        "{} µs and {} µs; the target is at most the rival's, so at least 1",
        best / 1_000,
        ours / 1_000
    );
    let title = format!("p99 of the delivery latency, best rival ÷ wireloom-hub: {title}");
    runner.keep_figure(Figure::new("w7", title, best as f64 / ours.max(1) as f64, Some(1.0), note));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_open_files_leave_out_sizes_that_do_not_grow() {
        let sizes = [100, 10_000, 20_000];
        assert_eq!(capped(sizes, 24), [24]);
        assert_eq!(capped(sizes, 3_096), [100, 3_096]);
        assert_eq!(capped(sizes, 19_000), [100, 10_000, 19_000]);
        assert_eq!(capped(sizes, 100_000), sizes);
    }

    #[test]
    fn growth_is_between_the_sizes_that_were_measured() {
        let title = |costs: &[_]| flatness("wireloom-hub", costs).map(|figure| figure.title);
        let of_three = title(&[(100, 1.0), (10_000, 2.0), (19_000, 3.0)]);
        assert_eq!(
            of_three.as_deref(),
            Some("CPU of a delivery to 100 subscribers ÷ to 19000: wireloom-hub")
        );
        let of_two = title(&[(10_000, 2.0), (19_000, 3.0)]);
        assert_eq!(
            of_two.as_deref(),
            Some("CPU of a delivery to 10000 subscribers ÷ to 19000: wireloom-hub")
        );
        assert_eq!(title(&[(100, 1.0)]), None);
    }
}
