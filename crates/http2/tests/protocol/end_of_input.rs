//! A peer that closes its side of the transport, or that is not read.

use std::time::Duration;

use crate::wire::End;
use wireloom_http2::error::{Error, ErrorCode, Violation};
use wireloom_http2::field::{Field, Token};
use wireloom_http2::{Config, Ended, Event, Role};
use wireloom_testing::http2::{Frame, PREFACE, code, join, kind};

const OK: [Field<'static>; 1] = [Field::known(Token::Status, b"200")];

fn server(client_settings: &[(u16, u32)], frames: &[Frame]) -> End {
    let mut end = End::with(Role::Server, Config::new(Role::Server));
    let opening = [Frame::settings(client_settings), Frame::settings_ack()];
    end.receive(&[PREFACE, &join(&opening), &join(frames)].concat());
    end
}

fn goaways(end: &End) -> Vec<(u32, u32)> {
    let frames = end.sent().into_iter().filter(|frame| frame.kind == kind::GOAWAY);
    frames.map(|frame| (frame.word(0), frame.word(4))).collect()
}

fn reset_streams(end: &End) -> Vec<u32> {
    end.sent().iter().filter(|frame| frame.kind == kind::RST_STREAM).map(|frame| frame.stream).collect()
}

#[test]
fn requests_that_have_arrived_are_answered_after_the_client_has_closed_its_side() {
    let mut end = server(&[], &[Frame::get(1), Frame::get(3), Frame::post(5)]);
    let keys = [1, 3, 5].map(|stream| end.key(stream));
    end.connection.send_response(keys[0], OK, false).unwrap();
    end.connection.handle_eof();
    end.drain();
    // RFC 9113 §6.8: GOAWAY with the last stream. The request that is not complete is reset.
    assert_eq!(goaways(&end), [(5, code::NO_ERROR)]);
    assert_eq!(reset_streams(&end), [5]);
    let event = end.connection.poll_event();
    assert!(
        matches!(event, Some(Event::Reset { stream, code: ErrorCode::CANCEL, error: None }) if stream == keys[2])
    );
    assert!(end.connection.is_going_away() && end.connection.ended().is_none());
    end.connection.send_data(keys[0], vec![b'd'; 40_000], true).unwrap();
    end.drain();
    assert_eq!(end.connection.ended(), None);
    end.respond(3);
    assert_eq!(end.connection.ended(), Some(Ended::Eof));
    let content: usize =
        end.sent().iter().filter(|frame| frame.kind == kind::DATA).map(|frame| frame.payload.len()).sum();
    assert_eq!(content, 40_000);
    // No input is handled.
    let late = Frame::get(7).to_bytes();
    let (taken, event) = end.connection.handle_input(Duration::ZERO, &late).unwrap();
    assert!(taken > 0 && event.is_none());
}

#[test]
fn a_server_without_requests_sends_goaway_and_ends() {
    let mut end = server(&[], &[]);
    end.connection.handle_eof();
    assert_eq!(end.connection.ended(), Some(Ended::Eof));
    end.drain();
    assert_eq!(goaways(&end), [(0, code::NO_ERROR)]);
    // A client cannot be answered any more.
    let mut client = End::new(Role::Client);
    client.receive(&join(&[Frame::settings(&[]), Frame::settings_ack()]));
    client.request();
    client.connection.handle_eof();
    assert_eq!(client.connection.ended(), Some(Ended::Eof));
}

#[test]
fn responses_that_need_window_which_cannot_arrive_are_reset() {
    // The window of a stream, and that of the connection.
    for stream_window in [10_000, 1 << 20] {
        let mut end = server(&[(4, stream_window)], &[Frame::get(1), Frame::get(3)]);
        let keys = [1, 3].map(|stream| end.key(stream));
        for key in keys {
            end.connection.send_response(key, OK, false).unwrap();
        }
        end.connection.send_data(keys[0], vec![b'd'; 100_000], true).unwrap();
        end.connection.handle_eof();
        end.drain();
        assert_eq!((reset_streams(&end), end.connection.ended()), (vec![1], None), "{stream_window}");
        end.connection.send_data(keys[1], "", true).unwrap();
        end.drain();
        assert_eq!(end.connection.ended(), Some(Ended::Eof));
    }
}

#[test]
fn a_transport_that_has_failed_ends_the_connection_at_once() {
    let mut end = server(&[], &[Frame::get(1)]);
    end.connection.handle_disconnect();
    assert_eq!(end.connection.ended(), Some(Ended::Eof));
}

#[test]
fn a_peer_that_is_not_read_is_not_late() {
    // RFC 9113 §6.5.3: the acknowledgement may be in the transport.
    let timeout = Config::new(Role::Server).limits.settings_timeout;
    let mut end = End::with(Role::Server, Config::new(Role::Server));
    end.receive(&[PREFACE, &Frame::settings(&[]).to_bytes()].concat());
    assert!(end.connection.poll_timeout().is_some());
    let start = Duration::from_secs(2_000_000_000);
    end.connection.set_reading(start, false);
    assert_eq!(end.connection.poll_timeout(), None);
    end.connection.handle_timeout(start + 2 * timeout).unwrap();
    end.connection.set_reading(start + 2 * timeout, true);
    // From here on the time counts again.
    assert_eq!(end.connection.poll_timeout(), Some(start + 3 * timeout));
    end.connection.handle_timeout(start + 3 * timeout - Duration::from_nanos(1)).unwrap();
    let error = end.connection.handle_timeout(start + 3 * timeout).unwrap_err();
    assert!(matches!(error, Error::Peer { violation: Violation::SettingsTimeout, .. }));
}

#[test]
fn a_peer_that_waits_for_our_output_to_leave_is_not_late() {
    let mut config = Config::new(Role::Server);
    config.output_max = 0;
    let timeout = config.limits.settings_timeout;
    let mut end = End::with(Role::Server, config);
    end.receive(&[PREFACE, &join(&[Frame::settings(&[]), Frame::get(1)])].concat());
    let key = end.key(1);
    end.connection.send_response(key, OK, true).unwrap();
    assert!(!end.connection.wants_read());
    let start = Duration::from_secs(2_000_000_000);
    end.connection.poll_transmit(start, &mut [&[]]);
    end.connection.handle_timeout(start + 2 * timeout).unwrap();
    end.connection.transmitted(start + 2 * timeout, 1_000);
    assert!(end.connection.wants_read());
    assert_eq!(end.connection.poll_timeout(), Some(start + 3 * timeout));
}
