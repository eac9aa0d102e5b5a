//! `--reconnect`: a connection that is opened again when it is lost. What is said about each loss is the library's to know.

use std::future::poll_fn;
use std::pin::pin;

use wireloom::client::{Loss, ReconnectPolicy, Reconnecting, Step, Trouble};
use wireloom::{CloseCode, Connector, Error};

use super::handshake;
use super::input::{Input, Lines};
use super::output::{Notes, Output};
use super::session::is_normal;
use crate::args::Connect;
use crate::exit::Exit;

/// Talks until the server closes for good, or the user ends it.
pub(super) async fn run(args: &Connect, connector: &Connector, notes: Notes) -> Exit {
    let mut socket = connector.reconnecting(&*args.url, ReconnectPolicy::default());
    let mut out = Output::new(notes.clone());
    let mut lines = Some(Lines::read(&notes, !args.messages.no_history));
    let ended = talk(args, &mut socket, &mut out, &mut lines, &notes).await;
    let _ = out.flush();
    notes.end_editing();
    drop(lines);
    match ended {
        Ok(exit) => exit,
        Err(error) => {
            handshake::tell_failure(&args.url, &error, args.verbose > 0, &notes);
            super::verdict(&error)
        }
    }
}

async fn talk(
    args: &Connect,
    socket: &mut Reconnecting,
    out: &mut Output,
    lines: &mut Option<Lines>,
    notes: &Notes,
) -> Result<Exit, Error> {
    let mut interrupted = pin!(tokio::signal::ctrl_c());
    loop {
        // Lines wait for a connection.
        let is_connected = socket.is_connected();
        tokio::select! {
            biased;
            step = next(socket, out) => match step? {
                Some(Step::Message(message)) => {
                    let is_text = message.as_text().is_some();
                    if !args.quiet
                        && let Err(error) = out.message(message.as_bytes(), is_text)
                    {
                        return Ok(notes.tell_unwritten(&error));
                    }
                }
                Some(Step::Connected(connected)) => {
                    if args.verbose > 0 {
                        handshake::tell_response(connected.status, "", connected.headers.iter(), notes);
                    }
                    if let Some(gap) = connected.gap {
                        notes.say(&format!("open again; what was sent here in {:.1} s never came", gap.as_secs_f64()));
                    }
                }
                Some(Step::Lost(loss)) => {
                    notes.say(&describe(&loss));
                    if loss.retry_in.is_none() {
                        return Ok(verdict(&loss.trouble));
                    }
                }
                Some(Step::NotOpened { error, retry_in }) => {
                    notes.say(&format!("{error}; trying again in {:.1} s", retry_in.as_secs_f64()));
                }
                Some(_) => {}
                None => return Ok(Exit::Done),
            },
            input = next_line(lines), if is_connected => match input {
                Some(Input::Line(line)) => match std::str::from_utf8(&line) {
                    // A failure is a loss, which is told next.
                    Ok(text) if !args.messages.binary => drop(socket.send(text).await),
                    _ if args.messages.binary => drop(socket.send(&line[..]).await),
                    _ => notes.say_error("a line of the input is not UTF-8; --binary sends it as it is"),
                },
                Some(Input::Failed(error)) => {
                    notes.say_error(&format!("the input cannot be read: {error}"));
                    *lines = None;
                }
                Some(Input::Interrupted) => break,
                // What is watched goes on.
                None => *lines = None,
            },
            _ = &mut interrupted => break,
        }
    }
    let _ = socket.close(CloseCode::GOING_AWAY, "").await;
    Ok(Exit::Done)
}

/// What happens next; what was printed is shown before this waits.
async fn next(socket: &mut Reconnecting, out: &mut Output) -> Result<Option<Step>, Error> {
    let mut step = pin!(socket.next());
    poll_fn(|cx| {
        let polled = step.as_mut().poll(cx);
        if polled.is_pending() {
            let _ = out.flush();
        }
        polled
    })
    .await
}

async fn next_line(lines: &mut Option<Lines>) -> Option<Input> {
    match lines {
        Some(lines) => lines.next().await,
        None => std::future::pending().await,
    }
}

fn describe(loss: &Loss) -> String {
    let why = match &loss.trouble {
        Trouble::NotOpened(error) | Trouble::Failed(error) => error.to_string(),
        Trouble::Closed(end) => format!("closed with {}", end.code()),
        _ => "lost".into(),
    };
    let unconfirmed = match loss.unconfirmed {
        0 => String::new(),
        count => format!("; {count} of {} messages may not have arrived", loss.sent),
    };
    let retry = match loss.retry_in {
        Some(delay) => format!("; trying again in {:.1} s", delay.as_secs_f64()),
        None => String::new(),
    };
    format!("{why}{unconfirmed}{retry}")
}

fn verdict(trouble: &Trouble) -> Exit {
    match trouble {
        Trouble::Closed(end) if is_normal(end.code()) => Exit::Done,
        Trouble::Closed(_) => Exit::Closed,
        _ => Exit::Cut,
    }
}
