//! The chats of the guide whose backend decides, `crates/hub/examples/backend`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{ChildStderr, Command, Stdio};
use std::time::Duration;

use tokio::time::timeout;
use wireloom::Connector;
use wireloom::client::Request;
use wireloom_hub::Client;
use wireloom_hub::sdk::{ClientError, ClientEvent, SubscribeOptions};

use crate::{Server, WIRELOOM, root};

const SECRET: &str = "a secret for tests, of more than 32 bytes";
const DEADLINE: Duration = Duration::from_secs(60);

fn example() -> PathBuf {
    root().join("crates/hub/examples/backend")
}

/// Prints what is missing for a part of these tests.
fn skip(part: &str, remedy: &str) {
    // Not captured, as what is printed would be.
    let _ = writeln!(std::io::stderr(), "skipped: {part}: {remedy}");
}

/// Starts the backend, which prints what has ended to its standard error; `None` without Python.
fn start_backend(environment: &[(&str, &str)]) -> Option<(Server, String, ChildStderr)> {
    if Command::new("python3").arg("--version").output().is_err() {
        skip("the backend of the guide", "apt-get install python3");
        return None;
    }
    let mut backend = Command::new("python3");
    backend
        .arg(example().join("backend.py"))
        .arg("0")
        .envs(environment.iter().copied())
        .stderr(Stdio::piped());
    let (mut backend, address) = Server::start(&mut backend);
    let ended = backend.0.stderr.take().unwrap();
    Some((backend, address, ended))
}

/// Returns once the backend has printed a line that begins like this.
async fn printed(ended: ChildStderr, begin: &'static str) {
    let lines = BufReader::new(ended).lines();
    let found =
        tokio::task::spawn_blocking(move || lines.map(Result::unwrap).any(|line| line.starts_with(begin)));
    assert!(timeout(DEADLINE, found).await.expect(begin).unwrap(), "{begin}");
}

/// A hub with this file of the example and this backend.
fn hub(file: &str, backend: &str) -> Command {
    let mut hub = Command::new(WIRELOOM);
    hub.args(["serve", "--listen", "127.0.0.1:0", "--hub"]).arg(example().join(file));
    for (name, path) in [
        ("PROXY_CONNECT", "connect"),
        ("PROXY_SUBSCRIBE", "subscribe"),
        ("PROXY_PUBLISH", "publish"),
        ("RPC", "rpc"),
        ("EVENTS", "events"),
    ] {
        if std::fs::read_to_string(example().join(file)).unwrap().contains(&format!("/{path}\"")) {
            hub.env(format!("WIRELOOM_HUB_{name}_URL"), format!("http://{backend}/{path}"));
        }
    }
    hub
}

fn is_refused(error: &ClientError, code: u32) -> bool {
    matches!(error, ClientError::Refused(refusal) if refusal.code == code)
}

