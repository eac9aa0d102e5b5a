//! A hub in an application of axum, on axum's own server.

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::any;
use serde_json::json;
use wireloom::axum::WebSocketUpgrade;
use wireloom_hub::{Hub, HubConfig};

use super::{CONFIG, Client};

async fn connect(State(hub): State<Hub>, upgrade: WebSocketUpgrade) -> Response {
    use axum::response::IntoResponse as _;
    hub.accept(upgrade.into_inner(), None).into_response()
}

async fn join(State(hub): State<Hub>, Path(room): Path<String>, upgrade: WebSocketUpgrade) -> Response {
    use axum::response::IntoResponse as _;
    hub.accept_bare(upgrade.into_inner(), &format!("chat:{room}")).into_response()
}

#[tokio::test]
async fn serves_clients_within_an_axum_application() {
    let hub = Hub::builder().config(HubConfig::from_toml(CONFIG).unwrap()).build().unwrap();
    let router =
        Router::new().route("/ws", any(connect)).route("/join/{room}", any(join)).with_state(hub.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });

    let mut client = Client::new(wireloom::connect(&format!("ws://{address}/ws")).await.unwrap());
    client.call("connect", json!({})).await;
    client.call("subscribe", json!({ "channel": "chat:x" })).await;
    let mut plain = wireloom::connect(&format!("ws://{address}/join/x")).await.unwrap();
    plain.send(r#"{"n":1}"#).await.unwrap();
    while client.publications.is_empty() {
        client.receive().await;
    }
    assert_eq!(client.publications, [json!({ "n": 1 })]);
    assert_eq!(plain.recv_owned().await.unwrap().unwrap().as_text(), Some(r#"{"n":1}"#));
    hub.publish("chat:x", "2").await.unwrap();
    assert_eq!(plain.recv_owned().await.unwrap().unwrap().as_text(), Some("2"));
    assert!(wireloom::connect(&format!("ws://{address}/join/{}", "x".repeat(30))).await.is_err());
}
