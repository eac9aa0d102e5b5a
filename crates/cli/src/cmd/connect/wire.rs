//! The heads of responses over HTTP/1.1 as they arrived: their reason phrases, and the names as the server spells them.

use std::sync::{Arc, Mutex, PoisonError};

use wireloom::TapEvent;

/// Keeps the heads at the beginning of the newest connection. Clones share them.
#[derive(Clone)]
pub(super) struct Wire(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    connection: u64,
    /// The received heads without content: up to the end of the last head, or all bytes while that is incomplete.
    heads: Vec<u8>,
    /// Offsets of the incomplete head, of its incomplete line, and of the end of the part of that line that was searched.
    begin: usize,
    line: usize,
    searched: usize,
    is_complete: bool,
    len_max: usize,
}

impl Wire {
    /// Keeps at most this many bytes: the limit of the client on a head.
    pub(super) fn new(len_max: usize) -> Self {
        Self(Arc::new(Mutex::new(State { len_max, ..State::default() })))
    }

    pub(super) fn observe(&self, connection: u64, event: TapEvent<'_>) {
        let TapEvent::Received(bytes) = event else { return };
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.connection != connection {
            *state = State { connection, len_max: state.len_max, ..State::default() };
        }
        if state.is_complete {
            return;
        }
        let room = state.len_max.saturating_sub(state.heads.len());
        state.heads.extend_from_slice(&bytes[..bytes.len().min(room)]);
        while let Some(end) = state.next_head() {
            // RFC 9110 §15.2: interim responses precede the final one; 101 is final here.
            let status = status(&state.heads[state.begin..end]);
            state.begin = end;
            if status.is_none_or(|status| status >= 200 || status == 101) {
                state.is_complete = true;
                state.heads.truncate(end);
                return;
            }
        }
        // Another protocol, or no end within the limit.
        state.is_complete = bytes.len() >= room || !b"HTTP/1.".starts_with(prefix(&state.heads));
    }

    /// The head with this status, with the empty line behind it.
    pub(super) fn head(&self, wanted: u16) -> Option<Vec<u8>> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = State { heads: state.heads.clone(), ..State::default() };
        while let Some(end) = all.next_head() {
            let head = &all.heads[all.begin..end];
            if status(head) == Some(wanted) {
                return Some(head.to_vec());
            }
            all.begin = end;
        }
        None
    }
}

impl State {
    /// The end of the head at `begin`, with the empty line; `None` if it is incomplete. RFC 9112 §2.2: a line may end with LF alone.
    fn next_head(&mut self) -> Option<usize> {
        while let Some(at) = self.heads[self.searched..].iter().position(|&byte| byte == b'\n') {
            let end = self.searched + at;
            let is_end = self.line > self.begin && matches!(&self.heads[self.line..end], b"" | b"\r");
            (self.line, self.searched) = (end + 1, end + 1);
            if is_end {
                return Some(end + 1);
            }
        }
        self.searched = self.heads.len();
        None
    }
}

/// The bytes that distinguish HTTP/1.1 from other protocols.
fn prefix(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(b"HTTP/1.".len())]
}

fn status(head: &[u8]) -> Option<u16> {
    let rest = head.strip_prefix(b"HTTP/1.")?;
    std::str::from_utf8(rest.get(2..5)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERIM: &str = "HTTP/1.1 103 Early Hints\r\nLINK: a\r\n\r\n";
    const FINAL: &str = "HTTP/1.1 200 All Right\r\nX-Odd: b\r\n\r\n";

    #[test]
    fn keeps_heads_at_every_split() {
        let bytes = format!("{INTERIM}{FINAL}content\r\n\r\n");
        for split in 0..bytes.len() {
            let wire = Wire::new(1_000);
            wire.observe(1, TapEvent::Received(b"HTTP/1.1 302 Found\r\n\r\n"));
            for part in [&bytes[..split], &bytes[split..]] {
                wire.observe(2, TapEvent::Received(part.as_bytes()));
            }
            assert_eq!(wire.head(103).unwrap(), INTERIM.as_bytes(), "{split}");
            assert_eq!(wire.head(200).unwrap(), FINAL.as_bytes(), "{split}");
            assert_eq!(wire.head(302), None);
            assert_eq!(wire.0.lock().unwrap().heads.len(), INTERIM.len() + FINAL.len());
        }
    }

    /// Each byte is searched once: a server may send them one by one.
    #[test]
    fn a_long_head_takes_linear_time() {
        const LEN: usize = 4 << 20;
        let wire = Wire::new(LEN);
        for byte in [&b"HTTP/1.1 200 OK\r\nA: "[..], &[b'x'; LEN]].concat() {
            wire.observe(1, TapEvent::Received(&[byte]));
        }
        assert_eq!(wire.0.lock().unwrap().heads.len(), LEN);
    }

    #[test]
    fn keeps_no_more_than_a_head() {
        for (bytes, kept) in [(&b"\0\0\x12\x04"[..], 4), (&[b'H'; 10_000][..], 1_000)] {
            let wire = Wire::new(1_000);
            for _ in 0..3 {
                wire.observe(1, TapEvent::Received(bytes));
            }
            assert_eq!((wire.head(200), wire.0.lock().unwrap().heads.len()), (None, kept));
        }
    }
}
