//! A scripted HTTP/2 server on the protocol core.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use wireloom::wireloom_http2::{Config, Connection, Event, Role, StreamKey};

/// A request, for the script.
pub(super) struct Request {
    pub(super) stream: StreamKey,
    pub(super) path: String,
    /// With the pseudo-header fields.
    pub(super) fields: Vec<(String, String)>,
}

/// Serves HTTP/2 connections. `script` is called with each request and each DATA frame.
pub(super) async fn serve(
    mut config: Config,
    script: impl Fn(&mut Connection, ScriptEvent<'_>) + Clone + Send + 'static,
) -> SocketAddr {
    // Scripts send what a client has to refuse.
    config.check_outgoing = false;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let script = script.clone();
            tokio::spawn(async move {
                let mut core = Connection::new(Role::Server, config).unwrap();
                let began = Instant::now();
                let mut bytes = vec![0; 64 << 10];
                loop {
                    let mut slices: [&[u8]; 16] = [&[]; 16];
                    let count = core.poll_transmit(began.elapsed(), &mut slices);
                    if count > 0 {
                        let out = slices[..count].concat();
                        if stream.write_all(&out).await.is_err() {
                            return;
                        }
                        core.transmitted(began.elapsed(), out.len());
                        continue;
                    }
                    if core.ended().is_some() {
                        return;
                    }
                    let Ok(len @ 1..) = stream.read(&mut bytes).await else { return };
                    for event in take(&mut core, began.elapsed(), &bytes[..len]) {
                        script(&mut core, event.as_ref());
                    }
                }
            });
        }
    });
    address
}

/// The events for the script.
pub(super) enum ScriptEvent<'a> {
    Request(&'a Request),
    Data(StreamKey, &'a [u8], bool),
    Reset(StreamKey),
}

enum OwnedEvent {
    Request(Request),
    Data(StreamKey, Vec<u8>, bool),
    Reset(StreamKey),
}

impl OwnedEvent {
    fn as_ref(&self) -> ScriptEvent<'_> {
        match self {
            Self::Request(request) => ScriptEvent::Request(request),
            Self::Data(stream, data, end) => ScriptEvent::Data(*stream, data, *end),
            Self::Reset(stream) => ScriptEvent::Reset(*stream),
        }
    }
}

fn take(core: &mut Connection, now: Duration, mut input: &[u8]) -> Vec<OwnedEvent> {
    let mut events = Vec::new();
    // A connection error is sent by the core.
    while let Ok((taken, event)) = core.handle_input(now, input) {
        input = &input[taken..];
        match event {
            None => return events,
            Some(Event::Request { stream, .. }) => {
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                let fields = core.fields().iter().map(|field| (text(field.name()), text(field.value())));
                let fields: Vec<_> = fields.collect();
                let path = fields.iter().find(|(name, _)| name == ":path");
                let path = path.map(|(_, path)| path.clone()).unwrap_or_default();
                events.push(OwnedEvent::Request(Request { stream, path, fields }));
            }
            Some(Event::Data { stream, data, end_stream }) => {
                events.push(OwnedEvent::Data(stream, data.to_vec(), end_stream));
            }
            Some(Event::Reset { stream, .. }) => events.push(OwnedEvent::Reset(stream)),
            Some(_) => {}
        }
    }
    events
}
