//! Recordings of the command: see [`crate::recording`] for the format.

use std::io::BufRead;
use std::ops::ControlFlow;

use super::lines::Lines;
use super::{ReadError, Sink, flush, handle_bytes};
use crate::inspector::Inspector;
use crate::recording::{self, Event};

pub(super) fn read(
    input: &mut impl BufRead,
    inspector: &mut Inspector,
    sink: &mut Sink<'_>,
) -> Result<(), ReadError> {
    let mut lines = Lines::new(input);
    let mut entries = Vec::new();
    let mut started = None;
    while let Some(line) = lines.next()? {
        let event = match recording::parse(line.bytes) {
            Ok(event) => event,
            Err(_) if line.is_cut => return Err(ReadError::Truncated { offset: line.offset }),
            Err(reason) => return Err(ReadError::Malformed { offset: line.offset, reason }),
        };
        let flow = match event {
            Event::Start { started: time } => {
                started = time;
                ControlFlow::Continue(())
            }
            Event::Bytes { offset, connection, direction, bytes } => {
                let time = started.unwrap_or_default().checked_add(offset);
                handle_bytes(inspector, connection, time, direction, &bytes, sink)
            }
            Event::Lost { offset, connection, direction, len } => {
                let time = started.unwrap_or_default().checked_add(offset);
                inspector.handle_gap(connection, time, direction, len, &mut entries);
                flush(&mut entries, sink)
            }
            Event::End { offset, connection, direction } => {
                let time = started.unwrap_or_default().checked_add(offset);
                inspector.handle_end(connection, time, direction, &mut entries);
                flush(&mut entries, sink)
            }
            Event::Other => ControlFlow::Continue(()),
        };
        if flow.is_break() {
            return Ok(());
        }
    }
    Ok(())
}
