//! Messages from a stream of bytes, and the bytes of messages.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use wireloom::Message;

use crate::args::Framing;

/// The capacity of the reader: the longest message of [`Framing::Bytes`], in bytes.
pub(super) const READ_LEN_MAX: usize = 64 << 10;

/// Payloads up to this length are written together with what frames them.
const COPIED_LEN_MAX: usize = 16 << 10;

/// A message to send.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outgoing {
    Text(String),
    Binary(Bytes),
}

/// The messages that a stream holds.
pub(super) struct Decoder<R> {
    reader: R,
    framing: Framing,
    /// The longest message of lines and prefixed messages, in bytes.
    len_max: usize,
}

impl<R: AsyncBufRead + Unpin> Decoder<R> {
    pub(super) fn new(reader: R, framing: Framing, len_max: usize) -> Self {
        Self { reader, framing, len_max }
    }

    /// The next message; `None` at the end.
    ///
    /// # Errors
    /// The stream fails, or is not in its framing.
    pub(super) async fn next(&mut self) -> io::Result<Option<Outgoing>> {
        match self.framing {
            Framing::Lines => self.line().await,
            Framing::Bytes => {
                let bytes = Bytes::copy_from_slice(self.reader.fill_buf().await?);
                self.reader.consume(bytes.len());
                Ok((!bytes.is_empty()).then_some(Outgoing::Binary(bytes)))
            }
            Framing::Prefixed => self.prefixed().await,
        }
    }

    async fn line(&mut self) -> io::Result<Option<Outgoing>> {
        let mut line = Vec::new();
        loop {
            let read = self.reader.fill_buf().await?;
            if read.is_empty() {
                if line.is_empty() {
                    return Ok(None);
                }
                // The last line may have no end.
                return text(line).map(Some);
            }
            let end = read.iter().position(|&byte| byte == b'\n');
            let part = &read[..end.unwrap_or(read.len())];
            if line.len() + part.len() > self.len_max {
                return Err(invalid("a line is longer than --max-message"));
            }
            line.extend_from_slice(part);
            let len = part.len() + usize::from(end.is_some());
            self.reader.consume(len);
            if end.is_some() {
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
                return text(line).map(Some);
            }
        }
    }

    async fn prefixed(&mut self) -> io::Result<Option<Outgoing>> {
        if self.reader.fill_buf().await?.is_empty() {
            return Ok(None);
        }
        let len = self.reader.read_u32().await.map_err(truncated)?;
        let len = usize::try_from(len).ok().filter(|&len| len <= self.len_max);
        let len = len.ok_or_else(|| invalid("a message is longer than --max-message"))?;
        // The announced length is not allocated: it may be wrong.
        let mut message = BytesMut::new();
        while message.len() < len {
            let read = self.reader.fill_buf().await?;
            if read.is_empty() {
                return Err(invalid("it ends within a message"));
            }
            let part = read.len().min(len - message.len());
            message.extend_from_slice(&read[..part]);
            self.reader.consume(part);
        }
        Ok(Some(Outgoing::Binary(message.freeze())))
    }

    /// Reads and discards what is left.
    pub(super) async fn discard(&mut self) -> io::Result<()> {
        loop {
            let len = self.reader.fill_buf().await?.len();
            if len == 0 {
                return Ok(());
            }
            self.reader.consume(len);
        }
    }
}

fn text(line: Vec<u8>) -> io::Result<Outgoing> {
    String::from_utf8(line)
        .map(Outgoing::Text)
        .map_err(|_| invalid("a line is not UTF-8; --framing bytes or prefixed sends it as it is"))
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn truncated(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => invalid("it ends within a message"),
        _ => error,
    }
}

/// Writes a message, or a chunk of one: prefixed messages are whole.
///
/// # Errors
/// The stream fails.
pub(super) async fn write(
    writer: &mut (impl AsyncWrite + Unpin + ?Sized),
    framing: Framing,
    message: &Message<'_>,
) -> io::Result<()> {
    let payload = message.as_bytes();
    let (before, behind): (&[u8], &[u8]) = match framing {
        Framing::Lines if message.is_last() => (&[], b"\n"),
        Framing::Lines | Framing::Bytes => (&[], &[]),
        Framing::Prefixed => {
            let len = u32::try_from(payload.len()).map_err(|_| invalid("a message is over 4 GiB"))?;
            (&len.to_be_bytes(), &[])
        }
    };
    if payload.len() <= COPIED_LEN_MAX && before.len() + behind.len() > 0 {
        writer.write_all(&[before, payload, behind].concat()).await?;
    } else {
        writer.write_all(before).await?;
        writer.write_all(payload).await?;
        writer.write_all(behind).await?;
    }
    writer.flush().await
}

#[cfg(test)]
mod tests {
    use tokio::io::BufReader;

    use super::*;

    async fn all(input: &[u8], framing: Framing, len_max: usize) -> io::Result<Vec<Outgoing>> {
        let mut found = Vec::new();
        // Reads of few bytes split everything.
        let mut decoder = Decoder::new(BufReader::with_capacity(3, input), framing, len_max);
        while let Some(message) = decoder.next().await? {
            found.push(message);
        }
        Ok(found)
    }

    #[tokio::test]
    async fn splits_a_stream_into_messages() {
        let text = |text: &str| Outgoing::Text(text.into());
        let binary = |bytes: &'static [u8]| Outgoing::Binary(Bytes::from_static(bytes));
        let lines = all("eins\r\n\nzwölf\nvier".as_bytes(), Framing::Lines, 6).await.unwrap();
        assert_eq!(lines, [text("eins"), text(""), text("zwölf"), text("vier")]);
        assert_eq!(all(b"abcd", Framing::Bytes, 1).await.unwrap(), [binary(b"abc"), binary(b"d")]);
        let prefixed = all(b"\0\0\0\x05hello\0\0\0\0", Framing::Prefixed, 5).await.unwrap();
        assert_eq!(prefixed, [binary(b"hello"), binary(b"")]);
        for framing in [Framing::Lines, Framing::Bytes, Framing::Prefixed] {
            assert_eq!(all(b"", framing, 1).await.unwrap(), []);
        }
    }

    #[tokio::test]
    async fn refuses_what_is_not_in_its_framing() {
        for (input, framing, why) in [
            (&b"1234567\n"[..], Framing::Lines, "longer than"),
            (b"1234567", Framing::Lines, "longer than"),
            (b"\xFF\n", Framing::Lines, "not UTF-8"),
            (b"\0\0\0\x07", Framing::Prefixed, "longer than"),
            (b"\xFF\xFF\xFF\xFF", Framing::Prefixed, "longer than"),
            (b"\0\0", Framing::Prefixed, "ends within"),
            (b"\0\0\0\x02a", Framing::Prefixed, "ends within"),
        ] {
            let error = all(input, framing, 6).await.unwrap_err();
            assert!(error.to_string().contains(why), "{input:?}: {error}");
        }
    }
}
