//! `wireloom connect`: lines out, messages in, both at once; or a script of what to send and to expect; or a request.

mod frames;
mod handshake;
mod input;
mod output;
mod reconnecting;
mod request;
mod session;

use wireloom::wireloom_ws::handshake::HandshakeError;
use wireloom::{ClientTls, Connector, DeflateConfig, Error, Keepalive, Proxy, WebSocketConfig};

use crate::args::Connect;
use crate::exit::Exit;
use crate::terminal;
use output::Notes;

pub(crate) fn run(args: Connect) -> Exit {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            terminal::say_error(error);
            return Exit::NotBegun;
        }
    };
    runtime.block_on(connect(args))
}

async fn connect(args: Connect) -> Exit {
    let is_request = args.is_request();
    if let Some(option) = args.misplaced() {
        let kind = if is_request { "an http:// URL" } else { "the URL of a WebSocket" };
        terminal::say_error(format_args!("{option} says nothing to {kind}"));
        return Exit::Usage;
    }
    let notes = Notes::new();
    let connector = match connector(&args, &notes) {
        Ok(connector) => connector,
        Err(error) => {
            terminal::say_error(error);
            return Exit::Usage;
        }
    };
    if is_request {
        return request::run(&args, &connector, notes).await;
    }
    if args.route.reconnect {
        return reconnecting::run(&args, &connector, notes).await;
    }
    match connector.open(&args.url).await {
        Ok(opened) => {
            if args.verbose > 0 {
                handshake::tell(&opened, &notes);
            }
            session::run(&args, opened.socket, notes).await
        }
        Err(error) => {
            handshake::tell_failure(&args.url, &error, args.verbose > 0, &notes);
            verdict(&error)
        }
    }
}

/// What it means that there is no connection: the arguments may be to blame.
fn verdict(error: &Error) -> Exit {
    match error {
        Error::Url(_) | Error::Header | Error::Handshake(HandshakeError::Misuse(_)) => Exit::Usage,
        _ => Exit::NotBegun,
    }
}

fn connector(args: &Connect, notes: &Notes) -> Result<Connector, String> {
    let mut config = WebSocketConfig::default();
    config.core.limits.message_len_max = args.messages.max_message;
    config.core.limits.frame_len_max = args.messages.max_message;
    if args.verbose > 1 {
        config.observer = frames::tell(notes);
    }
    if args.route.reconnect
        && let Some(ping_after) = args.messages.ping
    {
        config.core.keepalive = Some(Keepalive { ping_after, dead_after: ping_after.saturating_mul(3) });
    }
    let mut connector = Connector::new().config(config).redirects_max(args.route.redirects);
    if let Some(proxy) = &args.route.proxy {
        connector = connector.proxy(Proxy::new(proxy).map_err(|error| format!("--proxy: {error}"))?);
    }
    connector = connector.http2(args.route.http2);
    if args.route.proxy_from_env {
        connector = connector.proxy_from_env();
    }
    for name in &args.subprotocol {
        connector = connector.subprotocol(name);
    }
    // A request takes its own.
    if !args.is_request() {
        for (name, value) in &args.header {
            connector = connector.header(name, value);
        }
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
