//! The order of the modules in each crate: imports go one way along it. Each `lib.rs`, and the `main.rs` of the command, states its
//! order in a line that begins with `//! Layers:`, and so do the folders of [`WITH_FOLDERS`] and [`FOLDERS`], in `mod.rs` or the file of
//! the same name. Modules of one layer, between commas, do not import each other; modules joined by `+` do.
//!
//! ```text
//! //! Layers: `a`, `b` → `c` + `d` → `e`
//! ```

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The crates whose order is checked.
const CRATES: [&str; 7] = ["ws", "http2", "wireloom", "inspect", "hub", "cli", "capi"];

/// The crates in which each folder with more than one module states its order.
const WITH_FOLDERS: [&str; 2] = ["hub", "cli"];

/// Folders of the others whose order is checked too.
const FOLDERS: [(&str, &str); 4] =
    [("wireloom", "http2"), ("wireloom", "websocket"), ("ws", "deflate"), ("ws", "handshake")];

fn crate_dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src")
}

/// The layer of a module, and its group within that: modules of one group may import each other.
type Place = (usize, usize);

/// The place of each module, from the lines of a `lib.rs`.
fn layers(lib: &str) -> HashMap<String, Place> {
    let mut lines = lib.lines().skip_while(|line| !line.starts_with("//! Layers:"));
    let mut order = String::new();
    for line in lines.by_ref() {
        let text = line.trim_start_matches("//!").trim();
        if text.is_empty() {
            break;
        }
        order.push(' ');
        order.push_str(text.trim_start_matches("Layers:"));
    }
    let order = order.replace('`', "");
    let mut found = HashMap::new();
    for (layer, modules) in order.trim().trim_end_matches('.').split('→').enumerate() {
        for (group, modules) in modules.split(',').enumerate() {
            for module in modules.split('+').map(str::trim) {
                let other = found.insert(module.to_owned(), (layer, group));
                assert!(other.is_none(), "{module} has two layers");
            }
        }
    }
    found
}

/// The modules that `lib.rs` declares, without those of tests.
fn declared(lib: &str) -> Vec<String> {
    let mut is_test = false;
    let modules = lib.lines().filter(|line| {
        let was_test = is_test;
        is_test = *line == "#[cfg(test)]" || (is_test && line.starts_with('#'));
        !was_test
    });
    let modules = modules.filter_map(|line| {
        let line = ["pub(crate) ", "pub(super) ", "pub "]
            .into_iter()
            .find_map(|public| line.strip_prefix(public))
            .unwrap_or(line);
        line.strip_prefix("mod ")?.strip_suffix(';')
    });
    modules.map(str::to_owned).collect()
}

/// All source files except `tests.rs`: unit tests may use anything.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

