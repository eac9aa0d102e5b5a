//! Editing lines on a terminal, with a history.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};
use tokio::sync::{mpsc, watch};

use super::input::{Input, parse_line};
use super::notes::Notes;

/// Lines that are kept in the history.
const HISTORY_LEN: usize = 1_000;

pub(super) type LineEditor = Editor<(), FileHistory>;

/// An editor, and the file of its history.
pub(super) fn new(notes: &Notes, keeps_history: bool) -> rustyline::Result<(LineEditor, Option<PathBuf>)> {
    let config = Config::builder()
        .max_history_size(HISTORY_LEN)?
        .history_ignore_space(true)
        .auto_add_history(true)
        // Pasted text is sent line by line.
        .bracketed_paste(false)
        .build();
    let mut editor = LineEditor::with_config(config)?;
    notes.set_editor(Box::new(editor.create_external_printer()?));
    let history = history_file().filter(|_| keeps_history);
    if let Some(file) = &history {
        // The file does not exist the first time.
        let _ = editor.load_history(file);
    }
    Ok((editor, history))
}

/// Reads lines until Ctrl-D or Ctrl-C. `is_editing` says whether the editor controls the terminal.
pub(super) fn run(
    mut editor: LineEditor,
    history: Option<PathBuf>,
    is_editing: &AtomicBool,
    sender: &mpsc::Sender<Input>,
    interrupt: &watch::Sender<bool>,
) {
    loop {
        is_editing.store(true, Ordering::Release);
        let line = editor.readline("> ");
        is_editing.store(false, Ordering::Release);
        let (next, is_last) = match line {
            Ok(line) => {
                if let Some(file) = &history {
                    // The history is not essential.
                    let _ = editor.append_history(file);
                }
                (parse_line(line), false)
            }
            Err(ReadlineError::Interrupted) => {
                interrupt.send_replace(true);
                (Input::Interrupted, true)
            }
            Err(ReadlineError::Io(error)) => (Input::Failed(error), true),
            Err(_) => return,
        };
        // Do not print another prompt: it would remain on the screen when the connection closes.
        if sender.blocking_send(next).is_err() || is_last {
            return;
        }
    }
}

/// `$XDG_STATE_HOME/wireloom/history`, in a directory that only the user can read.
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

/// The modes of the terminal, which are restored when this is dropped: the connection may end while a line is being edited.
#[cfg(unix)]
pub(super) struct Terminal(rustix::termios::Termios);

#[cfg(unix)]
impl Terminal {
    pub(super) fn save() -> Option<Self> {
        rustix::termios::tcgetattr(std::io::stdin()).ok().map(Self)
    }
}

#[cfg(unix)]
impl Drop for Terminal {
    fn drop(&mut self) {
        let _ =
            rustix::termios::tcsetattr(std::io::stdin(), rustix::termios::OptionalActions::Drain, &self.0);
    }
}

/// On other systems lines are read without editing: the changes to the terminal could not be undone from here.
#[cfg(not(unix))]
pub(super) struct Terminal;

#[cfg(not(unix))]
impl Terminal {
    pub(super) fn save() -> Option<Self> {
        None
    }
}
