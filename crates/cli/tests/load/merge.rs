//! Files of a run (`--csv`, `--hdr`), and the sum of several processes.

use serde_json::Value;

use crate::{Fault, run, start};

#[tokio::test]
async fn several_processes_add_up() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let url = start(Fault::DropTenth).await;
    let (first, second, csv) = (file("a.hdr"), file("b.hdr"), file("a.csv"));
    let common = ["--connections", "2", "--timeout", "5s", "--json", "--quiet"];
    let one =
        [&[&*url, "--rate", "200", "--duration", "2", "--hdr", &first, "--csv", &csv], &common[..]].concat();
    let two = [&[&*url, "--rate", "100", "--duration", "2", "--hdr", &second], &common[..]].concat();
    let (one, two) = tokio::join!(run(&one), run(&two));
    let reports: Vec<Value> = [&one, &two].map(|(_, out, _)| serde_json::from_str(out).unwrap()).into();
    let total = |of: &dyn Fn(&Value) -> u64| reports.iter().map(of).sum::<u64>();

    let all = file("all.hdr");
    let (code, out, errors) =
        run(&["merge", &first, &second, "--json", "--hdr", &all, "--expect", "rate>1"]).await;
    // As of a run with lost messages.
    assert_eq!((code, one.0, two.0), (5, 5, 5), "{errors}");
    let merged: Value = serde_json::from_str(&out).unwrap();
    for name in ["sent", "answered"] {
        assert_eq!(
            merged[name].as_u64(),
            Some(total(&|report| report[name].as_u64().unwrap())),
            "{name}: {merged}"
        );
    }
    let samples = total(&|report| report["latency"]["samples"].as_u64().unwrap());
    assert_eq!(merged["latency"]["samples"].as_u64(), Some(samples));
    let lost = total(&|report| report["errors"]["lost"].as_u64().unwrap());
    assert!(lost > 0 && merged["errors"]["lost"].as_u64() == Some(lost), "{merged}");
    assert_eq!(merged["connections"], 4);
    let rate: f64 = reports.iter().map(|report| report["rate"].as_f64().unwrap()).sum();
    assert!((merged["rate"].as_f64().unwrap() / rate - 1.0).abs() < 0.001, "{merged} {rate}");
    let max = reports.iter().map(|report| report["latency"]["max"].as_f64().unwrap()).fold(0.0, f64::max);
    assert!((merged["latency"]["max"].as_f64().unwrap() / max - 1.0).abs() < 0.002, "{merged} {max}");
    assert_eq!(merged["warnings"], serde_json::json!([]));
    assert_eq!(merged["interrupted"], false);

    // The sum can be added up again, and an expectation has an exit code.
    let (code, table, _) = run(&["merge", &all, "--expect", "errors<1"]).await;
    assert_eq!(code, 4);
    assert_eq!(run(&["merge", &all, "--expect", "errors>0"]).await.0, 0);
    assert!(table.contains(&format!("answered     {}\n", merged["answered"])), "{table}");
    assert!(table.contains("p99.9") && table.contains("not met"), "{table}");

    // Each second is a line, whose sums are those of the report.
    let csv = std::fs::read_to_string(csv).unwrap();
    let mut lines = csv.split("\r\n");
    assert_eq!(lines.next(), Some("at,seconds,sent,answered,errors,connections,p50,p99,max"));
    let seconds: Vec<Vec<&str>> =
        lines.filter(|line| !line.is_empty()).map(|line| line.split(',').collect()).collect();
    assert!(seconds.len() >= 2 && seconds.iter().all(|second| second.len() == 9), "{csv}");
    let sum =
        |column: usize| seconds.iter().map(|second| second[column].parse::<u64>().unwrap()).sum::<u64>();
    assert_eq!(
        (Some(sum(2)), Some(sum(3))),
        (reports[0]["sent"].as_u64(), reports[0]["answered"].as_u64()),
        "{csv}"
    );
    assert_eq!(Some(sum(4)), reports[0]["errors"]["total"].as_u64(), "{csv}");
}

// The last answers of a run, which are often the latest ones, are in a second that it does not complete.
#[tokio::test]
async fn the_log_has_all_latencies() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("a.hdr");
    let log = log.to_str().unwrap();
    let url = start(Fault::None).await;
    for args in [&["--count", "200"][..], &["--rate", "100", "--duration", "1500ms"]] {
        let args = [&[&*url, "--json", "--quiet", "--connections", "2", "--hdr", log], args].concat();
        let (code, out, errors) = run(&args).await;
        assert_eq!(code, 0, "{errors}");
        let report: Value = serde_json::from_str(&out).unwrap();
        let (_, out, _) = run(&["merge", log, "--json"]).await;
        let merged: Value = serde_json::from_str(&out).unwrap();
        assert!(merged["latency"]["samples"].as_u64() > Some(0), "{merged}");
        for name in ["samples", "p50", "max"] {
            assert_eq!(merged["latency"][name], report["latency"][name], "{args:?}");
        }
        let log = std::fs::read_to_string(log).unwrap();
        assert!(log.contains("#[StartTime: 1") || log.contains("#[StartTime: 2"), "{log}");
    }
}

