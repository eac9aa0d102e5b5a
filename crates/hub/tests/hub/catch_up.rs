//! Clients that read at once, and whose replies are together longer than their send queue.

use std::collections::BTreeMap;
use std::time::Duration;

use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::streams::Stream;
use super::{Client, Served};

const CONFIG: &str = r#"
[client]
anonymous = true
queue_len_max = 65536

[token]
hmac_secret = "secret"

[[namespace]]
name = "log"
subscribe = "anyone"
history_size = 100
history_ttl = "1h"
history_access = "anyone"
force_recovery = true
"#;

const CHANNELS: usize = 10;
const PER_CHANNEL: usize = 4;
/// One channel alone is shorter than the queue.
const LEN: usize = 10_000;

fn channel(number: usize) -> String {
    format!("log:{number}")
}

async fn fill(served: &Served) -> Vec<Value> {
    let data = json!("x".repeat(LEN)).to_string();
    let mut positions = Vec::new();
    for number in 0..CHANNELS {
        for _ in 0..PER_CHANNEL {
            let position = served.hub.publish(&channel(number), data.clone()).await.unwrap();
            positions.push(position.epoch);
        }
    }
    let epochs = positions.into_iter().step_by(PER_CHANNEL).enumerate();
    let from = |(number, epoch)| json!({ "channel": channel(number), "recover": true, "recoverable": true, "offset": 0, "epoch": epoch });
    epochs.map(from).collect()
}

fn frame(method: &str, requests: &[Value]) -> String {
    let commands = requests.iter().zip(100..).map(|(request, id)| json!({ "id": id, method: request }));
    commands.map(|command| command.to_string()).collect::<Vec<_>>().join("\n")
}

/// The number of recovered publications, from replies or pushes, by channel.
#[derive(Default)]
struct Recovered(BTreeMap<String, usize>);

impl Recovered {
    fn add(&mut self, channel: &str, publications: &Value) {
        *self.0.entry(channel.to_owned()).or_default() += publications.as_array().map_or(0, Vec::len);
    }

    /// Adds what a client that only receives was sent.
    fn add_push(&mut self, push: &Value) {
        assert!(push["disconnect"].is_null(), "{push}");
        for (channel, sub) in push["connect"]["subs"].as_object().into_iter().flatten() {
            assert_eq!(sub["recovered"], true, "{channel}");
            self.add(channel, &sub["publications"]);
        }
        if let Some(channel) = push["channel"].as_str() {
            *self.0.entry(channel.to_owned()).or_default() += usize::from(!push["pub"].is_null());
        }
    }

    fn is_complete(&self) -> bool {
        self.0.len() == CHANNELS && self.0.values().all(|&count| count == PER_CHANNEL)
    }
}

fn recovered(replies: impl IntoIterator<Item = Value>, channels: &[Value]) -> Recovered {
    let mut recovered = Recovered::default();
    for (reply, request) in replies.into_iter().zip(channels) {
        assert_eq!(reply["subscribe"]["recovered"], true);
        recovered.add(request["channel"].as_str().unwrap(), &reply["subscribe"]["publications"]);
    }
    recovered
}

async fn replies(client: &mut Client, count: usize) -> Vec<Value> {
    let mut replies = Vec::new();
    while replies.len() < count {
        let reply = client.receive().await;
        if reply["push"].is_null() {
            assert_eq!(reply["id"], 100 + replies.len(), "in the order of the commands");
            replies.push(reply);
        }
    }
    replies
}

