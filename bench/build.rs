//! Records the version of the compiler for the report.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=RUSTC");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output();
    let version = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    println!("cargo::rustc-env=WIRELOOM_BENCH_RUSTC={}", version.unwrap_or_default());
}
