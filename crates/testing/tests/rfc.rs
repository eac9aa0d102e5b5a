//! `conformance/rfc` has a row for each requirement of the RFCs: its tests must exist, and `docs/conformance/rfc.md` is made of the rows.
//!
//! A row has five cells, separated by tabs: section, level, the first words of the sentence, a paraphrase, and the evidence. Evidence is a
//! list of tests separated by `; `, each `path/to/file.rs: function` and, for a test with a table, the name of a case in quotation
//! marks; or `not applicable: reason`; or `not tested: reason`.

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The files in the order of the page, and the titles of their RFCs.
const RFCS: &[(&str, &str)] = &[
    ("rfc6455", "RFC 6455: The WebSocket Protocol"),
    ("rfc7692", "RFC 7692: Compression Extensions for WebSocket"),
    ("rfc7541", "RFC 7541: HPACK: Header Compression for HTTP/2"),
    ("rfc8441", "RFC 8441: Bootstrapping WebSockets with HTTP/2"),
    ("rfc9218", "RFC 9218: Extensible Prioritization Scheme for HTTP"),
    ("rfc9113", "RFC 9113: HTTP/2"),
    ("rfc9112", "RFC 9112: HTTP/1.1, what a server and a client of this project meet"),
    ("rfc9110", "RFC 9110: HTTP Semantics, what a server and a client of this project meet"),
];

const LEVELS: [&str; 4] = ["MUST", "MUST NOT", "SHOULD", "SHOULD NOT"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(root().join(path)).ok()
}

enum Evidence {
    Tests(Vec<Test>),
    NotApplicable(String),
    NotTested(String),
}

struct Test {
    file: String,
    function: String,
    case: Option<String>,
}

struct Requirement {
    section: String,
    level: String,
    first_words: String,
    paraphrase: String,
    evidence: Evidence,
}

impl Requirement {
    fn parse(row: &str) -> Result<Self, String> {
        let [section, level, first_words, paraphrase, evidence] = row.split('\t').collect::<Vec<_>>()[..]
        else {
            return Err("a row has five cells, separated by tabs".into());
        };
        let is_section =
            section.split('.').all(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()));
        if !is_section {
            return Err(format!("{section:?} is not the number of a section"));
        }
        if !LEVELS.contains(&level) {
            return Err(format!("{level:?} is not one of {LEVELS:?}"));
        }
        for cell in [first_words, paraphrase] {
            if cell.is_empty() || cell.trim() != cell || cell.contains('|') {
                return Err(format!("{cell:?} is empty, or has spaces around it, or a bar"));
            }
        }
        Ok(Self {
            section: section.into(),
            level: level.into(),
            first_words: first_words.into(),
            paraphrase: paraphrase.into(),
            evidence: Evidence::parse(evidence)?,
        })
    }
}

impl Evidence {
    fn parse(cell: &str) -> Result<Self, String> {
        let reason = |reason: &str| {
            if reason.trim().len() < 10 || reason.contains('|') {
                return Err(format!("{cell:?} has no reason"));
            }
            Ok(reason.to_owned())
        };
        if let Some(text) = cell.strip_prefix("not applicable: ") {
            return Ok(Self::NotApplicable(reason(text)?));
        }
        if let Some(text) = cell.strip_prefix("not tested: ") {
            return Ok(Self::NotTested(reason(text)?));
        }
        cell.split("; ").map(Test::parse).collect::<Result<_, _>>().map(Self::Tests)
    }
}

impl Test {
    fn parse(text: &str) -> Result<Self, String> {
        let malformed = || format!("{text:?} is neither a test nor a reason");
        let (file, test) = text.split_once(": ").ok_or_else(malformed)?;
        let (function, case) = match test.split_once(' ') {
            None => (test, None),
            Some((function, case)) => {
                let case = case.strip_prefix('"').and_then(|case| case.strip_suffix('"'));
                (function, Some(case.ok_or_else(malformed)?.to_owned()))
            }
        };
        let is_name =
            !function.is_empty() && function.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !file.ends_with(".rs") || !is_name {
            return Err(malformed());
        }
        Ok(Self { file: file.into(), function: function.into(), case })
    }

