//! Commands of the caller: messages that are refused before they are sent, and the limits on output.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::wire::End;
use bytes::Bytes;
use wireloom_http2::error::{Error, ErrorCode, Misuse};
use wireloom_http2::field::{Field, Token};
use wireloom_http2::priority::Priority;
use wireloom_http2::{Config, Event, Role};
use wireloom_testing::http2::{Frame, GET, POST, PREFACE, code, flag, join, kind};

const CONNECT: &[(&str, &str)] = &[(":method", "CONNECT"), (":authority", "example.org:443")];

fn fields<'a>(fields: &'a [(&'a str, &'a str)]) -> impl Iterator<Item = Field<'a>> + Clone {
    fields.iter().map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes()))
}

fn status(value: &str) -> [Field<'_>; 1] {
    [Field::known(Token::Status, value.as_bytes())]
}

fn fields_of<'a>(code: &'a str, len: &'a str) -> [Field<'a>; 2] {
    [Field::known(Token::Status, code.as_bytes()), Field::known(Token::ContentLength, len.as_bytes())]
}

/// A server that got these SETTINGS and this request on stream 1.
fn server(config: Config, settings: &[(u16, u32)], request: &Frame) -> End {
    let mut end = End::with(Role::Server, config);
    let opening = [Frame::settings(settings), Frame::settings_ack(), request.clone()];
    end.receive(&[PREFACE, &join(&opening)].concat());
    end
}

/// A client that got these SETTINGS.
fn client(settings: &[(u16, u32)]) -> End {
    let mut end = End::new(Role::Client);
    end.receive(&join(&[Frame::settings(settings), Frame::settings_ack()]));
    end
}

fn frames(end: &End, kind: u8) -> Vec<Frame> {
    end.sent().into_iter().filter(|frame| frame.kind == kind).collect()
}

#[test]
fn an_interim_response_is_not_a_final_one() {
    // RFC 9110 §15.2, and RFC 9113 §8.6: 101 does not exist in HTTP/2.
    let mut end = server(Config::new(Role::Server), &[], &Frame::get(1));
    let key = end.key(1);
    for (code, taken) in [("100", true), ("199", true), ("101", false), ("200", false), ("201", false)] {
        let sent = end.connection.send_informational(key, status(code));
        assert_eq!(sent.is_ok(), taken, "{code}");
        if taken {
            assert_eq!(
                end.connection.send_response(key, status(code), true),
                Err(Misuse::MessageInvalid.into())
            );
        }
    }
    // RFC 9113 §8.4.2: a promised stream continues with its final response.
    let promised = end.connection.push_promise(key, fields(GET)).unwrap();
    let interim = end.connection.send_informational(promised, status("103"));
    assert_eq!(interim, Err(Misuse::MessageInvalid.into()));
    end.connection.send_response(promised, status("200"), true).unwrap();
}

#[test]
fn responses_that_never_have_content_have_no_length() {
    // RFC 9110 §8.6: 1xx and 204; §9.3.6: 2xx to CONNECT.
    for (request, code, taken) in [
        (Frame::get(1), "204", false),
        (Frame::get(1), "200", true),
        (Frame::get(1), "304", true),
        (Frame::headers(1, CONNECT), "200", false),
        (Frame::headers(1, CONNECT), "299", false),
        (Frame::headers(1, CONNECT), "403", true),
    ] {
        let mut end = server(Config::new(Role::Server), &[], &request);
        let key = end.key(1);
        for interim in ["100", "103"] {
            let sent = end.connection.send_informational(key, fields_of(interim, "0"));
            assert_eq!(sent, Err(Misuse::MessageInvalid.into()), "{interim}");
        }
        assert_eq!(end.connection.send_response(key, fields_of(code, "0"), false).is_ok(), taken, "{code}");
    }
}

#[test]
fn a_status_has_three_digits() {
    // RFC 9110 §15
    for code in ["", "1", "10", "1000", "1xx", "abc", "099", " 100"] {
        let mut end = server(Config::new(Role::Server), &[], &Frame::get(1));
        let key = end.key(1);
        let interim = end.connection.send_informational(key, status(code));
        assert_eq!(interim, Err(Misuse::MessageInvalid.into()), "{code:?}");
        let last = end.connection.send_response(key, status(code), true);
        assert_eq!(last, Err(Misuse::MessageInvalid.into()), "{code:?}");
    }
}

