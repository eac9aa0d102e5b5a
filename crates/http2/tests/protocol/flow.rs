//! The MUSTs of RFC 9113 §6.9 on the wire: windows that are used completely, exceeded by one byte, and reduced by SETTINGS.

use crate::wire::End;
use wireloom_http2::field::{Field, Token};
use wireloom_http2::{Config, Role};
use wireloom_testing::http2::{Frame, PREFACE, code, join, kind};

/// A server whose caller releases nothing, with streams 1 and 3 open.
fn holding(stream_window: u32, connection_window: u32) -> End {
    let mut config = Config::new(Role::Server);
    config.settings.initial_window_size = stream_window;
    config.stream_window_max = stream_window;
    config.connection_window = connection_window;
    config.auto_release = false;
    // Window is not granted for held DATA: three quarters of the memory are for DATA from the peer.
    config.memory_max = u64::from(connection_window) * 4 / 3 + 2;
    config.output_max = 0;
    let mut end = End::with(Role::Server, config);
    let frames = [Frame::settings(&[]), Frame::settings_ack(), Frame::post(1), Frame::post(3)];
    end.receive(&[PREFACE, &join(&frames)].concat());
    end
}

fn data(stream: u32, len: usize) -> Frame {
    Frame::data(stream, vec![b'd'; len])
}

fn errors(end: &End) -> Vec<(u8, u32, u32)> {
    let of_error = |frame: &Frame| match frame.kind {
        kind::RST_STREAM => Some((frame.kind, frame.stream, frame.word(0))),
        kind::GOAWAY => Some((frame.kind, frame.stream, frame.word(4))),
        _ => None,
    };
    end.sent().iter().filter_map(of_error).collect()
}

#[test]
fn the_window_of_a_stream_is_exact_to_the_byte() {
    // §6.9.1: a stream error, FLOW_CONTROL_ERROR, for DATA above the stream's window; the other stream continues.
    for (sent, fits) in [(999, true), (1_000, true), (1_001, false)] {
        let mut end = holding(1_000, 1 << 20);
        end.receive(&join(&[data(1, sent), data(3, 1_000), Frame::data(3, "").end_stream()]));
        let expected = if fits { vec![] } else { vec![(kind::RST_STREAM, 1, code::FLOW_CONTROL_ERROR)] };
        assert_eq!(errors(&end), expected, "{sent}");
        assert_eq!(end.ended(), [3], "{sent}");
        assert!(!end.has_failed());
    }
}

#[test]
fn padding_counts_for_the_window() {
    // §6.1: the whole payload counts, padding and its length included.
    for (padding, fits) in [(98, true), (99, true), (100, false)] {
        let mut end = holding(1_000, 1 << 20);
        end.receive(&data(1, 900).padded(padding, usize::from(padding)).to_bytes());
        assert_eq!(errors(&end).is_empty(), fits, "{padding}");
    }
}

#[test]
fn the_window_of_the_connection_is_exact_to_the_byte() {
    // §6.9.1: a connection error, FLOW_CONTROL_ERROR, for DATA above the connection's window.
    for (last, fits) in [(0, true), (1, true), (2, false)] {
        let mut end = holding(65_535, 65_535);
        let mut frames = vec![data(1, 16_384); 3];
        frames.extend([data(3, 16_382), data(1, last)]);
        end.receive(&join(&frames));
        let expected = if fits { vec![] } else { vec![(kind::GOAWAY, 0, code::FLOW_CONTROL_ERROR)] };
        assert_eq!(errors(&end), expected, "{last}");
    }
}

