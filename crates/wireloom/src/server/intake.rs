//! The body of an HTTP/1.1 message, read as it is asked for: of a request while its handler runs and its response is sent, or
//! of a response.

use std::task::{Context, Poll, ready};

use bytes::BytesMut;

use super::body::{BodyReader, Framing};
use super::head::Refusal;
use super::pipe::{PipeWriter, Wanted, pipe};
use crate::buffer::Buffer;
use crate::error::Error;
use crate::http::{Body, Request};
use crate::io::Io;

/// RFC 9110 §10.1.1.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

pub(crate) struct Intake {
    reader: BodyReader,
    pipe: Option<PipeWriter>,
    /// What is left to send before the client sends the body.
    interim: &'static [u8],
    over: Option<Over>,
}

/// How a body came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// It is complete: another request may follow.
    Complete,
    /// It is not, and will not be read any further.
    Broken,
}

impl Intake {
    /// Takes what has arrived, and gives the request its body.
    pub(super) fn new(
        framing: Framing,
        bytes: &mut BytesMut,
        request: &mut Request,
        expects: bool,
    ) -> Result<Self, Refusal> {
        let (mut intake, body) = Self::begin(framing, bytes)?;
        intake.interim = if expects && intake.over.is_none() { CONTINUE } else { &[] };
        request.set_body(body);
        Ok(intake)
    }

    /// Takes what has arrived of a body, and gives what the rest comes out of.
    pub(crate) fn begin(framing: Framing, bytes: &mut BytesMut) -> Result<(Self, Body), Refusal> {
        let reader = BodyReader::new(framing);
        let len = reader.remaining();
        let mut intake = Self { pipe: None, interim: &[], over: None, reader };
        if let Some(len) = len
            && len <= bytes.len() as u64
        {
            // All of it came with the head. Most requests have none.
            intake.over = Some(Over::Complete);
            let body = if len > 0 { bytes.split_to(len as usize).freeze().into() } else { Body::empty() };
            return Ok((intake, body));
        }
        let (writer, out) = pipe();
        writer.put(|content| intake.reader.push(bytes, content))?;
        intake.pipe = Some(writer);
        intake.settle();
        Ok((intake, Body::http1(out, len)))
    }

    /// How it ended, if it has.
    pub(super) fn over(&self) -> Option<Over> {
        self.over
    }

    /// The final response begins: nothing goes before it any more. Says whether another request may follow: not when the
    /// rest of the body is in its way and nobody reads that.
    pub(super) fn respond(&mut self) -> bool {
        let asked = self.interim.len() < CONTINUE.len();
        self.interim = &[];
        match self.over {
            Some(over) => over == Over::Complete,
            // Whether a client that was not told to go on will send its body, nobody knows (RFC 9110 §10.1.1).
            None => asked && self.pipe.as_ref().is_some_and(|pipe| !pipe.is_gone()),
        }
    }

    /// Reads on while someone asks for it. Ready when there is no more to read.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, io: &mut Io, bytes: &mut BytesMut) -> Poll<Over> {
        loop {
            if let Some(over) = self.over {
                return Poll::Ready(over);
            }
            let Some(pipe) = &self.pipe else { return Poll::Ready(Over::Broken) };
            if ready!(pipe.poll_wanted(cx)) == Wanted::Nothing {
                self.over = Some(Over::Broken);
                continue;
            }
            while !self.interim.is_empty() {
                match ready!(io.poll_write(cx, &[std::io::IoSlice::new(self.interim)])) {
                    Ok(len @ 1..) => self.interim = &self.interim[len..],
                    _ => return self.fail(Error::Cut),
                }
            }
            if bytes.is_empty() {
                // What was written must be on the wire before anything is waited for.
                if let Poll::Ready(Err(_)) = io.poll_flush(cx) {
                    return self.fail(Error::Cut);
                }
                match ready!(poll_read(cx, io, bytes)) {
                    Ok(1..) => {}
                    Ok(0) if self.reader.end() => {
                        self.settle();
                        continue;
                    }
                    _ => return self.fail(Error::Cut),
                }
            }
            let before = bytes.len();
            let reader = &mut self.reader;
            let pushed = pipe.put(|content| reader.push(bytes, content));
            if let Err((_, why)) = pushed {
                return self.fail(Error::Malformed(why));
            }
            self.settle();
            if self.over.is_none() && bytes.len() == before && !bytes.is_empty() {
                // A line that is not complete: more must come behind it.
                match ready!(poll_read(cx, io, bytes)) {
                    Ok(1..) => {}
                    _ => return self.fail(Error::Cut),
                }
            }
        }
    }

    fn settle(&mut self) {
        if self.reader.is_complete()
            && let Some(pipe) = self.pipe.take()
        {
            let reader = std::mem::replace(&mut self.reader, BodyReader::new(Framing::Length(0)));
            pipe.end(reader.into_trailers());
            self.over = Some(Over::Complete);
        }
    }

    fn fail(&mut self, error: Error) -> Poll<Over> {
        if let Some(pipe) = self.pipe.take() {
            pipe.fail(error);
        }
        self.over = Some(Over::Broken);
        Poll::Ready(Over::Broken)
    }
}

/// Reads what is there behind what was read; 0 at the end. No buffer is held while waiting.
pub(crate) fn poll_read(
    cx: &mut Context<'_>,
    io: &mut Io,
    into: &mut BytesMut,
) -> Poll<std::io::Result<usize>> {
    ready!(io.poll_read_ready(cx))?;
    let mut buffer = Buffer::take();
    let len = ready!(io.poll_read(cx, buffer.space()))?;
    buffer.filled(len);
    into.extend_from_slice(buffer.waiting());
    Poll::Ready(Ok(len))
}