#[test]
fn each_digit_of_a_status_counts() {
    // RFC 9110 §15.3.5: 204 has no content; 214 is another final status.
    for code in ["214", "210", "299", "999"] {
        let mut end = server(Config::new(Role::Server), &[], &Frame::get(1));
        let key = end.key(1);
        end.connection.send_response(key, status(code), false).unwrap();
        end.connection.send_data(key, "content", true).unwrap();
    }
}

#[test]
fn extended_connect_needs_the_setting_of_the_server() {
    // RFC 8441 §3, §4
    let request =
        [CONNECT[0], (":protocol", "websocket"), (":scheme", "https"), (":authority", "a"), (":path", "/")];
    for (settings, expected) in [(&[][..], Err(Misuse::ConnectProtocolNotEnabled.into())), (&[(8, 1)], Ok(1))]
    {
        let sent = client(settings).connection.send_request(fields(&request), false);
        assert_eq!(sent.map(|key| key.id()), expected);
    }
    // Plain CONNECT needs no setting.
    assert!(client(&[]).connection.send_request(fields(CONNECT), false).is_ok());
}

#[test]
fn a_field_list_is_not_larger_than_the_peer_accepts() {
    // RFC 9113 §6.5.2: the sum of names, values, and 32 for each.
    let size: usize = GET.iter().map(|(name, value)| name.len() + value.len() + 32).sum();
    for (max, expected) in
        [(size - 1, Err(Misuse::FieldListTooLarge.into())), (size, Ok(1)), (size + 1, Ok(1))]
    {
        let sent = client(&[(6, max as u32)]).connection.send_request(fields(GET), true);
        assert_eq!(sent.map(|key| key.id()), expected, "{max}");
    }
    // Trailers as well.
    let size = ":status".len() + "200".len() + 32;
    for (value, expected) in [("12345", Ok(())), ("123456", Err(Misuse::FieldListTooLarge.into()))] {
        let mut end = server(Config::new(Role::Server), &[(6, size as u32)], &Frame::get(1));
        let key = end.key(1);
        end.connection.send_response(key, status("200"), false).unwrap();
        assert_eq!(end.connection.send_trailers(key, fields(&[("trail", value)])), expected);
    }
}

#[test]
fn a_refused_tunnel_continues_as_a_request_with_content() {
    // RFC 9113 §8.5: a tunnel has only DATA; a request that was not accepted may have trailers.
    for (code, is_tunnel) in [("200", true), ("403", false)] {
        let mut end = server(Config::new(Role::Server), &[], &Frame::headers(1, CONNECT));
        let key = end.key(1);
        end.connection.send_response(key, status(code), false).unwrap();
        end.drain();
        end.receive(&Frame::headers(1, &[("x-sum", "1")]).end_stream().to_bytes());
        assert_eq!(end.ended() == [1], !is_tunnel);
        assert_eq!(frames(&end, kind::RST_STREAM).len(), usize::from(is_tunnel));
    }
}

#[test]
fn no_more_streams_are_promised_than_the_client_allows() {
    let mut end = server(Config::new(Role::Server), &[(3, 2)], &Frame::get(1));
    let key = end.key(1);
    for _ in 0..2 {
        end.connection.push_promise(key, fields(GET)).unwrap();
    }
    assert_eq!(end.connection.push_promise(key, fields(GET)), Err(Misuse::PushRefused.into()));
}

#[test]
fn no_more_than_output_ahead_is_framed() {
    let mut config = Config::new(Role::Server);
    // One frame with its header.
    config.output_ahead = 16_384 + 9;
    let mut end = server(config, &[(4, 1 << 20)], &Frame::get(1));
    let key = end.key(1);
    end.connection.send_response(key, status("200"), false).unwrap();
    end.drain();
    // The longest frame is written at once, and the next byte is queued.
    end.connection.send_data(key, vec![b'd'; 16_384], false).unwrap();
    assert_eq!((end.connection.queued(key), end.connection.memory().output), (0, 16_384 + 9));
    end.connection.send_data(key, vec![b'd'; 16_384], false).unwrap();
    assert_eq!(end.connection.queued(key), 16_384);
    end.drain();
    end.connection.send_data(key, vec![b'd'; 16_385], false).unwrap();
    end.connection.poll_transmit(Duration::ZERO, &mut [&[]]);
    assert_eq!((end.connection.queued(key), end.connection.memory().output), (1, 16_384 + 9));
}

