//! The scenarios: what a connection of a run does.
//!
//! Layers: `connection` → `exchange` → `churn`, `echo`, `idle`, `replay`, `requests`, `rooms`, `script`, `sink`, `source`.

mod churn;
mod connection;
mod echo;
mod exchange;
mod idle;
mod replay;
mod requests;
mod rooms;
mod script;
mod sink;
mod source;

use std::pin::Pin;

use super::link::Link;
use crate::args::Scenario;

pub(super) use connection::Connection;
use requests::Client;
pub(super) use rooms::wait_until_joined;

/// Runs until everything was sent, and every message was answered or is lost. The future is boxed, so that the task
/// of an idle connection is not as large as that of the largest scenario.
pub(super) fn run(connection: Connection, link: Link) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    let run = &connection.run;
    run.recorder().connections += 1;
    let publishes = connection.index < run.work.publishers;
    match (link, run.work.scenario) {
        (Link::WebSocket(socket), Scenario::Sink) => {
            Box::pin(socket.drive(|socket| sink::run(connection, socket)))
        }
        (Link::WebSocket(socket), Scenario::Source | Scenario::Slow) => {
            Box::pin(socket.drive(|socket| source::run(connection, socket)))
        }
        (Link::WebSocket(socket), Scenario::Rooms) if publishes => {
            Box::pin(socket.drive(|socket| rooms::publish(connection, socket)))
        }
        (Link::WebSocket(socket), Scenario::Rooms) => {
            Box::pin(socket.drive(|socket| rooms::subscribe(connection, socket)))
        }
        // An idle connection sends only one frame.
        (Link::WebSocket(socket), Scenario::Idle) => Box::pin(idle::run(connection, socket)),
        (Link::WebSocket(socket), Scenario::Script) => {
            Box::pin(socket.drive(|socket| script::run(connection, socket)))
        }
        (Link::WebSocket(socket), Scenario::Replay) => {
            Box::pin(socket.drive(|socket| replay::run(connection, socket)))
        }
        (Link::WebSocket(socket), _) => Box::pin(socket.drive(|socket| echo::run(connection, socket))),
        (Link::Http2(http2), _) => Box::pin(requests::run(connection, Client::Http2(http2))),
        (Link::Http1(pool, url), _) => Box::pin(requests::run(connection, Client::Http1(pool, url))),
        (Link::None, _) => Box::pin(churn::run(connection)),
    }
}
