//! Messages: requests and responses, trailers, tunnels, priorities, and the frames of extensions.

use super::*;

#[test]
fn a_request_is_answered_and_leaves_nothing_behind() {
    let (mut client, mut server) = settled();
    let (_, there) = ask(&mut client, &mut server);
    server.send_response(there, OK, false).unwrap();
    server.send_data(there, "hello", false).unwrap();
    server.send_data(there, "", true).unwrap();
    let (events, _) = settle(&mut client, &mut server);
    assert_eq!(events, ["response 1 200 false", "data 1 5 false", "data 1 0 true"]);
    assert_eq!((client.streams(), server.streams()), (0, 0));
    assert_eq!((client.streams.open_local(), server.streams.open_peer()), (0, 0));
    assert_eq!(server.send_data(there, "x", true), Err(Error::Misuse(Misuse::StreamGone)));
}

#[test]
fn trailers_wait_for_the_content_before_them() {
    let (mut client, mut server) = settled();
    let (_, there) = ask(&mut client, &mut server);
    server.send_informational(there, [Field::known(Token::Status, b"103")]).unwrap();
    server.send_response(there, OK, false).unwrap();
    server.send_data(there, vec![7; 300_000], false).unwrap();
    server.send_trailers(there, [Field::new(b"x-sum", b"1")]).unwrap();
    let (events, _) = settle(&mut client, &mut server);
    assert_eq!(events.first().unwrap(), "informational 1 103");
    assert_eq!(events.last().unwrap(), "trailers 1 1");
    assert_eq!((client.streams(), server.streams()), (0, 0));
}

#[test]
fn a_tunnel_has_no_trailers_and_a_refused_one_has() {
    // RFC 9113 §8.5: nothing but DATA.
    let connect =
        [Field::known(Token::Method, b"CONNECT"), Field::known(Token::Authority, b"example.org:443")];
    let trailer = [Field::new(b"x-sum", b"1")];
    for (status, is_tunnel) in [(&b"200"[..], true), (b"403", false)] {
        let (mut client, mut server) = settled();
        let here = client.send_request(connect, false).unwrap();
        assert_eq!(client.send_trailers(here, trailer), Err(Misuse::MessageInvalid.into()));
        settle(&mut client, &mut server);
        let there = server.find(here.stream_id()).unwrap();
        server.send_response(there, [Field::known(Token::Status, status)], false).unwrap();
        assert_eq!(server.send_trailers(there, trailer).is_err(), is_tunnel);
    }
}