#[tokio::test]
async fn all_channels_of_one_frame_recover() {
    let served = Served::start(CONFIG, |hub| hub).await;
    let requests = fill(&served).await;
    let mut client = served.connect().await;
    client.socket.send(&frame("subscribe", &requests)).await.unwrap();
    let received = replies(&mut client, CHANNELS).await;
    assert!(recovered(received, &requests).is_complete());

    let (mut stream, _) = Stream::connect(&served, "/connection/http_stream", json!({})).await;
    assert_eq!(stream.send(&frame("subscribe", &requests)).await, 204);
    let mut received = Vec::new();
    for _ in 0..CHANNELS {
        received.push(stream.next().await);
    }
    assert!(recovered(received, &requests).is_complete());

    // Other replies that are long.
    client
        .socket
        .send(&frame("history", &vec![json!({ "channel": channel(0), "limit": -1 }); 5]))
        .await
        .unwrap();
    for reply in replies(&mut client, 5).await {
        assert_eq!(reply["history"]["publications"].as_array().unwrap().len(), PER_CHANNEL);
    }
    assert_eq!(served.hub.stats().evicted_slow, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publications_meanwhile_do_not_evict_a_client_that_reads() {
    let served = Served::start(CONFIG, |hub| hub).await;
    let requests = fill(&served).await;
    let mut client = served.connect().await;
    client.call("subscribe", json!({ "channel": "log:live" })).await;
    let hub = served.hub.clone();
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let publisher = tokio::spawn(async move {
        let data = json!("y".repeat(LEN)).to_string();
        let mut count = 0;
        while stopped.try_recv().is_err() {
            hub.publish("log:live", data.clone()).await.unwrap();
            count += 1;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        count
    });
    for _ in 0..5 {
        client.socket.send(&frame("subscribe", &requests)).await.unwrap();
        let received = replies(&mut client, CHANNELS).await;
        assert!(recovered(received, &requests).is_complete());
        for request in &requests {
            client.call("unsubscribe", json!({ "channel": request["channel"] })).await;
        }
    }
    stop.send(()).unwrap();
    let published = publisher.await.unwrap();
    while client.publications.len() < published {
        client.receive().await;
    }
    assert_eq!(served.hub.stats().evicted_slow, 0);
}

fn subs(requests: &[Value]) -> Value {
    requests
        .iter()
        .map(|request| (request["channel"].as_str().unwrap().to_owned(), request.clone()))
        .collect()
}

#[tokio::test]
async fn clients_that_only_receive_recover_every_channel() {
    let served = Served::start(CONFIG, |hub| hub).await;
    let requests = fill(&served).await;
    let subs = subs(&requests);
    let channels: Vec<_> = (0..CHANNELS).map(channel).collect();
    let claims = json!({ "sub": "7", "channels": channels });
    let token = encode(&Header::default(), &claims, &EncodingKey::from_secret(b"secret")).unwrap();
    for connect in [json!({ "subs": subs }), json!({ "subs": subs, "token": token })] {
        let url = served.url.replace("/connection/websocket", "/connection/uni_websocket");
        let mut client = Client::new(wireloom::connect(&url).await.unwrap());
        client.socket.send(&connect.to_string()).await.unwrap();
        let mut recovered = Recovered::default();
        while !recovered.is_complete() {
            recovered.add_push(&client.receive().await);
        }
        for path in ["/connection/uni_http_stream", "/connection/uni_sse"] {
            let mut stream = Stream::open(&served, path, &connect.to_string()).await;
            let mut recovered = Recovered::default();
            while !recovered.is_complete() {
                recovered.add_push(&stream.next().await);
            }
        }
    }
    assert_eq!(served.hub.stats().evicted_slow, 0);
}

#[tokio::test]
async fn a_connect_reply_is_bounded_and_says_what_it_leaves_out() {
    let config = CONFIG.replace("65536", "8192");
    let served = Served::start(&config, |hub| hub).await;
    let requests = fill(&served).await;
    let channels: Vec<_> = (0..CHANNELS).map(channel).collect();
    let claims = json!({ "sub": "7", "channels": channels });
    let token = encode(&Header::default(), &claims, &EncodingKey::from_secret(b"secret")).unwrap();
    let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
    let connected = client.call("connect", json!({ "token": token, "subs": subs(&requests) })).await;
    let subs = connected["subs"].as_object().unwrap();
    assert_eq!(subs.len(), CHANNELS);
    let count = |sub: &Value| sub["publications"].as_array().map_or(0, Vec::len);
    let all = subs.values().filter(|sub| sub["recovered"] == true && count(sub) == PER_CHANNEL).count();
    let none = subs.values().filter(|sub| {
        sub["recovered"] != true
            && sub["was_recovering"] == true
            && count(sub) == 0
            && sub["offset"] == PER_CHANNEL
    });
    // 8 * 8192 bytes are exceeded by the second channel.
    assert_eq!((all, none.count()), (1, CHANNELS - 1), "{connected}");
}

/// One publication is sent however long it is.
#[tokio::test]
async fn a_reply_is_bounded_and_a_client_reads_on() {
    for (queue_len_max, count, recovers) in [(65_536, PER_CHANNEL, true), (4_096, 3, false), (512, 1, false)]
    {
        let served = Served::start(&CONFIG.replace("65536", &queue_len_max.to_string()), |hub| hub).await;
        let requests = fill(&served).await;
        let mut client = served.connect().await;
        for reverse in [false, true] {
            let mut offsets = Vec::new();
            let mut request = json!({ "channel": channel(0), "limit": -1, "reverse": reverse });
            while offsets.len() < PER_CHANNEL {
                let history = client.call("history", request.clone()).await;
                let publications = history["publications"].as_array().unwrap();
                assert_eq!(publications.len(), count.min(PER_CHANNEL - offsets.len()), "{queue_len_max}");
                offsets.extend(publications.iter().map(|one| one["offset"].as_u64().unwrap()));
                request["since"] = json!({ "offset": offsets.last(), "epoch": history["epoch"] });
            }
            assert!(offsets.is_sorted_by(|one, next| (one < next) != reverse), "{offsets:?}");
        }
        let recovered = client.call("subscribe", requests[0].clone()).await;
        assert_eq!(recovered["recovered"] == true, recovers, "{queue_len_max}");
        assert_eq!(
            recovered["publications"].as_array().map_or(0, Vec::len),
            if recovers { PER_CHANNEL } else { 0 }
        );
    }
}

/// The bound is the queue and one reply, for those that are written and once more for those that wait.
#[tokio::test]
async fn a_client_that_does_not_read_its_replies_is_held_and_evicted() {
    let config = CONFIG.replace("[client]", "[client]\nqueue_time_max = \"2s\"\ncommands_per_s_max = 100000");
    let served = Served::start(&config, |hub| hub).await;
    fill(&served).await;
    let mut reader = served.connect().await;
    let mut stalled = served.connect().await;
    let commands = vec![json!({ "channel": channel(0), "limit": -1 }); 500];
    let commands = frame("history", &commands);
    // Sockets hold some megabytes, these replies are 20 MB each time.
    stalled.socket.send(&commands).await.unwrap();
    stalled.socket.send(&commands).await.unwrap();
    let reply_len = PER_CHANNEL * (LEN + 100);
    let mut longest = 0;
    while served.hub.stats().evicted_slow == 0 {
        longest = served.hub.slowest(1).first().map_or(0, |slow| slow.queued_len).max(longest);
        reader.call("ping", json!({})).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(longest > 0 && longest <= 2 * (65_536 + reply_len), "{longest}");
    served.has_ended(3008, 1).await;
}
