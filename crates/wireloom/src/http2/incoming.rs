//! Requests that have arrived at a server.

use wireloom_http2::StreamKey;
use wireloom_http2::field::{FieldList, Token};
use wireloom_http2::message::RequestKind;

use super::head_memory::HeadMemory;
use super::recv_stream::RecvStream;
use super::shared::Shared;
use super::slots::StreamRef;
use super::state::AcceptRequest;
use crate::headers::{Headers, Span};
use crate::sync::Arc;

/// Collects requests for the caller of the driver.
pub(super) struct IncomingRequests<'a> {
    shared: &'a Arc<Shared>,
    requests: &'a mut Vec<Incoming>,
}

impl<'a> IncomingRequests<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>, requests: &'a mut Vec<Incoming>) -> Self {
        Self { shared, requests }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }
}

impl AcceptRequest for IncomingRequests<'_> {
    /// `content` becomes the reference of its [`RecvStream`].
    fn accept(
        &mut self,
        key: StreamKey,
        kind: RequestKind,
        fields: &FieldList,
        content: Option<StreamRef>,
    ) -> usize {
        let content = content.map(|stream| RecvStream::new(self.shared.clone(), stream));
        let mut request = Incoming::new(key, kind, fields, content);
        let memory = HeadMemory::cost_of(&request.headers);
        request.head_memory = (memory > 0).then(|| HeadMemory::new(self.shared.clone(), memory));
        self.requests.push(request);
        memory
    }
}

/// A request that has arrived at a server.
pub(crate) struct Incoming {
    pub(crate) key: StreamKey,
    pub(crate) kind: RequestKind,
    pub(crate) method: Span,
    pub(crate) path: Span,
    pub(crate) scheme: Span,
    pub(crate) protocol: Option<Span>,
    /// The fields, with `host` in place of `:authority`. The places above point into them.
    pub(crate) headers: Headers,
    /// Its content, if there is any. Dropped with the request, it is discarded.
    pub(crate) content: Option<RecvStream>,
    /// Counts `headers`.
    pub(crate) head_memory: Option<HeadMemory>,
}

impl Incoming {
    fn new(key: StreamKey, kind: RequestKind, fields: &FieldList, content: Option<RecvStream>) -> Self {
        let mut headers = Headers::with_capacity(fields.len() + 1, fields.list_size() + 8);
        let (mut method, mut path, mut scheme) = Default::default();
        let (mut protocol, mut authority) = (None, None);
        let (mut cookies, mut has_host) = (0, false);
        for field in fields {
            let value = field.value();
            match field.token() {
                Token::Method => method = headers.put(value),
                Token::Path => path = headers.put(value),
                Token::Scheme => scheme = headers.put(value),
                Token::Protocol => protocol = Some(headers.put(value)),
                Token::Authority => authority = Some(value),
                Token::Cookie => cookies += 1,
                Token::Host => {
                    has_host = true;
                    headers.push_unchecked(b"host", value);
                }
                _ => headers.push_unchecked(field.name(), value),
            }
        }
        // RFC 9113 §8.3.1: `:authority` takes the place of Host.
        if let Some(authority) = authority.filter(|_| !has_host) {
            headers.push_unchecked(b"host", authority);
        }
        if cookies > 0
            && let Some(cookie) = wireloom_http2::message::cookie(fields, &mut Vec::new())
        {
            headers.push_unchecked(b"cookie", cookie);
        }
        if kind == RequestKind::Connect
            && let Some(authority) = authority
        {
            path = headers.put(authority);
        }
        Self { key, kind, method, path, scheme, protocol, headers, content, head_memory: None }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use wireloom_http2::error::ErrorCode;
    use wireloom_http2::{Config, Role};
    use wireloom_testing::http2::{Frame, PREFACE, join};

    use super::*;

    #[test]
    fn a_request_that_is_dropped_keeps_no_slot_and_no_window() {
        let shared = Shared::new(Role::Server, Config::new(Role::Server)).unwrap();
        let mut incoming = Vec::new();
        let receive = |bytes: &[u8], incoming: &mut Vec<Incoming>| {
            let mut requests = IncomingRequests::new(&shared, incoming);
            assert_eq!(shared.lock().handle_input(bytes, None, &mut requests).unwrap(), bytes.len());
        };
        receive(&[PREFACE, &join(&[Frame::settings(&[]), Frame::post(1)])].concat(), &mut incoming);
        receive(&Frame::data(1, "unread").to_bytes(), &mut incoming);
        let key = incoming[0].key;
        assert_eq!(shared.lock().slots.len(), 1);
        assert!(shared.lock().core.memory().held > 0);

        incoming.clear();
        assert_eq!(shared.lock().slots.len(), 0);
        assert_eq!(shared.lock().core.memory().held, 0);
        // Content that follows has no reader.
        receive(&Frame::data(1, "late").to_bytes(), &mut incoming);
        assert_eq!(shared.lock().core.memory().held, 0);
        shared.reset(key, ErrorCode::CANCEL);
        assert_eq!(shared.lock().slots.len(), 0);
    }
}
