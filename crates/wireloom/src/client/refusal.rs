//! The body of a response that refuses a WebSocket. It often contains the reason, so its beginning is read.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::headers::Headers;
use crate::http::{Body, Version};
use crate::http1::{BodyReader, Framing};
use crate::transport::Io;

/// Bytes of the body that are kept.
const LEN_MAX: usize = 64 << 10;

/// How long reading the body may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Reads the body of a refusal over HTTP/1.1. `arrived` was read behind the head. If the body cannot be read, or not in
/// time, the part that arrived is returned.
pub(super) async fn http1(io: &mut Io, status: u16, headers: &Headers, arrived: &[u8]) -> Vec<u8> {
    let Ok(framing) = Framing::of_response(headers, Version::Http11, status, false) else {
        return Vec::new();
    };
    let mut bytes = BytesMut::from(arrived);
    let Ok((mut reader, content)) = BodyReader::new(framing, &mut bytes) else { return Vec::new() };
    let mut body = Body::http1(content);
    let mut collected = Vec::new();
    let mut is_complete = false;
    let reading = poll_fn(|cx| {
        loop {
            match body.poll_chunk(cx) {
                Poll::Ready(Some(Ok(chunk))) if push(&mut collected, &chunk) => {}
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending if is_complete => return Poll::Ready(()),
                Poll::Pending => match reader.poll(cx, io, &mut bytes) {
                    Poll::Ready(_) => is_complete = true,
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
    });
    let _ = tokio::time::timeout(TIMEOUT, reading).await;
    collected
}

/// Reads the body of a refusal over HTTP/2.
#[cfg(feature = "http2")]
pub(super) async fn http2(mut body: Body) -> Vec<u8> {
    let mut collected = Vec::new();
    let reading = async {
        while let Ok(Some(chunk)) = body.chunk().await {
            if !push(&mut collected, &chunk) {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(TIMEOUT, reading).await;
    collected
}

/// Appends a chunk. False when there is no room for more.
fn push(collected: &mut Vec<u8>, chunk: &Bytes) -> bool {
    let len = chunk.len().min(LEN_MAX - collected.len());
    collected.extend_from_slice(&chunk[..len]);
    collected.len() < LEN_MAX
}
