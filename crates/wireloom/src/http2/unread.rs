//! Streams on which this side has sent everything, and whose rest is discarded: requests that were answered before they ended (RFC 9113
//! §8.1), and tunnels of a client.

use std::collections::BTreeMap;
use std::time::Duration;

use wireloom_http2::error::ErrorCode;
use wireloom_http2::field::Field;
use wireloom_http2::{Connection, Role, StreamKey};

/// The maximum length of the content that is discarded before the stream is reset, in bytes. A short request ends without a reset,
/// which some clients would report as a failure.
const LEN_MAX: usize = 64 << 10;

/// The same for a request that was accepted. After a status below 300, curl before 8 continues its request: it hangs without window for the
/// rest, and also when the stream is reset with NO_ERROR. So the rest is read, as over HTTP/1.1.
const ACCEPTED_LEN_MAX: usize = 64 << 20;

/// The maximum time for which content is discarded before the stream is reset.
const TIMEOUT: Duration = Duration::from_secs(5);

/// An accepted request gets another second for each of this number of bytes.
const BYTES_PER_SECOND_MIN: usize = 16 << 10;

/// The time in which a client reads the response before its stream is reset. Some clients, such as curl 7.88, take a reset that
/// comes while they send for a failure although they have received the response.
const GRACE: Duration = Duration::from_millis(250);

/// Whether a response, whose fields begin with `:status`, has a status below 300.
pub(super) fn is_accepted<'f>(fields: impl IntoIterator<Item = Field<'f>>) -> bool {
    fields.into_iter().next().is_some_and(|status| status.value().first() < Some(&b'3'))
}

#[derive(Default)]
pub(super) struct UnreadRequests {
    /// By [`StreamKey::slot`], which bounds them by the number of streams that were open at once. The entry of a stream that has ended stays
    /// until the next call of [`reset_due`](Self::reset_due), or until another stream has its slot.
    requests: BTreeMap<usize, UnreadRequest>,
}

struct UnreadRequest {
    key: StreamKey,
    /// The status of the response was below 300.
    is_accepted: bool,
    deadline: Duration,
    /// Content discarded so far, in bytes.
    discarded: usize,
    /// Content for which no window is granted before the stream has ended, in bytes.
    withheld: usize,
    /// The stream is not reset before this; `None` until the response has left.
    grace_end: Option<Duration>,
}

impl UnreadRequest {
    fn is_over_limit(&self) -> bool {
        self.discarded > if self.is_accepted { ACCEPTED_LEN_MAX } else { LEN_MAX }
    }

    /// Returns what was withheld after the stream has ended: the other streams of the connection may use its window.
    fn release(&self, core: &mut Connection) {
        let _ = core.release_capacity(self.key, self.withheld);
    }
}

impl UnreadRequests {
    pub(super) fn add(&mut self, core: &mut Connection, key: StreamKey, is_accepted: bool, now: Duration) {
        if self.get(key).is_some() {
            return;
        }
        let deadline = now + TIMEOUT;
        let request =
            UnreadRequest { key, is_accepted, deadline, discarded: 0, withheld: 0, grace_end: None };
        if let Some(ended) = self.requests.insert(key.slot(), request) {
            ended.release(core);
        }
    }

    fn get(&mut self, key: StreamKey) -> Option<&mut UnreadRequest> {
        self.requests.get_mut(&key.slot()).filter(|request| request.key == key)
    }

    /// Content without a reader has arrived. Returns whether window is granted for it; otherwise
    /// [`reset_due`](Self::reset_due) grants it to the connection later.
    pub(super) fn discard(&mut self, key: StreamKey, len: usize) -> bool {
        let Some(request) = self.get(key) else { return true };
        request.discarded += len;
        if request.is_accepted {
            request.deadline += Duration::from_secs(1) * len as u32 / BYTES_PER_SECOND_MIN as u32;
        }
        let is_over_limit = request.is_over_limit();
        request.withheld += if is_over_limit { len } else { 0 };
        !is_over_limit
    }

    /// Nothing was read for this time.
    pub(super) fn postpone(&mut self, time: Duration) {
        self.requests.values_mut().for_each(|request| request.deadline += time);
    }

    /// When [`reset_due`](Self::reset_due) is to be called next. An overdue request waits for its response to leave, not for
    /// time.
    pub(super) fn deadline(&self, now: Duration, is_reading: bool) -> Option<Duration> {
        let deadlines = |request: &UnreadRequest| {
            request.grace_end.into_iter().chain(Some(request.deadline).filter(|_| is_reading))
        };
        self.requests.values().flat_map(deadlines).filter(|&deadline| deadline > now).min()
    }

    /// Resets the streams that exceeded the length, or the time while this end reads, [`GRACE`] after their responses have left.
    pub(super) fn reset_due(&mut self, core: &mut Connection, now: Duration, is_reading: bool) {
        self.requests.retain(|_, request| {
            if core.contains(request.key) {
                if core.queued(request.key) > 0 {
                    return true;
                }
                let grace_end = *request.grace_end.get_or_insert(now + GRACE);
                let within_limits = !request.is_over_limit() && (now < request.deadline || !is_reading);
                if within_limits || now < grace_end {
                    return true;
                }
                let code = match core.role() {
                    Role::Server => ErrorCode::NO_ERROR,
                    Role::Client => ErrorCode::CANCEL,
                };
                let _ = core.reset(request.key, code);
            }
            request.release(core);
            false
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use wireloom_http2::field::{Field, Token};
    use wireloom_testing::http2::{Frame, PREFACE, join};

    use super::super::testing::{receive, server};
    use super::*;

    /// Content for which no window was granted, after this much of a request that was answered with `status`.
    fn withheld(status: &[u8], len: usize) -> u64 {
        let shared = server();
        let opening = [PREFACE, &join(&[Frame::settings(&[]), Frame::post(1)])].concat();
        let key = receive(&shared, &opening)[0].key;
        shared.send_response(key, [Field::known(Token::Status, status)], "text".into()).unwrap();
        for _ in 0..len / 1_024 {
            receive(&shared, &Frame::data(1, vec![7; 1_024]).to_bytes());
        }
        shared.lock().core.memory().held
    }

    #[test]
    fn a_refused_request_gets_no_window_beyond_the_limit() {
        for status in [b"404", b"302"] {
            assert_eq!(withheld(status, LEN_MAX), 0);
            assert_eq!(withheld(status, LEN_MAX + 1_024), 1_024);
            assert_eq!(withheld(status, LEN_MAX + 4_096), 4_096);
        }
    }

    #[test]
    fn requests_that_have_ended_take_no_memory() {
        let shared = server();
        receive(&shared, &[PREFACE, &Frame::settings(&[]).to_bytes()].concat());
        for number in 0..200 {
            let stream = 2 * number + 1;
            let key = receive(&shared, &Frame::post(stream).to_bytes())[0].key;
            shared.send_response(key, [Field::known(Token::Status, b"204")], "".into()).unwrap();
            receive(&shared, &Frame::data(stream, *b"7").end_stream().to_bytes());
            let state = shared.lock();
            assert_eq!(state.core.streams(), 0);
            assert!(state.unread.requests.len() <= 1, "{number}");
        }
    }

    // Without it curl 7.88 would wait forever.
    #[test]
    fn an_accepted_request_gets_window_for_the_rest() {
        assert_eq!(withheld(b"200", 2 * LEN_MAX), 0);
    }
}
