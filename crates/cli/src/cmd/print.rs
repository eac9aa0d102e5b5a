//! The output of commands that print one text.

use std::io::{self, Write as _};

use crate::exit::Exit;
use crate::terminal;

/// Prints it to the standard output. A reader that ends early, such as `head`, is no failure.
pub(super) fn print(output: &[u8]) -> Exit {
    let mut out = io::stdout().lock();
    match out.write_all(output).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => unwritable(&error),
        _ => Exit::Success,
    }
}

/// Reports that the output cannot be written.
pub(super) fn unwritable(error: &io::Error) -> Exit {
    terminal::print_error(format_args!("the output cannot be written: {error}"));
    Exit::Broken
}
