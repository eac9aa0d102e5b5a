//! Spans of the hub at a collector of OpenTelemetry, over OTLP/HTTP.

use std::sync::{Arc, Mutex};

use wireloom::client::Request;
use wireloom::{Connector, Response};

use crate::process::{Server, folder};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// A request: its path, its header field `traceparent`, and its body.
type Received = (String, String, Vec<u8>);

/// A server that keeps what it receives.
struct Peer {
    url: String,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Peer {
    async fn start(answer: &'static str) -> Self {
        let server = wireloom::Server::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", server.local_addr().unwrap());
        let received = Arc::<Mutex<Vec<_>>>::default();
        let kept = received.clone();
        tokio::spawn(server.serve(move |mut request: wireloom::Request| {
            let kept = kept.clone();
            async move {
                let body = request.bytes().await.unwrap().to_vec();
                let text = |name| {
                    request
                        .header(name)
                        .map_or_else(String::new, |value| String::from_utf8_lossy(value).into())
                };
                kept.lock().unwrap().push((request.path().to_owned(), text("traceparent"), body));
                Response::new(200).with_body("application/json", answer)
            }
        }));
        Self { url, received }
    }
}

/// The fields of a Protobuf message that have a length, or are numbers.
fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8], u64)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (byte, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let (len, number) = match tag & 7 {
            0 => (0, varint(&mut bytes)),
            1 => (8, 0),
            2 => (usize::try_from(varint(&mut bytes)).unwrap(), 0),
            5 => (4, 0),
            other => panic!("wire type {other}"),
        };
        let (value, rest) = bytes.split_at(len);
        bytes = rest;
        fields.push((tag >> 3, value, number));
    }
    fields
}

