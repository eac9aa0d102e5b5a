//! The same frames into a Wireloom server and into a server of another implementation: the same messages, content and ends,
//! and the same first error, by code and scope. The differences that are allowed are in `differences`, each with its reason.
//!
//! Frames go in one at a time, so that a difference names the frame that caused it. A comparison ends with the first error:
//! after it implementations may ignore different frames (RFC 9113 §5.4.2).

pub mod differences;
pub mod frames;
pub mod rust_h2;
pub mod wireloom;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use wireloom_testing::http2::{Frame, PREFACE, code, join, kind};

/// Names and values, in order.
pub type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// A connection or a stream that a server ended because of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// 0 for the connection.
    pub stream: u32,
    pub code: u32,
}

/// All that a server received, and its first answer to an error.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Requests and trailers, by stream, in order.
    pub messages: Vec<(u32, Fields)>,
    pub content: BTreeMap<u32, Vec<u8>>,
    /// Streams that the client ended.
    pub ended: BTreeSet<u32>,
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
        write!(f, "\n  ended: {:?}\n  fault: {:?}", self.ended, self.fault)
    }
}

impl Outcome {
    /// Notes the first error among frames that a server wrote.
    pub fn note_written(&mut self, frames: &[Frame]) {
        for frame in frames {
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

/// A server.
pub trait Peer {
    /// The implementation.
    const NAME: &'static str;

    /// Handles bytes of the client, and writes all that they caused.
    fn receive(&mut self, bytes: &[u8]);

    fn outcome(&mut self) -> Outcome;

    /// The outcome of Wireloom as this implementation reports it.
    fn view(outcome: Outcome) -> Outcome {
        outcome
    }
}

/// Gives the frames to both servers. Returns the name of the first allowed difference.
///
/// # Panics
/// They differ, and the table does not say why.
pub fn compare<P: Peer>(mut theirs: P, frames: &[Frame]) -> Option<&'static str> {
    let mut ours = wireloom::Server::new();
    let opening = [PREFACE, &join(&[Frame::settings(&[]), Frame::settings_ack()])].concat();
    ours.receive(&opening);
    theirs.receive(&opening);
    for (at, frame) in frames.iter().enumerate() {
        let bytes = frame.to_bytes();
        ours.receive(&bytes);
        theirs.receive(&bytes);
        let (ours, theirs) = (P::view(ours.outcome()), theirs.outcome());
        if ours != theirs {
            let difference = differences::find(P::NAME, &frames[..=at], &ours, &theirs);
            assert!(
                difference.is_some(),
                "frame {at}: {frame:?}\nof {:?}\nWireloom: {ours:?}\n{}: {theirs:?}",
                &frames[..at],
                P::NAME
            );
            return difference;
        }
        if ours.fault.is_some() {
            return None;
        }
    }
    None
}
