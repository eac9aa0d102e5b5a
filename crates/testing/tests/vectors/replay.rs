//! Replaying a record: its events, by the Rust core.

use crate::record::{self, Record};
use wireloom_testing::{End, Received};
use wireloom_ws::deflate::{DeflateConfig, DeflateParams};
use wireloom_ws::{Config, Error, LimitExceeded, Limits, PeerMisbehaved, Role};

/// The name of an error in the vectors. The other languages have their own error values for them.
fn error_name(error: &Error) -> &'static str {
    match error {
        Error::Peer(peer) => match peer {
            PeerMisbehaved::ReservedOpcode(_) => "reserved-opcode",
            PeerMisbehaved::ReservedBits(_) => "reserved-bits",
            PeerMisbehaved::FragmentedControl => "fragmented-control",
            PeerMisbehaved::ControlTooLong => "control-too-long",
            PeerMisbehaved::NonMinimalLength => "non-minimal-length",
            PeerMisbehaved::LengthOutOfRange => "length-out-of-range",
            PeerMisbehaved::UnmaskedFrame => "unmasked-frame",
            PeerMisbehaved::MaskedFrame => "masked-frame",
            PeerMisbehaved::UnexpectedContinuation => "unexpected-continuation",
            PeerMisbehaved::UnfinishedMessage => "unfinished-message",
            PeerMisbehaved::InvalidUtf8 => "invalid-utf8",
            PeerMisbehaved::TruncatedCloseCode => "truncated-close-code",
            PeerMisbehaved::InvalidCloseCode(_) => "invalid-close-code",
            PeerMisbehaved::InvalidCloseReason => "invalid-close-reason",
            PeerMisbehaved::InvalidDeflate => "invalid-deflate",
            other => panic!("no name for {other:?}"),
        },
        Error::Limit(limit) => match limit {
            LimitExceeded::FrameTooLarge { .. } => "frame-too-large",
            LimitExceeded::MessageTooLarge { .. } | LimitExceeded::InflatedTooLarge { .. } => {
                "message-too-large"
            }
            other => panic!("no name for {other:?}"),
        },
        other => panic!("no name for {other:?}"),
    }
}

/// A received event as a line of a record.
fn line(received: &Received) -> (String, String) {
    let (key, value) = match received {
        Received::Text(text) => ("text", record::bytes(text.as_bytes())),
        Received::Binary(data) => ("binary", record::bytes(data)),
        Received::Ping(payload) => ("ping", record::bytes(payload)),
        Received::Pong(payload, _) => ("pong", record::bytes(payload)),
        Received::Close(code, reason) => {
            let code = code.map_or("-".into(), |code| code.to_string());
            ("close", format!("{code} {}", record::bytes(reason.as_bytes())))
        }
        Received::Failed(error) => {
            ("error", format!("{} {}", error_name(error), error.close_code().expect("of the peer")))
        }
    };
    (key.into(), value)
}

/// The receiving end of a record.
fn receiver(record: &Record) -> End {
    let role = match record::value(record, "receiver") {
        "server" => Role::Server,
        "client" => Role::Client,
        other => panic!("{other}"),
    };
    let (frame, message) = record::value(record, "limits").split_once(' ').expect("two numbers");
    let limits = Limits {
        frame_len_max: frame.parse().expect("two numbers"),
        message_len_max: message.parse().expect("two numbers"),
        ..Limits::default()
    };
    let config = Config { limits, ..Config::default() };
    let deflate = DeflateConfig::default();
    let params = record.iter().find(|(key, _)| key == "deflate").map(|(_, value)| deflate_params(value));
    End::with(role, config, params.map(|params| (params, &deflate)))
}

/// The negotiated parameters of permessage-deflate.
fn deflate_params(value: &str) -> DeflateParams {
    let mut params = DeflateParams::default();
    for name in value.split(' ').filter(|name| *name != "-") {
        match name {
            "server_no_context_takeover" => params.server_no_context_takeover = true,
            "client_no_context_takeover" => params.client_no_context_takeover = true,
            other => panic!("{other}"),
        }
    }
    params
}

/// The events of a record's input.
pub(crate) fn events(
    record: &Record,
    receive: impl FnOnce(&mut End, &[u8]) -> Vec<Received>,
) -> Vec<(String, String)> {
    let input = record::parse_bytes(record::value(record, "input"));
    receive(&mut receiver(record), &input).iter().map(line).collect()
}