/// The messages in a field.
fn messages(bytes: &[u8], field: u64) -> Vec<&[u8]> {
    fields(bytes).into_iter().filter(|one| one.0 == field).map(|one| one.1).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A span of OTLP (opentelemetry/proto/trace/v1/trace.proto).
#[derive(Debug)]
struct Span {
    name: String,
    trace: String,
    id: String,
    parent: String,
    kind: u64,
    is_error: bool,
}

impl Span {
    fn parse(bytes: &[u8]) -> Self {
        let text = |field| messages(bytes, field).first().copied().unwrap_or_default();
        let number =
            |bytes: &[u8], field| fields(bytes).iter().find(|one| one.0 == field).map_or(0, |one| one.2);
        Self {
            trace: hex(text(1)),
            id: hex(text(2)),
            parent: hex(text(4)),
            name: String::from_utf8(text(5).to_vec()).unwrap(),
            kind: number(bytes, 6),
            is_error: number(text(15), 3) == 2,
        }
    }
}

#[tokio::test]
async fn spans_of_the_hub_reach_a_collector() {
    let (collector, backend) = (Peer::start("").await, Peer::start(r#"{"result":{"data":1}}"#).await);
    let folder = folder("traces");
    let file = folder.join("hub.toml");
    let config = format!(
        "client.anonymous = true\napi.key = \"key\"\nrpc.url = \"{0}/rpc\"\nrpc.forward_headers = [\"traceparent\"]\n[[namespace]]\nname = \"rooms\"\n",
        backend.url
    );
    std::fs::write(&file, config).unwrap();
    let variable = ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.url);
    let args = ["--hub", file.to_str().unwrap(), "--admin", "127.0.0.1:0"];
    let mut server = Server::start_with_env(&args, Some(variable)).await;

    let parent = format!("00-{TRACE}-{CALLER}-01");
    for channel in ["rooms:a", "nowhere:a"] {
        let url = format!("http://{}/api/publish", server.addresses[1]);
        let request = Request::post(url, format!(r#"{{"channel":"{channel}","data":1}}"#));
        let request = request.header("x-api-key", "key").header("traceparent", &parent);
        assert_eq!(Connector::new().request(request).await.unwrap().status, 200);
    }
    let url = server.url("/connection/websocket");
    for header in [None, Some(&parent)] {
        let mut connector = Connector::new();
        if let Some(parent) = header {
            connector = connector.header("traceparent", parent);
        }
        let mut socket = connector.connect(&url).await.unwrap();
        for (command, reply) in
            [(r#"{"id":1,"connect":{}}"#, "\"id\":1"), (r#"{"id":2,"rpc":{"method":"m"}}"#, "\"id\":2")]
        {
            socket.send(command).await.unwrap();
            let received = socket.recv_owned().await.unwrap().unwrap();
            assert!(received.as_text().unwrap().contains(reply), "{received:?}");
        }
    }
    server.signal("-TERM");
    assert_eq!(server.exit_code().await, Some(0));

    let exported = collector.received.lock().unwrap().clone();
    assert!(!exported.is_empty() && exported.iter().all(|(path, ..)| path == "/v1/traces"), "{exported:?}");
    let resources = exported.iter().flat_map(|(_, _, body)| messages(body, 1));
    let (mut spans, mut names) = (Vec::new(), Vec::new());
    for resource in resources {
        names.push(String::from_utf8_lossy(messages(resource, 1)[0]).into_owned());
        for scope in messages(resource, 2) {
            spans.extend(messages(scope, 2).into_iter().map(Span::parse));
        }
    }
    assert!(names.iter().all(|name| name.contains("service.name") && name.contains("wireloom")), "{names:?}");

    // The calls of the server API continue the trace of their caller.
    let calls: Vec<_> = spans.iter().filter(|span| span.name == "api publish").collect();
    assert_eq!(calls.iter().map(|span| span.is_error).collect::<Vec<_>>(), [false, true], "{spans:?}");
    for span in calls {
        assert_eq!((&*span.trace, &*span.parent, span.kind), (TRACE, CALLER, 2), "{span:?}");
    }
    // Those of the endpoint continue what is forwarded, and the backend continues them.
    let received = backend.received.lock().unwrap().clone();
    let sent: Vec<_> = spans.iter().filter(|span| span.name == "proxy rpc").collect();
    assert_eq!((sent.len(), received.len()), (2, 2), "{spans:?}");
    for ((index, span), (path, context, _)) in sent.into_iter().enumerate().zip(received) {
        assert_eq!((&*path, context), ("/rpc", format!("00-{}-{}-01", span.trace, span.id)));
        let is_continued = (&*span.trace, &*span.parent) == (TRACE, CALLER);
        assert!(span.kind == 3 && !span.is_error && is_continued == (index == 1), "{span:?}");
    }
}

// One collector cannot be reached, one never answers, so that the queue becomes full.
#[tokio::test]
async fn spans_that_are_lost_are_logged() {
    let folder = folder("traces-lost");
    let file = folder.join("hub.toml");
    std::fs::write(&file, "api.key = \"key\"\n").unwrap();
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_url = format!("http://{}", silent.local_addr().unwrap());
    let (_taken, refusing) = wireloom_testing::refusing();
    for (collector, queue_max, reason) in
        [(format!("http://{refusing}"), "2048", "refused"), (silent_url, "8", "the queue is full")]
    {
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector),
            ("OTEL_BSP_MAX_QUEUE_SIZE", queue_max),
            ("OTEL_BSP_SCHEDULE_DELAY", "50"),
        ];
        let args = ["--hub", file.to_str().unwrap(), "--admin", "127.0.0.1:0"];
        let mut server = Server::start_with_env(&args, variables).await;
        for _ in 0..40 {
            let url = format!("http://{}/api/publish", server.addresses[1]);
            let request = Request::post(url, r#"{"channel":"a","data":1}"#).header("x-api-key", "key");
            assert_eq!(Connector::new().request(request).await.unwrap().status, 200);
        }
        let warning = server.logged("spans were lost").await;
        assert!(warning.contains("WARN") && warning.contains(reason), "{warning}");
        server.signal("-TERM");
        assert_eq!(server.exit_code().await, Some(0));
        // The queue, and what the exporter waits for, is lost as the process ends.
        let last = server.log_to_end().await;
        let is_logged = last.iter().any(|line| line.contains("spans were lost"));
        assert!(is_logged || queue_max != "8", "{last:?}");
    }
}

#[tokio::test]
async fn nothing_is_traced_without_a_collector() {
    let backend = Peer::start(r#"{"result":{"data":1}}"#).await;
    let folder = folder("traces-off");
    let file = folder.join("hub.toml");
    std::fs::write(&file, format!("client.anonymous = true\nrpc.url = \"{}/rpc\"\n", backend.url)).unwrap();
    let server = Server::start(&["--hub", file.to_str().unwrap()]).await;
    let mut socket = wireloom::connect(&server.url("/connection/websocket")).await.unwrap();
    for command in [r#"{"id":1,"connect":{}}"#, r#"{"id":2,"rpc":{"method":"m"}}"#] {
        socket.send(command).await.unwrap();
        socket.recv_owned().await.unwrap().unwrap();
    }
    assert_eq!(backend.received.lock().unwrap()[0].1, "");
}
