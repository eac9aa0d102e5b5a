//! Sending of DATA and trailers: at once if the windows allow it, otherwise in the order of the scheduler, and never beyond a window
//! (RFC 9113 §5.2, §6.9).

use std::time::Duration;

use crate::wire::End;
use wireloom_http2::error::Misuse;
use wireloom_http2::field::{Field, Token};
use wireloom_http2::{Config, Role};
use wireloom_testing::http2::{Frame, PREFACE, join, kind};

/// A server with responses begun on streams 1, 3, ..., whose windows are `stream_window`; the connection's is 65,535.
fn responding(streams: u32, stream_window: u32) -> End {
    let mut end = End::new(Role::Server);
    let opening = [Frame::settings(&[(4, stream_window)]), Frame::settings_ack()];
    end.receive(&[PREFACE, &join(&opening)].concat());
    for stream in 0..streams {
        let stream = 2 * stream + 1;
        end.receive(&Frame::get(stream).to_bytes());
        end.connection.send_response(end.key(stream), [Field::known(Token::Status, b"200")], false).unwrap();
    }
    end.drain();
    end
}

/// The DATA frames that were sent: stream, length, END_STREAM.
fn data(end: &End) -> Vec<(u32, usize, bool)> {
    let frames = end.sent().into_iter().filter(|frame| frame.kind == kind::DATA);
    frames.map(|frame| (frame.stream, frame.payload.len(), frame.has(1))).collect()
}

#[test]
fn content_that_fits_the_window_of_its_stream_is_framed_at_once() {
    for (len, queued) in [(999, 0), (1_000, 0), (1_001, 1_001)] {
        let mut end = responding(1, 1_000);
        let key = end.key(1);
        end.connection.send_data(key, vec![b'd'; len], true).unwrap();
        assert_eq!(end.connection.queued(key), queued);
        end.drain();
        assert_eq!(data(&end), [(1, len.min(1_000), queued == 0)]);
    }
}

#[test]
fn content_that_fits_the_window_of_the_connection_is_framed_at_once() {
    for (len, queued) in [(534, 0), (535, 0), (536, 536)] {
        let mut end = responding(2, 1 << 20);
        for _ in 0..5 {
            end.connection.send_data(end.key(1), vec![b'd'; 13_000], false).unwrap();
            end.drain();
        }
        let key = end.key(3);
        end.connection.send_data(key, vec![b'd'; len], true).unwrap();
        assert_eq!(end.connection.queued(key), queued);
        end.drain();
        assert_eq!(data(&end)[5..], [(3, len.min(535), queued == 0)]);
        assert!(!end.connection.wants_write());
    }
}

#[test]
fn content_does_not_overtake_ready_content_of_other_streams() {
    let mut end = responding(2, 1 << 20);
    let (first, second) = (end.key(1), end.key(3));
    end.connection.send_data(first, vec![b'd'; 40_000], true).unwrap();
    end.connection.send_data(second, "small", true).unwrap();
    assert_eq!(end.connection.queued(second), 5);
    end.drain();
    // Without a priority signal the streams take turns.
    assert_eq!(data(&end), [(1, 16_384, false), (3, 5, true), (1, 16_384, false), (1, 7_232, true)]);
}

#[test]
fn an_empty_frame_that_ends_a_stream_needs_no_window() {
    // RFC 9113 §6.9.1: a frame with an empty payload and END_STREAM may be sent.
    let mut end = responding(2, 0);
    end.connection.send_data(end.key(1), "", true).unwrap();
    // It waits for the content before it.
    end.connection.send_data(end.key(3), "content", false).unwrap();
    end.connection.send_data(end.key(3), "", true).unwrap();
    end.drain();
    assert_eq!(data(&end), [(1, 0, true)]);
    end.receive(&Frame::window_update(3, 3).to_bytes());
    assert_eq!(data(&end)[1..], [(3, 3, false)]);
    end.receive(&Frame::window_update(3, 4).to_bytes());
    assert_eq!(data(&end)[2..], [(3, 4, true)]);
    assert_eq!(end.connection.streams(), 0);
}

