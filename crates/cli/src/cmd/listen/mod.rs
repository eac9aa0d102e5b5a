//! `wireloom listen`: accepts WebSockets or streams, and joins each to the other kind.
//!
//! Layers: `notes` → `websockets`, `streams`.

mod notes;
mod streams;
mod websockets;

use tokio::sync::watch;

use crate::args::{Endpoint, Framing, Listen};
use crate::cmd::join::Joining;
use crate::exit::Exit;
use crate::{descriptors, terminal};
use notes::Notes;

pub(crate) fn run(args: &Listen) -> Exit {
    if let Some(error) = args.conflict() {
        terminal::print_error(error);
        return Exit::Usage;
    }
    descriptors::raise_limit();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            terminal::print_error(error);
            return Exit::NoConnection;
        }
    };
    // The guard writes the queued lines when the command ends.
    let (errors, _queued) = terminal::queued_stderr();
    let notes = Notes::new(args, errors);
    let result = runtime.block_on(async {
        if args.address.is_websocket() {
            websockets::run(args, &notes).await
        } else {
            streams::run(args, &notes).await
        }
    });
    // A thread may be blocked reading the input.
    runtime.shutdown_background();
    notes.end();
    result.unwrap_or_else(|(exit, error)| {
        notes.error(&error);
        exit
    })
}

/// Ready when the command ends.
async fn interruption(mut ending: watch::Receiver<bool>) {
    let _ = ending.wait_for(|is_ending| *is_ending).await;
}

/// Why nothing is listened on.
type Failure = (Exit, String);

fn usage(error: impl ToString) -> Failure {
    (Exit::Usage, error.to_string())
}

fn not_bound(error: impl ToString) -> Failure {
    (Exit::NoConnection, error.to_string())
}

impl Listen {
    fn joining(&self) -> Joining {
        let is_standard = matches!(self.to, None | Some(Endpoint::Standard));
        let by_default = if is_standard { Framing::Lines } else { Framing::Bytes };
        Joining {
            framing: self.join.framing.unwrap_or(by_default),
            len_max: self.max_message,
            grace: self.join.grace(),
        }
    }
}
