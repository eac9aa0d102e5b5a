//! Endpoints with names: which one a namespace of channels or of methods asks.

use std::time::Duration;

use serde_json::{Value, json};
use wireloom::Connector;
use wireloom_hub::{Access, Hub, HubConfig, ProxyChoice};

use super::proxies::Backend;
use super::streams::Stream;
use super::{Client, Served};

/// An `[[endpoint]]` of a backend, at the path of its name.
fn endpoint(backend: &Backend, name: &str, more: &str) -> String {
    format!("[[endpoint]]\nname = \"{name}\"\nurl = \"{}/{name}\"\ntimeout = \"60s\"\n{more}\n", backend.url)
}

fn paths(backend: &Backend, paths: &[&str]) -> Vec<usize> {
    paths.iter().map(|path| backend.calls(path).len()).collect()
}

#[tokio::test]
async fn each_namespace_asks_the_endpoint_that_it_names() {
    let backend = Backend::start(|call| match &*call.path {
        "/other" => json!({ "result": { "data": call.body["channel"] } }),
        _ => json!({ "error": { "code": 403, "message": "no" } }),
    })
    .await;
    let other = endpoint(
        &backend,
        "other",
        "forward_headers = [\"cookie\"]\nheaders = { X-Secret = \"of other\" }\n",
    );
    let config = format!(
        "[client]\nanonymous = true\n[proxy.subscribe]\nurl = \"{url}/own\"\n[channel]\nsubscribe_proxy = true\n\
        [[namespace]]\nname = \"a\"\nsubscribe_proxy = \"other\"\npublish_proxy = \"other\"\n\
        [[namespace]]\nname = \"b\"\nsubscribe = \"anyone\"\npublish_proxy = \"third\"\n{other}{third}",
        url = backend.url,
        third = endpoint(&backend, "third", ""),
    );
    let served = Served::start(&config, |hub| hub).await;
    let connector = Connector::new().header("Cookie", "session=1");
    let mut client = Client::new(connector.connect(&served.url).await.unwrap());
    client.call("connect", json!({})).await;
    assert_eq!(client.reply("subscribe", json!({ "channel": "x" })).await["error"]["code"], 403);
    assert_eq!(client.call("subscribe", json!({ "channel": "a:x" })).await["data"], "a:x");
    client.call("subscribe", json!({ "channel": "b:x" })).await;
    assert_eq!(paths(&backend, &["/own", "/other", "/third"]), [1, 1, 0]);
    client.call("publish", json!({ "channel": "a:x", "data": 1 })).await;
    let refused = client.reply("publish", json!({ "channel": "b:x", "data": 1 })).await;
    assert_eq!(refused["error"]["code"], 403);
    assert_eq!(paths(&backend, &["/own", "/other", "/third"]), [1, 2, 1]);
    assert_eq!(client.publications, [json!("a:x")]);
    // Each endpoint receives only its own cookie and secret.
    for (path, cookie, secret) in [("/other", Some("session=1"), "of other"), ("/third", None, "")] {
        let call = backend.calls(path).pop().unwrap();
        assert_eq!((call.cookie.as_deref(), &*call.secret.concat()), (cookie, secret), "{path}");
    }
}

#[tokio::test]
async fn each_namespace_of_methods_asks_the_endpoint_that_it_names() {
    let backend =
        Backend::start(|call| json!({ "result": { "data": [call.path, call.body["method"]] } })).await;
    let namespaces = "[rpc_namespaces]\nbilling = \"other\"\nchat = true\n\"x.y\" = false\n";
    let rpc = format!("[rpc]\nurl = \"{}/own\"\n", backend.url);
    let config = |rpc: &str, namespaces: &str| {
        format!("client.anonymous = true\n{rpc}{namespaces}{}", endpoint(&backend, "other", ""))
    };
    let served = Served::start(&config(&rpc, namespaces), |hub| hub).await;
    let mut client = served.connect().await;
    for (method, path) in [
        ("billing:pay", "/other"),
        ("billing:", "/other"),
        ("billing", "/own"),
        ("chat:x", "/own"),
        ("none:x", "/own"),
        (":x", "/own"),
        ("", "/own"),
    ] {
        let answer = client.call("rpc", json!({ "method": method })).await;
        let method = if method.is_empty() { Value::Null } else { json!(method) };
        assert_eq!(answer["data"], json!([path, method]));
    }
    assert_eq!(client.reply("rpc", json!({ "method": "x.y:z" })).await["error"]["code"], 108);
    // Without `[rpc]` the others have no answer.
    let served = Served::start(&config("", "rpc_namespaces = { billing = \"other\" }\n"), |hub| hub).await;
    let mut client = served.connect().await;
    assert_eq!(client.call("rpc", json!({ "method": "billing:x" })).await["data"][0], "/other");
    for method in ["x", "chat:x", ""] {
        assert_eq!(client.reply("rpc", json!({ "method": method })).await["error"]["code"], 108, "{method}");
    }
}