#[test]
fn an_empty_frame_without_end_stream_is_not_sent() {
    let mut end = responding(1, 1_000);
    end.connection.send_data(end.key(1), "", false).unwrap();
    end.drain();
    assert_eq!(data(&end), []);
}

#[test]
fn trailers_follow_the_content_and_need_no_window() {
    let trailer = [Field::new(b"x-sum", b"1")];
    let is_trailers = |frame: &Frame| frame.kind == kind::HEADERS && frame.has(1);
    // Nothing is queued: they are sent at once.
    let mut end = responding(1, 0);
    end.connection.send_trailers(end.key(1), trailer).unwrap();
    assert_eq!(end.connection.streams(), 0);
    // Content waits for the window, in parts.
    let mut end = responding(1, 10);
    let key = end.key(1);
    end.connection.send_data(key, vec![b'd'; 25], false).unwrap();
    end.connection.send_trailers(key, trailer).unwrap();
    assert_eq!(end.connection.send_data(key, "late", false), Err(Misuse::SendAfterEnd.into()));
    end.drain();
    for (increment, ended) in [(10, false), (5, true)] {
        end.receive(&Frame::window_update(1, increment).to_bytes());
        assert_eq!(end.sent().iter().any(is_trailers), ended);
    }
    assert_eq!(data(&end), [(1, 10, false), (1, 10, false), (1, 5, false)]);
    assert_eq!(end.connection.streams(), 0);
}

#[test]
fn a_window_of_one_byte_allows_one_byte() {
    let mut end = responding(1, 0);
    end.connection.send_data(end.key(1), "two", true).unwrap();
    end.drain();
    assert_eq!(data(&end), []);
    for (sent, ended) in [(1, false), (2, false), (3, true)] {
        end.receive(&Frame::window_update(1, 1).to_bytes());
        assert_eq!(data(&end).len(), sent);
        assert_eq!(data(&end)[sent - 1], (1, 1, ended));
    }
}

#[test]
fn a_negative_window_has_to_become_positive() {
    // RFC 9113 §6.9.2
    let mut end = responding(1, 1_000);
    end.connection.send_data(end.key(1), vec![b'd'; 1_500], true).unwrap();
    end.drain();
    end.receive(&Frame::settings(&[(4, 400)]).to_bytes());
    // 400 - 1000 + 600 is 0.
    end.receive(&Frame::window_update(1, 600).to_bytes());
    assert_eq!(data(&end), [(1, 1_000, false)]);
    end.receive(&Frame::settings(&[(4, 401)]).to_bytes());
    assert_eq!(data(&end)[1..], [(1, 1, false)]);
    end.receive(&Frame::settings(&[(4, 1_000)]).to_bytes());
    assert_eq!(data(&end)[2..], [(1, 499, true)]);
}

#[test]
fn a_ready_stream_is_blocked_when_settings_close_its_window() {
    // The window of the connection keeps the stream ready when the setting arrives.
    let mut end = responding(1, 100_000);
    let key = end.key(1);
    end.connection.send_data(key, vec![b'd'; 80_000], true).unwrap();
    end.drain();
    assert_eq!(end.connection.queued(key), 80_000 - 65_535);
    end.receive(&Frame::settings(&[(4, 65_535)]).to_bytes());
    end.receive(&Frame::window_update(0, 100_000).to_bytes());
    assert_eq!(end.connection.queued(key), 80_000 - 65_535);
    assert!(!end.connection.wants_write());
    end.receive(&Frame::window_update(1, 100_000).to_bytes());
    assert_eq!(end.connection.streams(), 0);
}

#[test]
fn an_exhausted_window_without_content_is_not_a_stall() {
    let mut end = responding(1, 1 << 20);
    end.connection.send_data(end.key(1), vec![b'd'; 65_535], false).unwrap();
    end.drain();
    assert_eq!(data(&end).iter().map(|(_, len, _)| len).sum::<usize>(), 65_535);
    end.wait(Duration::from_secs(1));
    end.wait(Duration::from_secs(3_600));
    end.wait(Duration::from_secs(3_600));
    assert!(!end.has_failed());
    assert_eq!(end.connection.streams(), 1);
}

