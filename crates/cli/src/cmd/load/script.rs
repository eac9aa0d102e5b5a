//! `--script`: the steps of a file.

use std::path::Path;
use std::time::Duration;

use crate::args::time;

/// The steps of a file.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Script(pub(super) Vec<Step>);

/// A step of a script.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Send(String),
    SendBinary(Vec<u8>),
    Expect(String),
    ExpectPrefix(String),
    ExpectAny,
    Wait(Duration),
}

impl Script {
    /// # Errors
    /// The file cannot be read, or a line is not a step.
    pub(super) fn from_file(path: &Path) -> Result<Self, String> {
        let text =
            std::fs::read_to_string(path).map_err(|error| format!("--script {}: {error}", path.display()))?;
        Self::parse(&text).map_err(|error| format!("--script {}: {error}", path.display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut steps = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let (word, rest) = line.trim_start().split_once(' ').unwrap_or((line.trim(), ""));
            let step = match word {
                "" => continue,
                word if word.starts_with('#') => continue,
                "send" => Some(Step::Send(rest.into())),
                "send-binary" => hex(rest).map(Step::SendBinary),
                "expect" => Some(Step::Expect(rest.into())),
                "expect-prefix" => Some(Step::ExpectPrefix(rest.into())),
                "expect-any" if rest.trim().is_empty() => Some(Step::ExpectAny),
                "wait" => time(rest.trim()).ok().map(Step::Wait),
                _ => None,
            };
            steps.push(step.ok_or_else(|| format!("line {}: {line:?} is not a step", index + 1))?);
        }
        // A script that only sends would fill the send queue.
        if steps.iter().any(|step| !matches!(step, Step::Send(_) | Step::SendBinary(_))) {
            Ok(Self(steps))
        } else {
            Err("it needs a step that expects or waits".into())
        }
    }
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> =
        text.chars().filter(|char| *char != ' ').map(|char| char.to_digit(16)).collect::<Option<_>>()?;
    let bytes = digits.chunks(2).map(|pair| match pair {
        [high, low] => u8::try_from(high << 4 | low).ok(),
        _ => None,
    });
    bytes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_scripts() {
        let script = Script::parse(
            "# login\nsend hello {round}\n\nexpect hi\nexpect-any\nsend-binary 00 ff\nwait 20ms\n",
        );
        let expected = [
            Step::Send("hello {round}".into()),
            Step::Expect("hi".into()),
            Step::ExpectAny,
            Step::SendBinary(vec![0, 255]),
            Step::Wait(Duration::from_millis(20)),
        ];
        assert_eq!(script, Ok(Script(expected.into())));
        for wrong in
            ["", "send a", "expekt a", "expect-any b", "wait", "wait soon\n", "send-binary 0\nexpect a"]
        {
            assert!(Script::parse(wrong).is_err(), "{wrong}");
        }
    }
}
