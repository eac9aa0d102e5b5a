//! `wireloom inspect`, and the recordings of `serve` and `connect`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::process::{DEADLINE, Server, WIRELOOM, connect, folder};

const SCHEMA: &str = include_str!("../../../../docs/src/guides/inspect.schema.json");

pub(crate) fn capture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../inspect/tests/captures").join(name);
    path.to_str().unwrap().to_owned()
}

fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("wireloom-inspect-{}-{name}", std::process::id()))
}

fn inspect(args: &[&str]) -> Output {
    Command::new(WIRELOOM).arg("inspect").args(args).env_remove("SSLKEYLOGFILE").output().unwrap()
}

/// The standard output of a run that succeeds.
fn printed(args: &[&str]) -> String {
    let output = inspect(args);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The exit code and the standard output for this input.
fn printed_for(input: &[u8], args: &[&str]) -> (Option<i32>, String) {
    let mut child = Command::new(WIRELOOM)
        .args(["inspect", "-"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn prints_a_line_per_frame() {
    let text = printed(&[&capture("plain.pcap")]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 11, "{text}");
    assert!(
        lines[0].ends_with(
            "> 1     tcp open                                    127.0.0.1:54102 to 127.0.0.1:18080"
        )
    );
    assert!(lines[3].ends_with("> 1     ws TEXT           FIN,MASK               5  hello"), "{}", lines[3]);
}

// RFC 3339 ends with the year 9999.
#[test]
fn times_after_the_year_9999_are_printed_without_a_date() {
    for started in ["253402300799", "253402300800", "1e15", "1e19"] {
        let recording = format!(
            "{{\"wireloom_recording\":1,\"started\":{started}}}\n\
             {{\"t\":0,\"c\":1,\"from\":\"client\",\"data\":\"R0VUIC8gSFRUUC8xLjENCkhvc3Q6IGENCg0K\"}}\n"
        );
        for option in ["--json", "--absolute"] {
            let (code, text) = printed_for(recording.as_bytes(), &[option]);
            assert_eq!(code, Some(0), "{started} {option}: {text}");
            assert!(text.contains("GET / HTTP/1.1"), "{started} {option}: {text}");
            assert_eq!(text.contains("9999-12-31T23:59:59"), started == "253402300799", "{text}");
        }
    }
}

#[test]
fn explains_fields_and_rules() {
    let text = printed(&[&capture("violations.pcap"), "--verbose", "--stream", "2"]);
    assert!(text.contains("! violation: reserved opcode 3 (RFC 6455 §5.2)"), "{text}");
    assert!(text.contains("opcode: 0x3: reserved for data frames  [RFC 6455 §5.2]"), "{text}");
    assert!(text.contains("masking key: 01 02 03 04  [RFC 6455 §5.3]"), "{text}");
}

#[test]
fn filters_entries() {
    let count = |args: &[&str]| {
        let mut all = vec!["--json"];
        all.extend(args);
        printed(&[&[&*capture("violations.pcap")], &all[..]].concat()).lines().count()
    };
    assert_eq!(count(&["--problems"]), 9);
    assert_eq!(count(&["--stream", "7", "--opcode", "ping", "--opcode", "0xa"]), 2);
    assert_eq!(count(&["--stream", "7", "--from", "server", "--opcode", "text"]), 1);
    assert_eq!(count(&["--type", "response"]), 10);
    assert_eq!(count(&["--text", "AFTER close"]), 1);
    assert_eq!(count(&["--text", "sec-websocket-key", "--stream", "1", "--stream", "2"]), 2);
    let frames = printed(&[&capture("http2.pcap"), "--stream", "1:1", "--json"]);
    assert!(frames.lines().count() > 8 && frames.lines().all(|line| line.contains("\"stream\":1,")));
}

/// Whether a value follows a schema, for the keywords that the schema of `--json` uses.
fn check(schema: &Value, value: &Value, path: &str) {
    let is_type = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64(),
        Some("number") => value.is_number(),
        None => true,
        Some(other) => panic!("{path}: the type {other} is not checked"),
    };
    assert!(is_type, "{path}: {value}");
    if let Some(values) = schema["enum"].as_array() {
        assert!(values.contains(value), "{path}: {value}");
    }
    for (keyword, number) in
        [("minimum", value.as_f64()), ("minItems", value.as_array().map(|items| items.len() as f64))]
    {
        if let (Some(bound), Some(number)) = (schema[keyword].as_f64(), number) {
            assert!(number >= bound, "{path}: {value}");
        }
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        assert!(value.get(name.as_str().unwrap()).is_some(), "{path}: {name} is missing: {value}");
    }
    for (name, member) in value.as_object().into_iter().flatten() {
        let schema =
            schema["properties"].get(name).unwrap_or_else(|| panic!("{path}: {name} is not in the schema"));
        check(schema, member, &format!("{path}.{name}"));
    }
    if let (Some(items), Some(values)) = (schema.get("items"), value.as_array()) {
        values.iter().for_each(|value| check(items, value, &format!("{path}[]")));
    }
}

#[test]
fn json_follows_the_schema() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    for name in [
        "plain.pcap",
        "deflate.pcap",
        "http2.pcap",
        "ipv6.pcap",
        "violations.pcap",
        "http2_violations.pcap",
        "tls13.pcapng",
        "tls12.pcap",
    ] {
        for line in printed(&[&capture(name), "--json", "--verbose"]).lines() {
            check(&schema, &serde_json::from_str(line).unwrap(), name);
        }
    }
}

#[test]
fn decrypts_with_a_key_log() {
    let key_log = capture("tls12.keys");
    let with = printed(&[&capture("tls12.pcap"), "--key-log", &key_log]);
    assert!(with.contains("ws TEXT           FIN,MASK               5  hello"), "{with}");
    assert!(with.contains("GET /echo HTTP/1.1"));
    let from_environment = Command::new(WIRELOOM)
        .args(["inspect", &capture("tls12.pcap")])
        .env("SSLKEYLOGFILE", &key_log)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(from_environment.stdout).unwrap(), with);
    let without = printed(&[&capture("tls12.pcap")]);
    assert!(without.contains("there are no secrets for this session"), "{without}");
}

#[test]
fn masks_secrets_unless_they_are_asked_for() {
    let masked =
        printed(&[&capture("tls12.pcap"), "--key-log", &capture("tls12.keys"), "--full", "--verbose"]);
    assert!(masked.contains("Authorization: *************") && !masked.contains("Bearer"), "{masked}");
    let shown =
        printed(&[&capture("tls12.pcap"), "--key-log", &capture("tls12.keys"), "--full", "--show-secrets"]);
    assert!(shown.contains("Authorization: Bearer secret"));
}

#[test]
fn masks_secrets_in_heads_that_cannot_be_read() {
    let hexdump = |bytes: &[u8]| {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("> {hex}\n").into_bytes()
    };
    // A field block whose index is not in the table, and one that is cut off.
    let block = b"\xffsecret-12345";
    let headers = [&[0, 0, block.len() as u8, 1, 4, 0, 0, 0, 1][..], block].concat();
    let http2 = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"[..], &headers].concat();
    let zero = [&headers[..5], &[0, 0, 0, 0], block].concat();
    let stream_zero = [&http2[..33], &zero].concat();
    for bytes in [
        &b"GET / HTTP/1.1\r\nCookie: secret-12345"[..],
        b"GET / HTTP/1.1\r\nCookie: secret-12345\r\nnot a field\r\n\r\n",
        &http2,
        &http2[..http2.len() - 1],
        &stream_zero,
    ] {
        let (_, masked) = printed_for(&hexdump(bytes), &["--full", "--verbose"]);
        assert!(!masked.is_empty() && !masked.contains("secret"), "{masked}");
        let (_, json) = printed_for(&hexdump(bytes), &["--json"]);
        let hidden = !json.contains("secret") && !json.contains("c2VjcmV0");
        assert!(hidden && !json.contains("736563726574"), "{json}");
    }
}

#[test]
fn a_byte_order_mark_is_passed_over() {
    for input in ["8185 37fa 213d 7f9f 4d51 58\n", "> 8185 37fa 213d 7f9f 4d51 58\n"] {
        let (code, text) = printed_for(format!("\u{feff}{input}").as_bytes(), &[]);
        assert!(code == Some(0) && text.ends_with("5  Hello\n"), "{text}");
    }
    let recording = "{\"wireloom_recording\":1,\"started\":1}\n{\"t\":0,\"c\":1,\"from\":\"client\",\"data\":\"gYU3+iE9f59NUVg=\"}\n";
    let har = r#"{"log":{"entries":[{"startedDateTime":"2027-01-15T08:00:00.000Z","request":{"method":"GET","url":"http://a/","headers":[]}}]}}"#;
    for input in [recording, har] {
        let (_, without) = printed_for(input.as_bytes(), &[]);
        let (code, with) = printed_for(format!("\u{feff}{input}").as_bytes(), &[]);
        assert_eq!((code, &with), (Some(0), &without));
        assert!(!with.is_empty());
    }
}

#[test]
fn following_ends_when_the_file_is_truncated() {
    let path = temporary("truncated.pcap");
    std::fs::write(&path, std::fs::read(capture("plain.pcap")).unwrap()).unwrap();
    let child = Command::new(WIRELOOM)
        .args(["inspect", "--follow", path.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until_read(child.id(), &path);
    std::fs::File::create(&path).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(1) && errors.contains("was truncated while it was followed"),
        "{errors}"
    );
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn sums_up_streams() {
    let table = printed(&[&capture("http2.pcap"), "--stats"]);
    assert!(table.contains("1:1") && table.contains("2 ws TEXT"), "{table}");
    let lines = printed(&[&capture("http2.pcap"), "--stats", "--json"]);
    let streams: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let stream = streams.iter().find(|value| value["stream"] == 1).unwrap();
    assert_eq!((&stream["client"]["messages"], &stream["violations"]), (&Value::from(1), &Value::from(0)));
}

#[test]
fn a_truncated_capture_shows_what_was_readable_and_where_it_broke() {
    let bytes = std::fs::read(capture("plain.pcap")).unwrap();
    let path = temporary("cut-off.pcap");
    std::fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
    let output = inspect(&[path.to_str().unwrap()]);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&output.stdout).contains("wörld"));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("the input is cut off: what begins at byte "), "{error}");
}

