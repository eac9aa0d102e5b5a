//! Keys of tokens at a URL.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use wireloom::{Request, Response, Server};
use wireloom_hub::HubConfig;

use super::{Client, Served};

const ECDSA: &str = include_str!("../keys/ecdsa.pem");
const RSA: &str = include_str!("../keys/rsa.pem");
const KEYS: &str = include_str!("../keys/jwks.json");

/// The behaviour of the key server.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Keys,
    Redirect,
    TooLong,
    Broken,
    Silent,
}

/// The state of a server of keys.
struct State {
    mode: Mutex<Mode>,
    /// The ids of the keys that it publishes.
    ids: Mutex<Vec<&'static str>>,
    /// Requests.
    asked: AtomicUsize,
    /// Requests that were answered with 304.
    unchanged: AtomicUsize,
}

async fn key_server(mode: Mode) -> (String, Arc<State>) {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", server.local_addr().unwrap());
    let state = State {
        mode: Mutex::new(mode),
        ids: Mutex::new(vec!["rsa"]),
        asked: AtomicUsize::new(0),
        unchanged: AtomicUsize::new(0),
    };
    let state = Arc::new(state);
    let serving = (state.clone(), format!("{url}/other"));
    tokio::spawn(server.serve(move |request: Request| {
        let (state, elsewhere) = serving.clone();
        async move {
            state.asked.fetch_add(1, Ordering::Relaxed);
            let (mode, ids) = (*state.mode.lock().unwrap(), state.ids.lock().unwrap().clone());
            let mut set: Value = serde_json::from_str(KEYS).unwrap();
            set["keys"].as_array_mut().unwrap().retain(|key| ids.contains(&key["kid"].as_str().unwrap()));
            let keys = set.to_string();
            let etag = format!("\"{}\"", ids.join("-"));
            match mode {
                // Keys are at the other path, too: it is the redirect that must not be followed.
                Mode::Redirect if request.path() == "/keys" => {
                    Response::text(302, "").with_header("Location", &elsewhere).unwrap()
                }
                Mode::TooLong => {
                    Response::new(200).with_body("application/json", " ".repeat(300_000) + &keys)
                }
                Mode::Broken => Response::text(500, "broken\n"),
                Mode::Silent => std::future::pending().await,
                _ if request.header("if-none-match") == Some(etag.as_bytes()) => {
                    state.unchanged.fetch_add(1, Ordering::Relaxed);
                    Response::new(304)
                }
                _ => {
                    let response = Response::new(200).with_body("application/json", keys);
                    response.with_header("ETag", &etag).unwrap()
                }
            }
        }
    }));
    (url, state)
}

fn token(algorithm: Algorithm, id: &str) -> String {
    let key = match algorithm {
        Algorithm::RS256 => EncodingKey::from_rsa_pem(RSA.as_bytes()).unwrap(),
        Algorithm::ES256 => EncodingKey::from_ec_pem(ECDSA.as_bytes()).unwrap(),
        _ => EncodingKey::from_secret(b"secret"),
    };
    encode(&Header { kid: Some(id.into()), ..Header::new(algorithm) }, &json!({ "sub": "7" }), &key).unwrap()
}

fn config(url: &str, refresh: &str) -> String {
    format!("[token]\njwks_url = \"{url}\"\njwks_refresh = \"{refresh}\"\n")
}

async fn serve(url: &str, refresh: &str) -> Served {
    Served::start(&config(url, refresh), |hub| hub).await
}

/// The outcome of connecting: `None` for success, the code of an error, or the code of the disconnection.
async fn connect(served: &Served, token: &str) -> Option<u64> {
    let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
    client.socket.send(&json!({ "id": 1, "connect": { "token": token } }).to_string()).await.unwrap();
    match tokio::time::timeout(Duration::from_secs(20), client.socket.recv_owned()).await.unwrap() {
        Ok(Some(message)) => {
            let reply: Value = serde_json::from_slice(message.as_bytes()).unwrap();
            reply["error"]["code"].as_u64()
        }
        _ => Some(client.socket.end().unwrap().code().value().into()),
    }
}

