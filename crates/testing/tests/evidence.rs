//! `docs/evidence.md` names tests that exist, and counts the unsafe code.

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
