//! `--reconnect`: a WebSocket that is opened again when it is lost. Messages that may have been lost are reported.

use std::future::poll_fn;
use std::pin::pin;

use wireloom::client::{Loss, LossReason, ReconnectEvent, ReconnectPolicy, Reconnecting};
use wireloom::{CloseCode, Connector, Error};

use super::input::{Command, Input};
use super::journal::{Direction, Journal, describe};
use super::messages::Messages;
use super::session::is_normal;
use super::trace;
use crate::args::Connect;
use crate::exit::Exit;
use crate::signals::Signals;
use crate::terminal::count;

/// Sends and receives until the server closes for good, or the user ends it.
pub(super) async fn run(
    args: &Connect,
    connector: &Connector,
    signals: &mut Signals,
    journal: &Journal,
) -> Exit {
    let notes = journal.notes();
    let mut socket = connector.reconnecting(&*args.url, ReconnectPolicy::default());
    let read = || Messages::read(notes, args);
    let mut messages = (!args.closing.recv_only).then(read);
    let result = talk(args, &mut socket, &mut messages, signals, journal).await;
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

async fn talk(
    args: &Connect,
    socket: &mut Reconnecting,
    messages: &mut Option<Messages>,
    signals: &mut Signals,
    journal: &Journal,
) -> Result<Exit, Error> {
    let notes = journal.notes();
    loop {
        // Input is read only while connected.
        let is_connected = socket.is_connected();
        tokio::select! {
            biased;
            step = next(socket, journal) => match step? {
                Some(ReconnectEvent::Message(message)) => {
                    let is_text = message.as_text().is_some();
                    if let Err(error) = journal.message(Direction::Received, message.as_bytes(), is_text) {
                        return Ok(notes.unwritable(&error));
                    }
                }
                Some(ReconnectEvent::Connected(connected)) => {
                    if let Some(gap) = connected.gap {
                        let gap = gap.as_secs_f64();
                        notes.print(&format!("* open again; messages sent to this end in {gap:.1} s are lost"));
                    }
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
            },
            input = next_message(messages), if is_connected => {
                if let Some(code) = handle(args, socket, messages, input, journal).await {
                    let _ = socket.close(code, "").await;
                    return Ok(Exit::Success);
                }
            }
            () = signals.recv() => {
                let _ = socket.close(CloseCode::GOING_AWAY, "").await;
                return Ok(Exit::Success);
            }
        }
    }
}

/// Handles an input; returns the close code if that ends the connection.
async fn handle(
    args: &Connect,
    socket: &mut Reconnecting,
    messages: &mut Option<Messages>,
    input: Option<Input>,
    journal: &Journal,
) -> Option<CloseCode> {
    let notes = journal.notes();
    let (message, is_binary) = match input {
        Some(Input::Message(message)) => (message, args.is_binary()),
        Some(Input::Command(Command::Binary(bytes))) => (bytes, true),
        Some(Input::Command(Command::Close(code, _))) => return Some(code),
        Some(Input::Command(Command::Ping(_))) => {
            notes.print_error("with --reconnect, --ping sends pings");
            return None;
        }
        Some(Input::Command(Command::Invalid(why))) => {
            notes.print_error(why);
            return None;
        }
        Some(Input::Interrupted) => return Some(CloseCode::GOING_AWAY),
        Some(Input::Failed(error)) => {
            notes.print_error(&format!("the input cannot be sent: {error}"));
            *messages = None;
            return None;
        }
        // Continue to receive.
        None => {
            *messages = None;
            return None;
        }
    };
    let _ = journal.message(Direction::Sent, &message, !is_binary);
    // If sending fails, the next step reports the loss.
    match std::str::from_utf8(&message) {
        Ok(text) if !is_binary => drop(socket.send(text).await),
        _ if is_binary => drop(socket.send(&message[..]).await),
        _ => notes.print_error("a message of the input is not UTF-8; --binary sends it as it is"),
    }
    None
}

/// The next step. Output is flushed before this waits.
async fn next(socket: &mut Reconnecting, journal: &Journal) -> Result<Option<ReconnectEvent>, Error> {
    let mut step = pin!(socket.next());
    poll_fn(|cx| {
        let polled = step.as_mut().poll(cx);
        if polled.is_pending() {
            let _ = journal.flush();
        }
        polled
    })
    .await
}

async fn next_message(messages: &mut Option<Messages>) -> Option<Input> {
    match messages {
        Some(messages) => messages.next().await,
        None => std::future::pending().await,
    }
}

fn describe_loss(loss: &Loss) -> String {
    let why = match &loss.reason {
        LossReason::NotOpened(error) => error.to_string(),
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
