//! Mutation testing with one build: all mutants of a crate are compiled into its tests at once, and an environment variable
//! selects the one that is active. A mutant costs no build: the tests that reach its code run until one fails.
//!
//! `mutants/run CRATE [FILE...]`: CRATE is `http2` or `ws`, FILE a path below its `src`. The outcome of each mutant is in
//! `target/mutants/CRATE.tsv`; a later run leaves out what that file has already.

mod instrument;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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
        && IS_REACHED.get(id as usize).is_some_and(|reached| !reached.swap(true, Ordering::Relaxed))
    {
        let _ = file.write_all(std::format!("{id}\n").as_bytes());
    }
    *ACTIVE == id
}
"#;

/// Files that are tests.
const TESTS: [&str; 2] = ["tests.rs", "model.rs"];

type Failure = Box<dyn std::error::Error>;

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

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().ok_or("usage: mutants/run http2|ws [FILE...]")?;
    let files: Vec<String> = arguments.collect();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("no repository")?;
    let root = repository.join("target/mutants/tree");
    let tree = Tree { package: root.join("crates").join(&name), root, name };
    tree.copy(repository)?;
    let (mutants, binaries) = tree.build(repository)?;
    let tests = measure(&tree, &binaries)?;

    let results = repository.join(format!("target/mutants/{}.tsv", tree.name));
    let known = fs::read_to_string(&results).unwrap_or_default();
    let known: BTreeSet<String> =
        known.lines().filter_map(|line| Some(line.rsplit_once('\t')?.0.to_owned())).collect();
    let mut file = fs::OpenOptions::new().create(true).append(true).open(&results)?;
    // In the order of the files that were named.
    let selected: Vec<&Mutant> = if files.is_empty() {
        mutants.iter().collect()
    } else {
        files.iter().flat_map(|name| mutants.iter().filter(move |mutant| &mutant.file == name)).collect()
    };
    println!("{} mutants, {} of them to run", mutants.len(), selected.len());
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let begin = Instant::now();
    for (index, mutant) in selected.iter().enumerate() {
        let Mutant { file: path, line, column, function, change, .. } = mutant;
        let described = format!("{path}:{line}:{column}\t{function}\t{change}");
        if known.contains(&described) {
            continue;
        }
        let reaching: Vec<&Test> = tests.iter().filter(|test| test.reached.contains(&mutant.id)).collect();
        let outcome = match reaching.len() {
            0 => "NOT REACHED".to_owned(),
            _ => killer(&tree, &reaching, mutant.id).unwrap_or_else(|| "SURVIVED".to_owned()),
        };
        writeln!(file, "{described}\t{outcome}")?;
        let (run, survived) = counts.entry(&mutant.file).or_default();
        *run += 1;
        if outcome.chars().all(|char| char.is_uppercase() || char == ' ') {
            *survived += 1;
            println!("{}: {described}", outcome.to_lowercase());
        }
        if index % 50 == 49 {
            println!("{} of {} after {} s", index + 1, selected.len(), begin.elapsed().as_secs());
        }
    }
    for (file, (run, survived)) in counts {
        println!("{file}: {run} run, {survived} survive");
    }
    Ok(())
}

/// The test that fails while this mutant is active. More and more of them run in one process, the fastest first.
fn killer(tree: &Tree, tests: &[&Test], mutant: u32) -> Option<String> {
    let (mut rest, mut len) = (tests, 1);
    while !rest.is_empty() {
        // One process runs the tests of one binary.
        let binary = &rest[0].binary;
        let same = rest.iter().take(len).take_while(|test| &test.binary == binary).count();
        let (some, others) = rest.split_at(same);
        if !passes(tree, some, mutant, None) {
            return Some(some.iter().map(|test| test.name.as_str()).collect::<Vec<_>>().join(" "));
        }
        (rest, len) = (others, len * 2);
    }
    None
}

impl Tree {
    /// Copies the crates that the tests need into a workspace of their own.
    fn copy(&self, repository: &Path) -> Result<(), Failure> {
        const CRATES: [&str; 3] = ["crates/ws", "crates/http2", "crates/testing"];
        let listed =
            Command::new("git").current_dir(repository).args(["ls-files", "-z"]).args(CRATES).output()?;
        for path in String::from_utf8(listed.stdout)?.split_terminator('\0') {
            let source = repository.join(path);
            if source.is_file() {
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
    fn build(&self, repository: &Path) -> Result<(Vec<Mutant>, Vec<(String, PathBuf)>), Failure> {
        let source = repository.join("crates").join(&self.name).join("src");
        let mut excluded = BTreeSet::new();
        loop {
            let mut instrument = Instrument::new(excluded.clone());
            for path in rust_files(&source)? {
                let file = path.strip_prefix(&source)?.to_string_lossy().into_owned();
                if TESTS.iter().any(|tests| path.ends_with(tests)) {
                    continue;
                }
                let mut text = instrument.rewrite(&file, &fs::read_to_string(&path)?)?;
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
    fn compile(&self) -> Result<(Vec<(String, PathBuf)>, BTreeSet<u32>), Failure> {
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

/// Runs each test without a mutant. The fastest come first.
fn measure(tree: &Tree, binaries: &[(String, PathBuf)]) -> Result<Vec<Test>, Failure> {
    let mut tests = Vec::new();
    let trace = tree.root.join("reached");
    for (binary_name, binary) in binaries {
        let listed = Command::new(binary).args(["--list", "--format", "terse"]).output()?;
        let listed = String::from_utf8(listed.stdout)?;
        let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
        let begin = tests.len();
        // The list of public declarations is read from the source, which is instrumented here.
        for name in names.filter(|name| !name.contains("public_api")) {
            let (binary, time) = (binary.clone(), Duration::from_secs(300));
            let mut test = Test { binary, name: name.to_owned(), time, reached: BTreeSet::new() };
            let started = Instant::now();
            if !passes(tree, &[&test], 0, None) {
                println!("left out, because it fails without a mutant: {binary_name} {name}");
                continue;
            }
            test.time = started.elapsed();
            _ = fs::remove_file(&trace);
            passes(tree, &[&test], 0, Some(&trace));
            let reached = fs::read_to_string(&trace).unwrap_or_default();
            test.reached = reached.lines().filter_map(|id| id.parse().ok()).collect();
            tests.push(test);
        }
        let time: Duration = tests[begin..].iter().map(|test| test.time).sum();
        println!("{binary_name}: {} tests take {time:?}", tests.len() - begin);
    }
    tests.sort_by_key(|test| test.time);
    Ok(tests)
}

/// Whether these tests of one binary pass while a mutant is active. One that makes them take long fails them: the limit is CPU time, so
/// that other load does not matter.
fn passes(tree: &Tree, tests: &[&Test], mutant: u32, reached: Option<&Path>) -> bool {
    let Some(first) = tests.first() else { return true };
    let limit_s = tests.iter().map(|test| test.time).sum::<Duration>().as_secs() * 3 + 4;
    let mut command = Command::new("bash");
    command
        .args(["-c", r#"ulimit -c 0 -t "$0" -v 4000000 && exec "$@""#, &limit_s.to_string()])
        .arg(&first.binary)
        .args(["-q", "--exact"])
        .args(tests.iter().map(|test| &test.name))
        .current_dir(&tree.package)
        .env("WIRELOOM_MUTANT", mutant.to_string())
        .env("RUST_TEST_THREADS", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if let Some(path) = reached {
        command.env("WIRELOOM_MUTANTS_REACHED", path);
    }
    command.status().is_ok_and(|status| status.success())
}
