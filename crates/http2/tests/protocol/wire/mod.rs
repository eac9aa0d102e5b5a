//! A raw peer against a connection, for the tests of RFC 9113.
//!
//! Every case runs with its bytes whole, one by one, and split at random, with the same result. Stream 1 is open beside it.
//! After the case the connection and that stream must still work, unless the case expects otherwise.

mod end;

use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) use end::End;
use wireloom_http2::Role;
use wireloom_http2::field::{FieldLimits, FieldList, Token};
use wireloom_http2::hpack::Decoder;
use wireloom_testing::http2::{Frame, PREFACE, code, flag, join, kind};
use wireloom_testing::split::Split;
use wireloom_testing::{Rng, rounds};

/// SETTINGS_MAX_CONCURRENT_STREAMS of the tested end.
pub(crate) const MAX_CONCURRENT_STREAMS: u32 = 100;

/// One step of a case.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// The raw peer sends a frame.
    Send(Frame),
    /// The raw peer sends bytes.
    Raw(Vec<u8>),
    /// The tested server answers a request with fields that end the stream.
    Respond(u32),
    /// The tested end resets a stream with CANCEL.
    Reset(u32),
    /// The tested client opens its next stream, which has this identifier, by a GET request.
    Request(u32),
    /// Time passes.
    Wait(Duration),
}

/// The steps of a raw peer, and the expected answers.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    what: String,
    steps: Vec<Step>,
    /// Without a handshake, and without a stream beside it.
    bare: bool,
    /// The input is not cut: it is long, and the case is not about its splits.
    whole: bool,
    unfinished: bool,
    connection_error: Option<u32>,
    stream_errors: BTreeMap<u32, u32>,
    answers: BTreeMap<u32, u16>,
    requests: Vec<u32>,
}

impl Case {
    /// These steps; the connection must live on.
    pub(crate) fn new(what: &str, steps: Vec<Step>) -> Self {
        Self {
            what: what.to_owned(),
            steps,
            bare: false,
            whole: false,
            unfinished: false,
            connection_error: None,
            stream_errors: BTreeMap::new(),
            answers: BTreeMap::new(),
            requests: Vec::new(),
        }
    }

    /// These frames of the raw peer; the connection must live on.
    pub(crate) fn frames(what: &str, frames: &[Frame]) -> Self {
        Self::new(what, frames.iter().cloned().map(Step::Send).collect())
    }

    /// These bytes, from the first one of the connection on.
    pub(crate) fn bare(what: &str, bytes: &[u8]) -> Self {
        Self { bare: true, ..Self::new(what, vec![Step::Raw(bytes.to_vec())]) }
    }

    /// The connection must end with this code.
    pub(crate) fn connection_error(mut self, code: u32) -> Self {
        self.connection_error = Some(code);
        self
    }

    /// This stream must be reset with this code.
    pub(crate) fn stream_error(mut self, stream: u32, code: u32) -> Self {
        self.stream_errors.insert(stream, code);
        self
    }

    /// The request on this stream must have been answered so by the tested server itself, and not passed to the caller.
    pub(crate) fn answer(mut self, stream: u32, status: u16) -> Self {
        self.answers.insert(stream, status);
        self
    }

    /// The request on this stream must have been passed to the caller.
    pub(crate) fn request(mut self, stream: u32) -> Self {
        self.requests.push(stream);
        self
    }

    /// The input ends inside a frame, or the connection accepts no new streams: nothing is checked afterwards.
    pub(crate) fn unfinished(mut self) -> Self {
        self.unfinished = true;
        self
    }

    /// Runs the case once, with its input whole.
    pub(crate) fn whole(mut self) -> Self {
        self.whole = true;
        self
    }

    fn run(&self, tested: Role) {
        self.run_split(tested, Split::Whole, &mut Rng::with_seed(0));
        if !self.whole {
            self.run_split(tested, Split::Every(1), &mut Rng::with_seed(0));
            rounds(3, |rng| self.run_split(tested, Split::Random(40), rng));
        }
    }

