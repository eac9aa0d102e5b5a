//! Which entries are shown.

use wireloom_inspect::{Direction, Entry, Payload, Protocol};

use super::direction;
use crate::args;

/// The filters of the command line.
pub(super) struct Filter<'a> {
    args: &'a args::Filter,
    from: Option<Direction>,
    text: Option<Vec<u8>>,
}

impl<'a> Filter<'a> {
    pub(super) fn new(args: &'a args::Filter) -> Self {
        let text = args.text.as_ref().map(|text| text.to_lowercase().into_bytes());
        Self { args, from: args.from.map(direction), text }
    }

    /// Whether an entry is to be shown.
    pub(super) fn matches(&self, entry: &Entry) -> bool {
        let Self { args, .. } = self;
        let stream = || {
            args.stream.iter().any(|filter| {
                filter.connection == entry.connection
                    && (filter.stream.is_none() || filter.stream == entry.stream)
            })
        };
        let opcode =
            || entry.protocol == Protocol::WebSocket && args.opcode.iter().any(|name| *name == entry.kind);
        let kind = || args.kind.iter().any(|name| name.eq_ignore_ascii_case(&entry.kind));
        (args.stream.is_empty() || stream())
            && (args.opcode.is_empty() || opcode())
            && (args.kind.is_empty() || kind())
            && self.from.is_none_or(|from| from == entry.direction)
            && (!args.problems || !entry.problems.is_empty())
            && self.text.as_ref().is_none_or(|text| contains(entry, text))
    }
}

/// Whether the content contains `text`, which is in lower case.
fn contains(entry: &Entry, text: &[u8]) -> bool {
    let found = |bytes: &[u8]| {
        text.is_empty() || bytes.to_ascii_lowercase().windows(text.len()).any(|window| window == text)
    };
    match &entry.payload {
        Payload::Text(content) => found(content.to_lowercase().as_bytes()),
        Payload::Binary(content) => found(content),
        Payload::Fields { start, fields } => {
            found(start.as_bytes()) || fields.iter().any(|(name, value)| found(name) || found(value))
        }
        _ => text.is_empty(),
    }
}
