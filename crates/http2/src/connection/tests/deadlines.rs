//! Timeouts: stalls, SETTINGS, frames and field blocks that never end.

use super::*;

#[test]
fn a_stalled_stream_is_reset_and_the_connection_continues() {
    let mut config = Config::new(Role::Client);
    config.settings.initial_window_size = 10;
    config.auto_release = false;
    config.stream_window_max = 10;
    let (mut client, mut server) = ends_with(config, Config::new(Role::Server));
    settle(&mut client, &mut server);
    let (_, there) = ask(&mut client, &mut server);
    server.send_response(there, OK, false).unwrap();
    server.send_data(there, vec![1; 100], true).unwrap();
    settle(&mut client, &mut server);
    let deadline = server.poll_timeout().unwrap();
    assert_eq!(deadline, Limits::DEFAULT.stall_timeout);
    server.handle_timeout(deadline - Duration::from_millis(1)).unwrap();
    assert!(server.contains(there));
    server.handle_timeout(deadline).unwrap();
    assert!(!server.contains(there));
    let Some(Event::Reset { code, error, .. }) = server.poll_event() else { panic!() };
    assert_eq!(code, ErrorCode::ENHANCE_YOUR_CALM);
    assert!(matches!(error, Some(Error::Limit { exceeded: crate::error::Exceeded::Stalled, .. })));
}

#[test]
fn small_window_updates_on_two_streams_do_not_evade_the_stall_timeout() {
    let mut config = Config::new(Role::Client);
    config.settings.initial_window_size = 10;
    config.stream_window_max = 10;
    config.auto_release = false;
    let (mut client, mut server) = ends_with(config, Config::new(Role::Server));
    settle(&mut client, &mut server);
    let streams = [ask(&mut client, &mut server), ask(&mut client, &mut server)];
    for (_, there) in streams {
        server.send_response(there, OK, false).unwrap();
        server.send_data(there, vec![1; 60_000], true).unwrap();
    }
    settle(&mut client, &mut server);
    let timeout = Limits::DEFAULT.stall_timeout;
    let mut now = Duration::ZERO;
    // One byte of window for one stream and then the other, all the time.
    for turn in 0.. {
        now += Duration::from_secs(7);
        server.handle_timeout(now).unwrap();
        while server.poll_event().is_some() {}
        if !streams.iter().any(|&(_, there)| server.contains(there)) {
            break;
        }
        assert!(now < timeout + timeout / 16 + Duration::from_secs(14), "not reset at {now:?}");
        let id = streams[turn % 2].0.id() as u8;
        let update = [0, 0, 4, 8, 0, 0, 0, 0, id, 0, 0, 0, 1];
        let (taken, event) = server.handle_input(now, &update).unwrap();
        assert!(taken == update.len() && event.is_none());
        drain(&mut server);
    }
    assert!(now >= timeout);
}

#[test]
fn settings_that_are_not_acknowledged_end_the_connection() {
    // RFC 9113 §6.5.3: a connection error, SETTINGS_TIMEOUT.
    let mut server = Connection::new(Role::Server, Config::new(Role::Server)).unwrap();
    assert_eq!(server.poll_timeout(), None, "the peer cannot acknowledge what it has not received");
    // WINDOW_UPDATE of 13 bytes follows SETTINGS, of which the transport does not accept the last byte.
    let mut slices = [&[][..]; 4];
    let start = Duration::from_secs(1_000_003);
    let filled = server.poll_transmit(start, &mut slices);
    let len: usize = slices[..filled].iter().map(|slice| slice.len()).sum();
    server.transmitted(start, len - 14);
    server.handle_timeout(start + 2 * Limits::DEFAULT.settings_timeout).unwrap();
    let start = start + Duration::from_secs(3_600);
    server.transmitted(start, 14);
    let deadline = server.poll_timeout().unwrap();
    assert_eq!(deadline, start + Limits::DEFAULT.settings_timeout);
    server.handle_timeout(deadline - Duration::from_millis(1)).unwrap();
    let error = server.handle_timeout(deadline).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::SETTINGS_TIMEOUT));
    assert_eq!(server.ended(), Some(Ended::Failed(error)));
}

// The caller may look at them after a deadline: no input was handled.
#[test]
fn a_deadline_that_ends_the_connection_keeps_the_fields_of_the_last_message() {
    let (mut client, mut server) = ends();
    let value = alloc::vec![b'v'; 2 * crate::field::ARENA_KEPT];
    client.send_request([&GET[..], &[Field::new(b"long", &value)]].concat(), true).unwrap();
    // The client acknowledges nothing.
    drain(&mut server);
    feed(&mut server, &drain(&mut client));
    assert_eq!(server.fields().len(), GET.len() + 1);
    let deadline = server.poll_timeout().unwrap();
    server.handle_timeout(deadline).unwrap_err();
    assert_eq!(server.fields().len(), GET.len() + 1);
}

