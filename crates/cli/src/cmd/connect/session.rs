//! An open connection: what is sent and what comes, both at once, until it is over.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IsTerminal as _};
use std::pin::pin;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, Interval};
use wireloom::wireloom_ws::{Cause, End, Initiator};
use wireloom::{CloseCode, Error, Message, Receiver, Sender, WebSocket};

use super::input::{Input, Lines};
use super::output::{Notes, Output};
use crate::args::Connect;
use crate::exit::Exit;
use crate::terminal;

/// How long a last Close frame may take.
const GOODBYE_TIME_MAX: Duration = Duration::from_secs(1);

/// Talks as the arguments say.
pub(super) async fn run(args: &Connect, socket: WebSocket, notes: Notes) -> Exit {
    let begin = Instant::now();
    let (mut sender, mut receiver) = socket.split();
    let (closing, close_asked) = watch::channel(None);
    let mut inbox = Inbox::new(args, &closing, &notes);
    let mut outbox = Outbox::new(args, &notes, close_asked);
    if args.is_scripted() && inbox.is_satisfied() {
        outbox.closes_when_sent = true;
    }
    let talked = talk(args, &mut inbox, &mut receiver, &mut outbox, &mut sender, &closing).await;
    let unwritten = inbox.out.flush().err();
    if let Ok(Some(_)) = talked {
        // What decided may have come before the peer could be told. Whether it still hears it does not matter any more.
        let _ = tokio::time::timeout(GOODBYE_TIME_MAX, sender.close(CloseCode::NORMAL, "")).await;
    }
    // The terminal is as it was before anything more is said.
    notes.end_editing();
    drop(outbox);
    if args.verbose > 0 {
        inbox.tell_end(&receiver, begin);
    }
    match talked {
        Ok(Some(exit)) => exit,
        Ok(None) => match unwritten {
            Some(error) => notes.tell_unwritten(&error),
            None => inbox.verdict(&receiver),
        },
        Err(error) => {
            notes.say_error(&error.to_string());
            if inbox.is_satisfied() { Exit::Cut } else { Exit::Unexpected }
        }
    }
}

/// Both directions, until the connection is over. `Some` when what it ends with is decided already.
async fn talk(
    args: &Connect,
    inbox: &mut Inbox<'_>,
    receiver: &mut Receiver,
    outbox: &mut Outbox<'_>,
    sender: &mut Sender,
    closing: &watch::Sender<Option<CloseCode>>,
) -> Result<Option<Exit>, Error> {
    let notes = inbox.notes;
    let mut receiving = pin!(inbox.run(receiver));
    let mut sending = pin!(outbox.run(sender));
    let mut interrupted = pin!(tokio::signal::ctrl_c());
    let timeout = args.timeout.filter(|_| args.is_scripted());
    let mut timed_out = pin!(async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    });
    let mut is_sending = true;
    let mut decided = None;
    loop {
        tokio::select! {
            biased;
            received = &mut receiving => return received.map(|exit| decided.or(exit)),
            sent = &mut sending, if is_sending => {
                is_sending = false;
                match sent {
                    // The peer closed; why is heard by the receiver.
                    Err(Error::Closed) | Ok(None) => {}
                    Ok(exit) => decided = decided.or(exit),
                    Err(error) => return Err(error),
                }
            }
            () = &mut timed_out, if decided.is_none() => {
                notes.say_error("what was expected did not come in time");
                decided = Some(Exit::Unexpected);
                closing.send_replace(Some(CloseCode::NORMAL));
                if !is_sending {
                    return Ok(decided);
                }
            }
            // The second time there is no waiting for the peer.
            _ = &mut interrupted => {
                if decided.is_some() || !is_sending {
                    return Ok(decided);
                }
                decided = Some(if args.is_scripted() { Exit::Unexpected } else { Exit::Done });
                closing.send_replace(Some(CloseCode::GOING_AWAY));
                interrupted.set(tokio::signal::ctrl_c());
            }
        }
    }
}

