//! The server and the client of the `h2` crate.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::server::{Connection, Handshake, SendResponse};
use h2::{RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use wireloom_http2::Role;

use super::{Fields, Outcome, Peer, REQUESTS};

/// Bytes in memory instead of a socket.
#[derive(Clone, Default)]
struct Wire(Rc<RefCell<Bytestreams>>);

#[derive(Default)]
struct Bytestreams {
    input: VecDeque<u8>,
    output: Vec<u8>,
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut streams = self.0.borrow_mut();
        if streams.input.is_empty() {
            return Poll::Pending;
        }
        let len = streams.input.len().min(buf.remaining());
        buf.put_slice(&streams.input.drain(..len).collect::<Vec<u8>>());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().output.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// An end of the `h2` crate.
trait End {
    fn parts(&mut self) -> (&Wire, &mut Outcome);

    /// Does what is possible with the bytes that have arrived.
    fn poll_all(&mut self, cx: &mut Context<'_>);

    /// Handles bytes of the peer, until nothing more is written.
    fn exchange(&mut self, bytes: &[u8]) {
        self.parts().0.0.borrow_mut().input.extend(bytes);
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            self.poll_all(&mut cx);
            let (wire, outcome) = self.parts();
            let output = std::mem::take(&mut wire.0.borrow_mut().output);
            if output.is_empty() {
                return;
            }
            outcome.note_written(&output);
        }
    }
}

enum State {
    Handshake(Handshake<Wire, Bytes>),
    Open(Connection<Wire, Bytes>),
    Ended,
}

/// A stream of a server: dropping its handles would reset it.
struct Stream {
    id: u32,
    content: RecvStream,
    _response: SendResponse<Bytes>,
}

pub struct Server {
    wire: Wire,
    state: State,
    streams: Vec<Stream>,
    outcome: Outcome,
}

impl Server {
    #[allow(clippy::new_without_default, reason = "a fixture")]
    pub fn new() -> Self {
        let wire = Wire::default();
        let mut builder = h2::server::Builder::new();
        builder.max_concurrent_streams(100).enable_connect_protocol().max_header_list_size(1 << 20);
        let state = State::Handshake(builder.handshake(wire.clone()));
        Self { wire, state, streams: Vec::new(), outcome: Outcome::default() }
    }

    /// Returns whether something happened.
    fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        match &mut self.state {
            State::Handshake(handshake) => match Pin::new(handshake).poll(cx) {
                Poll::Ready(Ok(connection)) => {
                    self.state = State::Open(connection);
                    true
                }
                Poll::Ready(Err(_)) => {
                    self.state = State::Ended;
                    true
                }
                Poll::Pending => false,
            },
            State::Open(connection) => match connection.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, response)))) => {
                    let id = response.stream_id().as_u32();
                    let (head, content) = request.into_parts();
                    let mut fields = to_fields(&head.headers);
                    let mut add = |name: &str, value: &str| fields.push((name.into(), value.into()));
                    add(":method", head.method.as_str());
                    head.uri
                        .authority()
                        .into_iter()
                        .for_each(|authority| add(":authority", authority.as_str()));
                    head.uri.path_and_query().into_iter().for_each(|path| add(":path", path.as_str()));
                    let protocol = head.extensions.get::<h2::ext::Protocol>();
                    protocol.into_iter().for_each(|protocol| add(":protocol", protocol.as_str()));
                    fields.sort();
                    self.outcome.messages.push((id, fields));
                    self.streams.push(Stream { id, content, _response: response });
                    true
                }
                Poll::Ready(_) => {
                    self.state = State::Ended;
                    true
                }
                Poll::Pending => false,
            },
            State::Ended => false,
        }
    }

    fn poll_content(&mut self, cx: &mut Context<'_>) {
        for stream in &mut self.streams {
            if self.outcome.ended.contains(&stream.id) {
                continue;
            }
            // An error is that of a stream that the client reset.
            let _ = receive_content(cx, stream.id, &mut stream.content, &mut self.outcome);
        }
    }
}

/// Reads what has arrived of the content and the trailers.
fn receive_content(
    cx: &mut Context<'_>,
    id: u32,
    content: &mut RecvStream,
    outcome: &mut Outcome,
) -> Result<(), h2::Error> {
    while let Poll::Ready(Some(data)) = content.poll_data(cx) {
        let data = data?;
        let _ = content.flow_control().release_capacity(data.len());
        if !data.is_empty() {
            outcome.content.entry(id).or_default().extend_from_slice(&data);
        }
    }
    if let Poll::Ready(trailers) = content.poll_trailers(cx) {
        let trailers = trailers?;
        outcome.ended.insert(id);
        if let Some(trailers) = trailers {
            outcome.messages.push((id, to_fields(&trailers)));
        }
    }
    Ok(())
}

/// Sorted: a `HeaderMap` keeps the order of values of one name only.
fn to_fields(headers: &http::HeaderMap) -> Fields {
    let fields = headers.iter().map(|(name, value)| (name.as_str().into(), value.as_bytes().to_vec()));
    let mut fields: Fields = fields.collect();
    fields.sort();
    fields
}

impl End for Server {
    fn parts(&mut self) -> (&Wire, &mut Outcome) {
        (&self.wire, &mut self.outcome)
    }

