//! The client of this crate, against a hub behind a server on loopback.

#![cfg(feature = "client")]
#![allow(clippy::unwrap_used)]

mod relay;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::{Value, json};
use wireloom::client::Request;
use wireloom::{Connector, Response, Server};
use wireloom_hub::protocol::Publication;
use wireloom_hub::sdk::{
    ClientBuilder, ClientError, ClientEvent, SubscribeOptions, Subscription, SubscriptionEvent,
};
use wireloom_hub::{Client, HistoryQuery, Hub, HubConfig};

use self::relay::Relay;

const CONFIG: &str = r#"
client.anonymous = true
client.queue_len_max = "64M"
token.hmac_secret = "secret"
api.key = "key"

[[namespace]]
name = "log"
subscribe = "anyone"
publish = "anyone"
presence = true
presence_access = "anyone"
join_leave = true
history_access = "anyone"
history_size = 10000
history_ttl = "1h"
force_recovery = true
allowed_delta_types = ["fossil"]
publications_per_s_max = 0
publication_bytes_per_s_max = 0

[[namespace]]
name = "private"

[[namespace]]
name = "short"
subscribe = "anyone"
history_size = 5
history_ttl = "1h"
force_recovery = true

[[namespace]]
name = "unrecovered"
history_size = 5
history_ttl = "1h"
"#;

struct Served {
    hub: Hub,
    url: String,
}

impl Served {
    async fn start() -> Self {
        let hub = Hub::builder().config(HubConfig::from_toml(CONFIG).unwrap());
        let hub = hub.on_rpc(|event| async move { Ok(event.data) }).build().unwrap();
        let server = Server::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/connection/websocket", server.local_addr().unwrap());
        let answering = hub.clone();
        tokio::spawn(server.serve(move |request| {
            let hub = answering.clone();
            async move { hub.answer(request).await }
        }));
        Self { hub, url }
    }

    fn builder(&self) -> ClientBuilder {
        Client::builder(&self.url)
            .timeout(Duration::from_secs(20))
            .reconnect_delay(Duration::from_millis(5), Duration::from_millis(50))
    }

    async fn api(&self, method: &str, body: Value) {
        let url =
            self.url.replace("ws://", "http://").replace("/connection/websocket", &format!("/api/{method}"));
        let request = Request::post(url, body.to_string()).header("x-api-key", "key");
        assert_eq!(Connector::new().request(request).await.unwrap().status, 200, "{method}");
    }