#[test]
fn waiting_requests_open_while_the_output_has_room() {
    // The length of the first one, and then exactly as much room.
    let mut output_ahead = 1 << 20;
    for opened in [3, 1] {
        let mut config = Config::new(Role::Client);
        config.output_ahead = output_ahead;
        let mut end = End::with(Role::Client, config);
        end.receive(&join(&[Frame::settings(&[(3, 0)]), Frame::settings_ack()]));
        (0..3).for_each(|_| _ = end.request());
        end.connection.handle_input(Duration::ZERO, &Frame::settings(&[(3, 3)]).to_bytes()).unwrap();
        let ack = end.connection.memory().output as usize;
        end.connection.poll_transmit(Duration::ZERO, &mut [&[]]);
        assert_eq!(end.connection.open_capacity(), 3 - opened);
        end.drain();
        let first = frames(&end, kind::HEADERS)[0].to_bytes();
        output_ahead = ack + first.len();
    }
}

#[test]
fn a_priority_that_the_server_sets_overrides_signals() {
    // RFC 9218 §8: signals of the client are ignored.
    let mut end = server(Config::new(Role::Server), &[(4, 1 << 20)], &Frame::get(1));
    end.receive(&join(&[Frame::get(3), Frame::priority_update(1, "u=2")]));
    let streams = [end.key(1), end.key(3)];
    let urgent = Priority { urgency: 1, incremental: false };
    let signalled = Priority { urgency: 2, incremental: false };
    let before = streams.map(|key| end.connection.priority(key));
    assert_eq!(before, [Some(signalled), Some(Priority::UNSIGNALLED)]);
    end.connection.set_priority(streams[1], urgent).unwrap();
    assert_eq!(end.connection.priority(streams[1]), Some(urgent));
    for key in streams {
        end.connection.send_response(key, status("200"), false).unwrap();
        end.connection.send_data(key, vec![b'd'; 20_000], true).unwrap();
    }
    let update = Frame::priority_update(3, "u=7").to_bytes();
    let (taken, event) = end.connection.handle_input(Duration::ZERO, &update).unwrap();
    assert!(taken == update.len() && event.is_none(), "{event:?}");
    end.drain();
    let order: Vec<u32> = frames(&end, kind::DATA).iter().map(|frame| frame.stream).collect();
    assert_eq!(order, [3, 3, 1, 1]);
    assert_eq!(end.connection.priority(streams[1]), None, "it has ended");
}

#[test]
fn a_signal_of_the_client_reorders_responses_that_are_ready() {
    let mut end = server(Config::new(Role::Server), &[(4, 1 << 20)], &Frame::get(1));
    end.receive(&Frame::get(3).to_bytes());
    for key in [end.key(1), end.key(3)] {
        end.connection.send_response(key, status("200"), false).unwrap();
        end.connection.send_data(key, vec![b'd'; 20_000], true).unwrap();
    }
    end.receive(&Frame::priority_update(3, "u=0").to_bytes());
    let order: Vec<u32> = frames(&end, kind::DATA).iter().map(|frame| frame.stream).collect();
    assert_eq!(order, [3, 3, 1, 1]);
}

#[test]
fn a_ping_measures_the_round_trip() {
    let mut end = server(Config::new(Role::Server), &[], &Frame::get(1));
    assert_eq!(end.connection.round_trip(), None);
    let start = Duration::from_secs(1_000_000_000);
    end.connection.send_ping(start, *b"measured").unwrap();
    let pong = Frame::ping("measured").flag(flag::ACK).to_bytes();
    let round_trip = Duration::from_millis(40);
    let (_, event) = end.connection.handle_input(start + round_trip, &pong).unwrap();
    let Some(Event::Pong { payload, round_trip: measured }) = event else { panic!("{event:?}") };
    assert_eq!((&payload, measured), (b"measured", round_trip));
    assert_eq!(end.connection.round_trip(), Some(round_trip));
}

#[test]
fn a_server_stops_reading_while_its_output_is_long_and_a_client_does_not() {
    for role in [Role::Client, Role::Server] {
        let mut config = Config::new(role);
        config.output_max = 100;
        let mut end = match role {
            Role::Server => server(config, &[], &Frame::get(1)),
            Role::Client => End::with(role, config),
        };
        let long = "v".repeat(200);
        match role {
            Role::Server => {
                let response = [(":status", "200"), ("x-long", &long)];
                end.connection.send_response(end.key(1), fields(&response), true).unwrap();
            }
            Role::Client => {
                let request: Vec<_> = GET.iter().copied().chain([("x-long", &*long)]).collect();
                end.connection.send_request(fields(&request), true).unwrap();
            }
        }
        assert!(end.connection.memory().output > 100);
        assert_eq!(end.connection.memory().total(), end.connection.memory().output);
        assert_eq!(end.connection.wants_read(), role == Role::Client);
    }
}

