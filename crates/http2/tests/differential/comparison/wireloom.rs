//! Wireloom's server and client.

use std::time::Duration;

use wireloom_http2::field::{Field, FieldList, Token};
use wireloom_http2::{Config, Connection, Event, Role, Settings};
use wireloom_testing::http2::code;

use super::{Fault, Fields, Outcome, REQUESTS};

pub struct End {
    connection: Connection,
    role: Role,
    outcome: Outcome,
}

impl End {
    pub fn new(role: Role) -> Self {
        let mut config = Config::new(role);
        // The default of all implementations.
        config.settings = Settings::INITIAL;
        config.settings.enable_push = false;
        config.settings.max_concurrent_streams = 100;
        config.settings.enable_connect_protocol = role == Role::Server;
        config.settings.max_header_list_size = 1 << 20;
        config.connection_window = 65_535;
        let connection = Connection::new(role, config).expect("valid settings");
        let mut end = Self { connection, role, outcome: Outcome::default() };
        if role == Role::Client {
            REQUESTS.iter().for_each(|(method, ends)| end.request(method, *ends));
        }
        end.drain();
        end
    }

    fn request(&mut self, method: &str, ends: bool) {
        let head = [
            Field::known(Token::Method, method.as_bytes()),
            Field::known(Token::Authority, b"a.example:443"),
        ];
        let target = [Field::known(Token::Scheme, b"https"), Field::known(Token::Path, b"/")];
        let target = target.into_iter().filter(|_| method != "CONNECT");
        self.connection.send_request(head.into_iter().chain(target), ends).expect("a valid request");
    }

    pub fn receive(&mut self, bytes: &[u8]) {
        let mut at = 0;
        loop {
            let (taken, event) = match self.connection.handle_input(Duration::ZERO, &bytes[at..]) {
                Ok(handled) => handled,
                Err(error) => {
                    // RFC 9113 §5.4.1: GOAWAY has the reason.
                    let code = error.code().map_or(code::NO_ERROR, |code| code.into());
                    self.drain();
                    assert_eq!(self.outcome.fault, Some(Fault { stream: 0, code }), "{error}");
                    return;
                }
            };
            at += taken;
            match event {
                Some(event) => note(&mut self.outcome, self.role, event, self.connection.fields()),
                None if at == bytes.len() => break,
                None => {
                    assert!(!self.connection.wants_read(), "input is left");
                    self.drain();
                }
            }
        }
        self.drain();
    }

    pub fn outcome(&self) -> Outcome {
        self.outcome.clone()
    }

    fn drain(&mut self) {
        let mut written = Vec::new();
        loop {
            let mut slices = [&[][..]; 8];
            let filled = self.connection.poll_transmit(Duration::ZERO, &mut slices);
            let bytes = slices[..filled].concat();
            if bytes.is_empty() {
                break;
            }
            self.connection.transmitted(Duration::ZERO, bytes.len());
            written.extend(bytes);
        }
        self.outcome.note_written(&written);
    }
}

/// `fields` are those of the event, if it reports a message.
fn note(outcome: &mut Outcome, role: Role, event: Event<'_>, fields: &FieldList) {
    let to_fields =
        || -> Fields { fields.iter().map(|field| (field.name().to_vec(), field.value().to_vec())).collect() };
    match event {
        Event::Request { stream, end_stream, .. } | Event::Response { stream, end_stream, .. } => {
            outcome.messages.push((stream.id(), to_fields()));
            outcome.ended.extend(end_stream.then_some(stream.id()));
        }
        Event::Informational { stream, .. } => {
            outcome.messages.push((stream.id(), to_fields()));
        }
        Event::Data { stream, data, end_stream } => {
            if !data.is_empty() {
                outcome.content.entry(stream.id()).or_default().extend_from_slice(data);
            }
            outcome.ended.extend(end_stream.then_some(stream.id()));
        }
        Event::Trailers { stream } => {
            outcome.messages.push((stream.id(), to_fields()));
            outcome.ended.insert(stream.id());
        }
        Event::Reset { stream, code, error: None } if role == Role::Client => {
            outcome.resets.insert(stream.id(), code.into());
        }
        Event::Refused { stream } => {
            outcome.refused.insert(stream.id());
        }
        _ => {}
    }
}
