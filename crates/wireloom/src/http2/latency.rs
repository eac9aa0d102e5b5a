//! Measures how soon a small response is sent after a large one: both drivers, a link of 2 MB/s, and a paused clock.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep, sleep_until};
use wireloom_http2::field::{Field, Token};
use wireloom_http2::{Config, Role};

use super::testing::driver;
use super::{Driver, Incoming, Progress, RecvStream, Requests, Shared};
use crate::error::HttpError;
use crate::sync::Arc;
use crate::transport::Io;

/// Bytes a second.
const RATE: usize = 2_000_000;

/// From one end to the other, in both directions.
const PROPAGATION: Duration = Duration::from_millis(20);

/// The number of bytes that the link accepts ahead of its rate.
const LINK_QUEUE: usize = 16 << 10;

const LARGE: usize = 30 << 20;
const SMALL: usize = 20_000;

/// One direction of the link.
async fn transmit(mut from: ReadHalf<DuplexStream>, to: WriteHalf<DuplexStream>) {
    let (packets, mut in_flight) = tokio::sync::mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        let mut to = to;
        while let Some((arrival, packet)) = in_flight.recv().await {
            sleep_until(arrival).await;
            if to.write_all(&packet).await.is_err() {
                return;
            }
        }
    });
    let mut packet = [0; 1460];
    let mut sent = Instant::now();
    while let Ok(len @ 1..) = from.read(&mut packet).await {
        sent = sent.max(Instant::now()) + Duration::from_secs(1) * len as u32 / RATE as u32;
        sleep_until(sent).await;
        if packets.send((sent + PROPAGATION, packet[..len].to_vec())).is_err() {
            return;
        }
    }
}

/// The ends of a link: the client's and the server's.
fn link() -> (DuplexStream, DuplexStream) {
    let (client, to_client) = tokio::io::duplex(1 << 20);
    let (server, to_server) = tokio::io::duplex(LINK_QUEUE);
    let (client_read, client_write) = tokio::io::split(to_client);
    let (server_read, server_write) = tokio::io::split(to_server);
    tokio::spawn(transmit(client_read, server_write));
    tokio::spawn(transmit(server_read, client_write));
    (client, server)
}

/// Sends a large response for `/large` and a small one for everything else, each as a stream.
async fn respond(shared: Arc<Shared>, incoming: Incoming) -> Result<(), HttpError> {
    let is_large = incoming.headers.text(incoming.path) == "/large";
    let mut left = if is_large { LARGE } else { SMALL };
    let mut send = shared.send_stream(incoming.key);
    send.send_response([Field::known(Token::Status, b"200")], false)?;
    while left > 0 {
        let len = poll_fn(|cx| send.poll_capacity(cx)).await?.min(left);
        left -= len;
        send.send(Bytes::from(vec![7; len]), left == 0)?;
    }
    Ok(())
}

async fn serve(mut driver: Driver) {
    let shared = driver.shared().clone();
    let mut incoming = Vec::new();
    while poll_fn(|cx| driver.poll(cx, &mut incoming)).await == Progress::Incoming {
        for request in incoming.drain(..) {
            tokio::spawn(respond(shared.clone(), request));
        }
    }
}

fn get(requests: &Requests, path: &str) -> RecvStream {
    let fields = [
        Field::known(Token::Method, b"GET"),
        Field::known(Token::Scheme, b"https"),
        Field::known(Token::Authority, b"example.org"),
        Field::known(Token::Path, path.as_bytes()),
    ];
    requests.open(fields, true).unwrap().1
}

async fn receive_all(mut recv: RecvStream) -> usize {
    let mut received = 0;
    while let Some(chunk) = poll_fn(|cx| recv.poll_data(cx)).await {
        received += chunk.unwrap().len();
    }
    received
}

#[test]
fn the_first_byte_of_a_small_response_waits_100_ms_at_most_behind_a_large_one() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (client, server) = link();
        let mut config = Config::new(Role::Client);
        config.settings.initial_window_size = 64 << 20;
        config.connection_window = 64 << 20;
        config.memory_max = 256 << 20;
        let client = Driver::new(Io::Other(Box::new(client)), Role::Client, config).unwrap();
        tokio::spawn(serve(driver(Io::Other(Box::new(server)), Role::Server)));
        let requests = client.requests();
        tokio::spawn(client.run());
        requests.ready().await.unwrap();

        let mut large = get(&requests, "/large");
        assert_eq!(large.head().await.unwrap().status, 200);
        let large = tokio::spawn(receive_all(large));
        for _ in 0..20 {
            sleep(Duration::from_millis(371)).await;
            assert!(!large.is_finished(), "the large response takes 15 s");
            let requested = Instant::now();
            let mut small = get(&requests, "/small");
            assert_eq!(small.head().await.unwrap().status, 200);
            let first = poll_fn(|cx| small.poll_data(cx)).await.unwrap().unwrap();
            let delay = requested.elapsed();
            let max = Duration::from_millis(100) + 2 * PROPAGATION;
            assert!(delay <= max, "the first byte came after {delay:?}");
            assert_eq!(first.len() + receive_all(small).await, SMALL);
        }
        assert_eq!(large.await.unwrap(), LARGE);
    });
}
