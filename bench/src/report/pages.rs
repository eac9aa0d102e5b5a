//! Writes the pages: one for each workload, one that sums them up, the raw figures, and the table of the project's README.

use super::metadata::Metadata;
use super::{plot, table};
use crate::results::{RaceResult, Results};
use crate::workloads::ALL;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// The comparisons in the project's README: workload, title of the race, and the other contestant by the beginning of its name, or
/// the fastest rival.
const README: &[(&str, &str, Option<&str>)] = &[
    ("w7", "fan-out, 128 B to 1000 subscribers, permessage-deflate", Some("wireloom-hub, uncompressed")),
    ("w7", "fan-out, 128 B to 1000 subscribers, permessage-deflate", Some("uWebSockets")),
    ("w7", "fan-out, 4 KiB to 1000 subscribers, permessage-deflate", Some("wireloom-hub, uncompressed")),
    ("w7", "fan-out, 4 KiB to 1000 subscribers, permessage-deflate", Some("uWebSockets")),
    ("w7", "fan-out, 4 KiB to 1000 subscribers, permessage-deflate", None),
    ("w7", "recovery storm, 10000 clients that missed 20 messages each", None),
    ("w7", "10000 members joining one channel", None),
    ("w7", "fan-out over several nodes, 128 B to 1000 subscribers, bursts of 16", None),
    ("w7", "fan-out, 128 B to 1000 subscribers, one message at a time", None),
    ("w7", "memory, 1000 subscribers", None),
    ("w6", "echo, 32 B, 64 connections, depth 64", None),
    ("w6", "echo, 1 MiB, 4 connections, depth 1", None),
    ("w6", "handshakes, each on a new connection", None),
    ("w6", "memory, 5000 idle connections", None),
    ("w3", "firehose over HTTP/1.1, decoded", None),
    ("w2", "read masked binary, 1 MiB", None),
    ("w4", "read one masked ASCII text, 16 MiB", None),
    ("h2load", "HTTP/2, one connection, requests, 100 at a time", None),
    ("h2load", "HTTP/2, one connection, download of 16 MiB, 4 at a time", None),
];
const BEGIN: &str = "<!-- written by wireloom-bench: begin -->\n";
const END: &str = "<!-- written by wireloom-bench: end -->";

/// Writes everything for these results below `root`, the folder of the checkout.
///
/// # Errors
/// The file that cannot be written.
pub(crate) fn write(root: &Path, results: &Results, metadata: &Metadata) -> Result<(), String> {
    let pages = root.join("docs/benchmarks");
    let folder = pages.join(metadata.label());
    // Remove the plots of races that no longer exist.
    _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("plots")).map_err(|error| format!("{}: {error}", folder.display()))?;
    for workload in ALL {
        let races: Vec<_> = results.races.iter().filter(|race| race.workload == workload.name).collect();
        let page = of_workload(workload.name, workload.about, &races, results, metadata);
        save(&folder.join(format!("{}.md", workload.name)), &page)?;
        for (at, race) in races.iter().enumerate() {
            if let Some(svg) = plot::of_race(race) {
                save(&folder.join(plot_path(workload.name, at)), &svg)?;
            }
        }
    }
    save(&folder.join("README.md"), &overview(results, metadata))?;
    let raw = serde_json::json!({ "metadata": metadata, "results": results });
    save(&folder.join("results.json"), &format!("{raw}\n"))?;
    save(&pages.join("README.md"), &index(&pages)?)?;
    // The README shows the machine's own instruction set.
    if metadata.capped.is_none() {
        readme(&root.join("README.md"), results, metadata)?;
    }
    Ok(())
}

