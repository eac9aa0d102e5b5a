//! Commands whose output is not read: they do their work, and signals end them.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::process::{DEADLINE, Server, WIRELOOM, end_by, finish, folder, signal};

/// An output that accepts no byte more while its other end is open.
fn full() -> (Stdio, UnixStream) {
    let (output, other_end) = UnixStream::pair().unwrap();
    output.set_nonblocking(true).unwrap();
    for len in [4_096, 1] {
        while (&output).write(&vec![b'x'; len]).is_ok() {}
    }
    output.set_nonblocking(false).unwrap();
    (OwnedFd::from(output).into(), other_end)
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(WIRELOOM);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    command
}

async fn connected(path: &std::path::Path) -> tokio::net::UnixStream {
    let connected = async {
        loop {
            match tokio::net::UnixStream::connect(path).await {
                Ok(stream) => return stream,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    timeout(DEADLINE, connected).await.expect("it listens")
}

async fn exit_code(child: &mut Child) -> Option<i32> {
    timeout(DEADLINE, child.wait()).await.expect("it ends").unwrap().code()
}

#[tokio::test]
async fn load_has_written_its_files_when_the_second_signal_ends_it() {
    let server = Server::start(&[]).await;
    let folder = folder("unread-load");
    let (csv, hdr, sum) = (folder.join("load.csv"), folder.join("load.hdr"), folder.join("sum.hdr"));
    let [csv_name, hdr_name, sum_name] = [&csv, &hdr, &sum].map(|path| path.to_str().unwrap());
    let url = server.url("/echo");
    let load = ["load", &url, "--count", "10", "--csv", csv_name, "--hdr", hdr_name];
    // The default action of the signal ends the other one.
    let merge = ["load", "merge", hdr_name, "--hdr", sum_name];
    for (args, files, code) in [(&load[..], &[&csv, &hdr][..], Some(143)), (&merge, &[&sum], None)] {
        let (output, _unread) = full();
        let mut child = command(args).stdout(output).spawn().unwrap();
        let is_written =
            |path: &&std::path::PathBuf| std::fs::metadata(path).is_ok_and(|file| file.len() > 0);
        let written = async {
            while !files.iter().all(is_written) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(DEADLINE, written).await.expect("the files are written");
        assert_eq!(end_by(&mut child, "-TERM").await, code, "{args:?}");
    }
}

#[tokio::test]
async fn load_goes_on_while_nobody_reads_its_progress() {
    let server = Server::start(&[]).await;
    let (errors, _unread) = full();
    let args = ["load", &server.url("/echo"), "--duration", "2500ms", "--connections", "1"];
    let child = command(&args).stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
    let (code, out, _) = finish(child).await;
    let out = String::from_utf8(out).unwrap();
    assert!(code == 0 && out.contains("p99"), "{code} {out}");
}

#[tokio::test]
async fn listen_joins_while_nobody_reads_its_notes() {
    let server = Server::start(&[]).await;
    let folder = folder("unread-listen");
    let path = folder.join("socket");
    let address = format!("unix:{}", path.to_str().unwrap());
    let (errors, _unread) = full();
    let args = ["listen", &address, &server.url("/echo"), "--framing", "lines", "-v"];
    let mut child = command(&args).stderr(errors).spawn().unwrap();
    for _ in 0..2 {
        let mut stream = connected(&path).await;
        stream.write_all(b"hello\n").await.unwrap();
        let mut answer = [0; 6];
        timeout(DEADLINE, stream.read_exact(&mut answer)).await.expect("it is joined").unwrap();
        assert_eq!(&answer, b"hello\n");
    }
    signal(&child, "-TERM");
    assert_eq!(exit_code(&mut child).await, Some(0));

    // The address is in use.
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let (errors, _unread) = full();
    let mut child = command(&args).stderr(errors).spawn().unwrap();
    assert_eq!(exit_code(&mut child).await, Some(1));
}

// An unread pipe is full after 64 KiB, and blocks its writer as a hung mount does.
#[tokio::test]
async fn serve_serves_and_ends_while_its_recording_is_not_read() {
    let folder = folder("unread-record");
    let path = folder.join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let _unread = tokio::net::unix::pipe::OpenOptions::new().open_receiver(&path).unwrap();
    let mut server = Server::start(&["--record", path.to_str().unwrap()]).await;
    // Far more than the pipe and the queue hold.
    for _ in 0..2 {
        let mut stream = tokio::net::TcpStream::connect(&server.addresses[0]).await.unwrap();
        let request = b"GET /source?size=1000000&count=20 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        timeout(DEADLINE, stream.read_to_end(&mut answer)).await.expect("it serves").unwrap();
        assert!(answer.len() > 20_000_000, "{}", answer.len());
    }
    server.logged("some is left out").await;
    server.signal("-TERM");
    assert_eq!(server.exit_code().await, Some(0));
    assert!(server.log_to_end().await.iter().any(|line| line.contains("the end of what was recorded")));
}

#[tokio::test]
async fn serve_serves_while_nobody_reads_its_addresses() {
    let folder = folder("unread-serve");
    let path = folder.join("socket");
    let address = format!("unix:{}", path.to_str().unwrap());
    let ((output, _unread), (errors, _unread_log)) = (full(), full());
    let args = ["serve", "--listen", "127.0.0.1:0", "--listen", &address];
    let mut child = command(&args).stdout(output).stderr(errors).spawn().unwrap();
    let mut stream = connected(&path).await;
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    timeout(DEADLINE, stream.read_to_string(&mut answer)).await.expect("it serves").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    signal(&child, "-TERM");
    assert_eq!(exit_code(&mut child).await, Some(0));
}

#[tokio::test]
async fn serve_that_cannot_listen_ends_while_nobody_reads_why() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (args, code) in [(["--listen", &address], 1), (["--hub", "/absent"], 2)] {
        let (errors, _unread) = full();
        let mut child = command(&["serve", args[0], args[1]]).stderr(errors).spawn().unwrap();
        assert_eq!(exit_code(&mut child).await, Some(code), "{args:?}");
    }
}

#[tokio::test]
async fn the_second_signal_ends_inspect_while_it_follows() {
    let folder = folder("unread-inspect");
    let path = folder.join("followed.pcap");
    std::fs::write(&path, std::fs::read(crate::inspect::capture("plain.pcap")).unwrap()).unwrap();
    let (output, _unread) = full();
    let args = ["inspect", "--follow", path.to_str().unwrap()];
    let mut child = command(&args).stdout(output).spawn().unwrap();
    crate::inspect::wait_until_read(child.id().unwrap(), &path);
    assert_eq!(end_by(&mut child, "-TERM").await, Some(143));
}
