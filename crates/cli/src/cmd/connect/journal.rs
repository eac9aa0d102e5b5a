//! Records the events of an open WebSocket: messages to the output, and notes (`-vv`) or JSON (`--json`).

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use wireloom::client::{Connected, Opened, url_without_secrets};
use wireloom::wireloom_ws::frame::Header;
use wireloom::wireloom_ws::{Cause, End, Initiator, Opcode};
use wireloom::{Observer, ObserverEvent};

use super::notes::{Notes, timestamp};
use super::output::Output;
use crate::args::{Connect, Format};
use crate::terminal::{self, count};

/// The number of characters of a message that `-vv` shows.
const PREVIEW_LEN: usize = 64;

/// The maximum number of unanswered pings that are remembered.
const PINGS_MAX: usize = 64;

/// Records events. Clones record to the same place.
#[derive(Clone)]
pub(super) struct Journal(Arc<Inner>);

struct Inner {
    notes: Notes,
    output: Mutex<Output>,
    verbose: u8,
    is_quiet: bool,
    is_json: bool,
    /// A person types the messages.
    is_interactive: bool,
    /// When the unanswered pings were sent.
    pings: Mutex<VecDeque<Instant>>,
    /// The user asked for a ping: the round-trip time is printed without `-vv` too.
    shows_pongs: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Sent,
    Received,
}

impl Direction {
    fn mark(self) -> &'static str {
        if self == Self::Sent { ">" } else { "<" }
    }

    fn name(self) -> &'static str {
        if self == Self::Sent { "out" } else { "in" }
    }
}

impl Journal {
    pub(super) fn new(args: &Connect, output: Output, notes: &Notes) -> Self {
        Self(Arc::new(Inner {
            notes: notes.clone(),
            output: Mutex::new(output),
            verbose: args.display.verbose,
            is_quiet: args.display.quiet,
            is_json: args.display.json,
            is_interactive: is_interactive(args),
            pings: Mutex::default(),
            shows_pongs: AtomicBool::new(false),
        }))
    }

    fn output(&self) -> MutexGuard<'_, Output> {
        self.0.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn notes(&self) -> &Notes {
        &self.0.notes
    }

    /// An observer of frames.
    pub(super) fn observer(&self) -> Observer {
        let journal = self.clone();
        Observer::new(move |event| match event {
            ObserverEvent::FrameRead(frame) => journal.frame(frame, Direction::Received),
            ObserverEvent::FrameWritten(frame) => journal.frame(frame, Direction::Sent),
            _ => {}
        })
    }

    /// Records that the WebSocket at this URL is open. `head` is that of the response, if it is to be printed.
    pub(super) fn opened(&self, url: &str, opened: &Opened, head: Option<&[u8]>) -> io::Result<()> {
        let Opened { version, status, headers, socket, .. } = opened;
        self.begin();
        let compressed = if socket.is_compressed() { ", compressed" } else { "" };
        let over = format!(" over {}{compressed}", super::trace::version_name(*version));
        self.print_open(url, &over, socket.subprotocol(), "/ping, /close and /binary");
        if self.0.is_json {
            let headers: Vec<Value> =
                headers.iter().map(|(name, value)| json!([name, String::from_utf8_lossy(value)])).collect();
            return self.json(Direction::Received, "open", |event| {
                event.insert("status".into(), json!(status));
                event.insert("subprotocol".into(), json!(socket.subprotocol()));
                event.insert("headers".into(), json!(headers));
            });
        }
        head.map_or(Ok(()), |head| self.output().head(head))
    }

    /// Records that a WebSocket of `--reconnect` is open, as [`opened`](Self::opened) does for the only one.
    pub(super) fn connected(&self, url: &str, connected: &Connected, head: Option<&[u8]>) -> io::Result<()> {
        self.begin();
        match connected.gap {
            None => self.print_open(url, "", connected.subprotocol.as_deref(), "/close and /binary"),
            Some(gap) => {
                let gap = gap.as_secs_f64();
                self.0
                    .notes
                    .print(&format!("* open again; messages sent to this end in {gap:.1} s are lost"));
            }
        }
        head.map_or(Ok(()), |head| self.output().head(head))
    }

    /// Prints how the WebSocket was opened, and to a person how to leave.
    fn print_open(&self, url: &str, how: &str, subprotocol: Option<&str>, commands: &str) {
        let subprotocol = subprotocol.map(|name| format!(", subprotocol {name}")).unwrap_or_default();
        if self.0.is_interactive && !self.0.is_json {
            let url = url_without_secrets(url);
            let keys = format!("Ctrl-D leaves; {commands} are commands");
            self.0.notes.print(&format!("* {url} is open{how}{subprotocol}. {keys}"));
        } else if self.0.verbose > 0 {
            self.0.notes.print(&format!("* open{how}{subprotocol}"));
        }
    }

    /// The output is needed from now on.
    pub(super) fn begin(&self) {
        self.output().begin();
    }

    /// Records a message that was sent or received.
    pub(super) fn message(&self, direction: Direction, bytes: &[u8], is_text: bool) -> io::Result<()> {
        if self.0.verbose > 1 {
            let kind = if is_text { "text" } else { "binary" };
            let len = count(bytes.len() as u64, "byte");
            let preview = preview(bytes, is_text);
            self.0.notes.print(&format!("{} {kind}, {len}: {preview}", direction.mark()));
        }
        if self.0.is_json {
            return self.json(direction, if is_text { "text" } else { "binary" }, |event| {
                event.insert("length".into(), json!(bytes.len()));
                match std::str::from_utf8(bytes) {
                    Ok(text) if is_text => event.insert("payload".into(), json!(text)),
                    _ => event.insert("base64".into(), json!(STANDARD.encode(bytes))),
                };
            });
        }
        if direction == Direction::Received && !self.0.is_quiet {
            return self.output().message(bytes, is_text);
        }
        Ok(())
    }