#[test]
fn a_blocked_stream_is_not_a_stall_of_the_connection() {
    let config = Config::new(Role::Server);
    let timeout = config.limits.stall_timeout;
    let mut end = responding(2, 10);
    end.connection.send_data(end.key(1), "more than ten bytes", true).unwrap();
    end.drain();
    end.wait(Duration::from_secs(1));
    end.wait(timeout);
    assert!(!end.has_failed());
    let resets: Vec<u32> =
        end.sent().iter().filter(|frame| frame.kind == kind::RST_STREAM).map(|frame| frame.stream).collect();
    assert_eq!(resets, [1]);
}

#[test]
fn a_blocked_stream_without_output_stalls() {
    // Its window is used up before, so that there is no output beside it.
    let timeout = Config::new(Role::Server).limits.stall_timeout;
    let mut end = responding(1, 10);
    let key = end.key(1);
    end.connection.send_data(key, vec![b'd'; 10], false).unwrap();
    end.drain();
    end.wait(Duration::from_secs(1));
    end.connection.send_data(key, "more", false).unwrap();
    assert!(end.connection.wants_write());
    // The clock starts when the output is polled.
    end.wait(Duration::from_secs(1));
    assert!(!end.connection.wants_write());
    let is_reset = |end: &End| end.sent().iter().any(|frame| frame.kind == kind::RST_STREAM);
    end.wait(timeout - Duration::from_millis(1));
    assert!(!is_reset(&end));
    end.wait(Duration::from_millis(1));
    assert!(is_reset(&end) && !end.has_failed());
}

#[test]
fn the_last_queued_bytes_stop_the_stall_clock() {
    // Even if they are few: content that follows has the whole timeout.
    let timeout = Config::new(Role::Server).limits.stall_timeout;
    let mut end = responding(1, 10);
    let key = end.key(1);
    end.connection.send_data(key, vec![b'd'; 20], false).unwrap();
    end.drain();
    end.wait(Duration::from_secs(1));
    end.wait(timeout / 2);
    end.receive(&Frame::window_update(1, 10).to_bytes());
    assert_eq!(end.connection.queued(key), 0);
    end.connection.send_data(key, "more", false).unwrap();
    end.drain();
    end.wait(timeout / 2 + Duration::from_secs(1));
    assert_eq!(end.connection.queued(key), 4);
    assert!(!end.sent().iter().any(|frame| frame.kind == kind::RST_STREAM));
}

#[test]
fn trailers_are_sent_with_the_last_content() {
    // RFC 9113 §5.2.1: flow control applies only to DATA. The content uses up the connection's window to the last byte.
    let trailer = [Field::new(b"x-sum", b"1")];
    let mut end = responding(1, 1 << 20);
    let key = end.key(1);
    end.connection.send_data(key, vec![b'd'; 65_535], false).unwrap();
    end.connection.send_trailers(key, trailer).unwrap();
    while end.connection.wants_write() {
        let mut slices = [&[][..]; 8];
        let filled = end.connection.poll_transmit(Duration::ZERO, &mut slices);
        let len = slices[..filled].iter().map(|slice| slice.len()).sum();
        end.connection.transmitted(Duration::ZERO, len);
    }
    assert_eq!(end.connection.streams(), 0);
    // The trailers of a request that waited to open need no turn beside content that waits for the window.
    let mut client = End::new(Role::Client);
    client.receive(&join(&[Frame::settings(&[(3, 1), (4, 1 << 20)]), Frame::settings_ack()]));
    let post = [
        Field::known(Token::Method, b"POST"),
        Field::known(Token::Scheme, b"https"),
        Field::known(Token::Authority, b"example.org"),
        Field::known(Token::Path, b"/"),
    ];
    let first = client.connection.send_request(post, false).unwrap();
    client.connection.send_data(first, vec![b'd'; 100_000], true).unwrap();
    let second = client.connection.send_request(post, false).unwrap();
    client.connection.send_trailers(second, trailer).unwrap();
    client.drain();
    client.receive(&Frame::settings(&[(3, 2)]).to_bytes());
    let ended = client.sent().iter().any(|frame| frame.stream == 3 && frame.has(1));
    assert!(ended && client.connection.queued(first) > 0);
}