#[tokio::test]
async fn the_backend_of_the_guide_makes_tokens_and_decides() {
    let secret = ("WIRELOOM_HUB_TOKEN_HMAC_SECRET", SECRET);
    let Some((_running, backend, ended)) = start_backend(&[secret]) else { return };
    let (_hub, hub) = Server::start(hub("hub.toml", &backend).envs([secret]));

    let connect = async |user: &str| {
        let url = format!("http://{backend}/token?user={user}");
        let mut response = Connector::new().request(Request::get(url)).await.unwrap();
        let token = String::from_utf8(response.body.bytes().await.unwrap().to_vec()).unwrap();
        Client::builder(format!("ws://{hub}/connection/websocket")).token(token).timeout(DEADLINE).start()
    };
    let (ada, bob) = (connect("ada").await, connect("bob").await);
    let mut lobby = ada.subscribe("chat:lobby", SubscribeOptions::default()).await.unwrap();
    let _member = bob.subscribe("chat:lobby", SubscribeOptions::default()).await.unwrap();
    let error = bob.subscribe("chat:staff", SubscribeOptions::default()).await.unwrap_err();
    assert!(is_refused(&error, 103), "{error:?}");

    // The author is the user of the token.
    bob.publish("chat:lobby", r#"{"user":"ada","text":"hello"}"#).await.unwrap();
    let publication = timeout(DEADLINE, lobby.publication()).await.unwrap().unwrap();
    assert_eq!(&publication.data[..], br#"{"user": "bob", "text": "hello"}"#);
    let error = bob.publish("chat:lobby", r#"{"text":""}"#).await.unwrap_err();
    assert!(is_refused(&error, 1000), "{error:?}");

    let present = ada.presence("chat:lobby").await.unwrap();
    let mut users: Vec<_> = present.values().map(|client| client.user.as_str()).collect();
    users.sort_unstable();
    assert_eq!(users, ["ada", "bob"]);
    bob.disconnect().await;
    printed(ended, "unsubscribe bob chat:lobby ").await;
    // No client connects without a token.
    let anyone = Client::builder(format!("ws://{hub}/connection/websocket")).timeout(DEADLINE).start();
    assert!(matches!(anyone.connected().await, Err(ClientError::Disconnected { .. })));
}

/// A free port.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A Redis server, and its URL; `None` where it is not installed.
fn start_redis() -> Option<(Server, String)> {
    loop {
        // Another program may take the port meanwhile; then the server ends.
        let port = free_port();
        let mut redis = Command::new("redis-server");
        redis.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]).stdout(Stdio::null());
        let Ok(redis) = redis.spawn() else {
            skip("the second node of the guide", "apt-get install redis-server");
            return None;
        };
        let mut redis = Server(redis);
        while redis.0.try_wait().unwrap().is_none() {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Some((redis, format!("redis://127.0.0.1:{port}/")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Sessions, decisions, methods, events and the server API, with clients on two nodes.
#[tokio::test]
async fn the_complete_example_of_the_guide_works() {
    let checked =
        Command::new(WIRELOOM).args(["hub", "config"]).arg(example().join("complete.toml")).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    let (secret, key) =
        (("WIRELOOM_HUB_TOKEN_HMAC_SECRET", SECRET), ("WIRELOOM_HUB_API_KEY", "a key for tests"));
    // The backend and the hub each have the address of the other.
    let admin = format!("127.0.0.1:{}", free_port());
    let api = ("WIRELOOM_API", &*format!("http://{admin}/api"));
    let Some((_running, backend, ended)) = start_backend(&[secret, key, api]) else { return };
    let redis = start_redis();
    let node = |more: &[&str]| {
        let mut node = hub("complete.toml", &backend);
        if let Some((_, url)) = &redis {
            node.args(["--redis", url]);
        }
        Server::start(node.args(more).envs([secret, key]))
    };
    let first = node(&["--admin", &admin]);
    let second = redis.is_some().then(|| node(&[]));
    let nodes = [&first.1, second.as_ref().map_or(&first.1, |(_, address)| address)];

    let connector = async |user: &str| {
        let url = format!("http://{backend}/login?user={user}");
        let response = Connector::new().request(Request::get(url)).await.unwrap();
        let cookie =
            response.headers.get("set-cookie").unwrap().split(|byte| *byte == b';').next().unwrap().to_vec();
        Connector::new().header("Cookie", String::from_utf8(cookie).unwrap())
    };
    let client = |node: &str, connector| {
        let url = format!("ws://{node}/connection/websocket");
        Client::builder(url).connector(connector).timeout(DEADLINE).start()
    };
    let (ada, bob) = (client(nodes[0], connector("ada").await), client(nodes[1], connector("bob").await));
    let mut lobby = ada.subscribe("chat:lobby", SubscribeOptions::default()).await.unwrap();
    let _member = bob.subscribe("chat:lobby", SubscribeOptions::default()).await.unwrap();
    let error = bob.subscribe("chat:staff", SubscribeOptions::default()).await.unwrap_err();
    assert!(is_refused(&error, 103), "{error:?}");
    bob.publish("chat:lobby", r#"{"text":"hello"}"#).await.unwrap();
    let publication = timeout(DEADLINE, lobby.publication()).await.unwrap().unwrap();
    assert_eq!(&publication.data[..], br#"{"user": "bob", "text": "hello"}"#);

    let error = bob.rpc("remove", r#"{"user":"ada"}"#).await.unwrap_err();
    assert!(is_refused(&error, 103), "{error:?}");
    let mut ends = bob.events().await.unwrap();
    ada.rpc("remove", r#"{"user":"bob"}"#).await.unwrap();
    let end = async {
        while let Some(event) = ends.next().await {
            if let ClientEvent::Disconnected { code, .. } = event {
                return code;
            }
        }
        panic!("the events end");
    };
    assert_eq!(timeout(DEADLINE, end).await.unwrap(), 3503);
    printed(ended, "unsubscribe bob chat:lobby ").await;
    let stranger = client(nodes[0], Connector::new());
    assert!(matches!(stranger.connected().await, Err(ClientError::Disconnected { .. })));
}
