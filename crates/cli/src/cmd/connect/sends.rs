//! The messages of `--send` and `--send-file`, read before the connection is opened.

use std::fs::File;
use std::io;

use super::input::read_limited;
use crate::args::Connect;

/// A message that an argument names.
pub(super) struct Send {
    pub(super) payload: Vec<u8>,
    pub(super) is_binary: bool,
}

/// Reads the messages.
///
/// # Errors
/// A file cannot be read, or is not UTF-8 and is to be sent as text.
pub(super) fn read(args: &Connect) -> Result<Vec<Send>, String> {
    let named = |option: &str, name: &str, error: io::Error| format!("{option} {name}: {error}");
    let mut sends = Vec::new();
    for send in &args.script.send {
        let is_binary = args.is_binary();
        let payload = match send.strip_prefix('@') {
            None => send.clone().into_bytes(),
            Some(rest) if rest.starts_with('@') => rest.into(),
            Some("-") => {
                read_limited(&mut io::stdin().lock()).map_err(|error| named("--send", "@-", error))?
            }
            Some(file) => read_file(file.as_ref()).map_err(|error| named("--send", send, error))?,
        };
        if !is_binary && std::str::from_utf8(&payload).is_err() {
            return Err(format!(
                "--send {send}: the file is not UTF-8; --binary or --send-file sends it as binary"
            ));
        }
        sends.push(Send { payload, is_binary });
    }
    for file in &args.script.send_file {
        let payload =
            read_file(file).map_err(|error| named("--send-file", &file.display().to_string(), error))?;
        sends.push(Send { payload, is_binary: true });
    }
    Ok(sends)
}

fn read_file(path: &std::path::Path) -> io::Result<Vec<u8>> {
    read_limited(&mut File::open(path)?)
}
