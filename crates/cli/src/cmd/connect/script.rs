//! The messages of `--send`, `--send-file` and `--expect`, read before the connection is opened.

use std::fs::File;
use std::io;

use super::messages::{decode, read_limited};
use crate::args::{Connect, Format};

/// A message that an argument names.
pub(super) struct Payload {
    pub(super) bytes: Vec<u8>,
    pub(super) is_binary: bool,
}

/// The messages to send and the messages to expect.
pub(super) struct Script {
    pub(super) sends: Vec<Payload>,
    pub(super) expected: Vec<Vec<u8>>,
}

impl Script {
    /// Reads the messages.
    ///
    /// # Errors
    /// A file cannot be read, or is not UTF-8 and is to be sent as text; or a message is not in the format of `--in` or `--out`.
    pub(super) fn read(args: &Connect) -> Result<Self, String> {
        let named = |option: &str, name: &str, error: io::Error| format!("{option} {name}: {error}");
        let (input, output) = (args.messages.input, args.messages.output);
        let mut sends = Vec::new();
        for send in &args.script.send {
            let is_binary = args.is_binary();
            let bytes = match send.strip_prefix('@') {
                None => send.clone().into_bytes(),
                Some(rest) if rest.starts_with('@') => rest.into(),
                Some("-") => {
                    read_limited(&mut io::stdin().lock()).map_err(|error| named("--send", "@-", error))?
                }
                Some(file) => read_file(file.as_ref()).map_err(|error| named("--send", send, error))?,
            };
            let bytes = decode(bytes, input)
                .map_err(|why| format!("--send {send}: it is {why} (--in {})", name(input)))?;
            if !is_binary && std::str::from_utf8(&bytes).is_err() {
                return Err(format!(
                    "--send {send}: the file is not UTF-8; --binary or --send-file sends it as binary"
                ));
            }
            sends.push(Payload { bytes, is_binary });
        }
        for file in &args.script.send_file {
            let bytes =
                read_file(file).map_err(|error| named("--send-file", &file.display().to_string(), error))?;
            sends.push(Payload { bytes, is_binary: true });
        }
        let expected = args.script.expect.iter().map(|expect| {
            decode(expect.clone().into_bytes(), output)
                .map_err(|why| format!("--expect {expect}: it is {why} (--out {})", name(output)))
        });
        Ok(Self { sends, expected: expected.collect::<Result<_, _>>()? })
    }
}

/// A format as the arguments spell it.
fn name(format: Format) -> String {
    use clap::ValueEnum as _;
    format.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn read_file(path: &std::path::Path) -> io::Result<Vec<u8>> {
    read_limited(&mut File::open(path)?)
}
