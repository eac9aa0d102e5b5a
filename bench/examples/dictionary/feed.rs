//! The events: JSON in the shape of Bluesky's Jetstream, one for each operation of a commit.

use fastrand::Rng;
use ipld_core::ipld::Ipld;
use iroh_car::CarReader;
use serde::Deserialize as _;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;

/// # Errors
/// The file that `FIREHOSE` names cannot be read.
pub(crate) fn events() -> Result<Vec<String>, String> {
    match std::env::var_os("FIREHOSE") {
        Some(path) => recorded(Path::new(&path)),
        None => Ok(made_up(1000)),
    }
}

fn recorded(path: &Path) -> Result<Vec<String>, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|error| error.to_string())?;
    let mut events = Vec::new();
    let mut rest = &bytes[..];
    while let Some((len, tail)) = rest.split_first_chunk::<4>() {
        let frame = tail.get(..u32::from_le_bytes(*len) as usize).ok_or("the file ends within an event")?;
        rest = &tail[frame.len()..];
        runtime.block_on(operations(frame, &mut events))?;
    }
    Ok(events)
}

/// The operations of a frame: a header and a body of DAG-CBOR, with the records in a CAR.
async fn operations(frame: &[u8], events: &mut Vec<String>) -> Result<(), String> {
    let mut cbor = serde_ipld_dagcbor::de::Deserializer::from_slice(frame);
    let _header = Ipld::deserialize(&mut cbor).map_err(|error| error.to_string())?;
    let Ipld::Map(body) = Ipld::deserialize(&mut cbor).map_err(|error| error.to_string())? else {
        return Ok(());
    };
    let (Some(Ipld::List(operations)), Some(Ipld::Bytes(blocks))) = (body.get("ops"), body.get("blocks"))
    else {
        return Ok(());
    };
    let mut records = HashMap::new();
    if !blocks.is_empty() {
        let mut car = CarReader::new(&blocks[..]).await.map_err(|error| error.to_string())?;
        while let Some((cid, block)) = car.next_block().await.map_err(|error| error.to_string())? {
            records.insert(cid.to_string(), block);
        }
    }
    let field = |name: &str| body.get(name).map_or(Value::Null, to_json);
    for operation in operations {
        let Value::Object(operation) = to_json(operation) else { continue };
        let path = operation.get("path").and_then(Value::as_str).unwrap_or_default();
        let (collection, rkey) = path.split_once('/').unwrap_or((path, ""));
        let cid = &operation["cid"]["$link"];
        let record = cid.as_str().and_then(|cid| records.get(cid));
        let record = record.and_then(|block| serde_ipld_dagcbor::from_slice::<Ipld>(block).ok());
        let event = json!({
            "did": field("repo"),
            "time_us": 1_725_911_162_329_308_u64 + events.len() as u64 * 1371,
            "kind": "commit",
            "commit": {
                "rev": field("rev"),
                "operation": operation["action"],
                "collection": collection,
                "rkey": rkey,
                "record": record.as_ref().map(to_json),
                "cid": cid,
            },
        });
        events.push(event.to_string());
    }
    Ok(())
}

/// The JSON of a value, with links and bytes as objects.
fn to_json(value: &Ipld) -> Value {
    match value {
        Ipld::Null => Value::Null,
        Ipld::Bool(value) => json!(value),
        Ipld::Integer(value) => json!(*value as i64),
        Ipld::Float(value) => json!(value),
        Ipld::String(text) => json!(text),
        Ipld::Bytes(bytes) => json!({ "$bytes": bytes.len() }),
        Ipld::List(values) => values.iter().map(to_json).collect(),
        Ipld::Map(fields) => fields.iter().map(|(name, value)| (name.clone(), to_json(value))).collect(),
        Ipld::Link(cid) => json!({ "$link": cid.to_string() }),
    }
}

const WORDS: &str = "the a to and of in is that for on it with this you was be are have not but what all so just \
    about one they out when more people time good new day like really think know today never still because game \
    music photo morning night coffee weather release version server rust ruby build love thanks again maybe please";

/// Posts and likes, in the proportion of the network.
fn made_up(count: usize) -> Vec<String> {
    let mut rng = Rng::with_seed(0x6A73);
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    (0..count as u64)
        .map(|at| {
            let mut letters = |len| -> String { std::iter::repeat_with(|| rng.lowercase()).take(len).collect() };
            let (author, other, rkey, cid, subject) =
                (letters(24), letters(24), letters(13), letters(52), letters(52));
            let record = match rng.u8(..4) {
                0 => {
                    let text: Vec<&str> =
                        (0..rng.usize(4..40)).map(|_| words[rng.usize(..words.len())]).collect();
                    json!({ "$type": "app.bsky.feed.post", "createdAt": "2026-11-24T12:00:00.000Z", "langs": ["en"],
                        "text": text.join(" ") })
                }
                _ => json!({ "$type": "app.bsky.feed.like", "createdAt": "2026-11-24T12:00:00.000Z",
                    "subject": { "cid": format!("bafyrei{subject}"),
                        "uri": format!("at://did:plc:{other}/app.bsky.feed.post/{rkey}") } }),
            };
            json!({
                "did": format!("did:plc:{author}"),
                "time_us": 1_725_911_162_329_308_u64 + at * 1371,
                "kind": "commit",
                "commit": { "rev": format!("3l{rkey}"), "operation": "create", "collection": record["$type"],
                    "rkey": rkey, "record": record, "cid": format!("bafyrei{cid}") },
            })
            .to_string()
        })
        .collect()
}
