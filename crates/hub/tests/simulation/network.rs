//! The simulated network below the real server and client.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use turmoil::net::{TcpListener, TcpStream};
use turmoil::{Builder, Sim};
use wireloom::Connector;
use wireloom::server::Listener;

/// The time in which each host runs by itself before the network delivers.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// A network whose latencies follow the seed. A simulation that is not over after `duration` fails.
pub(crate) fn network<'a>(seed: u64, duration: Duration) -> Sim<'a> {
    Builder::new()
        .rng_seed(seed)
        .tick_duration(TICK)
        .simulation_duration(duration)
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(40))
        // Segments in flight in each direction of a connection, one a write: from few, so that writes wait, to many.
        .tcp_capacity(24 << (seed % 5))
        .enable_random_order()
        .build()
}

/// Accepts connections of the simulated network.
pub(crate) struct Accepting(TcpListener);

pub(crate) async fn listen(port: u16) -> io::Result<Accepting> {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await.map(Accepting)
}

impl Listener for Accepting {
    type Transport = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        self.0.accept().await
    }
}

/// A client's connector, over the simulated network.
pub(crate) fn connector() -> Connector {
    Connector::new().dial_with(|host, port| TcpStream::connect((host, port)))
}
