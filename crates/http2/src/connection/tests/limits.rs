//! Bounds on memory, output and floods.

use super::*;

#[test]
fn resets_after_complete_responses_are_not_limited() {
    // Go, Envoy and browsers cancel a stream whose response they have read to the end.
    for ended in [true, false] {
        let (mut client, mut server) = settled();
        let rare = crate::limits::Rate::new(20, 1);
        (server.config.limits.late_resets, server.config.limits.peer_resets) = (rare, rare);
        for _ in 0..500 {
            let here = client.send_request(GET, ended).unwrap();
            settle(&mut client, &mut server);
            let there = server.find(StreamId::new(here.id()).unwrap()).unwrap();
            server.send_response(there, OK, true).unwrap();
            settle(&mut client, &mut server);
            let id = here.id().to_be_bytes();
            let reset = [0, 0, 4, 3, 0, id[0], id[1], id[2], id[3], 0, 0, 0, 8];
            server.handle_input(Duration::ZERO, &reset).unwrap();
            let _ = client.reset(here, ErrorCode::CANCEL);
            drain(&mut client);
        }
        assert_eq!(server.ended(), None);
    }
}

#[test]
fn a_client_reads_regardless_of_its_own_output() {
    let (mut client, mut server) = settled();
    let value = vec![b'v'; 16_000];
    let fields = || GET.into_iter().chain([Field::new(b"x-long", &value)]);
    for _ in 0..250 {
        client.send_request(fields(), true).unwrap();
    }
    assert!(client.memory().output > 3 << 20);
    assert!(client.wants_read(), "a server that waits for the client to read would wait forever");
    let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let (taken, _) = client.handle_input(Duration::ZERO, &ping).unwrap();
    assert_eq!(taken, ping.len());
    // The server answers what it reads, and stops reading while its own output is long.
    for _ in 0..10 {
        let up = drain(&mut client);
        let mut at = 0;
        while let Ok((taken, Some(event))) = server.handle_input(Duration::ZERO, &up[at..]) {
            at += taken;
            if let Event::Request { stream, .. } = event {
                let status = Field::known(Token::Status, b"200");
                server.send_response(stream, [status, Field::new(b"x-long", &value)], true).unwrap();
            }
        }
    }
    assert!(!server.wants_read());
    assert!(server.memory().output <= (server.config.output_max + 32_000) as u64);
}

#[test]
fn the_memory_of_one_connection_is_bounded() {
    let mut config = Config::new(Role::Server);
    config.auto_release = false;
    let (memory_max, output_max) = (config.memory_max, config.output_max as u64);
    let mut client_config = Config::new(Role::Client);
    client_config.memory_max = 1 << 40;
    let (mut client, mut server) = ends_with(client_config, config);
    settle(&mut client, &mut server);
    // 256 uploads that no one reads, and 256 downloads whose client grants no window.
    let keys: Vec<_> = (0..256).map(|_| client.send_request(GET, false).unwrap()).collect();
    for &key in &keys {
        client.send_data(key, vec![1; 1 << 20], false).unwrap();
    }
    settle(&mut client, &mut server);
    let there: Vec<_> =
        keys.iter().map(|key| server.find(StreamId::new(key.id()).unwrap()).unwrap()).collect();
    for &key in &there {
        server.send_response(key, OK, false).unwrap();
        for _ in 0..1_000 {
            let len = server.send_capacity(key).min(1 << 16);
            if len == 0 {
                break;
            }
            server.send_data(key, vec![1; len], false).unwrap();
        }
    }
    let memory = server.memory();
    assert!(memory.held > memory_max / 2, "{memory:?}");
    assert!(memory.held <= memory_max - memory_max / 4 - output_max, "{memory:?}");
    assert!(memory.queued <= memory_max / 4 + 256 * 1024, "{memory:?}");
    assert!(memory.total() <= memory_max, "{memory:?}");
    // Memory that the caller reports counts towards the same limit, and new requests are refused above it.
    server.set_caller_memory(memory_max + 1);
    let (events, _) = {
        client.reset(keys[0], ErrorCode::CANCEL).unwrap();
        client.send_request(GET, true).unwrap();
        settle(&mut client, &mut server)
    };
    assert!(events.contains(&"refused 513".into()), "{:?}", events.last());
    server.set_caller_memory(0);
    client.reset(keys[1], ErrorCode::CANCEL).unwrap();
    client.send_request(GET, true).unwrap();
    let (_, at_server) = settle(&mut client, &mut server);
    assert!(at_server.contains(&"request 515 4 true".into()), "{:?}", at_server.last());
}

