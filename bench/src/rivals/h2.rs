//! The `h2` crate, polled without a runtime, over two buffers instead of a socket.

use crate::exchange::{Exchange, Fields, Pair, Totals, WINDOW};
use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// One end of a connection in memory.
struct Pipe {
    read: Rc<RefCell<BytesMut>>,
    write: Rc<RefCell<BytesMut>>,
}

impl AsyncRead for Pipe {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut read = self.read.borrow_mut();
        if read.is_empty() {
            return Poll::Pending;
        }
        let len = read.len().min(buf.remaining());
        buf.put_slice(&read[..len]);
        read.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.write.borrow_mut().extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut write = self.write.borrow_mut();
        bufs.iter().for_each(|buf| write.extend_from_slice(buf));
        Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

enum Receiving {
    Head(h2::client::ResponseFuture),
    Body(h2::RecvStream),
}

/// A client and a server.
pub(crate) struct Connections {
    requests: Vec<Request<()>>,
    response: Response<()>,
    exchange: Arc<Exchange>,
    client: h2::client::Connection<Pipe, Bytes>,
    sender: h2::client::SendRequest<Bytes>,
    server: h2::server::Connection<Pipe, Bytes>,
    pipes: [Rc<RefCell<BytesMut>>; 2],
    receiving: VecDeque<Receiving>,
    /// Requests that are not answered.
    unanswered: Vec<h2::server::SendResponse<Bytes>>,
    sent: usize,
    totals: Totals,
}

fn count(totals: &mut Totals, fields: &HeaderMap) {
    for (name, value) in fields {
        totals.field(name.as_str().as_bytes(), value.as_bytes());
    }
}

fn headers(fields: &Fields) -> HeaderMap {
    let regular = fields.iter().filter(|(name, _)| !name.starts_with(':'));
    regular
        .map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name of the exchange");
            (name, HeaderValue::from_str(value).expect("a value of the exchange"))
        })
        .collect()
}

fn pseudo<'a>(fields: &'a Fields, name: &str) -> &'a str {
    fields.iter().find(|field| field.0 == name).map_or("", |field| &field.1)
}

fn request(fields: &Fields) -> Request<()> {
    let uri = format!(
        "{}://{}{}",
        pseudo(fields, ":scheme"),
        pseudo(fields, ":authority"),
        pseudo(fields, ":path")
    );
    let mut request =
        Request::builder().method(pseudo(fields, ":method")).uri(uri).body(()).expect("a request");
    *request.headers_mut() = headers(fields);
    request
}

