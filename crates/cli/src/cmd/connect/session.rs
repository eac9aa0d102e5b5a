//! An open WebSocket: sending and receiving at once, until it is closed.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::watch;
use tokio::time::{Instant, Interval};
use wireloom::wireloom_ws::Initiator;
use wireloom::{CloseCode, Message, Receiver, Sender, WebSocket, WebSocketError};

use super::input::{Command, Input};
use super::journal::{Direction, Journal, describe};
use super::messages::{Interruption, Messages};
use super::output::encode_hex;
use super::script::{Payload, Script};
use crate::args::{Connect, Format};
use crate::exit::Exit;
use crate::signals::Signals;
use crate::terminal::count;

/// How long sending a last Close frame may take.
const LAST_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// After the end of the input, how long to wait for another message.
const LINGER: Duration = Duration::from_secs(3);

/// The same, when as many messages have arrived as were sent.
const LINGER_ANSWERED: Duration = Duration::from_millis(250);

/// The interval at which this checks for new messages.
const LINGER_STEP: Duration = Duration::from_millis(25);

/// Sends and receives as the arguments say.
pub(super) async fn run(
    args: &Connect,
    socket: WebSocket,
    script: &Script,
    signals: &mut Signals,
    journal: &Journal,
) -> Exit {
    let begin = Instant::now();
    let notes = journal.notes();
    let (mut sender, mut receiver) = socket.split();
    let (close, close_request) = watch::channel(None);
    let received = Cell::new(0);
    let mut inbox = Inbox::new(args, &script.expected, journal, &close, &received);
    let mut outbox = Outbox::new(args, journal, &script.sends, close_request, &received);
    let running =
        run_until_closed(args, &mut inbox, &mut receiver, &mut outbox, &mut sender, &close, signals);
    let result = match journal.flushing(running).await {
        Ok(result) => result,
        Err(error) => Ok(Some(inbox.unwritable(&error))),
    };
    let mut written = journal.flush();
    if let Ok(Some(_)) = result {
        // The exit code is known, perhaps before a Close frame was sent. The peer may not receive it any more.
        let _ = tokio::time::timeout(LAST_CLOSE_TIMEOUT, sender.close(CloseCode::NORMAL, "")).await;
    }
    // Restore the terminal before anything else is printed.
    let is_editing = outbox.messages.as_ref().is_some_and(Messages::is_editing);
    notes.end_editing(is_editing);
    drop(outbox);
    if let Some(end) = receiver.end() {
        journal.closed(&end);
        written = written.and_then(|()| journal.flush());
    }
    if args.display.verbose > 0 {
        let (messages, bytes) = (count(received.get(), "message"), count(inbox.bytes, "byte"));
        notes.print(&format!("* {messages}, {bytes} received in {:.3} s", begin.elapsed().as_secs_f64()));
    }
    match (result, written) {
        (Ok(None | Some(Exit::Success)), Err(error)) => inbox.unwritable(&error),
        (Ok(Some(exit)), _) => exit,
        (Ok(None), Ok(())) => inbox.exit(&receiver),
        (Err(error), _) => {
            notes.print_error(&error.to_string());
            Exit::Broken
        }
    }
}

/// Runs both directions until the WebSocket is closed. Returns `Some` if the exit code does not depend on how it is
/// closed.
async fn run_until_closed(
    args: &Connect,
    inbox: &mut Inbox<'_>,
    receiver: &mut Receiver,
    outbox: &mut Outbox<'_>,
    sender: &mut Sender,
    close: &watch::Sender<Option<CloseCode>>,
    signals: &mut Signals,
) -> Result<Option<Exit>, WebSocketError> {
    let notes = inbox.journal.notes();
    let connection = sender.clone();
    let mut receiving = pin!(inbox.run(receiver));
    let mut sending = pin!(outbox.run(sender));
    let timeout = args.timeout.filter(|_| args.is_expecting());
    // A flood of messages, which uses up the budget of the task, does not delay it.
    let mut timed_out = pin!(tokio::task::unconstrained(async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    }));
    let mut is_sending = true;
    let mut decided = None;
    let result = loop {
        // Each has the first turn half of the time: the one that has the second may have no budget left.
        let either = async {
            tokio::select! {
                received = &mut receiving => Either::Received(received),
                sent = &mut sending, if is_sending => Either::Sent(sent),
            }
        };
        tokio::select! {
            biased;
            ended = either => match ended {
                Either::Received(received) => break received,
                Either::Sent(sent) => {
                    is_sending = false;
                    match sent {
                        // The peer closed; the receiver reports why.
                        Err(WebSocketError::Closed) | Ok(None) => {}
                        // The received frames may contain the reason. If they do not, the receiver reports the error.
                        Err(_) if !connection.is_open() => {}
                        Ok(exit) => decided = decided.or(exit),
                        Err(error) => break Err(error),
                    }
                }
            },
            // Once this end closes, what was expected has arrived or the outcome is decided.
            () = &mut timed_out, if decided.is_none() && close.borrow().is_none() => {
                notes.print_error("timed out: --expect or --count was not met");
                decided = Some(Exit::Unmet);
                close.send_replace(Some(CloseCode::NORMAL));
                if !is_sending {
                    break Ok(None);
                }
            }
            // After the second signal the peer's Close is not awaited.
            _ = signals.recv() => {
                if decided.is_some() || !is_sending {
                    break Ok(None);
                }
                let is_unmet = args.is_expecting() && close.borrow().is_none();
                decided = Some(if is_unmet { Exit::Unmet } else { Exit::Success });
                close.send_replace(Some(CloseCode::GOING_AWAY));
            }
        }
    };
    // The peer may end the connection without an answer to Close.
    decided.map_or(result, |exit| Ok(Some(exit)))
}

