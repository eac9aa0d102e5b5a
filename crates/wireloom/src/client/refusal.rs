//! The body of a response that refuses a WebSocket. It often contains the reason, so its beginning is read.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use wireloom_ws::handshake::Response;

use crate::error::Error;
use crate::headers::Headers;
use crate::http::{Body, Version};
use crate::http1::{BodyReader, Framing};
use crate::transport::Io;

/// Bytes of the body that are kept.
const LEN_MAX: usize = 64 << 10;

/// How long reading the body may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A response that refuses a WebSocket. Its body is read after the handshake's timeout has ended: one that is slow must not cost the
/// caller the response.
pub(super) struct Refusal {
    response: Response,
    body: Unread,
}

enum Unread {
    Http1 {
        io: Io,
        headers: Headers,
        /// Bytes that were read behind the head.
        arrived: BytesMut,
    },
    #[cfg(feature = "http2")]
    Http2(Body),
}

impl Refusal {
    pub(super) fn http1(response: Response, io: Io, headers: Headers, arrived: &[u8]) -> Self {
        Self { response, body: Unread::Http1 { io, headers, arrived: arrived.into() } }
    }

    #[cfg(feature = "http2")]
    pub(super) fn http2(response: Response, body: Body) -> Self {
        Self { response, body: Unread::Http2(body) }
    }

    /// The error with the response, and with the part of its body that arrives in time.
    pub(super) async fn into_error(self) -> Error {
        let mut collected = Vec::new();
        let reading = async {
            match self.body {
                Unread::Http1 { mut io, headers, arrived } => {
                    let status = self.response.status();
                    read_http1(&mut io, status, &headers, arrived, &mut collected).await;
                }
                #[cfg(feature = "http2")]
                Unread::Http2(body) => read_http2(body, &mut collected).await,
            }
        };
        let _ = tokio::time::timeout(TIMEOUT, reading).await;
        Error::Refused(Box::new(self.response.with_received_body(collected)))
    }
}

async fn read_http1(
    io: &mut Io,
    status: u16,
    headers: &Headers,
    mut bytes: BytesMut,
    collected: &mut Vec<u8>,
) {
    let Ok(framing) = Framing::of_response(headers, Version::Http11, status, false) else { return };
    let Ok((mut reader, content)) = BodyReader::new(framing, &mut bytes) else { return };
    let mut body = Body::http1(content);
    let mut is_complete = false;
    poll_fn(|cx| {
        loop {
            match body.poll_chunk(cx) {
                Poll::Ready(Some(Ok(chunk))) if push(collected, &chunk) => {}
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending if is_complete => return Poll::Ready(()),
                Poll::Pending => match reader.poll(cx, io, &mut bytes) {
                    Poll::Ready(_) => is_complete = true,
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
    })
    .await;
}

#[cfg(feature = "http2")]
async fn read_http2(mut body: Body, collected: &mut Vec<u8>) {
    while let Ok(Some(chunk)) = body.chunk().await {
        if !push(collected, &chunk) {
            return;
        }
    }
}

/// Appends a chunk. False when there is no room for more.
fn push(collected: &mut Vec<u8>, chunk: &Bytes) -> bool {
    let len = chunk.len().min(LEN_MAX - collected.len());
    collected.extend_from_slice(&chunk[..len]);
    collected.len() < LEN_MAX
}
