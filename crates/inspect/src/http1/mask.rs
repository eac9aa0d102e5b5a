//! Masks secrets in HTTP/1.1 heads, for recordings. Heads are buffered until they are complete; bodies are parsed to
//! find the next head; after an upgrade all bytes pass unchanged.

use std::collections::VecDeque;

use bytes::{Buf as _, BytesMut};

use super::body::{Body, Framing};
use super::head::{Parsed, Request, Response};
use crate::entry::Direction;
use crate::limits::{Budget, EARLY_LEN_MAX, HEAD_LEN_MAX, PIPELINED_MAX};
use crate::secret::{MASK, is_secret_field, mask_target};

/// Both directions of a connection.
#[derive(Debug, Default)]
pub(crate) struct MaskHttp1 {
    sides: [Side; 2],
    requests: VecDeque<Request>,
    budget: Budget,
}

#[derive(Debug, Default)]
struct Side {
    buffer: BytesMut,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Head,
    Body(Box<Body>),
    /// An upgrade was requested: the bytes wait for the response.
    Waiting,
    /// The bytes are HTTP/2, which `mask_http2` masks.
    Http2,
    Pass,
}

impl MaskHttp1 {
    /// Handles bytes; returns those to record now.
    pub(crate) fn handle(&mut self, direction: Direction, bytes: &[u8]) -> Vec<u8> {
        self.sides[direction.index()].buffer.extend_from_slice(bytes);
        let mut out = Vec::new();
        loop {
            let [client, server] = &mut self.sides;
            let side = if direction == Direction::ToServer { &mut *client } else { &mut *server };
            let held = side.buffer.len();
            match &mut side.state {
                State::Pass => {
                    out.extend_from_slice(&side.buffer);
                    side.buffer.clear();
                    return out;
                }
                State::Waiting if side.buffer.len() > EARLY_LEN_MAX => side.state = State::Pass,
                State::Waiting | State::Http2 => return out,
                State::Body(body) => {
                    let (len, has_ended) = body.handle(&side.buffer);
                    out.extend_from_slice(&side.buffer[..len]);
                    side.buffer.advance(len);
                    if !has_ended {
                        return out;
                    }
                    side.state = State::Head;
                }
                State::Head if side.buffer.is_empty() => return out,
                State::Head => {
                    let next = match direction {
                        Direction::ToServer => match Request::parse(&side.buffer) {
                            Parsed::Complete(request, len) => {
                                let state = match request.framing() {
                                    _ if request.upgrades() || request.is_connect() => State::Waiting,
                                    framing => state(framing, &self.budget),
                                };
                                if self.requests.len() < PIPELINED_MAX {
                                    self.requests.push_back(request);
                                }
                                Some((len, state))
                            }
                            Parsed::Partial if held <= HEAD_LEN_MAX => return out,
                            _ => None,
                        },
                        Direction::ToClient => match Response::parse(&side.buffer) {
                            Parsed::Complete(response, len) if response.is_interim() => {
                                Some((len, State::Head))
                            }
                            Parsed::Complete(response, len) => {
                                let request = self.requests.pop_front();
                                let switches = response.switches(request.as_ref());
                                if matches!(client.state, State::Waiting) {
                                    client.state = if switches { State::Pass } else { State::Head };
                                }
                                let framing = response.framing(request.as_ref());
                                let next = if response.switches_to_http2() {
                                    client.state = State::Http2;
                                    State::Http2
                                } else if switches {
                                    State::Pass
                                } else {
                                    state(framing, &self.budget)
                                };
                                Some((len, next))
                            }
                            Parsed::Partial if held <= HEAD_LEN_MAX => return out,
                            _ => None,
                        },
                    };
                    // Bytes that are not a head are masked like one.
                    let (len, state) = next.unwrap_or((held, State::Pass));
                    let side = &mut self.sides[direction.index()];
                    mask_head(&mut side.buffer[..len]);
                    out.extend_from_slice(&side.buffer[..len]);
                    side.buffer.advance(len);
                    side.state = state;
                }
            }
        }
    }

    /// The buffered bytes of the client and of the server after a switch to HTTP/2; `None` before it.
    pub(crate) fn take_http2(&mut self) -> Option<[Vec<u8>; 2]> {
        let has_switched = self.sides.iter().all(|side| matches!(side.state, State::Http2));
        has_switched.then(|| self.sides.each_mut().map(|side| std::mem::take(&mut side.buffer).into()))
    }

