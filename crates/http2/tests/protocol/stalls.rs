//! Peers that read slowly or not at all (CVE-2019-9517): what keeps a stream and a connection.

use std::time::Duration;

use crate::wire::End;
use wireloom_http2::error::{Error, Exceeded};
use wireloom_http2::field::{Field, Token};
use wireloom_http2::frame::StreamId;
use wireloom_http2::{Config, Connection, Ended, Role};
use wireloom_testing::http2::{Frame, PREFACE, join};

/// The default of `Limits::stall_timeout`.
const TIMEOUT: Duration = Config::new(Role::Server).limits.stall_timeout;

/// A server that sends 1 MiB on stream 1, until a window of the client is closed. The stream's window is `stream_window`.
fn sending(stream_window: u32) -> End {
    let mut end = End::with(Role::Server, Config::new(Role::Server));
    let opening = [Frame::settings(&[(4, stream_window)]), Frame::settings_ack(), Frame::get(1)];
    end.receive(&[PREFACE, &join(&opening)].concat());
    let key = end.key(1);
    end.connection.send_response(key, [Field::known(Token::Status, b"200")], false).unwrap();
    end.connection.send_data(key, vec![b'd'; 1 << 20], true).unwrap();
    end.drain();
    end
}

/// Passes four timeouts in steps, after each of which `step` runs. Returns when the stream or the connection failed.
fn time_of_failure(end: &mut End, interval: Duration, mut step: impl FnMut(&mut End)) -> Option<Duration> {
    let mut time = Duration::ZERO;
    while time < 4 * TIMEOUT {
        time += interval;
        end.wait(interval);
        if end.has_failed() || !end.connection.contains(end.key(1)) {
            return Some(time);
        }
        step(end);
    }
    None
}

#[test]
fn a_client_that_reads_steadily_in_small_steps_is_not_stalled() {
    // At least 1,024 bytes in each timeout, and in each way the client can say so.
    for (increment, interval) in [(4, 1), (512, 10), (512, 100), (1_023, 290), (1_024, 299)] {
        let interval = Duration::from_secs(interval);
        for stream in [0, 1] {
            let mut end = sending(if stream == 0 { 1 << 20 } else { 0 });
            let update = Frame::window_update(stream, increment).to_bytes();
            let failed = time_of_failure(&mut end, interval, |end| end.receive(&update));
            assert_eq!(failed, None, "{increment} every {interval:?} on stream {stream}");
        }
    }
}

#[test]
fn window_postpones_a_stall_in_proportion() {
    // After half of the timeout, window for a quarter of it, almost all of it, and all of it.
    for (increment, left) in [(256, TIMEOUT * 3 / 4), (511, TIMEOUT), (512, TIMEOUT), (1_024, TIMEOUT)] {
        for stream in [0, 1] {
            let mut end = sending(if stream == 0 { 1 << 20 } else { 0 });
            end.wait(TIMEOUT / 2);
            end.receive(&Frame::window_update(stream, increment).to_bytes());
            let mut time = Duration::ZERO;
            while end.connection.contains(end.key(1)) && !end.has_failed() {
                end.wait(Duration::from_secs(1));
                time += Duration::from_secs(1);
            }
            // Streams are looked at 64 times per timeout.
            let tolerance = if stream == 0 { Duration::from_secs(1) } else { TIMEOUT / 64 };
            assert!(
                time >= left - tolerance && time <= left + tolerance,
                "{increment} on {stream}: {time:?}"
            );
        }
    }
}

#[test]
fn a_client_that_trickles_window_is_stalled() {
    for (increment, interval) in [(1, 1), (1, 60), (100, 60), (700, 299)] {
        let interval = Duration::from_secs(interval);
        for stream in [0, 1] {
            let mut end = sending(if stream == 0 { 1 << 20 } else { 0 });
            let update = Frame::window_update(stream, increment).to_bytes();
            let failed = time_of_failure(&mut end, interval, |end| end.receive(&update));
            assert!(failed.is_some(), "{increment} every {interval:?} on stream {stream}");
            assert_eq!(end.has_failed(), stream == 0);
        }
    }
}

