//! Runs the benchmarks under Callgrind and reads the counts from the runner's JSON.

use crate::Failure;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

const TARGET: &str = "x86_64-unknown-linux-musl";

/// Must be the version of `gungraun` in Cargo.toml.
const RUNNER_VERSION: &str = "0.20.0";

fn unavailable(reason: impl Into<String>) -> Failure {
    Failure::Unavailable(reason.into())
}

/// The output of a command, if it ran and succeeded.
fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

pub(crate) fn valgrind_version() -> Result<String, Failure> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Err(unavailable("the baseline is of x86-64 Linux"));
    }
    if !std::arch::is_x86_feature_detected!("avx2") {
        return Err(unavailable("the baseline is of AVX2, which this processor lacks"));
    }
    let version =
        output("valgrind", &["--version"]).ok_or_else(|| unavailable("valgrind is not installed"))?;
    Ok(version.trim_start_matches("valgrind-").to_owned())
}

/// The toolchain to name to rustup, or `None` if the default one has the version `wanted`.
pub(crate) fn toolchain(wanted: &str) -> Result<Option<String>, Failure> {
    let current = output("rustc", &["--version"]).unwrap_or_default();
    let is_wanted = |version: &str| version.split(' ').nth(1) == Some(wanted);
    let install = format!("rustup toolchain install {wanted} --profile minimal --target {TARGET}");
    let sysroot = if is_wanted(&current) {
        output("rustc", &["--print", "sysroot"])
    } else {
        println!("the baseline is of rustc {wanted}, the default here is {current}");
        output("rustup", &["run", wanted, "rustc", "--version"])
            .filter(|version| is_wanted(version))
            .and_then(|_| output("rustup", &["run", wanted, "rustc", "--print", "sysroot"]))
    };
    let sysroot =
        sysroot.ok_or_else(|| unavailable(format!("rustc {wanted} is not installed: {install}")))?;
    if !std::path::Path::new(&sysroot).join("lib/rustlib").join(TARGET).is_dir() {
        return Err(unavailable(format!("rustc {wanted} has no target {TARGET}: {install}")));
    }
    Ok((!is_wanted(&current)).then(|| wanted.to_owned()))
}

/// Instructions by benchmark.
pub(crate) fn counts(toolchain: Option<&str>) -> Result<BTreeMap<String, u64>, Failure> {
    let broken = |error: String| Failure::Broken(error);
    let runner = output("gungraun-runner", &["--version"]);
    if runner != Some(format!("gungraun-runner {RUNNER_VERSION}")) {
        return Err(unavailable(format!(
            "gungraun-runner {RUNNER_VERSION} is not installed: cargo install --locked gungraun-runner@{RUNNER_VERSION}"
        )));
    }
    let mut command = match toolchain {
        Some(toolchain) => {
            let mut command = Command::new("rustup");
            command.args(["run", toolchain, "cargo"]);
            command
        }
        None => Command::new("cargo"),
    };
    command.args(["bench", "--locked", "--package", env!("CARGO_PKG_NAME"), "--bench", "counts"]);
    command.args(["--target", TARGET, "--", "--output-format=json"]);
    // Flags of the environment, such as `-C target-cpu=native`, would change the counts.
    for (name, _) in std::env::vars_os() {
        let is_flag = name
            .to_str()
            .is_some_and(|name| name.ends_with("RUSTFLAGS") || name.starts_with("CARGO_PROFILE_"));
        if is_flag {
            command.env_remove(name);
        }
    }
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|error| broken(format!("cargo: {error}")))?;
    if !output.status.success() {
        return Err(broken(format!("cargo bench: {}", output.status)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let summaries = text.lines().filter(|line| line.starts_with('{'));
    let counts: Option<BTreeMap<_, _>> =
        summaries.map(|line| count(&serde_json::from_str(line).ok()?)).collect();
    counts
        .filter(|counts| !counts.is_empty())
        .ok_or_else(|| broken("the runner's output has another form".into()))
}

/// The name of a benchmark and its instructions.
fn count(summary: &Value) -> Option<(String, u64)> {
    let group = summary["group"].as_str()?.trim_end_matches("_group");
    let name = format!("{group}::{}::{}", summary["function_name"].as_str()?, summary["id"].as_str()?);
    let instructions = &summary["profiles"][0]["data"]["total"]["metrics"]["Ir"]["values"];
    // A value is an integer or a float, alone or beside that of an earlier run.
    let count = instructions["new"].as_u64().or_else(|| instructions["both"][0].as_u64())?;
    Some((name, count))
}
