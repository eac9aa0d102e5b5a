//! The server of the `h2` crate.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::{Builder, Connection, Handshake, SendResponse};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use wireloom_testing::http2::split;

use super::{Fields, Outcome, Peer};

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

enum State {
    Handshake(Handshake<Wire, Bytes>),
    Open(Connection<Wire, Bytes>),
    Ended,
}

/// A stream: dropping its handles would reset it.
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
        let mut builder = Builder::new();
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
            while let Poll::Ready(Some(Ok(data))) = stream.content.poll_data(cx) {
                let _ = stream.content.flow_control().release_capacity(data.len());
                if !data.is_empty() {
                    self.outcome.content.entry(stream.id).or_default().extend_from_slice(&data);
                }
            }
            if let Poll::Ready(Ok(trailers)) = stream.content.poll_trailers(cx) {
                self.outcome.ended.insert(stream.id);
                if let Some(trailers) = trailers {
                    self.outcome.messages.push((stream.id, to_fields(&trailers)));
                }
            }
        }
    }
}

/// Sorted: a `HeaderMap` keeps the order of values of one name only.
fn to_fields(headers: &http::HeaderMap) -> Fields {
    let fields = headers.iter().map(|(name, value)| (name.as_str().into(), value.as_bytes().to_vec()));
    let mut fields: Fields = fields.collect();
    fields.sort();
    fields
}

impl Peer for Server {
    const NAME: &'static str = "h2";

    fn receive(&mut self, bytes: &[u8]) {
        self.wire.0.borrow_mut().input.extend(bytes);
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            while self.poll(&mut cx) {}
            self.poll_content(&mut cx);
            let output = std::mem::take(&mut self.wire.0.borrow_mut().output);
            if output.is_empty() {
                break;
            }
            self.outcome.note_written(&split(&output));
        }
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