    fn run_split(&self, tested: Role, split: Split, rng: &mut Rng) {
        let context = format!("{} ({tested:?} tested, {split:?})", self.what);
        let mut end = End::new(tested);
        let mut send = |end: &mut End, bytes: &[u8]| {
            let mut at = 0;
            for len in split.parts(rng, bytes.len()) {
                end.receive(&bytes[at..at + len]);
                at += len;
            }
        };
        if !self.bare {
            let preface = if tested == Role::Server { PREFACE } else { b"" };
            let mut opening = [preface, &join(&[Frame::settings(&[]), Frame::settings_ack()])].concat();
            match tested {
                Role::Server => Frame::post(1).write(&mut opening),
                Role::Client => assert_eq!(end.request(), 1),
            }
            send(&mut end, &opening);
        }
        // Consecutive frames are joined, so that they can be split anywhere.
        let mut pending = Vec::new();
        for step in &self.steps {
            match step {
                Step::Send(frame) => frame.write(&mut pending),
                Step::Raw(bytes) => pending.extend_from_slice(bytes),
                other => {
                    send(&mut end, &std::mem::take(&mut pending));
                    match *other {
                        Step::Respond(stream) => end.respond(stream),
                        Step::Reset(stream) => end.reset(stream),
                        Step::Request(stream) => assert_eq!(end.request(), stream, "{context}"),
                        Step::Wait(time) => end.wait(time),
                        Step::Send(_) | Step::Raw(_) => {}
                    }
                }
            }
        }
        send(&mut end, &pending);
        if self.connection_error.is_none() && !self.unfinished && !self.bare {
            // The connection works, and stream 1 continues.
            let last = match tested {
                Role::Server => Frame::data(1, "the end").end_stream(),
                Role::Client => Frame::headers(1, &[(":status", "204")]).end_stream(),
            };
            send(&mut end, &join(&[Frame::ping("alive?  "), last]));
        }
        self.check(&end, &context);
    }

    fn check(&self, end: &End, context: &str) {
        let frames = end.sent();
        let goaway: Vec<&Frame> =
            frames.iter().filter(|f| f.kind == kind::GOAWAY && f.word(4) != code::NO_ERROR).collect();
        match self.connection_error {
            Some(code) => {
                // RFC 9113 §5.4.1: GOAWAY has the reason, and the connection ends.
                assert_eq!(goaway.len(), 1, "{context}: {frames:?}");
                assert_eq!(goaway[0].word(4), code, "{context}: {goaway:?}");
                assert!(goaway[0].payload.len() > 8, "{context}: no reason in {goaway:?}");
                assert!(end.has_failed(), "{context}: the failure was not reported to the caller");
                assert_eq!(frames.last().unwrap().kind, kind::GOAWAY, "{context}: {frames:?}");
            }
            None => {
                assert!(goaway.is_empty(), "{context}: {}", goaway[0].payload[8..].escape_ascii());
                assert!(!end.has_failed(), "{context}: the connection ended");
            }
        }
        let mut resets = BTreeMap::new();
        for reset in frames.iter().filter(|frame| frame.kind == kind::RST_STREAM) {
            // RFC 9113 §5.4.2: at most one RST_STREAM for a stream.
            assert_eq!(resets.insert(reset.stream, reset.word(0)), None, "{context}: twice {reset:?}");
        }
        assert_eq!(resets, self.stream_errors, "{context}: the streams that were reset, and those expected");
        let (mut decoder, mut fields, mut answers) = (Decoder::new(4096), FieldList::new(), BTreeMap::new());
        for headers in frames.iter().filter(|frame| frame.kind == kind::HEADERS) {
            decoder.decode(&headers.payload, &FieldLimits::default(), &mut fields).unwrap();
            let status =
                fields.find(Token::Status).map(|field| String::from_utf8_lossy(field.value()).into_owned());
            if !end.requests().contains(&headers.stream)
                && let Some(status) = status
            {
                assert!(headers.flags & flag::END_STREAM != 0, "{context}: {headers:?}");
                assert_eq!(answers.insert(headers.stream, status.parse().unwrap()), None, "{context}");
            }
        }
        assert_eq!(answers, self.answers, "{context}: responses of the connection itself");
        for stream in &self.requests {
            assert!(
                end.requests().contains(stream),
                "{context}: the request on {stream} was not passed to the caller"
            );
        }
        if self.connection_error.is_none() && !self.unfinished && !self.bare {
            let pong = Frame::ping("alive?  ").flag(flag::ACK);
            assert!(frames.contains(&pong), "{context}: PING was not answered: {frames:?}");
            assert!(end.ended().contains(&1), "{context}: stream 1 did not continue");
        }
    }
}

/// Runs cases against a server: the raw peer is a client.
pub(crate) fn client_sends(cases: Vec<Case>) {
    cases.iter().for_each(|case| case.run(Role::Server));
}

/// Runs cases against a client: the raw peer is a server.
pub(crate) fn server_sends(cases: Vec<Case>) {
    cases.iter().for_each(|case| case.run(Role::Client));
}
