//! HTTP/2 frames with any content, valid or not (RFC 9113 §4.1), and a reader for frames.
//!
//! A second implementation of the layout. It shares no code with the tested one, and can write invalid frames. Fields are written as literals without an index and without Huffman coding (RFC 7541
//! §6.2.2), so that every block is independent of the others.

/// The connection preface of a client (RFC 9113 §3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types by number (RFC 9113 §6, RFC 7838, RFC 8336, RFC 9218).
#[allow(missing_docs)]
pub mod kind {
    pub const DATA: u8 = 0x0;
    pub const HEADERS: u8 = 0x1;
    pub const PRIORITY: u8 = 0x2;
    pub const RST_STREAM: u8 = 0x3;
    pub const SETTINGS: u8 = 0x4;
    pub const PUSH_PROMISE: u8 = 0x5;
    pub const PING: u8 = 0x6;
    pub const GOAWAY: u8 = 0x7;
    pub const WINDOW_UPDATE: u8 = 0x8;
    pub const CONTINUATION: u8 = 0x9;
    pub const ALTSVC: u8 = 0xa;
    pub const ORIGIN: u8 = 0xc;
    pub const PRIORITY_UPDATE: u8 = 0x10;
}

/// Flags by bit (RFC 9113 §6).
#[allow(missing_docs)]
pub mod flag {
    pub const ACK: u8 = 0x1;
    pub const END_STREAM: u8 = 0x1;
    pub const END_HEADERS: u8 = 0x4;
    pub const PADDED: u8 = 0x8;
    pub const PRIORITY: u8 = 0x20;
}

/// Error codes by number (RFC 9113 §7).
#[allow(missing_docs)]
pub mod code {
    pub const NO_ERROR: u32 = 0x0;
    pub const PROTOCOL_ERROR: u32 = 0x1;
    pub const FLOW_CONTROL_ERROR: u32 = 0x3;
    pub const SETTINGS_TIMEOUT: u32 = 0x4;
    pub const STREAM_CLOSED: u32 = 0x5;
    pub const FRAME_SIZE_ERROR: u32 = 0x6;
    pub const REFUSED_STREAM: u32 = 0x7;
    pub const CANCEL: u32 = 0x8;
    pub const COMPRESSION_ERROR: u32 = 0x9;
    pub const ENHANCE_YOUR_CALM: u32 = 0xb;
}

/// A frame to write, or one that was read.
#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its type.
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// Its stream identifier, with the reserved bit.
    pub stream: u32,
    /// The bytes after the header.
    pub payload: Vec<u8>,
    /// The length in the header, if it differs from that of the payload.
    pub header_len: Option<u32>,
}

impl Frame {
    /// A frame of any type, without flags.
    pub fn new(kind: u8, stream: u32, payload: impl Into<Vec<u8>>) -> Self {
        Self { kind, flags: 0, stream, payload: payload.into(), header_len: None }
    }

    /// DATA.
    pub fn data(stream: u32, data: impl Into<Vec<u8>>) -> Self {
        Self::new(kind::DATA, stream, data)
    }

    /// HEADERS with these fields and END_HEADERS.
    pub fn headers(stream: u32, fields: &[(&str, &str)]) -> Self {
        Self::new(kind::HEADERS, stream, block(fields)).flag(flag::END_HEADERS)
    }

    /// HEADERS of a GET request that ends its stream.
    pub fn get(stream: u32) -> Self {
        Self::headers(stream, GET).flag(flag::END_STREAM)
    }

    /// HEADERS of a POST request, whose content follows.
    pub fn post(stream: u32) -> Self {
        Self::headers(stream, POST)
    }

    /// CONTINUATION.
    pub fn continuation(stream: u32, fragment: impl Into<Vec<u8>>) -> Self {
        Self::new(kind::CONTINUATION, stream, fragment)
    }

    /// PRIORITY.
    pub fn priority(stream: u32, on: u32, weight: u8) -> Self {
        Self::new(kind::PRIORITY, stream, [&on.to_be_bytes()[..], &[weight]].concat())
    }

    /// RST_STREAM.
    pub fn rst_stream(stream: u32, code: u32) -> Self {
        Self::new(kind::RST_STREAM, stream, code.to_be_bytes())
    }

