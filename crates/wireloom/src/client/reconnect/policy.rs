//! Whether and when a lost connection is opened again.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use wireloom_ws::{Cause, CloseCode, End};

use crate::client::ProxyError;
use crate::error::{Error, HttpError, WebSocketError};

/// The maximum `Retry-After` that is respected.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// The configuration of [`Reconnecting`](super::Reconnecting). Each field documents the reason for its default. Fields may be added:
/// use struct update.
///
/// ```
/// use std::time::Duration;
/// use wireloom::client::{ReconnectPolicy, Retry};
///
/// let policy = ReconnectPolicy {
///     delay_max: Duration::from_secs(5),
///     retry: Retry::when(|reason| reason.is_temporary()),
///     ..ReconnectPolicy::default()
/// };
/// ```
#[derive(Clone, Debug)]
pub struct ReconnectPolicy {
    /// The bound on the first delay; each further one is twice the last. 1 s.
    pub delay_first: Duration,
    /// The bound on all delays. 30 s.
    ///
    /// A delay is random, between zero and its bound, so that many clients of a server that failed do not reconnect at once
    /// (RFC 6455 §7.2.3). It is added to the `Retry-After` of a refusal, of which an hour is respected at most.
    pub delay_max: Duration,
    /// Consecutive attempts until a connection has been stable. Not limited by default.
    pub attempts_max: Option<u32>,
    /// A connection that was open for this time resets delays and the number of attempts. 60 s: one that is lost before
    /// that counts like a refused one.
    pub stable_after: Duration,
    /// After this time from sending the peer is pinged, to learn which messages have arrived. 1 s; at least a millisecond.
    pub confirm_after: Duration,
    /// The connection is lost when that ping has not been answered, no byte has been received, and none up to the ping has arrived at the other
    /// end, for this long: the kernel tells on Linux what that has acknowledged, elsewhere what it was given counts. Time in which this end does
    /// not read, or does not run, does not count. 30 s: longer than the pauses of a mobile network.
    pub confirm_timeout: Duration,
    /// Bytes of messages that may have been lost to keep and return: the newest. A message counts at least what it takes when it is empty,
    /// about 40 bytes. 0 by default: those that had not arrived with the failure are [only counted](super::Loss::unconfirmed).
    pub keep_len_max: usize,
    /// Whether to try again. [`LossReason::is_temporary`] by default.
    pub retry: Retry,
}

impl Default for ReconnectPolicy {
    fn default() -> Self {
        Self {
            delay_first: Duration::from_secs(1),
            delay_max: Duration::from_secs(30),
            attempts_max: None,
            stable_after: Duration::from_secs(60),
            confirm_after: Duration::from_secs(1),
            confirm_timeout: Duration::from_secs(30),
            keep_len_max: 0,
            retry: Retry::default(),
        }
    }
}

impl ReconnectPolicy {
    /// The delay before the attempt after `failed` failed ones; `None` when there is none. `random` is uniformly distributed.
    pub(super) fn delay(&self, reason: &LossReason, failed: u32, random: u64) -> Option<Duration> {
        if self.attempts_max.is_some_and(|max| failed >= max) || !(self.retry.0)(reason) {
            return None;
        }
        let bound = match reason {
            LossReason::NotReopened(error) if !is_temporary_error(error) => self.delay_max,
            _ => self.delay_first.saturating_mul(1 << failed.min(31)).min(self.delay_max),
        };
        let nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        let delay = ((u128::from(nanos) * u128::from(random)) >> 64) as u64;
        // Added to the server's `Retry-After`. Otherwise all of its clients would reconnect at the same time.
        Some(reason.retry_after().saturating_add(Duration::from_nanos(delay)))
    }
}

/// Decides whether to try again: any `Fn(&LossReason) -> bool`.
#[derive(Clone)]
pub struct Retry(Arc<dyn Fn(&LossReason) -> bool + Send + Sync>);

impl Retry {
    /// Tries again when `retry` returns true.
    pub fn when(retry: impl Fn(&LossReason) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(retry))
    }
}

impl Default for Retry {
    /// [`LossReason::is_temporary`].
    fn default() -> Self {
        Self::when(LossReason::is_temporary)
    }
}

