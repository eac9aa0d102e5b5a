//! `/live`: the state of the server as JSON, one message each second, for the section *Server* of the page.
//!
//! A plain GET returns whether the client may see it. The page asks first, because browsers log a refused WebSocket on
//! the console.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::json;
use wireloom::{Receiver, Request, Response, Sender, WebSocket, WebSocketError};

use super::{Routes, metrics};
use crate::args::LiveStats;
use crate::log;

const INTERVAL: Duration = Duration::from_secs(1);
/// How many of the slowest clients a message lists.
const SLOWEST_MAX: usize = 10;
/// Header fields that proxies add. A client of a proxy on this machine is not local.
const FORWARDED: [&str; 4] = ["forwarded", "x-forwarded-for", "x-real-ip", "via"];

/// Whether a client may see the state.
pub(super) fn is_allowed(allowed: LiveStats, request: &Request) -> bool {
    match allowed {
        LiveStats::All => true,
        LiveStats::None => false,
        LiveStats::Local => {
            let text = |name| request.header(name).and_then(|value| std::str::from_utf8(value).ok());
            let host = text("host").unwrap_or_default();
            request.peer().ip().to_canonical().is_loopback()
                && is_loopback(host)
                && !FORWARDED.iter().any(|name| request.header(name).is_some())
                // --allow-origin may accept pages of other sites, which must not see this.
                && text("origin").is_none_or(|origin| origin.split_once("://").is_some_and(|(_, from)| from == host))
        }
    }
}

/// The other paths that an address has for the page.
#[derive(Clone, Copy)]
pub(super) struct Access {
    /// `/metrics`.
    pub(super) has_metrics: bool,
    /// The paths of the admin page.
    pub(super) is_admin: bool,
}

/// The answer to a plain GET: what the client may see at this address.
pub(super) fn answer(is_allowed: bool, access: Access) -> Response {
    let Access { has_metrics, is_admin } = access;
    let access = json!({ "allowed": is_allowed, "metrics": has_metrics, "admin": is_admin });
    Response::new(200).with_body("application/json", access.to_string())
}

/// Whether the authority of a request names this machine.
fn is_loopback(authority: &str) -> bool {
    let name = match authority.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => authority,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let name = name.to_ascii_lowercase();
    address.is_ok_and(|address| address.to_canonical().is_loopback())
        || name == "localhost"
        || name.ends_with(".localhost")
}

/// Sends until the client closes.
///
/// # Errors
/// The error that ended the WebSocket.
pub(super) async fn run(routes: &Routes, socket: &mut WebSocket) -> Result<(), WebSocketError> {
    let (sender, receiver) = socket.halves();
    tokio::select! {
        received = receive(receiver) => received,
        sent = send(routes, sender) => sent,
    }
}

/// Messages are dropped; receiving answers pings and handles the Close frame.
async fn receive(receiver: &mut Receiver) -> Result<(), WebSocketError> {
    while receiver.recv().await?.is_some() {}
    Ok(())
}

async fn send(routes: &Routes, sender: &mut Sender) -> Result<(), WebSocketError> {
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut logged = 0;
    loop {
        interval.tick().await;
        let (lines, end) = log::recent_since(logged);
        logged = end;
        let state = json!({
            "metrics": metrics::page(routes),
            "slowest": routes.clients.slowest(&routes.hub, SLOWEST_MAX),
            "log": lines,
        });
        sender.send(state.to_string()).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine() {
        for authority in [
            "localhost:8080",
            "LOCALHOST",
            "app.localhost",
            "127.0.0.1:80",
            "[::1]:8080",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(is_loopback(authority), "{authority}");
        }
        for authority in
            ["", "example.com", "localhost.example.com", "192.0.2.1", "[2001:db8::1]:80", "localhost:evil"]
        {
            assert!(!is_loopback(authority), "{authority}");
        }
    }
}