#[test]
fn neutralizes_control_characters() {
    // RFC 6455 §5.2: an unmasked text frame with a terminal's escape sequences.
    let frame = b"\x81\x0d\x1b[2J\xc2\x9b31m\r\nevil";
    let frame = [&[0x81, frame.len() as u8 - 2], &frame[2..]].concat();
    for args in
        [&["--sender", "server"][..], &["--sender", "server", "--full"], &["--sender", "server", "--json"]]
    {
        let (code, text) = printed_for(&frame, args);
        assert_eq!(code, Some(0));
        assert!(text.contains("evil"), "{text}");
        assert!(!text.chars().any(|char| char.is_control() && char != '\n'), "{text:?}");
    }
}

#[test]
fn reads_hexdumps_and_har() {
    let (code, text) = printed_for(b"> 8185 37fa 213d 7f9f 4d51 58\n< 81 05 48 65 6c 6c 6f\n", &[]);
    assert_eq!((code, text.lines().count()), (Some(0), 2), "{text}");
    assert!(text.lines().all(|line| line.ends_with("5  Hello")), "{text}");
    let har = r#"{"log":{"version":"1.2","entries":[{"startedDateTime":"2027-01-15T08:00:00.000Z","time":5,
        "request":{"method":"GET","url":"wss://example.com/?token=abcdefgh","httpVersion":"HTTP/1.1","headers":[]},
        "response":{"status":101,"statusText":"Switching Protocols","httpVersion":"HTTP/1.1","headers":[]},
        "_webSocketMessages":[{"type":"send","time":1800000001.5,"opcode":1,"data":"hi"},
        {"type":"receive","time":1800000002,"opcode":2,"data":"AAEC"}]}]}}"#;
    let (code, text) = printed_for(har.as_bytes(), &[]);
    assert_eq!(code, Some(0));
    assert!(text.contains("GET wss://example.com/?token=******** HTTP/1.1"), "{text}");
    assert!(text.contains("1.500000 > 1     ws TEXT                                  2  hi"), "{text}");
    assert!(text.contains("00 01 02"), "{text}");
    // Cut off within the second message.
    let cut = &har[..har.find("AAEC").unwrap()];
    let (code, text) = printed_for(cut.as_bytes(), &[]);
    assert_eq!((code, text.as_str()), (Some(5), ""), "an entry is read as a whole");
}