impl fmt::Debug for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Retry")
    }
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LossReason {
    /// The connection could not be opened, and none was open before; or [`prepare`](super::Reconnecting::prepare) has returned this error.
    NotOpened(Error),
    /// The connection could not be opened again.
    NotReopened(Error),
    /// The connection was closed with a closing handshake, or by this end because the peer broke a rule; the end has the code.
    Closed(End),
    /// The connection was lost, or the peer was silent.
    Failed(WebSocketError),
}

impl LossReason {
    /// Whether trying again may help.
    ///
    /// It may help without a response: hosts that cannot be found or reached, timeouts, lost connections. It may help after
    /// temporary failures: the statuses 408, 425, 429 and 500 to 599, except 501 (not implemented) and 505 (HTTP version not
    /// supported), instead of a WebSocket, and the close codes 1001 (going away), 1005 (none), 1011 (internal error), 1012 (restart),
    /// 1013 (try again later) and 1014 (bad gateway). It does not help after 1000, after protocol errors of either end (1002, 1003,
    /// 1007 to 1010), after codes of the application (3000 to 4999), nor when TLS, credentials or the URL are not accepted.
    ///
    /// Once a connection was open, the URL is right, and only credentials that are not accepted (401, 403 and 407) are final: a load balancer
    /// may answer 404 while its servers restart, or present the wrong certificate. After what would have been final for the first connection the
    /// bound on the delay is [`delay_max`](ReconnectPolicy::delay_max).
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::NotOpened(error) => is_temporary_error(error),
            Self::NotReopened(error) => !is_refusal_of_credentials(error),
            Self::Closed(end) => match &end.cause {
                Cause::Close { code, .. } => {
                    matches!(code.map(CloseCode::value), None | Some(1001 | 1011..=1014))
                }
                Cause::Error(_) => false,
                _ => true,
            },
            Self::Failed(error) => !matches!(error, WebSocketError::Protocol(_)),
        }
    }

    /// The server's `Retry-After` (RFC 9110 §10.2.3).
    fn retry_after(&self) -> Duration {
        let (Self::NotOpened(Error::Refused(response)) | Self::NotReopened(Error::Refused(response))) = self
        else {
            return Duration::ZERO;
        };
        let value = response.header("retry-after").and_then(|value| std::str::from_utf8(value).ok());
        let Some(value) = value else { return Duration::ZERO };
        let delay = if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
            // A number that is too large is more than the maximum.
            Duration::from_secs(value.parse().unwrap_or(u64::MAX))
        } else {
            let date = httpdate::parse_http_date(value).ok();
            date.and_then(|date| date.duration_since(SystemTime::now()).ok()).unwrap_or_default()
        };
        delay.min(RETRY_AFTER_MAX)
    }
}

/// Whether a failure to open a connection says nothing about the next attempt.
fn is_temporary_error(error: &Error) -> bool {
    match error {
        Error::HostNotFound(_) | Error::ConnectTimeout | Error::HandshakeTimeout | Error::Io(_) => true,
        Error::Http(error) => is_temporary_failure(error),
        // The connection ended before the server's first byte, as that of one that restarts does. It may speak HTTP/2.
        #[cfg(feature = "http2")]
        Error::NoHttp2(None) => true,
        Error::Refused(response) => is_temporary_status(response.status()),
        Error::Proxy(ProxyError::Refused(status)) => is_temporary_status(*status),
        // RFC 1928 §6: failures of the network.
        Error::Proxy(ProxyError::Socks(code)) => matches!(code, 1 | 3..=6),
        Error::Proxy(error) => *error == ProxyError::ConnectionLost,
        _ => false,
    }
}

/// RFC 9110 §15.5.2, §15.5.4, §15.5.8.
fn is_refusal_of_credentials(error: &Error) -> bool {
    match error {
        Error::Refused(response) => matches!(response.status(), 401 | 403 | 407),
        Error::Proxy(ProxyError::Refused(status)) => *status == 407,
        _ => false,
    }
}

