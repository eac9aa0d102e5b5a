//! The table of hostile inputs: what a peer sends, to which end, and what must come of it. Every row is fed whole, byte by
//! byte and at random splits, and must end the same way each time.

mod bits;
mod control;
mod deflate;
mod fragmentation;
mod framing;
mod handshake;
mod limits;
mod table;
mod text;

use table::{Case, Table, Verdict};
use wireloom_testing::split::Split;
use wireloom_testing::{End, Frame, Received, rounds};
use wireloom_ws::{Cause, Config, Delivery, Initiator, Role};

fn table() -> Vec<Case> {
    let mut table = Table::default();
    framing::fill(&mut table);
    fragmentation::fill(&mut table);
    control::fill(&mut table);
    text::fill(&mut table);
    limits::fill(&mut table);
    deflate::fill(&mut table);
    table.cases
}

/// The end that a case is fed to.
fn end(case: &Case, delivery: Delivery) -> End {
    let mut config = Config::default();
    config.delivery = delivery;
    (case.limits)(&mut config.limits);
    if case.deflate { End::deflated(case.receiver, config) } else { End::with(case.receiver, config, None) }
}

/// What came of it, and whether that is what must.
fn check(case: &Case, end: &mut End, received: &[Received]) -> Result<(), String> {
    let sent = end.sent_frames();
    let close = sent.last().filter(|frame| frame.opcode() == Frame::CLOSE);
    let ended = end.connection.end().cloned();
    match case.verdict {
        Verdict::Open => {
            if let Some(Received::Failed(error)) = received.last() {
                return Err(format!("refused: {error}"));
            }
            if close.is_some() || ended.is_some() || !end.connection.is_open() {
                return Err(format!("not open: {ended:?}"));
            }
        }
        Verdict::Closes(code) => {
            if !matches!(received.last(), Some(Received::Close(received, _)) if *received == code) {
                return Err(format!("received {:?}", received.last()));
            }
            if close.map(Frame::close_code) != Some(code) {
                return Err(format!("answered {close:?}"));
            }
            if !ended.is_some_and(|end| end.by == Initiator::Peer) || !end.connection.was_clean() {
                return Err("the peer's close is not what ended it".into());
            }
        }
        Verdict::Fails(code) => {
            let Some(Received::Failed(error)) = received.last() else {
                return Err(format!("not refused; received {:?}", received.last()));
            };
            if close.and_then(Frame::close_code) != Some(code) {
                return Err(format!("{error}: sent {:?}", close.map(Frame::close_code)));
            }
            let ended = ended.ok_or("no end")?;
            if ended.cause != Cause::Error(*error) || ended.code().value() != code {
                return Err(format!("ended {ended:?}"));
            }
            if end.connection.was_clean() {
                return Err("clean".into());
            }
        }
    }
    let reason = close.map_or(&[][..], |frame| frame.payload().get(2..).unwrap_or_default());
    std::str::from_utf8(reason).map_err(|_| "a close reason that is not UTF-8")?;
    for frame in &sent {
        if frame.key().is_some() != (case.receiver == Role::Client) {
            return Err(format!("masked wrongly: {frame:?}"));
        }
    }
    Ok(())
}

/// Runs every case in each of these ways and demands that it always receives the same.
fn run(cases: &[Case], delivery: Delivery) {
    let mut wrong = Vec::new();
    for case in cases {
        let name = || format!("{} {:?}: {}", case.section, case.receiver, case.name);
        let mut whole = end(case, delivery);
        let expected = whole.receive(&case.bytes);
        if let Err(why) = check(case, &mut whole, &expected) {
            wrong.push(format!("{}: {why}", name()));
            continue;
        }
        let mut ways = vec![Split::Every(1)];
        if case.bytes.len() > 100_000 {
            ways = vec![Split::Every(1_000)];
        }
        rounds(3, |rng| {
            for split in ways.drain(..).chain([Split::draw(rng)]).collect::<Vec<_>>() {
                let mut cut = end(case, delivery);
                let received = cut.receive_split(&case.bytes, split, rng);
                if received != expected {
                    wrong.push(format!("{}: {split:?} receives otherwise: {:?}", name(), received.last()));
                } else if let Err(why) = check(case, &mut cut, &received) {
                    wrong.push(format!("{}: {split:?}: {why}", name()));
                }
            }
        });
    }
    assert!(wrong.is_empty(), "{} wrong of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn every_input_ends_as_it_must() {
    let cases = table();
    assert!(cases.len() >= 1_000, "{}", cases.len());
    run(&cases, Delivery::Messages);
}

/// Lent in pieces, messages come to the same verdicts.
#[test]
fn every_input_ends_as_it_must_when_messages_are_lent() {
    run(&table(), Delivery::Chunks);
}

#[test]
fn every_case_has_a_name_of_its_own() {
    let mut names: Vec<String> = table()
        .iter()
        .map(|case| format!("{} {:?} {} {}", case.section, case.receiver, case.deflate, case.name))
        .collect();
    let len = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), len);
}
