//! Windows of streams and of the connection.

use super::*;
use crate::frame::{FrameHeader, Kind};

#[test]
fn large_content_passes_the_windows_and_grows_them() {
    let (mut client, mut server) = settled();
    let (_, there) = ask(&mut client, &mut server);
    server.send_response(there, OK, false).unwrap();
    server.send_data(there, vec![7; 10 << 20], true).unwrap();
    let (events, _) = settle(&mut client, &mut server);
    let total: usize = events
        .iter()
        .filter_map(|event| event.strip_prefix("data 1 ")?.split(' ').next()?.parse::<usize>().ok())
        .sum();
    assert_eq!(total, 10 << 20);
    assert_eq!((client.streams(), server.streams()), (0, 0));
    assert!(client.streams.recv_target() > 256 * 1024);
}

#[test]
fn a_slow_reader_of_one_stream_stalls_no_other() {
    let mut config = Config::new(Role::Client);
    config.auto_release = false;
    let (mut client, mut server) = ends_with(config, Config::new(Role::Server));
    settle(&mut client, &mut server);
    let keys: Vec<_> = (0..8).map(|_| ask(&mut client, &mut server)).collect();
    for &(_, there) in &keys {
        server.send_response(there, OK, false).unwrap();
        server.send_data(there, vec![1; 256 * 1024], true).unwrap();
    }
    settle(&mut client, &mut server);
    // Twice the window of the connection is held, and nothing was released.
    assert_eq!(client.streams(), 0);
    assert_eq!(client.streams.held(), 0);
    let (here, there) = ask(&mut client, &mut server);
    server.send_response(there, OK, false).unwrap();
    server.send_data(there, vec![1; 400_000], true).unwrap();
    settle(&mut client, &mut server);
    assert_eq!(client.streams.held(), 256 * 1024);
    client.release_capacity(here, 200_000).unwrap();
    assert_eq!(client.release_capacity(here, 200_000), Err(Error::Misuse(Misuse::ReleaseTooMuch)));
    let (events, _) = settle(&mut client, &mut server);
    assert!(events.last().unwrap().ends_with("true"), "{events:?}");
}

#[test]
fn window_is_granted_once_with_and_without_an_acknowledgement() {
    // RFC 9113 §6.9.2: the peer adds the difference of the settings to every window.
    for initial in [1 << 20, i32::MAX as u32] {
        let mut config = Config::new(Role::Server);
        config.settings.initial_window_size = initial;
        config.connection_window = i32::MAX as u32;
        config.memory_max = 8 << 30;
        let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
        // The client sends before it has read the server's SETTINGS.
        let here = client.send_request(GET, false).unwrap();
        client.send_data(here, vec![1; 60_000], false).unwrap();
        let up = drain(&mut client);
        feed(&mut server, &up);
        settle(&mut client, &mut server);
        assert_eq!((client.ended(), server.ended()), (None, None));
        let slot = client.streams.slot(here).unwrap();
        let (window, _) = client.streams.windows(slot);
        assert!(window <= i64::from(initial), "{window} of {initial}");
        let more = client.send_data(here, vec![1; 100_000], true);
        assert_eq!(more, Ok(()));
        settle(&mut client, &mut server);
        assert_eq!((client.ended(), server.ended()), (None, None));
    }
}

#[test]
fn a_lowered_initial_window_is_not_grown_again() {
    let (mut client, mut server) = settled();
    let upload = |client: &mut Connection, server: &mut Connection| {
        let here = client.send_request(GET, false).unwrap();
        client.send_data(here, vec![7; 4 << 20], true).unwrap();
        settle(client, server);
        let there = server.find(StreamId::new(here.id()).unwrap()).unwrap();
        server.send_response(there, OK, true).unwrap();
        settle(client, server);
    };
    upload(&mut client, &mut server);
    assert!(server.streams.recv_target() > 256 * 1024);
    let settings = Settings { initial_window_size: 20_000, ..server.config.settings };
    server.update_settings(settings).unwrap();
    settle(&mut client, &mut server);
    upload(&mut client, &mut server);
    assert_eq!(server.streams.recv_target(), 20_000);
    server.update_settings(Settings { initial_window_size: 60_000, ..settings }).unwrap();
    settle(&mut client, &mut server);
    assert_eq!(server.streams.recv_target(), 60_000);
    // The pause between two probes has passed.
    server.handle_timeout(Duration::from_secs(1)).unwrap();
    upload(&mut client, &mut server);
    assert!(server.streams.recv_target() > 60_000);
}

