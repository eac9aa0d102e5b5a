//! Runs every command in `sh` blocks of the pages, with other ports and for a shorter time, or lists it below with the
//! reason why not.

use super::{Server, WIRELOOM, WITH_OUTPUT, commands, files, root};
use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The beginnings of commands that this file does not run, and why.
const NOT_RUN: &[(&str, &str)] = &[
    ("cargo install ", "installs for the user"),
    ("cargo add ", "belongs in a project of the reader"),
    ("cargo run --release -p wireloom-cli", "a release build"),
    ("./test", "runs this test"),
    ("cargo run --example chat", "an example of the hub, which its own tests run"),
    ("cd ruby", "the gem's tests build and install its package"),
    ("rake gem", "the gem's tests build and install its package"),
    ("ci/release", "a release build"),
    ("install -m ", "installs for the system"),
    ("echo 'WIRELOOM_OPTIONS", "configures the system"),
    ("systemctl ", "starts a service of the system"),
    ("docker ", "needs Docker"),
    ("tcpdump ", "needs root"),
    ("sudo ", "installs for the system"),
    ("crates/capi/install", "the step capi of ./test installs it"),
    ("DESTDIR=", "the step capi of ./test installs it"),
    ("export PKG_CONFIG_PATH", "the step capi compiles programs"),
    ("export OTEL_", "the shell tests have a collector"),
    ("export WIRELOOM_HUB_", "another test runs this backend"),
    ("python3 crates/hub/examples/backend", "another test runs this backend"),
    ("redis-server ", "another test runs this backend"),
    ("cc crates/capi/examples/echo_server.c", "the step capi compiles and runs it"),
    ("./echo_server", "the step capi compiles and runs it"),
    ("cd scheme", "the step scheme installs the egg"),
    ("go mod edit", "belongs in a project of the reader"),
    ("nats-server ", "conformance/hub runs a cluster"),
    ("crates/hub/examples/cluster.sh", "conformance/hub runs it"),
    ("wireloom connect --recv-only", "waits until it is interrupted"),
    ("wireloom serve --listen", "conformance/hub runs a cluster"),
    ("wireloom serve --tls", "the guide's next block runs, with ports that need no root"),
    ("curl ", "needs the key of the server before it; the hub's tests call these methods"),
    ("openssl ", "another test runs the whole block"),
    ("-subj ", "another test runs the whole block"),
    ("wireloom connect wss://localhost:8443", "another test runs the whole block"),
    ("wireloom inspect --follow", "does not end; the tests of the command follow a file"),
    ("wireloom listen", "waits for connections; the tests of the command make them"),
    ("wireloom serve", "the server of this test, which records its connections"),
];

/// The commands of the `sh` blocks, each a line, without comments.
fn shell_lines(page: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut is_shell = false;
    for line in page.lines() {
        if line.starts_with("```") {
            is_shell = line == "```sh";
        } else if is_shell {
            let command = line.split(" #").next().unwrap().trim().trim_end_matches([' ', '\\']);
            lines.push(command.to_owned());
        }
    }
    lines.retain(|line| !line.is_empty());
    lines
}

/// The command, changed to use the server of this test and to run for a second.
fn shortened(command: &str, address: &str) -> String {
    let mut words: Vec<String> = command.split(' ').map(str::to_owned).collect();
    for at in 1..words.len() {
        match words[at - 1].as_str() {
            "--duration" => words[at] = "1".into(),
            "--stage" => words[at] = format!("1s@{}", words[at].split_once('@').unwrap().1),
            "--connections" => words[at] = "20".into(),
            _ => {}
        }
    }
    let mut command = words.join(" ");
    for other in ["127.0.0.1:8080", "127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.1:8002", "127.0.0.1:9090"] {
        command = command.replace(other, address);
    }
    command = command
        .replace("wss://example.com/events --count 100000", &format!("ws://{address}/source --count 100"));
    if command.starts_with("wireloom load ")
        && !command.starts_with("wireloom load merge ")
        && !command.contains("--duration")
        && !command.contains("--stage")
    {
        command += " --duration 1";
    }
    if command.ends_with("/rooms/lobby") {
        command += " --send hello --count 1";
    }
    // The server of this test has no WebSocket at `/`.
    command = command.replace(&format!("{address}/ "), &format!("{address}/echo "));
    // A second is too short to compare servers, and other tests may need the machine.
    command = command.replace("--fail-if-slower 5%", "").replace("p99<250ms", "p99<60s");
    // The rest of the line needs a program that may be missing.
    command.split(" | jq ").next().unwrap().to_owned()
}

#[test]
fn commands_of_the_pages_run() {
    let folder = std::env::temp_dir().join(format!("wireloom-docs-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let capture = root().join("crates/inspect/tests/captures/http2.pcap");
    fs::copy(capture, folder.join("capture.pcap")).unwrap();
    fs::copy(root().join("conformance/hub/hub.toml"), folder.join("hub.toml")).unwrap();
    let mut serve = Command::new(WIRELOOM);
    serve.args(["serve", "--port", "0", "--record", "session.jsonl"]).current_dir(&folder);
    let (_server, address) = Server::start(&mut serve);

    let record =
        format!("{WIRELOOM} connect ws://{address}/echo --send hello --count 1 --record traffic.wlr");
    let recorded = Command::new("bash").args(["-c", &record]).current_dir(&folder).output().unwrap();
    assert!(recorded.status.success(), "{recorded:?}");

    let mut pages = files(&root().join("docs/src"), ".md");
    pages.extend(["README.md", "crates/cli/README.md"].map(|page| root().join(page)));
    let bin = Path::new(WIRELOOM).parent().unwrap().display();
    let (mut not_run, mut ran) = (HashSet::new(), 0);
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        let mut lines = shell_lines(&text);
        if !WITH_OUTPUT.iter().any(|other| page.ends_with(other)) {
            lines.extend(commands(&text).into_iter().map(|(command, _)| command));
        }
        for line in lines {
            if let Some((start, _)) = NOT_RUN.iter().find(|(start, _)| line.starts_with(start)) {
                not_run.insert(*start);
                continue;
            }
            let script = format!("PATH={bin}:$PATH; {}", shortened(&line, &address));
            let output = Command::new("bash")
                .args(["-c", &script])
                .current_dir(&folder)
                .stdin(Stdio::null())
                .output()
                .unwrap();
            assert!(output.status.success(), "{}: {line}\n{output:?}", page.display());
            ran += 1;
        }
    }
    fs::remove_dir_all(&folder).unwrap();
    assert!(ran > 15, "{ran}");
    let stale: Vec<_> = NOT_RUN.iter().filter(|(start, _)| !not_run.contains(start)).collect();
    assert!(stale.is_empty(), "no page shows {stale:?}");
}
