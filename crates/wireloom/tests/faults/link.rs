//! A link between a client and a server that delays, splits, stalls, cuts and resets, over real sockets.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use wireloom_testing::Rng;

/// How a direction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Both sockets are closed.
    Cut,
    /// Both sockets are reset.
    Reset,
    /// Nothing moves any more.
    Stall,
}

/// The faults of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fault {
    /// The most bytes of a write; drawn for each write if there is a seed.
    pub(crate) chunk_max: Option<usize>,
    /// The longest delay before a write.
    pub(crate) delay_max: Duration,
    /// The end after this number of bytes.
    pub(crate) end: Option<(usize, End)>,
    /// Chunks and delays are drawn below their bounds, by this seed.
    pub(crate) seed: Option<u64>,
}

impl Fault {
    pub(crate) const NONE: Self = Self { chunk_max: None, delay_max: Duration::ZERO, end: None, seed: None };

    pub(crate) fn ends(after: usize, end: End) -> Self {
        Self { end: Some((after, end)), ..Self::NONE }
    }

    pub(crate) fn chunks(chunk_max: usize) -> Self {
        Self { chunk_max: Some(chunk_max), ..Self::NONE }
    }
}

/// A listener that forwards connections to a server, with faults. It ends when this is dropped.
pub(crate) struct Link {
    pub(crate) address: SocketAddr,
    _running: JoinSet<()>,
}

impl Link {
    /// A link to this server. `up` has the faults of what clients send, `down` those of what they receive.
    pub(crate) async fn to(server: SocketAddr, up: Fault, down: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut running = JoinSet::new();
        running.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(carry(client, server, up, down));
            }
        });
        Self { address, _running: running }
    }
}

async fn carry(client: TcpStream, server: SocketAddr, up: Fault, down: Fault) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let end = {
        let upward = pump(&mut from_client, &mut to_server, up);
        let downward = pump(&mut from_server, &mut to_client, down);
        tokio::pin!(upward, downward);
        // The end of one direction is forwarded; the other direction continues.
        tokio::select! {
            end = &mut upward => match end {
                None => downward.await,
                end => end,
            },
            end = &mut downward => match end {
                None => upward.await,
                end => end,
            },
        }
    };
    if end == Some(End::Reset) {
        let _ = (to_client.as_ref().set_zero_linger(), to_server.as_ref().set_zero_linger());
    }
}

/// Forwards one direction until it ends; returns `None` if it ends in order.
async fn pump(from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf, fault: Fault) -> Option<End> {
    let mut chance = fault.seed.map(Rng::with_seed);
    let mut passed = 0;
    let mut bytes = vec![0; 16 << 10];
    loop {
        let mut len = fault.chunk_max.unwrap_or(bytes.len()).min(bytes.len());
        let mut delay = fault.delay_max;
        if let Some(chance) = &mut chance {
            len = chance.usize(1..=len);
            delay = delay.mul_f64(chance.f64());
        }
        if let Some((after, end)) = fault.end {
            if passed == after {
                if end == End::Stall {
                    std::future::pending::<()>().await;
                }
                return Some(end);
            }
            len = len.min(after - passed);
        }
        match from.read(&mut bytes[..len]).await {
            Ok(0) | Err(_) => {
                let _ = to.shutdown().await;
                return None;
            }
            Ok(read) => {
                if !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                if to.write_all(&bytes[..read]).await.is_err() {
                    return None;
                }
                passed += read;
            }
        }
    }
}
