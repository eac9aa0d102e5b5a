//! Clients that do not read: bounded by bytes and by time, by each policy, while the others receive everything.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use wireloom_hub::{ConnectGrant, Hub, HubConfig};

use super::{CONFIG, Client, Served};

/// More than the buffers of the system hold.
const MESSAGES_MAX: u64 = 2_000;

async fn serve(limits: &str) -> Served {
    let limits = format!("[client]\n{limits}\n");
    Served::start(&CONFIG.replacen("[client]\n", &limits, 1), |hub| hub).await
}

async fn subscribe(served: &Served) -> Client {
    let mut client = served.connect().await;
    client.call("subscribe", json!({ "channel": "chat:x" })).await;
    client
}

/// The numbers of the publications that a client receives, up to this one.
async fn receive_until(mut client: Client, last: u64) -> Vec<u64> {
    let mut numbers = Vec::new();
    while numbers.last() != Some(&last) {
        client.publications.clear();
        client.receive().await;
        numbers.extend(client.publications.iter().map(|data| data[0].as_u64().unwrap()));
    }
    numbers
}

/// Publishes until `is_enough`, beside a client that reads and must receive everything. Returns the last number.
async fn publish_until(served: &Served, is_enough: impl Fn(&Served) -> bool) -> u64 {
    let reader = subscribe(served).await;
    let (sent, mut last) = tokio::sync::watch::channel(None);
    let reading = tokio::spawn(async move {
        let mut client = reader;
        let mut next = 0;
        loop {
            if *last.borrow_and_update() == Some(next) {
                return;
            }
            tokio::select! {
                reply = client.receive() => {
                    if !reply["push"]["pub"].is_null() {
                        assert_eq!(reply["push"]["pub"]["data"][0], next);
                        next += 1;
                    }
                    client.publications.clear();
                }
                _ = last.changed() => {}
            }
        }
    });
    let padding = "x".repeat(32 << 10);
    let mut number = 0;
    while !is_enough(served) {
        assert!(number < MESSAGES_MAX, "{:?}", served.hub.stats());
        served.hub.publish("chat:x", json!([number, padding]).to_string()).await.unwrap();
        number += 1;
        // The publisher never waits; the tasks of the clients need the thread.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    sent.send_replace(Some(number));
    tokio::time::timeout(Duration::from_secs(60), reading).await.expect("the reader has everything").unwrap();
    number - 1
}

#[tokio::test]
async fn a_full_queue_or_a_long_wait_disconnects() {
    for limits in [
        "queue_len_max = 65536\nqueue_time_max = \"10m\"",
        "queue_len_max = 1073741824\nqueue_time_max = \"300ms\"",
    ] {
        let served = serve(limits).await;
        let stalled = subscribe(&served).await;
        publish_until(&served, |served| served.hub.stats().evicted_slow == 1).await;
        served.has_ended(3008, 1).await;
        let stats = served.hub.stats();
        assert_eq!((stats.dropped, stats.evicted_slow), (0, 1), "{limits}");
        drop(stalled);
    }
}

/// A stream has no WebSocket beneath it: the client's socket is full, and the response's body waits.
#[tokio::test]
async fn a_stream_whose_client_does_not_read_is_disconnected() {
    for limits in [
        "queue_len_max = 65536\nqueue_time_max = \"10m\"",
        "queue_len_max = 1073741824\nqueue_time_max = \"300ms\"",
    ] {
        let served = serve(limits).await;
        let address = served.url.strip_prefix("ws://").unwrap().split_once('/').unwrap().0;
        let mut stalled = tokio::net::TcpStream::connect(address).await.unwrap();
        let body = "{\"id\":1,\"connect\":{}}\n{\"id\":2,\"subscribe\":{\"channel\":\"chat:x\"}}";
        let head = format!(
            "POST /connection/http_stream HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stalled.write_all(head.as_bytes()).await.unwrap();
        while served.hub.stats().channels == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        publish_until(&served, |served| served.hub.stats().evicted_slow == 1).await;
        served.has_ended(3008, 1).await;
        assert_eq!(served.hub.stats().dropped, 0, "{limits}");
        // The client has received nothing since, and its connection is gone: it was reset, or ends after what has arrived.
        let ended = async {
            while served.server.stats().connections_open > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let mut rest = Vec::new();
            stalled.read_to_end(&mut rest).await
        };
        let ended = tokio::time::timeout(Duration::from_secs(5), ended).await;
        let _ = ended.expect("the server keeps the connection");
    }
}

/// A client over a pipe that carries 16 KiB every 100 ms to it: what it asks for takes many times `queue_time_max`.
fn slowly(hub: &Hub) -> DuplexStream {
    let ((client, near), (far, server)) = (tokio::io::duplex(16 << 10), tokio::io::duplex(16 << 10));
    let hub = hub.clone();
    tokio::spawn(wireloom::server::serve_connection(server, move |request| {
        let hub = hub.clone();
        async move { hub.answer(request).await }
    }));
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (tokio::io::split(near), tokio::io::split(far));
    tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
    tokio::spawn(async move {
        let mut buffer = vec![0; 16 << 10];
        loop {
            let len = from_server.read(&mut buffer).await.unwrap_or_default();
            if len == 0 || to_client.write_all(&buffer[..len]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    client
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_has_the_time_that_its_reply_takes() {
    let config = "[client]\nanonymous = true\nqueue_time_max = \"1s\"\n\
        [channel]\nsubscribe = \"anyone\"\nhistory_size = 100\nhistory_ttl = \"1h\"\n";
    let hub = Hub::builder().config(HubConfig::from_toml(config).unwrap()).build().unwrap();
    let padding = json!("x".repeat(32 << 10)).to_string();
    let channels = ["a", "b", "c", "d", "e", "f", "g"];
    for number in 0..70 {
        hub.publish(channels[number % channels.len()], padding.clone()).await.unwrap();
    }

    let begun = tokio::time::Instant::now();
    let socket = wireloom::connect_over(slowly(&hub), "ws://127.0.0.1/connection/websocket").await.unwrap();
    let mut client = Client::new(socket);
    client.call("connect", json!({})).await;
    for channel in channels {
        let subscribed = client.call("subscribe", json!({ "channel": channel, "recover": true })).await;
        assert_eq!(subscribed["publications"].as_array().unwrap().len(), 10);
    }
    assert!(begun.elapsed() > Duration::from_secs(5), "{:?}", begun.elapsed());

    let mut stream = slowly(&hub);
    let mut body = json!({ "id": 1, "connect": {} }).to_string();
    for channel in channels {
        body += &json!({ "id": 2, "subscribe": { "channel": channel, "recover": true } }).to_string();
    }
    let head = format!(
        "POST /connection/http_stream HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    let reading = async {
        while received.len() < 70 * padding.len() {
            let len = stream.read_buf(&mut received).await.unwrap();
            assert!(len > 0, "the end after {} bytes", received.len());
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reading).await.expect("all replies");
    assert_eq!((hub.stats().evicted_slow, hub.stats().clients), (0, 2));
}

#[tokio::test]
async fn evictions_by_joins_and_leaves_are_counted() {
    let limits = "[client]\nqueue_len_max = 65536\nqueue_time_max = \"10m\"\n";
    let served = Served::start(&CONFIG.replacen("[client]\n", limits, 1), |hub| {
        let info = json!("x".repeat(32 << 10)).to_string();
        hub.on_connect(move |_| {
            let info = info.clone().into();
            async move { Ok(ConnectGrant { info, ..ConnectGrant::default() }) }
        })
    })
    .await;
    let mut stalled = served.connect().await;
    stalled.call("subscribe", json!({ "channel": "chat:x", "join_leave": true })).await;
    let mut other = served.connect().await;
    for _ in 0..MESSAGES_MAX {
        if served.hub.stats().evicted_slow == 1 {
            break;
        }
        other.call("subscribe", json!({ "channel": "chat:x" })).await;
        other.call("unsubscribe", json!({ "channel": "chat:x" })).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    served.has_ended(3008, 1).await;
    assert_eq!(served.hub.stats().evicted_slow, 1);
    drop(stalled);
}

/// Waits until the hub has no subscribers, and publishes meanwhile.
async fn until_left(served: &Served) {
    let left = async {
        while served.hub.stats().channels > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), left).await.expect("the client has left");
}

#[tokio::test]
async fn the_end_of_an_event_stream_does_not_wait_for_its_reader() {
    for (queue_time_max, reason) in [("10m", 3001), ("300ms", 3008)] {
        let served =
            serve(&format!("queue_len_max = 1073741824\nqueue_time_max = \"{queue_time_max}\"")).await;
        let address = served.url.strip_prefix("ws://").unwrap().split('/').next().unwrap();
        let mut stalled = tokio::net::TcpStream::connect(address).await.unwrap();
        let connect = r#"{"subs":{"chat:x":{}}}"#;
        let request = format!(
            "POST /connection/uni_sse HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n{connect}",
            connect.len()
        );
        stalled.write_all(request.as_bytes()).await.unwrap();
        let padding = format!("\"{}\"", "x".repeat(1 << 20));
        // The client does not read: messages that exceed the buffers are queued.
        let mut published = 0;
        while served.hub.slowest(1).first().is_none_or(|slow| slow.queued_len < 8 << 20)
            && !served.hub.stats().ended.contains_key(&3008)
        {
            assert!(published < MESSAGES_MAX, "{:?}", served.hub.stats());
            published += 1;
            served.hub.publish("chat:x", padding.clone()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if reason == 3001 {
            let hub = served.hub.clone();
            tokio::spawn(async move { hub.shut_down(Duration::from_secs(30)).await });
        }
        until_left(&served).await;
        served.has_ended(reason, 1).await;
        drop(stalled);
    }
}

/// The queue is much longer than the number of messages that are taken at once.
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_ended_has_what_was_queued_before() {
    let config = "[client]\nanonymous = true\n[channel]\nsubscribe = \"anyone\"\n";
    let hub = Hub::builder().config(HubConfig::from_toml(config).unwrap()).build().unwrap();
    let mut stream = slowly(&hub);
    let connect = r#"{"subs":{"a":{}}}"#;
    let head = format!(
        "POST /connection/uni_http_stream HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{connect}",
        connect.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    while hub.stats().channels == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let padding = "x".repeat(10_000);
    for number in 0..50 {
        hub.publish("a", json!([number, padding]).to_string()).await.unwrap();
    }
    let ended = hub.clone();
    tokio::spawn(async move { ended.shut_down(Duration::from_secs(30)).await });
    let mut received = Vec::new();
    let reading = async {
        while !received.ends_with(b"\r\n0\r\n\r\n") {
            assert!(stream.read_buf(&mut received).await.unwrap() > 0);
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reading).await.expect("the end of the body");
    let body = unchunked(&received);
    let mut lines: Vec<serde_json::Value> =
        body.lines().map(|line| serde_json::from_str(line).expect("a whole line")).collect();
    assert_eq!(lines.pop().unwrap()["disconnect"]["code"], 3001);
    let numbers = lines.iter().filter_map(|line| line["pub"]["data"][0].as_u64());
    assert!(numbers.eq(0..50), "{} lines", lines.len());
}

/// The body of a response that has it in chunks.
fn unchunked(response: &[u8]) -> String {
    let response = std::str::from_utf8(response).unwrap();
    let (_, mut rest) = response.split_once("\r\n\r\n").unwrap();
    let mut body = String::new();
    while let Some((len, after)) = rest.split_once("\r\n") {
        let (chunk, after) = after.split_at(usize::from_str_radix(len, 16).unwrap());
        body += chunk;
        rest = &after[2..];
    }
    body
}

#[tokio::test]
async fn publications_are_dropped_where_that_is_the_policy() {
    for policy in ["drop-oldest", "drop-newest"] {
        let served =
            serve(&format!("queue_len_max = 65536\nqueue_time_max = \"10m\"\nslow = \"{policy}\"")).await;
        let stalled = subscribe(&served).await;
        let last = publish_until(&served, |served| served.hub.stats().dropped > 10).await;
        // The client reads again: it is still subscribed.
        let resumed = tokio::spawn(receive_until(stalled, last + 1));
        while !resumed.is_finished() {
            let publication = json!([last + 1, ""]).to_string();
            served.hub.publish("chat:x", publication).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let received = resumed.await.unwrap();
        assert!(received.is_sorted(), "{policy}: {received:?}");
        let missed = last + 1 - received.iter().filter(|number| **number <= last).count() as u64;
        assert!(missed > 10, "{policy}: {missed} missed");
        assert_eq!(received.contains(&last), policy == "drop-oldest", "{policy}");
        assert_eq!(served.hub.stats().evicted_slow, 0);
    }
}

/// The client of a command that waits for a lock stops reading. When the lock is free, the command gets it, and gives it back.
#[tokio::test]
async fn a_client_that_does_not_read_holds_up_no_other() {
    let held = Arc::new(tokio::sync::Mutex::new(()));
    let lock = held.clone();
    let served = Served::start(CONFIG, |hub| {
        hub.on_rpc(move |_| {
            let lock = lock.clone();
            async move {
                drop(lock.lock().await);
                Ok("{}".into())
            }
        })
    })
    .await;
    let address = served.url.strip_prefix("ws://").unwrap().split_once('/').unwrap().0.to_owned();
    let body =
        "{\"id\":1,\"connect\":{}}\n{\"id\":2,\"subscribe\":{\"channel\":\"chat:x\"}}\n{\"id\":3,\"rpc\":{}}";
    for is_stream in [false, true] {
        let guard = held.lock().await;
        let stalled = if is_stream {
            let mut stalled = tokio::net::TcpStream::connect(&address).await.unwrap();
            let head = format!(
                "POST /connection/http_stream HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stalled.write_all(head.as_bytes()).await.unwrap();
            (None, Some(stalled))
        } else {
            let mut socket = wireloom::connect(&served.url).await.unwrap();
            socket.send(body).await.unwrap();
            (Some(socket), None)
        };
        // Until the buffers of the system are full, and a write waits.
        let padding = format!("\"{}\"", "x".repeat(32 << 10));
        let mut stuck = 0;
        while stuck < 20 {
            let before = served.hub.slowest(1).first().map(|one| one.queued_len);
            served.hub.publish("chat:x", padding.clone()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
            let after = served.hub.slowest(1).first().map(|one| one.queued_len);
            stuck = if after > before && before.is_some() { stuck + 1 } else { 0 };
        }
        drop(guard);
        let locked = tokio::time::timeout(Duration::from_secs(5), held.lock()).await;
        assert!(locked.is_ok(), "{is_stream}");
        drop(stalled);
        while served.hub.stats().clients > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// More is published than the client's line carries: there is always something to write to it.
#[tokio::test(start_paused = true)]
async fn a_client_that_is_behind_can_unsubscribe() {
    for (policy, is_stream) in [("drop-oldest", false), ("drop-newest", false), ("drop-oldest", true)] {
        let config = format!(
            "[client]\nanonymous = true\nqueue_len_max = 65536\nslow = \"{policy}\"\n[channel]\nsubscribe = \"anyone\"\n"
        );
        let hub = Hub::builder().config(HubConfig::from_toml(&config).unwrap()).build().unwrap();
        let flow = hub.clone();
        let flow = tokio::spawn(async move {
            let padding = json!("x".repeat(32 << 10)).to_string();
            loop {
                flow.publish("a", padding.clone()).await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let unsubscribed = async {
            if is_stream {
                unsubscribe_beside_a_stream(&hub).await;
            } else {
                let url = "ws://127.0.0.1/connection/websocket";
                let mut client = Client::new(wireloom::connect_over(slowly(&hub), url).await.unwrap());
                client.call("connect", json!({})).await;
                client.call("subscribe", json!({ "channel": "a" })).await;
                while hub.stats().dropped < 100 {
                    client.receive().await;
                }
                client.call("unsubscribe", json!({ "channel": "a" })).await;
            }
        };
        let unsubscribed = tokio::time::timeout(Duration::from_secs(60), unsubscribed).await;
        assert!(unsubscribed.is_ok() && hub.stats().channels == 0, "{policy} {is_stream}: {:?}", hub.stats());
        assert_eq!(hub.stats().evicted_slow, 0);
        flow.abort();
    }
}

/// However much is queued for it: not all of that is written before it is read.
#[tokio::test(start_paused = true)]
async fn a_client_that_is_far_behind_unsubscribes_at_once() {
    let config = "[client]\nanonymous = true\nqueue_len_max = 1048576\nslow = \"drop-oldest\"\n[channel]\nsubscribe = \"anyone\"\n";
    let hub = Hub::builder().config(HubConfig::from_toml(config).unwrap()).build().unwrap();
    let flow = hub.clone();
    let flow = tokio::spawn(async move {
        let padding = json!("x".repeat(8 << 10)).to_string();
        loop {
            flow.publish("a", padding.clone()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let url = "ws://127.0.0.1/connection/websocket";
    let mut client = Client::new(wireloom::connect_over(slowly(&hub), url).await.unwrap());
    client.call("connect", json!({})).await;
    client.call("subscribe", json!({ "channel": "a" })).await;
    while hub.stats().dropped < 1_200 {
        client.receive().await;
    }
    let unsubscribe = json!({ "id": 100, "unsubscribe": { "channel": "a" } }).to_string();
    client.socket.send(&unsubscribe).await.unwrap();
    let begun = tokio::time::Instant::now();
    while hub.stats().channels > 0 {
        client.receive().await;
    }
    // The whole queue takes six seconds.
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    flow.abort();
}

async fn unsubscribe_beside_a_stream(hub: &Hub) {
    let post = async |path: &str, body: String| {
        let mut stream = slowly(hub);
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    };
    let body = "{\"id\":1,\"connect\":{}}\n{\"id\":2,\"subscribe\":{\"channel\":\"a\"}}".to_owned();
    let mut stream = post("/connection/http_stream", body).await;
    let mut received = Vec::new();
    let session = loop {
        assert!(stream.read_buf(&mut received).await.unwrap() > 0);
        let text = String::from_utf8_lossy(&received);
        if let Some((_, rest)) = text.split_once("\"session\":\"")
            && let Some((session, _)) = rest.split_once('"')
        {
            break session.to_owned();
        }
    };
    let reading = tokio::spawn(async move { tokio::io::copy(&mut stream, &mut tokio::io::sink()).await });
    let until = async |is_so: &dyn Fn() -> bool| {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    until(&|| hub.stats().dropped >= 100).await;
    let commands = json!({ "id": 3, "unsubscribe": { "channel": "a" } }).to_string();
    let sent = post("/emulation", json!({ "session": session, "data": commands }).to_string()).await;
    until(&|| hub.stats().channels == 0).await;
    assert!(!reading.is_finished());
    drop(sent);
}