#[test]
fn answers_that_were_sent_do_not_stop_a_client_whose_output_never_ends() {
    // A server that waits for the client to read, and the client, would wait for each other.
    let mut config = Config::new(Role::Client);
    config.limits.answers_len_max = 100;
    let mut end = End::with(Role::Client, config);
    end.receive(&join(&[Frame::settings(&[(3, 1_000)]), Frame::settings_ack()]));
    // A path is not indexed: each request is long.
    let path = format!("/{}", "v".repeat(1_000));
    let request = [(":method", "GET"), (":scheme", "https"), (":authority", "example.org"), (":path", &path)];
    for _ in 0..5 {
        end.connection.send_request(fields(&request), true).unwrap();
    }
    let unsent = end.connection.memory().output;
    for answered in 0..50 {
        let ping = Frame::ping([0; 8]).to_bytes();
        let (taken, _) = end.connection.handle_input(Duration::ZERO, &ping).unwrap();
        assert_eq!(taken, ping.len(), "not read after {answered} answers");
        end.connection.send_request(fields(&request), true).unwrap();
        // Five answers of 17 bytes are in the output at most.
        end.connection.poll_transmit(Duration::ZERO, &mut [&[]]);
        end.connection.transmitted(Duration::ZERO, (end.connection.memory().output - unsent) as usize);
    }
}

#[test]
fn output_that_is_written_is_not_stalled() {
    let config = Config::new(Role::Server);
    let timeout = config.limits.stall_timeout;
    let mut end = server(config, &[], &Frame::get(1));
    end.wait(Duration::from_secs(1));
    // Without output there is no deadline.
    end.connection.poll_transmit(Duration::ZERO, &mut [&[]]);
    assert_eq!(end.connection.poll_timeout(), None);
    end.connection.send_response(end.key(1), status("200"), false).unwrap();
    end.connection.send_data(end.key(1), vec![b'd'; 10_000], true).unwrap();
    let mut now = Duration::from_secs(1_000_000_000);
    assert!(end.connection.poll_transmit(now, &mut [&[]]) > 0);
    assert_eq!(end.connection.poll_timeout(), Some(now + timeout));
    for written in [1_024, 1_024, 0] {
        now += timeout / 2;
        end.connection.handle_timeout(now).unwrap();
        assert!(end.connection.poll_timeout().unwrap() <= now + timeout);
        end.connection.poll_transmit(now, &mut [&[]]);
        end.connection.transmitted(now, written);
        let expected = if written > 0 { now + timeout } else { now + timeout / 2 };
        assert_eq!(end.connection.poll_timeout(), Some(expected));
    }
    let error = end.connection.handle_timeout(now + timeout / 2).unwrap_err();
    assert!(matches!(error, Error::Limit { .. }), "{error}");
}

#[test]
fn a_connection_window_that_stays_closed_is_a_stall() {
    let config = Config::new(Role::Server);
    let timeout = config.limits.stall_timeout;
    let mut end = server(config, &[(4, 1 << 20)], &Frame::get(1));
    let key = end.key(1);
    end.connection.send_response(key, status("200"), false).unwrap();
    end.connection.send_data(key, vec![b'd'; 70_000], true).unwrap();
    end.drain();
    assert_eq!((end.connection.queued(key), end.connection.memory().output), (70_000 - 65_535, 0));
    end.wait(timeout - Duration::from_millis(1));
    assert!(!end.has_failed());
    end.wait(Duration::from_millis(1));
    assert!(end.has_failed());
}

