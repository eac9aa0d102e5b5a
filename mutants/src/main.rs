//! Mutation testing with one build: all mutants of a crate are compiled into its tests at once, and an environment variable
//! selects the one that is active. A mutant costs no build: the tests that reach its code run until one fails, those first that
//! are fast and have killed mutants of the same file.
//!
//! `mutants/run CRATE [--quick] [--survivors] [FILE...]`: CRATE is `http2` or `ws`, FILE a path below its `src`. The outcome of each
//! mutant is appended to `target/mutants/CRATE.tsv`; a later run leaves out what that file has already, except for survivors with
//! `--survivors`. `--quick` leaves out slow tests: run its survivors again. Remove the lines of a file that has changed.
//!
//! In the end the survivors are compared with `mutants/explained/CRATE.tsv`. The program fails when one has no explanation there.

mod explained;
mod instrument;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use explained::Explained;
use instrument::{Instrument, Mutant};

/// In the source of the crate, beside its mutants. With `WIRELOOM_MUTANTS_REACHED`, the ids of those that are reached are appended to
/// the file of that name, once each.
const MODULE: &str = r#"//! Which mutant is active.
extern crate std;
use core::sync::atomic::{AtomicBool, Ordering};
use std::io::Write as _;
static ACTIVE: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| {
    std::env::var("WIRELOOM_MUTANT").ok().and_then(|id| id.parse().ok()).unwrap_or(0)
});
static REACHED: std::sync::LazyLock<Option<std::fs::File>> = std::sync::LazyLock::new(|| {
    let path = std::env::var_os("WIRELOOM_MUTANTS_REACHED")?;
    std::fs::OpenOptions::new().append(true).create(true).open(path).ok()
});
static IS_REACHED: [AtomicBool; 8192] = [const { AtomicBool::new(false) }; 8192];
/// In constants none is.
pub(crate) const fn is(id: u32) -> bool {
    core::intrinsics::const_eval_select((id,), never, is_active)
}
const fn never(_: u32) -> bool {
    false
}
fn is_active(id: u32) -> bool {
    if let Some(mut file) = REACHED.as_ref()
        && IS_REACHED.get(id as usize).is_some_and(|reached| !reached.load(Ordering::Relaxed) && !reached.swap(true, Ordering::Relaxed))
    {
        let _ = file.write_all(std::format!("{id}\n").as_bytes());
    }
    *ACTIVE == id
}
"#;

/// Files that are tests.
const TESTS: [&str; 2] = ["tests.rs", "model.rs"];

type Failure = Box<dyn std::error::Error>;

/// Names and paths of the test binaries.
type Binaries = Vec<(String, PathBuf)>;

struct Tree {
    root: PathBuf,
    /// The directory of the crate's copy.
    package: PathBuf,
    name: String,
}

/// A test, the time that it takes without a mutant, and the mutants that it reaches then.
struct Test {
    binary: PathBuf,
    name: String,
    time: Duration,
    reached: BTreeSet<u32>,
}

/// The longest test of a quick run.
const QUICK: Duration = Duration::from_millis(400);

/// How many mutants of a file a test has killed.
type Kills = BTreeMap<(String, String), u32>;