#[test]
fn a_frame_or_field_block_that_never_ends_has_a_deadline() {
    let preface = [&PREFACE[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    // HEADERS without END_HEADERS, the beginning of HEADERS, and the beginning of a header.
    let beginnings: [&[u8]; 3] =
        [&[0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82], &[0, 0, 9, 1, 4, 0, 0, 0, 1, 0x82], &[0, 0]];
    let timeout = Limits::DEFAULT.field_block_timeout;
    for beginning in beginnings {
        for trickles in [false, true] {
            let mut server = Connection::new(Role::Server, Config::new(Role::Server)).unwrap();
            let start = Duration::from_secs(100);
            server.handle_input(start, &preface).unwrap();
            assert!(server.handle_input(start, &[0, 0, 0, 4, 1, 0, 0, 0, 0]).unwrap().1.is_some());
            drain(&mut server);
            server.handle_timeout(start).unwrap();
            assert_eq!(server.poll_timeout(), None);
            let (taken, event) = server.handle_input(start, beginning).unwrap();
            assert!(taken == beginning.len() && event.is_none());
            if trickles && beginning.len() != 2 {
                // CONTINUATION without END_HEADERS, or one byte more.
                let more: &[u8] =
                    if beginning[2] == 1 { &[0, 0, 1, 9, 0, 0, 0, 0, 1, 0x84] } else { &[0x84] };
                server.handle_input(start + timeout / 2, more).unwrap();
            }
            assert_eq!(server.poll_timeout(), Some(start + timeout));
            // Output does not extend the deadline.
            server.send_ping(start + timeout / 2, *b"01234567").unwrap();
            drain(&mut server);
            server.handle_timeout(start + timeout / 2).unwrap();
            assert_eq!(server.poll_timeout(), Some(start + timeout));
            let error = server.handle_timeout(start + timeout).unwrap_err();
            assert_eq!(error.code(), Some(ErrorCode::ENHANCE_YOUR_CALM));
        }
    }
}

#[test]
fn a_field_block_that_ends_has_no_deadline() {
    let (_, mut server) = settled();
    let now = Duration::from_secs(9);
    for (bytes, deadline) in [
        (&[0, 0, 3, 1, 0, 0, 0, 0, 1, 0x82, 0x86, 0x84][..], true),
        (&[0, 0, 1, 9, 4, 0, 0, 0, 1, 0x41], false),
    ] {
        // The last field is cut: a connection error ends the test's second step, after the block is complete.
        let result = server.handle_input(now, bytes).map(|_| ());
        assert_eq!(result.is_ok(), deadline);
        assert_eq!(server.poll_timeout().is_some_and(|at| at > now), deadline);
    }
}

#[test]
fn a_slow_field_block_has_the_deadline_of_its_first_frame() {
    let (_, mut server) = settled();
    let begin = Frame::get(1).no_flag(4).to_bytes();
    server.handle_input(Duration::ZERO, &begin).unwrap();
    let block_len = server.memory().input;
    assert_eq!(block_len, begin.len() as u64 - 9);
    // A part of a frame counts as well.
    server.handle_input(Duration::ZERO, &[0, 0, 1, 9]).unwrap();
    assert_eq!(server.memory().input, block_len + 4);
    server.handle_input(Duration::ZERO, &[0, 0, 0, 0, 1, b'x']).unwrap();
    let deadline = server.poll_timeout().unwrap();
    let mut now = Duration::from_secs(1);
    while now < deadline {
        // Each frame arrives in two parts.
        let frame = Frame::continuation(1, "x").no_flag(4).to_bytes();
        for piece in frame.chunks(5) {
            server.handle_input(now, piece).unwrap();
        }
        now += deadline / 4;
    }
    server.handle_timeout(now).unwrap_err();
    assert!(server.ended().is_some());
}

// The window that the peer has granted lies unread.
#[test]
fn closed_windows_do_not_stall_while_nothing_is_read() {
    const TIMEOUT: Duration = Limits::DEFAULT.stall_timeout;
    // The window of the stream, or that of the connection.
    for (window, len) in [(10, 100), (1 << 20, 100_000)] {
        let mut config = Config::new(Role::Client);
        config.settings.initial_window_size = window;
        config.stream_window_max = window;
        config.auto_release = false;
        let (mut client, mut server) = ends_with(config, Config::new(Role::Server));
        // All but WINDOW_UPDATE, so that the connection has a window of 65,535 bytes.
        let opening = drain(&mut client);
        feed(&mut server, &opening[..opening.len() - 13]);
        settle(&mut client, &mut server);
        let (_, there) = ask(&mut client, &mut server);
        server.send_response(there, OK, false).unwrap();
        server.send_data(there, vec![1; len], true).unwrap();
        drain(&mut server);
        assert_eq!(server.poll_timeout(), Some(TIMEOUT), "{window}");
        // A third of the timeout passes before, twice as much and more while nothing is read.
        server.set_reading(TIMEOUT / 3, false);
        assert_eq!(server.poll_timeout(), None);
        server.handle_timeout(TIMEOUT * 2).unwrap();
        assert!(server.contains(there));
        server.set_reading(TIMEOUT * 3, true);
        let left = TIMEOUT - TIMEOUT / 3;
        assert_eq!(server.poll_timeout(), Some(TIMEOUT * 3 + left));
        server.handle_timeout(TIMEOUT * 3 + left - Duration::from_millis(1)).unwrap();
        assert!(server.contains(there));
        let stalled = server.handle_timeout(TIMEOUT * 3 + left).is_err() || !server.contains(there);
        assert!(stalled, "{window}");
    }
}