    /// SETTINGS.
    pub fn settings(entries: &[(u16, u32)]) -> Self {
        let payload: Vec<u8> = entries
            .iter()
            .flat_map(|(id, value)| id.to_be_bytes().into_iter().chain(value.to_be_bytes()))
            .collect();
        Self::new(kind::SETTINGS, 0, payload)
    }

    /// The acknowledgement of SETTINGS.
    pub fn settings_ack() -> Self {
        Self::settings(&[]).flag(flag::ACK)
    }

    /// PUSH_PROMISE with these fields and END_HEADERS.
    pub fn push_promise(stream: u32, promised: u32, fields: &[(&str, &str)]) -> Self {
        let payload = [&promised.to_be_bytes()[..], &block(fields)].concat();
        Self::new(kind::PUSH_PROMISE, stream, payload).flag(flag::END_HEADERS)
    }

    /// PING.
    pub fn ping(payload: impl Into<Vec<u8>>) -> Self {
        Self::new(kind::PING, 0, payload)
    }

    /// GOAWAY.
    pub fn goaway(last: u32, code: u32, debug: &str) -> Self {
        let payload = [&last.to_be_bytes()[..], &code.to_be_bytes(), debug.as_bytes()].concat();
        Self::new(kind::GOAWAY, 0, payload)
    }

    /// WINDOW_UPDATE.
    pub fn window_update(stream: u32, increment: u32) -> Self {
        Self::new(kind::WINDOW_UPDATE, stream, increment.to_be_bytes())
    }

    /// PRIORITY_UPDATE.
    pub fn priority_update(prioritized: u32, value: &str) -> Self {
        let payload = [&prioritized.to_be_bytes()[..], value.as_bytes()].concat();
        Self::new(kind::PRIORITY_UPDATE, 0, payload)
    }

    /// Adds flags.
    #[must_use]
    pub fn flag(mut self, flags: u8) -> Self {
        self.flags |= flags;
        self
    }

    /// Removes flags.
    #[must_use]
    pub fn no_flag(mut self, flags: u8) -> Self {
        self.flags &= !flags;
        self
    }

    /// Adds END_STREAM.
    #[must_use]
    pub fn end_stream(self) -> Self {
        self.flag(flag::END_STREAM)
    }

    /// Replaces the payload.
    #[must_use]
    pub fn payload(mut self, payload: impl Into<Vec<u8>>) -> Self {
        self.payload = payload.into();
        self
    }

    /// Adds padding: `announced` is the Pad Length field, and `len` zeros follow the payload.
    #[must_use]
    pub fn padded(mut self, announced: u8, len: usize) -> Self {
        self.payload.insert(0, announced);
        self.payload.resize(self.payload.len() + len, 0);
        self.flag(flag::PADDED)
    }

    /// Adds the deprecated priority fields (RFC 9113 §6.2). Add padding afterwards.
    #[must_use]
    pub fn depends_on(mut self, stream: u32) -> Self {
        let bytes = stream.to_be_bytes();
        self.payload.splice(..0, [bytes[0], bytes[1], bytes[2], bytes[3], 15]);
        self.flag(flag::PRIORITY)
    }

    /// Sets the length in the header.
    #[must_use]
    pub fn header_len(mut self, len: u32) -> Self {
        self.header_len = Some(len);
        self
    }

