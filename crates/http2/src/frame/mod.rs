//! Parsing and encoding of frames (RFC 9113 §4 and §6, RFC 7838, RFC 8336, RFC 9218).
//!
//! This module knows the layout of frames, and the rules that need no state: the size of a frame, its padding, and whether it
//! belongs to a stream. Parsers borrow from the input, and encoders append to the output buffer.

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
mod window_update;

pub use crate::stream_id::StreamId;
pub use altsvc::AltSvc;
pub use block::BlockWriter;
pub use continuation::Continuation;
pub use data::Data;
pub use goaway::Goaway;
pub use header::{Flags, FrameHeader, Kind};
pub use headers::Headers;
pub use origin::Origin;
pub use ping::Ping;
pub use priority::{Dependency, PriorityFrame};
pub use priority_update::PriorityUpdate;
pub use push_promise::PushPromise;
pub use rst_stream::RstStream;
pub use settings::{Setting, SettingsFrame, Values};
pub use window_update::WindowUpdate;

use crate::error::Violation;

/// A frame that borrows from the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Frame<'a> {
    /// RFC 9113 §6.1
    Data(Data<'a>),
    /// RFC 9113 §6.2
    Headers(Headers<'a>),
    /// RFC 9113 §6.3
    Priority(PriorityFrame),
    /// RFC 9113 §6.4
    RstStream(RstStream),
    /// RFC 9113 §6.5
    Settings(SettingsFrame<'a>),
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
    /// An unknown type, which is ignored (RFC 9113 §4.1, §5.5).
    Unknown(FrameHeader),
}

impl<'a> Frame<'a> {
    /// Parses the payload of a frame; `payload` has the length that the header announces.
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
    /// The frame violates a rule that does not depend on other frames.
    pub fn parse(header: &FrameHeader, payload: &'a [u8]) -> Result<Self, Violation> {
        debug_assert_eq!(header.len as usize, payload.len());
        Ok(match header.kind {
            Kind::DATA => Self::Data(Data::parse(header, payload)?),
            Kind::HEADERS => Self::Headers(Headers::parse(header, payload)?),
            Kind::PRIORITY => Self::Priority(PriorityFrame::parse(header, payload)?),
            Kind::RST_STREAM => Self::RstStream(RstStream::parse(header, payload)?),
            Kind::SETTINGS => Self::Settings(SettingsFrame::parse(header, payload)?),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{ErrorCode, ErrorLevel, Violation as V};
    use alloc::vec;
    use alloc::vec::Vec;
    use wireloom_testing::{Rng, rounds};

    fn parse(kind: Kind, flags: u8, stream_id: u32, payload: &[u8]) -> Result<Frame<'_>, V> {
        let stream_id = StreamId::from_wire(stream_id);
        let header = FrameHeader { len: payload.len() as u32, kind, flags: Flags(flags), stream_id };
        Frame::parse(&header, payload)
    }

    #[test]
    fn invalid_frames_have_the_errors_of_the_rfcs() {
        const CONNECTION: ErrorLevel = ErrorLevel::Connection;
        const PROTOCOL: ErrorCode = ErrorCode::PROTOCOL_ERROR;
        const SIZE: ErrorCode = ErrorCode::FRAME_SIZE_ERROR;
        type Case<'a> = (Kind, u8, u32, &'a [u8], V, ErrorCode, ErrorLevel);
        let cases: &[Case<'_>] = &[
            // RFC 9113 §6.1
            (Kind::DATA, 0, 0, b"x", V::StreamIdZero, PROTOCOL, CONNECTION),
            (Kind::DATA, 0x8, 1, b"", V::DataSize, SIZE, CONNECTION),
            (Kind::DATA, 0x8, 1, b"\x01", V::PaddingTooLong, PROTOCOL, CONNECTION),
            (Kind::DATA, 0x8, 1, b"\x06hello", V::PaddingTooLong, PROTOCOL, CONNECTION),
            // RFC 9113 §6.2
            (Kind::HEADERS, 0x4, 0, b"\x82", V::StreamIdZero, PROTOCOL, CONNECTION),
            (Kind::HEADERS, 0x8, 1, b"", V::HeadersSize, SIZE, CONNECTION),
            (Kind::HEADERS, 0x8, 1, b"\x02\x82", V::PaddingTooLong, PROTOCOL, CONNECTION),
            (Kind::HEADERS, 0x20, 1, b"\0\0\0\0", V::HeadersSize, SIZE, CONNECTION),
            (Kind::HEADERS, 0x28, 1, b"\0\0\0\0\0", V::HeadersSize, SIZE, CONNECTION),
            (Kind::HEADERS, 0x28, 1, b"\x01\0\0\0\0\0", V::PaddingTooLong, PROTOCOL, CONNECTION),
            // RFC 9113 §6.3
            (Kind::PRIORITY, 0, 0, b"\0\0\0\x01\0", V::StreamIdZero, PROTOCOL, CONNECTION),
            (Kind::PRIORITY, 0, 1, b"\0\0\0\x03", V::PrioritySize, SIZE, ErrorLevel::Stream),
            (Kind::PRIORITY, 0, 1, b"\0\0\0\x03\0\0", V::PrioritySize, SIZE, ErrorLevel::Stream),
            // RFC 7540 §5.3.1
            (
                Kind::PRIORITY,
                0,
                3,
                b"\x80\0\0\x03\0",
                V::PrioritySelfDependency,
                PROTOCOL,
                ErrorLevel::Stream,
            ),
            // RFC 9113 §6.4
            (Kind::RST_STREAM, 0, 0, b"\0\0\0\0", V::StreamIdZero, PROTOCOL, CONNECTION),
            (Kind::RST_STREAM, 0, 1, b"\0\0\0", V::RstStreamSize, SIZE, CONNECTION),
            (Kind::RST_STREAM, 0, 1, b"\0\0\0\0\0", V::RstStreamSize, SIZE, CONNECTION),
            // RFC 9113 §6.5
            (Kind::SETTINGS, 0, 1, b"", V::StreamIdNotZero, PROTOCOL, CONNECTION),
            (Kind::SETTINGS, 0x1, 1, b"", V::StreamIdNotZero, PROTOCOL, CONNECTION),
            (Kind::SETTINGS, 0, 0, b"\0\x01\0\0\x10", V::SettingsSize, SIZE, CONNECTION),
            (Kind::SETTINGS, 0, 0, b"\0\x01\0\0\x10\0\0", V::SettingsSize, SIZE, CONNECTION),
            (Kind::SETTINGS, 0x1, 0, b"\0\x01\0\0\x10\0", V::SettingsAckSize, SIZE, CONNECTION),
            // RFC 9113 §6.6
            (Kind::PUSH_PROMISE, 0x4, 0, b"\0\0\0\x02", V::StreamIdZero, PROTOCOL, CONNECTION),
            (Kind::PUSH_PROMISE, 0x4, 1, b"\0\0\0", V::PushPromiseSize, SIZE, CONNECTION),
            (Kind::PUSH_PROMISE, 0xc, 1, b"", V::PushPromiseSize, SIZE, CONNECTION),
            (Kind::PUSH_PROMISE, 0xc, 1, b"\0\0\0\0", V::PushPromiseSize, SIZE, CONNECTION),
            (Kind::PUSH_PROMISE, 0xc, 1, b"\x01\0\0\0\x02", V::PaddingTooLong, PROTOCOL, CONNECTION),
            (Kind::PUSH_PROMISE, 0xc, 1, b"\x05\0\0\0\x02", V::PaddingTooLong, PROTOCOL, CONNECTION),
            (Kind::PUSH_PROMISE, 0x4, 1, b"\x80\0\0\0", V::PromisedIdInvalid, PROTOCOL, CONNECTION),
            // RFC 9113 §6.7
            (Kind::PING, 0, 1, b"01234567", V::StreamIdNotZero, PROTOCOL, CONNECTION),
            (Kind::PING, 0, 0, b"0123456", V::PingSize, SIZE, CONNECTION),
            (Kind::PING, 0x1, 0, b"012345678", V::PingSize, SIZE, CONNECTION),
            // RFC 9113 §6.8
            (Kind::GOAWAY, 0, 1, b"\0\0\0\0\0\0\0\0", V::StreamIdNotZero, PROTOCOL, CONNECTION),
            (Kind::GOAWAY, 0, 0, b"\0\0\0\0\0\0\0", V::GoawaySize, SIZE, CONNECTION),
            // RFC 9113 §6.9: a stream error where there is a stream, by `Error::peer`.
            (Kind::WINDOW_UPDATE, 0, 1, b"\0\0\0", V::WindowUpdateSize, SIZE, CONNECTION),
            (Kind::WINDOW_UPDATE, 0, 0, b"\0\0\0\x01\0", V::WindowUpdateSize, SIZE, CONNECTION),
            (Kind::WINDOW_UPDATE, 0, 1, b"\0\0\0\0", V::WindowIncrementZero, PROTOCOL, ErrorLevel::Stream),
            (Kind::WINDOW_UPDATE, 0, 0, b"\x80\0\0\0", V::WindowIncrementZero, PROTOCOL, ErrorLevel::Stream),
            // RFC 9113 §6.10
            (Kind::CONTINUATION, 0x4, 0, b"\x82", V::StreamIdZero, PROTOCOL, CONNECTION),
            // RFC 7838 §4, with RFC 9113 §4.2 for frames that are too small
            (Kind::ALTSVC, 0, 0, b"\0", V::AltSvcSize, SIZE, ErrorLevel::Stream),
            (Kind::ALTSVC, 0, 0, b"\0\x02a", V::AltSvcSize, SIZE, ErrorLevel::Stream),
            // RFC 8336 §2
            (Kind::ORIGIN, 0, 0, b"\0", V::OriginSize, SIZE, CONNECTION),
            (Kind::ORIGIN, 0, 0, b"\0\x01a\0\x02b", V::OriginSize, SIZE, CONNECTION),
            // RFC 9218 §7.1
            (Kind::PRIORITY_UPDATE, 0, 1, b"\0\0\0\x01", V::StreamIdNotZero, PROTOCOL, CONNECTION),
            (Kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0", V::PriorityUpdateSize, SIZE, CONNECTION),
            (Kind::PRIORITY_UPDATE, 0, 0, b"\x80\0\0\0u", V::PriorityUpdateStreamZero, PROTOCOL, CONNECTION),
        ];
        for &(kind, flags, stream_id, payload, violation, code, level) in cases {
            let what = alloc::format!("{kind:?} {flags:#x} {stream_id} {}", payload.escape_ascii());
            assert_eq!(parse(kind, flags, stream_id, payload), Err(violation), "{what}");
            assert_eq!(violation.answer(), (code, level), "{what}");
        }
    }

    #[test]
    fn padding_is_removed() {
        // RFC 9113 §6.1: all of the payload but the length of the padding may be padding.
        let Ok(Frame::Data(data)) = parse(Kind::DATA, 0x9, 1, b"\x03hello\0\0\0") else { panic!() };
        assert_eq!(
            (data.data, data.padding, data.end_stream, data.flow_len()),
            (&b"hello"[..], Some(3), true, 9)
        );
        let Ok(Frame::Data(data)) = parse(Kind::DATA, 0x8, 1, b"\x02\xff\xff") else { panic!() };
        assert_eq!((data.data, data.flow_len()), (&b""[..], 3));
        let Ok(Frame::Data(data)) = parse(Kind::DATA, 0x8, 1, b"\0") else { panic!() };
        assert_eq!((data.padding, data.flow_len()), (Some(0), 1));
        let Ok(Frame::Headers(headers)) = parse(Kind::HEADERS, 0x2c, 1, b"\x01\x80\0\0\x07\x0fF\0") else {
            panic!()
        };
        let on = Dependency { exclusive: true, stream_id: StreamId::from_wire(7), weight: 15 };
        assert_eq!((headers.fragment, headers.dependency, headers.padding), (&b"F"[..], Some(on), Some(1)));
        let Ok(Frame::PushPromise(promise)) = parse(Kind::PUSH_PROMISE, 0xc, 1, b"\x01\x80\0\0\x04F\0")
        else {
            panic!()
        };
        assert_eq!((promise.fragment, promise.promised_id.get()), (&b"F"[..], 4));
    }

    #[test]
    fn headers_that_depend_on_themselves_are_still_parsed() {
        // RFC 9113 §4.3: their fields must be decoded, or the dynamic tables of the two ends would differ.
        let Ok(Frame::Headers(headers)) = parse(Kind::HEADERS, 0x24, 1, b"\0\0\0\x01\x0f\x82") else {
            panic!()
        };
        let check = headers.dependency.unwrap().check(headers.stream_id);
        assert_eq!(check, Err(V::PrioritySelfDependency));
    }

    #[test]
    fn flags_and_bits_without_meaning_are_ignored() {
        // RFC 9113 §4.1: unused flags MUST be ignored, and so must the reserved bits.
        let all = |used: u8| !used;
        assert_eq!(
            parse(Kind::PING, all(0x1), 0, b"01234567"),
            Ok(Frame::Ping(Ping { ack: false, payload: *b"01234567" }))
        );
        let reset = RstStream { stream_id: StreamId::FIRST_CLIENT, code: ErrorCode::CANCEL };
        assert_eq!(parse(Kind::RST_STREAM, 0xff, 0x8000_0001, b"\0\0\0\x08"), Ok(Frame::RstStream(reset)));
        assert!(matches!(
            parse(Kind::SETTINGS, all(0x1), 0, b""),
            Ok(Frame::Settings(SettingsFrame::Values(_)))
        ));
        let update = WindowUpdate { stream_id: StreamId::CONNECTION, increment: 1 };
        assert_eq!(parse(Kind::WINDOW_UPDATE, 0xff, 0, b"\x80\0\0\x01"), Ok(Frame::WindowUpdate(update)));
        let Ok(Frame::Continuation(more)) = parse(Kind::CONTINUATION, all(0x4), 1, b"F") else { panic!() };
        assert_eq!((more.end_headers, more.fragment), (false, &b"F"[..]));
        let Ok(Frame::Goaway(goaway)) = parse(Kind::GOAWAY, 0xff, 0, b"\xff\xff\xff\xff\0\0\0\x63why") else {
            panic!()
        };
        assert_eq!((goaway.last_stream_id, goaway.code.get()), (StreamId::MAX, 0x63));
        assert_eq!(goaway.debug_data, b"why");
    }

    #[test]
    fn unknown_types_are_ignored() {
        // RFC 9113 §4.1, §5.5: implementations MUST ignore and discard frames of unknown types.
        for kind in (0..=255).map(Kind).filter(|kind| kind.name().is_none()) {
            for stream_id in [0, 1] {
                assert!(
                    matches!(parse(kind, 0xff, stream_id, b"anything"), Ok(Frame::Unknown(_))),
                    "{kind:?}"
                );
            }
        }
    }

    #[test]
    fn extensions_on_the_wrong_stream_are_not_valid() {
        let altsvc = |stream_id, payload| match parse(Kind::ALTSVC, 0, stream_id, payload) {
            Ok(Frame::AltSvc(altsvc)) => altsvc.is_valid(),
            other => panic!("{other:?}"),
        };
        // RFC 7838 §4: stream 0 without an origin, and another stream with one, MUST be ignored.
        assert!(altsvc(0, b"\0\x01oh2"));
        assert!(altsvc(1, b"\0\0h2=\":1\""));
        assert!(!altsvc(0, b"\0\0h2"));
        assert!(!altsvc(1, b"\0\x01oh2"));
        let origin = |flags, stream_id| match parse(Kind::ORIGIN, flags, stream_id, b"\0\x01a\0\0") {
            Ok(Frame::Origin(origin)) => {
                assert_eq!(origin.iter().collect::<Vec<_>>(), [&b"a"[..], b""]);
                origin.is_valid()
            }
            other => panic!("{other:?}"),
        };
        // RFC 8336 §2.1: on another stream, or with flags that are reserved, it MUST be ignored.
        assert!(origin(0, 0) && origin(0xf0, 0));
        assert!(!origin(0, 1));
        assert!((0..4).all(|bit| !origin(1 << bit, 0)));
    }

    /// Encodes a random frame, and returns it.
    fn random_frame<'a>(rng: &mut Rng, bytes: &'a [u8], out: &mut Vec<u8>) -> Frame<'a> {
        let stream_id = StreamId::from_wire(rng.u32(1..));
        let other_id = StreamId::from_wire(rng.u32(1..1 << 31));
        let end_stream = rng.bool();
        let end_headers = rng.bool();
        let padding = rng.bool().then(|| rng.u8(..));
        let dependency = Dependency { exclusive: rng.bool(), stream_id: other_id, weight: rng.u8(..) };
        let stream_id = if stream_id.is_connection() { StreamId::MAX } else { stream_id };
        match rng.u8(0..12) {
            0 => {
                let frame = Data { stream_id, end_stream, padding, data: bytes };
                frame.encode(out);
                Frame::Data(frame)
            }
            1 => {
                let dependency = rng.bool().then_some(dependency);
                let frame =
                    Headers { stream_id, end_stream, end_headers, dependency, padding, fragment: bytes };
                frame.encode(out);
                Frame::Headers(frame)
            }
            2 => {
                let dependency =
                    Dependency { stream_id: StreamId::from_wire(stream_id.get() ^ 1), ..dependency };
                let frame = PriorityFrame { stream_id, dependency };
                frame.encode(out);
                Frame::Priority(frame)
            }
            3 => {
                let frame = RstStream { stream_id, code: rng.u32(..).into() };
                frame.encode(out);
                Frame::RstStream(frame)
            }
            4 => {
                let values = Values::from_bytes(&bytes[..bytes.len() / 6 * 6]).unwrap();
                SettingsFrame::encode(values.iter(), out);
                Frame::Settings(SettingsFrame::Values(values))
            }
            5 => {
                let frame =
                    PushPromise { stream_id, promised_id: other_id, end_headers, padding, fragment: bytes };
                frame.encode(out);
                Frame::PushPromise(frame)
            }
            6 => {
                let frame = Ping { ack: rng.bool(), payload: rng.u64(..).to_be_bytes() };
                frame.encode(out);
                Frame::Ping(frame)
            }
            7 => {
                let frame = Goaway { last_stream_id: other_id, code: rng.u32(..).into(), debug_data: bytes };
                frame.encode(out);
                Frame::Goaway(frame)
            }
            8 => {
                let frame = WindowUpdate { stream_id, increment: rng.u32(1..1 << 31) };
                frame.encode(out);
                Frame::WindowUpdate(frame)
            }
            9 => {
                let frame = Continuation { stream_id, end_headers, fragment: bytes };
                frame.encode(out);
                Frame::Continuation(frame)
            }
            10 => {
                let (origin, value) = bytes.split_at(rng.usize(..=bytes.len()));
                let frame = AltSvc { stream_id, origin, value };
                frame.encode(out);
                Frame::AltSvc(frame)
            }
            _ => {
                let frame = PriorityUpdate { prioritized_id: other_id, value: bytes };
                frame.encode(out);
                Frame::PriorityUpdate(frame)
            }
        }
    }

    #[test]
    fn parsing_inverts_encoding() {
        rounds(3_000, |rng| {
            let len = rng.len(2_000);
            let bytes = rng.bytes(len);
            let mut out = vec![0xaa];
            let frame = random_frame(rng, &bytes, &mut out);
            let (header, payload) = out[1..].split_first_chunk().unwrap();
            let header = FrameHeader::decode(header);
            assert_eq!(header.len as usize, payload.len());
            assert_eq!(Frame::parse(&header, payload), Ok(frame));
        });
        let mut out = vec![0xaa];
        Origin::encode([&b"https://a"[..], b"", b"https://b"], &mut out);
        assert_eq!(out[1..10], [0, 0, 24, 0xc, 0, 0, 0, 0, 0]);
        let Ok(Frame::Origin(origin)) = parse(Kind::ORIGIN, 0, 0, &out[10..]) else { panic!() };
        assert_eq!(origin.iter().collect::<Vec<_>>(), [&b"https://a"[..], b"", b"https://b"]);
        SettingsFrame::encode_ack(&mut out);
        assert_eq!(parse(Kind::SETTINGS, 1, 0, b""), Ok(Frame::Settings(SettingsFrame::Ack)));
        assert_eq!(out[out.len() - 9..], [0, 0, 0, 4, 1, 0, 0, 0, 0]);
    }

    /// One frame of each kind and option, and its bytes as the RFCs draw them.
    #[test]
    fn encoders_write_the_layouts_of_the_rfcs() {
        let id = |id| StreamId::new(id).unwrap();
        let dependency = Dependency { exclusive: true, stream_id: id(7), weight: 15 };
        let encoded = |encode: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            encode(&mut out);
            out
        };
        // RFC 9113 §6.1
        let data = Data { stream_id: id(1), end_stream: true, padding: Some(2), data: b"hi" };
        assert_eq!(encoded(&|out| data.encode(out)), b"\0\0\x05\0\x09\0\0\0\x01\x02hi\0\0");
        assert_eq!((data.flow_len(), data.header().len), (5, 5));
        // RFC 9113 §6.2
        let headers = Headers {
            stream_id: id(3),
            end_stream: false,
            end_headers: true,
            dependency: None,
            padding: None,
            fragment: b"F",
        };
        assert_eq!(encoded(&|out| headers.encode(out)), b"\0\0\x01\x01\x04\0\0\0\x03F");
        let headers = Headers {
            end_stream: true,
            end_headers: false,
            dependency: Some(dependency),
            padding: Some(1),
            ..headers
        };
        assert_eq!(encoded(&|out| headers.encode(out)), b"\0\0\x08\x01\x29\0\0\0\x03\x01\x80\0\0\x07\x0fF\0");
        // RFC 9113 §6.3
        let priority =
            PriorityFrame { stream_id: id(5), dependency: Dependency { exclusive: false, ..dependency } };
        assert_eq!(encoded(&|out| priority.encode(out)), b"\0\0\x05\x02\0\0\0\0\x05\0\0\0\x07\x0f");
        // RFC 9113 §6.4
        let reset = RstStream { stream_id: id(1), code: ErrorCode::CANCEL };
        assert_eq!(encoded(&|out| reset.encode(out)), b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08");
        // RFC 9113 §6.6
        let promise = PushPromise {
            stream_id: id(1),
            promised_id: id(0x0102_0304),
            end_headers: true,
            padding: Some(0),
            fragment: b"F",
        };
        assert_eq!(encoded(&|out| promise.encode(out)), b"\0\0\x06\x05\x0c\0\0\0\x01\0\x01\x02\x03\x04F");
        // RFC 9113 §6.7
        let ping = Ping { ack: true, payload: *b"01234567" };
        assert_eq!(encoded(&|out| ping.encode(out)), b"\0\0\x08\x06\x01\0\0\0\x0001234567");
        // RFC 9113 §6.8
        let goaway = Goaway { last_stream_id: id(5), code: ErrorCode::PROTOCOL_ERROR, debug_data: b"why" };
        assert_eq!(encoded(&|out| goaway.encode(out)), b"\0\0\x0b\x07\0\0\0\0\0\0\0\0\x05\0\0\0\x01why");
        // RFC 9113 §6.9
        let update = WindowUpdate { stream_id: id(1), increment: 0x0102_0304 };
        assert_eq!(encoded(&|out| update.encode(out)), b"\0\0\x04\x08\0\0\0\0\x01\x01\x02\x03\x04");
        // RFC 9113 §6.10
        let continuation = Continuation { stream_id: id(1), end_headers: true, fragment: b"F" };
        assert_eq!(encoded(&|out| continuation.encode(out)), b"\0\0\x01\x09\x04\0\0\0\x01F");
        // RFC 7838 §4
        let altsvc = AltSvc { stream_id: id(0), origin: b"o", value: b"h2" };
        assert_eq!(encoded(&|out| altsvc.encode(out)), b"\0\0\x05\x0a\0\0\0\0\0\0\x01oh2");
        // RFC 9218 §7.1
        let update = PriorityUpdate { prioritized_id: id(7), value: b"u=1" };
        assert_eq!(encoded(&|out| update.encode(out)), b"\0\0\x07\x10\0\0\0\0\0\0\0\0\x07u=1");
    }

    #[test]
    fn any_bytes_are_a_frame_or_an_error() {
        rounds(20_000, |rng| {
            let len = rng.len(40);
            let mut payload = rng.bytes(len);
            // Small numbers make lengths and identifiers that nearly fit.
            if rng.bool() {
                payload.iter_mut().for_each(|byte| *byte %= 8);
            }
            let kind = Kind(rng.u8(0..0x12));
            let stream_id = rng.u32(0..3);
            let _ = parse(kind, rng.u8(..), stream_id, &payload);
        });
    }
}
