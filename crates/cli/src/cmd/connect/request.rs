//! `http` and `https` URLs: a request whose content streams from an argument, a file or the input, and a response whose content
//! streams to the output.

use std::fs::File;
use std::io::{self, Read};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use wireloom::client::{Request, Response, is_same_origin, redirect_url, url_without_secrets};
use wireloom::{Body, Error, Headers};

use super::connector;
use super::notes::Notes;
use super::output::Output;
use super::trace::{Trace, print_failure};
use crate::args::Connect;
use crate::exit::Exit;
use crate::terminal::count;

/// The number of bytes that are read at once.
const CHUNK_LEN: usize = 64 << 10;

/// How long the head of a response may take.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the content of a response may take to bring another [`PROGRESS_LEN`] bytes.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
const PROGRESS_LEN: usize = 1 << 10;

const NO_RESPONSE: &str = "the response did not arrive in time";

/// Why there is no complete response.
enum Failure {
    Request(Error),
    Usage(String),
    /// The awaited event, and the option that sets its timeout.
    TimedOut(&'static str, &'static str),
    /// The response is complete, with this status; `--data` was not sent to its end.
    Unsent(u16, Error),
    /// The content ended early; this has been reported.
    Incomplete,
    Output(io::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Request(error)
    }
}

/// Makes the request that the arguments describe, and follows redirects if they allow that.
pub(super) async fn run(args: &Connect, mut output: Output, trace: &Trace, notes: &Notes) -> Exit {
    match exchange(args, &mut output, trace, notes).await {
        Ok(status) if status < 400 => Exit::Success,
        Ok(status) => {
            notes.print_error(&format!("the server answered {status}"));
            Exit::Refused
        }
        Err(Failure::Request(error)) => {
            print_failure(args, &error, notes);
            Exit::of_opening(&error)
        }
        Err(Failure::Usage(error)) => {
            notes.print_error(&error);
            Exit::Usage
        }
        Err(Failure::TimedOut(what, option)) => {
            notes.print_error(&format!("{}: {what} ({option})", url_without_secrets(&args.url)));
            Exit::TimedOut
        }
        Err(Failure::Unsent(status, error)) => {
            let url = url_without_secrets(&args.url);
            notes.print_error(&format!(
                "{url}: the server answered {status}, but not all of --data was sent: {error}"
            ));
            Exit::Broken
        }
        Err(Failure::Incomplete) => Exit::Broken,
        Err(Failure::Output(error)) => notes.unwritable(&error),
    }
}

/// Makes the request and writes the response, within `--timeout`; returns its status.
async fn exchange(args: &Connect, output: &mut Output, trace: &Trace, notes: &Notes) -> Result<u16, Failure> {
    let deadline = args.timeout.and_then(|limit| Instant::now().checked_add(limit));
    let response = before(deadline, answered(args, output, trace, notes)).await;
    let response = response.ok_or(Failure::TimedOut(NO_RESPONSE, "--timeout"))??;
    let status = response.status;
    // The server may have answered before all of `--data` has arrived.
    let closed = before(deadline, response.close()).await;
    let closed = closed.ok_or(Failure::TimedOut("not all of --data was sent in time", "--timeout"))?;
    closed.map_err(|error| Failure::Unsent(status, error))?;
    Ok(status)
}

/// The output of `future`; `None` if it takes longer.
async fn before<F: Future>(deadline: Option<Instant>, future: F) -> Option<F::Output> {
    match deadline {
        Some(deadline) => timeout_at(deadline, future).await.ok(),
        None => Some(future.await),
    }
}

/// Makes the request and writes the response.
async fn answered(
    args: &Connect,
    output: &mut Output,
    trace: &Trace,
    notes: &Notes,
) -> Result<Response, Failure> {
    let (mut url, mut redirects, mut keeps_secrets) = (args.url.clone(), args.redirects_max(), true);
    let mut method = match &args.request.method {
        Some(method) => method.clone(),
        None if args.request.head => "HEAD".to_owned(),
        None if args.request.data.is_some() => "POST".to_owned(),
        None => "GET".to_owned(),
    };
    let mut has_content = true;
    loop {
        let body = if has_content { body(args).map_err(Failure::Usage)? } else { None };
        let request = Request::new(&*method, &*url).with_body(body.unwrap_or_default());
        let response = send(args, &url, keeps_secrets, request, trace).await?;
        let location = matches!(response.status, 301 | 302 | 303 | 307 | 308)
            .then(|| response.headers.get("location").map(<[u8]>::to_vec))
            .flatten();
        let Some(location) = location.filter(|_| redirects > 0) else {
            return receive(args, response, output, trace, notes).await;
        };
        redirects -= 1;
        let next = redirect_url(&url, &location).ok_or(Error::Redirect)?;
        // RFC 9110 §15.4.2 to §15.4.4: only POST becomes GET, except that 303 asks for GET or HEAD.
        let becomes_get = match response.status {
            301 | 302 => method == "POST",
            303 => method != "GET" && method != "HEAD",
            _ => false,
        };
        if becomes_get {
            (method, has_content) = ("GET".to_owned(), false);
        } else if has_content && args.request.data.as_deref() == Some("@-") {
            return Err(Failure::Usage("the server redirects, and --data @- cannot be sent twice".into()));
        }
        if args.display.verbose > 0 {
            notes.print(&format!("* redirected to {}", url_without_secrets(&next)));
        }
        keeps_secrets &= is_same_origin(&url, &next);
        url = next;
    }
}

