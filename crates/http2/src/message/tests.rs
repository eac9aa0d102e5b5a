use super::*;
use crate::error::Violation as V;

const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "https"), (":authority", "example.org"), (":path", "/")];

fn list<'a>(fields: impl IntoIterator<Item = &'a (&'a str, &'a str)>) -> FieldList {
    fields.into_iter().map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes())).collect()
}

/// The request above with changed fields. Fields with another name are added at the end.
fn with(changes: &[(&str, &str)]) -> FieldList {
    let kept = GET.iter().map(|field| changes.iter().find(|change| change.0 == field.0).unwrap_or(field));
    let added = changes.iter().filter(|change| GET.iter().all(|field| field.0 != change.0));
    // Pseudo-fields first.
    let all: alloc::vec::Vec<_> = kept.chain(added).collect();
    let (pseudo, regular): (alloc::vec::Vec<_>, alloc::vec::Vec<_>) =
        all.into_iter().partition(|field| field.0.starts_with(':'));
    list(pseudo.into_iter().chain(regular))
}

fn without(name: &str) -> FieldList {
    list(GET.iter().filter(|field| field.0 != name))
}

#[test]
fn accepts_valid_requests() {
    let cases: &[(FieldList, RequestKind, ContentLeft)] = &[
        (list(&GET), RequestKind::Plain, ContentLeft::UNKNOWN),
        (with(&[(":method", "HEAD")]), RequestKind::Head, ContentLeft::UNKNOWN),
        (with(&[(":method", "POST"), ("content-length", "12")]), RequestKind::Plain, ContentLeft::bytes(12)),
        (with(&[(":method", "X-!#$%&'*+.^_`|~1")]), RequestKind::Plain, ContentLeft::UNKNOWN),
        // RFC 3986 §3.1, §6.2.3: letters of either case, and the port of that scheme.
        (with(&[(":scheme", "HTTP"), ("host", "example.org:80")]), RequestKind::Plain, ContentLeft::UNKNOWN),
        (
            with(&[(":scheme", "httpS"), ("host", "example.org:443")]),
            RequestKind::Plain,
            ContentLeft::UNKNOWN,
        ),
        // RFC 9113 §8.3.1: OPTIONS for the whole server.
        (with(&[(":method", "OPTIONS"), (":path", "*")]), RequestKind::Plain, ContentLeft::UNKNOWN),
        (with(&[(":path", "/a?b=%20&c={|}")]), RequestKind::Plain, ContentLeft::UNKNOWN),
        // RFC 9113 §8.3.1: schemes other than "http" and "https" may have no authority.
        (
            list(&[(":method", "GET"), (":scheme", "foo"), (":path", "/a:b")]),
            RequestKind::Plain,
            ContentLeft::UNKNOWN,
        ),
        // RFC 9113 §8.2.2: TE is allowed with "trailers".
        (with(&[("te", "trailers")]), RequestKind::Plain, ContentLeft::UNKNOWN),
        (with(&[("te", "Trailers")]), RequestKind::Plain, ContentLeft::UNKNOWN),
        // RFC 9113 §8.3.1: host instead of :authority, or in addition.
        (with(&[("host", "example.org")]), RequestKind::Plain, ContentLeft::UNKNOWN),
        (
            list(&[(":method", "GET"), (":scheme", "https"), (":path", "/"), ("host", "a")]),
            RequestKind::Plain,
            ContentLeft::UNKNOWN,
        ),
        // RFC 9113 §8.5
        (
            list(&[(":method", "CONNECT"), (":authority", "a:443")]),
            RequestKind::Connect,
            ContentLeft::UNKNOWN,
        ),
        (
            list(&[(":method", "CONNECT"), (":authority", "a:443"), ("content-length", "3")]),
            RequestKind::Connect,
            ContentLeft::UNKNOWN,
        ),
        // RFC 8441 §4
        (
            with(&[(":method", "CONNECT"), (":protocol", "websocket"), ("content-length", "3")]),
            RequestKind::ExtendedConnect,
            ContentLeft::UNKNOWN,
        ),
        // RFC 9110 §8.6: a repetition with the same value may be taken.
        (
            list(GET.iter().chain(&[("content-length", "3"), ("content-length", "3")])),
            RequestKind::Plain,
            ContentLeft::bytes(3),
        ),
    ];
    for (fields, kind, content) in cases {
        assert_eq!(
            check_request(fields, true),
            Ok(RequestHead { kind: *kind, content: *content }),
            "{fields:?}"
        );
    }
}

