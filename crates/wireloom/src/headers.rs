//! Header and trailer fields: names and values in order, in one arena. The protocol modules encode them.
//!
//! ```text
//! arena  |GET / HTTP/1.1..|content-type|text/plain|x-trace|1f2e|
//! spans                    ^name        ^value     ...
//! ```

use std::fmt;

#[cfg(feature = "http2")]
use wireloom_http2::field::{FieldList, Place, PlacedField};
#[cfg(any(feature = "http2", feature = "client", feature = "server"))]
use wireloom_ws::handshake::is_connection_specific;
use wireloom_ws::handshake::{is_field_value, is_token};

use crate::error::HttpError;

/// Fields in order. A name may occur more than once; lookups ignore its case.
///
/// ```
/// let mut headers = wireloom::Headers::new();
/// headers.push("Content-Type", "text/plain")?;
/// assert_eq!(headers.get("content-type"), Some(&b"text/plain"[..]));
/// # Ok::<(), wireloom::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Headers {
    arena: Vec<u8>,
    spans: Vec<FieldSpan>,
}

/// A part of the arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    start: u32,
    /// The length in 31 bits. In a name, the highest bit marks the field as sensitive.
    len: u32,
}

impl Span {
    const SENSITIVE: u32 = 1 << 31;

    const fn len(self) -> usize {
        (self.len & !Self::SENSITIVE) as usize
    }

    const fn is_sensitive(self) -> bool {
        self.len & Self::SENSITIVE != 0
    }
}

/// Name and value.
type FieldSpan = (Span, Span);

impl Headers {
    /// An empty list. Does not allocate.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty list with capacity for `fields` fields of `bytes` bytes in all.
    pub(crate) fn with_capacity(fields: usize, bytes: usize) -> Self {
        Self { arena: Vec::with_capacity(bytes), spans: Vec::with_capacity(fields) }
    }

    /// Allocated memory in bytes.
    pub(crate) fn memory_len(&self) -> usize {
        self.arena.capacity() + self.spans.capacity() * size_of::<FieldSpan>()
    }

    /// Fields whose names and values are parts of `arena`.
    pub(crate) fn from_arena(arena: Vec<u8>, fields: Vec<(Span, Span)>) -> Self {
        Self { arena, spans: fields }
    }

    /// Appends a field.
    ///
    /// # Errors
    /// [`HttpError::InvalidHeader`] if the field cannot be sent: the name is not a token (RFC 9110 §5.1), or the value contains a control
    /// character.
    pub fn push(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<(), HttpError> {
        let value = value.as_ref();
        if !is_token(name.as_bytes()) || !is_field_value(value) {
            return Err(HttpError::InvalidHeader);
        }
        self.push_unchecked(name.as_bytes(), value.trim_ascii());
        Ok(())
    }

    /// Appends a field whose value compression must not reveal, such as a credential. Over HTTP/2 it is never indexed, neither here nor by
    /// proxies that forward it (RFC 7541 §7.1.3). Over HTTP/1.1 it is a field like others.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_sensitive(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<(), HttpError> {
        self.push(name, value)?;
        self.mark_last_sensitive();
        Ok(())
    }

    /// Whether a field with this name, in any case, is sensitive: marked by the caller, or by the peer over HTTP/2.
    pub fn is_sensitive(&self, name: &str) -> bool {
        self.marked_fields()
            .any(|(field, _, is_sensitive)| is_sensitive && field.eq_ignore_ascii_case(name.as_bytes()))
    }

    /// Marks the last field as sensitive.
    pub(crate) fn mark_last_sensitive(&mut self) {
        if let Some((name, _)) = self.spans.last_mut() {
            name.len |= Span::SENSITIVE;
        }
    }

    /// Name, value, and whether the field is sensitive.
    pub(crate) fn marked_fields(&self) -> impl Iterator<Item = (&[u8], &[u8], bool)> + Clone {
        self.spans.iter().map(|&(name, value)| (self.at(name), self.at(value), name.is_sensitive()))
    }

    /// Appends a field that a parser or this crate has validated.
    pub(crate) fn push_unchecked(&mut self, name: &[u8], value: &[u8]) {
        let span = (self.put(name), self.put(value));
        self.spans.push(span);
    }

    /// Appends a field that a parser has validated, and whose name and value are in the arena.
    #[cfg(feature = "http2")]
    pub(crate) fn push_spans(&mut self, name: Span, value: Span) {
        self.spans.push((name, value));
    }