#[test]
fn frames_other_than_data_need_no_window() {
    // §6.9: frames that are exempt from flow control are accepted and processed although no window is left.
    let mut end = holding(65_535, 65_535);
    end.receive(&join(&[data(1, 16_384), data(1, 16_384), data(1, 16_384), data(1, 16_383)]));
    let granted = |end: &End| end.sent().iter().any(|frame| frame.kind == kind::WINDOW_UPDATE);
    assert!(!granted(&end));
    let trailers = Frame::headers(1, &[("x-sum", "1")]).end_stream();
    end.receive(&join(&[
        Frame::ping("01234567"),
        Frame::settings(&[(4, 9)]),
        Frame::priority(3, 0, 1),
        Frame::window_update(1, 1),
        trailers,
        Frame::get(5),
        Frame::rst_stream(3, code::CANCEL),
    ]));
    assert_eq!((errors(&end), granted(&end)), (vec![], false));
    assert_eq!(end.ended(), [1, 5]);
    let sent = end.sent();
    assert!(sent.contains(&Frame::ping("01234567").flag(1)));
    assert_eq!(sent.iter().filter(|frame| **frame == Frame::settings_ack()).count(), 2);
}

#[test]
fn a_connection_with_a_small_window_receives_everything() {
    for window in [100, 1_000, 4_000, 9_000] {
        let mut config = Config::new(Role::Server);
        (config.settings.initial_window_size, config.stream_window_max) = (window, window);
        config.connection_window = window;
        let mut end = End::with(Role::Server, config);
        let opening = [Frame::settings(&[]), Frame::settings_ack(), Frame::post(1)];
        end.receive(&[PREFACE, &join(&opening)].concat());
        // More than the first window of the connection, which has 65,535 bytes.
        // At least half of a window is always granted.
        let frame_len = (window / 2).min(1_000) as usize;
        for _ in 0..70_000_usize.div_ceil(frame_len) {
            end.receive(&data(1, frame_len).to_bytes());
        }
        assert_eq!(errors(&end), [], "{window}");
    }
}

#[test]
fn data_on_a_reset_stream_releases_its_window() {
    // §5.4.2, §6.9: frames on a stream that this side has reset are ignored, and count for the connection's window.
    let mut end = holding(1 << 20, 65_535);
    end.reset(1);
    for _ in 0..100 {
        end.receive(&data(1, 16_000).to_bytes());
    }
    assert_eq!(errors(&end), [(kind::RST_STREAM, 1, code::CANCEL)]);
    let granted: u32 =
        end.sent().iter().filter(|f| f.kind == kind::WINDOW_UPDATE && f.stream == 0).map(|f| f.word(0)).sum();
    assert!(granted >= 100 * 16_000 - 65_535, "{granted}");
}

fn sent_data(end: &End) -> usize {
    end.sent().iter().filter(|frame| frame.kind == kind::DATA).map(|frame| frame.payload.len()).sum()
}

#[test]
fn settings_may_make_a_window_negative() {
    // §6.9.2: nothing is sent until WINDOW_UPDATE has made the window positive again.
    let mut end = End::new(Role::Server);
    let opening = [Frame::settings(&[(4, 1_000)]), Frame::settings_ack(), Frame::get(1)];
    end.receive(&[PREFACE, &join(&opening)].concat());
    end.connection.send_response(end.key(1), [Field::known(Token::Status, b"200")], false).unwrap();
    end.connection.send_data(end.key(1), vec![b'd'; 5_000], true).unwrap();
    end.drain();
    assert_eq!(sent_data(&end), 1_000);
    // 100 of 1,000 bytes allowed: the window is -900.
    end.receive(&Frame::settings(&[(4, 100)]).to_bytes());
    assert_eq!(sent_data(&end), 1_000);
    end.receive(&Frame::window_update(1, 900).to_bytes());
    assert_eq!(sent_data(&end), 1_000, "a window of 0 lets nothing through");
    end.receive(&Frame::window_update(1, 1).to_bytes());
    assert_eq!(sent_data(&end), 1_001);
    // The same from below: -899 + 899, and 3 more by SETTINGS.
    end.receive(&Frame::settings(&[(4, 103)]).to_bytes());
    assert_eq!(sent_data(&end), 1_004);
    end.receive(&Frame::window_update(1, 100_000).to_bytes());
    assert_eq!(sent_data(&end), 5_000);
    assert_eq!(end.sent().last().unwrap().flags & 1, 1);
}

