//! Conversions between the types of this crate and those of `http` and `http_body`.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use http_body::{Frame, SizeHint};

use super::Peer;
use crate::error::HttpError;
use crate::headers::Headers;
use crate::http::{
    Afterwards, Body, BodyFrame, Carrier, Exclusive, Open, Origin, Request, Response, Upgrade, Version,
};

/// Among the extensions of a request of Wireloom's own server: a response to it may carry an [`AcceptedUpgrade`].
#[derive(Clone)]
struct Own(Arc<Origin>);

/// Among the extensions of a response: the WebSocket to open on the connection once the response is sent.
#[derive(Clone)]
struct AcceptedUpgrade {
    /// With another status, which a layer of the application may choose, the response refuses.
    status: StatusCode,
    opening: Arc<Mutex<Option<Box<dyn Open>>>>,
}

/// Among the extensions of a response: its connection ends after it, also one of HTTP/2, where the header `Connection` has no meaning.
#[derive(Clone)]
struct LastOfConnection;

/// A request of this crate's server, for a service.
pub(super) fn request_out(request: Request) -> Result<http::Request<Body>, Response> {
    let refusal = || Response::text(400, "invalid request target\n");
    let mut builder = http::Request::builder().version(match request.version() {
        Version::Http10 => http::Version::HTTP_10,
        Version::Http11 => http::Version::HTTP_11,
        Version::Http2 => http::Version::HTTP_2,
    });
    builder = builder.method(Method::from_bytes(request.method().as_bytes()).map_err(|_| refusal())?);
    let target = request.target();
    builder = match (request.scheme(), request.header("host")) {
        (Some(scheme), Some(authority)) if !target.starts_with('*') => {
            let uri = Uri::builder().scheme(scheme).authority(authority).path_and_query(target).build();
            builder.uri(uri.map_err(|_| refusal())?)
        }
        _ => builder.uri(Uri::try_from(target).map_err(|_| refusal())?),
    };
    let mut out = builder.body(Body::empty()).map_err(|_| refusal())?;
    copy_out(request.head(), out.headers_mut());
    let origin = request.origin().clone();
    out.extensions_mut().insert(Peer { address: origin.peer, tls: origin.tls.clone() });
    if request.is_websocket() {
        out.extensions_mut().insert(Own(origin));
    }
    *out.body_mut() = request.into_body();
    Ok(out)
}

/// A response of a service, for this crate's server, to a request of this version.
pub(super) fn response_in<B>(response: http::Response<B>, version: Version) -> Response
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
{
    let (mut parts, body) = response.into_parts();
    let accepted = parts.extensions.remove::<AcceptedUpgrade>();
    let opening = accepted
        .filter(|accepted| accepted.status == parts.status)
        .and_then(|accepted| accepted.opening.lock().unwrap_or_else(PoisonError::into_inner).take());
    let headers = copy_in(&parts.headers);
    // RFC 9112 §9.6. RFC 9113 §8.2.2: over HTTP/2 the header is that of an upstream, whose connection is another one.
    let closes = parts.extensions.get::<LastOfConnection>().is_some()
        || version != Version::Http2 && headers.names("connection", "close");
    let is_opened = opening.is_some();
    let body = if is_opened { Body::empty() } else { body_in(body) };
    let response = Response::from_parts(parts.status.as_u16(), headers, body, opening);
    if closes && !is_opened { response.close_connection() } else { response }
}

/// A request of another server, for a handler of this crate.
pub(super) fn request_in<B>(mut request: http::Request<B>, origin: &Arc<Origin>) -> Request
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
{
    let carrier = carrier(&mut request);
    let mut head = head_in(&request, origin, carrier);
    head.set_body(body_in(request.into_body()));
    head
}

/// The request keeps what it is upgraded by when it is refused: it may ask for another protocol.
pub(super) fn upgrade<B>(request: &mut http::Request<B>) -> Result<Upgrade, Response> {
    let origin = request.extensions().get().map_or_else(Origin::unknown, |Own(origin)| origin.clone());
    head_in(request, &origin, Carrier::None).websocket_by(|| carrier(request))
}

/// How the server of a request hands over its connection.
fn carrier<B>(request: &mut http::Request<B>) -> Carrier {
    if request.extensions_mut().remove::<Own>().is_some() {
        return Carrier::Own;
    }
    #[cfg(feature = "hyper")]
    if let Some(pending) = crate::transport::PendingUpgrade::of(request) {
        let tracker = request.extensions().get::<super::WebSocketTracker>();
        return Carrier::Hyper(pending, tracker.map(|tracker| tracker.started().clone()));
    }
    Carrier::None
}