/// Lost connections; over HTTP/2 also a server that goes away, has no room, failed, or was silent for too long.
fn is_temporary_failure(error: &HttpError) -> bool {
    match error {
        HttpError::Closed | HttpError::ConnectionLost | HttpError::KeepaliveTimeout => true,
        HttpError::BodyTimeout | HttpError::NotProcessed | HttpError::Io(_) => true,
        #[cfg(feature = "http2")]
        HttpError::StreamReset(_) | HttpError::GoAway(_) => true,
        #[cfg(feature = "http2")]
        HttpError::Http2(error) => is_http2_timeout(error),
        _ => false,
    }
}

/// The peer was silent for too long, which says nothing about the next connection.
#[cfg(feature = "http2")]
fn is_http2_timeout(error: &wireloom_http2::error::Error) -> bool {
    use wireloom_http2::error::{Error, Exceeded, Violation};
    matches!(
        error,
        Error::Peer { violation: Violation::SettingsTimeout, .. }
            | Error::Limit { exceeded: Exceeded::Stalled, .. }
    )
}

/// RFC 9110 §15.5.9, §15.6, RFC 8470 §5.2, RFC 6585 §4. Load balancers have further statuses of 500 and more for servers that fail.
fn is_temporary_status(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500 | 502..=504 | 506..=599)
}

#[cfg(test)]
mod tests {
    use wireloom_ws::Initiator;
    use wireloom_ws::handshake::Response;

    use super::*;

    fn closed(code: u16) -> LossReason {
        let cause = Cause::Close { code: Some(CloseCode::new(code)), reason: String::new() };
        LossReason::Closed(End { by: Initiator::Peer, cause })
    }

    #[cfg(feature = "http2")]
    fn http2(violation: wireloom_http2::error::Violation) -> Error {
        let scope = wireloom_http2::error::Scope::Connection;
        Error::Http(HttpError::Http2(wireloom_http2::error::Error::Peer { violation, scope }))
    }

    fn refused(response: Response) -> LossReason {
        LossReason::NotOpened(Error::Refused(Box::new(response)))
    }

    // RFC 6455 §7.2.3.
    #[test]
    fn delays_are_random_below_a_bound_that_doubles() {
        let policy = ReconnectPolicy::default();
        let reason = LossReason::Failed(WebSocketError::ConnectionLost);
        let seconds = |failed, chance| policy.delay(&reason, failed, chance).unwrap().as_secs_f64().round();
        let most: Vec<f64> =
            [0, 1, 2, 3, 4, 5, 6, 32, u32::MAX].map(|failed| seconds(failed, u64::MAX)).to_vec();
        assert_eq!(most, [1., 2., 4., 8., 16., 30., 30., 30., 30.]);
        assert_eq!((seconds(4, 0), seconds(4, u64::MAX / 2)), (0., 8.));
        let huge = ReconnectPolicy { delay_max: Duration::MAX, delay_first: Duration::MAX, ..policy.clone() };
        assert!(huge.delay(&reason, 9, u64::MAX).unwrap() > Duration::from_secs(1 << 30));
    }

    // The server's address was right once. Its clients do not come back together when it is again.
    #[test]
    fn what_is_final_for_the_first_connection_waits_for_longer_afterwards() {
        let policy = ReconnectPolicy::default();
        let longest =
            |reason: &LossReason| policy.delay(reason, 0, u64::MAX).map(|delay| delay.as_secs_f64().round());
        let refused = |status| Error::Refused(Box::new(Response::refusal(status).unwrap()));
        for (error, first, again) in [
            (refused(404), None, Some(30.)),
            (refused(401), None, None),
            (refused(403), None, None),
            (Error::Proxy(ProxyError::Refused(407)), None, None),
            (Error::TlsRequired, None, Some(30.)),
            (Error::ConnectTimeout, Some(1.), Some(1.)),
        ] {
            assert_eq!(longest(&LossReason::NotOpened(error.clone())), first, "{error:?}");
            assert_eq!(longest(&LossReason::NotReopened(error.clone())), again, "{error:?}");
        }
    }

    #[test]
    fn stops_after_the_last_attempt() {
        let policy = ReconnectPolicy { attempts_max: Some(3), ..ReconnectPolicy::default() };
        let tries =
            |failed| policy.delay(&LossReason::Failed(WebSocketError::ConnectionLost), failed, 0).is_some();
        assert_eq!([0, 2, 3, 4].map(tries), [true, true, false, false]);
    }