#[test]
fn follows_a_file_that_grows() {
    let bytes = std::fs::read(capture("plain.pcap")).unwrap();
    let path = temporary("growing.pcap");
    let (first, rest) = bytes.split_at(900);
    std::fs::write(&path, first).unwrap();
    let mut child = Command::new(WIRELOOM)
        .args(["inspect", "--follow", path.to_str().unwrap()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("tcp open"));
    std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(rest).unwrap();
    assert!(lines.any(|line| line.unwrap().contains("wörld")));
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_file(&path).unwrap();
}

/// Waits until a process has read all of a file, and waits for more.
#[cfg(unix)]
pub(crate) fn wait_until_read(process: u32, path: &Path) {
    let begin = std::time::Instant::now();
    let len = std::fs::metadata(path).unwrap().len();
    // Its output does not show it, because the table is printed at the end.
    let has_read = || {
        let folder = format!("/proc/{process}");
        std::fs::read_dir(format!("{folder}/fd")).into_iter().flatten().flatten().any(|entry| {
            let is_file = std::fs::read_link(entry.path()).is_ok_and(|target| target == *path);
            let name = entry.file_name().into_string().unwrap();
            let info = std::fs::read_to_string(format!("{folder}/fdinfo/{name}")).unwrap_or_default();
            is_file && info.lines().next().is_some_and(|line| line == format!("pos:\t{len}"))
        })
    };
    if cfg!(not(target_os = "linux")) {
        return std::thread::sleep(std::time::Duration::from_secs(2));
    }
    while !has_read() {
        assert!(begin.elapsed() < DEADLINE, "the file is not read");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[cfg(unix)]
#[test]
fn following_ends_at_a_signal_with_everything_that_was_read() {
    use rustix::process::{Pid, Signal, kill_process};

    let path = temporary("followed.pcap");
    let bytes = std::fs::read(capture("plain.pcap")).unwrap();
    std::fs::write(&path, &bytes).unwrap();
    for signal in [Signal::INT, Signal::TERM] {
        let mut child = Command::new(WIRELOOM)
            .args(["inspect", "--follow", "--stats", path.to_str().unwrap()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        wait_until_read(child.id(), &path);
        kill_process(Pid::from_child(&child), signal).unwrap();
        let mut table = String::new();
        child.stdout.take().unwrap().read_to_string(&mut table).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{table}");
        assert_eq!(table, printed(&["--stats", path.to_str().unwrap()]));
    }
    std::fs::remove_file(&path).unwrap();
}

// Another program has the pipe open and writes nothing.
#[cfg(unix)]
#[test]
fn following_a_silent_pipe_ends_at_a_signal() {
    use rustix::process::{Pid, Signal, kill_process};

    let folder = folder("pipe");
    let path = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let mut child = Command::new(WIRELOOM)
        .args(["inspect", "--follow", path.to_str().unwrap()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    pipe.write_all(&std::fs::read(capture("plain.pcap")).unwrap()).unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("tcp open"));
    let (pid, (ended, has_ended)) = (Pid::from_child(&child), std::sync::mpsc::channel());
    kill_process(pid, Signal::TERM).unwrap();
    std::thread::spawn(move || ended.send(child.wait().unwrap()));
    let status = has_ended.recv_timeout(DEADLINE).unwrap_or_else(|_| {
        kill_process(pid, Signal::KILL).unwrap();
        panic!("the signal ends it");
    });
    assert_eq!(status.code(), Some(0));
    drop(pipe);
}

#[test]
fn errors_have_a_line_and_a_code() {
    let output = inspect(&["/nonexistent.pcap"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1);
    assert_eq!(inspect(&[&capture("plain.pcap"), "--stream", "x"]).status.code(), Some(2));
    assert_eq!(inspect(&[&capture("plain.pcap"), "--opcode", "txt"]).status.code(), Some(2));
    assert_eq!(inspect(&[&capture("plain.pcap"), "--stats", "--full"]).status.code(), Some(2));
    assert_eq!(inspect(&["-", "--follow"]).status.code(), Some(2));
    assert_eq!(inspect(&[&capture("plain.pcap"), "--opcode", "16"]).status.code(), Some(2));
    let none = inspect(&[&capture("plain.pcap"), "--type", "HEADRS"]);
    assert!(String::from_utf8_lossy(&none.stderr).ends_with("no entry matches the filters\n"), "{none:?}");
    let empty = inspect(&["/dev/null"]);
    assert!(String::from_utf8_lossy(&empty.stderr).ends_with("there is nothing to show\n"), "{empty:?}");
    assert_eq!(inspect(&[&capture("plain.pcap"), "--key-log", "/nonexistent"]).status.code(), Some(2));
    let long = temporary("long.keys");
    std::fs::File::create(&long).unwrap().set_len((64 << 20) + 1).unwrap();
    let cut = inspect(&[&capture("plain.pcap"), "--key-log", long.to_str().unwrap()]);
    assert_eq!(cut.status.code(), Some(2), "{cut:?}");
    // A browser appends to the file of the variable forever.
    let ignored = Command::new(WIRELOOM)
        .args(["inspect", &capture("plain.pcap")])
        .env("SSLKEYLOGFILE", &long)
        .output()
        .unwrap();
    assert!(ignored.status.success() && !ignored.stdout.is_empty(), "{ignored:?}");
    let note = String::from_utf8_lossy(&ignored.stderr).into_owned();
    assert!(note.contains("SSLKEYLOGFILE") && note.contains("is not used"), "{note}");
    std::fs::remove_file(&long).unwrap();
    for unknown in
        [&b"\x1f\x8b\x08\x00"[..], b"{\"name\": \"not an archive\"}", b"hello, world\n", b"\x7fELF\x02\x01"]
    {
        assert_eq!(printed_for(unknown, &[]).0, Some(5), "{unknown:?}");
    }
}

#[tokio::test]
async fn serve_and_connect_record() {
    for http2 in [false, true] {
        let (by_server, by_client) =
            (temporary(&format!("server-{http2}")), temporary(&format!("client-{http2}")));
        let mut server = Server::start(&["--record", by_server.to_str().unwrap()]).await;
        let url = server.url("/echo?token=abcdefgh");
        let mut args = vec!["-q", &*url, "-H", "Authorization: Bearer ijklmnop", "--count", "1"];
        args.extend(["--record", by_client.to_str().unwrap()]);
        args.extend(http2.then_some("--http2"));
        let (code, _, errors) = connect(&args, "recorded\n").await;
        assert_eq!(code, 0, "{errors}");
        server.kill().await;
        for path in [by_server, by_client] {
            let name = path.to_str().unwrap();
            let text = printed(&[name, "--show-secrets", "--full", "--verbose"]);
            let messages =
                text.lines().filter(|line| line.contains("ws TEXT") && line.contains("recorded")).count();
            assert_eq!(messages, 2, "{text}");
            assert!(text.contains("token=********") && text.contains("*****"), "{text}");
            assert!(!text.contains("violation"), "{text}");
            let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
            assert_eq!(mode & 0o777, 0o600, "for this user alone");
            let mut recording = String::new();
            std::fs::File::open(&path).unwrap().read_to_string(&mut recording).unwrap();
            assert!(recording.starts_with("{\"wireloom_recording\":1,\"started\":"));
            assert!(!text.contains("abcdefgh") && !text.contains("ijklmnop"), "{text}");
            std::fs::remove_file(&path).unwrap();
        }
    }
}

/// A capture of one connection over IPv4, of what each side has sent in turn.
fn pcap(segments: &[(bool, Vec<u8>)]) -> Vec<u8> {
    // The classic format; link type 101 is IP without a link layer.
    let mut out = Vec::new();
    for word in [0xA1B2_C3D4_u32, 0x0004_0002, 0, 0, 1 << 18, 101] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    let mut next = [1_u32, 1];
    let parts =
        segments.iter().flat_map(|(side, bytes)| bytes.chunks(32 << 10).map(move |part| (*side, part)));
    for (number, (is_client, part)) in parts.enumerate() {
        let (from, to) = (usize::from(!is_client), usize::from(is_client));
        let ports: [u16; 2] = [50_000, 443];
        let mut tcp = Vec::new();
        tcp.extend_from_slice(&ports[from].to_be_bytes());
        tcp.extend_from_slice(&ports[to].to_be_bytes());
        tcp.extend_from_slice(&next[from].to_be_bytes());
        tcp.extend_from_slice(&next[to].to_be_bytes());
        // Five words of header; PSH and ACK; window, checksum and pointer, which are not checked.
        tcp.extend_from_slice(&[0x50, 0x18, 0xFF, 0xFF, 0, 0, 0, 0]);
        tcp.extend_from_slice(part);
        next[from] += part.len() as u32;
        let len = (20 + tcp.len()) as u16;
        let mut packet = vec![0x45, 0];
        packet.extend_from_slice(&len.to_be_bytes());
        packet.extend_from_slice(&[
            0,
            0,
            0x40,
            0,
            64,
            6,
            0,
            0,
            127,
            0,
            0,
            1 + from as u8,
            127,
            0,
            0,
            1 + to as u8,
        ]);
        packet.extend_from_slice(&tcp);
        for word in [1_800_000_000, number as u32, packet.len() as u32, packet.len() as u32] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&packet);
    }
    out
}

/// Passes one connection on to a server, and returns what each side has sent.
async fn relay(server: String) -> (String, tokio::task::JoinHandle<Vec<(bool, Vec<u8>)>>) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let relayed = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut server = tokio::net::TcpStream::connect(server).await.unwrap();
        let mut segments = Vec::new();
        let (mut from_client, mut from_server) = (vec![0; 16 << 10], vec![0; 16 << 10]);
        loop {
            let (is_client, bytes) = tokio::select! {
                read = client.read(&mut from_client) => (true, &from_client[..read.unwrap_or(0)]),
                read = server.read(&mut from_server) => (false, &from_server[..read.unwrap_or(0)]),
            };
            if bytes.is_empty() {
                return segments;
            }
            segments.push((is_client, bytes.to_vec()));
            let written =
                if is_client { server.write_all(bytes).await } else { client.write_all(bytes).await };
            if written.is_err() {
                return segments;
            }
        }
    });
    (address, relayed)
}

// Either side's secrets are enough.
#[tokio::test]
async fn decrypts_own_traffic_with_sslkeylogfile() {
    let (keys, capture) = (temporary("own.keys"), temporary("own.pcap"));
    for logs_server in [false, true] {
        let _ = std::fs::remove_file(&keys);
        let logged = ("SSLKEYLOGFILE", keys.to_str().unwrap());
        let server = Server::start_with_env(&["--tls"], logs_server.then_some(logged)).await;
        let (address, relayed) = relay(server.addresses[1].clone()).await;
        let mut client = crate::process::connect_command(&[&format!("wss://{address}/echo"), "--insecure"]);
        client.args(["--send", "over our own TLS", "--count", "1"]);
        if !logs_server {
            client.env(logged.0, logged.1);
        }
        let (code, _, errors) = crate::process::finish(client.spawn().unwrap()).await;
        assert_eq!(code, 0, "{errors}");
        let mode = std::os::unix::fs::PermissionsExt::mode(&keys.metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        let segments = tokio::time::timeout(DEADLINE, relayed).await.unwrap().unwrap();
        std::fs::write(&capture, pcap(&segments)).unwrap();
        let text = printed(&[capture.to_str().unwrap(), "--key-log", keys.to_str().unwrap()]);
        assert!(text.contains("GET /echo HTTP/1.1"), "{text}");
        let messages =
            text.lines().filter(|line| line.contains("ws TEXT") && line.contains("over our own TLS"));
        assert_eq!(messages.count(), 2, "{text}");
        let without = printed(&[capture.to_str().unwrap()]);
        assert!(without.contains("there are no secrets for this session"), "{without}");
    }
    // A file that cannot be written is an error, not silence.
    let mut client = crate::process::connect_command(&["wss://127.0.0.1:1/"]);
    let (code, _, errors) =
        crate::process::finish(client.env("SSLKEYLOGFILE", "/nowhere/keys").spawn().unwrap()).await;
    assert!(code == 2 && errors.contains("SSLKEYLOGFILE /nowhere/keys: No such file"), "{errors}");
    std::fs::remove_file(&keys).unwrap();
    std::fs::remove_file(&capture).unwrap();
}
