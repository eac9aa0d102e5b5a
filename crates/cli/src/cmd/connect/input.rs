//! The messages to send: from a pipe or file in the format that the arguments choose, or lines that are edited on a terminal. A thread
//! reads, because neither can be read without blocking.

use std::io::{self, BufRead as _, IsTerminal as _, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::mpsc;
use wireloom::CloseCode;

use super::editor::{self, Terminal};
use super::notes::Notes;
use super::output::decode_hex;
use crate::args::Format;

/// The maximum length of a message in bytes. A longer one would not fit into the send queue.
const MESSAGE_LEN_MAX: u64 = 64 << 20;

/// The maximum number of messages that have been read and not sent.
const PENDING_MAX: usize = 64;

/// A unit of input.
pub(super) enum Input {
    Message(Vec<u8>),
    /// A line typed on a terminal that begins with a slash.
    Command(Command),
    /// Ctrl-C while a line is being edited.
    Interrupted,
    /// The input cannot be read, or is not in its format.
    Failed(io::Error),
}

/// An instruction instead of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    Ping(Vec<u8>),
    Close(CloseCode, String),
    Binary(Vec<u8>),
    /// Not a command, and why.
    Invalid(&'static str),
}

/// The messages of the input, and the modes of the terminal before the line editor changed them.
pub(super) struct Messages {
    received: mpsc::Receiver<Input>,
    /// A line is being edited.
    is_editing: Arc<AtomicBool>,
    terminal: Option<Terminal>,
}

impl Messages {
    /// Starts reading: with a line editor if input and output are a terminal.
    pub(super) fn read(notes: &Notes, format: Format, keeps_history: bool) -> Self {
        let (sender, received) = mpsc::channel(PENDING_MAX);
        let is_editing = Arc::<AtomicBool>::default();
        let is_person = format == Format::Lines && io::stdin().is_terminal() && io::stdout().is_terminal();
        let terminal = is_person.then(Terminal::save).flatten();
        match terminal.is_some().then(|| editor::new(notes, keeps_history)) {
            Some(Ok((editor, history))) => {
                let is_editing = is_editing.clone();
                std::thread::spawn(move || editor::run(editor, history, &is_editing, &sender));
            }
            // A terminal that does not support editing is read as a pipe is.
            _ => {
                std::thread::spawn(move || read(io::stdin().lock(), format, &sender));
            }
        }
        Self { received, is_editing, terminal }
    }

    /// The next input; `None` at its end.
    pub(super) async fn next(&mut self) -> Option<Input> {
        self.received.recv().await
    }

    /// Whether a person types the messages on a terminal.
    pub(super) fn is_interactive(&self) -> bool {
        self.terminal.is_some()
    }

    /// Whether a line is being edited.
    pub(super) fn is_editing(&self) -> bool {
        self.is_editing.load(Ordering::Acquire)
    }
}

fn read(mut input: impl io::BufRead, format: Format, sender: &mpsc::Sender<Input>) {
    loop {
        let next = match read_message(&mut input, format) {
            Ok(Some(message)) => Input::Message(message),
            Ok(None) => return,
            Err(error) => Input::Failed(error),
        };
        let is_last = matches!(next, Input::Failed(_));
        if sender.blocking_send(next).is_err() || is_last {
            return;
        }
    }
}

/// Reads a message; `None` at the end of the input.
fn read_message(input: &mut impl io::BufRead, format: Format) -> io::Result<Option<Vec<u8>>> {
    let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
    let text = |line: &[u8]| std::str::from_utf8(line).map(str::trim).map(str::to_owned).ok();
    match format {
        Format::Lines => read_line(input),
        Format::Base64 => read_line(input)?
            .map(|line| {
                text(&line).and_then(|line| STANDARD.decode(line).ok()).ok_or(invalid("a line is not base64"))
            })
            .transpose(),
        Format::Hex => read_line(input)?
            .map(|line| {
                text(&line).and_then(|line| decode_hex(&line)).ok_or(invalid("a line is not hexadecimal"))
            })
            .transpose(),
        Format::Raw => {
            let message = read_limited(input)?;
            Ok((!message.is_empty()).then_some(message))
        }
        Format::Prefixed => {
            let mut len = [0; 4];
            if input.fill_buf()?.is_empty() {
                return Ok(None);
            }
            let truncated = |_| invalid("the input ends within a message");
            input.read_exact(&mut len).map_err(truncated)?;
            let len = u64::from(u32::from_be_bytes(len));
            if len > MESSAGE_LEN_MAX {
                return Err(too_long());
            }
            // Do not allocate the announced length: it may be wrong.
            let mut message = Vec::new();
            input.take(len).read_to_end(&mut message)?;
            if (message.len() as u64) < len {
                return Err(invalid("the input ends within a message"));
            }
            Ok(Some(message))
        }
    }
}

fn read_line(input: &mut impl io::BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    match input.take(MESSAGE_LEN_MAX).read_until(b'\n', &mut line)? as u64 {
        0 => return Ok(None),
        MESSAGE_LEN_MAX => return Err(too_long()),
        _ => {}
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    Ok(Some(line))
}

/// Reads the whole input, up to [`MESSAGE_LEN_MAX`].
pub(super) fn read_limited(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    input.take(MESSAGE_LEN_MAX).read_to_end(&mut all)?;
    if all.len() as u64 == MESSAGE_LEN_MAX { Err(too_long()) } else { Ok(all) }
}

fn too_long() -> io::Error {
    io::Error::other(format!("a message or line is longer than {MESSAGE_LEN_MAX} bytes"))
}

/// Parses a line typed on a terminal.
pub(super) fn parse_line(line: String) -> Input {
    let Some(command) = line.strip_prefix('/') else { return Input::Message(line.into()) };
    let (name, rest) = command.split_once(' ').unwrap_or((command, ""));
    Input::Command(match name {
        _ if command.starts_with('/') => return Input::Message(command.into()),
        // RFC 6455 §5.5.
        "ping" if rest.len() > 125 => Command::Invalid("a ping has at most 125 bytes"),
        "ping" => Command::Ping(rest.into()),
        "close" => {
            let (code, reason) = rest.split_once(' ').unwrap_or((rest, ""));
            match if code.is_empty() { Ok(1000) } else { code.parse() } {
                _ if reason.len() > 123 => Command::Invalid("a reason has at most 123 bytes"),
                Ok(code) if CloseCode::new(code).is_sendable() => {
                    Command::Close(CloseCode::new(code), reason.into())
                }
                Ok(_) => Command::Invalid("this close code may not be sent (RFC 6455 §7.4)"),
                Err(_) => Command::Invalid("/close CODE REASON: the code is a number, such as 1000"),
            }
        }
        "binary" => {
            decode_hex(rest).map_or(Command::Invalid("/binary HEX: two digits per byte"), Command::Binary)
        }
        _ => Command::Invalid(
            "commands are /ping, /close and /binary; //TEXT sends a text that begins with a slash",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut input: &[u8], format: Format) -> io::Result<Vec<Vec<u8>>> {
        std::iter::from_fn(|| read_message(&mut input, format).transpose()).collect()
    }

    #[test]
    fn splits_the_input_into_messages() {
        assert_eq!(all(b"a\n\nb", Format::Lines).unwrap(), [&b"a"[..], b"", b"b"]);
        assert_eq!(all(b"a\n\nb\n", Format::Raw).unwrap(), [b"a\n\nb\n"]);
        assert_eq!(all(b"AP8=\nAA==\n", Format::Base64).unwrap(), [&b"\0\xFF"[..], b"\0"]);
        assert_eq!(all(b"00ff\n\n", Format::Hex).unwrap(), [&b"\0\xFF"[..], b""]);
        assert_eq!(all(b"\0\0\0\x02a\n\0\0\0\0", Format::Prefixed).unwrap(), [&b"a\n"[..], b""]);
        for (wrong, format) in [
            (&b"?"[..], Format::Base64),
            (b"0", Format::Hex),
            (b"\0\0\0\x02a", Format::Prefixed),
            (b"\0", Format::Prefixed),
        ] {
            assert!(all(wrong, format).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn parses_commands() {
        let command = |line: &str| match parse_line(line.into()) {
            Input::Command(command) => command,
            _ => panic!("{line} is no command"),
        };
        assert_eq!(command("/ping"), Command::Ping(Vec::new()));
        assert_eq!(command("/ping a b"), Command::Ping(b"a b".to_vec()));
        assert_eq!(command("/close"), Command::Close(CloseCode::NORMAL, String::new()));
        assert_eq!(command("/close 4000 see you"), Command::Close(CloseCode::new(4000), "see you".into()));
        assert_eq!(command("/binary 00 ff"), Command::Binary(vec![0, 255]));
        for wrong in ["/", "/pong", "/close x", "/close 1005", "/close 999", "/binary 0"] {
            assert!(matches!(command(wrong), Command::Invalid(_)), "{wrong}");
        }
        assert!(matches!(parse_line("//a".into()), Input::Message(message) if message == b"/a"));
        assert!(matches!(parse_line("a".into()), Input::Message(message) if message == b"a"));
    }
}
