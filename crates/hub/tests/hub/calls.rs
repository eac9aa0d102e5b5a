//! `rpc` and `send`, answered by callbacks and by an HTTP endpoint.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use wireloom::{Response, Server};
use wireloom_hub::Refusal;

use super::{CONFIG, Served};

#[tokio::test]
async fn callbacks_answer_calls_and_receive_messages() {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let messages = sent.clone();
    let served = Served::start(CONFIG, |hub| {
        hub.on_rpc(|call| async move {
            match &*call.method {
                "echo" => Ok(call.data),
                _ => Err(Refusal { code: 404, message: "no such method".into(), temporary: false }),
            }
        })
        .on_message(move |message| {
            messages.lock().unwrap().push((message.client, message.data));
            async {}
        })
    })
    .await;
    let mut client = served.connect().await;
    let result = client.call("rpc", json!({ "method": "echo", "data": { "a": [1, "ü"] } })).await;
    assert_eq!(result, json!({ "data": { "a": [1, "ü"] } }));
    let reply = client.reply("rpc", json!({ "method": "other" })).await;
    assert_eq!(reply["error"], json!({ "code": 404, "message": "no such method" }));
    assert_eq!(served.hub.stats().refused[&404], 1);

    client.socket.send(r#"{"send":{"data":{"n":1}}}"#).await.unwrap();
    // Commands are carried out in order.
    client.call("ping", json!({})).await;
    let sent = sent.lock().unwrap();
    assert_eq!(sent.iter().map(|(_, data)| &data[..]).collect::<Vec<_>>(), [br#"{"n":1}"#]);
}

/// An endpoint that answers each method in one way, and the calls that it has received.
async fn endpoint() -> (String, Arc<Mutex<Vec<Value>>>) {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let received = calls.clone();
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/rpc", server.local_addr().unwrap());
    tokio::spawn(server.serve(move |mut request: wireloom::Request| {
        let received = received.clone();
        async move {
            let call: Value = serde_json::from_slice(&request.bytes().await.unwrap()).unwrap();
            received.lock().unwrap().push(call.clone());
            let answer = match call["method"].as_str().unwrap() {
                "double" => {
                    json!({ "result": { "data": call["data"]["n"].as_u64().unwrap() * 2 } }).to_string()
                }
                "binary" => json!({ "result": { "b64data": "/wA=" } }).to_string(),
                "refuse" => {
                    json!({ "error": { "code": 1000, "message": "no", "temporary": true } }).to_string()
                }
                "leave" => json!({ "disconnect": { "code": 4500, "reason": "go" } }).to_string(),
                "late" => std::future::pending().await,
                "nonsense" => "[]".into(),
                _ => return Response::text(500, "broken\n"),
            };
            Response::new(200).with_body("application/json", answer)
        }
    }));
    (url, calls)
}

#[tokio::test]
async fn an_http_endpoint_answers_calls() {
    let (url, calls) = endpoint().await;
    let serve = async |timeout: &str| {
        let config = format!("{CONFIG}\n[rpc]\nurl = \"{url}\"\ntimeout = \"{timeout}\"\n");
        Served::start(&config, |hub| hub).await
    };
    let served = serve("60s").await;
    let mut client = served.connect().await;
    let result = client.call("rpc", json!({ "method": "double", "data": { "n": 21 } })).await;
    assert_eq!(result, json!({ "data": 42 }));
    let call = calls.lock().unwrap()[0].clone();
    assert_eq!((&call["protocol"], &call["encoding"]), (&json!("json"), &json!("json")), "{call}");
    assert!(call["client"].is_string(), "{call}");
    assert_eq!(client.call("rpc", json!({ "method": "binary" })).await, json!({ "data": "/wA=" }));
    let reply = client.reply("rpc", json!({ "method": "refuse" })).await;
    assert_eq!(reply["error"], json!({ "code": 1000, "message": "no", "temporary": true }));
    for method in ["nonsense", "broken"] {
        let reply = client.reply("rpc", json!({ "method": method })).await;
        assert_eq!(reply["error"]["code"], 100, "{method}");
    }
    let reply = serve("300ms").await.connect().await.reply("rpc", json!({ "method": "late" })).await;
    assert_eq!(reply["error"]["code"], 100);
    client.socket.send(r#"{"id":99,"rpc":{"method":"leave"}}"#).await.unwrap();
    assert_eq!(client.ended().await, 4500);
}

#[tokio::test]
async fn calls_without_an_answer_are_refused() {
    let served = Served::start(CONFIG, |hub| hub).await;
    let reply = served.connect().await.reply("rpc", json!({ "method": "x" })).await;
    assert_eq!(reply["error"]["code"], 108);
}