/// Whether a client comes in by each way, without a token.
async fn ways_in(served: &Served, channel: &str) -> Vec<(&'static str, bool)> {
    let mut ways = Vec::new();
    let subscribe = json!({ "channel": channel });
    let mut client = served.connect().await;
    ways.push((
        "publish",
        client.reply("publish", json!({ "channel": channel, "data": 1 })).await["error"].is_null(),
    ));
    ways.push(("websocket", client.reply("subscribe", subscribe.clone()).await["error"].is_null()));
    for path in ["/connection/sse", "/connection/http_stream"] {
        let (mut stream, _) = Stream::connect(served, path, json!({})).await;
        ways.push((path, stream.reply("subscribe", subscribe.clone()).await["error"].is_null()));
        let published = stream.reply("publish", json!({ "channel": channel, "data": 1 })).await;
        ways.push(("publish beside a stream", published["error"].is_null()));
    }
    let first = json!({ "subs": { channel: {} } }).to_string();
    for path in ["/connection/uni_sse", "/connection/uni_http_stream"] {
        let mut stream = Stream::open(served, path, &first).await;
        let is_in = loop {
            let push = stream.next().await;
            if push["connect"].is_null() {
                break push["disconnect"].is_null();
            }
        };
        ways.push((path, is_in));
    }
    let url = served.url.replace("/connection/websocket", "/connection/uni_websocket");
    let mut socket = wireloom::connect(&url).await.unwrap();
    socket.send(&first).await.unwrap();
    let connected = socket.recv_owned().await.unwrap().unwrap();
    assert!(connected.as_text().unwrap().contains("\"connect\""), "{connected:?}");
    ways.push(("uni_websocket", matches!(socket.recv_owned().await, Ok(Some(_)))));
    let room = channel.replace("rooms:", "/rooms/");
    let mut socket = wireloom::connect(&served.url.replace("/connection/websocket", &room)).await.unwrap();
    // It may be closed already.
    let _ = socket.send("1").await;
    ways.push(("room", matches!(socket.recv_owned().await, Ok(Some(_)))));
    ways
}

#[tokio::test]
async fn no_way_in_passes_by_an_endpoint_with_a_name() {
    let backend = Backend::start(|call| match &*call.path {
        "/open" => json!({ "result": {} }),
        "/malformed" => json!({ "result": { "b64info": "?", "b64data": "?" } }),
        _ => json!({ "error": { "code": 403, "message": "no" } }),
    })
    .await;
    // The settings of the namespace would admit every client, and so would the endpoint of the operation.
    let serve = async |url: &str, timeout: &str| {
        let config = format!(
            "[client]\nanonymous = true\n[proxy.subscribe]\nurl = \"{open}/open\"\n[proxy.publish]\nurl = \"{open}/open\"\n\
            [channel]\nsubscribe_proxy = true\npublish_proxy = true\n\
            [[namespace]]\nname = \"rooms\"\nsubscribe = \"anyone\"\npublish = \"anyone\"\nsubscribe_proxy = \"e\"\n\
            publish_proxy = \"e\"\n[[endpoint]]\nname = \"e\"\nurl = \"{url}\"\ntimeout = \"{timeout}\"\n",
            open = backend.url,
        );
        Served::start(&config, |hub| hub).await
    };
    for path in ["refused", "malformed", "late", "huge", "redirect", "status", "nothing", "array", "down"] {
        let url = match path {
            "down" => "http://127.0.0.1:1/".to_owned(),
            path => format!("{}/{path}", backend.url),
        };
        let served = serve(&url, if path == "late" { "300ms" } else { "60s" }).await;
        let ways = ways_in(&served, "rooms:x").await;
        assert!(ways.len() == 10 && ways.iter().all(|(_, is_in)| !is_in), "{path}: {ways:?}");
        assert_eq!(served.hub.stats().publications, 0, "{path}");
    }
    let ways = ways_in(&serve(&format!("{}/open", backend.url), "60s").await, "rooms:x").await;
    assert!(ways.iter().all(|(_, is_in)| *is_in), "{ways:?}");
}

