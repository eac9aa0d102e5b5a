//! Everything of HTTP/2 that keeps no state, on any bytes: frames are read, written and read again; priorities, settings
//! of an upgrade and the fields of messages are validated without a panic, with the same result twice.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wireloom_http2::field::{Field, FieldList};
use wireloom_http2::frame::{Flags, Frame, FrameHeader, Kind, SettingsFrame, StreamId};
use wireloom_http2::message::{self, RequestKind};
use wireloom_http2::priority::Priority;
use wireloom_http2::{Limits, Settings, upgrade};

fn write(frame: &Frame<'_>, out: &mut Vec<u8>) {
    match frame {
        Frame::Data(frame) => frame.encode(out),
        Frame::Headers(frame) => frame.encode(out),
        Frame::Priority(frame) => frame.encode(out),
        Frame::RstStream(frame) => frame.encode(out),
        Frame::Settings(SettingsFrame::Values(values)) => SettingsFrame::encode(values.iter(), out),
        Frame::Settings(SettingsFrame::Ack) => SettingsFrame::encode_ack(out),
        Frame::PushPromise(frame) => frame.encode(out),
        Frame::Ping(frame) => frame.encode(out),
        Frame::Goaway(frame) => frame.encode(out),
        Frame::WindowUpdate(frame) => frame.encode(out),
        Frame::Continuation(frame) => frame.encode(out),
        Frame::AltSvc(frame) => frame.encode(out),
        Frame::PriorityUpdate(frame) => frame.encode(out),
        // An invalid ORIGIN is not encoded, and unknown frames are not kept.
        _ => {}
    }
}

fuzz_target!(|input: (u8, u8, u32, &[u8], Vec<(&[u8], &[u8])>)| {
    let (kind, flags, stream_id, payload, fields) = input;
    let header = FrameHeader {
        len: payload.len() as u32,
        kind: Kind(kind % 0x12),
        flags: Flags(flags),
        stream_id: StreamId::from_wire(stream_id),
    };
    if let Ok(frame) = Frame::parse(&header, payload) {
        let mut out = Vec::new();
        write(&frame, &mut out);
        if let Some((header, payload)) = out.split_first_chunk() {
            assert_eq!(Frame::parse(&FrameHeader::decode(header), payload), Ok(frame));
        }
        if let Frame::Origin(origin) = frame {
            assert_eq!(origin.iter().map(|origin| origin.len() + 2).sum::<usize>(), payload.len());
        }
    }

    if let Some(priority) = Priority::parse(payload) {
        assert_eq!(Priority::parse(priority.as_str().as_bytes()), Some(priority));
    }
    let mut settings = Settings::INITIAL;
    if upgrade::apply_http2_settings(payload, &Limits::default(), &mut settings).is_ok() {
        let mut again = Settings::INITIAL;
        let value = upgrade::encode_http2_settings(&settings);
        upgrade::apply_http2_settings(value.as_bytes(), &Limits::default(), &mut again)
            .expect("own settings");
        assert_eq!(again, settings);
    }

    let list: FieldList = fields.iter().map(|(name, value)| Field::new(name, value)).collect();
    let request = message::check_request(&list, true);
    assert_eq!(request, message::check_request(&list, true));
    if request.is_ok() {
        assert!(message::check_response(&list, RequestKind::Plain).is_err());
        assert!(message::check_trailers(&list).is_err());
    }
    let _ = message::check_promise(&list);
    let cookie_len: usize =
        list.iter().filter(|field| field.name() == b"cookie").map(|field| field.value().len() + 2).sum();
    assert_eq!(message::cookie(&list, &mut Vec::new()).map_or(0, |cookie| cookie.len() + 2), cookie_len);
});
