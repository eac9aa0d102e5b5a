//! Attacks on the commands of the server API, which reach all nodes: nodes that are cut off, brokers that do not answer, clients that name
//! their channel.

use std::time::Duration;

use serde_json::json;
use tokio::time::{sleep, timeout};
use wireloom_hub::engine::{Action, Control, Engine, RedisEngine};

use crate::attacks::{DEADLINE, nats_engine, node, token, until};
use crate::nats_server::{Link, LinkState, Nats};
use crate::node::Node;
use crate::redis_server::Redis;
use crate::{publish, started};

/// The history of the commands is out of reach of clients, and of the server API.
#[tokio::test(flavor = "multi_thread")]
async fn no_client_can_name_the_channel_of_the_commands() {
    let Some(redis) = Redis::start() else { return };
    let node = node(RedisEngine::connect(&redis.url()).await.unwrap()).await;
    let mut client = node.connect().await;
    for channel in ["\0:commands", "$\0:commands"] {
        let request = json!({ "channel": channel, "data": 1 });
        for method in ["subscribe", "publish", "presence", "history"] {
            let command = json!({ "id": 9, method: request.clone() }).to_string();
            client.socket.send(&command).await.unwrap();
            assert_eq!(client.receive().await["error"]["code"], 102, "{method}");
        }
        for method in ["publish", "history", "history_remove"] {
            assert_eq!(node.try_api(method, request.clone()).await["error"]["code"], 102, "{method}");
        }
    }
}

/// A command of the server API reaches a node that is cut off at the time of the call, or the caller receives an error.
async fn cut_off(near: Node, far: Node, link: &Link, meanwhile: impl AsyncFn()) {
    let mut client = far.connect_with(json!({ "token": token("7") })).await;
    client.call("subscribe", json!({ "channel": "a" })).await;
    link.set(LinkState::Cut);
    until(async || far.hub.publish("a", "1").await.is_err()).await;
    meanwhile().await;
    near.api("disconnect", json!({ "user": "7" })).await;
    // The node cannot know that the command was before this one.
    let mut later = far.connect_with(json!({ "token": token("7") })).await;
    let refused = far.try_api("disconnect", json!({ "user": "8" })).await;
    assert_eq!(refused["error"]["code"], 100, "{refused}");
    link.set(LinkState::Clear);
    for client in [&mut client, &mut later] {
        while let Ok(Ok(Some(_))) = timeout(DEADLINE, client.socket.recv_owned()).await {}
        assert_eq!(client.socket.end().unwrap().code().value(), 3503);
    }
    // Once.
    let mut client = far.connect_with(json!({ "token": token("7") })).await;
    until(async || far.hub.publish("a", "1").await.is_ok()).await;
    client.call("subscribe", json!({ "channel": "a" })).await;
    sleep(Duration::from_secs(1)).await;
    client.call("ping", json!({})).await;
}

/// A node, another one behind a link, and the link.
async fn nats_nodes(nats: &Nats) -> (Node, Node, Link) {
    let link = Link::to(nats.port).await;
    let (near, far) = (nats_engine(nats.port).await, nats_engine(link.port).await);
    (node(near).await, node(far).await, link)
}

async fn redis_nodes(redis: &Redis) -> (Node, Node, Link) {
    let link = Link::to(redis.port).await;
    let far = RedisEngine::connect(&format!("redis://127.0.0.1:{}", link.port)).await.unwrap();
    let near = RedisEngine::connect(&redis.url()).await.unwrap();
    (node(near).await, node(far).await, link)
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_reach_a_node_that_was_cut_off_from_nats() {
    let Some(nats) = Nats::start() else { return };
    let (near, far, link) = nats_nodes(&nats).await;
    cut_off(near, far, &link, async || ()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_a_new_history_reach_a_node_that_was_cut_off_from_nats() {
    let Some(nats) = Nats::start() else { return };
    let (near, far, link) = nats_nodes(&nats).await;
    let client = async_nats::connect(format!("127.0.0.1:{}", nats.port)).await.unwrap();
    let streams = async_nats::jetstream::new(client);
    let replace = async || assert!(streams.delete_stream("wl_nAA").await.unwrap().success);
    cut_off(near, far, &link, replace).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_reach_a_node_that_was_cut_off_from_redis() {
    let Some(redis) = Redis::start() else { return };
    let (near, far, link) = redis_nodes(&redis).await;
    cut_off(near, far, &link, async || ()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_a_new_history_reach_a_node_that_was_cut_off_from_redis() {
    let Some(redis) = Redis::start() else { return };
    let (near, far, link) = redis_nodes(&redis).await;
    let replace = async || {
        assert!(redis.command(r#"HSET "wl:{=\x00:commands}:m" run other"#).contains(":0"));
    };
    cut_off(near, far, &link, replace).await;
}

/// A command concerns the connections that a node has when it reads the command, whatever the clock of the node that gave it says.
#[tokio::test(flavor = "multi_thread")]
async fn commands_do_not_depend_on_clocks() {
    let Some(redis) = Redis::start() else { return };
    let near = RedisEngine::connect(&redis.url()).await.unwrap();
    let far = node(RedisEngine::connect(&redis.url()).await.unwrap()).await;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    for given_at in [now - Duration::from_secs(60), now + Duration::from_secs(60)] {
        let mut earlier = far.connect_with(json!({ "token": token("7") })).await;
        let disconnect = async |user: &str| {
            let action = json!({ "Disconnect": { "code": 3503, "reason": "", "except": [] } });
            let given_at = given_at.as_millis();
            let command = json!({ "user": user, "client": "", "action": action, "given_at": given_at });
            publish(&near, "\0:commands", &command.to_string()).await;
        };
        disconnect("7").await;
        while let Ok(Ok(Some(_))) = timeout(DEADLINE, earlier.socket.recv_owned()).await {}
        assert_eq!(earlier.socket.end().unwrap().code().value(), 3503);
        let mut later = far.connect_with(json!({ "token": token("7") })).await;
        disconnect("8").await;
        later.call("subscribe", json!({ "channel": "a" })).await;
        far.api("publish", json!({ "channel": "a", "data": 1 })).await;
        later.payloads(1).await;
    }
}

/// NATS that does not answer has not stored a command.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_refused_while_nats_does_not_answer() {
    let Some(nats) = Nats::start() else { return };
    let engine = nats_engine(nats.port).await;
    let _recorder = started(&engine);
    nats.stop();
    let action = Action::Unsubscribe { channel: "a".into() };
    let control = Control { user: "7".into(), client: String::new(), action };
    // The signal does not stop all threads of the server at once.
    until(async || timeout(DEADLINE, engine.control(control.clone())).await.unwrap().is_err()).await;
    nats.resume();
}