/// The direction that has ended.
enum Either {
    Received(Result<Option<Exit>, WebSocketError>),
    Sent(Result<Option<Exit>, WebSocketError>),
}

/// The receiving direction.
struct Inbox<'a> {
    args: &'a Connect,
    journal: &'a Journal,
    close: &'a watch::Sender<Option<CloseCode>>,
    /// Messages that are still expected.
    expected: VecDeque<&'a [u8]>,
    /// Messages until the WebSocket is closed.
    remaining: Option<u64>,
    received: &'a Cell<u64>,
    bytes: u64,
}

impl<'a> Inbox<'a> {
    fn new(
        args: &'a Connect,
        expected: &'a [Vec<u8>],
        journal: &'a Journal,
        close: &'a watch::Sender<Option<CloseCode>>,
        received: &'a Cell<u64>,
    ) -> Self {
        let expected = expected.iter().map(Vec::as_slice).collect();
        Self { args, journal, close, expected, remaining: args.script.count, received, bytes: 0 }
    }

    async fn run(&mut self, receiver: &mut Receiver) -> Result<Option<Exit>, WebSocketError> {
        loop {
            let message = match receiver.recv().await {
                Ok(Some(message)) => message,
                Ok(None) => return Ok(None),
                // This end closes: nothing but the answer to Close is missing.
                Err(_) if self.close.borrow().is_some() => return Ok(None),
                Err(error) => return Err(error),
            };
            let exit = self.handle(&message);
            if exit.is_some() {
                return Ok(exit);
            }
        }
    }

    fn handle(&mut self, message: &Message<'_>) -> Option<Exit> {
        if self.remaining == Some(0) {
            // The peer sent it before it received the Close frame.
            return None;
        }
        let bytes = message.as_bytes();
        self.received.set(self.received.get() + 1);
        self.bytes += bytes.len() as u64;
        if let Err(error) = self.journal.message(Direction::Received, bytes, message.is_text()) {
            return Some(self.unwritable(&error));
        }
        if let Some(expected) = self.expected.pop_front()
            && expected != bytes
        {
            let format = self.args.messages.output;
            let (expected, received) = (shown(expected, format), shown(bytes, format));
            self.journal.notes().print_error(&format!("expected {expected}, received {received}"));
            self.request_close();
            return Some(Exit::Unmet);
        }
        if let Some(remaining) = &mut self.remaining {
            *remaining -= 1;
        }
        if self.args.is_expecting() && self.is_satisfied() {
            self.request_close();
        }
        None
    }

    fn request_close(&self) {
        self.close.send_replace(Some(CloseCode::NORMAL));
    }

    /// All expected messages have arrived.
    fn is_satisfied(&self) -> bool {
        self.expected.is_empty() && self.remaining.is_none_or(|remaining| remaining == 0)
    }

    /// The exit code when the output cannot be written. If its reader has gone, no expectation was met.
    fn unwritable(&self, error: &io::Error) -> Exit {
        match self.journal.notes().unwritable(error) {
            Exit::Success if self.args.is_expecting() && !self.is_satisfied() => Exit::Unmet,
            exit => exit,
        }
    }

