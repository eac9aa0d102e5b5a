//! `wireloom connect` on a terminal: editing, history, and messages above the line that is being edited.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::LocalModes;

use crate::process::{DEADLINE, Server, WIRELOOM, folder};

/// `wireloom connect` on a pseudoterminal, with its keyboard and screen.
struct Terminal {
    child: Child,
    keys: File,
    shown: mpsc::Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    /// `wireloom connect`.
    fn start(url: &str, home: &Path) -> Self {
        Self::run(&["connect", url], home)
    }

    fn run(args: &[&str], home: &Path) -> Self {
        let keys: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let name = ptsname(&keys, Vec::new()).unwrap();
        // NOCTTY: if the tests lead a session without a terminal, this one must not become theirs, because they would
        // be killed when it closes.
        let flags = OpenptFlags::NOCTTY.bits().cast_signed();
        let mut options = File::options();
        let mut terminal =
            || options.read(true).write(true).custom_flags(flags).open(name.to_str().unwrap()).unwrap();
        let child = Command::new(WIRELOOM)
            .args(args)
            .env("TERM", "xterm")
            .env("XDG_STATE_HOME", home)
            .stdin(terminal())
            .stdout(terminal())
            .stderr(terminal())
            .spawn()
            .unwrap();
        let keys = File::from(keys);
        let mut screen = keys.try_clone().unwrap();
        let (show, shown) = mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = screen.read(&mut bytes) {
                if show.send(bytes[..len].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, keys, shown, seen: String::new() }
    }

    /// Types keys, once the line editor reads them.
    fn send_keys(&mut self, keys: &str) {
        self.wait_for_editor();
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until this message is printed after the previously awaited text.
    fn wait_for_message(&mut self, message: &str) {
        self.wait_for(&[&format!("\x1b[K{message}\r\n"), &format!("\n{message}\r\n")]);
    }

    /// Waits until the line editor reads keys: before that, the terminal itself processes some of them.
    fn wait_for_editor(&self) {
        let deadline = Instant::now() + DEADLINE;
        while rustix::termios::tcgetattr(&self.keys).unwrap().local_modes.contains(LocalModes::ICANON) {
            assert!(Instant::now() < deadline, "the line editor does not start");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn wait_for(&mut self, texts: &[&str]) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(end) = texts.iter().find_map(|text| Some(self.seen.find(text)? + text.len())) {
                self.seen.drain(..end);
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.shown.recv_timeout(left) {
                Ok(bytes) => self.seen += &String::from_utf8_lossy(&bytes),
                Err(_) => panic!("{texts:?} is not in {:?}", self.seen),
            }
        }
    }

    /// The rest of the line that begins with this.
    fn wait_for_note(&mut self, begin: &str) -> String {
        self.wait_for(&[begin]);
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some((line, _)) = self.seen.split_once('\r') {
                return line.to_owned();
            }
            let bytes = self.shown.recv_timeout(deadline.saturating_duration_since(Instant::now()));
            self.seen += &String::from_utf8_lossy(&bytes.expect("the line ends"));
        }
    }

    fn exit_code(mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap()
    }

    /// Types Ctrl-C until the command ends: the terminal drops it while no line is edited. Returns the exit code.
    fn interrupt(mut self) -> i32 {
        let deadline = Instant::now() + DEADLINE;
        loop {
            self.keys.write_all(b"\x03").unwrap();
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap();
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

// A peer must not control the terminal.
#[tokio::test]
async fn control_characters_of_a_peer_are_escaped() {
    const MESSAGE: &str = "\x1b]0;owned\x07\u{9b}häß";
    const SHOWN: &str = "\\u{1b}]0;owned\\u{7}\\u{9b}häß";
    let home = folder("escaped");
    for framing in ["lines", "bytes", "prefixed"] {
        let mut terminal = Terminal::run(&["listen", "127.0.0.1:0", "--framing", framing], &home);
        let url = terminal.wait_for_note("* listening on ");
        let mut socket = wireloom::connect(&url).await.unwrap();
        socket.send(MESSAGE).await.unwrap();
        terminal.wait_for(&[SHOWN]);
        socket.close(wireloom::CloseCode::NORMAL, "").await.unwrap();
        assert_eq!(terminal.exit_code(), 0);
    }
    let server = Server::start(&[]).await;
    let url = server.url("/echo");
    for format in ["lines", "raw", "prefixed"] {
        let mut terminal =
            Terminal::run(&["connect", &url, "--send", MESSAGE, "--count", "1", "--out", format], &home);
        terminal.wait_for(&[SHOWN]);
        assert_eq!(terminal.exit_code(), 0);
    }
}

#[tokio::test]
async fn lines_are_edited_and_kept() {
    let server = Server::start(&[]).await;
    let url = server.url("/echo");
    let home = folder("edited");
    let mut terminal = Terminal::start(&url, &home);
    // Backspace, then the rest.
    terminal.send_keys("hellx\x7fo\r");
    terminal.wait_for_message("hello");
    // Escape sequences are printed escaped.
    terminal.send_keys("a\x16\x1b[2Jb\r");
    terminal.wait_for_message("a\\u{1b}[2Jb");
    terminal.send_keys(" not kept\r");
    terminal.wait_for_message(" not kept");
    // The line before the one that was obeyed, and the one before that.
    terminal.send_keys("\x1b[A\x1b[A\r");
    terminal.wait_for_message("hello");
    terminal.send_keys("\x04");
    assert_eq!(terminal.exit_code(), 0);
    let history = std::fs::read_to_string(home.join("wireloom/history")).unwrap();
    assert!(history.contains("hello") && !history.contains("not kept"), "{history}");

    // A later run.
    let mut terminal = Terminal::start(&url, &home);
    terminal.send_keys("\x1b[A\r");
    terminal.wait_for_message("hello");
    // Ctrl-C.
    terminal.send_keys("\x03");
    assert_eq!(terminal.exit_code(), 0);
}

#[tokio::test]
async fn the_terminal_is_restored_when_the_peer_closes() {
    let server = Server::start(&[]).await;
    let url = server.url("/echo");
    let home = folder("closed");
    let mut terminal = Terminal::start(&url, &home);
    terminal.send_keys("unfinished");
    terminal.wait_for(&["unfinished"]);
    server.signal("-TERM");
    let status = terminal.child.wait().unwrap();
    assert_eq!(status.code(), Some(0));
    let modes = rustix::termios::tcgetattr(&terminal.keys).unwrap().local_modes;
    assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO));
}

// The lines exceed the window of the stream and the send queue.
#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_it_while_a_message_waits_for_a_peer_that_does_not_read() {
    let mut config = wireloom::ServerConfig::default();
    config.http2.settings.initial_window_size = 1_000;
    config.http2.stream_window_max = 1_000;
    let deaf = wireloom::Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let url = format!("ws://{}/", deaf.local_addr().unwrap());
    tokio::spawn(deaf.serve(|request: wireloom::Request| async move {
        match request.websocket() {
            Ok(upgrade) => upgrade.on_open(|socket| async move {
                let _unread = socket;
                std::future::pending::<()>().await;
            }),
            Err(refusal) => refusal,
        }
    }));
    for args in [&["connect", "--http2", &*url][..], &["connect", "--http2", "--reconnect", &url]] {
        let home = folder("deaf");
        let mut terminal = Terminal::run(args, &home);
        for _ in 0..60 {
            terminal.send_keys(&("x".repeat(4_000) + "\r"));
        }
        assert_eq!(terminal.interrupt(), 0, "{args:?}");
    }
}

/// The text on the line of the cursor: behind the last line break, without escape sequences.
fn last_line(output: &str) -> String {
    let line = output.rsplit('\n').next().unwrap_or_default();
    let mut shown = String::new();
    let mut chars = line.chars();
    while let Some(char) = chars.next() {
        match char {
            '\x1b' => drop(chars.by_ref().find(|char| char.is_ascii_alphabetic())),
            '\r' => shown.clear(),
            char => shown.push(char),
        }
    }
    shown
}

#[tokio::test]
async fn ctrl_c_leaves_a_clean_terminal() {
    let server = Server::start(&[]).await;
    let url = server.url("/echo");
    let home = folder("interrupted");
    let mut terminal = Terminal::start(&url, &home);
    terminal.send_keys("unfinished\x03");
    let status = terminal.child.wait().unwrap();
    assert_eq!(status.code(), Some(0));
    let modes = rustix::termios::tcgetattr(&terminal.keys).unwrap().local_modes;
    assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO));
    while let Ok(bytes) = terminal.shown.recv_timeout(Duration::from_secs(2)) {
        terminal.seen += &String::from_utf8_lossy(&bytes);
    }
    // The shell's next prompt begins on an empty line, and no prompt of this command remains above it.
    assert_eq!(last_line(&terminal.seen), "", "{:?}", terminal.seen);
    let (_, after) = terminal.seen.rsplit_once("unfinished").unwrap();
    assert!(!after.contains("> "), "{after:?}");
}

