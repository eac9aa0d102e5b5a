//! `wireloom hub`, and histories that `serve --data` keeps.

use std::path::Path;
use std::process::{Command, Output};

use crate::nats_server::Nats;
use crate::process::{Server, WIRELOOM};

fn check(args: &[&str], directory: &Path) -> Output {
    Command::new(WIRELOOM).args(["hub", "check"]).args(args).arg(directory).output().unwrap()
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

/// A directory with the histories of a server that was killed.
async fn directory_of_a_killed_server() -> tempfile::TempDir {
    directory_with(&["1", "2", "3"]).await
}

/// A directory with the history of a room, of a server that was killed.
async fn directory_with(texts: &[&str]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&["--data", directory.path().to_str().unwrap()]).await;
    let mut socket = wireloom::connect(&server.url("/rooms/a")).await.unwrap();
    for text in texts {
        socket.send(*text).await.unwrap();
        // The room sends it back once it is stored.
        socket.recv_owned().await.unwrap().unwrap();
    }
    drop(server);
    directory
}

// A URL may have a password.
#[tokio::test]
async fn urls_are_shown_without_their_secrets() {
    for log in ["text", "json"] {
        let url = "nats://user:SECRET@127.0.0.1:1";
        let output = Command::new(WIRELOOM)
            .args(["serve", "--listen", "127.0.0.1:0", "--nats", url, "--log", log])
            .output()
            .unwrap();
        let (stdout, stderr) = texts(&output);
        assert!(stderr.contains("--nats: ") && !(stdout + &stderr).contains("SECRET"), "{stderr}");
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hub.toml");
    std::fs::write(&file, "proxy.connect.url = \"http://user:SECRET@127.0.0.1:1/connect?token=SECRET\"\n")
        .unwrap();
    let mut server = Server::start(&["--hub", file.to_str().unwrap()]).await;
    let mut client = wireloom::connect(&server.url("/connection/websocket")).await.unwrap();
    client.send(r#"{"id":1,"connect":{}}"#).await.unwrap();
    let line = server.logged("an endpoint of the backend failed").await;
    assert!(line.contains("http://127.0.0.1:1/connect") && !line.contains("SECRET"), "{line}");
}

#[tokio::test]
async fn the_log_says_why_a_token_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hub.toml");
    std::fs::write(&file, "token.hmac_secret = \"a secret of a test\"\n").unwrap();
    let mut server = Server::start(&["--hub", file.to_str().unwrap()]).await;
    let mut client = wireloom::connect(&server.url("/connection/websocket")).await.unwrap();
    // {"alg":"HS256"}.{"sub":"42"} with a signature of zeros.
    let token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI0MiJ9.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    client.send(format!(r#"{{"id":1,"connect":{{"token":"{token}"}}}}"#)).await.unwrap();
    let line = server.logged("the token of a client is refused").await;
    assert!(line.contains("its signature is by another key") && !line.contains("AAAA"), "{line}");
}

#[tokio::test]
async fn hub_check_counts_what_a_killed_server_has_stored() {
    let directory = directory_of_a_killed_server().await;
    // The process may take a moment to end.
    let output = loop {
        let output = check(&[], directory.path());
        if !texts(&output).1.contains("another process") {
            break output;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    let (stdout, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stdout.contains("1 channels, 3 publications"), "{stdout}");
}

#[test]
fn hub_check_of_a_file_points_to_the_check_of_a_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hub.toml");
    std::fs::write(&file, "client.anonymous = true\n").unwrap();
    let pointer = format!("`wireloom hub config {}`", file.display());
    let output = check(&[], &file);
    assert_eq!(output.status.code(), Some(1));
    assert!(texts(&output).1.contains(&pointer), "{}", texts(&output).1);
    let missing = check(&[], directory.path());
    assert_eq!(missing.status.code(), Some(1));
    assert!(!texts(&missing).1.contains("hub config"), "{}", texts(&missing).1);
}

#[tokio::test]
async fn hub_check_explains_damage_and_sets_it_aside() {
    let directory = directory_of_a_killed_server().await;
    let file = directory.path().join("history.redb");
    let whole = loop {
        if check(&[], directory.path()).status.code() == Some(0) {
            break std::fs::read(&file).unwrap();
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    let page = 4096;
    let zeros = |mut bytes: Vec<u8>| {
        bytes[page..].fill(0);
        bytes
    };
    for (damaged, reason) in [
        (whole[..whole.len() - page].to_vec(), "it was cut to"),
        (whole[..10].to_vec(), "it was cut to 10 bytes"),
        (b"something else entirely, and long enough for a head".to_vec(), "not a file of histories"),
        (zeros(whole.clone()), "is damaged"),
    ] {
        std::fs::write(&file, damaged).unwrap();
        let output = check(&[], directory.path());
        let (_, stderr) = texts(&output);
        assert_eq!(output.status.code(), Some(5), "{stderr}");
        assert!(stderr.contains(reason) && !stderr.contains("panicked"), "{stderr}");
        let serve = Command::new(WIRELOOM)
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(directory.path())
            .output()
            .unwrap();
        let (_, stderr) = texts(&serve);
        assert_eq!(serve.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(reason) && stderr.contains("hub check"), "{stderr}");
    }
    let nothing = check(&["--salvage"], directory.path());
    assert_eq!(nothing.status.code(), Some(1));
    assert!(texts(&nothing).1.contains("nothing in it can be read"), "{}", texts(&nothing).1);
    assert_eq!(check(&["--set-aside"], directory.path()).status.code(), Some(5));
    assert!(!file.exists());
    assert_eq!(check(&[], directory.path()).status.code(), Some(1), "there is no file");
    Server::start(&["--data", directory.path().to_str().unwrap()]).await;
}

#[tokio::test]
async fn hub_check_salvages_what_damage_in_the_middle_has_left() {
    // Each publication has a page of its own.
    let sent: Vec<_> = (10..30).map(|n| format!("number {n}{}", " ".repeat(3_000))).collect();
    let directory = directory_with(&sent.iter().map(|text| &**text).collect::<Vec<_>>()).await;
    let file = directory.path().join("history.redb");
    while check(&[], directory.path()).status.code() != Some(0) {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let mut damaged = std::fs::read(&file).unwrap();
    for page in damaged.chunks_mut(4096) {
        if page.windows(9).any(|text| text == b"number 20") {
            page.fill(0);
        }
    }
    // The head announces more pages than there are, so that `serve` does not start.
    damaged[30] |= 1;
    std::fs::write(&file, damaged).unwrap();
    let output = check(&["--salvage"], directory.path());
    let (_, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(5), "{stderr}");
    let (_, salvaged) = stderr.split_once("salvaged 1 channels, ").expect(&stderr);
    let numbers = salvaged.split_once(" publications; ").and_then(|(kept, rest)| {
        let (unreadable, _) = rest.split_once(" publications cannot be read; it is now ")?;
        Some((kept.parse::<usize>().ok()?, unreadable.parse::<usize>().ok()?))
    });
    let (kept, unreadable) = numbers.expect(&stderr);
    assert!((1..10).contains(&kept) && (1..=10).contains(&unreadable), "{stderr}");
    let output = check(&[], directory.path());
    assert_eq!(output.status.code(), Some(0));
    let expected = format!("1 channels, {kept} publications");
    assert!(texts(&output).0.contains(&expected), "{}", texts(&output).0);
    let kept = std::fs::read_dir(directory.path()).unwrap().count();
    let server = Server::start(&["--data", directory.path().to_str().unwrap()]).await;
    assert!(wireloom::connect(&server.url("/rooms/a")).await.is_ok());
    assert!(kept >= 2, "the damaged file is kept: {kept}");
}

#[tokio::test]
async fn a_reload_names_what_needs_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hub.toml");
    std::fs::write(&file, "client.anonymous = true\n").unwrap();
    let mut server = Server::start(&["--hub", file.to_str().unwrap()]).await;
    std::fs::write(&file, "client.anonymous = false\nhistory.len_max = \"7M\"\n").unwrap();
    server.signal("-HUP");
    server.logged("history.len_max has changed, which needs a restart").await;
    server.logged("was loaded again").await;
}

#[tokio::test]
async fn a_reload_that_removes_an_endpoint_in_use_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hub.toml");
    // Nothing listens there.
    let endpoint = "[[endpoint]]\nname = \"e\"\nurl = \"http://127.0.0.1:1/\"\n";
    let namespace = "client.anonymous = true\n[[namespace]]\nname = \"rooms\"\nsubscribe = \"anyone\"\n";
    std::fs::write(&file, format!("{namespace}subscribe_proxy = \"e\"\n{endpoint}")).unwrap();
    let mut server = Server::start(&["--hub", file.to_str().unwrap()]).await;
    let ended = async |server: &Server| {
        let mut room = wireloom::connect(&server.url("/rooms/x")).await.unwrap();
        assert!(room.recv_owned().await.unwrap().is_none());
        room.end().unwrap().code().value()
    };
    for (text, reason) in [
        (format!("{namespace}subscribe_proxy = \"e\"\n"), "needs an [[endpoint]]"),
        (format!("{namespace}{endpoint}"), "endpoint.e needs a namespace"),
    ] {
        std::fs::write(&file, text).unwrap();
        server.signal("-HUP");
        server.logged(reason).await;
        // RFC 6455 §7.4.1: the endpoint failed.
        assert_eq!(ended(&server).await, 1011);
    }
    std::fs::write(&file, namespace.replace("anyone", "token")).unwrap();
    server.signal("-HUP");
    server.logged("was loaded again").await;
    assert_eq!(ended(&server).await, 1008);
}

#[tokio::test]
async fn the_log_has_one_line_a_second_while_nats_is_away() {
    let Some(mut nats) = Nats::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hub.toml");
    std::fs::write(&file, "api.key = \"k\"\nchannel = { history_size = 1, history_ttl = \"1m\" }\n").unwrap();
    let url = format!("nats://127.0.0.1:{}", nats.port);
    let args = ["--hub", file.to_str().unwrap(), "--nats", &url, "--admin", "127.0.0.1:0"];
    let mut server = Server::start(&args).await;
    let begin = std::time::Instant::now();
    nats.kill();
    server.logged("the connection to NATS is lost").await;
    let url = format!("http://{}/api/publish", server.addresses[1]);
    let request = wireloom::client::Request::post(url, r#"{"channel":"a","data":1}"#);
    let refused = wireloom::Connector::new().request(request.header("x-api-key", "k")).await.unwrap();
    assert_eq!(refused.status, 200);
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    server.signal("-TERM");
    let lines = server.log_to_end().await;
    assert!(lines.iter().any(|line| line.contains("the server API did not publish")), "{lines:?}");
    let of_client = lines.iter().filter(|line| line.contains("NATS: client error")).count();
    assert!((1..=begin.elapsed().as_secs() as usize + 2).contains(&of_client), "{lines:#?}");
    assert!(!lines.iter().any(|line| line.contains("event: ")), "{lines:#?}");
}