/// A publication is paced before the endpoint is asked. Meanwhile the configuration changes to one without that.
#[tokio::test]
async fn a_reload_takes_no_decision_from_an_endpoint() {
    let backend = Backend::start(|_| json!({ "error": { "code": 403, "message": "no" } })).await;
    let namespace =
        "[client]\nanonymous = true\n[channel]\npublish = \"anyone\"\npublications_per_s_max = 1\n";
    let config =
        format!("[proxy.publish]\nurl = \"{}/publish\"\n{namespace}publish_proxy = true\n", backend.url);
    let served = Served::start(&config, |hub| hub).await;
    let mut client = served.connect().await;
    let publish = json!({ "channel": "x", "data": 1 });
    for _ in 0..2 {
        assert_eq!(client.reply("publish", publish.clone()).await["error"]["code"], 403);
    }
    let reload = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let closed = namespace.replace("publish = \"anyone\"", "publish = \"token\"");
        served.hub.reload(HubConfig::from_toml(&closed).unwrap()).unwrap();
    };
    let (reply, ()) = tokio::join!(client.reply("publish", publish.clone()), reload);
    assert!(!reply["error"].is_null(), "{reply}");
    assert_eq!(client.reply("publish", publish).await["error"]["code"], 103);
    assert_eq!(served.hub.stats().publications, 0);
}

/// The settings of the namespace would decide instead.
#[tokio::test]
async fn a_configuration_of_a_program_is_checked_too() {
    for (choice, reason) in [
        (ProxyChoice::Named("e".into()), "needs an [[endpoint]] with the name \"e\""),
        (ProxyChoice::On, "needs proxy.subscribe.url"),
    ] {
        let mut config = HubConfig::default();
        config.channel.subscribe = Access::Anyone;
        let hub = Hub::builder().config(config.clone()).build().unwrap();
        config.channel.subscribe_proxy = choice;
        let reloaded = hub.reload(config.clone()).unwrap_err().to_string();
        let built = Hub::builder().config(config).build().unwrap_err().to_string();
        assert!(built.contains(reason) && reloaded == built, "{built} {reloaded}");
    }
}

#[tokio::test]
async fn an_endpoint_in_use_stays_until_no_namespace_names_it() {
    let backend = Backend::start(|call| match &*call.path {
        "/slow" => json!({ "result": { "data": "slow" } }),
        _ => json!({ "result": { "data": "other" } }),
    })
    .await;
    let [slow, other] = ["slow", "other"].map(|name| endpoint(&backend, name, ""));
    let config = |name: &str, endpoints: &str| {
        HubConfig::from_toml(&format!(
            "client.anonymous = true\nrpc_namespaces = {{ a = \"{name}\" }}\n[[namespace]]\nname = \"chat\"\n\
            subscribe_proxy = \"{name}\"\n{endpoints}"
        ))
    };
    let refused = config("slow", &other).unwrap_err().to_string();
    assert!(
        refused.contains("needs an [[endpoint]] with the name \"slow\"; there are \"other\""),
        "{refused}"
    );
    let hub = Hub::builder().config(config("slow", &slow).unwrap()).build().unwrap();
    let served = Served::serve(hub).await;
    let (mut first, mut second) = (served.connect().await, served.connect().await);
    // Calls in progress are answered by the one that they were made to.
    let reload = async {
        while backend.calls("/slow").is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        served.hub.reload(config("other", &other).unwrap()).unwrap();
    };
    let (subscribed, ()) = tokio::join!(first.call("subscribe", json!({ "channel": "chat:x" })), reload);
    assert_eq!(subscribed["data"], "slow");
    assert_eq!(second.call("subscribe", json!({ "channel": "chat:x" })).await["data"], "other");
    assert_eq!(second.call("rpc", json!({ "method": "a:x" })).await["data"], "other");
    assert_eq!(paths(&backend, &["/slow", "/other"]), [1, 2]);
}
