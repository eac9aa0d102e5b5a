//! The rows of the table: the bytes that are sent, the receiver's role and the expected outcome.

use wireloom_testing::Frame;
use wireloom_ws::{Limits, Role};

/// The expected outcome of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// The receiver fails the connection and sends this close code.
    Fails(u16),
    /// All of it is valid, and the connection stays open.
    Open,
    /// It is valid and ends with a Close frame, which is answered with the same code (`None`: without one).
    Closes(Option<u16>),
}

/// One input.
pub(crate) struct Case {
    /// Of RFC 6455, unless another RFC is named.
    pub(crate) section: &'static str,
    pub(crate) name: String,
    pub(crate) receiver: Role,
    /// permessage-deflate was negotiated.
    pub(crate) deflate: bool,
    pub(crate) limits: fn(&mut Limits),
    pub(crate) bytes: Vec<u8>,
    pub(crate) expected: Expected,
}

/// The bytes that the peer sends.
pub(crate) struct Wire {
    pub(crate) sender: Role,
    bytes: Vec<u8>,
    frames: u32,
}

impl Wire {
    /// A frame, masked if the sender is a client, with another key for each frame.
    pub(crate) fn send(mut self, frame: Frame) -> Self {
        let frame = match self.sender {
            Role::Client => frame.mask((0x9E37_79B9_u32.wrapping_mul(self.frames + 1)).to_be_bytes()),
            Role::Server => frame,
        };
        self.frames += 1;
        frame.write(&mut self.bytes);
        self
    }

    /// A frame, masked unless the sender is a client.
    pub(crate) fn send_wrongly_masked(mut self, frame: Frame) -> Self {
        let frame = match self.sender {
            Role::Client => frame.mask(None),
            Role::Server => frame.mask([1, 2, 3, 4]),
        };
        frame.write(&mut self.bytes);
        self
    }

    /// The first `len` bytes of a frame.
    pub(crate) fn send_head(self, len: usize, frame: Frame) -> Self {
        let start = self.bytes.len();
        let mut wire = self.send(frame);
        wire.bytes.truncate(start + len);
        wire
    }

    /// Bytes that are no frame.
    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    /// Calls `write` this number of times.
    pub(crate) fn times(mut self, count: usize, write: impl Fn(Self, usize) -> Self) -> Self {
        for i in 0..count {
            self = write(self, i);
        }
        self
    }
}

/// All cases.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) cases: Vec<Case>,
}

/// Adds the cases of one section.
pub(crate) struct Section<'t> {
    table: &'t mut Table,
    name: &'static str,
    deflate: bool,
    limits: fn(&mut Limits),
}

impl Table {
    pub(crate) fn section(&mut self, name: &'static str) -> Section<'_> {
        Section { table: self, name, deflate: false, limits: |_| {} }
    }
}

impl Section<'_> {
    /// permessage-deflate is negotiated in the cases that follow.
    pub(crate) fn deflate(mut self) -> Self {
        self.deflate = true;
        self
    }

    /// The limits of the cases that follow.
    pub(crate) fn limits(mut self, limits: fn(&mut Limits)) -> Self {
        self.limits = limits;
        self
    }

    /// Adds a case for a server, and the same for a client.
    pub(crate) fn both(&mut self, name: impl Into<String>, expected: Expected, write: impl Fn(Wire) -> Wire) {
        let name = name.into();
        self.to(Role::Server, name.clone(), expected, &write);
        self.to(Role::Client, name, expected, &write);
    }

    /// Adds a case for a receiver of this role.
    pub(crate) fn to(
        &mut self,
        receiver: Role,
        name: impl Into<String>,
        expected: Expected,
        write: impl Fn(Wire) -> Wire,
    ) {
        let sender = match receiver {
            Role::Server => Role::Client,
            Role::Client => Role::Server,
        };
        let wire = write(Wire { sender, bytes: Vec::new(), frames: 0 });
        self.table.cases.push(Case {
            section: self.name,
            name: name.into(),
            receiver,
            deflate: self.deflate,
            limits: self.limits,
            bytes: wire.bytes,
            expected,
        });
    }
}
