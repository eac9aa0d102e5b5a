//! The listener of `--admin`, which answers also when the process has no free file descriptor: the operator looks at its metrics then.

use std::fs::File;
use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use wireloom::server::Listener;

/// Keeps a file open, whose descriptor it gives up for a connection that could not be accepted.
pub(super) struct AdminListener {
    listener: TcpListener,
    reserve: Option<File>,
}

impl AdminListener {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, reserve: reserve() }
    }
}

/// A descriptor of a file that always exists.
fn reserve() -> Option<File> {
    File::open(if cfg!(windows) { "NUL" } else { "/dev/null" }).ok()
}

impl Listener for AdminListener {
    type Transport = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        if self.reserve.is_none() {
            self.reserve = reserve();
        }
        let accepted = self.listener.accept().await;
        if accepted.is_err() && self.reserve.take().is_some() {
            return self.listener.accept().await;
        }
        accepted
    }
}
