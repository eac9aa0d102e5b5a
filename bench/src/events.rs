//! The events of the firehose: generated from a fixed seed in the format of the AT Protocol's `subscribeRepos` stream,
//! or recorded, if `FIREHOSE` names a file of events. Each is a DAG-CBOR header and a DAG-CBOR body with a CAR of
//! blocks.

use fastrand::Rng;
use iroh_car::CarReader;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// RFC 8949 §3.4 and the registry of tags: a content identifier in DAG-CBOR.
const CID_TAG: u8 = 42;

/// The file of recorded events, if the environment names one.
pub(crate) fn recorded_path() -> Option<PathBuf> {
    Some(std::env::var_os("FIREHOSE")?.into())
}

/// Recorded events, each preceded by its length, a little-endian `u32`.
///
/// # Errors
/// The file cannot be read, or ends within an event.
pub(crate) fn recorded(path: &Path) -> Result<Vec<Vec<u8>>, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    split(&bytes).ok_or_else(|| format!("{}: ends within an event", path.display()))
}

fn split(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut events = Vec::new();
    while !bytes.is_empty() {
        let (len, rest) = bytes.split_first_chunk::<4>()?;
        let (event, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        events.push(event.to_vec());
        bytes = rest;
    }
    Some(events)
}

#[derive(Serialize, Deserialize)]
struct Header<'a> {
    op: i64,
    t: &'a str,
}

#[derive(Deserialize)]
struct Commit<'a> {
    seq: u64,
    #[serde(borrow, default)]
    blocks: &'a [u8],
    #[serde(borrow, default)]
    ops: Vec<Operation<'a>>,
}

#[derive(Deserialize)]
struct Operation<'a> {
    action: &'a str,
    path: &'a str,
}

/// Counts of what was decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Decoded {
    pub(crate) blocks: u64,
    /// Bytes of the blocks.
    pub(crate) block_bytes: u64,
    pub(crate) operations: u64,
}

/// Decodes an event: the header and the commit by `serde_ipld_dagcbor`, the blocks by `iroh-car`.
///
/// # Errors
/// It is not an event.
pub(crate) async fn decode(event: &[u8], decoded: &mut Decoded) -> Result<(), String> {
    let mut cbor = serde_ipld_dagcbor::de::Deserializer::from_slice(event);
    let header = Header::deserialize(&mut cbor).map_err(|error| error.to_string())?;
    if header.op != 1 || header.t != "#commit" {
        return Ok(());
    }
    let commit = Commit::deserialize(&mut cbor).map_err(|error| error.to_string())?;
    std::hint::black_box(commit.seq);
    for operation in &commit.ops {
        std::hint::black_box((operation.action, operation.path));
    }
    decoded.operations += commit.ops.len() as u64;
    if commit.blocks.is_empty() {
        return Ok(());
    }
    let mut car = CarReader::new(commit.blocks).await.map_err(|error| error.to_string())?;
    while let Some((cid, block)) = car.next_block().await.map_err(|error| error.to_string())? {
        std::hint::black_box(&cid);
        decoded.blocks += 1;
        decoded.block_bytes += block.len() as u64;
    }
    Ok(())
}

/// `count` events with a mean length of 5 kB.
pub(crate) fn made_up(count: usize) -> Vec<Vec<u8>> {
    let mut rng = Rng::with_seed(0x61_74);
    (0..count).map(|at| event(at as u64, &mut rng)).collect()
}

/// One operation and ten or eleven blocks of about 450 bytes, as a commit has on average.
fn event(seq: u64, rng: &mut Rng) -> Vec<u8> {
    let mut out = serde_ipld_dagcbor::to_vec(&Header { op: 1, t: "#commit" }).expect("a header");
    let car = car(rng);
    let root = cid(rng);
    // Keys of a DAG-CBOR map are sorted by length, then by bytes.
    out.push(0xA0 + 7);
    text(&mut out, "ops");
    out.push(0x81);
    out.push(0xA0 + 3);
    text(&mut out, "cid");
    link(&mut out, &root);
    text(&mut out, "path");
    text(&mut out, &format!("app.bsky.feed.post/{}", letters(rng, 13)));
    text(&mut out, "action");
    text(&mut out, "create");
    text(&mut out, "rev");
    text(&mut out, &letters(rng, 13));
    text(&mut out, "seq");
    head(&mut out, 0, 9_000_000_000 + seq);
    text(&mut out, "repo");
    text(&mut out, &format!("did:plc:{}", letters(rng, 24)));
    text(&mut out, "time");
    text(&mut out, "2026-11-20T21:00:00.000Z");
    text(&mut out, "blocks");
    bytes(&mut out, &car);
    text(&mut out, "commit");
    link(&mut out, &root);
    out
}

