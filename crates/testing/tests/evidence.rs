//! `docs/evidence.md` names tests and commands that exist, counts the unsafe code, and has the figures of their sources.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The cells of the table rows of the page.
fn rows() -> Vec<Vec<String>> {
    rows_of(&read("docs/evidence.md"))
}

fn rows_of(page: &str) -> Vec<Vec<String>> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.map(|row| row.split(" | ").map(str::to_owned).collect()).collect()
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    text.replace(',', "").parse().unwrap_or_else(|_| panic!("{text:?} is not a number"))
}

/// The texts between backticks.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn the_tests_that_the_page_names_exist() {
    let mut checked = 0;
    for cell in rows().iter().flatten() {
        let [file, test @ ..] = &quoted(cell)[..] else { continue };
        if !file.ends_with(".rs") || !file.contains("/tests/") {
            continue;
        }
        let source =
            std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        for test in test {
            assert!(source.contains(&format!("fn {test}(")), "{file} has no {test}");
        }
        checked += 1;
    }
    assert!(checked > 30, "{checked}: the page has another form than this test expects");
}

/// The arguments that a script wants first, from the line of its head that shows how it is called: none if it may do without.
fn wanted<'a>(script: &str, head: &'a str) -> Vec<&'a str> {
    let mut usages = head.lines().filter_map(|line| {
        line.trim_start_matches("# usage:").trim_start_matches('#').trim().strip_prefix(script)
    });
    let first = usages.next().and_then(|usage| usage.split_whitespace().next()).unwrap_or("[");
    if first.starts_with('[') { Vec::new() } else { first.trim_end_matches(':').split('|').collect() }
}

/// Checks a command of the page without running it.
fn check_command(command: &str) {
    let root = root();
    let words: Vec<&str> = command.split_whitespace().skip_while(|word| word.contains('=')).collect();
    match &words[..] {
        ["./test", steps @ ..] => {
            let runner = std::fs::read_to_string(root.join("test")).unwrap();
            let is_step = |step: &str| runner.contains(&format!("\n    \"{step}|"));
            let [first, ..] = steps else { panic!("{command}: no step") };
            assert!(is_step(first), "{command}: no such step");
        }
        ["cargo", "test", "-p", package, rest @ ..] => {
            let folder = root.join("crates").join(package.strip_prefix("wireloom-").unwrap_or(package));
            let mut files = Vec::new();
            match rest {
                [] | ["--lib"] => assert!(folder.join("Cargo.toml").is_file(), "{command}: no such crate"),
                ["--test", test, filter @ ..] => {
                    let (file, tests) =
                        (folder.join(format!("tests/{test}.rs")), folder.join("tests").join(test));
                    assert!(file.is_file() || tests.join("main.rs").is_file(), "{command}: no such test");
                    if let [filter] = filter {
                        sources(&tests, &mut files);
                        let has = |file: &PathBuf| {
                            let source = std::fs::read_to_string(file).unwrap();
                            source.lines().any(|line| line.contains("fn ") && line.contains(filter))
                        };
                        assert!(files.iter().any(has), "{command}: no such test");
                    }
                }
                _ => panic!("{command}: this test does not know its form"),
            }
        }
        [script, arguments @ ..] => {
            let head = std::fs::read_to_string(root.join(script))
                .unwrap_or_else(|error| panic!("{script}: {error}"));
            let wanted = wanted(script, &head);
            assert!(
                wanted.is_empty() || arguments.first().is_some_and(|first| wanted.contains(first)),
                "{command}: it wants one of {wanted:?}"
            );
        }
        [] => panic!("an empty command"),
    }
}

#[test]
fn the_commands_that_the_page_names_exist() {
    let (mut are_commands, mut checked) = (false, 0);
    for row in rows() {
        match row.last().map_or("", String::as_str) {
            "command" => are_commands = true,
            "test" | "why" => are_commands = false,
            cell if are_commands => {
                for command in quoted(cell) {
                    check_command(command);
                    checked += 1;
                }
            }
            _ => {}
        }
    }
    assert!(checked > 15, "{checked}: the page has another form than this test expects");
    // Outside of the tables.
    let page = read("docs/evidence.md");
    for command in page.lines().filter(|line| !line.starts_with('|')).flat_map(quoted) {
        if command.starts_with("./test ") || command.starts_with("cargo ") {
            check_command(command);
        }
    }
}

