//! A request over HTTP/1.1 as it is written: its head, and its content while that is produced.

use std::collections::VecDeque;
use std::future::Future as _;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use tokio::time::Sleep;

use crate::client::exchange::CONTINUE_TIMEOUT;
use crate::error::{Error, HttpError};
use crate::http::Body;
use crate::http1::write::{chunk_size, last_chunk};
use crate::transport::Io;

/// Slices of one write.
const SLICES_MAX: usize = 8;

const LENGTH: Error = Error::Http(HttpError::Malformed("the content is not as long as Content-Length says"));

pub(super) struct RequestWriter {
    /// Bytes to write before more content.
    out: VecDeque<Bytes>,
    unflushed: bool,
    content: Content,
    /// Remaining bytes of `Content-Length`; `None` for the chunked coding.
    left: Option<u64>,
    /// The length of what the transport has accepted.
    written: u64,
}

/// ```text
/// AwaitingContinue -- 100 Continue, timeout --> Producing -- its end --> Complete
///       |                                           |                       |
///       '-- final response, failure --> Unwanted    '-- failure --> Lost <--' not all of it was written
/// ```
enum Content {
    /// RFC 9110 §10.1.1: until the server asks for it, or has not done so in time.
    AwaitingContinue(Body, Pin<Box<Sleep>>),
    Producing(Body),
    /// All of it is in `out`, or was written.
    Complete,
    /// The server has not asked for it.
    Unwanted,
    /// The transport has failed.
    Lost,
}

impl RequestWriter {
    /// `len` is that of the content; `None` for the chunked coding.
    pub(super) fn new(head: Vec<u8>, content: Body, len: Option<u64>, awaits_continue: bool) -> Self {
        let content = match awaits_continue {
            true => Content::AwaitingContinue(content, Box::pin(tokio::time::sleep(CONTINUE_TIMEOUT))),
            false => Content::Producing(content),
        };
        Self { out: VecDeque::from([head.into()]), unflushed: false, content, left: len, written: 0 }
    }

    /// The length of what the transport has accepted.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Whether not all is sent: the transport has failed, or the server does not want it.
    pub(super) fn is_cut(&self) -> bool {
        matches!(self.content, Content::Unwanted | Content::Lost)
    }

    /// Whether no bytes wait for the transport.
    pub(super) fn is_idle(&self) -> bool {
        self.out.is_empty() && !self.unflushed
    }

    /// Whether nothing is left to be sent.
    pub(super) fn has_ended(&self) -> bool {
        let is_produced = !matches!(self.content, Content::AwaitingContinue(..) | Content::Producing(_));
        is_produced && self.is_idle()
    }

    /// `100 Continue` has arrived, or is not waited for any more.
    pub(super) fn handle_continue(&mut self) {
        self.content = match std::mem::replace(&mut self.content, Content::Unwanted) {
            Content::AwaitingContinue(content, _) => Content::Producing(content),
            other => other,
        };
    }

    /// The final response has arrived. Returns false if the content waited for `100 Continue`: it is not sent.
    pub(super) fn handle_response(&mut self) -> bool {
        if let Content::AwaitingContinue(..) = self.content {
            self.content = Content::Unwanted;
        }
        !matches!(self.content, Content::Unwanted)
    }

    /// Sends until the transport is full.
    ///
    /// # Errors
    /// The content failed, or has another length than was announced: the server must not take it for complete.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>, io: &mut Io) -> Result<(), Error> {
        loop {
            if !self.poll_written(cx, io) {
                return Ok(());
            }
            let content = match &mut self.content {
                Content::Producing(content) => content,
                Content::AwaitingContinue(_, timer) => {
                    if timer.as_mut().poll(cx).is_pending() {
                        return Ok(());
                    }
                    self.handle_continue();
                    continue;
                }
                Content::Complete | Content::Unwanted | Content::Lost => return Ok(()),
            };
            match content.poll_chunk(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Some(data)) => {
                    let data = data?;
                    if let Some(left) = &mut self.left {
                        *left = left.checked_sub(data.len() as u64).ok_or(LENGTH)?;
                        self.out.push_back(data);
                    } else if !data.is_empty() {
                        let mut size = Vec::with_capacity(18);
                        chunk_size(&mut size, data.len());
                        self.out.extend([size.into(), data, Bytes::from_static(b"\r\n")]);
                    }
                }
                Poll::Ready(None) => {
                    let trailers = content.trailers();
                    self.content = Content::Complete;
                    match self.left {
                        Some(1..) => return Err(LENGTH),
                        // RFC 9112 §6.5: only the chunked coding has trailers.
                        Some(0) => {}
                        None => {
                            let mut last = Vec::new();
                            last_chunk(&mut last, trailers);
                            self.out.push_back(last.into());
                        }
                    }
                }
            }
        }
    }

    /// Writes `out`; `false` while the transport is full.
    fn poll_written(&mut self, cx: &mut Context<'_>, io: &mut Io) -> bool {
        while !self.out.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut count = 0;
            for (slice, piece) in slices.iter_mut().zip(&self.out) {
                *slice = IoSlice::new(piece);
                count += 1;
            }
            match io.poll_write(cx, &slices[..count]) {
                Poll::Ready(Ok(mut len))
                    if len > 0 || slices[..count].iter().all(|slice| slice.is_empty()) =>
                {
                    self.unflushed = true;
                    self.written += len as u64;
                    while let Some(piece) = self.out.front_mut() {
                        let step = len.min(piece.len());
                        piece.advance(step);
                        len -= step;
                        if !piece.is_empty() {
                            break;
                        }
                        self.out.pop_front();
                    }
                }
                Poll::Ready(_) => self.give_up(),
                Poll::Pending => return false,
            }
        }
        if self.unflushed {
            match io.poll_flush(cx) {
                Poll::Ready(Ok(())) => self.unflushed = false,
                Poll::Ready(Err(_)) => self.give_up(),
                Poll::Pending => return false,
            }
        }
        true
    }

    /// The server accepts no more. Its response may say why.
    fn give_up(&mut self) {
        self.content = match self.content {
            Content::AwaitingContinue(..) | Content::Unwanted => Content::Unwanted,
            Content::Producing(_) | Content::Complete | Content::Lost => Content::Lost,
        };
        self.out.clear();
        self.unflushed = false;
    }
}
