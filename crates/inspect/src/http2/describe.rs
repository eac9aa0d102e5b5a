//! The fields of frames in words, each with the section that defines it.

use wireloom_http2::field::FieldList;
use wireloom_http2::frame::{Frame, FrameHeader, Kind, SettingsFrame};
use wireloom_http2::priority::Priority;
use wireloom_http2::settings::id;

use super::flag_names;
use crate::entry::{Context, Entry, Payload, Protocol};
use crate::websocket::text_or_binary;

/// The entry of a frame, from its header.
pub(super) fn entry(context: &Context<'_>, header: &FrameHeader, reserved: u8) -> Entry {
    let kind: std::borrow::Cow<'static, str> = match header.kind.name() {
        Some(name) => name.into(),
        None => format!("type {:#04x}", header.kind.0).into(),
    };
    let mut entry = context.entry(Protocol::Http2, kind);
    entry.stream = Some(header.stream_id.get());
    entry.len = header.len.into();
    entry.flags = flag_names(header.kind, header.flags);
    entry.detail("Length", header.len.to_string(), "RFC 9113 §4.1");
    let name = header.kind.name().unwrap_or("unknown");
    entry.detail("Type", format!("{:#04x}: {name}", header.kind.0), section(header.kind));
    entry.detail(
        "Flags",
        format!("{:#04x}: {}", header.flags.0, entry.flags.join(", ")),
        section(header.kind),
    );
    if reserved != 0 {
        entry.detail("Reserved", "1, to be ignored", "RFC 9113 §4.1");
    }
    entry.detail("Stream Identifier", header.stream_id.get().to_string(), "RFC 9113 §5.1.1");
    entry
}

fn section(kind: Kind) -> &'static str {
    match kind {
        Kind::DATA => "RFC 9113 §6.1",
        Kind::HEADERS => "RFC 9113 §6.2",
        Kind::PRIORITY => "RFC 9113 §6.3",
        Kind::RST_STREAM => "RFC 9113 §6.4",
        Kind::SETTINGS => "RFC 9113 §6.5",
        Kind::PUSH_PROMISE => "RFC 9113 §6.6",
        Kind::PING => "RFC 9113 §6.7",
        Kind::GOAWAY => "RFC 9113 §6.8",
        Kind::WINDOW_UPDATE => "RFC 9113 §6.9",
        Kind::CONTINUATION => "RFC 9113 §6.10",
        Kind::ALTSVC => "RFC 7838 §4",
        Kind::ORIGIN => "RFC 8336 §2",
        Kind::PRIORITY_UPDATE => "RFC 9218 §7.1",
        _ => "RFC 9113 §5.5",
    }
}

/// Adds the fields of the payload.
pub(super) fn frame(entry: &mut Entry, frame: &Frame<'_>, payload: &[u8]) {
    let mut text = String::new();
    match frame {
        Frame::Data(data) => padding(entry, data.padding, "RFC 9113 §6.1"),
        Frame::Headers(headers) => {
            padding(entry, headers.padding, "RFC 9113 §6.2");
            if let Some(dependency) = headers.dependency {
                dependency_of(entry, dependency);
            }
        }
        Frame::Priority(priority) => text = dependency_of(entry, priority.dependency),
        Frame::RstStream(reset) => {
            text = reset.code.to_string();
            entry.detail("Error Code", format!("{:#x}: {}", reset.code.get(), reset.code), "RFC 9113 §7");
        }
        Frame::Settings(SettingsFrame::Values(values)) => {
            for setting in values.iter() {
                let (name, section) = setting_name(setting.id);
                let name = name.map_or_else(|| format!("{:#06x}", setting.id), str::to_owned);
                if !text.is_empty() {
                    text.push_str(", ");
                }
                text.push_str(&format!("{name}={}", setting.value));
                entry.detail(name, setting.value.to_string(), section);
            }
        }
        Frame::Settings(SettingsFrame::Ack) => {}
        Frame::PushPromise(promise) => {
            padding(entry, promise.padding, "RFC 9113 §6.6");
            entry.detail("Promised Stream ID", promise.promised_id.get().to_string(), "RFC 9113 §6.6");
        }
        Frame::Ping(ping) => {
            let opaque = ping.payload.map(|byte| format!("{byte:02x}")).join(" ");
            entry.detail("Opaque Data", opaque, "RFC 9113 §6.7");
            entry.payload = Payload::Binary(ping.payload.to_vec());
        }
        Frame::Goaway(goaway) => {
            let debug = String::from_utf8_lossy(goaway.debug_data);
            let last = goaway.last_stream_id.get();
            text = format!("{}, last stream {last} {debug}", goaway.code).trim_end().to_owned();
            entry.detail("Last-Stream-ID", last.to_string(), "RFC 9113 §6.8");
            entry.detail("Error Code", format!("{:#x}: {}", goaway.code.get(), goaway.code), "RFC 9113 §7");
            if !debug.is_empty() {
                entry.detail("Additional Debug Data", debug, "RFC 9113 §6.8");
            }
        }
        Frame::WindowUpdate(update) => {
            text = format!("+{}", update.increment);
            entry.detail("Window Size Increment", update.increment.to_string(), "RFC 9113 §6.9");
        }
        Frame::Continuation(_) => {}
        Frame::AltSvc(altsvc) => {
            let (origin, value) =
                (String::from_utf8_lossy(altsvc.origin), String::from_utf8_lossy(altsvc.value));
            text = format!("{origin} {value}").trim().to_owned();
            entry.detail("Origin", origin, "RFC 7838 §4");
            entry.detail("Alt-Svc-Field-Value", value, "RFC 7838 §4");
        }
        Frame::Origin(origin) => {
            let origins: Vec<_> = origin.iter().map(String::from_utf8_lossy).collect();
            text = origins.join(" ");
            entry.detail("Origin-Entry", origins.join(" "), "RFC 8336 §2.1");
        }
        Frame::PriorityUpdate(update) => {
            let value = String::from_utf8_lossy(update.value);
            let stream = update.prioritized_id.get();
            text = format!("stream {stream}: {value}");
            entry.detail("Prioritized Stream ID", stream.to_string(), "RFC 9218 §7.1");
            priority(entry, update.value);
        }
        _ => entry.payload = text_or_binary(payload.to_vec()),
    }
    if !text.is_empty() {
        entry.payload = Payload::Text(text);
    }
}

