//! The lines to send: from a pipe as they are, on a terminal with editing and history. A thread waits for them, because
//! neither can be read without waiting.

use std::fs;
use std::io::{self, BufRead as _, IsTerminal as _, Read as _};
use std::path::PathBuf;

use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};
use tokio::sync::mpsc;

use super::output::Notes;

/// Lines that are kept in the history.
const HISTORY_LEN: usize = 1_000;

/// Bytes of a line: what is longer would not fit into the queue of what is to be sent.
const LINE_LEN_MAX: u64 = 64 << 20;

/// Lines that wait to be sent.
const WAITING_MAX: usize = 64;

/// What the user wants.
pub(super) enum Input {
    Line(Vec<u8>),
    /// Ctrl-C while a line is being edited.
    Interrupted,
    /// It cannot be read.
    Failed(io::Error),
}

/// The lines, and what the terminal was like before.
pub(super) struct Lines {
    received: mpsc::Receiver<Input>,
    _terminal: Option<Restore>,
}

impl Lines {
    /// Begins to read: with an editor if a person types and reads.
    pub(super) fn read(notes: &Notes, keeps_history: bool) -> Self {
        let (lines, received) = mpsc::channel(WAITING_MAX);
        let is_person = io::stdin().is_terminal() && io::stdout().is_terminal();
        let terminal = is_person.then(Restore::new).flatten();
        match terminal.is_some().then(|| editor(notes, keeps_history)) {
            Some(Ok((editor, history))) => {
                std::thread::spawn(move || edit(editor, history, &lines));
            }
            // A terminal that cannot be edited on is read as a pipe is.
            _ => {
                std::thread::spawn(move || read(&lines));
            }
        }
        Self { received, _terminal: terminal }
    }

    /// The next of them; `None` at their end.
    pub(super) async fn next(&mut self) -> Option<Input> {
        self.received.recv().await
    }
}

fn read(lines: &mpsc::Sender<Input>) {
    let mut input = io::stdin().lock();
    loop {
        let mut line = Vec::new();
        let next = match input.by_ref().take(LINE_LEN_MAX).read_until(b'\n', &mut line) {
            Ok(0) => return,
            Ok(len) if len as u64 == LINE_LEN_MAX => {
                Input::Failed(io::Error::other(format!("a line is longer than {LINE_LEN_MAX} bytes")))
            }
            Ok(_) => {
                if line.last() == Some(&b'\n') {
                    line.pop();
                }
                Input::Line(line)
            }
            Err(error) => Input::Failed(error),
        };
        let is_over = matches!(next, Input::Failed(_));
        if lines.blocking_send(next).is_err() || is_over {
            return;
        }
    }
}

type LineEditor = Editor<(), FileHistory>;

fn editor(notes: &Notes, keeps_history: bool) -> rustyline::Result<(LineEditor, Option<PathBuf>)> {
    let config = Config::builder()
        .max_history_size(HISTORY_LEN)?
        .history_ignore_space(true)
        .auto_add_history(true)
        // A pasted text is sent line by line.
        .bracketed_paste(false)
        .build();
    let mut editor = LineEditor::with_config(config)?;
    notes.put_above(Box::new(editor.create_external_printer()?));
    let history = history_file().filter(|_| keeps_history);
    if let Some(file) = &history {
        // There is none the first time.
        let _ = editor.load_history(file);
    }
    Ok((editor, history))
}

fn edit(mut editor: LineEditor, history: Option<PathBuf>, lines: &mpsc::Sender<Input>) {
    loop {
        let next = match editor.readline("> ") {
            Ok(line) => {
                if let Some(file) = &history {
                    // A history that cannot be written is no reason to stop.
                    let _ = editor.append_history(file);
                }
                Input::Line(line.into())
            }
            Err(ReadlineError::Eof) => return,
            Err(ReadlineError::Interrupted) => Input::Interrupted,
            Err(ReadlineError::Io(error)) => Input::Failed(error),
            Err(_) => return,
        };
        let is_over = matches!(next, Input::Failed(_));
        if lines.blocking_send(next).is_err() || is_over {
            return;
        }
    }
}

/// Where the history is: `$XDG_STATE_HOME/wireloom/history`, in a folder for the user alone.
fn history_file() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let state = state.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state")))?;
    let dir = state.join("wireloom");
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(&dir).ok()?;
    Some(dir.join("history"))
}

/// Gives the terminal back as it was: the connection may end while a line is being edited.
#[cfg(unix)]
struct Restore(rustix::termios::Termios);

#[cfg(unix)]
impl Restore {
    fn new() -> Option<Self> {
        rustix::termios::tcgetattr(io::stdin()).ok().map(Self)
    }
}

#[cfg(unix)]
impl Drop for Restore {
    fn drop(&mut self) {
        let _ = rustix::termios::tcsetattr(io::stdin(), rustix::termios::OptionalActions::Drain, &self.0);
    }
}

/// Elsewhere lines are read as they are: what an editor changes could not be undone from here.
#[cfg(not(unix))]
struct Restore;

#[cfg(not(unix))]
impl Restore {
    fn new() -> Option<Self> {
        None
    }
}
