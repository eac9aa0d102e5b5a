//! The command line of the benchmarks.

use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wireloom-bench")).args(arguments).output().expect("the program starts")
}

#[test]
fn help_lists_the_workloads() {
    let output = bench(&["--help"]);
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).expect("text");
    for workload in ["w1", "w2", "w3", "w4", "w5", "w6", "w7", "fairness", "h2load", "hpack", "deflate"] {
        assert!(help.contains(&format!("\n  {workload} ")), "{workload} is missing in:\n{help}");
    }
}

#[test]
fn an_unknown_argument_is_refused_with_the_usage() {
    for (arguments, message) in [
        (&["w99"][..], "no workload is called \"w99\""),
        (&["--isa", "mmx"], "an instruction set is"),
        (&["--quicker"], "--quicker"),
        (&["--runs"], "--runs"),
    ] {
        let output = bench(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let error = String::from_utf8(output.stderr).expect("text");
        assert!(error.contains(message) && error.contains("usage:"), "{arguments:?}: {error}");
    }
}

/// Figures of a build that is not shipped would mislead.
#[test]
fn refuses_to_measure_what_is_not_shipped() {
    let output = bench(&["w4"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--profile dist"));
}