fn main() -> Result<ExitCode, Failure> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut option = |name: &str| {
        let index = arguments.iter().position(|argument| argument == name);
        index.map(|index| arguments.remove(index)).is_some()
    };
    let (quick, again) = (option("--quick"), option("--survivors"));
    if arguments.is_empty() {
        return Err("usage: mutants/run http2|ws [--quick] [--survivors] [FILE...]".into());
    }
    let name = arguments.remove(0);
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("no repository")?;
    // Each crate has a copy, so that both can run at once.
    let root = repository.join("target/mutants/tree").join(&name);
    let tree = Tree { package: root.join("crates").join(&name), root, name };
    tree.copy(repository)?;
    let explained = Explained::read(&repository.join(format!("mutants/explained/{}.tsv", tree.name)))?;
    let (mutants, binaries) = tree.build(repository)?;
    let mut tests = measure(&tree, &binaries)?;
    tests.retain(|test| !quick || test.time < QUICK);

    let results = repository.join(format!("target/mutants/{}.tsv", tree.name));
    let text = fs::read_to_string(&results).unwrap_or_default();
    let known: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.rsplit_once('\t')).collect();
    let mut file = fs::OpenOptions::new().create(true).append(true).open(&results)?;
    // In the order of the files that were named.
    let named: Vec<&Mutant> = if arguments.is_empty() {
        mutants.iter().collect()
    } else {
        arguments.iter().flat_map(|name| mutants.iter().filter(move |mutant| &mutant.file == name)).collect()
    };
    let selected: Vec<&Mutant> = named
        .iter()
        .copied()
        .filter(|mutant| known.get(&*mutant.to_string()).is_none_or(|outcome| again && survives(outcome)))
        .collect();
    println!("{} mutants, {} of them to run", mutants.len(), selected.len());
    let mut kills = Kills::new();
    let (begin, mut reported) = (Instant::now(), Instant::now());
    for (index, mutant) in selected.iter().enumerate() {
        let mut reaching: Vec<&Test> =
            tests.iter().filter(|test| test.reached.contains(&mutant.id)).collect();
        reaching.sort_by_cached_key(|test| {
            let kills = kills.get(&(mutant.file.clone(), test.name.clone())).copied().unwrap_or_default();
            test.time / (1 + 8 * kills)
        });
        let outcome = match reaching.len() {
            0 => NOT_REACHED.to_owned(),
            _ => killer(&tree, &reaching, mutant.id)?.unwrap_or_else(|| SURVIVED.to_owned()),
        };
        writeln!(file, "{mutant}\t{outcome}")?;
        if survives(&outcome) {
            println!("{}: {mutant}", outcome.to_lowercase());
        } else {
            *kills.entry((mutant.file.clone(), outcome)).or_default() += 1;
        }
        if reported.elapsed() > Duration::from_secs(60) {
            reported = Instant::now();
            let (done, rest) = (index + 1, selected.len() - index - 1);
            let time = begin.elapsed().as_secs();
            println!(
                "{done} done after {time} s, {rest} remain for about {} s",
                time * rest as u64 / done as u64
            );
        }
    }
    report(&named, &fs::read_to_string(&results)?, &explained)
}