    /// The fields of a list, and no fields yet over its arena, where [`place`](Self::place) finds their strings. There is room for those
    /// that are static and for `more` bytes.
    #[cfg(feature = "http2")]
    pub(crate) fn take_apart(list: FieldList, more: usize) -> (Self, impl Iterator<Item = PlacedField>) {
        let strings_len = list.list_size().saturating_sub(32 * list.len());
        let (mut arena, fields) = list.into_arena();
        arena.reserve_exact(strings_len.saturating_sub(arena.len()) + more);
        (Self { arena, spans: Vec::with_capacity(fields.len() + 1) }, fields)
    }

    /// The string of a field of the list that was taken apart. It is copied only if it is static.
    #[cfg(feature = "http2")]
    pub(crate) fn place(&mut self, place: Place) -> Span {
        match place {
            Place::Arena { start, len } => Span { start, len },
            Place::Static(string) => self.put(string),
        }
    }

    /// Appends a field of the list that was taken apart.
    #[cfg(feature = "http2")]
    pub(crate) fn push_placed(&mut self, field: PlacedField) {
        let (name, value) = (self.place(field.name), self.place(field.value));
        self.push_spans(name, value);
        if field.sensitive {
            // RFC 7541 §6.2.3: an intermediary that forwards the field keeps the mark.
            self.mark_last_sensitive();
        }
    }

    /// Appends bytes that are not a field, such as a method.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Span {
        let start = self.arena.len() as u32;
        self.arena.extend_from_slice(bytes);
        Span { start, len: bytes.len() as u32 }
    }

    /// The bytes of a span; empty if the span belongs to another arena.
    pub(crate) fn at(&self, span: Span) -> &[u8] {
        let start = span.start as usize;
        self.arena.get(start..start + span.len()).unwrap_or_default()
    }

    /// The text of a name, a method, a target or another span that a parser accepts in ASCII alone (RFC 9110 §5.6.2, RFC 3986):
    /// httparse and `http1::head` for HTTP/1.1, the core for HTTP/2, `http::Uri` for requests of other servers.
    pub(crate) fn text(&self, span: Span) -> &str {
        let text = std::str::from_utf8(self.at(span));
        debug_assert!(text.is_ok(), "a parser accepted {:?}", self.at(span));
        text.unwrap_or_default()
    }

    /// The span of `part` in `whole`, which became the arena.
    pub(crate) fn span_of(whole: &[u8], part: &[u8]) -> Span {
        let start = (part.as_ptr() as usize).saturating_sub(whole.as_ptr() as usize);
        Span { start: start as u32, len: part.len() as u32 }
    }

    /// All fields in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> + Clone {
        self.spans.iter().map(|&(name, value)| (self.text(name), self.at(value)))
    }

    /// The value of the first field with this name, in any case.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.values(name).next()
    }

    /// The values of all fields with this name, in any case.
    pub fn get_all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.values(name)
    }

    fn values<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let (found, value) = self.find(name, at)?;
            at = found + 1;
            Some(value)
        })
    }

    /// The index and value of the first field with this name at or after index `from`.
    #[inline(never)]
    fn find(&self, name: &str, from: usize) -> Option<(usize, &[u8])> {
        // Most names differ in length, so most comparisons read no byte.
        let named = |(span, _): &FieldSpan| {
            span.len() == name.len() && self.at(*span).eq_ignore_ascii_case(name.as_bytes())
        };
        let found = from + self.spans.get(from..)?.iter().position(named)?;
        Some((found, self.at(self.spans[found].1)))
    }

    /// As [`iter`](Self::iter), with names as bytes.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
        self.spans.iter().map(|&(name, value)| (self.at(name), self.at(value)))
    }

    /// Whether one of the comma-separated values of a field is this token, in any case.
    pub(crate) fn names(&self, name: &str, token: &str) -> bool {
        let is_token = |item: &[u8]| item.trim_ascii().eq_ignore_ascii_case(token.as_bytes());
        self.values(name).any(|value| value.split(|&byte| byte == b',').any(is_token))
    }

    /// The number of fields.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Removes all fields with this name.
    pub fn remove(&mut self, name: &str) {
        self.remove_if(|found| found.eq_ignore_ascii_case(name.as_bytes()));
    }

    /// Removes all fields whose names match.
    pub(crate) fn remove_if(&mut self, matches: impl Fn(&[u8]) -> bool) {
        let mut spans = std::mem::take(&mut self.spans);
        spans.retain(|&(name, _)| !matches(self.at(name)));
        self.spans = spans;
    }

    /// Removes the fields that belong to one connection and must not be forwarded (RFC 9110 §7.6.1, RFC 9113 §8.2.2): the known ones,
    /// and those that `Connection` names.
    #[cfg(any(feature = "http2", feature = "client", feature = "server"))]
    pub(crate) fn remove_connection_specific(&mut self) {
        let mut spans = std::mem::take(&mut self.spans);
        let connection: Vec<Span> = spans
            .iter()
            .filter(|(name, _)| self.at(*name).eq_ignore_ascii_case(b"connection"))
            .map(|&(_, value)| value)
            .collect();
        spans.retain(|&(name, _)| {
            let name = self.at(name);
            let is_name = |token: &[u8]| token.trim_ascii().eq_ignore_ascii_case(name);
            let is_named = |&value: &Span| self.at(value).split(|&byte| byte == b',').any(is_name);
            !is_connection_specific(name) && !connection.iter().any(is_named)
        });
        self.spans = spans;
    }

    /// Removes the fields that a sender does not generate in trailers (RFC 9110 §6.5.1): those of a connection, those that determine where
    /// a message ends, and `Host`. A recipient that merges trailers with headers would take them for its own.
    #[cfg(any(feature = "http2", feature = "client", feature = "server"))]
    pub(crate) fn remove_forbidden_trailers(&mut self) {
        self.remove_connection_specific();
        self.remove("content-length");
        self.remove("host");
    }

    /// Converts all names to lower case (RFC 9113 §8.2).
    pub(crate) fn make_names_lowercase(&mut self) {
        for (span, _) in &self.spans {
            let start = span.start as usize;
            if let Some(name) = self.arena.get_mut(start..start + span.len()) {
                name.make_ascii_lowercase();
            }
        }
    }
}