/// What comes.
struct Inbox<'a> {
    args: &'a Connect,
    closing: &'a watch::Sender<Option<CloseCode>>,
    notes: &'a Notes,
    /// What is expected next.
    expected: VecDeque<&'a str>,
    /// Messages to come until the connection is closed.
    remaining: Option<u64>,
    messages: u64,
    bytes: u64,
    out: Output,
}

impl<'a> Inbox<'a> {
    fn new(args: &'a Connect, closing: &'a watch::Sender<Option<CloseCode>>, notes: &'a Notes) -> Self {
        Self {
            args,
            closing,
            notes,
            expected: args.script.expect.iter().map(String::as_str).collect(),
            remaining: args.script.count,
            messages: 0,
            bytes: 0,
            out: Output::new(notes.clone()),
        }
    }

    async fn run(&mut self, receiver: &mut Receiver) -> Result<Option<Exit>, Error> {
        while let Some(message) = next(receiver, &mut self.out).await? {
            let exit = self.take(&message);
            if exit.is_some() {
                return Ok(exit);
            }
        }
        Ok(None)
    }

    /// A message has come.
    fn take(&mut self, message: &Message<'_>) -> Option<Exit> {
        if self.remaining == Some(0) {
            // It was on its way when the last one was counted.
            return None;
        }
        let bytes = message.as_bytes();
        self.messages += 1;
        self.bytes += bytes.len() as u64;
        if !self.args.quiet
            && let Err(error) = self.out.message(bytes, message.is_text())
        {
            return Some(self.notes.tell_unwritten(&error));
        }
        if let Some(expected) = self.expected.pop_front()
            && expected.as_bytes() != bytes
        {
            let came = String::from_utf8_lossy(bytes);
            self.notes.say_error(&format!("expected {expected:?}, and {came:?} came"));
            self.close();
            return Some(Exit::Unexpected);
        }
        if let Some(remaining) = &mut self.remaining {
            *remaining -= 1;
        }
        if self.args.is_expecting() && self.is_satisfied() {
            self.close();
        }
        None
    }

    fn close(&self) {
        self.closing.send_replace(Some(CloseCode::NORMAL));
    }

    /// All that was expected has come.
    fn is_satisfied(&self) -> bool {
        self.expected.is_empty() && self.remaining.is_none_or(|remaining| remaining == 0)
    }

    fn tell_end(&self, receiver: &Receiver, begin: Instant) {
        if let Some(end) = receiver.end() {
            let by = if end.by == Initiator::Local { "this end" } else { "the peer" };
            self.notes.say(&format!("closed by {by} with {}", described(&end)));
        }
        self.notes.say(&format!(
            "{} messages, {} bytes received in {:.3} s",
            self.messages,
            self.bytes,
            begin.elapsed().as_secs_f64()
        ));
    }

    /// What the end of the connection means.
    fn verdict(&self, receiver: &Receiver) -> Exit {
        if !self.is_satisfied() {
            self.notes.say_error("the connection was closed before all that was expected had come");
            return Exit::Unexpected;
        }
        match receiver.end() {
            None => Exit::Done,
            // The peer did not answer this end's Close frame: that is no fault to report.
            Some(end) if is_normal(end.code()) || end.code() == CloseCode::ABNORMAL => Exit::Done,
            Some(end) => {
                self.notes.say_error(&format!("closed with {}", described(&end)));
                Exit::Closed
            }
        }
    }
}

/// The code and the reason of an end.
fn described(end: &End) -> String {
    match &end.cause {
        Cause::Close { reason, .. } if !reason.is_empty() => {
            format!("{}: {}", end.code(), terminal::visible(reason))
        }
        _ => end.code().to_string(),
    }
}

/// Whether a connection that was closed with this is one that ended well.
pub(super) fn is_normal(code: CloseCode) -> bool {
    matches!(code, CloseCode::NORMAL | CloseCode::GOING_AWAY | CloseCode::NO_STATUS)
}