#[test]
fn settings_change_only_the_windows_of_streams() {
    // §6.9.2: the connection's window is changed by WINDOW_UPDATE alone.
    let mut end = End::new(Role::Server);
    let opening = [Frame::settings(&[(4, 1 << 20)]), Frame::settings_ack(), Frame::get(1)];
    end.receive(&[PREFACE, &join(&opening)].concat());
    end.connection.send_response(end.key(1), [Field::known(Token::Status, b"200")], false).unwrap();
    end.connection.send_data(end.key(1), vec![b'd'; 100_000], true).unwrap();
    end.drain();
    assert_eq!(sent_data(&end), 65_535);
    end.receive(&Frame::window_update(0, 1 << 20).to_bytes());
    assert_eq!(sent_data(&end), 100_000);
}

#[test]
fn frames_are_as_long_as_the_peer_accepts() {
    // §4.2: no frame above the peer's SETTINGS_MAX_FRAME_SIZE.
    for frame_len_max in [16_384, 20_000] {
        let mut end = End::new(Role::Server);
        let opening = [Frame::settings(&[(5, frame_len_max)]), Frame::settings_ack(), Frame::get(1)];
        end.receive(&[PREFACE, &join(&opening)].concat());
        end.connection.send_response(end.key(1), [Field::known(Token::Status, b"200")], false).unwrap();
        end.connection.send_data(end.key(1), vec![b'd'; 60_000], true).unwrap();
        end.drain();
        let longest = end.sent().iter().map(|frame| frame.payload.len()).max();
        assert_eq!(longest, Some(frame_len_max as usize));
    }
}

#[test]
fn both_ends_begin_with_settings() {
    // §3.4, §6.5: before anything is received, on stream 0; a client's after the preface, which `sent` strips.
    for role in [Role::Client, Role::Server] {
        let first = End::new(role).sent().remove(0);
        assert_eq!((first.kind, first.flags, first.stream), (kind::SETTINGS, 0, 0), "{role:?}");
    }
}

#[test]
fn settings_and_pings_are_acknowledged_once() {
    // §6.5.3: an acknowledgement for each SETTINGS; §6.7: the answer has the same payload and comes with ACK; what is an
    // answer is not answered.
    let mut end = End::new(Role::Server);
    let opening = [
        Frame::settings(&[]),
        Frame::settings_ack(),
        Frame::settings(&[(4, 1)]),
        Frame::ping("one ping"),
        Frame::ping("no reply").flag(1),
    ];
    end.receive(&[PREFACE, &join(&opening)].concat());
    let sent = end.sent();
    assert_eq!(sent.iter().filter(|frame| **frame == Frame::settings_ack()).count(), 2);
    let pings: Vec<_> = sent.iter().filter(|frame| frame.kind == kind::PING).collect();
    assert_eq!(pings, [&Frame::ping("one ping").flag(1)]);
    // §3.4: the server's first frame is SETTINGS.
    assert_eq!((sent[0].kind, sent[0].flags), (kind::SETTINGS, 0));
}

// §6.7: the answer has priority over the content that waits for its turn.
#[test]
fn the_answer_to_a_ping_precedes_queued_content() {
    let mut end = End::new(Role::Server);
    let opening = [Frame::settings(&[(4, 0)]), Frame::settings_ack(), Frame::get(1)];
    end.receive(&[PREFACE, &join(&opening)].concat());
    let key = end.key(1);
    end.connection.send_response(key, [Field::known(Token::Status, b"200")], false).unwrap();
    end.connection.send_data(key, vec![b'd'; 40_000], true).unwrap();
    end.receive(&join(&[Frame::window_update(1, 50_000), Frame::ping("one ping")]));
    let kinds: Vec<u8> = end.sent().iter().map(|frame| frame.kind).collect();
    let answer = kinds.iter().position(|&kind| kind == kind::PING).unwrap();
    let content = kinds.iter().position(|&kind| kind == kind::DATA).unwrap();
    assert!(answer < content, "{kinds:?}");
}