#[tokio::test]
async fn numbers_of_any_size_are_added_up() {
    let folder = tempfile::tempdir().unwrap();
    let huge = folder.path().join("huge.hdr");
    let count = u64::MAX;
    let counts = format!(
        "{{\"connections\":{count},\"time\":1.8e19,\"sent\":{count},\"answered\":{count},\"errors\":{{\"lost\":{count},\"wrong\":1}}}}"
    );
    let start = "#[StartTime: 18000000000000000000.000 (seconds since epoch)]";
    std::fs::write(&huge, format!("{start}\n#[wireloom {counts}]\n")).unwrap();
    let huge = huge.to_str().unwrap();
    let all = folder.path().join("all.hdr");
    let (code, out, errors) = run(&["merge", huge, huge, "--json", "--hdr", all.to_str().unwrap()]).await;
    assert_eq!(code, 5, "{errors}");
    let (_, table, errors) = run(&["merge", huge]).await;
    assert!(table.contains(&format!("errors       {} (", u64::MAX)), "{table}{errors}");
    let merged: Value = serde_json::from_str(&out).unwrap();
    for sum in
        [&merged["connections"], &merged["sent"], &merged["errors"]["lost"], &merged["errors"]["total"]]
    {
        assert_eq!(sum.as_u64(), Some(u64::MAX), "{merged}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_sum_is_written_to_its_file_although_it_cannot_be_printed() {
    let folder = tempfile::tempdir().unwrap();
    let (one, all) = (folder.path().join("one.hdr"), folder.path().join("all.hdr"));
    std::fs::write(&one, "#[wireloom {\"errors\":{}}]\n").unwrap();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut merge = tokio::process::Command::new(crate::WIRELOOM);
    merge.args(["load", "merge", one.to_str().unwrap(), "--hdr", all.to_str().unwrap()]).stdout(full);
    assert_eq!(merge.status().await.unwrap().code(), Some(5));
    assert!(std::fs::read_to_string(&all).unwrap().contains("#[wireloom "));
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = folder.path().join("wrong.hdr");
    std::fs::write(&wrong, "hello\n").unwrap();
    for (args, expected, why) in [
        (&["merge", "/nowhere.hdr"][..], 1, "/nowhere.hdr: No such file"),
        (&["merge", wrong.to_str().unwrap()], 1, "wrong.hdr: a line is not of a log"),
        (&["merge"], 2, "required"),
        (&["ws://127.0.0.1:1/", "--csv", "/nowhere/a.csv"], 2, "--csv /nowhere/a.csv: No such file"),
        (&["ws://127.0.0.1:1/", "--hdr", "/nowhere/a.hdr"], 2, "--hdr /nowhere/a.hdr: No such file"),
    ] {
        let (code, _, errors) = run(args).await;
        assert!(code == expected && errors.contains(why), "{args:?}: {code} {errors}");
    }
}

// Merged files may be from others, and are not trusted.
#[tokio::test]
async fn nothing_from_a_file_controls_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.hdr");
    std::fs::write(&file, "#[wireloom {\"errors\":{\"lost\\u001b[31m\":1}}]\n").unwrap();
    let (code, table, errors) = run(&["merge", file.to_str().unwrap()]).await;
    assert_eq!(code, 5, "{errors}");
    assert!(!table.contains('\x1b') && table.contains("1 lost"), "{table:?}");
}

/// As on a full disk: no file may be longer than a block.
#[tokio::test]
async fn a_report_that_cannot_be_written_leaves_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (log, merged) = (file("a.hdr"), file("all.hdr"));
    let url = start(Fault::None).await;
    let args = [&*url, "--count", "100", "--quiet", "--hdr", &log];
    assert_eq!(run(&args).await.0, 0);
    let old = std::fs::read(&log).unwrap();
    assert!(old.len() > 512);
    std::fs::write(&merged, &old).unwrap();
    let limited = async |args: &[&str]| {
        let script = "ulimit -f 1; trap '' XFSZ; exec \"$@\"";
        let mut command = tokio::process::Command::new("sh");
        command.args(["-c", script, "sh", crate::WIRELOOM, "load"]).args(args);
        let output = command.stdin(std::process::Stdio::null()).output().await.unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, errors) = limited(&args).await;
    assert!(code == Some(5) && errors.contains("a.hdr: "), "{code:?} {errors}");
    let (code, errors) = limited(&["merge", &log, "--hdr", &merged]).await;
    assert!(code == Some(5) && errors.contains("all.hdr: "), "{code:?} {errors}");
    for path in [&log, &merged] {
        assert!(std::fs::read(path).unwrap() == old, "{path} has changed");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "something is left");
}
