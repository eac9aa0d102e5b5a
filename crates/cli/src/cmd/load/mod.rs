//! `wireloom load`: puts load on a server, and measures rate, latency and errors.
//!
//! Layers: `end`, `hdr` + `recorder`, `link`, `pacer`, `payload`, `plan`, `process`, `recording`, `room`, `script`, `units` →
//! `comparison`, `progress`, `target`, `work` → `run` → `scenario` → `runner` → `report` → `merged` → `output`.

mod comparison;
mod end;
mod hdr;
mod link;
mod merged;
mod output;
mod pacer;
mod payload;
mod plan;
mod process;
mod progress;
mod recorder;
mod recording;
mod report;
mod room;
mod run;
mod runner;
mod scenario;
mod script;
mod target;
mod units;
mod work;

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wireloom::Error;
use wireloom::client::url_without_secrets;

use crate::args::{Load, LoadCommand, Merge, Scenario};
use crate::exit::Exit;
use crate::signals::{Signal, Signals};
use crate::{descriptors, file, terminal};
use comparison::{Comparison, NoAnswer, Samples};
use merged::Merged;
use progress::Progress;
use report::{Checked, Report};
use runner::Outcome;
use target::{Failure, Opener};
use work::Work;

pub(crate) fn run(args: Load) -> Exit {
    if let Some(LoadCommand::Merge(merge)) = &args.command {
        return self::merge(merge);
    }
    descriptors::raise_limit();
    // One thread, so that the load is that of one core and tasks do not move between cores.
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let exit = runtime.block_on(load(args));
            // A thread may be resolving a name.
            runtime.shutdown_background();
            exit
        }
        Err(error) => {
            terminal::print_error(error);
            Exit::NoConnection
        }
    }
}

async fn load(mut args: Load) -> Exit {
    let usage = |error: String| {
        terminal::print_error(terminal::visible_line(&error));
        Exit::Usage
    };
    if let Some(error) = args.conflict() {
        return usage(error);
    }
    let work = match Work::new(&args) {
        Ok(work) => Arc::new(work),
        Err(error) => return usage(error),
    };
    if work.scenario == Scenario::Replay {
        args.volume.connections.get_or_insert(work.recording.connections());
    }
    let args = &args;
    // Read the file first, so that an error is reported before the load.
    let old = match args.comparison.compare.as_deref().map(read_samples).transpose() {
        Ok(old) => old,
        Err(error) => return usage(error),
    };
    // As for the files that are written.
    let files = match Files::open(args) {
        Ok(files) => files,
        Err(error) => return usage(error),
    };
    let mut signals = match Signals::ending_at_second() {
        Ok(signals) => signals,
        Err(error) => return usage(error.to_string()),
    };
    let mut progress = Progress::new(args);
    let measured = measure(args, &work, &mut progress, &mut signals).await;
    progress.finish();
    let (mut report, against) = match measured {
        Ok(reports) => reports,
        Err((url, failure)) => return print_failure(args.scenario(), &url, failure),
    };
    if let Some((path, old)) = old {
        let own = Samples::of_series(&report.series, report.warmup.as_secs_f64(), args.is_paced());
        report.comparison = Some(Comparison::unpaired(&path, &own, &old));
    }
    // Before the print, which waits for a reader.
    let mut failures = files.write(&report);
    failures.extend(print(args, &report, against.as_ref()).err());
    if failures.is_empty() {
        return match report.interrupted_by {
            // The rest of the run might have changed the results of expectations and comparisons, so they do not set the exit code.
            Some(signal) => signal.exit(),
            None => exit(args, &report, against.as_ref()),
        };
    }
    failures.iter().for_each(|error| terminal::print_error(terminal::visible_line(error)));
    Exit::Broken
}

/// Adds up the files of several processes.
fn merge(args: &Merge) -> Exit {
    let merged = match Merged::new(args) {
        Ok(merged) => merged,
        Err(error) => {
            terminal::print_error(terminal::visible_line(&error));
            return Exit::NoConnection;
        }
    };
    let text = match args.json {
        true => format!("{}\n", terminal::visible_json(&output::json::merged(&merged).to_string())),
        false => output::table::merged(&merged),
    };
    // Before the print, which waits for a reader.
    let written = args.hdr.as_ref().map_or(Ok(()), |path| {
        file::open(path)
            .and_then(|file| file::replace(file, path, &merged.text))
            .map_err(|error| format!("--hdr {}: {error}", path.display()))
    });
    let failures: Vec<String> = [written, print_text(&text)].into_iter().filter_map(Result::err).collect();
    if !failures.is_empty() {
        failures.iter().for_each(|error| terminal::print_error(terminal::visible_line(error)));
        return Exit::Broken;
    }
    if merged.is_interrupted || !Checked::all_are_met(&merged.expectations) {
        Exit::Unmet
    } else if Checked::has_errors(&merged.expectations, merged.errors_total()) {
        Exit::Broken
    } else {
        Exit::Success
    }
}