/// Prints a table of the outcomes of these mutants, and the survivors without an explanation. The last outcome counts.
fn report(mutants: &[&Mutant], results: &str, explained: &Explained) -> Result<ExitCode, Failure> {
    let known: BTreeMap<&str, &str> = results.lines().filter_map(|line| line.rsplit_once('\t')).collect();
    let outcomes: Vec<(&Mutant, &str)> =
        mutants.iter().filter_map(|&mutant| Some((mutant, *known.get(&*mutant.to_string())?))).collect();
    let mut counts: BTreeMap<&str, [usize; 4]> = BTreeMap::new();
    for (mutant, outcome) in &outcomes {
        for file in [&*mutant.file, "all"] {
            let [run, killed, survive, not_reached] = counts.entry(file).or_default();
            *run += 1;
            *match *outcome {
                SURVIVED => survive,
                NOT_REACHED => not_reached,
                _ => killed,
            } += 1;
        }
    }
    let all = counts.remove("all").map(|counts| ("all", counts));
    println!("| file | run | killed | survive | not reached |\n|---|---|---|---|---|");
    for (file, [run, killed, survive, not_reached]) in counts.into_iter().chain(all) {
        let file = if file == "all" { file.to_owned() } else { format!("`{file}`") };
        println!("| {file} | {run} | {killed} | {survive} | {not_reached} |");
    }
    let outcomes: Vec<(&Mutant, bool)> =
        outcomes.into_iter().map(|(mutant, outcome)| (mutant, survives(outcome))).collect();
    let (unexplained, stale) = explained.compare(&outcomes);
    for line in &stale {
        println!("explained, but killed or gone: {line}");
    }
    for mutant in &unexplained {
        println!("without an explanation: {mutant}");
    }
    println!("{} survivors without an explanation", unexplained.len());
    Ok(if unexplained.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

const SURVIVED: &str = "SURVIVED";
const NOT_REACHED: &str = "NOT REACHED";

fn survives(outcome: &str) -> bool {
    outcome == SURVIVED || outcome == NOT_REACHED
}

/// The test that fails while this mutant is active. More and more of them run in one process.
fn killer(tree: &Tree, tests: &[&Test], mutant: u32) -> Result<Option<String>, Failure> {
    let (mut rest, mut len) = (tests, 2);
    while !rest.is_empty() {
        let (some, others) = rest.split_at(len.min(rest.len()));
        // One process runs the tests of one binary.
        let binaries: BTreeSet<&Path> = some.iter().map(|test| test.binary.as_path()).collect();
        for binary in binaries {
            let some: Vec<&Test> = some.iter().copied().filter(|test| test.binary == binary).collect();
            if let Some(killer) = failed(tree, &some, mutant, None)? {
                return Ok(Some(killer));
            }
        }
        (rest, len) = (others, len * 2);
    }
    Ok(None)
}

impl Tree {
    /// Copies the crates that the tests need into a workspace of their own.
    fn copy(&self, repository: &Path) -> Result<(), Failure> {
        const CRATES: [&str; 3] = ["crates/ws", "crates/http2", "crates/testing"];
        let listed =
            Command::new("git").current_dir(repository).args(["ls-files", "-z"]).args(CRATES).output()?;
        for path in String::from_utf8(listed.stdout)?.split_terminator('\0') {
            let source = repository.join(path);
            if path == "crates/testing/Cargo.toml" {
                // Its own tests, which need crates above it, are not run.
                let manifest = fs::read_to_string(source)?;
                let manifest = manifest.split("[dev-dependencies]").next().unwrap_or_default();
                write_changed(&self.root.join(path), manifest.as_bytes())?;
            } else if source.is_file() {
                write_changed(&self.root.join(path), &fs::read(source)?)?;
            }
        }
        let manifest = fs::read_to_string(repository.join("Cargo.toml"))?;
        let members = format!("members = {CRATES:?}");
        let lines = manifest.lines().filter(|line| !line.starts_with("default-members"));
        let lines = lines.map(|line| if line.starts_with("members") { members.as_str() } else { line });
        let manifest: Vec<&str> = lines.collect();
        write_changed(&self.root.join("Cargo.toml"), manifest.join("\n").as_bytes())?;
        if !self.root.join("Cargo.lock").exists() {
            fs::copy(repository.join("Cargo.lock"), self.root.join("Cargo.lock"))?;
        }
        Ok(())
    }

    /// Builds the tests with all mutants that compile.
    fn build(&self, repository: &Path) -> Result<(Vec<Mutant>, Binaries), Failure> {
        let source = repository.join("crates").join(&self.name).join("src");
        let paths = rust_files(&source)?;
        let mut hasher = DefaultHasher::new();
        for path in &paths {
            fs::read(path)?.hash(&mut hasher);
        }
        // The mutants of this source that do not compile are known after the first run.
        let known = self.root.join(format!("excluded.{:x}", hasher.finish()));
        let text = fs::read_to_string(&known).unwrap_or_default();
        let mut excluded: BTreeSet<u32> = text.lines().filter_map(|id| id.parse().ok()).collect();
        loop {
            let mut instrument = Instrument::new(excluded.clone());
            for path in &paths {
                let file = path.strip_prefix(&source)?.to_string_lossy().into_owned();
                if TESTS.iter().any(|tests| path.ends_with(tests)) {
                    continue;
                }
                let mut text = instrument.rewrite(&file, &fs::read_to_string(path)?)?;
                if file == "lib.rs" {
                    text = format!(
                        "#![feature(core_intrinsics, const_eval_select)]\n#![allow(internal_features)]\n{text}\nmod mutant;\n"
                    );
                }
                write_changed(&self.package.join("src").join(file), text.as_bytes())?;
            }
            write_changed(&self.package.join("src/mutant.rs"), MODULE.as_bytes())?;
            println!("building {} mutants", instrument.mutants.len());
            let (binaries, failed) = self.compile()?;
            if failed.is_empty() {
                let ids: Vec<String> = excluded.iter().map(u32::to_string).collect();
                fs::write(&known, ids.join("\n"))?;
                return Ok((instrument.mutants, binaries));
            }
            let before = excluded.len();
            excluded.extend(failed);
            if excluded.len() == before {
                return Err("the build fails for another reason".into());
            }
        }
    }

    /// Returns the test binaries, or the mutants that do not compile.
    fn compile(&self) -> Result<(Binaries, BTreeSet<u32>), Failure> {
        let output = Command::new("cargo")
            .current_dir(&self.root)
            .args(["test", "--no-run", "--lib", "--tests", "--all-features", "--message-format=json", "-p"])
            .arg(format!("wireloom-{}", self.name))
            .env("RUSTFLAGS", "--cap-lints=allow")
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_TARGET_DIR", self.root.join("../target"))
            .stderr(Stdio::inherit())
            .output()?;
        let (mut binaries, mut failed) = (Vec::new(), BTreeSet::new());
        for line in String::from_utf8(output.stdout)?.lines() {
            let message: serde_json::Value = serde_json::from_str(line)?;
            if let Some(binary) = message["executable"].as_str()
                && message["profile"]["test"] == true
            {
                binaries.push((message["target"]["name"].as_str().unwrap_or_default().into(), binary.into()));
            }
            if message["message"]["level"] == "error" {
                let spans = message["message"]["spans"].as_array().into_iter().flatten();
                for span in spans.filter(|span| span["is_primary"] == true) {
                    let found = self.mutant_at(span)?;
                    if found.is_none() {
                        println!("{}", message["message"]["rendered"].as_str().unwrap_or_default());
                    }
                    failed.extend(found);
                }
            }
        }
        if failed.is_empty() && !output.status.success() {
            return Err("the build fails".into());
        }
        Ok((binaries, failed))
    }

    /// The mutant whose branch an error is in.
    fn mutant_at(&self, span: &serde_json::Value) -> Result<Option<u32>, Failure> {
        let (Some(file), Some(at)) = (span["file_name"].as_str(), span["byte_start"].as_u64()) else {
            return Ok(None);
        };
        let text = fs::read(self.root.join(file))?;
        let before = String::from_utf8_lossy(&text[..at as usize]);
        let Some((_, id)) = before.rsplit_once("mutant::is(") else { return Ok(None) };
        let id: String = id.chars().take_while(char::is_ascii_digit).collect();
        Ok(id.parse().ok())
    }
}

/// Leaves the file alone when it has this content, so that cargo does not build it again.
fn write_changed(path: &Path, content: &[u8]) -> Result<(), Failure> {
    if fs::read(path).is_ok_and(|before| before == content) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().ok_or("no directory")?)?;
    Ok(fs::write(path, content)?)
}

fn rust_files(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Runs each test without a mutant, unless this has been done for these binaries.
fn measure(tree: &Tree, binaries: &[(String, PathBuf)]) -> Result<Vec<Test>, Failure> {
    let rounds = std::env::var("WIRELOOM_ROUNDS_MAX").unwrap_or_default();
    let mut tests = Vec::new();
    for (binary_name, binary) in binaries {
        let measured = tree.root.join(format!("{binary_name}.{rounds}.measured"));
        let built = fs::metadata(binary)?.modified()?;
        if !fs::metadata(&measured).is_ok_and(|file| file.modified().is_ok_and(|time| time > built)) {
            let lines = measure_binary(tree, binary_name, binary)?;
            fs::write(&measured, lines)?;
        }
        let begin = tests.len();
        for line in fs::read_to_string(&measured)?.lines() {
            let mut columns = line.split('\t');
            let (Some(name), Some(time)) = (columns.next(), columns.next()) else { continue };
            let reached =
                columns.next().unwrap_or_default().split(' ').filter_map(|id| id.parse().ok()).collect();
            let time = Duration::from_millis(time.parse()?);
            tests.push(Test { binary: binary.clone(), name: name.to_owned(), time, reached });
        }
        let time: Duration = tests[begin..].iter().map(|test| test.time).sum();
        println!("{binary_name}: {} tests take {time:?}", tests.len() - begin);
    }
    Ok(tests)
}

/// A line for each test: its name, its time in milliseconds and the mutants that it reaches.
fn measure_binary(tree: &Tree, binary_name: &str, binary: &Path) -> Result<String, Failure> {
    let trace = tree.root.join("reached");
    let listed = Command::new(binary).args(["--list", "--format", "terse"]).output()?;
    let listed = String::from_utf8(listed.stdout)?;
    let mut lines = String::new();
    // The list of public declarations is read from the source, which is instrumented here.
    for name in listed.lines().filter_map(|line| line.strip_suffix(": test")) {
        if name.contains("public_api") {
            continue;
        }
        let time = Duration::from_secs(300);
        let test = Test { binary: binary.to_owned(), name: name.to_owned(), time, reached: BTreeSet::new() };
        _ = fs::remove_file(&trace);
        let started = Instant::now();
        if failed(tree, &[&test], 0, Some(&trace))?.is_some() {
            println!("left out, because it fails without a mutant: {binary_name} {name}");
            continue;
        }
        let time = started.elapsed().as_millis();
        let reached = fs::read_to_string(&trace).unwrap_or_default();
        lines.push_str(&format!("{name}\t{time}\t{}\n", reached.lines().collect::<Vec<_>>().join(" ")));
    }
    Ok(lines)
}

/// The first of these tests of one binary that fails while a mutant is active. One that makes them take long fails them: the limit
/// is CPU time, so that other load does not matter.
fn failed(
    tree: &Tree,
    tests: &[&Test],
    mutant: u32,
    reached: Option<&Path>,
) -> Result<Option<String>, Failure> {
    let Some(first) = tests.first() else { return Ok(None) };
    let limit_s = tests.iter().map(|test| test.time).sum::<Duration>().as_secs() * 2 + 2;
    let mut command = Command::new("bash");
    command
        .args(["-c", r#"ulimit -c 0 -t "$0" -v 2000000 && exec "$@""#, &limit_s.to_string()])
        .arg(&first.binary)
        .arg("--exact")
        .args(tests.iter().map(|test| &test.name))
        .current_dir(&tree.package)
        .env("WIRELOOM_MUTANT", mutant.to_string())
        // The name of a test is written before it begins.
        .env("RUST_TEST_THREADS", "1")
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if let Some(path) = reached {
        command.env("WIRELOOM_MUTANTS_REACHED", path);
    }
    let mut child = command.spawn()?;
    let (mut started, mut failed) = (first.name.clone(), false);
    for line in BufReader::new(child.stdout.take().ok_or("no output")?).lines() {
        let Ok(line) = line else { break };
        let Some((name, result)) = line.strip_prefix("test ").and_then(|line| line.split_once(" ... "))
        else {
            continue;
        };
        name.trim_end_matches(" - should panic").clone_into(&mut started);
        failed = result.ends_with("FAILED");
        if failed {
            child.kill()?;
            break;
        }
    }
    let status = child.wait()?;
    Ok((failed || !status.success()).then_some(started))
}
