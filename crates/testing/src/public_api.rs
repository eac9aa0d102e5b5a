//! The public API of a crate as a list of declarations, which a test compares with the list that is committed.
//!
//! The list is read from the source, which rustfmt has formatted. It contains every `pub` declaration (the lint
//! `unreachable_pub` ensures that these are reachable), variants of public enums, methods of public traits, derives and
//! implementations of traits.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

/// If this variable is set, [`check`] writes the list instead of comparing it.
const RENEW: &str = "WIRELOOM_RENEW_PUBLIC_API";

/// Compares the public API of the crate in the folder `package` with the list in the file `expected`.
///
/// # Panics
/// If they differ. The message lists added and removed declarations.
pub fn check(package: &str, expected: &str) {
    let actual: String = sources(&Path::new(package).join("src"))
        .iter()
        .map(|(name, source)| (name, declarations(source)))
        .filter(|(_, declarations)| !declarations.is_empty())
        .map(|(name, declarations)| format!("{name}\n{}\n", declarations.join("\n")))
        .collect();
    let path = Path::new(package).join(expected);
    if std::env::var_os(RENEW).is_some() {
        std::fs::write(&path, &actual).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let difference = difference(&expected, &actual);
    assert!(
        difference.is_empty(),
        "the public API has changed; if that is intended, set {RENEW}=1\n{difference}"
    );
}

/// The files of a crate and their names, without files of tests.
///
/// # Panics
/// If the folder cannot be read.
pub fn sources(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).unwrap_or_else(|error| panic!("{}: {error}", next.display())) {
            let path = entry.expect("an entry of a folder").path();
            let is_tests = path.file_stem().is_some_and(|stem| stem == "tests");
            if path.is_dir() && !is_tests {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !is_tests {
                let name = path.strip_prefix(folder).unwrap_or(&path).display().to_string();
                found.push((name, std::fs::read_to_string(&path).expect("a source file")));
            }
        }
    }
    found.sort();
    found
}

/// The kind of top-level block that a line belongs to.
enum Block {
    /// Of an `impl`, with its header, or of a module.
    Public(String),
    Trait,
    Enum,
    Struct,
    /// The arguments of a macro that makes declarations.
    Macro,
    Private,
}

/// The public declarations of a file, in order, without the module `tests`.
pub fn declarations(source: &str) -> Vec<String> {
    let mut lines = source.split("\nmod tests {").next().unwrap_or_default().lines();
    let mut list = Vec::new();
    let mut block = Block::Private;
    let mut attributes = String::new();
    while let Some(line) = lines.next() {
        let (text, indent) = (line.trim_start(), line.len() - line.trim_start().len());
        if text.is_empty() || text.starts_with("//") {
            continue;
        }
        if let Some(attribute) = text.strip_prefix("#[") {
            if ["derive", "doc(hidden)", "non_exhaustive", "cfg"]
                .iter()
                .any(|kind| attribute.starts_with(kind))
            {
                attributes += text;
                attributes.push(' ');
            }
            continue;
        }
        let attributes = std::mem::take(&mut attributes);
        if indent == 0 && text.starts_with('}') {
            block = Block::Private;
            continue;
        }
        let is_public = text.starts_with("pub ");
        let is_declared = match (&block, indent) {
            (_, 0) => is_public || text.starts_with("impl") && text.contains(" for "),
            (Block::Public(_) | Block::Struct, 4) => is_public,
            (Block::Trait, 4) => !text.starts_with(['}', ')']),
            (Block::Enum, 4 | 8) => !text.starts_with(['}', ')']),
            (Block::Macro, _) => !text.starts_with(['}', ')']),
            _ => false,
        };
        let mut declaration = text.to_owned();
        // A header of several lines.
        if indent == 0 || is_declared && !matches!(block, Block::Enum | Block::Struct | Block::Macro) {
            let is_use = declaration.starts_with("pub use ");
            while !declaration.ends_with(';')
                && (is_use || !declaration.ends_with(['{', '}']) && !declaration.contains(" = "))
            {
                let Some(more) = lines.next() else { break };
                declaration.push(' ');
                declaration += more.trim();
            }
        }
        if is_declared {
            let context = match &block {
                Block::Public(header) if indent > 0 => format!("{header}: "),
                _ if indent > 0 => " ".repeat(indent),
                _ => String::new(),
            };
            list.push(format!("{context}{attributes}{}", head_of(&declaration)));
        }
        if indent == 0 && declaration.ends_with('{') {
            block = block_of(&declaration, is_public);
        } else if indent == 0 {
            block = Block::Private;
        }
    }
    list
}

