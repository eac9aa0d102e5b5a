//! A small server over loopback, with plain sockets and a thread for each connection: what h2spec talks to
//! (`conformance/h2spec/run`), and how the core is driven by a blocking transport.
//!
//! It answers every request, when it is complete, with a few bytes of content.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "I/O and time are the caller's, and here they are"
)]

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use wireloom_http2::field::{Field, Token};
use wireloom_http2::{Config, Connection, Event, Role, StreamKey};

const CONTENT: &[u8] =
    b"A few bytes, so that windows of one byte and of a hundred have something to hold back.\n";

fn main() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("listening on {}", listener.local_addr()?);
    for stream in listener.incoming() {
        let stream = stream?;
        std::thread::spawn(move || {
            if let Err(error) = serve(stream) {
                eprintln!("{error}");
            }
        });
    }
    Ok(())
}

fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let start = Instant::now();
    let mut connection =
        Connection::new(Role::Server, Config::new(Role::Server)).map_err(std::io::Error::other)?;
    let mut buffer = vec![0; 16 * 1024];
    loop {
        write(&mut stream, &mut connection, start)?;
        let wait = connection
            .poll_timeout()
            .map(|at| at.saturating_sub(start.elapsed()).max(Duration::from_millis(1)));
        stream.set_read_timeout(wait)?;
        let filled = match stream.read(&mut buffer) {
            Ok(0) => {
                connection.handle_eof();
                return Ok(());
            }
            Ok(filled) => filled,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => 0,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error),
        };
        let result = if filled == 0 {
            connection.handle_timeout(start.elapsed())
        } else {
            read(&mut stream, &mut connection, &buffer[..filled], start)?
        };
        if result.is_err() {
            // GOAWAY is written, and read by the peer before the transport is gone (RFC 9113 §5.4.1).
            write(&mut stream, &mut connection, start)?;
            stream.shutdown(Shutdown::Write)?;
            stream.set_read_timeout(Some(Duration::from_millis(200)))?;
            while matches!(stream.read(&mut buffer), Ok(1..)) {}
            return Ok(());
        }
    }
}

/// Takes what was read, and answers the requests that are complete with it.
fn read(
    stream: &mut TcpStream,
    connection: &mut Connection,
    mut input: &[u8],
    start: Instant,
) -> std::io::Result<Result<(), wireloom_http2::error::Error>> {
    loop {
        let (taken, event) = match connection.handle_input(start.elapsed(), input) {
            Ok(step) => step,
            Err(error) => return Ok(Err(error)),
        };
        input = &input[taken..];
        let complete = match event {
            Some(
                Event::Request { stream, end_stream: true, .. }
                | Event::Data { stream, end_stream: true, .. }
                | Event::Trailers { stream, .. },
            ) => stream,
            Some(_) => continue,
            None if input.is_empty() => return Ok(Ok(())),
            // Input waits for output to leave.
            None => {
                write(stream, connection, start)?;
                continue;
            }
        };
        answer(connection, complete);
    }
}

fn answer(connection: &mut Connection, stream: StreamKey) {
    let length = CONTENT.len().to_string();
    let fields = [Field::known(Token::Status, b"200"), Field::known(Token::ContentLength, length.as_bytes())];
    // The peer may have reset the stream meanwhile: then there is no one to answer.
    if connection.send_response(stream, fields, false).is_ok() {
        let _ = connection.send_data(stream, CONTENT, true);
    }
}

/// Writes all that there is to write.
fn write(stream: &mut TcpStream, connection: &mut Connection, start: Instant) -> std::io::Result<()> {
    loop {
        let mut slices = [&[][..]; 16];
        let filled = connection.poll_transmit(start.elapsed(), &mut slices);
        if filled == 0 {
            return Ok(());
        }
        let slices: Vec<IoSlice<'_>> = slices[..filled].iter().map(|slice| IoSlice::new(slice)).collect();
        let written = stream.write_vectored(&slices)?;
        connection.transmitted(start.elapsed(), written);
    }
}