/// Content whose destructor reports that it ran.
struct Owned {
    bytes: Vec<u8>,
    drops: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn chunks_are_returned_to_the_caller_who_drops_them() {
    // Their destructors may use the connection, so they never run inside one of its methods.
    let drops = Arc::new(AtomicUsize::new(0));
    let owned = |len: usize| Bytes::from_owner(Owned { bytes: vec![b'd'; len], drops: drops.clone() });
    let mut end = server(Config::new(Role::Server), &[(4, 40_000)], &Frame::get(1));
    let (key, mut spent) = (end.key(1), Vec::new());
    end.connection.send_data(key, owned(9), false).unwrap_err();
    end.connection.send_response(key, status("200"), false).unwrap();
    // Copied, sent by reference, and queued.
    for len in [100, 16_384, 16_384, 16_384] {
        end.connection.send_data(key, owned(len), false).unwrap();
    }
    let now = Duration::from_secs(1);
    end.connection.take_spent(&mut spent);
    while end.connection.poll_transmit(now, &mut [&[][..]; 4]) > 0 {
        end.connection.transmitted(now, 1_000);
        end.connection.take_spent(&mut spent);
    }
    assert_eq!((spent.len(), end.connection.queued(key)), (5, 9_252));
    end.connection.reset(key, ErrorCode::CANCEL).unwrap();
    end.connection.send_data(key, owned(9), false).unwrap_err();
    end.connection.take_spent(&mut spent);
    assert_eq!((spent.len(), drops.load(Ordering::Relaxed)), (7, 0));
    // Chunks that are not taken are dropped later.
    end.connection.send_data(key, owned(9), false).unwrap_err();
    end.connection.poll_transmit(now, &mut [&[]]);
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    drop(spent);
    assert_eq!(drops.load(Ordering::Relaxed), 7);
}

#[test]
fn empty_chunks_are_returned_to_the_caller_too() {
    let drops = Arc::new(AtomicUsize::new(0));
    let empty = || Bytes::from_owner(Owned { bytes: Vec::new(), drops: drops.clone() });
    let mut end = server(Config::new(Role::Server), &[(4, 10)], &Frame::get(1));
    let key = end.key(1);
    end.connection.send_response(key, status("200"), false).unwrap();
    // Nothing is queued before the first one.
    end.connection.send_data(key, empty(), false).unwrap();
    end.connection.send_data(key, vec![b'd'; 100], false).unwrap();
    end.connection.send_data(key, empty(), false).unwrap();
    end.connection.send_data(key, empty(), true).unwrap();
    assert_eq!(drops.load(Ordering::Relaxed), 0);
    let mut spent = Vec::new();
    end.connection.take_spent(&mut spent);
    assert_eq!((spent.len(), drops.load(Ordering::Relaxed)), (3, 0));
}

#[test]
fn a_transport_that_has_failed_returns_all_chunks() {
    // Small ones that were copied, those in the output, and those that wait for the window; also if the connection had ended before.
    for is_aborted in [false, true] {
        let drops = Arc::new(AtomicUsize::new(0));
        let chunk = |len| Bytes::from_owner(Owned { bytes: vec![b'd'; len], drops: drops.clone() });
        let mut end = server(Config::new(Role::Server), &[(4, 2_000)], &Frame::get(1));
        let key = end.key(1);
        end.connection.send_response(key, status("200"), false).unwrap();
        for len in [100, 1_000, 100_000, 100] {
            end.connection.send_data(key, chunk(len), false).unwrap();
        }
        if is_aborted {
            end.connection.abort(ErrorCode::NO_ERROR, b"");
        }
        end.connection.handle_disconnect();
        let mut spent = Vec::new();
        end.connection.take_spent(&mut spent);
        assert_eq!((spent.len(), drops.load(Ordering::Relaxed)), (4, 0));
        let memory = end.connection.memory();
        assert_eq!((memory.output, memory.queued, end.connection.wants_write()), (0, 0, false));
    }
}

#[test]
fn a_stream_that_was_ended_is_not_writable() {
    for ends in [false, true] {
        let mut config = Config::new(Role::Server);
        config.stream_queue = 10_000;
        let mut end = server(config, &[(4, 20_000)], &Frame::get(1));
        let key = end.key(1);
        end.connection.send_response(key, status("200"), false).unwrap();
        end.connection.send_data(key, vec![b'd'; 40_000], false).unwrap();
        assert_eq!(end.connection.send_capacity(key), 0);
        if ends {
            end.connection.send_data(key, "", true).unwrap();
        }
        end.drain();
        end.receive(&Frame::window_update(1, 15_000).to_bytes());
        let event = end.connection.poll_event();
        assert_eq!(matches!(event, Some(Event::Writable { .. })), !ends, "{event:?}");
    }
}

#[test]
fn the_end_of_a_request_is_reported_when_it_is_in_the_output() {
    for (waits_to_open, len, has_trailers) in [
        (false, 0, false),
        (false, 0, true),
        (false, 30_000, false),
        (false, 30_000, true),
        (true, 0, false),
        (true, 0, true),
        (true, 30_000, false),
        (true, 30_000, true),
    ] {
        let context = format!("{waits_to_open} {len} {has_trailers}");
        let mut end = client(&[(3, u32::from(!waits_to_open)), (4, 20_000)]);
        let key = end.connection.send_request(fields(POST), false).unwrap();
        end.connection.send_data(key, vec![b'd'; len], !has_trailers).unwrap();
        if has_trailers {
            end.connection.send_trailers(key, fields(&[("a", "b")])).unwrap();
        }
        end.drain();
        if waits_to_open {
            assert!(end.connection.poll_event().is_none(), "{context}");
            end.receive(&Frame::settings(&[(3, 1)]).to_bytes());
        }
        if len > 0 {
            end.receive(&Frame::window_update(1, 9_999).to_bytes());
            assert!(end.connection.poll_event().is_none(), "{context}");
            end.receive(&Frame::window_update(1, 1).to_bytes());
        }
        let event = end.connection.poll_event();
        assert!(matches!(event, Some(Event::SendEnded { stream }) if stream == key), "{context}: {event:?}");
        assert!(end.connection.poll_event().is_none(), "{context}");
        assert!(end.sent().iter().any(|frame| frame.has(flag::END_STREAM)), "{context}");
    }
}

#[test]
fn fields_that_the_peer_would_refuse_are_not_sent() {
    // RFC 9113 §8.2.1, §8.2.2, §8.3; RFC 8441 §4.
    let get = |more: (&'static str, &'static str)| {
        vec![(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/"), more]
    };
    let requests = [
        get(("X-Upper", "1")),
        get(("x", "a\r\nb")),
        get(("x", " a")),
        get(("connection", "close")),
        get(("te", "gzip")),
        get((":status", "200")),
        get(("host", "other")),
        vec![(":method", "GET"), (":path", "/")],
        vec![(":method", "GET"), (":scheme", "https"), (":authority", "a:b"), (":path", "/")],
        vec![(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "x")],
        vec![(":method", "CONNECT"), (":authority", "a")],
    ];
    let send = |check: bool, request: &[(&str, &str)]| {
        let mut config = Config::new(Role::Client);
        config.check_outgoing = check;
        let mut end = End::with(Role::Client, config);
        end.receive(&join(&[Frame::settings(&[(8, 1)]), Frame::settings_ack()]));
        end.connection.send_request(fields(request), true).map(drop)
    };
    let invalid = Err(Error::Misuse(Misuse::MessageInvalid));
    for request in &requests {
        assert_eq!(send(true, request), invalid, "{request:?}");
        assert_eq!(send(false, request), Ok(()), "{request:?}");
    }
    for request in [get(("te", "trailers")), get(("x", "\u{e4}"))] {
        assert_eq!(send(true, &request), Ok(()), "{request:?}");
    }
    let mut end = server(Config::new(Role::Server), &[], &Frame::get(1));
    let key = end.key(1);
    for more in [("te", "trailers"), ("upgrade", "x"), (":path", "/"), ("A", "b")] {
        let response = [(":status", "200"), more];
        assert_eq!(end.connection.send_response(key, fields(&response), false), invalid, "{more:?}");
    }
    end.connection.send_response(key, status("200"), false).unwrap();
    for trailer in [("A", "b"), ("connection", "close"), (":status", "200")] {
        assert_eq!(end.connection.send_trailers(key, fields(&[trailer])), invalid, "{trailer:?}");
    }
    end.connection.send_trailers(key, fields(&[("a", "b")])).unwrap();
}

#[test]
fn the_table_of_the_encoder_is_configured() {
    use wireloom_http2::hpack::IndexPolicy;
    let blocks = |table_size: u32, policy: IndexPolicy| {
        let mut config = Config::new(Role::Client);
        (config.encoder_table_size, config.index_policy) = (table_size, policy);
        let mut end = End::with(Role::Client, config);
        end.receive(&join(&[Frame::settings(&[]), Frame::settings_ack()]));
        (0..2).for_each(|_| _ = end.request());
        frames(&end, kind::HEADERS).into_iter().map(|frame| frame.payload).collect::<Vec<_>>()
    };
    let [first, second] = &blocks(4_096, IndexPolicy::Repeating)[..] else { panic!() };
    assert!(second.len() < first.len());
    let [first, second] = &blocks(4_096, IndexPolicy::Static)[..] else { panic!() };
    assert_eq!(first, second);
    // RFC 7541 §4.2: the first block announces a smaller table.
    let [first, second] = &blocks(0, IndexPolicy::Repeating)[..] else { panic!() };
    assert_eq!((first[0], &first[1..]), (0x20, &second[..]));
}

#[test]
fn nothing_is_sent_after_the_peer_has_reset_the_stream() {
    // RFC 9113 §6.4
    let mut end = server(Config::new(Role::Server), &[(4, 10)], &Frame::get(1));
    let key = end.key(1);
    end.connection.send_response(key, status("200"), false).unwrap();
    end.connection.send_data(key, vec![b'd'; 100], false).unwrap();
    end.drain();
    let before = end.sent().len();
    end.receive(&join(&[Frame::rst_stream(1, code::CANCEL), Frame::window_update(1, 1_000)]));
    assert_eq!(end.connection.send_data(key, "late", true), Err(Misuse::StreamGone.into()));
    end.drain();
    assert_eq!(end.sent().len(), before);
}

#[test]
fn a_client_promises_nothing() {
    // RFC 9113 §8.4.1
    let mut end = client(&[]);
    let key = end.connection.send_request(fields(GET), false).unwrap();
    assert_eq!(end.connection.push_promise(key, fields(GET)), Err(Misuse::NotServer.into()));
}

#[test]
fn a_promised_stream_is_not_for_messages_of_the_client() {
    // RFC 9113 §5.1 (reserved (local)): a connection error, PROTOCOL_ERROR, for all but RST_STREAM, PRIORITY and WINDOW_UPDATE.
    for (frame, fails) in [
        (Frame::headers(2, GET), true),
        (Frame::data(2, "x"), true),
        (Frame::rst_stream(2, code::CANCEL), false),
        (Frame::priority(2, 1, 1), false),
        (Frame::window_update(2, 1), false),
    ] {
        let mut end = server(Config::new(Role::Server), &[], &Frame::get(1));
        end.connection.push_promise(end.key(1), fields(GET)).unwrap();
        end.drain();
        end.receive(&frame.to_bytes());
        let error = end.error().and_then(|error| error.code());
        assert_eq!(error, fails.then_some(ErrorCode::PROTOCOL_ERROR), "{frame:?}");
    }
}

#[test]
fn a_response_is_complete_although_the_rest_of_the_request_is_not_wanted() {
    // RFC 9113 §8.1: RST_STREAM with NO_ERROR behind a response does not discard it.
    let mut end = client(&[]);
    let key = end.connection.send_request(fields(POST), false).unwrap();
    end.drain();
    let input = join(&[
        Frame::headers(key.id(), &[(":status", "200")]),
        Frame::data(key.id(), "content").end_stream(),
        Frame::rst_stream(key.id(), code::NO_ERROR),
    ]);
    let (mut at, mut seen) = (0, Vec::new());
    while let (taken, Some(event)) = end.connection.handle_input(Duration::ZERO, &input[at..]).unwrap() {
        at += taken;
        seen.push(match event {
            Event::Response { .. } => "response",
            Event::Data { data: b"content", end_stream: true, .. } => "all content",
            Event::Reset { .. } => "reset",
            _ => "another",
        });
    }
    assert_eq!(seen, ["response", "all content", "reset"]);
}

#[test]
fn queued_chunks_count_with_their_entries() {
    // 40 bytes and a reference count for each, so that short chunks take several times their length.
    for len in [1, 16, 100, 1_000] {
        let mut config = Config::new(Role::Server);
        (config.memory_max, config.stream_queue) = (4 * 100_000, 1 << 20);
        let mut end = server(config, &[(4, 0)], &Frame::get(1));
        let key = end.key(1);
        end.connection.send_response(key, status("200"), false).unwrap();
        let mut chunks = 0;
        while end.connection.send_capacity(key) > 0 {
            end.connection.send_data(key, vec![b'd'; len], false).unwrap();
            chunks += 1;
        }
        let memory = chunks * (64 + len as u64);
        assert!(memory < 100_000, "{chunks} chunks of {len}");
        assert_eq!(end.connection.memory().queued, memory);
        end.connection.reset(key, ErrorCode::CANCEL).unwrap();
        assert_eq!(end.connection.memory().queued, 0);
    }
}