    /// The function has the attribute of a test, and the file the name of the case, as a string.
    fn check(&self) -> Result<(), String> {
        let Self { file, function, case } = self;
        let source = read(file).ok_or_else(|| format!("{file} is missing"))?;
        let mut attributes = false;
        let is_test = source.lines().map(str::trim_start).any(|line| {
            let name = line.trim_start_matches("async ");
            let found = attributes
                && name
                    .strip_prefix("fn ")
                    .and_then(|name| name.strip_prefix(function.as_str()))
                    .is_some_and(|rest| rest.starts_with('('));
            // Attributes and comments may be between `#[test]` and the function.
            attributes = line.starts_with("#[test]")
                || line.starts_with("#[tokio::test")
                || attributes && (line.starts_with("#[") || line.starts_with("//"));
            found
        });
        if !is_test {
            return Err(format!("{file} has no test {function}"));
        }
        match case {
            Some(case) if !self.has_case(&source, &format!("\"{case}\"")) => {
                Err(format!("{file} has no case {case:?}"))
            }
            _ => Ok(()),
        }
    }

    /// The case is in the file, or in one beside `mod.rs`, whose test runs the cases of its submodules.
    fn has_case(&self, source: &str, case: &str) -> bool {
        let Some(folder) = self.file.strip_suffix("/mod.rs") else { return source.contains(case) };
        let files = std::fs::read_dir(root().join(folder)).unwrap();
        files
            .filter_map(|file| std::fs::read_to_string(file.unwrap().path()).ok())
            .any(|file| file.contains(case))
    }

    fn to_markdown(&self) -> String {
        let Self { file, function, case } = self;
        let case = case.as_ref().map(|case| format!(" “{case}”")).unwrap_or_default();
        format!("[{function}](../../{file}){case}")
    }
}

/// The rows of the file, or its errors; the first row names the columns.
fn requirements(name: &str) -> (Vec<Requirement>, Vec<String>) {
    let path = format!("conformance/rfc/{name}.tsv");
    let text = read(&path).unwrap_or_else(|| panic!("{path} is missing"));
    let mut lines = text.lines().enumerate();
    assert_eq!(
        lines.next(),
        Some((0, "section\tlevel\tfirst words\tparaphrase\tevidence")),
        "{path}: the first line"
    );
    let (mut requirements, mut errors) = (Vec::new(), Vec::new());
    for (index, row) in lines {
        match Requirement::parse(row) {
            Ok(requirement) => requirements.push(requirement),
            Err(error) => errors.push(format!("{path}:{}: {error}", index + 1)),
        }
    }
    assert!(!requirements.is_empty(), "{path} has no rows");
    (requirements, errors)
}

