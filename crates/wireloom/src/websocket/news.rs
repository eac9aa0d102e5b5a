//! Events that an [`Observer`](super::Observer) has not received yet. They are queued while the state is locked and delivered after
//! that, so that an observer may use the WebSocket that it observes.

use std::collections::VecDeque;
use std::time::Duration;

use wireloom_ws::frame::Header;
use wireloom_ws::{End, Kind};

use super::observer::{Observed, Watch};
use crate::error::Error;

/// An [`Observed`] that owns what it shows.
#[derive(Debug)]
pub(super) enum News {
    FrameRead(Header),
    FrameWritten(Header),
    PingRead(Vec<u8>),
    PongRead { payload: Vec<u8>, round_trip: Option<Duration> },
    MessageRead { kind: Kind, len: u64 },
    MessageWritten { kind: Kind, len: u64 },
    Error(Error),
    CloseBegun(End),
    CloseDone(End),
}

impl News {
    fn tell(&self, watch: &Watch) {
        watch.notify(&match self {
            Self::FrameRead(header) => Observed::FrameRead(*header),
            Self::FrameWritten(header) => Observed::FrameWritten(*header),
            Self::PingRead(payload) => Observed::PingRead(payload),
            Self::PongRead { payload, round_trip } => Observed::PongRead { payload, round_trip: *round_trip },
            Self::MessageRead { kind, len } => Observed::MessageRead { kind: *kind, len: *len },
            Self::MessageWritten { kind, len } => Observed::MessageWritten { kind: *kind, len: *len },
            Self::Error(error) => Observed::Error(error),
            Self::CloseBegun(end) => Observed::CloseBegun(end),
            Self::CloseDone(end) => Observed::CloseDone(end),
        });
    }
}

/// News in order. One thread at a time tells them.
#[derive(Debug, Default)]
pub(super) struct NewsQueue {
    news: VecDeque<News>,
    teller: Teller,
    /// [`News::CloseBegun`] has been noted.
    close_begun: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Teller {
    #[default]
    None,
    /// A thread tells what is queued, until nothing is.
    Busy,
}

impl NewsQueue {
    pub(super) fn push(&mut self, news: News) {
        self.news.push_back(news);
    }

    pub(super) fn extend(&mut self, news: impl IntoIterator<Item = News>) {
        self.news.extend(news);
    }

    /// Whether the end of the connection is news.
    pub(super) fn begin_close(&mut self) -> bool {
        !std::mem::replace(&mut self.close_begun, true)
    }

    /// Whether there are news that no thread tells.
    pub(super) fn is_waiting(&self) -> bool {
        !self.news.is_empty() && self.teller == Teller::None
    }
}

/// Tells all news, unless another thread does, or this one in a call around this. `with_queue` locks the state for a moment.
pub(super) fn tell_all(watch: &Watch, with_queue: impl Fn(&mut dyn FnMut(&mut NewsQueue))) {
    let mut tells = false;
    with_queue(&mut |queue| {
        tells = queue.is_waiting();
        if tells {
            queue.teller = Teller::Busy;
        }
    });
    if !tells {
        return;
    }
    loop {
        let mut next = None;
        with_queue(&mut |queue| {
            next = queue.news.pop_front();
            if next.is_none() {
                queue.teller = Teller::None;
            }
        });
        match next {
            Some(news) => news.tell(watch),
            None => return,
        }
    }
}
