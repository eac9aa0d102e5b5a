//! Wireloom's server.

use std::time::Duration;

use wireloom_http2::{Config, Connection, Event, Role, Settings};
use wireloom_testing::http2::{code, split};

use super::{Fault, Fields, Outcome};

pub struct Server {
    connection: Connection,
    outcome: Outcome,
    /// Bytes that were written and are no whole frame.
    written: Vec<u8>,
}

impl Server {
    #[allow(clippy::new_without_default, reason = "a fixture")]
    pub fn new() -> Self {
        let mut config = Config::new(Role::Server);
        // What all implementations announce when nothing is configured.
        config.settings = Settings::INITIAL;
        config.settings.enable_push = false;
        config.settings.max_concurrent_streams = 100;
        config.settings.enable_connect_protocol = true;
        config.settings.max_header_list_size = 1 << 20;
        config.connection_window = 65_535;
        let connection = Connection::new(Role::Server, config).expect("valid settings");
        let mut server = Self { connection, outcome: Outcome::default(), written: Vec::new() };
        server.drain();
        server
    }

    pub fn receive(&mut self, bytes: &[u8]) {
        let mut at = 0;
        loop {
            let (taken, event) = match self.connection.handle_input(Duration::ZERO, &bytes[at..]) {
                Ok(handled) => handled,
                Err(error) => {
                    // RFC 9113 §5.4.1: GOAWAY says why.
                    let code = error.code().map_or(code::NO_ERROR, |code| code.into());
                    self.drain();
                    assert_eq!(self.outcome.fault, Some(Fault { stream: 0, code }), "{error}");
                    return;
                }
            };
            at += taken;
            match event {
                Some(event) => note(&mut self.outcome, event),
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
        loop {
            let mut slices = [&[][..]; 8];
            let filled = self.connection.poll_transmit(&mut slices);
            let bytes = slices[..filled].concat();
            if bytes.is_empty() {
                break;
            }
            self.connection.transmitted(bytes.len());
            self.written.extend(bytes);
        }
        self.outcome.note_written(&split(&std::mem::take(&mut self.written)));
    }
}

fn note(outcome: &mut Outcome, event: Event<'_>) {
    let to_fields = |fields: &wireloom_http2::field::FieldList| -> Fields {
        fields.iter().map(|field| (field.name().to_vec(), field.value().to_vec())).collect()
    };
    match event {
        Event::Request { stream, fields, end_stream, .. } => {
            outcome.messages.push((stream.id(), to_fields(fields)));
            outcome.ended.extend(end_stream.then_some(stream.id()));
        }
        Event::Data { stream, data, end_stream } => {
            if !data.is_empty() {
                outcome.content.entry(stream.id()).or_default().extend_from_slice(data);
            }
            outcome.ended.extend(end_stream.then_some(stream.id()));
        }
        Event::Trailers { stream, fields } => {
            outcome.messages.push((stream.id(), to_fields(fields)));
            outcome.ended.insert(stream.id());
        }
        _ => {}
    }
}
