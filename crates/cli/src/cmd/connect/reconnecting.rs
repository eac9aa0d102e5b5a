//! `--reconnect`: a WebSocket that is opened again when it is lost. Messages that may have been lost are reported.

use std::pin::pin;

use tokio::sync::watch;
use wireloom::client::{Loss, LossReason, ReconnectEvent, ReconnectPolicy, Reconnecting, ReconnectingSender};
use wireloom::{CloseCode, Connector, Error, Version, WebSocketError};

use super::input::{Command, Input};
use super::journal::{Direction, Journal, describe};
use super::messages::{Interruption, Messages};
use super::session::is_normal;
use super::trace::{self, Trace};
use crate::args::Connect;
use crate::exit::Exit;
use crate::signals::{Signal, Signals};
use crate::terminal::count;

/// Sends and receives until the server closes for good, or the user ends it.
pub(super) async fn run(
    args: &Connect,
    connector: &Connector,
    signals: &mut Signals,
    journal: &Journal,
    trace: &Trace,
) -> Exit {
    let notes = journal.notes();
    let mut socket = connector.reconnecting(&*args.url, ReconnectPolicy::default());
    let read = || Messages::read(notes, args);
    let mut messages = (!args.closing.recv_only).then(read);
    let result = run_until_closed(args, &mut socket, &mut messages, signals, journal, trace).await;
    let unwritten = journal.flush().err();
    notes.end_editing(messages.as_ref().is_some_and(Messages::is_editing));
    drop(messages);
    match (result, unwritten) {
        (Ok(Exit::Success), Some(error)) => notes.unwritable(&error),
        (Ok(exit), _) => exit,
        (Err(error), _) => {
            trace::print_failure(args, &error, notes);
            Exit::of_opening(&error)
        }
    }
}

async fn run_until_closed(
    args: &Connect,
    socket: &mut Reconnecting,
    messages: &mut Option<Messages>,
    signals: &mut Signals,
    journal: &Journal,
    trace: &Trace,
) -> Result<Exit, Error> {
    let notes = journal.notes();
    let mut sender = socket.sender();
    // How many connections there have been.
    let (connections, connected) = watch::channel(0_u64);
    let mut sending = pin!(send_input(args, &mut sender, connected, messages, journal));
    loop {
        tokio::select! {
            step = journal.flushing(socket.next()) => match step {
                Err(error) => return Ok(notes.unwritable(&error)),
                Ok(step) => match step? {
                    Some(ReconnectEvent::Message(message)) => {
                        let is_text = message.as_text().is_some();
                        if let Err(error) = journal.message(Direction::Received, message.as_bytes(), is_text) {
                            return Ok(notes.unwritable(&error));
                        }
                    }
                    Some(ReconnectEvent::Connected(connected)) => {
                        let version = if args.route.http2 { Version::Http2 } else { Version::Http11 };
                        let head =
                            args.shows_head().then(|| trace.head(version, connected.status, &connected.headers));
                        if let Err(error) = journal.connected(&args.url, &connected, head.as_deref()) {
                            return Ok(notes.unwritable(&error));
                        }
                        connections.send_modify(|number| *number += 1);
                    }
                    Some(ReconnectEvent::Lost(loss)) => {
                        notes.print(&format!("* {}", describe_loss(&loss)));
                        if loss.retry_in.is_none() {
                            return Ok(exit(&loss.reason));
                        }
                    }
                    Some(ReconnectEvent::NotOpened { error, retry_in }) => {
                        notes.print(&format!("* {error}; trying again in {:.1} s", retry_in.as_secs_f64()));
                    }
                    Some(_) => {}
                    None => return Ok(Exit::Success),
                }
            },
            end = &mut sending => return Ok(close(socket, end, &connections, signals, journal).await),
            signal = signals.recv() => {
                return Ok(close(socket, End::interrupted(signal), &connections, signals, journal).await);
            }
        }
    }
}

/// How this end closes: with this code and reason, and the exit code.
struct End {
    code: CloseCode,
    reason: String,
    exit: Exit,
    interrupted_by: Option<Signal>,
}

impl End {
    fn new(code: CloseCode) -> Self {
        Self { code, reason: String::new(), exit: Exit::Success, interrupted_by: None }
    }

    fn interrupted(signal: Signal) -> Self {
        Self { interrupted_by: Some(signal), ..Self::new(CloseCode::GOING_AWAY) }
    }
}

