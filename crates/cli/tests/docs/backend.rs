//! The chat of the guide whose backend makes tokens and decides, `crates/hub/examples/backend`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::time::timeout;
use wireloom::Connector;
use wireloom::client::Request;
use wireloom_hub::Client;
use wireloom_hub::sdk::{ClientError, SubscribeOptions};

use crate::{Server, WIRELOOM, root};

const SECRET: &str = "a secret for tests, of more than 32 bytes";
const DEADLINE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn the_backend_of_the_guide_makes_tokens_and_decides() {
    if Command::new("python3").arg("--version").output().is_err() {
        // Not captured, as what is printed would be.
        let text = "skipped: the backend of the guide: apt-get install python3";
        let _ = writeln!(std::io::stderr(), "{text}");
        return;
    }
    let example = root().join("crates/hub/examples/backend");
    let secret = ("WIRELOOM_HUB_TOKEN_HMAC_SECRET", SECRET);
    let mut backend = Command::new("python3");
    backend.stderr(Stdio::piped());
    let (mut running, backend) =
        Server::start(backend.arg(example.join("backend.py")).arg("0").envs([secret]));
    let ended = running.0.stderr.take().unwrap();
    let mut hub = Command::new(WIRELOOM);
    hub.args(["serve", "--listen", "127.0.0.1:0", "--hub"]).arg(example.join("hub.toml"));
    hub.envs([secret]);
    hub.env("WIRELOOM_HUB_PROXY_SUBSCRIBE_URL", format!("http://{backend}/subscribe"));
    hub.env("WIRELOOM_HUB_PROXY_PUBLISH_URL", format!("http://{backend}/publish"));
    hub.env("WIRELOOM_HUB_EVENTS_URL", format!("http://{backend}/events"));
    let (_hub, hub) = Server::start(&mut hub);

    let connect = async |user: &str| {
        let url = format!("http://{backend}/token?user={user}");
        let mut response = Connector::new().request(Request::get(url)).await.unwrap();
        let token = String::from_utf8(response.body.bytes().await.unwrap().to_vec()).unwrap();
        Client::builder(format!("ws://{hub}/connection/websocket")).token(token).timeout(DEADLINE).start()
    };
    let (ada, bob) = (connect("ada").await, connect("bob").await);
    let mut lobby = ada.subscribe("chat:lobby", SubscribeOptions::default()).await.unwrap();
    let _member = bob.subscribe("chat:lobby", SubscribeOptions::default()).await.unwrap();
    let refused =
        |error: &ClientError, code| matches!(error, ClientError::Refused(refusal) if refusal.code == code);
    let error = bob.subscribe("chat:staff", SubscribeOptions::default()).await.unwrap_err();
    assert!(refused(&error, 103), "{error:?}");

    // The author is the user of the token.
    bob.publish("chat:lobby", r#"{"user":"ada","text":"hello"}"#).await.unwrap();
    let publication = timeout(DEADLINE, lobby.publication()).await.unwrap().unwrap();
    assert_eq!(&publication.data[..], br#"{"user": "bob", "text": "hello"}"#);
    let error = bob.publish("chat:lobby", r#"{"text":""}"#).await.unwrap_err();
    assert!(refused(&error, 1000), "{error:?}");

    let present = ada.presence("chat:lobby").await.unwrap();
    let mut users: Vec<_> = present.values().map(|client| client.user.as_str()).collect();
    users.sort_unstable();
    assert_eq!(users, ["ada", "bob"]);
    bob.disconnect().await;
    let left = tokio::task::spawn_blocking(move || {
        let mut lines = BufReader::new(ended).lines();
        lines.any(|line| line.unwrap().starts_with("unsubscribe bob chat:lobby "))
    });
    assert!(timeout(DEADLINE, left).await.unwrap().unwrap());
    // Nobody enters without a token.
    let anyone = Client::builder(format!("ws://{hub}/connection/websocket")).timeout(DEADLINE).start();
    assert!(matches!(anyone.connected().await, Err(ClientError::Disconnected { .. })));
}
