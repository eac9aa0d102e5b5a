//! Hostile inputs as a table: the bytes that a peer sends, the receiver's role, and the expected outcome. Each case is received whole,
//! byte by byte and at random splits, with the same outcome.

mod bits;
mod control;
mod deflate;
mod fragmentation;
mod framing;
mod handshake;
mod limits;
mod table;
mod text;

use table::{Case, Expected, Table};
use wireloom_testing::split::Split;
use wireloom_testing::{End, Frame, Received, rounds};
use wireloom_ws::{Cause, Config, Delivery, Initiator, Role};

fn table() -> Vec<Case> {
    let mut table = Table::default();
    framing::add_cases(&mut table);
    fragmentation::add_cases(&mut table);
    control::add_cases(&mut table);
    text::add_cases(&mut table);
    limits::add_cases(&mut table);
    deflate::add_cases(&mut table);
    table.cases
}

/// The receiver of a case.
fn end(case: &Case, delivery: Delivery) -> End {
    let mut config = Config::default();
    config.delivery = delivery;
    (case.limits)(&mut config.limits);
    if case.deflate { End::deflated(case.receiver, config) } else { End::with(case.receiver, config, None) }
}

/// Checks the outcome of a case.
fn check(case: &Case, end: &mut End, received: &[Received]) -> Result<(), String> {
    let sent = end.sent_frames();
    let close = sent.last().filter(|frame| frame.opcode() == Frame::CLOSE);
    let ended = end.connection.end().cloned();
    match case.expected {
        Expected::Open => {
            if let Some(Received::Failed(error)) = received.last() {
                return Err(format!("refused: {error}"));
            }
            if close.is_some() || ended.is_some() || !end.connection.is_open() {
                return Err(format!("not open: {ended:?}"));
            }
        }
        Expected::Closes(code) => {
            if !matches!(received.last(), Some(Received::Close(received, _)) if *received == code) {
                return Err(format!("received {:?}", received.last()));
            }
            if close.map(Frame::close_code) != Some(code) {
                return Err(format!("answered {close:?}"));
            }
            if !ended.is_some_and(|end| end.by == Initiator::Peer) || !end.connection.was_clean() {
                return Err("not closed by the peer".into());
            }
        }
        Expected::Fails(code) => {
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
            return Err(format!("wrong masking: {frame:?}"));
        }
    }
    Ok(())
}

/// Runs each case whole and at several splits, which must receive the same.
fn run(cases: &[Case], delivery: Delivery) {
    let mut wrong = Vec::new();
    for case in cases {
        let name = || format!("{} {:?}: {}", case.section, case.receiver, case.name);
        let mut whole = end(case, delivery);
        let first = whole.receive(&case.bytes);
        if let Err(why) = check(case, &mut whole, &first) {
            wrong.push(format!("{}: {why}", name()));
            continue;
        }
        let mut splits = vec![Split::Every(if case.bytes.len() > 100_000 { 1_000 } else { 1 })];
        rounds(3, |rng| {
            for split in splits.drain(..).chain([Split::random(rng)]).collect::<Vec<_>>() {
                let mut cut = end(case, delivery);
                let received = cut.receive_split(&case.bytes, split, rng);
                if received != first {
                    wrong.push(format!(
                        "{}: {split:?} receives something else: {:?}",
                        name(),
                        received.last()
                    ));
                } else if let Err(why) = check(case, &mut cut, &received) {
                    wrong.push(format!("{}: {split:?}: {why}", name()));
                }
            }
        });
    }
    assert!(wrong.is_empty(), "{} of {} fail:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn every_case_has_the_expected_outcome() {
    let cases = table();
    assert!(cases.len() >= 1_000, "{}", cases.len());
    run(&cases, Delivery::Messages);
}

#[test]
fn every_case_has_the_expected_outcome_when_messages_are_delivered_in_chunks() {
    run(&table(), Delivery::Chunks);
}

#[test]
fn names_of_cases_are_unique() {
    let mut names: Vec<String> = table()
        .iter()
        .map(|case| format!("{} {:?} {} {}", case.section, case.receiver, case.deflate, case.name))
        .collect();
    let len = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), len);
}
