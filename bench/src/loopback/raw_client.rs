//! The baseline of those that consume a firehose: it receives the bytes and drops them. It finds no frames but the ones at the end of what
//! the server sends.

use super::firehose::Carrier;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use wireloom_testing::frame::Frame;
use wireloom_testing::http2;

/// As the read buffer of Wireloom, which takes a longer one only while a client is behind.
const BUFFER_LEN: usize = 256 << 10;

/// The longest window, and setting of one (RFC 9113 §6.9.1).
const WINDOW: u32 = (1 << 31) - 1;

/// So much of the window is used before it is given back.
const WINDOW_STEP: u32 = 1 << 28;

/// RFC 9113 §6.9.2: the window of a connection before the first WINDOW_UPDATE.
const FIRST_WINDOW: u32 = 65_535;

/// The server's frames: a Ping with a mark of eight bytes, and a Close with the code 1000.
const PING: [u8; 2] = [0x89, 8];
const PING_LEN: usize = 10;
const CLOSE: [u8; 4] = [0x88, 2, 3, 232];

/// Receives until the server closes.
///
/// # Errors
/// The connection is lost.
pub(super) fn receive(address: &str, carrier: Carrier) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let opening = match carrier {
        Carrier::Http1 => format!(
            "GET / HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        .into_bytes(),
        Carrier::Http2 => {
            // RFC 9113 §6.5.2: INITIAL_WINDOW_SIZE. The server does not look at the fields.
            let frames = [
                http2::Frame::settings(&[(4, WINDOW)]),
                http2::Frame::window_update(0, WINDOW - FIRST_WINDOW),
                http2::Frame::headers(1, &[(":method", "CONNECT")]),
            ];
            [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), http2::join(&frames)].concat()
        }
    };
    stream.write_all(&opening)?;
    let send = |mut stream: &TcpStream, frame: &Frame| {
        let frame = frame.bytes();
        match carrier {
            Carrier::Http1 => stream.write_all(&frame),
            Carrier::Http2 => stream.write_all(&http2::Frame::data(1, frame).to_bytes()),
        }
    };
    // The last bytes of a read are kept before the space for the next one, because a frame may arrive in two reads.
    let mut buffer = vec![0; PING_LEN + BUFFER_LEN];
    let mut used = 0;
    loop {
        let len = stream.read(&mut buffer[PING_LEN..])?;
        if len == 0 {
            return Ok(());
        }
        let end: [u8; PING_LEN] = buffer[len..len + PING_LEN].try_into().map_err(io::Error::other)?;
        buffer[..PING_LEN].copy_from_slice(&end);
        used += len as u32;
        if carrier == Carrier::Http2 && used >= WINDOW_STEP {
            let updates = [0, 1].map(|stream| http2::Frame::window_update(stream, used));
            stream.write_all(&http2::join(&updates))?;
            used = 0;
        }
        // The mark is a small number: events do not end like this.
        if end.starts_with(&PING) && end[2..6] == [0; 4] {
            send(&stream, &Frame::pong(&end[2..]).mask(Some([0; 4])))?;
        } else if len < 64 && end.ends_with(&CLOSE) {
            return send(&stream, &Frame::close(1000, "").mask(Some([0; 4])));
        }
    }
}