fn padding(entry: &mut Entry, padding: Option<u8>, section: &'static str) {
    if let Some(padding) = padding {
        entry.detail("Pad Length", padding.to_string(), section);
    }
}

fn dependency_of(entry: &mut Entry, dependency: wireloom_http2::frame::Dependency) -> String {
    let exclusive = if dependency.exclusive { ", exclusive" } else { "" };
    let (stream, weight) = (dependency.stream_id.get(), u16::from(dependency.weight) + 1);
    let text = format!("depends on {stream}, weight {weight}{exclusive}");
    entry.detail("priority, deprecated", text.clone(), "RFC 9113 §5.3.2");
    text
}

/// Adds urgency and incremental delivery.
fn priority(entry: &mut Entry, value: &[u8]) {
    match Priority::parse(value) {
        Some(Priority { urgency, incremental }) => {
            let text = format!("urgency {urgency}, {}incremental", if incremental { "" } else { "not " });
            entry.detail("priority", text, "RFC 9218 §4");
        }
        None => {
            entry.violation("RFC 9218 §4", "the priority is no dictionary of structured fields");
        }
    }
}

/// Adds the fields of a block.
pub(super) fn fields(entry: &mut Entry, list: &FieldList) {
    let fields: Vec<(Vec<u8>, Vec<u8>)> =
        list.iter().map(|field| (field.name().to_vec(), field.value().to_vec())).collect();
    crate::http1::describe(entry, &fields);
    if let Some((_, value)) = fields.iter().find(|(name, _)| name == b"priority") {
        priority(entry, value);
    }
    if list.too_large() {
        entry.limit("the field block is longer than the reader decodes");
    }
    entry.payload = Payload::Fields { start: String::new(), fields };
}

fn setting_name(setting: u16) -> (Option<&'static str>, &'static str) {
    let (name, section) = match setting {
        id::HEADER_TABLE_SIZE => ("HEADER_TABLE_SIZE", "RFC 9113 §6.5.2"),
        id::ENABLE_PUSH => ("ENABLE_PUSH", "RFC 9113 §6.5.2"),
        id::MAX_CONCURRENT_STREAMS => ("MAX_CONCURRENT_STREAMS", "RFC 9113 §6.5.2"),
        id::INITIAL_WINDOW_SIZE => ("INITIAL_WINDOW_SIZE", "RFC 9113 §6.5.2"),
        id::MAX_FRAME_SIZE => ("MAX_FRAME_SIZE", "RFC 9113 §6.5.2"),
        id::MAX_HEADER_LIST_SIZE => ("MAX_HEADER_LIST_SIZE", "RFC 9113 §6.5.2"),
        id::ENABLE_CONNECT_PROTOCOL => ("ENABLE_CONNECT_PROTOCOL", "RFC 8441 §3"),
        id::NO_RFC7540_PRIORITIES => ("NO_RFC7540_PRIORITIES", "RFC 9218 §2.1"),
        _ => return (None, "RFC 9113 §6.5.2"),
    };
    (Some(name), section)
}