/// The next message; what was printed is shown before this waits.
async fn next<'a>(receiver: &'a mut Receiver, out: &mut Output) -> Result<Option<Message<'a>>, Error> {
    let mut receiving = pin!(receiver.recv());
    poll_fn(|cx| {
        let received = receiving.as_mut().poll(cx);
        if received.is_pending() {
            // Whoever reads the output may have gone; the next line notices.
            let _ = out.flush();
        }
        received
    })
    .await
}

/// What is sent.
struct Outbox<'a> {
    args: &'a Connect,
    notes: &'a Notes,
    lines: Option<Lines>,
    pings: Option<Interval>,
    close_asked: watch::Receiver<Option<CloseCode>>,
    /// There is nothing to wait for.
    closes_when_sent: bool,
    lines_sent: u64,
}

impl<'a> Outbox<'a> {
    fn new(args: &'a Connect, notes: &'a Notes, close_asked: watch::Receiver<Option<CloseCode>>) -> Self {
        // Who types at a script's terminal does not mean it.
        let reads = !args.is_scripted() || (args.script.send.is_empty() && !io::stdin().is_terminal());
        let lines = reads.then(|| Lines::read(notes, !args.messages.no_history));
        let pings = args.messages.ping.map(|every| tokio::time::interval_at(Instant::now() + every, every));
        Self { args, notes, lines, pings, close_asked, closes_when_sent: false, lines_sent: 0 }
    }

    /// Sends until the connection is to be closed, and begins to close it.
    async fn run(&mut self, sender: &mut Sender) -> Result<Option<Exit>, Error> {
        let mut close_asked = self.close_asked.clone();
        let mut asked = pin!(close_asked.wait_for(Option::is_some));
        let (code, exit) = tokio::select! {
            code = &mut asked => (code.ok().and_then(|code| *code).unwrap_or(CloseCode::NORMAL), None),
            ended = self.send_all(sender) => ended?,
        };
        sender.close(code, "").await?;
        Ok(exit)
    }

    /// Sends what there is to send. The code to close with then, and what the command ends with if that is clear already.
    async fn send_all(&mut self, sender: &mut Sender) -> Result<(CloseCode, Option<Exit>), Error> {
        for message in &self.args.script.send {
            self.send(sender, message.as_bytes()).await?;
        }
        if self.closes_when_sent {
            return Ok((CloseCode::NORMAL, None));
        }
        loop {
            let input = tokio::select! {
                input = next_line(&mut self.lines) => input,
                () = next_ping(&mut self.pings) => {
                    sender.ping(b"wireloom").await?;
                    continue;
                }
            };
            match input {
                Some(Input::Line(line)) => {
                    self.lines_sent += 1;
                    if !self.args.messages.binary && std::str::from_utf8(&line).is_err() {
                        let number = self.lines_sent;
                        self.notes.say_error(&format!(
                            "line {number} of the input is not UTF-8; --binary sends it as it is"
                        ));
                        return Ok((CloseCode::NORMAL, Some(Exit::Usage)));
                    }
                    self.send(sender, &line).await?;
                }
                Some(Input::Failed(error)) => {
                    self.notes.say_error(&format!("the input cannot be read: {error}"));
                    return Ok((CloseCode::NORMAL, Some(Exit::Usage)));
                }
                Some(Input::Interrupted) => return Ok((CloseCode::GOING_AWAY, None)),
                // What is expected may still come.
                None if self.args.is_expecting() => self.lines = None,
                None => return Ok((CloseCode::NORMAL, None)),
            }
        }
    }

    async fn send(&self, sender: &mut Sender, message: &[u8]) -> Result<(), Error> {
        match std::str::from_utf8(message) {
            Ok(text) if !self.args.messages.binary => sender.send(text).await,
            _ => sender.send(message).await,
        }
    }
}

async fn next_line(lines: &mut Option<Lines>) -> Option<Input> {
    match lines {
        Some(lines) => lines.next().await,
        None => std::future::pending().await,
    }
}

async fn next_ping(pings: &mut Option<Interval>) {
    match pings {
        Some(pings) => drop(pings.tick().await),
        None => std::future::pending().await,
    }
}
