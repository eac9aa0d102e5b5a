//! W3: consume a firehose of binary events of 5 KB, by clients in processes of their own.

use crate::bench::Bench;
use crate::corpus::{Content, Corpus, End};
use crate::heat::{CPU, Class, Heat, RATE, Score, USER, Verdict};
use crate::loopback::cores::Cores;
use crate::loopback::firehose::{Events, Firehose, Spring};
use crate::loopback::process::Process;
use crate::loopback::rounds::{self, Entry};
use crate::loopback::servers::own_command;
use crate::rivals::with_version;
use crate::stories::shared;
use std::process::Command;

/// Made-up events, and those of a relay where they are at hand.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    let cores = Cores::take();
    let corpus = Corpus::new(Content::Binary, 5_000, bench.scale(160, 8), End::Client);
    race(bench, &cores, "made up, 5,000 B", Events::new(corpus.messages.iter().map(|event| &**event)))?;
    let path = shared().join("firehose/frames.bin");
    match std::fs::read(&path).ok().as_deref().and_then(recorded) {
        Some(events) => {
            let title = format!("recorded, {} B in the mean", events.bytes / events.count);
            race(bench, &cores, &title, events)
        }
        None => {
            bench.skip("w3 with recorded events", &format!("not at {}", path.display()));
            Ok(())
        }
    }
}

/// Each behind its length, a little-endian `u32`.
fn recorded(mut bytes: &[u8]) -> Option<Events> {
    let mut events = Vec::new();
    while !bytes.is_empty() {
        let (len, rest) = bytes.split_first_chunk::<4>()?;
        let (event, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        events.push(event);
        bytes = rest;
    }
    Some(Events::new(events))
}

/// A client that runs.
struct Running {
    name: String,
    class: Class,
    process: Process,
    firehose: Firehose,
    /// Whether it says at its end what it was handed.
    counts: bool,
}

fn race(bench: &mut Bench, cores: &Cores, title: &str, events: Events) -> Result<(), String> {
    let title = format!("firehose, {title}");
    let mut running = Vec::new();
    let own = |word| move |url: &str| own_command(&["--connect", word, url]);
    let rival = |word: &str| (with_version(word), Class::Rival);
    let smoke = bench.smoke;
    type Start<'a> = Box<dyn Fn(&str) -> Result<Command, String> + 'a>;
    let contestants: [((String, Class), bool, Start<'_>); 5] = [
        (("wireloom".into(), Class::Wireloom), true, Box::new(own("wireloom"))),
        (("wireloom connect --count".into(), Class::Ours), false, Box::new(|url| command(url, !smoke))),
        (rival("tokio-tungstenite"), true, Box::new(own("tokio-tungstenite"))),
        (rival("fastwebsockets"), true, Box::new(own("fastwebsockets"))),
        (rival("tokio-websockets"), true, Box::new(own("tokio-websockets"))),
    ];
    for ((name, class), counts, start) in contestants {
        if !bench.is_wanted(&name) {
            continue;
        }
        bench.say(&format!("{title}: starting {name}"));
        let spring = Spring::new()?;
        let url = format!("ws://{}/", spring.address()?);
        let begun = start(&url).and_then(|command| {
            let mut process = Process::start(command, cores)?;
            let firehose = spring.accept(|| process.is_running())?;
            Ok((process, firehose))
        });
        match begun {
            Ok((process, firehose)) => running.push(Running { name, class, process, firehose, counts }),
            Err(reason) if !counts => bench.skip(&name, &reason),
            Err(error) => return Err(format!("{title}, {name}: {error}")),
        }
    }
    // The user part is small and the kernel samples it: it takes longer to be told.
    let turn = 3 * bench.effort.turn;
    for running in &mut running {
        // Buffers grow and caches fill before anything is timed.
        running.firehose.pour(&events, turn / 20).map_err(|error| format!("{}: {error}", running.name))?;
    }
    let entries = running.iter_mut().map(|Running { name, class, process, firehose, .. }| Entry {
        name: name.clone(),
        class: *class,
        process,
        work: Box::new(|| firehose.pour(&events, turn)),
    });
    let scores = rounds::run(bench, &title, entries.collect())?;
    for running in running {
        let name = running.name;
        let poured = running.firehose.close().map_err(|error| format!("{name}: {error}"))?;
        let expected = format!("{} events, {} bytes", poured * events.count, poured * events.bytes);
        let said = running.counts.then(|| running.process.output()).transpose()?;
        if said.as_deref().is_some_and(|said| said.trim() != expected) {
            return Err(format!("{title}, {name}: handed out {said:?} instead of {expected}"));
        }
    }
    let mut heat =
        Heat { workload: "w3", title, columns: vec![RATE, CPU, USER], scores, verdicts: Vec::new() };
    for class in [Class::Wireloom, Class::Ours] {
        judge(&mut heat, class);
    }
    bench.keep(heat);
    Ok(())
}

/// User time of ours in parts of each of the two that the bar names.
fn judge(heat: &mut Heat, class: Class) {
    let Some(ours) = heat.least(2, |score| score.class == class) else { return };
    let named = |score: &&Score| {
        ["tokio-tungstenite", "fastwebsockets"].iter().any(|name| score.name.starts_with(name))
    };
    let verdicts = heat.scores.iter().filter(named).map(|rival| Verdict {
        claim: format!("of the user time of {}, by {}", rival.name, ours.name),
        value: ours.values[2].median / rival.values[2].median,
        bar: 0.5,
        at_least: false,
    });
    let verdicts: Vec<_> = verdicts.collect();
    heat.verdicts.extend(verdicts);
}

/// `wireloom connect`, which lies beside this program, or is built.
fn command(url: &str, may_build: bool) -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("wireloom");
    if may_build {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--release", "--locked", "-p", "wireloom-cli"]);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_events_stand_behind_their_lengths() {
        let events = recorded(b"\x02\0\0\0ab\x01\0\0\0c").expect("two events");
        assert_eq!((events.count, events.bytes), (2, 3));
        assert!(recorded(b"\x02\0\0\0a").is_none());
        assert!(recorded(b"\x02\0").is_none());
    }
}