#[test]
fn refuses_malformed_requests() {
    let cases: &[(FieldList, V)] = &[
        // RFC 9113 §8.3.1: MUST include exactly one valid :method, :scheme and :path.
        (without(":method"), V::MethodMissing),
        (without(":scheme"), V::SchemeMissing),
        (without(":path"), V::PathMissing),
        (without(":authority"), V::AuthorityMissing),
        (list(&[]), V::MethodMissing),
        (with(&[(":method", "")]), V::MethodInvalid),
        (with(&[(":method", "GET /")]), V::MethodInvalid),
        (with(&[(":method", "G\u{e4}T")]), V::MethodInvalid),
        (with(&[(":scheme", "")]), V::SchemeInvalid),
        (with(&[(":scheme", "1http")]), V::SchemeInvalid),
        (with(&[(":scheme", "https://a/?")]), V::SchemeInvalid),
        (with(&[(":path", "")]), V::PathInvalid),
        (with(&[(":scheme", "foo"), (":path", "")]), V::PathInvalid),
        (with(&[(":scheme", "foo"), (":path", "http://x/")]), V::PathInvalid),
        (with(&[(":scheme", "foo"), (":path", "*")]), V::PathInvalid),
        (with(&[(":scheme", "foo"), (":authority", "a b")]), V::AuthorityInvalid),
        (with(&[(":path", "index.html")]), V::PathInvalid),
        (with(&[(":path", "/\u{e4}")]), V::PathInvalid),
        (with(&[(":path", "*")]), V::PathInvalid),
        (with(&[(":path", "/a b")]), V::PathInvalid),
        (with(&[(":path", "/a#b")]), V::PathInvalid),
        (with(&[(":path", "https://example.org/")]), V::PathInvalid),
        (with(&[(":method", "OPTIONS"), (":path", "**")]), V::PathInvalid),
        (with(&[(":authority", "")]), V::AuthorityInvalid),
        // RFC 9113 §8.3.1: MUST NOT include user information.
        (with(&[(":authority", "user@example.org")]), V::AuthorityInvalid),
        (list(&[(":method", "GET"), (":scheme", "HTTPS"), (":path", "/")]), V::AuthorityMissing),
        (list(&[(":method", "GET"), (":scheme", "Http"), (":path", "/")]), V::AuthorityMissing),
        (with(&[("host", "example.net")]), V::HostMismatch),
        (list(GET.iter().chain(&[("host", "example.org"), ("host", "example.org")])), V::HostMismatch),
        // RFC 9113 §8.3: MUST NOT come more than once, even with the same value.
        (list(GET.iter().chain(&[(":method", "GET")])), V::PseudoRepeated),
        (list(GET.iter().chain(&[(":scheme", "https")])), V::PseudoRepeated),
        (list(GET.iter().chain(&[(":path", "/")])), V::PseudoRepeated),
        (list(GET.iter().chain(&[(":authority", "b")])), V::PseudoRepeated),
        // RFC 9113 §8.3: MUST precede the regular fields.
        (list([("a", "b")].iter().chain(&GET)), V::PseudoAfterField),
        (list([("accept", "b")].iter().chain(&GET)), V::PseudoAfterField),
        // RFC 9113 §8.3: MUST NOT be others than the defined ones.
        (list(GET.iter().chain(&[(":test", "ok")])), V::PseudoUnknown),
        (list(GET.iter().chain(&[(":", "ok")])), V::PseudoUnknown),
        // RFC 9113 §8.3: those of responses MUST NOT come in requests.
        (list(GET.iter().chain(&[(":status", "200")])), V::PseudoMisplaced),
        // RFC 9113 §8.2.2
        (with(&[("connection", "keep-alive")]), V::ConnectionField),
        (with(&[("keep-alive", "5")]), V::ConnectionField),
        (with(&[("proxy-connection", "close")]), V::ConnectionField),
        (with(&[("transfer-encoding", "chunked")]), V::ConnectionField),
        (with(&[("upgrade", "websocket")]), V::ConnectionField),
        (with(&[("te", "trailers, deflate;q=0.5")]), V::TeValue),
        (with(&[("te", "")]), V::TeValue),
        // RFC 9113 §8.1.1, RFC 9110 §8.6
        (with(&[("content-length", "")]), V::ContentLengthInvalid),
        (with(&[("content-length", "-1")]), V::ContentLengthInvalid),
        (with(&[("content-length", "+1")]), V::ContentLengthInvalid),
        (with(&[("content-length", "1,1")]), V::ContentLengthInvalid),
        (with(&[("content-length", "18446744073709551615")]), V::ContentLengthInvalid),
        (
            list(GET.iter().chain(&[("content-length", "1"), ("content-length", "2")])),
            V::ContentLengthInvalid,
        ),
        // RFC 9113 §8.5
        (list(&[(":method", "CONNECT")]), V::AuthorityMissing),
        (list(&[(":method", "CONNECT"), ("host", "a:1")]), V::AuthorityMissing),
        (list(&[(":method", "CONNECT"), (":authority", "a:1"), (":path", "/")]), V::ConnectPseudo),
        (list(&[(":method", "CONNECT"), (":authority", "a:1"), (":scheme", "https")]), V::ConnectPseudo),
        (list(&[(":method", "CONNECT"), (":authority", "a")]), V::AuthorityInvalid),
        // RFC 8441 §4
        (with(&[(":protocol", "websocket")]), V::ProtocolUnexpected),
        (with(&[(":method", "CONNECT"), (":protocol", "")]), V::ProtocolInvalid),
        (list(&[(":method", "CONNECT"), (":protocol", "websocket"), (":authority", "a")]), V::SchemeMissing),
        (
            list(&[
                (":method", "CONNECT"),
                (":protocol", "websocket"),
                (":scheme", "https"),
                (":authority", "a"),
            ]),
            V::PathMissing,
        ),
    ];
    for (fields, violation) in cases {
        assert_eq!(check_request(fields, true), Err(*violation), "{fields:?}");
    }
}