/// Shows names only: values may contain secrets.
impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(name, _)| name)).finish()
    }
}

/// The same fields in the same order; the case of names is ignored.
impl PartialEq for Headers {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len()
            && self.iter().zip(other.iter()).all(|(a, b)| a.0.eq_ignore_ascii_case(b.0) && a.1 == b.1)
    }
}

impl Eq for Headers {}

/// The head of a response.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) headers: Headers,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sensitive_fields_keep_their_mark() {
        let mut headers = Headers::new();
        headers.push("a", "1").unwrap();
        headers.push_sensitive("Authorization", "secret").unwrap();
        headers.push("b", "2").unwrap();
        assert!(
            headers.is_sensitive("authorization") && !headers.is_sensitive("a") && !headers.is_sensitive("b")
        );
        headers.remove("a");
        let copy = headers.clone();
        assert!(copy.is_sensitive("Authorization") && !copy.is_sensitive("b"));
        headers.remove("authorization");
        headers.push("authorization", "public").unwrap();
        assert!(!headers.is_sensitive("authorization"));
    }

    #[test]
    fn keeps_fields_in_order_and_finds_them_in_any_case() {
        let mut headers = Headers::new();
        headers.push("X-One", "1").unwrap();
        headers.push("Set-Cookie", " a=b ").unwrap();
        headers.push("set-cookie", b"c=d").unwrap();
        assert_eq!(headers.get_all("SET-COOKIE").collect::<Vec<_>>(), [b"a=b", b"c=d"]);
        headers.make_names_lowercase();
        assert_eq!(
            headers.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            ["x-one", "set-cookie", "set-cookie"]
        );
        headers.remove("Set-Cookie");
        assert_eq!((headers.len(), headers.get("x-one")), (1, Some(&b"1"[..])));
        assert_eq!(format!("{headers:?}"), "[\"x-one\"]");
    }

    #[cfg(any(feature = "http2", feature = "client", feature = "server"))]
    #[test]
    fn fields_of_a_connection_are_not_forwarded() {
        let mut headers = Headers::new();
        for (name, value) in [
            ("Connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("X-End", "2"),
            ("connection", "x-other"),
            ("Transfer-Encoding", "chunked"),
            ("Keep-Alive", "timeout=5"),
            ("x-other", "3"),
            ("x-hop-2", "4"),
        ] {
            headers.push(name, value).unwrap();
        }
        headers.remove_connection_specific();
        let names: Vec<_> = headers.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["X-End", "x-hop-2"]);
    }

    #[test]
    fn refuses_what_cannot_be_sent() {
        let mut headers = Headers::new();
        for (name, value) in [("", "x"), ("a b", "x"), ("a", "x\r\nb: c"), ("a:", ""), ("ä", ""), ("a", "\0")]
        {
            assert_eq!(headers.push(name, value), Err(HttpError::InvalidHeader), "{name:?}");
        }
        assert!(headers.is_empty());
    }
}