    /// The exit code for a WebSocket that was closed.
    fn exit(&self, receiver: &Receiver) -> Exit {
        let end = receiver.end();
        if !self.is_satisfied() {
            let with = end.map(|end| format!(" with {}", describe(&end))).unwrap_or_default();
            self.journal.notes().print_error(&format!("closed{with} before --expect or --count was met"));
            return Exit::Unmet;
        }
        match end {
            // A close code that this end sent is not an error; neither is a peer that does not answer the Close frame.
            Some(end) if end.by == Initiator::Peer && !is_normal(end.code()) => Exit::Refused,
            _ => Exit::Success,
        }
    }
}

/// A message in an error: as text, or in the format of the output.
fn shown(message: &[u8], format: Format) -> String {
    match format {
        Format::Hex => encode_hex(message),
        Format::Base64 => STANDARD.encode(message),
        Format::Lines | Format::Raw | Format::Prefixed => format!("{:?}", String::from_utf8_lossy(message)),
    }
}

/// Whether a WebSocket that was closed with this code ended well.
pub(super) fn is_normal(code: CloseCode) -> bool {
    matches!(code, CloseCode::NORMAL | CloseCode::GOING_AWAY | CloseCode::NO_STATUS)
}

/// The sending direction.
struct Outbox<'a> {
    args: &'a Connect,
    journal: &'a Journal,
    sends: &'a [Payload],
    messages: Option<Messages>,
    pings: Option<Interval>,
    close_request: watch::Receiver<Option<CloseCode>>,
    received: &'a Cell<u64>,
    sent: u64,
}

/// The code and reason to close with, and the exit code if it is known.
type CloseRequest = (CloseCode, String, Option<Exit>);

impl<'a> Outbox<'a> {
    fn new(
        args: &'a Connect,
        journal: &'a Journal,
        sends: &'a [Payload],
        close_request: watch::Receiver<Option<CloseCode>>,
        received: &'a Cell<u64>,
    ) -> Self {
        let reads = args.reads_input();
        let read = || Messages::read(journal.notes(), args);
        let pings = args.messages.ping.map(|every| tokio::time::interval_at(Instant::now() + every, every));
        Self { args, journal, sends, messages: reads.then(read), pings, close_request, received, sent: 0 }
    }

    /// Sends until the WebSocket is to be closed, and sends the Close frame.
    async fn run(&mut self, sender: &mut Sender) -> Result<Option<Exit>, WebSocketError> {
        let mut close_request = self.close_request.clone();
        let mut requested = pin!(close_request.wait_for(Option::is_some));
        let mut interruption =
            self.messages.as_ref().map_or_else(Interruption::never, Messages::interruption);
        let (code, reason, exit) = tokio::select! {
            code = &mut requested => (code.ok().and_then(|code| *code).unwrap_or(CloseCode::NORMAL), String::new(), None),
            done = self.send_all(sender) => done?,
            () = interruption.wait_longer() => (CloseCode::GOING_AWAY, String::new(), None),
        };
        sender.close(code, &reason).await?;
        Ok(exit)
    }

    /// Sends all input, then waits while messages may still arrive.
    async fn send_all(&mut self, sender: &mut Sender) -> Result<CloseRequest, WebSocketError> {
        for send in self.sends {
            self.send(sender, &send.bytes, send.is_binary).await?;
        }
        if self.args.is_expecting() && self.args.script.count == Some(0) && self.args.script.expect.is_empty()
        {
            return Ok((CloseCode::NORMAL, String::new(), None));
        }
        let is_interactive = self.messages.as_ref().is_some_and(Messages::is_interactive);
        while self.messages.is_some() {
            if let Some(close_request) = self.step(sender).await? {
                return Ok(close_request);
            }
        }
        // The input has ended. The arguments say what to wait for.
        tokio::select! {
            ended = send_pings(sender, &mut self.pings) => ended,
            () = linger(self.args, self.journal, self.sent, self.received, is_interactive) => {
                Ok((CloseCode::NORMAL, String::new(), None))
            }
        }
    }