/// A CAR, version 1: sections preceded by their lengths; the first section is the header.
fn car(rng: &mut Rng) -> Vec<u8> {
    let mut header = vec![0xA2];
    text(&mut header, "roots");
    header.push(0x81);
    link(&mut header, &cid(rng));
    text(&mut header, "version");
    head(&mut header, 0, 1);
    let mut car = Vec::new();
    section(&mut car, &header);
    for _ in 0..rng.usize(10..12) {
        let mut block = cid(rng);
        let len = rng.usize(150..700);
        let mut content = vec![0xA1];
        text(&mut content, "text");
        text(&mut content, &letters(rng, len));
        block.extend(content);
        section(&mut car, &block);
    }
    car
}

fn section(out: &mut Vec<u8>, bytes: &[u8]) {
    let mut len = bytes.len();
    while len >= 0x80 {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
    out.extend_from_slice(bytes);
}

/// Version 1, DAG-CBOR, SHA-256, a digest that no decoder here compares.
fn cid(rng: &mut Rng) -> Vec<u8> {
    let mut cid = vec![0x01, 0x71, 0x12, 0x20];
    cid.extend(std::iter::repeat_with(|| rng.u8(..)).take(32));
    cid
}

fn letters(rng: &mut Rng, len: usize) -> String {
    std::iter::repeat_with(|| rng.lowercase()).take(len).collect()
}

/// RFC 8949 §3: the major type and the argument.
fn head(out: &mut Vec<u8>, major: u8, argument: u64) {
    let major = major << 5;
    match argument {
        0..24 => out.push(major | argument as u8),
        24..0x100 => out.extend([major | 24, argument as u8]),
        0x100..0x1_0000 => {
            out.push(major | 25);
            out.extend((argument as u16).to_be_bytes());
        }
        0x1_0000..0x1_0000_0000 => {
            out.push(major | 26);
            out.extend((argument as u32).to_be_bytes());
        }
        _ => {
            out.push(major | 27);
            out.extend(argument.to_be_bytes());
        }
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    head(out, 3, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    head(out, 2, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn link(out: &mut Vec<u8>, cid: &[u8]) {
    head(out, 6, u64::from(CID_TAG));
    head(out, 2, cid.len() as u64 + 1);
    // The multibase prefix of a binary identifier.
    out.push(0);
    out.extend_from_slice(cid);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::run;

    #[test]
    fn made_up_events_decode() {
        let events = made_up(40);
        let mut decoded = Decoded::default();
        for event in &events {
            run(decode(event, &mut decoded)).expect("an event");
        }
        assert_eq!(decoded.operations, 40);
        assert!((400..=440).contains(&decoded.blocks), "{decoded:?}");
        let mean = events.iter().map(Vec::len).sum::<usize>() / events.len();
        assert!((4_500..6_500).contains(&mean), "{mean}");
        assert!(decoded.block_bytes * 10 > 7 * (mean * 40) as u64);
    }

    #[test]
    fn an_event_that_is_cut_off_does_not_decode() {
        let event = &made_up(1)[0];
        assert!(run(decode(&event[..event.len() / 2], &mut Decoded::default())).is_err());
    }

    #[test]
    fn recorded_events_are_preceded_by_their_lengths() {
        assert_eq!(split(b"\x02\0\0\0ab\x01\0\0\0c"), Some(vec![b"ab".to_vec(), b"c".to_vec()]));
        assert!(split(b"\x02\0\0\0a").is_none());
        assert!(split(b"\x02\0").is_none());
    }
}