    /// Handles the end of a direction; returns the bytes that were still buffered.
    pub(crate) fn finish(&mut self, direction: Direction) -> Vec<u8> {
        let side = &mut self.sides[direction.index()];
        let mut rest = Vec::from(std::mem::take(&mut side.buffer));
        // After a request for an upgrade, another request may follow.
        if matches!(side.state, State::Head | State::Waiting) {
            mask_head(&mut rest);
        }
        rest
    }
}

fn state(framing: Framing, budget: &Budget) -> State {
    match framing {
        Framing::None => State::Head,
        framing => State::Body(Box::new(Body::new(framing, budget))),
    }
}

/// Masks the secrets of a head.
fn mask_head(head: &mut [u8]) {
    let mut is_secret = false;
    for (number, line) in head.split_mut(|&byte| byte == b'\n').enumerate() {
        let len = line.strip_suffix(b"\r").map_or(line.len(), <[u8]>::len);
        let line = &mut line[..len];
        if number == 0 {
            mask_target(line);
        } else if matches!(line.first(), Some(b' ' | b'\t')) {
            // RFC 9112 §5.2: the value continues.
            if is_secret {
                line[1..].fill(MASK);
            }
        } else if let Some(colon) = line.iter().position(|&byte| byte == b':') {
            let (name, value) = line.split_at_mut(colon);
            is_secret = is_secret_field(name);
            let spaces = value[1..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
            if is_secret {
                value[1 + spaces..].fill(MASK);
            } else if name.eq_ignore_ascii_case(b"referer") || name.eq_ignore_ascii_case(b"location") {
                mask_target(&mut value[1 + spaces..]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &[u8] =
        b"GET /chat?token=abc HTTP/1.1\r\nHost: h\r\nCookie: a=1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    const MASKED: &[u8] =
        b"GET /chat?token=*** HTTP/1.1\r\nHost: h\r\nCookie: ***\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";

    #[test]
    fn masks_heads_and_passes_frames() {
        for cut in 1..REQUEST.len() {
            let mut mask = MaskHttp1::default();
            let mut out = Vec::new();
            for part in REQUEST.chunks(cut) {
                out.extend(mask.handle(Direction::ToServer, part));
            }
            assert_eq!(out, MASKED, "cut {cut}");
            // Frames that look like a head are not touched.
            let response = b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\n\r\n";
            assert_eq!(mask.handle(Direction::ToClient, response), response);
            let frame = b"\x81\x0bCookie: a=1";
            assert_eq!(mask.handle(Direction::ToServer, frame), frame);
            assert_eq!(mask.handle(Direction::ToClient, frame), frame);
        }
    }

    #[test]
    fn finds_the_heads_between_bodies() {
        let mut mask = MaskHttp1::default();
        let requests =
            b"POST / HTTP/1.1\r\nContent-Length: 11\r\n\r\nCookie: a=1GET / HTTP/1.1\r\nCookie: a=1\r\n\r\n";
        let masked =
            b"POST / HTTP/1.1\r\nContent-Length: 11\r\n\r\nCookie: a=1GET / HTTP/1.1\r\nCookie: ***\r\n\r\n";
        assert_eq!(mask.handle(Direction::ToServer, requests), masked);
        let response = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1;\r\n b\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
        let masked = b"HTTP/1.1 200 OK\r\nSet-Cookie: ****\r\n *\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
        assert_eq!(mask.handle(Direction::ToClient, response), masked);
    }

    #[test]
    fn a_request_that_waits_for_an_upgrade_is_masked_at_the_end() {
        let mut mask = MaskHttp1::default();
        assert_eq!(mask.handle(Direction::ToServer, &[REQUEST, REQUEST].concat()), MASKED);
        assert_eq!(mask.finish(Direction::ToServer), MASKED);
    }

    #[test]
    fn heads_after_a_refused_upgrade_are_masked() {
        let mut mask = MaskHttp1::default();
        assert_eq!(mask.handle(Direction::ToServer, REQUEST), MASKED);
        let refusal = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(mask.handle(Direction::ToClient, refusal), refusal);
        assert_eq!(mask.handle(Direction::ToServer, REQUEST), MASKED);
    }
}