/// The streams of the DATA frames of a server, in order, for responses of these lengths to requests without content.
fn order_of_data(requests: &[&[Field<'static>]], lens: &[usize]) -> Vec<u32> {
    let (mut client, mut server) = settled();
    for request in requests {
        client.send_request(request.iter().copied(), true).unwrap();
    }
    settle(&mut client, &mut server);
    for (n, &len) in lens.iter().enumerate() {
        let there = server.find(StreamId::new(1 + 2 * n as u32).unwrap()).unwrap();
        server.send_response(there, OK, false).unwrap();
        server.send_data(there, vec![0; len], true).unwrap();
    }
    let (events, _) = settle(&mut client, &mut server);
    let data = events.iter().filter_map(|event| event.strip_prefix("data ")?.split(' ').next()?.parse().ok());
    let mut order: Vec<u32> = data.collect();
    order.dedup();
    order
}

#[test]
fn streams_of_a_client_without_priorities_take_turns() {
    let order = order_of_data(&[&GET, &GET], &[200_000, 20_000]);
    assert!(order.len() > 3, "{order:?}");
    assert_eq!(*order.last().unwrap(), 1, "the short response ended first: {order:?}");
}

#[test]
fn a_client_that_sends_priorities_has_the_order_of_rfc_9218() {
    let with = |value: &'static [u8]| [&GET[..], &[Field::new(b"priority", value)]].concat();
    let (urgent, ordered) = (with(b"u=1"), with(b"u=3"));
    let order = order_of_data(&[&urgent, &ordered, &ordered], &[100_000, 100_000, 100_000]);
    assert_eq!(order, [1, 3, 5]);
    // Requests without a field take turns, beside those with one.
    let order = order_of_data(&[&urgent, &GET, &GET], &[100_000, 100_000, 100_000]);
    assert!(order.len() > 5 && order[0] == 1, "{order:?}");
    let mut incremental = GET.to_vec();
    incremental.push(Field::new(b"priority", b"i"));
    let order = order_of_data(&[&incremental, &incremental], &[100_000, 100_000]);
    assert!(order.len() > 4, "{order:?}");
}

#[test]
fn the_fields_of_a_message_are_read_in_place_or_taken() {
    let (mut client, mut server) = settled();
    ask(&mut client, &mut server);
    let read: Vec<_> = server.fields().iter().map(|field| field.value().to_vec()).collect();
    let taken = server.take_fields();
    assert!(read.len() == GET.len() && taken.iter().map(|field| field.value()).eq(&read));
    assert!(server.fields().is_empty());
    // The next message has a list of its own.
    ask(&mut client, &mut server);
    assert!(server.fields().iter().map(|field| field.value()).eq(&read));
}

#[test]
fn only_a_client_receives_altsvc_and_origin() {
    let (mut client, mut server) = settled();
    server.send_altsvc(None, b"https://example.org", b"h2=\":443\"").unwrap();
    assert_eq!(settle(&mut client, &mut server).0, ["altsvc"]);
    assert_eq!(client.alt_svc(), (&b"https://example.org"[..], &b"h2=\":443\""[..]));
    let origins = [&b"https://example.org"[..], b"https://example.com"];
    server.send_origin(origins).unwrap();
    assert_eq!(settle(&mut client, &mut server).0, ["origin 2"]);
    assert!(client.origins().eq(origins));
    // RFC 7838 §4: on stream 0 it names an origin. RFC 8336 §2.1: it comes on stream 0.
    server.send_altsvc(None, b"", b"h2=\":443\"").unwrap();
    assert!(settle(&mut client, &mut server).0.is_empty());
    assert!(events_of(&mut client, &Frame::new(kind::ORIGIN, 1, "\0\x01a")).is_empty());
    for frame in [Frame::new(kind::ALTSVC, 0, "\0\x01ah2"), Frame::new(kind::ORIGIN, 0, "\0\x01a")] {
        assert!(events_of(&mut server, &frame).is_empty());
    }
    let not_server = Err(Error::Misuse(Misuse::NotServer));
    assert_eq!(client.send_altsvc(None, b"https://example.org", b"h2"), not_server);
    assert_eq!(client.send_origin([&b"https://example.org"[..]]), not_server);
}

#[test]
fn a_service_is_announced_for_an_origin_or_for_a_stream() {
    // RFC 7838 §4: stream 0 with the origin, or the stream of a request without one.
    let (mut client, mut server) = settled();
    let (_, there) = ask(&mut client, &mut server);
    server.send_altsvc(None, b"https://example.org", b"h2=\":443\"").unwrap();
    server.send_altsvc(Some(there), b"", b"clear").unwrap();
    let bytes = drain(&mut server);
    let frames = wireloom_testing::http2::split(&bytes);
    let announced: Vec<(u8, u32)> = frames.iter().map(|frame| (frame.kind, frame.stream)).collect();
    assert_eq!(announced, [(10, 0), (10, 1)]);
    assert_eq!(feed(&mut client, &bytes), ["altsvc", "altsvc"]);
    server.send_response(there, OK, true).unwrap();
    assert_eq!(server.send_altsvc(Some(there), b"", b"clear"), Err(Misuse::StreamGone.into()));
}

#[test]
fn promises_are_made_on_open_streams_of_the_client() {
    // RFC 9113 §6.6: the promise is sent on a stream that the client has opened, and that this side has not ended.
    let mut config = Config::new(Role::Client);
    config.settings.enable_push = true;
    let (mut client, mut server) = ends_with(config, Config::new(Role::Server));
    settle(&mut client, &mut server);
    client.send_request(GET, false).unwrap();
    let up = drain(&mut client);
    feed(&mut server, &up);
    let there = server.find(StreamId::FIRST_CLIENT).unwrap();
    let promised = server.push_promise(there, GET).unwrap();
    assert_eq!(server.push_promise(promised, GET), Err(Misuse::StreamGone.into()));
    server.send_response(there, OK, true).unwrap();
    assert!(server.contains(there), "the client has not ended its request");
    assert_eq!(server.push_promise(there, GET), Err(Misuse::StreamGone.into()));
}

#[test]
fn chunks_that_nobody_takes_are_dropped_with_the_next_output() {
    let (mut client, _server) = settled();
    for is_dropped in [false, true] {
        let here = client.send_request(GET, false).unwrap();
        client.send_data(here, vec![1; 1 << 20], false).unwrap();
        client.reset(here, ErrorCode::CANCEL).unwrap();
        if is_dropped {
            client.poll_transmit(Duration::ZERO, &mut [&[][..]; 4]);
        }
        let mut spent = vec![];
        client.take_spent(&mut spent);
        assert_eq!(spent.is_empty(), is_dropped);
    }
}
