//! The opening handshakes of the load generators: one for each connection, or as many per second as a server accepts.

use super::servers::Dialect;
use rustix::event::epoll;
use rustix::net::sockopt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Sent to a server without a protocol, which echoes it: the client takes it for the response to its handshake.
const RESPONSE: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// RFC 6455 §1.3: the answer to the key of the example.
const ACCEPT: &[u8] = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// The parameters of a handshake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    pub(crate) path: &'static str,
    pub(crate) subprotocol: Option<&'static str>,
    /// Whether permessage-deflate is offered.
    pub(crate) deflate: bool,
}

impl Opening {
    pub(crate) fn at(path: &'static str) -> Self {
        Self { path, subprotocol: None, deflate: false }
    }

    pub(crate) fn request(&self, address: SocketAddr) -> Vec<u8> {
        let Self { path, subprotocol, deflate } = self;
        let mut request = format!(
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        );
        if let Some(subprotocol) = subprotocol {
            request += &format!("Sec-WebSocket-Protocol: {subprotocol}\r\n");
        }
        if *deflate {
            request += "Sec-WebSocket-Extensions: permessage-deflate\r\n";
        }
        (request + "\r\n").into_bytes()
    }

    /// Whether this is the whole answer, and the right one.
    ///
    /// # Errors
    /// The server refuses the handshake, or part of it.
    pub(crate) fn is_answer(&self, answer: &[u8]) -> Result<bool, String> {
        if !is_answer(answer)? {
            return Ok(false);
        }
        let text = String::from_utf8_lossy(answer).to_lowercase();
        if self.deflate && !text.contains("permessage-deflate") {
            return Err("permessage-deflate was declined".into());
        }
        Ok(true)
    }
}

/// Whether this is the whole answer, and the right one.
fn is_answer(answer: &[u8]) -> Result<bool, String> {
    if !answer.ends_with(b"\r\n\r\n") {
        return if answer.len() < 4096 { Ok(false) } else { Err("a response without an end".into()) };
    }
    let accepted = answer.windows(ACCEPT.len()).any(|window| window == ACCEPT);
    match answer.starts_with(b"HTTP/1.1 101 ") && accepted {
        true => Ok(true),
        false => Err(format!("answered {:?}", String::from_utf8_lossy(answer))),
    }
}

/// An open WebSocket: the socket behind the handshake.
///
/// # Errors
/// The server cannot be reached, or answers with something else.
pub(crate) fn open(address: SocketAddr) -> Result<TcpStream, String> {
    open_with(address, Opening::at("/echo"))
}

/// An open WebSocket.
///
/// # Errors
/// As for [`open`].
pub(crate) fn open_with(address: SocketAddr, opening: Opening) -> Result<TcpStream, String> {
    let mut stream = connect(address)?;
    request(&mut stream, address, opening)?;
    Ok(stream)
}

/// Opens a WebSocket on a connection.
///
/// # Errors
/// The server answers with something else.
pub(super) fn request(
    stream: &mut (impl Read + Write),
    address: SocketAddr,
    opening: Opening,
) -> Result<(), String> {
    stream.write_all(&opening.request(address)).map_err(failed)?;
    let mut answer = Vec::new();
    let mut byte = [0];
    while !opening.is_answer(&answer)? {
        // Byte by byte, because the bytes after the response belong to the caller.
        match stream.read(&mut byte).map_err(failed)? {
            0 => return Err("closed during the handshake".into()),
            _ => answer.push(byte[0]),
        }
    }
    Ok(())
}

/// A connection without a handshake.
///
/// # Errors
/// The server cannot be reached.
pub(crate) fn connect(address: SocketAddr) -> Result<TcpStream, String> {
    let stream = TcpStream::connect(address).map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    // A server that hangs ends the run.
    stream.set_read_timeout(Some(Duration::from_secs(20))).map_err(failed)?;
    Ok(stream)
}

/// Opens and resets connections for `time`, `at_once` at a time; returns how many handshakes were answered. An orderly
/// close would leave ports in TIME_WAIT, and use up all ports within seconds.
///
/// # Errors
/// A connection that could not be opened.
pub(crate) fn flood(
    address: SocketAddr,
    dialect: Dialect,
    at_once: usize,
    time: Duration,
    least: u64,
) -> Result<u64, String> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from).map_err(failed)?;
    let request = match dialect {
        Dialect::WebSocket => Opening::at("/echo").request(address),
        Dialect::Bytes => RESPONSE.to_vec(),
    };
    let mut slots = Vec::with_capacity(at_once);
    for slot in 0..at_once {
        slots.push(begin(&epoll, address, &request, slot)?);
    }
    let (start, mut opened, mut open) = (Instant::now(), 0, at_once);
    let mut events = Vec::with_capacity(at_once);
    let mut answer = [0; 4096];
    while open > 0 {
        events.clear();
        let timeout = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
        let found = epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout));
        match found {
            Ok(0) => return Err("a handshake was not answered for 20 s".into()),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(failed(error.into())),
        }
        for event in &events {
            let slot = event.data.u64() as usize;
            let Some(mut stream) = slots[slot].take() else { continue };
            let len = stream.read(&mut answer).map_err(failed)?;
            // The answer is small: a correct server writes it at once.
            if !is_answer(&answer[..len])? {
                return Err("the answer to the handshake did not arrive in one read".into());
            }
            sockopt::set_socket_linger(&stream, Some(Duration::ZERO))
                .map_err(|error| failed(error.into()))?;
            drop(stream);
            opened += 1;
            if start.elapsed() < time || opened < least {
                slots[slot] = begin(&epoll, address, &request, slot)?;
            } else {
                open -= 1;
            }
        }
    }
    Ok(opened)
}

fn begin(
    epoll: &OwnedFd,
    address: SocketAddr,
    request: &[u8],
    slot: usize,
) -> Result<Option<TcpStream>, String> {
    // Over loopback, connecting does not block.
    let mut stream = connect(address)?;
    stream.write_all(request).map_err(failed)?;
    let data = epoll::EventData::new_u64(slot as u64);
    epoll::add(epoll, &stream, data, epoll::EventFlags::IN).map_err(|error| failed(error.into()))?;
    Ok(Some(stream))
}

fn failed(error: io::Error) -> String {
    error.to_string()
}
