//! What the task of a connection does with its session.

use std::pin::Pin;

use crate::session::Session;

/// The state of a session's task.
pub(super) enum Work {
    /// It waits for the next message.
    Idle(Box<Session>),
    /// It executes a command.
    Busy(Pin<Box<dyn Future<Output = Box<Session>> + Send>>),
}

impl Work {
    /// An idle session begins to do something; a busy one goes on.
    pub(super) fn begin<F>(&mut self, act: impl FnOnce(Box<Session>) -> F)
    where
        F: Future<Output = Box<Session>> + Send + 'static,
    {
        // Replaced below: nothing can see it.
        let before = std::mem::replace(self, Self::Busy(Box::pin(std::future::pending())));
        *self = match before {
            Self::Idle(session) => Self::Busy(Box::pin(act(session))),
            busy @ Self::Busy(_) => busy,
        };
    }

    /// What is due at a session's deadline.
    pub(super) fn handle_timeout(&mut self) {
        let Self::Idle(session) = self else { return };
        session.handle_timeout();
        if session.needs_renewal() {
            self.begin(|mut session| async move {
                session.renew().await;
                session
            });
        }
    }
}