    async fn has_channels(&self, count: usize) {
        let waiting = async {
            while self.hub.stats().channels != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("the number of channels");
    }
}

fn token(claims: &Value) -> String {
    encode(&Header::default(), claims, &EncodingKey::from_secret(b"secret")).unwrap()
}

fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

async fn next(subscription: &mut Subscription) -> SubscriptionEvent {
    let event = tokio::time::timeout(Duration::from_secs(20), subscription.next()).await;
    event.expect("an event within 20 s").expect("the subscription has ended")
}

async fn publication(subscription: &mut Subscription) -> Publication {
    loop {
        if let SubscriptionEvent::Publication(publication) = next(subscription).await {
            return publication;
        }
    }
}

/// The next publications, which are the numbers of this range.
async fn expect_numbers(subscription: &mut Subscription, range: std::ops::Range<u64>) {
    for number in range {
        assert_eq!(publication(subscription).await.data, number.to_string().as_bytes());
    }
}

#[tokio::test]
async fn a_client_talks_over_each_version_of_http() {
    let served = Served::start().await;
    for is_http2 in [false, true] {
        let client = served.builder().connector(Connector::new().http2(is_http2)).start();
        client.connected().await.unwrap();
        let channel = format!("log:{is_http2}");
        let mut subscription = client.subscribe(&channel, SubscribeOptions::default().joins()).await.unwrap();
        let SubscriptionEvent::Subscribed(first) = next(&mut subscription).await else { panic!() };
        assert!(!first.was_recovering && !first.has_gap() && !first.position.epoch.is_empty());
        client.publish(&channel, r#"{"n": 1}"#).await.unwrap();
        let received = publication(&mut subscription).await;
        assert_eq!((&received.data[..], received.offset), (&br#"{"n": 1}"#[..], 1));
        let id = received.info.unwrap().client;
        assert!(client.presence(&channel).await.unwrap().contains_key(&id));
        assert_eq!(client.presence_stats(&channel).await.unwrap().num_clients, 1);
        let query = HistoryQuery { limit: Some(10), ..HistoryQuery::default() };
        let history = client.history(&channel, &query).await.unwrap();
        assert_eq!((history.publications.len(), history.position.offset), (1, 1));
        assert_eq!(client.rpc("echo", "[1,2]").await.unwrap(), &b"[1,2]"[..]);
        client.send("5").await.unwrap();
        let other = served.builder().start();
        let theirs = other.subscribe(&channel, SubscribeOptions::default()).await.unwrap();
        let joined = loop {
            if let SubscriptionEvent::Join(info) = next(&mut subscription).await
                && info.client != id
            {
                break info.client;
            }
        };
        drop(theirs);
        let left = loop {
            if let SubscriptionEvent::Leave(info) = next(&mut subscription).await {
                break info.client;
            }
        };
        assert_eq!(left, joined);
        assert_eq!(client.publish(&channel, "{").await, Err(ClientError::InvalidJson));
        drop((subscription, client, other));
        served.has_channels(0).await;
    }
}

#[tokio::test]
async fn a_client_recovers_exactly_what_it_missed() {
    let served = Served::start().await;
    let relay = Relay::start(&served.url).await;
    for deltas in [false, true] {
        let channel = format!("log:{deltas}");
        let builder = Client::builder(relay.url()).timeout(Duration::from_secs(20));
        let client = builder.reconnect_delay(Duration::from_millis(5), Duration::from_millis(50)).start();
        let options = SubscribeOptions::default();
        let options = if deltas { options.deltas() } else { options };
        let mut subscription = client.subscribe(&channel, options).await.unwrap();
        let text = |n: u64| format!(r#"{{"always": "{}", "n": {n}}}"#, "the same ü ".repeat(30));
        let mut received = Vec::new();
        let mut recoveries = 0;
        for n in 1..=300 {
            served.hub.publish(&channel, text(n)).await.unwrap();
            if n % 50 == 0 {
                relay.cut();
            }
        }
        while received.len() < 300 {
            match next(&mut subscription).await {
                SubscriptionEvent::Publication(one) => {
                    assert_eq!(one.data, text(one.offset));
                    received.push(one.offset);
                }
                SubscriptionEvent::Subscribed(subscribed) => {
                    assert!(!subscribed.has_gap());
                    recoveries += usize::from(subscribed.recovered);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(received, (1..=300).collect::<Vec<_>>());
        assert!(recoveries > 0);
    }
}

#[tokio::test]
async fn a_client_is_told_what_it_cannot_recover() {
    let served = Served::start().await;
    let relay = Relay::start(&served.url).await;
    let builder = Client::builder(relay.url());
    let client = builder.reconnect_delay(Duration::from_millis(5), Duration::from_millis(50)).start();
    let mut subscription = client.subscribe("short:x", SubscribeOptions::default()).await.unwrap();
    assert!(matches!(next(&mut subscription).await, SubscriptionEvent::Subscribed(_)));
    relay.refuse();
    served.has_channels(0).await;
    for n in 0..10 {
        served.hub.publish("short:x", n.to_string()).await.unwrap();
    }
    relay.accept();
    let SubscriptionEvent::Subscribed(again) = next(&mut subscription).await else { panic!() };
    assert!(again.has_gap() && again.position.offset == 10, "{again:?}");
}

#[tokio::test]
async fn tokens_are_renewed_without_an_interruption() {
    let served = Served::start().await;
    let made: [Arc<AtomicUsize>; 2] = Default::default();
    let [connections, subscriptions] = made.clone();
    let client = served
        .builder()
        .token_source(move || {
            connections.fetch_add(1, Ordering::Relaxed);
            async { Ok(token(&json!({ "sub": "7", "exp": now() + 2 }))) }
        })
        .start();
    let mut events = client.events().await.unwrap();
    let options = SubscribeOptions::default().token_source(move || {
        subscriptions.fetch_add(1, Ordering::Relaxed);
        async { Ok(token(&json!({ "sub": "7", "channel": "private:x", "exp": now() + 2 }))) }
    });
    let mut subscription = client.subscribe("private:x", options).await.unwrap();
    while made.iter().any(|made| made.load(Ordering::Relaxed) < 3) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    served.hub.publish("private:x", "1").await.unwrap();
    assert!(matches!(next(&mut subscription).await, SubscriptionEvent::Subscribed(_)));
    assert!(matches!(next(&mut subscription).await, SubscriptionEvent::Publication(_)));
    assert!(matches!(events.next().await, Some(ClientEvent::Connected { .. })));
    client.disconnect().await;
    let end = events.next().await;
    assert_eq!(end, Some(ClientEvent::Disconnected { code: 0, reason: "closed".into() }));
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn what_is_refused_for_good_is_not_tried_again() {
    let served = Served::start().await;
    let client = served.builder().token("x").start();
    let error = ClientError::Disconnected { code: 3500, reason: "invalid token".into() };
    assert_eq!(client.connected().await, Err(error.clone()));
    assert_eq!(client.publish("log:x", "1").await, Err(error));
    let expired = served.builder().token(token(&json!({ "sub": "7", "exp": 1 }))).start();
    assert!(matches!(expired.connected().await, Err(ClientError::Disconnected { code: 109, .. })));

    let client = served.builder().token(token(&json!({ "sub": "7" }))).start();
    let refused = client.subscribe("private:x", SubscribeOptions::default()).await.unwrap_err();
    assert!(matches!(&refused, ClientError::Refused(error) if error.code == 103), "{refused}");
    let refused = client.history("private:x", &HistoryQuery::default()).await.unwrap_err();
    assert!(matches!(&refused, ClientError::Refused(error) if error.code == 108), "{refused}");
    let mut subscription = client.subscribe("log:x", SubscribeOptions::default()).await.unwrap();
    let twice = client.subscribe("log:x", SubscribeOptions::default()).await.unwrap_err();
    assert_eq!(twice, ClientError::AlreadySubscribed);
    // Its drop has not ended the first.
    client.publish("log:x", "1").await.unwrap();
    publication(&mut subscription).await;
    // The server ends a subscription, then the connection.
    served.api("unsubscribe", json!({ "user": "7", "channel": "log:x" })).await;
    let end = next(&mut subscription).await;
    assert_eq!(end, SubscriptionEvent::Unsubscribed { code: 2000, reason: "server unsubscribe".into() });
    assert_eq!(subscription.next().await, None);
    let mut again = client.subscribe("log:x", SubscribeOptions::default()).await.unwrap();
    assert!(matches!(next(&mut again).await, SubscriptionEvent::Subscribed(_)));
    served.api("disconnect", json!({ "user": "7" })).await;
    let end = next(&mut again).await;
    assert_eq!(end, SubscriptionEvent::Unsubscribed { code: 3503, reason: "force disconnect".into() });
    assert!(matches!(client.connected().await, Err(ClientError::Disconnected { code: 3503, .. })));
}

#[tokio::test]
async fn a_connection_that_cannot_be_made_is_not_tried_again() {
    let served = Served::start().await;
    for (url, reason) in [("ws//typo".to_owned(), "neither"), (format!("{}/nowhere", served.url), "404")] {
        let client = Client::builder(url).reconnect_delay(Duration::ZERO, Duration::ZERO).start();
        let connected = tokio::time::timeout(Duration::from_secs(20), client.connected()).await;
        let error = connected.expect("it is tried forever").unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

// Such as of a load balancer while its servers restart.
#[tokio::test]
async fn a_client_that_was_connected_outlives_every_response() {
    let served = Served::start().await;
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let relay = Relay::start(&format!("ws://{}/", server.local_addr().unwrap())).await;
    let (refusals, hub) = (Arc::new(Mutex::new(Vec::new())), served.hub.clone());
    let pending = refusals.clone();
    tokio::spawn(server.serve(move |request| {
        let (refusal, hub) = (pending.lock().unwrap().pop(), hub.clone());
        async move {
            match refusal {
                Some(status) => Response::new(status),
                None => hub.answer(request).await,
            }
        }
    }));
    let client = Client::builder(relay.url())
        .reconnect_delay(Duration::from_millis(5), Duration::from_millis(50))
        .start();
    let mut events = client.events().await.unwrap();
    let mut next = async || {
        let event = tokio::time::timeout(Duration::from_secs(20), events.next()).await;
        event.expect("an event within 20 s").expect("the client has ended")
    };
    assert!(matches!(next().await, ClientEvent::Connected { .. }));
    refusals.lock().unwrap().extend([404, 200, 302, 403, 501]);
    relay.cut();
    assert!(matches!(next().await, ClientEvent::Connecting { .. }));
    for status in [501, 403, 302, 200, 404] {
        let event = next().await;
        let ClientEvent::Connecting { code: 0, reason } = event else { panic!("{status}: {event:?}") };
        assert!(reason.contains(&status.to_string()), "{reason}");
    }
    assert!(matches!(next().await, ClientEvent::Connected { .. }));
}

#[tokio::test]
async fn a_dropped_subscription_ends_and_can_be_made_again() {
    let served = Served::start().await;
    let client = served.builder().start();
    for n in 1..20 {
        let mut subscription = client.subscribe("log:x", SubscribeOptions::default()).await.unwrap();
        served.hub.publish("log:x", n.to_string()).await.unwrap();
        expect_numbers(&mut subscription, n..n + 1).await;
    }
    served.has_channels(0).await;
    assert_eq!(served.hub.stats().clients, 1);
}

#[tokio::test]
async fn an_application_that_takes_no_events_loses_none() {
    const COUNT: u64 = 3_000;
    let served = Served::start().await;
    let client = served.builder().start();
    let mut subscription = client.subscribe("log:x", SubscribeOptions::default()).await.unwrap();
    let other = served.builder().start();
    for n in 0..COUNT {
        other.publish("log:x", n.to_string()).await.unwrap();
    }
    expect_numbers(&mut subscription, 0..COUNT).await;
    // Its commands are answered again.
    client.rpc("echo", "1").await.unwrap();
}

#[tokio::test]
async fn subscriptions_that_the_server_makes_are_events_of_the_client() {
    let served = Served::start().await;
    let relay = Relay::start(&served.url).await;
    let claims = json!({ "sub": "7", "channels": ["log:x"] });
    let builder = Client::builder(relay.url()).token(token(&claims));
    let client = builder.reconnect_delay(Duration::from_millis(5), Duration::from_millis(50)).start();
    let mut events = client.events().await.unwrap();
    let mut numbers = Vec::new();
    let mut is_cut = false;
    while numbers.len() < 20 {
        match tokio::time::timeout(Duration::from_secs(20), events.next()).await.unwrap().unwrap() {
            ClientEvent::Subscribed { channel, subscribed } => {
                assert_eq!((&*channel, subscribed.has_gap()), ("log:x", false));
                if std::mem::replace(&mut is_cut, true) {
                    continue;
                }
                for n in 0..20 {
                    served.hub.publish("log:x", n.to_string()).await.unwrap();
                    if n == 10 {
                        relay.cut();
                    }
                }
            }
            ClientEvent::Publication { channel, publication } => {
                assert_eq!(channel, "log:x");
                numbers.push(publication.offset);
            }
            ClientEvent::Connected { .. } | ClientEvent::Connecting { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(numbers, (1..=20).collect::<Vec<_>>());
    served.api("unsubscribe", json!({ "user": "7", "channel": "log:x" })).await;
    loop {
        if let ClientEvent::Unsubscribed { channel } = events.next().await.unwrap() {
            return assert_eq!(channel, "log:x");
        }
    }
}

#[tokio::test]
async fn a_subscription_that_the_server_does_not_recover_is_not_recovered() {
    let served = Served::start().await;
    let relay = Relay::start(&served.url).await;
    served.hub.publish("unrecovered:x", "1").await.unwrap();
    let claims = json!({ "sub": "7", "channels": ["unrecovered:x"] });
    let builder = Client::builder(relay.url()).token(token(&claims));
    let client = builder.reconnect_delay(Duration::from_millis(5), Duration::from_millis(50)).start();
    let mut events = client.events().await.unwrap();
    let mut connections = 0;
    loop {
        match tokio::time::timeout(Duration::from_secs(20), events.next()).await.unwrap().unwrap() {
            ClientEvent::Subscribed { subscribed, .. } => {
                assert!(!subscribed.was_recovering);
                connections += 1;
                match connections {
                    1 => relay.cut(),
                    _ => drop(served.hub.publish("unrecovered:x", "2").await.unwrap()),
                }
            }
            ClientEvent::Publication { publication, .. } => return assert_eq!(publication.data, "2"),
            ClientEvent::Connected { .. } | ClientEvent::Connecting { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_command_that_is_too_long_ends_nothing_else() {
    let served = Served::start().await;
    let client = served.builder().command_len_max(60_000).start();
    let mut subscription = client.subscribe("log:x", SubscribeOptions::default()).await.unwrap();
    let long = |len: usize| format!("{:?}", "x".repeat(len));
    let refused = client.publish("log:x", long(60_000)).await;
    assert!(matches!(refused, Err(ClientError::TooLong { len: 60_000.., len_max: 60_000 })), "{refused:?}");
    let refused = client.subscribe("log:y", SubscribeOptions::default().token(long(60_000))).await;
    assert!(matches!(refused.map(drop), Err(ClientError::TooLong { .. })));
    client.publish("log:x", long(59_900)).await.unwrap();
    assert_eq!(publication(&mut subscription).await.offset, 1);
}
