//! HTTP/2 servers under h2load: small requests, and bodies of 16 MiB both ways, over one connection.

use crate::bench::Bench;
use crate::heat::{BYTES, CPU, Class, Heat, RATE, Score, USER};
use crate::loopback::cores::Cores;
use crate::loopback::rounds::{self, Entry};
use crate::loopback::servers::{self, LARGE, LARGE_LEN, Running, SMALL, foreign};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

/// What h2load is asked to do over its one connection.
struct Task {
    title: &'static str,
    path: &'static str,
    /// Requests in a round, and at once.
    requests: u64,
    at_once: u64,
    /// The file that each request sends.
    upload: Option<PathBuf>,
    /// Bytes of a body, whichever way it goes, if that is what counts.
    body_len: Option<usize>,
}

/// All heats.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    if Command::new("h2load").arg("--version").output().is_err() {
        bench.skip("h2load", "not installed (Debian has it in nghttp2-client)");
        return Ok(());
    }
    let cores = Cores::take();
    let running = servers::start(bench, &cores, servers::http2())?;
    let turns = |full: u32, tiny| match bench.smoke {
        true => tiny,
        false => u64::from(full) * bench.effort.turn.as_millis() as u64 / 600,
    };
    let (small, large) = (turns(200_000, 200), turns(32, 2));
    let tasks = [
        Task {
            title: "requests, 100 at a time",
            path: SMALL,
            requests: small,
            at_once: 100,
            upload: None,
            body_len: None,
        },
        Task {
            title: "download of 16 MiB, 4 at a time",
            path: LARGE,
            requests: large,
            at_once: 4,
            upload: None,
            body_len: Some(LARGE_LEN),
        },
        // Servers that serve streams in turns send each piece of the one body four times in a row above. Here nobody does.
        Task {
            title: "download of 16 MiB, one at a time",
            path: LARGE,
            requests: large,
            at_once: 1,
            upload: None,
            body_len: Some(LARGE_LEN),
        },
        Task {
            title: "upload of 16 MiB, 4 at a time",
            path: SMALL,
            requests: large,
            at_once: 4,
            upload: Some(foreign::files()?.join(&LARGE[1..])),
            body_len: Some(LARGE_LEN),
        },
    ];
    for task in &tasks {
        race(bench, &running, task)?;
    }
    Ok(())
}

fn race(bench: &mut Bench, running: &[Running], task: &Task) -> Result<(), String> {
    let entries = running.iter().map(|Running { server, process, address }| Entry {
        name: server.name.clone(),
        class: server.class,
        process,
        work: Box::new(|| h2load(*address, task)),
    });
    let title = format!("HTTP/2, one connection, {}", task.title);
    let scores = rounds::run(bench, &title, entries.collect())?;
    let mut heat =
        Heat { workload: "h2load", title, columns: vec![RATE, CPU, USER], scores, verdicts: Vec::new() };
    match task.body_len {
        None => {
            heat.judge("hyper", 1.2, |score| score.name.starts_with("hyper"));
            heat.judge("nghttpd", 1.0, |score| score.name == "nghttpd");
        }
        Some(len) => {
            heat.judge("the better", 1.0, |score: &Score| score.class == Class::Rival);
            heat.columns[0] = BYTES;
            for score in &mut heat.scores {
                score.values[0] = score.values[0].times(len as f64);
            }
        }
    }
    bench.keep(heat);
    Ok(())
}

/// One round, on this thread's core.
fn h2load(address: SocketAddr, task: &Task) -> Result<u64, String> {
    let mut command = Command::new("h2load");
    command.args(["-c", "1", "-t", "1", "-n", &task.requests.to_string(), "-m", &task.at_once.to_string()]);
    if let Some(file) = &task.upload {
        command.arg("-d").arg(file);
    }
    let output = command.arg(format!("http://{address}{}", task.path)).output();
    let output = output.map_err(|error| format!("h2load: {error}"))?;
    let report = String::from_utf8_lossy(&output.stdout);
    let expected_data = match (&task.upload, task.body_len) {
        (None, Some(len)) => task.requests * len as u64,
        _ => task.requests * servers::SMALL_BODY.len() as u64,
    };
    check(&report, task.requests, expected_data)?;
    Ok(task.requests)
}

/// Whether all requests were answered with all that they asked for.
fn check(report: &str, requests: u64, data: u64) -> Result<(), String> {
    let line = |start| report.lines().find(|line| line.starts_with(start)).unwrap_or_default();
    let succeeded = line("requests: ").contains(&format!(" {requests} succeeded, 0 failed"));
    let right = line("status codes: ").contains(&format!(" {requests} 2xx"));
    let whole = line("traffic: ").ends_with(&format!("({data}) data"));
    match succeeded && right && whole {
        true => Ok(()),
        false => Err(format!("not {requests} answers with {data} bytes in all:\n{report}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_must_be_of_all_requests() {
        let report = "requests: 8 total, 8 started, 8 done, 8 succeeded, 0 failed, 0 errored, 0 timeout\n\
            status codes: 8 2xx, 0 3xx, 0 4xx, 0 5xx\n\
            traffic: 98.56KB (100929) total, 145B (145) headers (space savings 88.15%), 48B (48) data\n";
        assert_eq!(check(report, 8, 48), Ok(()));
        assert!(check(report, 9, 48).is_err());
        assert!(check(report, 8, 47).is_err());
        assert!(check(&report.replace("8 2xx", "7 2xx"), 8, 48).is_err());
        assert!(check("", 8, 48).is_err());
    }
}
