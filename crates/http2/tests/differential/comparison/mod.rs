//! The same frames into a server or client of Wireloom and into one of another implementation: the same messages, content,
//! ends and resets, and the same first error, by code and scope. The differences that are allowed are in `differences`, each
//! with its reason.
//!
//! Frames go in one at a time, so that a difference names the frame that caused it. A comparison ends with the first error:
//! after it implementations may ignore different frames (RFC 9113 §5.4.2).

pub mod differences;
pub mod frames;
pub mod rust_h2;
pub mod wireloom;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use wireloom_http2::Role;
use wireloom_testing::http2::{Frame, PREFACE, code, join, kind, split};
use wireloom_testing::rounds;

/// Names and values, in order.
pub type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// The requests of a client, on streams 1, 3, 5, ...: the method, and whether the request has ended.
pub const REQUESTS: [(&str, bool); 5] =
    [("POST", false), ("GET", true), ("HEAD", true), ("CONNECT", false), ("GET", true)];

/// A connection or a stream that an end closed because of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// 0 for the connection.
    pub stream: u32,
    pub code: u32,
}

/// All that an end received, and its first answer to an error.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Requests, responses and trailers, by stream, in order.
    pub messages: Vec<(u32, Fields)>,
    pub content: BTreeMap<u32, Vec<u8>>,
    /// Streams that the peer ended.
    pub ended: BTreeSet<u32>,
    /// To a client: streams that the server reset, with the code.
    pub resets: BTreeMap<u32, u32>,
    /// To a client: requests that the server has not processed, by its GOAWAY.
    pub refused: BTreeSet<u32>,
    pub fault: Option<Fault>,
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (stream, fields) in &self.messages {
            write!(f, "\n  {stream}:")?;
            for (name, value) in fields {
                write!(f, " {}: {};", name.escape_ascii(), value.escape_ascii())?;
            }
        }
        for (stream, content) in &self.content {
            write!(f, "\n  {stream} content: {}", content.escape_ascii())?;
        }
        write!(f, "\n  ended: {:?}\n  resets: {:?}\n  refused: {:?}", self.ended, self.resets, self.refused)?;
        write!(f, "\n  fault: {:?}", self.fault)
    }
}

impl Outcome {
    /// Notes the first error among the frames that an end wrote.
    pub fn note_written(&mut self, bytes: &[u8]) {
        for frame in split(bytes.strip_prefix(PREFACE).unwrap_or(bytes)) {
            let fault = match frame.kind {
                kind::RST_STREAM => Fault { stream: frame.stream, code: frame.word(0) },
                kind::GOAWAY if frame.word(4) != code::NO_ERROR => Fault { stream: 0, code: frame.word(4) },
                _ => continue,
            };
            // An error of a stream may end the connection as well, in the same write: then the connection counts.
            if self.fault.is_none_or(|before| before.stream != 0) {
                self.fault = Some(fault);
            }
        }
    }
}

/// An end of another implementation.
pub trait Peer {
    /// The implementation and the role.
    const NAME: &'static str;
    const ROLE: Role;

    /// Handles bytes of the peer, and writes all that they caused.
    fn receive(&mut self, bytes: &[u8]);

    fn outcome(&mut self) -> Outcome;

    /// The outcome of Wireloom as this implementation reports it.
    fn view(outcome: Outcome) -> Outcome {
        outcome
    }
}

/// Where two ends differ first.
pub struct Mismatch {
    /// Index of the frame.
    pub at: usize,
    pub ours: Outcome,
    pub theirs: Outcome,
}

/// Gives the frames to both ends, until they differ or report an error.
pub fn first_mismatch<P: Peer>(theirs: &mut P, frames: &[Frame]) -> Option<Mismatch> {
    let mut ours = wireloom::End::new(P::ROLE);
    let preface = if P::ROLE == Role::Server { PREFACE } else { b"" };
    let opening = [preface, &join(&[Frame::settings(&[]), Frame::settings_ack()])].concat();
    ours.receive(&opening);
    theirs.receive(&opening);
    for (at, frame) in frames.iter().enumerate() {
        let bytes = frame.to_bytes();
        ours.receive(&bytes);
        theirs.receive(&bytes);
        let (ours, theirs) = (P::view(ours.outcome()), theirs.outcome());
        if ours != theirs {
            return Some(Mismatch { at, ours, theirs });
        }
        if ours.fault.is_some() {
            return None;
        }
    }
    None
}

/// Gives the frames to both ends. Returns the name of the first allowed difference.
///
/// # Panics
/// They differ, and the table does not say why.
pub fn compare<P: Peer>(mut theirs: P, frames: &[Frame]) -> Option<&'static str> {
    let Mismatch { at, ours, theirs } = first_mismatch(&mut theirs, frames)?;
    let difference = differences::find(P::NAME, &frames[..=at], &ours, &theirs);
    assert!(
        difference.is_some(),
        "frame {at}: {:?}\nof {:?}\nWireloom: {ours:?}\n{}: {theirs:?}",
        frames[at],
        &frames[..at],
        P::NAME
    );
    difference
}

/// Compares both over random frames, and prints how often each difference of the table occurred.
pub fn compare_random<P: Peer>(count: u64, peer: fn() -> P, frames: fn(&[u8]) -> Vec<Frame>) {
    let mut differences: BTreeMap<&str, u32> = BTreeMap::new();
    rounds(count, |rng| {
        let len = rng.usize(1..200);
        let bytes = rng.bytes(len);
        if let Some(difference) = compare(peer(), &frames(&bytes)) {
            *differences.entry(difference).or_default() += 1;
        }
    });
    println!("{differences:#?}");
}
