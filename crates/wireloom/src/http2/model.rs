//! The driver and the handles of its streams under shuttle, which chooses among their tasks at each lock of the mutex. No
//! timer ever expires there: a lost wake-up is a deadlock, which shuttle reports with the schedule that leads to it.

use std::future::poll_fn;

use bytes::Bytes;
use shuttle::future::{block_on, spawn};
use wireloom_http2::error::ErrorCode;
use wireloom_http2::field::{Field, Token};
use wireloom_http2::{Config, Role};

use super::{Driver, Incoming, Progress, Requests, Shared};
use crate::error::HttpError;
use crate::memory::Evict as _;
use crate::sync::{Arc, Model};
use crate::transport::Io;
use crate::transport::model::{End, pipe};

/// Schedules of each test.
const SCHEDULES: usize = 300;

const PIPE_LEN: usize = 300;

fn driver(end: End, role: Role) -> Driver {
    let mut config = Config::new(role);
    // Small, so that both ends wait for each other often.
    config.settings.initial_window_size = 500;
    config.stream_window_max = 500;
    config.stream_queue = 400;
    Driver::new(Io::Other(Box::new(end)), role, config).unwrap()
}

/// Echoes the content of every request, each in a task of its own, until the connection ends.
async fn serve(mut driver: Driver) {
    let shared = driver.shared().clone();
    let mut incoming = Vec::new();
    let mut tasks = Vec::new();
    loop {
        let progress = poll_fn(|cx| driver.poll(cx, &mut incoming)).await;
        tasks.extend(incoming.drain(..).map(|request| spawn(echo(shared.clone(), request))));
        if progress == Progress::Ended {
            break;
        }
    }
    drop(driver);
    for task in tasks {
        // An error is that of a stream that the client gave up.
        let _ = task.await.unwrap();
    }
    let state = shared.lock();
    assert_eq!((state.slots.len(), state.core.streams()), (0, 0));
    assert_eq!((state.core.memory().held, state.core.memory().caller), (0, 0));
}

async fn echo(shared: Arc<Shared>, incoming: Incoming) -> Result<(), HttpError> {
    let recv = incoming.content;
    let mut send = shared.send_stream(incoming.key);
    send.send_response([Field::known(Token::Status, b"200")], false)?;
    let Some(mut recv) = recv else { return send.send(Bytes::new(), true) };
    while let Some(chunk) = poll_fn(|cx| recv.poll_data(cx)).await {
        let chunk = chunk?;
        poll_fn(|cx| send.poll_capacity(cx)).await?;
        send.send(chunk, false)?;
    }
    send.send(Bytes::new(), true)
}

/// Sends `len` bytes in the task of the caller and reads the echo in another one.
async fn exchange(requests: Requests, len: usize) -> Result<usize, HttpError> {
    let fields = [
        Field::known(Token::Method, b"POST"),
        Field::known(Token::Scheme, b"http"),
        Field::known(Token::Authority, b"a"),
        Field::known(Token::Path, b"/"),
    ];
    let (mut send, mut recv) = requests.open(fields, false)?;
    let reading = spawn(async move {
        assert_eq!(recv.head().await?.status, 200);
        let mut received = 0;
        while let Some(chunk) = poll_fn(|cx| recv.poll_data(cx)).await {
            received += chunk?.len();
        }
        Ok(received)
    });
    for _ in 0..len / 250 {
        poll_fn(|cx| send.poll_capacity(cx)).await?;
        send.send(Bytes::from_static(&[7; 250]), false)?;
    }
    send.send(Bytes::new(), true)?;
    poll_fn(|cx| send.poll_sent(cx)).await?;
    drop(send);
    reading.await.unwrap()
}

/// Runs both drivers, and `client` with the handles of the client's.
fn connected<F: Future<Output = ()> + Send + 'static>(client: impl FnOnce(Requests, Arc<Shared>) -> F) {
    let (client_end, server_end) = pipe(PIPE_LEN);
    let (client_driver, server_driver) = (driver(client_end, Role::Client), driver(server_end, Role::Server));
    let (requests, shared) = (client_driver.requests(), client_driver.shared().clone());
    let server = spawn(serve(server_driver));
    let driving = spawn(client_driver.run());
    let client = spawn(client(requests, shared.clone()));
    block_on(async {
        client.await.unwrap();
        driving.await.unwrap();
        server.await.unwrap();
    });
    let state = shared.lock();
    assert_eq!((state.slots.len(), state.core.streams()), (0, 0));
    assert_eq!((state.core.memory().held, state.core.memory().caller), (0, 0));
}

#[test]
fn every_command_wakes_the_driver() {
    Model::explore(SCHEDULES, || {
        connected(|requests, _| async move {
            requests.ready().await.unwrap();
            let exchanges = [500, 1_000].map(|len| (len, spawn(exchange(requests.clone(), len))));
            for (len, exchange) in exchanges {
                assert_eq!(exchange.await.unwrap(), Ok(len));
            }
            requests.shut_down();
        });
    });
}

#[test]
fn a_stream_may_be_dropped_or_reset_at_any_time() {
    Model::explore(SCHEDULES, || {
        connected(|requests, shared| async move {
            requests.ready().await.unwrap();
            let resetting = spawn(exchange(requests.clone(), 500));
            let keeping = spawn(exchange(requests.clone(), 500));
            let fields = [
                Field::known(Token::Method, b"POST"),
                Field::known(Token::Scheme, b"http"),
                Field::known(Token::Authority, b"a"),
                Field::known(Token::Path, b"/"),
            ];
            let (send, recv) = requests.open(fields, false).unwrap();
            let dropping = [spawn(async move { drop(send) }), spawn(async move { drop(recv) })];
            let first = shared.lock().core.find(wireloom_http2::frame::StreamId::FIRST_CLIENT);
            if let Some(key) = first {
                shared.reset(key, ErrorCode::CANCEL);
            }
            for task in dropping {
                task.await.unwrap();
            }
            // One of them has the first stream, or it was the one that is dropped.
            let _ = resetting.await.unwrap();
            let _ = keeping.await.unwrap();
            requests.shut_down();
        });
    });
}

#[test]
fn the_end_reaches_every_waiter() {
    Model::explore(SCHEDULES, || {
        connected(|requests, shared| async move {
            let waiting = spawn({
                let requests = requests.clone();
                async move { requests.ready().await }
            });
            let exchanging = spawn(async move {
                requests.ready().await?;
                exchange(requests, 1_000).await
            });
            shared.abort();
            // They end: with an error, or because they were faster.
            let _ = waiting.await.unwrap();
            let _ = exchanging.await.unwrap();
        });
    });
}