#[tokio::test]
async fn commands_ping_send_binary_and_close() {
    let server = Server::start(&[]).await;
    let url = server.url("/echo");
    let home = folder("commands");
    let mut terminal = Terminal::start(&url, &home);
    terminal.wait_for(&[&format!(
        "* {url} is open over HTTP/1.1. Ctrl-D leaves; /ping, /close and /binary are commands"
    )]);
    terminal.send_keys("/ping\r");
    terminal.wait_for(&["< pong, 0 bytes, round trip "]);
    terminal.send_keys("/binary 00ff\r");
    terminal.wait_for_message("(2 bytes) 00 ff");
    terminal.send_keys("//text\r");
    terminal.wait_for_message("/text");
    terminal.send_keys("/nonsense\r");
    terminal.wait_for(&["commands are /ping, /close and /binary"]);
    terminal.send_keys("/close 4000 enough\r");
    terminal.wait_for(&["* closed by this end with 4000: enough"]);
    assert_eq!(terminal.exit_code(), 0);
}

// Input that is piped into --reconnect may end before the messages do. A person who ends the input leaves.
#[tokio::test(flavor = "multi_thread")]
async fn a_person_sees_that_reconnecting_is_open_and_leaves() {
    let (ends, mut ended) = tokio::sync::mpsc::channel(1);
    let handle = move |request: wireloom::Request| {
        let ends = ends.clone();
        async move {
            request.websocket().map(|upgrade| {
                upgrade.on_open(move |mut socket| async move {
                    while let Ok(Some(message)) = socket.recv_owned().await {
                        socket.send(message).await.unwrap();
                    }
                    ends.send(format!("{:?}", socket.end())).await.unwrap();
                })
            })
        }
    };
    let server = wireloom::Server::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", server.local_addr().unwrap());
    tokio::spawn(server.serve(handle));
    let home = folder("reconnecting");
    for (keys, code, reason) in [("\x04", 1000, ""), ("/close 4000 bye\r", 4000, "bye")] {
        let mut terminal = Terminal::run(&["connect", "--reconnect", &url], &home);
        terminal.wait_for(&[&format!("* {url} is open. Ctrl-D leaves; /close and /binary are commands")]);
        terminal.send_keys("hello\r");
        terminal.wait_for_message("hello");
        terminal.send_keys(keys);
        let end = tokio::time::timeout(DEADLINE, ended.recv()).await.expect("it leaves").unwrap();
        assert!(end.contains(&code.to_string()) && end.contains(&format!("{reason:?}")), "{end}");
        assert_eq!(terminal.exit_code(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leaving_before_the_first_connection_is_no_interruption() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", silent.local_addr().unwrap());
    let home = folder("leaving_before");
    for (keys, how, code) in [("\x04", "closed", 1), ("/close\r", "closed", 1), ("\x03", "interrupted", 130)]
    {
        let mut terminal = Terminal::run(&["connect", "--reconnect", &url], &home);
        let held = tokio::time::timeout(DEADLINE, silent.accept()).await.unwrap().unwrap();
        terminal.send_keys(keys);
        terminal.wait_for(&[&format!("wireloom: {how} before the connection was open")]);
        assert_eq!(terminal.exit_code(), code);
        drop(held);
    }
}
