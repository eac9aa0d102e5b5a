//! Many connections at once, on several threads, over real sockets: nothing is lost, mixed up or stuck.

use std::time::Duration;

use wireloom::{CloseCode, Connector, DeflateConfig, Request, Response, Server, ServerConfig};

const CONNECTIONS: u32 = 40;
const MESSAGES: u32 = 300;
/// Messages on their way at once.
const DEPTH: u32 = 32;

async fn handle(request: Request) -> Response {
    match request.websocket() {
        Ok(upgrade) => upgrade.on_open(|socket| async move {
            let (mut sender, mut receiver) = socket.split();
            while let Ok(Some(message)) = receiver.recv().await {
                if sender.send(message).await.is_err() {
                    break;
                }
            }
        }),
        Err(refusal) => refusal,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_connection_gets_its_own_messages_in_order() {
    let rng = wireloom_testing::generator();
    let seed = rng.seed();
    let mut config = ServerConfig::default();
    config.deflate = Some(DeflateConfig::default());
    let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let (running, url) = (server.handle(), format!("ws://{}/", server.local_addr().unwrap()));
    let serving = tokio::spawn(server.serve(handle));
    let clients = (0..CONNECTIONS).map(|id| {
        let url = url.clone();
        tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(seed ^ u64::from(id));
            let mut connector = Connector::new();
            if id % 4 == 0 {
                connector = connector.deflate(DeflateConfig::default());
            }
            let socket = connector.connect(&url).await.unwrap();
            let (mut sender, mut receiver) = socket.split();
            // The reader and the writer are two tasks: the writer is at most `DEPTH` messages ahead.
            let (permit, mut permits) = tokio::sync::mpsc::channel(DEPTH as usize);
            let writer = tokio::spawn(async move {
                for number in 0..MESSAGES {
                    permit.send(()).await.unwrap();
                    let mut payload = [id.to_be_bytes(), number.to_be_bytes()].concat();
                    let len =
                        if random.u8(..) == 0 { random.usize(0..400_000) } else { random.usize(0..200) };
                    payload.resize(8 + len, number as u8);
                    match random.u8(0..3) {
                        0 => sender.send(&payload).await.unwrap(),
                        1 => sender.send(payload).await.unwrap(),
                        _ => {
                            sender.feed(&payload).await.unwrap();
                            sender.flush().await.unwrap();
                        }
                    }
                }
                sender
            });
            for number in 0..MESSAGES {
                let message = receiver.recv().await.unwrap().unwrap();
                let (head, rest) = message.as_bytes().split_at(8);
                assert_eq!(head, [id.to_be_bytes(), number.to_be_bytes()].concat());
                assert!(rest.iter().all(|&byte| byte == number as u8));
                permits.recv().await.unwrap();
            }
            let mut sender = writer.await.unwrap();
            sender.close(CloseCode::NORMAL, "").await.unwrap();
            assert!(receiver.recv().await.unwrap().is_none());
        })
    });
    let clients: Vec<_> = clients.collect();
    let all = async {
        for client in clients {
            client.await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(120), all).await.unwrap();
    running.shut_down();
    serving.await.unwrap().unwrap();
    assert_eq!(running.stats().websockets_open, 0);
    assert_eq!(running.stats().websockets_opened, u64::from(CONNECTIONS));
}

#[tokio::test]
async fn hundreds_of_idle_connections_receive_going_away() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let (running, url) = (server.handle(), format!("ws://{}/", server.local_addr().unwrap()));
    let serving = tokio::spawn(server.serve(handle));
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(wireloom::connect(&url).await.unwrap());
    }
    running.shut_down();
    for mut socket in idle {
        assert!(socket.recv().await.unwrap().is_none());
        assert_eq!(socket.end().unwrap().code(), CloseCode::GOING_AWAY);
    }
    tokio::time::timeout(Duration::from_secs(20), serving).await.unwrap().unwrap().unwrap();
}
