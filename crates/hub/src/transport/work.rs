//! The work of a connection's task on its session.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::clean_up::CleanUp;
use crate::client::Client;
use crate::node::Node;
use crate::session::{Kept, Session};

/// The state of a session's task.
pub(super) enum Work {
    /// It waits for the next message.
    Idle(Kept),
    /// It executes a command.
    Busy(Pin<Box<dyn Future<Output = Kept> + Send>>),
}

impl Work {
    /// An idle session begins to do something; a busy one goes on.
    pub(super) fn begin<F>(&mut self, clean_up: &CleanUp, act: impl FnOnce(Session) -> F)
    where
        F: Future<Output = Kept> + Send + 'static,
    {
        // Replaced below: nothing can see it.
        let before = std::mem::replace(self, Self::Busy(Box::pin(std::future::pending())));
        *self = match before {
            Self::Idle(session) => {
                let CleanUp { node, client } = clean_up;
                Self::Busy(Box::pin(act(session.resume(node.clone(), client.clone()))))
            }
            busy @ Self::Busy(_) => busy,
        };
    }

    /// A busy session goes on, and may become idle.
    pub(super) fn poll_busy(&mut self, cx: &mut Context<'_>) {
        if let Self::Busy(busy) = self
            && let Poll::Ready(session) = busy.as_mut().poll(cx)
        {
            *self = Self::Idle(session);
        }
    }

    /// The next time to call [`handle_timeout`](Self::handle_timeout) or to end the connection, since 1970. A busy session has no other
    /// deadline.
    pub(super) fn poll_timeout(&self, node: &Node, client: &Client, is_reading: bool) -> Duration {
        let session = match self {
            Self::Idle(session) => session.poll_timeout(node, client, is_reading),
            Self::Busy(_) => Duration::MAX,
        };
        node.ends_at(client).map_or(session, |(at, _)| at.min(session))
    }

    /// Handles the deadline of an idle session.
    pub(super) fn handle_timeout(&mut self, clean_up: &CleanUp, is_reading: bool) {
        let Self::Idle(session) = self else { return };
        let CleanUp { node, client } = clean_up;
        session.handle_timeout(node, client, is_reading);
        if session.needs_renewal(node, client) {
            self.begin(clean_up, |mut session| async move {
                session.renew().await;
                session.pause()
            });
        }
    }
}