/// Closes the WebSocket. After the next signal the peer need not read the Close frame. Returns the exit code.
async fn close(
    socket: &mut Reconnecting,
    end: End,
    connections: &watch::Sender<u64>,
    signals: &mut Signals,
    journal: &Journal,
) -> Exit {
    let End { code, reason, exit, interrupted_by } = end;
    // A statement of its own: the lock of the number is not held while closing.
    let was_open = *connections.borrow() > 0;
    tokio::select! {
        _ = socket.close(code, &reason) => {}
        _ = signals.recv() => {}
    }
    match exit {
        Exit::Success if !was_open => {
            let how = if interrupted_by.is_some() { "interrupted" } else { "closed" };
            journal.notes().print_error(&format!("{how} before the connection was open"));
            interrupted_by.map_or(Exit::NoConnection, Signal::exit)
        }
        exit => exit,
    }
}

/// Sends the input until it asks for the end, as that of a terminal does. Does not return at the end of other input.
async fn send_input(
    args: &Connect,
    sender: &mut ReconnectingSender,
    mut connected: watch::Receiver<u64>,
    messages: &mut Option<Messages>,
    journal: &Journal,
) -> End {
    let notes = journal.notes();
    let is_interactive = messages.as_ref().is_some_and(Messages::is_interactive);
    let mut interruption = messages.as_ref().map_or_else(Interruption::never, Messages::interruption);
    loop {
        let (message, is_binary) = match next_message(messages).await {
            Some(Input::Message(message)) => (message, args.is_binary()),
            Some(Input::Command(Command::Binary(bytes))) => (bytes, true),
            Some(Input::Command(Command::Close(code, reason))) => return End { reason, ..End::new(code) },
            Some(Input::Command(Command::Ping(_))) => {
                notes.print_error("with --reconnect, --ping sends pings");
                continue;
            }
            Some(Input::Command(Command::Invalid(why))) => {
                notes.print_error(why);
                continue;
            }
            Some(Input::Interrupted) => return End::interrupted(Signal::Interrupt),
            Some(Input::Failed(error)) => {
                notes.print_error(&format!("the input cannot be sent: {error}"));
                return End { exit: Exit::Usage, ..End::new(CloseCode::NORMAL) };
            }
            None if is_interactive => return End::new(CloseCode::NORMAL),
            // Continue to receive.
            None => {
                *messages = None;
                continue;
            }
        };
        let text = std::str::from_utf8(&message).ok().filter(|_| !is_binary);
        if text.is_none() && !is_binary {
            notes.print_error("a message of the input is not UTF-8; --binary sends it as it is");
            return End { exit: Exit::Usage, ..End::new(CloseCode::NORMAL) };
        }
        loop {
            let number = *connected.borrow_and_update();
            let sending = async {
                match text {
                    Some(text) => sender.send(text).await,
                    None => sender.send(&message[..]).await,
                }
            };
            let sent = tokio::select! {
                sent = sending => sent,
                () = interruption.wait_longer() => return End::interrupted(Signal::Interrupt),
            };
            if !matches!(sent, Err(WebSocketError::Closed)) {
                // A failing output is reported with the next event, and so is the loss if sending fails.
                let _ = journal.message(Direction::Sent, &message, !is_binary);
                break;
            }
            // Nothing was sent: the next connection takes it.
            tokio::select! {
                biased;
                _ = connected.wait_for(|&now| now > number) => {}
                () = interruption.wait() => return End::interrupted(Signal::Interrupt),
            }
        }
    }
}

async fn next_message(messages: &mut Option<Messages>) -> Option<Input> {
    match messages {
        Some(messages) => messages.next().await,
        None => std::future::pending().await,
    }
}

fn describe_loss(loss: &Loss) -> String {
    let why = match &loss.reason {
        LossReason::NotOpened(error) | LossReason::NotReopened(error) => error.to_string(),
        LossReason::Failed(error) => error.to_string(),
        LossReason::Closed(end) => format!("closed by the peer with {}", describe(end)),
        _ => "the connection is lost".into(),
    };
    let unconfirmed = match loss.unconfirmed {
        0 => String::new(),
        number => format!("; {number} of {} may not have arrived", count(loss.sent, "message")),
    };
    let retry = match loss.retry_in {
        Some(delay) => format!("; trying again in {:.1} s", delay.as_secs_f64()),
        None => String::new(),
    };
    format!("{why}{unconfirmed}{retry}")
}

fn exit(reason: &LossReason) -> Exit {
    match reason {
        LossReason::Closed(end) if is_normal(end.code()) => Exit::Success,
        LossReason::Closed(_) => Exit::Refused,
        _ => Exit::Broken,
    }
}
