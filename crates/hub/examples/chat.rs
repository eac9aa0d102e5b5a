//! A chat server: clients of the Centrifugal SDKs connect to ws://127.0.0.1:8000/connection/websocket, plain WebSocket clients to
//! ws://127.0.0.1:8000/rooms/lobby.

use wireloom::Server;
use wireloom_hub::{Hub, HubConfig};

const CONFIG: &str = r#"
client.anonymous = true

[[namespace]]
name = "rooms"
subscribe = "anyone"
publish = "anyone"
presence = true
presence_access = "anyone"
history_access = "anyone"
join_leave = true
history_size = 100
history_ttl = "1h"
force_recovery = true
"#;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8000".to_owned());
    let hub = Hub::builder()
        .config(HubConfig::from_toml(CONFIG)?)
        .on_rpc(|call| async move { Ok(call.data) })
        .build()?;
    let server = Server::bind(&*address).await?;
    println!("listening on {}", server.local_addr()?);
    server
        .serve(move |request| {
            let hub = hub.clone();
            async move { hub.answer(request).await }
        })
        .await?;
    Ok(())
}
