//! The input of a connection, and the requests in it.

use bytes::Bytes;
use wireloom_http2::field::{FieldList, PlacedField, Token};
use wireloom_http2::message::{self, RequestKind};
use wireloom_http2::{Event, StreamKey};

use super::head_memory::HeadMemory;
use super::peer_preface::PeerPreface;
use super::recv_stream::RecvStream;
use super::shared::Shared;
use super::slots::{Receiving, StreamRef};
use super::state::State;
use crate::error::HttpError;
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

    /// Handles input until all is consumed, the core stops reading or has decoded many fields, and returns how much was consumed. `buffer` is the
    /// buffer of `input` if content may borrow from it.
    ///
    /// # Errors
    /// The connection has failed; its GOAWAY is in the output.
    pub(super) fn handle_input(
        &mut self,
        state: &mut State,
        mut input: &[u8],
        buffer: Option<&Bytes>,
    ) -> Result<usize, HttpError> {
        let (now, len) = (state.now(), input.len());
        let State { core, slots, unread, deferred, .. } = state;
        loop {
            let (consumed, event) = core.handle_input(now, input)?;
            input = &input[consumed..];
            let Some(event) = event else { return Ok(len - input.len()) };
            match event {
                Event::Request { stream, kind, end_stream } => {
                    let content = (!end_stream).then(|| slots.refer(stream, Receiving::Open));
                    if let Some(slot) = content.and_then(|content| slots.get(content)) {
                        slot.continue_due = expects_continue(core.fields());
                    }
                    let memory = self.accept(stream, kind, core.take_fields(), content);
                    if memory > 0 {
                        core.set_caller_memory(core.memory().caller.saturating_add(memory as u64));
                    }
                }
                Event::Data { stream, data, end_stream } => {
                    let len = data.len();
                    let is_kept = slots.handle_data(stream, data, end_stream, buffer, deferred);
                    if !is_kept && unread.discard(stream, len) {
                        // Never misuse: as much has just arrived.
                        let _ = core.release_capacity(stream, len);
                    }
                }
                Event::Settings => {
                    state.peer_preface = PeerPreface::Complete;
                    deferred.notify(&state.ready);
                }
                Event::GoAway { code, .. } => state.goaway = Some(code),
                event => slots.handle_event(&event, core, deferred),
            }
        }
    }

    /// `content` is a reference to the slot of its content, if there is any. Returns the memory that the request takes from now on, in
    /// bytes, which is given back with [`State::add_caller_memory`].
    fn accept(
        &mut self,
        key: StreamKey,
        kind: RequestKind,
        fields: FieldList,
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

/// Whether a client waits for `100 Continue` before it sends its content (RFC 9110 §10.1.1).
fn expects_continue(fields: &FieldList) -> bool {
    fields.iter().filter(|field| field.token() == Token::Expect).any(|field| {
        let mut expectations = field.value().split(|&byte| byte == b',');
        expectations.any(|one| one.trim_ascii().eq_ignore_ascii_case(b"100-continue"))
    })
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
    fn new(key: StreamKey, kind: RequestKind, fields: FieldList, content: Option<RecvStream>) -> Self {
        let mut joined = Vec::new();
        // RFC 9113 §8.2.3: several cookie fields are one.
        message::cookie(&fields, &mut joined);
        let (mut headers, fields) = Headers::take_apart(fields, "hostcookie".len() + joined.len());
        let (mut method, mut path, mut scheme) = Default::default();
        let (mut protocol, mut authority) = (None, None);
        let (mut cookie, mut has_host) = (None::<PlacedField>, false);
        for field in fields {
            match field.token {
                Token::Method => method = headers.place(field.value),
                Token::Path => path = headers.place(field.value),
                Token::Scheme => scheme = headers.place(field.value),
                Token::Protocol => protocol = Some(headers.place(field.value)),
                Token::Authority => authority = Some((headers.place(field.value), field.sensitive)),
                Token::Cookie => {
                    let sensitive = field.sensitive || cookie.is_some_and(|cookie| cookie.sensitive);
                    cookie = Some(PlacedField { sensitive, ..field });
                }
                token => {
                    let is_host = token == Token::Host;
                    has_host |= is_host;
                    let sensitive =
                        field.sensitive || (is_host && authority.is_some_and(|(_, sensitive)| sensitive));
                    headers.push_placed(PlacedField { sensitive, ..field });
                }
            }
        }
        // RFC 9113 §8.3.1: `:authority` takes the place of Host.
        if let Some((authority, sensitive)) = authority.filter(|_| !has_host) {
            let name = headers.put(b"host");
            headers.push_spans(name, authority);
            if sensitive {
                headers.mark_last_sensitive();
            }
        }
        if let Some(cookie) = cookie {
            let name = headers.put(b"cookie");
            let value = if joined.is_empty() { headers.place(cookie.value) } else { headers.put(&joined) };
            headers.push_spans(name, value);
            if cookie.sensitive {
                headers.mark_last_sensitive();
            }
        }
        if kind == RequestKind::Connect
            && let Some((authority, _)) = authority
        {
            path = authority;
        }
        Self { key, kind, method, path, scheme, protocol, headers, content, head_memory: None }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use wireloom_http2::error::ErrorCode;
    use wireloom_http2::field::Field;
    use wireloom_http2::hpack::Encoder;
    use wireloom_testing::http2::{Frame, PREFACE, join, literal};

    use super::super::testing::{receive, server};
    use super::*;

    fn receive_request(fields: &[Field<'_>]) -> Incoming {
        let mut block = Vec::new();
        Encoder::new().encode(fields.iter().copied(), &mut block);
        let headers = Frame::get(1).payload(block);
        let bytes = [PREFACE, &join(&[Frame::settings(&[]), headers])].concat();
        receive(&server(), &bytes).pop().unwrap()
    }

    const HEAD: [Field<'static>; 4] = [
        Field::known(Token::Method, b"GET"),
        Field::known(Token::Scheme, b"https"),
        Field::known(Token::Authority, b"a.example"),
        Field::known(Token::Path, b"/a"),
    ];

    #[test]
    fn a_head_has_its_strings_in_place() {
        let long = [b'v'; 5_000];
        let mut fields = HEAD.to_vec();
        fields.extend([
            Field::new(b"x-long", &long),
            Field::known(Token::Cookie, b"a=1"),
            // It is in the static table, name and value.
            Field::known(Token::AcceptEncoding, b"gzip, deflate"),
            Field::known(Token::Cookie, b"b=2"),
            Field::new(b"x-empty", b""),
        ]);
        let request = receive_request(&fields);
        let headers = &request.headers;
        let text = |span| headers.text(span);
        assert_eq!((text(request.method), text(request.scheme), text(request.path)), ("GET", "https", "/a"));
        let expected = [
            ("x-long", &long[..]),
            ("accept-encoding", b"gzip, deflate"),
            ("x-empty", b""),
            ("host", b"a.example"),
            ("cookie", b"a=1; b=2"),
        ];
        assert_eq!(headers.iter().collect::<Vec<_>>(), expected);
        // One cookie, and Host beside `:authority`.
        let one = [Field::known(Token::Cookie, b"c=3"), Field::known(Token::Host, b"a.example")];
        let request = receive_request(&[&HEAD[..], &one].concat());
        assert!(request.headers.iter().eq([("host", &b"a.example"[..]), ("cookie", b"c=3")]));
    }

    // RFC 7541 §6.2.3: an intermediary MUST use the same representation.
    #[test]
    fn a_field_of_a_request_that_is_forwarded_stays_sensitive() {
        let mut fields = HEAD.to_vec();
        fields[2] = fields[2].with_sensitive(true);
        fields.extend([
            Field::known(Token::Authorization, b"secret").with_sensitive(true),
            Field::new(b"x-other", b"1"),
            Field::known(Token::Cookie, b"a=1").with_sensitive(true),
            Field::known(Token::Cookie, b"b=2"),
        ]);
        let headers = receive_request(&fields).headers;
        let marked = ["authorization", "x-other", "host", "cookie"].map(|name| headers.is_sensitive(name));
        assert_eq!(marked, [true, false, true, true]);
        // With `Host` beside it.
        fields.push(Field::known(Token::Host, b"a.example"));
        assert!(receive_request(&fields).headers.is_sensitive("host"));
    }

    // Tasks of the connection wait for its mutex meanwhile.
    #[test]
    fn many_fields_are_decoded_in_parts() {
        const FIELDS_LEN: usize = 60 << 10;
        let value = "v".repeat(3_000);
        // RFC 7541 §6.2.1: with incremental indexing.
        let mut indexed = literal(b"x", value.as_bytes());
        indexed[0] = 0x40;
        let first = Frame::headers(1, &[]).payload(indexed);
        // RFC 7541 §6.1: the newest entry of the dynamic table.
        let block = [0xbe; FIELDS_LEN / 3_000];
        let opening = [PREFACE, &join(&[Frame::settings(&[]), first])].concat();
        let requests: Vec<u8> =
            (1..900).flat_map(|n| Frame::headers(2 * n + 1, &[]).payload(block).to_bytes()).collect();
        let shared = server();
        let mut incoming = Vec::new();
        let mut handle = |input: &[u8]| {
            let mut requests = IncomingRequests::new(&shared, &mut incoming);
            let mut state = shared.lock();
            let len = requests.handle_input(&mut state, input, None).unwrap();
            state.core.take_decoded_len();
            len
        };
        assert_eq!(handle(&opening), opening.len());
        let (mut rest, mut parts) = (&requests[..], 0);
        while !rest.is_empty() {
            let len = handle(rest);
            assert!(len > 0 && len < requests.len() / 100, "{len} of {}", requests.len());
            (rest, parts) = (&rest[len..], parts + 1);
        }
        assert!(parts > 100, "{parts}");
    }

    #[test]
    fn a_request_that_is_dropped_keeps_no_slot_and_no_window() {
        let shared = server();
        let opening = [Frame::settings(&[]), Frame::post(1)];
        let mut incoming = receive(&shared, &[PREFACE, &join(&opening)].concat());
        receive(&shared, &Frame::data(1, "unread").to_bytes());
        let key = incoming[0].key;
        assert_eq!(shared.lock().slots.len(), 1);
        assert!(shared.lock().core.memory().held > 0);

        incoming.clear();
        assert_eq!(shared.lock().slots.len(), 0);
        assert_eq!(shared.lock().core.memory().held, 0);
        // Content that follows has no reader.
        receive(&shared, &Frame::data(1, "late").to_bytes());
        assert_eq!(shared.lock().core.memory().held, 0);
        shared.reset(key, ErrorCode::CANCEL);
        assert_eq!(shared.lock().slots.len(), 0);
    }
}
