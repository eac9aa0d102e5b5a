//! The heads and the trailers of a stream that its reader has not taken. They count as memory of the connection, unless they are short.

use std::collections::VecDeque;

use wireloom_http2::Connection;

use crate::guard::Deferred;
use crate::headers::{Head, Headers};
use crate::memory::FREE_LEN;

/// Interim responses kept for a client that does not read them; further ones are dropped.
const INTERIM_MAX: usize = 16;

#[derive(Default)]
pub(super) struct Heads {
    interim: VecDeque<Head>,
    head: Option<Head>,
    trailers: Option<Headers>,
    /// The memory of the above that is counted, in bytes.
    counted: usize,
}

impl Heads {
    pub(super) fn is_empty(&self) -> bool {
        self.interim.is_empty() && self.head.is_none() && self.trailers.is_none()
    }

    pub(super) fn push_interim(&mut self, head: Head, core: &mut Connection) {
        if self.interim.len() < INTERIM_MAX {
            self.interim.push_back(head);
            self.count(core);
        }
    }

    pub(super) fn set_head(&mut self, head: Head, core: &mut Connection) {
        self.head = Some(head);
        self.count(core);
    }

    pub(super) fn set_trailers(&mut self, trailers: Headers, core: &mut Connection) {
        self.trailers = Some(trailers);
        self.count(core);
    }

    /// The next head: interim ones, then the final one.
    pub(super) fn take_head(&mut self, core: &mut Connection) -> Option<Head> {
        let head = self.interim.pop_front().or_else(|| self.head.take())?;
        self.count(core);
        Some(head)
    }

    pub(super) fn take_trailers(&mut self, core: &mut Connection) -> Option<Headers> {
        let trailers = self.trailers.take()?;
        self.count(core);
        Some(trailers)
    }

    /// Drops all of them. False if there were none.
    pub(super) fn discard(&mut self, core: &mut Connection, deferred: &mut Deferred) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut discarded = Box::new(std::mem::take(self));
        self.counted = std::mem::take(&mut discarded.counted);
        self.count(core);
        deferred.drop_later(discarded);
        true
    }

    fn count(&mut self, core: &mut Connection) {
        let heads = self.interim.iter().chain(&self.head).map(|head| &head.headers);
        let len: usize = heads.chain(&self.trailers).map(Headers::memory_len).sum();
        let len = if len > FREE_LEN { len } else { 0 };
        let before = std::mem::replace(&mut self.counted, len);
        if len != before {
            let others = core.memory().caller.saturating_sub(before as u64);
            core.set_caller_memory(others.saturating_add(len as u64));
        }
    }
}
