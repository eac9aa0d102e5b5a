//! Expectations, tables, JSON and pages.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use crate::{Fault, Temporary, WIRELOOM, measure, run, start, validate};

#[tokio::test(flavor = "multi_thread")]
async fn expectations_set_the_exit_code() {
    let url = start(Fault::Delay(Duration::from_millis(20))).await;
    let count = ["--count", "50", "--connections", "5"];
    for (expectation, code) in
        [("p50>=20ms", 0), ("p50<20ms", 4), ("rate<1k", 0), ("rate>1k", 4), ("errors<=0", 0)]
    {
        let (found, report) = measure(&url, &[&count[..], &["--expect", expectation]].concat()).await;
        assert_eq!(found, code, "{expectation} {report}");
        assert_eq!(report["expected"][0]["met"], code == 0, "{report}");
    }
    let (code, _) = measure(
        &start(Fault::DropTenth).await,
        &[
            "--count",
            "100",
            "--pipeline",
            "20",
            "--connections",
            "1",
            "--timeout",
            "5",
            "--expect",
            "errors<=10",
        ],
    )
    .await;
    assert_eq!(code, 0);
    let (code, _, errors) = run(&[&url, "--expect", "p99=5ms"]).await;
    assert_eq!(code, 2, "{errors}");
}

/// Every result of a test is checked against the schema. Here are results with fields that the others do not have.
#[tokio::test(flavor = "multi_thread")]
async fn results_follow_the_schema() {
    let url = start(Fault::None).await;
    for args in [
        &["--duration", "1100ms", "--rate", "100", "--expect", "p50<1s", "--expect", "p99.9999>0ms"][..],
        &["--stage", "1100ms@100", "--size", "1..2K"],
        &["--count", "9", "--size", "10:1,20:2", "--binary", "--compress"],
        &["--duration", "900ms", "--against", &url, "--rounds", "8"],
    ] {
        let (code, report) = measure(&url, args).await;
        assert_eq!(code, 0, "{report}");
    }
    // The schema rejects invalid results.
    let (_, mut report) = measure(&url, &["--count", "9"]).await;
    assert_eq!(validate(&report), Ok(()));
    report["errors"]["lost"] = (-1).into();
    assert!(validate(&report).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_documents_each_field_of_the_json() {
    let schema: Value = serde_json::from_str(crate::SCHEMA).unwrap();
    let mut names = BTreeSet::new();
    collect(&schema, &schema["$defs"]["report"], "", &mut names);
    // `connect` has no curve.
    names.remove("connect.curve");
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/guides/load.md"))
        .unwrap();
    let (_, table) = page.split_once("## JSON").unwrap();
    let documented: BTreeSet<String> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name.to_owned())
        .collect();
    assert_eq!(names, documented);
}

/// The paths of all fields, such as `series[].p50`.
fn collect(schema: &Value, value: &Value, path: &str, names: &mut BTreeSet<String>) {
    let value = match value["$ref"].as_str().or(value["oneOf"][1]["$ref"].as_str()) {
        // The schema of a report refers to itself (`against`).
        Some("#/$defs/report") => {
            names.insert(path.to_owned());
            return;
        }
        Some(name) => schema.pointer(name.trim_start_matches('#')).unwrap(),
        None => value,
    };
    if let Some(fields) = value["properties"].as_object() {
        if value["patternProperties"].is_object() {
            names.insert(format!("{path}.p50"));
        }
        for (name, value) in fields {
            let dot = if path.is_empty() { "" } else { "." };
            collect(schema, value, &format!("{path}{dot}{name}"), names);
        }
    } else if value["items"]["type"] == "object" || value["items"]["$ref"] == "#/$defs/second" {
        collect(schema, &value["items"], &format!("{path}[]"), names);
    } else {
        names.insert(path.to_owned());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_a_page_and_prometheus_text() {
    let url = start(Fault::DropTenth).await;
    let page = Temporary::new("report.html");
    let args = [&url, "--duration", "2", "--rate", "100", "--timeout", "3", "--html", page.path()];
    let (code, out, errors) = run(&[&args[..], &["--prometheus", "-"]].concat()).await;
    assert_eq!(code, 5, "{errors}");
    let metric = |name: &str| -> f64 {
        let line = out.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {out}"));
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    let labels = format!("target=\"{url}\",scenario=\"echo\"");
    assert_eq!(metric(&format!("wireloom_load_sent{{{labels}}}")), 200.0);
    assert_eq!(metric(&format!("wireloom_load_errors{{{labels},kind=\"lost\"}}")), 20.0);
    assert!(metric(&format!("wireloom_load_latency_seconds{{{labels},quantile=\"0.999\"}}")) > 0.0);
    let html = std::fs::read_to_string(page.path()).unwrap();
    for part in [
        "<!DOCTYPE html>",
        "Latency by percentile",
        "Messages per second",
        "Latency over time",
        "Connections",
        "Errors per second",
        "20 lost",
    ] {
        assert!(html.contains(part), "{part}");
    }
    assert_eq!(html.matches("role=\"img\"").count(), 10);
    // The page loads nothing and runs no script.
    assert!(
        !html.contains("<script")
            && !html.contains("href=")
            && !html.contains("src=")
            && !html.contains("url(")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn prints_a_line_per_second_and_a_table() {
    let url = start(Fault::None).await;
    let (code, out, errors) =
        run(&[&url, "--duration", "2300ms", "--warmup", "300ms", "--connections", "2"]).await;
    assert_eq!(code, 0, "{errors}");
    let lines: Vec<&str> = errors.lines().collect();
    // Usually two: other load may delay the end of a second or of the run.
    assert!(!lines.is_empty(), "{errors}");
    assert!(
        lines.iter().all(|line| line.contains("/s  p50 ") && line.ends_with("0 errors, 2 connections")),
        "{errors}"
    );
    for row in ["target ", "rate ", "p50 ", "p99.9 ", "max ", "errors       0\n"] {
        assert!(out.contains(row), "{row}: {out}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_written_costs_no_run() {
    let url = start(Fault::None).await;
    // Long enough that a run before the error would miss the deadline of the test.
    for option in ["--html", "--prometheus"] {
        let (code, out, errors) = run(&[&url, "--duration", "1h", option, "/nonexistent/report"]).await;
        assert_eq!((code, &*out), (2, ""), "{errors}");
        assert!(errors.contains(option) && errors.contains("/nonexistent/report"), "{errors}");
    }
    // A device that refuses bytes: the result is printed all the same.
    if cfg!(target_os = "linux") {
        let (code, out, errors) = run(&[&url, "--count", "10", "--html", "/dev/full"]).await;
        assert!(code == 5 && out.contains("rate ") && errors.contains("/dev/full"), "{code} {out} {errors}");
    }
}

// The run is over, and cannot be repeated.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_cannot_be_written_costs_no_other() {
    let url = start(Fault::None).await;
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("a.csv");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = std::process::Command::new(WIRELOOM)
        .args([
            "load",
            &url,
            "--count",
            "10",
            "--quiet",
            "--html",
            "/dev/full",
            "--csv",
            csv.to_str().unwrap(),
        ])
        .stdout(full)
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(5), "{errors}");
    assert!(
        errors.contains("the output cannot be written") && errors.contains("--html /dev/full"),
        "{errors}"
    );
    assert!(std::fs::read_to_string(csv).unwrap().starts_with("at,seconds"), "{errors}");
}