/// Prints why there was no load, on one line.
fn print_failure(scenario: Scenario, url: &str, failure: Failure) -> Exit {
    match failure {
        Failure::Usage(error) => {
            terminal::print_error(terminal::visible_line(&error));
            Exit::Usage
        }
        Failure::Interrupted(signal) => {
            terminal::print_error("interrupted before the connections were open");
            signal.exit()
        }
        Failure::Connect(error) => {
            let url = url_without_secrets(url);
            let is_nameless = scenario == Scenario::Rooms && url.trim_end_matches('/').ends_with("/rooms");
            let hint = match &error {
                Error::Refused(response) if response.status() == 404 && is_nameless => {
                    ": a room has a name, such as /rooms/lobby"
                }
                _ => "",
            };
            let error_text = error.to_string();
            let text = format!("{url}: {}{hint}", error_text.trim_end());
            terminal::print_error(terminal::visible_line(&text));
            Exit::of_opening(&error)
        }
    }
}

fn exit(args: &Load, report: &Report, against: Option<&Report>) -> Exit {
    let errors: u64 = [report].into_iter().chain(against).map(|report| report.counts.errors.total()).sum();
    let is_slower = args.comparison.fail_if_slower.is_some_and(|fraction| match &report.comparison {
        Some(comparison) if comparison.is_conclusive() => comparison.is_slower_by(fraction),
        // If the check could not be made, it must not pass.
        _ => {
            terminal::print_error(
                "--fail-if-slower: there are too few samples to compare: measure for longer",
            );
            true
        }
    });
    if is_slower || !Checked::all_are_met(&report.expectations) {
        Exit::Unmet
    } else if Checked::has_errors(&report.expectations, errors) {
        Exit::Broken
    } else {
        Exit::Success
    }
}

/// The opener for a server, unless a signal comes while its name is resolved.
async fn open(args: &Load, url: &str, signals: &mut Signals) -> Result<Opener, Failure> {
    tokio::select! {
        opener = Opener::new(args, url) => opener,
        signal = signals.recv() => Err(Failure::Interrupted(signal)),
    }
}

/// The report on the URL, and with `--against` that on the other server.
async fn measure(
    args: &Load,
    work: &Arc<Work>,
    progress: &mut Progress,
    signals: &mut Signals,
) -> Result<(Report, Option<Report>), (String, Failure)> {
    let failed = |url: &str| {
        let url = url.to_owned();
        |error| (url, error)
    };
    let own = Arc::new(open(args, args.url(), signals).await.map_err(failed(args.url()))?);
    let Some(other_url) = &args.comparison.against else {
        let outcome = runner::run(args, work.clone(), own, args.duration(), progress, signals).await;
        return Ok((Report::new(args, outcome.map_err(failed(args.url()))?), None));
    };
    let other = Arc::new(open(args, other_url, signals).await.map_err(failed(other_url))?);
    let mut sides = [Side::new(own), Side::new(other)];
    let rounds = args.comparison.rounds;
    let duration = args.duration() / u32::try_from(rounds).unwrap_or(u32::MAX);
    let mut interrupted_by = None;
    'rounds: for _ in 0..rounds {
        // By chance: whatever load the machine has, each server is as likely to meet it, in each round anew.
        let order = if fastrand::bool() { [0, 1] } else { [1, 0] };
        for side in order {
            let side = &mut sides[side];
            let outcome =
                runner::run(args, work.clone(), side.opener.clone(), duration, progress, signals).await;
            let outcome = match (outcome, &mut side.outcome) {
                (Ok(outcome), _) => outcome,
                // The rounds that were measured are reported.
                (Err(Failure::Interrupted(signal)), _) => {
                    interrupted_by = Some(signal);
                    break 'rounds;
                }
                (Err(Failure::Connect(error)), Some(before)) => {
                    before.recorder.connect_failed(&error);
                    break 'rounds;
                }
                (Err(failure), _) => return Err((side.opener.url().to_owned(), failure)),
            };
            interrupted_by = outcome.interrupted_by;
            side.add(outcome, args.is_paced());
            if interrupted_by.is_some() {
                break 'rounds;
            }
        }
    }
    let [mut own, mut other] = sides;
    for outcome in [&mut own.outcome, &mut other.outcome].into_iter().flatten() {
        outcome.interrupted_by = interrupted_by;
    }
    // Fewer answers than one in the round, and later than --timeout.
    let no_answer =
        NoAnswer { rate: 1.0 / duration.as_secs_f64(), latency: args.volume.timeout.as_secs_f64() };
    let with = url_without_secrets(other_url);
    let comparison = Comparison::paired(&with, &own.samples, &other.samples, no_answer);
    match (own.outcome, other.outcome) {
        (Some(own), Some(other)) => {
            let mut report = Report::new(args, own);
            report.comparison = Some(comparison);
            Ok((report, Some(Report::new(args, other))))
        }
        // Interrupted before the second server's turn.
        (Some(outcome), None) | (None, Some(outcome)) => Ok((Report::new(args, outcome), None)),
        (None, None) => {
            Err((args.url().to_owned(), Failure::Interrupted(interrupted_by.unwrap_or(Signal::Interrupt))))
        }
    }
}