    /// Handles the next input.
    async fn step(&mut self, sender: &mut Sender) -> Result<Option<CloseRequest>, WebSocketError> {
        let input = tokio::select! {
            input = next_message(&mut self.messages) => input,
            () = next_ping(&mut self.pings) => {
                sender.ping(b"wireloom").await?;
                return Ok(None);
            }
        };
        let notes = self.journal.notes();
        match input {
            Some(Input::Message(message)) => {
                let is_binary = self.args.is_binary();
                if !is_binary && std::str::from_utf8(&message).is_err() {
                    let number = self.sent + 1;
                    notes.print_error(&format!(
                        "message {number} of the input is not UTF-8; --binary sends it as it is"
                    ));
                    return Ok(Some((CloseCode::NORMAL, String::new(), Some(Exit::Usage))));
                }
                self.send(sender, &message, is_binary).await?;
            }
            Some(Input::Command(Command::Ping(payload))) => {
                self.journal.expect_pong();
                sender.ping(&payload).await?;
            }
            Some(Input::Command(Command::Close(code, reason))) => {
                return Ok(Some((code, reason, None)));
            }
            Some(Input::Command(Command::Binary(bytes))) => self.send(sender, &bytes, true).await?,
            Some(Input::Command(Command::Invalid(why))) => notes.print_error(why),
            Some(Input::Failed(error)) => {
                notes.print_error(&format!("the input cannot be sent: {error}"));
                return Ok(Some((CloseCode::NORMAL, String::new(), Some(Exit::Usage))));
            }
            Some(Input::Interrupted) => return Ok(Some((CloseCode::GOING_AWAY, String::new(), None))),
            None => self.messages = None,
        }
        Ok(None)
    }

    async fn send(
        &mut self,
        sender: &mut Sender,
        message: &[u8],
        is_binary: bool,
    ) -> Result<(), WebSocketError> {
        let text = std::str::from_utf8(message).ok().filter(|_| !is_binary);
        match text {
            Some(text) => sender.send(text).await?,
            None => sender.send(message).await?,
        }
        self.sent += 1;
        // A failing output is reported before the next wait.
        let _ = self.journal.message(Direction::Sent, message, text.is_some());
        Ok(())
    }
}

/// After the end of the input, waits until the WebSocket should be closed. Never returns if the arguments say so.
async fn linger(args: &Connect, journal: &Journal, sent: u64, received: &Cell<u64>, is_interactive: bool) {
    let waits_for_peer = args.is_expecting() || args.closing.no_close || args.closing.recv_only;
    if !waits_for_peer && is_interactive {
        return;
    }
    if waits_for_peer {
        let until = if args.is_expecting() { "--expect and --count are met" } else { "the server closes" };
        if args.display.verbose > 0 {
            journal.notes().print(&format!("* no more input: receiving until {until}"));
        } else if args.is_expecting() && args.timeout.is_none() {
            // A script that expects too much would wait without a word.
            silence(received, |_| LINGER).await;
            let linger = LINGER.as_secs_f64();
            journal
                .notes()
                .print(&format!("* no message for {linger} s: receiving until {until} (see --timeout)"));
        }
        return std::future::pending().await;
    }
    let linger = args.closing.linger.unwrap_or(LINGER);
    if sent == 0 && !linger.is_zero() {
        let linger = linger.as_secs_f64();
        journal.notes().print(&format!(
            "* no input: closing after {linger} s without a message (--no-close waits for the server)"
        ));
    }
    let is_answered = |received: u64| sent > 0 && received >= sent;
    let limit = |received| if is_answered(received) { linger.min(LINGER_ANSWERED) } else { linger };
    silence(received, limit).await;
    if !is_answered(received.get()) && sent > 0 && !linger.is_zero() {
        let (received, sent) = (count(received.get(), "message"), count(sent, "message"));
        let linger = linger.as_secs_f64();
        journal.notes().print(&format!(
            "wireloom: closing after {linger} s without a message: {sent} sent, {received} received (see --linger and --no-close)"
        ));
    }
}

/// Waits until nothing has arrived for as long as `limit` says for the number of messages so far.
async fn silence(received: &Cell<u64>, limit: impl Fn(u64) -> Duration) {
    let (mut seen, mut since) = (received.get(), Instant::now());
    while since.elapsed() < limit(seen) {
        tokio::time::sleep(LINGER_STEP).await;
        if received.get() != seen {
            (seen, since) = (received.get(), Instant::now());
        }
    }
}

async fn next_message(messages: &mut Option<Messages>) -> Option<Input> {
    match messages {
        Some(messages) => messages.next().await,
        None => std::future::pending().await,
    }
}

/// Sends pings until sending fails.
async fn send_pings(
    sender: &mut Sender,
    pings: &mut Option<Interval>,
) -> Result<CloseRequest, WebSocketError> {
    loop {
        next_ping(pings).await;
        sender.ping(b"wireloom").await?;
    }
}

async fn next_ping(pings: &mut Option<Interval>) {
    match pings {
        Some(pings) => drop(pings.tick().await),
        None => std::future::pending().await,
    }
}
