//! HTTP/2 servers under h2load: small requests, and bodies of 16 MiB both ways, over one connection.

use crate::loopback::cores::Cores;
use crate::loopback::rounds::{self, Contestant};
use crate::loopback::servers::{self, LARGE, LARGE_LEN, Running, SMALL, foreign};
use crate::results::{RaceResult, Role, Target};
use crate::runner::Runner;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

/// The task of h2load over its one connection.
struct Task {
    title: &'static str,
    path: &'static str,
    /// Requests in a round, and how many of them at once.
    requests: u64,
    at_once: u64,
    /// The file that each request sends.
    upload: Option<PathBuf>,
    /// The length of the body in bytes, in either direction, if the rate is shown in bytes.
    body_len: Option<usize>,
}

/// All races.
pub(crate) fn run(runner: &mut Runner) -> Result<(), String> {
    if Command::new("h2load").arg("--version").output().is_err() {
        runner.skip("h2load", "not installed", "Debian has it in nghttp2-client");
        return Ok(());
    }
    let cores = Cores::take();
    let running = servers::start(runner, &cores, servers::http2())?;
    let requests = |full: u32, tiny| match runner.smoke {
        true => tiny,
        false => u64::from(full) * runner.effort.process_round_time.as_millis() as u64 / 600,
    };
    let (small, large) = (requests(200_000, 200), requests(32, 2).max(2));
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
        // Above, a server that serves the four streams in turn sends each part of the same body four times in a row,
        // from the cache. Here it does not.
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
        race(runner, &running, task)?;
    }
    Ok(())
}

fn race(runner: &mut Runner, running: &[Running], task: &Task) -> Result<(), String> {
    // The baseline has no long answers.
    let able = running.iter().filter(|it| it.server.role != Role::Baseline || task.path == SMALL);
    let contestants = able.map(|Running { server, process, address, .. }| Contestant {
        name: server.name.clone(),
        role: server.role,
        note: server.note,
        process,
        work: Box::new(|| h2load(*address, task)),
    });
    let title = format!("HTTP/2, one connection, {}", task.title);
    let entries = rounds::run(runner, &title, contestants.collect())?;
    let targets = match task.body_len {
        None => vec![Target::named("hyper", 0.83), Target::named("nghttpd", 1.0)],
        Some(_) => vec![Target::fastest_rival(1.0)],
    };
    let message_len = task.body_len.map(|len| len as f64);
    runner.keep(RaceResult { message_len, targets, ..RaceResult::new("h2load", title, entries) });
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

/// Checks that all requests were answered in full.
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
    fn rejects_a_report_of_incomplete_requests() {
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
