//! Passes connections on to a server, until it cuts them.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A relay between a client and its server.
pub(crate) struct Relay {
    address: SocketAddr,
    state: Arc<watch::Sender<State>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Counts the cuts.
    cuts: usize,
    is_refusing: bool,
}

impl Relay {
    /// Starts a relay to the host of this URL.
    pub(crate) async fn start(url: &str) -> Self {
        let server = url.strip_prefix("ws://").unwrap().split_once('/').unwrap().0.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(watch::Sender::new(State::default()));
        let told = state.clone();
        tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let mut told = told.subscribe();
                if !told.borrow().is_refusing {
                    let server = server.clone();
                    tokio::spawn(async move {
                        let far = TcpStream::connect(server).await.unwrap();
                        tokio::select! {
                            () = pass(near, far) => {}
                            _ = told.changed() => {}
                        }
                    });
                }
            }
        });
        Self { address, state }
    }

    pub(crate) fn url(&self) -> String {
        format!("ws://{}/connection/websocket", self.address)
    }

    /// Cuts all connections.
    pub(crate) fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// Cuts all connections, and accepts no others.
    pub(crate) fn refuse(&self) {
        self.state.send_modify(|state| state.is_refusing = true);
    }

    pub(crate) fn accept(&self) {
        self.state.send_modify(|state| state.is_refusing = false);
    }
}

async fn pass(mut near: TcpStream, mut far: TcpStream) {
    // An error is an end, too.
    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    let _ = far.shutdown().await;
}
