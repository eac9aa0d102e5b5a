//! [`Stream`]: the state of a stream that frames access, in one cache line.
//!
//! The same fields take 104 bytes, which are two lines, with a `bool` for each flag, an `Option` for each length and a `Duration` for the
//! clock: packing saves 40 bytes a stream, 4 MB of 100,000 streams.
//!
//! A window is stored as its difference from the current SETTINGS_INITIAL_WINDOW_SIZE. A change of this setting (RFC 9113 §6.9.2)
//! then adjusts the windows of all streams without visiting them.

use core::num::NonZeroU32;

use super::state::is_reserved;
use super::{NONE, RecvPhase, SendPhase};
use crate::frame::StreamId;
use crate::message::ContentLeft;
use crate::priority::Priority;

/// The list of the scheduler that contains a stream. The list links its streams by `Stream::prev` and `Stream::next`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    None,
    /// The list of the stream's priority: DATA is queued, and the window of the stream is open.
    Ready,
    /// DATA is queued, and the window of the stream is closed.
    Blocked,
}

/// The priority and four flags.
///
/// ```text
/// bit  7           6              5              4            3..1     0
///      had tiny    wants          releases       priority     urgency  incremental
///      DATA        Writable       manually       is fixed
/// ```
#[derive(Clone, Copy, Debug)]
struct Packed(u8);

const PRIORITY: u8 = 0b1111;
const PRIORITY_FIXED: u8 = 1 << 4;
const MANUAL_RELEASE: u8 = 1 << 5;
const WANTS_WRITABLE: u8 = 1 << 6;
const HAD_TINY_DATA: u8 = 1 << 7;

impl Packed {
    #[inline]
    const fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    #[inline]
    const fn set(&mut self, bit: u8, value: bool) {
        self.0 = if value { self.0 | bit } else { self.0 & !bit };
    }
}

/// One stream. 64 bytes.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Stream {
    /// The content that the peer's `content-length` announced and that has not arrived yet.
    pub(crate) content: ContentLeft,
    /// The content that this side's `content-length` announced and that the caller has not sent yet.
    pub(crate) send_content: ContentLeft,
    /// [`StreamId::CONNECTION`] if the slot is vacant.
    pub(crate) id: StreamId,
    /// The next slot in the same bucket of the identifier map; in a vacant slot, the next vacant one.
    pub(crate) next_in_bucket: u32,
    /// The send window minus the peer's SETTINGS_INITIAL_WINDOW_SIZE.
    pub(crate) send_delta: i32,
    /// The receive window minus this side's SETTINGS_INITIAL_WINDOW_SIZE.
    pub(crate) recv_delta: i32,
    /// DATA that was passed to the caller and not released, in bytes.
    pub(crate) held: u32,
    /// The links of the list `list`.
    pub(crate) prev: u32,
    pub(crate) next: u32,
    /// The last queued chunk of DATA in the [`super::ChunkPool`].
    pub(crate) last_chunk: u32,
    /// The length of the queued DATA, in bytes.
    pub(crate) queued: u32,
    /// The trailers that follow the queued DATA, in the [`super::TrailerPool`].
    pub(crate) trailers: u32,
    /// See [`Stream::stalled_since`].
    stalled_since: Option<NonZeroU32>,
    pub(crate) recv: RecvPhase,
    pub(crate) send: SendPhase,
    pub(crate) list: List,
    packed: Packed,
}

const _: () = assert!(size_of::<Stream>() == 64);

impl Stream {
    pub(crate) const VACANT: Self = Self::new(StreamId::CONNECTION, RecvPhase::End, SendPhase::End);