#[test]
fn output_that_the_transport_takes_in_small_steps_is_not_stalled() {
    for (written, interval, is_stalled) in
        [(4, 1, false), (512, 100, false), (1_024, 299, false), (0, 1, true), (1, 1, true), (100, 60, true)]
    {
        let mut end = End::with(Role::Server, Config::new(Role::Server));
        let opening = [Frame::settings(&[]), Frame::settings_ack(), Frame::get(1)];
        end.receive(&[PREFACE, &join(&opening)].concat());
        let response = [Field::known(Token::Status, b"200")];
        let connection = &mut end.connection;
        connection.send_response(connection.find(StreamId::FIRST_CLIENT).unwrap(), response, false).unwrap();
        connection
            .send_data(connection.find(StreamId::FIRST_CLIENT).unwrap(), vec![b'd'; 40_000], false)
            .unwrap();
        let mut now = Duration::from_secs(1_000_000_000);
        let end_of_test = now + 4 * TIMEOUT;
        let update = Frame::window_update(0, 1_024).to_bytes();
        let mut failed = false;
        while !failed && now < end_of_test {
            assert!(connection.poll_transmit(now, &mut [&[][..]; 2]) > 0);
            connection.transmitted(now, written);
            now += Duration::from_secs(interval);
            // A window that grows does not excuse a transport that takes nothing.
            connection.handle_input(now, &update).unwrap();
            failed = connection.handle_timeout(now).is_err();
        }
        assert_eq!(failed, is_stalled, "{written} bytes every {interval} s");
        let stalled = Exceeded::Stalled;
        assert!(
            !failed
                || matches!(connection.ended(), Some(Ended::Failed(Error::Limit { exceeded, .. })) if exceeded == stalled)
        );
    }
}

#[test]
fn content_that_is_ready_later_has_the_whole_timeout() {
    // The timeout does not count from when another stream, which was reset meanwhile, used up the window of the connection.
    let mut end = End::with(Role::Server, Config::new(Role::Server));
    let opening = [Frame::settings(&[(4, 1 << 20)]), Frame::settings_ack(), Frame::get(1), Frame::get(3)];
    end.receive(&[PREFACE, &join(&opening)].concat());
    let (first, second) = (end.key(1), end.key(3));
    let connection = &mut end.connection;
    let drain = |connection: &mut Connection, now: Duration| {
        while connection.poll_transmit(now, &mut [&[][..]; 4]) > 0 {
            connection.transmitted(now, usize::MAX);
        }
    };
    let start = Duration::from_secs(1_000_000_000);
    for key in [first, second] {
        connection.send_response(key, [Field::known(Token::Status, b"200")], false).unwrap();
    }
    connection.send_data(first, vec![b'd'; 100_000], true).unwrap();
    drain(connection, start);
    assert_eq!(connection.poll_timeout(), Some(start + TIMEOUT));
    let reset = Frame::rst_stream(1, 8).to_bytes();
    connection.handle_input(start + TIMEOUT / 2, &reset).unwrap();
    // Nothing waits for window from now on, whether or not the caller has been able to ask for output.
    assert_eq!(connection.poll_timeout(), None);
    connection.handle_timeout(start + TIMEOUT).unwrap();
    assert!(connection.wants_write());
    drain(connection, start + TIMEOUT);
    assert!(!connection.wants_write());
    assert_eq!(connection.poll_timeout(), None);
    connection.send_data(second, "more", true).unwrap();
    assert!(connection.wants_write(), "the timeout starts when the output is polled");
    let later = start + TIMEOUT * 3 / 2;
    drain(connection, later);
    assert!(!connection.wants_write());
    assert_eq!(connection.poll_timeout(), Some(later + TIMEOUT));
}
