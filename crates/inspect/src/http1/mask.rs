//! Masks secrets in HTTP/1.1 heads, for recordings. Heads are buffered until they are complete; bodies are parsed to
//! find the next head; after an upgrade all bytes pass unchanged. Where the next head cannot be found, every byte is masked.

use std::collections::VecDeque;

use bytes::{Buf as _, BytesMut};

use super::body::{Body, Framing};
use super::head::{Parsed, Pending, Request, Response};
use crate::entry::Direction;
use crate::limits::{EARLY_LEN_MAX, HEAD_LEN_MAX, PIPELINED_MAX};
use crate::secret::{MASK, mask_head};

/// Both directions of a connection.
#[derive(Debug, Default)]
pub(crate) struct MaskHttp1 {
    sides: [Side; 2],
    requests: VecDeque<Pending>,
}

#[derive(Debug, Default)]
struct Side {
    buffer: BytesMut,
    /// The body of the latest head, which precedes what `state` says.
    body: Option<Body>,
    state: State,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Head,
    /// An upgrade was requested: the bytes wait for the response.
    Waiting,
    /// The bytes are HTTP/2, which `mask_http2` masks.
    Http2,
    /// The bytes are another protocol.
    Pass,
    /// The next head cannot be found.
    Lost,
}

impl MaskHttp1 {
    /// Handles bytes; returns those to record now.
    pub(crate) fn handle(&mut self, direction: Direction, bytes: &[u8]) -> Vec<u8> {
        self.sides[direction.index()].buffer.extend_from_slice(bytes);
        let mut out = Vec::new();
        loop {
            let side = &mut self.sides[direction.index()];
            if let Some(body) = &mut side.body {
                let (len, has_ended) = body.handle(&side.buffer, |_| {});
                if body.is_lost() {
                    (side.body, side.state) = (None, State::Lost);
                    continue;
                }
                side.pass(len, &mut out);
                if !has_ended {
                    return out;
                }
                side.body = None;
            }
            let held = side.buffer.len();
            match side.state {
                _ if held == 0 => return out,
                State::Waiting | State::Http2 if held <= EARLY_LEN_MAX => return out,
                State::Waiting | State::Http2 => side.state = State::Lost,
                State::Pass => {
                    side.pass(held, &mut out);
                    return out;
                }
                State::Lost => {
                    side.buffer.fill(MASK);
                    side.pass(held, &mut out);
                    return out;
                }
                State::Head => {
                    let head = match direction {
                        Direction::ToServer => {
                            Request::parse(&side.buffer).map(|request| self.request(&request))
                        }
                        Direction::ToClient => {
                            Response::parse(&side.buffer).map(|response| self.response(&response))
                        }
                    };
                    let side = &mut self.sides[direction.index()];
                    match head {
                        Parsed::Complete((), len) => {
                            mask_head(&mut side.buffer[..len]);
                            side.pass(len, &mut out);
                        }
                        Parsed::Partial if held <= HEAD_LEN_MAX => return out,
                        _ => side.state = State::Lost,
                    }
                }
            }
        }
    }

    fn request(&mut self, request: &Request) {
        let side = &mut self.sides[Direction::ToServer.index()];
        side.state = match request.framing() {
            // RFC 9112 §6.3: the length of a request is always known, to a server that accepts it.
            Framing::UntilClose => State::Lost,
            _ if self.requests.len() == PIPELINED_MAX => State::Lost,
            _ if request.upgrades() || request.is_connect() => State::Waiting,
            _ => State::Head,
        };
        if !matches!(side.state, State::Lost) {
            side.body = Body::of(request.framing());
            self.requests.push_back(request.pending_without_checks());
        }
    }

    fn response(&mut self, response: &Response) {
        if response.is_interim() {
            return;
        }
        let [client, side] = &mut self.sides;
        let request = self.requests.pop_front();
        if request.is_none() && matches!(client.state, State::Lost) {
            // The framing of the response depends on the request.
            side.state = State::Lost;
        } else if response.switches(request.as_ref()) {
            side.state = if response.switches_to_http2() { State::Http2 } else { State::Pass };
        } else {
            side.body = Body::of(response.framing(request.as_ref()));
        }
        if matches!(client.state, State::Waiting) {
            client.state = side.state;
        }
    }

    /// The buffered bytes of the client and of the server after a switch to HTTP/2; `None` before it.
    pub(crate) fn take_http2(&mut self) -> Option<[Vec<u8>; 2]> {
        // RFC 9110 §7.8: the other protocol begins after the whole request.
        let has_switched =
            self.sides.iter().all(|side| matches!(side.state, State::Http2) && side.body.is_none());
        has_switched.then(|| self.sides.each_mut().map(|side| std::mem::take(&mut side.buffer).into()))
    }

