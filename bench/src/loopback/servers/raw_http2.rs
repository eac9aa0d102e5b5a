//! The baseline of HTTP/2 servers: it looks at the header of each frame, and writes the answers to all requests of a read at once. It has no
//! HPACK and no limits, and windows that are never used up. All its answers are the same.

use super::SMALL_BODY;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use wireloom_testing::http2::{Frame, join};

const PREFACE_LEN: usize = 24;
const FRAME_HEADER_LEN: usize = 9;
/// RFC 9113 §6.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
/// RFC 9113 §6.9.1: the longest window.
const WINDOW: u32 = (1 << 31) - 1;

/// One connection after another.
pub(super) fn serve(listener: &TcpListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        // The client may end the connection in any way.
        _ = answer(stream);
    }
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // RFC 9113 §6.5.2: MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE.
    let opening = [Frame::settings(&[(3, 1_000), (4, WINDOW)]), Frame::window_update(0, WINDOW - 65_535)];
    stream.write_all(&join(&opening))?;
    // RFC 7541 §6.1: 0x88 is `:status: 200`.
    let mut headers = Frame::headers(0, &[]).payload([0x88]).to_bytes();
    let mut data = Frame::data(0, SMALL_BODY).end_stream().to_bytes();
    let acknowledgement = Frame::settings_ack().to_bytes();
    stream.read_exact(&mut [0; PREFACE_LEN])?;
    let mut buffer = vec![0; 256 << 10];
    let (mut filled, mut out) = (0, Vec::new());
    loop {
        let len = stream.read(&mut buffer[filled..])?;
        if len == 0 {
            return Ok(());
        }
        filled += len;
        let mut at = 0;
        while let Some((&[a, b, c, kind, flags, id @ ..], rest)) =
            buffer[at..filled].split_first_chunk::<FRAME_HEADER_LEN>()
        {
            let payload_len = u32::from_be_bytes([0, a, b, c]) as usize;
            if rest.len() < payload_len {
                break;
            }
            at += FRAME_HEADER_LEN + payload_len;
            if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
                for frame in [&mut headers, &mut data] {
                    frame[FRAME_HEADER_LEN - 4..FRAME_HEADER_LEN].copy_from_slice(&id);
                    out.extend_from_slice(frame);
                }
            } else if kind == SETTINGS && flags == 0 {
                out.extend_from_slice(&acknowledgement);
            }
        }
        buffer.copy_within(at..filled, 0);
        filled -= at;
        stream.write_all(&out)?;
        out.clear();
    }
}
