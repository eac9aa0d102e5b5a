//! hyper over HTTP/2, with windows that never stall an upload.

use super::{LARGE, SMALL, SMALL_BODY, Transport, large};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::sync::LazyLock;

static LARGE_BODY: LazyLock<Bytes> = LazyLock::new(|| large().into());

pub(super) async fn serve(stream: impl Transport) {
    let connection = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(16 << 20)
        .initial_connection_window_size(64 << 20)
        .serve_connection(TokioIo::new(stream), service_fn(answer));
    // The client may end the connection in any way.
    _ = connection.await;
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = match request.uri().path() {
        SMALL => Bytes::from_static(SMALL_BODY.as_bytes()),
        LARGE => LARGE_BODY.clone(),
        _ => {
            let mut response = Response::default();
            *response.status_mut() = StatusCode::NOT_FOUND;
            return Ok(response);
        }
    };
    let mut upload = request.into_body();
    while let Some(frame) = upload.frame().await {
        frame?;
    }
    let mut response = Response::new(Full::new(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    Ok(response)
}