#[tokio::test]
async fn keys_at_a_url_are_fetched_and_kept() {
    let (url, keys) = key_server(Mode::Keys).await;
    let served = serve(&url, "1h").await;
    for _ in 0..2 {
        assert_eq!(connect(&served, &token(Algorithm::RS256, "rsa")).await, None);
    }
    assert_eq!(keys.asked.load(Ordering::Relaxed), 1);
    // Tokens with invented ids wait, and cause one request together.
    let invented: Vec<_> = (0..4).map(|n| token(Algorithm::HS256, &format!("invented{n}"))).collect();
    let (a, b, c, d) = tokio::join!(
        connect(&served, &invented[0]),
        connect(&served, &invented[1]),
        connect(&served, &invented[2]),
        connect(&served, &invented[3])
    );
    assert_eq!([a, b, c, d], [Some(3500); 4]);
    assert_eq!(keys.asked.load(Ordering::Relaxed), 2);
    // The known keys stay in use while the server is down.
    *keys.mode.lock().unwrap() = Mode::Broken;
    assert_eq!(connect(&served, &token(Algorithm::RS256, "rsa")).await, None);
}

#[tokio::test]
async fn a_new_configuration_keeps_the_keys_of_a_url() {
    let (url, keys) = key_server(Mode::Keys).await;
    let served = serve(&url, "1h").await;
    let rsa = token(Algorithm::RS256, "rsa");
    assert_eq!(connect(&served, &rsa).await, None);
    *keys.mode.lock().unwrap() = Mode::Broken;
    let reload = |url: &str, refresh| served.hub.reload(HubConfig::from_toml(&config(url, refresh)).unwrap());
    reload(&url, "1h").unwrap();
    assert_eq!(connect(&served, &rsa).await, None);
    // Also with another interval, which applies to them.
    reload(&url, "1ms").unwrap();
    assert_eq!(connect(&served, &rsa).await, None);
    // Those of another URL are others.
    reload(&format!("{url}/other"), "1h").unwrap();
    assert_eq!(connect(&served, &rsa).await, Some(100));
}

/// A key of one kind of token is never found at the URL of the other: each token would wait for another request there.
#[tokio::test]
async fn the_keys_of_connections_and_of_subscriptions_are_at_urls_of_their_own() {
    let ((url, keys), (own_url, own_keys)) = (key_server(Mode::Keys).await, key_server(Mode::Keys).await);
    *own_keys.ids.lock().unwrap() = vec!["ecdsa"];
    let config = format!("{}[token.subscription]\njwks_url = \"{own_url}\"\n", config(&url, "1h"));
    let served = Served::start(&config, |hub| hub).await;
    let asked = || [&keys, &own_keys].map(|keys| keys.asked.load(Ordering::Relaxed));
    let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
    client.call("connect", json!({ "token": token(Algorithm::RS256, "rsa") })).await;
    assert_eq!(asked(), [1, 0]);
    let header = Header { kid: Some("ecdsa".into()), ..Header::new(Algorithm::ES256) };
    let key = EncodingKey::from_ec_pem(ECDSA.as_bytes()).unwrap();
    let claims = json!({ "sub": "7", "channel": "$a" });
    let subscription = json!({ "channel": "$a", "token": encode(&header, &claims, &key).unwrap() });
    client.call("subscribe", subscription).await;
    assert_eq!(asked(), [1, 1]);
}

#[tokio::test]
async fn a_secret_at_a_url_is_none() {
    let (url, keys) = key_server(Mode::Keys).await;
    *keys.ids.lock().unwrap() = vec!["hmac"];
    let served = serve(&url, "1h").await;
    assert_eq!(connect(&served, &token(Algorithm::HS256, "hmac")).await, Some(3500));
}

#[tokio::test]
async fn a_rotated_key_is_fetched_after_the_shortest_interval() {
    let (url, keys) = key_server(Mode::Keys).await;
    let served = serve(&url, "1ms").await;
    assert_eq!(connect(&served, &token(Algorithm::RS256, "rsa")).await, None);
    assert_eq!(connect(&served, &token(Algorithm::ES256, "ecdsa")).await, Some(3500));
    *keys.ids.lock().unwrap() = vec!["rsa", "ecdsa"];
    let rotated = async {
        while connect(&served, &token(Algorithm::ES256, "ecdsa")).await.is_some() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        while keys.unchanged.load(Ordering::Relaxed) == 0 {
            assert_eq!(connect(&served, &token(Algorithm::ES256, "ecdsa")).await, None);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), rotated).await.unwrap();
    assert_eq!(connect(&served, &token(Algorithm::ES256, "ecdsa")).await, None);
}

#[tokio::test]
async fn a_bad_server_of_keys_lets_nobody_in_and_clients_try_again() {
    for mode in [Mode::Redirect, Mode::TooLong, Mode::Broken, Mode::Silent] {
        let (url, keys) = key_server(mode).await;
        let served = serve(&url, "1h").await;
        assert_eq!(connect(&served, &token(Algorithm::RS256, "rsa")).await, Some(100), "{mode:?}");
        assert_eq!(keys.asked.load(Ordering::Relaxed), 1, "{mode:?}: a redirect was followed");
    }
}
