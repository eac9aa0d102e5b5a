//! Whole connections, joined in memory.

mod deadlines;
mod flow_control;
mod goaway;
mod limits;
mod messages;
mod opening;
mod settings;

use super::*;
use crate::error::ErrorCode;
use crate::field::{Field, Token};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use wireloom_testing::http2::{Frame, join, kind, split};

pub(super) const GET: [Field<'static>; 4] = [
    Field::known(Token::Method, b"GET"),
    Field::known(Token::Scheme, b"https"),
    Field::known(Token::Authority, b"example.org"),
    Field::known(Token::Path, b"/"),
];
pub(super) const OK: [Field<'static>; 1] = [Field::known(Token::Status, b"200")];

fn ends() -> (Connection, Connection) {
    ends_with(Config::new(Role::Client), Config::new(Role::Server))
}

fn ends_with(client: Config, server: Config) -> (Connection, Connection) {
    (Connection::new(Role::Client, client).unwrap(), Connection::new(Role::Server, server).unwrap())
}

fn drain(from: &mut Connection) -> Vec<u8> {
    let mut bytes = vec![];
    loop {
        let mut slices = [&[][..]; 4];
        let filled = from.poll_transmit(Duration::ZERO, &mut slices);
        let taken = slices[..filled].concat();
        if taken.is_empty() {
            return bytes;
        }
        from.transmitted(Duration::ZERO, taken.len());
        bytes.extend_from_slice(&taken);
    }
}

/// A short description of an event.
fn describe(event: &Event<'_>, connection: &Connection) -> String {
    use alloc::format;
    let fields = connection.fields();
    match event {
        Event::Request { stream, end_stream, .. } => {
            format!("request {} {} {end_stream}", stream.id(), fields.len())
        }
        Event::Response { stream, status, end_stream, .. } => {
            format!("response {} {status} {end_stream}", stream.id())
        }
        Event::Informational { stream, status, .. } => format!("informational {} {status}", stream.id()),
        Event::Trailers { stream } => format!("trailers {} {}", stream.id(), fields.len()),
        Event::Promise { promised, .. } => format!("promise {}", promised.id()),
        Event::Data { stream, data, end_stream } => {
            format!("data {} {} {end_stream}", stream.id(), data.len())
        }
        Event::Reset { stream, code, error } => format!("reset {} {code} {}", stream.id(), error.is_some()),
        Event::Refused { stream } => format!("refused {}", stream.id()),
        Event::Writable { stream } => format!("writable {}", stream.id()),
        Event::SendEnded { stream } => format!("send ended {}", stream.id()),
        Event::Settings => "settings".into(),
        Event::SettingsAcknowledged => "acknowledged".into(),
        Event::Pong { .. } => "pong".into(),
        Event::GoAway { last_stream_id, code, .. } => format!("goaway {last_stream_id} {code}"),
        Event::Priority { stream, priority } => {
            format!("priority {} {}", stream.id(), priority.urgency)
        }
        Event::AltSvc { .. } => "altsvc".into(),
        Event::Origin => format!("origin {}", connection.origins().count()),
    }
}

fn feed(to: &mut Connection, bytes: &[u8]) -> Vec<String> {
    let (mut at, mut events) = (0, vec![]);
    loop {
        let (taken, event) = to.handle_input(Duration::ZERO, &bytes[at..]).unwrap();
        at += taken;
        match event {
            Some(event) => events.push(describe(&event, to)),
            None => {
                assert_eq!(at, bytes.len());
                return events;
            }
        }
    }
}

/// Moves bytes both ways until there are none. Returns the events of the client and of the server.
fn settle(client: &mut Connection, server: &mut Connection) -> (Vec<String>, Vec<String>) {
    let (mut at_client, mut at_server) = (vec![], vec![]);
    loop {
        let (up, down) = (drain(client), drain(server));
        if up.is_empty() && down.is_empty() {
            break;
        }
        at_server.extend(feed(server, &up));
        at_client.extend(feed(client, &down));
    }
    while let Some(event) = client.poll_event() {
        at_client.push(describe(&event, client));
    }
    while let Some(event) = server.poll_event() {
        at_server.push(describe(&event, server));
    }
    (at_client, at_server)
}

fn settled() -> (Connection, Connection) {
    let (mut client, mut server) = ends();
    let events = settle(&mut client, &mut server);
    assert_eq!(events.0, ["settings", "acknowledged"]);
    assert_eq!(events.1, ["settings", "acknowledged"]);
    (client, server)
}

fn ask(client: &mut Connection, server: &mut Connection) -> (StreamKey, StreamKey) {
    let here = client.send_request(GET, true).unwrap();
    settle(client, server);
    (here, server.find(StreamId::new(here.id()).unwrap()).unwrap())
}

fn events_of(connection: &mut Connection, frame: &Frame) -> Vec<String> {
    let mut events = feed(connection, &frame.to_bytes());
    while let Some(event) = connection.poll_event() {
        events.push(describe(&event, connection));
    }
    events
}