    /// Handles the end of a direction; returns the bytes that were still buffered.
    pub(crate) fn finish(&mut self, direction: Direction) -> Vec<u8> {
        let side = &mut self.sides[direction.index()];
        side.state = match side.state {
            // After a request for an upgrade that is not answered, more requests may follow.
            State::Waiting => State::Head,
            State::Http2 => State::Lost,
            state => state,
        };
        let mut out = self.handle(direction, &[]);
        let side = &mut self.sides[direction.index()];
        mask_head(&mut side.buffer);
        side.pass(side.buffer.len(), &mut out);
        out
    }
}

impl Side {
    /// Moves the first `len` bytes to `out`.
    fn pass(&mut self, len: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.buffer[..len]);
        self.buffer.advance(len);
        if self.buffer.is_empty() {
            // An idle connection holds no buffer.
            self.buffer = BytesMut::new();
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

    /// A request that offers h2c, with content.
    const UPGRADE: &[u8] =
        b"POST /echo HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
        HTTP2-Settings: \r\nContent-Length: 7\r\n\r\n{\"a\":1}";
    const SECRET: &[u8] = b"GET / HTTP/1.1\r\nAuthorization: Bearer SECRET\r\n\r\n";
    const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

    fn reveals(recorded: &[u8]) -> bool {
        recorded.windows(6).any(|part| part == b"SECRET")
    }

    #[test]
    fn a_refused_upgrade_with_content_is_followed_by_heads() {
        // The response may arrive before the content.
        for early in UPGRADE.len() - 7..UPGRADE.len() + SECRET.len() {
            let client = [UPGRADE, SECRET, SECRET].concat();
            let mut mask = MaskHttp1::default();
            let mut recorded = mask.handle(Direction::ToServer, &client[..early]);
            assert_eq!(mask.handle(Direction::ToClient, OK), OK);
            recorded.extend(mask.handle(Direction::ToServer, &client[early..]));
            let shown = "GET / HTTP/1.1\r\nAuthorization: *************\r\n\r\n".repeat(2);
            assert!(recorded.starts_with(UPGRADE) && recorded.ends_with(shown.as_bytes()), "{early}");
            assert_eq!(recorded.len(), client.len());
        }
    }

    #[test]
    fn an_accepted_upgrade_is_followed_by_frames_after_the_content() {
        let response = b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\n\r\n";
        for early in UPGRADE.len() - 7..UPGRADE.len() {
            let client = [UPGRADE, SECRET].concat();
            let mut mask = MaskHttp1::default();
            let mut recorded = mask.handle(Direction::ToServer, &client[..early]);
            mask.handle(Direction::ToClient, response);
            recorded.extend(mask.handle(Direction::ToServer, &client[early..]));
            assert_eq!(recorded, client, "{early}");
        }
    }

    #[test]
    fn what_follows_a_head_that_cannot_be_read_is_masked() {
        let long = [&b"GET / HTTP/1.1\r\nX: "[..], &[b'x'; HEAD_LEN_MAX], b"\r\n\r\n"].concat();
        let many = [&b"GET / HTTP/1.1\r\n"[..], &b"X: y\r\n".repeat(257), b"\r\n"].concat();
        let chunks = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n".to_vec();
        let no_length = b"POST / HTTP/1.1\r\nContent-Length: 0, 0\r\n\r\n".to_vec();
        let early = [UPGRADE, &b"x".repeat(EARLY_LEN_MAX + 1)].concat();
        let pipelined = b"GET / HTTP/1.1\r\n\r\n".repeat(PIPELINED_MAX + 1);
        for start in [long, many, chunks, no_length, early, pipelined, b"\0\x01".to_vec()] {
            let mut mask = MaskHttp1::default();
            let client = [&start, SECRET, SECRET].concat();
            let mut recorded = Vec::new();
            for part in client.chunks(4096) {
                recorded.extend(mask.handle(Direction::ToServer, part));
            }
            mask.handle(Direction::ToClient, OK);
            recorded.extend(mask.handle(Direction::ToServer, SECRET));
            recorded.extend(mask.finish(Direction::ToServer));
            assert!(!reveals(&recorded), "{}", start.escape_ascii());
            assert_eq!(recorded.len(), client.len() + SECRET.len());
        }
    }

    #[test]
    fn a_target_after_an_empty_line_is_masked() {
        let mut mask = MaskHttp1::default();
        let recorded = mask.handle(Direction::ToServer, b"\r\nGET /?token=SECRET HTTP/1.1\r\n\r\n");
        assert_eq!(recorded, b"\r\nGET /?token=****** HTTP/1.1\r\n\r\n");
    }

    #[test]
    fn all_requests_that_wait_for_an_upgrade_are_masked_at_the_end() {
        let mut mask = MaskHttp1::default();
        let target = b"GET /?token=SECRET HTTP/1.1\r\n\r\n";
        let mut recorded = mask.handle(Direction::ToServer, &[UPGRADE, target, target].concat());
        recorded.extend(mask.finish(Direction::ToServer));
        assert!(!reveals(&recorded), "{}", recorded.escape_ascii());
    }
}
