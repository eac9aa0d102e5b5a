//! Clients that break the rules: each is refused with its code, and counted.

use std::sync::{Arc, Mutex};

use serde_json::json;
use wireloom::{Connector, WebSocketError};

use super::{CONFIG, Client, Served};

/// Sends one message, after the connect command or instead of it, and returns the code that ends the connection.
async fn code_after(served: &Served, message: &[u8], is_binary: bool) -> u16 {
    let mut connector = Connector::new();
    if is_binary {
        connector = connector.subprotocol("centrifuge-protobuf");
    }
    let mut socket = connector.connect(&served.url).await.unwrap();
    match std::str::from_utf8(message) {
        Ok(text) if !is_binary => socket.send(text).await.unwrap(),
        _ => socket.send(message).await.unwrap(),
    }
    Client::new(socket).ended().await
}

#[tokio::test]
async fn malformed_messages_end_the_connection() {
    let served = Served::start(CONFIG, |hub| hub).await;
    let deep = format!("{{\"id\":1,\"connect\":{{\"data\":{}", "[".repeat(5_000));
    let json: &[&[u8]] = &[
        b"",
        b" \n",
        b"{",
        b"[]",
        b"null",
        b"1",
        b"{\"id\":1}",
        b"{}",
        b"{\"id\":-1,\"connect\":{}}",
        b"{\"id\":1,\"connect\":{\"token\":1}}",
        b"{\"connect\":{}}",
        b"{\"id\":1,\"subscribe\":{\"channel\":\"chat:x\"}}",
        b"{\"id\":99999999999,\"connect\":{}}",
        deep.as_bytes(),
    ];
    let protobuf: &[&[u8]] = &[
        b"",
        &[1],
        &[0x80],
        &[2, 8, 0x80],
        &[3, 0x22, 9, 0],
        &[0xff; 10],
        &[2, 8, 1],
        &[0],
        &[4, 8, 1, 0x22, 0x7f],
    ];
    let mut count = 0;
    for (messages, is_binary) in [(json, false), (protobuf, true)] {
        for message in messages {
            assert_eq!(code_after(&served, message, is_binary).await, 3501, "{}", message.escape_ascii());
            count += 1;
        }
    }
    served.has_ended(3501, count).await;
    assert_eq!(served.hub.stats().clients, 0);
}

#[tokio::test]
async fn a_second_connect_and_an_unsolicited_reply_end_the_connection() {
    let served = Served::start(CONFIG, |hub| hub).await;
    for message in [r#"{"id":9,"connect":{}}"#, r#"{"publish":{"channel":"chat:x","data":1}}"#] {
        let mut client = served.connect().await;
        client.socket.send(message).await.unwrap();
        assert_eq!(client.ended().await, 3501, "{message}");
    }
    served.has_ended(3501, 2).await;
}

#[tokio::test]
async fn unknown_commands_are_refused() {
    let served = Served::start(CONFIG, |hub| hub).await;
    let mut client = served.connect().await;
    for method in ["teleport", "sudo", ""] {
        assert_eq!(client.reply(method, json!({})).await["error"]["code"], 104, "{method}");
    }
    assert_eq!(served.hub.stats().refused[&104], 3);
}

