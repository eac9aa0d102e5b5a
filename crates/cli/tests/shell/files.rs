//! `wireloom serve --dir`: types, ranges, conditions, and what is not served.

use std::os::unix::fs::symlink;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::process::{Server, connect, folder};

/// The response to a request with these header lines: its head in lower case, and its content.
async fn request(server: &Server, method: &str, target: &str, headers: &str) -> (String, String) {
    let address = &server.addresses[0];
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, content) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), content.to_owned())
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn status(head: &str) -> &str {
    head.split(' ').nth(1).unwrap()
}

#[tokio::test]
async fn files_have_types_ranges_and_conditions() {
    let folder = folder("files");
    std::fs::create_dir(folder.join("sub")).unwrap();
    for (name, text) in
        [("index.html", "<p>zwölf"), ("a.js", "0;"), ("data.bin", "0123456789"), ("sub/index.html", "sub")]
    {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let server = Server::start(&["--dir", folder.to_str().unwrap()]).await;
    for (path, kind, content) in [
        ("/", "text/html; charset=utf-8", "<p>zwölf"),
        ("/index.html?query", "text/html; charset=utf-8", "<p>zwölf"),
        ("/a.js", "text/javascript; charset=utf-8", "0;"),
        ("/data.bin", "application/octet-stream", "0123456789"),
        ("/sub/", "text/html; charset=utf-8", "sub"),
    ] {
        let (head, body) = request(&server, "GET", path, "").await;
        assert_eq!(
            (status(&head), header(&head, "content-type"), &*body),
            ("200", Some(kind), content),
            "{path}"
        );
        assert_eq!(header(&head, "x-content-type-options"), Some("nosniff"));
        let (head, body) = request(&server, "HEAD", path, "").await;
        assert_eq!(
            (header(&head, "content-length"), &*body),
            (Some(&*content.len().to_string()), ""),
            "{path}"
        );
    }
    let (head, body) = request(&server, "GET", "/data.bin", "Range: bytes=2-4\r\n").await;
    assert_eq!((status(&head), &*body), ("206", "234"));
    assert_eq!(header(&head, "content-range"), Some("bytes 2-4/10"));
    assert_eq!(request(&server, "GET", "/data.bin", "Range: bytes=-3\r\n").await.1, "789");
    let (head, _) = request(&server, "GET", "/data.bin", "Range: bytes=10-\r\n").await;
    assert_eq!((status(&head), header(&head, "content-range")), ("416", Some("bytes */10")));
    assert_eq!(request(&server, "GET", "/data.bin", "Range: bytes=0-1,3-4\r\n").await.1, "0123456789");
    // RFC 9110 §14.1.2, §14.2: numbers may be large, and other units are ignored.
    for range in ["lines=2-4", "bytes=0-99999999999999999999"] {
        let (head, body) = request(&server, "GET", "/data.bin", &format!("Range: {range}\r\n")).await;
        assert_eq!((status(&head), &*body), ("200", "0123456789"), "{range}");
    }
    let (head, _) = request(&server, "GET", "/data.bin", "").await;
    let etag = header(&head, "etag").unwrap();
    // RFC 9110 §13.1.5: of a file that has changed, the client gets no part.
    let resumed = format!("If-Range: {etag}\r\nRange: bytes=2-4\r\n");
    let (head, body) = request(&server, "GET", "/data.bin", &resumed).await;
    assert_eq!((status(&head), &*body), ("206", "234"));
    for (validator, range) in
        [("\"other\"", "2-4"), ("\"other\"", "10-"), ("Thu, 26 Nov 2026 14:45:01 GMT", "2-4")]
    {
        let resumed = format!("If-Range: {validator}\r\nRange: bytes={range}\r\n");
        let (head, body) = request(&server, "GET", "/data.bin", &resumed).await;
        assert_eq!((status(&head), &*body), ("200", "0123456789"), "{validator} {range}");
    }
    let too_long = "a".repeat(300);
    assert_eq!(status(&request(&server, "GET", &format!("/{too_long}"), "").await.0), "404");
    let (head, body) = request(&server, "GET", "/data.bin", &format!("If-None-Match: {etag}\r\n")).await;
    assert_eq!((status(&head), &*body), ("304", ""));
    std::fs::write(folder.join("data.bin"), "changed").unwrap();
    let (head, body) = request(&server, "GET", "/data.bin", &format!("If-None-Match: {etag}\r\n")).await;
    assert_eq!((status(&head), &*body), ("200", "changed"));
    assert_eq!(status(&request(&server, "POST", "/data.bin", "Content-Length: 0\r\n").await.0), "405");
    let (head, _) = request(&server, "GET", "/sub", "").await;
    assert_eq!((status(&head), header(&head, "location")), ("307", Some("/sub/")));
    // No redirect leads to another host.
    let (head, _) = request(&server, "GET", "//sub", "").await;
    assert_eq!((status(&head), header(&head, "location")), ("307", Some("/sub/")));
    // HTTP/2 answers the same.
    let url = format!("http://{}/", server.addresses[0]);
    assert_eq!(connect(&[&url, "--http2"], "").await.1, "<p>zwölf");
}

#[tokio::test]
async fn nothing_outside_and_nothing_hidden_is_served() {
    let folder = folder("confined");
    let root = folder.join("root");
    for dir in ["root", "root/.git", "root/.well-known", "root/sub"] {
        std::fs::create_dir(folder.join(dir)).unwrap();
    }
    for name in ["secret", "root/.env", "root/.git/config", "root/.well-known/security.txt", "root/public"] {
        std::fs::write(folder.join(name), name).unwrap();
    }
    symlink(folder.join("secret"), root.join("out")).unwrap();
    symlink(&*folder, root.join("up")).unwrap();
    symlink(folder.join("secret"), root.join("sub/index.html")).unwrap();
    symlink(root.join(".env"), root.join("environment")).unwrap();
    symlink(root.join("public"), root.join("link")).unwrap();
    symlink(root.join("public"), root.join(".hidden-link")).unwrap();
    // As Kubernetes mounts a ConfigMap.
    std::fs::create_dir(root.join("..2026_11_24")).unwrap();
    std::fs::write(root.join("..2026_11_24/mounted"), "root/public").unwrap();
    symlink("..2026_11_24", root.join("..data")).unwrap();
    symlink("..data/mounted", root.join("mounted")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(root.join("pipe")).status().unwrap();
    assert!(made.success());
    let server = Server::start(&["--dir", root.to_str().unwrap()]).await;
    for path in [
        "/../secret",
        "/%2e%2e/secret",
        "/..%2fsecret",
        "/sub/../../secret",
        "/..\\secret",
        "/%5c..%5csecret",
        "//secret",
        "/.env",
        "/%2Eenv",
        "/.git/config",
        "/sub/../.git/config",
        "/.git/",
        "/out",
        "/up/secret",
        "/sub/",
        "/environment",
        "/.hidden-link",
        "/..data/mounted",
        "/pipe",
        "/public/",
        "/public%00",
        "/%ff",
        "/nothing",
        "/page.js",
        "/echo",
        "/metrics",
    ] {
        let (head, content) = request(&server, "GET", path, "").await;
        assert!(matches!(status(&head), "400" | "404"), "{path}: {head}\n{content}");
        assert!(!content.contains("secret") && !content.contains("env"), "{path}: {content}");
    }
    for path in ["/public", "/link", "/mounted"] {
        assert_eq!(request(&server, "GET", path, "").await.1, "root/public", "{path}");
    }
    assert_eq!(
        request(&server, "GET", "/.well-known/security.txt", "").await.1,
        "root/.well-known/security.txt"
    );
    let (code, _, errors) = crate::command::run(&["serve", "--dir", "/nowhere"]);
    assert!(code == 2 && errors.contains("--dir /nowhere: No such file"), "{errors}");
    let (code, _, errors) = crate::command::run(&["serve", "--record", "/nowhere/x"]);
    assert!(code == 2 && errors.contains("--record /nowhere/x: No such file"), "{errors}");
}

// The page of the example, and its room.
#[tokio::test]
async fn a_chat_is_one_command() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../hub/examples/chat");
    let server = Server::start(&["--dir", dir]).await;
    let (head, page) = request(&server, "GET", "/", "").await;
    assert!(status(&head) == "200" && page.contains("/rooms/lobby"), "{head}");
    let origin = format!("http://{}", server.addresses[0]);
    let mut writer =
        wireloom::Connector::new().origin(origin).connect(&server.url("/rooms/lobby")).await.unwrap();
    writer.send("guest: hello").await.unwrap();
    assert_eq!(writer.recv_owned().await.unwrap().unwrap().as_text(), Some("guest: hello"));
    // The other routes are there when they are asked for; the page is not.
    let server = Server::start(&["--dir", dir, "--demo"]).await;
    assert_eq!(connect(&[&server.url("/echo"), "--send", "a", "--count", "1"], "").await.1, "a\n");
    assert!(request(&server, "GET", "/", "").await.1.contains("The lobby"));
}

// The length is sent before the content.
#[tokio::test]
async fn a_file_that_grows_is_sent_with_the_length_that_was_announced() {
    /// More than the socket buffers hold, so that the end is read after the file has grown.
    const LEN: usize = 32 << 20;
    let folder = folder("growing");
    let path = folder.join("log");
    std::fs::write(&path, vec![b'a'; LEN]).unwrap();
    let server = Server::start(&["--dir", folder.to_str().unwrap()]).await;
    let mut stream = TcpStream::connect(&server.addresses[0]).await.unwrap();
    stream.write_all(b"GET /log HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = vec![0; 1024];
    stream.read_exact(&mut answer).await.unwrap();
    let mut log = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    std::io::Write::write_all(&mut log, b"more").unwrap();
    stream.read_to_end(&mut answer).await.unwrap();
    let start = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
    assert_eq!(answer.len() - start, LEN);
    assert!(answer[start..].iter().all(|byte| *byte == b'a'));
}

// With 96 descriptors 4 files may be open.
#[tokio::test]
async fn clients_that_do_not_read_keep_no_file_from_others() {
    // More than sockets buffer.
    const LEN: u64 = 64 << 20;
    let folder = folder("held");
    let long = folder.join("long");
    std::fs::File::create(&long).unwrap().set_len(LEN).unwrap();
    std::fs::write(folder.join("short"), "short").unwrap();
    let server = Server::start_with_files_max(96, &["--dir", folder.to_str().unwrap()]).await;
    let mut held = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(&server.addresses[0]).await.unwrap();
        stream
            .write_all(b"GET /long HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
        held.push(stream);
    }
    for _ in 0..8 {
        let (head, body) = request(&server, "GET", "/short", "").await;
        assert_eq!((status(&head), &*body), ("200", "short"));
    }
    let rest = async |mut stream: TcpStream| {
        let read = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        read.map_or(0, |len| len)
    };
    // One whose file is open, and one whose file is opened for each read.
    assert!(rest(held.remove(0)).await > LEN);
    assert!(rest(held.pop().unwrap()).await > LEN);
    // No response has parts of two files.
    let other = folder.join("other");
    std::fs::File::create(&other).unwrap().set_len(LEN).unwrap();
    std::fs::rename(other, long).unwrap();
    assert!(rest(held.remove(0)).await > LEN);
    assert!(rest(held.pop().unwrap()).await < LEN);
}
