//! Where the messages gather that one wake-up of a task sends: memory of the thread, not of the connection, that leaves in
//! one write. It is used while the future of a WebSocket is polled through [`Driven`], which sees to it that nothing stays.
//!
//! ```text
//! Driven::poll { this thread's stage is the connection's
//!     recv -> message, more at hand    send -> | frame |              no lock, no write
//!     recv -> message, the last        send -> | frame | frame | -> one write, from here
//! } what is left, when the task turns to something else -> one write
//! ```

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use wireloom_ws::Kind;
use wireloom_ws::frame::{HEADER_LEN_MAX, Header};

use super::state::Shared;

/// From so many bytes on what has gathered is written although more may come.
const FULL: usize = 64 << 10;

/// The first bit of a frame that is its message's last (RFC 6455 §5.2).
const FIN: u8 = 0x80;

/// The longest payload whose header takes two bytes.
const SHORT_LEN_MAX: usize = 125;

/// The longest message that gathers here.
pub(super) const PAYLOAD_LEN_MAX: usize = 16 << 10;

const LEN: usize = FULL + HEADER_LEN_MAX + PAYLOAD_LEN_MAX;

thread_local! {
    static STAGE: Stage = const {
        Stage { owner: Cell::new(0), queued: Cell::new(false), frames: RefCell::new(Frames { bytes: Vec::new(), len: 0 }) }
    };
}

struct Stage {
    /// The connection whose future is being polled, by address; 0 for none.
    owner: Cell<usize>,
    /// Messages of the owner wait in its own queue.
    queued: Cell<bool>,
    frames: RefCell<Frames>,
}

impl Stage {
    // Its arguments go in registers; inlined, they would be put together in memory for a closure.
    #[inline(never)]
    fn push(&self, id: usize, kind: Kind, payload: &[u8]) -> bool {
        self.owner.get() == id
            && self.frames.try_borrow_mut().is_ok_and(|mut frames| frames.push(kind, payload))
    }
}

/// Whole frames.
#[derive(Default)]
pub(super) struct Frames {
    /// Empty, or [`LEN`] long.
    bytes: Vec<u8>,
    /// What is in use, from the front.
    len: usize,
}

impl Frames {
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Adds a frame, unless there are so many already that they should leave.
    #[inline(always)]
    fn push(&mut self, kind: Kind, payload: &[u8]) -> bool {
        if payload.len() > SHORT_LEN_MAX || self.len >= FULL {
            return self.push_long(kind, payload);
        }
        let end = self.len + 2 + payload.len();
        let Some([first, len, place @ ..]) = self.bytes.get_mut(self.len..end) else {
            return self.push_long(kind, payload);
        };
        *first = FIN | kind.opcode() as u8;
        *len = payload.len() as u8;
        copy(place, payload);
        self.len = end;
        true
    }

    #[inline(never)]
    fn push_long(&mut self, kind: Kind, payload: &[u8]) -> bool {
        if self.len >= FULL || payload.len() > PAYLOAD_LEN_MAX {
            return false;
        }
        if self.bytes.is_empty() {
            self.bytes = vec![0; LEN];
        }
        let header = Header {
            fin: true,
            rsv: 0,
            opcode: kind.opcode(),
            mask: None,
            payload_len: payload.len() as u64,
        };
        let Some(head) = self.bytes[self.len..].first_chunk_mut::<HEADER_LEN_MAX>() else {
            return false;
        };
        let head_len = header.encode(head);
        self.bytes[self.len + head_len..][..payload.len()].copy_from_slice(payload);
        self.len += head_len + payload.len();
        true
    }
}

/// Copies between slices of one length: short ones in two moves that overlap, where a call would cost more than they do.
#[inline(always)]
fn copy(to: &mut [u8], from: &[u8]) {
    #[inline(always)]
    fn ends<const N: usize>(to: &mut [u8], from: &[u8]) -> Option<()> {
        let (first, last) = (*from.first_chunk::<N>()?, *from.last_chunk::<N>()?);
        *to.first_chunk_mut()? = first;
        *to.last_chunk_mut()? = last;
        Some(())
    }
    let copied = match from.len() {
        8..16 => ends::<8>(to, from),
        16..=32 => ends::<16>(to, from),
        33..=64 => ends::<32>(to, from),
        _ => None,
    };
    if copied.is_none() {
        to.copy_from_slice(from);
    }
}

/// Whether the future of this connection is being polled here.
pub(super) fn is_owned_by(id: usize) -> bool {
    STAGE.with(|stage| stage.owner.get() == id)
}

