//! The hot record of a stream: everything that a frame touches, in one cache line.
//!
//! Owns the layout. Windows are kept as the difference from the initial window in force, so that a change of
//! SETTINGS_INITIAL_WINDOW_SIZE (RFC 9113 §6.9.2) adjusts a million streams by changing one number.

use super::{NONE, State};
use crate::message::ContentLeft;

/// Bits of `Stream::flags`.
pub(crate) mod flag {
    /// The final header section came in (not 1xx): the next one is the trailers.
    pub(crate) const RECV_FINAL: u16 = 1 << 0;
    /// The final header section went out.
    pub(crate) const SENT_FINAL: u16 = 1 << 1;
    /// This side ends the stream when its queue is empty.
    pub(crate) const END_QUEUED: u16 = 1 << 2;
    /// A request that asked with HEAD: its response has a `content-length` and no content.
    pub(crate) const HEAD: u16 = 1 << 3;
    /// A request with CONNECT, plain or extended.
    pub(crate) const CONNECT: u16 = 1 << 4;
    /// In a list of the scheduler: ready to send DATA.
    pub(crate) const IN_READY: u16 = 1 << 5;
    /// In the list of those with DATA and no window.
    pub(crate) const IN_BLOCKED: u16 = 1 << 6;
    /// In the list of those that wait for SETTINGS_MAX_CONCURRENT_STREAMS.
    pub(crate) const IN_OPENING: u16 = 1 << 7;
    /// Any list: the links are in use.
    pub(crate) const IN_LIST: u16 = IN_READY | IN_BLOCKED | IN_OPENING;
    /// The caller gives window back itself.
    pub(crate) const MANUAL: u16 = 1 << 8;
    /// The caller was told to wait and wants [`crate::Event::Writable`].
    pub(crate) const WANTS_ROOM: u16 = 1 << 9;
    /// The parked fields are trailers.
    pub(crate) const TRAILERS: u16 = 1 << 10;
    /// This side opened (or promised) the stream.
    pub(crate) const LOCAL: u16 = 1 << 11;
    /// The caller set the priority itself; what the peer says no longer counts.
    pub(crate) const PRIORITY_SET: u16 = 1 << 12;
    /// `Stream::stalled_at_ms` runs.
    pub(crate) const STALL_CLOCK: u16 = 1 << 13;
    /// A tiny DATA frame came before.
    pub(crate) const TINY_BEFORE: u16 = 1 << 14;
    /// `STALL_CLOCK` runs from the time that the caller tells next. In the list of those without window, such streams are
    /// the last ones.
    pub(crate) const UNTIMED: u16 = 1 << 15;
}

/// Urgency 0 (first) to 7 (last) and whether pieces are of use (RFC 9218 §4), packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Priority(u8);

impl Priority {
    /// Urgency 3, not incremental (RFC 9218 §4).
    pub(crate) const DEFAULT: Self = Self::new(3, false);

    #[inline]
    pub(crate) const fn new(urgency: u8, incremental: bool) -> Self {
        let urgency = if urgency > 7 { 7 } else { urgency };
        Self(urgency << 1 | incremental as u8)
    }

    #[inline]
    pub(crate) const fn urgency(self) -> u8 {
        self.0 >> 1
    }

    #[inline]
    pub(crate) const fn is_incremental(self) -> bool {
        self.0 & 1 != 0
    }

    /// 0 to 15: twice the urgency, plus one for incremental.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize & 15
    }
}

/// One stream. 64 bytes.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Stream {
    /// What `content-length` of the peer promised and DATA has not brought yet.
    pub(crate) content: ContentLeft,
    /// What `content-length` of this side promised and the caller has not given yet.
    pub(crate) send_content: ContentLeft,
    /// 0 when the slot is vacant.
    pub(crate) id: u32,
    /// The next slot in the chain of the identifier map; in a vacant slot, the next vacant one.
    pub(crate) next_in_bucket: u32,
    /// The window for what this side sends, less the peer's SETTINGS_INITIAL_WINDOW_SIZE.
    pub(crate) send_delta: i32,
    /// The window for what the peer sends, less this side's acknowledged SETTINGS_INITIAL_WINDOW_SIZE.
    pub(crate) recv_delta: i32,
    /// Handed to the caller and not given back, flow-controlled bytes.
    pub(crate) held: u32,
    /// Links of whichever list `flags` names.
    pub(crate) prev: u32,
    pub(crate) next: u32,
    /// The last piece of DATA that waits, in the [`super::ChunkPool`].
    pub(crate) last_chunk: u32,
    /// Bytes in those pieces.
    pub(crate) queued: u32,
    /// Fields that wait: a request that may not open yet, trailers behind DATA, or both in this order.
    pub(crate) parked: u32,
    /// When the stream had DATA and no window, in milliseconds of the connection's clock (wrapping); meaningful with
    /// `STALL_CLOCK`.
    pub(crate) stalled_at_ms: u32,
    pub(crate) flags: u16,
    pub(crate) state: State,
    pub(crate) priority: Priority,
}

const _: () = assert!(size_of::<Stream>() == 64);

impl Stream {
    pub(crate) const VACANT: Self = Self::new(0, State::Idle, 0);

    #[inline]
    pub(crate) const fn new(id: u32, state: State, flags: u16) -> Self {
        Self {
            content: ContentLeft::UNKNOWN,
            send_content: ContentLeft::UNKNOWN,
            id,
            next_in_bucket: NONE,
            send_delta: 0,
            recv_delta: 0,
            held: 0,
            prev: NONE,
            next: NONE,
            last_chunk: NONE,
            queued: 0,
            parked: NONE,
            stalled_at_ms: 0,
            flags,
            state,
            priority: Priority::DEFAULT,
        }
    }

    #[inline]
    pub(crate) const fn has(&self, flags: u16) -> bool {
        self.flags & flags != 0
    }

    #[inline]
    pub(crate) const fn set(&mut self, flags: u16) {
        self.flags |= flags;
    }

    #[inline]
    pub(crate) const fn clear(&mut self, flags: u16) {
        self.flags &= !flags;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_pack_into_sixteen() {
        let mut seen = [false; 16];
        for urgency in 0..=8 {
            for incremental in [false, true] {
                let priority = Priority::new(urgency, incremental);
                assert_eq!(priority.urgency(), urgency.min(7));
                assert_eq!(priority.is_incremental(), incremental);
                seen[priority.index()] = true;
            }
        }
        assert_eq!(seen, [true; 16]);
        assert_eq!(Priority::DEFAULT, Priority::new(3, false));
    }
}