#[test]
fn each_requirement_has_tests_that_exist_or_a_reason() {
    let mut failures = Vec::new();
    for (name, _) in RFCS {
        let (requirements, errors) = requirements(name);
        failures.extend(errors);
        for Requirement { section, first_words, evidence, .. } in requirements {
            let Evidence::Tests(tests) = evidence else { continue };
            let missing = tests.iter().filter_map(|test| test.check().err());
            failures.extend(missing.map(|error| format!("{name} §{section} {first_words:?}: {error}")));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[test]
fn each_file_is_on_the_page() {
    let mut files: Vec<String> = std::fs::read_dir(root().join("conformance/rfc"))
        .unwrap()
        .filter_map(|entry| Some(entry.unwrap().file_name().to_str()?.strip_suffix(".tsv")?.to_owned()))
        .collect();
    files.sort();
    let mut names: Vec<_> = RFCS.iter().map(|(name, _)| name.to_string()).collect();
    names.sort();
    assert_eq!(files, names);
}

#[test]
fn malformed_rows_are_refused() {
    let row = |evidence: &str| format!("5.1\tMUST\tA client\tmasks\t{evidence}");
    for evidence in ["a/b.rs: test", "a/b.rs: test \"case\"; c.rs: other", "not applicable: no proxy is here"]
    {
        assert!(Requirement::parse(&row(evidence)).is_ok(), "{evidence}");
    }
    for evidence in [
        "",
        "tested",
        "not applicable: ",
        "not tested:",
        "a/b.rs:",
        "a/b.rs: ",
        "a/b.rs: test case",
        "a/b.rs: a-b",
        "a/b.rs: test;",
        "a/b.txt: test",
    ] {
        assert!(Requirement::parse(&row(evidence)).is_err(), "{evidence}");
    }
    for row in
        ["", "5.1\tMAY\ta\tb\ta.rs: t", "5.\tMUST\ta\tb\ta.rs: t", "5\tMUST\t\tb\ta.rs: t", "5\tMUST\ta\tb"]
    {
        assert!(Requirement::parse(row).is_err(), "{row:?}");
    }
}

/// Counts of requirements, and those with tests, not applicable, not tested.
fn counts(requirements: &[Requirement]) -> [usize; 4] {
    let count = |is: fn(&Evidence) -> bool| requirements.iter().filter(|row| is(&row.evidence)).count();
    [
        requirements.len(),
        count(|evidence| matches!(evidence, Evidence::Tests(_))),
        count(|evidence| matches!(evidence, Evidence::NotApplicable(_))),
        count(|evidence| matches!(evidence, Evidence::NotTested(_))),
    ]
}

fn page() -> String {
    let mut summary = String::new();
    let mut untested = String::new();
    let mut tables = String::new();
    let mut totals = [0; 4];
    for (name, title) in RFCS {
        let (requirements, _) = requirements(name);
        let counts = counts(&requirements);
        for (total, count) in totals.iter_mut().zip(counts) {
            *total += count;
        }
        let [all, tested, not_applicable, not_tested] = counts;
        let number = name.strip_prefix("rfc").unwrap();
        let link = format!("[RFC {number}](https://www.rfc-editor.org/rfc/{name}.html)");
        writeln!(summary, "| {link} | {all} | {tested} | {not_applicable} | {not_tested} |").unwrap();
        write!(tables, "\n## {title}\n\n| section | level | first words | requirement | tests |\n| --- | --- | --- | --- | --- |\n").unwrap();
        for Requirement { section, level, first_words, paraphrase, evidence } in requirements {
            let evidence = match evidence {
                Evidence::Tests(tests) => tests.iter().map(Test::to_markdown).collect::<Vec<_>>().join(", "),
                Evidence::NotApplicable(reason) => format!("not applicable: {reason}"),
                Evidence::NotTested(reason) => {
                    writeln!(untested, "- RFC {number} §{section}, {level}: {paraphrase} ({reason}).")
                        .unwrap();
                    format!("**not tested**: {reason}")
                }
            };
            writeln!(tables, "| {section} | {level} | {first_words} … | {paraphrase} | {evidence} |")
                .unwrap();
        }
    }
    let [all, tested, not_applicable, not_tested] = totals;
    if untested.is_empty() {
        untested.push_str("None.\n");
    }
    format!(
        "# Requirements of the RFCs and their tests\n\n\
         `cargo test -p wireloom-testing --test rfc` fails if a requirement has neither a test nor a reason, if a test vanishes, or if this \
         page differs from the rows in `conformance/rfc`; `WIRELOOM_RENEW_RFC=1 cargo test -p wireloom-testing --test rfc` writes the page.\n\n\
         Each row is a sentence with MUST, MUST NOT, SHOULD or SHOULD NOT (or REQUIRED, SHALL and RECOMMENDED, under the same levels), found \
         by its section and first words, and paraphrased.\n\n\
         | RFC | requirements | tested | not applicable | not tested |\n| --- | --- | --- | --- | --- |\n\
         {summary}| all | {all} | {tested} | {not_applicable} | {not_tested} |\n\n\
         ## Not tested, and differences\n\n{untested}{tables}"
    )
}

#[test]
fn the_page_is_made_of_the_rows() {
    let path = root().join("docs/conformance/rfc.md");
    let page = page();
    if std::env::var_os("WIRELOOM_RENEW_RFC").is_some_and(|value| value == "1") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &page).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == page,
        "docs/conformance/rfc.md differs from the rows; WIRELOOM_RENEW_RFC=1 cargo test -p wireloom-testing --test rfc writes it"
    );
}
