//! Binds the addresses of arguments.

use std::io;

use tokio::net::TcpListener;
use wireloom::server;

/// Binds an address. `:PORT` is all interfaces: of IPv6 and IPv4, or of IPv4 alone where there is no IPv6.
///
/// # Errors
/// The address cannot be bound; the text names it.
pub(super) async fn bind(address: &str) -> Result<TcpListener, String> {
    let bound = match address.strip_prefix(':') {
        None => server::bind(address).await,
        Some(port) => match server::bind(&*format!("[::]:{port}")).await {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                server::bind(&*format!("0.0.0.0:{port}")).await
            }
            bound => bound,
        },
    };
    bound.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("cannot listen on {address}: the address is in use; choose another port")
        }
        _ => format!("cannot listen on {address}: {error}"),
    })
}