    /// Whether the frame has all of these flags.
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// The 32-bit number at this offset of the payload.
    ///
    /// # Panics
    /// If the payload is too short.
    pub fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes([
            self.payload[at],
            self.payload[at + 1],
            self.payload[at + 2],
            self.payload[at + 3],
        ])
    }

    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        let len = self.header_len.unwrap_or(self.payload.len() as u32).to_be_bytes();
        out.extend_from_slice(&[len[1], len[2], len[3], self.kind, self.flags]);
        out.extend_from_slice(&self.stream.to_be_bytes());
        out.extend_from_slice(&self.payload);
    }

    /// The frame in bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        join(std::slice::from_ref(self))
    }

    /// Removes and returns the first frame of `bytes`; `None` if it is incomplete.
    pub fn read(bytes: &mut &[u8]) -> Option<Self> {
        let &[l0, l1, l2, kind, flags, s0, s1, s2, s3] = bytes.first_chunk()?;
        let len = u32::from_be_bytes([0, l0, l1, l2]) as usize;
        let payload = bytes.get(9..9 + len)?.to_vec();
        *bytes = &bytes[9 + len..];
        Some(Self { kind, flags, stream: u32::from_be_bytes([s0, s1, s2, s3]), payload, header_len: None })
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = [
            "DATA",
            "HEADERS",
            "PRIORITY",
            "RST_STREAM",
            "SETTINGS",
            "PUSH_PROMISE",
            "PING",
            "GOAWAY",
            "WINDOW_UPDATE",
            "CONTINUATION",
        ];
        match names.get(usize::from(self.kind)) {
            Some(name) => f.write_str(name)?,
            None => write!(f, "{:#x}", self.kind)?,
        }
        let shown = &self.payload[..self.payload.len().min(64)];
        write!(f, "[{} {:#x} {}B {}]", self.stream, self.flags, self.payload.len(), shown.escape_ascii())
    }
}

/// The fields of a GET request.
pub const GET: &[(&str, &str)] =
    &[(":method", "GET"), (":scheme", "https"), (":authority", "example.org"), (":path", "/")];

/// The fields of a POST request.
pub const POST: &[(&str, &str)] =
    &[(":method", "POST"), (":scheme", "https"), (":authority", "example.org"), (":path", "/")];

/// Encodes frames, one after the other.
pub fn join(frames: &[Frame]) -> Vec<u8> {
    let mut out = Vec::new();
    frames.iter().for_each(|frame| frame.write(&mut out));
    out
}

/// Decodes all frames in `bytes`.
///
/// # Panics
/// If they end inside a frame.
pub fn split(mut bytes: &[u8]) -> Vec<Frame> {
    let frames = std::iter::from_fn(|| Frame::read(&mut bytes)).collect();
    assert!(bytes.is_empty(), "cut off: {}", bytes.escape_ascii());
    frames
}

/// A field block of literals.
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    fields.iter().flat_map(|(name, value)| literal(name.as_bytes(), value.as_bytes())).collect()
}

/// A literal field without indexing (RFC 7541 §6.2.2), of any bytes.
pub fn literal(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = vec![0];
    for string in [name, value] {
        integer(string.len(), &mut out);
        out.extend_from_slice(string);
    }
    out
}

/// An integer with a 7-bit prefix (RFC 7541 §5.1); the bit above it is 0.
fn integer(mut number: usize, out: &mut Vec<u8>) {
    if number < 127 {
        return out.push(number as u8);
    }
    out.push(127);
    number -= 127;
    while number >= 128 {
        out.push(number as u8 | 128);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_and_reads_the_layout_of_the_rfc() {
        // RFC 9113 §4.1
        let frame = Frame::data(3, "hi").end_stream();
        assert_eq!(frame.to_bytes(), b"\0\0\x02\0\x01\0\0\0\x03hi");
        let frames = [frame, Frame::settings(&[(4, 70_000)]), Frame::ping("01234567").flag(flag::ACK)];
        assert_eq!(split(&join(&frames)), frames);
        assert_eq!(Frame::read(&mut &join(&frames)[..10]), None);
    }

    #[test]
    fn padding_encloses_priority_and_fields() {
        // RFC 9113 §6.2: the length of the padding, the priority, the fields, the padding.
        let frame = Frame::new(kind::HEADERS, 1, "F").depends_on(0x8000_0003).padded(2, 2);
        assert_eq!(frame.payload, b"\x02\x80\0\0\x03\x0fF\0\0");
        assert_eq!(frame.flags, flag::PADDED | flag::PRIORITY);
    }

    #[test]
    fn literals_have_lengths_of_any_size() {
        // RFC 7541 §5.1
        assert_eq!(literal(b"a", &[b'v'; 126])[..4], *b"\0\x01a\x7e");
        assert_eq!(literal(b"a", &[b'v'; 127])[..5], *b"\0\x01a\x7f\0");
        assert_eq!(literal(b"a", &[b'v'; 1_337])[..6], *b"\0\x01a\x7f\xba\x09");
        assert_eq!(block(&[("a", "b"), ("c", "d")]), b"\0\x01a\x01b\0\x01c\x01d");
    }
}
