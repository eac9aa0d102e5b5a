//! Answers records in the format of the vectors with their events: what the Rust core receives. Fuzzers of other languages compare
//! with it. Each record on the standard input, ended by an empty line, is answered by the lines of its events and an empty line.

#[allow(dead_code, reason = "only a part of the tests' modules is needed")]
#[path = "../tests/vectors/record.rs"]
mod record;
#[path = "../tests/vectors/replay.rs"]
mod replay;

use std::io::{self, BufRead as _, Write as _};

fn main() -> io::Result<()> {
    let mut output = io::stdout().lock();
    let mut text = String::new();
    for line in io::stdin().lock().lines() {
        let line = line?;
        text.push_str(&line);
        text.push('\n');
        if line.is_empty() {
            for record in record::read(&text) {
                let mut answer = String::new();
                record::write(&mut answer, &replay::events(&record, |end, input| end.receive(input)));
                output.write_all(answer.as_bytes())?;
            }
            output.flush()?;
            text.clear();
        }
    }
    Ok(())
}
