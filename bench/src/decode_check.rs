//! Decodes the output of a contestant, with a parser that shares no code with any contestant.

use crate::checksum::{Checksum, Sink};
use flate2::{Decompress, FlushDecompress, Status};

/// The properties of the frames that a check expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Masked, as a client's are.
    pub(crate) masked: bool,
    /// Compressed (RFC 7692): each message by itself, or with the window of the messages before it.
    pub(crate) compressed: Option<Takeover>,
}

/// Whether a direction keeps its window from one message to the next (RFC 7692 §7.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takeover {
    Yes,
    No,
}

/// The checksum of the messages in `bytes`.
pub(crate) fn checksum(bytes: &[u8], expected: Expected) -> Result<Checksum, String> {
    let mut checksum = Checksum::default();
    let mut inflate = Decompress::new(false);
    let mut message = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (&[first, second], tail) = rest.split_first_chunk::<2>().ok_or("a header is cut off")?;
        rest = tail;
        if (second & 0x80 != 0) != expected.masked {
            return Err("the wrong side masks".into());
        }
        let len = match second & 0x7F {
            126 => u64::from(u16::from_be_bytes(*take(&mut rest)?)),
            127 => u64::from_be_bytes(*take(&mut rest)?),
            len => u64::from(len),
        };
        let key = if expected.masked { *take(&mut rest)? } else { [0; 4] };
        let (payload, tail) = rest.split_at_checked(len as usize).ok_or("a payload is cut off")?;
        rest = tail;
        let starts = first & 0x0F != 0;
        if starts != message.is_empty() || (starts && (first & 0x40 != 0) != expected.compressed.is_some()) {
            return Err(format!("an unexpected first byte {first:#04x}"));
        }
        message.extend(payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key));
        if first & 0x80 == 0 {
            continue;
        }
        if let Some(takeover) = expected.compressed {
            if takeover == Takeover::No {
                inflate.reset(false);
            }
            message.extend([0, 0, 0xFF, 0xFF]);
            message = inflated(&mut inflate, &message)?;
        }
        checksum.message(&message);
        message.clear();
    }
    if message.is_empty() { Ok(checksum) } else { Err("a message does not end".into()) }
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Result<&'a [u8; N], String> {
    let (taken, tail) = rest.split_first_chunk().ok_or("a header is cut off")?;
    *rest = tail;
    Ok(taken)
}

fn inflated(inflate: &mut Decompress, message: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(message.len() * 16 + 256);
    let before = inflate.total_in();
    let status = inflate
        .decompress_vec(message, &mut out, FlushDecompress::Sync)
        .map_err(|error| format!("not DEFLATE: {error}"))?;
    if status == Status::StreamEnd || inflate.total_in() - before != message.len() as u64 {
        return Err(format!("inflated {} of {} bytes", inflate.total_in() - before, message.len()));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wireloom_testing::frame::Frame;

    #[test]
    fn decodes_frames_of_the_builder() {
        let masked = Expected { masked: true, compressed: None };
        let mut bytes = Vec::new();
        Frame::binary([7; 200]).mask([1, 2, 3, 4]).write(&mut bytes);
        Frame::binary("a").fin(false).mask([9, 2, 3, 4]).write(&mut bytes);
        Frame::continuation("b").mask([0, 2, 3, 4]).write(&mut bytes);
        assert_eq!(checksum(&bytes, masked), Ok(Checksum::of([&[7; 200][..], b"ab"])));
        assert!(checksum(&bytes[..bytes.len() - 1], masked).is_err());
        assert!(checksum(&bytes, Expected { masked: false, compressed: None }).is_err());
    }

    // RFC 7692 §7.2.3.2: "Hello" twice, the second time from the window of the first.
    #[test]
    fn decodes_the_published_compressed_messages() {
        let bytes =
            [0xC1, 0x07, 0xF2, 0x48, 0xCD, 0xC9, 0xC9, 0x07, 0x00, 0xC1, 0x05, 0xF2, 0x00, 0x11, 0x00, 0x00];
        let takeover = Expected { masked: false, compressed: Some(Takeover::Yes) };
        assert_eq!(checksum(&bytes, takeover), Ok(Checksum::of([&b"Hello"[..], b"Hello"])));
        let none = Expected { masked: false, compressed: Some(Takeover::No) };
        assert!(checksum(&bytes, none) != checksum(&bytes, takeover));
    }
}
