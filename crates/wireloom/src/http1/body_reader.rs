//! Reads the body of an HTTP/1.1 message from its connection while the application requests it: of a request while its
//! handler runs and its response is sent, or of a response.

use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};

use super::body_channel::{BodyReceiver, BodySender, Demand, body_channel};
use super::body_decoder::{BodyDecoder, Framing};
use super::head::Refusal;
use crate::error::HttpError;
use crate::transport::{Io, poll_read};

/// RFC 9110 §10.1.1.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The connection's half of a body.
pub(crate) struct BodyReader {
    decoder: BodyDecoder,
    /// `None` once the body has ended.
    channel: Option<BodySender>,
    /// The part of `100 Continue` that is not written yet.
    interim: &'static [u8],
    end: Option<BodyEnd>,
    /// Bytes have been consumed since the last call of [`take_progress`](Self::take_progress).
    has_progressed: bool,
}

/// How a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyEnd {
    /// Complete: another message may follow.
    Complete,
    /// Incomplete, and not read any further.
    Broken,
}

/// The application's half of a body.
pub(crate) enum Content {
    /// The whole body arrived together with the head.
    Whole(Bytes),
    /// The rest is read on demand; its length, if the head announced one.
    Streamed(BodyReceiver, Option<u64>),
}

impl BodyReader {
    /// Takes the part of the body that arrived with the head out of `bytes`.
    ///
    /// # Errors
    /// The chunked coding is invalid.
    pub(crate) fn new(framing: Framing, bytes: &mut BytesMut) -> Result<(Self, Content), Refusal> {
        let decoder = BodyDecoder::new(framing);
        let len = decoder.remaining();
        let mut reader = Self { channel: None, interim: &[], end: None, has_progressed: false, decoder };
        if let Some(len) = len
            && len <= bytes.len() as u64
        {
            // Most requests have no body.
            reader.end = Some(BodyEnd::Complete);
            let whole = if len > 0 { bytes.split_to(len as usize).freeze() } else { Bytes::new() };
            return Ok((reader, Content::Whole(whole)));
        }
        let (sender, receiver) = body_channel();
        let mut content = BytesMut::new();
        reader.decoder.push(bytes, &mut content)?;
        sender.put(content);
        reader.channel = Some(sender);
        reader.finish_if_complete();
        Ok((reader, Content::Streamed(receiver, len)))
    }

    /// Sends `100 Continue` before the first read (RFC 9110 §10.1.1).
    pub(crate) fn expect_continue(&mut self) {
        if self.end.is_none() {
            self.interim = CONTINUE;
        }
    }

    /// How the body ended, once it has.
    pub(crate) fn end(&self) -> Option<BodyEnd> {
        self.end
    }

    /// The final response begins, after which no interim one may be sent. Returns whether another request may follow: not when the
    /// rest of the body precedes it on the connection and is not read. `100 Continue`, or the rest of it, is appended to `out` if
    /// the application will read the body later, or if it was written in part.
    pub(crate) fn respond(&mut self, out: &mut Vec<u8>) -> bool {
        let interim = std::mem::take(&mut self.interim);
        let is_wanted = self.channel.as_ref().is_some_and(|channel| !channel.is_closed());
        // RFC 9110 §10.1.1: a client that receives a final response first may keep its body, and the application would wait for it.
        let continued = is_wanted || interim.len() < CONTINUE.len();
        if continued {
            out.extend_from_slice(interim);
        }
        match self.end {
            Some(end) => end == BodyEnd::Complete,
            None => is_wanted,
        }
    }

    /// Whether a part of the body has arrived since the last call.
    #[cfg(feature = "server")]
    pub(crate) fn take_progress(&mut self) -> bool {
        std::mem::take(&mut self.has_progressed)
    }

