//! Splits the output of a server into messages, with a parser that shares no code with any contestant. No I/O.

use flate2::{Decompress, FlushDecompress};

/// The longest header of a server's frame (RFC 6455 §5.2).
const HEAD_LEN_MAX: usize = 10;

/// Splits what a server sends into messages. Servers that fan out do not fragment.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    head: Vec<u8>,
    /// Bytes of the payload that have not arrived yet; `None` within a header.
    left: Option<usize>,
    body: Vec<u8>,
    inflate: Option<Box<Decompress>>,
}

impl Messages {
    /// For a connection that negotiated permessage-deflate. Messages are inflated before they are passed on.
    pub(crate) fn inflating() -> Self {
        Self { inflate: Some(Box::new(Decompress::new(false))), ..Self::default() }
    }

    /// Calls `each` with every message that `bytes` complete.
    ///
    /// # Errors
    /// A frame that no server sends here, a Close frame, or an error of `each`.
    pub(crate) fn read(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        loop {
            let Some(left) = self.left else {
                while self.head.len() < head_len(&self.head) {
                    let Some((first, rest)) = bytes.split_first() else { return Ok(()) };
                    self.head.push(*first);
                    bytes = rest;
                }
                self.left = Some(self.payload_len());
                continue;
            };
            let (taken, rest) = bytes.split_at(left.min(bytes.len()));
            bytes = rest;
            if taken.len() < left {
                self.body.extend_from_slice(taken);
                self.left = Some(left - taken.len());
                return Ok(());
            }
            // A payload that arrived whole is not copied.
            if self.body.is_empty() {
                self.message(taken, &mut each)?;
            } else {
                let mut body = std::mem::take(&mut self.body);
                body.extend_from_slice(taken);
                self.message(&body, &mut each)?;
            }
            self.head.clear();
            self.left = None;
        }
    }

    fn payload_len(&self) -> usize {
        let len = match (self.head[1], &self.head[2..]) {
            (126, extended) => extended.try_into().map_or(0, |bytes| u64::from(u16::from_be_bytes(bytes))),
            (127, extended) => extended.try_into().map_or(0, u64::from_be_bytes),
            (len, _) => u64::from(len),
        };
        usize::try_from(len).unwrap_or(usize::MAX)
    }

    fn message(
        &mut self,
        payload: &[u8],
        each: &mut impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        match (self.head[0], &mut self.inflate) {
            (0x81 | 0x82, _) => each(payload),
            (0xC1 | 0xC2, Some(inflate)) => {
                let mut message = payload.to_vec();
                message.extend([0, 0, 0xFF, 0xFF]);
                let mut out = Vec::with_capacity(64 << 10);
                let inflated = inflate.decompress_vec(&message, &mut out, FlushDecompress::Sync);
                inflated.map_err(|error| format!("not DEFLATE: {error}"))?;
                each(&out)
            }
            (0x89 | 0x8A, _) => Ok(()),
            (0x88, _) => {
                Err(format!("closed: {:?}", String::from_utf8_lossy(payload.get(2..).unwrap_or_default())))
            }
            (first, _) => Err(format!("an unexpected first byte {first:#04x}")),
        }
    }
}

/// The length of the header that begins with these bytes, at least 2.
fn head_len(head: &[u8]) -> usize {
    match head.get(1) {
        Some(126) => 4,
        Some(127) => HEAD_LEN_MAX,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wireloom_testing::frame::Frame;

    #[test]
    fn splits_bytes_at_any_place() {
        let messages = [vec![], vec![1; 5], vec![2; 125], vec![3; 126], vec![4; 70_000], vec![5; 1]];
        let mut bytes = Vec::new();
        for message in &messages {
            Frame::binary(message).write(&mut bytes);
        }
        for step in [1, 2, 3, 7, 1_000, bytes.len()] {
            let (mut reading, mut received) = (Messages::default(), Vec::new());
            for chunk in bytes.chunks(step) {
                let keep = |message: &[u8]| {
                    received.push(message.to_vec());
                    Ok(())
                };
                reading.read(chunk, keep).expect("messages");
            }
            assert_eq!(received, messages, "{step}");
        }
    }

    #[test]
    fn reports_a_close() {
        let bytes = Frame::close(1008, "no").bytes();
        assert!(Messages::default().read(&bytes, |_| Ok(())).is_err());
    }
}