fn head_in<B>(request: &http::Request<B>, origin: &Arc<Origin>, carrier: Carrier) -> Request {
    let uri = request.uri();
    let mut headers = copy_in(request.headers());
    if let Some(authority) = uri.authority().filter(|_| headers.get("host").is_none()) {
        headers.push_unchecked(b"host", authority.as_str().as_bytes());
    }
    let method = headers.put(request.method().as_str().as_bytes());
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let target = headers.put(path.as_bytes());
    // hyper accepts no other extended CONNECT by default, and has its protocol in a type of its feature `http2`. The fields of the
    // handshake identify it without that feature.
    let extended = request.version() == http::Version::HTTP_2 && request.method() == Method::CONNECT;
    let extended = extended.then(|| {
        let scheme = headers.put(uri.scheme_str().unwrap_or("http").as_bytes());
        (scheme, headers.put(b"websocket"))
    });
    Request::foreign(headers, method, target, extended, version_in(request.version()), origin, carrier)
}

fn version_in(version: http::Version) -> Version {
    match version {
        http::Version::HTTP_10 | http::Version::HTTP_09 => Version::Http10,
        http::Version::HTTP_2 => Version::Http2,
        _ => Version::Http11,
    }
}

fn copy_out(headers: &Headers, out: &mut HeaderMap) {
    for (name, value, is_sensitive) in headers.marked_fields() {
        // Fields that the parser accepted but `http` does not are of no use to a service: they are skipped.
        if let (Ok(name), Ok(mut value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            value.set_sensitive(is_sensitive);
            out.append(name, value);
        }
    }
}

fn copy_in(headers: &HeaderMap) -> Headers {
    let len = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    let mut copied = Headers::with_capacity(headers.len(), len);
    for (name, value) in headers {
        // RFC 9113 §8.2.1: a value with whitespace at its edges, which `http` allows, makes a message malformed.
        copied.push_unchecked(name.as_str().as_bytes(), value.as_bytes().trim_ascii());
        if value.is_sensitive() {
            copied.mark_last_sensitive();
        }
    }
    copied
}

impl From<Response> for http::Response<Body> {
    /// A status, headers and a body. A response that opens a WebSocket is to be returned to the server as it is.
    fn from(response: Response) -> Self {
        let mut response = response;
        let opening = response.opening.take();
        let closes = response.afterwards == Afterwards::CloseConnection;
        let (status, headers, body) = response.into_parts();
        let mut out = http::Response::new(body);
        if closes {
            out.headers_mut().insert(http::header::CONNECTION, HeaderValue::from_static("close"));
            out.extensions_mut().insert(LastOfConnection);
        }
        // A status is 101, or 200 to 599.
        *out.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        copy_out(&headers, out.headers_mut());
        let Some(opening) = opening else { return out };
        #[cfg(feature = "hyper")]
        let opening = match opening.spawn_when_upgraded() {
            Ok(Some(opening)) => opening,
            Ok(None) => return out,
            Err(error) => return Response::from(error).into(),
        };
        let (status, opening) = (out.status(), Arc::new(Mutex::new(Some(opening))));
        out.extensions_mut().insert(AcceptedUpgrade { status, opening });
        out
    }
}

fn body_in<B>(body: B) -> Body
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
{
    if body.is_end_stream() {
        return Body::empty();
    }
    let len = body.size_hint().exact();
    Body::from_frames(Frames(Exclusive::new(body)), len)
}

/// The frames of a body.
struct Frames<B>(Exclusive<B>);

impl<B: http_body::Body<Data = Bytes>> Stream for Frames<B> {
    type Item = Result<BodyFrame, HttpError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let body = &mut self.get_mut().0;
        loop {
            let Some(frame) = ready!(body.get_mut().poll_frame(cx)) else { return Poll::Ready(None) };
            // The cause of a foreign body's error is left to its own log.
            let Ok(frame) = frame else { return Poll::Ready(Some(Err(HttpError::ConnectionLost))) };
            match frame.into_data().map_err(Frame::into_trailers) {
                Ok(data) if data.is_empty() => {}
                Ok(data) => return Poll::Ready(Some(Ok(BodyFrame::Data(data)))),
                Err(Ok(trailers)) => return Poll::Ready(Some(Ok(BodyFrame::Trailers(copy_in(&trailers))))),
                // Unknown kinds of frames are skipped.
                Err(Err(_)) => {}
            }
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let body = self.get_mut();
        if let Some(chunk) = ready!(body.poll_chunk(cx)) {
            return Poll::Ready(Some(chunk.map(Frame::data)));
        }
        Poll::Ready(body.trailers().map(|trailers| {
            let mut map = HeaderMap::new();
            copy_out(&trailers, &mut map);
            Ok(Frame::trailers(map))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        self.len_hint().map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
