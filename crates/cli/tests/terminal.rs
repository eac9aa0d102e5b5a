//! `wireloom connect` on a terminal: editing, history, and messages above the line that is being edited.

#![allow(clippy::unwrap_used)]
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::LocalModes;

/// Longer than any of this takes.
const DEADLINE: Duration = Duration::from_secs(30);

const WIRELOOM: &str = env!("CARGO_BIN_EXE_wireloom");

/// Kills a server when the test is over, however it ends.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve() -> (Served, String) {
    let mut child = Command::new(WIRELOOM)
        .args(["serve", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let (_, address) = line.trim_end().split_once("://").unwrap();
    (Served(child), format!("ws://{address}echo"))
}

/// Somebody at a terminal.
struct Person {
    child: Child,
    keys: File,
    shown: mpsc::Receiver<Vec<u8>>,
    seen: String,
}

impl Person {
    fn sits_down(url: &str, home: &Path) -> Self {
        let keys: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let name = ptsname(&keys, Vec::new()).unwrap();
        let terminal = || File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let child = Command::new(WIRELOOM)
            .args(["connect", url])
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

    /// Types, once there is a line to edit.
    fn types(&mut self, keys: &str) {
        self.is_asked();
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until this message has been shown, after what was seen before: above the line that is being edited, or
    /// before there is one again.
    fn sees(&mut self, message: &str) {
        self.waits_for(&[&format!("\x1b[K{message}\r\n"), &format!("\n{message}\r\n")]);
    }

    /// Waits until keys reach the editor: before that the terminal itself would heed some of them.
    fn is_asked(&self) {
        let deadline = Instant::now() + DEADLINE;
        while rustix::termios::tcgetattr(&self.keys).unwrap().local_modes.contains(LocalModes::ICANON) {
            assert!(Instant::now() < deadline, "nothing is asked");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn waits_for(&mut self, texts: &[&str]) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(end) = texts.iter().find_map(|text| Some(self.seen.find(text)? + text.len())) {
                self.seen.drain(..end);
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.shown.recv_timeout(left) {
                Ok(bytes) => self.seen += &String::from_utf8_lossy(&bytes),
                Err(_) => panic!("never saw {texts:?} in {:?}", self.seen),
            }
        }
    }

    fn leaves(mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap()
    }
}

fn home(name: &str) -> PathBuf {
    let home = std::env::temp_dir().join(format!("wireloom-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&home).unwrap();
    home
}

#[test]
fn lines_are_edited_and_kept() {
    let (_served, url) = serve();
    let home = home("edited");
    let mut person = Person::sits_down(&url, &home);
    // Backspace, then what is missing.
    person.types("hellx\x7fo\r");
    person.sees("hello");
    // What steers a terminal is shown, not obeyed.
    person.types("a\x16\x1b[2Jb\r");
    person.sees("a\\u{1b}[2Jb");
    person.types(" not kept\r");
    person.sees(" not kept");
    // The line before the one that was obeyed, and the one before that.
    person.types("\x1b[A\x1b[A\r");
    person.sees("hello");
    person.types("\x04");
    assert_eq!(person.leaves(), 0);
    let history = std::fs::read_to_string(home.join("wireloom/history")).unwrap();
    assert!(history.contains("hello") && !history.contains("not kept"), "{history}");

    // Another day.
    let mut person = Person::sits_down(&url, &home);
    person.types("\x1b[A\r");
    person.sees("hello");
    // Ctrl-C.
    person.types("\x03");
    assert_eq!(person.leaves(), 0);
    std::fs::remove_dir_all(home).unwrap();
}

#[test]
fn the_terminal_is_given_back_when_the_peer_closes() {
    let (served, url) = serve();
    let home = home("closed");
    let mut person = Person::sits_down(&url, &home);
    person.types("unfinished");
    person.waits_for(&["unfinished"]);
    let pid = rustix::process::Pid::from_child(&served.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = person.child.wait().unwrap();
    assert_eq!(status.code(), Some(0));
    let modes = rustix::termios::tcgetattr(&person.keys).unwrap().local_modes;
    assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO));
    std::fs::remove_dir_all(home).unwrap();
}

/// What is left on the line of the cursor: the text behind the last line break, without escape sequences.
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

#[test]
fn ctrl_c_leaves_a_clean_terminal() {
    let (_served, url) = serve();
    let home = home("interrupted");
    let mut person = Person::sits_down(&url, &home);
    person.types("unfinished\x03");
    let status = person.child.wait().unwrap();
    assert_eq!(status.code(), Some(0));
    let modes = rustix::termios::tcgetattr(&person.keys).unwrap().local_modes;
    assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO));
    while let Ok(bytes) = person.shown.recv_timeout(Duration::from_millis(300)) {
        person.seen += &String::from_utf8_lossy(&bytes);
    }
    // The next prompt of the shell begins in the first column of an empty line, and no prompt of ours is above it.
    assert_eq!(last_line(&person.seen), "", "{:?}", person.seen);
    let (_, after) = person.seen.rsplit_once("unfinished").unwrap();
    assert!(!after.contains("> "), "{after:?}");
    std::fs::remove_dir_all(home).unwrap();
}

#[test]
fn commands_ping_send_binary_and_close() {
    let (_served, url) = serve();
    let home = home("commands");
    let mut person = Person::sits_down(&url, &home);
    person.types("/ping\r");
    person.waits_for(&["< pong, 0 bytes, round trip "]);
    person.types("/binary 00ff\r");
    person.sees("(2 bytes) 00 ff");
    person.types("//text\r");
    person.sees("/text");
    person.types("/nonsense\r");
    person.waits_for(&["commands are /ping, /close and /binary"]);
    person.types("/close 4000 enough\r");
    assert_eq!(person.leaves(), 0);
    std::fs::remove_dir_all(home).unwrap();
}