#[tokio::test]
async fn oversized_names_and_messages_are_refused() {
    let served = Served::start(CONFIG, |hub| hub).await;
    let mut client = served.connect().await;
    for (len, code) in [(20, None), (21, Some(106)), (5_000, Some(106))] {
        let channel = format!("chat:{}", "x".repeat(len - 5));
        for method in ["subscribe", "publish"] {
            let reply = client.reply(method, json!({ "channel": channel, "data": 1 })).await;
            assert_eq!(reply["error"]["code"].as_u64(), code, "{method} {len}");
        }
    }
    assert_eq!(served.hub.stats().refused[&106], 4);
    for channel in ["chat:a", "chat:b"] {
        client.call("subscribe", json!({ "channel": channel })).await;
    }
    let reply = client.reply("subscribe", json!({ "channel": "chat:c" })).await;
    assert_eq!(reply["error"]["code"], 106, "a connection has three channels at most");

    let command = |len: usize| {
        let around = r#"{"id":90,"publish":{"channel":"chat:x","data":""}}"#.len();
        format!(r#"{{"id":90,"publish":{{"channel":"chat:x","data":"{}"}}}}"#, "x".repeat(len - around))
    };
    client.socket.send(&command(10_000)).await.unwrap();
    while client.receive().await["id"] != 90 {}
    client.socket.send(&command(10_001)).await.unwrap();
    assert_eq!(client.ended().await, 1009);
    served.has_ended(1009, 1).await;
}

#[tokio::test]
async fn histories_are_bounded_in_bytes() {
    let log = "[[namespace]]\nname = \"log\"\nhistory_size = 100\nhistory_ttl = \"1h\"\nhistory_access = \"anyone\"\n";
    let served = Served::start(&format!("{CONFIG}{log}[history]\nlen_max = 110000\n"), |hub| hub).await;
    let large = json!("x".repeat(30_000)).to_string();
    for offset in 1..=10 {
        assert_eq!(served.hub.publish("log:x", large.clone()).await.unwrap().offset, offset);
    }
    let mut client = served.connect().await;
    let history = client.call("history", json!({ "channel": "log:x", "limit": -1 })).await;
    let offsets = history["publications"].as_array().unwrap().iter().map(|one| &one["offset"]);
    assert_eq!(offsets.collect::<Vec<_>>(), [8, 9, 10]);
    assert_eq!(history["offset"], 10);
}

#[tokio::test]
async fn floods_of_publications_and_subscriptions_end_the_connection() {
    // Otherwise a flood of publications is slowed down before it exceeds the rate of commands.
    let config = CONFIG.replace("name = \"chat\"", "name = \"chat\"\npublications_per_s_max = 0");
    let served = Served::start(&config, |hub| hub).await;
    let floods = [
        (0..3_000)
            .map(|n| json!({ "id": n + 2, "publish": { "channel": "chat:x", "data": n } }))
            .collect::<Vec<_>>(),
        (0..3_000)
            .map(|n| match n % 2 {
                0 => json!({ "id": n + 2, "subscribe": { "channel": "chat:x" } }),
                _ => json!({ "id": n + 2, "unsubscribe": { "channel": "chat:x" } }),
            })
            .collect(),
        (0..3_000).map(|n| json!({ "id": n + 2, "ping": {} })).collect(),
    ];
    let mut others = served.connect().await;
    let begin = std::time::Instant::now();
    for (count, commands) in floods.into_iter().enumerate() {
        let mut client = served.connect().await;
        for command in commands {
            // The server may have ended the connection.
            match client.socket.send(&command.to_string()).await {
                Ok(())
                | Err(WebSocketError::Closed | WebSocketError::ConnectionLost | WebSocketError::Io(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(client.ended().await, 3013);
        served.has_ended(3013, count as u64 + 1).await;
        // Other clients are not affected.
        others.call("ping", json!({})).await;
    }
    // The saved budget of five seconds, and 200 for each second since.
    let allowed = 1_000 + (200.0 * begin.elapsed().as_secs_f64()) as u64;
    assert!(served.hub.stats().publications <= allowed, "{:?}", served.hub.stats());
}

/// The commands of one message may take long: other clients have their turns in between.
#[tokio::test]
async fn clients_take_turns_while_one_reads_much() {
    let config = format!(
        "{CONFIG}\n[[namespace]]\nname = \"log\"\nsubscribe = \"anyone\"\npresence = true\nhistory_size = 10\nhistory_ttl = \"1h\"\n"
    );
    // Room for enough turns that the runtime polls its I/O driver in between.
    let config = config
        .replace("commands_per_s_max = 200", "commands_per_s_max = 100000")
        .replace("message_len_max = 10000", "message_len_max = 500000")
        .replace("[client]", "[client]\nqueue_len_max = \"64M\"");
    let (begun, mut begin) = tokio::sync::mpsc::unbounded_channel();
    let order = Arc::<Mutex<Vec<String>>>::default();
    let called = order.clone();
    let served = Served::start(&config, |hub| {
        hub.on_rpc(move |event| {
            called.lock().unwrap().push(event.method.clone());
            let _ = begun.send(());
            async { Ok("1".into()) }
        })
    })
    .await;
    for (method, request) in [
        ("presence", json!({ "channel": "log:x" })),
        ("presence_stats", json!({ "channel": "log:x" })),
        ("history", json!({ "channel": "log:x", "limit": -1 })),
        ("subscribe", json!({ "channel": "log:x" })),
    ] {
        let (mut greedy, mut other) = (served.connect().await, served.connect().await);
        greedy.call("subscribe", json!({ "channel": "log:x" })).await;
        let reads = (0..2_000).map(|id| json!({ "id": id + 10, method: request.clone() }));
        let call = |id: u32, name: &str| json!({ "id": id, "rpc": { "method": name } });
        let all = std::iter::once(call(8_000, "begin")).chain(reads).chain([call(8_001, "end")]);
        let message = all.map(|command| command.to_string()).collect::<Vec<_>>().join("\n");
        greedy.socket.send(&message).await.unwrap();
        begin.recv().await.unwrap();
        other.socket.send(&call(8_000, "other").to_string()).await.unwrap();
        for _ in 0..2 {
            begin.recv().await.unwrap();
        }
        assert_eq!(std::mem::take(&mut *order.lock().unwrap()), ["begin", "other", "end"], "{method}");
    }
}

#[tokio::test]
async fn a_client_that_never_connects_is_disconnected() {
    let config = CONFIG.replace("[client]", "[client]\nstale_after = \"500ms\"");
    let served = Served::start(&config, |hub| hub).await;
    let socket = wireloom::connect(&served.url).await.unwrap();
    assert_eq!(Client::new(socket).ended().await, 3502);
    served.has_ended(3502, 1).await;
}

#[tokio::test]
async fn forged_and_expired_tokens_are_refused() {
    // {"alg":"none"}, a signature by another secret, and text that is no token.
    let forged = [
        "eyJhbGciOiJub25lIn0.eyJzdWIiOiI0MiJ9.",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI0MiJ9.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        "x",
    ];
    let served = Served::start(CONFIG, |hub| hub).await;
    for token in forged {
        let mut socket = wireloom::connect(&served.url).await.unwrap();
        socket.send(&json!({ "id": 1, "connect": { "token": token } }).to_string()).await.unwrap();
        assert_eq!(Client::new(socket).ended().await, 3500, "{token}");
    }
    served.has_ended(3500, 3).await;
    let mut client = served.connect().await;
    for token in forged {
        for (method, request) in [
            ("refresh", json!({ "token": token })),
            ("subscribe", json!({ "channel": "private:x", "token": token })),
        ] {
            assert_eq!(client.reply(method, request).await["error"]["code"], 103, "{method} {token}");
        }
    }
    assert_eq!(served.hub.stats().refused[&103], 6);
}