/// One of two servers that are compared.
struct Side {
    opener: Arc<Opener>,
    /// All rounds together.
    outcome: Option<Outcome>,
    samples: Samples,
}

impl Side {
    fn new(opener: Arc<Opener>) -> Self {
        Self { opener, outcome: None, samples: Samples::default() }
    }

    fn add(&mut self, mut round: Outcome, is_paced: bool) {
        if round.interrupted_by.is_none() {
            let rate = round.recorder.counts.received as f64 / round.measured.as_secs_f64().max(1e-9);
            let latency = round.recorder.latency();
            let (p50, p99) = match latency.len() {
                0 => (0.0, 0.0),
                _ => (
                    latency.value_at_quantile(0.5) as f64 / 1e9,
                    latency.value_at_quantile(0.99) as f64 / 1e9,
                ),
            };
            self.samples.push(rate, p50, p99, is_paced);
        }
        match &mut self.outcome {
            Some(outcome) => outcome.append(round),
            None => self.outcome = Some(round),
        }
    }
}

fn read_samples(path: &Path) -> Result<(String, Samples), String> {
    let fail = |error: String| format!("--compare {}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
    Ok((path.display().to_string(), Samples::of_json(&text).map_err(fail)?))
}

/// The files of the report, which are opened before the load.
struct Files(Vec<ReportFile>);

/// A file of the report.
struct ReportFile {
    option: &'static str,
    path: PathBuf,
    file: File,
    content: fn(&Report) -> Result<Vec<u8>, String>,
}

impl Files {
    /// # Errors
    /// A file cannot be opened for writing.
    fn open(args: &Load) -> Result<Self, String> {
        type Content = fn(&Report) -> Result<Vec<u8>, String>;
        let output = &args.output;
        let wanted: [(&'static str, &Option<PathBuf>, Content); 4] = [
            ("--html", &output.html, |report| {
                output::html::page(report).map(String::into_bytes).map_err(|error| error.to_string())
            }),
            ("--prometheus", &output.prometheus, |report| Ok(output::prometheus::text(report).into_bytes())),
            ("--csv", &output.csv, |report| Ok(output::csv::text(report).into_bytes())),
            ("--hdr", &output.hdr, |report| {
                let text = |log: &hdr::Log| {
                    let is_interrupted = report.interrupted_by.is_some();
                    log.text(&report.counts, report.connections, report.measured, is_interrupted)
                };
                Ok(report.log.as_ref().map(text).unwrap_or_default())
            }),
        ];
        let mut files = Vec::new();
        for (option, path, content) in wanted {
            let Some(path) = path.clone().filter(|path| option != "--prometheus" || !is_dash(path)) else {
                continue;
            };
            let file = file::open(&path).map_err(|error| format!("{option} {}: {error}", path.display()))?;
            files.push(ReportFile { option, path, file, content });
        }
        Ok(Self(files))
    }

    /// Writes all files; returns why some could not be written. The run is over: the result must not be lost with one of them.
    fn write(self, report: &Report) -> Vec<String> {
        let write = |ReportFile { option, path, file, content }: ReportFile| {
            let content = content(report).map_err(|error| format!("{option}: {error}"))?;
            file::replace(file, &path, &content)
                .map_err(|error| format!("{option} {}: {error}", path.display()))
        };
        self.0.into_iter().filter_map(|file| write(file).err()).collect()
    }
}

fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Prints the report as the arguments say.
fn print(args: &Load, report: &Report, against: Option<&Report>) -> Result<(), String> {
    let output = &args.output;
    let text = if output.json {
        let mut json = output::json::json(report);
        json["against"] = against.map(output::json::json).into();
        format!("{}\n", terminal::visible_json(&json.to_string()))
    } else if output.prometheus.as_deref().is_some_and(is_dash) {
        output::prometheus::text(report)
    } else {
        let mut text = output::table::table(report);
        if let Some(against) = against {
            text += "\n";
            text += &output::table::table(against);
        }
        text
    };
    print_text(&text)
}

/// A reader of the output that ends early, such as `head`, is no failure.
fn print_text(text: &str) -> Result<(), String> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("the output cannot be written: {error}"))
        }
        _ => Ok(()),
    }
}