#[test]
fn extended_connect_has_to_be_enabled() {
    // RFC 8441 §3: a client MUST NOT use it before the server's SETTINGS allow it.
    let fields = with(&[(":method", "CONNECT"), (":protocol", "websocket")]);
    assert_eq!(check_request(&fields, false), Err(V::ProtocolUnexpected));
    assert!(check_request(&fields, true).is_ok());
}

#[test]
fn accepts_valid_responses() {
    use RequestKind as K;
    const UNKNOWN: ContentLeft = ContentLeft::UNKNOWN;
    // Status, content-length, the request, and what is to come.
    let cases = [
        ("200", None, K::Plain, UNKNOWN, false),
        ("200", Some("5"), K::Plain, ContentLeft::bytes(5), false),
        ("999", None, K::Plain, UNKNOWN, false),
        // RFC 9113 §8.1.1: these have no content, even if they have a content-length.
        ("200", Some("5"), K::Head, ContentLeft::NOTHING, false),
        ("304", Some("5"), K::Plain, ContentLeft::NOTHING, false),
        ("204", None, K::Plain, ContentLeft::NOTHING, false),
        ("100", None, K::Plain, ContentLeft::NOTHING, false),
        ("103", None, K::Plain, ContentLeft::NOTHING, false),
        // RFC 9110 §9.3.6: content-length is ignored in a successful response to CONNECT.
        ("200", Some("5"), K::Connect, UNKNOWN, true),
        ("204", None, K::ExtendedConnect, UNKNOWN, true),
        ("404", Some("5"), K::Connect, ContentLeft::bytes(5), false),
    ];
    for (status, length, request, content, tunnel) in cases {
        let fields = [(":status", status)];
        let length = length.map(|length| ("content-length", length));
        let fields = list(fields.iter().chain(&length));
        let head = check_response(&fields, request).unwrap();
        assert_eq!((head.content, head.tunnel), (content, tunnel), "{fields:?} {request:?}");
        assert_eq!(head.is_interim(), status < "200");
    }
    for status in (100_u16..=999).filter(|&status| status != 101) {
        let head = check_response(&list(&[(":status", &*alloc::format!("{status}"))]), K::Plain);
        assert_eq!(head.map(|head| head.status), Ok(status));
    }
}

