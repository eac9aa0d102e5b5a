//! Opcodes (RFC 6455 §5.2) and the two kinds of message (§5.6).

/// The opcode of a frame. Reserved values have no variant: [`Header::decode`](crate::frame::Header::decode) rejects them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// A further fragment of a message.
    Continuation = 0x0,
    /// The first or only frame of a text message.
    Text = 0x1,
    /// The first or only frame of a binary message.
    Binary = 0x2,
    /// Closes the connection.
    Close = 0x8,
    /// Asks for a pong.
    Ping = 0x9,
    /// Answers a ping, or shows that the sender is alive.
    Pong = 0xA,
}

impl Opcode {
    /// The opcode in the low four bits of a frame's first byte; `None` for the reserved values 3–7 and B–F.
    #[inline]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0x0 => Some(Self::Continuation),
            0x1 => Some(Self::Text),
            0x2 => Some(Self::Binary),
            0x8 => Some(Self::Close),
            0x9 => Some(Self::Ping),
            0xA => Some(Self::Pong),
            _ => None,
        }
    }

    /// Control frames may come between the fragments of a message (RFC 6455 §5.5).
    #[inline]
    pub const fn is_control(self) -> bool {
        self as u8 & 0x8 != 0
    }
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// UTF-8.
    Text,
    /// Anything.
    Binary,
}

impl Kind {
    /// The opcode of the message's first frame.
    #[inline]
    pub const fn opcode(self) -> Opcode {
        match self {
            Self::Text => Opcode::Text,
            Self::Binary => Opcode::Binary,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 6455 §5.2: 3–7 and B–F are reserved.
    #[test]
    fn has_six_opcodes() {
        let known: alloc::vec::Vec<u8> = (0..=255).filter(|&b| Opcode::from_bits(b).is_some()).collect();
        assert_eq!(known, [0x0, 0x1, 0x2, 0x8, 0x9, 0xA]);
        for bits in known {
            let opcode = Opcode::from_bits(bits).unwrap();
            assert_eq!(opcode as u8, bits);
            assert_eq!(opcode.is_control(), bits >= 8);
        }
    }
}