    fn poll_all(&mut self, cx: &mut Context<'_>) {
        while self.poll(cx) {}
        self.poll_content(cx);
    }
}

impl Peer for Server {
    const NAME: &'static str = "h2 server";
    const ROLE: Role = Role::Server;

    fn receive(&mut self, bytes: &[u8]) {
        self.exchange(bytes);
    }

    fn outcome(&mut self) -> Outcome {
        Self::view(self.outcome.clone())
    }

    /// A `HeaderMap` and a URI have their own order, and so have messages of several streams. A URI without an authority has
    /// no scheme.
    fn view(mut outcome: Outcome) -> Outcome {
        for (_, fields) in &mut outcome.messages {
            fields.retain(|(name, _)| name != b":scheme");
            fields.sort();
        }
        outcome.messages.sort();
        outcome
    }
}

/// A request of a client, and its response.
struct Exchange {
    id: u32,
    /// `None` once the final response has arrived.
    response: Option<ResponseFuture>,
    content: Option<RecvStream>,
    failed: bool,
    /// Dropping it would reset the stream.
    _request: SendStream<Bytes>,
}

impl Exchange {
    fn receive(&mut self, cx: &mut Context<'_>, outcome: &mut Outcome) -> Result<(), h2::Error> {
        if let Some(response) = &mut self.response {
            while let Poll::Ready(Some(interim)) = response.poll_informational(cx) {
                let interim = interim?;
                outcome.messages.push((self.id, to_response_fields(interim.status(), interim.headers())));
            }
            let Poll::Ready(received) = Pin::new(response).poll(cx) else { return Ok(()) };
            let received = received?;
            outcome.messages.push((self.id, to_response_fields(received.status(), received.headers())));
            self.response = None;
            self.content = Some(received.into_body());
        }
        match &mut self.content {
            Some(content) => receive_content(cx, self.id, content, outcome),
            None => Ok(()),
        }
    }
}

fn to_response_fields(status: http::StatusCode, headers: &http::HeaderMap) -> Fields {
    let mut fields = to_fields(headers);
    fields.push((b":status".to_vec(), status.as_str().into()));
    fields
}

pub struct Client {
    wire: Wire,
    /// `None` once it has ended.
    connection: Option<h2::client::Connection<Wire, Bytes>>,
    exchanges: Vec<Exchange>,
    /// The connection ends when it is dropped.
    _requests: SendRequest<Bytes>,
    outcome: Outcome,
}

impl Client {
    #[allow(clippy::new_without_default, reason = "a fixture")]
    pub fn new() -> Self {
        let wire = Wire::default();
        let mut builder = h2::client::Builder::new();
        builder.enable_push(false).max_header_list_size(1 << 20);
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(Ok((mut requests, connection))) =
            std::pin::pin!(builder.handshake(wire.clone())).poll(&mut cx)
        else {
            panic!("a client waits for nothing");
        };
        let mut exchanges = Vec::new();
        for (method, ends) in REQUESTS {
            assert!(requests.poll_ready(&mut cx).is_ready());
            let target = if method == "CONNECT" { "a.example:443" } else { "https://a.example:443/" };
            let request =
                http::Request::builder().method(method).uri(target).body(()).expect("a valid request");
            let (response, send) = requests.send_request(request, ends).expect("a valid request");
            exchanges.push(Exchange {
                id: response.stream_id().as_u32(),
                response: Some(response),
                content: None,
                failed: false,
                _request: send,
            });
        }
        let connection = Some(connection);
        let mut client =
            Self { wire, connection, exchanges, _requests: requests, outcome: Outcome::default() };
        client.receive(b"");
        client
    }

    fn poll_exchanges(&mut self, cx: &mut Context<'_>) {
        for exchange in &mut self.exchanges {
            if exchange.failed || self.outcome.ended.contains(&exchange.id) {
                continue;
            }
            let Err(error) = exchange.receive(cx, &mut self.outcome) else { continue };
            exchange.failed = true;
            if error.is_remote()
                && let Some(code) = error.reason()
            {
                if error.is_go_away() {
                    self.outcome.refused.insert(exchange.id);
                } else {
                    self.outcome.resets.insert(exchange.id, code.into());
                }
            }
        }
    }
}

impl End for Client {
    fn parts(&mut self) -> (&Wire, &mut Outcome) {
        (&self.wire, &mut self.outcome)
    }

    fn poll_all(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && Pin::new(connection).poll(cx).is_ready()
        {
            self.connection = None;
        }
        self.poll_exchanges(cx);
    }
}

impl Peer for Client {
    const NAME: &'static str = "h2 client";
    const ROLE: Role = Role::Client;

    fn receive(&mut self, bytes: &[u8]) {
        self.exchange(bytes);
    }

    fn outcome(&mut self) -> Outcome {
        Self::view(self.outcome.clone())
    }

    /// As of the server. An end hides a reset behind it.
    fn view(outcome: Outcome) -> Outcome {
        let mut outcome = Server::view(outcome);
        let Outcome { ended, resets, refused, .. } = &mut outcome;
        resets.retain(|stream, _| !ended.contains(stream));
        refused.retain(|stream| !ended.contains(stream));
        outcome
    }
}
