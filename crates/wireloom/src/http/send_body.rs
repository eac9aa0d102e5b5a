//! Sending of a body on a stream of HTTP/2, by clients and servers alike.

use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;

use super::Body;
use crate::error::HttpError;
use crate::http2::SendStream;

/// Sends content and trailers as the body produces them and the peer accepts them. The stream of a body that fails is reset (RFC 9113
/// §8.1.1).
///
/// # Errors
/// The stream was reset, the connection failed, or the body did.
pub(crate) async fn send_body(send: &mut SendStream, mut body: Body) -> Result<(), HttpError> {
    loop {
        // The next chunk is produced when the peer has accepted the last one.
        let capacity = poll_fn(|cx| match send.poll_capacity(cx) {
            Poll::Pending => body.poll_aborted(cx).map(|()| None),
            capacity => capacity.map(Some),
        });
        match capacity.await {
            Some(capacity) => drop(capacity?),
            None => {
                send.fail(&HttpError::ConnectionLost);
                return Err(HttpError::ConnectionLost);
            }
        }
        let next = poll_fn(|cx| match body.poll_chunk(cx) {
            Poll::Ready(chunk) => Poll::Ready(Some(chunk)),
            // A body that is pending is dropped with the stream.
            Poll::Pending => send.poll_closed(cx).map(|()| None),
        });
        match next.await {
            Some(Some(Ok(chunk))) => send.send(chunk, false)?,
            Some(Some(Err(error))) => {
                send.fail(&error);
                return Err(error);
            }
            Some(None) => {
                return match body.trailers() {
                    Some(mut trailers) => send.send_trailers(&mut trailers),
                    None => send.send(Bytes::new(), true),
                };
            }
            // The stream has ended, and its capacity has the error.
            None => {}
        }
    }
}
