//! HTTP/1.1 on one connection (RFC 9112): heads, bodies, and the upgrade to WebSocket (RFC 6455 §4) or HTTP/2.
//! Heads are parsed by httparse.

mod body;
mod head;
mod mask;

use std::collections::VecDeque;

use bytes::{Buf as _, BytesMut};
use wireloom_ws::deflate::DeflateParams;

use crate::entry::{Context, Direction, Protocol};
use crate::limits::{Budget, Content, EARLY_LEN_MAX, HEAD_LEN_MAX, PIPELINED_MAX};
use crate::websocket::text_or_binary;
use body::{Body, Framing};
use head::{Parsed, Pending, Request, Response};
pub(crate) use head::{deflate, describe};
pub(crate) use mask::MaskHttp1;

/// The protocol that follows on the connection, and the bytes that already belong to it.
#[derive(Debug)]
pub(crate) struct Switch {
    pub(crate) to: Next,
    /// The bytes, by direction.
    pub(crate) left: [Vec<u8>; 2],
}

/// A protocol that follows an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    WebSocket(Option<DeflateParams>),
    /// `is_head`: the request that was upgraded is HEAD.
    Http2 {
        is_head: bool,
    },
    /// A tunnel, or an unknown protocol.
    Other,
}

/// Both directions of a connection.
#[derive(Debug, Default)]
pub(crate) struct Http1 {
    sides: [Side; 2],
    /// Requests whose response has not arrived.
    requests: VecDeque<Pending>,
    /// The protocol that follows the client's request.
    next: Option<Next>,
}

#[derive(Debug, Default)]
struct Side {
    buffer: BytesMut,
    /// The body of the latest head, which precedes what `state` says, and its content.
    body: Option<Box<(Body, Content)>>,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Head,
    /// An upgrade was requested, or accepted: the bytes wait for the response, or for the end of the request.
    Waiting,
    /// The next head cannot be found.
    Lost,
}

impl Http1 {
    /// Handles bytes of one direction; returns the protocol that follows, if the connection is upgraded.
    pub(crate) fn handle(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Option<Switch> {
        let side = &mut self.sides[context.direction.index()];
        if !matches!(side.state, State::Lost) {
            side.buffer.extend_from_slice(bytes);
        }
        self.advance(context);
        // RFC 9110 §7.8: the other protocol begins after the whole request.
        let [client, server] = &mut self.sides;
        let to = self.next.take_if(|_| client.body.is_none())?;
        Some(Switch { to, left: [client, server].map(|side| std::mem::take(&mut side.buffer).into()) })
    }

    fn advance(&mut self, context: &mut Context<'_>) {
        loop {
            let side = &mut self.sides[context.direction.index()];
            if let Some(body) = &mut side.body {
                let (framing, content) = &mut **body;
                let (len, has_ended) = framing.handle(&side.buffer, |bytes| content.push(bytes));
                side.buffer.advance(len);
                if !has_ended {
                    return;
                }
                framing.report(content, context, false);
                side.body = None;
            }
            match side.state {
                State::Head => {
                    // RFC 9112 §2.2: empty lines before a request line are ignored.
                    let blank = side.buffer.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
                    side.buffer.advance(blank);
                    if side.buffer.is_empty() {
                        return;
                    }
                    let is_complete = match context.direction {
                        Direction::ToServer => self.request(context),
                        Direction::ToClient => self.response(context),
                    };
                    if !is_complete {
                        return;
                    }
                }
                State::Waiting if side.buffer.len() > EARLY_LEN_MAX => side.state = State::Lost,
                State::Waiting => return,
                State::Lost => {
                    side.buffer = BytesMut::new();
                    return;
                }
            }
        }
    }

    /// Reads a request; returns whether its head is complete.
    fn request(&mut self, context: &mut Context<'_>) -> bool {
        let side = &mut self.sides[Direction::ToServer.index()];
        let (request, len) = match Request::parse(&side.buffer) {
            Parsed::Complete(request, len) => (request, len),
            Parsed::Partial if side.buffer.len() <= HEAD_LEN_MAX => return false,
            failed => {
                side.fail(context, failed.error());
                return false;
            }
        };
        side.buffer.advance(len);
        context.report(request.entry(context, len));
        side.begin_body(request.framing(), context.budget);
        side.state = if request.upgrades() || request.is_connect() { State::Waiting } else { State::Head };
        if self.requests.len() < PIPELINED_MAX {
            self.requests.push_back(request.pending(context.budget));
        }
        true
    }

    fn response(&mut self, context: &mut Context<'_>) -> bool {
        let [client, side] = &mut self.sides;
        let (response, len) = match Response::parse(&side.buffer) {
            Parsed::Complete(response, len) => (response, len),
            Parsed::Partial if side.buffer.len() <= HEAD_LEN_MAX => return false,
            failed => {
                side.fail(context, failed.error());
                return false;
            }
        };
        side.buffer.advance(len);
        let request = if response.is_interim() { None } else { self.requests.pop_front() };
        let (entry, next) = response.entry(context, request.as_ref(), len);
        context.report(entry);
        if next.is_some() {
            side.state = State::Waiting;
            self.next = next;
        } else if !response.is_interim() {
            side.begin_body(response.framing(request.as_ref()), context.budget);
            // The upgrade was refused: the client's next bytes are requests again.
            if matches!(client.state, State::Waiting) {
                client.state = State::Head;
                self.advance(&mut context.reverse());
            }
        }
        true
    }

    /// Handles a gap: bytes that were not captured, `None` if their number is not known.
    pub(crate) fn gap(&mut self, context: &mut Context<'_>, len: Option<u64>) {
        let side = &mut self.sides[context.direction.index()];
        let is_within = side.body.as_mut().is_some_and(|body| {
            let (framing, content) = &mut **body;
            let is_within = framing.gap(len);
            if is_within {
                content.skip(len);
            }
            is_within
        });
        if !is_within {
            side.finish(context, "bytes are missing from here on");
            side.state = State::Head;
            side.buffer = BytesMut::new();
        }
    }

    /// Handles the end of this direction.
    pub(crate) fn finish(&mut self, context: &mut Context<'_>) {
        let side = &mut self.sides[context.direction.index()];
        side.finish(context, "the bytes end here");
    }
}

impl Side {
    fn begin_body(&mut self, framing: Framing, budget: &Budget) {
        self.body = Body::of(framing).map(|body| Box::new((body, Content::new(budget))));
    }

    fn fail(&mut self, context: &mut Context<'_>, error: String) {
        let mut entry = context.entry(Protocol::Http1, "malformed");
        entry.len = self.buffer.len() as u64;
        entry.violation("RFC 9112 §2", error);
        self.buffer.truncate(256);
        entry.payload = text_or_binary(std::mem::take(&mut self.buffer).into());
        context.report(entry);
        self.state = State::Lost;
    }

    fn finish(&mut self, context: &mut Context<'_>, reason: &str) {
        if let Some(mut body) = self.body.take() {
            let (framing, content) = &mut *body;
            framing.report(content, context, true);
        } else if !self.buffer.is_empty() {
            let mut entry = context.entry(Protocol::Http1, "incomplete");
            entry.len = self.buffer.len() as u64;
            entry.missing(format!("{reason}, before the end of the head"));
            self.buffer.truncate(4096);
            entry.payload = text_or_binary(std::mem::take(&mut self.buffer).into());
            context.report(entry);
        }
    }
}
