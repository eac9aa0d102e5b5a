//! Publications as deltas to the one before.

use serde_json::{Value, json};
use wireloom_hub::PublishOptions;

use super::{Client, Served};

const CONFIG: &str = r#"
client.anonymous = true

[[namespace]]
name = "state"
subscribe = "anyone"
history_size = 100
history_ttl = "1h"
allowed_delta_types = ["fossil"]

[[namespace]]
name = "plain"
subscribe = "anyone"
history_size = 100
history_ttl = "1h"
"#;

/// The publication of a push.
async fn publication(client: &mut Client) -> Value {
    loop {
        let publication = client.receive().await["push"]["pub"].take();
        if !publication.is_null() {
            return publication;
        }
    }
}

fn state(price: u32) -> String {
    json!({ "name": "a part of the state that stays", "price": price }).to_string()
}

async fn publish(served: &Served, price: u32) {
    served.hub.publish("state:x", state(price)).await.unwrap();
}

#[tokio::test]
async fn a_subscriber_receives_the_changes_that_it_asked_for() {
    let served = Served::start(CONFIG, |hub| hub).await;
    let subscribe = json!({ "channel": "state:x", "recoverable": true, "delta": "fossil" });
    let mut with_deltas = served.connect().await;
    let result = with_deltas.call("subscribe", subscribe.clone()).await;
    assert_eq!(result["delta"], true, "{result}");
    let mut without = served.connect().await;
    let result = without.call("subscribe", json!({ "channel": "state:x", "recoverable": true })).await;
    assert_eq!(result["delta"], Value::Null);

    publish(&served, 1).await;
    publish(&served, 22).await;
    assert_eq!(publication(&mut with_deltas).await, json!({ "data": state(1), "offset": 1 }));
    let second = publication(&mut with_deltas).await;
    assert_eq!((&second["delta"], &second["offset"]), (&json!(true), &json!(2)));
    // 52 bytes: 49 from the beginning of the base, 3 new ones.
    let delta = second["data"].as_str().unwrap();
    assert!(delta.starts_with("p\nm@0,3:22}"), "{delta}");
    for price in [1, 22] {
        let expected: Value = serde_json::from_str(&state(price)).unwrap();
        assert_eq!(publication(&mut without).await["data"], expected);
    }

    // Clients apply a delta to the last publication that they received. This one is not in the history.
    let mut options = PublishOptions::default();
    options.skip_history = true;
    served.hub.publish_with("state:x", state(3), options).await.unwrap();
    assert_eq!(publication(&mut with_deltas).await, json!({ "data": state(3) }));
    publish(&served, 4).await;
    assert_eq!(publication(&mut with_deltas).await, json!({ "data": state(4), "offset": 3 }));
    publish(&served, 5).await;
    assert_eq!(publication(&mut with_deltas).await["delta"], true);

    // Recovered publications are deltas of each other; the next publication is a delta of the last one.
    drop(with_deltas);
    let mut back = served.connect().await;
    let mut recover = subscribe;
    recover["recover"] = true.into();
    recover["offset"] = 1.into();
    recover["epoch"] = result["epoch"].clone();
    let result = back.call("subscribe", recover).await;
    assert_eq!((&result["recovered"], &result["delta"]), (&json!(true), &json!(true)));
    let missed = result["publications"].as_array().unwrap();
    assert_eq!(missed[0], json!({ "data": state(22), "offset": 2 }));
    assert_eq!(missed[1..].iter().map(|one| &one["delta"]).collect::<Vec<_>>(), [true, true]);
    publish(&served, 6).await;
    assert_eq!(publication(&mut back).await["delta"], true);
}

#[tokio::test]
async fn deltas_are_for_the_channels_and_kinds_that_are_allowed() {
    let served = Served::start(CONFIG, |hub| hub).await;
    let mut client = served.connect().await;
    for (channel, recoverable, delta) in
        [("plain:x", true, "fossil"), ("state:x", true, "xdelta"), ("state:y", false, "fossil")]
    {
        let subscribe = json!({ "channel": channel, "recoverable": recoverable, "delta": delta });
        let result = client.call("subscribe", subscribe).await;
        assert_eq!(result["delta"], Value::Null, "{channel}: {result}");
        for _ in 0..2 {
            served.hub.publish(channel, state(7)).await.unwrap();
            let expected: Value = serde_json::from_str(&state(7)).unwrap();
            assert_eq!(publication(&mut client).await["data"], expected, "{channel}");
        }
    }
}