/// All source files below a folder, but for those of tests.
fn sources(path: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !["tests", "target", "benches", "fuzz"].contains(&name) {
            sources(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(path);
        }
    }
}

/// The unsafe blocks, functions and implementations of a file, but for those of its tests.
fn count_unsafe(source: &str) -> usize {
    let starts = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"];
    let (code, _tests) = source.split_once("#[cfg(test)]\nmod tests {").unwrap_or((source, ""));
    code.lines().filter(|line| starts.iter().any(|start| line.contains(start))).count()
}

#[test]
fn the_unsafe_code_is_where_and_as_much_as_the_page_says() {
    let root = root();
    let stated: BTreeMap<String, usize> = rows()
        .iter()
        .filter(|row| row.len() == 3)
        .filter_map(|row| Some((quoted(&row[0]).first()?.to_string(), row[1].parse().ok()?)))
        .collect();
    let mut files = Vec::new();
    for folder in ["crates", "ruby/ext"] {
        sources(&root.join(folder), &mut files);
    }
    let mut counted: BTreeMap<String, usize> = stated.keys().map(|folder| (folder.clone(), 0)).collect();
    for file in files {
        let count = count_unsafe(&std::fs::read_to_string(&file).unwrap());
        if count > 0 {
            let name = file.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            let folder = counted.keys().find(|folder| name.starts_with(*folder)).cloned();
            let folder =
                folder.unwrap_or_else(|| panic!("{name} has unsafe code and is not in docs/evidence.md"));
            *counted.get_mut(&folder).unwrap() += count;
        }
    }
    assert_eq!(counted, stated);
}

/// The number in front of a text of the page.
fn figure(before: &str) -> f64 {
    let page = read("docs/evidence.md").split_whitespace().collect::<Vec<_>>().join(" ");
    let (head, _) =
        page.split_once(&format!(" {before}")).unwrap_or_else(|| panic!("the page lacks {before:?}"));
    number(head.rsplit([' ', '(']).next().unwrap())
}

#[test]
fn the_figures_of_the_page_are_those_of_their_sources() {
    let cases = read("conformance/h2spec/expected.txt");
    let passed = cases.lines().filter(|line| line.starts_with("passed ")).count();
    assert_eq!(
        figure(&format!("of {}, [case by case](../conformance/h2spec", cases.lines().count())),
        passed as f64
    );

    let fuzz = read("fuzz/README.md");
    let executions: u64 = rows_of(&fuzz)
        .iter()
        .filter(|row| row.len() == 5 && row[0].starts_with("20"))
        .flat_map(|row| row[3].split(" + "))
        .map(number::<u64>)
        .sum();
    assert_eq!(figure("million executions"), (executions / 1_000_000) as f64);

    let (mut mutants, mut survive, mut not_reached) = (0, 0, 0);
    for row in rows_of(&read("mutants/results.md")).iter().filter(|row| row[0] == "all") {
        mutants += number::<u64>(&row[1]);
        survive += number::<u64>(&row[3]);
        not_reached += number::<u64>(&row[4]);
    }
    let stated = ["mutants, of which", "survive", "are not reached"].map(figure);
    assert_eq!(stated, [mutants, survive, not_reached].map(|count| count as f64));

    let memory = read("crates/hub/tests/memory/main.rs");
    let (_, held_max) = memory.split_once("const HELD_MAX: usize = ").unwrap();
    let held_max: usize = held_max.split(';').next().unwrap().replace('_', "").parse().unwrap();
    assert_eq!(figure("B of the allocator's memory at most"), held_max as f64);
    let stated = format!("holds {},{:03} bytes at most", held_max / 1_000, held_max % 1_000);
    assert!(read("CHANGELOG.md").contains(&stated), "{stated}");

    assert_eq!(figure("lines of assembly"), read("go/kernel_amd64.s").lines().count() as f64);

    let soak = read("docs/conformance/soak.md");
    let rows = rows_of(&soak);
    let loads = rows.iter().filter(|row| row.len() == 3 && row[2] == "0");
    let answers: u64 = loads.map(|row| number::<u64>(&row[1])).sum();
    assert_eq!(figure("million answers"), (answers / 100_000) as f64 / 10.0);
    let publications = rows.iter().find(|row| row[0] == "publications").unwrap();
    assert_eq!(
        figure("publications without an error"),
        number::<f64>(publications[1].trim_end_matches(" |"))
    );
    assert!(soak.contains(&format!(" {} minutes, ", figure("minutes: "))), "the time of the last run");
}