/// Sends a request. Returns the response once its head has arrived.
async fn send(
    args: &Connect,
    url: &str,
    keeps_secrets: bool,
    request: Request,
    trace: &Trace,
) -> Result<Response, Failure> {
    let mut connector = connector::new(args, url, trace, None).map_err(Failure::Usage)?;
    if !keeps_secrets {
        connector = connector.for_other_origin();
    }
    let mut exchange = if args.route.http2 {
        connector.connect_http2(url).await?.send(request)?
    } else {
        connector.send(request).await?
    };
    let head = async {
        while let Some(interim) = exchange.informational().await? {
            if args.display.verbose > 0 {
                trace.response(interim.version, interim.status, &interim.headers);
            }
        }
        exchange.response().await
    };
    let limit = args.request.response_timeout.unwrap_or(RESPONSE_TIMEOUT);
    let response = timeout(limit, head).await;
    let response = response.map_err(|_| Failure::TimedOut(NO_RESPONSE, "--response-timeout"))??;
    if args.display.verbose > 0 {
        trace.response(response.version, response.status, &response.headers);
    }
    Ok(response)
}

/// Writes the content as it arrives.
async fn receive(
    args: &Connect,
    mut response: Response,
    output: &mut Output,
    trace: &Trace,
    notes: &Notes,
) -> Result<Response, Failure> {
    output.begin();
    if args.shows_head() {
        let head = trace.head(response.version, response.status, &response.headers);
        output.head(&head).map_err(Failure::Output)?;
    }
    let kind = response.headers.get("content-type").unwrap_or_default();
    let is_event_stream = kind.starts_with(b"text/event-stream");
    let stall_timeout = args.request.stall_timeout.or((!is_event_stream).then_some(STALL_TIMEOUT));
    let mut len = 0;
    let (mut waited, mut reported) = (Duration::ZERO, 0);
    loop {
        let chunk = match stall_timeout {
            Some(limit) => within(limit, &mut waited, response.body.chunk())
                .await
                .ok_or(Failure::TimedOut(NO_RESPONSE, "--stall-timeout"))?,
            None => response.body.chunk().await,
        };
        let chunk = match chunk {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break,
            Err(error) => {
                output.flush().map_err(Failure::Output)?;
                notes.print_error(&format!(
                    "{}: the content is incomplete: {error}",
                    url_without_secrets(&args.url)
                ));
                return Err(Failure::Incomplete);
            }
        };
        len += chunk.len();
        if len - reported >= PROGRESS_LEN {
            (waited, reported) = (Duration::ZERO, len);
        }
        if !args.display.quiet {
            output.bytes(&chunk).and_then(|()| output.flush()).map_err(Failure::Output)?;
        }
    }
    output.flush().map_err(Failure::Output)?;
    if args.display.verbose > 0 {
        let trailers: Headers = response.body.trailers().unwrap_or_default();
        trace.trailers(trailers.iter());
        notes.print(&format!("* {} received", count(len as u64, "byte")));
    }
    Ok(response)
}

/// Waits for `future` until `waited` has grown to `limit`. Only this wait counts, in steps: not the time in which the output is written, or
/// in which the process is stopped.
async fn within<F: Future>(limit: Duration, waited: &mut Duration, future: F) -> Option<F::Output> {
    const STEP: Duration = Duration::from_secs(1);
    let mut future = pin!(future);
    loop {
        let step = STEP.min(limit.saturating_sub(*waited));
        let begin = Instant::now();
        let output = timeout(step, &mut future).await;
        *waited += begin.elapsed().min(step);
        if output.is_ok() || *waited >= limit {
            return output.ok();
        }
    }
}

/// The content that `--data` names.
fn body(args: &Connect) -> Result<Option<Body>, String> {
    let Some(data) = &args.request.data else { return Ok(None) };
    let source: Box<dyn Read + Send> = match data.strip_prefix('@') {
        None => return Ok(Some(data.clone().into())),
        Some("-") => Box::new(io::stdin()),
        Some(file) => Box::new(File::open(file).map_err(|error| format!("--data {data}: {error}"))?),
    };
    Ok(Some(stream(source)))
}

/// A body that streams from `source`, at the pace of the server. A thread reads, because neither a file nor a terminal
/// can be read without blocking.
fn stream(mut source: Box<dyn Read + Send>) -> Body {
    let (read, chunks) = mpsc::channel(1);
    std::thread::spawn(move || {
        loop {
            let mut chunk = vec![0; CHUNK_LEN];
            let read_len = source.read(&mut chunk);
            chunk.truncate(*read_len.as_ref().unwrap_or(&0));
            let next = match read_len {
                Ok(0) => return,
                Ok(_) => Ok(chunk.into()),
                Err(error) => Err(io::Error::new(error.kind(), format!("--data cannot be read: {error}"))),
            };
            let is_last = next.is_err();
            if read.blocking_send(next).is_err() || is_last {
                return;
            }
        }
    });
    Body::from_stream(Chunks(chunks))
}

/// Chunks that the thread has read.
struct Chunks(mpsc::Receiver<io::Result<Bytes>>);

impl Stream for Chunks {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        self.0.poll_recv(cx)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_waiting_for_the_server_counts() {
        let limit = Duration::from_millis(200);
        let mut waited = Duration::ZERO;
        for _ in 0..3 {
            assert_eq!(within(limit, &mut waited, async { 7 }).await, Some(7));
            // The output is written.
            std::thread::sleep(limit);
        }
        assert!(waited < limit, "{waited:?}");
        assert_eq!(within(limit, &mut waited, std::future::pending::<()>()).await, None);
        assert_eq!(waited, limit);
    }
}