    #[test]
    fn temporary_failures_are_retried() {
        for code in [1001, 1011, 1012, 1013, 1014] {
            assert!(closed(code).is_temporary(), "{code}");
        }
        for code in [1000, 1002, 1003, 1007, 1008, 1009, 1010, 3000, 4000, 4999] {
            assert!(!closed(code).is_temporary(), "{code}");
        }
        let temporary =
            [408, 425, 429].into_iter().chain(500..600).filter(|status| ![501, 505].contains(status));
        let temporary: Vec<u16> = temporary.collect();
        for status in 200..600 {
            let is_temporary = refused(Response::refusal(status).unwrap()).is_temporary();
            assert_eq!(is_temporary, temporary.contains(&status), "{status}");
        }
        for (error, is_temporary) in [
            (Error::HostNotFound(None), true),
            (Error::ConnectTimeout, true),
            (Error::Io(std::io::ErrorKind::ConnectionRefused.into()), true),
            (Error::Proxy(ProxyError::Refused(502)), true),
            (Error::Proxy(ProxyError::Refused(407)), false),
            (Error::Proxy(ProxyError::Socks(5)), true),
            (Error::Proxy(ProxyError::Socks(2)), false),
            (Error::Http(HttpError::NotProcessed), true),
            #[cfg(feature = "http2")]
            (Error::NoHttp2(None), true),
            #[cfg(feature = "http2")]
            (http2(wireloom_http2::error::Violation::SettingsTimeout), true),
            #[cfg(feature = "http2")]
            (http2(wireloom_http2::error::Violation::SettingsSize), false),
            #[cfg(feature = "http2")]
            (Error::NoHttp2(Some(wireloom_http2::error::Misuse::MessageInvalid.into())), false),
            (Error::NoExtendedConnect, false),
            (Error::Redirect, false),
        ] {
            assert_eq!(LossReason::NotOpened(error.clone()).is_temporary(), is_temporary, "{error:?}");
        }
        assert!(LossReason::Failed(WebSocketError::KeepaliveTimeout).is_temporary());
    }

    // RFC 9110 §10.2.3.
    #[test]
    fn respects_retry_after_up_to_a_bound() {
        let after = |value: &str| {
            let response = Response::refusal(503).unwrap().with_header("Retry-After", value).unwrap();
            ReconnectPolicy::default().delay(&refused(response), 0, 0).unwrap()
        };
        assert_eq!(after("7"), Duration::from_secs(7));
        let response = Response::refusal(503).unwrap().with_header("Retry-After", "7").unwrap();
        let longest = ReconnectPolicy::default().delay(&refused(response), 0, u64::MAX).unwrap();
        assert_eq!(longest.as_secs_f64().round(), 8.0, "clients do not come back together");
        assert_eq!(after("99999999"), RETRY_AFTER_MAX);
        assert_eq!(after("99999999999999999999999999"), RETRY_AFTER_MAX);
        assert_eq!(after("+7"), Duration::ZERO);
        assert_eq!(after(""), Duration::ZERO);
        assert_eq!(after("soon"), Duration::ZERO);
        assert_eq!(after("Fri, 31 Dec 1999 23:59:59 GMT"), Duration::ZERO);
        let later = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(100));
        assert!(after(&later) > Duration::from_secs(90) && after(&later) <= Duration::from_secs(100));
    }

    // RFC 9110 §5.6.7: IMF-fixdate, and the two obsolete forms. All of 2049 is further away than the bound.
    #[test]
    fn reads_every_form_of_retry_after() {
        for value in
            ["Sat, 06 Nov 2049 08:49:37 GMT", "Saturday, 06-Nov-49 08:49:37 GMT", "Sat Nov  6 08:49:37 2049"]
        {
            let response = Response::refusal(503).unwrap().with_header("Retry-After", value).unwrap();
            let delay = ReconnectPolicy::default().delay(&refused(response), 0, 0).unwrap();
            assert_eq!(delay, RETRY_AFTER_MAX, "{value}");
        }
    }
}