    /// Records that the user sends a ping, so that its pong is printed.
    pub(super) fn expect_pong(&self) {
        self.0.shows_pongs.store(true, Ordering::Relaxed);
    }

    /// Records that the WebSocket is closed.
    pub(super) fn closed(&self, end: &End) {
        let is_local = end.by == Initiator::Local;
        // The code and reason of the peer's Close frame are always printed, those of ours to a person. Errors are printed elsewhere.
        let is_close = matches!(end.cause, Cause::Close { .. });
        let is_shown = is_close && (end.by == Initiator::Peer || self.0.is_interactive);
        if self.0.verbose > 0 || (is_shown && !self.0.is_json) {
            let by = match end.by {
                Initiator::Local => "this end",
                Initiator::Peer => "the peer",
                Initiator::Transport => "the network",
            };
            self.0.notes.print(&format!("* closed by {by} with {}", describe(end)));
        }
        if self.0.is_json {
            let direction = if is_local { Direction::Sent } else { Direction::Received };
            // The output may have failed before.
            let _ = self.json(direction, "close", |event| {
                event.insert("code".into(), json!(u16::from(end.code())));
                let reason = if let Cause::Close { reason, .. } = &end.cause { reason } else { "" };
                event.insert("reason".into(), json!(reason));
            });
        }
    }

    pub(super) fn flush(&self) -> io::Result<()> {
        self.output().flush()
    }

    /// Runs the future. The output is flushed whenever it waits.
    ///
    /// # Errors
    /// The output cannot be written.
    pub(super) async fn flushing<T>(&self, running: impl Future<Output = T>) -> io::Result<T> {
        let mut running = pin!(running);
        poll_fn(|cx| match running.as_mut().poll(cx) {
            Poll::Ready(ended) => Poll::Ready(Ok(ended)),
            Poll::Pending => match self.flush() {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
        })
        .await
    }

    fn frame(&self, frame: &Header, direction: Direction) {
        /// RFC 7692 §6: RSV1 of the first frame of a message.
        const COMPRESSED: u8 = 4;
        let is_ping = frame.opcode == Opcode::Ping;
        let is_pong = frame.opcode == Opcode::Pong;
        let mut round_trip = None;
        let mut pings = self.0.pings.lock().unwrap_or_else(PoisonError::into_inner);
        if is_ping && direction == Direction::Sent && pings.len() < PINGS_MAX {
            pings.push_back(Instant::now());
        }
        if is_pong && direction == Direction::Received {
            round_trip = pings.pop_front().map(|sent| sent.elapsed());
        }
        drop(pings);
        let is_shown = match self.0.verbose {
            3.. => true,
            2 => frame.opcode.is_control(),
            _ => round_trip.is_some() && self.0.shows_pongs.load(Ordering::Relaxed),
        };
        if is_shown {
            let kind = format!("{:?}", frame.opcode).to_lowercase();
            let frame_word = if self.0.verbose > 2 { " frame" } else { "" };
            let compressed = if frame.rsv & COMPRESSED > 0 { ", compressed" } else { "" };
            let more = if frame.fin { "" } else { ", not the last" };
            let len = count(frame.payload_len, "byte");
            let time = round_trip.map(|time| format!(", round trip {}", millis(time))).unwrap_or_default();
            self.0
                .notes
                .print(&format!("{} {kind}{frame_word}, {len}{compressed}{more}{time}", direction.mark()));
        }
        if self.0.is_json && (is_ping || is_pong) {
            // The output may have failed before.
            let _ = self.json(direction, if is_ping { "ping" } else { "pong" }, |event| {
                event.insert("length".into(), json!(frame.payload_len));
                if let Some(time) = round_trip {
                    event.insert("round_trip_ms".into(), json!(time.as_secs_f64() * 1e3));
                }
            });
        }
    }

    fn json(
        &self,
        direction: Direction,
        kind: &str,
        fill: impl FnOnce(&mut Map<String, Value>),
    ) -> io::Result<()> {
        let mut event = Map::new();
        event.insert("time".into(), json!(timestamp()));
        event.insert("direction".into(), json!(direction.name()));
        event.insert("type".into(), json!(kind));
        fill(&mut event);
        let line = terminal::visible_json(&Value::Object(event).to_string());
        self.output().line(&line)
    }
}

/// Whether lines are edited on a terminal.
pub(super) fn is_interactive(args: &Connect) -> bool {
    use std::io::IsTerminal as _;
    args.reads_input()
        && args.messages.input == Format::Lines
        && io::stdin().is_terminal()
        && io::stdout().is_terminal()
}

fn preview(bytes: &[u8], is_text: bool) -> String {
    let text = std::str::from_utf8(bytes).ok().filter(|_| is_text);
    let Some(text) = text else {
        return terminal::binary(bytes).split_once(") ").map_or_else(String::new, |(_, hex)| hex.to_owned());
    };
    let mut shown: String = text.chars().take(PREVIEW_LEN).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

fn millis(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}

/// The close code and reason.
pub(super) fn describe(end: &End) -> String {
    match &end.cause {
        Cause::Close { reason, .. } if !reason.is_empty() => format!("{}: {reason}", end.code()),
        _ => end.code().to_string(),
    }
}