#[test]
fn input_is_not_read_while_too_many_answers_are_buffered() {
    let (mut client, mut server) = settled();
    let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let mut config = Config::new(Role::Server);
    config.limits.answers_len_max = 16 * 17;
    server.config = config;
    let bytes = ping.repeat(40);
    let (taken, event) = server.handle_input(Duration::ZERO, &bytes).unwrap();
    assert!(event.is_none());
    assert_eq!(taken, 17 * 17);
    assert!(!server.wants_read());
    let down = drain(&mut server);
    assert_eq!(down.len(), 17 * 17);
    assert!(server.wants_read());
    let (taken, _) = server.handle_input(Duration::ZERO, &bytes[taken..]).unwrap();
    assert_eq!(taken, 17 * 17);
    assert!(client.handle_input(Duration::ZERO, &down).unwrap().1.is_none());
}

#[test]
fn unread_answers_of_every_kind_stop_reading() {
    // CVE-2019-9512, 9514, 9515: SETTINGS, PING, errors of streams that are open and that are not, requests that are too large.
    let malformed = |stream| Frame::headers(stream, &[(":method", "GET")]);
    let open = [Frame::get(1), Frame::get(3), Frame::get(5)];
    let floods = [
        vec![Frame::settings(&[]); 3],
        vec![Frame::ping([0; 8]); 3],
        [&open[..], &[1, 3, 5].map(|stream| Frame::window_update(stream, 0))].concat(),
        [1, 3, 5].map(malformed).to_vec(),
        [1, 3, 5].map(|stream| Frame::headers(stream, &[("x-long", &"x".repeat(2_000))])).to_vec(),
    ];
    for flood in floods {
        let mut config = Config::new(Role::Server);
        config.limits.answers_len_max = 16;
        config.settings.max_header_list_size = 1_000;
        let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
        settle(&mut client, &mut server);
        let mut bytes = &join(&flood)[..];
        while let (taken @ 1.., _) = server.handle_input(Duration::ZERO, bytes).unwrap() {
            bytes = &bytes[taken..];
        }
        assert!(!server.wants_read(), "{flood:?}");
        assert!(!drain(&mut server).is_empty());
        assert!(server.wants_read());
    }
}

#[test]
fn a_call_decodes_fields_of_promises_up_to_a_length() {
    let mut config = Config::new(Role::Client);
    config.settings.enable_push = true;
    config.decoded_len_max = 0;
    let (mut client, mut server) = ends_with(config, Config::new(Role::Server));
    settle(&mut client, &mut server);
    ask(&mut client, &mut server);
    let promises: Vec<_> =
        (1..=8).map(|n| Frame::push_promise(1, 2 * n, wireloom_testing::http2::GET)).collect();
    let bytes = join(&promises);
    let mut rest = &bytes[..];
    for n in 1..=8 {
        let (taken, event) = client.handle_input(Duration::ZERO, rest).unwrap();
        assert!(matches!(event, Some(Event::Promise { .. })), "{n}: {event:?}");
        rest = &rest[taken..];
        assert!(matches!(client.handle_input(Duration::ZERO, rest), Ok((0, None))), "{n}");
        assert!(client.take_decoded_len() > 0);
    }
}

// The fields of a stream that is refused are decoded too, and no event reports them.
#[test]
fn a_call_decodes_fields_up_to_a_length() {
    let mut config = Config::new(Role::Server);
    config.settings.max_concurrent_streams = 1;
    let value = "v".repeat(1_000);
    let frames = (0..8).map(|n| Frame::headers(2 * n + 1, &[("x-long", &value)])).collect::<Vec<_>>();
    let bytes = join(&frames);
    let list_size = {
        let (_, mut server) = settled();
        server.handle_input(Duration::ZERO, &frames[0].to_bytes()).unwrap();
        server.fields().list_size()
    };
    for (len, returns) in
        [(0, 7), (list_size - 1, 7), (list_size, 3), (2 * list_size - 1, 3), (8 * list_size, 0)]
    {
        config.decoded_len_max = len;
        let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
        settle(&mut client, &mut server);
        let (mut rest, mut early, mut decoded) = (&bytes[..], 0, 0);
        while !rest.is_empty() {
            let (taken, event) = server.handle_input(Duration::ZERO, rest).unwrap();
            rest = &rest[taken..];
            if event.is_none() && !rest.is_empty() {
                early += 1;
                decoded += server.take_decoded_len();
            }
        }
        assert_eq!(early, returns, "{len}");
        assert_eq!(decoded + server.take_decoded_len(), 8 * list_size);
    }
}

