//! `docs/evidence.md` names tests and commands that exist, and counts the unsafe code.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The cells of the table rows of the page.
fn rows() -> Vec<Vec<String>> {
    let page = std::fs::read_to_string(root().join("docs/evidence.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.map(|row| row.split(" | ").map(str::to_owned).collect()).collect()
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

fn count_unsafe(source: &str) -> usize {
    let starts = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"];
    source.lines().filter(|line| starts.iter().any(|start| line.contains(start))).count()
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