#[test]
fn queued_chunks_share_a_frame() {
    // Otherwise each would need nine more bytes, and a turn of its own.
    let mut end = End::new(Role::Server);
    let opening = [Frame::settings(&[(4, 0)]), Frame::settings_ack(), Frame::get(1)];
    end.receive(&[PREFACE, &join(&opening)].concat());
    let key = end.key(1);
    end.connection.send_response(key, [Field::known(Token::Status, b"200")], false).unwrap();
    for chunk in ["one ", "two ", "three "] {
        end.connection.send_data(key, chunk, false).unwrap();
    }
    end.connection.send_data(key, vec![b'd'; 1_000], false).unwrap();
    end.connection.send_data(key, "the ", false).unwrap();
    end.connection.send_data(key, "end", true).unwrap();
    end.receive(&join(&[Frame::window_update(1, 6), Frame::window_update(1, 10_000)]));
    let data = |frame: &&Frame| frame.kind == kind::DATA;
    let sent: Vec<Frame> = end.sent().iter().filter(data).cloned().collect();
    let content = [&b"one two three "[..], &[b'd'; 1_000], b"the end"].concat();
    assert_eq!(sent, [Frame::data(1, content).end_stream()]);
}

#[test]
fn a_slow_reader_leaves_the_free_memory_to_other_streams() {
    // One stream holds a whole large window: a part of the memory is free, though less than half such a window.
    let mut config = Config::new(Role::Server);
    config.settings.initial_window_size = 8 << 20;
    config.auto_release = false;
    let mut end = End::with(Role::Server, config);
    let frames = [Frame::settings(&[]), Frame::settings_ack(), Frame::post(1), Frame::post(3)];
    end.receive(&[PREFACE, &join(&frames)].concat());
    for _ in 0..512 {
        end.receive(&data(1, 16_384).to_bytes());
    }
    assert_eq!(end.connection.memory().held, 8 << 20);
    for _ in 0..64 {
        end.receive(&data(3, 16_384).to_bytes());
    }
    assert_eq!(errors(&end), []);
}

#[test]
fn held_data_of_ended_streams_is_bounded_unless_their_end_releases_it() {
    for release_at_end in [true, false] {
        let mut config = Config::new(Role::Client);
        (config.auto_release, config.release_at_end) = (false, release_at_end);
        (config.memory_max, config.output_max) = (400_000, 0);
        let mut end = End::with(Role::Client, config);
        end.receive(&join(&[Frame::settings(&[]), Frame::settings_ack()]));
        let granted = |end: &End| -> u32 {
            let updates = end.sent().into_iter().filter(|f| f.kind == kind::WINDOW_UPDATE && f.stream == 0);
            updates.map(|f| f.word(0)).sum::<u32>() + 65_535
        };
        // Responses that are complete and not released, as long as there is window for one.
        let mut received = 0;
        for _ in 0..50 {
            if granted(&end) < received + 16_384 {
                break;
            }
            let stream = end.request();
            let headers = Frame::headers(stream, &[(":status", "200")]);
            end.receive(&join(&[headers, data(stream, 16_384).end_stream()]));
            received += 16_384;
        }
        assert_eq!(end.connection.streams(), 0);
        if release_at_end {
            assert_eq!((received, end.connection.memory().held), (50 * 16_384, 0));
            continue;
        }
        // Three quarters of the memory are for DATA.
        assert!((280_000..=300_000).contains(&received), "{received}");
        assert_eq!(end.connection.memory().held, u64::from(received));
        let before = granted(&end);
        for stream in 0..received / 16_384 {
            end.connection.release_capacity(end.key(2 * stream + 1), 16_384).unwrap();
        }
        end.drain();
        assert_eq!(end.connection.memory().held, 0);
        assert!(granted(&end) >= before + received / 2);
        // DATA is released once: the second release does nothing.
        end.connection.release_capacity(end.key(1), 16_384).unwrap();
        assert_eq!(end.connection.memory().held, 0);
    }
}