/// The block that this header begins.
fn block_of(header: &str, is_public: bool) -> Block {
    let mut words = header.split_whitespace().skip_while(|word| matches!(*word, "pub" | "unsafe"));
    match words.next() {
        Some(word) if word.starts_with("impl") => Block::Public(head_of(header)),
        Some(word) if word == "mod" || word == "pub(crate)" => Block::Public(head_of(header)),
        Some("trait") if is_public => Block::Trait,
        Some("enum") if is_public => Block::Enum,
        Some("struct") if is_public => Block::Struct,
        Some(word) if word.ends_with('!') && word != "macro_rules!" => Block::Macro,
        _ => Block::Private,
    }
}

/// A declaration without its body or value.
fn head_of(declaration: &str) -> String {
    if let Some(path) = declaration.strip_prefix("pub use ") {
        return format!("pub use {}", path.trim_end_matches(';').replace("{ ", "{").replace(", }", "}"));
    }
    let head = declaration.split(" = ").next().unwrap_or_default();
    let head = head.trim_end_matches("{}").trim_end_matches(['{', ';', ',']).trim_end();
    head.replace("( ", "(").replace(", )", ")").replace(",)", ")")
}

/// Lines that only one of two lists contains, in order.
fn difference(expected: &str, actual: &str) -> String {
    let [old, new]: [BTreeSet<(&str, &str)>; 2] = [expected, actual].map(in_files);
    let mut difference = String::new();
    for (file, line) in old.difference(&new) {
        let _ = writeln!(difference, "- {file}: {line}");
    }
    for (file, line) in new.difference(&old) {
        let _ = writeln!(difference, "+ {file}: {line}");
    }
    difference
}

/// Each line of a list with its file.
fn in_files(list: &str) -> BTreeSet<(&str, &str)> {
    let mut file = "";
    let with_file = |line| {
        if list_names_file(line) {
            file = line;
        }
        (file, line)
    };
    list.lines().filter(|line| !line.is_empty()).map(with_file).collect()
}

fn list_names_file(line: &str) -> bool {
    !line.starts_with(' ') && line.ends_with(".rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
//! A module.

mod inner;

pub use inner::{One, Two};

/// A type.
#[derive(Clone, Debug)]
#[must_use]
pub struct Type {
    pub field: u8,
    pub(crate) private: u8,
}

pub enum Kind {
    /// The first.
    First,
    Second { len: usize },
}

impl Type {
    pub const LEN: usize = 7;

    /// A method
    /// of two lines.
    pub fn method(
        &self,
        argument: u8,
    ) -> u8 {
        let pub_inside = 1;
        argument
    }

    pub(crate) fn hidden(&self) {}
}

impl Drop for Type {
    fn drop(&mut self) {}
}

pub trait Trait {
    fn required(&self);
}

pub(crate) fn free() {}

#[cfg(test)]
mod tests {
    pub fn test() {}
}
";

    #[test]
    fn lists_public_declarations() {
        assert_eq!(
            declarations(SOURCE),
            [
                "pub use inner::{One, Two}",
                "#[derive(Clone, Debug)] pub struct Type",
                "    pub field: u8",
                "pub enum Kind",
                "    First",
                "    Second { len: usize }",
                "impl Type: pub const LEN: usize",
                "impl Type: pub fn method(&self, argument: u8) -> u8",
                "impl Drop for Type",
                "pub trait Trait",
                "    fn required(&self)",
            ]
        );
    }

    #[test]
    fn added_and_removed_declarations_are_differences() {
        let listed = declarations(SOURCE).join("\n");
        for (from, to, added, removed) in [
            ("pub(crate) fn hidden", "pub fn hidden", 1, 0),
            ("pub(crate) fn free", "pub fn free", 1, 0),
            ("pub(crate) private", "pub private", 1, 0),
            ("mod inner;", "pub mod inner;", 1, 0),
            ("    Second { len: usize },\n", "", 0, 1),
            ("    fn required(&self);\n", "", 0, 1),
            ("pub fn method(", "fn method(", 0, 1),
            ("argument: u8", "argument: u16", 1, 1),
            ("Clone, Debug", "Debug", 1, 1),
            ("impl Drop for Type", "impl Type", 0, 1),
            ("{One, Two}", "{One}", 1, 1),
        ] {
            assert!(SOURCE.contains(from), "{from}");
            let changed = declarations(&SOURCE.replace(from, to)).join("\n");
            let difference = difference(&listed, &changed);
            let count = |sign: &str| difference.lines().filter(|line| line.starts_with(sign)).count();
            assert_eq!((count("+"), count("-")), (added, removed), "{from}: {difference}");
        }
    }
}
