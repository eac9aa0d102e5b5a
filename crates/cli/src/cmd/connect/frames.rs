//! What `-vv` says about each frame.

use wireloom::wireloom_ws::frame::Header;
use wireloom::{Observed, Watch};

use super::output::Notes;

/// Says of each frame where it went and what it is.
pub(super) fn tell(notes: &Notes) -> Watch {
    let notes = notes.clone();
    Watch::with(move |event: &Observed<'_>| match event {
        Observed::FrameRead(frame) => notes.say(&format!("< {}", describe(frame))),
        Observed::FrameWritten(frame) => notes.say(&format!("> {}", describe(frame))),
        _ => {}
    })
}

fn describe(frame: &Header) -> String {
    /// RFC 7692 §6: RSV1 of the first frame.
    const COMPRESSED: u8 = 4;
    let kind = format!("{:?}", frame.opcode).to_lowercase();
    let compressed = if frame.rsv & COMPRESSED > 0 { ", compressed" } else { "" };
    let more = if frame.fin { "" } else { ", more to come" };
    format!("{kind}, {} bytes{compressed}{more}", frame.payload_len)
}