#[test]
fn refuses_malformed_responses() {
    let cases: &[(&[(&str, &str)], V)] = &[
        // RFC 9113 §8.3.2: :status MUST be included.
        (&[], V::StatusMissing),
        (&[("a", "b")], V::StatusMissing),
        (&[(":status", "")], V::StatusInvalid),
        (&[(":status", "20")], V::StatusInvalid),
        (&[(":status", "2000")], V::StatusInvalid),
        (&[(":status", "099")], V::StatusInvalid),
        (&[(":status", "2OO")], V::StatusInvalid),
        (&[(":status", "+20")], V::StatusInvalid),
        // RFC 9113 §8.6: HTTP/2 has no 101.
        (&[(":status", "101")], V::StatusSwitching),
        (&[(":status", "200"), (":status", "200")], V::PseudoRepeated),
        (&[("a", "b"), (":status", "200")], V::PseudoAfterField),
        // RFC 9113 §8.3: those of requests MUST NOT come in responses.
        (&[(":status", "200"), (":path", "/")], V::PseudoMisplaced),
        (&[(":method", "GET"), (":status", "200")], V::PseudoMisplaced),
        (&[(":status", "200"), (":protocol", "x")], V::PseudoMisplaced),
        (&[(":status", "200"), (":other", "x")], V::PseudoUnknown),
        (&[(":status", "200"), ("connection", "close")], V::ConnectionField),
        (&[(":status", "200"), ("transfer-encoding", "chunked")], V::ConnectionField),
        // RFC 9113 §8.2.2: TE is excepted in requests alone.
        (&[(":status", "200"), ("te", "trailers")], V::ConnectionField),
        (&[(":status", "200"), ("content-length", "x")], V::ContentLengthInvalid),
        (&[(":status", "200"), ("content-length", "1"), ("content-length", "2")], V::ContentLengthInvalid),
    ];
    for (fields, violation) in cases {
        assert_eq!(check_response(&list(*fields), RequestKind::Plain), Err(*violation), "{fields:?}");
    }
}

#[test]
fn trailers_have_no_pseudo_fields() {
    // RFC 9113 §8.1: trailers MUST NOT contain pseudo-fields.
    assert_eq!(check_trailers(&list(&[("grpc-status", "0"), ("content-length", "x")])), Ok(()));
    assert_eq!(check_trailers(&list(&[])), Ok(()));
    // Host means something in a request alone.
    assert_eq!(check_trailers(&list(&[("host", "a"), ("host", "b")])), Ok(()));
    let cases: &[(&[(&str, &str)], V)] = &[
        (&[(":status", "200")], V::PseudoInTrailers),
        (&[(":method", "GET")], V::PseudoInTrailers),
        (&[(":x", "")], V::PseudoUnknown),
        (&[("a", "b"), (":status", "200")], V::PseudoAfterField),
        (&[("connection", "close")], V::ConnectionField),
        (&[("te", "trailers")], V::ConnectionField),
    ];
    for (fields, violation) in cases {
        assert_eq!(check_trailers(&list(*fields)), Err(*violation), "{fields:?}");
    }
}

#[test]
fn promises_are_safe_and_have_no_content() {
    // RFC 9113 §8.4.1: promised requests MUST be safe and cacheable and MUST NOT have content.
    assert_eq!(check_promise(&list(&GET)).map(|head| head.kind), Ok(RequestKind::Plain));
    assert_eq!(check_promise(&with(&[(":method", "HEAD")])).map(|head| head.kind), Ok(RequestKind::Head));
    assert!(check_promise(&with(&[("content-length", "0")])).is_ok());
    assert_eq!(check_promise(&with(&[(":method", "POST")])), Err(V::PushUnsafe));
    assert_eq!(check_promise(&with(&[(":method", "OPTIONS")])), Err(V::PushUnsafe));
    assert_eq!(check_promise(&with(&[("content-length", "1")])), Err(V::PushUnsafe));
    let connect = list(&[(":method", "CONNECT"), (":authority", "a:443")]);
    assert_eq!(check_promise(&connect), Err(V::PushUnsafe));
    assert_eq!(check_promise(&without(":path")), Err(V::PathMissing));
}
