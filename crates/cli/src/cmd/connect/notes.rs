//! Notes about the connection, on the standard error. While a line is being edited they are printed above it.

use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rustyline::ExternalPrinter;

use crate::exit::Exit;
use crate::terminal;

/// Prints above the line that is being edited.
pub(super) type Printer = Box<dyn ExternalPrinter + Send>;

/// The standard error. Clones print to the same place.
#[derive(Clone)]
pub(super) struct Notes {
    editor: Arc<Mutex<Option<Printer>>>,
    has_colours: bool,
    has_timestamps: bool,
}

/// Now, in UTC, to the millisecond.
pub(super) fn timestamp() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

impl Notes {
    pub(super) fn new(has_timestamps: bool) -> Self {
        let has_colours = terminal::has_colours(&io::stderr());
        Self { editor: Arc::default(), has_colours, has_timestamps }
    }

    /// Sets the printer of a line editor that is now editing a line.
    pub(super) fn set_editor(&self, printer: Printer) {
        *self.editor.lock().unwrap_or_else(PoisonError::into_inner) = Some(printer);
    }

    /// Ends editing. `is_editing`: the editor has not returned; its line stays below everything that was printed above
    /// it.
    pub(super) fn end_editing(&self, is_editing: bool) {
        /// Moves the cursor up and down: prints nothing visible.
        const NOTHING: &str = "\x1b[A\n";
        let Some(mut printer) = self.editor.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        // The editor accepts one text at a time. It accepts the second after it has printed everything before the
        // first.
        if is_editing && printer.print(NOTHING.into()).and_then(|()| printer.print(NOTHING.into())).is_ok() {
            let _ = io::stderr().write_all(b"\n");
        }
    }

    /// Prints a line. Control characters are escaped: part of it may come from the peer.
    pub(super) fn print(&self, text: &str) {
        let text = terminal::visible_line(text);
        let text = if self.has_timestamps { format!("{} {text}", timestamp()) } else { text };
        let line = if self.has_colours { format!("\x1b[2m{text}\x1b[0m\n") } else { format!("{text}\n") };
        if !self.print_above(&line) {
            // The standard error may be closed.
            let _ = io::stderr().write_all(line.as_bytes());
        }
    }

    /// Prints an error.
    pub(super) fn print_error(&self, text: &str) {
        self.print(&format!("wireloom: {text}"));
    }

    /// The exit code when the output cannot be written. A closed pipe is not an error; anything else is printed.
    pub(super) fn unwritable(&self, error: &io::Error) -> Exit {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Exit::Success;
        }
        self.print_error(&format!("the output cannot be written: {error}"));
        Exit::Broken
    }

    /// Prints text above the line that is being edited. False when there is none.
    pub(super) fn print_above(&self, text: &str) -> bool {
        let mut editor = self.editor.lock().unwrap_or_else(PoisonError::into_inner);
        let is_printed = editor.as_mut().is_some_and(|printer| printer.print(text.to_owned()).is_ok());
        if !is_printed {
            *editor = None;
        }
        is_printed
    }
}
