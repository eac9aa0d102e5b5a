//! Servers that are known to speak HTTP/1.1. RFC 9112 §6.1: content whose length is unknown is sent in chunks, and chunks only to them.

use std::collections::VecDeque;

use crate::sync::{Arc, Mutex, PoisonError};

use super::target::Target;

/// Servers that are remembered; the oldest is forgotten first.
const SERVERS_MAX: usize = 256;

/// Shared by the clones of a connector.
#[derive(Clone, Default)]
pub(super) struct Http11Servers(Arc<Mutex<VecDeque<Server>>>);

/// Scheme, host and port, and the path of a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    secure: bool,
    host: String,
    port: u16,
    unix: Option<String>,
}

impl From<&Target> for Server {
    fn from(target: &Target) -> Self {
        let Target { secure, port, .. } = *target;
        Self { secure, host: target.host.to_ascii_lowercase(), port, unix: target.unix.clone() }
    }
}

impl Http11Servers {
    pub(super) fn contains(&self, server: &Server) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(server)
    }

    /// The server has answered in HTTP/1.1.
    pub(super) fn insert(&self, server: &Server) {
        let mut servers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !servers.contains(server) {
            if servers.len() == SERVERS_MAX {
                servers.pop_front();
            }
            servers.push_back(server.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgets_the_oldest_server_beyond_the_limit() {
        let servers = Http11Servers::default();
        let server = |port| Server::from(&Target::http(&format!("http://A.example:{port}/")).unwrap());
        for port in 1..=SERVERS_MAX as u16 + 1 {
            servers.insert(&server(port));
            servers.insert(&server(port));
        }
        assert_eq!([1, 2, 257, 258].map(|port| servers.contains(&server(port))), [false, true, true, false]);
        let lower = Server::from(&Target::http("http://a.example:2/x").unwrap());
        assert!(servers.contains(&lower));
        let secure = Server::from(&Target::http("https://a.example:2/x").unwrap());
        assert!(!servers.contains(&secure));
    }
}