#[test]
fn an_application_that_waits_for_whole_messages_receives_any_that_fit_the_window() {
    // It releases a message when it is complete. Each message fits the window of the stream, whatever came before it.
    const WINDOW: u32 = 10_000;
    wireloom_testing::rounds(20, |rng| {
        let mut end = holding(WINDOW, 1 << 20);
        let key = end.key(1);
        let mut window = i64::from(WINDOW);
        for _ in 0..50 {
            let len = rng.usize(1..=WINDOW as usize);
            let mut left = len;
            while left > 0 {
                let part = left.min(usize::try_from(window).unwrap_or_default());
                assert!(part > 0, "{left} of {len} bytes wait for window");
                let before = end.sent().len();
                end.receive(&data(1, part).to_bytes());
                (left, window) = (left - part, window - part as i64);
                window += granted(&end, before);
            }
            let before = end.sent().len();
            end.connection.release_capacity(key, len).unwrap();
            end.drain();
            window += granted(&end, before);
        }
        assert!(!end.has_failed());
    });
}

/// The window that was granted to stream 1 after this many frames.
fn granted(end: &End, before: usize) -> i64 {
    let frames = end.sent().into_iter().skip(before);
    let updates = frames.filter(|frame| frame.kind == kind::WINDOW_UPDATE && frame.stream == 1);
    updates.map(|frame| i64::from(frame.word(0))).sum()
}

#[test]
fn any_memory_of_the_caller_stops_the_window_of_the_connection() {
    let mut config = Config::new(Role::Server);
    (config.connection_window, config.settings.initial_window_size) = (100_000, 100_000);
    let mut end = End::with(Role::Server, config);
    let frames = [Frame::settings(&[]), Frame::settings_ack(), Frame::post(1)];
    end.receive(&[PREFACE, &join(&frames)].concat());
    let updates = |end: &End| {
        end.sent().iter().filter(|frame| frame.kind == kind::WINDOW_UPDATE && frame.stream == 0).count()
    };
    let before = updates(&end);
    for memory in [u64::MAX, i64::MAX as u64, i64::MAX as u64 + 1] {
        end.connection.set_caller_memory(memory);
        end.receive(&join(&[data(1, 10_000), data(1, 10_000)]));
        assert_eq!((updates(&end), end.connection.memory().caller), (before, memory));
    }
    end.connection.set_caller_memory(0);
    end.drain();
    assert_eq!(updates(&end), before + 1);
}

#[test]
fn the_rest_of_a_frame_whose_stream_was_reset_is_released() {
    let mut config = Config::new(Role::Server);
    config.settings.max_frame_size = 1 << 20;
    let mut end = End::with(Role::Server, config);
    let frames = [Frame::settings(&[]), Frame::settings_ack(), Frame::post(1)];
    end.receive(&[PREFACE, &join(&frames)].concat());
    let frame = Frame::data(1, vec![b'd'; 250_000]).to_bytes();
    // The window of the connection is 1 MiB, of which half is used first.
    for _ in 0..2 {
        end.receive(&frame);
    }
    end.receive(&frame[..100_000]);
    let before = end.sent().len();
    end.reset(1);
    // All of it, before it has arrived.
    end.receive(&frame[100_000..200_000]);
    let frames = end.sent().into_iter().skip(before);
    let updates: Vec<u32> =
        frames.filter(|frame| frame.kind == kind::WINDOW_UPDATE).map(|frame| frame.word(0)).collect();
    assert_eq!(updates, [750_000]);
    let before = end.sent().len();
    end.receive(&frame[200_000..]);
    assert_eq!(end.sent().len(), before);
}
