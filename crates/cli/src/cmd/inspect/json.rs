//! Entries as JSON, one object per line. The schema is docs/src/guides/inspect.schema.json.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use wireloom_inspect::{Direction, Entry, Payload};

use super::date;
use crate::terminal::visible_json;

/// One line.
pub(super) fn line(entry: &Entry, offset: Option<Duration>, verbose: bool) -> String {
    let mut object = Map::new();
    if let Some(time) = entry.time.and_then(date) {
        object.insert("time".into(), time.into());
    }
    if let Some(offset) = offset {
        object.insert("offset".into(), offset.as_secs_f64().into());
    }
    object.insert("connection".into(), entry.connection.into());
    if let Some(stream) = entry.stream {
        object.insert("stream".into(), stream.into());
    }
    object.insert("from".into(), side(entry.direction).into());
    object.insert("protocol".into(), entry.protocol.to_string().into());
    object.insert("type".into(), (&*entry.kind).into());
    object.insert("flags".into(), entry.flags.clone().into());
    object.insert("length".into(), entry.len.into());
    match &entry.payload {
        Payload::Text(text) => {
            object.insert("text".into(), text.as_str().into());
        }
        Payload::Binary(bytes) => {
            object.insert("base64".into(), STANDARD.encode(bytes).into());
        }
        Payload::Fields { start, fields } => {
            if !start.is_empty() {
                object.insert("start".into(), start.as_str().into());
            }
            let fields: Vec<Value> = fields
                .iter()
                .map(|(name, value)| json!([String::from_utf8_lossy(name), String::from_utf8_lossy(value)]))
                .collect();
            object.insert("fields".into(), fields.into());
        }
        _ => {}
    }
    if let Some(len) = entry.payload_len {
        object.insert("content_length".into(), len.into());
    }
    if let Some(fragments) = entry.fragments {
        object.insert("fragments".into(), fragments.into());
    }
    if !entry.problems.is_empty() {
        let problems: Vec<Value> = entry
            .problems
            .iter()
            .map(|problem| match problem.rule {
                "" => json!({ "kind": problem.kind.name(), "text": problem.text }),
                rule => json!({ "kind": problem.kind.name(), "rule": rule, "text": problem.text }),
            })
            .collect();
        object.insert("problems".into(), problems.into());
    }
    if verbose {
        let details: Vec<Value> = entry
            .details
            .iter()
            .map(|detail| match detail.reference {
                "" => json!({ "name": detail.name, "value": detail.value }),
                reference => json!({ "name": detail.name, "value": detail.value, "reference": reference }),
            })
            .collect();
        object.insert("details".into(), details.into());
    }
    format!("{}\n", visible_json(&Value::Object(object).to_string()))
}

pub(super) fn side(direction: Direction) -> &'static str {
    match direction {
        Direction::ToServer => "client",
        Direction::ToClient => "server",
    }
}