fn save(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn plot_path(workload: &str, at: usize) -> String {
    format!("plots/{workload}-{}.svg", at + 1)
}

fn heading(title: &str, metadata: &Metadata) -> String {
    let lines: Vec<String> = metadata.lines().iter().map(|line| format!("- {line}\n")).collect();
    format!("# {title}\n\n{}\n", lines.concat())
}

fn of_workload(
    name: &str,
    about: &str,
    races: &[&RaceResult],
    results: &Results,
    metadata: &Metadata,
) -> String {
    let mut page = heading(&format!("{name}: {about}"), metadata);
    _ = writeln!(
        page,
        "[How it is measured](../../benchmarks.md), [objections](../../objections.md), [all workloads](README.md)."
    );
    for (_, data) in results.data.iter().filter(|(workload, _)| workload == name) {
        _ = writeln!(page, "\nData: {data}");
    }
    for (at, race) in races.iter().enumerate() {
        _ = write!(page, "\n## {}\n\n{}", capitalized(&race.title), table::of_race(race).to_markdown());
        page.push('\n');
        for remark in table::remarks(race) {
            _ = writeln!(page, "- {remark}");
        }
        if plot::of_race(race).is_some() {
            _ = writeln!(page, "\n![{}]({})", race.title, plot_path(name, at));
        }
    }
    let figures: Vec<_> = results.figures.iter().filter(|figure| figure.workload == name).collect();
    if !figures.is_empty() {
        _ = write!(page, "\n## Figures\n\n{}", table::of_figures(&figures).to_markdown());
    }
    page
}

fn capitalized(title: &str) -> String {
    let mut letters = title.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn overview(results: &Results, metadata: &Metadata) -> String {
    let mut page = heading(&format!("Results: {}", metadata.label()), metadata);
    _ = writeln!(
        page,
        "Written by `cargo run --profile dist -p wireloom-bench -- all`. [How it is measured](../../benchmarks.md), \
        [objections](../../objections.md).\n"
    );
    for workload in ALL {
        _ = writeln!(page, "- [{name}]({name}.md): {}", workload.about, name = workload.name);
    }
    _ = write!(page, "\n{}", table::comparisons(&results.races).to_markdown());
    let targets: Vec<_> = results.figures.iter().filter(|figure| figure.least.is_some()).collect();
    if !targets.is_empty() {
        _ = write!(page, "\n{}", table::of_figures(&targets).to_markdown());
    }
    if !results.missing.is_empty() {
        page.push_str("\n## Missing\n\n");
        for missing in &results.missing {
            _ = writeln!(page, "- {}: {}. {}", missing.name, missing.reason, missing.remedy);
        }
    }
    page
}

/// One line for each folder that a run has written.
fn index(pages: &Path) -> Result<String, String> {
    let failed = |error| format!("{}: {error}", pages.display());
    let mut folders: Vec<_> = fs::read_dir(pages).map_err(failed)?.flatten().map(|it| it.path()).collect();
    folders.sort();
    let mut index = "# Results\n\nOne folder for each machine and instruction set, written by \
        `cargo run --profile dist -p wireloom-bench -- all`. [How it is measured](../benchmarks.md).\n\n"
        .to_owned();
    for folder in folders {
        let raw = fs::read(folder.join("results.json")).ok();
        let raw = raw.and_then(|raw| serde_json::from_slice::<serde_json::Value>(&raw).ok());
        let metadata =
            raw.and_then(|mut raw| serde_json::from_value::<Metadata>(raw["metadata"].take()).ok());
        if let (Some(metadata), Some(name)) = (metadata, folder.file_name()) {
            let name = name.to_string_lossy();
            _ = writeln!(index, "- [{name}]({name}/README.md): {}, {}", metadata.cpu, metadata.date);
        }
    }
    Ok(index)
}

/// Replaces what is between the two marks of the project's README.
fn readme(path: &Path, results: &Results, metadata: &Metadata) -> Result<(), String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let (before, _, after) =
        parts(&text).ok_or_else(|| format!("{}: the marks are missing", path.display()))?;
    save(path, &format!("{before}{BEGIN}{}{END}{after}", readme_section(results, metadata)))
}

/// The text before the marks, between them, and after them.
fn parts(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (section, after) = rest.split_once(END)?;
    Some((before, section, after))
}

fn readme_section(results: &Results, metadata: &Metadata) -> String {
    let rows = README.iter().filter_map(|&(workload, title, other)| {
        let race = results.races.iter().find(|race| race.workload == workload && race.title == title)?;
        Some((race, other.map_or_else(|| race.fastest_rival(), |name| race.contestant(name))))
    });
    let label = metadata.label();
    let table = table::summary(rows).to_markdown();
    format!(
        "{}, {} cores, {}, {}; commit {}; load {}. All races: [docs/benchmarks/{label}](docs/benchmarks/{label}/README.md).\n\n{table}",
        metadata.cpu,
        metadata.cores,
        metadata.vectors,
        metadata.date,
        metadata.commit,
        metadata.load.iter().map(|(before, _)| format!("{before:.1}")).collect::<Vec<_>>().join(", "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Cost, Entry, Figure, Role, Rounds, Target};

    #[test]
    fn the_readme_keeps_the_text_around_the_marks() {
        let folder = std::env::temp_dir().join(format!("wireloom-bench-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("README.md");
        fs::write(&path, format!("before\n{BEGIN}old\n{END}\nafter\n")).expect("a file");
        let metadata = Metadata::collect((1, 1), None, "the system's");
        for _ in 0..2 {
            readme(&path, &Results::default(), &metadata).expect("marks");
        }
        let text = fs::read_to_string(&path).expect("a file");
        assert!(
            text.starts_with("before\n<!--") && text.ends_with("-->\nafter\n") && !text.contains("old"),
            "{text}"
        );
        fs::write(&path, "no marks").expect("a file");
        assert!(readme(&path, &Results::default(), &metadata).is_err());
        fs::remove_dir_all(&folder).expect("a folder");
    }

    fn results() -> Results {
        let entry = |name: &str, role, cost: f64| Entry {
            name: name.into(),
            role,
            note: (role == Role::Rival).then(|| "a note".into()),
            allocations: None,
            runs: vec![Rounds { costs: vec![cost; 9], rates: vec![1e9 / cost; 9] }; 2],
        };
        let entries = vec![entry("wireloom", Role::Wireloom, 50.0), entry("rival 1.0", Role::Rival, 100.0)];
        let race = RaceResult {
            workload: "w6".into(),
            title: "echo, 32 B, 64 connections, depth 64".into(),
            cost: Cost::CpuTime,
            message_len: None,
            entries,
            targets: vec![Target::fastest_rival(0.6)],
        };
        let figure = Figure::new("w4", "a figure", 0.5, Some(0.4), "a note".into());
        Results { races: vec![race], figures: vec![figure], ..Results::default() }
    }

    #[test]
    fn every_page_is_written() {
        let root = std::env::temp_dir().join(format!("wireloom-bench-pages-{}", std::process::id()));
        fs::create_dir_all(root.join("docs/benchmarks")).expect("a folder");
        fs::write(root.join("README.md"), format!("{BEGIN}{END}\n")).expect("a file");
        let mut metadata = Metadata::collect((1, 1), None, "the system's");
        metadata.load.push((0.5, 1.5));
        write(&root, &results(), &metadata).expect("pages");
        let folder = root.join("docs/benchmarks").join(metadata.label());
        let read = |path: &Path| fs::read_to_string(path).expect("a page");
        let page = read(&folder.join("w6.md"));
        assert!(page.contains("| rival 1.0 | 100 ns | 10.0 M/s | 2.00× [2.00 … 2.00] | a note |"), "{page}");
        assert!(page.contains("target at most 0.60×: met") && page.contains("plots/w6-1.svg"), "{page}");
        assert!(read(&folder.join("plots/w6-1.svg")).contains("rival 1.0"));
        assert!(read(&folder.join("w4.md")).contains("| a figure | 0.50 |"));
        assert!(read(&folder.join("README.md")).contains("0.50×"));
        assert!(read(&root.join("README.md")).contains("rival 1.0"));
        assert!(read(&root.join("docs/benchmarks/README.md")).contains(&metadata.label()));
        fs::remove_dir_all(&root).expect("a folder");
    }

    /// `WIRELOOM_RENEW_README=1` writes the README after a change of the rows.
    #[test]
    fn the_readme_of_the_project_shows_the_committed_results() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let text = fs::read_to_string(root.join("README.md")).expect("a README");
        let (_, section, _) = parts(&text).expect("marks");
        let (_, label) = section.split_once("[docs/benchmarks/").expect("a link to the results");
        let (label, _) = label.split_once(']').expect("the end of the link");
        let raw = fs::read(root.join("docs/benchmarks").join(label).join("results.json")).expect("results");
        let mut raw: serde_json::Value = serde_json::from_slice(&raw).expect("JSON");
        let results: Results = serde_json::from_value(raw["results"].take()).expect("results");
        let metadata: Metadata = serde_json::from_value(raw["metadata"].take()).expect("metadata");
        if std::env::var_os("WIRELOOM_RENEW_README").is_some() {
            readme(&root.join("README.md"), &results, &metadata).expect("a README");
            return;
        }
        assert_eq!(section, readme_section(&results, &metadata));
        let rows = section.lines().filter(|line| line.starts_with('|')).count();
        assert_eq!(rows, README.len() + 2, "a race of the README is not among the results");
        let prose = text.replace(section, "");
        let figures: Vec<&str> =
            prose.split([' ', '\n', '(', ')', ',']).filter(|word| word.ends_with('×')).collect();
        assert!(figures.len() > 3, "{figures:?}");
        for figure in figures {
            assert!(section.contains(&format!("| {figure} [")), "{figure} is not in the table");
        }
        // `FACTOR (…; LOW … HIGH)`: the interval is that of the factor before it.
        let words: Vec<&str> =
            prose.split_whitespace().map(|word| word.trim_matches(['(', ')', ',', ';', '.'])).collect();
        let intervals: Vec<usize> = (0..words.len()).filter(|&at| words[at] == "…").collect();
        assert!(!intervals.is_empty());
        for at in intervals {
            let factor = words[..at].iter().rfind(|word| word.ends_with('×')).expect("a factor");
            let row = format!("| {factor} [{} … {}]", words[at - 1], words[at + 1]);
            assert!(section.contains(&row), "{row} is not in the table");
        }
    }
}