/// The code of a file: no comments, and no unit tests, which may use anything.
fn code(text: &str) -> String {
    let code = text.split("\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The module of each name that `lib.rs` re-exports.
fn re_exports(lib: &str) -> HashMap<String, String> {
    let mut found = HashMap::new();
    for (at, _) in lib.match_indices("use ") {
        let item = lib[at + "use ".len()..].split(';').next().unwrap_or_default();
        let Some((module, names)) = item.split_once("::") else { continue };
        for name in names.split(|letter: char| letter != '_' && !letter.is_alphanumeric()) {
            found.insert(name.to_owned(), module.to_owned());
        }
    }
    found
}

/// The names behind `crate::`, also within braces: modules of the crate, or items that `lib.rs` re-exports.
fn imported(code: &str) -> Vec<String> {
    names_behind("crate::", code)
}

/// The names behind `prefix`, also within braces.
fn names_behind(prefix: &str, code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        // Not `$crate::`, and not the end of another word.
        let before = code[..at].chars().next_back();
        if before.is_some_and(|before| before == '$' || before == '_' || before.is_alphanumeric()) {
            continue;
        }
        found.extend(names_in(&code[at + prefix.len()..]));
    }
    found
}

/// The first name of a path, or those of a list in braces.
fn names_in(rest: &str) -> Vec<String> {
    let mut found = Vec::new();
    match rest.strip_prefix('{') {
        None => found.push(first_word(rest)),
        Some(list) => {
            let mut depth = 0;
            let mut item = String::new();
            for letter in list.chars() {
                match letter {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => found.push(first_word(&std::mem::take(&mut item))),
                    _ => {}
                }
                if letter != ',' {
                    item.push(letter);
                }
            }
            found.push(first_word(&item));
        }
    }
    found.retain(|name| !name.is_empty());
    found
}

fn first_word(text: &str) -> String {
    text.trim_start().chars().take_while(|letter| *letter == '_' || letter.is_alphanumeric()).collect()
}

/// The imports against the order: the file, and the module that it names.
fn violations(name: &str) -> Vec<String> {
    let src = crate_dir(name);
    let lib =
        std::fs::read_to_string(src.join("lib.rs")).or_else(|_| std::fs::read_to_string(src.join("main.rs")));
    let lib = lib.unwrap();
    let (layers, re_exports) = (layers(&lib), re_exports(&lib));
    for module in declared(&lib) {
        assert!(layers.contains_key(&module), "{name}: lib.rs gives no layer for `{module}`");
    }
    let mut found = Vec::new();
    let mut all = Vec::new();
    files(&src, &mut all);
    all.sort();
    // Unit tests may use anything.
    for file in all.iter().filter(|file| !file.ends_with("tests.rs")) {
        let path = file.strip_prefix(&src).unwrap().to_owned();
        let own = path.iter().next().unwrap().to_string_lossy().trim_end_matches(".rs").to_owned();
        let Some(&place) = layers.get(&own) else {
            assert!(own == "lib" || own == "main", "{name}: {} belongs to no module", path.display());
            continue;
        };
        let text = std::fs::read_to_string(file).unwrap();
        for imported in imported(&code(&text)) {
            let module =
                re_exports.get(&imported).filter(|_| !layers.contains_key(&imported)).unwrap_or(&imported);
            let lower = layers.get(module).is_some_and(|other| other.0 < place.0 || *other == place);
            if !lower {
                found.push(format!("{name}: {} imports `{imported}` of `{module}`", path.display()));
            }
        }
    }
    found
}

/// The names behind exactly `depth` times `super::`: of the module that many levels above.
fn names_above(depth: usize, code: &str) -> Vec<String> {
    let prefix = "super::".repeat(depth);
    let at_depth = code.match_indices("super::").filter(|(at, _)| {
        let rest = code[*at..].strip_prefix(&prefix);
        !code[..*at].ends_with("super::") && rest.is_some_and(|rest| !rest.starts_with("super::"))
    });
    at_depth.flat_map(|(at, _)| names_in(&code[at + prefix.len()..])).collect()
}

/// The folders of a crate with their stating files: the path below `src`, and the file.
fn folders(src: &Path) -> Vec<(PathBuf, PathBuf)> {
    let mut all = Vec::new();
    files(src, &mut all);
    let mut found = Vec::new();
    for file in all {
        let dir = match file.ends_with("mod.rs") {
            true => file.parent().unwrap().to_owned(),
            false => file.with_extension(""),
        };
        if dir.is_dir() && dir != src {
            found.push((dir.strip_prefix(src).unwrap().to_owned(), file));
        }
    }
    found.sort();
    found
}

/// As [`violations`], among the modules of a folder.
fn folder_violations(name: &str, folder: &Path, stating: &Path) -> Vec<String> {
    let dir = crate_dir(name).join(folder);
    let text = std::fs::read_to_string(stating).unwrap();
    let modules = declared(&text);
    let shown = format!("{name}: {}", folder.display());
    if !text.contains("//! Layers:") {
        return if modules.len() > 1 {
            vec![format!("{shown} states no order of its modules")]
        } else {
            Vec::new()
        };
    }
    let (layers, re_exports) = (layers(&text), re_exports(&text));
    let mut found = Vec::new();
    for module in modules {
        if !layers.contains_key(&module) {
            found.push(format!("{shown} gives no layer for `{module}`"));
        }
    }
    let path = folder.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("::");
    let absolute = format!("crate::{path}::");
    for (module, place) in &layers {
        let mut sources = vec![dir.join(format!("{module}.rs"))];
        if dir.join(module).is_dir() {
            files(&dir.join(module), &mut sources);
        }
        for source in sources.iter().filter(|source| source.is_file() && !source.ends_with("tests.rs")) {
            let code = code(&std::fs::read_to_string(source).unwrap());
            let parts = source.strip_prefix(&dir).unwrap().iter().count();
            let depth = if source.ends_with("mod.rs") { parts - 1 } else { parts };
            for imported in names_above(depth, &code).into_iter().chain(names_behind(&absolute, &code)) {
                let other = re_exports
                    .get(&imported)
                    .filter(|_| !layers.contains_key(&imported))
                    .unwrap_or(&imported);
                // Items that the stating file itself defines are above all of them, or belong to none.
                if layers.get(other).is_some_and(|other| other.0 >= place.0 && other != place) {
                    found.push(format!("{shown}: {} imports `{imported}` of `{other}`", source.display()));
                }
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

#[test]
fn modules_import_along_the_order_of_their_crate() {
    let found: Vec<String> = CRATES.iter().flat_map(|name| violations(name)).collect();
    assert!(found.is_empty(), "imports against the order that lib.rs states:\n{}", found.join("\n"));
}

#[test]
fn modules_import_along_the_order_of_their_folder() {
    let mut found = Vec::new();
    for name in CRATES {
        for (folder, stating) in folders(&crate_dir(name)) {
            if WITH_FOLDERS.contains(&name)
                || FOLDERS.iter().any(|other| *other == (name, &folder.to_string_lossy()))
            {
                found.extend(folder_violations(name, &folder, &stating));
            }
        }
    }
    assert!(found.is_empty(), "imports against the order that mod.rs states:\n{}", found.join("\n"));
}

#[test]
fn finds_imports_of_folders() {
    let code = "use super::a::B;\nuse super::super::b::C;\nuse super::{c::D, e};\nfn f() { super::g::h(); super::super::i() }";
    assert_eq!(names_above(1, code), ["a", "c", "e", "g"]);
    assert_eq!(names_above(2, code), ["b", "i"]);
}

#[test]
fn finds_imports() {
    let code = code(
        "use crate::a::B;\nuse crate::{c, d::{E, F}, g};\n// use crate::no;\nlet x = $crate::no; mycrate::no();\n\
         pub(crate) fn f() { crate::h::i() }\n#[cfg(test)]\n#[allow(a)]\nmod tests {\nuse crate::no;",
    );
    assert_eq!(imported(&code), ["a", "c", "d", "g", "h"]);
    let lib = "//! Text.\n//!\n//! Layers: `a`, `b` →\n//! `c` + `d`.\n//!\n//! More → text.\npub(crate) mod a;\nmod b;\n\
               pub mod c;\nmod d;\npub use c::{E, f::G};\n";
    let layers = layers(lib);
    assert_eq!(
        (layers["a"], layers["b"], layers["c"], layers["d"], layers.len()),
        ((0, 0), (0, 1), (1, 0), (1, 0), 4)
    );
    assert_eq!((&*re_exports(lib)["E"], &*re_exports(lib)["G"]), ("c", "c"));
    assert_eq!(declared(lib), ["a", "b", "c", "d"]);
}