#[test]
fn the_window_of_the_connection_is_exact_to_the_byte() {
    // RFC 9113 §6.9.1: a connection error, FLOW_CONTROL_ERROR, for whole frames and for frames that arrive in parts.
    for (last, fits) in [(16_382, true), (16_383, true), (16_384, false)] {
        for cut in [usize::MAX, 5_000] {
            let mut config = Config::new(Role::Server);
            config.auto_release = false;
            // Nothing is granted beyond the first window of the connection, and streams have more.
            config.memory_max = 0;
            let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
            settle(&mut client, &mut server);
            client.send_request(GET, false).unwrap();
            settle(&mut client, &mut server);
            let lens = [16_384, 16_384, 16_384, last];
            let mut failed = None;
            for len in lens {
                let mut frame = vec![0, (len >> 8) as u8, len as u8, 0, 0, 0, 0, 0, 1];
                frame.resize(9 + len, 7);
                for part in frame.chunks(cut) {
                    let mut at = 0;
                    while failed.is_none() && at < part.len() {
                        match server.handle_input(Duration::ZERO, &part[at..]) {
                            Ok((taken, _)) => at += taken,
                            Err(error) => failed = Some(error.code()),
                        }
                    }
                }
            }
            let expected = (!fits).then_some(Some(ErrorCode::FLOW_CONTROL_ERROR));
            assert_eq!(failed, expected, "{last} cut at {cut}");
            assert_eq!(server.ended().is_some(), !fits);
        }
    }
}

#[test]
fn settings_may_raise_a_window_to_its_maximum_and_no_further() {
    // RFC 9113 §6.9.2: a connection error, FLOW_CONTROL_ERROR, above 2^31-1.
    for (initial, fits) in [(99_999_u32, true), (100_000, true), (100_001, false)] {
        let (mut client, mut server) = settled();
        let (gone, _) = ask(&mut client, &mut server);
        ask(&mut client, &mut server);
        let initial_before = client.peer_settings().initial_window_size;
        // The windows move below their maximum first, so that the increments fit.
        let lower = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0];
        client.handle_input(Duration::ZERO, &lower).unwrap();
        // A stream with a larger window that is closed does not count.
        for (stream, below) in [(1, 50_000), (3, 100_000)] {
            let [a, b, c, d] = (i32::MAX as u32 - below).to_be_bytes();
            client.handle_input(Duration::ZERO, &[0, 0, 4, 8, 0, 0, 0, 0, stream, a, b, c, d]).unwrap();
        }
        client.reset(gone, ErrorCode::CANCEL).unwrap();
        let [a, b, c, d] = initial.to_be_bytes();
        let raise = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, a, b, c, d];
        let result = client.handle_input(Duration::ZERO, &raise).map(|_| ());
        assert_eq!(result.is_ok(), fits, "{initial} after {initial_before}");
        if let Err(error) = result {
            assert_eq!(error.code(), Some(ErrorCode::FLOW_CONTROL_ERROR));
        }
    }
}

#[test]
fn content_that_is_arriving_counts_as_memory() {
    let mut config = Config::new(Role::Server);
    config.settings.max_frame_size = 40_000;
    config.memory_max = 65_535;
    let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
    settle(&mut client, &mut server);
    let here = client.send_request(GET, false).unwrap();
    let up = drain(&mut client);
    feed(&mut server, &up);
    let (flags, stream_id) = (frame::Flags::NONE, here.stream_id());
    let header = FrameHeader { len: 40_000, kind: Kind::DATA, flags, stream_id };
    feed(&mut server, &header.to_bytes());
    server.set_caller_memory(0);
    assert_eq!(
        server.streams.recv_window(),
        65_535 - 40_000,
        "nothing is released before the content has arrived"
    );
    feed(&mut server, &[7; 40_000]);
    assert_eq!(server.streams.recv_window(), 65_535);
    // The rest of a frame whose stream was reset has no receiver.
    feed(&mut server, &header.to_bytes());
    let there = server.find(stream_id).unwrap();
    server.reset(there, ErrorCode::CANCEL).unwrap();
    feed(&mut server, &[7; 10_000]);
    assert_eq!(server.streams.recv_window(), 65_535);
}

// Each call fills the output as far as the windows and `output_ahead` allow: every frame is a system call otherwise.
#[test]
fn one_call_fills_the_output() {
    let responding = || {
        let (mut client, mut server) = settled();
        let (_, there) = ask(&mut client, &mut server);
        server.send_response(there, OK, false).unwrap();
        drain(&mut server);
        (server, there)
    };
    let transmit = |server: &mut Connection| {
        let mut slices = [&[][..]; 16];
        let filled = server.poll_transmit(Duration::ZERO, &mut slices);
        slices[..filled].iter().map(|slice| slice.len()).sum::<usize>()
    };
    let (mut server, there) = responding();
    let ahead = server.config.output_ahead;
    server.send_data(there, vec![7; 200_000], false).unwrap();
    // The last frame is shortened, but not to less than 1,024 bytes.
    assert_eq!(transmit(&mut server), ahead);
    for (written, left) in [(1_032, ahead - 1_032), (1, ahead)] {
        server.transmitted(Duration::ZERO, written);
        assert_eq!(transmit(&mut server), left);
    }
    // So is the queue behind frames that left at once.
    let (mut server, there) = responding();
    for (sent, queued) in [(16_384, 0), (16_384, 0), (16_384, 0), (16_384, 16_384)] {
        server.send_data(there, vec![7; sent], false).unwrap();
        assert_eq!(server.queued(there), queued);
    }
    assert_eq!(transmit(&mut server), ahead);
}
