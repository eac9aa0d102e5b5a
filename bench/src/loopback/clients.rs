//! The clients that consume a firehose, each as its authors would write it. They are this very program, told to connect; all
//! count what they are handed, and say so at the end.

use fastwebsockets::{FragmentCollector, OpCode};
use futures_util::StreamExt;
use http_body_util::Empty;
use hyper::header::{CONNECTION, HOST, UPGRADE};
use std::error::Error;
use std::hint::black_box;
use std::net::SocketAddr;
use std::process::ExitCode;
use tokio::net::TcpStream;
use tokio::runtime::Builder;

/// What was handed out.
#[derive(Default)]
struct Count {
    events: u64,
    bytes: u64,
}

impl Count {
    #[inline]
    fn add(&mut self, event: &[u8]) {
        self.events += 1;
        self.bytes += black_box(event).len() as u64;
    }
}

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// Is the client of this name until the server closes.
pub(crate) fn connect(word: &str, url: &str) -> ExitCode {
    let mut count = Count::default();
    let runtime = Builder::new_current_thread().enable_all().build();
    let outcome = runtime.map_err(Into::into).and_then(|runtime| {
        runtime.block_on(async {
            match word {
                "wireloom" => wireloom(url, &mut count).await,
                "tokio-tungstenite" => tungstenite(url, &mut count).await,
                "fastwebsockets" => fastwebsockets(url, &mut count).await,
                "tokio-websockets" => tokio_websockets(url, &mut count).await,
                _ => Err("no client is called so".into()),
            }
        })
    });
    match outcome {
        Ok(()) => {
            println!("{} events, {} bytes", count.events, count.bytes);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{word}: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn wireloom(url: &str, count: &mut Count) -> Outcome {
    let mut socket = wireloom::connect(url).await?;
    while let Some(message) = socket.recv().await? {
        count.add(message.as_bytes());
    }
    Ok(())
}

async fn tungstenite(url: &str, count: &mut Count) -> Outcome {
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await?;
    while let Some(message) = socket.next().await {
        let message = message?;
        if message.is_binary() {
            count.add(&message.into_data());
        }
    }
    Ok(())
}

async fn tokio_websockets(url: &str, count: &mut Count) -> Outcome {
    let (mut socket, _) = tokio_websockets::ClientBuilder::new().uri(url)?.connect().await?;
    while let Some(message) = socket.next().await {
        let message = message?;
        if message.is_binary() {
            count.add(message.as_payload());
        }
    }
    Ok(())
}

/// hyper runs what it is given on tokio.
struct Spawn;

impl<F> hyper::rt::Executor<F> for Spawn
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        tokio::spawn(future);
    }
}

async fn fastwebsockets(url: &str, count: &mut Count) -> Outcome {
    let uri: hyper::Uri = url.parse()?;
    let host = uri.authority().ok_or("a URL without a host")?.as_str();
    let stream = TcpStream::connect(host).await?;
    stream.set_nodelay(true)?;
    let request = hyper::Request::get(uri.path())
        .header(HOST, host)
        .header(UPGRADE, "websocket")
        .header(CONNECTION, "upgrade")
        .header("Sec-WebSocket-Key", fastwebsockets::handshake::generate_key())
        .header("Sec-WebSocket-Version", "13")
        .body(Empty::<bytes::Bytes>::new())?;
    let (socket, _) = fastwebsockets::handshake::client(&Spawn, request, stream).await?;
    let mut socket = FragmentCollector::new(socket);
    loop {
        let frame = socket.read_frame().await?;
        match frame.opcode {
            OpCode::Binary => count.add(&frame.payload),
            OpCode::Close => return Ok(()),
            _ => {}
        }
    }
}

/// Wireloom's own over TLS, each of which has had one message echoed. They stay open as long as what is returned.
///
/// # Errors
/// One could not be opened.
pub(crate) fn over_tls(address: SocketAddr, count: usize) -> Result<impl Sized, String> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let opened: Result<Vec<_>, wireloom::Error> = runtime.block_on(async {
        let connector = wireloom::Connector::new().tls(wireloom::ClientTls::default().insecure());
        let mut sockets = Vec::with_capacity(count);
        for _ in 0..count {
            let mut socket = connector.connect(&format!("wss://{address}/echo")).await?;
            socket.send("hello").await?;
            socket.recv().await?;
            sockets.push(socket);
        }
        Ok(sockets)
    });
    // The sockets belong to the runtime, which therefore goes last.
    opened.map(|sockets| (sockets, runtime)).map_err(|error| error.to_string())
}
