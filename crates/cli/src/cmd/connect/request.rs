//! `http` and `https` URLs: a request over HTTP/2, or over HTTP/1.1 where the server has nothing newer. Its content streams from
//! the input, the response's to the output.

use std::fs::File;
use std::io::{self, Read};

use tokio::sync::mpsc;
use wireloom::client::{Request, Response};
use wireloom::{Body, Connector, Error, Headers, Version};

use super::handshake;
use super::output::{Notes, Output};
use crate::args::Connect;
use crate::exit::Exit;
use crate::terminal;

/// Bytes that are read at once.
const CHUNK_LEN: usize = 64 << 10;

/// Makes the request that the arguments say.
pub(super) async fn run(args: &Connect, connector: &Connector, notes: Notes) -> Exit {
    let body = match body(args) {
        Ok(body) => body,
        Err(error) => {
            notes.say_error(&error);
            return Exit::Usage;
        }
    };
    let method = match &args.request.method {
        Some(method) => method,
        None if body.is_some() => "POST",
        None => "GET",
    };
    let mut request = Request::new(method, &*args.url).with_body(body.unwrap_or_default());
    for (name, value) in &args.header {
        request = request.header(name, value);
    }
    let asking = async {
        let response = ask(args, connector, method, request, &notes).await?;
        Ok::<_, Error>(take(args, response, &notes).await)
    };
    let asked = match args.timeout {
        Some(timeout) => tokio::time::timeout(timeout, asking).await,
        None => Ok(asking.await),
    };
    match asked {
        Ok(Ok(exit)) => exit,
        Ok(Err(error)) => {
            handshake::tell_failure(&args.url, &error, args.verbose > 0, &notes);
            super::verdict(&error)
        }
        Err(_) => {
            notes.say_error("the response took too long");
            Exit::Cut
        }
    }
}

/// The response, once its head is there.
async fn ask(
    args: &Connect,
    connector: &Connector,
    method: &str,
    request: Request,
    notes: &Notes,
) -> Result<Response, Error> {
    let is_verbose = args.verbose > 0;
    let mut exchange = if args.route.http2 {
        connector.connect_http2(&args.url).await?.send(request)?
    } else {
        connector.send(request).await?
    };
    if is_verbose {
        handshake::tell_way(exchange.peer(), exchange.tls(), notes);
        handshake::tell_request(method, &args.url, &args.header, notes);
    }
    while let Some(interim) = exchange.informational().await? {
        if is_verbose {
            handshake::tell_response(interim.status, "", interim.headers.iter(), notes);
        }
    }
    let response = exchange.response().await?;
    if is_verbose {
        notes.say(if response.version == Version::Http2 {
            "answered over HTTP/2"
        } else {
            "answered over HTTP/1.1"
        });
        handshake::tell_response(response.status, "", response.headers.iter(), notes);
    }
    Ok(response)
}

/// Prints the content as it comes.
async fn take(args: &Connect, mut response: Response, notes: &Notes) -> Exit {
    let mut out = Output::new(notes.clone());
    let mut len = 0;
    loop {
        match response.body.chunk().await {
            Ok(Some(chunk)) => {
                len += chunk.len();
                let printed = if args.quiet { Ok(()) } else { out.bytes(&chunk).and_then(|()| out.flush()) };
                if let Err(error) = printed {
                    return notes.tell_unwritten(&error);
                }
            }
            Ok(None) => break,
            Err(error) => {
                notes.say_error(&error.to_string());
                return Exit::Cut;
            }
        }
    }
    if args.verbose > 0 {
        let trailers: Headers = response.body.trailers().unwrap_or_default();
        handshake::tell_headers(trailers.iter(), notes);
        notes.say(&format!("{len} bytes received"));
    }
    let status = response.status;
    if let Some(http2) = response.into_http2() {
        http2.close().await;
    }
    if status < 400 {
        return Exit::Done;
    }
    notes.say_error(&format!("the server answered {status}"));
    Exit::Closed
}

/// What `--data` names.
fn body(args: &Connect) -> Result<Option<Body>, String> {
    let Some(data) = &args.request.data else { return Ok(None) };
    let source: Box<dyn Read + Send> = match data.strip_prefix('@') {
        None => return Ok(Some(data.clone().into())),
        Some("-") => Box::new(io::stdin()),
        Some(file) => Box::new(File::open(file).map_err(|error| format!("{file}: {error}"))?),
    };
    Ok(Some(stream(source)))
}

/// What is read is sent as the server takes it. A thread reads: neither a file nor a terminal can be without waiting.
fn stream(mut source: Box<dyn Read + Send>) -> Body {
    let (read, mut chunks) = mpsc::channel(1);
    std::thread::spawn(move || {
        loop {
            let mut chunk = vec![0; CHUNK_LEN];
            let len = source.read(&mut chunk);
            chunk.truncate(*len.as_ref().unwrap_or(&0));
            let is_over = !matches!(len, Ok(1..));
            if read.blocking_send(len.map(|_| chunk)).is_err() || is_over {
                return;
            }
        }
    });
    let (mut sender, body) = Body::channel();
    tokio::spawn(async move {
        while let Some(chunk) = chunks.recv().await {
            match chunk {
                Ok(chunk) if chunk.is_empty() => return,
                Ok(chunk) => {
                    if sender.send(chunk).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    terminal::say_error(format_args!("the input cannot be read: {error}"));
                    // The server is not to take it for whole.
                    return sender.abort();
                }
            }
        }
    });
    body
}
