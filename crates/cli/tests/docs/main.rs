//! Tests of the book: its commands print the shown output, its links resolve, and the error texts that it explains
//! exist.

#![allow(clippy::unwrap_used)]
#![cfg(unix)]

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

mod backend;
mod shell;

const WIRELOOM: &str = env!("CARGO_BIN_EXE_wireloom");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.to_str().unwrap().ends_with(ending) {
            found.push(path);
        }
    }
    found
}

struct Server(Child);

impl Server {
    /// Starts a server that prints its URL, and returns it with its address.
    fn start(command: &mut Command) -> (Server, String) {
        let mut server = Server(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim_end().split_once("://").unwrap().1.trim_end_matches('/').to_owned();
        (server, address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Pages whose `console` blocks show what their commands print.
const WITH_OUTPUT: [&str; 3] = ["docs/src/start/command.md", "docs/src/guides/observability.md", "README.md"];

/// A command of a `console` block, and the output that the page shows for it.
fn commands(page: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut is_console = false;
    for line in page.lines() {
        if line.starts_with("```") {
            is_console = line == "```console";
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| is_console) {
            found.push((command.to_owned(), String::new()));
        } else if let Some((_, output)) = found.last_mut().filter(|_| is_console) {
            *output += &format!("{line}\n");
        }
    }
    found
}

#[test]
fn commands_print_the_output_in_the_book() {
    let (_server, address) = Server::start(Command::new(WIRELOOM).args(["serve", "--port", "0"]));
    let pages = WITH_OUTPUT.map(|page| commands(&fs::read_to_string(root().join(page)).unwrap()));
    assert!(pages[0].len() > 5 && pages.iter().all(|page| !page.is_empty()), "{pages:?}");
    // The test has started the server.
    let commands = pages.into_iter().flatten().filter(|(command, _)| !command.starts_with("wireloom serve"));
    let bin = Path::new(WIRELOOM).parent().unwrap().display();
    for (command, expected) in commands {
        let script = format!("PATH={bin}:$PATH; {}", command.replace("127.0.0.1:8080", &address));
        let output = Command::new("bash").args(["-c", &script]).stdin(Stdio::null()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{command}");
    }
}

/// The guide's own certificate, server and client, on other ports.
#[test]
fn the_certificate_of_the_tls_guide_is_accepted() {
    if Command::new("openssl").arg("version").output().is_err() {
        // Not println!, whose output is shown only if the test fails.
        let _ = writeln!(std::io::stderr(), "skipped: the TLS guide: apt-get install openssl");
        return;
    }
    let page = fs::read_to_string(root().join("docs/src/guides/tls.md")).unwrap();
    let (_, block) = page.split_once("```sh\nopenssl").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    // The server chooses the port, and prints it.
    let printed = r"sed -n 's#.* on https://127\.0\.0\.1:\([0-9]*\).*#\1#p' serve.out";
    let wait = format!("until port=$({printed}) && [ -n \"$port\" ]; do kill -0 %1 || exit; sleep 0.1; done");
    let block = block
        .replace("serve --tls", "serve --port 0 --tls --tls-listen 127.0.0.1:0")
        .replace("localhost:8443", "localhost:$port")
        .replace(" &\n", &format!(" >serve.out &\n{wait}\n"));
    let bin = Path::new(WIRELOOM).parent().unwrap().display();
    let script = format!(
        "trap 'kill %1' EXIT; PATH={bin}:$PATH; openssl{} --send hello --expect hello --timeout 60",
        block.trim_end()
    );
    let folder = std::env::temp_dir().join(format!("wireloom-tls-guide-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let output = Command::new("bash")
        .args(["-mc", &script])
        .current_dir(&folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.ends_with("hello\n"), "{output:?}\n{script}");
}

#[test]
fn every_error_text_exists() {
    let sources: String = files(&root().join("crates"), ".rs")
        .iter()
        .filter(|path| !path.to_str().unwrap().contains("tests/docs/"))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let page = fs::read_to_string(root().join("docs/src/troubleshooting.md")).unwrap();
    let (_, table) = page.split_once("## By error text").unwrap();
    let mut checked = 0;
    for text in
        table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(text, _)| text)
    {
        // The kind of URL is inserted where the message is printed.
        let text = text.strip_suffix(" to a WebSocket URL").unwrap_or(text);
        assert!(sources.contains(text), "{text}");
        checked += 1;
    }
    assert!(checked > 10, "{checked}");
}

#[test]
fn links_resolve() {
    let mut pages = files(&root().join("docs/src"), ".md");
    pages.extend(
        ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", "CHANGELOG.md", "RELEASING.md"]
            .map(|name| root().join(name)),
    );
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = link.split('#').next().unwrap();
            if !path.contains("://") && !path.is_empty() {
                assert!(page.parent().unwrap().join(path).is_file(), "{}: {link}", page.display());
            }
        }
    }
}

#[test]
fn the_numbers_of_crates_are_those_of_cargo() {
    let count = |features: &str| {
        // As on the platform of the tests' users, whatever this one is.
        let mut tree = Command::new(env!("CARGO"));
        tree.args(["tree", "--locked", "--offline", "-p", "wireloom", "-e", "normal", "--prefix", "none"])
            .args(["--format", "{p}", "--target", "x86_64-unknown-linux-gnu"])
            .args(features.split_whitespace())
            .current_dir(root());
        let output = tree.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let names = text.lines().map(|line| line.trim_end_matches(" (*)"));
        // Those of this repository have a path.
        names.filter(|name| !name.is_empty() && !name.contains("crates/")).collect::<HashSet<_>>().len()
    };
    let numbers = [
        "--no-default-features",
        "--no-default-features --features client",
        "--no-default-features --features client,tls",
        "--no-default-features --features server",
        "",
    ]
    .map(|features| count(features).to_string());
    for page in ["docs/src/start/rust.md", "crates/wireloom/README.md"] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        let sentence = text.split("Without default features").nth(1).unwrap().split("\n\n").next().unwrap();
        let found: Vec<_> = sentence
            .split(|character: char| !character.is_ascii_digit())
            .filter(|number| !number.is_empty())
            .collect();
        assert_eq!(found, numbers, "{page}");
    }
}
