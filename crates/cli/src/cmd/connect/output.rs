//! Where messages and notes go. Messages are shown at once on a terminal, and gathered while they come otherwise. While a
//! line is being edited, both are put above it.

use std::io::{self, BufWriter, IsTerminal as _, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use rustyline::ExternalPrinter;

use crate::exit::Exit;
use crate::terminal;

/// What prints above the line that is being edited.
pub(super) type Printer = Box<dyn ExternalPrinter + Send>;

/// What is said about the connection, on the standard error.
#[derive(Clone)]
pub(super) struct Notes {
    above: Arc<Mutex<Option<Printer>>>,
    has_colours: bool,
}

impl Notes {
    pub(super) fn new() -> Self {
        Self { above: Arc::default(), has_colours: terminal::has_colours(&io::stderr()) }
    }

    /// From now on a line is being edited.
    pub(super) fn put_above(&self, printer: Printer) {
        *self.above.lock().unwrap_or_else(PoisonError::into_inner) = Some(printer);
    }

    /// No line is edited any more. If one still is, what was printed above it is shown first, and it is left as it stands.
    pub(super) fn end_editing(&self) {
        /// Up and down again: nothing to see.
        const NOTHING: &str = "\x1b[A\n";
        let Some(mut printer) = self.above.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        // The editor takes one at a time: the second is accepted once all before the first have been printed.
        if printer.print(NOTHING.into()).and_then(|()| printer.print(NOTHING.into())).is_ok() {
            let _ = io::stderr().write_all(b"\n");
        }
    }

    /// Says something. Whoever should read it may have gone.
    pub(super) fn say(&self, text: &str) {
        let line = if self.has_colours { format!("\x1b[2m{text}\x1b[0m\n") } else { format!("{text}\n") };
        if !self.print_above(&line) {
            let _ = io::stderr().write_all(line.as_bytes());
        }
    }

    /// Says what went wrong.
    pub(super) fn say_error(&self, text: &str) {
        self.say(&format!("wireloom: {text}"));
    }

    /// What it means that the output takes no more: whoever read it has heard enough, or something is wrong with it.
    pub(super) fn tell_unwritten(&self, error: &io::Error) -> Exit {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Exit::Done;
        }
        self.say_error(&format!("the output cannot be written: {error}"));
        Exit::Cut
    }

    /// Whether there was a line to print it above.
    fn print_above(&self, line: &str) -> bool {
        let mut above = self.above.lock().unwrap_or_else(PoisonError::into_inner);
        let printed = above.as_mut().is_some_and(|printer| printer.print(line.to_owned()).is_ok());
        if !printed {
            // The editor has gone.
            *above = None;
        }
        printed
    }
}

/// The standard output, with a message on each line.
pub(super) struct Output {
    inner: BufWriter<io::Stdout>,
    notes: Notes,
    is_terminal: bool,
    is_dirty: bool,
    /// The begin of a character that is to be shown.
    unfinished: Vec<u8>,
}

impl Output {
    pub(super) fn new(notes: Notes) -> Self {
        let inner = BufWriter::with_capacity(64 << 10, io::stdout());
        Self {
            inner,
            notes,
            is_terminal: io::stdout().is_terminal(),
            is_dirty: false,
            unfinished: Vec::new(),
        }
    }

    /// Prints a message: as it is, unless a person reads it.
    pub(super) fn message(&mut self, bytes: &[u8], is_text: bool) -> io::Result<()> {
        if self.is_terminal {
            let text = std::str::from_utf8(bytes).ok().filter(|_| is_text);
            let mut shown = text.map_or_else(|| terminal::binary(bytes), terminal::visible);
            shown.push('\n');
            if self.notes.print_above(&shown) {
                return Ok(());
            }
            self.inner.write_all(shown.as_bytes())?;
        } else {
            self.inner.write_all(bytes)?;
            self.inner.write_all(b"\n")?;
        }
        self.is_dirty = true;
        Ok(())
    }

    /// Prints what comes in pieces: as it is, unless a person reads it.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.is_dirty = true;
        if !self.is_terminal {
            return self.inner.write_all(bytes);
        }
        // A character may be in two pieces.
        self.unfinished.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.unfinished) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.unfinished.len(),
        };
        let rest = self.unfinished.split_off(whole);
        let shown = terminal::visible(&String::from_utf8_lossy(&self.unfinished));
        self.unfinished = rest;
        self.inner.write_all(shown.as_bytes())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.is_dirty {
            self.inner.flush()?;
            self.is_dirty = false;
        }
        Ok(())
    }
}
