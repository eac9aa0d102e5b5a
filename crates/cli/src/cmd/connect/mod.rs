//! `wireloom connect`: sends lines and prints messages; or runs a script of messages to send and to expect; or makes a request.
//!
//! Layers: `notes`, `wire` → `output`, `trace` → `input`, `journal` → `connector`, `editor` → `messages`, `request` → `script` →
//! `session` → `reconnecting`.

pub(super) mod connector;
mod editor;
mod input;
mod journal;
mod messages;
mod notes;
mod output;
mod reconnecting;
mod request;
mod script;
mod session;
pub(super) mod trace;
mod wire;

use tokio::sync::oneshot;

use super::join::{Ended, Stream};
use crate::args::{Connect, Format};
use crate::exit::Exit;
use crate::recording::{self, Recording, Side};
use crate::signals::Signals;
use crate::terminal;
use journal::Journal;
use notes::Notes;
use output::Output;
use script::Script;
use trace::Trace;
use wireloom::WebSocket;

pub(crate) fn run(args: Connect) -> Exit {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            terminal::print_error(error);
            return Exit::NoConnection;
        }
    };
    let mut recording = None;
    let exit = runtime.block_on(connect(args, &mut recording));
    // A thread may be blocked reading the input.
    runtime.shutdown_background();
    let is_recorded = recording.is_none_or(Recording::finish);
    if exit == Exit::Success && !is_recorded { Exit::Broken } else { exit }
}

async fn connect(args: Connect, recording: &mut Option<Recording>) -> Exit {
    let is_request = args.is_request();
    if let Some(conflict) = args.conflict() {
        terminal::print_error(conflict);
        return Exit::Usage;
    }
    let notes = Notes::new(args.display.timestamps);
    let usage = |error: String| {
        notes.print_error(&error);
        Exit::Usage
    };
    let script = match Script::read(&args) {
        Ok(script) => script,
        Err(error) => return usage(error),
    };
    let format = if is_request { Format::Raw } else { args.messages.output };
    let output = match Output::open(&args.display, format, notes.clone()) {
        Ok(output) => output,
        Err(error) => return notes.unwritable(&error),
    };
    let mut signals = match Signals::ending_at_second() {
        Ok(signals) => signals,
        Err(error) => return usage(error.to_string()),
    };
    *recording = match recording::start(&args.record, Side::Client) {
        Ok(recording) => recording,
        Err(error) => return usage(error),
    };
    let trace = Trace::new(&args, &notes, recording.as_ref().map(Recording::observer));
    if is_request {
        return tokio::select! {
            exit = request::run(&args, output, &trace, &notes) => exit,
            signal = signals.recv() => {
                notes.print_error("interrupted before the end of the response");
                signal.exit()
            }
        };
    }
    let journal = Journal::new(&args, output, &notes);
    let connector = match connector::new(&args, &args.url, &trace, Some(&journal)) {
        Ok(connector) => connector,
        Err(error) => return usage(error),
    };
    if args.route.reconnect {
        return reconnecting::run(&args, &connector, &mut signals, &journal, &trace).await;
    }
    let opened = tokio::select! {
        opened = connector.open(&args.url) => opened,
        signal = signals.recv() => {
            notes.print_error("interrupted before the connection was open");
            return signal.exit();
        }
    };
    match opened {
        Ok(opened) => {
            let head = args.shows_head().then(|| trace.head(opened.version, opened.status, &opened.headers));
            if let Err(error) = journal.opened(&args.url, &opened, head.as_deref()) {
                return notes.unwritable(&error);
            }
            match &args.join.exec {
                Some(program) => run_program(&args, program, opened.socket, &mut signals, &journal).await,
                None => session::run(&args, opened.socket, &script, &mut signals, &journal).await,
            }
        }
        Err(error) => {
            trace::print_failure(&args, &error, &notes);
            Exit::of_opening(&error)
        }
    }
}

/// Joins the WebSocket to the program of `--exec`.
async fn run_program(
    args: &Connect,
    program: &str,
    socket: WebSocket,
    signals: &mut Signals,
    journal: &Journal,
) -> Exit {
    let stream = match Stream::program(program, &[]) {
        Ok(stream) => stream,
        Err(error) => {
            journal.notes().print_error(&format!("--exec {program}: {error}"));
            return Exit::NoConnection;
        }
    };
    let (interrupt, interrupted) = oneshot::channel();
    let interrupted = async {
        let _ = interrupted.await;
    };
    let joining = args.joining();
    let ended = tokio::select! {
        ended = joining.run(socket, stream, interrupted) => ended,
        // The first signal ends it in order, the second at once.
        () = async {
            signals.recv().await;
            let _ = interrupt.send(());
            signals.recv().await;
        } => Ended::Interrupted,
    };
    match &ended {
        Ended::Failed(why) => journal.notes().print_error(&format!("--exec {program}: {why}")),
        Ended::Broken(why) => journal.notes().print_error(why),
        Ended::Closed(code) if args.display.verbose > 0 || ended.exit() != Exit::Success => {
            journal.notes().print(&format!("* closed by the peer with {}", code.value()));
        }
        Ended::Closed(_) | Ended::Stream | Ended::Interrupted => {}
    }
    ended.exit()
}
