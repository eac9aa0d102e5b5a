//! Rooms whose losses, repetitions and order are known.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::broadcast::{self, error::RecvError};
use wireloom::{Request, Server, WebSocket};

use crate::{Serve, measure};

/// The fault that hits each tenth message on its way to a subscriber.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    Drop,
    Repeat,
    /// It arrives after the next one.
    Swap,
    /// The last byte is changed.
    Change,
}

type Published = (usize, String);

async fn serve(fault: Fault, id: usize, room: broadcast::Sender<Published>, socket: WebSocket) {
    let mut published = room.subscribe();
    let (mut sender, mut receiver) = socket.split();
    let publish = async {
        while let Ok(Some(message)) = receiver.recv().await {
            let _ = room.send((id, message.as_text().unwrap().to_owned()));
        }
    };
    let deliver = async {
        let (mut number, mut held) = (0, None);
        loop {
            let (from, mut message) = match published.recv().await {
                Ok(published) => published,
                Err(RecvError::Lagged(_)) => panic!("the test is too fast for the room"),
                Err(RecvError::Closed) => return,
            };
            // A publisher does not receive what it sends; the messages that show who has joined are not counted.
            if from == id {
                continue;
            }
            let is_probe = message.starts_with("ffffff");
            number += usize::from(!is_probe);
            // Not the last one: the run ends when that has arrived.
            let is_tenth = !is_probe && number % 10 == 5;
            match fault {
                Fault::Drop if is_tenth => continue,
                Fault::Swap if is_tenth => {
                    held = Some(message);
                    continue;
                }
                Fault::Change if is_tenth => {
                    message.pop();
                    message.push('~');
                }
                Fault::Repeat if is_tenth => drop(sender.send(&*message).await),
                _ => {}
            }
            if sender.send(&*message).await.is_err() {
                return;
            }
            if let Some(held) = held.take() {
                let _ = sender.send(&*held).await;
            }
        }
    };
    tokio::select! {
        () = publish => {}
        () = deliver => {}
    }
}

async fn start(fault: Fault) -> String {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/room", server.local_addr().unwrap());
    let room = broadcast::channel(100_000).0;
    let ids = Arc::new(AtomicUsize::new(0));
    let handle = move |request: Request| {
        let (room, id) = (room.clone(), ids.fetch_add(1, Ordering::Relaxed));
        async move {
            request.websocket().map(|upgrade| upgrade.on_open(move |socket| serve(fault, id, room, socket)))
        }
    };
    tokio::spawn(async move { server.serve(handle).await });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_loss_repetition_and_order() {
    // 200 messages of one publisher to each of 3 subscribers: 20 tenths each.
    let args = [
        "--scenario",
        "rooms",
        "--connections",
        "4",
        "--rate",
        "400",
        "--count",
        "200",
        "--size",
        "64",
        "--timeout",
        "2",
    ];
    for (fault, answered, kind, errors) in [
        (Fault::None, 600, "lost", 0),
        (Fault::Drop, 540, "lost", 60),
        (Fault::Repeat, 600, "unexpected", 60),
        (Fault::Swap, 600, "reordered", 60),
    ] {
        let (code, report) = measure(&start(fault).await, &args).await;
        assert_eq!(report["sent"], 200, "{report}");
        assert_eq!(report["answered"], answered, "{report}");
        assert_eq!(report["errors"][kind], errors, "{kind} {report}");
        assert_eq!(code, if errors == 0 { 0 } else { 5 }, "{report}");
        assert_eq!(report["latency"]["samples"], answered, "{report}");
    }
    // A changed message is not the one that was sent, which is lost then.
    let (code, report) = measure(&start(Fault::Change).await, &args).await;
    assert_eq!(
        (code, &report["errors"]["wrong"], &report["errors"]["lost"]),
        (5, &60.into(), &60.into()),
        "{report}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn measures_the_rooms_of_serve() {
    let serve = Serve::start().await;
    let url = serve.url("ws", "/rooms/lobby");
    let args = [
        "--scenario",
        "rooms",
        "--publishers",
        "3",
        "--connections",
        "8",
        "--rate",
        "300",
        "--duration",
        "1",
    ];
    for more in [&[][..], &["--http2", "--streams", "4"], &["--binary", "--size", "100..5K", "--compress"]] {
        let (code, report) = measure(&url, &[&args[..], more].concat()).await;
        assert_eq!(code, 0, "{report}");
        assert_eq!(report["sent"], 300, "{report}");
        assert_eq!(report["answered"], 1500, "{report}");
    }
    // An echo is not a room: subscribers receive nothing.
    let echo = serve.url("ws", "/echo");
    let (code, out, errors) =
        crate::run(&[&echo, "--scenario", "rooms", "--rate", "9", "--timeout", "5s"]).await;
    assert_eq!((code, &*out), (6, ""));
    assert!(errors.contains("is this the URL of a room?"), "{errors}");
}

/// A server whose hub has this configuration.
async fn serve_hub(config: &str) -> String {
    let hub =
        wireloom_hub::Hub::builder().config(wireloom_hub::HubConfig::from_toml(config).unwrap()).build();
    let hub = hub.unwrap();
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/rooms", server.local_addr().unwrap());
    tokio::spawn(server.serve(move |request: Request| {
        let hub = hub.clone();
        async move { hub.answer(request).await }
    }));
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn a_room_that_refuses_says_what_it_lacks() {
    let rooms = "[[namespace]]\nname = \"rooms\"\nsubscribe = \"anyone\"\n";
    let anonymous = serve_hub(&format!("client.anonymous = true\n{rooms}")).await;
    let by_token = serve_hub(&format!("token.hmac_secret = \"secret\"\n{rooms}")).await;
    let tokens = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(tokens.path(), "x.y.z\n").unwrap();
    let tokens = ["--tokens", tokens.path().to_str().unwrap()];
    for (url, more, text) in [
        (
            anonymous.clone(),
            &[][..],
            "the server answered 404 Not Found: a room has a name, such as /rooms/lobby",
        ),
        (format!("{anonymous}/"), &[], "a room has a name"),
        // They may join, and not publish.
        (format!("{anonymous}/a"), &[], "closed a connection with 1008 permission denied; may everyone join"),
        (format!("{by_token}/a"), &[], "closed a connection with 1008 invalid token; may everyone join"),
        (format!("{by_token}/a"), &tokens, "1008 invalid token; may the users of --tokens join and publish?"),
    ] {
        let args = [&[&*url, "--scenario", "rooms", "--rate", "9"], more].concat();
        let ran = tokio::time::timeout(std::time::Duration::from_secs(60), crate::run(&args)).await;
        let (code, out, errors) = ran.expect("an end");
        assert_eq!((code, &*out), (3, ""), "{url} {errors}");
        assert!(errors.contains(text) && errors.lines().count() == 1, "{url} {errors}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_ends_when_all_subscribers_have_received_everything() {
    let url = start(Fault::None).await;
    // A run that waited for the timeout would miss the deadline of the test.
    let args =
        ["--scenario", "rooms", "--connections", "3", "--rate", "1000", "--count", "20", "--timeout", "1h"];
    let (code, report) = measure(&url, &args).await;
    assert_eq!(code, 0, "{report}");
}