    #[inline]
    pub(crate) const fn new(id: StreamId, recv: RecvPhase, send: SendPhase) -> Self {
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
            trailers: NONE,
            stalled_since: None,
            recv,
            send,
            list: List::None,
            packed: Packed(Priority::DEFAULT.index() as u8),
        }
    }

    /// Whether the stream was promised and its response has not begun (RFC 9113 §5.1, "reserved").
    #[inline]
    pub(crate) const fn is_reserved(&self) -> bool {
        is_reserved(self.recv, self.send)
    }

    /// Whether the stream is a tunnel, or a request for one (RFC 9113 §8.5).
    pub(crate) const fn is_tunnel(&self) -> bool {
        matches!(self.recv, RecvPhase::Tunnel)
            || matches!(self.send, SendPhase::Tunnel)
            || matches!(self.send, SendPhase::Headers(request) if request.is_connect())
    }

    /// Whether the peer may promise streams on it (RFC 9113 §6.6: "open" or "half-closed (local)").
    pub(crate) const fn may_lead_to_promise(&self) -> bool {
        self.recv.is_open() && !self.is_reserved()
    }

    #[inline]
    pub(crate) const fn priority(&self) -> Priority {
        let index = self.packed.0 & PRIORITY;
        Priority { urgency: index >> 1, incremental: index & 1 != 0 }
    }

    #[inline]
    pub(crate) const fn set_priority(&mut self, priority: Priority) {
        self.packed.0 = self.packed.0 & !PRIORITY | priority.index() as u8;
    }

    /// Whether the caller has set the priority, so that the peer's signals are ignored (RFC 9218 §8).
    pub(crate) const fn is_priority_fixed(&self) -> bool {
        self.packed.has(PRIORITY_FIXED)
    }

    pub(crate) const fn fix_priority(&mut self) {
        self.packed.set(PRIORITY_FIXED, true);
    }

    /// Whether the caller releases window manually.
    #[inline]
    pub(crate) const fn releases_manually(&self) -> bool {
        self.packed.has(MANUAL_RELEASE)
    }

    #[inline]
    pub(crate) const fn set_auto_release(&mut self, auto: bool) {
        self.packed.set(MANUAL_RELEASE, !auto);
    }

    /// Whether the caller waits for [`crate::Event::Writable`].
    #[inline]
    pub(crate) const fn wants_writable(&self) -> bool {
        self.packed.has(WANTS_WRITABLE)
    }

    #[inline]
    pub(crate) const fn set_wants_writable(&mut self, wants: bool) {
        self.packed.set(WANTS_WRITABLE, wants);
    }

    /// Whether a tiny DATA frame has been received.
    #[inline]
    pub(crate) const fn had_tiny_data(&self) -> bool {
        self.packed.has(HAD_TINY_DATA)
    }

    #[inline]
    pub(crate) const fn set_had_tiny_data(&mut self) {
        self.packed.set(HAD_TINY_DATA, true);
    }

    /// Since when the stream has had DATA but no window, in milliseconds of the connection's clock (wrapping).
    #[inline]
    pub(crate) const fn stalled_since(&self) -> Option<u32> {
        match self.stalled_since {
            Some(ms) => Some(ms.get()),
            None => None,
        }
    }

    #[inline]
    pub(crate) const fn set_stalled_since(&mut self, since_ms: Option<u32>) {
        self.stalled_since = match since_ms {
            // A millisecond early, once in 49 days.
            Some(0) => Some(NonZeroU32::MAX),
            Some(ms) => NonZeroU32::new(ms),
            None => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::RequestKind;

    #[test]
    fn packed_values_are_independent() {
        let mut stream = Stream::VACANT;
        assert_eq!(stream.priority(), Priority::DEFAULT);
        for urgency in 0..=7 {
            for incremental in [false, true] {
                let priority = Priority { urgency, incremental };
                stream.set_priority(priority);
                stream.set_wants_writable(incremental);
                stream.set_auto_release(!incremental);
                assert_eq!(stream.priority(), priority);
                assert_eq!(stream.wants_writable(), incremental);
                assert_eq!(stream.releases_manually(), incremental);
                assert!(!stream.is_priority_fixed() && !stream.had_tiny_data());
            }
        }
        stream.fix_priority();
        stream.set_had_tiny_data();
        assert!(stream.is_priority_fixed() && stream.had_tiny_data() && stream.wants_writable());
        assert_eq!(stream.priority(), Priority { urgency: 7, incremental: true });
    }

    #[test]
    fn a_stream_is_a_tunnel_while_one_direction_is() {
        let (plain, connect) = (RequestKind::Plain, RequestKind::ExtendedConnect);
        for (recv, send, is_tunnel) in [
            (RecvPhase::Tunnel, SendPhase::Headers(connect), true),
            (RecvPhase::Tunnel, SendPhase::Tunnel, true),
            (RecvPhase::Tunnel, SendPhase::EndQueued, true),
            (RecvPhase::End, SendPhase::Tunnel, true),
            (RecvPhase::End, SendPhase::Headers(connect), true),
            (RecvPhase::Content, SendPhase::Headers(plain), false),
            (RecvPhase::Content, SendPhase::Content, false),
            (RecvPhase::End, SendPhase::EndQueued, false),
        ] {
            let stream = Stream::new(StreamId::FIRST_CLIENT, recv, send);
            assert_eq!(stream.is_tunnel(), is_tunnel, "{stream:?}");
        }
    }

    #[test]
    fn the_stall_clock_keeps_its_time() {
        let mut stream = Stream::VACANT;
        assert_eq!(stream.stalled_since(), None);
        for since_ms in [Some(1), Some(u32::MAX), None] {
            stream.set_stalled_since(since_ms);
            assert_eq!(stream.stalled_since(), since_ms);
        }
        stream.set_stalled_since(Some(0));
        assert_eq!(stream.stalled_since(), Some(u32::MAX));
    }
}