    /// Reads while the application requests content. Ready at the end of the body.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, io: &mut Io, bytes: &mut BytesMut) -> Poll<BodyEnd> {
        loop {
            if let Some(end) = self.end {
                return Poll::Ready(end);
            }
            let Some(channel) = &self.channel else { return Poll::Ready(BodyEnd::Broken) };
            if ready!(channel.poll_demand(cx)) == Demand::Closed {
                self.end = Some(BodyEnd::Broken);
                continue;
            }
            while !self.interim.is_empty() {
                match ready!(io.poll_write(cx, &[std::io::IoSlice::new(self.interim)])) {
                    Ok(len @ 1..) => self.interim = &self.interim[len..],
                    _ => return self.fail(HttpError::ConnectionLost),
                }
            }
            if bytes.is_empty() {
                // A write must reach the peer before its answer is waited for.
                if let Poll::Ready(Err(_)) = io.poll_flush(cx) {
                    return self.fail(HttpError::ConnectionLost);
                }
                match ready!(poll_read(cx, io, bytes)) {
                    Ok(1..) => {}
                    Ok(0) if self.decoder.handle_eof() => {
                        self.finish_if_complete();
                        continue;
                    }
                    _ => return self.fail(HttpError::ConnectionLost),
                }
            }
            let before = bytes.len();
            let mut content = BytesMut::new();
            let pushed = self.decoder.push(bytes, &mut content);
            channel.put(content);
            if let Err((_, why)) = pushed {
                return self.fail(HttpError::Malformed(why));
            }
            self.has_progressed |= bytes.len() < before;
            self.finish_if_complete();
            if self.end.is_none() && bytes.len() == before && !bytes.is_empty() {
                // An incomplete line of the chunked coding.
                match ready!(poll_read(cx, io, bytes)) {
                    Ok(1..) => {}
                    _ => return self.fail(HttpError::ConnectionLost),
                }
            }
        }
    }

    fn finish_if_complete(&mut self) {
        if self.decoder.is_complete()
            && let Some(channel) = self.channel.take()
        {
            let decoder = std::mem::replace(&mut self.decoder, BodyDecoder::new(Framing::Length(0)));
            channel.finish(decoder.into_trailers());
            self.end = Some(BodyEnd::Complete);
        }
    }

    fn fail(&mut self, error: HttpError) -> Poll<BodyEnd> {
        if let Some(channel) = self.channel.take() {
            channel.fail(error);
        }
        self.end = Some(BodyEnd::Broken);
        Poll::Ready(BodyEnd::Broken)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::AsyncReadExt as _;

    use super::*;

    // RFC 9110 §10.1.1: an interim response that is cut off would be part of the final one.
    #[tokio::test]
    async fn an_interim_response_that_was_begun_is_completed() {
        for room in [1, CONTINUE.len() - 1, CONTINUE.len()] {
            let (mut peer, transport) = tokio::io::duplex(room);
            let mut io = Io::Other(Box::new(transport));
            let (mut bytes, cx) = (BytesMut::new(), &mut Context::from_waker(Waker::noop()));
            let (mut reader, content) = BodyReader::new(Framing::Length(2), &mut bytes).unwrap();
            let Content::Streamed(mut receiver, _) = content else { panic!("nothing has arrived") };
            reader.expect_continue();
            assert!(
                receiver.poll_chunk(cx).is_pending() && reader.poll(cx, &mut io, &mut bytes).is_pending()
            );
            let mut out = Vec::new();
            assert!(reader.respond(&mut out));
            let mut sent = vec![0; room];
            peer.read_exact(&mut sent).await.unwrap();
            assert_eq!([sent, out].concat(), CONTINUE, "{room}");
        }
        // It was not begun.
        for is_wanted in [true, false] {
            let (mut reader, content) = BodyReader::new(Framing::Length(2), &mut BytesMut::new()).unwrap();
            reader.expect_continue();
            let content = Some(content).filter(|_| is_wanted);
            let mut out = Vec::new();
            assert_eq!(reader.respond(&mut out), is_wanted);
            assert_eq!(out, if is_wanted { CONTINUE } else { b"" });
            drop(content);
        }
    }
}