#[test]
fn memory_that_the_caller_reports_counts_up_to_its_bound() {
    for (bytes, is_taken) in [(0, true), (999_999, true), (1_000_000, true), (1_000_001, false)] {
        let mut config = Config::new(Role::Server);
        config.memory_max = 1_000_000;
        let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
        server.set_caller_memory(bytes);
        assert_eq!(server.memory().caller, bytes);
        client.send_request(GET, true).unwrap();
        let (at_client, at_server) = settle(&mut client, &mut server);
        assert_eq!(at_server.contains(&"request 1 4 true".into()), is_taken, "{bytes}");
        assert_eq!(at_client.contains(&"refused 1".into()), !is_taken, "{bytes}");
    }
    // DATA that the caller holds and the memory that it reports share the window of the connection.
    let mut config = Config::new(Role::Server);
    (config.memory_max, config.output_max, config.auto_release) = (1 << 20, 1024, false);
    config.connection_window = 512 << 10;
    let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
    server.set_caller_memory(256 << 10);
    let upload = client.send_request(GET, false).unwrap();
    client.send_data(upload, vec![7; 1 << 20], false).unwrap();
    settle(&mut client, &mut server);
    let granted = server.memory().held + server.streams.recv_window() as u64;
    assert_eq!(granted, 512 << 10, "the first window, and no more");
}

#[test]
fn an_idle_connection_frees_its_memory_and_continues() {
    let mut config = Config::new(Role::Server);
    config.settings.max_concurrent_streams = 1;
    let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
    settle(&mut client, &mut server);
    // Requests that wait, queued content, output, an incomplete frame and a reset leave memory behind.
    let first = client.send_request(GET, false).unwrap();
    let second = client.send_request(GET, true).unwrap();
    assert_eq!((first.slot(), second.slot()), (0, 1));
    client.send_data(first, vec![7; 1 << 20], false).unwrap();
    client.send_ping(Duration::ZERO, [7; 8]).unwrap();
    let bytes = drain(&mut client);
    bytes.chunks(7).for_each(|bytes| drop(feed(&mut server, bytes)));
    assert!(server.reader.capacity() > 0);
    client.shrink();
    assert_eq!(client.streams(), 2, "what is in use stays");
    client.reset(first, ErrorCode::CANCEL).unwrap();
    client.reset(second, ErrorCode::CANCEL).unwrap();
    settle(&mut client, &mut server);
    for end in [&mut client, &mut server] {
        end.shrink();
        assert_eq!((end.out.capacity(), end.reader.capacity(), end.streams.capacity()), (0, 0, 0));
        assert_eq!((end.fields().len(), end.pending.capacity()), (0, 0));
        assert_eq!(end.control.capacity(), 0);
    }
    let (_, there) = ask(&mut client, &mut server);
    server.send_response(there, OK, true).unwrap();
    assert_eq!(settle(&mut client, &mut server).0, ["response 5 200 true"]);
}

#[test]
fn a_message_that_no_event_reports_leaves_no_memory() {
    let long = "v".repeat(50_000);
    let head =
        [(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/"), ("x-long", &*long)];
    let no_path = [(":method", "GET"), (":scheme", "https"), ("x-long", &*long)];
    // The list is too large, malformed, on a stream that has ended, and not decoded to its end.
    let refused = [
        vec![Frame::headers(1, &[&head[..], &head[4..]].concat())],
        vec![Frame::headers(1, &no_path)],
        vec![Frame::get(3), Frame::headers(1, &head)],
        vec![Frame::headers(1, &head).payload([&Frame::headers(1, &head).payload[..], &[0x80]].concat())],
    ];
    let settled = || {
        let mut config = Config::new(Role::Server);
        config.settings.max_frame_size = 1 << 20;
        let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
        settle(&mut client, &mut server);
        server
    };
    for frames in refused {
        let mut server = settled();
        let mut bytes = &join(&frames)[..];
        while let Ok((taken @ 1.., _)) = server.handle_input(Duration::ZERO, bytes) {
            bytes = &bytes[taken..];
        }
        assert!(server.contexts.capacity() <= crate::field::ARENA_KEPT, "{}", server.contexts.capacity());
    }
    // The fields of a pending event stay for the caller.
    let mut server = settled();
    feed(&mut server, &Frame::headers(1, &head).to_bytes());
    assert_eq!(server.fields().len(), 5);
}

#[test]
fn a_request_that_was_refused_for_its_fields_has_ended() {
    use crate::stream::Closed;
    for (end_stream, is_ended) in [(true, true), (false, false)] {
        let mut config = Config::new(Role::Server);
        config.settings.max_header_list_size = 200;
        let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
        // The client has not read the limit yet.
        let value = [b'x'; 300];
        let fields = GET.into_iter().chain([Field::new(b"x", &value)]);
        client.send_request(fields, end_stream).unwrap();
        let up = drain(&mut client);
        feed(&mut server, &up);
        let closed = server.streams.closed(StreamId::FIRST_CLIENT);
        assert_eq!(closed == Closed::Ended, is_ended, "{closed:?}");
    }
}
