//! Addresses that refuse connections.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

/// An address of this machine that refuses connections: nothing listens at the port, and no other socket gets it while this one is open.
/// The port of a listener that was dropped may be the next server's.
///
/// # Panics
/// No port is free.
pub fn refusing() -> (TcpSocket, SocketAddr) {
    let bind = || {
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let address = socket.local_addr()?;
        Ok::<_, std::io::Error>((socket, address))
    };
    bind().expect("a port is free")
}