/// The owner has something in its own queue that is to leave at the end.
pub(super) fn note_queued() {
    STAGE.with(|stage| stage.queued.set(true));
}

/// Adds a message, unless the stage is not this connection's, or it holds enough.
#[inline(always)]
pub(super) fn push(id: usize, kind: Kind, payload: &[u8]) -> bool {
    STAGE.with(|stage| stage.push(id, kind, payload))
}

/// What has gathered for this connection, if its stage is here; [`put_back`] the memory.
pub(super) fn take(id: usize) -> Option<Frames> {
    STAGE.with(|stage| {
        if stage.owner.get() != id {
            return None;
        }
        let mut frames = stage.frames.try_borrow_mut().ok()?;
        (frames.len > 0).then(|| std::mem::take(&mut *frames))
    })
}

/// Gives memory back for what gathers next.
pub(super) fn put_back(memory: Frames) {
    STAGE.with(|stage| {
        if let Ok(mut frames) = stage.frames.try_borrow_mut() {
            *frames = Frames { bytes: memory.bytes, len: 0 };
        }
    });
}

pin_project! {
    /// The future of a task that serves a WebSocket. What a poll of it sends has been written at the end of that poll at the
    /// latest, as far as the transport takes it.
    pub(crate) struct Driven<F> {
        shared: Weak<Shared>,
        // What was sent could not all be written.
        owes: bool,
        #[pin]
        future: F,
    }
}

impl<F> Driven<F> {
    pub(crate) fn new(shared: &Arc<Shared>, future: F) -> Self {
        Self { shared: Arc::downgrade(shared), owes: false, future }
    }
}

impl<F: Future> Future for Driven<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let entered = Entered::new(this.shared, *this.owes);
        let polled = this.future.poll(cx);
        *this.owes = entered.leave(cx);
        polled
    }
}

/// This thread's stage is a connection's for as long as this lives.
struct Entered<'a> {
    shared: &'a Weak<Shared>,
    /// The stage was another's already, in a poll around this one: it stays so.
    nested: bool,
    owes: bool,
}

impl<'a> Entered<'a> {
    fn new(shared: &'a Weak<Shared>, owes: bool) -> Self {
        let nested = STAGE.with(|stage| {
            let nested = stage.owner.get() != 0;
            if !nested {
                stage.owner.set(shared.as_ptr().addr());
            }
            nested
        });
        Self { shared, nested, owes }
    }

    /// Writes what is left; whether some of it has to wait. `cx` is woken for it then.
    fn leave(mut self, cx: &Context<'_>) -> bool {
        let owes = std::mem::take(&mut self.owes);
        self.write_rest(owes, Some(cx))
    }

    fn write_rest(&mut self, owes: bool, cx: Option<&Context<'_>>) -> bool {
        if std::mem::replace(&mut self.nested, true) {
            return owes;
        }
        let (gathered, queued) = STAGE.with(|stage| {
            let gathered = stage.frames.try_borrow().is_ok_and(|frames| frames.len > 0);
            (gathered, stage.queued.replace(false))
        });
        let mut pending = false;
        if (gathered || queued || owes)
            && let Some(shared) = self.shared.upgrade()
        {
            pending = shared.write_gathered(cx);
        }
        STAGE.with(|stage| {
            stage.owner.set(0);
            if let Ok(mut frames) = stage.frames.try_borrow_mut() {
                frames.len = 0;
            }
        });
        pending
    }
}

impl Drop for Entered<'_> {
    /// Also when the future panics.
    fn drop(&mut self) {
        self.write_rest(false, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_every_length() {
        for len in 0..200 {
            let from: Vec<u8> = (1..=len).collect();
            let mut to = vec![0; from.len()];
            copy(&mut to, &from);
            assert_eq!(to, from);
        }
    }

    #[test]
    fn holds_so_much_and_no_more() {
        let mut frames = Frames::default();
        let payload = vec![7; PAYLOAD_LEN_MAX];
        assert!(!frames.push(Kind::Binary, &vec![7; PAYLOAD_LEN_MAX + 1]));
        let mut count = 0;
        while frames.push(Kind::Binary, &payload) {
            count += 1;
        }
        assert_eq!(count, FULL / PAYLOAD_LEN_MAX);
        assert_eq!(frames.as_slice().len(), count * (4 + PAYLOAD_LEN_MAX));
        assert_eq!(frames.as_slice()[..5], [0x82, 126, 0x40, 0, 7]);
    }
}
