//! Frames: their header, their payload by type, both ways (RFC 9113 §4 and §6, RFC 7838, RFC 8336, RFC 9218).
//!
//! Owns the layout of frames and the rules that a frame can be judged by alone: its size, its padding, whether it
//! belongs to a stream. Refuses to own what the frames before it make of it: no state is kept here. Parsing borrows
//! from the input and writing appends to the one output buffer; neither allocates.

mod altsvc;
mod block;
mod continuation;
mod data;
mod goaway;
mod header;
mod headers;
mod origin;
mod padding;
mod ping;
mod priority;
mod priority_update;
mod push_promise;
mod rst_stream;
mod settings;
mod stream_id;
mod window_update;

pub use altsvc::AltSvc;
pub use block::BlockWriter;
pub use continuation::Continuation;
pub use data::Data;
pub use goaway::Goaway;
pub use header::{Flags, FrameHeader, Kind};
pub use headers::Headers;
pub use origin::Origin;
pub use ping::Ping;
pub use priority::{Dependency, Priority};
pub use priority_update::PriorityUpdate;
pub use push_promise::PushPromise;
pub use rst_stream::RstStream;
pub use settings::{Setting, Settings, Values};
pub use stream_id::StreamId;
pub use window_update::WindowUpdate;

use crate::error::Violation;

/// A frame, borrowed from the bytes that it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Frame<'a> {
    /// RFC 9113 §6.1
    Data(Data<'a>),
    /// RFC 9113 §6.2
    Headers(Headers<'a>),
    /// RFC 9113 §6.3
    Priority(Priority),
    /// RFC 9113 §6.4
    RstStream(RstStream),
    /// RFC 9113 §6.5
    Settings(Settings<'a>),
    /// RFC 9113 §6.6
    PushPromise(PushPromise<'a>),
    /// RFC 9113 §6.7
    Ping(Ping),
    /// RFC 9113 §6.8
    Goaway(Goaway<'a>),
    /// RFC 9113 §6.9
    WindowUpdate(WindowUpdate),
    /// RFC 9113 §6.10
    Continuation(Continuation<'a>),
    /// RFC 7838 §4
    AltSvc(AltSvc<'a>),
    /// RFC 8336 §2
    Origin(Origin<'a>),
    /// RFC 9218 §7.1
    PriorityUpdate(PriorityUpdate<'a>),
    /// RFC 9113 §4.1, §5.5: a type that is not known, to be ignored and discarded.
    Unknown(FrameHeader),
}

impl<'a> Frame<'a> {
    /// Reads the payload of a frame; `payload` is as long as the header says.
    ///
    /// ```
    /// use wireloom_http2::frame::{Frame, FrameHeader};
    ///
    /// let bytes = [0, 0, 2, 0, 1, 0, 0, 0, 3, b'h', b'i'];
    /// let (header, payload) = bytes.split_first_chunk().unwrap();
    /// let Ok(Frame::Data(data)) = Frame::parse(&FrameHeader::decode(header), payload) else { panic!() };
    /// assert_eq!((data.data, data.end_stream, data.stream_id.get()), (&b"hi"[..], true, 3));
    /// ```
    ///
    /// # Errors
    /// A rule that the frame breaks by itself, whatever came before it.
    #[inline]
    pub fn parse(header: &FrameHeader, payload: &'a [u8]) -> Result<Self, Violation> {
        debug_assert_eq!(header.len as usize, payload.len());
        Ok(match header.kind {
            Kind::DATA => Self::Data(Data::parse(header, payload)?),
            Kind::HEADERS => Self::Headers(Headers::parse(header, payload)?),
            Kind::PRIORITY => Self::Priority(Priority::parse(header, payload)?),
            Kind::RST_STREAM => Self::RstStream(RstStream::parse(header, payload)?),
            Kind::SETTINGS => Self::Settings(Settings::parse(header, payload)?),
            Kind::PUSH_PROMISE => Self::PushPromise(PushPromise::parse(header, payload)?),
            Kind::PING => Self::Ping(Ping::parse(header, payload)?),
            Kind::GOAWAY => Self::Goaway(Goaway::parse(header, payload)?),
            Kind::WINDOW_UPDATE => Self::WindowUpdate(WindowUpdate::parse(header, payload)?),
            Kind::CONTINUATION => Self::Continuation(Continuation::parse(header, payload)?),
            Kind::ALTSVC => Self::AltSvc(AltSvc::parse(header, payload)?),
            Kind::ORIGIN => Self::Origin(Origin::parse(header, payload)?),
            Kind::PRIORITY_UPDATE => Self::PriorityUpdate(PriorityUpdate::parse(header, payload)?),
            _ => Self::Unknown(*header),
        })
    }
}