#[test]
fn the_findings_of_fuzzing_have_tests_that_exist() {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    let sources: Vec<_> = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    let mut checked = 0;
    for row in
        rows_of(&read("fuzz/README.md")).iter().filter(|row| row.len() == 4 && row[0].starts_with("20"))
    {
        let test = quoted(&row[3]).first().copied();
        let exists = match test {
            Some(file) if file.ends_with(".rs") => root().join(file).is_file(),
            Some(name) => {
                let function = format!("fn {}(", name.rsplit("::").next().unwrap());
                sources.iter().any(|source| source.contains(&function))
            }
            None => row[3] == "the same",
        };
        assert!(exists, "{row:?}");
        checked += usize::from(test.is_some());
    }
    assert!(checked >= 4, "{checked}: the table has another form than this test expects");
}

#[test]
fn simulations_run_as_many_seeds_as_the_page_says() {
    let source = read("crates/hub/tests/simulation/main.rs");
    let (mut checked, mut drawn_seeds) = (0, 0);
    for row in rows() {
        let Some((test, seeds)) = row[0].rsplit_once(", ") else { continue };
        let Some(seeds) = seeds.strip_suffix(" seeds") else { continue };
        let name = quoted(test)[1];
        let found = source.matches(&format!("(\"{name}\", ")).count() - 1;
        let (_, call) = source.split_once(&format!("run(\"{name}\", ")).unwrap();
        let drawn: usize = number(call.split(',').next().unwrap());
        assert_eq!(number::<usize>(seeds), found + drawn, "{name}");
        drawn_seeds += drawn;
        checked += 1;
    }
    let step = read("ci/rust.sh");
    let (_, step) = step.split_once("step_simulation() {").unwrap();
    let (_, rounds) = step.split_once("WIRELOOM_ROUNDS=").unwrap();
    let rounds: usize = number(rounds.split(' ').next().unwrap());
    assert_eq!(figure("other seeds"), (drawn_seeds * rounds) as f64);
    assert_eq!(checked, 2, "the page has another form than this test expects");
}

/// The lines that a patch expects in its file, hunk by hunk.
fn expected_by(patch: &str) -> Vec<String> {
    let mut hunks = Vec::<String>::new();
    for line in patch.lines().skip_while(|line| !line.starts_with("@@ ")) {
        match (line.split_at_checked(1), hunks.last_mut()) {
            (Some(("@", _)), _) => hunks.push(String::new()),
            (Some((" " | "-", expected)), Some(hunk)) => *hunk += &format!("{expected}\n"),
            _ => {}
        }
    }
    hunks
}

#[test]
fn the_changes_of_the_hub_that_must_be_noticed_apply() {
    let patches: Vec<_> = std::fs::read_dir(root().join("mutants/hub")).unwrap().collect();
    let patches = patches.into_iter().map(|entry| entry.unwrap().path());
    let mut applying = 0;
    for path in patches.filter(|path| path.extension().is_some_and(|extension| extension == "patch")) {
        let patch = std::fs::read_to_string(&path).unwrap();
        let file = patch.lines().find_map(|line| line.strip_prefix("--- a/")).unwrap();
        let (source, hunks) = (read(file), expected_by(&patch));
        assert!(!hunks.is_empty(), "{path:?} changes nothing");
        assert!(hunks.iter().all(|hunk| source.contains(hunk)), "{path:?} does not apply to {file}");
        applying += 1;
    }
    let page = read("docs/evidence.md");
    assert!(page.contains(&format!("each of {applying} is noticed")), "{applying} changes");
}
