//! The form of the table: what is sent to which end, and what must come of it.

use wireloom_testing::Frame;
use wireloom_ws::{Limits, Role};

/// What must come of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The receiver fails the connection and says so with this close code.
    Fails(u16),
    /// All of it is lawful, and the connection stays open.
    Open,
    /// It is lawful up to a Close frame, which is answered with the same code (`None`: with none).
    Closes(Option<u16>),
}

/// One input.
pub(crate) struct Case {
    /// Of RFC 6455, or of RFC 7692 where it says so.
    pub(crate) section: &'static str,
    pub(crate) name: String,
    pub(crate) receiver: Role,
    /// permessage-deflate was negotiated.
    pub(crate) deflate: bool,
    pub(crate) limits: fn(&mut Limits),
    pub(crate) bytes: Vec<u8>,
    pub(crate) verdict: Verdict,
}

/// What the peer writes.
pub(crate) struct Wire {
    pub(crate) sender: Role,
    bytes: Vec<u8>,
    frames: u32,
}

impl Wire {
    /// A frame masked as the sender must; the keys differ from frame to frame.
    pub(crate) fn send(mut self, frame: Frame) -> Self {
        let frame = match self.sender {
            Role::Client => frame.mask((0x9E37_79B9_u32.wrapping_mul(self.frames + 1)).to_be_bytes()),
            Role::Server => frame,
        };
        self.frames += 1;
        frame.write(&mut self.bytes);
        self
    }

    /// A frame masked as the sender must not.
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

    /// Bytes as they are.
    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    /// What `write` does, `count` times.
    pub(crate) fn times(mut self, count: usize, write: impl Fn(Self, usize) -> Self) -> Self {
        for i in 0..count {
            self = write(self, i);
        }
        self
    }
}

/// All the cases.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) cases: Vec<Case>,
}

/// The part of the table for one section.
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
    /// The cases that follow have negotiated permessage-deflate.
    pub(crate) fn deflate(mut self) -> Self {
        self.deflate = true;
        self
    }

    /// The cases that follow have these limits.
    pub(crate) fn limits(mut self, limits: fn(&mut Limits)) -> Self {
        self.limits = limits;
        self
    }

    /// One case for a server, the same for a client.
    pub(crate) fn both(&mut self, name: impl Into<String>, verdict: Verdict, write: impl Fn(Wire) -> Wire) {
        let name = name.into();
        self.to(Role::Server, name.clone(), verdict, &write);
        self.to(Role::Client, name, verdict, &write);
    }

    /// One case for an end in the role `receiver`.
    pub(crate) fn to(
        &mut self,
        receiver: Role,
        name: impl Into<String>,
        verdict: Verdict,
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
            verdict,
        });
    }
}