fn ready<F: Future>(future: Pin<&mut F>, context: &mut Context<'_>) -> Option<F::Output> {
    match future.poll(context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

impl Connections {
    fn drive_client(&mut self, context: &mut Context<'_>) {
        let done = ready(Pin::new(&mut self.client), context);
        assert!(done.is_none(), "the connection stays open");
    }

    /// Sends at most `requests` requests, as many as the connection accepts.
    fn send(&mut self, requests: usize, context: &mut Context<'_>) -> usize {
        for sent in 0..requests {
            match self.sender.poll_ready(context) {
                Poll::Ready(ready) => ready.expect("the connection stays open"),
                Poll::Pending => return sent,
            }
            let request = self.requests[self.sent % self.requests.len()].clone();
            let (response, _) = self.sender.send_request(request, true).expect("a request may be sent");
            self.receiving.push_back(Receiving::Head(response));
            self.sent += 1;
        }
        requests
    }

    /// Takes the requests that arrived.
    fn serve(&mut self, answer: bool, context: &mut Context<'_>) {
        while let Poll::Ready(accepted) = self.server.poll_accept(context) {
            let (request, mut respond) =
                accepted.expect("the connection stays open").expect("an honest request");
            self.totals.messages += 1;
            let (uri, method) = (request.uri(), request.method());
            self.totals.field(b":method", method.as_str().as_bytes());
            self.totals.field(b":scheme", uri.scheme_str().unwrap_or_default().as_bytes());
            self.totals.field(b":authority", uri.authority().map_or("", |text| text.as_str()).as_bytes());
            self.totals.field(b":path", uri.path_and_query().map_or("", |text| text.as_str()).as_bytes());
            count(&mut self.totals, request.headers());
            if !answer {
                self.unanswered.push(respond);
                continue;
            }
            let mut body =
                respond.send_response(self.response.clone(), false).expect("a response may be sent");
            for (at, chunk) in self.exchange.data.iter().enumerate() {
                body.send_data(chunk.clone(), at + 1 == self.exchange.data.len()).expect("data may be sent");
            }
        }
    }

    /// Whether this stream is done.
    fn take(receiving: &mut Receiving, totals: &mut Totals, context: &mut Context<'_>) -> bool {
        if let Receiving::Head(response) = receiving {
            let Some(response) = ready(Pin::new(response), context) else { return false };
            let (head, body) = response.expect("a response").into_parts();
            totals.messages += 1;
            totals.field(b":status", head.status.as_str().as_bytes());
            count(totals, &head.headers);
            *receiving = Receiving::Body(body);
        }
        if let Receiving::Body(body) = receiving {
            while let Poll::Ready(chunk) = body.poll_data(context) {
                let Some(chunk) = chunk else { return true };
                let chunk = chunk.expect("data");
                totals.data(&chunk);
                body.flow_control().release_capacity(chunk.len()).expect("what was received");
            }
        }
        false
    }
}

impl Pair for Connections {
    fn open(exchange: &Arc<Exchange>) -> Self {
        let context = &mut Context::from_waker(Waker::noop());
        let (up, down) = (Rc::new(RefCell::new(BytesMut::new())), Rc::new(RefCell::new(BytesMut::new())));
        let pipes = [Rc::clone(&up), Rc::clone(&down)];
        let near = Pipe { read: Rc::clone(&down), write: Rc::clone(&up) };
        let far = Pipe { read: up, write: down };
        let mut connect = h2::client::Builder::new();
        connect.initial_max_send_streams(2_000_000);
        connect.initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
        let connected = ready(pin!(connect.handshake::<_, Bytes>(near)), context);
        let (sender, client) = connected.expect("writing suffices").expect("a connection");
        let mut serve = h2::server::Builder::new();
        serve.max_concurrent_streams(2_000_000);
        let accepted = ready(pin!(serve.handshake::<_, Bytes>(far)), context);
        let server = accepted.expect("the preface is there").expect("a connection");
        let mut response = Response::new(());
        *response.status_mut() = pseudo(&exchange.response, ":status").parse().expect("a status");
        *response.headers_mut() = headers(&exchange.response);
        let mut connections = Self {
            requests: exchange.requests.iter().map(request).collect(),
            response,
            exchange: Arc::clone(exchange),
            client,
            sender,
            server,
            pipes,
            receiving: VecDeque::new(),
            unanswered: Vec::new(),
            sent: 0,
            totals: Totals::default(),
        };
        for _ in 0..3 {
            connections.drive_client(context);
            connections.serve(true, context);
        }
        connections
    }

    fn run(&mut self, streams: usize, concurrent: usize) {
        let context = &mut Context::from_waker(Waker::noop());
        let mut left = streams;
        while left > 0 || !self.receiving.is_empty() {
            left -= self.send(left.min(concurrent - self.receiving.len()), context);
            self.drive_client(context);
            self.serve(true, context);
            self.drive_client(context);
            let totals = &mut self.totals;
            self.receiving.retain_mut(|receiving| !Self::take(receiving, totals, context));
        }
    }

    fn open_streams(&mut self, streams: usize) {
        let context = &mut Context::from_waker(Waker::noop());
        self.receiving.reserve_exact(streams);
        self.unanswered.reserve_exact(streams);
        let mut left = streams;
        while left > 0 {
            left -= self.send(left, context);
            self.drive_client(context);
            self.serve(false, context);
            self.drive_client(context);
        }
        // The pipes are empty now. Their buffers do not count as memory of the streams.
        self.pipes.iter().for_each(|pipe| *pipe.borrow_mut() = BytesMut::new());
        assert_eq!(self.unanswered.len(), streams);
    }

    fn receive(&mut self, bytes: &[u8]) {
        let context = &mut Context::from_waker(Waker::noop());
        // In chunks of a read, so that the pipe is no larger than a socket's buffer.
        for chunk in bytes.chunks(64 * 1024) {
            self.pipes[1].borrow_mut().extend_from_slice(chunk);
            self.drive_client(context);
            let totals = &mut self.totals;
            self.receiving.retain_mut(|receiving| !Self::take(receiving, totals, context));
        }
    }

    fn totals(&self) -> Totals {
        self.totals
    }
}
