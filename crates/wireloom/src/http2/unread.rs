//! Requests that were answered before they ended; the rest is not read (RFC 9113 §8.1).

use std::time::Duration;

use wireloom_http2::error::ErrorCode;
use wireloom_http2::{Connection, StreamKey};

/// The maximum length of the content that is discarded before the stream is reset, in bytes. A short request ends without a reset,
/// which some clients would report as a failure.
const LEN_MAX: usize = 64 << 10;

/// The maximum time for which content is discarded before the stream is reset.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The time in which a client reads the response before its stream is reset. Some clients, such as curl 7.88, take a reset that
/// comes while they send for a failure although they have received the response.
const GRACE: Duration = Duration::from_millis(250);

#[derive(Default)]
pub(super) struct UnreadRequests {
    requests: Vec<UnreadRequest>,
}

struct UnreadRequest {
    key: StreamKey,
    deadline: Duration,
    /// Content discarded so far, in bytes.
    discarded: usize,
    /// The stream is not reset before this; `None` until the response has left.
    grace_end: Option<Duration>,
}

impl UnreadRequests {
    pub(super) fn add(&mut self, key: StreamKey, now: Duration) {
        if self.requests.iter().all(|request| request.key != key) {
            let deadline = now + TIMEOUT;
            self.requests.push(UnreadRequest { key, deadline, discarded: 0, grace_end: None });
        }
    }

    pub(super) fn discarded(&mut self, key: StreamKey, len: usize) {
        if let Some(request) = self.requests.iter_mut().find(|request| request.key == key) {
            request.discarded += len;
        }
    }

    /// When [`reset_due`](Self::reset_due) is to be called next. An overdue request waits for its response to leave, not for
    /// time.
    pub(super) fn deadline(&self, now: Duration) -> Option<Duration> {
        let deadlines = |request: &UnreadRequest| request.grace_end.into_iter().chain([request.deadline]);
        self.requests.iter().flat_map(deadlines).filter(|&deadline| deadline > now).min()
    }

    /// Resets with NO_ERROR the streams that exceeded the length or the time, [`GRACE`] after their responses have left.
    pub(super) fn reset_due(&mut self, core: &mut Connection, now: Duration) {
        self.requests.retain_mut(|request| {
            if !core.contains(request.key) {
                return false;
            }
            if core.queued(request.key) > 0 {
                return true;
            }
            let grace_end = *request.grace_end.get_or_insert(now + GRACE);
            let within_limits = request.discarded <= LEN_MAX && now < request.deadline;
            if within_limits || now < grace_end {
                return true;
            }
            let _ = core.reset(request.key, ErrorCode::NO_ERROR);
            false
        });
    }
}
