//! `wireloom connect`: lines out, messages in, both at once; or a script of what to send and to expect.

mod input;
mod output;
mod session;

use wireloom::{ClientTls, Connector, DeflateConfig, Error, WebSocketConfig};

use crate::args::Connect;
use crate::exit::Exit;
use crate::terminal;
use output::Notes;

pub(crate) fn run(args: Connect) -> Exit {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("wireloom: {error}");
            return Exit::NotBegun;
        }
    };
    runtime.block_on(connect(args))
}

async fn connect(args: Connect) -> Exit {
    if args.url.starts_with("http://") || args.url.starts_with("https://") {
        eprintln!("wireloom: the URL of a WebSocket begins with ws:// or wss://");
        return Exit::Usage;
    }
    let connector = match connector(&args) {
        Ok(connector) => connector,
        Err(error) => {
            eprintln!("wireloom: {error}");
            return Exit::Usage;
        }
    };
    let notes = Notes::new();
    match connector.connect(&args.url).await {
        Ok(socket) => {
            if args.verbose > 0 {
                let compressed = if socket.is_compressed() { ", compressed" } else { "" };
                let subprotocol = socket.subprotocol().unwrap_or("none");
                notes.say(&format!("connected{compressed}, subprotocol: {subprotocol}"));
            }
            session::run(&args, socket, notes).await
        }
        Err(error) => {
            eprintln!("wireloom: {}: {error}", args.url);
            if let Error::Refused(response) = &error
                && args.verbose > 0
            {
                for (name, value) in response.headers() {
                    notes.say(&format!("< {name}: {}", terminal::visible(&String::from_utf8_lossy(value))));
                }
            }
            if matches!(error, Error::Url(_)) { Exit::Usage } else { Exit::NotBegun }
        }
    }
}

fn connector(args: &Connect) -> Result<Connector, String> {
    let mut config = WebSocketConfig::default();
    config.core.limits.message_len_max = args.messages.max_message;
    config.core.limits.frame_len_max = args.messages.max_message;
    let mut connector = Connector::new().config(config).redirects_max(args.redirects);
    for name in &args.subprotocol {
        connector = connector.subprotocol(name);
    }
    for (name, value) in &args.header {
        connector = connector.header(name, value);
    }
    if let Some(origin) = &args.origin {
        connector = connector.origin(origin);
    }
    if args.messages.compress {
        connector = connector.deflate(DeflateConfig::default());
    }
    if let Some(timeout) = args.timeout {
        connector = connector.connect_timeout(timeout).handshake_timeout(timeout);
    }
    let mut tls = ClientTls::default();
    if args.tls.insecure {
        tls = tls.insecure();
    }
    if let Some(file) = &args.tls.cacert {
        tls = tls.with_root_file(file).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    if let (Some(cert), Some(key)) = (&args.tls.cert, &args.tls.key) {
        tls = tls.with_identity(cert, key).map_err(|error| format!("{}: {error}", cert.display()))?;
    }
    Ok(connector.tls(tls))
}
