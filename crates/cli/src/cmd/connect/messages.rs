//! The messages to send: from a pipe or file in the format that the arguments choose, or lines that are edited on a terminal. A thread
//! reads, because neither can be read without blocking.

use std::io::{self, BufRead as _, IsTerminal as _, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::{mpsc, watch};

use super::editor::{self, Terminal};
use super::input::Input;
use super::notes::Notes;
use super::output::decode_hex;
use crate::args::{Connect, Format};

/// The maximum length of a message in bytes. A longer one would not fit into the send queue.
const MESSAGE_LEN_MAX: u64 = 64 << 20;

/// The maximum number of messages that have been read and not sent.
const PENDING_MAX: usize = 64;

/// How long messages that were typed before Ctrl-C may take to be sent.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Ctrl-C on a terminal, which is input there and no signal. Never ready for other input.
#[derive(Clone)]
pub(super) struct Interruption(watch::Receiver<bool>);

impl Interruption {
    /// Of no input.
    pub(super) fn never() -> Self {
        Self(watch::channel(false).1)
    }

    /// Ready at once.
    pub(super) async fn wait(&mut self) {
        if self.0.wait_for(|is_interrupted| *is_interrupted).await.is_err() {
            std::future::pending().await
        }
    }

    /// Ready when the peer has had time to read the messages before it.
    pub(super) async fn wait_longer(&mut self) {
        self.wait().await;
        tokio::time::sleep(SEND_TIMEOUT).await;
    }
}

/// The messages of the input, and the modes of the terminal before the line editor changed them.
pub(super) struct Messages {
    received: mpsc::Receiver<Input>,
    interruption: Interruption,
    /// A line is being edited.
    is_editing: Arc<AtomicBool>,
    terminal: Option<Terminal>,
}

impl Messages {
    /// Starts reading: with a line editor if input and output are a terminal.
    pub(super) fn read(notes: &Notes, args: &Connect) -> Self {
        let (format, is_text) = (args.messages.input, !args.is_binary());
        let (sender, received) = mpsc::channel(PENDING_MAX);
        let (interrupt, interruption) = watch::channel(false);
        let is_editing = Arc::<AtomicBool>::default();
        let is_person = format == Format::Lines && io::stdin().is_terminal() && io::stdout().is_terminal();
        let terminal = is_person.then(Terminal::save).flatten();
        match terminal.is_some().then(|| editor::new(notes, !args.messages.no_history)) {
            Some(Ok((editor, history))) => {
                let is_editing = is_editing.clone();
                std::thread::spawn(move || editor::run(editor, history, &is_editing, &sender, &interrupt));
            }
            // A terminal that does not support editing is read as a pipe is.
            _ => {
                std::thread::spawn(move || read(io::stdin().lock(), format, is_text, &sender));
            }
        }
        Self { received, interruption: Interruption(interruption), is_editing, terminal }
    }

    /// The next input; `None` at its end.
    pub(super) async fn next(&mut self) -> Option<Input> {
        self.received.recv().await
    }

    /// Ctrl-C, before the messages in front of it are taken.
    pub(super) fn interruption(&self) -> Interruption {
        self.interruption.clone()
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

fn read(mut input: impl io::BufRead, format: Format, is_text: bool, sender: &mpsc::Sender<Input>) {
    loop {
        let next = match read_message(&mut input, format, is_text) {
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

/// Reads a message; `None` at the end of the input. A line of text may end with CR LF, as on Windows.
fn read_message(input: &mut impl io::BufRead, format: Format, is_text: bool) -> io::Result<Option<Vec<u8>>> {
    let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
    match format {
        Format::Lines | Format::Base64 | Format::Hex => read_line(input, is_text)?
            .map(|line| decode(line, format).map_err(|why| invalid(&format!("a line is {why}"))))
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

/// The message that a line or an argument holds.
///
/// # Errors
/// The text is invalid: names the expected format.
pub(super) fn decode(bytes: Vec<u8>, format: Format) -> Result<Vec<u8>, &'static str> {
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(|text| text.trim().to_owned());
    match format {
        Format::Base64 => text(&bytes).and_then(|text| STANDARD.decode(text).ok()).ok_or("not base64"),
        Format::Hex => text(&bytes).and_then(|text| decode_hex(&text)).ok_or("not hexadecimal"),
        Format::Lines | Format::Raw | Format::Prefixed => Ok(bytes),
    }
}

fn read_line(input: &mut impl io::BufRead, is_text: bool) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    // With the end of the line.
    if input.take(MESSAGE_LEN_MAX + 2).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        if is_text && line.last() == Some(&b'\r') {
            line.pop();
        }
    }
    if line.len() as u64 > MESSAGE_LEN_MAX {
        return Err(too_long());
    }
    Ok(Some(line))
}

/// Reads the whole input, up to [`MESSAGE_LEN_MAX`].
pub(super) fn read_limited(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    input.take(MESSAGE_LEN_MAX + 1).read_to_end(&mut all)?;
    if all.len() as u64 > MESSAGE_LEN_MAX { Err(too_long()) } else { Ok(all) }
}

fn too_long() -> io::Error {
    io::Error::other(format!("a message or line is longer than {MESSAGE_LEN_MAX} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut input: &[u8], format: Format) -> io::Result<Vec<Vec<u8>>> {
        std::iter::from_fn(|| read_message(&mut input, format, true).transpose()).collect()
    }

    #[test]
    fn messages_have_a_longest_length() {
        const MAX: usize = MESSAGE_LEN_MAX as usize;
        let longest = [&vec![b'a'; MAX][..], b"\r\n"].concat();
        for (input, format) in
            [(&longest[..], Format::Lines), (&longest[..MAX], Format::Lines), (&longest[..MAX], Format::Raw)]
        {
            assert_eq!(all(input, format).unwrap(), [&longest[..MAX]]);
        }
        let longer = vec![b'a'; MAX + 1];
        for format in [Format::Lines, Format::Raw] {
            assert!(all(&longer, format).is_err());
        }
    }

    #[test]
    fn splits_the_input_into_messages() {
        assert_eq!(all(b"a\n\nb", Format::Lines).unwrap(), [&b"a"[..], b"", b"b"]);
        assert_eq!(all(b"a\r\n\r\nb\rc\r", Format::Lines).unwrap(), [&b"a"[..], b"", b"b\rc\r"]);
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
}
